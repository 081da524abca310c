//! The arrays of an object: cells, lanes, and the counted lines of slots.

use core::sync::atomic::AtomicU64;

use crate::cells::{CellArray, Cells, PAYLOAD_WORDS};
use crate::lane::Lane;
use crate::layout::{LINE, WORD, object};
use crate::sync::Shared;
use crate::word::Ring;

/// An array in an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Array {
    /// No array.
    None,
    /// Cells for any number of producers and consumers.
    Cells {
        /// How many messages it holds.
        capacity: u32,
    },
    /// A lane for one producer and one consumer.
    Lane {
        /// How many messages it holds.
        capacity: u32,
    },
    /// Counted lines, one per slot of a ring.
    Slots {
        /// How many.
        count: u32,
    },
    /// Words of permits, each of which says who holds it ([`crate::permits`]).
    Permits {
        /// How many.
        count: u32,
    },
}

impl Array {
    pub(crate) const fn code_and_count(self) -> (u64, u64) {
        match self {
            Self::None => (0, 0),
            Self::Cells { capacity } => (1, capacity as u64),
            Self::Lane { capacity } => (2, capacity as u64),
            Self::Slots { count } => (3, count as u64),
            Self::Permits { count } => (4, count as u64),
        }
    }

    /// Lines that it takes.
    pub(super) fn lines(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Cells { capacity } | Self::Lane { capacity } => capacity.into(),
            Self::Slots { count } => count.into(),
            Self::Permits { count } => u64::from(count).div_ceil(LINE / WORD),
        }
    }
}

/// Where an array lies; checked once against the object's size, then never read again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    pub(crate) array: Array,
    /// Offset of the first line in the arena.
    pub(crate) first: u64,
}

/// An array of cells in an object, as the algorithms of [`crate::cells`] and [`crate::lane`] see it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ArrayRef<'a> {
    pub(super) cells: &'a [AtomicU64],
    /// The object's own words, in front of all arrays.
    pub(super) header: &'a [AtomicU64; HEADER_WORDS],
    /// Which of the object's arrays.
    pub(super) index: usize,
    pub(super) capacity: u64,
    pub(crate) first: u64,
}

/// Words in the header of an object.
pub(crate) const HEADER_WORDS: usize = (object::USER / WORD) as usize;

/// What a consumer looks at while it spins.
#[derive(Debug)]
pub struct Lookout<'a>(pub(super) Watched<'a>);

#[derive(Debug)]
pub(super) enum Watched<'a> {
    Cells(Cells<ArrayRef<'a>>),
    Lane(Lane<ArrayRef<'a>>),
    Nothing,
}

impl Lookout<'_> {
    /// Whether it is worth trying to take a message. Only a hint: one that was handed back, or the end, is not seen.
    #[inline(always)]
    #[must_use]
    pub fn glance(&self) -> bool {
        match &self.0 {
            Watched::Cells(cells) => cells.glance(),
            Watched::Lane(lane) => lane.glance(),
            Watched::Nothing => false,
        }
    }
}

impl ArrayRef<'_> {
    /// The positions of its cells.
    #[inline]
    pub(crate) fn ring(&self) -> Ring {
        Ring {
            capacity: self.capacity,
        }
    }

    /// The cell of a position.
    #[inline]
    pub(crate) fn index(&self, pos: u64) -> u64 {
        self.ring().index(pos)
    }
}

impl CellArray for ArrayRef<'_> {
    type M = Shared;

    #[inline]
    fn capacity(&self) -> u64 {
        self.capacity
    }

    #[inline(always)]
    fn word(&self, index: u64) -> &AtomicU64 {
        &self.cells[index as usize * 8]
    }

    #[inline(always)]
    fn payload(&self, index: u64) -> &[AtomicU64; PAYLOAD_WORDS] {
        let start = index as usize * 8 + 1;
        match self.cells[start..start + PAYLOAD_WORDS].try_into() {
            Ok(words) => words,
            Err(_) => unreachable!("the range has that many words"),
        }
    }

    #[inline(always)]
    fn tail(&self) -> &AtomicU64 {
        &self.header[((object::TAILS + 2 * self.index as u64 * LINE) / WORD) as usize]
    }

    #[inline(always)]
    fn head(&self) -> &AtomicU64 {
        &self.header[((object::TAILS + (2 * self.index as u64 + 1) * LINE) / WORD) as usize]
    }

    #[inline(always)]
    fn orphan_epoch(&self) -> &AtomicU64 {
        &self.header[(object::ORPHAN_EPOCH / WORD) as usize]
    }

    #[inline(always)]
    fn closed(&self) -> &AtomicU64 {
        &self.header[(object::FLAGS / WORD) as usize]
    }
}
