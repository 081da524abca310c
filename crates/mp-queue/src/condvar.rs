//! `Condvar`: waiting for others to change what a mutex guards.

use std::time::Duration;

use shm_core::arena::Arena;
use shm_core::object::{Object, ObjectKind};

use crate::error::{Error, LockError, Result};
use crate::mutex::{Mutex, MutexGuard};
use crate::primitive::{make, travels};
use crate::wait::{Deadline, wait_signal};

#[cfg(feature = "tokio")]
mod later;

const EVENT: u64 = 0;
const WAITING: &str = "waiting for a condition";

/// A condition to wait for, as std's `Condvar` and Python's `Condition`, between processes. Clones, also in other
/// processes, name the same one.
///
/// A wait can end without a notification, also because a process that had a handle died: look at the condition again, as
/// [`wait_while`](Self::wait_while) does. If the one who should have notified died holding the mutex, the wait ends and
/// says `Poisoned`.
///
/// ```
/// use mp_queue::{Condvar, Mutex};
/// use shm_core::Tensor;
///
/// let (mutex, condvar) = (Mutex::new()?, Condvar::new()?);
/// let ready = Tensor::<u32>::zeros(1)?.alias();
/// std::thread::scope(|scope| {
///     scope.spawn(|| {
///         let _guard = mutex.lock();
///         ready.store(&[0], 1).expect("it has one element");
///         condvar.notify_one();
///     });
///     let guard = mutex.lock()?;
///     condvar.wait_while(guard, || ready.load(&[0]).is_ok_and(|ready| ready == 0))?;
///     Ok::<(), mp_queue::Error>(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Condvar {
    object: Object,
}

travels!(Condvar, ObjectKind::Condvar, 0, 0);

type Locked = Result<MutexGuard, LockError<MutexGuard>>;

impl Condvar {
    /// Makes one in the current arena.
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
        let object = make(arena, ObjectKind::Condvar, 0, 0)?;
        Ok(Self { object })
    }

    /// Unlocks, waits for a notification, and locks again.
    ///
    /// # Errors
    /// `Poisoned`, with the guard, as [`Mutex::lock`]; `PeerFailed` when a process of the context that this condition or
    /// the mutex was handed to failed; `Deadlock` when nobody is left who could notify. The last two without the lock.
    pub fn wait(&self, guard: MutexGuard) -> Locked {
        self.wait_until(guard, Deadline::Never)
            .map(|(guard, _)| guard)
    }

    /// Unlocks, waits so long for a notification, and locks again, however long that takes. `false`: the time was over.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn wait_timeout(
        &self,
        guard: MutexGuard,
        timeout: Duration,
    ) -> Result<(MutexGuard, bool), LockError<MutexGuard>> {
        self.wait_until(guard, Deadline::after(timeout))
    }

    /// Waits as long as `condition` says; it is looked at under the lock.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn wait_while(&self, mut guard: MutexGuard, mut condition: impl FnMut() -> bool) -> Locked {
        while condition() {
            guard = self.wait(guard)?;
        }
        Ok(guard)
    }

    /// As [`wait_while`](Self::wait_while), for so long. `false`: the time was over and the condition still holds.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn wait_timeout_while(
        &self,
        mut guard: MutexGuard,
        timeout: Duration,
        mut condition: impl FnMut() -> bool,
    ) -> Result<(MutexGuard, bool), LockError<MutexGuard>> {
        let deadline = Deadline::after(timeout);
        while condition() {
            let in_time;
            (guard, in_time) = self.wait_until(guard, deadline)?;
            if !in_time {
                let met = !condition();
                return Ok((guard, met));
            }
        }
        Ok((guard, true))
    }

    fn wait_until(
        &self,
        guard: MutexGuard,
        deadline: Deadline,
    ) -> Result<(MutexGuard, bool), LockError<MutexGuard>> {
        let mutex = Mutex {
            object: guard.object.clone(),
        };
        mutex
            .object
            .arena()
            .check_not_forked(WAITING)
            .map_err(Error::from)?;
        // Before the lock goes: whoever takes it next and notifies sees us, or changes `seq` before we sleep on it.
        let registered = self.object.event(EVENT).register();
        drop(guard);
        let in_time = wait_signal(&self.object, EVENT, registered, deadline, || {
            let failure = self.object.failure().or_else(|| mutex.object.failure())?;
            Some(Error::peer_failed(failure, WAITING))
        })?;
        Ok((mutex.lock()?, in_time))
    }

    /// Wakes one that waits. Without a wait going on nothing happens, and nothing is kept for later.
    pub fn notify_one(&self) {
        let event = self.object.event(EVENT);
        event.notify_one(|count| event.wake(count));
    }

    /// Wakes all that wait.
    pub fn notify_all(&self) {
        let event = self.object.event(EVENT);
        event.notify_all(|count| event.wake(count));
    }
}
