//! The workers of a pool, what each has to do, and what is left to give out.
//!
//! No thread stands between a caller and a worker. Whoever waits becomes the *leader*: it takes replies out of all lanes,
//! hands each to whom it belongs, gives out what waits for a worker, and sleeps on the pool's bell, which each worker
//! rings after a reply. Others that wait meanwhile follow: they sleep until their outcome is there or the lead is theirs.
//! All of that happens under one lock of this process, which nobody holds while it sleeps or runs code of the user's.
//! When nobody waits and something is left to give out, the pool's keeper leads.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use shm_core::arena::Arena;
use shm_core::message::{Incoming, Outgoing};
use shm_core::object::Object;

use super::launcher::{End, Launcher, Running};
use super::link::{Form, Link, Told};
use super::locked::Wakers;
use super::sink::{Arrived, Sink};
use crate::error::{Error, ErrorKind, Result};
use crate::wait::WaitPolicy;

/// What a pool may choose.
#[derive(Clone, Debug)]
pub(super) struct Options {
    pub(super) name: String,
    pub(super) workers: usize,
    pub(super) max_tasks: Option<u64>,
    pub(super) max_rss: Option<u64>,
    pub(super) idle_timeout: Option<Duration>,
    pub(super) retry: u32,
    pub(super) prefetch: Option<usize>,
    pub(super) crash_limit: Option<u32>,
    pub(super) policy: WaitPolicy,
}

/// A pool's inside, shared by its handle, its tasks, its keeper and the hooks on its workers.
pub(super) struct Crew {
    pub(super) arena: Arena,
    pub(super) bell: Object,
    pub(super) launcher: Box<dyn Launcher>,
    pub(super) options: Options,
    /// See [`lock`](Self::lock).
    pub(super) state: Mutex<State>,
    pub(super) told: Arc<Wakers>,
    /// Where the keeper sleeps.
    pub(super) keeper: Condvar,
    next_task: AtomicU64,
    next_worker: AtomicU64,
}

/// Whether new tasks are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Open,
    /// No more tasks will come; those that are there are done.
    Draining,
    Closed,
}

/// Who takes replies out of the lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leader {
    Nobody,
    Keeper,
    Caller,
}

/// What the lock guards.
pub(super) struct State {
    pub(super) workers: Vec<Worker>,
    /// Requests that no worker has been given yet.
    pub(super) queue: VecDeque<Request>,
    /// Workers that have ended and are not looked after yet.
    pub(super) ended: VecDeque<(u64, End)>,
    pub(super) phase: Phase,
    pub(super) leader: Leader,
    pub(super) crashes: Crashes,
    /// Tasks that futures wait for: the keeper leads where no thread does.
    pub(super) awaited: usize,
    /// Where threads sleep that wait and do not lead.
    pub(super) followers: VecDeque<Arc<Condvar>>,
    /// How long a task takes, in nanoseconds, averaged over the last ones; 0 before the first.
    pub(super) pace: u64,
}

/// Workers in a row that ended without having begun a task.
#[derive(Debug, Default)]
pub(super) struct Crashes {
    pub(super) count: u32,
    pub(super) cause: String,
    /// No more workers are started, unless one that is left finishes a task.
    pub(super) given_up: bool,
}

/// A task, or a chunk of them, that is to be given to a worker.
pub(super) struct Request {
    pub(super) task: u64,
    pub(super) message: Outgoing,
    pub(super) sink: Arc<Sink>,
    pub(super) index: u64,
    /// How often it was lost already.
    pub(super) lost: u32,
}

/// A request that was given to a worker and not answered yet.
pub(super) struct Flight {
    pub(super) task: u64,
    pub(super) sink: Arc<Sink>,
    pub(super) index: u64,
    pub(super) position: u64,
    /// The same message once more, if it may be tried again.
    pub(super) spare: Option<Box<Outgoing>>,
    pub(super) lost: u32,
    /// Its outcome was told already.
    pub(super) cancelled: bool,
}

