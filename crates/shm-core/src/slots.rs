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

use crate::cells::PAYLOAD_WORDS;
use crate::error::{Error, ErrorKind, Result};
use crate::held::Held;
use crate::layout::{LINE, PAGE};
use crate::line::Mode;
use crate::message::{self, FORM_SLOT, Outgoing, Pin, Pins, What};
use crate::object::{Array, Object};
use crate::storage::Storage;
use crate::tensor::Element;

/// Words that travel with a slot, inside the cell that names it.
pub const META_WORDS: usize = PAYLOAD_WORDS - 2;

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
    pub fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.object().same(other.object())
    }

    /// The object whose slots these are.
    #[must_use]
    pub fn object(&self) -> &Object {
        &self.0.object
    }

    /// How many slots there are.
    #[must_use]
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
        self.object().arena().check_not_forked("taking a slot")?;
        for step in 0..self.0.count {
            let slot = (hint % self.0.count + step) % self.0.count;
            let line = self.0.first / LINE + u64::from(slot);
            if let Some(held) = Held::acquire_free(self.object().arena(), line)? {
                crate::failpoint!("slot.loaned");
                return Ok(Some(Loan {
                    held,
                    slot,
                    slots: self.clone(),
                }));
            }
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
                crate::line::Counted::from_word(word).count > 0
            })
            .count() as u32
    }

    /// The slot that an arrived message names.
    ///
    /// # Errors
    /// `Decode` when the message names no slot of this ring.
    pub fn borrow(&self, mut incoming: message::Incoming) -> Result<Borrow> {
        let malformed = || {
            Error::new(
                ErrorKind::Decode,
                "a ring's message names no slot of that ring; a participant wrote where it must not",
            )
        };
        let arrived = incoming
            .entries
            .0
            .pop()
            .flatten()
            .filter(|arrived| {
                arrived.what == What::Slot && arrived.held.arena().is(self.object().arena())
            })
            .ok_or_else(malformed)?;
        let slot = arrived
            .held
            .line
            .checked_sub(self.0.first / LINE)
            .and_then(|slot| u32::try_from(slot).ok());
        let slot = slot
            .filter(|&slot| slot < self.0.count)
            .ok_or_else(malformed)?;
        let mut meta = [0; META_WORDS];
        meta.copy_from_slice(&incoming.payload[2..]);
        crate::failpoint!("slot.borrowed");
        Ok(Borrow {
            held: arrived.held,
            slot,
            meta,
            slots: self.clone(),
        })
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

/// A slot that this process may write: nobody else has it.
pub struct Loan {
    // Before `slots`: the slot goes back while its ring is surely there.
    held: Held,
    slot: u32,
    slots: Slots,
}

impl Loan {
    /// The slots it is one of.
    #[must_use]
    pub fn slots(&self) -> &Slots {
        &self.slots
    }

    /// Which slot it is.
    #[must_use]
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// `len` elements from byte `offset` of the slot.
    ///
    /// # Errors
    /// `Shape` when they do not fit or are misaligned.
    pub fn slice<T: Element>(&self, offset: usize, len: usize) -> Result<&[T]> {
        let start = self.slots.range::<T>(self.slot, offset, len)?;
        // SAFETY: in bounds and aligned (`range`); the slot's line is held once, by this loan, so nobody writes; any
        // bytes are a valid `T` (`Element`); the memory lives as long as `self.slots`.
        Ok(unsafe { core::slice::from_raw_parts(start, len) })
    }

    /// `len` elements from byte `offset` of the slot, to write.
    ///
    /// # Errors
    /// `Shape` when they do not fit or are misaligned.
    pub fn slice_mut<T: Element>(&mut self, offset: usize, len: usize) -> Result<&mut [T]> {
        let start = self.slots.range::<T>(self.slot, offset, len)?;
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
        let a = self.slots.range::<A>(self.slot, first.0, first.1)?;
        let b = self.slots.range::<B>(self.slot, second.0, second.1)?;
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

    /// Makes the message that hands the slot over, with these words beside it.
    #[must_use]
    pub fn into_message(self, meta: [u64; META_WORDS]) -> Outgoing {
        let mut payload = [0; PAYLOAD_WORDS];
        payload[0] = u64::from(FORM_SLOT) | (self.held.line << 8);
        payload[1] = self.held.generation;
        payload[2..].copy_from_slice(&meta);
        Outgoing {
            payload,
            pins: Pins(smallvec::SmallVec::from_iter([Pin {
                held: self.held,
                what: What::Slot,
            }])),
        }
    }

    /// The loan back out of a message that was not sent. `None` when the message names no slot of this ring, or a
    /// slot that others have by now.
    #[must_use]
    pub fn from_message(mut message: Outgoing, slots: &Slots) -> Option<Self> {
        let held = message
            .pins
            .take()
            .into_iter()
            .next()
            .filter(|pin| pin.what == What::Slot && pin.held.is_sole())?
            .held;
        if !held.arena().is(slots.object().arena()) {
            return None;
        }
        let slot = u32::try_from(held.line.checked_sub(slots.0.first / LINE)?).ok()?;
        (slot < slots.count()).then(|| Self {
            held,
            slot,
            slots: slots.clone(),
        })
    }
}

impl fmt::Debug for Loan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Loan of slot {} ({:?})", self.slot, self.held)
    }
}

/// A slot that this process may read. Dropping it gives the slot back.
pub struct Borrow {
    held: Held,
    slot: u32,
    meta: [u64; META_WORDS],
    slots: Slots,
}

impl Borrow {
    /// Which slot it is.
    #[must_use]
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// The words that came with it.
    #[must_use]
    pub fn meta(&self) -> &[u64; META_WORDS] {
        &self.meta
    }

    /// `len` elements from byte `offset` of the slot.
    ///
    /// # Errors
    /// `Shape` when they do not fit or are misaligned.
    pub fn slice<T: Element>(&self, offset: usize, len: usize) -> Result<&[T]> {
        let start = self.slots.range::<T>(self.slot, offset, len)?;
        // SAFETY: in bounds and aligned (`range`); a published slot is only read until all who hold it let go; any
        // bytes are a valid `T` (`Element`); the memory lives as long as `self.slots`.
        Ok(unsafe { core::slice::from_raw_parts(start, len) })
    }
}

impl Drop for Borrow {
    fn drop(&mut self) {
        crate::failpoint!("slot.released");
    }
}

impl fmt::Debug for Borrow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Borrow of slot {} ({:?})", self.slot, self.held)
    }
}
