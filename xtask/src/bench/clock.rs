//! CLOCK_MONOTONIC as a number: the same clock in all processes, unlike `Instant`, which cannot be handed over. And the
//! pause before one hands over to a process that should sleep.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since some point that is the same for all processes of this machine.
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    // The monotonic clock is never negative.
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// How long the side whose turn it is waits until it hands over to one that should sleep.
const SETTLE: Duration = Duration::from_micros(50);

/// Spins until the other side, which has just handed over itself, has come back from its wake and sleeps again.
///
/// Without this, a process can be handed the next round while it still wakes the other one for the last. Then nobody sleeps
/// any more, and the pair stays in that step for good.
pub(crate) fn settle() {
    let end = now() + SETTLE.as_nanos() as u64;
    while now() < end {
        std::hint::spin_loop();
    }
}
