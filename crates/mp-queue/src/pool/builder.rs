//! [`Builder`]: a pool with options.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use shm_core::arena::Arena;
use shm_core::object::{Array, Object, ObjectKind};

use super::Pool;
use super::crew::{Crew, Options};
use super::keeper::{keep, launch};
use super::launcher::{Launcher, Made, Processes, Threads};
use super::link::DEPTH;
use crate::error::{Error, ErrorKind, Result};
use crate::wait::WaitPolicy;

/// Makes the launcher once it is known of which kind.
type MakeLauncher = Box<dyn FnOnce(bool) -> Box<dyn Launcher> + Send>;

/// Options for a [`Pool`]; made by [`Pool::builder`].
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # spawn::init();
/// let pool = mp_queue::Pool::builder()
///     .workers(4)
///     .name("resize")
///     .max_tasks(1000) // then the process is replaced
///     .retry(1) // a task whose worker died runs once more
///     .start()?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a builder does nothing until `start`"]
pub struct Builder<S = ()> {
    options: Options,
    threads: bool,
    launcher: MakeLauncher,
    state: PhantomData<fn(&mut S)>,
}

fn launcher<F, S>(init: F) -> MakeLauncher
where
    F: Fn(usize) -> Made<S> + Copy + Send + Sync + 'static,
    S: 'static,
{
    Box::new(move |threads| {
        if threads {
            Box::new(Threads(init))
        } else {
            Box::new(Processes(init))
        }
    })
}

impl Builder {
    pub(super) fn new() -> Self {
        Self {
            options: Options {
                name: "worker".to_owned(),
                workers: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
                max_tasks: None,
                max_rss: None,
                idle_timeout: None,
                retry: 0,
                prefetch: None,
                crash_limit: None,
                policy: WaitPolicy::default(),
            },
            threads: false,
            launcher: launcher(|_| Ok(())),
            state: PhantomData,
        }
    }
}

