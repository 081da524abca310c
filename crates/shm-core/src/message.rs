//! Messages: postcard bytes plus a table of handles.
//!
//! The bytes carry indices into the table; each entry can be taken out at most once. So a message can be
//! released without knowing its type, and serde's `&self` cannot duplicate an exclusive tensor: [`encode`]
//! serializes the value, drops it, and gives a message only if each exclusive entry occurs once and the
//! sender's own handle is really gone. Small messages lie in the 56 bytes of a cell, larger ones in a block.
//! What arrives is checked before it is used; `docs/src/wire.md` has the format.

use std::cell::{Cell, RefCell};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use smallvec::SmallVec;

use crate::arena::Arena;
use crate::cells::PAYLOAD_WORDS;
use crate::error::{Error, ErrorKind, Result};
use crate::heap;
use crate::held::{self, Held};
use crate::layout::{LINE, counted};
use crate::line::{Counted, Mode, Tag};
use crate::object::{End, Object};
use crate::storage::Storage;
use crate::tensor::Geometry;

/// The body of a message: on the stack when it came in a cell.
pub(crate) type Body = SmallVec<[u8; INLINE]>;

/// Bytes of a cell that table and body of an inline message may take.
const INLINE: usize = PAYLOAD_WORDS * 8 - 4;
const FORM_INLINE: u8 = 1;
const FORM_SPILLED: u8 = 2;
/// A ring's message: one slot, and words of the ring's own.
pub(crate) const FORM_SLOT: u8 = 3;
/// Handles that one message may carry.
const HANDLES_MAX: usize = 1 << 20;

/// What an entry of the table names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum What {
    Exclusive,
    Shared,
    Aliased,
    Object,
    End,
    ExclusiveEnd,
    Slots,
    /// A slot of a ring; only in messages of form slot.
    Slot,
    /// The block a message was spilled into.
    Spill,
}

impl What {
    const fn code(self) -> u8 {
        match self {
            Self::Exclusive => 1,
            Self::Shared => 2,
            Self::Aliased => 3,
            Self::Object => 4,
            Self::End => 5,
            Self::ExclusiveEnd => 6,
            Self::Slots => 7,
            Self::Slot => 8,
            Self::Spill => 9,
        }
    }

    const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Exclusive,
            2 => Self::Shared,
            3 => Self::Aliased,
            4 => Self::Object,
            5 => Self::End,
            6 => Self::ExclusiveEnd,
            7 => Self::Slots,
            _ => return None,
        })
    }

    const fn is_exclusive(self) -> bool {
        matches!(self, Self::Exclusive | Self::ExclusiveEnd)
    }

    /// Whether a line with this second word is what the entry says.
    fn matches(self, meta: u64) -> bool {
        let mode = Mode::from_meta(meta);
        match Tag::from_meta(meta) {
            Some(Tag::Block) => match self {
                Self::Exclusive => mode == Some(Mode::Exclusive),
                Self::Shared => mode == Some(Mode::Shared),
                Self::Aliased => mode == Some(Mode::Aliased),
                Self::Object => mode == Some(Mode::Object),
                Self::Slots => mode == Some(Mode::Slots),
                Self::Spill => mode == Some(Mode::Message),
                Self::End | Self::ExclusiveEnd | Self::Slot => false,
            },
            Some(Tag::End) => matches!(self, Self::End | Self::ExclusiveEnd),
            Some(Tag::Slot) => self == Self::Slot,
            None => false,
        }
    }
}

// ------------------------------------------------------------------------------------------- encoding

/// A reference on its way out, still held by this process.
#[derive(Debug)]
pub(crate) struct Pin {
    pub(crate) held: Held,
    pub(crate) what: What,
}

/// An encoded message that was not sent yet. Dropping it releases what it holds.
#[derive(Debug)]
pub struct Outgoing {
    pub(crate) payload: [u64; PAYLOAD_WORDS],
    /// Spill block first, if there is one, then the handles of the table.
    pub(crate) pins: SmallVec<[Pin; 4]>,
}

struct EncodeScope {
    arena: Arena,
    table: Vec<u8>,
    pins: SmallVec<[Pin; 4]>,
    error: Option<Error>,
}

