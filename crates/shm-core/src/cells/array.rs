//! Where the words of a queue or lane lie, and what both do with them alike.

use core::sync::atomic::Ordering::{Relaxed, Release};

use crate::sync::{Atomic64, Memory};
use crate::word::{self, Ring};

/// Words of payload in a cell: with the control word they fill a cache line.
pub const PAYLOAD_WORDS: usize = 7;

/// Bit of [`CellArray::closed`] that says no message is accepted any more.
pub const CLOSED_FLAG: u64 = 1;

/// The words of one cell.
#[derive(Debug)]
pub struct Cell<'a, M: Memory> {
    /// Its control word.
    pub word: &'a M::U64,
    /// Its payload.
    pub payload: &'a [M::U64; PAYLOAD_WORDS],
}

impl<M: Memory> Cell<'_, M> {
    /// Writes the payload. Relaxed: the word's publication hands it on.
    #[inline(always)]
    pub(crate) fn write(&self, payload: &[u64; PAYLOAD_WORDS]) {
        for (to, from) in self.payload.iter().zip(payload) {
            to.store(*from, Relaxed);
        }
    }

    /// Reads the payload. Relaxed: the acquire load of the word came before.
    #[inline(always)]
    pub(crate) fn read(&self) -> [u64; PAYLOAD_WORDS] {
        self.payload.each_ref().map(|from| from.load(Relaxed))
    }

    /// As [`read`](Self::read), into a place, each word little endian.
    #[inline(always)]
    pub(crate) fn read_into(&self, place: &mut [u64; PAYLOAD_WORDS]) {
        for (to, from) in place.iter_mut().zip(self.payload) {
            *to = from.load(Relaxed).to_le();
        }
    }
}

/// Where the words of a queue lie.
///
/// Cells, `tail` and `head` belong on cache lines of their own. `orphan_epoch` and `closed` are
/// written rarely and read on each operation, so they can share one. An implementation must give
/// the same places each time, and for each `index` below the capacity.
pub trait CellArray {
    /// The memory they lie in.
    type M: Memory;

    /// Number of cells, at least 1; not read from memory that others may write.
    fn capacity(&self) -> u64;
    /// The control word of a cell.
    fn word(&self, index: u64) -> &<Self::M as Memory>::U64;
    /// The payload of a cell.
    fn payload(&self, index: u64) -> &[<Self::M as Memory>::U64; PAYLOAD_WORDS];
    /// Both.
    #[inline(always)]
    fn cell(&self, index: u64) -> Cell<'_, Self::M> {
        Cell {
            word: self.word(index),
            payload: self.payload(index),
        }
    }
    /// Hint: the next position to claim; never above the first FREE one.
    fn tail(&self) -> &<Self::M as Memory>::U64;
    /// Hint: the next position to take; never above the first one not taken.
    fn head(&self) -> &<Self::M as Memory>::U64;
    /// Grows after messages were handed back.
    fn orphan_epoch(&self) -> &<Self::M as Memory>::U64;
    /// Flags; bit 0 is [`CLOSED_FLAG`], the others are the implementor's.
    fn closed(&self) -> &<Self::M as Memory>::U64;
}

/// Makes empty cells of zeroed memory that nobody else sees yet.
pub(crate) fn init<A: CellArray>(cells: &A) {
    for index in 0..cells.capacity() {
        cells.word(index).store(word::free(index), Release);
    }
}

/// Writes a payload. Relaxed: the word's publication hands it on.
#[inline(always)]
pub(crate) fn write<A: CellArray>(cells: &A, pos: u64, payload: &[u64; PAYLOAD_WORDS]) {
    let ring = Ring {
        capacity: cells.capacity(),
    };
    cells.cell(ring.index(pos)).write(payload);
}

/// Reads a payload. Relaxed: the acquire load of the word came before.
#[inline(always)]
pub(crate) fn read<A: CellArray>(cells: &A, pos: u64) -> [u64; PAYLOAD_WORDS] {
    let ring = Ring {
        capacity: cells.capacity(),
    };
    cells.cell(ring.index(pos)).read()
}

/// As [`read`], into a place, each word little endian.
#[inline(always)]
pub(crate) fn read_into<A: CellArray>(cells: &A, pos: u64, place: &mut [u64; PAYLOAD_WORDS]) {
    let ring = Ring {
        capacity: cells.capacity(),
    };
    cells.cell(ring.index(pos)).read_into(place);
}

/// How far `tail` is ahead of `head`.
pub(crate) fn len<A: CellArray>(cells: &A) -> u64 {
    let head = cells.head().load(Relaxed);
    let tail = cells.tail().load(Relaxed);
    tail.saturating_sub(head).min(cells.capacity())
}