/// A worker, from its start until it was looked after.
pub(super) struct Worker {
    pub(super) id: u64,
    pub(super) rank: usize,
    pub(super) pid: u32,
    /// Dropped before the link, whose end would wake a worker that is being killed.
    pub(super) running: Box<dyn Running>,
    pub(super) link: Link,
    /// What it has to do, in its order.
    pub(super) flights: VecDeque<Flight>,
    /// Requests that it was given so far.
    pub(super) position: u64,
    /// It gets nothing more.
    pub(super) leaving: bool,
    /// It was ended on purpose.
    pub(super) dismissed: bool,
    pub(super) idle_since: Instant,
}

impl Worker {
    /// Ends it, or lets it end where it cannot be killed.
    pub(super) fn dismiss(&mut self) {
        self.leaving = true;
        self.dismissed = true;
        // What is killed is not woken as well: it would be killed while it gives back what it holds, and each kill between
        // two steps of that leaks a count.
        if !self.running.kill() {
            self.link.close();
        }
    }
}

impl State {
    fn new() -> Self {
        Self {
            workers: Vec::new(),
            queue: VecDeque::new(),
            ended: VecDeque::new(),
            phase: Phase::Open,
            leader: Leader::Nobody,
            crashes: Crashes::default(),
            awaited: 0,
            followers: VecDeque::new(),
            pace: 0,
        }
    }

    pub(super) fn takes_more(&self) -> Result<()> {
        match self.phase {
            Phase::Open => Ok(()),
            _ => Err(closed()),
        }
    }

    /// Whether no request is left anywhere.
    pub(super) fn is_drained(&self) -> bool {
        self.queue.is_empty() && self.workers.iter().all(|worker| worker.flights.is_empty())
    }

    /// Whether it is the keeper who has to lead.
    pub(super) fn is_leaderless(&self) -> bool {
        let needs_one = !self.queue.is_empty() || self.awaited > 0;
        self.leader == Leader::Nobody && self.followers.is_empty() && needs_one
    }

    pub(super) fn wake_a_follower(&self) -> bool {
        self.followers.front().is_some_and(|next| {
            next.notify_all();
            true
        })
    }

    pub(super) fn wake_followers(&self) {
        for follower in &self.followers {
            follower.notify_all();
        }
    }
}

impl Crew {
    pub(super) fn new(
        arena: Arena,
        bell: Object,
        launcher: Box<dyn Launcher>,
        options: Options,
    ) -> Self {
        Self {
            arena,
            bell,
            launcher,
            options,
            state: Mutex::new(State::new()),
            told: Arc::default(),
            keeper: Condvar::new(),
            next_task: AtomicU64::new(0),
            next_worker: AtomicU64::new(0),
        }
    }

    /// A number for a task.
    pub(super) fn number(&self) -> u64 {
        self.next_task.fetch_add(1, Ordering::Relaxed)
    }

