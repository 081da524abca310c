//! Making a message of a value: serialize, drop the value, look whether what is exclusive is really gone.

use core::any::type_name;
use core::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;
use smallvec::SmallVec;

use super::bytes::Bytes;
use super::decode::{Arrived, Entries, Incoming, decode_with};
use super::draft::{Append, Draft};
use super::parse::{Entry, FEW, FORM_SPILLED, HANDLES_MAX, What, parse_inline, parse_spilled};
use super::pins::{Pin, Pins, SPILL_HEADER};
use super::scope::{self, EncodeScope, head};
use super::strict::{Whole, unwritable};
use crate::arena::Arena;
use crate::cells::PAYLOAD_WORDS;
use crate::error::{Error, ErrorKind, Result};
use crate::line::Mode;
use crate::object::Object;
use crate::storage::{self, Storage};

/// An encoded message that was not sent yet. Dropping it releases what it holds. The default is an empty one, which cannot
/// be sent.
#[derive(Debug, Default)]
pub struct Outgoing {
    pub(crate) payload: [u64; PAYLOAD_WORDS],
    /// Spill block first, if there is one, then the handles of the table.
    pub(crate) pins: Pins,
}

/// Why a value could not be made a message, with the value where it is still whole.
pub struct EncodeError<T> {
    /// What went wrong.
    pub error: Error,
    /// The value; `None` when it was dropped to see whether its exclusive tensors are really gone
    /// (`StillHeld`: whoever held on to them has them still).
    pub value: Option<T>,
}

// Not derived: the value need not be printable for the error to be.
impl<T> fmt::Debug for EncodeError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EncodeError")
            .field("error", &self.error)
            .field("value", &self.value.as_ref().map(|_| type_name::<T>()))
            .finish()
    }
}

impl<T> fmt::Display for EncodeError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

// Its text is that of the error in it, so the causes are that one's.
impl<T> std::error::Error for EncodeError<T> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.error)
    }
}

impl<T> EncodeError<T> {
    /// The same error for another type of value.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> EncodeError<U> {
        EncodeError {
            error: self.error,
            value: self.value.map(change),
        }
    }
}

/// Makes a message of a value, which is gone afterwards: what it held is held by the message.
///
/// # Errors
/// `Encode` for what postcard cannot say; `ForeignArena` for a tensor of another arena; `StillHeld` when an
/// exclusive tensor occurs twice, or someone in this process still has it; `OutOfRoom` when the message needs
/// a block of its own and there is none. Nothing was sent in any case.
#[inline]
pub fn encode<T: Serialize>(arena: &Arena, value: T) -> Result<Outgoing, EncodeError<T>> {
    let mut message = Outgoing::default();
    message.encode(arena, value)?;
    Ok(message)
}

/// The bytes of a value in which nothing of an arena is; `None` if something is, or postcard cannot say it: then
/// [`encode`] sends it, or tells why not. Needs no arena.
#[inline]
pub fn plain<T: Serialize>(value: &T) -> Option<Vec<u8>> {
    // Outside of a scope, what is of an arena refuses to be written.
    let _guard = scope::outside();
    postcard::to_stdvec(&Whole(value)).ok()
}

/// The value that these bytes are, as [`plain`] or [`Outgoing::plain`] gave them.
///
/// # Errors
/// `Decode` when the type does not read what was written.
pub fn read_plain<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    decode_with(&mut [], &[], bytes, type_name::<T>)
}

/// A block for a message of so many handles, if it needs one.
#[inline]
fn spill_for(arena: &Arena, handles: usize, draft: &Draft<'_>) -> Result<Option<Storage>> {
    if handles > HANDLES_MAX {
        return Err(Error::new(
            ErrorKind::Encode,
            format!("a message with {handles} tensors; at most {HANDLES_MAX} fit"),
        ));
    }
    let Some(bytes) = draft.far_bytes() else {
        return Ok(None);
    };
    Storage::allocate(arena, SPILL_HEADER + bytes, Mode::Message).map(Some)
}

impl Outgoing {
    /// As the function [`encode`], in place: to have the message where it is sent from, without a move. What was there is
    /// gone.
    ///
    /// # Errors
    /// As there; the message is empty then.
    #[inline]
    pub fn encode<T: Serialize>(&mut self, arena: &Arena, value: T) -> Result<(), EncodeError<T>> {
        self.encode_as(arena, value, type_name::<T>)
    }

