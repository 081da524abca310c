//! What a stage gets: an item, its tensors where their producer wrote them, and its time card.

use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use shm_core::Element;
use shm_core::clock::now_ns;
use shm_core::message::Incoming;

use crate::board::Place;
use crate::card::Card;
use crate::device::Store;
use crate::error::{Error, ErrorKind, Result};
use crate::home::{Home, LettingGo};
use crate::item::{Attached, Item, Share};
use crate::output::Beside;
use crate::reading::Reading;
use crate::spec::TensorSpec;
use crate::time_card::Outcome;
use crate::wire::Slim;

/// What an input is made of, ready before there is one: whoever waits for an item has the time.
pub(crate) struct Blank {
    card: Arc<Card>,
    readings: Vec<Reading>,
}

impl Blank {
    pub(crate) fn new(home: &Arc<Home>) -> Self {
        Self {
            card: Card::blank(home),
            readings: Vec::with_capacity(1),
        }
    }
}

/// One item, as a stage gets it. Its tensors are read where they were written; dropping it gives its slots back. A stage
/// may keep it.
#[derive(Debug)]
pub struct Input {
    /// All of its card's home.
    readings: Vec<Reading>,
    card: Arc<Card>,
    sequence: u64,
    tag: u64,
    payload: Vec<u8>,
    attached: Option<Box<Attached>>,
    asked_ns: u64,
    enqueued_ns: u64,
    dequeued_ns: u64,
    /// While it is dropped: the last to go.
    letting_go: Option<LettingGo>,
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
        let mut input = Self {
            readings: Vec::with_capacity(item.shares.len()),
            card,
            sequence: item.sequence,
            tag: item.tag,
            payload: item.payload,
            attached: item.attached,
            asked_ns,
            enqueued_ns: item.enqueued,
            dequeued_ns,
            letting_go: None,
        };
        for share in item.shares {
            let reading = Reading::begin(home, share);
            input.readings.push(input.card.checked(reading)?);
        }
        Ok(input)
    }

    /// What is slim: one slot, which is yet to be [opened](Self::open), and nothing beside it. When it was taken is said
    /// [later](Self::is_taken).
    #[inline(always)]
    pub(crate) fn of_slim(blank: Blank, slim: &Slim, asked_ns: u64) -> Self {
        let Blank { mut card, readings } = blank;
        Card::fill(&mut card, slim);
        Self {
            readings,
            card,
            sequence: slim.sequence,
            tag: slim.tag,
            payload: Vec::new(),
            attached: None,
            asked_ns,
            enqueued_ns: slim.enqueued,
            dequeued_ns: 0,
            letting_go: None,
        }
    }

    /// Takes its slot out of the message that it came with.
    #[inline]
    pub(crate) fn open(&mut self, slot: Place, message: &mut Incoming) -> Result<()> {
        let reading = Reading::of_block(&self.card.home, slot, message);
        self.readings.push(self.card.checked(reading)?);
        Ok(())
    }

    /// The stage is about to be called with it. What no time has been taken of was taken for this call at once, and a look at
    /// the clock costs a good part of a hand-over: it is taken now, and its card says so when the stage has returned.
    #[inline]
    pub(crate) fn is_taken(&mut self, now: u64) {
        if self.dequeued_ns == 0 {
            self.dequeued_ns = now;
        }
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
        self.reading(slot)?.valid(self.home(), index)
    }

    #[cfg(feature = "cuda")]
    pub(crate) fn check_dtype<T: Element>(&self, slot: usize, index: usize) -> Result<()> {
        let reading = self.reading(slot)?;
        reading.layout(self.home())?.place::<T>(index).map(drop)
    }

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

    /// The item's number in the run: an input's own, counted from 0, or one from 2^52 up for what was made on the way, such as
    /// a batch of several inputs.
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
        self.only()?.tensor(self.home(), index)
    }

    /// The same of the slot `slot` of those it is in.
    ///
    /// # Errors
    /// When there is no such slot, and as [`tensor`](Self::tensor).
    pub fn tensor_in<T: Element>(&self, slot: usize, index: usize) -> Result<&[T]> {
        self.reading(slot)?.tensor(self.home(), index)
    }

    /// The bytes of the valid elements of tensor `index` in the slot `slot` of those it is in, whatever their type.
    ///
    /// # Errors
    /// When there is no such slot or tensor.
    pub fn bytes_in(&self, slot: usize, index: usize) -> Result<&[u8]> {
        self.reading(slot)?.bytes(self.home(), index)
    }

    /// What tensors each of its slots has.
    #[must_use]
    pub fn specs(&self) -> &[TensorSpec] {
        self.readings
            .first()
            .and_then(|reading| reading.layout(self.home()).ok())
            .map_or(&[], |layout| &layout.specs)
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
        Ok(&self.reading(slot)?.view(self.home(), index)?.shape)
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
    /// When the arena has no room for the copy; what was not copied stays as it was.
    pub fn detach(&mut self) -> Result<()> {
        if !self.readings.iter().any(Reading::is_in_a_slot) {
            return Ok(());
        }
        let _letting_go = self.card.home.let_go_aside();
        let home = &self.card.home;
        let mut readings = self.readings.iter_mut();
        let detached = readings.try_for_each(|reading| reading.detach(home));
        // What is kept for a process in this one's place keeps the slots, too.
        if self.card.is_in_the_ledger() {
            let shares = self.readings.iter().map(Reading::share);
            let item = Item {
                sequence: self.sequence,
                tag: self.tag,
                payload: self.payload.clone(),
                attached: self.attached.clone(),
                enqueued: self.enqueued_ns,
                shares: shares.collect::<Result<_>>()?,
                ..Item::default()
            };
            self.card.note_anew(item);
        }
        detached
    }

    /// The value beside the tensors, as the stage before or the client gave it.
    ///
    /// # Errors
    /// When it does not read as a `P`, or something is left over; `()` where there is none.
    pub fn payload<P: DeserializeOwned>(&self) -> Result<P> {
        let (item, bytes) = (self.item(), self.payload.len());
        let wanted = std::any::type_name::<P>();
        let read = postcard::take_from_bytes(&self.payload);
        let (value, left) = read.map_err(|error| {
            let why = self.card.why_without(&self.payload);
            let told = format!(
                "the payload of item {item} ({bytes} bytes{why}) does not read as {wanted}"
            );
            Error::caused(ErrorKind::Result, told, error)
        })?;
        if left.is_empty() {
            return Ok(value);
        }
        Err(Error::new(
            ErrorKind::Result,
            format!(
                "the payload of item {item} was written as another type than {wanted}: of its {bytes} bytes {} are left \
                 over",
                left.len()
            ),
        ))
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

    /// When this process got it; where the stage was called with it at once, when that was.
    #[must_use]
    pub fn dequeued_ns(&self) -> u64 {
        self.dequeued_ns
    }

    /// It waits for the other segments of its item from now on, or no longer.
    pub(crate) fn waits_for_parts(&self, waits: bool) {
        let home = &self.card.home;
        home.board.hold_parts(home.rank, if waits { 1 } else { -1 });
    }

    /// It waited in vain for the other segments of its item.
    pub(crate) fn is_incomplete(&self) {
        self.card.edit(|card| card.outcome = Outcome::Incomplete);
    }

    /// Notes in its time card that what had to be copied to or from a device is there.
    pub fn note_copy_done(&self) {
        self.card.edit(|card| card.copy_done = now_ns());
    }

    pub(crate) fn take_apart(mut self) -> Result<(Vec<Share>, Beside)> {
        self.note_copies();
        // What is not passed on is let go of as `self` is dropped.
        let home = &self.card.home;
        let readings = self.readings.iter_mut();
        let shares = readings
            .filter_map(|reading| reading.pass_on(home).transpose())
            .collect::<Result<_>>()?;
        let payload = std::mem::take(&mut self.payload);
        let beside = (self.sequence, self.tag, payload, self.attached.take());
        Ok((shares, beside))
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        self.letting_go = self.card.home.let_go_aside();
        if std::thread::panicking() {
            self.card.has_panicked();
        }
        self.note_copies();
        for reading in &mut self.readings {
            reading.let_go(&self.card.home);
        }
        // After the slots: it says when they were given back.
        self.card.edit(|card| {
            if card.released == 0 {
                card.released = now_ns();
            }
        });
    }
}
