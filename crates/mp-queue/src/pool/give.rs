//! Giving requests to workers: from where they lie, if a worker is free, or later, by whoever leads.

use std::sync::Arc;

use shm_core::message::Outgoing;

use super::crew::{Crew, Flight, Options, Phase, Request, State, Worker, closed};
use super::link::DEPTH;
use super::sink::{Arrived, Sink};
use crate::error::Result;
use crate::wait::Deadline;

/// How much work a worker is given ahead, if the last tasks are a measure: long beside what a wake costs, short beside
/// what a person notices when it is stuck behind a slow task.
const AHEAD_NS: u64 = 200_000;

/// Below this one more task ahead is worth it in any case: the worker would idle between two tasks otherwise.
const SHORT_NS: u64 = 5_000_000;

/// What a worker was given, and the copy of it that is kept, if it may be tried again. `None`: it takes no more.
type Given = Option<Option<Box<Outgoing>>>;

impl Crew {
    /// How many requests a worker may have at once.
    pub(super) fn depth(&self, state: &State) -> usize {
        if let Some(prefetch) = self.options.prefetch {
            return prefetch + 1;
        }
        match state.pace {
            0 => 1,
            pace => ((AHEAD_NS / pace) as usize).clamp(1 + usize::from(pace < SHORT_NS), DEPTH),
        }
    }

    /// Gives requests to workers, or keeps them until there is one.
    pub(super) fn submit(&self, requests: impl IntoIterator<Item = Request>) {
        let mut state = self.lock();
        state.queue.extend(requests);
        self.dispatch(&mut state);
        self.tell_the_keeper(&state);
    }

    /// Has one request done and waits for its outcome, with the lock taken twice: once until it is with a worker, once when
    /// its reply is there.
    pub(super) fn call(
        &self,
        task: u64,
        message: &mut Outgoing,
        sink: &Arc<Sink>,
    ) -> Result<Arrived> {
        self.is_outside()?;
        let mut state = self.lock();
        state.takes_more()?;
        self.accept(&mut state, task, message, sink);
        self.tell_the_keeper(&state);
        self.wait_from(state, Deadline::Never, Some(sink), |_| sink.pop())
            .unwrap_or_else(|| Err(closed()))
    }

    /// Gives a request to a worker from where it lies, or lets it wait for one.
    fn accept(&self, state: &mut State, task: u64, message: &mut Outgoing, sink: &Arc<Sink>) {
        let depth = self.depth(state);
        let (index, lost) = (0, 0);
        if state.queue.is_empty()
            && let Some(worker) = self.least_busy(&mut state.workers, depth)
        {
            match self.give(worker, message, lost) {
                Ok(Some(spare)) => {
                    let sink = Arc::clone(sink);
                    worker.take_off(task, sink, index, spare, lost);
                    return;
                }
                Ok(None) => {}
                Err(error) => {
                    let (pid, outcome) = (0, Err(error));
                    sink.push(Arrived {
                        index,
                        task,
                        pid,
                        outcome,
                    });
                    return;
                }
            }
        }
        state.queue.push_back(Request {
            task,
            message: std::mem::take(message),
            sink: Arc::clone(sink),
            index,
            lost,
        });
        self.dispatch(state);
    }

    fn least_busy<'w>(&self, workers: &'w mut [Worker], depth: usize) -> Option<&'w mut Worker> {
        workers
            .iter_mut()
            .filter(|worker| worker.has_room(&self.options, depth))
            .min_by_key(|worker| worker.flights.len())
    }

    /// Puts a message into a worker's lane. Gives the copy that is kept, if it may be tried again; `None` if the worker takes
    /// no more, and the message is as it was.
    fn give(&self, worker: &mut Worker, message: &mut Outgoing, lost: u32) -> Result<Given> {
        // What is exclusive in it has no copy; such a request is not tried again.
        let spare = (lost < self.options.retry)
            .then(|| message.duplicate().ok().map(Box::new))
            .flatten();
        if worker.link.ask(message)? {
            return Ok(Some(spare));
        }
        worker.leaving = true;
        Ok(None)
    }

    /// Gives out what waits, as far as workers have room.
    pub(super) fn dispatch(&self, state: &mut State) {
        let depth = self.depth(state);
        let State { workers, queue, .. } = state;
        while !queue.is_empty() {
            let Some(worker) = self.least_busy(workers, depth) else {
                break;
            };
            let Some(mut request) = queue.pop_front() else {
                break;
            };
            match self.give(worker, &mut request.message, request.lost) {
                Ok(Some(spare)) => {
                    let Request {
                        task,
                        sink,
                        index,
                        lost,
                        ..
                    } = request;
                    worker.take_off(task, sink, index, spare, lost);
                }
                Ok(None) => queue.push_front(request),
                Err(error) => request.tell(Err(error)),
            }
        }
        if state.crashes.given_up && state.workers.is_empty() {
            let error = state.crashes.error();
            for request in state.queue.drain(..) {
                request.tell(Err(error.again()));
            }
        }
        if state.phase == Phase::Closed {
            for request in state.queue.drain(..) {
                request.tell(Err(closed()));
            }
        }
    }
}

impl Worker {
    fn has_room(&self, options: &Options, depth: usize) -> bool {
        !self.leaving
            && self.flights.len() < depth
            && options.max_tasks.is_none_or(|most| self.position < most)
    }

    /// Notes that it was given a request, which is in its lane.
    fn take_off(
        &mut self,
        task: u64,
        sink: Arc<Sink>,
        index: u64,
        spare: Option<Box<Outgoing>>,
        lost: u32,
    ) {
        self.flights.push_back(Flight {
            task,
            sink,
            index,
            position: self.position,
            spare,
            lost,
            cancelled: false,
        });
        self.position += 1;
    }
}
