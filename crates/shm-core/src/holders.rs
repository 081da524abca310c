//! Whether anybody holds a line, asked while others work: the passes that [`doubt`](crate::doubt) relies on.

use core::ops::Range;
use core::sync::atomic::{Ordering, fence};

use crate::arena::Arena;
use crate::cells::{CellArray, Owner};
use crate::chunk::{Chunks, State, Use};
use crate::class::SLABS;
use crate::doubt::Looker;
use crate::held::{self, Held};
use crate::layout::{LINE, counted, descriptor};
use crate::lease::{self, EntryRef, Kind};
use crate::line::Counted;
use crate::message;
use crate::names;
use crate::object::{ArrayRef, Object};
use crate::participant::table::rows;
use crate::segment::Segment;
use crate::word::{CellState, decode};

/// How often an entry of a living participant that is about to change is looked at, or a cell that changes all the time.
/// What is given up on stays counted, at worst until an audit.
const LOOKS: usize = 1_000;

/// Line and generation.
type Reference = (u64, u64);

impl Looker for Arena {
    fn is_named(&self, line: u64, generation: u64) -> bool {
        let wanted = (line, generation);
        names::header_reference(self) == Some(wanted)
            // Before the passes that count, since it mostly answers.
            || in_entries(self, wanted)
            || in_cells(self, wanted)
            || in_entries(self, wanted)
            || in_cells(self, wanted)
    }

    fn alone<R>(&self, act: impl FnOnce() -> R) -> R {
        let _alone = self.0.looking.lock();
        act()
    }
}

fn in_entries(arena: &Arena, wanted: Reference) -> bool {
    // Before what is read: the pass comes after what its caller did before.
    fence(Ordering::SeqCst);
    let segment = arena.segment();
    rows(segment)
        .filter_map(|row| row.occupant())
        .any(|(owner, _)| {
            lease::entries_of(segment, owner).any(|entry| names_it(arena, owner, &entry, wanted))
        })
}

fn names_it(
    arena: &Arena,
    owner: Owner,
    entry: &EntryRef<'_>,
    (line, generation): Reference,
) -> bool {
    for look in 0..LOOKS {
        let seen = entry.load();
        let is_it = seen.line == line
            && seen.epoch == owner.epoch
            && !matches!(seen.kind, Kind::Free | Kind::Looking)
            && entry.generation.load(Ordering::Relaxed) == generation;
        if !is_it {
            return false;
        }
        if !seen.kind.is_passing() {
            return true;
        }
        // Of the dead, their reaper looks into it, if it is still there. The living are through in a moment, and may have
        // looked before we came.
        if look == 0 && !arena.is_running(owner) && entry.load() == seen {
            return true;
        }
        std::thread::yield_now();
    }
    true
}

/// The lines of blocks that were ever handed out, live or not.
pub(crate) fn block_lines(segment: &Segment) -> impl Iterator<Item = u64> + '_ {
    let chunks = Chunks::new(segment);
    (0..chunks.high()).flat_map(move |chunk| -> Range<u64> {
        match chunks.state(chunk) {
            State::Owned(_, Use::Slab(class)) | State::Orphan(Use::Slab(class)) => {
                let Some(slab) = SLABS.get(class as usize) else {
                    return 0..0;
                };
                let bump = chunks
                    .word(chunk, descriptor::BUMP)
                    .load(Ordering::Acquire)
                    .min(slab.blocks);
                let first = (chunks.offset(chunk) + slab.lines) / LINE;
                first..first + bump
            }
            State::Owned(_, Use::Run(_)) | State::Orphan(Use::Run(_)) => {
                Chunks::run_line(chunk)..Chunks::run_line(chunk) + 1
            }
            _ => 0..0,
        }
    })
}

fn in_cells(arena: &Arena, wanted: Reference) -> bool {
    fence(Ordering::SeqCst);
    let segment = arena.segment();
    block_lines(segment).any(|line| {
        let word = Counted::from_word(segment.word(line * LINE).load(Ordering::Acquire));
        let meta = segment.word(line * LINE + counted::META);
        if word.count == 0 || !held::is_object(meta.load(Ordering::Acquire)) {
            return false;
        }
        // Nothing keeps it: what is read of one that goes meanwhile names nothing that anybody holds.
        let Ok(object) = Object::over(Held::uncounted(arena, line, word.generation)) else {
            return false;
        };
        (0..2).any(|index| {
            messages_of(&object, index).is_some_and(|array| {
                (0..array.capacity()).any(|cell| cell_names(arena, &array, cell, wanted))
            })
        })
    })
}

/// The cells of array `index`, if that holds messages.
pub(crate) fn messages_of(object: &Object, index: usize) -> Option<ArrayRef<'_>> {
    let cells = object.cells(index).map(|cells| cells.0);
    cells
        .or_else(|_| object.lane(index).map(|lane| lane.0))
        .ok()
}

fn cell_names(arena: &Arena, array: &ArrayRef<'_>, cell: u64, wanted: Reference) -> bool {
    for _ in 0..LOOKS {
        let word = array.word(cell).load(Ordering::SeqCst);
        if !holds_message(word) {
            return false;
        }
        let payload = array
            .payload(cell)
            .each_ref()
            .map(|word| word.load(Ordering::Relaxed));
        let names = message::names(arena, &payload, wanted);
        // What was read before the fence was there before the word changed, if it has changed.
        fence(Ordering::Acquire);
        if array.word(cell).load(Ordering::Relaxed) == word {
            return names;
        }
    }
    true
}

/// Whether a cell with this word holds a message.
pub(crate) fn holds_message(word: u64) -> bool {
    matches!(
        decode(word),
        CellState::Ready { .. } | CellState::Taking { .. }
    )
}
