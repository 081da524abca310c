//! The arrays of an object: cells, lanes, and the counted lines of slots.

use core::sync::atomic::{AtomicU64, Ordering};

use super::Object;
use crate::cells::{Cell, CellArray, Cells, PAYLOAD_WORDS};
use crate::lane::{At, Lane};
use crate::layout::{LINE, WORD, object};
use crate::lease::Ticket;
use crate::message::FORM_BLOCK;
use crate::prefetch::{prefetch, prefetch_for_writing};
use crate::segment::{Extent, Segment};
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
    /// The words of cells; none of what has no messages.
    pub(super) words: Extent,
    /// How many cells there are.
    pub(super) capacity: u64,
    /// Of a lane: see [`apart`].
    pub(super) apart: u64,
}

impl Placed {
    /// No array.
    pub(super) const NONE: Self = Self {
        array: Array::None,
        first: 0,
        words: Extent::NONE,
        capacity: 0,
        apart: 0,
    };

    /// An array whose lines begin at `first`; `None` if they do not lie in the arena.
    pub(super) fn at(segment: &Segment, array: Array, first: u64) -> Option<Self> {
        let (capacity, apart) = match array {
            Array::Cells { capacity } => (capacity.into(), 0),
            Array::Lane { capacity } => (capacity.into(), apart(capacity.into())),
            Array::None | Array::Slots { .. } | Array::Permits { .. } => (0, 0),
        };
        let words = match capacity {
            0 => Extent::NONE,
            cells => segment.extent(first, cells * (LINE / WORD))?,
        };
        Some(Self {
            array,
            first,
            words,
            capacity,
            apart,
        })
    }
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
    /// How far away the cells of odd index lie: see [`apart`].
    pub(super) apart: u64,
}

/// By what the index of a lane's cell with an odd index is changed (exclusive or) for the place where it lies: half the
/// lane. Of cells one after the other at equal distances the consumer's processor would fetch the next ones ahead, and so
/// take from the producer the line that it is about to write. 0 for lanes without two equal halves.
#[inline(always)]
pub(crate) const fn apart(capacity: u64) -> u64 {
    if capacity >= 4 && capacity.is_power_of_two() {
        capacity / 2
    } else {
        0
    }
}

/// Where the cell of an index lies. Its own inverse.
#[inline(always)]
pub(crate) const fn place(index: u64, apart: u64) -> u64 {
    index ^ ((index & 1).wrapping_neg() & apart)
}

/// Words in the header of an object.
pub(crate) const HEADER_WORDS: usize = (object::USER / WORD) as usize;

/// What a consumer looks at while it spins.
#[derive(Debug)]
pub struct Lookout<'a> {
    pub(super) watched: Watched<'a>,
    pub(super) segment: &'a Segment,
}

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
        match &self.watched {
            Watched::Cells(cells) => cells.glance() && foresee(self.segment, cells),
            Watched::Lane(lane) => lane.glance(),
            Watched::Nothing => false,
        }
    }
}

/// Asks for the lines that whoever takes the next message, which is there, is going to need from its producer: that of the
/// cell, to be written, and the counted line of the memory that the message hands on. So they come at the same time, and
/// while what takes the message gets ready for it. No page is committed by it, whatever the message names. Always `true`.
#[inline]
pub(crate) fn foresee(segment: &Segment, cells: &Cells<ArrayRef<'_>>) -> bool {
    // Relaxed: a hint, and if somebody else takes the message first, one in vain.
    let head = cells.0.head().load(Ordering::Relaxed);
    let cell = cells.0.cell(cells.0.index(head));
    prefetch_for_writing(cell.word);
    let named = cell.payload[0].load(Ordering::Relaxed);
    if named as u8 == FORM_BLOCK
        && let Some(line) = (named >> 8).checked_mul(LINE)
        && let Some(word) = segment.u64_at(line)
    {
        prefetch(word);
    }
    true
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

    /// Offset of the word of a position's cell in the arena.
    #[inline]
    pub(crate) fn offset(&self, pos: u64) -> u64 {
        self.offset_of(self.index(pos))
    }

    /// Offset of the word of a cell in the arena.
    #[inline(always)]
    fn offset_of(&self, index: u64) -> u64 {
        self.first + self.place(index) * LINE
    }

    #[inline(always)]
    fn place(&self, index: u64) -> u64 {
        place(index, self.apart)
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
        &self.cells[self.place(index) as usize * 8]
    }

    #[inline(always)]
    fn payload(&self, index: u64) -> &[AtomicU64; PAYLOAD_WORDS] {
        let start = self.place(index) as usize * 8 + 1;
        match self.cells[start..start + PAYLOAD_WORDS].try_into() {
            Ok(words) => words,
            Err(_) => unreachable!("the range has that many words"),
        }
    }

    #[inline(always)]
    fn cell(&self, index: u64) -> Cell<'_, Shared> {
        let start = self.place(index) as usize * 8;
        match &self.cells[start..start + 8] {
            [word, payload @ ..] => match payload.try_into() {
                Ok(payload) => Cell { word, payload },
                Err(_) => unreachable!("the range has that many words"),
            },
            [] => unreachable!("the range has that many words"),
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

impl At<'_, ArrayRef<'_>> {
    /// What names the message of this position in a lease.
    #[inline(always)]
    pub(crate) fn ticket(&self) -> Ticket {
        Ticket {
            cell: self.lane.0.offset_of(self.index),
            position: self.pos,
        }
    }
}

impl Object {
    /// Ties an array of slots to the block that is their memory. `false` if it has one already.
    pub(crate) fn bind_memory(&self, array: usize, memory: (u64, u64)) -> bool {
        let [line, generation] = self.memory_words(array);
        let bound = generation
            .compare_exchange(0, memory.1 + 1, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok();
        if bound {
            line.store(memory.0, Ordering::Release);
        }
        bound
    }

    /// Whether that block is the memory of an array of slots.
    pub(crate) fn has_memory(&self, array: usize, memory: (u64, u64)) -> bool {
        let [line, generation] = self.memory_words(array);
        (
            line.load(Ordering::Acquire),
            generation.load(Ordering::Acquire),
        ) == (memory.0, memory.1 + 1)
    }

    fn memory_words(&self, array: usize) -> [&AtomicU64; 2] {
        let descriptor = object::ARRAYS + array as u64 * object::ARRAY;
        [2, 3].map(|word| self.header(descriptor + word * WORD))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cell_has_a_place_of_its_own_and_neighbours_of_a_lane_lie_apart() {
        for capacity in 1..70_u64 {
            let mut places: Vec<u64> = (0..capacity)
                .map(|index| place(index, apart(capacity)))
                .collect();
            if capacity >= 8 && capacity.is_power_of_two() {
                let steps: Vec<u64> = places
                    .windows(2)
                    .map(|at| at[1].wrapping_sub(at[0]))
                    .collect();
                assert!(
                    steps.windows(3).all(|at| at[0] != at[1] || at[1] != at[2]),
                    "{places:?}"
                );
            }
            places.sort_unstable();
            assert!(places.into_iter().eq(0..capacity));
        }
    }
}
