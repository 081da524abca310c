//! Putting and getting as futures.

use serde::Serialize;
use serde::de::DeserializeOwned;
use shm_core::crowd::Grant;
use shm_core::message::{self, Outgoing};
use shm_core::transfer::Put;

use super::{CONSUMERS, Channel, Got, NOT_EMPTY, NOT_FULL, PRODUCERS};
use crate::error::{Error, ErrorKind, PutError, Result};
use crate::later::{Look, Since, until};

impl Channel {
    /// Encodes and puts a value, once there is room.
    pub(crate) async fn put_async<T>(
        &self,
        value: T,
        mut put: impl FnMut(&mut Outgoing) -> shm_core::Result<Put>,
    ) -> Result<(), PutError<T>>
    where
        T: Serialize + DeserializeOwned,
    {
        let mut message = match message::encode(self.object.arena(), value) {
            Ok(message) => message,
            Err(failed) => return Err(PutError::new(failed.error.into(), failed.value)),
        };
        let mut gone = Since::default();
        let doing = "putting a message";
        let look =
            |slow| match self.look_for_room(&mut || put(&mut message), &mut gone, slow, doing) {
                Ok(look) => look,
                Err(error) => Look::Ready(Err(error)),
            };
        until(&self.object, NOT_FULL, self.grant(NOT_FULL), doing, look)
            .await
            .map_err(|error| PutError::new(error, message.decode().ok()))
    }

    fn look_for_room(
        &self,
        put: &mut impl FnMut() -> shm_core::Result<Put>,
        gone: &mut Since,
        slow: bool,
        doing: &str,
    ) -> Result<Look<Result<()>>> {
        if self.object.end_count(CONSUMERS) == 0 {
            return Ok(self.gone(CONSUMERS, doing, gone));
        }
        match put()? {
            Put::Done(position) => {
                self.after_put(position, 1);
                Ok(Look::Ready(Ok(())))
            }
            Put::Closed => Err(Error::new(
                ErrorKind::Closed,
                format!("{doing}: {} was closed", self.object),
            )),
            other @ (Put::Full | Put::Pending(_)) => {
                if slow && let Some(failure) = self.object.failure() {
                    return Err(Error::peer_failed(failure, doing));
                }
                Ok(Look::NotYet(match other {
                    Put::Pending(owner) => Some(owner),
                    _ => None,
                }))
            }
        }
    }

    /// Takes the next message, once there is one.
    pub(crate) async fn get_async<R>(
        &self,
        mut get: impl FnMut() -> shm_core::Result<Got<R>>,
    ) -> Result<R> {
        let mut gone = Since::default();
        let doing = "waiting for a message";
        let look = |slow| match self.look_for_message(&mut get, &mut gone, slow, doing) {
            Ok(look) => look,
            Err(error) => Look::Ready(Err(error)),
        };
        until(&self.object, NOT_EMPTY, self.grant(NOT_EMPTY), doing, look).await
    }

    fn look_for_message<R>(
        &self,
        get: &mut impl FnMut() -> shm_core::Result<Got<R>>,
        gone: &mut Since,
        slow: bool,
        doing: &str,
    ) -> Result<Look<Result<R>>> {
        let mut closed = false;
        loop {
            match get()? {
                Got::Message(message, position) => {
                    self.after_get(position, 1);
                    return Ok(Look::Ready(Ok(message)));
                }
                Got::Drained if self.says_more_than_drained() => {
                    return Ok(self.gone(PRODUCERS, doing, gone));
                }
                Got::Drained => return Err(self.drained()),
                Got::NotNow(owner) => {
                    if !closed && self.object.end_count(PRODUCERS) == 0 && !self.is_closed() {
                        // Nobody will put any more: what is in the cells is all there is.
                        self.close();
                        closed = true;
                        continue;
                    }
                    if slow && let Some(failure) = self.object.failure() {
                        return Err(Error::peer_failed(failure, doing));
                    }
                    return Ok(Look::NotYet(owner));
                }
            }
        }
    }

    /// As [`why_gone`](Self::why_gone), without waiting in place.
    fn gone<R>(&self, end: u64, doing: &str, since: &mut Since) -> Look<Result<R>> {
        match self.why_gone_after(end, doing, since.elapsed()) {
            Some(error) => Look::Ready(Err(error)),
            None => Look::Soon,
        }
    }

    /// Of a queue that counts tasks some wait for room, some for the end of all tasks.
    pub(crate) fn grant(&self, event: u64) -> Grant {
        let of_tasks = event == NOT_FULL && self.object.array(1) != shm_core::object::Array::None;
        if of_tasks {
            Grant::Everybody
        } else {
            Grant::EachOne
        }
    }
}
