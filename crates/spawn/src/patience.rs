//! How long something is waited for, in time in which this program had its turns.
//!
//! A machine, or all of a program, may stand still for longer than a wait that people find long: a virtual machine without
//! its processors, a control group that is frozen or has used up its share of them. Whoever waits by the clock alone finds
//! the time over at the first look after such a pause, before those that it waits for had a turn. So it looks several
//! times, and what passes between two looks counts for no more than a part of the whole.

use std::time::{Duration, Instant};

/// In how many looks a wait ends at the earliest.
const LOOKS: u32 = 8;

/// A wait that has begun. How long it is in the whole is for whoever waits to say, each time anew.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    spent: Duration,
    looked: Instant,
}

impl Patience {
    pub(crate) fn begin() -> Patience {
        Patience {
            spent: Duration::ZERO,
            looked: Instant::now(),
        }
    }

    /// When to look again, unless there is news before.
    pub(crate) fn next(&self, whole: Duration) -> Instant {
        let left = whole.saturating_sub(self.spent);
        // No step is nothing, lest a wait of moments never ends.
        self.looked + left.min((whole / LOOKS).max(Duration::from_nanos(1)))
    }

    /// A look: whether it has been long enough.
    pub(crate) fn is_over(&mut self, now: Instant, whole: Duration) -> bool {
        let passed = now.saturating_duration_since(self.looked);
        self.spent += passed.min((whole / LOOKS).max(Duration::from_nanos(1)));
        self.looked = now;
        self.spent >= whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_of_any_length_is_one_step_of_a_wait() {
        let whole = Duration::from_millis(250);
        let mut patience = Patience::begin();
        let mut now = patience.looked;
        for _ in 1..LOOKS {
            now += Duration::from_secs(3600);
            assert!(!patience.is_over(now, whole));
        }
        now += Duration::from_secs(3600);
        assert!(patience.is_over(now, whole));
    }

    #[test]
    fn a_wait_whose_looks_come_in_time_is_as_long_as_it_was_to_be() {
        for whole in [0, 1, 7, 5_000_000, 250_000_003].map(Duration::from_nanos) {
            let mut patience = Patience::begin();
            let begin = patience.looked;
            let mut now = begin;
            while !patience.is_over(now, whole) {
                now = patience.next(whole);
            }
            assert_eq!(now - begin, whole);
        }
    }
}
