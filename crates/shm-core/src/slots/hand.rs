//! A slot in this process's hands: loaned to be written, or borrowed to be read.

use core::fmt;
use core::sync::atomic::Ordering;

use super::Slots;
use super::pass::META_WORDS;
use crate::error::{Error, ErrorKind, Result};
use crate::held;
use crate::lane::Lane;
use crate::layout::LINE;
use crate::lease::Kind;
use crate::line::Counted;
use crate::tensor::Element;

/// Index of a ring object's event that says a slot is free.
const SLOT_FREE: u64 = 1;

/// What a lease entry of a slot is to this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// It is FREE, and to be put back.
    Vacant,
    /// It counts: the slot is to be given back.
    Counting,
    /// It counts once the cell of a lane, at `position`, is free; which is to be seen to before the slot is given back.
    Arrived,
    /// A message owns the reference, or may: there is nothing to do, whatever happens.
    Gone,
}

/// A lease entry for a slot, and what it names. What [`Held`](crate::held::Held) is for blocks, without local clones.
pub(super) struct Share {
    // Also keeps the object alive, in whose memory the slot's line lies.
    pub(super) slots: Slots,
    pub(super) generation: u64,
    pub(super) lease: u32,
    pub(super) slot: u32,
    /// Where in a lane it came, for [`State::Arrived`].
    pub(super) position: u64,
    pub(super) state: State,
}

impl Share {
    /// The address of a range of the slot, as long as it is this process's: one that was handed over is another's to touch,
    /// even if its loan is still there.
    fn range<T: Element>(&self, offset: usize, len: usize) -> Result<*mut T> {
        if !matches!(self.state, State::Counting | State::Arrived) {
            return Err(Error::new(
                ErrorKind::Stale,
                "a slot was to be read or written after it had been handed over",
            ));
        }
        self.slots.range(self.slot, offset, len)
    }
}

impl Drop for Share {
    /// As [`held::give_back`], for something that has one holder at most and lies in an object that is known.
    fn drop(&mut self) {
        let object = self.slots.object();
        let arena = object.arena();
        if self.state == State::Gone || arena.is_forked() {
            return;
        }
        let (segment, leases) = (arena.segment(), arena.leases());
        if self.state == State::Vacant {
            leases.put_back(self.lease);
            return;
        }
        if self.state == State::Arrived && Lane(object.messages(0)).release_once(self.position) {
            crate::failpoint!("lane.get.released");
        }
        let line = self.slots.line(self.slot);
        leases.mark(segment, self.lease, Kind::Dropping, line);
        crate::failpoint!("block.drop.recorded");
        // Release: whoever loans it (acquire) does so after all uses. SeqCst: whoever waits for a free slot registers and
        // then looks; we change it and then look for who waits.
        let freed = segment.word(line * LINE).compare_exchange(
            Counted::new(self.generation, 1).to_word(),
            Counted::new(self.generation, 0).to_word(),
            Ordering::SeqCst,
            Ordering::Relaxed,
        );
        if freed.is_err() {
            // Not what a slot is ever like: the careful way says what it found.
            held::give_back(arena, self.lease, line, self.generation);
            return;
        }
        let event = object.event(SLOT_FREE);
        event.notify_all(|count| event.wake(count));
        crate::failpoint!("block.drop.uncounted");
        leases.clear(segment, self.lease);
        leases.put_back(self.lease);
    }
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.slots.line(self.slot), self.generation)
    }
}

/// A slot that this process may write: nobody else has it.
pub struct Loan {
    pub(super) share: Share,
}

impl Loan {
    /// The slots it is one of.
    #[must_use]
    #[inline]
    pub fn slots(&self) -> &Slots {
        &self.share.slots
    }

    /// Which slot it is.
    #[must_use]
    #[inline]
    pub fn slot(&self) -> u32 {
        self.share.slot
    }

