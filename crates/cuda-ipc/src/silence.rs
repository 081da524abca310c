//! How long an origin that does not answer is waited for: once by all who ask it, and not once for each thing that is asked.
//!
//! Whoever needs something of a process that is stopped waits for it, and so does whoever needs something else of it
//! meanwhile, or next. They all wait until the same moment. After it nobody waits for more than a moment, until the origin has
//! answered, or was left alone for as long as it was waited for.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How long an origin is waited for, as long as it runs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// How long once it was waited for in vain.
const AGAIN: Duration = Duration::from_millis(200);

/// Whether an origin answers.
#[derive(Debug, Default)]
pub(crate) struct Silence(Mutex<Option<Waited>>);

#[derive(Clone, Copy, Debug)]
struct Waited {
    /// When it was first asked.
    since: Instant,
    /// When it was last waited for.
    latest: Instant,
}

impl Silence {
    /// It is asked `now`: until when it is waited for.
    pub(crate) fn until(&self, now: Instant) -> Instant {
        let mut waited = self.0.lock();
        let is_recent = |waited: &Waited| now.saturating_duration_since(waited.latest) < PATIENCE;
        let known = waited.filter(is_recent);
        let since = known.map_or(now, |known| known.since);
        let until = (since + PATIENCE).max(now + AGAIN);
        let latest = known.map_or(until, |known| known.latest.max(until));
        *waited = Some(Waited { since, latest });
        until
    }

    /// It has answered: who asks next waits for it again.
    pub(crate) fn is_over(&self) {
        *self.0.lock() = None;
    }

    /// For how long it has not answered, up to `now`.
    pub(crate) fn for_how_long(&self, now: Instant) -> Duration {
        let waited = *self.0.lock();
        waited.map_or(Duration::ZERO, |waited| {
            now.saturating_duration_since(waited.since)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_who_ask_an_origin_wait_for_it_until_the_same_moment() {
        let (silence, begun) = (Silence::default(), Instant::now());
        let at = |seconds| begun + Duration::from_secs(seconds);
        assert_eq!(silence.until(at(0)), at(30));
        assert_eq!(silence.until(at(10)), at(30));
        // One after the other: the first has waited for all of them.
        for round in 0..100 {
            let now = at(30) + AGAIN * round;
            assert_eq!(silence.until(now), now + AGAIN);
            assert_eq!(silence.for_how_long(now), now - begun);
        }
    }

    #[test]
    fn an_origin_that_has_answered_or_was_left_alone_is_waited_for_anew() {
        let (silence, begun) = (Silence::default(), Instant::now());
        let at = |seconds| begun + Duration::from_secs(seconds);
        assert_eq!(silence.until(at(0)), at(30));
        silence.is_over();
        assert_eq!(silence.for_how_long(at(1)), Duration::ZERO);
        assert_eq!(silence.until(at(1)), at(31));
        assert_eq!(silence.until(at(40)), at(40) + AGAIN);
        // It may have been stopped twice.
        assert_eq!(silence.until(at(80)), at(110));
    }
}
