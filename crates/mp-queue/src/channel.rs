//! What queues, lanes and rings have in common: one array of messages, two ends, waiting, and what is said when it
//! ends. For crates that build a primitive of their own on it; programs use [`Queue`](crate::Queue).

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use shm_core::arena::Arena;
use shm_core::failure::PeerFailure;
use shm_core::message::{self, Incoming, Outgoing};
use shm_core::object::{Array, Object, ObjectKind};
use shm_core::transfer::{Get, Put};

use crate::error::{Error, ErrorKind, PutError, Result};
use crate::wait::{Deadline, WaitPolicy, wait};

/// Index of the producers' end.
pub const PRODUCERS: u64 = 0;
/// Index of the consumers' end.
pub const CONSUMERS: u64 = 1;
/// Index of the event that says *not empty*.
pub const NOT_EMPTY: u64 = 0;
/// Index of the event that says *not full*, and of a ring that a slot is free.
pub const NOT_FULL: u64 = 1;

/// How long the supervisor of a context is given to say why a process of it is gone.
const CAUSE_PATIENCE: Duration = Duration::from_millis(500);

/// An object whose array 0 holds messages, with a way to wait.
#[derive(Clone)]
pub struct Channel {
    pub(crate) object: Object,
    pub(crate) policy: WaitPolicy,
}

impl Channel {
    /// Makes an object of `kind` whose array 0, cells or a lane, carries the messages.
    ///
    /// # Errors
    /// What an allocation in the arena can answer; arrays without elements.
    #[track_caller]
    pub fn create(arena: &Arena, kind: ObjectKind, arrays: [Array; 2]) -> Result<Self> {
        Ok(Self::over(Object::create(arena, kind, arrays, 0)?))
    }

    /// The channel in an object that arrived.
    #[must_use]
    pub fn over(object: Object) -> Self {
        Self {
            object,
            policy: WaitPolicy::default(),
        }
    }

    /// The object.
    #[must_use]
    pub fn object(&self) -> &Object {
        &self.object
    }

    /// How waits spend their time before they sleep.
    pub fn set_policy(&mut self, policy: WaitPolicy) {
        self.policy = policy;
    }

    /// Encodes and puts a value, waiting until `deadline` for room.
    pub(crate) fn put<T>(&self, value: T, deadline: Deadline) -> Result<(), PutError<T>>
    where
        T: Serialize + DeserializeOwned,
    {
        let mut message = match message::encode(self.object.arena(), value) {
            Ok(message) => message,
            Err(failed) => return Err(PutError::new(failed.error.into(), failed.value)),
        };
        self.put_encoded(&mut message, deadline)
            .map_err(|error| PutError::new(error, message.decode().ok()))
    }

    /// Puts a message, waiting until `deadline` for room. Afterwards the message is empty; on an error it is whole.
    ///
    /// # Errors
    /// As [`Sender::put`](crate::Sender::put).
    pub fn put_encoded(&self, message: &mut Outgoing, deadline: Deadline) -> Result<()> {
        let mut attempt = |slow: bool| match self.attempt_put(message, slow) {
            Ok(Tried::Done) => Some(Ok(())),
            Ok(Tried::NotNow) => None,
            Err(error) => Some(Err(error)),
        };
        // The other side is nearly always there and the cell free: no look at the clock, no closure of `wait`.
        if let Some(answer) = attempt(false) {
            return answer;
        }
        if deadline.is_now() {
            return attempt(true).unwrap_or_else(|| {
                Err(Error::new(
                    ErrorKind::Full,
                    format!("no room in {:?} now", self.object),
                ))
            });
        };
        wait(&self.object, NOT_FULL, self.policy, deadline, attempt).unwrap_or_else(|| {
            Err(Error::new(
                ErrorKind::TimedOut,
                format!("no room in {:?} before the deadline", self.object),
            ))
        })
    }

    fn attempt_put(&self, message: &mut Outgoing, slow: bool) -> Result<Tried> {
        if self.object.end_count(CONSUMERS) == 0 {
            return Err(self.why_gone(CONSUMERS, "putting a message"));
        }
        match self.object.try_put(0, message)? {
            Put::Done(position) => {
                self.notify(NOT_EMPTY);
                // A wake that was meant for several is passed on.
                let more = self
                    .object
                    .cells(0)
                    .is_ok_and(|cells| cells.next_is_free(position));
                if more {
                    self.notify(NOT_FULL);
                }
                Ok(Tried::Done)
            }
            Put::Closed => Err(Error::new(
                ErrorKind::Closed,
                format!("putting a message: {:?} was closed", self.object),
            )),
            Put::Full | Put::Pending(_) => {
                if slow && let Some(failure) = self.object.failure() {
                    return Err(Error::peer_failed(failure, "putting a message"));
                }
                Ok(Tried::NotNow)
            }
        }
    }

