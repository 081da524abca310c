//! A lane: one producer, one consumer, the shortest way between two processes.

use std::marker::PhantomData;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use shm_core::arena::Arena;
use shm_core::message::{Incoming, Outgoing};
use shm_core::object::{Array, LaneEnd, Object, ObjectKind};

use crate::channel::{CONSUMERS, Channel, PRODUCERS};
use crate::error::{PutError, Result};
use crate::queue::{cells, checked, or_end};
use crate::wait::{Deadline, WaitPolicy};

#[cfg(feature = "tokio")]
mod later;

/// Makes a lane with room for `capacity` messages in the current arena: a queue whose two ends each belong to one
/// process (and thread) at a time, and which is faster for it. Sending an end moves it.
///
/// When the process that has the other end fails, the waits at this one end with `PeerFailed`. Where the context of that
/// process keeps its failures to itself (`Group::apart` of `spawn`), a receiver gets `Closed`, as at an orderly end, and only
/// `join` tells.
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
        end: channel.object.lane_end(PRODUCERS)?,
        channel: channel.clone(),
        message: PhantomData,
    };
    let receiver = LaneReceiver {
        end: channel.object.lane_end(CONSUMERS)?,
        channel,
        message: PhantomData,
    };
    Ok((sender, receiver))
}

/// The putting end of a lane.
pub struct LaneSender<T> {
    end: LaneEnd,
    pub(crate) channel: Channel,
    message: PhantomData<fn(T)>,
}

/// The getting end of a lane.
pub struct LaneReceiver<T> {
    end: LaneEnd,
    pub(crate) channel: Channel,
    message: PhantomData<fn() -> T>,
}

impl<T: Serialize + DeserializeOwned> LaneSender<T> {
    #[inline(always)]
    fn put_until(&mut self, value: T, deadline: Deadline) -> Result<(), PutError<T>> {
        self.channel.object.hasten();
        let end = &mut self.end;
        let put = |message: &mut Outgoing| end.try_put(message);
        self.channel.put(&mut Some(value), deadline, put)
    }

    /// As [`Sender::put`](crate::Sender::put).
    ///
    /// # Errors
    /// As there.
    pub fn put(&mut self, value: T) -> Result<(), PutError<T>> {
        self.put_until(value, Deadline::Never)
    }

    /// As [`Sender::try_put`](crate::Sender::try_put).
    ///
    /// # Errors
    /// As there.
    pub fn try_put(&mut self, value: T) -> Result<(), PutError<T>> {
        self.put_until(value, Deadline::Now)
    }

    /// As [`Sender::put_timeout`](crate::Sender::put_timeout).
    ///
    /// # Errors
    /// As there.
    pub fn put_timeout(&mut self, value: T, timeout: Duration) -> Result<(), PutError<T>> {
        self.put_until(value, Deadline::after(timeout))
    }
}

impl<T: Serialize + DeserializeOwned> LaneReceiver<T> {
    fn get_until(&mut self, deadline: Deadline) -> Result<T> {
        let end = &mut self.end;
        // In its place from the first to the last: moving a message costs more than reading most.
        let mut message = Incoming::default();
        self.channel
            .get_with(deadline, || Ok(end.try_get_into(&mut message)?.into()))?;
        message.take_or()
    }

    /// As [`Receiver::get`](crate::Receiver::get).
    ///
    /// # Errors
    /// As there.
    pub fn get(&mut self) -> Result<T> {
        self.get_until(Deadline::Never)
    }

    /// As [`Receiver::try_get`](crate::Receiver::try_get).
    ///
    /// # Errors
    /// As there.
    pub fn try_get(&mut self) -> Result<T> {
        self.get_until(Deadline::Now)
    }

    /// As [`Receiver::get_timeout`](crate::Receiver::get_timeout).
    ///
    /// # Errors
    /// As there.
    pub fn get_timeout(&mut self, timeout: Duration) -> Result<T> {
        self.get_until(Deadline::after(timeout))
    }
}

impl<T: Serialize + DeserializeOwned> LaneReceiver<T> {
    /// The messages, until the lane is closed and empty; otherwise as [`Receiver::iter`](crate::Receiver::iter).
    pub fn iter(&mut self) -> LaneIter<'_, T> {
        LaneIter { receiver: self }
    }
}

/// Messages of a [`LaneReceiver`], until it ends.
#[derive(Debug)]
pub struct LaneIter<'a, T> {
    receiver: &'a mut LaneReceiver<T>,
}

impl<T: Serialize + DeserializeOwned> Iterator for LaneIter<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        or_end(self.receiver.get())
    }
}

impl<'a, T: Serialize + DeserializeOwned> IntoIterator for &'a mut LaneReceiver<T> {
    type Item = T;
    type IntoIter = LaneIter<'a, T>;

    fn into_iter(self) -> LaneIter<'a, T> {
        self.iter()
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
        (&self.end, &self.channel.object).serialize(serializer)
    }
}

impl<'de, T> Deserialize<'de> for LaneSender<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (end, object) = <(LaneEnd, Object)>::deserialize(deserializer)?;
        let channel = checked(end.is_of(&object, PRODUCERS), object)?;
        Ok(Self {
            end,
            channel,
            message: PhantomData,
        })
    }
}

impl<T> Serialize for LaneReceiver<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (&self.end, &self.channel.object).serialize(serializer)
    }
}

impl<'de, T> Deserialize<'de> for LaneReceiver<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (end, object) = <(LaneEnd, Object)>::deserialize(deserializer)?;
        let channel = checked(end.is_of(&object, CONSUMERS), object)?;
        Ok(Self {
            end,
            channel,
            message: PhantomData,
        })
    }
}
