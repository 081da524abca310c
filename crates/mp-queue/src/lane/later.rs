//! Putting and getting as futures, for the ends of a lane.

use serde::Serialize;
use serde::de::DeserializeOwned;
use shm_core::message::Incoming;

use super::{LaneReceiver, LaneSender};
use crate::error::{PutError, Result};

impl<T: Serialize + DeserializeOwned> LaneSender<T> {
    /// As [`Sender::put_async`](crate::Sender::put_async).
    ///
    /// # Errors
    /// As there.
    pub async fn put_async(&mut self, value: T) -> Result<(), PutError<T>> {
        let end = &mut self.end;
        self.channel
            .put_async(value, |message| end.try_put(message))
            .await
    }
}

impl<T: Serialize + DeserializeOwned> LaneReceiver<T> {
    /// As [`Receiver::get_async`](crate::Receiver::get_async).
    ///
    /// # Errors
    /// As there.
    pub async fn get_async(&mut self) -> Result<T> {
        let end = &mut self.end;
        let mut message = Incoming::default();
        let get = || Ok(end.try_get_into(&mut message)?.into());
        self.channel.get_async(get).await?;
        Ok(message.take()?)
    }
}
