//! `Barrier`: a number of processes wait for each other, as in `std::sync::Barrier`, and never for one that is dead.

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::time::Duration;

use shm_core::arena::Arena;
use shm_core::failure::PeerFailure;
use shm_core::object::{Object, ObjectKind};
use shm_core::rounds::{Arrived, Round, Rounds};
use shm_core::sync::Shared;

use crate::channel::CAUSE_PATIENCE;
use crate::error::{Error, ErrorKind, Result};
use crate::primitive::{make, travels};
use crate::wait::{Deadline, WaitPolicy, wait, wait_patiently};

/// Lets processes go on once `n` of them have arrived; then it starts over. Clones, also in other processes, name the
/// same barrier.
///
/// If a process dies while it has a handle to the barrier, or one of a context's processes fails, the waits of the others
/// end with `PeerFailed`, and so do later ones until [`reset`](Self::reset): what Python calls a broken barrier. Python
/// itself does not notice a death. Unlike there, a wait that times out breaks nothing: who gives up has not arrived.
///
/// ```
/// let barrier = mp_queue::Barrier::new(2)?;
/// std::thread::scope(|scope| {
///     let other = scope.spawn(|| barrier.wait());
///     let last = barrier.wait()?;
///     assert_ne!(last, other.join().expect("no panic")?, "one of two is the last");
///     Ok::<(), mp_queue::Error>(())
/// })?;
/// # Ok::<(), mp_queue::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Barrier {
    object: Object,
}

travels!(Barrier, ObjectKind::Barrier, 0, 2);

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
        let object = make(arena, ObjectKind::Barrier, 0, 2)?;
        object.word(1).store(n.into(), Ordering::Release);
        Ok(Self { object })
    }

    /// Waits until all have arrived. Answers `true` in the one that arrived last.
    ///
    /// # Errors
    /// `PeerFailed` when a process that had a handle to this barrier died, or one of the context that it was handed to
    /// failed; `Reset`.
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

    /// For how many the barrier is.
    #[must_use]
    pub fn parties(&self) -> u32 {
        // It is written once and fits; a peer that wrote over it gets a barrier that opens early.
        (self.object.word(1).load(Ordering::Acquire) as u32).max(1)
    }

    /// How many wait at this moment.
    #[must_use]
    pub fn waiting(&self) -> u32 {
        self.rounds().waiting()
    }

    /// Whether a process that had a handle to it died, or one of its context failed.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.failure().is_some()
    }

    /// Makes a broken barrier a new one, with nobody at it. Those who wait now are told `Reset`.
    ///
    /// There is nothing here that could fail, so it answers nothing: the barrier is in memory that the handle keeps. A death
    /// that comes after it breaks the barrier again, of which the next [`wait`](Self::wait) tells.
    pub fn reset(&self) {
        self.object.begin_anew();
        self.rounds().reset();
        let event = self.object.event(0);
        event.notify_all(|count| event.wake(count));
    }

    fn rounds(&self) -> Rounds<'_, Shared> {
        Rounds(self.object.word(0))
    }

    fn failure(&self) -> Option<PeerFailure> {
        self.object.failure().or_else(|| {
            let pid = self.object.bereaved()?;
            Some(PeerFailure {
                rank: PeerFailure::UNKNOWN_RANK,
                pid,
                name: String::new(),
                cause: "died while it had a handle to the barrier; `reset()` it for those that are left".into(),
            })
        })
    }

    fn broken(&self) -> Option<Error> {
        let mut failure = self.failure()?;
        if self.object.supervisor().is_some() && self.object.failure().is_none() {
            // Its supervisor is about to say why.
            let said = |_| self.object.failure().map(Ok::<_, Error>);
            let cause = wait_patiently(&self.object, 0, CAUSE_PATIENCE, said);
            failure = match cause {
                Some(Ok(cause)) => cause,
                // It may have said meanwhile that it was no death.
                _ => self.failure()?,
            };
        }
        Some(Error::peer_failed(failure, "waiting at a barrier"))
    }

    /// [`wait`](Self::wait) as a future, which knows no runtime and takes no thread. It arrives when it is first polled.
    /// Cancel safe in this sense: dropped before it is ready, it has not arrived, as after a timeout; unless all had
    /// arrived by then.
    ///
    /// # Errors
    /// As [`wait`](Self::wait), without `Deadlock`.
    #[cfg(feature = "tokio")]
    pub async fn wait_async(&self) -> Result<bool> {
        use shm_core::crowd::Grant;
        let mut arrival = Arrival {
            barrier: self,
            round: None,
            noticed: crate::later::Since::default(),
        };
        let look = move |_| arrival.look();
        let doing = "waiting at a barrier";
        crate::later::until(&self.object, 0, Grant::Everybody, doing, look).await
    }

    /// Arrives; `None` in the last one.
    fn arrive(&self) -> Option<u32> {
        match self.rounds().arrive(self.parties()) {
            Arrived::Last => {
                let event = self.object.event(0);
                event.notify_all(|count| event.wake(count));
                None
            }
            Arrived::In(round) => {
                shm_core::failpoint!("barrier.arrived");
                Some(round)
            }
        }
    }

    /// What became of the round that one has arrived in.
    fn passed(&self, stand: Round) -> Option<Result<bool>> {
        match stand {
            Round::Open => None,
            Round::Over => Some(Ok(false)),
            Round::Reset => Some(Err(Error::new(
                ErrorKind::Reset,
                format!("waiting at a barrier: {} was reset", self.object),
            ))),
        }
    }

    fn wait_until(&self, deadline: Deadline) -> Result<bool> {
        self.object
            .arena()
            .check_not_forked("waiting at a barrier")?;
        if let Some(error) = self.broken() {
            return Err(error);
        }
        let rounds = self.rounds();
        let n = self.parties();
        let Some(round) = self.arrive() else {
            return Ok(true);
        };
        let passed = |stand| self.passed(stand);
        let attempt = |slow: bool| {
            let stand = passed(rounds.stand(round));
            stand.or_else(|| slow.then(|| self.broken()).flatten().map(Err))
        };
        let answer = wait(
            &self.object,
            0,
            WaitPolicy::Adaptive,
            deadline,
            &Cell::new(None),
            || true,
            attempt,
        )
        .unwrap_or_else(|| {
            let waiting = self.waiting();
            Err(Error::new(
                ErrorKind::TimedOut,
                format!(
                    "waiting at a barrier: {waiting} of {n} had arrived when the time was over"
                ),
            ))
        });
        match answer {
            // Who gives up takes itself out again, unless all have arrived in this very moment.
            Err(error) if *error.kind() != ErrorKind::Reset => {
                passed(rounds.withdraw(round)).unwrap_or(Err(error))
            }
            answer => answer,
        }
    }
}

