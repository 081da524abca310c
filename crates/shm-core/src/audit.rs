//! The audit: does every count say how many hold it?
//!
//! While nobody works on the arena, the count of each line must equal the lease entries that count plus the messages
//! that name it. A kill may leave a count too high by one (a leak), never too low.

use core::sync::atomic::Ordering;
use std::collections::HashMap;

use crate::arena::Arena;
use crate::cells::CellArray;
use crate::held::{self, Held};
use crate::holders;
use crate::layout::{LINE, counted};
use crate::lease::{self, Kind};
use crate::line::{Counted, Mode, Tag};
use crate::message;
use crate::names;
use crate::object::{Array, Object};
use crate::participant::table::rows;

/// A line whose count is not what holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Difference {
    /// Number of the line.
    pub line: u64,
    /// Its count.
    pub count: u64,
    /// Lease entries and messages that count.
    pub holders: u64,
}

/// What an audit found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Audit {
    /// Lines in use: blocks, ends, slots.
    pub lines: u64,
    /// Counts above their holders: memory that nobody will free.
    pub leaked: Vec<Difference>,
    /// Counts below their holders: this must never be.
    pub missing: Vec<Difference>,
}

impl Arena {
    /// Compares all counts with who holds them. Only right while no participant works on the arena.
    #[must_use]
    pub fn audit(&self) -> Audit {
        let segment = self.segment();
        let mut holders: HashMap<(u64, u64), u64> = HashMap::new();
        // The header is a holder as well.
        if let Some(names) = names::header_reference(self) {
            holders.insert(names, 1);
        }
        for row in rows(segment) {
            let Some((owner, _)) = row.occupant() else {
                continue;
            };
            for entry in lease::entries_of(segment, owner) {
                let seen = entry.load();
                if seen.epoch == owner.epoch && seen.kind != Kind::Free && !seen.kind.is_in_doubt()
                {
                    *holders
                        .entry((seen.line, entry.generation.load(Ordering::Relaxed)))
                        .or_default() += 1;
                }
            }
        }
        let mut lines = Vec::new();
        for line in holders::block_lines(segment) {
            let word = Counted::from_word(segment.word(line * LINE).load(Ordering::Acquire));
            if word.count == 0 {
                continue;
            }
            lines.push((line, word));
            let meta = segment
                .word(line * LINE + counted::META)
                .load(Ordering::Acquire);
            if Tag::from_meta(meta) == Some(Tag::Block)
                && Mode::from_meta(meta) == Some(Mode::Object)
            {
                self.audit_object(line, word.generation, &mut holders, &mut lines);
            }
        }
        let mut audit = Audit {
            lines: lines.len() as u64,
            ..Audit::default()
        };
        for (line, word) in lines {
            let held = holders.remove(&(line, word.generation)).unwrap_or(0);
            let difference = Difference {
                line,
                count: word.count,
                holders: held,
            };
            match word.count.cmp(&held) {
                std::cmp::Ordering::Greater => audit.leaked.push(difference),
                std::cmp::Ordering::Less => audit.missing.push(difference),
                std::cmp::Ordering::Equal => {}
            }
        }
        // Entries that name something that is not there any more.
        audit
            .missing
            .extend(holders.into_iter().map(|((line, _), holders)| Difference {
                line,
                count: 0,
                holders,
            }));
        audit
    }

    /// Gives back what the audit finds leaked, so that its memory can be used again. Answers what there was.
    ///
    /// # Safety
    /// No participant, and no other thread of this process, may work on the arena meanwhile, or come to it: a reference that
    /// is just being taken looks like a leak, and what it names would be freed under whoever took it.
    pub unsafe fn repair_leaks(&self) -> Audit {
        let audit = self.audit();
        for found in &audit.leaked {
            let word = Counted::from_word(
                self.segment()
                    .word(found.line * LINE + counted::WORD)
                    .load(Ordering::Acquire),
            );
            for _ in found.holders..found.count {
                held::release_unrecorded(self, found.line, word.generation);
            }
        }
        audit
    }

    /// [`repair_leaks`](Self::repair_leaks) for rounds of chaos, whose members have all been waited for. Compiled for them
    /// only: in a program this would be a way to free what others use.
    #[cfg(feature = "chaos")]
    #[doc(hidden)]
    pub fn repair_leaks_of_the_dead(&self) -> Audit {
        // SAFETY: the feature is not for programs; those who enable it call this when all others have ended, on the one
        // thread that still has the arena.
        unsafe { self.repair_leaks() }
    }

    /// Adds what an object's messages hold, and its ends and slots in use.
    fn audit_object(
        &self,
        line: u64,
        generation: u64,
        holders: &mut HashMap<(u64, u64), u64>,
        lines: &mut Vec<(u64, Counted)>,
    ) {
        let segment = self.segment();
        // Nobody works on the arena, so nothing needs to be kept.
        let Ok(object) = Object::over(Held::uncounted(self, line, generation)) else {
            return;
        };
        let mut inner: Vec<u64> = (0..2).map(|end| object.end_line(end)).collect();
        for index in 0..2 {
            match object.array(index) {
                Array::Slots { count } => {
                    let first = object.placed(index).map_or(0, |placed| placed.first / LINE);
                    inner.extend(first..first + u64::from(count));
                }
                Array::Cells { .. } | Array::Lane { .. } => {
                    let payloads = cells_with_messages(&object, index);
                    for payload in payloads {
                        if let Ok(parsed) = message::parse(self, &payload) {
                            for entry in parsed.entries {
                                *holders.entry((entry.line, entry.generation)).or_default() += 1;
                            }
                        }
                    }
                }
                Array::None | Array::Permits { .. } => {}
            }
        }
        for line in inner {
            let word = Counted::from_word(segment.word(line * LINE).load(Ordering::Acquire));
            if word.count > 0 {
                lines.push((line, word));
            }
        }
    }
}

fn cells_with_messages(object: &Object, index: usize) -> Vec<[u64; crate::cells::PAYLOAD_WORDS]> {
    let Some(array) = holders::messages_of(object, index) else {
        return Vec::new();
    };
    (0..array.capacity())
        .filter(|&cell| holders::holds_message(array.word(cell).load(Ordering::Acquire)))
        .map(|cell| {
            let words = array.payload(cell);
            core::array::from_fn(|word| words[word].load(Ordering::Relaxed))
        })
        .collect()
}
