//! A letterbox: one sender, one receiver, whole messages, no waiting. What `spawn` carries arguments and results in.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::arena::Arena;
use crate::error::{Error, ErrorKind, Result};
use crate::message::{self, EncodeError, Outgoing};
use crate::object::{Array, Object, ObjectKind};
use crate::transfer::{Get, Put};

/// A lane of encoded messages. Only one process sends and only one receives.
#[derive(Clone, Debug)]
pub struct Letterbox {
    object: Object,
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
        .map(|object| Self { object })
    }

    /// Two words that name it to another participant.
    #[must_use]
    pub fn handle(&self) -> [u64; 2] {
        self.object.handle()
    }

    /// Opens the letterbox that `handle` names, which its maker must hold meanwhile.
    ///
    /// # Errors
    /// `Stale` when it is gone; `WrongMode` when it is something else.
    pub fn open(arena: &Arena, handle: [u64; 2]) -> Result<Self> {
        let object = Object::open(arena, handle)?;
        object.expect(ObjectKind::Letterbox)?;
        Ok(Self { object })
    }

    /// Sends a value.
    ///
    /// # Errors
    /// As [`message::encode`], and `Full` when the receiver has not made room; with the value where it is whole.
    pub fn send<T: Serialize>(&self, value: T) -> Result<(), EncodeError<T>> {
        let message = message::encode(self.object.arena(), value)?;
        self.send_encoded(message)
            .map_err(|error| EncodeError { error, value: None })
    }

    /// Sends a message that was encoded before.
    ///
    /// # Errors
    /// `Full` when the receiver has not made room; `LeasesFull`.
    pub fn send_encoded(&self, mut message: Outgoing) -> Result<()> {
        match self.object.try_put(0, &mut message)? {
            Put::Done(_) => {
                let event = self.object.event(0);
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
        match self.object.try_get(0, &mut 0)? {
            Get::Message(message, _) => message.decode().map(Some),
            Get::Empty | Get::Pending(_) | Get::Drained => Ok(None),
        }
    }
}
