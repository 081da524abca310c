//! Sleeping on many events at once, and being called away from it.
//!
//! `futex_waitv` (Linux 5.16) sleeps on up to 128 words. Where there is none, older kernels and some sandboxes, a sleep is
//! on the bell alone, and whoever sleeps looks at the events in between; so it must be short then.

use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU32};
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::futex::{self, Wait, WaitFlags, WaitPtr, WaitvFlags};
use rustix::time::{ClockId, Timespec, clock_gettime};

use crate::arena::Arena;

/// Events that one sleep can be on; the system's limit is 128 words, and one is the bell's.
pub const MOST_EVENTS: usize = 127;

/// The system has no `futex_waitv`, or does not let us have it.
static MISSING: AtomicBool = AtomicBool::new(false);

/// Calls a sleeper of this process away.
#[derive(Debug, Default)]
pub struct Bell(AtomicU32);

impl Bell {
    /// How often it was rung. To be asked before looking for what to sleep on.
    #[must_use]
    pub fn rung(&self) -> u32 {
        self.0.load(SeqCst)
    }

    /// Ends a sleep, also one that is only about to begin.
    pub fn ring(&self) {
        self.0.fetch_add(1, SeqCst);
        // It fails only for an address that is no mapped, aligned word.
        let _ = futex::wake(&self.0, futex::Flags::PRIVATE, 1);
    }
}

/// Whether sleeps end by a notification of an event. If not, look at the events in between.
#[must_use]
pub fn hears_events() -> bool {
    !MISSING.load(Relaxed)
}

/// Goes on as if the system had no `futex_waitv`: how that is tested where it has.
#[doc(hidden)]
pub fn pretend_deaf() {
    MISSING.store(true, Relaxed);
}

/// Where an event is, to sleep on it: its object is not held meanwhile, and may be gone when the sleep ends.
#[derive(Clone, Debug)]
pub struct Place {
    /// Keeps the memory mapped.
    arena: Arena,
    /// Offset of the word.
    offset: u64,
}

impl Place {
    pub(crate) fn new(arena: &Arena, offset: u64) -> Self {
        let arena = arena.clone();
        Self { arena, offset }
    }

    /// The arena it is in.
    #[must_use]
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    fn word(&self) -> &AtomicU32 {
        self.arena.segment().half(self.offset)
    }
}

/// Sleeps while each event's `seq` is the one given, the bell was not rung since `rung`, and for so long at most.
///
/// `true`: nothing happened for all that time. More than [`MOST_EVENTS`] are not slept on.
pub fn sleep(events: &[(Place, u32)], bell: &Bell, rung: u32, timeout: Duration) -> bool {
    let words = events.iter().map(|(place, seq)| (place.word(), *seq));
    sleep_on(words, bell, rung, timeout)
}

fn sleep_on<'a>(
    events: impl Iterator<Item = (&'a AtomicU32, u32)>,
    bell: &Bell,
    rung: u32,
    timeout: Duration,
) -> bool {
    if hears_events() {
        let mut words = vec![word(&bell.0, rung, WaitFlags::PRIVATE)];
        // Not private: those who wake may map the word elsewhere.
        let events = events.map(|(event, seq)| word(event, seq, WaitFlags::empty()));
        words.extend(events.take(MOST_EVENTS));
        let until = deadline(timeout);
        match futex::waitv(
            &words,
            WaitvFlags::empty(),
            Some(&until),
            ClockId::Monotonic,
        ) {
            Err(Errno::TIMEDOUT) => return true,
            // EFAULT: the memory of an object that is gone was given back; whoever sleeps knows of it by now.
            // ENOSYS from an older kernel, EPERM or EACCES from a sandbox that does not know it; anything else that is not
            // about the words (ENOMEM) must not become a busy loop either.
            Err(error) if !matches!(error, Errno::AGAIN | Errno::INTR | Errno::FAULT) => {
                crate::say!(debug, %error, "no futex_waitv: futures look at their events every few milliseconds");
                MISSING.store(true, Relaxed);
            }
            _ => return false,
        }
    }
    let timeout = Timespec {
        tv_sec: timeout.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    let private = futex::Flags::PRIVATE;
    futex::wait(&bell.0, private, rung, Some(&timeout)) == Err(Errno::TIMEDOUT)
}

fn word(word: &AtomicU32, value: u32, private: WaitFlags) -> Wait {
    let mut wait = Wait::new();
    wait.val = value.into();
    wait.uaddr = WaitPtr::new(word.as_ptr().cast());
    wait.flags = WaitFlags::SIZE_U32 | private;
    wait
}

/// The system's clock so much later.
fn deadline(timeout: Duration) -> Timespec {
    let now = clock_gettime(ClockId::Monotonic);
    let nanos = now.tv_nsec + i64::from(timeout.subsec_nanos());
    let seconds: i64 = timeout.as_secs().try_into().unwrap_or(i64::MAX);
    Timespec {
        tv_sec: now
            .tv_sec
            .saturating_add(seconds)
            .saturating_add(nanos / 1_000_000_000),
        tv_nsec: nanos % 1_000_000_000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Event;
    use crate::sync::Shared;

    #[test]
    fn a_sleep_ends_by_the_bell_by_any_event_or_by_the_time() {
        let words: Vec<_> = (0..MOST_EVENTS)
            .map(|_| (AtomicU32::new(0), AtomicU32::new(0)))
            .collect();
        let sleep = |events: usize, bell: &Bell, rung, timeout| {
            let words = words.iter().map(|(seq, _)| (seq, 0)).take(events);
            sleep_on(words, bell, rung, timeout)
        };
        let bell = Bell::default();
        assert!(sleep(MOST_EVENTS, &bell, 0, Duration::from_millis(1)));
        // Longer than any test run.
        let long = Duration::from_secs(3600);
        bell.ring();
        assert!(!sleep(MOST_EVENTS, &bell, 0, long));
        let rung = bell.rung();
        std::thread::scope(|scope| {
            scope.spawn(|| bell.ring());
            assert!(!sleep(MOST_EVENTS, &bell, rung, long));
        });
        if !hears_events() {
            eprintln!("skipped in part: no futex_waitv here");
            return;
        }
        for at in [0, MOST_EVENTS - 1] {
            let rung = bell.rung();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let (seq, waiters) = &words[at];
                    let event = Event::<Shared>::new(seq, waiters);
                    event.rouse(|count| event.wake(count));
                });
                assert!(!sleep(at + 1, &bell, rung, long));
            });
        }
    }
}
