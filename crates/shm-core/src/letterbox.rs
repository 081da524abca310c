//! A letterbox: one sender, one receiver, whole messages, no waiting. What `spawn` carries arguments and results in.

use std::sync::Arc;

use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::arena::Arena;
use crate::error::{Error, ErrorKind, Result};
use crate::message::{self, EncodeError, Outgoing};
use crate::object::{Array, LaneEnd, Object, ObjectKind};
use crate::transfer::{Get, Put};

/// A lane of encoded messages. Only one process sends and only one receives: whoever does so first takes that side.
///
/// It goes to other processes in a message, or by a name:
///
/// ```
/// use shm_core::letterbox::Letterbox;
/// use shm_core::{Arena, Tensor};
///
/// let arena = Arena::builder().capacity(1 << 30).create()?;
/// arena.publish("frames", &Letterbox::create(&arena, 8)?)?;
/// // One process:
/// let frames: Letterbox = arena.open("frames")?;
/// frames.send(("left", Tensor::full_in(&arena, [480, 640], 7_u8)?))?;
/// // And another:
/// if let Some((camera, frame)) = frames.try_recv::<(String, Tensor<u8>)>()? {
///     assert_eq!((camera.as_str(), frame.shape()), ("left", &[480, 640][..]));
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Letterbox(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    // The sides lie in the object, so they go first.
    sender: Mutex<Option<LaneEnd>>,
    receiver: Mutex<Option<LaneEnd>>,
    object: Object,
}

/// The side, taken now if it was not before.
fn taken<'a>(
    side: &'a mut Option<LaneEnd>,
    object: &Object,
    index: u64,
) -> Result<&'a mut LaneEnd> {
    if side.is_none() {
        *side = Some(object.lane_end(index)?);
    }
    match side {
        Some(end) => Ok(end),
        None => unreachable!("it was just taken"),
    }
}

impl Letterbox {
    /// Makes one with room for `capacity` messages.
    ///
    /// # Errors
    /// As every allocation in the arena.
    #[track_caller]
    pub fn create(arena: &Arena, capacity: u32) -> Result<Self> {
        Object::create(
            arena,
            ObjectKind::Letterbox,
            [Array::Lane { capacity }, Array::None],
            0,
        )
        .map(Self::over)
    }

    /// Two words that name it to another participant.
    #[must_use]
    pub fn handle(&self) -> [u64; 2] {
        self.0.object.handle()
    }

    /// Opens the letterbox that `handle` names, which its maker must hold meanwhile.
    ///
    /// # Errors
    /// `Stale` when it is gone; `WrongMode` when it is something else.
    pub fn open(arena: &Arena, handle: [u64; 2]) -> Result<Self> {
        Self::of(Object::open(arena, handle)?)
    }

    fn of(object: Object) -> Result<Self> {
        object.expect(ObjectKind::Letterbox)?;
        Ok(Self::over(object))
    }

    fn over(object: Object) -> Self {
        Self(Arc::new(Inner {
            sender: Mutex::new(None),
            receiver: Mutex::new(None),
            object,
        }))
    }

    /// Sends a value.
    ///
    /// # Errors
    /// As [`message::encode`], and `Full` when the receiver has not made room; with the value where it is whole.
    pub fn send<T: Serialize>(&self, value: T) -> Result<(), EncodeError<T>> {
        let message = message::encode(self.0.object.arena(), value)?;
        self.send_encoded(message)
            .map_err(|error| EncodeError { error, value: None })
    }

    /// Sends a message that was encoded before.
    ///
    /// # Errors
    /// `Full` when the receiver has not made room; `LeasesFull`.
    pub fn send_encoded(&self, mut message: Outgoing) -> Result<()> {
        let mut sender = self.0.sender.lock();
        match taken(&mut sender, &self.0.object, 0)?.try_put(&mut message)? {
            Put::Done(_) => {
                let event = self.0.object.event(0);
                event.notify_all(|count| event.wake(count));
                Ok(())
            }
            Put::Full | Put::Pending(_) => Err(Error::new(
                ErrorKind::Full,
                "the letterbox is full; its receiver has not taken the last message",
            )),
            Put::Closed => Err(Error::new(ErrorKind::Closed, "the letterbox is closed")),
        }
    }

    /// The next value, if one is there.
    ///
    /// # Errors
    /// As [`message::Incoming::decode`].
    pub fn try_recv<T: DeserializeOwned>(&self) -> Result<Option<T>> {
        // Decoding runs the user's code, which may come back here: not under the lock.
        let got = taken(&mut self.0.receiver.lock(), &self.0.object, 1)?.try_get()?;
        match got {
            Get::Message(message, _) => message.decode().map(Some),
            Get::Empty | Get::Pending(_) | Get::Drained => Ok(None),
        }
    }
}

/// Names the letterbox: who receives it may send or receive, as far as the side is nobody's yet.
impl Serialize for Letterbox {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.object.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Letterbox {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::of(Object::deserialize(deserializer)?).map_err(message::refuse)
    }
}
