//! Waiting for a change of shared words and waking those who wait, so that no wake is lost even if
//! a waiter or a waker is killed between two steps.
//!
//! An event is two words: `seq`, which the kernel waits on, and `waiters`, a generation (high 16
//! bits) and a count (low 16).
//!
//! ```text
//! wait:    try → load seq → count + 1 → fence → try again → sleep while seq is unchanged
//!          → count − 1, unless the generation has changed
//! notify:  publish → look at the count: 0 is the end of it, no system call
//!          → seq + 1, wake one; nobody was there? generation + 1, count 0, seq + 1, wake all
//! ```
//!
//! A waiter that was killed leaves its count behind, and the first notification that finds nobody
//! asleep *heals* it by starting a new generation. Two orders matter: `seq` is loaded *before* the
//! count grows, so that a waiter whom a heal took out of the count has an old `seq` and does not
//! sleep; and a waiter takes itself out of the count of its own generation only, or it would take
//! out somebody else.
//!
//! A woken waiter must try again, or pass the wake on by notifying, even if its deadline is over:
//! the notifier counts on it.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::futex;

use crate::sync::{Atomic32, Memory, Shared};

const COUNT: u32 = 0xffff;
const GENERATION: u32 = 0x1_0000;

/// Everybody, for [`Event`]'s wakers (the kernel's count is signed).
const EVERYBODY: u32 = i32::MAX as u32;

/// The two words of an event.
#[derive(Debug)]
pub struct Event<'a, M: Memory> {
    seq: &'a M::U32,
    waiters: &'a M::U32,
}

impl<M: Memory> Copy for Event<'_, M> {}
impl<M: Memory> Clone for Event<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

/// A place among the waiters.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[must_use = "unregister it, or each notification makes a system call until one heals the count"]
pub struct Registered {
    /// The value to sleep on.
    pub seq: u32,
    /// The generation we are counted in; `None`: the count was full, and so stays above 0 anyway.
    generation: Option<u32>,
}

impl Registered {
    /// The two words of it, for a model that must keep it as plain numbers.
    #[doc(hidden)]
    pub fn to_bits(self) -> u64 {
        let generation = self
            .generation
            .map_or(u32::MAX, |generation| generation >> 16);
        u64::from(generation) << 32 | u64::from(self.seq)
    }

    /// The inverse of [`to_bits`](Self::to_bits).
    #[doc(hidden)]
    pub fn from_bits(bits: u64) -> Self {
        let generation = (bits >> 32) as u32;
        Self {
            seq: bits as u32,
            generation: (generation != u32::MAX).then_some(generation << 16),
        }
    }
}

impl<'a, M: Memory> Event<'a, M> {
    /// The event of these two words; both 0 is a fine start. Give them a line that the data's own
    /// traffic does not touch: `waiters` is read on every notification.
    #[inline(always)]
    pub fn new(seq: &'a M::U32, waiters: &'a M::U32) -> Self {
        Self { seq, waiters }
    }

    /// Tells this event from all others of this process: where its word is.
    #[must_use]
    pub fn key(&self) -> usize {
        core::ptr::from_ref(self.seq).addr()
    }

    /// How many notifications there have been, as far as anyone was there to be told.
    #[must_use]
    pub fn seq(&self) -> u32 {
        // Acquire: as in `register`.
        self.seq.load(Acquire)
    }

    /// Joins the waiters. Then try once more, and sleep only if that fails too.
    pub fn register(&self) -> Registered {
        // Before the count: see the head of this file. Acquire keeps it there.
        let seq = self.seq.load(Acquire);
        M::retry_loop();
        let generation = loop {
            let seen = self.waiters.load(Relaxed);
            if seen & COUNT == COUNT {
                break None;
            }
            if self
                .waiters
                .compare_exchange(seen, seen + 1, SeqCst, Relaxed)
                .is_ok()
            {
                break Some(seen & !COUNT);
            }
            M::retry();
        };
        // Pairs with the order in `anyone_waiting`: either the notifier sees our count, or the try
        // that follows sees what it published.
        M::fence(SeqCst);
        Registered { seq, generation }
    }

