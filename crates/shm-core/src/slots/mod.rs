//! Slots: tensors made once, that go round between a producer and its consumers.
//!
//! Each slot is a counted line, held by whoever works on it and by the message that names it while it travels, with
//! the same leases as blocks: loan is (g, 0) → (g + 1, 1), publishing gives the reference to a message, borrowing
//! takes it from there, dropping the borrow is (g, 1) → (g, 0), and a count of 0 is a free slot. So a dead borrower's
//! slot comes back by the same reaping. The bytes of all slots lie in one block, page by page apart.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{Error, ErrorKind, Result};
use crate::held::Held;
use crate::layout::{LINE, PAGE, counted};
use crate::line::{Counted, Mode};
use crate::message;
use crate::object::{Array, Object};
use crate::steps;
use crate::storage::Storage;
use crate::tensor::Element;

mod hand;
mod pass;

pub use hand::{Borrow, Loan};
use hand::{Share, State};
pub use pass::{META_WORDS, Seat, Taken};

/// The slots of a ring object, and the memory they share. Clones are cheap.
#[derive(Clone)]
pub struct Slots(Arc<Inner>);

struct Inner {
    // Fields are dropped in this order: the memory before the object whose lines say who uses it.
    memory: Storage,
    object: Object,
    array: usize,
    count: u32,
    first: u64,
    slot_bytes: usize,
}

impl Slots {
    /// Makes the memory for the slots of `object`'s array `array`, `slot_bytes` bytes each.
    ///
    /// # Errors
    /// `WrongMode` when that array is no array of slots; `OutOfRoom`, `CapacityExhausted` for the memory.
    pub fn create(object: &Object, array: usize, slot_bytes: usize) -> Result<Self> {
        let Array::Slots { count } = object.array(array) else {
            return Err(Error::wrong_mode("an object without slots", "a ring"));
        };
        let stride = slot_bytes.max(1).checked_next_multiple_of(PAGE as usize);
        let total = stride
            .and_then(|stride| stride.checked_mul(count as usize))
            .ok_or_else(|| {
                Error::new(
                    ErrorKind::Shape,
                    format!(
                        "{count} slots of {slot_bytes} bytes are more than there are addresses"
                    ),
                )
            })?;
        let memory = Storage::allocate(object.arena(), total, Mode::Slots)?;
        if !object.bind_memory(array, memory.id()) {
            return Err(Error::new(
                ErrorKind::AlreadyExists,
                "the slots of this ring have their memory already; send the `Slots` rather than make them again",
            ));
        }
        Self::over(object.clone(), array, memory)
    }

    fn over(object: Object, array: usize, memory: Storage) -> Result<Self> {
        let placed = object.placed(array);
        let Some((Array::Slots { count }, first)) =
            placed.map(|placed| (placed.array, placed.first))
        else {
            return Err(Error::wrong_mode("an object without slots", "a ring"));
        };
        let slot_bytes = memory.len() / (count as usize).max(1);
        // Slots that lie over the memory of others would be written by two loans at once.
        let belongs = memory.arena().is(object.arena())
            && object.has_memory(array, memory.id())
            && slot_bytes > 0
            && slot_bytes.is_multiple_of(PAGE as usize);
        if !belongs {
            return Err(Error::new(
                ErrorKind::Decode,
                "a ring came with memory that is not its own; a participant wrote where it must not",
            ));
        }
        Ok(Self(Arc::new(Inner {
            memory,
            object,
            array,
            count,
            first,
            slot_bytes,
        })))
    }

