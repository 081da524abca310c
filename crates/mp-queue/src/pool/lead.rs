//! Leading and following: how threads wait for outcomes without a thread between them and the workers.

use std::cell::Cell;
use std::sync::Arc;

use parking_lot::Condvar;

use shm_core::deadlock::{WaitFor, Waiting};
use shm_core::object::{Lookout, Object};

use super::crew::{Crew, Leader, State};
use super::locked::Locked;
use super::sink::Sink;
use crate::error::Result;
use crate::wait::{Deadline, SLICE, wait};

impl Crew {
    /// Waits until `done` gives something, leading or following; `None` when the deadline is over. A follower looks when
    /// something came into `sink`.
    ///
    /// # Errors
    /// `Deadlock` when nobody can end this wait any more: the tasks wait for what only this process could do.
    pub(super) fn wait_for<T>(
        &self,
        deadline: Deadline,
        sink: Option<&Sink>,
        done: impl FnMut(&mut State) -> Option<T>,
    ) -> Option<Result<T>> {
        self.wait_from(self.lock(), deadline, sink, done)
    }

    /// [`wait_for`](Self::wait_for), from where the lock is held already.
    pub(super) fn wait_from<'c, T>(
        &'c self,
        mut state: Locked<'c>,
        deadline: Deadline,
        sink: Option<&Sink>,
        mut done: impl FnMut(&mut State) -> Option<T>,
    ) -> Option<Result<T>> {
        loop {
            self.turn(&mut state);
            if let Some(answer) = done(&mut state) {
                return Some(Ok(answer));
            }
            if deadline.is_now() {
                return None;
            }
            if state.leader != Leader::Caller {
                // The keeper sees that the lead is not its own any more.
                state.leader = Leader::Caller;
                // What the next reply can come through: looked at without the lock while this thread spins.
                let mut watched = state
                    .workers
                    .iter()
                    .filter(|worker| !worker.flights.is_empty())
                    .map(|worker| Arc::clone(worker.link.replies()));
                // Mostly there is one, and the others need no memory then.
                let first = watched.next();
                let others: Vec<Arc<Object>> = watched.collect();
                drop(state);
                let first = first.as_ref().map(|lane| lane.lookout(0));
                let others: Vec<_> = others.iter().map(|lane| lane.lookout(0)).collect();
                let lead = Lead::of(self);
                let answer = wait(
                    &self.bell,
                    0,
                    self.options.policy,
                    deadline,
                    &Cell::new(None),
                    || {
                        first.as_ref().is_some_and(Lookout::glance)
                            || others.iter().any(Lookout::glance)
                    },
                    |_| {
                        let mut state = self.lock();
                        self.turn(&mut state);
                        let answer = done(&mut state)?;
                        lead.lay_down(&mut state);
                        Some(Ok(answer))
                    },
                );
                drop(lead);
                match answer {
                    // A worker that is being replaced is not there to be seen.
                    Some(Err(error)) if self.is_in_motion() => {
                        tracing::debug!(%error, "not so: a worker is being replaced");
                        state = self.lock();
                        continue;
                    }
                    answer => return answer,
                }
            }
            match self.follow(&mut state, deadline, sink, &mut done) {
                Followed::Done(answer) => return Some(Ok(answer)),
                Followed::TimedOut => return None,
                Followed::Lead => {}
            }
        }
    }

    /// Whether workers end or are started.
    fn is_in_motion(&self) -> bool {
        let state = self.lock();
        !state.ended.is_empty() || self.lacks_a_worker(&state)
    }

    fn follow<T>(
        &self,
        state: &mut Locked<'_>,
        deadline: Deadline,
        sink: Option<&Sink>,
        done: &mut impl FnMut(&mut State) -> Option<T>,
    ) -> Followed<T> {
        let place = Arc::new(Condvar::new());
        state.followers.push_back(Arc::clone(&place));
        if let Some(sink) = sink {
            sink.set_waiter(Some(Arc::clone(&place)));
        }
        let mut late = false;
        let mut noted: Option<Waiting> = None;
        let followed = loop {
            state.wake_told();
            if let Some(answer) = done(state) {
                break Followed::Done(answer);
            }
            if late {
                break Followed::TimedOut;
            }
            if state.leader != Leader::Caller {
                break Followed::Lead;
            }
            late = match deadline {
                Deadline::At(at) => place.wait_until(&mut state.guard, at).timed_out(),
                Deadline::Never => {
                    if place.wait_for(&mut state.guard, SLICE).timed_out() {
                        // The leader looks for a deadlock; this thread must not seem to do something else.
                        let seq = self.bell.event(0).seq();
                        let noted = noted.get_or_insert_with(|| Waiting::begin(&self.arena));
                        noted.on(WaitFor::Change {
                            object: &self.bell,
                            event: 0,
                            seq,
                        });
                    }
                    false
                }
                Deadline::Now => true,
            };
        };
        state.followers.retain(|other| !Arc::ptr_eq(other, &place));
        if let Some(sink) = sink {
            sink.set_waiter(None);
        }
        // The lead may just have been offered to this thread, which does not take it.
        if !matches!(followed, Followed::Lead) && state.leader == Leader::Nobody {
            self.offer_the_lead(state);
        }
        followed
    }

    fn offer_the_lead(&self, state: &State) {
        if !state.wake_a_follower() {
            self.tell_the_keeper(state);
        }
    }
}

enum Followed<T> {
    Done(T),
    TimedOut,
    Lead,
}

/// The lead; dropped, it is somebody else's, if it was not laid down before.
struct Lead<'a> {
    crew: &'a Crew,
    is_over: Cell<bool>,
}

impl<'a> Lead<'a> {
    fn of(crew: &'a Crew) -> Self {
        let is_over = Cell::new(false);
        Self { crew, is_over }
    }

    fn lay_down(&self, state: &mut State) {
        if !self.is_over.replace(true) {
            state.leader = Leader::Nobody;
            self.crew.offer_the_lead(state);
        }
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        if !self.is_over.get() {
            self.lay_down(&mut self.crew.lock());
        }
    }
}
