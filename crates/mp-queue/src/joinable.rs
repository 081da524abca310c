//! `JoinableQueue`: a queue of tasks that knows when all of them are done.

use std::cell::Cell;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use shm_core::arena::Arena;
use shm_core::message::Incoming;
use shm_core::object::{Array, Object};

use crate::channel::NOT_FULL;
use crate::counters::Stats;
use crate::error::{Error, ErrorKind, PutError, Result};
use crate::queue::{Queue, Sender};
use crate::wait::{Deadline, WaitPolicy, wait};

const WAITING: &str = "waiting for tasks to be done";
/// Processes that can have tasks in hand at once.
const CONSUMERS: u32 = 512;

/// A [`Queue`] of tasks: whoever took one says [`task_done`](Self::task_done), and [`wait_idle`](Self::wait_idle) waits
/// until none is in the queue or in hand. Clones, also in other processes, name the same queue.
///
/// As Python's `JoinableQueue`, whose `join` is `wait_idle` here, and which waits for ever when a consumer dies with a task
/// in hand. Here that task is over with it: it is not waited for, and [`stats`](Self::stats) counts it as lost. One that
/// was only half taken goes back into the queue.
///
/// ```
/// let tasks = mp_queue::JoinableQueue::bounded(4)?;
/// tasks.put("sweep".to_string())?;
/// let task = tasks.get()?;
/// assert!(!tasks.is_idle());
/// drop(task);
/// tasks.task_done()?;
/// tasks.wait_idle()?;
/// # Ok::<(), mp_queue::Error>(())
/// ```
#[derive(Debug, Serialize)]
#[serde(bound = "")]
pub struct JoinableQueue<T>(Queue<T>);

impl<'de, T> Deserialize<'de> for JoinableQueue<T> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let queue = Queue::deserialize(deserializer)?;
        if !matches!(queue.channel().object().array(1), Array::Permits { .. }) {
            return Err(shm_core::message::refuse_because(
                "a queue that counts no tasks arrived as one that does",
            ));
        }
        Ok(Self(queue))
    }
}

// Not derived: the messages need not be `Clone` for the queue to be.
impl<T> Clone for JoinableQueue<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> JoinableQueue<T> {
    /// Makes a queue with room for `capacity` tasks in the current arena.
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
        Queue::over(arena, capacity, Array::Permits { count: CONSUMERS }).map(Self)
    }

    /// The putting side alone, for those who only make tasks.
    #[must_use]
    pub fn sender(&self) -> &Sender<T> {
        self.0.sender()
    }

    fn object(&self) -> &Object {
        self.0.channel().object()
    }

    /// Says that a task which this process took is done.
    ///
    /// # Errors
    /// `NoTask` when this process has none in hand.
    pub fn task_done(&self) -> Result<()> {
        let object = self.object();
        object.arena().check_not_forked("finishing a task")?;
        if !object.permits(1).count_down(object.arena().me()) {
            return Err(Error::new(
                ErrorKind::NoTask,
                format!("task_done: this process has no task of {object} in hand"),
            ));
        }
        self.0.channel().notify_many(NOT_FULL, u32::MAX);
        Ok(())
    }

    /// Whether no task is in the queue or in anybody's hands.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let object = self.object();
        // A task on its way out is counted before its cell is free, so cells come first. A task that its taker put in
        // before it was done with another shows in the number of puts.
        let (put, _) = object.traffic();
        object.is_clear() && object.permits(1).count() == 0 && object.traffic().0 == put
    }

    /// Waits until every task that was put is done (or lost with the process that had it).
    ///
    /// # Errors
    /// `PeerFailed` when a process of the context that this queue was handed to failed.
    pub fn wait_idle(&self) -> Result<()> {
        self.wait_idle_until(Deadline::Never)
    }

    /// Waits so long until every task is done.
    ///
    /// # Errors
    /// `TimedOut`, saying how many are not, and as [`wait_idle`](Self::wait_idle).
    pub fn wait_idle_timeout(&self, timeout: Duration) -> Result<()> {
        self.wait_idle_until(Deadline::after(timeout))
    }

    /// [`wait_idle`](Self::wait_idle) as a future, which knows no runtime and takes no thread. Cancel safe: it changes
    /// nothing.
    ///
    /// # Errors
    /// As [`wait_idle`](Self::wait_idle), without `Deadlock`.
    #[cfg(feature = "tokio")]
    pub async fn wait_idle_async(&self) -> Result<()> {
        let (object, grant) = (self.object(), self.0.channel().grant(NOT_FULL));
        let look = |slow: bool| self.look_idle(slow).into();
        crate::later::until(object, NOT_FULL, grant, WAITING, look).await
    }

    fn look_idle(&self, slow: bool) -> Option<Result<()>> {
        if self.is_idle() {
            return Some(Ok(()));
        }
        let failure = slow.then(|| self.object().failure()).flatten()?;
        Some(Err(Error::peer_failed(failure, WAITING)))
    }

    fn wait_idle_until(&self, deadline: Deadline) -> Result<()> {
        let object = self.object();
        let nobody = Cell::new(None);
        let policy = WaitPolicy::Adaptive;
        wait(
            object,
            NOT_FULL,
            policy,
            deadline,
            &nobody,
            || true,
            |slow| self.look_idle(slow),
        )
        .unwrap_or_else(|| {
            let (waiting, in_hand) = (self.0.len(), object.permits(1).count());
            Err(Error::new(
                ErrorKind::TimedOut,
                format!("{WAITING}: {waiting} wait in {object} and {in_hand} are in hand"),
            ))
        })
    }

    /// About how many tasks are in the queue.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether [`len`](Self::len) is 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// As [`Queue::close`].
    pub fn close(&self) {
        self.0.close();
    }

    /// What has happened to the queue since it was made.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.0.stats()
    }
}

