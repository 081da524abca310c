//! `Event`: a flag that processes wait for, as in Python's `multiprocessing.Event`.

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::time::Duration;

use shm_core::arena::Arena;
#[cfg(feature = "tokio")]
use shm_core::crowd::Grant;
use shm_core::object::{Object, ObjectKind};

use crate::error::{Error, ErrorKind, Result};
use crate::primitive::{make, travels};
use crate::wait::{Deadline, WaitPolicy, wait};

/// A flag in shared memory. It starts cleared; whoever waits goes on once it is set. Clones, also in other processes,
/// name the same flag.
///
/// ```
/// use std::time::Duration;
/// let event = mp_queue::Event::new()?;
/// assert!(!event.is_set());
/// event.set();
/// event.wait()?;
/// # Ok::<(), mp_queue::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Event {
    object: Object,
}

travels!(Event, ObjectKind::Event, 0, 1);

impl Event {
    /// Makes a cleared event in the current arena.
    ///
    /// # Errors
    /// What making an arena or an allocation in it can answer.
    #[track_caller]
    pub fn new() -> Result<Self> {
        Self::new_in(&Arena::current()?)
    }

    /// As [`new`](Self::new), in a given arena.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    #[track_caller]
    pub fn new_in(arena: &Arena) -> Result<Self> {
        Ok(Self {
            object: make(arena, ObjectKind::Event, 0, 1)?,
        })
    }

    /// Sets the flag and wakes everyone who waits.
    ///
    /// There is nothing here that could fail, so it answers nothing: the flag is in memory that the handle keeps, whoever else
    /// has died or left. Nor does it say whether anybody waits.
    pub fn set(&self) {
        // SeqCst: part of the park protocol; the waiter registers, then looks at the flag.
        if self.object.word(0).swap(1, Ordering::SeqCst) == 0 {
            let event = self.object.event(0);
            event.notify_all(|count| event.wake(count));
        }
    }

    /// Clears the flag. As [`set`](Self::set), it cannot fail.
    pub fn clear(&self) {
        self.object.word(0).store(0, Ordering::SeqCst);
    }

    /// Whether the flag is set.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.object.word(0).load(Ordering::SeqCst) != 0
    }

    /// Waits until the flag is set.
    ///
    /// # Errors
    /// `PeerFailed` when a process of the context that this event was handed to failed.
    pub fn wait(&self) -> Result<()> {
        self.wait_until(Deadline::Never)
    }

    /// Waits so long for the flag to be set.
    ///
    /// # Errors
    /// `TimedOut`, and as [`wait`](Self::wait).
    pub fn wait_timeout(&self, timeout: Duration) -> Result<()> {
        self.wait_until(Deadline::after(timeout))
    }

    /// [`wait`](Self::wait) as a future, which knows no runtime and takes no thread. Cancel safe: it changes nothing. As with
    /// threads, one that is cleared again before the waiting task looks was not set for it.
    ///
    /// # Errors
    /// As [`wait`](Self::wait), without `Deadlock`.
    #[cfg(feature = "tokio")]
    pub async fn wait_async(&self) -> Result<()> {
        let doing = "waiting for an event";
        let look = |slow: bool| self.look(slow).into();
        crate::later::until(&self.object, 0, Grant::Everybody, doing, look).await
    }

    fn look(&self, slow: bool) -> Option<Result<()>> {
        if self.is_set() {
            return Some(Ok(()));
        }
        let failure = slow.then(|| self.object.failure()).flatten()?;
        Some(Err(Error::peer_failed(failure, "waiting for an event")))
    }

    fn wait_until(&self, deadline: Deadline) -> Result<()> {
        wait(
            &self.object,
            0,
            WaitPolicy::Adaptive,
            deadline,
            &Cell::new(None),
            || true,
            |slow| self.look(slow),
        )
        .unwrap_or_else(|| {
            Err(Error::new(
                ErrorKind::TimedOut,
                "the event was not set before the deadline",
            ))
        })
    }
}
