//! `RLock`: a lock that its holder may take again, as Python's.

use std::marker::PhantomData;
use std::sync::atomic::Ordering;
use std::time::Duration;

use shm_core::arena::Arena;
use shm_core::object::{Object, ObjectKind};
use shm_core::permits::{Acquired, Left, Permit};

use crate::error::{LockError, Result};
use crate::mutex::unlock;
use crate::primitive::{make, obtain, thread_tag, travels};
use crate::wait::Deadline;

const EVENT: u64 = 0;
/// The word that counts how often the holder has it.
const DEPTH: u64 = 0;
/// The word in which the holder keeps what the next one is to be told: 0, or pid + 1.
const POISON: u64 = 1;

/// A [`Mutex`](crate::Mutex) that the thread which has it may lock again; it is free when the last guard is gone. Clones,
/// also in other processes, name the same lock.
///
/// It has no form that waits as a future: it belongs to a thread, tasks that share one would all have it at once, and a task
/// that goes on in another one would not. A [`Mutex`](crate::Mutex) has.
///
/// ```
/// let lock = mp_queue::RLock::new()?;
/// let outer = lock.lock()?;
/// let inner = lock.lock()?; // the same thread
/// drop((outer, inner));
/// assert!(!lock.is_locked());
/// # Ok::<(), mp_queue::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct RLock {
    object: Object,
}

travels!(RLock, ObjectKind::Mutex, 1, 2);

impl RLock {
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
        let object = make(arena, ObjectKind::Mutex, 1, 2)?;
        Ok(Self { object })
    }

    /// Locks, waiting for it unless this thread has it already.
    ///
    /// # Errors
    /// As [`Mutex::lock`](crate::Mutex::lock).
    pub fn lock(&self) -> Result<RLockGuard, LockError<RLockGuard>> {
        self.lock_until(Deadline::Never)
    }

    /// Locks if nobody or this thread has the lock now.
    ///
    /// # Errors
    /// As [`Mutex::try_lock`](crate::Mutex::try_lock).
    pub fn try_lock(&self) -> Result<RLockGuard, LockError<RLockGuard>> {
        self.lock_until(Deadline::Now)
    }

    /// Locks, waiting so long for it.
    ///
    /// # Errors
    /// As [`Mutex::lock_timeout`](crate::Mutex::lock_timeout).
    pub fn lock_timeout(&self, timeout: Duration) -> Result<RLockGuard, LockError<RLockGuard>> {
        self.lock_until(Deadline::after(timeout))
    }

    fn lock_until(&self, deadline: Deadline) -> Result<RLockGuard, LockError<RLockGuard>> {
        let tag = thread_tag();
        let object = &self.object;
        let me = object.arena().me();
        let permits = object.permits(0);
        // Relaxed: only the thread that has the lock writes the depth, and a new holder begins at 1 whatever it finds.
        let depth = object.word(DEPTH);
        let guard = || RLockGuard {
            object: object.clone(),
            tag,
            panicking: std::thread::panicking(),
            own_thread: PhantomData,
        };
        if permits.get(0) == (Permit::Held { owner: me, tag }) && !object.arena().is_forked() {
            depth.fetch_add(1, Ordering::Relaxed);
            return Ok(guard());
        }
        let left = obtain(
            object,
            EVENT,
            deadline,
            "locking an RLock",
            || match permits.acquire_at(0, me, tag) {
                Acquired::At { left, .. } => Ok(left),
                Acquired::Busy(owner) => Err(owner),
            },
        )?;
        depth.store(1, Ordering::Relaxed);
        let poison = left.map_or(0, |left| u64::from(left.pid) + 1);
        object.word(POISON).store(poison, Ordering::Relaxed);
        match left {
            None => Ok(guard()),
            Some(Left { pid, .. }) => Err(LockError::poisoned(pid, object, guard())),
        }
    }

    /// Whether somebody has the lock now.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        !matches!(self.object.permits(0).get(0), Permit::Free(_))
    }
}

/// The lock of an [`RLock`] in hand, once. Belongs to its thread.
#[derive(Debug)]
#[must_use = "a lock is let go when its guard is dropped"]
pub struct RLockGuard {
    object: Object,
    tag: u32,
    panicking: bool,
    /// Not `Send`: the lock is this thread's.
    own_thread: PhantomData<*const ()>,
}

impl RLockGuard {
    /// As [`MutexGuard::clear_poison`](crate::MutexGuard::clear_poison).
    pub fn clear_poison(&mut self) {
        self.object.word(POISON).store(0, Ordering::Relaxed);
    }
}

impl Drop for RLockGuard {
    fn drop(&mut self) {
        if self.object.arena().is_forked() {
            return;
        }
        let poison = self.object.word(POISON);
        if !self.panicking && std::thread::panicking() {
            poison.store(u64::from(std::process::id()) + 1, Ordering::Relaxed);
        }
        if self.object.word(DEPTH).fetch_sub(1, Ordering::Relaxed) <= 1 {
            let left = poison.load(Ordering::Relaxed).checked_sub(1);
            let left = left.map(|pid| Left {
                pid: pid as u32,
                tag: self.tag,
            });
            unlock(&self.object, 0, self.tag, left, true);
        }
    }
}