thread_local! {
    static ENCODING: RefCell<Option<EncodeScope>> = const { RefCell::new(None) };
    static DECODING: RefCell<Option<DecodeScope>> = const { RefCell::new(None) };
    /// Buffers for table and body, kept from message to message.
    static BUFFERS: Cell<(Vec<u8>, Vec<u8>)> = const { Cell::new((Vec::new(), Vec::new())) };
}

/// Puts a scope in place for as long as it lives, and the one before back, also when serde code panics.
struct EncodeGuard(Option<EncodeScope>);

impl EncodeGuard {
    fn enter(arena: &Arena, table: Vec<u8>) -> Self {
        let scope = EncodeScope {
            arena: arena.clone(),
            table,
            pins: SmallVec::new(),
            error: None,
        };
        Self(ENCODING.replace(Some(scope)))
    }

    fn leave(self) -> Option<EncodeScope> {
        ENCODING.take()
        // `self` is dropped here and puts the outer scope back.
    }
}

impl Drop for EncodeGuard {
    fn drop(&mut self) {
        drop(ENCODING.replace(self.0.take()));
    }
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
#[derive(Debug)]
pub struct EncodeError<T> {
    /// What went wrong.
    pub error: Error,
    /// The value; `None` when it was dropped to see whether its exclusive tensors are really gone
    /// (`StillHeld`: whoever held on to them has them still).
    pub value: Option<T>,
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
    let outcome = postcard::serialize_with_flavor(&value, Append(body));
    let Some(scope) = guard.leave() else {
        unreachable!("the guard put a scope in place");
    };
    let body = match (outcome, scope.error) {
        (Ok(body), None) => body,
        (_, Some(error)) => {
            return Err(EncodeError {
                error,
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
    drop(value);
    let finished = finish(arena, scope.pins, &scope.table, &body);
    BUFFERS.set((scope.table, body));
    finished.map_err(|error| EncodeError { error, value: None })
}

/// Checks that exclusive handles are really gone, and lays the message out.
fn finish(arena: &Arena, pins: SmallVec<[Pin; 4]>, table: &[u8], body: &[u8]) -> Result<Outgoing> {
    for pin in &pins {
        if pin.what.is_exclusive() && !pin.held.is_locally_unique() {
            return Err(Error::new(
                ErrorKind::StillHeld,
                "the message holds an exclusive tensor (or lane end) that occurs twice in it, or that this process still holds elsewhere (in an Arc, say); \
                 nothing was sent. Send the tensor itself, or `freeze()` it and send clones",
            ));
        }
    }
    if pins.len() > HANDLES_MAX {
        return Err(Error::new(
            ErrorKind::Encode,
            format!(
                "a message with {} tensors; at most {HANDLES_MAX} fit",
                pins.len()
            ),
        ));
    }
    if table.len() + body.len() <= INLINE {
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
    }
    let mut header = [0; 24];
    header[0..8].copy_from_slice(&(pins.len() as u64).to_le_bytes());
    header[8..16].copy_from_slice(&(table.len() as u64).to_le_bytes());
    header[16..24].copy_from_slice(&(body.len() as u64).to_le_bytes());
    let length = header.len() + table.len() + body.len();
    let spill = Storage::allocate(arena, length, Mode::Message)?;
    spill.write_bytes(0, &header);
    spill.write_bytes(header.len(), table);
    spill.write_bytes(header.len() + table.len(), body);
    let held = spill.into_held();
    let mut payload = [0; PAYLOAD_WORDS];
    payload[0] = u64::from(FORM_SPILLED);
    payload[1] = held.line;
    payload[2] = held.generation;
    payload[3] = length as u64;
    let mut all = SmallVec::with_capacity(pins.len() + 1);
    all.push(Pin {
        held,
        what: What::Spill,
    });
    all.extend(pins);
    Ok(Outgoing { payload, pins: all })
}

impl Outgoing {
    /// The value back out of a message that was not sent.
    ///
    /// # Errors
    /// `Decode` when the type does not read what it wrote.
    pub fn decode<T: DeserializeOwned>(self) -> Result<T> {
        let view = View::parse(&self)?;
        let entries = view.entries;
        let mut pins = self.pins.into_iter();
        if self.payload[0] as u8 == FORM_SPILLED {
            pins.next();
        }
        let taken = entries
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
        decode_with(taken, &view.body)
    }

    /// One more message like this one, holding references of its own.
    ///
    /// # Errors
    /// `StillHeld` when it holds something exclusive, which can go to one receiver only; `OutOfRoom`.
    pub fn duplicate(&self) -> Result<Self> {
        if self.pins.iter().any(|pin| pin.what.is_exclusive()) {
            return Err(Error::new(
                ErrorKind::StillHeld,
                "an exclusive tensor can go to one process only; `freeze()` it to send it to several",
            ));
        }
        let mut pins: SmallVec<[Pin; 4]> = self
            .pins
            .iter()
            .map(|pin| Pin {
                held: pin.held.clone(),
                what: pin.what,
            })
            .collect();
        let mut payload = self.payload;
        if let Some(first) = pins.first_mut()
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

/// Table and body of an own message.
struct View {
    entries: SmallVec<[Entry; 4]>,
    body: Body,
}

impl View {
    fn parse(message: &Outgoing) -> Result<Self> {
        let (entries, body) = match message.pins.first() {
            Some(pin) if pin.what == What::Spill => {
                let storage = Storage::over(pin.held.clone())?;
                parse_spilled(&storage.read_bytes(0, storage.len()))?
            }
            _ => parse_inline(&bytes_of(&message.payload))?,
        };
        Ok(Self { entries, body })
    }
}

// -------------------------------------------------------------------------------------------- parsing

/// An entry of the table: what it names, where, and what else it says (a tensor's geometry).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) what: What,
    pub(crate) line: u64,
    pub(crate) generation: u64,
    pub(crate) extra: SmallVec<[u8; 40]>,
}

fn malformed(why: &str) -> Error {
    Error::new(
        ErrorKind::Decode,
        format!(
            "a message is malformed ({why}); a participant wrote where it must not, or its version differs"
        ),
    )
}

fn parse_table(mut bytes: &[u8], count: usize) -> Result<SmallVec<[Entry; 4]>> {
    // Each entry has at least 12 bytes: the count cannot make us reserve more than the table justifies.
    if count > bytes.len() / 12 {
        return Err(malformed("more handles than its table has room for"));
    }
    let mut entries = SmallVec::with_capacity(count);
    for _ in 0..count {
        let (fixed, rest) = bytes
            .split_first_chunk::<12>()
            .ok_or_else(|| malformed("a handle is cut short"))?;
        let what =
            What::from_code(fixed[0]).ok_or_else(|| malformed("a handle of unknown kind"))?;
        let wide = |five: &[u8]| {
            five.iter()
                .rev()
                .fold(0, |sum, &byte| (sum << 8) | u64::from(byte))
        };
        let extra = usize::from(fixed[11]);
        if extra > rest.len() {
            return Err(malformed("a handle is cut short"));
        }
        let (extra, rest) = rest.split_at(extra);
        entries.push(Entry {
            what,
            line: wide(&fixed[1..6]),
            generation: wide(&fixed[6..11]),
            extra: extra.into(),
        });
        bytes = rest;
    }
    if bytes.is_empty() {
        Ok(entries)
    } else {
        Err(malformed("its table is longer than its handles"))
    }
}

fn parse_inline(bytes: &[u8; PAYLOAD_WORDS * 8]) -> Result<(SmallVec<[Entry; 4]>, Body)> {
    let (table, body) = (usize::from(bytes[2]), usize::from(bytes[3]));
    if bytes[0] != FORM_INLINE || table + body > INLINE {
        return Err(malformed("its lengths do not fit its cell"));
    }
    let entries = parse_table(&bytes[4..4 + table], usize::from(bytes[1]))?;
    Ok((
        entries,
        Body::from_slice(&bytes[4 + table..4 + table + body]),
    ))
}

fn parse_spilled(bytes: &[u8]) -> Result<(SmallVec<[Entry; 4]>, Body)> {
    let (header, rest) = bytes
        .split_first_chunk::<24>()
        .ok_or_else(|| malformed("its header is cut short"))?;
    let field = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&header[at..at + 8]);
        usize::try_from(u64::from_le_bytes(word)).map_err(|_| malformed("a length is too large"))
    };
    let (count, table, body) = (field(0)?, field(8)?, field(16)?);
    if table.checked_add(body) != Some(rest.len()) || count > HANDLES_MAX {
        return Err(malformed("its lengths do not add up"));
    }
    let entries = parse_table(&rest[..table], count)?;
    Ok((entries, Body::from_slice(&rest[table..])))
}

/// Everything a payload refers to, and its body; used by takers, reapers and the audit alike.
pub(crate) struct Parsed {
    pub(crate) entries: SmallVec<[Entry; 4]>,
    pub(crate) body: Body,
    pub(crate) payload: [u64; PAYLOAD_WORDS],
}

/// Takes a payload apart. The references it names are the message's own while its cell holds it.
pub(crate) fn parse(arena: &Arena, payload: &[u64; PAYLOAD_WORDS]) -> Result<Parsed> {
    let bytes = bytes_of(payload);
    let (entries, body) = match bytes[0] {
        FORM_INLINE => parse_inline(&bytes)?,
        FORM_SPILLED => {
            let spill = Entry {
                what: What::Spill,
                line: payload[1],
                generation: payload[2],
                extra: SmallVec::new(),
            };
            check(arena, &spill)?;
            let length =
                usize::try_from(payload[3]).map_err(|_| malformed("a length is too large"))?;
            let bytes = Storage::read_foreign(arena, spill.line, length)
                .ok_or_else(|| malformed("it is longer than its block"))?;
            let (entries, body) = parse_spilled(&bytes)?;
            let mut all = SmallVec::with_capacity(entries.len() + 1);
            all.push(spill);
            all.extend(entries);
            (all, body)
        }
        FORM_SLOT => {
            let slot = Entry {
                what: What::Slot,
                line: payload[0] >> 8,
                generation: payload[1],
                extra: SmallVec::new(),
            };
            (SmallVec::from_iter([slot]), Body::new())
        }
        _ => return Err(malformed("it has an unknown form")),
    };
    for entry in &entries {
        check(arena, entry)?;
    }
    Ok(Parsed {
        entries,
        body,
        payload: *payload,
    })
}

/// Checks that an entry names something that is there, in that generation, counted, and of that kind.
fn check(arena: &Arena, entry: &Entry) -> Result<()> {
    let segment = arena.segment();
    let known = match entry.what {
        What::End | What::ExclusiveEnd | What::Slot => heap::in_object(segment, entry.line),
        _ => heap::locate(segment, entry.line).is_some(),
    };
    if !known {
        return Err(malformed("a handle points nowhere"));
    }
    let word = Counted::from_word(
        segment
            .word(entry.line * LINE + counted::WORD)
            .load(core::sync::atomic::Ordering::Acquire),
    );
    if word.generation != entry.generation || word.count == 0 {
        return Err(held::stale(entry.line, entry.generation));
    }
    let meta = segment
        .word(entry.line * LINE + counted::META)
        .load(core::sync::atomic::Ordering::Acquire);
    if !entry.what.matches(meta) {
        return Err(Error::wrong_mode(
            "something else now",
            "what its handle says",
        ));
    }
    Ok(())
}

pub(crate) fn bytes_of(words: &[u64; PAYLOAD_WORDS]) -> [u8; PAYLOAD_WORDS * 8] {
    let mut bytes = [0; PAYLOAD_WORDS * 8];
    for (word, chunk) in words.iter().zip(bytes.chunks_exact_mut(8)) {
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

fn words_of(bytes: &[u8; PAYLOAD_WORDS * 8]) -> [u64; PAYLOAD_WORDS] {
    let mut words = [0; PAYLOAD_WORDS];
    for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        let mut eight = [0; 8];
        eight.copy_from_slice(chunk);
        *word = u64::from_le_bytes(eight);
    }
    words
}

// ------------------------------------------------------------------------------------------- decoding

/// A handle of a message that is now held by this process.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) held: Held,
    pub(crate) what: What,
    pub(crate) extra: SmallVec<[u8; 40]>,
}

struct DecodeScope {
    entries: SmallVec<[Option<Arrived>; 4]>,
    error: Option<Error>,
}

/// A message that was taken out of its cell; this process holds what it refers to. Dropping it releases that.
#[derive(Debug)]
pub struct Incoming {
    pub(crate) entries: SmallVec<[Option<Arrived>; 4]>,
    pub(crate) body: Body,
    pub(crate) payload: [u64; PAYLOAD_WORDS],
}

impl Incoming {
    /// The value.
    ///
    /// # Errors
    /// `Decode` when the bytes are not what the type reads; everything the message held is released then.
    pub fn decode<T: DeserializeOwned>(mut self) -> Result<T> {
        if self.entries.first().is_some_and(|entry| {
            entry
                .as_ref()
                .is_some_and(|entry| entry.what == What::Spill)
        }) {
            self.entries.remove(0);
        }
        let entries = std::mem::take(&mut self.entries);
        decode_with(entries, &self.body)
    }
}

struct DecodeGuard(Option<DecodeScope>);

impl Drop for DecodeGuard {
    fn drop(&mut self) {
        drop(DECODING.replace(self.0.take()));
    }
}

fn decode_with<T: DeserializeOwned>(
    entries: SmallVec<[Option<Arrived>; 4]>,
    body: &[u8],
) -> Result<T> {
    let guard = DecodeGuard(DECODING.replace(Some(DecodeScope {
        entries,
        error: None,
    })));
    let outcome = postcard::take_from_bytes::<T>(body);
    let scope = DECODING.take();
    drop(guard);
    let type_name = std::any::type_name::<T>();
    let (left, error) = scope.map_or((0, None), |scope| {
        (scope.entries.iter().flatten().count(), scope.error)
    });
    match outcome {
        Ok((value, [])) if left == 0 => Ok(value),
        Ok((_, rest)) => Err(Error::new(
            ErrorKind::Decode,
            format!(
                "{type_name} read its message, but {} bytes and {left} tensors of it are left over; sender and receiver must use the same type, and postcard has no `skip_serializing_if`, `flatten` or untagged enums",
                rest.len()
            ),
        )),
        Err(cause) => Err(error.unwrap_or_else(|| {
            Error::new(
                ErrorKind::Decode,
                format!("a message could not be read as {type_name}: {cause}; sender and receiver must use the same type, and postcard has no `skip_serializing_if`, `flatten` or untagged enums"),
            )
            .because(cause)
        })),
    }
}

// ------------------------------------------------------------------------------------------ serde hooks

const OUTSIDE: &str = "a tensor, queue or event can be serialized only into a message (queue.put, spawn, a pool task); to write its values elsewhere, serialize `tensor.to_vec()`";

fn serialize_handle<S: Serializer>(
    held: &Held,
    what: What,
    geometry: Option<&Geometry>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let index = ENCODING.with_borrow_mut(|scope| {
        let Some(scope) = scope else { return Err(OUTSIDE.to_owned()) };
        if !held.arena().same(&scope.arena) {
            let error = Error::new(
                ErrorKind::ForeignArena,
                "the value holds a tensor (or queue) of another arena than the queue it is put into; copy it with `copy_into(queue.arena())`",
            );
            let text = error.to_string();
            scope.error = Some(error);
            return Err(text);
        }
        let at = scope.table.len();
        scope.table.push(what.code());
        scope.table.extend_from_slice(&held.line.to_le_bytes()[..5]);
        scope.table.extend_from_slice(&held.generation.to_le_bytes()[..5]);
        scope.table.push(0);
        if let Some(geometry) = geometry {
            geometry.encode(&mut scope.table);
            // A geometry has at most 8 extents, strides and an offset of at most 10 bytes each: below 256.
            scope.table[at + 11] = (scope.table.len() - at - 12) as u8;
        }
        scope.pins.push(Pin { held: held.clone(), what });
        Ok(scope.pins.len() as u32 - 1)
    });
    match index {
        Ok(index) => serializer.serialize_u32(index),
        Err(text) => Err(serde::ser::Error::custom(text)),
    }
}

fn deserialize_handle<'de, D: Deserializer<'de>>(
    deserializer: D,
    wanted: &[What],
) -> Result<Arrived, D::Error> {
    // Asked first, so that JSON or a file gets the sentence and not "expected a number".
    let inside = DECODING.with_borrow(Option::is_some);
    if !inside {
        return Err(serde::de::Error::custom(OUTSIDE));
    }
    let index = u32::deserialize(deserializer)?;
    DECODING
        .with_borrow_mut(|scope| {
            let scope = scope.as_mut().ok_or_else(|| OUTSIDE.to_owned())?;
            let fail = |scope: &mut DecodeScope, error: Error| {
                let text = error.to_string();
                scope.error = Some(error);
                Err(text)
            };
            let Some(entry) = scope.entries.get_mut(index as usize).and_then(Option::take) else {
                return fail(scope, malformed("a handle is missing or taken out twice"));
            };
            if !wanted.contains(&entry.what) {
                let found = entry.what.name();
                let wanted = wanted.first().map_or("nothing", |what| what.name());
                return fail(scope, Error::wrong_mode(found, wanted));
            }
            Ok(entry)
        })
        .map_err(serde::de::Error::custom)
}

impl What {
    const fn name(self) -> &'static str {
        match self {
            Self::Exclusive => "an exclusive tensor",
            Self::Shared => "a shared tensor",
            Self::Aliased => "an aliased tensor",
            Self::Object => "an object (queue, event, ring)",
            Self::End => "one side of a queue",
            Self::ExclusiveEnd => "one side of a lane",
            Self::Slots => "a ring's memory",
            Self::Slot => "a ring's slot",
            Self::Spill => "a message block",
        }
    }
}

/// Serializes a tensor into the message that is being made.
pub(crate) fn serialize_tensor<S: Serializer>(
    storage: &Storage,
    geometry: &Geometry,
    exclusive: bool,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let what = match (exclusive, storage.mode()) {
        (true, _) => What::Exclusive,
        (false, Mode::Aliased) => What::Aliased,
        (false, _) => What::Shared,
    };
    serialize_handle(storage.held(), what, Some(geometry), serializer)
}

/// Takes a tensor out of the message that is being read. The geometry fits the storage.
pub(crate) fn deserialize_tensor<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<(Storage, Geometry), D::Error> {
    let arrived = deserialize_handle(
        deserializer,
        &[What::Exclusive, What::Shared, What::Aliased],
    )?;
    let read = || {
        let (geometry, used) = Geometry::decode(&arrived.extra)?;
        if used != arrived.extra.len() {
            return Err(malformed("a geometry is longer than it says"));
        }
        let storage = Storage::over(arrived.held.clone())?;
        // Placing it in the tensor checks it against the block.
        Ok((storage, geometry))
    };
    let read = read();
    drop(arrived);
    read.map_err(|error: Error| {
        let text = error.to_string();
        DECODING.with_borrow_mut(|scope| {
            if let Some(scope) = scope {
                scope.error = Some(error);
            }
        });
        serde::de::Error::custom(text)
    })
}

impl Serialize for Object {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serialize_handle(&self.held, What::Object, None, serializer)
    }
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let arrived = deserialize_handle(deserializer, &[What::Object])?;
        Self::over(arrived.held).map_err(serde::de::Error::custom)
    }
}

impl Serialize for End {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serialize_handle(&self.held, What::End, None, serializer)
    }
}