    /// What a worker is known by; its pid may be given again.
    pub(super) fn worker_id(&self) -> u64 {
        self.next_worker.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether a task may be submitted from here, now. What comes later in between is told through the sink.
    pub(super) fn admit(&self) -> Result<()> {
        self.is_outside()?;
        self.lock().takes_more()
    }

    pub(super) fn is_outside(&self) -> Result<()> {
        if !self.launcher.can_kill() && super::launcher::is_worker() {
            return Err(Error::new(
                ErrorKind::Inside,
                "a task cannot submit tasks to a pool of its own process: all workers could end up waiting for each \
                 other; return what is left to do, and submit it outside",
            ));
        }
        Ok(())
    }

    /// Wakes the keeper if there is something to do for it.
    pub(super) fn tell_the_keeper(&self, state: &State) {
        let is_short = !state.queue.is_empty() && state.workers.len() < self.options.workers;
        if is_short || state.is_leaderless() {
            self.keeper.notify_all();
        }
    }

    /// Takes all replies that are there, then gives out what waits for a worker.
    pub(super) fn turn(&self, state: &mut State) {
        let State {
            workers,
            pace,
            crashes,
            ..
        } = state;
        let had_given_up = crashes.given_up;
        for worker in workers.iter_mut() {
            self.collect(worker, pace, crashes);
        }
        if had_given_up && !crashes.given_up {
            // Workers are started again.
            self.keeper.notify_all();
        }
        if !state.queue.is_empty() {
            self.dispatch(state);
        }
        if state.phase == Phase::Draining {
            state.wake_followers();
        }
    }

    /// Takes all replies of one worker.
    pub(super) fn collect(&self, worker: &mut Worker, pace: &mut u64, crashes: &mut Crashes) {
        if worker.flights.is_empty() {
            return;
        }
        while !worker.flights.is_empty() {
            let mut message = match worker.link.reply() {
                Ok(Some(reply)) => reply,
                Ok(None) => return,
                Err(error) if is_shortage(&error) => {
                    tracing::warn!(%error, "a pool's reply has to wait");
                    return;
                }
                Err(error) => {
                    tracing::error!(%error, pid = worker.pid, "a worker's reply cannot be read; ending the worker");
                    worker.dismiss();
                    return;
                }
            };
            let told = message.take_prefix::<Told>();
            let (Ok(told), Some(flight)) = (told, worker.flights.pop_front()) else {
                worker.dismiss();
                return;
            };
            if told.task != flight.task {
                tracing::error!(
                    pid = worker.pid,
                    "a worker replies to what it was not asked; ending it"
                );
                worker.flights.push_front(flight);
                worker.dismiss();
                return;
            }
            if worker.flights.is_empty() && self.options.idle_timeout.is_some() {
                worker.idle_since = Instant::now();
            }
            if told.form != Form::Revoked {
                match (*pace, told.nanos) {
                    (_, 0) => {}
                    (0, nanos) => *pace = nanos,
                    (before, nanos) => *pace = ((7 * before + nanos) / 8).max(1),
                }
                crashes.count = 0;
                crashes.given_up = false;
            }
            if flight.cancelled {
                continue;
            }
            let outcome = match told.form {
                Form::Answer => Ok(message),
                Form::Revoked => Err(cancelled(flight.task)),
                Form::Refused => Err(refused(flight.task, worker.pid, message.decode())),
            };
            flight.tell(worker.pid, outcome);
        }
    }
}

impl Request {
    pub(super) fn tell(self, outcome: Result<Box<Incoming>>) {
        self.sink.push(Arrived {
            index: self.index,
            task: self.task,
            pid: 0,
            outcome,
        });
    }
}

impl Flight {
    pub(super) fn tell(&self, pid: u32, outcome: Result<Box<Incoming>>) {
        self.sink.push(Arrived {
            index: self.index,
            task: self.task,
            pid,
            outcome,
        });
    }
}

impl Crashes {
    pub(super) fn error(&self) -> Error {
        Error::new(
            ErrorKind::CrashLoop {
                crashes: self.count,
                cause: self.cause.clone(),
            },
            format!(
                "{} workers in a row ended before they had begun a task, so no more are started; the last one: {}",
                self.count, self.cause
            ),
        )
    }
}

pub(super) fn closed() -> Error {
    Error::new(
        ErrorKind::Closed,
        "the pool was closed, shut down, killed or dropped: it takes no more tasks, and what it had not finished, if it was not only closed, was given up",
    )
}

pub(super) fn cancelled(task: u64) -> Error {
    Error::new(
        ErrorKind::TaskCancelled { task },
        format!("task {task} was cancelled"),
    )
}

fn refused(task: u64, pid: u32, reason: shm_core::Result<String>) -> Error {
    let reason = reason.unwrap_or_else(|error| error.to_string());
    Error::new(
        ErrorKind::TaskRaised {
            task,
            pid,
            chain: vec![reason.clone()],
        },
        format!("task {task} (pid {pid}): {reason}"),
    )
}

fn is_shortage(error: &Error) -> bool {
    use shm_core::ErrorKind as Arena;
    matches!(
        error.kind(),
        ErrorKind::Arena(
            Arena::LeasesFull { .. } | Arena::OutOfRoom(_) | Arena::CapacityExhausted { .. }
        )
    )
}
