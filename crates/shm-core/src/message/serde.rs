//! What tensors, objects and ends do when serde meets them: an entry in the table, and its index in the bytes.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::decode::{Arrived, DECODING, DecodeScope, in_scope};
use super::encode::Pin;
use super::parse::{What, malformed};
use super::scope::{self, ENCODING};
use crate::error::{Error, ErrorKind, Result};
use crate::held::Held;
use crate::line::Mode;
use crate::object::{End, LaneEnd, Object};
use crate::storage::Storage;
use crate::tensor::Geometry;

const OUTSIDE: &str = "a tensor, queue or event can be serialized only into a message (`put` of a queue, the arguments and the result of `spawn`); to write its values elsewhere, serialize `tensor.to_vec()`";

#[inline]
fn serialize_handle<S: Serializer>(
    held: &Held,
    what: What,
    geometry: Option<&Geometry>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let index = ENCODING.with_borrow_mut(|scope| {
        let Some(scope) = scope::in_scope(scope) else { return Err(OUTSIDE.to_owned()) };
        // Not only of the same arena but of this one participation in it: entries are numbers in its lease table.
        if scope::identity(held.arena()) != scope.arena {
            let error = Error::new(
                ErrorKind::ForeignArena,
                "the value holds a tensor (or queue) of another arena than the one that it is to be sent in (or of another handle by which this \
                 process joined the same arena once more); copy it there first with `copy_into(&arena)`: a queue is in `queue.arena()`, a name in \
                 the arena whose `publish` is called, and what is spawned gets its arguments in `Arena::current()?`",
            );
            let text = error.to_string();
            scope.error = Some(Box::new(error));
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
        scope.pins.0.push(Pin { held: held.clone(), what });
        Ok(scope.pins.0.len() as u32 - 1)
    });
    match index {
        Ok(index) => serializer.serialize_u32(index),
        Err(text) => Err(serde::ser::Error::custom(text)),
    }
}

#[inline]
fn deserialize_handle<'de, D: Deserializer<'de>>(
    deserializer: D,
    wanted: &[What],
) -> Result<Arrived, D::Error> {
    // Asked first, so that JSON or a file gets the sentence and not "expected a number".
    let inside = DECODING.with_borrow_mut(|slot| in_scope(slot).is_some());
    if !inside {
        return Err(serde::de::Error::custom(OUTSIDE));
    }
    let index = u32::deserialize(deserializer)?;
    DECODING
        .with_borrow_mut(|scope| {
            let scope = in_scope(scope).ok_or_else(|| OUTSIDE.to_owned())?;
            let fail = |scope: &mut DecodeScope, error: Error| {
                let text = error.to_string();
                scope.error = Some(Box::new(error));
                Err(text)
            };
            let Some(entry) = scope
                .entries
                .0
                .get_mut(index as usize)
                .and_then(Option::take)
            else {
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

/// Takes a tensor out of the message that is being read. The geometry fits the storage.
#[inline]
pub(crate) fn deserialize_tensor<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<(Storage, Geometry), D::Error> {
    let Arrived { held, extra, .. } = deserialize_handle(
        deserializer,
        &[What::Exclusive, What::Shared, What::Aliased],
    )?;
    let (geometry, used) = Geometry::decode(&extra).map_err(refuse)?;
    if used != extra.len() {
        return Err(refuse(malformed("a geometry is longer than it says")));
    }
    // Placing it in the tensor checks it against the block.
    Ok((Storage::over(held).map_err(refuse)?, geometry))
}

/// Why what arrived does not fit, as serde wants it: for the `Deserialize` of handles, in this crate and above. Whoever
/// reads the message is told by the error itself, since postcard keeps no text.
#[cold]
pub fn refuse<E: serde::de::Error>(error: Error) -> E {
    let text = error.to_string();
    DECODING.with_borrow_mut(|scope| {
        if let Some(scope) = in_scope(scope) {
            scope.error = Some(Box::new(error));
        }
    });
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
        let arrived = deserialize_handle(deserializer, &[What::Object])?;
        Self::over(arrived.held).map_err(refuse)
    }
}

impl Serialize for End {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serialize_handle(&self.held, What::End, None, serializer)
    }
}

impl<'de> Deserialize<'de> for End {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let held = deserialize_handle(deserializer, &[What::End])?.held;
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
        let held = deserialize_handle(deserializer, &[What::ExclusiveEnd])?.held;
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
    Ok(deserialize_handle(deserializer, &[What::Slots])?.held)
}
