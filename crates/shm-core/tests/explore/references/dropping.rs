//! What a reaper of this world drops, and what it looks at when a count is in doubt.

use std::sync::atomic::Ordering::SeqCst;

use shm_core::cells::{CellArray, Owner};
use shm_core::doubt::Looker;
use shm_core::steps::{self, Counted, EntryRef, Kind, Named, Reaper};
use shm_core::sync::{Atomic64, Memory};
use shm_core::word::{CellState, decode};

use super::{References, Variant, read_name};
use crate::memory::{Explored, Steps};

impl References {
    /// As the real step, but without a second look after a failed swap.
    pub(super) fn drop_carelessly(&self, entry: &EntryRef<'_, Explored>, dead: Owner) {
        loop {
            let seen = entry.load();
            if seen.epoch != dead.epoch || !matches!(seen.kind, Kind::Held | Kind::Dropping) {
                return;
            }
            let generation = entry.generation.load(SeqCst);
            let word = self.counted(seen.line);
            let now = Counted::from_word(word.load(SeqCst));
            let free = seen.with(Kind::Free);
            match (seen.kind, now.count) {
                (_, count) if count == 0 || now.generation != generation => {
                    entry.change(seen, free);
                    return;
                }
                (Kind::Held, 1) => {
                    entry.change(seen, seen.with(Kind::Dropping));
                }
                (Kind::Dropping, 1) => {
                    steps::free(word, generation);
                }
                _ => {
                    if entry.change(seen, free) {
                        steps::release_unrecorded(word, generation, || {
                            steps::free(word, generation)
                        });
                    }
                    return;
                }
            }
        }
    }
}

/// What a reaper needs of this world.
pub(super) struct Dropper<'a>(pub(super) &'a References);

impl Reaper<Explored> for Dropper<'_> {
    fn named(&self, line: u64) -> Named<'_, Explored> {
        Named::Line {
            words: self.0.counts_of(line),
            meta: 0,
        }
    }

    fn free_last(&self, line: u64, generation: u64) -> bool {
        steps::free(self.0.counted(line), generation)
    }

    fn after_free(&self, _: u64, _: u64) {}

    fn let_go(&self, _: u64) {}
}

impl Looker for Dropper<'_> {
    fn is_named(&self, line: u64, generation: u64) -> bool {
        self.0.is_named(line, generation)
    }
}

/// As `holders`.
impl Looker for References {
    fn is_named(&self, line: u64, generation: u64) -> bool {
        let alone = self.is(Variant::EntriesAlone);
        (!alone && self.in_cells(line, generation))
            || self.in_entries(line, generation)
            || (!alone && self.in_cells(line, generation))
    }
}

impl References {
    fn in_cells(&self, line: u64, generation: u64) -> bool {
        (0..self.config.cells).any(|cell| {
            let word = (&self).word(cell).load(SeqCst);
            let holds = matches!(
                decode(word),
                CellState::Ready { .. } | CellState::Taking { .. }
            );
            // The payload of a cell whose word was this is read in the same step as the word: it is looked at again anyway.
            holds && {
                let held = read_name((&self).payload(cell)[0].load(SeqCst));
                (u64::from(held.line), held.generation) == (line, generation)
            }
        })
    }

    fn in_entries(&self, line: u64, generation: u64) -> bool {
        (0..self.users()).any(|row| {
            (0..self.entries_of(row)).any(|index| self.entry_names(row, index, line, generation))
        })
    }

    fn entry_names(&self, row: usize, index: usize, line: u64, generation: u64) -> bool {
        let entry = self.entry(row, index);
        Steps::retry_loop();
        loop {
            let seen = entry.load();
            let is_it = seen.line == line
                && !matches!(seen.kind, Kind::Free | Kind::Looking)
                && entry.generation.load(SeqCst) == generation;
            if !is_it {
                return false;
            }
            if !seen.kind.is_passing() || self.is(Variant::NoWait) {
                return true;
            }
            // If it is still there, the dead one's reaper looks into it.
            let is_dead = self.words[super::ENDED + row].load(SeqCst) == 1;
            if is_dead && entry.load() == seen {
                return true;
            }
            Steps::retry();
        }
    }
}
