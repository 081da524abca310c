//! Time in which something could have happened, for who looks again and again.
//!
//! A machine that stands still, or a process that is stopped, does nothing, and neither may those for whom it waits; a clock
//! goes on all the same. Who waits for so long that whoever it waits for must have been done, had they run, counts each step
//! between two looks for no more than the longest that there is between two looks of a thread that runs.

use std::time::{Duration, Instant};

/// The thread that watches the arena looks twice a second.
const STEP: Duration = Duration::from_millis(600);

/// How much time has passed since it was begun, as far as it counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lapse {
    latest: Instant,
    counted: Duration,
}

impl Lapse {
    pub(crate) fn begin(now: Instant) -> Self {
        Self {
            latest: now,
            counted: Duration::ZERO,
        }
    }

    /// A look, and how much has passed up to it.
    pub(crate) fn look(&mut self, now: Instant) -> Duration {
        self.counted += now.saturating_duration_since(self.latest).min(STEP);
        self.latest = now;
        self.counted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_stands_still_lets_no_more_pass_than_one_step() {
        let begun = Instant::now();
        let mut lapse = Lapse::begin(begun);
        let mut at = begun;
        let mut look = |ms| {
            at += Duration::from_millis(ms);
            lapse.look(at).as_millis()
        };
        assert_eq!([look(2), look(500), look(500)], [2, 502, 1_002]);
        assert_eq!([look(60_000), look(300), look(0)], [1_602, 1_902, 1_902]);
    }
}
