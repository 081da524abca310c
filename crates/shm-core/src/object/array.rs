//! The arrays of an object: cells, lanes, and the counted lines of slots.

use core::sync::atomic::AtomicU64;

use crate::cells::{CellArray, PAYLOAD_WORDS};
use crate::sync::Shared;

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
}

impl Array {
    pub(super) fn code_and_count(self) -> (u64, u64) {
        match self {
            Self::None => (0, 0),
            Self::Cells { capacity } => (1, capacity.into()),
            Self::Lane { capacity } => (2, capacity.into()),
            Self::Slots { count } => (3, count.into()),
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
#[derive(Debug)]
pub struct ArrayRef<'a> {
    pub(super) words: &'a [AtomicU64],
    pub(super) tail: &'a AtomicU64,
    pub(super) head: &'a AtomicU64,
    pub(super) orphan_epoch: &'a AtomicU64,
    pub(super) flags: &'a AtomicU64,
    pub(super) capacity: u64,
    pub(crate) first: u64,
}

impl CellArray for ArrayRef<'_> {
    type M = Shared;

    #[inline]
    fn capacity(&self) -> u64 {
        self.capacity
    }

    #[inline]
    fn word(&self, index: u64) -> &AtomicU64 {
        &self.words[index as usize * 8]
    }

    #[inline]
    fn payload(&self, index: u64) -> &[AtomicU64; PAYLOAD_WORDS] {
        let start = index as usize * 8 + 1;
        match self.words[start..start + PAYLOAD_WORDS].try_into() {
            Ok(words) => words,
            Err(_) => unreachable!("the range has that many words"),
        }
    }

    #[inline]
    fn tail(&self) -> &AtomicU64 {
        self.tail
    }

    #[inline]
    fn head(&self) -> &AtomicU64 {
        self.head
    }

    #[inline]
    fn orphan_epoch(&self) -> &AtomicU64 {
        self.orphan_epoch
    }

    #[inline]
    fn closed(&self) -> &AtomicU64 {
        self.flags
    }
}
