//! A slot in a process's hands: loaned to be written, borrowed to be read.

use std::sync::Arc;

use shm_core::Element;
use shm_core::slots::{Borrow, Loan, META_WORDS};

use crate::error::{Error, Result};
use crate::spec::Layout;

/// Valid extents that travel beside a slot; tensors beyond are always wholly valid.
pub(crate) const EXTENTS: usize = 4;
/// "All of it."
const WHOLE: u32 = u32::MAX;

/// What travels with a slot, inside the cell that names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Meta {
    pub(crate) sequence: u64,
    pub(crate) published_ns: u64,
    pub(crate) extents: [u32; EXTENTS],
    pub(crate) tag: u64,
}

impl Meta {
    pub(crate) fn to_words(self) -> [u64; META_WORDS] {
        let pair =
            |at: usize| u64::from(self.extents[at]) | (u64::from(self.extents[at + 1]) << 32);
        [self.sequence, self.published_ns, pair(0), pair(2), self.tag]
    }

    pub(crate) fn from_words(words: &[u64; META_WORDS]) -> Self {
        let extents = [
            words[2] as u32,
            (words[2] >> 32) as u32,
            words[3] as u32,
            (words[3] >> 32) as u32,
        ];
        Self {
            sequence: words[0],
            published_ns: words[1],
            extents,
            tag: words[4],
        }
    }
}

/// A slot to write: nobody else has it. Dropping it gives it back unpublished.
#[derive(Debug)]
pub struct Slot {
    pub(crate) loan: Loan,
    pub(crate) layout: Arc<Layout>,
    pub(crate) meta: Meta,
}

impl Slot {
    pub(crate) fn new(loan: Loan, layout: Arc<Layout>) -> Self {
        let meta = Meta {
            sequence: 0,
            published_ns: 0,
            extents: [WHOLE; EXTENTS],
            tag: 0,
        };
        Self { loan, layout, meta }
    }

    /// Which slot of the ring it is.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.loan.slot()
    }

    /// All elements of tensor `index`, row-major, to write. They hold what the last user of the slot left.
    ///
    /// # Errors
    /// When there is no such tensor, or its elements are no `T`.
    pub fn tensor_mut<T: Element>(&mut self, index: usize) -> Result<&mut [T]> {
        let place = self.layout.place::<T>(index)?;
        Ok(self.loan.slice_mut(place.offset, place.numel)?)
    }

    /// All elements of two tensors at once, to write.
    ///
    /// # Errors
    /// As [`tensor_mut`](Self::tensor_mut); also for the same tensor twice.
    pub fn two_tensors_mut<A: Element, B: Element>(
        &mut self,
        first: usize,
        second: usize,
    ) -> Result<(&mut [A], &mut [B])> {
        if first == second {
            return Err(Error::invalid(format!(
                "tensor {first} of a slot was asked for twice at once"
            )));
        }
        let a = self.layout.place::<A>(first)?;
        let b = self.layout.place::<B>(second)?;
        Ok(self
            .loan
            .two_slices_mut((a.offset, a.numel), (b.offset, b.numel))?)
    }

    /// Says how many indices of tensor `index`'s first dimension are valid; all, when never said.
    ///
    /// # Errors
    /// For more than the tensor has, and for tensors whose extent does not travel (from the fifth on).
    pub fn set_valid(&mut self, index: usize, rows: usize) -> Result<()> {
        let place = self.layout.at(index)?;
        let extent = self.meta.extents.get_mut(index);
        match (extent, u32::try_from(rows)) {
            (Some(extent), Ok(valid)) if rows <= place.rows && valid != WHOLE => {
                *extent = valid;
                Ok(())
            }
            _ => Err(Error::invalid(format!(
                "{rows} valid rows of tensor {index}: it has {}, and the extents of the first {EXTENTS} tensors travel",
                place.rows
            ))),
        }
    }

    /// A number that the receiver sees, for instance the frame's; 0 when never set.
    pub fn set_sequence(&mut self, sequence: u64) {
        self.meta.sequence = sequence;
    }

    /// One more word of the user's own; 0 when never set.
    pub fn set_tag(&mut self, tag: u64) {
        self.meta.tag = tag;
    }
}

/// A slot to read, where its producer wrote it. Dropping it gives the slot back to the ring.
#[derive(Debug)]
pub struct Borrowed {
    pub(crate) borrow: Borrow,
    pub(crate) layout: Arc<Layout>,
    /// Both 0 on a side that takes no times.
    pub(crate) asked_ns: u64,
    pub(crate) borrowed_ns: u64,
}

impl Borrowed {
    /// Which slot of the ring it is.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.borrow.slot()
    }

    /// The valid elements of tensor `index`, row-major.
    ///
    /// # Errors
    /// When there is no such tensor, or its elements are no `T`.
    pub fn tensor<T: Element>(&self, index: usize) -> Result<&[T]> {
        let place = self.layout.place::<T>(index)?;
        let numel = self
            .valid(index)
            .map_or(place.numel, |rows| rows * place.row);
        Ok(self.borrow.slice(place.offset, numel)?)
    }

    /// How many indices of tensor `index`'s first dimension are valid, where its producer said so.
    #[must_use]
    pub fn valid(&self, index: usize) -> Option<usize> {
        let place = self.layout.tensors.get(index)?;
        let extent = self
            .meta()
            .extents
            .get(index)
            .copied()
            .filter(|&extent| extent != WHOLE)?;
        // What arrives is never trusted to be within the tensor.
        Some((extent as usize).min(place.rows))
    }

    /// The number its producer gave it.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.meta().sequence
    }

    /// The producer's own word.
    #[must_use]
    pub fn tag(&self) -> u64 {
        self.meta().tag
    }

    /// When it was published, CLOCK_MONOTONIC nanoseconds; `None` unless its producer takes times
    /// ([`Producer::timed`](crate::Producer::timed)).
    #[must_use]
    pub fn published_ns(&self) -> Option<u64> {
        taken(self.meta().published_ns)
    }

    /// When this process began to wait for it, CLOCK_MONOTONIC nanoseconds; `None` unless this side takes times
    /// ([`Consumer::timed`](crate::Consumer::timed)).
    #[must_use]
    pub fn asked_ns(&self) -> Option<u64> {
        taken(self.asked_ns)
    }

    /// When this process got it, CLOCK_MONOTONIC nanoseconds; `None` unless this side takes times
    /// ([`Consumer::timed`](crate::Consumer::timed)).
    #[must_use]
    pub fn borrowed_ns(&self) -> Option<u64> {
        taken(self.borrowed_ns)
    }

    fn meta(&self) -> Meta {
        Meta::from_words(self.borrow.meta())
    }
}

/// A time that was taken: no machine has been up for 0 ns.
fn taken(ns: u64) -> Option<u64> {
    (ns != 0).then_some(ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_travels_beside_a_slot_survives_its_words() {
        let meta = Meta {
            sequence: u64::MAX,
            published_ns: 7,
            extents: [1, 2, WHOLE, 0],
            tag: 1 << 63,
        };
        assert_eq!(Meta::from_words(&meta.to_words()), meta);
    }
}
