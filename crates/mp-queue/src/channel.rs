//! What queues, lanes and rings have in common: one array of messages, two ends, waiting, and what is said when it
//! ends. For crates that build a primitive of their own on it; programs use [`Queue`](crate::Queue).

use std::any::type_name;
use std::cell::Cell;
use std::fmt;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use shm_core::arena::Arena;
use shm_core::cells::Owner;
use shm_core::message::{Incoming, Outgoing};
use shm_core::object::{Array, Object, ObjectKind};
use shm_core::slots::Taken;
use shm_core::transfer::{Found, Get, Put};

use crate::counters;
use crate::error::{Error, ErrorKind, PutError, Result};
use crate::holder;
use crate::lull::Lull;
use crate::wait::{Deadline, WaitPolicy, spin_for, wait};

mod gone;
#[cfg(feature = "tokio")]
mod later;
mod together;

/// Index of the producers' end.
pub const PRODUCERS: u64 = 0;
/// Index of the consumers' end.
pub const CONSUMERS: u64 = 1;
/// Index of the event that says *not empty*.
pub const NOT_EMPTY: u64 = 0;
/// Index of the event that says *not full*, and of a ring that a slot is free.
pub const NOT_FULL: u64 = 1;

/// How long the supervisor of a context is given to say why a process of it is gone.
pub(crate) const CAUSE_PATIENCE: Duration = Duration::from_millis(500);

/// The same where a process is known to have died with its end in hand: then the supervisor has something to say as
/// soon as it gets to run, and one that is itself stopped for longer is not waited for.
pub(crate) const DEATH_PATIENCE: Duration = Duration::from_secs(3);

/// An object whose array 0 holds messages, with a way to wait.
#[derive(Clone)]
pub struct Channel {
    pub(crate) object: Object,
    pub(crate) policy: WaitPolicy,
    /// What is known of waits for messages here.
    lull: Lull,
}

impl Channel {
    /// Makes an object of `kind` whose array 0, cells or a lane, carries the messages.
    ///
    /// # Errors
    /// What an allocation in the arena can answer; arrays without elements.
    #[track_caller]
    pub fn create(arena: &Arena, kind: ObjectKind, arrays: [Array; 2]) -> Result<Self> {
        Ok(Self::over(Object::create(
            arena,
            kind,
            arrays,
            counters::WORDS,
        )?))
    }

