//! The keeper: the one thread of a pool. It sleeps until a worker has ended, one is missing or has idled for too long, or
//! requests wait while nobody waits for replies.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use shm_core::deadlock::Servant;
use shm_core::patience::Patience;

use super::crew::{Crew, Flight, Leader, Phase, Request, State, Worker, closed};
use super::launcher::{Cause, End};
use super::link::{Orders, connect, ring};
use crate::error::{Error, ErrorKind, Result};
use crate::wait::{Deadline, WaitPolicy, wait};

/// How long it may take until what a dead worker held is free. Another process may be in the middle of reaping it.
const REAPING: Duration = Duration::from_secs(5);

/// What the keeper found to do.
enum Chore {
    /// A worker has ended.
    Bury(u64, End),
    /// One is missing.
    Launch,
    /// Requests wait.
    Lead,
    /// The pool is gone.
    Leave,
}

/// Until the pool is closed.
pub(super) fn keep(crew: &Arc<Crew>) {
    let _servant = Servant::enter();
    loop {
        match next_chore(crew) {
            Chore::Bury(id, end) => bury(crew, id, &end),
            Chore::Launch => {
                if let Err(error) = launch(crew) {
                    let mut state = crew.lock();
                    crew.crashed(&mut state, Cause::of(error.to_string()));
                    crew.dispatch(&mut state);
                }
            }
            Chore::Lead => lead(crew),
            Chore::Leave => return,
        }
    }
}

fn next_chore(crew: &Crew) -> Chore {
    let mut state = crew.lock();
    loop {
        state.wake_told();
        if let Some((id, end)) = state.ended.pop_front() {
            return Chore::Bury(id, end);
        }
        if state.phase == Phase::Closed {
            return Chore::Leave;
        }
        if crew.lacks_a_worker(&state) {
            return Chore::Launch;
        }
        if state.is_leaderless() {
            return Chore::Lead;
        }
        match crew.retire(&mut state) {
            Some(at) => {
                let _ = crew.keeper.wait_until(&mut state.guard, at);
            }
            None => crew.keeper.wait(&mut state.guard),
        }
    }
}

/// Takes replies and gives out requests for as long as nobody else does.
fn lead(crew: &Crew) {
    {
        let mut state = crew.lock();
        if !state.is_leaderless() {
            return;
        }
        state.leader = Leader::Keeper;
    }
    // With a deadline, however late: a wait without one would count among those of the user's threads.
    let _ = wait::<(), Error>(
        &crew.bell,
        0,
        WaitPolicy::Park,
        Deadline::after(Duration::from_secs(3600)),
        &Cell::new(None),
        || true,
        |_| {
            let mut state = crew.lock();
            crew.turn(&mut state);
            let over = state.leader != Leader::Keeper
                || (state.queue.is_empty() && state.awaited == 0)
                || !state.ended.is_empty()
                || state.phase == Phase::Closed
                || crew.lacks_a_worker(&state);
            over.then_some(Ok(()))
        },
    );
    let mut state = crew.lock();
    if state.leader == Leader::Keeper {
        state.leader = Leader::Nobody;
    }
}

/// Starts a worker.
pub(super) fn launch(crew: &Arc<Crew>) -> Result<()> {
    let options = &crew.options;
    let (rank, id) = {
        let state = crew.lock();
        let rank = (0..)
            .find(|&rank| state.workers.iter().all(|worker| worker.rank != rank))
            .unwrap_or(0);
        (rank, crew.worker_id())
    };
    let orders = Orders {
        rank,
        max_tasks: options.max_tasks,
        max_rss: options.max_rss,
        retires: crew.launcher.can_kill()
            && (options.max_tasks.is_some()
                || options.max_rss.is_some()
                || options.idle_timeout.is_some()),
        policy: options.policy,
    };
    let (link, ends) = connect(&crew.arena, &crew.bell, orders)?;
    let crew_of_hook = Arc::downgrade(crew);
    let told = Box::new(move |end| {
        // A pool that is gone has looked after its workers itself.
        if let Some(crew) = crew_of_hook.upgrade() {
            crew.lock().ended.push_back((id, end));
            crew.keeper.notify_all();
            // The leader may be the keeper.
            ring(&crew.bell);
        }
    });
    let name = format!("{}.{rank}", options.name);
    let running = crew.launcher.launch(name, ends, told)?;
    let mut state = crew.lock();
    state.workers.push(Worker {
        id,
        rank,
        pid: running.pid(),
        link,
        running,
        flights: std::collections::VecDeque::new(),
        position: 0,
        leaving: false,
        dismissed: false,
        idle_since: Instant::now(),
    });
    crew.dispatch(&mut state);
    drop(state);
    // Whoever shuts the pool down has to know of it.
    ring(&crew.bell);
    Ok(())
}

