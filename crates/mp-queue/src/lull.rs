//! The moment before a receiver looks for a message that is probably not there yet.
//!
//! To look at a cell takes its line from the producer, who then has to fetch it again before it can write: a hand-over
//! waits for two transfers of the line instead of one. So a receiver that had to wait for its last messages does not look
//! for the next one at once. The producer asks for the line when it has published the message before, and if nobody looks
//! meanwhile it still has it when it writes.
//!
//! Whoever has a message waiting would lose that moment each time, so it is left out now and then, and left out for good
//! while messages turn out to be there.

use std::hint::spin_loop;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use shm_core::clock::now_ns;
use shm_core::object::Object;

use crate::wait::{WaitPolicy, spin_for};

/// How long the moment is: less than an answer takes that comes at once.
const MOMENT_NS: u64 = 75;
/// After how many messages it is left out once.
const TRUST: u32 = 16;

/// How many pauses of the processor that is; one takes 3 to 50 ns, depending on its make.
fn pauses() -> u64 {
    static PAUSES: OnceLock<u64> = OnceLock::new();
    const TIMED: u64 = 64;
    *PAUSES.get_or_init(|| {
        // The shortest of a few, since something may come between two looks at the clock.
        let timed = (0..4).map(|_| {
            let start = now_ns();
            (0..TIMED).for_each(|_| spin_loop());
            now_ns() - start
        });
        let shortest = timed.min().unwrap_or(0).max(1);
        ((MOMENT_NS * TIMED + shortest / 2) / shortest).clamp(1, 32)
    })
}

/// How many more of the next messages are worth the moment.
#[derive(Debug, Default)]
pub(crate) struct Lull(AtomicU32);

/// Each end learns for itself.
impl Clone for Lull {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Lull {
    /// Sits the moment out, if the next message is probably not there yet.
    #[inline]
    pub(crate) fn sit_out(&self, object: &Object, policy: WaitPolicy) {
        // Relaxed, here and below: threads that share the end at worst guess for each other.
        let left = self.0.load(Ordering::Relaxed);
        if left == 0 {
            return;
        }
        self.0.store(left - 1, Ordering::Relaxed);
        if spin_for(object, policy) > 0 {
            (0..pauses()).for_each(|_| spin_loop());
        }
    }

    /// There was nothing at the first look.
    #[inline]
    pub(crate) fn came(&self) {
        self.0.store(TRUST, Ordering::Relaxed);
    }
}
