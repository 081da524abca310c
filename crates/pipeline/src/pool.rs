//! A process's own slots, and a slot in its hands.
//!
//! A slot is a block of shared memory that the process keeps a reference to for the whole run. While nobody else has
//! one, the slot is free: it is thawed, written and frozen again, and what is published carries one more reference. How
//! many readers and messages there are, and which of them died, is the business of those references alone; so a slot
//! goes to one reader or to all, whole or in segments, and is free when the last of them is done or dead.

use std::sync::Arc;

use mp_queue::Event;
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use shm_core::{Element, ExclusiveBytes, SharedBytes, elements_of_mut};

use crate::board::{Board, Place};
use crate::device::{Store, Writable, make_slots};

use crate::error::{Error, ErrorKind, Result};
use crate::item::{Attached, Share, View};
use crate::spec::{Layout, TensorSpec};

/// See the module.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) rank: u32,
    pub(crate) layout: Arc<Layout>,
    /// Set by readers when a slot may be free again.
    pub(crate) freed: Event,
    /// The device they lie on; `None` for the arena.
    place: Option<u32>,
    slots: Mutex<Places>,
}

#[derive(Debug)]
struct Places {
    /// `None` while the slot is loaned.
    slots: Vec<Option<Store>>,
    /// Which of its memories each slot has.
    turns: Vec<u16>,
    /// Where the next search begins.
    next: usize,
}