    /// As [`encode`](Self::encode), for a value beside a head that is nobody's business: `name` is what errors call it.
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn encode_as<T: Serialize>(
        &mut self,
        arena: &Arena,
        value: T,
        name: fn() -> &'static str,
    ) -> Result<(), EncodeError<T>> {
        let mut value = Some(value);
        self.encode_from(arena, &mut value, name)
            .map_err(|error| EncodeError { error, value })
    }

    /// As [`encode_as`](Self::encode_as), of the value in a place of the caller's, where it is dropped: to move a tensor to
    /// where it is dropped costs as much as to write it. After an error it is there where it is still whole.
    ///
    /// # Errors
    /// As there; `Encode` for an empty place.
    #[inline]
    pub fn encode_from<T: Serialize>(
        &mut self,
        arena: &Arena,
        place: &mut Option<T>,
        name: fn() -> &'static str,
    ) -> Result<()> {
        arena.check_not_forked("sending a message")?;
        let Some(value) = place else {
            return Err(Error::new(
                ErrorKind::Encode,
                "a message was to be made of a value that is not there",
            ));
        };
        self.spend();
        if !self.pins.is_empty() {
            self.pins = Pins::default();
        }
        let mut draft = Draft::new(&mut self.payload);
        let mut scope = EncodeScope::new(arena);
        let guard = scope::enter(&mut scope);
        let mut serializer = postcard::Serializer {
            output: Append(&mut draft),
        };
        let outcome = Whole(&*value).serialize(&mut serializer);
        drop(guard);
        if let Err(cause) = outcome {
            let error = scope.aside.and_then(|aside| aside.into_error());
            return Err(error.unwrap_or_else(|| unwritable(name(), cause)));
        }
        if scope.is_empty() {
            if draft.finish().is_ok() {
                // There is nothing in it to drop, which takes longer to find out than most of the rest.
                std::mem::forget(scope);
                *place = None;
                return Ok(());
            }
        } else {
            if let Some(error) = scope.take_error() {
                return Err(error);
            }
            draft.add_table(&scope.table, scope.pins.len());
        }
        // While there is still a value to give back.
        let spill = spill_for(arena, scope.pins.len(), &draft)?;
        scope.finish()?;
        self.pins = scope.pins;
        *place = None;
        self.pins.finish(&mut draft, spill)
    }
}

impl Outgoing {
    /// Whether it was put: its references are in the queue then, and what is left is nothing.
    #[inline]
    pub(crate) fn is_spent(&self) -> bool {
        self.payload[0] as u8 == 0
    }

    /// It was put.
    #[inline]
    pub(crate) fn spend(&mut self) {
        // No message has this form.
        self.payload[0] = 0;
    }

    /// The bytes of a message in which nothing of the arena is, if there are at most `longest`.
    #[must_use]
    pub fn plain(&self, longest: usize) -> Option<Vec<u8>> {
        let is_spilled = self.payload[0] as u8 == FORM_SPILLED;
        if self.pins.len() > usize::from(is_spilled)
            || (is_spilled && self.payload[3] as usize > longest + 24)
        {
            return None;
        }
        let view = View::parse(self).ok()?;
        let body = view.bytes.body();
        (body.len() <= longest).then(|| body.to_vec())
    }

    /// The value back out of a message that was not sent.
    ///
    /// # Errors
    /// `Decode` when the type does not read what it wrote.
    pub fn decode<T: DeserializeOwned>(mut self) -> Result<T> {
        let view = View::parse(&self)?;
        let entries = view.entries;
        let mut pins = self.pins.take().into_iter();
        if self.payload[0] as u8 == FORM_SPILLED {
            pins.next();
        }
        let mut taken: Entries = entries
            .into_iter()
            .zip(pins)
            .map(|(entry, pin)| {
                // Nothing for what has no bytes of its own, an end for instance.
                let place = storage::place(pin.held.arena().segment(), entry.line);
                Some(Arrived {
                    held: pin.held,
                    what: entry.what,
                    extra: entry.extra,
                    place: place.unwrap_or_default(),
                })
            })
            .collect();
        let (table, body) = (view.bytes.table(), view.bytes.body());
        decode_with(&mut taken.0, table, body, type_name::<T>)
    }

