//! What a stage gets: an item, its tensors where their producer wrote them, and its time card.

use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use shm_core::clock::now_ns;
use shm_core::{Element, elements_of};

use crate::board::Place;
use crate::card::Card;
use crate::device::{Copying, Memory, Store};
use crate::error::{Error, ErrorKind, Result};
use crate::home::Home;
use crate::item::{Attached, Item, Share, View};
use crate::output::Beside;
use crate::spec::{Layout, TensorSpec};
use crate::time_card::Outcome;
use crate::wire::Slim;

/// The slot of what was copied out of one.
const NO_SLOT: u32 = u32::MAX;

/// A slot that this process reads.
#[derive(Debug)]
pub(crate) struct Reading {
    home: Arc<Home>,
    layout: Arc<Layout>,
    /// `None` once it has been passed on.
    held: Option<Held>,
    copying: Copying,
}

/// The slot itself.
#[derive(Debug)]
struct Held {
    place: Place,
    store: Store,
    views: Vec<View>,
}

impl Reading {
    pub(crate) fn begin(home: &Arc<Home>, share: Share) -> Result<Self> {
        let place = share.place();
        let Share {
            rank,
            slot,
            memory,
            views,
            ..
        } = share;
        let known = home.upstream.get(rank).ok_or_else(|| {
            Error::invalid(format!(
                "a slot of process {rank} arrived, which no step before this one has"
            ))
        })?;
        let layout = Arc::clone(&known.layout);
        let store = memory.open()?;
        let all_within = || {
            let mut pairs = views.iter().zip(&layout.tensors);
            views.len() == layout.tensors.len()
                && pairs.all(|(view, place)| {
                    numel(&view.shape)
                        .and_then(|numel| numel.checked_add(view.start))
                        .is_some_and(|end| end <= place.numel)
                })
        };
        if store.len() < layout.bytes || !(views.is_empty() || all_within()) {
            return Err(Error::invalid(format!(
                "slot {slot} of process {rank} arrived with tensors that are not its own"
            )));
        }
        home.hold(place, !views.is_empty());
        let mut reading = Self {
            home: Arc::clone(home),
            layout,
            held: Some(Held {
                place,
                store,
                views,
            }),
            copying: Copying::default(),
        };
        let held = reading.held()?;
        let brought = held
            .store
            .brought_to(home.device, &reading.layout, &held.views)?;
        if let Some((store, copying)) = brought {
            reading.replace(store);
            reading.copying = copying;
        }
        Ok(reading)
    }

    fn held(&self) -> Result<&Held> {
        self.held
            .as_ref()
            .ok_or_else(|| Error::invalid("a slot was read after it had been passed on"))
    }

    fn tensor<T: Element>(&self, index: usize) -> Result<&[T]> {
        self.layout.place::<T>(index)?;
        Ok(elements_of(self.bytes(index)?)?)
    }

    fn bytes(&self, index: usize) -> Result<&[u8]> {
        let (store, range) = self.valid(index)?;
        // In bounds: checked when it arrived.
        Ok(store.bytes()?.get(range).unwrap_or(&[]))
    }

    /// Where the valid elements of a tensor lie.
    fn valid(&self, index: usize) -> Result<(&Store, std::ops::Range<usize>)> {
        let range = self.layout.at(index)?.bytes_of(self.view(index)?);
        Ok((&self.held()?.store, range))
    }

    fn view(&self, index: usize) -> Result<&View> {
        self.layout.at(index)?;
        // As many as there are tensors: checked when it arrived.
        let own = self.held()?.views.get(index);
        Ok(own.unwrap_or(&self.layout.whole[index]))
    }

    /// Copies what is read into memory of its own, and lets go of the slot.
    fn detach(&mut self) -> Result<()> {
        let held = self.held()?;
        if held.place.slot != NO_SLOT {
            let copy = held.store.detached(&self.layout, &held.views)?;
            self.replace(copy);
        }
        Ok(())
    }

    /// From now on a copy is read, and the slot given back.
    fn replace(&mut self, store: Store) {
        let Some(held) = &mut self.held else { return };
        let copied = Held {
            place: Place {
                slot: NO_SLOT,
                ..held.place
            },
            store,
            views: held.views.clone(),
        };
        // What is replaced is let go of as if it were dropped.
        drop(Self {
            home: Arc::clone(&self.home),
            layout: Arc::clone(&self.layout),
            held: self.held.replace(copied),
            copying: Copying::default(),
        });
    }

