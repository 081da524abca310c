//! The lock on a pool's state, and the tasks' wakers that are to be called once it is let go.
//!
//! Outcomes arrive under the lock. A waker runs code of the user's, which may come back to the pool, so it is set aside
//! and called when whoever holds the lock has let it go.

use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use parking_lot::{Mutex, MutexGuard};

use super::crew::{Crew, State};

/// Wakers of tasks whose outcome has arrived.
#[derive(Debug, Default)]
pub(super) struct Wakers {
    any: AtomicBool,
    wakers: Mutex<Vec<Waker>>,
}

impl Wakers {
    pub(super) fn add(&self, waker: Waker) {
        self.wakers.lock().push(waker);
        // Relaxed: the lock on the pool's state orders it for whoever looks next.
        self.any.store(true, Ordering::Relaxed);
    }

    fn wake(&self) {
        // Looked at first: this comes with each release of the lock, and there is hardly ever one.
        if !self.any.load(Ordering::Relaxed) || !self.any.swap(false, Ordering::Relaxed) {
            return;
        }
        let wakers = std::mem::take(&mut *self.wakers.lock());
        for waker in wakers {
            if catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
                tracing::error!("the waker of a pool's task panicked");
            }
        }
    }
}

/// The state, locked.
pub(super) struct Locked<'a> {
    // In this order: first the lock is let go.
    pub(super) guard: MutexGuard<'a, State>,
    told: Release<'a>,
}

struct Release<'a>(&'a Wakers);

impl Drop for Release<'_> {
    fn drop(&mut self) {
        self.0.wake();
    }
}

impl Crew {
    pub(super) fn lock(&self) -> Locked<'_> {
        Locked {
            guard: self.state.lock(),
            told: Release(&self.told),
        }
    }
}

impl Locked<'_> {
    /// Calls the wakers now, for who is about to sleep on a condition with the lock; lets go of the lock meanwhile, so look
    /// again afterwards.
    pub(super) fn wake_told(&mut self) {
        if self.told.0.any.load(Ordering::Relaxed) {
            let told = self.told.0;
            MutexGuard::unlocked(&mut self.guard, || told.wake());
        }
    }
}

impl Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.guard
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.guard
    }
}
