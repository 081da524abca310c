//! [`Pool`]: processes that wait for work, and survive it.
//!
//! # What it promises
//!
//! - A worker that dies (killed by a signal, out of memory, aborted, by `exit`) fails the one task that it was at, with
//!   the cause; tasks that it had been given and not begun go to others. A panic is caught and fails its task only; with
//!   `panic = "abort"` it is a death.
//! - The pool refills. When workers die without having begun anything, one after the other, it says so
//!   ([`CrashLoop`](crate::ErrorKind::CrashLoop)) instead of trying for ever.
//! - Errors travel as data: what a task returned or panicked with needs to be known to no other process.
//! - Tensors in arguments and results are handles: their bytes stay where they are, and what a task writes into an
//!   [`AliasedTensor`](shm_core::AliasedTensor), or into a `Tensor` that it was given and gives back, is seen here.
//! - Nothing waits for ever: whoever waits hears of deaths, of cancelling, and of the pool's end. Waiting costs no CPU.
//!
//! # How it works
//!
//! Each worker is a process under a supervision of its own, and has a lane for requests and one for replies. A request
//! names its function by its place in the executable ([`spawn::Function`]) and carries the arguments; a few are put ahead,
//! so that a worker of short tasks never waits. Between a caller and a worker there is no further thread: whoever waits
//! takes the replies out, for others as well.

mod builder;
mod cancel;
mod crew;
mod give;
mod job;
mod keeper;
mod launcher;
mod lead;
mod link;
mod locked;
mod map;
mod sink;
mod task;
mod worker;

use std::any::type_name;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use shm_core::message::Outgoing;
use spawn::{Function, Outcome};

pub use builder::Builder;
pub use map::Map;
pub use task::Task;

use crew::{Crew, Phase, Request, State};
use job::Job;
use link::{Ask, ring};
use sink::{Sink, with_sink};

use crate::error::{Error, ErrorKind, PutError, Result};
use crate::wait::Deadline;

/// A number of worker processes that run functions of this program.
///
/// ```no_run
/// use mp_queue::Pool;
/// use shm_core::Tensor;
///
/// fn mean(frame: Tensor<f32>) -> Result<f32, std::io::Error> {
///     Ok(frame.as_slice().iter().sum::<f32>() / frame.numel() as f32)
/// }
///
/// fn main() -> Result<(), Box<dyn std::error::Error>> {
///     spawn::init(); // first: a worker is this executable run again
///     let pool = Pool::new(4)?;
///     assert_eq!(pool.call(mean, Tensor::full([720, 1280], 0.5)?)?, 0.5);
///     let frames = (0..100).map(|i| Tensor::full([720, 1280], i as f32).expect("room"));
///     for mean in pool.map(mean, frames)? {
///         println!("{}", mean?); // in order; the frames are made as workers take them
///     }
///     Ok(())
/// }
/// ```
///
/// Functions are function items or closures that capture nothing; they take one argument (a tuple, if they need more)
/// and return what a spawned function may ([`Outcome`]). A pool is used from any number of threads at once. Dropping it
/// kills the workers and gives up what they had not finished; [`shutdown`](Self::shutdown) lets them finish.
///
/// A closure that captures is refused when it is built (by `cargo build`; `cargo check` does not look that far): what it needs
/// beside its item comes in the argument.
///
/// ```compile_fail
/// let pool = mp_queue::Pool::new(1).unwrap();
/// let factor = 2;
/// pool.call(move |x: u32| Ok::<_, String>(x * factor), 21).unwrap();
/// ```
///
/// The workers' own state, such as a model that each loads once:
///
/// ```no_run
/// # struct Model; impl Model { fn load() -> Self { Model } fn run(&mut self, x: f32) -> f32 { x } }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # spawn::init();
/// let pool = mp_queue::Pool::builder().workers(2).init(|_rank| Model::load()).start()?;
/// let y = pool.call_with(|model: &mut Model, x: f32| Ok::<_, String>(model.run(x)), 0.5)?;
/// # Ok(())
/// # }
/// ```
pub struct Pool<S = ()> {
    crew: Arc<Crew>,
    keeper: Option<JoinHandle<()>>,
    state: PhantomData<fn(&mut S)>,
}

impl Pool {
    /// A pool of so many workers.
    ///
    /// # Errors
    /// As [`Builder::start`].
    pub fn new(workers: usize) -> Result<Self> {
        Self::builder().workers(workers).start()
    }

