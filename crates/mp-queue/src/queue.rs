//! `Queue`: bounded, any number of producers and consumers in any processes.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use shm_core::arena::Arena;
use shm_core::error::ErrorKind as ArenaErrorKind;
use shm_core::failure::note_unreported;
use shm_core::message::{refuse, refuse_because};
use shm_core::object::{Array, End, Object, ObjectKind};

use crate::channel::{CONSUMERS, Channel, PRODUCERS};
use crate::error::{ErrorKind, PutError, Result};
use crate::wait::{Deadline, WaitPolicy};

/// A bounded queue between processes: many producers, many consumers, first in first out for each producer.
///
/// Messages are values of any serde type that postcard can carry (no `flatten`, no untagged enums, no
/// `skip_serializing_if`, no `serde_json::Value`), with tensors and queues inside at any depth; a tensor's bytes stay where
/// they are. Large plain bytes go faster as a `Tensor<u8>` than as a `Vec<u8>`, which serde writes one by one. A `Queue` puts and gets; [`split`](Queue::split) makes two halves that close when the last of the other
/// side is gone. Clones, and copies sent to other processes, name the same queue.
///
/// ```
/// use mp_queue::Queue;
/// use shm_core::Tensor;
///
/// let queue = Queue::bounded(8)?;
/// queue.put((7_u32, Tensor::from_slice(2, &[1.0_f32, 2.0])?))?;
/// let (label, tensor): (u32, Tensor<f32>) = queue.get()?;
/// assert_eq!((label, tensor.as_slice()), (7, &[1.0, 2.0][..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Queue<T> {
    sender: Sender<T>,
    receiver: Receiver<T>,
}

impl<T> Queue<T> {
    /// Makes a queue with room for `capacity` messages in the current arena.
    ///
    /// # Errors
    /// What making an arena or an allocation in it can answer; a capacity of 0.
    #[track_caller]
    pub fn bounded(capacity: usize) -> Result<Self> {
        Self::bounded_in(&Arena::current()?, capacity)
    }

    /// As [`bounded`](Self::bounded), in a given arena.
    ///
    /// # Errors
    /// As [`bounded`](Self::bounded).
    #[track_caller]
    pub fn bounded_in(arena: &Arena, capacity: usize) -> Result<Self> {
        let channel = Channel::create(
            arena,
            ObjectKind::Queue,
            [
                Array::Cells {
                    capacity: cells(capacity)?,
                },
                Array::None,
            ],
        )?;
        let sender = Sender {
            end: channel.object.end(PRODUCERS)?,
            channel: channel.clone(),
            message: PhantomData,
        };
        let receiver = Receiver {
            end: channel.object.end(CONSUMERS)?,
            channel,
            seen_orphans: AtomicU64::new(0),
            message: PhantomData,
        };
        Ok(Self { sender, receiver })
    }

    /// Takes the two sides apart. Each closes when the last of the other is dropped, or its process has died.
    #[must_use]
    pub fn split(self) -> (Sender<T>, Receiver<T>) {
        (self.sender, self.receiver)
    }

    /// The putting side of this queue, which a clone of is often what to send.
    #[must_use]
    pub fn sender(&self) -> &Sender<T> {
        &self.sender
    }

    /// The getting side of this queue.
    #[must_use]
    pub fn receiver(&self) -> &Receiver<T> {
        &self.receiver
    }
}

/// A capacity as the shared layout counts it.
pub(crate) fn cells(capacity: usize) -> Result<u32> {
    match u32::try_from(capacity) {
        Ok(cells @ 1..=0x0100_0000) => Ok(cells),
        _ => Err(shm_core::Error::new(
            ArenaErrorKind::Shape,
            format!(
                "a queue of capacity {capacity} was asked for; it can hold 1 to 16777216 messages"
            ),
        )
        .into()),
    }
}

impl<T: Serialize + DeserializeOwned> Queue<T> {
    /// As [`Sender::put`].
    ///
    /// # Errors
    /// As [`Sender::put`].
    pub fn put(&self, value: T) -> Result<(), PutError<T>> {
        self.sender.put(value)
    }

    /// As [`Sender::try_put`].
    ///
    /// # Errors
    /// As [`Sender::try_put`].
    pub fn try_put(&self, value: T) -> Result<(), PutError<T>> {
        self.sender.try_put(value)
    }

    /// As [`Sender::put_timeout`].
    ///
    /// # Errors
    /// As [`Sender::put_timeout`].
    pub fn put_timeout(&self, value: T, timeout: Duration) -> Result<(), PutError<T>> {
        self.sender.put_timeout(value, timeout)
    }

