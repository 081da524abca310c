//! `Mutex`: a lock between processes that no death keeps locked.

use std::time::Duration;

use shm_core::arena::Arena;
use shm_core::cells::Owner;
#[cfg(feature = "tokio")]
use shm_core::crowd::Grant;
use shm_core::object::{Object, ObjectKind};
use shm_core::permits::{Acquired, Left, Permit};

use crate::error::{Error, ErrorKind, LockError, Result};
#[cfg(feature = "tokio")]
use crate::primitive::obtain_async;
use crate::primitive::{make, obtain, thread_tag, travels};
use crate::wait::Deadline;

const EVENT: u64 = 0;
const LOCKING: &str = "locking a mutex";

/// A lock that one thread of one process has at a time. Clones, also in other processes, name the same lock.
///
/// As Python's `multiprocessing.Lock` it guards nothing by itself: put it beside an
/// [`AliasedTensor`](shm_core::AliasedTensor), a file, or whatever is not to be used by two at once. As std's `Mutex` it
/// is let go by dropping its guard, and *poisoned* when its holder dies or panics: the next one gets an error with the
/// guard in it. Who comes next is whoever is fastest; there is no queue of waiters.
///
/// ```
/// let mutex = mp_queue::Mutex::new()?;
/// {
///     let _guard = mutex.lock()?;
///     assert!(mutex.try_lock().is_err());
/// } // unlocked here
/// assert!(mutex.try_lock().is_ok());
/// # Ok::<(), mp_queue::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Mutex {
    pub(crate) object: Object,
}

travels!(Mutex, ObjectKind::Mutex, 1, 0);

impl Mutex {
    /// Makes a lock, unlocked, in the current arena.
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
        let object = make(arena, ObjectKind::Mutex, 1, 0)?;
        Ok(Self { object })
    }

    /// Locks, waiting for it. A thread that locks once more waits for its own guard to be dropped, by another thread if that
    /// was given it; where no other thread can, that is a `Deadlock`, and the error says so. See [`RLock`](crate::RLock).
    ///
    /// # Errors
    /// `Poisoned`, with the guard: the lock is the caller's. `PeerFailed` when a process of the context that this lock was
    /// handed to failed.
    pub fn lock(&self) -> Result<MutexGuard, LockError<MutexGuard>> {
        self.lock_until(Deadline::Never)
    }

    /// Locks if nobody has the lock now.
    ///
    /// # Errors
    /// `Busy`, naming who has it, and as [`lock`](Self::lock).
    pub fn try_lock(&self) -> Result<MutexGuard, LockError<MutexGuard>> {
        self.lock_until(Deadline::Now)
    }

    /// Locks, waiting so long for it.
    ///
    /// # Errors
    /// `TimedOut`, naming who has it, and as [`lock`](Self::lock).
    pub fn lock_timeout(&self, timeout: Duration) -> Result<MutexGuard, LockError<MutexGuard>> {
        self.lock_until(Deadline::after(timeout))
    }

    pub(crate) fn lock_until(
        &self,
        deadline: Deadline,
    ) -> Result<MutexGuard, LockError<MutexGuard>> {
        let tag = thread_tag();
        let left = obtain(&self.object, EVENT, deadline, LOCKING, || self.take(tag))
            .map_err(|error| self.hint(tag, error))?;
        self.guard(tag, left)
    }

    /// [`lock`](Self::lock) as a future, which knows no runtime and takes no thread. Cancel safe: the lock is taken in the
    /// very poll that answers with it. The guard may be kept while the task waits for something else; then every thread
    /// that wants the lock waits as well.
    ///
    /// # Errors
    /// As [`lock`](Self::lock), without `Deadlock`.
    #[cfg(feature = "tokio")]
    pub async fn lock_async(&self) -> Result<MutexGuard, LockError<MutexGuard>> {
        // Not the thread's: the task may go on in another one.
        let (event, take) = ((EVENT, Grant::EachOne), || self.take(0));
        let left = obtain_async(&self.object, event, LOCKING, take).await?;
        self.guard(0, left)
    }

    /// Says so where the thread that cannot have the lock is the one that locked it. That is no error by itself: its guard
    /// may have gone to another thread, which will let it go.
    fn hint(&self, tag: u32, error: Error) -> Error {
        let owner = self.object.arena().me();
        let vain = matches!(
            error.kind(),
            ErrorKind::Deadlock(_) | ErrorKind::TimedOut | ErrorKind::Busy
        );
        if vain && self.object.permits(0).get(0) == (Permit::Held { owner, tag }) {
            return error.with("it was locked by this very thread, whose guard is still there; drop that guard first, or use an RLock");
        }
        error
    }

    fn take(&self, tag: u32) -> Result<Option<Left>, Option<Owner>> {
        let object = &self.object;
        match object.permits(0).acquire_at(0, object.arena().me(), tag) {
            Acquired::At { left, .. } => Ok(left),
            Acquired::Busy(owner) => Err(owner),
        }
    }

    fn guard(&self, tag: u32, left: Option<Left>) -> Result<MutexGuard, LockError<MutexGuard>> {
        shm_core::failpoint!("mutex.locked");
        let guard = MutexGuard {
            object: self.object.clone(),
            tag,
            left,
            panicking: std::thread::panicking(),
        };
        match left {
            None => Ok(guard),
            Some(Left { pid, .. }) => Err(LockError::poisoned(pid, &self.object, guard)),
        }
    }

    /// Whether somebody has the lock now.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        !matches!(self.object.permits(0).get(0), Permit::Free(_))
    }

    /// Whether the lock is free and its last holder died or panicked.
    #[must_use]
    pub fn is_poisoned(&self) -> bool {
        matches!(self.object.permits(0).get(0), Permit::Free(Some(_)))
    }

    /// Makes a poisoned lock that nobody has an ordinary one.
    pub fn clear_poison(&self) {
        self.object.permits(0).clear(0);
    }
}

/// The lock of a [`Mutex`] in hand; dropping it unlocks, in whichever thread of the process.
#[derive(Debug)]
#[must_use = "a lock is let go when its guard is dropped"]
pub struct MutexGuard {
    pub(crate) object: Object,
    tag: u32,
    /// What the next holder is to be told.
    left: Option<Left>,
    panicking: bool,
}

impl MutexGuard {
    /// Says that what the lock guards is whole again: the next holder gets no error.
    pub fn clear_poison(&mut self) {
        self.left = None;
    }
}

impl Drop for MutexGuard {
    fn drop(&mut self) {
        // A fork has no lock; its parent has.
        if self.object.arena().is_forked() {
            return;
        }
        unlock(&self.object, 0, self.tag, self.left, self.panicking);
    }
}

/// Gives a permit back, poisoned if this thread began to panic while it held it, and tells one waiter.
pub(crate) fn unlock(object: &Object, index: usize, tag: u32, left: Option<Left>, panicking: bool) {
    let me = object.arena().me();
    let panicked = !panicking && std::thread::panicking();
    let left = left.or_else(|| {
        let pid = std::process::id();
        panicked.then_some(Left { pid, tag })
    });
    if object.permits(0).release(index, me, tag, left) {
        shm_core::failpoint!("mutex.unlocked");
        let event = object.event(EVENT);
        event.notify_one(|count| event.wake(count));
    } else {
        tracing::error!(%object, "a lock that was held is somebody else's; a participant wrote where it must not");
    }
}
