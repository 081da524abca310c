//! Waiting for a message where somebody else watches who waits, and may end the wait.

use std::sync::atomic::Ordering;

use shm_core::message::Incoming;

use super::Receiver;
use crate::channel::{Channel, Got};
use crate::error::Result;
use crate::wait::Deadline;

impl<T> Receiver<T> {
    /// As [`take_into`](Self::take_into), for who says what it does while it waits: `stop` is asked before each look for a
    /// message, and ends the wait when it says so (`false`); `in_vain` is called after each that found none.
    #[doc(hidden)]
    pub fn take_unless(
        &self,
        deadline: Deadline,
        message: &mut Incoming,
        mut stop: impl FnMut() -> bool,
        mut in_vain: impl FnMut(),
    ) -> Result<bool> {
        let mut seen = self.seen_orphans.load(Ordering::Relaxed);
        let mut stopped = false;
        let taken = self.channel.get_with(deadline, || {
            stopped = stop();
            if stopped {
                // Only to get out of the wait: nobody is told.
                let kind = shm_core::ErrorKind::Unsupported;
                return Err(shm_core::Error::new(kind, "the wait was ended"));
            }
            let found = self.end.try_get_into(&mut seen, message)?.into();
            if matches!(found, Got::NotNow(_)) {
                in_vain();
            }
            Ok(found)
        });
        self.seen_orphans.store(seen, Ordering::Relaxed);
        if stopped {
            Ok(false)
        } else {
            taken.map(|()| true)
        }
    }

    /// The queue without an end of it, to look at and to nudge who waits: holding it keeps nobody waiting.
    #[doc(hidden)]
    #[must_use]
    pub fn channel(&self) -> &Channel {
        &self.channel
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use shm_core::message::Incoming;

    use crate::{Deadline, Queue};

    #[test]
    fn a_wait_ends_when_it_is_told_to_and_who_waits_is_nudged() {
        let arena = shm_core::Arena::builder()
            .capacity(64 << 20)
            .create()
            .unwrap();
        let queue = Queue::<u64>::bounded_in(&arena, 3).unwrap();
        let channel = queue.receiver().channel().clone();
        assert!(channel.holds_nothing());
        let (stop, looks) = (AtomicBool::new(false), AtomicU64::new(0));
        let wait = || {
            let mut message = Incoming::default();
            let taken = queue.receiver().take_unless(
                Deadline::Never,
                &mut message,
                || stop.load(Ordering::Relaxed),
                || {
                    looks.fetch_add(1, Ordering::Relaxed);
                },
            );
            taken.unwrap()
        };
        std::thread::scope(|scope| {
            let waiting = scope.spawn(wait);
            while looks.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            stop.store(true, Ordering::Relaxed);
            channel.nudge();
            assert!(!waiting.join().unwrap());
        });
        stop.store(false, Ordering::Relaxed);
        queue.put(7).unwrap();
        assert!(!channel.holds_nothing());
        assert!(wait());
        assert!(channel.holds_nothing());
    }
}
