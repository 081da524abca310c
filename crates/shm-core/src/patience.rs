//! How long something is waited for, in time in which those that are waited for had their turns.
//!
//! A machine, or all of a program, may stand still for longer than a wait that people find long: a virtual machine without
//! its processors, a control group that is frozen or has used up its share of them. Whoever waits by the clock alone finds
//! the time over at the first look after such a pause, before those that it waits for had a turn, and takes them for dead
//! or silent. So it looks several times, and what passes between two looks counts for no more than a part of the whole: a
//! pause of any length is one step.
//!
//! This is for waits whose end is a verdict on somebody else. A timeout that a user gives is a promise about the clock, and
//! keeps it.

use std::time::{Duration, Instant};

/// In how many looks a wait ends at the earliest. Who looks less often than so many times waits for longer.
const LOOKS: u32 = 8;

/// No step is nothing, lest a wait of moments never ends.
const STEP_LEAST: Duration = Duration::from_nanos(1);

/// Nor longer than that: there is no end of some waits that a clock could say.
const STEP_MOST: Duration = Duration::from_secs(3600);

/// A wait that has begun.
///
/// ```
/// use shm_core::patience::Patience;
/// use std::time::{Duration, Instant};
///
/// # let has_answered = || false;
/// let mut patience = Patience::new(Duration::from_millis(20));
/// while !has_answered() && !patience.is_over(Instant::now()) {
///     std::thread::sleep(Duration::from_millis(1));
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    whole: Duration,
    spent: Duration,
    looked: Instant,
}

impl Patience {
    /// A wait of that length, from now on.
    #[must_use]
    pub fn new(whole: Duration) -> Self {
        Self::new_at(whole, Instant::now())
    }

    /// The same from a moment on at which somebody has looked at the clock already.
    #[must_use]
    pub const fn new_at(whole: Duration, now: Instant) -> Self {
        Self {
            whole,
            spent: Duration::ZERO,
            looked: now,
        }
    }

    /// It is to be that long in the whole, what is over of it included.
    pub const fn set_whole(&mut self, whole: Duration) {
        self.whole = whole;
    }

    /// How long it is in the whole.
    #[must_use]
    pub const fn whole(&self) -> Duration {
        self.whole
    }

    /// How much of it is over, as far as it counts.
    #[must_use]
    pub const fn spent(&self) -> Duration {
        self.spent
    }

    /// When to look again, unless there is news before.
    #[must_use]
    pub fn next(&self) -> Instant {
        let left = self.whole.saturating_sub(self.spent);
        self.looked + left.min(self.step())
    }

    /// A look: whether it has been long enough.
    pub fn is_over(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.looked);
        self.spent = self.spent.saturating_add(passed.min(self.step()));
        self.looked = now;
        self.spent >= self.whole
    }

    fn step(&self) -> Duration {
        (self.whole / LOOKS).clamp(STEP_LEAST, STEP_MOST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_of_any_length_is_one_step_of_a_wait() {
        let mut now = Instant::now();
        let mut patience = Patience::new_at(Duration::from_millis(250), now);
        for _ in 1..LOOKS {
            now += Duration::from_secs(3600);
            assert!(!patience.is_over(now));
        }
        now += Duration::from_secs(3600);
        assert!(patience.is_over(now));
    }

    #[test]
    fn a_wait_whose_looks_come_in_time_is_as_long_as_it_was_to_be() {
        for whole in [0, 1, 7, 5_000_000, 250_000_003].map(Duration::from_nanos) {
            let begin = Instant::now();
            let mut patience = Patience::new_at(whole, begin);
            let mut now = begin;
            while !patience.is_over(now) {
                now = patience.next();
            }
            assert_eq!(now - begin, whole);
        }
    }

    #[test]
    fn looks_that_are_closer_together_than_needed_do_not_change_the_length() {
        let begin = Instant::now();
        let mut patience = Patience::new_at(Duration::from_secs(2), begin);
        let mut now = begin;
        while !patience.is_over(now) {
            now += Duration::from_millis(1);
        }
        assert_eq!(now - begin, Duration::from_secs(2));
    }

    #[test]
    fn who_looks_rarely_waits_for_so_many_looks() {
        let begin = Instant::now();
        let mut patience = Patience::new_at(Duration::from_secs(2), begin);
        let looks = (1u32..).find(|&look| patience.is_over(begin + look * STEP_MOST));
        assert_eq!(looks, Some(LOOKS));
    }

    #[test]
    fn a_wait_that_no_clock_can_say_is_looked_at_now_and_then() {
        let begin = Instant::now();
        let mut patience = Patience::new_at(Duration::MAX, begin);
        assert_eq!(patience.next(), begin + STEP_MOST);
        assert!(!patience.is_over(begin + STEP_MOST));
        patience.set_whole(Duration::from_secs(1));
        assert!(patience.is_over(begin + STEP_MOST));
    }
}