/// Looks after a worker that has ended: what it had told is heard, what it had begun is lost, the rest is for others.
fn bury(crew: &Crew, id: u64, end: &End) {
    let mut wait = Patience::new(REAPING);
    loop {
        let mut state = crew.lock();
        let Some(at) = state.workers.iter().position(|worker| worker.id == id) else {
            return;
        };
        if let Some(worker) = crew.settle(&mut state, at, end, wait.is_over(Instant::now())) {
            crew.dispatch(&mut state);
            state.wake_followers();
            drop(state);
            ring(&crew.bell);
            // Its context waits for nothing: the end has come. Not under the lock all the same.
            drop(worker);
            return;
        }
        drop(state);
        crew.arena.bury_the_dead();
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl Crew {
    pub(super) fn lacks_a_worker(&self, state: &State) -> bool {
        let wanted = match self.options.idle_timeout {
            None => state.phase == Phase::Open || !state.is_drained(),
            Some(_) => !state.queue.is_empty(),
        };
        wanted && !state.crashes.given_up && state.workers.len() < self.options.workers
    }

    /// Lets workers leave that have idled for too long. Gives the time at which the next one will have.
    fn retire(&self, state: &mut State) -> Option<Instant> {
        let timeout = self.options.idle_timeout?;
        let now = Instant::now();
        let mut next = None;
        for worker in &mut state.workers {
            if worker.leaving || !worker.flights.is_empty() {
                continue;
            }
            match worker.idle_since.checked_add(timeout) {
                Some(at) if at <= now => {
                    worker.leaving = true;
                    worker.link.close();
                }
                Some(at) => next = Some(next.map_or(at, |next: Instant| next.min(at))),
                None => {}
            }
        }
        // One that works now is looked at when it may have idled for long enough.
        next.or_else(|| {
            (!state.workers.is_empty())
                .then(|| now.checked_add(timeout))
                .flatten()
        })
    }

    /// A worker ended without having begun a task.
    fn crashed(&self, state: &mut State, cause: Cause) {
        let limit = self
            .options
            .crash_limit
            .unwrap_or(self.options.workers as u32 + 3);
        state.crashes.count += 1;
        state.crashes.cause = cause.text;
        state.crashes.given_up = state.crashes.count >= limit;
    }

    /// Takes a worker that has ended out of the crew. `None`: what is in its lane cannot be had yet.
    fn settle(&self, state: &mut State, at: usize, end: &End, late: bool) -> Option<Worker> {
        let State {
            workers,
            queue,
            crashes,
            ..
        } = state;
        let mut pace = 0;
        self.collect(&mut workers[at], &mut pace, crashes);
        let back = match workers[at].link.take_back() {
            Ok(Some(back)) => back,
            Ok(None) if !late => return None,
            Ok(None) => Vec::new(),
            Err(error) => {
                tracing::error!(%error, "what a worker had not begun cannot be read any more");
                Vec::new()
            }
        };
        let mut worker = workers.swap_remove(at);
        let begun = worker.flights.len().saturating_sub(back.len());
        let rest = worker.flights.split_off(begun);
        let mut again = Vec::new();
        for (flight, message) in rest.into_iter().zip(back) {
            if flight.cancelled {
                continue;
            }
            match message.forward(&self.arena) {
                Ok(message) => again.push(Request {
                    task: flight.task,
                    message,
                    sink: flight.sink,
                    index: flight.index,
                    lost: flight.lost,
                }),
                Err(error) => flight.tell(worker.pid, Err(error.into())),
            }
        }
        let idle = worker.flights.is_empty();
        for flight in worker
            .flights
            .drain(..)
            .filter(|flight| !flight.cancelled)
            .rev()
        {
            if let Some(request) = self.lose(flight, worker.pid, end) {
                again.insert(0, request);
            }
        }
        for request in again.into_iter().rev() {
            queue.push_front(request);
        }
        if let Err(cause) = end
            && idle
            && !worker.dismissed
        {
            self.crashed(state, cause.clone());
        }
        Some(worker)
    }

    /// What becomes of a request that a worker had begun: it is tried again, or fails.
    fn lose(&self, flight: Flight, pid: u32, end: &End) -> Option<Request> {
        let lost = flight.lost + 1;
        if let Some(message) = flight.spare {
            return Some(Request {
                task: flight.task,
                message: *message,
                sink: flight.sink,
                index: flight.index,
                lost,
            });
        }
        let cause = match end {
            Ok(()) => Cause::of("it left before it had replied"),
            Err(cause) => cause.clone(),
        };
        let task = flight.task;
        let mut text = format!("task {task} was lost with its worker: {}", cause.text);
        if flight.lost > 0 {
            text.push_str(&format!("; that was attempt {lost}"));
        } else if self.options.retry > 0 {
            text.push_str(
                "; it was not tried again, because its arguments hold something that only one process may have",
            );
        }
        let kind = ErrorKind::TaskLost {
            task,
            pid,
            cause: cause.text,
        };
        let mut error = Error::new(kind, text);
        if let Some(process) = cause.process {
            error = error.because(process);
        }
        flight.tell(pid, Err(error));
        None
    }

    /// Takes no more tasks, and gives up what is not finished. Gives the workers, to be ended.
    pub(super) fn close(&self) -> Vec<Worker> {
        let mut state = self.lock();
        state.phase = Phase::Closed;
        self.turn(&mut state);
        let mut workers = std::mem::take(&mut state.workers);
        for worker in &mut workers {
            worker.dismiss();
            if !worker.flights.is_empty() {
                worker.running.leave_alone();
            }
            for flight in worker.flights.drain(..).filter(|flight| !flight.cancelled) {
                flight.tell(worker.pid, Err(closed()));
            }
        }
        self.dispatch(&mut state);
        state.wake_followers();
        drop(state);
        self.keeper.notify_all();
        ring(&self.bell);
        workers
    }
}