    /// A pool with options.
    pub fn builder() -> Builder {
        Builder::new()
    }
}

impl<S: 'static> Pool<S> {
    /// Runs `f(args)` in a worker and waits for its result.
    ///
    /// # Errors
    /// As [`submit`](Self::submit) and [`Task::wait`].
    pub fn call<F, A, R>(&self, f: F, args: A) -> Result<R::Value>
    where
        F: Fn(A) -> R + Copy + Send + 'static,
        A: Serialize + DeserializeOwned + 'static,
        R: Outcome,
    {
        self.ask(job::one(f), args)
    }

    /// Runs `f(state, args)` in a worker, with the state that the worker's initializer made, and waits for its result.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn call_with<F, A, R>(&self, f: F, args: A) -> Result<R::Value>
    where
        F: Fn(&mut S, A) -> R + Copy + Send + 'static,
        A: Serialize + DeserializeOwned + 'static,
        R: Outcome,
    {
        self.ask(job::one_with::<S, F, A, R>(f), args)
    }

    fn ask<A: Serialize, V: DeserializeOwned>(
        &self,
        function: Result<Function<Job>>,
        args: A,
    ) -> Result<V> {
        let function = function?;
        let task = self.crew.number();
        // In its place until it lies in a worker's lane: moving a message costs more than writing most.
        let mut message = Outgoing::default();
        message
            .encode_as(
                &self.crew.arena,
                (Ask { task, function }, args),
                type_name::<A>,
            )
            .map_err(|failed| failed.error)?;
        let arrived = with_sink(|sink| self.crew.call(task, &mut message, sink));
        arrived?.value()
    }

    /// Has `f(args)` run in a worker, and returns at once. Tasks wait in this process until a worker has room for them;
    /// their number is not bounded (that of a [`map`](Self::map)'s is).
    ///
    /// # Errors
    /// With the arguments: what encoding them can answer ([`shm_core::message::encode`]); `Closed` after
    /// [`close`](Self::close); `Inside` in a task of a pool of threads.
    pub fn submit<F, A, R>(&self, f: F, args: A) -> Result<Task<R::Value>, PutError<A>>
    where
        F: Fn(A) -> R + Copy + Send + 'static,
        A: Serialize + DeserializeOwned + 'static,
        R: Outcome,
    {
        self.hand_over(job::one(f), args)
    }

    /// [`submit`](Self::submit), with the worker's state.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn submit_with<F, A, R>(&self, f: F, args: A) -> Result<Task<R::Value>, PutError<A>>
    where
        F: Fn(&mut S, A) -> R + Copy + Send + 'static,
        A: Serialize + DeserializeOwned + 'static,
        R: Outcome,
    {
        self.hand_over(job::one_with::<S, F, A, R>(f), args)
    }

    fn hand_over<A: Serialize, V>(
        &self,
        function: Result<Function<Job>>,
        args: A,
    ) -> Result<Task<V>, PutError<A>> {
        let function = match function.and_then(|function| self.crew.admit().map(|()| function)) {
            Ok(function) => function,
            Err(error) => return Err(PutError::new(error, Some(args))),
        };
        let number = self.crew.number();
        let ask = Ask {
            task: number,
            function,
        };
        let mut message = Outgoing::default();
        message
            .encode_as(&self.crew.arena, (ask, args), type_name::<A>)
            .map_err(|failed| {
                PutError::new(failed.error.into(), failed.value.map(|(_, args)| args))
            })?;
        let sink = Arc::<Sink>::default();
        self.crew.submit([Request {
            task: number,
            message,
            sink: Arc::clone(&sink),
            index: 0,
            lost: 0,
        }]);
        Ok(Task {
            crew: Arc::clone(&self.crew),
            sink,
            number,
            given: false,
            #[cfg(feature = "tokio")]
            awaited: false,
            value: PhantomData,
        })
    }

    /// Runs `f` on each item of `items`, and gives the outcomes: an iterator, to be given options by its methods.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # spawn::init();
    /// # let pool = mp_queue::Pool::new(2)?;
    /// let squares = pool.map(|x: u64| Ok::<_, String>(x * x), 0..1000)?;
    /// let sum: u64 = squares.unordered().sum::<Result<_, _>>()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Closed` and `Inside`, as [`submit`](Self::submit). What becomes of an item is told in its place, also when it
    /// cannot be encoded.
    pub fn map<F, A, R, I>(&self, f: F, items: I) -> Result<Map<'_, I::IntoIter, R::Value>>
    where
        F: Fn(A) -> R + Copy + Send + 'static,
        A: Serialize + DeserializeOwned + 'static,
        R: Outcome,
        I: IntoIterator<Item = A>,
    {
        self.crew.admit()?;
        let functions = [job::one(f)?, job::many(f)?];
        Ok(Map::new(&self.crew, functions, items.into_iter()))
    }

    /// [`map`](Self::map), with the worker's state.
    ///
    /// # Errors
    /// As [`map`](Self::map).
    pub fn map_with<F, A, R, I>(&self, f: F, items: I) -> Result<Map<'_, I::IntoIter, R::Value>>
    where
        F: Fn(&mut S, A) -> R + Copy + Send + 'static,
        A: Serialize + DeserializeOwned + 'static,
        R: Outcome,
        I: IntoIterator<Item = A>,
    {
        self.crew.admit()?;
        let functions = [
            job::one_with::<S, F, A, R>(f)?,
            job::many_with::<S, F, A, R>(f)?,
        ];
        Ok(Map::new(&self.crew, functions, items.into_iter()))
    }
}