    /// Takes the next message, waiting until `deadline` for one. `seen_orphans` is the consumer's own, 0 at first.
    ///
    /// # Errors
    /// As [`Receiver::get`](crate::Receiver::get).
    pub fn get_encoded(&self, seen_orphans: &mut u64, deadline: Deadline) -> Result<Incoming> {
        let mut attempt = |slow: bool| self.attempt_get(seen_orphans, slow).transpose();
        if let Some(answer) = attempt(false) {
            return answer;
        }
        if deadline.is_now() {
            return attempt(true).unwrap_or_else(|| {
                Err(Error::new(
                    ErrorKind::Empty,
                    format!("nothing in {:?} now", self.object),
                ))
            });
        };
        wait(&self.object, NOT_EMPTY, self.policy, deadline, attempt).unwrap_or_else(|| {
            Err(Error::new(
                ErrorKind::TimedOut,
                format!("nothing came into {:?} before the deadline", self.object),
            ))
        })
    }

    fn attempt_get(&self, seen_orphans: &mut u64, slow: bool) -> Result<Option<Incoming>> {
        match self.object.try_get(0, seen_orphans)? {
            Get::Message(message, position) => {
                self.notify(NOT_FULL);
                let more = self
                    .object
                    .cells(0)
                    .is_ok_and(|cells| cells.next_is_ready(position));
                if more {
                    self.notify(NOT_EMPTY);
                }
                Ok(Some(message))
            }
            Get::Drained => Err(self.why_drained()),
            Get::Empty | Get::Pending(_) => {
                if self.object.end_count(PRODUCERS) == 0 && !self.is_closed() {
                    // Nobody will put any more: what is in the cells is all there is.
                    self.close();
                    return self.attempt_get(seen_orphans, slow);
                }
                if slow && let Some(failure) = self.object.failure() {
                    return Err(Error::peer_failed(failure, "waiting for a message"));
                }
                Ok(None)
            }
        }
    }

    fn why_drained(&self) -> Error {
        // A holder that died may have been about to put: say why it died rather than that all is well.
        let died = self.object.bereaved().is_some() && self.object.supervisor().is_some();
        if died || self.object.failure().is_some() {
            return self.why_gone(PRODUCERS, "waiting for a message");
        }
        Error::new(
            ErrorKind::Closed,
            format!("{:?} is closed and empty", self.object),
        )
    }

    /// Why nobody is left on side `end`. Where a supervisor is about to say why, it is given a moment.
    pub fn why_gone(&self, end: u64, doing: &str) -> Error {
        let said = || {
            self.object
                .failure()
                .map(|failure| Error::peer_failed(failure, doing))
        };
        let departed = || {
            let (rank, pid) = self.object.departed().filter(|_| end == CONSUMERS)?;
            let cause = "returned, and with it went the last receiver of the queue".into();
            Some(Error::peer_failed(
                PeerFailure {
                    rank,
                    pid,
                    name: String::new(),
                    cause,
                },
                doing,
            ))
        };
        if let Some(error) = said() {
            return error;
        }
        if self.object.supervisor().is_some() {
            let patience = Deadline::after(CAUSE_PATIENCE);
            let answer = wait(&self.object, NOT_FULL, WaitPolicy::Park, patience, |_| {
                said().or_else(departed)
            });
            if let Some(error) = answer {
                return error;
            }
        }
        if let Some(pid) = self.object.bereaved() {
            let cause = "died while it held the queue".into();
            return Error::peer_failed(
                PeerFailure {
                    rank: PeerFailure::UNKNOWN_RANK,
                    pid,
                    name: String::new(),
                    cause,
                },
                doing,
            );
        }
        let side = if end == CONSUMERS {
            "receiver"
        } else {
            "sender"
        };
        Error::new(
            ErrorKind::Closed,
            format!("{doing}: every {side} of {:?} is gone", self.object),
        )
    }

    /// Takes no more messages.
    pub fn close(&self) {
        if let Ok(cells) = self.object.cells(0) {
            cells.close();
        } else if let Ok(lane) = self.object.lane(0) {
            lane.close();
        }
        self.object.notify_all();
    }

    /// Whether [`close`](Self::close) was called.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.object
            .cells(0)
            .map(|cells| cells.is_closed())
            .or_else(|_| self.object.lane(0).map(|lane| lane.is_closed()))
            .unwrap_or(true)
    }

    /// About how many messages there are.
    #[must_use]
    pub fn len(&self) -> usize {
        let len = self
            .object
            .cells(0)
            .map(|cells| cells.len())
            .or_else(|_| self.object.lane(0).map(|lane| lane.len()));
        len.unwrap_or(0) as usize
    }

    /// Whether [`len`](Self::len) is 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many messages fit.
    #[must_use]
    pub fn capacity(&self) -> usize {
        match self.object.array(0) {
            Array::Cells { capacity } | Array::Lane { capacity } => capacity as usize,
            Array::None | Array::Slots { .. } => 0,
        }
    }

    /// Repeats `attempt` until it answers, woken by event `event`; `None` when the deadline is over. The attempt is
    /// told whether the wait has become slow.
    pub fn wait<R>(
        &self,
        event: u64,
        deadline: Deadline,
        attempt: impl FnMut(bool) -> Option<R>,
    ) -> Option<R> {
        wait(&self.object, event, self.policy, deadline, attempt)
    }

    #[inline]
    pub(crate) fn notify(&self, event: u64) {
        let event = self.object.event(event);
        event.notify_one(|count| event.wake(count));
    }
}

enum Tried {
    Done,
    NotNow,
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel")
            .field("object", &self.object)
            .field("len", &self.len())
            .field("capacity", &self.capacity())
            .finish()
    }
}
