//! How long an origin that does not answer is waited for: once by all who ask it, and not once for each thing that is asked.
//!
//! Whoever needs something of a process that is stopped waits for it, and so does whoever needs something else of it
//! meanwhile, or next. They all have one patience. When it is over nobody waits for more than a moment, until the origin has
//! answered, or was left alone for as long as it was waited for. A pause of the machine, in which the origin had no turn
//! either, is one step of it, so those who wait look at it again and again.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use shm_core::patience::Patience;

/// How long an origin is waited for, as long as it runs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// How long once it was waited for in vain.
const AGAIN: Duration = Duration::from_millis(200);
/// Who waits for an origin, or for another thread that asks it, looks at least so often.
pub(crate) const SLICE: Duration = Duration::from_millis(200);

/// Whether an origin answers.
#[derive(Debug, Default)]
pub(crate) struct Silence(Mutex<Option<Waited>>);

#[derive(Clone, Copy, Debug)]
struct Waited {
    /// When it was first asked.
    since: Instant,
    wait: Patience,
    /// Until when it was last waited for.
    latest: Instant,
}

impl Silence {
    /// It is asked `now`: how long it is waited for yet.
    pub(crate) fn left(&self, now: Instant) -> Duration {
        let mut waited = self.0.lock();
        let is_recent = |waited: &Waited| now.saturating_duration_since(waited.latest) < PATIENCE;
        let known = waited.filter(is_recent);
        let mut known = known.unwrap_or(Waited {
            since: now,
            wait: Patience::new_at(PATIENCE, now),
            latest: now,
        });
        known.wait.is_over(now);
        let left = PATIENCE.saturating_sub(known.wait.spent()).max(AGAIN);
        known.latest = known.latest.max(now + left);
        *waited = Some(known);
        left
    }

    /// A look while it is waited for: whether that has been long enough.
    pub(crate) fn look(&self, now: Instant) -> bool {
        let mut waited = self.0.lock();
        waited
            .as_mut()
            .is_none_or(|waited| waited.wait.is_over(now))
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

    /// Somebody waits meanwhile.
    fn wait(silence: &Silence, from: Instant, until: Instant) {
        let mut now = from;
        while now < until {
            now += SLICE;
            silence.look(now);
        }
    }

    #[test]
    fn all_who_ask_an_origin_wait_for_it_until_the_same_moment() {
        let (silence, begun) = (Silence::default(), Instant::now());
        let at = |seconds| begun + Duration::from_secs(seconds);
        assert_eq!(silence.left(at(0)), Duration::from_secs(30));
        wait(&silence, at(0), at(10));
        assert_eq!(silence.left(at(10)), Duration::from_secs(20));
        assert!(!silence.look(at(10)));
        wait(&silence, at(10), at(30));
        assert!(silence.look(at(30)));
        // One after the other: the first has waited for all of them.
        for round in 0..100 {
            let now = at(30) + AGAIN * round;
            assert_eq!(silence.left(now), AGAIN);
            assert_eq!(silence.for_how_long(now), now - begun);
        }
    }

    #[test]
    fn an_origin_that_has_answered_or_was_left_alone_is_waited_for_anew() {
        let (silence, begun) = (Silence::default(), Instant::now());
        let at = |seconds| begun + Duration::from_secs(seconds);
        assert_eq!(silence.left(at(0)), PATIENCE);
        silence.is_over();
        assert_eq!(silence.for_how_long(at(1)), Duration::ZERO);
        assert_eq!(silence.left(at(1)), PATIENCE);
        wait(&silence, at(1), at(40));
        assert_eq!(silence.left(at(40)), AGAIN);
        // It may have been stopped twice.
        assert_eq!(silence.left(at(80)), PATIENCE);
    }

    #[test]
    fn a_pause_of_the_machine_is_no_reason_to_give_an_origin_up() {
        let (silence, begun) = (Silence::default(), Instant::now());
        let at = |seconds| begun + Duration::from_secs(seconds);
        assert_eq!(silence.left(at(0)), PATIENCE);
        // Who waits finds the time over at the first look after it, by the clock.
        assert!(!silence.look(at(50)));
        assert!(silence.left(at(50)) > PATIENCE / 2);
    }
}