impl<S: 'static> Builder<S> {
    /// How many workers. If not set, as many as this process may use CPUs.
    pub fn workers(mut self, workers: usize) -> Self {
        self.options.workers = workers;
        self
    }

    /// The workers' name, behind which each gets its number. "worker" if not set.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.options.name = name.into();
        self
    }

    /// Makes each worker's state when it starts, from its place in the pool (from 0; a successor gets its predecessor's).
    /// Tasks that are submitted by a method ending in `_with` have it as `&mut`. `init` is a function item or a closure
    /// that captures nothing. If it panics, the worker ends; if that happens to one worker after the other, the pool gives
    /// up with [`CrashLoop`](ErrorKind::CrashLoop). One that may fail goes to [`try_init`](Builder::try_init): here a
    /// `Result` would be the state.
    pub fn init<F, T>(self, init: F) -> Builder<T>
    where
        F: Fn(usize) -> T + Copy + Send + Sync + 'static,
        T: 'static,
    {
        Builder {
            options: self.options,
            threads: self.threads,
            launcher: launcher(move |rank| Ok(init(rank))),
            state: PhantomData,
        }
    }

    /// [`init`](Builder::init) with a function that may fail: the worker then ends with that error, as by a panic.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # spawn::init();
    /// let pool = mp_queue::Pool::builder()
    ///     .try_init(|_rank| std::fs::read("weights.bin"))
    ///     .start()?;
    /// let bytes = pool.call_with(|weights: &mut Vec<u8>, ()| Ok::<_, String>(weights.len()), ())?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn try_init<F, T, E>(self, init: F) -> Builder<T>
    where
        F: Fn(usize) -> Result<T, E> + Copy + Send + Sync + 'static,
        T: 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>> + 'static,
    {
        Builder {
            options: self.options,
            threads: self.threads,
            launcher: launcher(move |rank| init(rank).map_err(Into::into)),
            state: PhantomData,
        }
    }

    /// A worker is replaced after so many tasks (a chunk counts as one).
    pub fn max_tasks(mut self, tasks: u64) -> Self {
        self.options.max_tasks = Some(tasks.max(1));
        self
    }

    /// A worker is replaced after a task when it has more than so many bytes of memory of its own (`RssAnon`): tensors in
    /// the arena do not count. It looks at most every 10 ms. Ignored for threads.
    pub fn max_rss(mut self, bytes: u64) -> Self {
        self.options.max_rss = Some(bytes);
        self
    }

    /// A worker that had nothing to do for so long leaves; another is started when there is something to do.
    pub fn idle_timeout(mut self, timeout: Duration) -> Self {
        self.options.idle_timeout = Some(timeout);
        self
    }

    /// How often a task is tried again whose worker ended while it was at it. For tasks that may run twice. One whose
    /// arguments hold what only one process may have (a `Tensor`, say) is not tried again: it went with the worker.
    /// 0 if not set.
    pub fn retry(mut self, times: u32) -> Self {
        self.options.retry = times;
        self
    }

    /// How many tasks a worker is given beyond the one that it is at, so that it need not wait between two; at most 63.
    /// If not set, that follows the time that tasks take: none where they take longer than 5 ms, more where they are
    /// short. A task that was given to a worker is not given to another while that worker lives.
    pub fn prefetch(mut self, tasks: usize) -> Self {
        self.options.prefetch = Some(tasks.min(DEPTH - 1));
        self
    }

    /// How many workers in a row may end without having begun a task, before the pool gives up. The number of workers and
    /// three more, if not set.
    pub fn crash_limit(mut self, workers: u32) -> Self {
        self.options.crash_limit = Some(workers.max(1));
        self
    }

    /// How workers, and whoever waits for them, spend their time before they sleep.
    pub fn policy(mut self, policy: WaitPolicy) -> Self {
        self.options.policy = policy;
        self
    }

    /// Workers as threads of this process: for tests, and where no process can be started. Everything else is the same,
    /// but that a running task cannot be cancelled, that what ends the process ends all, and that dropping the pool does
    /// not wait for tasks that run.
    pub fn threads(mut self) -> Self {
        self.threads = true;
        self
    }

    /// Starts the workers.
    ///
    /// # Errors
    /// `NoWorker` when a process cannot be started ([`spawn::init`] was not called, say), or 0 workers are asked for, or more
    /// than an arena has room for;
    /// what an allocation in the arena can answer.
    pub fn start(mut self) -> Result<Pool<S>> {
        if self.options.workers == 0 {
            return Err(Error::new(
                ErrorKind::NoWorker,
                "a pool of 0 workers was asked for: nobody would do its tasks, so ask for at least 1",
            ));
        }
        let (workers, most) = (self.options.workers, Arena::PARTICIPANTS_MAX - 1);
        if !self.threads && workers > most {
            return Err(Error::new(
                ErrorKind::NoWorker,
                format!(
                    "a pool of {workers} workers was asked for, and an arena has room for {most} processes beside this one; ask for fewer, about as many as \
                     there are CPUs"
                ),
            ));
        }
        if self.threads {
            self.options.max_rss = None;
        }
        let arena = Arena::current()?;
        let bell = Object::create(&arena, ObjectKind::Event, [Array::None, Array::None], 1)?;
        let crew = Crew::new(arena, bell, (self.launcher)(self.threads), self.options);
        let mut pool = Pool {
            crew: Arc::new(crew),
            keeper: None,
            state: PhantomData,
        };
        // If one of them fails, dropping the pool ends the others.
        for _ in 0..pool.crew.options.workers {
            launch(&pool.crew)?;
        }
        let crew = Arc::clone(&pool.crew);
        let keeper = std::thread::Builder::new()
            .name("pool-keeper".to_owned())
            .stack_size(512 << 10)
            .spawn(move || keep(&crew))
            .map_err(|error| {
                Error::new(
                    ErrorKind::NoWorker,
                    format!("no thread could be started for the pool's keeper: {error}"),
                )
            })?;
        pool.keeper = Some(keeper);
        Ok(pool)
    }
}

impl<S> fmt::Debug for Builder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("options", &self.options)
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}