    /// The slot itself, to be passed on to the next step.
    pub(crate) fn pass_on(mut self) -> Result<Option<Share>> {
        let Some(held) = self.held.take() else {
            return Ok(None);
        };
        let Held {
            place,
            store,
            views,
        } = held;
        let memory = store.send()?;
        self.home.let_go(place, !views.is_empty());
        Ok(Some(Share {
            rank: place.rank,
            slot: place.slot,
            turn: place.turn,
            memory,
            views,
        }))
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let Some(Held {
            place,
            store,
            views,
        }) = self.held.take()
        else {
            return;
        };
        self.home.let_go(place, !views.is_empty());
        drop(store);
        // After the reference is gone: whoever is woken finds the slot free.
        if let Some(known) = self.home.upstream.get(place.rank) {
            known.freed.set();
        }
    }
}

pub(crate) fn numel(shape: &[usize]) -> Option<usize> {
    shape
        .iter()
        .try_fold(1_usize, |all, &dim| all.checked_mul(dim))
}

/// One item, as a stage gets it. Its tensors are read where they were written; dropping it gives its slots back. A stage
/// may keep it.
#[derive(Debug)]
pub struct Input {
    // The slots before the card: it says when they were given back.
    readings: Vec<Reading>,
    card: Arc<Card>,
    sequence: u64,
    tag: u64,
    payload: Vec<u8>,
    attached: Option<Box<Attached>>,
    asked_ns: u64,
    enqueued_ns: u64,
    dequeued_ns: u64,
}

impl Input {
    pub(crate) fn new(
        home: &Arc<Home>,
        mut item: Item,
        asked_ns: u64,
        receipt: Option<crate::ledger::Receipt>,
    ) -> Result<Self> {
        let dequeued_ns = now_ns();
        let card = Card::new(home, &mut item, receipt, dequeued_ns);
        let readings = item
            .shares
            .into_iter()
            .map(|share| Reading::begin(home, share))
            .collect::<Result<_>>()
            .inspect_err(|error| {
                if *error.kind() == ErrorKind::Lost {
                    card.edit(|card| card.outcome = Outcome::Failed);
                }
            })?;
        Ok(Self {
            readings,
            card,
            sequence: item.sequence,
            tag: item.tag,
            payload: item.payload,
            attached: item.attached,
            asked_ns,
            enqueued_ns: item.enqueued,
            dequeued_ns,
        })
    }

    /// What is slim: one slot, and nothing beside it.
    pub(crate) fn of_slim(home: &Arc<Home>, slim: Slim, asked_ns: u64) -> Result<Self> {
        let dequeued_ns = now_ns();
        let card = Card::of_slim(home, &slim, dequeued_ns);
        let share = Share {
            rank: slim.place.rank,
            slot: slim.place.slot,
            turn: slim.place.turn,
            memory: Memory::Host(slim.memory),
            views: Vec::new(),
        };
        Ok(Self {
            readings: vec![Reading::begin(home, share)?],
            card,
            sequence: slim.sequence,
            tag: slim.tag,
            payload: Vec::new(),
            attached: None,
            asked_ns,
            enqueued_ns: slim.enqueued,
            dequeued_ns,
        })
    }

    pub(crate) fn card(&self) -> &Arc<Card> {
        &self.card
    }

    /// Where the valid elements of tensor `index` lie, in the slot `slot` of those it is in.
    pub(crate) fn valid_in(
        &self,
        slot: usize,
        index: usize,
    ) -> Result<(&Store, std::ops::Range<usize>)> {
        self.reading(slot)?.valid(index)
    }

    #[cfg(feature = "cuda")]
    pub(crate) fn check_dtype<T: Element>(&self, slot: usize, index: usize) -> Result<()> {
        self.reading(slot)?.layout.place::<T>(index).map(drop)
    }

    #[cfg(feature = "cuda")]
    pub(crate) fn home(&self) -> &Home {
        &self.card.home
    }

    /// Notes when copies were over that were begun when it arrived.
    fn note_copies(&mut self) {
        for reading in &mut self.readings {
            if reading.copying.came_to_an_end() {
                self.card.edit(|card| card.copy_done = now_ns());
            }
        }
    }

    /// The item's number in the run.
    #[must_use]
    pub fn item(&self) -> u64 {
        self.card.identity().0
    }

    /// Which segment of its item this is, from 0, and of how many.
    #[must_use]
    pub fn part(&self) -> (u32, u32) {
        let (_, part, parts) = self.card.identity();
        (part, parts)
    }