    /// `len` elements from byte `offset` of the slot.
    ///
    /// # Errors
    /// `Shape` when they do not fit or are misaligned.
    pub fn slice<T: Element>(&self, offset: usize, len: usize) -> Result<&[T]> {
        let start = self.share.range::<T>(offset, len)?;
        // SAFETY: in bounds, aligned and not handed over (`range`); the slot's line is held once, by this loan, so nobody
        // writes; any bytes are a valid `T` (`Element`); the memory lives as long as `self.share.slots`.
        Ok(unsafe { core::slice::from_raw_parts(start, len) })
    }

    /// `len` elements from byte `offset` of the slot, to write.
    ///
    /// # Errors
    /// `Shape` when they do not fit or are misaligned; `Stale` after the slot was handed over.
    pub fn slice_mut<T: Element>(&mut self, offset: usize, len: usize) -> Result<&mut [T]> {
        let start = self.share.range::<T>(offset, len)?;
        // SAFETY: as in `slice`; and `&mut self` makes this the only slice of the loan.
        Ok(unsafe { core::slice::from_raw_parts_mut(start, len) })
    }

    /// Two disjoint ranges to write at once, each a byte offset and a number of elements.
    ///
    /// # Errors
    /// `Shape` when one does not fit or is misaligned, or they overlap.
    pub fn two_slices_mut<A: Element, B: Element>(
        &mut self,
        first: (usize, usize),
        second: (usize, usize),
    ) -> Result<(&mut [A], &mut [B])> {
        let a = self.share.range::<A>(first.0, first.1)?;
        let b = self.share.range::<B>(second.0, second.1)?;
        // `range` found both to lie in the slot, so nothing overflows.
        let end_of_a = first.0 + first.1 * size_of::<A>();
        let end_of_b = second.0 + second.1 * size_of::<B>();
        if first.0 < end_of_b && second.0 < end_of_a {
            return Err(Error::new(
                ErrorKind::Shape,
                format!(
                    "bytes {}..{end_of_a} and {}..{end_of_b} of a slot were asked for at once; they overlap",
                    first.0, second.0
                ),
            ));
        }
        // SAFETY: as in `slice_mut`; it shares no byte with the other.
        let a = unsafe { core::slice::from_raw_parts_mut(a, first.1) };
        // SAFETY: as above.
        let b = unsafe { core::slice::from_raw_parts_mut(b, second.1) };
        Ok((a, b))
    }
}

impl fmt::Debug for Loan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Loan of slot {} ({:?})", self.share.slot, self.share)
    }
}

/// A slot that this process may read. Dropping it gives the slot back.
pub struct Borrow {
    pub(super) share: Share,
    /// The words that came with it.
    pub(super) meta: [u64; META_WORDS],
}

impl Borrow {
    /// Which slot it is.
    #[must_use]
    #[inline]
    pub fn slot(&self) -> u32 {
        self.share.slot
    }

    /// The words that came with it.
    #[must_use]
    #[inline]
    pub fn meta(&self) -> &[u64; META_WORDS] {
        &self.meta
    }

    /// `len` elements from byte `offset` of the slot.
    ///
    /// # Errors
    /// `Shape` when they do not fit or are misaligned.
    pub fn slice<T: Element>(&self, offset: usize, len: usize) -> Result<&[T]> {
        let start = self.share.range::<T>(offset, len)?;
        // SAFETY: in bounds and aligned (`range`); a published slot is only read until all who hold it let go; any
        // bytes are a valid `T` (`Element`); the memory lives as long as `self.share.slots`.
        Ok(unsafe { core::slice::from_raw_parts(start, len) })
    }
}

impl Drop for Borrow {
    fn drop(&mut self) {
        // Before the share's own drop.
        if matches!(self.share.state, State::Counting | State::Arrived) {
            crate::failpoint!("slot.released");
        }
    }
}

impl fmt::Debug for Borrow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Borrow of slot {} ({:?})", self.share.slot, self.share)
    }
}
