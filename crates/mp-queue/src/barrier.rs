//! `Barrier`: a number of processes wait for each other, as in `std::sync::Barrier`.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use shm_core::arena::Arena;
use shm_core::message::{refuse, refuse_because};
use shm_core::object::{Array, Object, ObjectKind};

use crate::error::{Error, ErrorKind, Result};
use crate::wait::{Deadline, WaitPolicy, wait};

const ARRIVED: u64 = 0xffff_ffff;

/// Lets processes go on once `n` of them have arrived; then it starts over. Clones, also in other processes, name the
/// same barrier. If one of a context's processes fails, the others' waits end with `PeerFailed`.
#[derive(Clone, Debug)]
pub struct Barrier {
    object: Object,
}

impl Barrier {
    /// Makes a barrier for `n` processes (or threads) in the current arena.
    ///
    /// # Errors
    /// What making an arena or an allocation in it can answer.
    #[track_caller]
    pub fn new(n: u32) -> Result<Self> {
        Self::new_in(&Arena::current()?, n)
    }

    /// As [`new`](Self::new), in a given arena.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    #[track_caller]
    pub fn new_in(arena: &Arena, n: u32) -> Result<Self> {
        if n == 0 {
            return Err(Error::new(
                ErrorKind::Arena(shm_core::ErrorKind::Shape),
                "a barrier for 0 processes was asked for; nobody could ever arrive, so ask for at least 1",
            ));
        }
        let object = Object::create(arena, ObjectKind::Barrier, [Array::None, Array::None], 2)?;
        object.word(1).store(n.into(), Ordering::Release);
        Ok(Self { object })
    }

    /// Waits until all have arrived. Answers `true` in the one that arrived last.
    ///
    /// # Errors
    /// `PeerFailed` when a process of the context that this barrier was handed to failed.
    pub fn wait(&self) -> Result<bool> {
        self.wait_until(Deadline::Never)
    }

    /// Waits so long until all have arrived. Whoever gives up, also because a peer failed, has not arrived.
    ///
    /// # Errors
    /// `TimedOut`, and as [`wait`](Self::wait).
    pub fn wait_timeout(&self, timeout: Duration) -> Result<bool> {
        self.wait_until(Deadline::after(timeout))
    }

    fn wait_until(&self, deadline: Deadline) -> Result<bool> {
        // One word: {round: 32 | arrived: 32}, so that arriving and starting the next round are one step.
        let word = self.object.word(0);
        let n = self.object.word(1).load(Ordering::Acquire).max(1);
        let mut seen = word.load(Ordering::SeqCst);
        let round = loop {
            let (round, arrived) = (seen >> 32, seen & ARRIVED);
            let last = arrived + 1 >= n;
            let next = if last {
                ((round + 1) & ARRIVED) << 32
            } else {
                seen + 1
            };
            match word.compare_exchange(seen, next, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) if last => {
                    let event = self.object.event(0);
                    event.notify_all(|count| event.wake(count));
                    return Ok(true);
                }
                Ok(_) => break round,
                Err(other) => seen = other,
            }
        };
        let attempt = |slow: bool| {
            if word.load(Ordering::SeqCst) >> 32 != round {
                return Some(Ok(false));
            }
            let failure = slow.then(|| self.object.failure()).flatten()?;
            Some(Err(Error::peer_failed(failure, "waiting at a barrier")))
        };
        let answer = wait(
            &self.object,
            0,
            WaitPolicy::Adaptive,
            deadline,
            || true,
            attempt,
        )
        .unwrap_or_else(|| {
            Err(Error::new(
                ErrorKind::TimedOut,
                format!("not all {n} arrived at the barrier before the deadline"),
            ))
        });
        // Who gives up takes itself out again, unless all have arrived in this very moment.
        if answer.is_err() && !self.withdraw(round) {
            return Ok(false);
        }
        answer
    }

    /// Takes one arrival out of this round. `false` when the round is over.
    fn withdraw(&self, round: u64) -> bool {
        let word = self.object.word(0);
        let mut seen = word.load(Ordering::SeqCst);
        while seen >> 32 == round && seen & ARRIVED > 0 {
            match word.compare_exchange(seen, seen - 1, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return true,
                Err(other) => seen = other,
            }
        }
        seen >> 32 == round
    }
}

impl Serialize for Barrier {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.object.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Barrier {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let object = Object::deserialize(deserializer)?;
        object.expect(ObjectKind::Barrier).map_err(refuse)?;
        if object.word_count() < 2 {
            return Err(refuse_because("a barrier arrived without its words"));
        }
        Ok(Self { object })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_gives_up_has_not_arrived() {
        let barrier = Barrier::new(2).unwrap();
        for _ in 0..3 {
            let error = barrier.wait_timeout(Duration::from_millis(1)).unwrap_err();
            assert_eq!(error.kind(), &ErrorKind::TimedOut);
        }
        std::thread::scope(|scope| {
            let other = scope.spawn(|| barrier.wait().unwrap());
            assert!(
                barrier.wait().unwrap() != other.join().unwrap(),
                "one of two is the last"
            );
        });
        assert!(Barrier::new(0).is_err());
    }
}