/// A task's place at a barrier; dropped, it has not arrived.
#[cfg(feature = "tokio")]
struct Arrival<'a> {
    barrier: &'a Barrier,
    round: Option<u32>,
    /// Since when it has been known that somebody failed.
    noticed: crate::later::Since,
}

#[cfg(feature = "tokio")]
impl Arrival<'_> {
    fn look(&mut self) -> crate::later::Look<Result<bool>> {
        use crate::later::Look;
        let barrier = self.barrier;
        let stand = |round| barrier.passed(barrier.rounds().stand(round));
        if let Some(answer) = self.round.and_then(stand) {
            self.round = None;
            return Look::Ready(answer);
        }
        if let Some(failure) = barrier.failure() {
            let explained = barrier.object.failure().is_some();
            if !explained && barrier.object.supervisor().is_some() && !self.noticed.is_over() {
                // Its supervisor is about to say why.
                return Look::Soon;
            }
            let error = Error::peer_failed(failure, "waiting at a barrier");
            return Look::Ready(self.withdraw().unwrap_or(Err(error)));
        }
        if self.round.is_none() {
            let Some(round) = barrier.arrive() else {
                return Look::Ready(Ok(true));
            };
            self.round = Some(round);
        }
        Look::NotYet(None)
    }

    /// Takes it out again; unless all have arrived in this very moment.
    fn withdraw(&mut self) -> Option<Result<bool>> {
        let barrier = self.barrier;
        let round = self.round.take()?;
        barrier.passed(barrier.rounds().withdraw(round))
    }
}

#[cfg(feature = "tokio")]
impl Drop for Arrival<'_> {
    fn drop(&mut self) {
        if !self.barrier.object.arena().is_forked() {
            let _ = self.withdraw();
        }
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