    /// As [`Receiver::get`].
    ///
    /// # Errors
    /// As [`Receiver::get`].
    pub fn get(&self) -> Result<T> {
        self.receiver.get()
    }

    /// As [`Receiver::try_get`].
    ///
    /// # Errors
    /// As [`Receiver::try_get`].
    pub fn try_get(&self) -> Result<T> {
        self.receiver.try_get()
    }

    /// As [`Receiver::get_timeout`].
    ///
    /// # Errors
    /// As [`Receiver::get_timeout`].
    pub fn get_timeout(&self, timeout: Duration) -> Result<T> {
        self.receiver.get_timeout(timeout)
    }
}

/// The putting side of a queue. Clones, also in other processes, share it.
#[derive(Debug)]
pub struct Sender<T> {
    // Before the channel: the end lies in the queue's memory.
    end: End,
    channel: Channel,
    message: PhantomData<fn(T)>,
}

impl<T: Serialize + DeserializeOwned> Sender<T> {
    fn put_until(&self, value: T, deadline: Deadline) -> Result<(), PutError<T>> {
        self.channel
            .put(value, deadline, |message| self.end.try_put(message))
    }

    /// Puts a value, waiting for room. What the value held belongs to the message afterwards.
    ///
    /// # Errors
    /// With the value: `Closed` when every receiver is gone; `PeerFailed` when a process of the context that this
    /// queue was handed to failed and there is no room; `Cycle` for a message that holds this queue, which would keep
    /// it for ever; what encoding can answer (see [`shm_core::message::encode`]).
    pub fn put(&self, value: T) -> Result<(), PutError<T>> {
        self.put_until(value, Deadline::Never)
    }

    /// Puts a value if there is room now.
    ///
    /// # Errors
    /// `Full`, and as [`put`](Self::put).
    pub fn try_put(&self, value: T) -> Result<(), PutError<T>> {
        self.put_until(value, Deadline::Now)
    }

    /// Puts a value, waiting so long for room.
    ///
    /// # Errors
    /// `TimedOut`, and as [`put`](Self::put).
    pub fn put_timeout(&self, value: T, timeout: Duration) -> Result<(), PutError<T>> {
        self.put_until(value, Deadline::after(timeout))
    }
}

/// The getting side of a queue. Clones, also in other processes, share it; each message goes to one.
#[derive(Debug)]
pub struct Receiver<T> {
    // Before the channel: the end lies in the queue's memory.
    end: End,
    channel: Channel,
    /// Up to where this handle has looked for messages that were handed back.
    seen_orphans: AtomicU64,
    message: PhantomData<fn() -> T>,
}

impl<T: Serialize + DeserializeOwned> Receiver<T> {
    fn get_until(&self, deadline: Deadline) -> Result<T> {
        let mut seen = self.seen_orphans.load(Ordering::Relaxed);
        let message = self
            .channel
            .get_with(deadline, || Ok(self.end.try_get(&mut seen)?.into()));
        self.seen_orphans.store(seen, Ordering::Relaxed);
        Ok(message?.decode()?)
    }

    /// Takes the next message, waiting for one.
    ///
    /// # Errors
    /// `Closed` when the queue is empty and every sender is gone; `PeerFailed` when a process of the context that
    /// this queue was handed to failed and there is no message; what decoding can answer: that message is gone then.
    pub fn get(&self) -> Result<T> {
        self.get_until(Deadline::Never)
    }

    /// Takes the next message if there is one now.
    ///
    /// # Errors
    /// `Empty`, and as [`get`](Self::get).
    pub fn try_get(&self) -> Result<T> {
        self.get_until(Deadline::Now)
    }

    /// Takes the next message, waiting so long for one.
    ///
    /// # Errors
    /// `TimedOut`, and as [`get`](Self::get).
    pub fn get_timeout(&self, timeout: Duration) -> Result<T> {
        self.get_until(Deadline::after(timeout))
    }

    /// The messages, until the queue is closed and empty. Any other error ends the iteration as well: it is told in the
    /// log, and in a spawned process it makes the function's success a failure. To handle it, call [`get`](Self::get) in
    /// a loop.
    pub fn iter(&self) -> Iter<'_, T> {
        Iter { receiver: self }
    }
}

/// Messages of a [`Receiver`], until it ends.
#[derive(Debug)]
pub struct Iter<'a, T> {
    receiver: &'a Receiver<T>,
}

impl<T: Serialize + DeserializeOwned> Iterator for Iter<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        match self.receiver.get() {
            Ok(value) => Some(value),
            Err(error) => {
                if !error.is_closed() {
                    tracing::error!(%error, "the messages of a queue end early");
                    // A failed peer fails the whole context anyway, with a better word for it.
                    if !matches!(error.kind(), ErrorKind::PeerFailed(_)) {
                        note_unreported(format!("the messages of a queue ended early: {error}"));
                    }
                }
                None
            }
        }
    }
}

