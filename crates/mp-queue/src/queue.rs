//! `Queue`: bounded, any number of producers and consumers in any processes.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use shm_core::arena::Arena;
use shm_core::error::ErrorKind as ArenaErrorKind;
use shm_core::failure::note_unreported;
use shm_core::message::{Incoming, Outgoing};
use shm_core::object::{Array, End, ObjectKind};

use crate::channel::{CONSUMERS, Channel, PRODUCERS};
use crate::counters::{self, Stats};
use crate::error::{ErrorKind, PutError, Result};
use crate::wait::{Deadline, WaitPolicy};

#[cfg(feature = "tokio")]
mod later;
mod shown;
mod travel;
mod watched;

pub(crate) use travel::checked;

/// A bounded queue between processes: many producers, many consumers, first in first out for each producer.
///
/// Messages are values of any serde type that postcard can carry (no `flatten`, no untagged enums, no
/// `skip_serializing_if`, no `serde_json::Value`), with tensors and queues inside at any depth; a tensor's bytes stay where
/// they are. Large plain bytes go faster as a `Tensor<u8>` than as a `Vec<u8>`, which serde writes one by one. A `Queue`
/// puts and gets; [`split`](Queue::split) makes two halves that close when the last of the other side is gone. Clones, and
/// copies sent to other processes, name the same queue.
/// Nothing in a message says its type, so two executables have to agree: what does not read as the receiver's is an error of
/// its [`get`](Receiver::get), and gone; what happens to read is taken for it.
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
        Self::over(arena, capacity, Array::None)
    }

    /// A queue with another array beside its cells.
    #[track_caller]
    pub(crate) fn over(arena: &Arena, capacity: usize, beside: Array) -> Result<Self> {
        let cells = Array::Cells {
            capacity: cells(capacity)?,
        };
        let channel = Channel::create(arena, ObjectKind::Queue, [cells, beside])?;
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

    pub(crate) fn channel(&self) -> &Channel {
        &self.sender.channel
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

    /// As [`Sender::put_many`].
    ///
    /// # Errors
    /// As [`Sender::put_many`].
    pub fn put_many(&self, values: impl IntoIterator<Item = T>) -> Result<usize, PutError<T>> {
        self.sender.put_many(values)
    }

    /// As [`Receiver::get_many`].
    ///
    /// # Errors
    /// As [`Receiver::get_many`].
    pub fn get_many(&self, most: usize) -> Result<Vec<T>> {
        self.receiver.get_many(most)
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
pub struct Sender<T> {
    // Before the channel: the end lies in the queue's memory.
    end: End,
    channel: Channel,
    message: PhantomData<fn(T)>,
}

impl<T: Serialize + DeserializeOwned> Sender<T> {
    /// Puts a value, waiting until `deadline` for room. Errors are those of `put_timeout`.
    #[doc(hidden)]
    #[inline(always)]
    pub fn put_until(&self, value: T, deadline: Deadline) -> Result<(), PutError<T>> {
        self.channel.put(&mut Some(value), deadline, |message| {
            self.end.try_put(message)
        })
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
    /// `Full`, and as [`put`](Self::put), but for the cause of a death that nobody has told yet: it is not waited for.
    pub fn try_put(&self, value: T) -> Result<(), PutError<T>> {
        self.put_until(value, Deadline::Now)
    }

    /// Puts a message that was made already, for crates that write their own; it is empty afterwards.
    ///
    /// # Errors
    /// As [`put_timeout`](Self::put_timeout); the message is whole then.
    #[doc(hidden)]
    #[inline]
    pub fn put_message(&self, message: &mut Outgoing, deadline: Deadline) -> Result<()> {
        self.channel
            .put_with(deadline, || self.end.try_put(message))
    }

    /// Puts values one after the other, waiting for room where there is none, and answers how many they were. As many as
    /// go in without waiting cost one wake together; the first of them may be taken before the last is in.
    ///
    /// ```
    /// let queue = mp_queue::Queue::bounded(8)?;
    /// assert_eq!(queue.put_many(0..5_u32)?, 5);
    /// assert_eq!(queue.get_many(3)?, [0, 1, 2]);
    /// # Ok::<(), mp_queue::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`put`](Self::put), with the value that could not be put: those before it are in, those after it were not asked
    /// for (pass `iterator.by_ref()` to keep them).
    pub fn put_many(&self, values: impl IntoIterator<Item = T>) -> Result<usize, PutError<T>> {
        let values = values.into_iter();
        self.channel
            .put_many(values, Deadline::Never, |message| self.end.try_put(message))
    }

    /// Puts a value, waiting so long for room.
    ///
    /// # Errors
    /// `TimedOut`, naming who has the next cell in hand if somebody has, and as [`put`](Self::put).
    pub fn put_timeout(&self, value: T, timeout: Duration) -> Result<(), PutError<T>> {
        self.put_until(value, Deadline::after(timeout))
    }
}

/// The getting side of a queue. Clones, also in other processes, share it; each message goes to one.
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
        // In its place from the first to the last: moving a message costs more than reading most.
        let mut message = Incoming::default();
        self.take_into(deadline, &mut message)?;
        message.take_or()
    }

    /// A message as it came, not decoded: for crates that read their own. Errors are those of `get_timeout`.
    #[doc(hidden)]
    #[inline]
    pub fn take_into(&self, deadline: Deadline, message: &mut Incoming) -> Result<()> {
        let mut seen = self.seen_orphans.load(Ordering::Relaxed);
        let taken = self.channel.get_with(deadline, || {
            Ok(self.end.try_get_into(&mut seen, message)?.into())
        });
        self.seen_orphans.store(seen, Ordering::Relaxed);
        taken
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
    /// `Empty`, and as [`get`](Self::get), but for the cause of a death that nobody has told yet: it is not waited for.
    pub fn try_get(&self) -> Result<T> {
        self.get_until(Deadline::Now)
    }

    /// Takes the next message, waiting so long for one.
    ///
    /// # Errors
    /// `TimedOut`, naming who has the next message in hand if somebody has, and as [`get`](Self::get).
    pub fn get_timeout(&self, timeout: Duration) -> Result<T> {
        self.get_until(Deadline::after(timeout))
    }

    /// Takes the next message, waiting for one, and with it those that are there already, `most` together at most. They
    /// cost one wake.
    ///
    /// A message that cannot be decoded is gone; if it is not the first, that is told in the log, and in a spawned process
    /// it makes the function's success a failure.
    ///
    /// # Errors
    /// As [`get`](Self::get); none once a message was taken.
    pub fn get_many(&self, most: usize) -> Result<Vec<T>> {
        let mut seen = self.seen_orphans.load(Ordering::Relaxed);
        let messages = self.channel.get_many(most, Deadline::Never, || {
            Ok(self.end.try_get(&mut seen)?.into())
        });
        self.seen_orphans.store(seen, Ordering::Relaxed);
        let mut values = Vec::new();
        for message in messages? {
            match message.decode() {
                Ok(value) => values.push(value),
                Err(error) if values.is_empty() => return Err(error.into()),
                Err(error) => {
                    tracing::error!(%error, "one of several messages could not be read");
                    note_unreported(format!("a message of a queue could not be read: {error}"));
                }
            }
        }
        Ok(values)
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
        or_end(self.receiver.get())
    }
}

/// What an iteration over messages makes of an answer.
pub(crate) fn or_end<T>(answer: Result<T>) -> Option<T> {
    answer
        .inspect_err(|error| {
            if !error.is_closed() {
                tracing::error!(%error, "the messages of a queue end early");
                // A failed peer fails the whole context anyway, with a better word for it.
                if !matches!(error.kind(), ErrorKind::PeerFailed(_)) {
                    note_unreported(format!("the messages of a queue ended early: {error}"));
                }
            }
        })
        .ok()
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

            /// What has happened to the queue since it was made.
            #[must_use]
            pub fn stats(&self) -> Stats {
                counters::stats(&self.$($channel).+.object)
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