impl<T: Serialize + DeserializeOwned> JoinableQueue<T> {
    /// As [`Queue::put`].
    ///
    /// # Errors
    /// As there.
    pub fn put(&self, value: T) -> Result<(), PutError<T>> {
        self.0.put(value)
    }

    /// As [`Queue::try_put`].
    ///
    /// # Errors
    /// As there.
    pub fn try_put(&self, value: T) -> Result<(), PutError<T>> {
        self.0.try_put(value)
    }

    /// Takes a task, waiting for one; it is in this process's hands until [`task_done`](Self::task_done).
    ///
    /// # Errors
    /// As [`Queue::get`]; a task that cannot be decoded is done.
    pub fn get(&self) -> Result<T> {
        self.get_until(Deadline::Never)
    }

    /// As [`get`](Self::get), if there is a task now.
    ///
    /// # Errors
    /// `Empty`, and as [`get`](Self::get).
    pub fn try_get(&self) -> Result<T> {
        self.get_until(Deadline::Now)
    }

    /// As [`get`](Self::get), waiting so long.
    ///
    /// # Errors
    /// `TimedOut`, and as [`get`](Self::get).
    pub fn get_timeout(&self, timeout: Duration) -> Result<T> {
        self.get_until(Deadline::after(timeout))
    }

    /// As [`Sender::put_async`].
    ///
    /// # Errors
    /// As there.
    #[cfg(feature = "tokio")]
    pub async fn put_async(&self, value: T) -> Result<(), PutError<T>> {
        self.0.put_async(value).await
    }

    /// As [`get`](Self::get), and as [`Receiver::get_async`](crate::Receiver::get_async): a task is in this process's hands
    /// once the future has answered with it, and not before.
    ///
    /// # Errors
    /// As there.
    #[cfg(feature = "tokio")]
    pub async fn get_async(&self) -> Result<T> {
        let mut task = Incoming::default();
        self.0.receiver().take_async(&mut task).await?;
        self.read(&mut task)
    }

    fn get_until(&self, deadline: Deadline) -> Result<T> {
        let mut task = Incoming::default();
        self.0.receiver().take_into(deadline, &mut task)?;
        self.read(&mut task)
    }

    fn read(&self, task: &mut Incoming) -> Result<T> {
        task.take().or_else(|error| {
            // Whoever put it is not to wait for what nobody can read.
            self.task_done()?;
            Err(error.into())
        })
    }
}