    /// How many slots it is in: 1, none without tensors, several for a batch that was passed on without copying.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.readings.len()
    }

    /// The valid elements of tensor `index`, row-major, as one slice whatever its shape, which [`shape`](Self::shape) says.
    ///
    /// # Errors
    /// When there is no such tensor, or its elements are no `T`; when the item is in several slots (see
    /// [`tensor_in`](Self::tensor_in)).
    pub fn tensor<T: Element>(&self, index: usize) -> Result<&[T]> {
        self.only()?.tensor(index)
    }

    /// The same of the slot `slot` of those it is in.
    ///
    /// # Errors
    /// When there is no such slot, and as [`tensor`](Self::tensor).
    pub fn tensor_in<T: Element>(&self, slot: usize, index: usize) -> Result<&[T]> {
        self.reading(slot)?.tensor(index)
    }

    /// The bytes of the valid elements of tensor `index` in the slot `slot` of those it is in, whatever their type.
    ///
    /// # Errors
    /// When there is no such slot or tensor.
    pub fn bytes_in(&self, slot: usize, index: usize) -> Result<&[u8]> {
        self.reading(slot)?.bytes(index)
    }

    /// What tensors each of its slots has.
    #[must_use]
    pub fn specs(&self) -> &[TensorSpec] {
        self.readings
            .first()
            .map_or(&[], |reading| &reading.layout.specs)
    }

    /// The valid shape of tensor `index`.
    ///
    /// # Errors
    /// When there is no such tensor, or the item is in several slots.
    pub fn shape(&self, index: usize) -> Result<&[usize]> {
        self.only()?;
        self.shape_in(0, index)
    }

    /// The valid shape of tensor `index` in the slot `slot` of those it is in.
    ///
    /// # Errors
    /// When there is no such slot or tensor.
    pub fn shape_in(&self, slot: usize, index: usize) -> Result<&[usize]> {
        Ok(&self.reading(slot)?.view(index)?.shape)
    }

    fn only(&self) -> Result<&Reading> {
        match &self.readings[..] {
            [only] => Ok(only),
            [] => Err(Error::invalid(match self.card.home.step {
                0 => {
                    "a tensor was asked for in the first step; what the client offered is read with `payload`"
                }
                _ => {
                    "a tensor was asked for of an item without: the stage before has an empty output_spec, or sent a value"
                }
            })),
            several => Err(Error::invalid(format!(
                "a tensor was asked for of an item that is in {} slots; say of which (tensor_in)",
                several.len()
            ))),
        }
    }

    fn reading(&self, slot: usize) -> Result<&Reading> {
        self.readings.get(slot).ok_or_else(|| {
            Error::invalid(format!(
                "slot {slot} of an item that is in {}",
                self.readings.len()
            ))
        })
    }

    /// Copies its tensors into memory of their own and gives its slots back: for a stage that keeps inputs for longer than
    /// its producers can do without their slots.
    ///
    /// # Errors
    /// When the arena has no room for the copy; the input stays as it was.
    pub fn detach(&mut self) -> Result<()> {
        self.readings.iter_mut().try_for_each(Reading::detach)
    }

    /// The value beside the tensors, as the stage before or the client gave it.
    ///
    /// # Errors
    /// When it does not read as a `P`; `()` where there is none.
    pub fn payload<P: DeserializeOwned>(&self) -> Result<P> {
        postcard::from_bytes(&self.payload).map_err(|error| {
            Error::caused(
                ErrorKind::Result,
                format!(
                    "the {} bytes beside item {} do not read as {}",
                    self.payload.len(),
                    self.item(),
                    std::any::type_name::<P>()
                ),
                error,
            )
        })
    }

    /// The value that the stage before [attached](crate::OutputSlot::attach), for whoever asks first: of several readers, or
    /// segments, one gets it, and it is given once.
    ///
    /// # Errors
    /// When there is none, it was taken before, or it does not read as a `P`.
    pub fn attached<P: Serialize + DeserializeOwned>(&self) -> Result<P> {
        let attached = self.attached.as_ref().ok_or_else(|| {
            Error::invalid(format!("nothing is attached to item {}", self.item()))
        })?;
        attached.take()
    }

    /// The number its producer gave it.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The producer's own word.
    #[must_use]
    pub fn tag(&self) -> u64 {
        self.tag
    }

    /// When it was put into this step's queue, CLOCK_MONOTONIC nanoseconds.
    #[must_use]
    pub fn published_ns(&self) -> u64 {
        self.enqueued_ns
    }

    /// When this process began to wait for it.
    #[must_use]
    pub fn asked_ns(&self) -> u64 {
        self.asked_ns
    }

    /// When this process got it.
    #[must_use]
    pub fn dequeued_ns(&self) -> u64 {
        self.dequeued_ns
    }

    /// Notes in its time card that what had to be copied to or from a device is there.
    pub fn note_copy_done(&self) {
        self.card.edit(|card| card.copy_done = now_ns());
    }

    pub(crate) fn take_apart(mut self) -> Result<(Vec<Share>, Beside)> {
        self.note_copies();
        let shares = self
            .readings
            .drain(..)
            .filter_map(|reading| reading.pass_on().transpose())
            .collect::<Result<_>>()?;
        let payload = std::mem::take(&mut self.payload);
        let beside = (self.sequence, self.tag, payload, self.attached.take());
        Ok((shares, beside))
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        self.note_copies();
        self.readings.clear();
        self.card.edit(|card| {
            if card.released == 0 {
                card.released = now_ns();
            }
        });
    }
}
