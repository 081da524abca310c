//! [`Task`]: what was submitted, and will have an outcome.

use std::fmt;
use std::marker::PhantomData;
#[cfg(feature = "tokio")]
use std::pin::Pin;
use std::sync::Arc;
#[cfg(feature = "tokio")]
use std::task::{Context, Poll};
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::crew::{Crew, closed};
use super::sink::Sink;
use crate::error::Result;
use crate::wait::Deadline;

/// A task that was [submitted](super::Pool::submit). Dropping it leaves the task alone: it runs, and nobody hears of it.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # spawn::init();
/// # let pool = mp_queue::Pool::new(2)?;
/// let task = pool.submit(|x: u64| Ok::<_, String>(x + 1), 41)?;
/// // … something else meanwhile …
/// assert_eq!(task.wait()?, 42);
/// # Ok(())
/// # }
/// ```
#[must_use = "a task's outcome is seen by waiting for it; to run it and ignore the outcome, bind it to `_`"]
pub struct Task<V> {
    pub(super) crew: Arc<Crew>,
    pub(super) sink: Arc<Sink>,
    pub(super) number: u64,
    pub(super) given: bool,
    /// Whether it is counted among those that futures wait for.
    #[cfg(feature = "tokio")]
    pub(super) awaited: bool,
    pub(super) value: PhantomData<fn() -> V>,
}

impl<V> Task<V> {
    /// Its number in its pool, which errors name.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Whether the outcome is there, so that waiting for it takes no time.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.given || matches!(self.arrives(Deadline::Now), Some(Ok(())))
    }

    /// Stops it: a task that was not begun never is, and one that runs is ended by killing its worker, which is replaced.
    /// Other tasks, also those that this worker had been given already, are not touched. The outcome is then
    /// [`TaskCancelled`](crate::ErrorKind::TaskCancelled).
    ///
    /// `false` when it is done already, or runs in a [thread](super::Builder::threads), which cannot be killed.
    pub fn cancel(&self) -> bool {
        self.crew.cancel(self.number)
    }

    fn arrives(&self, deadline: Deadline) -> Option<Result<()>> {
        let arrived = || (!self.sink.is_empty()).then_some(());
        self.crew
            .wait_for(deadline, Some(&self.sink), |_| arrived())
    }
}

impl<V: DeserializeOwned> Task<V> {
    /// Waits for the outcome.
    ///
    /// # Errors
    /// `TaskRaised`, `TaskPanicked`, `TaskLost` when the worker ended, `TaskCancelled`, `CrashLoop`; `Closed` when the
    /// pool is gone; `Deadlock` when all that could end the wait wait themselves; what decoding the result can answer.
    pub fn wait(mut self) -> Result<V> {
        self.take(Deadline::Never).unwrap_or_else(|| Err(closed()))
    }

    /// Waits so long for the outcome; `None` if it is not there then. It is given once.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Option<Result<V>> {
        self.take(Deadline::after(timeout))
    }

    /// The outcome if it is there now. It is given once.
    pub fn try_wait(&mut self) -> Option<Result<V>> {
        self.take(Deadline::Now)
    }

    fn take(&mut self, deadline: Deadline) -> Option<Result<V>> {
        if self.given {
            return None;
        }
        if let Err(error) = self.arrives(deadline)? {
            return Some(Err(error));
        }
        let arrived = self.sink.pop()?;
        self.given = true;
        Some(arrived.value())
    }
}

/// The outcome, as [`wait`](Task::wait) gives it, in any runtime. No thread waits: the pool's keeper takes the replies while
/// no thread of the program does.
///
/// Cancel safe: `(&mut task).await`, dropped before it is ready, leaves the task as it is, to be waited for again. Dropping
/// the task itself lets it run and ignores its outcome; see [`cancel`](Task::cancel).
#[cfg(feature = "tokio")]
impl<V: DeserializeOwned> Future for Task<V> {
    type Output = Result<V>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if this.given {
            return Poll::Ready(Err(closed()));
        }
        let waker = Some((cx.waker().clone(), Arc::clone(&this.crew.told)));
        let (arrived, spent) = {
            let mut state = this.crew.lock();
            this.crew.turn(&mut state);
            if this.sink.is_empty() {
                let spent = this.sink.set_waker(waker);
                state.awaited += usize::from(!this.awaited);
                this.awaited = true;
                this.crew.tell_the_keeper(&state);
                (None, spent)
            } else {
                (this.sink.pop(), None)
            }
        };
        drop(spent);
        let Some(arrived) = arrived else {
            return Poll::Pending;
        };
        this.given = true;
        this.stop_awaiting();
        Poll::Ready(arrived.value())
    }
}

#[cfg(feature = "tokio")]
impl<V> Task<V> {
    fn stop_awaiting(&mut self) {
        if std::mem::take(&mut self.awaited) {
            let spent = self.sink.set_waker(None);
            self.crew.lock().awaited -= 1;
            drop(spent);
        }
    }
}

#[cfg(feature = "tokio")]
impl<V> Drop for Task<V> {
    fn drop(&mut self) {
        self.stop_awaiting();
    }
}

impl<V> fmt::Debug for Task<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task")
            .field("number", &self.number)
            .field("done", &(self.given || !self.sink.is_empty()))
            .finish()
    }
}
