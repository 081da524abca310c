//! How long a process looks for a free slot before it sleeps.
//!
//! Who gives a slot back to a sleeper wakes it, which costs some 20 µs where the sleeper's core sleeps, too, and is a
//! virtual machine's. Near saturation that would be the slowest step, for nearly every item. So whoever waits for a slot
//! gives its core away again and again at first, and looks in between.
//!
//! But no longer than twice as long as it worked before: a process that hardly works, and looks all the time, keeps a core
//! busy for nothing. The system then takes that core for one that is needed, and leaves two steps that do work on another.

use std::sync::Arc;

use mp_queue::WaitPolicy;
use shm_core::clock::now_ns;

use crate::pool::{OutputSlot, Pool};

/// How long at most. What an item takes where a wake for each would matter.
const MOST_NS: u64 = 200_000;
/// How many times as long as the work before.
const PER_WORK: u64 = 2;

/// See the module.
#[derive(Debug)]
pub(crate) struct Looking {
    /// When the process last had anything to do again.
    works_since: u64,
    is_off: bool,
}

impl Looking {
    pub(crate) fn new(wait: WaitPolicy) -> Self {
        Self {
            works_since: 0,
            is_off: wait == WaitPolicy::Park,
        }
    }

    /// The process works from now on.
    #[inline]
    pub(crate) fn works(&mut self, now: u64) {
        self.works_since = now;
    }

    /// How long it is worth it now.
    fn patience(&self, now: u64) -> u64 {
        if self.is_off {
            return 0;
        }
        let worked = now.saturating_sub(self.works_since);
        worked.saturating_mul(PER_WORK).min(MOST_NS)
    }

    /// A slot that becomes free while it is worth it to look.
    pub(crate) fn slot(&self, pool: &Arc<Pool>) -> Option<OutputSlot> {
        // Cleared before the look: what is freed afterwards sets it again.
        pool.freed.clear();
        pool.take().or_else(|| {
            self.look(|| {
                if !pool.freed.is_set() {
                    return None;
                }
                pool.freed.clear();
                pool.take()
            })
        })
    }

    /// Looks until there is something, for as long as it is worth it.
    fn look<R>(&self, mut glance: impl FnMut() -> Option<R>) -> Option<R> {
        let began = now_ns();
        let patience = self.patience(began);
        if patience == 0 {
            return None;
        }
        // Once in any case: who was kept from its core for so long may find one by now.
        loop {
            std::thread::yield_now();
            let seen = glance();
            if seen.is_some() || now_ns() >= began + patience {
                return seen;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_looks_for_longer_than_twice_its_work_or_than_a_wake_matters() {
        let mut looking = Looking::new(WaitPolicy::Adaptive);
        looking.works(1_000_000);
        assert_eq!(looking.patience(1_000_000), 0);
        assert_eq!(looking.patience(1_030_000), 60_000);
        assert_eq!(looking.patience(9_000_000), MOST_NS);
        // A clock that another core is behind with.
        assert_eq!(looking.patience(999_999), 0);
    }

    #[test]
    fn who_is_to_sleep_at_once_does_not_look() {
        let looking = Looking::new(WaitPolicy::Park);
        let mut looks = 0;
        let seen: Option<()> = looking.look(|| {
            looks += 1;
            None
        });
        assert_eq!((seen, looks), (None, 0));
    }

    #[test]
    fn a_look_that_finds_something_is_the_last() {
        // It has worked since the clock began.
        let looking = Looking::new(WaitPolicy::Adaptive);
        let mut looks = 0;
        let seen = looking.look(|| {
            looks += 1;
            Some(looks)
        });
        assert_eq!(seen, Some(1));
        assert!(looking.look(|| None::<()>).is_none(), "it ends by itself");
    }
}
