//! [`spawn_one`]: one function in one process, without ranks.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::context::{ProcessState, SpawnContext, Stopper};
use crate::error::{Error, ErrorKind, Result, Worker};
use crate::group::Group;
use crate::outcome::Outcome;
use crate::process::{Process, short_name};
use crate::run::Options;

/// Runs `f(args)` in one new process.
///
/// ```no_run
/// fn length(text: String) -> Result<usize, std::io::Error> {
///     Ok(text.len())
/// }
///
/// fn main() -> spawn::Result<()> {
///     spawn::init();
///     let mut process = spawn::spawn_one("measure", length, "four".to_string())?;
///     assert_eq!(*process.join()?, 4);
///     Ok(())
/// }
/// ```
///
/// With options (grace, deadline, start method, a failure kept apart): [`Builder::spawn_one`](crate::Builder::spawn_one).
///
/// # Errors
///
/// As for [`spawn`](crate::spawn); also where the process is to be another executable, whose functions have ranks.
pub fn spawn_one<F, A, R>(
    process: impl Into<Process>,
    f: F,
    args: A,
) -> Result<OneProcess<R::Value>>
where
    F: Fn(A) -> R + Copy + Send + 'static,
    A: Serialize + DeserializeOwned,
    R: Outcome,
{
    OneProcess::start(process.into(), Options::default(), f, args)
}

/// One process that was started by [`spawn_one`] or [`Builder::spawn_one`](crate::Builder::spawn_one). Dropping it stops the process.
#[must_use = "dropping it stops the process; keep it and call `join`"]
pub struct OneProcess<R> {
    context: SpawnContext<R>,
}

impl<R: 'static> OneProcess<R> {
    pub(crate) fn start<F, A, O>(
        mut process: Process,
        options: Options,
        f: F,
        args: A,
    ) -> Result<OneProcess<R>>
    where
        F: Fn(A) -> O + Copy + Send + 'static,
        A: Serialize + DeserializeOwned,
        O: Outcome<Value = R>,
    {
        if process.executable.is_some() {
            return Err(Error::new(
                ErrorKind::Usage,
                "another executable knows functions with a rank only: use `Group` or `builder` with `executable`",
            ));
        }
        process
            .name
            .get_or_insert_with(|| short_name(std::any::type_name::<F>()));
        let mut group = Group::with(options);
        group.add(process, move |_rank: usize, args: A| f(args), args)?;
        Ok(OneProcess {
            context: group.start()?,
        })
    }
}

impl<R> OneProcess<R> {
    /// Waits until the process has ended, and gives what its function returned. See [`SpawnContext::join`].
    ///
    /// # Errors
    ///
    /// How it failed.
    pub fn join(&mut self) -> Result<&R> {
        first(self.context.join()?)
    }

    /// Like [`join`](OneProcess::join), but waits no longer than `timeout`: `None` if it still runs then.
    ///
    /// # Errors
    ///
    /// How it failed.
    pub fn join_timeout(&mut self, timeout: Duration) -> Result<Option<&R>> {
        self.context.join_timeout(timeout)?.map(first).transpose()
    }

    /// Waits as [`join`](OneProcess::join) does, and gives the value away.
    ///
    /// # Errors
    ///
    /// How it failed.
    pub fn into_result(self) -> Result<R> {
        let mut results = self.context.into_results()?;
        results.pop().ok_or_else(nothing)
    }

    /// Waits as [`join`](OneProcess::join) does, in an async function. A wait that is dropped changes nothing.
    ///
    /// # Errors
    ///
    /// How it failed.
    pub async fn wait(&mut self) -> Result<&R> {
        first(self.context.join_async().await?)
    }

    /// The process and where it is in its life.
    pub fn state(&self) -> Option<ProcessState> {
        self.context.processes().pop()
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.state().map_or(0, |state| state.worker.pid)
    }

    /// Asks it to end; see [`SpawnContext::terminate`].
    pub fn terminate(&self) {
        self.context.terminate();
    }

    /// Ends it now; see [`SpawnContext::kill`].
    pub fn kill(&self) {
        self.context.kill();
    }

    /// A handle that stops it from elsewhere.
    pub fn stopper(&self) -> Stopper {
        self.context.stopper()
    }

    /// Lets it live on without this process; see [`SpawnContext::detach`].
    ///
    /// # Errors
    ///
    /// As for [`SpawnContext::detach`].
    pub fn detach(self) -> Result<Worker> {
        self.context.detach()?.pop().ok_or_else(nothing)
    }
}

fn first<R>(results: &[R]) -> Result<&R> {
    results.first().ok_or_else(nothing)
}

/// A context of one process that succeeded has one result, so nobody sees this.
fn nothing() -> Error {
    Error::new(ErrorKind::Usage, "there is no process in this context")
}

impl<R> fmt::Debug for OneProcess<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.context.fmt(f)
    }
}
