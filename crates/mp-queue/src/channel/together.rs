//! Many messages at once, with one wake for as many as move without waiting.

use serde::Serialize;
use serde::de::DeserializeOwned;
use shm_core::message::{self, Outgoing};
use shm_core::transfer::Put;

use super::{Channel, Got, Tried};
use crate::error::{PutError, Result};
use crate::wait::Deadline;

impl Channel {
    /// Encodes and puts values, waiting until `deadline` for room, with one wake for as many as go in at once. How many
    /// they were.
    pub(crate) fn put_many<T>(
        &self,
        values: impl Iterator<Item = T>,
        deadline: Deadline,
        mut put: impl FnMut(&mut Outgoing) -> shm_core::Result<Put>,
    ) -> Result<usize, PutError<T>>
    where
        T: Serialize + DeserializeOwned,
    {
        let mut untold = Untold::new(self, Self::after_put);
        let mut done = 0;
        for value in values {
            let mut message = match message::encode(self.object.arena(), value) {
                Ok(message) => message,
                Err(failed) => return Err(PutError::new(failed.error.into(), failed.value)),
            };
            let outcome = match self.attempt_put(&mut || put(&mut message), deadline, false) {
                Ok(Tried::Done(position)) => {
                    untold.add(position);
                    Ok(())
                }
                Ok(Tried::NotNow(_)) => {
                    // Before we wait for them, they must know.
                    untold.tell();
                    self.put_with(deadline, || put(&mut message))
                }
                Err(error) => Err(error),
            };
            if let Err(error) = outcome {
                return Err(PutError::new(error, message.decode().ok()));
            }
            done += 1;
        }
        Ok(done)
    }

    /// Takes a message, waiting until `deadline` for one, and then those that are there, `most` at most, with one wake for
    /// all of them.
    pub(crate) fn get_many<R>(
        &self,
        most: usize,
        deadline: Deadline,
        mut get: impl FnMut() -> shm_core::Result<Got<R>>,
    ) -> Result<Vec<R>> {
        let mut taken = Vec::new();
        let mut untold = Untold::new(self, Self::after_get);
        while taken.len() < most {
            match get() {
                Ok(Got::Message(message, position)) => {
                    untold.add(position);
                    taken.push(message);
                }
                Ok(Got::NotNow(_) | Got::Drained) if taken.is_empty() => {
                    taken.push(self.get_with(deadline, &mut get)?);
                }
                Err(error) if taken.is_empty() => return Err(error.into()),
                // What an error is about comes up again with the next get, or was a message that is gone.
                Err(error) => {
                    tracing::warn!(%error, "fewer messages were taken together than there may be");
                    break;
                }
                Ok(_) => break,
            }
        }
        Ok(taken)
    }
}

/// Messages that were put or taken and of which nobody was told yet. Told at the end, however it comes.
struct Untold<'a> {
    channel: &'a Channel,
    tell: fn(&Channel, u64, u32),
    last: u64,
    messages: u32,
}

impl<'a> Untold<'a> {
    fn new(channel: &'a Channel, tell: fn(&Channel, u64, u32)) -> Self {
        Self {
            channel,
            tell,
            last: 0,
            messages: 0,
        }
    }

    fn add(&mut self, position: u64) {
        self.last = position;
        self.messages = self.messages.saturating_add(1);
    }

    fn tell(&mut self) {
        if self.messages > 0 {
            (self.tell)(self.channel, self.last, self.messages);
            self.messages = 0;
        }
    }
}

impl Drop for Untold<'_> {
    fn drop(&mut self) {
        self.tell();
    }
}
