//! What tensors, objects and ends do when serde meets them: an entry in the table, and its index in the bytes.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::decode::{self, Arrived};
use super::parse::{What, malformed};
use super::pins::Pin;
use super::scope;
use crate::error::{Error, ErrorKind, Result};
use crate::held::Held;
use crate::line::Mode;
use crate::object::{End, LaneEnd, Object};
use crate::storage::{Place, Storage};
use crate::tensor::Geometry;

const OUTSIDE: &str = "a tensor, queue or event can be serialized only into a message (`put` of a queue, the arguments and the result of `spawn`); to write its values elsewhere, serialize `tensor.to_vec()`";

#[inline]
fn serialize_handle<S: Serializer>(
    held: &Held,
    what: What,
    geometry: Option<&Geometry>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let index = scope::with_scope(|scope| {
        // Not only of the same arena but of this one participation in it: entries are numbers in its lease table.
        if !scope.is_for(held.arena()) {
            return Err(foreign());
        }
        let held = held.clone();
        Ok(scope.add(Pin { held, what }, geometry))
    });
    match index {
        Some(Ok(index)) => serializer.serialize_u32(index),
        Some(Err(error)) => {
            let text = error.to_string();
            scope::fail(error);
            Err(serde::ser::Error::custom(text))
        }
        None => Err(serde::ser::Error::custom(OUTSIDE)),
    }
}

#[cold]
fn foreign() -> Error {
    Error::new(
        ErrorKind::ForeignArena,
        "the value holds a tensor (or queue) of another arena than the one that it is to be sent in (or of another handle by which this \
         process joined the same arena once more); copy it there first with `copy_into(&arena)`: a queue is in `queue.arena()`, a name in \
         the arena whose `publish` is called, and what is spawned gets its arguments in `Arena::current()?`",
    )
}

/// Takes a handle that says nothing else out of the message that is being read.
#[inline]
fn deserialize_handle<'de, D: Deserializer<'de>>(
    deserializer: D,
    wanted: &[What],
) -> Result<Held, D::Error> {
    take_handle(index(deserializer)?, wanted, |_| Ok(()), |held, _| Ok(held)).map_err(refuse)
}

/// Which handle of the message that is being read.
#[inline]
fn index<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    // Asked first, so that JSON or a file gets the sentence and not "expected a number".
    if !decode::is_reading() {
        return Err(serde::de::Error::custom(OUTSIDE));
    }
    u32::deserialize(deserializer)
}

/// Takes a handle out of the message that is being read, once `read` has read what else it says, for `make` to make
/// something of: it is gone from there in any case.
#[inline(always)]
fn take_handle<R>(
    index: u32,
    wanted: &[What],
    read: impl FnOnce(&[u8]) -> Result<(), Error>,
    make: impl FnOnce(Held, Place) -> Result<R, Error>,
) -> Result<R, Error> {
    let found = decode::with_scope(|scope| {
        let Some(entry) = scope.entries.get_mut(index as usize) else {
            return Err(missing());
        };
        // Looked at where it lies, since to move it takes longer.
        if let Some(Arrived { what, extra, .. }) = entry {
            let fits = if wanted.contains(what) {
                read(extra.of(scope.table))
            } else {
                let wanted = wanted.first().map_or("nothing", |what| what.name());
                Err(Error::wrong_mode(what.name(), wanted))
            };
            if let Err(error) = fits {
                *entry = None;
                return Err(error);
            }
        }
        match entry.take() {
            Some(Arrived { held, place, .. }) => make(held, place),
            None => Err(missing()),
        }
    });
    found.unwrap_or_else(|| Err(missing()))
}

#[cold]
fn missing() -> Error {
    malformed("a handle is missing or taken out twice")
}

/// Serializes a tensor into the message that is being made.
#[inline]
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

/// Takes a tensor out of the message that is being read: what `make` makes of its storage and its geometry, which it must
/// check against each other. A geometry has some 150 bytes, and to move it from one caller to the next costs more than
/// reading it: so it is read in its place, and `make` answers what the caller answers.
#[inline]
pub(crate) fn deserialize_tensor<'de, D: Deserializer<'de>, R>(
    deserializer: D,
    make: impl FnOnce(Storage, &Geometry) -> Result<R, D::Error>,
) -> Result<R, D::Error> {
    let mut geometry = Geometry::SCALAR;
    let storage = tensor(index(deserializer)?, &mut geometry).map_err(refuse)?;
    make(storage, &geometry)
}

#[inline]
fn tensor(index: u32, geometry: &mut Geometry) -> Result<Storage, Error> {
    let kinds = [What::Exclusive, What::Shared, What::Aliased];
    let read = |extra: &[u8]| {
        let used = geometry.read(extra)?;
        if used != extra.len() {
            return Err(malformed("a geometry is longer than it says"));
        }
        Ok(())
    };
    take_handle(index, &kinds, read, Storage::placed)
}

/// Why what arrived does not fit, as serde wants it: for the `Deserialize` of handles, in this crate and above. Whoever
/// reads the message is told by the error itself, since postcard keeps no text.
#[cold]
pub fn refuse<E: serde::de::Error>(error: Error) -> E {
    let text = error.to_string();
    decode::fail(error);
    E::custom(text)
}

/// Why a handle cannot be written into the message that is being made, as serde wants it: for the `Serialize` of handles
/// in crates above. Whoever sends is told by the error itself, since postcard keeps no text.
#[cold]
pub fn refuse_to_write<E: serde::ser::Error>(error: Error) -> E {
    let text = error.to_string();
    scope::fail(error);
    E::custom(text)
}

/// As [`refuse`], for handles that arrived and do not make what was to be read: the error is `Decode`, and says this.
pub fn refuse_because<E: serde::de::Error>(why: impl Into<String>) -> E {
    refuse(Error::new(ErrorKind::Decode, why))
}

impl Serialize for Object {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serialize_handle(&self.held, What::Object, None, serializer)
    }
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let held = deserialize_handle(deserializer, &[What::Object])?;
        Self::over(held).map_err(refuse)
    }
}

impl Serialize for End {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serialize_handle(&self.held, What::End, None, serializer)
    }
}

impl<'de> Deserialize<'de> for End {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let held = deserialize_handle(deserializer, &[What::End])?;
        Self::over(held).map_err(refuse)
    }
}

/// As an exclusive tensor: sending it moves it.
impl Serialize for LaneEnd {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.settle();
        serialize_handle(self.held(), What::ExclusiveEnd, None, serializer)
    }
}

impl<'de> Deserialize<'de> for LaneEnd {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let held = deserialize_handle(deserializer, &[What::ExclusiveEnd])?;
        Self::over(held).map_err(refuse)
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
    deserialize_handle(deserializer, &[What::Slots])
}