    /// The channel in an object that arrived.
    #[must_use]
    pub fn over(object: Object) -> Self {
        Self {
            object,
            policy: WaitPolicy::default(),
            lull: Lull::default(),
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

    /// Encodes and puts the value in that place, waiting until `deadline` for room. `put` puts through the caller's end.
    pub(crate) fn put<T>(
        &self,
        value: &mut Option<T>,
        deadline: Deadline,
        mut put: impl FnMut(&mut Outgoing) -> shm_core::Result<Put>,
    ) -> Result<(), PutError<T>>
    where
        T: Serialize + DeserializeOwned,
    {
        // In its place from the first to the last: moving a message costs more than writing most.
        let mut message = Outgoing::default();
        if let Err(error) = message.encode_from(self.object.arena(), value, type_name::<T>) {
            return Err(PutError::new(error.into(), value.take()));
        }
        match self.put_with(deadline, || put(&mut message)) {
            Ok(()) => Ok(()),
            Err(error) => Err(PutError::new(error, message.take_back())),
        }
    }

    /// Waits until `deadline` for `put` to find room, and tells who waits for messages. `put` puts through the caller's
    /// end of this channel.
    ///
    /// # Errors
    /// As [`Sender::put`](crate::Sender::put).
    #[inline]
    pub fn put_with(
        &self,
        deadline: Deadline,
        mut put: impl FnMut() -> shm_core::Result<Put>,
    ) -> Result<()> {
        // The other side is nearly always there and the cell free: no look at the clock, no closure of `wait`.
        match self.attempt_put(&mut put, deadline, false) {
            Ok(Tried::Done(position)) => {
                self.after_put(position, 1);
                Ok(())
            }
            Ok(Tried::NotNow(_)) => self.put_later(deadline, put),
            Err(error) => Err(error),
        }
    }

    #[cold]
    fn put_later(
        &self,
        deadline: Deadline,
        mut put: impl FnMut() -> shm_core::Result<Put>,
    ) -> Result<()> {
        let holder = Cell::new(None);
        let mut attempt = |slow: bool| match self.attempt_put(&mut put, deadline, slow) {
            Ok(Tried::Done(position)) => {
                self.after_put(position, 1);
                Some(Ok(()))
            }
            Ok(Tried::NotNow(owner)) => {
                holder.set(owner);
                None
            }
            Err(error) => Some(Err(error)),
        };
        let in_vain = |kind, when| {
            let clause = holder::clause(self.object.arena(), holder.get());
            Err(Error::new(
                kind,
                format!("no room in {} {when}{clause}", self.object),
            ))
        };
        if deadline.is_now() {
            return attempt(true).unwrap_or_else(|| in_vain(ErrorKind::Full, "now"));
        };
        wait(
            &self.object,
            NOT_FULL,
            self.policy,
            deadline,
            &holder,
            || true,
            attempt,
        )
        .unwrap_or_else(|| in_vain(ErrorKind::TimedOut, "before the deadline"))
    }

    #[inline]
    fn attempt_put(
        &self,
        put: &mut impl FnMut() -> shm_core::Result<Put>,
        deadline: Deadline,
        slow: bool,
    ) -> Result<Tried> {
        if self.object.end_count(CONSUMERS) == 0 {
            return Err(self.why_gone(CONSUMERS, "putting a message", deadline));
        }
        match put()? {
            Put::Done(position) => Ok(Tried::Done(position)),
            Put::Closed => Err(Error::new(
                ErrorKind::Closed,
                format!("putting a message: {} was closed", self.object),
            )),
            other @ (Put::Full | Put::Pending(_)) => {
                if slow && let Some(failure) = self.object.failure() {
                    return Err(Error::peer_failed(failure, "putting a message"));
                }
                Ok(Tried::NotNow(match other {
                    Put::Pending(owner) => Some(owner),
                    _ => None,
                }))
            }
        }
    }

    /// Tells those who wait for messages, after one was put at `position`.
    #[inline]
    fn after_put(&self, position: u64, messages: u32) {
        self.notify_many(NOT_EMPTY, messages);
        // A wake that was meant for several is passed on.
        if self.has_cells() && self.is_awaited(NOT_FULL) && self.object.next_is_free(position) {
            self.notify_room(1);
        }
    }

    #[inline]
    fn has_cells(&self) -> bool {
        matches!(self.object.array(0), Array::Cells { .. })
    }

    #[inline]
    fn is_awaited(&self, event: u64) -> bool {
        self.object.event(event).anyone_waiting()
    }

    /// Waits until `deadline` for `get` to find a message, and tells who waits for room. `get` takes through the caller's
    /// end of this channel.
    ///
    /// # Errors
    /// As [`Receiver::get`](crate::Receiver::get).
    #[inline]
    pub fn get_with<R>(
        &self,
        deadline: Deadline,
        mut get: impl FnMut() -> shm_core::Result<Got<R>>,
    ) -> Result<R> {
        let holder = Cell::new(None);
        let mut attempt = |slow: bool| {
            self.attempt_get(&mut get, &holder, deadline, slow)
                .transpose()
        };
        if !deadline.is_now() {
            self.lull
                .sit_out(|| spin_for(&self.object, self.policy) > 0);
        }
        if let Some(answer) = attempt(false) {
            if !deadline.is_now() {
                self.lull.found();
            }
            return answer;
        }
        let in_vain = |kind, what: &str, when| {
            let clause = holder::clause(self.object.arena(), holder.get());
            Err(Error::new(
                kind,
                format!("{what} {} {when}{clause}", self.object),
            ))
        };
        if deadline.is_now() {
            return attempt(true).unwrap_or_else(|| in_vain(ErrorKind::Empty, "nothing in", "now"));
        };
        let lookout = self.object.lookout(0);
        let glances = Cell::new(0_u32);
        let answer = wait(
            &self.object,
            NOT_EMPTY,
            self.policy,
            deadline,
            &holder,
            || {
                glances.set(glances.get().saturating_add(1));
                lookout.glance()
            },
            attempt,
        );
        if glances.get() > 0 {
            self.lull.found_after(glances.get());
        }
        answer.unwrap_or_else(|| {
            in_vain(
                ErrorKind::TimedOut,
                "nothing came into",
                "before the deadline",
            )
        })
    }

    #[inline]
    fn attempt_get<R>(
        &self,
        get: &mut impl FnMut() -> shm_core::Result<Got<R>>,
        holder: &Cell<Option<Owner>>,
        deadline: Deadline,
        slow: bool,
    ) -> Result<Option<R>> {
        loop {
            match get()? {
                Got::Message(message, position) => {
                    self.after_get(position, 1);
                    return Ok(Some(message));
                }
                Got::Drained => return Err(self.why_drained(deadline)),
                Got::NotNow(owner) => {
                    holder.set(owner);
                    if self.object.end_count(PRODUCERS) == 0 && !self.is_closed() {
                        // Nobody will put any more: what is in the cells is all there is.
                        self.close();
                        continue;
                    }
                    if slow && let Some(failure) = self.object.failure() {
                        return Err(Error::peer_failed(failure, "waiting for a message"));
                    }
                    return Ok(None);
                }
            }
        }
    }

    /// Tells those who wait for room, after a message was taken from `position`.
    #[inline]
    fn after_get(&self, position: u64, messages: u32) {
        if !self.has_cells() {
            // In a ring nobody waits for a cell of a lane: there are as many as slots, and the slot is not free yet.
            if self.object.kind() != ObjectKind::Ring {
                self.notify(NOT_FULL);
            }
            return;
        }
        self.notify_room(messages);
        if self.is_awaited(NOT_EMPTY) && self.object.next_is_ready(position) {
            self.notify(NOT_EMPTY);
        }
    }

    /// Takes no more messages.
    pub fn close(&self) {
        self.object.close();
    }

    /// Whether [`close`](Self::close) was called.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.object.is_closed()
    }

    /// About how many messages there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.object.len() as usize
    }