    /// As [`decode`](Self::decode), out of its place, if that is possible. The message is empty afterwards.
    #[cold]
    pub fn take_back<T: DeserializeOwned>(&mut self) -> Option<T> {
        std::mem::take(self).decode().ok()
    }

    /// One more message like this one, holding references of its own.
    ///
    /// # Errors
    /// `StillHeld` when it holds something exclusive, which can go to one receiver only; `OutOfRoom`.
    pub fn duplicate(&self) -> Result<Self> {
        if self.pins.iter().any(|pin| pin.what.is_exclusive()) {
            return Err(Error::new(
                ErrorKind::StillHeld,
                "an exclusive tensor, or the end of a lane, can go to one process only; `freeze()` the tensor to send it to several, and use a `Queue` for several receivers",
            ));
        }
        let mut pins = Pins(
            self.pins
                .iter()
                .map(|pin| Pin {
                    held: pin.held.clone(),
                    what: pin.what,
                })
                .collect(),
        );
        let mut payload = self.payload;
        if let Some(first) = pins.0.first_mut()
            && first.what == What::Spill
        {
            let source = Storage::over(first.held.clone())?;
            let copy = Storage::allocate(source.arena(), source.len(), Mode::Message)?;
            copy.write_bytes(0, &source.read_bytes(0, source.len()));
            let held = copy.into_held();
            payload[1] = held.line;
            payload[2] = held.generation;
            first.held = held;
        }
        Ok(Self { payload, pins })
    }

    /// The queues, events and rings the message holds.
    #[must_use]
    pub fn objects(&self) -> Vec<Object> {
        self.pins
            .iter()
            .filter(|pin| pin.what == What::Object)
            .filter_map(|pin| Object::over(pin.held.clone()).ok())
            .collect()
    }
}

impl Incoming {
    /// A message that was taken out of one queue, to be put into another of the same arena, without knowing its type.
    ///
    /// # Errors
    /// `OutOfRoom` when it needs a block of its own; `WrongMode` for a ring's slot, which belongs to its ring;
    /// everything the message held is released then.
    pub fn forward(mut self, arena: &Arena) -> Result<Outgoing> {
        if let Some(block) = self.take_block() {
            let (bytes, words) = block?;
            return Ok(Outgoing::of_block(bytes, words));
        }
        let mut message = Outgoing::default();
        let mut table = Vec::new();
        for slot in self.entries.iter_mut().flat_map(|entries| &mut entries.0) {
            let Some(Arrived {
                held, what, extra, ..
            }) = slot.take()
            else {
                continue;
            };
            match what {
                // The block that the message came in; it gets another if it needs one.
                What::Spill => continue,
                What::Slot => return Err(Error::wrong_mode("a ring's slot", "a message")),
                _ => {}
            }
            let extra = extra.of(self.bytes.table());
            let mut head = head(what, held.line, held.generation);
            // It came with its length in one byte.
            head[head.len() - 1] = extra.len() as u8;
            table.extend_from_slice(&head);
            table.extend_from_slice(extra);
            message.pins.0.push(Pin { held, what });
        }
        let (payload, pins) = (&mut message.payload, &mut message.pins);
        let mut draft = Draft::of(payload, &table, pins.len(), self.bytes.body());
        let spill = spill_for(arena, pins.len(), &draft)?;
        pins.finish(&mut draft, spill)?;
        drop(draft);
        Ok(message)
    }
}

/// Table and body of an own message.
#[derive(Default)]
struct View {
    entries: SmallVec<[Entry; FEW]>,
    bytes: Bytes,
}

impl View {
    fn parse(message: &Outgoing) -> Result<Self> {
        let mut view = Self::default();
        let Self { entries, bytes } = &mut view;
        match message.pins.first() {
            Some(pin) if pin.what == What::Spill => {
                let storage = Storage::over(pin.held.clone())?;
                parse_spilled(storage.read_bytes(0, storage.len()), entries, bytes)?;
            }
            _ => parse_inline(&message.payload, entries, bytes)?,
        }
        Ok(view)
    }
}
