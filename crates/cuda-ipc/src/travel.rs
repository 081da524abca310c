//! Device tensors in messages: the token and how the elements lie, or a copy of them where memory cannot be shared.

use std::fmt;
use std::sync::Arc;

use serde::de::{DeserializeOwned, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use shm_core::message::{is_for_another, is_outliving, refuse, refuse_to_write};
use shm_core::tensor::Geometry;
use shm_core::trace::Trace;
use shm_core::{DynTensor, SharedTensor, Tensor};

use crate::body::Body;
use crate::device::{Device, Uuid};
use crate::error::{Error, ErrorKind, Result};
use crate::joint;
use crate::layout::{Path, malformed};
use crate::place::Place;
use crate::staging::{self, CopyId};
use crate::stats::COUNTERS;
use crate::token::{Token, lent};

/// How elements lie, as bytes of the arena's own encoding.
#[derive(Clone, Debug)]
pub(crate) struct Lies(pub(crate) Geometry);

impl Serialize for Lies {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut bytes = Vec::with_capacity(64);
        self.0.encode(&mut bytes);
        serializer.serialize_bytes(&bytes)
    }
}

impl<'de> Deserialize<'de> for Lies {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes;
        impl Visitor<'_> for Bytes {
            type Value = Lies;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("how the elements of a tensor lie")
            }

            fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Lies, E> {
                let (geometry, used) = Geometry::decode(bytes).map_err(refuse)?;
                if used != bytes.len() {
                    return Err(refuse(malformed("more bytes than a tensor needs").into()));
                }
                Ok(Lies(geometry))
            }
        }
        deserializer.deserialize_bytes(Bytes)
    }
}

/// What is in a message. `K` is the token, or the copy's bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Wire<K, H> {
    /// The token.
    Block(K, Lies),
    /// A copy of the elements, and the device they were on.
    Copy(H, Lies, [u64; 2]),
}

/// Whether its elements travel, and not its memory: since no other process can open it, or the message is read when this
/// process has ended, and its memory with it.
fn goes_as_copy(body: &Body) -> bool {
    let is_own = matches!(body.using.place, Place::Home(..));
    body.path() == Path::Host || (is_own && is_outliving())
}

#[cold]
fn of_another_arena() -> Error {
    Error::new(
        ErrorKind::Arena(Box::new(shm_core::ErrorKind::ForeignArena)),
        "a device tensor goes through the arena that this process is in (`Arena::current()`), and was to be sent through another one; make the queue there, as `Queue::bounded` does, or send the elements (`to_host`) and copy those with `copy_into`",
    )
}

/// Writes a device tensor into the message that is being made.
pub(crate) fn serialize<S: Serializer>(body: &Body, serializer: S) -> Result<S::Ok, S::Error> {
    let fail = |error: Error| refuse_to_write::<S::Error>(error.into());
    if is_for_another(body.using.place.object().arena()) == Some(true) {
        return Err(fail(of_another_arena()));
    }
    if goes_as_copy(body) {
        if !staging::is_in_message() {
            // Before a copy is made that has nowhere to go.
            let why = "a device tensor was to be written outside of a message";
            return Err(fail(Error::new(ErrorKind::NotExportable, why)));
        }
        let uuid = body.device().uuid().to_words();
        let written = match &*body.token {
            Token::Exclusive(_) => {
                let (bytes, lies) = staging::copy_of_one(body).map_err(fail)?;
                Wire::<(), _>::Copy(bytes, lies, uuid).serialize(serializer)
            }
            Token::Shared(_) => {
                let (bytes, lies) = staging::copy_of_shared(body).map_err(fail)?;
                Wire::<(), _>::Copy(bytes, lies, uuid).serialize(serializer)
            }
            Token::Lent => return Err(fail(lent())),
        };
        COUNTERS.sent.add(1);
        COUNTERS.staged.add(1);
        return written;
    }
    body.using.place.check_alive(false).map_err(fail)?;
    if crate::sabotage::is("resend")
        && let Place::Away(import) = &body.using.place
    {
        // As if the import were this process's own.
        import.export().map_err(fail)?;
    }
    let lies = Lies(body.geometry);
    let written = match &*body.token {
        Token::Exclusive(token) => {
            joint::leave(&body.using, &body.stream, false).map_err(fail)?;
            Wire::<_, ()>::Block(token, lies).serialize(serializer)
        }
        Token::Shared(token) => {
            joint::leave(&body.using, &body.stream, true).map_err(fail)?;
            Wire::<_, ()>::Block(&**token, lies).serialize(serializer)
        }
        Token::Lent => Err(fail(lent())),
    };
    COUNTERS.sent.add(1);
    written
}