    /// Whether both are the slots of the same ring.
    #[must_use]
    #[inline]
    pub fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.object().same(other.object())
    }

    /// The object whose slots these are.
    #[must_use]
    #[inline]
    pub fn object(&self) -> &Object {
        &self.0.object
    }

    /// How many slots there are.
    #[must_use]
    #[inline]
    pub fn count(&self) -> u32 {
        self.0.count
    }

    /// Bytes of one slot, a whole number of pages.
    #[must_use]
    pub fn slot_bytes(&self) -> usize {
        self.0.slot_bytes
    }

    /// Touches every page, so that no page fault comes later in this process. Contents stay.
    pub fn touch(&self) {
        let Inner { memory, .. } = &*self.0;
        let mut at = 0;
        while at < memory.len() {
            // SAFETY: `at` is inside the block, and word-aligned since it is a multiple of the page size.
            let word = unsafe { memory.as_ptr().add(at) };
            // SAFETY: the address is aligned, mapped for as long as `memory` lives, and of eight bytes of the block.
            // A slot may be in use elsewhere at this moment: adding 0 atomically changes nothing anyone reads.
            let word = unsafe { AtomicU64::from_ptr(word.cast()) };
            word.fetch_add(0, Ordering::Relaxed);
            at += PAGE as usize;
        }
    }

    /// Takes any free slot, looking from `hint` on. `None` when all are in use.
    ///
    /// # Errors
    /// `LeasesFull`, `AfterFork`.
    pub fn try_loan(&self, hint: u32) -> Result<Option<Loan>> {
        let arena = self.object().arena();
        arena.check_not_forked("taking a slot")?;
        let (segment, leases) = (arena.segment(), arena.leases());
        let mut lease = None;
        let mut slot = if hint < self.0.count { hint } else { 0 };
        for _ in 0..self.0.count {
            let line = self.line(slot);
            let word = segment.word(line * LINE);
            let seen = word.load(Ordering::Relaxed);
            let free = Counted::from_word(seen);
            if free.count == 0 {
                let lease = match lease {
                    Some(lease) => lease,
                    None => *lease.insert(leases.reserve(segment)?),
                };
                let entry = leases.entry(segment, lease);
                // Several may want the slot, so the generation alone would not tell whose it has become.
                let claim = segment.word(line * LINE + counted::CLAIMANT);
                let present = |owner| arena.is_present(owner);
                if let Some(generation) =
                    steps::acquire_free(&entry, arena.me(), line, (word, claim), present)
                {
                    crate::failpoint!("slot.loaned");
                    let share = Share {
                        slots: self.clone(),
                        generation,
                        lease,
                        slot,
                        position: 0,
                        state: State::Counting,
                    };
                    return Ok(Some(Loan { share }));
                }
            }
            slot = if slot + 1 < self.0.count { slot + 1 } else { 0 };
        }
        if let Some(lease) = lease {
            leases.put_back(lease);
        }
        Ok(None)
    }

    /// How many slots are in use, by anyone.
    #[must_use]
    pub fn in_use(&self) -> u32 {
        let segment = self.object().arena().segment();
        (0..u64::from(self.0.count))
            .filter(|slot| {
                let word = segment
                    .word(self.0.first + slot * LINE)
                    .load(Ordering::Relaxed);
                Counted::from_word(word).count > 0
            })
            .count() as u32
    }

    /// The number of a slot's line.
    #[inline]
    fn line(&self, slot: u32) -> u64 {
        self.0.first / LINE + u64::from(slot)
    }

    /// The address of a range of one slot. In bounds, so that each caller's proof is about aliasing only.
    fn range<T: Element>(&self, slot: u32, offset: usize, len: usize) -> Result<*mut T> {
        let bytes = len
            .checked_mul(size_of::<T>())
            .and_then(|bytes| bytes.checked_add(offset));
        if bytes.is_none_or(|end| end > self.0.slot_bytes)
            || !offset.is_multiple_of(align_of::<T>())
        {
            return Err(Error::new(
                ErrorKind::Shape,
                format!(
                    "{len} elements of {} bytes at byte {offset} do not fit a slot of {} bytes, or are misaligned",
                    size_of::<T>(),
                    self.0.slot_bytes
                ),
            ));
        }
        let start = slot as usize * self.0.slot_bytes + offset;
        // SAFETY: slot < count and the range was just checked to lie in the slot, hence in the block.
        Ok(unsafe { self.0.memory.as_ptr().add(start) }.cast())
    }
}

impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slots")
            .field("count", &self.0.count)
            .field("slot_bytes", &self.0.slot_bytes)
            .finish()
    }
}

impl Serialize for Slots {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        struct Memory<'a>(&'a Held);
        impl Serialize for Memory<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                message::serialize_slots(self.0, serializer)
            }
        }
        (
            Memory(self.0.memory.held()),
            &self.0.object,
            self.0.array as u32,
        )
            .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Slots {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Memory(Held);
        impl<'de> Deserialize<'de> for Memory {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                message::deserialize_slots(deserializer).map(Self)
            }
        }
        let (memory, object, array) = <(Memory, Object, u32)>::deserialize(deserializer)?;
        let memory = Storage::over(memory.0).map_err(message::refuse)?;
        Self::over(object, array as usize, memory).map_err(message::refuse)
    }
}