impl<S> Pool<S> {
    /// The process ids of the workers that are there now.
    #[must_use]
    pub fn pids(&self) -> Vec<u32> {
        let state = self.crew.lock();
        state.workers.iter().map(|worker| worker.pid).collect()
    }

    /// Takes no more tasks. Those that were submitted are done.
    pub fn close(&self) {
        let mut state = self.crew.lock();
        if state.phase == Phase::Open {
            state.phase = Phase::Draining;
        }
    }

    /// Waits until all tasks are done, and lets the workers leave.
    ///
    /// # Errors
    /// `CrashLoop` when the pool had given up.
    pub fn shutdown(self) -> Result<()> {
        self.drain(Deadline::Never)
    }

    /// [`shutdown`](Self::shutdown) that waits so long at most, and kills the workers then.
    ///
    /// # Errors
    /// `TimedOut`, and as [`shutdown`](Self::shutdown).
    pub fn shutdown_timeout(self, timeout: Duration) -> Result<()> {
        self.drain(Deadline::after(timeout))
    }

    fn drain(self, deadline: Deadline) -> Result<()> {
        self.close();
        let late = || {
            Error::new(
                ErrorKind::TimedOut,
                "the pool's tasks were not done before the deadline; its workers are killed",
            )
        };
        self.crew
            .wait_for(deadline, None, |state| state.is_drained().then_some(()))
            .ok_or_else(late)??;
        // At each look: the keeper may have been about to start one.
        let gone = |state: &mut State| {
            for worker in state.workers.iter_mut().filter(|worker| !worker.leaving) {
                worker.leaving = true;
                worker.link.close();
            }
            state.workers.is_empty().then_some(())
        };
        self.crew
            .wait_for(deadline, None, gone)
            .ok_or_else(late)??;
        let state = self.crew.lock();
        if state.crashes.given_up {
            return Err(state.crashes.error());
        }
        Ok(())
    }

    /// Kills the workers and gives up what they had not finished; so does dropping the pool.
    pub fn kill(self) {
        drop(self);
    }
}

impl<S> Drop for Pool<S> {
    fn drop(&mut self) {
        self.crew.lock().phase = Phase::Closed;
        self.crew.keeper.notify_all();
        ring(&self.crew.bell);
        // Unless it is the keeper that drops it: a future that held the last handle went with its waker.
        let keeper = self.keeper.take();
        let here = std::thread::current().id();
        if let Some(keeper) = keeper.filter(|keeper| keeper.thread().id() != here) {
            // It ends as soon as it sees the phase; starting a worker is the longest thing that it does.
            let _ = keeper.join();
        }
        // Dropping a worker waits until its process has ended, which SIGKILL sees to.
        drop(self.crew.close());
    }
}

impl<S> fmt::Debug for Pool<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.crew.lock();
        f.debug_struct("Pool")
            .field("name", &self.crew.options.name)
            .field("workers", &state.workers.len())
            .field("waiting", &state.queue.len())
            .field("phase", &state.phase)
            .finish_non_exhaustive()
    }
}

/// Why `spawn` could not do it, as this crate's error.
fn start_failed(error: spawn::Error) -> Error {
    Error::new(ErrorKind::NoWorker, error.to_string()).because(error)
}
