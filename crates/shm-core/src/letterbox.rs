//! A letterbox: one sender, one receiver, whole messages, no waiting. What `spawn` carries arguments and results in.

use std::sync::Arc;

use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::arena::Arena;
use crate::error::{Error, ErrorKind, Result};
use crate::message::{self, EncodeError, Outgoing};
use crate::object::{Array, LaneEnd, Object, ObjectKind};
use crate::transfer::{Get, Put};

/// A lane of encoded messages. Only one process sends and only one receives: whoever does so first takes that side.
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
        let object = Object::open(arena, handle)?;
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