impl Pool {
    pub(crate) fn new(
        board: &Board,
        rank: u32,
        layout: Arc<Layout>,
        freed: Event,
        place: Option<u32>,
        slots: Vec<Store>,
    ) -> Arc<Self> {
        let turns = (0..slots.len() as u32).map(|slot| board.turn(rank, slot));
        Arc::new(Self {
            place,
            rank,
            layout,
            freed,
            slots: Mutex::new(Places {
                turns: turns.collect(),
                slots: slots.into_iter().map(Some).collect(),
                next: 0,
            }),
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.lock().slots.len()
    }

    /// Any free slot.
    pub(crate) fn take(self: &Arc<Self>) -> Option<OutputSlot> {
        let mut places = self.slots.lock();
        let count = places.slots.len();
        for turn in 0..count {
            let index = (places.next + turn) % count;
            if let Some(tensor) = Store::thaw(&mut places.slots[index]) {
                places.next = index + 1;
                return Some(OutputSlot {
                    pool: Arc::clone(self),
                    index,
                    turn: places.turns[index],
                    tensor: Some(tensor),
                    kept: None,
                    views: Vec::new(),
                    sequence: 0,
                    tag: 0,
                    payload: Vec::new(),
                    attached: None,
                    acquired_ns: 0,
                    waited_ns: 0,
                });
            }
        }
        None
    }

    /// Touches all pages of all free slots, so that this process has no page fault later.
    pub(crate) fn touch(&self) {
        const PAGE: usize = 4096;
        for place in &mut self.slots.lock().slots {
            if self.place.is_some() {
                continue;
            }
            if let Some(mut tensor) = Store::thaw(place) {
                if let Ok(bytes) = tensor.bytes() {
                    bytes.iter_mut().step_by(PAGE).for_each(|byte| *byte = 0);
                }
                *place = Some(tensor.freeze());
            } else if let Some(Store::Host(shared)) = place {
                // A reader looks at it at this moment; the page is there all the same.
                touch(shared);
            }
        }
    }

    /// Slots that nobody reads, as the board says: free, on their way, or lost.
    pub(crate) fn unread(&self, board: &Board) -> Vec<u32> {
        let slots = 0..self.len() as u32;
        let is_unread = |slot: &u32| board.readers(self.rank, *slot).is_empty();
        slots.filter(is_unread).collect()
    }

    /// The same where whoever supervises the run has seen that they are on no way; else none.
    pub(crate) fn nowhere(&self, board: &Board) -> Vec<u32> {
        match board.may_renew(self.rank) {
            true => self.unread(board),
            false => Vec::new(),
        }
    }

    /// New memory for a slot that nobody seems to have and that is still counted: whoever had it was killed in the one
    /// moment that leaves a count too high. If somebody has it after all, it keeps the old memory.
    pub(crate) fn renew(&self, board: &Board, is_lost: impl Fn(u32) -> bool) -> Result<bool> {
        let Places { slots, turns, .. } = &mut *self.slots.lock();
        for (index, place) in slots.iter_mut().enumerate() {
            if place.is_some() && is_lost(index as u32) {
                *place = match self.place {
                    None => {
                        let memory = ExclusiveBytes::zeros(self.layout.bytes.max(1))?;
                        Some(Store::Host(memory.freeze()))
                    }
                    Some(device) => make_slots(device, 1, self.layout.bytes)?.pop(),
                };
                turns[index] = board.turn(self.rank, index as u32);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether this process itself holds all of them unpublished.
    pub(crate) fn is_all_loaned(&self) -> bool {
        self.slots.lock().slots.iter().all(Option::is_none)
    }

    /// How many are in use, by anyone.
    pub(crate) fn in_use(&self) -> u32 {
        let mut places = self.slots.lock();
        let mut used = 0;
        for place in &mut places.slots {
            used += u32::from(!Store::is_free(place));
        }
        used
    }

    fn give_back(&self, index: usize, slot: Store) {
        if let Some(place) = self.slots.lock().slots.get_mut(index) {
            *place = Some(slot);
        }
    }
}

/// A reference to memory that is looked at once, so that this process has no page fault later.
pub(crate) fn touch(memory: &SharedBytes) {
    const PAGE: usize = 4096;
    let bytes = memory.as_slice().iter().step_by(PAGE);
    std::hint::black_box(bytes.map(|&byte| u64::from(byte)).sum::<u64>());
}

/// A slot to write: nobody else has it. Dropping it gives it back unpublished.
#[derive(Debug)]
pub struct OutputSlot {
    pool: Arc<Pool>,
    index: usize,
    turn: u16,
    /// `None` once it is published.
    tensor: Option<Writable>,
    /// The process's own reference to what is being published, which goes back to the others when this is dropped: whoever
    /// waits for the message does not wait for that.
    kept: Option<Store>,
    /// None while all of each tensor is valid.
    views: Vec<View>,
    pub(crate) sequence: u64,
    pub(crate) tag: u64,
    pub(crate) payload: Vec<u8>,
    pub(crate) attached: Option<Box<Attached>>,
    pub(crate) acquired_ns: u64,
    pub(crate) waited_ns: u64,
}

impl OutputSlot {
    /// Which of its process's slots it is.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    pub(crate) fn place(&self) -> Place {
        Place {
            rank: self.pool.rank,
            slot: self.index as u32,
            turn: self.turn,
        }
    }

    fn bytes(&mut self) -> Result<&mut [u8]> {
        self.writable()?.bytes()
    }

    pub(crate) fn writable(&mut self) -> Result<&mut Writable> {
        self.tensor
            .as_mut()
            .ok_or_else(|| Error::invalid("a slot was written after it was published"))
    }

    #[cfg(feature = "cuda")]
    pub(crate) fn peek(&self) -> Option<&Writable> {
        self.tensor.as_ref()
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.pool.layout
    }

    /// All elements of tensor `index`, row-major, to write. They hold what the last user of the slot left.
    ///
    /// # Errors
    /// When there is no such tensor, or its elements are no `T`.
    pub fn tensor_mut<T: Element>(&mut self, index: usize) -> Result<&mut [T]> {
        self.pool.layout.place::<T>(index)?;
        Ok(elements_of_mut(self.bytes_mut(index)?)?)
    }

    /// The bytes of all elements of tensor `index`, whatever their type, to write.
    ///
    /// # Errors
    /// When there is no such tensor.
    pub fn bytes_mut(&mut self, index: usize) -> Result<&mut [u8]> {
        let place = self.pool.layout.at(index)?;
        let end = place.offset + place.numel * place.dtype.size();
        Ok(self.bytes()?.get_mut(place.offset..end).unwrap_or(&mut []))
    }

    /// What tensors it has.
    #[must_use]
    pub fn specs(&self) -> &[TensorSpec] {
        &self.pool.layout.specs
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
        let a = self.pool.layout.place::<A>(first)?;
        let b = self.pool.layout.place::<B>(second)?;
        let a_end = a.offset + a.numel * size_of::<A>();
        let b_end = b.offset + b.numel * size_of::<B>();
        let bytes = self.bytes()?;
        let twice = || {
            Error::invalid(format!(
                "tensor {first} of a slot was asked for twice at once"
            ))
        };
        if first == second {
            return Err(twice());
        }
        let parts = bytes.get_disjoint_mut([a.offset..a_end, b.offset..b_end]);
        let [a, b] = parts.map_err(|_| twice())?;
        Ok((elements_of_mut(a)?, elements_of_mut(b)?))
    }

    /// Says what is valid of tensor `index`: as much as the specification has, when never said. Elements lie row-major in
    /// *this* shape from the beginning of the tensor on.
    ///
    /// # Errors
    /// When there is no such tensor, or the specification does not allow this shape.
    pub fn set_shape(&mut self, index: usize, shape: &[usize]) -> Result<()> {
        self.pool.layout.at(index)?;
        let spec = &self.pool.layout.specs[index];
        let fits = shape.len() == spec.shape().len()
            && shape.iter().enumerate().all(|(dim, &length)| {
                let most = spec.shape()[dim];
                length == most || length < most && spec.is_maximum(dim)
            });
        if !fits {
            return Err(Error::invalid(format!(
                "tensor {index} of a slot was to have shape {shape:?}; its specification is {spec}"
            )));
        }
        if self.views.is_empty() {
            self.views.clone_from(&self.pool.layout.whole);
        }
        self.views[index].shape = shape.to_vec();
        Ok(())
    }

    /// Says how many indices of tensor `index`'s first dimension are valid.
    ///
    /// # Errors
    /// As [`set_shape`](Self::set_shape).
    pub fn set_valid(&mut self, index: usize, rows: usize) -> Result<()> {
        self.pool.layout.at(index)?;
        let views = match &self.views[..] {
            [] => &self.pool.layout.whole,
            said => said,
        };
        let mut shape = views[index].shape.clone();
        match shape.first_mut() {
            Some(first) => *first = rows,
            None => {
                return Err(Error::invalid(format!(
                    "{rows} valid rows of tensor {index}, which has no dimensions"
                )));
            }
        }
        self.set_shape(index, &shape)
    }

    /// A value that travels beside the tensors, of any serde type that postcard can carry.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn set_payload<P: Serialize>(&mut self, payload: &P) -> Result<()> {
        self.payload = encode(payload)?;
        Ok(())
    }

    /// A value that holds tensors, queues or the like, which travels beside the slot and its [payload](Self::set_payload):
    /// [`Input::attached`](crate::Input::attached). It goes to one reader, the first to ask for it, and costs a queue of its
    /// own, some microseconds.
    ///
    /// # Errors
    /// When it cannot be sent: what a queue's `put` can answer.
    pub fn attach<P: Serialize + DeserializeOwned>(&mut self, value: P) -> Result<()> {
        self.attached = Some(Box::new(Attached::new(value)?));
        Ok(())
    }

    /// A number that the receiver sees, for instance the frame's; 0 when never set.
    pub fn set_sequence(&mut self, sequence: u64) {
        self.sequence = sequence;
    }

    /// One more word of the user's own; 0 when never set.
    pub fn set_tag(&mut self, tag: u64) {
        self.tag = tag;
    }

    pub(crate) fn is_of(&self, pool: &Arc<Pool>) -> bool {
        Arc::ptr_eq(&self.pool, pool)
    }

    /// Whether nothing is said of it but what its words say, and it lies in the arena.
    pub(crate) fn is_slim(&self) -> bool {
        self.tensor.as_ref().is_some_and(Writable::is_on_host)
            && self.views.is_empty()
            && self.payload.is_empty()
            && self.attached.is_none()
            && self.place().fits_a_word()
    }

    /// Where it lies in the arena: gives up writing. The memory, to be published with one more reference, stays this process's
    /// own as well.
    #[inline]
    pub(crate) fn freeze(&mut self) -> Option<&SharedBytes> {
        match self.tensor.take()? {
            Writable::Host(tensor) => match self.kept.insert(Store::Host(tensor.freeze())) {
                Store::Host(memory) => Some(memory),
                #[cfg(feature = "cuda")]
                Store::Device(_) => None,
            },
            #[cfg(feature = "cuda")]
            device @ Writable::Device(_) => {
                self.tensor = Some(device);
                None
            }
        }
    }

    /// Gives up writing: one reference to be published.
    ///
    /// # Errors
    /// What the device's driver answers.
    pub(crate) fn into_share(mut self) -> Result<Option<Share>> {
        let Some(tensor) = self.tensor.take() else {
            return Ok(None);
        };
        let shared = tensor.freeze();
        let memory = shared.send();
        self.pool.give_back(self.index, shared);
        Ok(Some(Share {
            rank: self.pool.rank,
            slot: self.index as u32,
            turn: self.turn,
            memory: memory?,
            views: std::mem::take(&mut self.views),
        }))
    }
}

impl Drop for OutputSlot {
    fn drop(&mut self) {
        let unpublished = self.tensor.take().map(Writable::freeze);
        if let Some(store) = unpublished.or_else(|| self.kept.take()) {
            self.pool.give_back(self.index, store);
        }
    }
}

pub(crate) fn encode<P: Serialize>(payload: &P) -> Result<Vec<u8>> {
    postcard::to_stdvec(payload).map_err(|error| {
        Error::caused(
            ErrorKind::Invalid,
            format!(
                "a value of type {} cannot travel as a payload (one that holds tensors can be attached: OutputSlot::attach)",
                std::any::type_name::<P>()
            ),
            error,
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(slots: usize, spec: TensorSpec) -> Arc<Pool> {
        let layout = Layout::of(&[spec]).unwrap();
        let memory = || ExclusiveBytes::zeros(layout.bytes).unwrap().freeze();
        let board = Board::new(&[slots]).unwrap();
        let slots = (0..slots).map(|_| Store::Host(memory())).collect();
        Pool::new(
            &board,
            0,
            Arc::new(layout),
            Event::new().unwrap(),
            None,
            slots,
        )
    }

    #[test]
    fn a_slot_is_free_when_its_last_reader_is_done() {
        let pool = pool(2, TensorSpec::of::<u32>([4]));
        let mut slot = pool.take().unwrap();
        slot.tensor_mut::<u32>(0).unwrap().fill(7);
        let first = slot.into_share().unwrap().unwrap();
        let second = first.clone();
        let unpublished = pool.take().unwrap();
        assert!(pool.take().is_none());
        assert_eq!(pool.in_use(), 2);
        drop(first);
        assert!(pool.take().is_none(), "one reader is left");
        drop(unpublished);
        assert_eq!(pool.in_use(), 1);
        drop(second);
        assert_eq!(pool.in_use(), 0);
    }

    #[test]
    fn only_shapes_within_the_specification_are_taken() {
        let pool = pool(1, TensorSpec::of::<f32>([4, 3, 2]).up_to(2));
        let mut slot = pool.take().unwrap();
        slot.set_shape(0, &[2, 3, 1]).unwrap();
        slot.set_valid(0, 0).unwrap();
        for wrong in [&[5, 3, 2][..], &[4, 2, 2], &[4, 3], &[4, 3, 3]] {
            assert!(slot.set_shape(0, wrong).is_err(), "{wrong:?}");
        }
        assert!(slot.tensor_mut::<f64>(0).is_err());
        assert!(slot.tensor_mut::<f32>(1).is_err());
    }
}
