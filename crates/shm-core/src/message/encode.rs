//! Making a message of a value: serialize, drop the value, look whether what is exclusive is really gone.

use core::fmt;
use core::sync::atomic::Ordering;
use std::cell::Cell;

use serde::Serialize;
use serde::de::DeserializeOwned;
use smallvec::SmallVec;

use super::decode::{Arrived, Entries, Incoming, decode_with};
use super::parse::{
    Body, Entry, FEW, FORM_INLINE, FORM_SPILLED, HANDLES_MAX, INLINE, What, bytes_of, parse_inline,
    parse_spilled, words_of,
};
use super::scope::EncodeGuard;
use super::strict::Whole;
use crate::arena::Arena;
use crate::cells::PAYLOAD_WORDS;
use crate::error::{Error, ErrorKind, Result};
use crate::held::Held;
use crate::layout::{LINE, counted};
use crate::line::Mode;
use crate::object::Object;
use crate::storage::Storage;

/// Buffers up to this many bytes are kept.
const KEPT: usize = 1 << 20;

/// A reference on its way out, still held by this process.
#[derive(Debug)]
pub(crate) struct Pin {
    pub(crate) held: Held,
    pub(crate) what: What,
}

impl Pin {
    /// What the header of its block says now.
    fn mode(&self) -> Option<Mode> {
        let meta = self
            .held
            .arena()
            .segment()
            .word(self.held.line * LINE + counted::META)
            .load(Ordering::Acquire);
        Mode::from_meta(meta)
    }
}

/// The references of a message.
///
/// Dropped in order: ends and slots lie in the block of their object, which may be gone with its last handle.
#[derive(Debug, Default)]
pub(crate) struct Pins(pub(crate) SmallVec<[Pin; FEW]>);

impl Pins {
    pub(crate) fn take(&mut self) -> SmallVec<[Pin; FEW]> {
        std::mem::take(&mut self.0)
    }
}

impl std::ops::Deref for Pins {
    type Target = [Pin];

    fn deref(&self) -> &[Pin] {
        &self.0
    }
}

impl Drop for Pins {
    #[inline]
    fn drop(&mut self) {
        if !self.0.is_empty() {
            self.0.retain(|pin| !pin.what.is_in_object());
        }
    }
}

/// An encoded message that was not sent yet. Dropping it releases what it holds.
#[derive(Debug)]
pub struct Outgoing {
    pub(crate) payload: [u64; PAYLOAD_WORDS],
    /// Spill block first, if there is one, then the handles of the table.
    pub(crate) pins: Pins,
}

/// Bytes in front of table and body in a block.
const SPILL_HEADER: usize = 24;

thread_local! {
    /// Buffers for table and body, kept from message to message.
    static BUFFERS: Cell<(Vec<u8>, Vec<u8>)> = const { Cell::new((Vec::new(), Vec::new())) };
}

/// A postcard flavor that appends to a vector.
struct Append(Vec<u8>);

impl postcard::ser_flavors::Flavor for Append {
    type Output = Vec<u8>;

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<Vec<u8>> {
        Ok(self.0)
    }
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
            .field(
                "value",
                &self.value.as_ref().map(|_| std::any::type_name::<T>()),
            )
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
    if let Err(error) = arena.check_not_forked("sending a message") {
        return Err(EncodeError {
            error,
            value: Some(value),
        });
    }
    let (mut table, mut body) = BUFFERS.take();
    table.clear();
    body.clear();
    let guard = EncodeGuard::enter(arena, table);
    let outcome = postcard::serialize_with_flavor(&Whole(&value), Append(body));
    let scope = guard.leave();
    let body = match (outcome, scope.error) {
        (Ok(body), None) => body,
        (_, Some(error)) => {
            return Err(EncodeError {
                error: *error,
                value: Some(value),
            });
        }
        (Err(cause), None) => {
            let error = Error::new(
                ErrorKind::Encode,
                format!(
                    "{} could not be written: {cause}; messages are postcard, which has no `flatten`, no untagged enums and needs the length of a sequence beforehand",
                    std::any::type_name::<T>()
                ),
            );
            return Err(EncodeError {
                error: error.because(cause),
                value: Some(value),
            });
        }
    };
    // While there is still a value to give back.
    let spill = match spill_for(arena, scope.pins.len(), scope.table.len() + body.len()) {
        Ok(spill) => spill,
        Err(error) => {
            return Err(EncodeError {
                error,
                value: Some(value),
            });
        }
    };
    drop(value);
    let finished = finish(scope.pins, &scope.table, &body, spill);
    // One large message must not keep its size in memory for as long as the thread lives.
    if scope.table.capacity().max(body.capacity()) <= KEPT {
        BUFFERS.set((scope.table, body));
    }
    finished.map_err(|error| EncodeError { error, value: None })
}

/// The bytes of a value in which nothing of an arena is; `None` if something is, or postcard cannot say it: then
/// [`encode`] sends it, or tells why not. Needs no arena.
pub fn plain<T: Serialize>(value: &T) -> Option<Vec<u8>> {
    // Outside of a scope, what is of an arena refuses to be written.
    let _guard = EncodeGuard::outside();
    postcard::serialize_with_flavor(&Whole(value), Append(Vec::new())).ok()
}

/// The value that these bytes are, as [`plain`] or [`Outgoing::plain`] gave them.
///
/// # Errors
/// `Decode` when the type does not read what was written.
pub fn read_plain<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    decode_with(&mut Entries::default(), bytes)
}