impl<'a, T: Serialize + DeserializeOwned> IntoIterator for &'a Receiver<T> {
    type Item = T;
    type IntoIter = Iter<'a, T>;

    fn into_iter(self) -> Iter<'a, T> {
        self.iter()
    }
}

/// The parts of the interface that all three handles have.
macro_rules! common {
    ($name:ident, $($channel:ident).+) => {
        impl<T> $name<T> {
            /// Takes no more messages: putting fails, getting goes on until the queue is empty and then answers
            /// `Closed`.
            pub fn close(&self) {
                self.$($channel).+.close();
            }

            /// Whether the queue was closed.
            #[must_use]
            pub fn is_closed(&self) -> bool {
                self.$($channel).+.is_closed()
            }

            /// About how many messages are in the queue.
            #[must_use]
            pub fn len(&self) -> usize {
                self.$($channel).+.len()
            }

            /// Whether [`len`](Self::len) is 0.
            #[must_use]
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }

            /// How many messages the queue can hold.
            #[must_use]
            pub fn capacity(&self) -> usize {
                self.$($channel).+.capacity()
            }

            /// The arena the queue is in.
            #[must_use]
            pub fn arena(&self) -> &Arena {
                self.$($channel).+.object.arena()
            }
        }
    };
}

common!(Queue, sender.channel);
common!(Sender, channel);
common!(Receiver, channel);

impl<T> Sender<T> {
    /// The same end with another way to wait; the default is adaptive.
    #[must_use]
    pub fn with_policy(mut self, policy: WaitPolicy) -> Self {
        self.channel.policy = policy;
        self
    }
}

impl<T> Receiver<T> {
    /// The same end with another way to wait; the default is adaptive.
    #[must_use]
    pub fn with_policy(mut self, policy: WaitPolicy) -> Self {
        self.channel.policy = policy;
        self
    }
}

impl<T> Clone for Queue<T> {
    fn clone(&self) -> Self {
        Self {
            sender: self.sender.clone(),
            receiver: self.receiver.clone(),
        }
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self {
            end: self.end.clone(),
            channel: self.channel.clone(),
            message: PhantomData,
        }
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        Self {
            end: self.end.clone(),
            channel: self.channel.clone(),
            seen_orphans: AtomicU64::new(0),
            message: PhantomData,
        }
    }
}

/// The channel in an object that arrived, whose end is known to belong to it or not.
pub(crate) fn checked<E: serde::de::Error>(belongs: bool, object: Object) -> Result<Channel, E> {
    object.expect(ObjectKind::Queue).map_err(refuse)?;
    if !belongs {
        return Err(refuse_because(format!(
            "the end of a queue arrived with another one, {object}"
        )));
    }
    Ok(Channel::over(object))
}

impl<T> Serialize for Sender<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (&self.end, &self.channel.object).serialize(serializer)
    }
}

impl<'de, T> Deserialize<'de> for Sender<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (end, object) = <(End, Object)>::deserialize(deserializer)?;
        let channel = checked(end.is_of(&object, PRODUCERS), object)?;
        Ok(Self {
            end,
            channel,
            message: PhantomData,
        })
    }
}

impl<T> Serialize for Receiver<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (&self.end, &self.channel.object).serialize(serializer)
    }
}

impl<'de, T> Deserialize<'de> for Receiver<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (end, object) = <(End, Object)>::deserialize(deserializer)?;
        let channel = checked(end.is_of(&object, CONSUMERS), object)?;
        Ok(Self {
            end,
            channel,
            seen_orphans: AtomicU64::new(0),
            message: PhantomData,
        })
    }
}

impl<T> Serialize for Queue<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (
            &self.sender.end,
            &self.receiver.end,
            &self.sender.channel.object,
        )
            .serialize(serializer)
    }
}

impl<'de, T> Deserialize<'de> for Queue<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (producers, consumers, object) = <(End, End, Object)>::deserialize(deserializer)?;
        let channel = checked::<D::Error>(producers.is_of(&object, PRODUCERS), object)?;
        let other = checked(
            consumers.is_of(&channel.object, CONSUMERS),
            channel.object.clone(),
        )?;
        Ok(Self {
            sender: Sender {
                end: producers,
                channel,
                message: PhantomData,
            },
            receiver: Receiver {
                end: consumers,
                channel: other,
                seen_orphans: AtomicU64::new(0),
                message: PhantomData,
            },
        })
    }
}
