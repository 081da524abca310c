//! Waiting for a condition as a future.

use shm_core::crowd::Grant;
use shm_core::event::Registered;
use shm_core::object::Object;

use super::{Condvar, EVENT, Locked, WAITING};
use crate::error::{Error, LockError};
use crate::later::{Look, until};
use crate::mutex::{Mutex, MutexGuard};

impl Condvar {
    /// [`wait`](Self::wait) as a future, which knows no runtime and takes no thread. Cancel safe: dropped, it has unlocked
    /// the mutex, and a notification that it was given goes to the next that waits.
    ///
    /// # Errors
    /// As [`wait`](Self::wait), without `Deadlock`.
    pub async fn wait_async(&self, guard: MutexGuard) -> Locked {
        let mutex = Mutex {
            object: guard.object.clone(),
        };
        let arena = mutex.object.arena();
        arena.check_not_forked(WAITING).map_err(Error::from)?;
        // Before the lock goes, as threads do; and in a count of its own, since a notification that the process's crowd
        // is not counted for leaves no trace that a look could find.
        let mut turn = Turn::new(&self.object);
        drop(guard);
        let look = |slow: bool| {
            if turn.is_over() {
                return Look::Ready(Ok(()));
            }
            let failure = || self.object.failure().or_else(|| mutex.object.failure());
            match slow.then(failure).flatten() {
                Some(failure) => Look::Ready(Err(Error::peer_failed(failure, WAITING))),
                None => Look::NotYet(None),
            }
        };
        until(&self.object, EVENT, Grant::EachOne, WAITING, look).await?;
        turn.is_given = true;
        let locked = mutex.lock_async().await;
        turn.is_given = false;
        locked
    }

    /// [`wait_while`](Self::wait_while) as a future; otherwise as [`wait_async`](Self::wait_async).
    ///
    /// # Errors
    /// As there.
    pub async fn wait_while_async(
        &self,
        mut guard: MutexGuard,
        mut condition: impl FnMut() -> bool,
    ) -> Result<MutexGuard, LockError<MutexGuard>> {
        while condition() {
            guard = self.wait_async(guard).await?;
        }
        Ok(guard)
    }
}

/// A place among those who are notified.
struct Turn<'a> {
    object: &'a Object,
    registered: Registered,
    /// The notification is here, and nobody has answered with it yet.
    is_given: bool,
}

impl<'a> Turn<'a> {
    fn new(object: &'a Object) -> Self {
        Self {
            object,
            registered: object.event(EVENT).register(),
            is_given: false,
        }
    }

    /// Whether there was a notification since.
    fn is_over(&self) -> bool {
        self.object.event(EVENT).seq() != self.registered.seq
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.object.arena().is_forked() {
            return;
        }
        let event = self.object.event(EVENT);
        event.unregister(self.registered);
        if self.is_given {
            event.notify_one(|count| event.wake(count));
        }
    }
}
