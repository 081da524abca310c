//! [`spawn`]: the same function in several processes, the short form of a [`Group`].

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::context::SpawnContext;
use crate::error::Result;
use crate::group::Group;
use crate::method::StartMethod;
use crate::one::OneProcess;
use crate::outcome::Outcome;
use crate::process::{Output, Process, Stdin};
use crate::run::Options;

/// Runs `f(rank, args)` in `n` new processes, with ranks from 0.
///
/// `f` is a function item (a generic instance too) or a closure that captures nothing; what it needs comes in `args`.
/// These are encoded once; tensors and queues in them travel as handles. With `n > 1` every process gets its own copy,
/// so they must hold nothing that only one process may have.
///
/// ```no_run
/// fn greet(rank: usize, name: String) -> Result<String, std::io::Error> {
///     Ok(format!("{name} from {rank}"))
/// }
///
/// fn main() -> spawn::Result<()> {
///     spawn::init();
///     let greetings = spawn::spawn(greet, "hello".to_string(), 2)?.into_results()?;
///     assert_eq!(greetings, ["hello from 0", "hello from 1"]);
///     Ok(())
/// }
/// ```
///
/// A closure that captures is refused when it is built (by `cargo build`; `cargo check` does not look that far):
///
/// ```compile_fail
/// # fn main() -> spawn::Result<()> {
/// # spawn::init();
/// let factor = 3;
/// spawn::spawn(move |_rank, x: u32| Ok::<_, String>(x * factor), 2, 1)?;
/// # Ok(())
/// # }
/// ```
///
/// So is a function pointer, which means nothing in another process:
///
/// ```compile_fail
/// # fn twice(_rank: usize, x: u32) -> Result<u32, String> { Ok(2 * x) }
/// # fn main() -> spawn::Result<()> {
/// # spawn::init();
/// let pointer: fn(usize, u32) -> Result<u32, String> = twice;
/// spawn::spawn(pointer, 2, 1)?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// When [`init`](crate::init) was not called, `n` is 0, the arguments cannot be encoded (or hold something exclusive
/// and `n > 1`), or the system does not start a process; then none is left running. What happens in the processes is
/// told by the [`SpawnContext`].
pub fn spawn<F, A, R>(f: F, args: A, n: usize) -> Result<SpawnContext<R::Value>>
where
    F: Fn(usize, A) -> R + Copy + Send + 'static,
    A: Serialize + DeserializeOwned,
    R: Outcome,
{
    builder().spawn(f, args, n)
}

/// [`spawn`] with options: what the processes are called, what they get, and how they are started and stopped.
///
/// ```no_run
/// use std::time::Duration;
///
/// fn resize(rank: usize, width: u32) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
///     let level = std::env::var("LOG_LEVEL")?; // as set below
///     let here = std::env::current_dir()?;
///     Ok(format!("{level}: {} is at {width} in {}", rank, here.display()))
/// }
///
/// fn main() -> spawn::Result<()> {
///     spawn::init();
///     let mut context = spawn::builder()
///         .name("resize") // "resize.0" and "resize.1" in `top`, in errors and as names of threads
///         .env("LOG_LEVEL", "debug")
///         .env_remove("DISPLAY")
///         .current_dir("/tmp")
///         .hello_deadline(Duration::from_secs(30)) // to reach `init`
///         .grace(Duration::from_secs(1)) // from SIGTERM to SIGKILL
///         .spawn(resize, 640, 2)?;
///     match context.join_timeout(Duration::from_secs(60))? {
///         Some(lines) => println!("{}", lines.join("\n")),
///         None => context.terminate(), // nothing is stopped by a timeout itself
///     }
///     Ok(())
/// }
/// ```
pub fn builder() -> Builder {
    Builder {
        process: Process::default(),
        options: Options::default(),
    }
}

/// Options for [`spawn`]; made by [`builder`].
#[derive(Debug)]
#[must_use]
pub struct Builder {
    process: Process,
    options: Options,
}