/// What can arrive as the token or as the copy.
trait Arriving: DeserializeOwned {
    type Copy: DeserializeOwned;
    fn token(self) -> Result<Token>;
    /// The bytes of a copy, and of a shared tensor the copy's name.
    fn bytes(copy: &Self::Copy) -> Result<(&[u8], Option<CopyId>)>;
}

impl Arriving for Tensor<u64> {
    type Copy = Tensor<u8>;

    fn token(self) -> Result<Token> {
        Ok(Token::Exclusive(self))
    }

    fn bytes(copy: &Tensor<u8>) -> Result<(&[u8], Option<CopyId>)> {
        Ok((copy.try_as_slice()?, None))
    }
}

impl Arriving for SharedTensor<u64> {
    type Copy = SharedTensor<u8>;

    fn token(self) -> Result<Token> {
        Ok(Token::Shared(Arc::new(self)))
    }

    fn bytes(copy: &SharedTensor<u8>) -> Result<(&[u8], Option<CopyId>)> {
        Ok((copy.try_as_slice()?, Some(Trace::of(copy).id())))
    }
}

impl Arriving for DynTensor {
    type Copy = DynTensor;

    fn token(self) -> Result<Token> {
        Ok(if self.is_exclusive() {
            Token::Exclusive(self.downcast()?)
        } else {
            Token::Shared(Arc::new(self.downcast_shared()?))
        })
    }

    fn bytes(copy: &DynTensor) -> Result<(&[u8], Option<CopyId>)> {
        let id = (!copy.is_exclusive()).then(|| Trace::of_dyn(copy).id());
        Ok((copy.as_slice::<u8>()?, id))
    }
}

fn arrive<K: Arriving>(wire: Wire<K, K::Copy>) -> Result<Body> {
    match wire {
        Wire::Block(token, Lies(geometry)) => Body::arrive(K::token(token)?, geometry),
        Wire::Copy(copy, Lies(geometry), uuid) => {
            let (bytes, id) = K::bytes(&copy)?;
            let device = Device::by_uuid(Uuid::from_words(uuid))?;
            match id {
                None => Body::from_copy(bytes, geometry, device),
                Some(id) => staging::arrive_shared(id, bytes, geometry, device),
            }
        }
    }
}

fn deserialize<'de, K: Arriving, D: Deserializer<'de>>(deserializer: D) -> Result<Body, D::Error> {
    let wire = Wire::<K, K::Copy>::deserialize(deserializer)?;
    arrive(wire).map_err(|error| refuse(error.into()))
}

/// What a shared device tensor is on its way.
pub(crate) type Parcel = Wire<SharedTensor<u64>, SharedTensor<u8>>;

/// Makes a shared device tensor ready for its way: *ready* is recorded, or a copy made.
pub(crate) fn seal(body: &Body) -> Result<Parcel> {
    let Token::Shared(token) = &*body.token else {
        return Err(lent());
    };
    let arena = body.using.place.object().arena();
    arena.check_not_forked("sealing a device tensor")?;
    if body.path() == Path::Host {
        let (bytes, lies) = staging::copy_of_shared(body)?;
        COUNTERS.staged.add(1);
        let uuid = body.device().uuid().to_words();
        COUNTERS.sent.add(1);
        return Ok(Wire::Copy(bytes, lies, uuid));
    }
    body.using.place.check_alive(false)?;
    joint::leave(&body.using, &body.stream, true)?;
    COUNTERS.sent.add(1);
    Ok(Wire::Block((**token).clone(), Lies(body.geometry)))
}

/// Opens what [`seal`] made, here.
pub(crate) fn open(parcel: Parcel) -> Result<Body> {
    arrive(parcel)
}

/// Takes an exclusive device tensor out of the message that is being read.
pub(crate) fn exclusive<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Body, D::Error> {
    deserialize::<Tensor<u64>, D>(deserializer)
}

/// Takes a shared device tensor out of the message that is being read.
pub(crate) fn shared<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Body, D::Error> {
    deserialize::<SharedTensor<u64>, D>(deserializer)
}

/// Takes a device tensor of either kind out of the message that is being read.
pub(crate) fn either<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Body, D::Error> {
    deserialize::<DynTensor, D>(deserializer)
}