    /// Leaves the waiters.
    pub fn unregister(&self, registered: Registered) {
        let Some(generation) = registered.generation else {
            return;
        };
        M::retry_loop();
        loop {
            let seen = self.waiters.load(Relaxed);
            if seen & !COUNT != generation || seen & COUNT == 0 {
                // Healed: we are in no count any more.
                return;
            }
            if self
                .waiters
                .compare_exchange(seen, seen - 1, SeqCst, Relaxed)
                .is_ok()
            {
                return;
            }
            M::retry();
        }
    }

    /// Whether anyone is counted as waiting; for the second half of a publication by a sequentially
    /// consistent read-modify-write.
    #[inline(always)]
    pub fn anyone_waiting(&self) -> bool {
        self.counted() & COUNT != 0
    }

    #[inline(always)]
    fn counted(&self) -> u32 {
        // SeqCst, with the caller's publication before it, pairs with the fence in `register`.
        M::order_after_publication();
        self.waiters.load(SeqCst)
    }

    /// Wakes one waiter, if there is any. Call it after a publication by a sequentially consistent
    /// read-modify-write.
    ///
    /// `wake` wakes up to so many sleepers on `seq` and says how many it woke.
    #[inline(always)]
    pub fn notify_one(&self, wake: impl Fn(u32) -> u32) {
        let seen = self.counted();
        if seen & COUNT != 0 {
            self.notify(seen, 1, wake);
        }
    }

    /// Wakes all waiters, if there are any; otherwise as [`notify_one`](Self::notify_one).
    #[inline]
    pub fn notify_all(&self, wake: impl Fn(u32) -> u32) {
        let seen = self.counted();
        if seen & COUNT != 0 {
            self.notify(seen, EVERYBODY, wake);
        }
    }

    /// Wakes up to so many waiters with one wake, for as many publications; otherwise as
    /// [`notify_one`](Self::notify_one).
    #[inline]
    pub fn notify_many(&self, how_many: u32, wake: impl Fn(u32) -> u32) {
        let seen = self.counted();
        if how_many > 0 && seen & COUNT != 0 {
            self.notify(seen, how_many.min(EVERYBODY), wake);
        }
    }

    /// Wakes everybody, counted or not: what a reaper owes, since the dead may have been between
    /// taking the waiters out of the count and waking them.
    pub fn rouse(&self, wake: impl Fn(u32) -> u32) {
        self.seq.fetch_add(1, SeqCst);
        wake(EVERYBODY);
    }

    #[cold]
    fn notify(&self, seen: u32, how_many: u32, wake: impl Fn(u32) -> u32) {
        self.seq.fetch_add(1, SeqCst);
        if wake(how_many) != 0 {
            return;
        }
        // Whoever is counted is dead, or not yet asleep; in that case it registered with a `seq`
        // that is old by the time it sleeps. Start a new generation, and tell all who may have
        // joined the old one in between.
        let healed = (seen & !COUNT).wrapping_add(GENERATION);
        if self
            .waiters
            .compare_exchange(seen, healed, SeqCst, Relaxed)
            .is_ok()
        {
            self.rouse(wake);
        }
    }
}

/// How a sleep ended.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Parked {
    /// By a wake, a change of `seq` or a signal: try again.
    Woken,
    /// By the time limit.
    TimedOut,
}

impl Event<'_, Shared> {
    /// Sleeps while `seq` has this value, at most so long.
    ///
    /// The wait is on the memory itself, not on this process's address of it, so that processes
    /// which map it elsewhere can wake it. Give it a bounded slice: it ends no later than that even
    /// if the waker was killed in the middle of waking.
    pub fn park(&self, seq: u32, timeout: Duration) -> Parked {
        let timeout = timespec(timeout);
        match futex::wait(self.seq, futex::Flags::empty(), seq, Some(&timeout)) {
            Err(Errno::TIMEDOUT) => Parked::TimedOut,
            // Woken, changed before we slept (EAGAIN), or a signal (EINTR): the caller looks again.
            _ => Parked::Woken,
        }
    }

    /// Wakes up to so many sleepers and says how many: the `wake` of notifications on memory that
    /// is shared between processes.
    #[inline]
    pub fn wake(&self, how_many: u32) -> u32 {
        wake(self.seq, how_many)
    }
}

fn wake(seq: &AtomicU32, how_many: u32) -> u32 {
    // It fails only for an address that is not a mapped, aligned word, which a reference is.
    futex::wake(seq, futex::Flags::empty(), how_many).map_or(0, |woken| woken as u32)
}

