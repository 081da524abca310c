//! A lane: one producer, one consumer, the shortest way between two processes.

use std::marker::PhantomData;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use shm_core::arena::Arena;
use shm_core::moved::Moved;
use shm_core::object::{Array, End, Object, ObjectKind};

use crate::channel::{CONSUMERS, Channel, PRODUCERS};
use crate::error::{PutError, Result};
use crate::queue::{cells, checked};
use crate::wait::{Deadline, WaitPolicy};

/// Makes a lane with room for `capacity` messages in the current arena: a queue whose two ends each belong to one
/// process (and thread) at a time, and which is faster for it. Sending an end moves it.
///
/// ```
/// let (mut sender, mut receiver) = mp_queue::pair::<u32>(4)?;
/// sender.put(7)?;
/// assert_eq!(receiver.get()?, 7);
/// # Ok::<(), mp_queue::Error>(())
/// ```
///
/// # Errors
/// What making an arena or an allocation in it can answer; a capacity of 0.
#[track_caller]
pub fn pair<T>(capacity: usize) -> Result<(LaneSender<T>, LaneReceiver<T>)> {
    pair_in(&Arena::current()?, capacity)
}

/// As [`pair`], in a given arena.
///
/// # Errors
/// As [`pair`].
#[track_caller]
pub fn pair_in<T>(arena: &Arena, capacity: usize) -> Result<(LaneSender<T>, LaneReceiver<T>)> {
    let channel = Channel::create(
        arena,
        ObjectKind::Queue,
        [
            Array::Lane {
                capacity: cells(capacity)?,
            },
            Array::None,
        ],
    )?;
    let sender = LaneSender {
        end: channel.object.end(PRODUCERS)?,
        channel: channel.clone(),
        message: PhantomData,
    };
    let receiver = LaneReceiver {
        end: channel.object.end(CONSUMERS)?,
        channel,
        message: PhantomData,
    };
    Ok((sender, receiver))
}

/// The putting end of a lane.
#[derive(Debug)]
pub struct LaneSender<T> {
    end: End,
    channel: Channel,
    message: PhantomData<fn(T)>,
}

/// The getting end of a lane.
#[derive(Debug)]
pub struct LaneReceiver<T> {
    end: End,
    channel: Channel,
    message: PhantomData<fn() -> T>,
}

impl<T: Serialize + DeserializeOwned> LaneSender<T> {
    /// As [`Sender::put`](crate::Sender::put).
    ///
    /// # Errors
    /// As there.
    pub fn put(&mut self, value: T) -> Result<(), PutError<T>> {
        self.channel.put(value, Deadline::Never)
    }

    /// As [`Sender::try_put`](crate::Sender::try_put).
    ///
    /// # Errors
    /// As there.
    pub fn try_put(&mut self, value: T) -> Result<(), PutError<T>> {
        self.channel.put(value, Deadline::Now)
    }

    /// As [`Sender::put_timeout`](crate::Sender::put_timeout).
    ///
    /// # Errors
    /// As there.
    pub fn put_timeout(&mut self, value: T, timeout: Duration) -> Result<(), PutError<T>> {
        self.channel.put(value, Deadline::after(timeout))
    }
}

impl<T: Serialize + DeserializeOwned> LaneReceiver<T> {
    /// As [`Receiver::get`](crate::Receiver::get).
    ///
    /// # Errors
    /// As there.
    pub fn get(&mut self) -> Result<T> {
        Ok(self
            .channel
            .get_encoded(&mut 0, Deadline::Never)?
            .decode()?)
    }

    /// As [`Receiver::try_get`](crate::Receiver::try_get).
    ///
    /// # Errors
    /// As there.
    pub fn try_get(&mut self) -> Result<T> {
        Ok(self.channel.get_encoded(&mut 0, Deadline::Now)?.decode()?)
    }

    /// As [`Receiver::get_timeout`](crate::Receiver::get_timeout).
    ///
    /// # Errors
    /// As there.
    pub fn get_timeout(&mut self, timeout: Duration) -> Result<T> {
        Ok(self
            .channel
            .get_encoded(&mut 0, Deadline::after(timeout))?
            .decode()?)
    }
}

impl<T> LaneSender<T> {
    /// The same end with another way to wait; the default is adaptive.
    #[must_use]
    pub fn with_policy(mut self, policy: WaitPolicy) -> Self {
        self.channel.policy = policy;
        self
    }
}

impl<T> LaneReceiver<T> {
    /// The same end with another way to wait; the default is adaptive.
    #[must_use]
    pub fn with_policy(mut self, policy: WaitPolicy) -> Self {
        self.channel.policy = policy;
        self
    }
}

impl<T> Serialize for LaneSender<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (Moved(&self.end), &self.channel.object).serialize(serializer)
    }
}

impl<'de, T> Deserialize<'de> for LaneSender<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (end, object) = <(Moved<End>, Object)>::deserialize(deserializer)?;
        let channel = checked(object, &end.0, PRODUCERS)?;
        Ok(Self {
            end: end.0,
            channel,
            message: PhantomData,
        })
    }
}

impl<T> Serialize for LaneReceiver<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (Moved(&self.end), &self.channel.object).serialize(serializer)
    }
}

impl<'de, T> Deserialize<'de> for LaneReceiver<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (end, object) = <(Moved<End>, Object)>::deserialize(deserializer)?;
        let channel = checked(object, &end.0, CONSUMERS)?;
        Ok(Self {
            end: end.0,
            channel,
            message: PhantomData,
        })
    }
}