impl Builder {
    /// The processes' name; see [`Process::named`].
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.process.name = Some(name.into());
        self
    }

    /// What the processes find as their stdin; see [`Process::stdin`].
    pub fn stdin(mut self, stdin: impl Into<Stdin>) -> Self {
        self.process = self.process.stdin(stdin);
        self
    }

    /// Where their stdout goes; see [`Process::stdout`].
    pub fn stdout(mut self, stdout: impl Into<Output>) -> Self {
        self.process = self.process.stdout(stdout);
        self
    }

    /// Where their stderr goes; see [`Process::stderr`].
    pub fn stderr(mut self, stderr: impl Into<Output>) -> Self {
        self.process = self.process.stderr(stderr);
        self
    }

    /// Keeps the end of what they write to their stderr; see [`Process::stderr_tail`].
    pub fn stderr_tail(mut self, keep: bool) -> Self {
        self.process = self.process.stderr_tail(keep);
        self
    }

    /// Sets a variable in their environment; see [`Process::env`].
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.process = self.process.env(name, value);
        self
    }

    /// Removes a variable from their environment; see [`Process::env_remove`].
    pub fn env_remove(mut self, name: impl Into<OsString>) -> Self {
        self.process = self.process.env_remove(name);
        self
    }

    /// Empties their environment; see [`Process::env_clear`].
    pub fn env_clear(mut self) -> Self {
        self.process = self.process.env_clear();
        self
    }

    /// Their working directory; see [`Process::current_dir`].
    pub fn current_dir(mut self, path: impl Into<PathBuf>) -> Self {
        self.process = self.process.current_dir(path);
        self
    }

    /// Their nice value; see [`Process::nice`].
    pub fn nice(mut self, nice: i32) -> Self {
        self.process = self.process.nice(nice);
        self
    }

    /// The processors that they may run on; see [`Process::cpus`].
    pub fn cpus(mut self, cpus: impl IntoIterator<Item = usize>) -> Self {
        self.process = self.process.cpus(cpus);
        self
    }

    /// The executable that is the worker, if it is not this one; see [`Process::executable`].
    pub fn executable(mut self, path: impl Into<PathBuf>) -> Self {
        self.process = self.process.executable(path);
        self
    }

    /// How long a process that is to stop has from SIGTERM to SIGKILL. 3 seconds if not set; zero sends SIGKILL at
    /// once. While the whole machine or program stands still, no more than an eighth of it passes.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.options.grace = grace;
        self
    }

    /// How long a process has from its start to [`init`](crate::init). 10 seconds if not set. A pause of the machine
    /// counts as it does for [`grace`](Self::grace).
    pub fn hello_deadline(mut self, deadline: Duration) -> Self {
        self.options.hello_deadline = deadline;
        self
    }

    /// How the processes are started. By [`StartMethod::Spawn`] if not set.
    pub fn start_method(mut self, method: StartMethod) -> Self {
        self.options.method = method;
        self
    }

    /// Keeps a failure among these processes and whoever joins them; see [`Group::apart`].
    pub fn apart(mut self) -> Self {
        self.options.apart = true;
        self
    }

    /// Starts one process without a rank, as the function [`spawn_one`](crate::spawn_one) does.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn length(text: String) -> Result<usize, std::io::Error> { Ok(text.len()) }
    /// # fn main() -> spawn::Result<()> {
    /// # spawn::init();
    /// let builder = spawn::builder().name("measure").grace(Duration::from_secs(1)).apart();
    /// let mut process = builder.spawn_one(length, "four".to_string())?;
    /// assert_eq!(*process.join()?, 4);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`spawn_one`](crate::spawn_one).
    pub fn spawn_one<F, A, R>(self, f: F, args: A) -> Result<OneProcess<R::Value>>
    where
        F: Fn(A) -> R + Copy + Send + 'static,
        A: Serialize + DeserializeOwned,
        R: Outcome,
    {
        OneProcess::start(self.process, self.options, f, args)
    }

    /// Starts the processes, as the function [`spawn`] does.
    ///
    /// # Errors
    ///
    /// As the function [`spawn`].
    pub fn spawn<F, A, R>(self, f: F, args: A, n: usize) -> Result<SpawnContext<R::Value>>
    where
        F: Fn(usize, A) -> R + Copy + Send + 'static,
        A: Serialize + DeserializeOwned,
        R: Outcome,
    {
        let mut group = Group::with(self.options);
        group.add_replicas(self.process, f, args, n)?;
        group.start()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn a_process_that_did_not_call_init_may_not_spawn() {
        // The harness of these tests has no `main` of ours, so nothing called it here.
        let error = spawn(|_, ()| (), (), 1).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::NotInitialized),
            "{error:?}"
        );
        assert!(
            error.to_string().contains("first line of `main`"),
            "{error}"
        );
    }
}
