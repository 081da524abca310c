//! Where workers come from: processes that `spawn` starts, or threads of this process.
//!
//! The pool knows only what both have in common: a worker is started with its ends, can be killed or not, and says once
//! how it ended.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::JoinHandle;

use spawn::SpawnContext;

use super::link::Ends;
use super::worker::serve;
use crate::error::{Error, ErrorKind, Result};

/// How a worker ended.
pub(super) type End = std::result::Result<(), Cause>;

/// Why a worker is gone.
#[derive(Clone, Debug)]
pub(super) struct Cause {
    /// As a sentence.
    pub(super) text: String,
    /// What `spawn` says about its process.
    pub(super) process: Option<spawn::Error>,
}

impl Cause {
    pub(super) fn of(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            process: None,
        }
    }
}

/// A worker's state, or why there is none.
pub(super) type Made<S> = std::result::Result<S, Box<dyn std::error::Error + Send + Sync>>;

/// Is called once, when the worker has ended. It must not block.
pub(super) type Told = Box<dyn FnOnce(End) + Send>;

/// Starts workers.
pub(super) trait Launcher: Send + Sync {
    /// Starts one.
    fn launch(&self, name: String, ends: Ends, told: Told) -> Result<Box<dyn Running>>;

    /// Whether a worker can be stopped in the middle of a task.
    fn can_kill(&self) -> bool;
}

/// A worker that was started. Dropping it waits until it has ended, unless it was left alone.
pub(super) trait Running: Send {
    /// Its process id.
    fn pid(&self) -> u32;

    /// Ends it now, without waiting for that. `false` if it cannot be killed.
    fn kill(&self) -> bool;

    /// What cannot be killed is not waited for: it is in the middle of a task.
    fn leave_alone(&mut self);
}

/// Workers as processes of their own.
pub(super) struct Processes<I>(pub(super) I);

impl<I, S> Launcher for Processes<I>
where
    I: Fn(usize) -> Made<S> + Copy + Send + Sync + 'static,
    S: 'static,
{
    fn launch(&self, name: String, ends: Ends, told: Told) -> Result<Box<dyn Running>> {
        let init = self.0;
        // Captures what has no size itself, so another process can have it.
        let main = move |_rank: usize, ends: Ends| serve(ends, init);
        let context = spawn::builder()
            .name(name)
            .spawn(main, ends, 1)
            .map_err(super::start_failed)?;
        context.on_end(move |end| {
            told(match end {
                Ok(()) => Ok(()),
                Err(error) => Err(Cause {
                    text: error.to_string(),
                    process: Some(error.clone()),
                }),
            });
        });
        Ok(Box::new(context))
    }

    fn can_kill(&self) -> bool {
        true
    }
}

impl Running for SpawnContext<()> {
    fn pid(&self) -> u32 {
        self.pids().first().copied().unwrap_or(0)
    }

    fn kill(&self) -> bool {
        SpawnContext::kill(self);
        true
    }

    fn leave_alone(&mut self) {}
}

/// Workers as threads of this process.
pub(super) struct Threads<I>(pub(super) I);

struct Thread(Option<JoinHandle<()>>);

thread_local! {
    static IS_WORKER: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is a worker of some pool of this process.
pub(super) fn is_worker() -> bool {
    IS_WORKER.get()
}

impl<I, S> Launcher for Threads<I>
where
    I: Fn(usize) -> Made<S> + Copy + Send + Sync + 'static,
    S: 'static,
{
    fn launch(&self, name: String, ends: Ends, told: Told) -> Result<Box<dyn Running>> {
        let init = self.0;
        let thread = std::thread::Builder::new().name(name.clone());
        let run = move || {
            IS_WORKER.set(true);
            // What the worker shares with others lies in the arena, which survives worse than a panic.
            let ended = catch_unwind(AssertUnwindSafe(|| serve(ends, init)));
            told(match ended {
                Ok(Ok(())) => Ok(()),
                Ok(Err(error)) => Err(Cause::of(error.to_string())),
                Err(payload) => {
                    let said = payload
                        .downcast_ref::<&str>()
                        .map(ToString::to_string)
                        .or_else(|| payload.downcast_ref::<String>().cloned());
                    // A payload may panic when it is dropped.
                    std::mem::forget(payload);
                    Err(Cause::of(format!(
                        "thread \"{name}\" panicked: {}",
                        said.unwrap_or_default()
                    )))
                }
            });
        };
        match thread.spawn(run) {
            Ok(thread) => Ok(Box::new(Thread(Some(thread)))),
            Err(error) => Err(Error::new(
                ErrorKind::NoWorker,
                format!("a thread for a worker could not be started: {error}"),
            )),
        }
    }

    fn can_kill(&self) -> bool {
        false
    }
}

impl Running for Thread {
    fn pid(&self) -> u32 {
        std::process::id()
    }

    fn kill(&self) -> bool {
        false
    }

    fn leave_alone(&mut self) {
        self.0 = None;
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        // Its lane is closed, or it has ended already. How it ended was told.
        if let Some(thread) = self.0.take() {
            let _ = thread.join();
        }
    }
}