/// A block for a message of so many handles, and so many bytes of table and body, if it needs one.
#[inline]
fn spill_for(arena: &Arena, handles: usize, bytes: usize) -> Result<Option<Storage>> {
    if handles > HANDLES_MAX {
        return Err(Error::new(
            ErrorKind::Encode,
            format!("a message with {handles} tensors; at most {HANDLES_MAX} fit"),
        ));
    }
    if bytes <= INLINE {
        return Ok(None);
    }
    Storage::allocate(arena, SPILL_HEADER + bytes, Mode::Message).map(Some)
}

/// Checks that exclusive handles are really gone, and lays the message out: in the cell, or in the block that it needs.
#[inline]
fn finish(mut pins: Pins, table: &[u8], body: &[u8], spill: Option<Storage>) -> Result<Outgoing> {
    for pin in pins.iter().filter(|pin| pin.what.is_exclusive()) {
        // Besides the handle itself: code that still had it while it was serialized may have frozen it since, and
        // sent it elsewhere.
        let is_still = pin.what == What::ExclusiveEnd || pin.mode() == Some(Mode::Exclusive);
        if !is_still || !pin.held.is_sole() {
            return Err(Error::new(
                ErrorKind::StillHeld,
                "the message holds an exclusive tensor (or lane end) that occurs twice in it, or that this process still holds elsewhere (in an Arc, say); \
                 nothing was sent. Send the tensor itself, or `freeze()` it and send clones",
            ));
        }
    }
    let Some(spill) = spill else {
        let mut bytes = [0; PAYLOAD_WORDS * 8];
        bytes[0] = FORM_INLINE;
        // At most 52, each.
        bytes[1] = pins.len() as u8;
        bytes[2] = table.len() as u8;
        bytes[3] = body.len() as u8;
        bytes[4..4 + table.len()].copy_from_slice(table);
        bytes[4 + table.len()..4 + table.len() + body.len()].copy_from_slice(body);
        return Ok(Outgoing {
            payload: words_of(&bytes),
            pins,
        });
    };
    let mut header = [0; SPILL_HEADER];
    header[0..8].copy_from_slice(&(pins.len() as u64).to_le_bytes());
    header[8..16].copy_from_slice(&(table.len() as u64).to_le_bytes());
    header[16..24].copy_from_slice(&(body.len() as u64).to_le_bytes());
    let length = header.len() + table.len() + body.len();
    spill.write_bytes(0, &header);
    spill.write_bytes(header.len(), table);
    spill.write_bytes(header.len() + table.len(), body);
    let held = spill.into_held();
    let mut payload = [0; PAYLOAD_WORDS];
    payload[0] = u64::from(FORM_SPILLED);
    payload[1] = held.line;
    payload[2] = held.generation;
    payload[3] = length as u64;
    pins.0.insert(
        0,
        Pin {
            held,
            what: What::Spill,
        },
    );
    Ok(Outgoing { payload, pins })
}

impl Outgoing {
    /// A message of what [`plain`] gave.
    ///
    /// # Errors
    /// `OutOfRoom` when it needs a block of its own and there is none.
    pub fn from_plain(arena: &Arena, bytes: &[u8]) -> Result<Self> {
        arena.check_not_forked("sending a message")?;
        let spill = spill_for(arena, 0, bytes.len())?;
        finish(Pins::default(), &[], bytes, spill)
    }

    /// Whether it was put: its references are in the queue then, and what is left is nothing.
    #[inline]
    pub(crate) fn is_spent(&self) -> bool {
        self.payload[0] == 0
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
        let body = View::parse(self).ok()?.body;
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
        let mut taken = entries
            .into_iter()
            .zip(pins)
            .map(|(entry, pin)| {
                Some(Arrived {
                    held: pin.held,
                    what: entry.what,
                    extra: entry.extra,
                })
            })
            .collect();
        decode_with(&mut taken, &view.body)
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
        let mut pins = Pins::default();
        let mut table = Vec::new();
        for slot in &mut self.entries.0 {
            let Some(Arrived { held, what, extra }) = slot.take() else {
                continue;
            };
            match what {
                // The block that the message came in; it gets another if it needs one.
                What::Spill => continue,
                What::Slot => return Err(Error::wrong_mode("a ring's slot", "a message")),
                _ => {}
            }
            table.push(what.code());
            table.extend_from_slice(&held.line.to_le_bytes()[..5]);
            table.extend_from_slice(&held.generation.to_le_bytes()[..5]);
            // It came with its length in one byte.
            table.push(extra.len() as u8);
            table.extend_from_slice(&extra);
            pins.0.push(Pin { held, what });
        }
        let spill = spill_for(arena, pins.len(), table.len() + self.body.len())?;
        finish(pins, &table, &self.body, spill)
    }
}

/// Table and body of an own message.
struct View {
    entries: SmallVec<[Entry; FEW]>,
    body: Body,
}

impl View {
    fn parse(message: &Outgoing) -> Result<Self> {
        let (mut entries, mut body) = (SmallVec::new(), Body::new());
        match message.pins.first() {
            Some(pin) if pin.what == What::Spill => {
                let storage = Storage::over(pin.held.clone())?;
                let bytes = storage.read_bytes(0, storage.len());
                parse_spilled(&bytes, &mut entries, &mut body)?;
            }
            _ => parse_inline(&bytes_of(&message.payload), &mut entries, &mut body)?,
        }
        Ok(Self { entries, body })
    }
}
