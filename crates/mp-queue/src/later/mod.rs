//! Waiting as a future: any number of waits without a thread for each, in any runtime.
//!
//! A wait that has to sleep joins the [`Crowd`](shm_core::crowd::Crowd) of its event, and one thread of this process,
//! the [`ear`], sleeps on the events of all crowds. Nothing here knows a runtime: a future is woken by its waker, whoever
//! made that.
//!
//! Whatever a future gets, it gets in the very poll that answers `Ready`, and it keeps nothing that others wait for while
//! it is pending. So dropping one at any time loses nothing and hurts nobody: a wake that it was given and did not use
//! goes to the next.

use std::cell::Cell;
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use shm_core::cells::Owner;
use shm_core::crowd::Grant;
use shm_core::object::Object;
use shm_core::patience::Patience;

use crate::channel::{CAUSE_PATIENCE, DEATH_PATIENCE};
use crate::error::{Error, Result};
use crate::wait::LongWait;

mod ear;

/// Answers in a row that a thread gets without a pause; then other futures of the thread get their turn.
const AT_ONCE: u32 = 64;

thread_local! {
    static ANSWERED: Cell<u32> = const { Cell::new(0) };
}

/// What a look at the state of things came to.
pub(crate) enum Look<R> {
    /// The wait is over.
    Ready(R),
    /// Wait for a notification; who has what is waited for, if somebody has.
    NotYet(Option<Owner>),
    /// The same, but look again soon: what is waited for comes without a notification, or not at all.
    Soon,
}

impl<R> From<Option<R>> for Look<R> {
    fn from(answer: Option<R>) -> Self {
        answer.map_or(Self::NotYet(None), Self::Ready)
    }
}

/// Repeats `look` until it is ready, each time event `event` of `object` is notified. It is told whether it may take looks
/// that are too dear for the first one.
pub(crate) async fn until<R>(
    object: &Object,
    event: u64,
    grant: Grant,
    doing: &str,
    mut look: impl FnMut(bool) -> Look<Result<R>>,
) -> Result<R> {
    object.arena().check_not_forked(doing)?;
    let mut waiter = Waiter {
        object,
        event,
        grant,
        place: None,
        long: None,
    };
    poll_fn(|cx| waiter.poll(cx, &mut look)).await
}

/// A wait that is going on.
struct Waiter<'a> {
    object: &'a Object,
    event: u64,
    grant: Grant,
    /// In the crowd; `None` before the first look was in vain.
    place: Option<u64>,
    long: Option<LongWait<'a>>,
}

impl Waiter<'_> {
    fn poll<R>(
        &mut self,
        cx: &mut Context<'_>,
        look: &mut impl FnMut(bool) -> Look<Result<R>>,
    ) -> Poll<Result<R>> {
        if self.place.is_none() {
            if ANSWERED.get() >= AT_ONCE {
                ANSWERED.set(0);
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if let Look::Ready(answer) = look(false) {
                ANSWERED.set(ANSWERED.get() + 1);
                return Poll::Ready(answer);
            }
            self.object.arena().watch();
        }
        // Once more after joining: whoever changed the state before did not see us, but we see the change.
        self.join(cx.waker())?;
        match look(true) {
            Look::Ready(answer) => {
                ANSWERED.set(ANSWERED.get() + 1);
                self.leave();
                return Poll::Ready(answer);
            }
            Look::NotYet(holder) => {
                let object = self.object;
                let long = self.long.get_or_insert_with(|| LongWait::new(object));
                long.tell(holder);
            }
            Look::Soon => ear::look_soon(self.object, self.event),
        }
        ANSWERED.set(0);
        Poll::Pending
    }

    fn join(&mut self, waker: &Waker) -> Result<()> {
        let place = ear::join(self.object, self.event, self.grant, self.place, waker)?;
        self.place = Some(place);
        Ok(())
    }

    fn leave(&mut self) {
        if let Some(place) = self.place.take() {
            ear::leave(self.object, self.event, place);
        }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            ear::give_up(self.object, self.event, place);
        }
    }
}

/// When it was first asked how long ago it was first asked: how long a supervisor has been given to say why a process is
/// gone, in time in which it had its turns.
#[derive(Debug, Default)]
pub(crate) struct Since(Option<Patience>);

impl Since {
    /// How long ago this was first asked.
    pub(crate) fn elapsed(&mut self) -> Duration {
        self.elapsed_at(Instant::now())
    }

    fn elapsed_at(&mut self, now: Instant) -> Duration {
        let usual = || Patience::new_at(CAUSE_PATIENCE, now);
        let patience = self.0.get_or_insert_with(usual);
        if patience.is_over(now) {
            patience.set_whole(CAUSE_PATIENCE + DEATH_PATIENCE);
        }
        patience.spent()
    }

    /// Whether the usual patience is over.
    pub(crate) fn is_over(&mut self) -> bool {
        self.elapsed() >= CAUSE_PATIENCE
    }
}

/// The thread that sleeps for futures could not be started.
fn no_ear(error: &std::io::Error) -> Error {
    Error::new(
        crate::error::ErrorKind::NoThread,
        format!(
            "a thread that sleeps for this process's futures could not be started: {error}; raise the limit on threads"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_of_the_machine_is_no_time_in_which_a_supervisor_could_have_spoken() {
        let mut since = Since::default();
        let mut now = Instant::now();
        assert_eq!(since.elapsed_at(now), Duration::ZERO);
        for whole in [CAUSE_PATIENCE, CAUSE_PATIENCE + DEATH_PATIENCE] {
            now += Duration::from_secs(60);
            assert!(since.elapsed_at(now) < whole);
            while since.elapsed_at(now) < whole {
                now += Duration::from_millis(20);
            }
        }
    }
}
