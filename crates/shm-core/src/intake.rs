//! Messages between their cell and the program that gets them: what dies with a consumer and nobody else can know of.
//!
//! From the release of its cell until it is handed to the program a message is nowhere but in the consumer. So a thread
//! that takes one writes which cell it was into a word of its process's row, before it frees the cell, and clears that
//! after. A reaper that finds such a word, and that cell no longer TAKING by the dead, counts a message lost. Two plain
//! stores into a line that only this process writes.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::arena::Arena;
use crate::cells::Owner;
use crate::layout::{LINE, WORD, row};
use crate::object;
use crate::participant::table::Row;
use crate::segment::Segment;
use crate::sync::Atomic64;
use crate::word::{self, CellState};

/// Bits of a word that say which cell: its line, and one more than it, so that 0 is none.
const CELL_BITS: u32 = 38;
const CELL_MASK: u64 = (1 << CELL_BITS) - 1;
/// Bits of the lap that fit beside it.
const LAP_MASK: u64 = (1 << (64 - CELL_BITS)) - 1;

/// Threads of this process that have a word each; of those beyond them nothing is counted.
static TAKEN: AtomicU64 = AtomicU64::new(!0 << row::INTAKES);

/// A thread's word, until the thread ends.
struct Turn(Option<u64>);

impl Turn {
    fn take() -> Self {
        let claimed = TAKEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
            (taken != !0).then(|| taken | (taken + 1))
        });
        Self(claimed.ok().map(|taken| u64::from(taken.trailing_ones())))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(index) = self.0 {
            TAKEN.fetch_and(!(1 << index), Ordering::Relaxed);
        }
    }
}

thread_local! {
    static TURN: Turn = Turn::take();
}

/// Notes that this thread has taken the message of a cell in lap `lap` out of it, as long as it lives. Before the cell is
/// freed.
pub(crate) struct Intake<'a>(Option<&'a AtomicU64>);

impl<'a> Intake<'a> {
    #[inline]
    pub(crate) fn begin(arena: &'a Arena, cell: u64, lap: u64) -> Self {
        // On a thread that is ending it is not noted.
        let index = TURN.try_with(|turn| turn.0).ok().flatten();
        let own = index.and_then(|index| {
            Some(Row::get(arena.segment(), arena.me().row)?.word(row::INTAKE + index * WORD))
        });
        if let Some(word) = own {
            note(word, cell, lap);
        }
        Self(own)
    }
}

impl Drop for Intake<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(word) = self.0 {
            clear(word);
        }
    }
}

const fn of(cell: u64, lap: u64) -> u64 {
    (cell + 1) & CELL_MASK | (lap & LAP_MASK) << CELL_BITS
}

/// Writes down that the message of a cell in lap `lap` is about to be nowhere else, before the cell is freed.
#[inline]
pub fn note<W: Atomic64>(word: &W, cell: u64, lap: u64) {
    // Relaxed: the cell is freed by a read-modify-write that releases this with it, and to a reaper all that the dead have
    // stored is visible anyway.
    word.store(of(cell, lap), Ordering::Relaxed);
}

/// The program has the message.
#[inline]
pub fn clear<W: Atomic64>(word: &W) {
    // Release: not before what is done with the message.
    word.store(0, Ordering::Release);
}

/// What the dead had noted, cell and lap, for one reaper only.
pub fn take_note<W: Atomic64>(word: &W) -> Option<(u64, u64)> {
    let noted = word.swap(0, Ordering::AcqRel);
    Some(((noted & CELL_MASK).checked_sub(1)?, noted >> CELL_BITS))
}

/// Whether the cell with this word still has the message that the dead one was taking in that lap; before its cells are
/// reaped.
pub fn has_it_still<W: Atomic64>(cell: &W, dead: Owner, lap: u64) -> bool {
    matches!(
        word::decode(cell.load(Ordering::Acquire)),
        CellState::Taking { owner, lap: bits, .. } if owner == dead && bits & LAP_MASK == lap
    )
}

/// Counts what a dead participant had taken out of cells and not handed to its program. Before its cells are reaped, which
/// hand back what is still in them. A reaper that is killed on the way misses one.
pub(crate) fn reap(arena: &Arena, dead: Owner) {
    let segment = arena.segment();
    let Some(row) = Row::get(segment, dead.row) else {
        return;
    };
    for index in 0..row::INTAKES {
        if let Some((cell, lap)) = take_note(row.word(row::INTAKE + index * WORD))
            && !is_still_there(segment, dead, cell, lap)
        {
            object::count_lost_message(arena, cell);
        }
    }
}

/// Whether the cell at this line says that the dead one was taking its message in that lap.
fn is_still_there(segment: &Segment, dead: Owner, cell: u64, lap: u64) -> bool {
    let word = segment.u64_at(cell * LINE);
    word.is_some_and(|word| has_it_still(word, dead, lap))
}

/// Empties the words of a row for its next occupant.
pub(crate) fn init(row: Row<'_>) {
    for index in 0..row::INTAKES {
        row.word(row::INTAKE + index * WORD)
            .store(0, Ordering::Relaxed);
    }
}