fn timespec(duration: Duration) -> futex::Timespec {
    futex::Timespec {
        tv_sec: duration.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// What a notification did: how often it was asked to wake, and the words after it.
    fn notify(seq: &AtomicU32, waiters: &AtomicU32, sleepers: u32) -> u32 {
        let calls = Cell::new(0);
        Event::<Shared>::new(seq, waiters).notify_one(|how_many| {
            calls.set(calls.get() + 1);
            how_many.min(sleepers)
        });
        calls.get()
    }

    #[test]
    fn nobody_waiting_costs_no_system_call() {
        let (seq, waiters) = (AtomicU32::new(0), AtomicU32::new(0));
        assert_eq!(notify(&seq, &waiters, 0), 0);
        let event = Event::<Shared>::new(&seq, &waiters);
        let registered = event.register();
        assert!(event.anyone_waiting());
        event.unregister(registered);
        assert!(!event.anyone_waiting());
        assert_eq!(notify(&seq, &waiters, 0), 0);
        assert_eq!(seq.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn a_waiter_that_died_is_healed_by_the_next_notification() {
        let (seq, waiters) = (AtomicU32::new(0), AtomicU32::new(0));
        let event = Event::<Shared>::new(&seq, &waiters);
        let dead = event.register();
        // Asked for one, and after healing for everybody.
        assert_eq!(notify(&seq, &waiters, 0), 2);
        assert_eq!(notify(&seq, &waiters, 0), 0);
        // Two steps of `seq`, so nobody of the old generation goes to sleep.
        assert_eq!(seq.load(Ordering::SeqCst), dead.seq + 2);

        let living = event.register();
        event.unregister(dead);
        assert!(event.anyone_waiting(), "it left another generation's count");
        event.unregister(living);
        assert!(!event.anyone_waiting());
    }

    #[test]
    fn a_full_count_stays_full_and_does_not_spill_into_the_generation() {
        let (seq, waiters) = (
            AtomicU32::new(0),
            AtomicU32::new(3 * GENERATION + COUNT - 1),
        );
        let event = Event::<Shared>::new(&seq, &waiters);
        let last = event.register();
        let beyond = event.register();
        assert_eq!(waiters.load(Ordering::SeqCst), 3 * GENERATION + COUNT);
        event.unregister(beyond);
        assert_eq!(waiters.load(Ordering::SeqCst), 3 * GENERATION + COUNT);
        event.unregister(last);
        assert_eq!(waiters.load(Ordering::SeqCst), 3 * GENERATION + COUNT - 1);
        for registered in [last, beyond] {
            assert_eq!(Registered::from_bits(registered.to_bits()), registered);
        }
    }

    #[test]
    fn the_generation_wraps_without_touching_the_count() {
        let (seq, waiters) = (AtomicU32::new(0), AtomicU32::new(0xffff * GENERATION));
        let event = Event::<Shared>::new(&seq, &waiters);
        let _dead = event.register();
        notify(&seq, &waiters, 0);
        assert_eq!(waiters.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn a_changed_seq_is_not_slept_on_and_a_limit_ends_a_sleep() {
        let (seq, waiters) = (AtomicU32::new(5), AtomicU32::new(0));
        let event = Event::<Shared>::new(&seq, &waiters);
        assert_eq!(event.park(4, Duration::MAX), Parked::Woken);
        assert_eq!(event.park(5, Duration::from_millis(1)), Parked::TimedOut);
        assert_eq!(event.wake(EVERYBODY), 0);
    }

    #[test]
    fn a_sleeper_is_woken_by_a_publication() {
        let (seq, waiters) = (AtomicU32::new(0), AtomicU32::new(0));
        for _ in 0..200 {
            let published = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let event = Event::<Shared>::new(&seq, &waiters);
                    while !published.load(Ordering::Acquire) {
                        let registered = event.register();
                        if !published.load(Ordering::Acquire) {
                            // Longer than any test run: a lost wake is a hang.
                            event.park(registered.seq, Duration::from_secs(3600));
                        }
                        event.unregister(registered);
                    }
                });
                published.swap(true, Ordering::SeqCst);
                let event = Event::<Shared>::new(&seq, &waiters);
                event.notify_one(|how_many| event.wake(how_many));
            });
            assert_eq!(waiters.load(Ordering::SeqCst) & COUNT, 0);
        }
    }
}