impl<'de> Deserialize<'de> for End {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self {
            held: deserialize_handle(deserializer, &[What::End])?.held,
        })
    }
}

impl End {
    /// Serializes an end that only one process may hold: sending it moves it, as with an exclusive tensor.
    ///
    /// # Errors
    /// Outside a message.
    pub(crate) fn serialize_exclusive<S: Serializer>(
        &self,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serialize_handle(&self.held, What::ExclusiveEnd, None, serializer)
    }

    /// Reads what [`serialize_exclusive`](Self::serialize_exclusive) wrote.
    ///
    /// # Errors
    /// Outside a message, or when the entry is something else.
    pub(crate) fn deserialize_exclusive<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Self, D::Error> {
        Ok(Self {
            held: deserialize_handle(deserializer, &[What::ExclusiveEnd])?.held,
        })
    }
}

/// Serializes the memory of a ring's slots.
pub(crate) fn serialize_slots<S: Serializer>(
    held: &Held,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serialize_handle(held, What::Slots, None, serializer)
}

/// Reads what [`serialize_slots`] wrote.
pub(crate) fn deserialize_slots<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Held, D::Error> {
    Ok(deserialize_handle(deserializer, &[What::Slots])?.held)
}

/// A value sent to oneself, for tests of what is in messages.
#[cfg(test)]
pub(crate) fn send<T: Serialize, R: DeserializeOwned>(value: T) -> Result<R> {
    let arena = Arena::current()?;
    encode(&arena, value)
        .map_err(|failed| failed.error)?
        .decode()
}