    /// Whether [`len`](Self::len) is 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether there is no message, and none is being put or taken: exact, where [`len`](Self::len) is a hint that a death
    /// may leave wrong. Looks at every cell.
    #[must_use]
    pub fn holds_nothing(&self) -> bool {
        self.object.holds_nothing()
    }

    /// Makes one who waits for a message look again, though none may have come.
    pub fn nudge(&self) {
        self.notify(NOT_EMPTY);
    }

    /// How many messages fit.
    #[must_use]
    pub fn capacity(&self) -> usize {
        match self.object.array(0) {
            Array::Cells { capacity } | Array::Lane { capacity } => capacity as usize,
            Array::None | Array::Slots { .. } | Array::Permits { .. } => 0,
        }
    }

    /// Repeats `attempt` until it answers, woken by event `event`; `None` when the deadline is over. The attempt is
    /// told whether the wait has become slow. A wait without a deadline that nobody can end any more answers `Deadlock`.
    pub fn wait<R, E: From<Error>>(
        &self,
        event: u64,
        deadline: Deadline,
        attempt: impl FnMut(bool) -> Option<Result<R, E>>,
    ) -> Option<Result<R, E>> {
        wait(
            &self.object,
            event,
            self.policy,
            deadline,
            &Cell::new(None),
            || true,
            attempt,
        )
    }

    /// Tells so many of those who wait for room. Of a queue that counts tasks everybody: some may wait until it is idle,
    /// and one of those would take the wake and do nothing with it.
    #[inline]
    fn notify_room(&self, messages: u32) {
        if self.object.array(1) == Array::None {
            self.notify_many(NOT_FULL, messages);
        } else {
            self.notify_many(NOT_FULL, u32::MAX);
        }
    }

    #[inline]
    pub(crate) fn notify_many(&self, event: u64, how_many: u32) {
        let event = self.object.event(event);
        event.notify_many(how_many, |count| {
            counters::note(&self.object, counters::WAKES);
            event.wake(count)
        });
    }

    #[inline]
    pub(crate) fn notify(&self, event: u64) {
        let event = self.object.event(event);
        event.notify_one(|count| {
            counters::note(&self.object, counters::WAKES);
            event.wake(count)
        });
    }
}

enum Tried {
    /// The message is in, at this position; *not empty* is owed a notification.
    Done(u64),
    /// There is no room; who has the cell in hand that is next.
    NotNow(Option<Owner>),
}

/// What a look for a message came to.
#[derive(Debug)]
pub enum Got<R> {
    /// A message, and its position.
    Message(R, u64),
    /// There is none now; who has the next one in hand, if somebody has.
    NotNow(Option<Owner>),
    /// Closed, and nothing is left.
    Drained,
}

impl From<Get> for Got<Incoming> {
    fn from(get: Get) -> Self {
        match get {
            Get::Message(message, position) => Self::Message(message, position),
            Get::Empty => Self::NotNow(None),
            Get::Pending(owner) => Self::NotNow(Some(owner)),
            Get::Drained => Self::Drained,
        }
    }
}

impl From<Found> for Got<()> {
    #[inline]
    fn from(found: Found) -> Self {
        match found {
            Found::Message(position) => Self::Message((), position),
            Found::Empty => Self::NotNow(None),
            Found::Pending(owner) => Self::NotNow(Some(owner)),
            Found::Drained => Self::Drained,
        }
    }
}

impl From<Taken> for Got<()> {
    fn from(taken: Taken) -> Self {
        match taken {
            Taken::Slot(position) => Self::Message((), position),
            Taken::NotNow => Self::NotNow(None),
            Taken::Drained => Self::Drained,
        }
    }
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
