//! Cancelling: what waits is taken away, what runs is ended with its worker, and nothing else is touched.

use std::sync::Arc;

use shm_core::turn::Revoked;

use super::crew::{Crew, State, Worker, cancelled};
use super::sink::Sink;

impl Crew {
    /// Cancels the request of this number and sink. `false` when it is done, or cannot be stopped any more.
    pub(super) fn cancel(&self, task: u64) -> bool {
        let mut state = self.lock();
        self.turn(&mut state);
        if let Some(at) = state.queue.iter().position(|request| request.task == task) {
            if let Some(request) = state.queue.remove(at) {
                request.tell(Err(cancelled(task)));
            }
            return true;
        }
        let found = state.workers.iter_mut().find_map(|worker| {
            let at = worker
                .flights
                .iter()
                .position(|flight| flight.task == task && !flight.cancelled)?;
            Some((worker, at))
        });
        let Some((worker, at)) = found else {
            return false;
        };
        let stopped = match worker.link.revoke(worker.flights[at].position) {
            Revoked::InTime => true,
            Revoked::Over => false,
            Revoked::Begun => self.launcher.can_kill() && worker.halt_after(at),
        };
        if stopped {
            let pid = worker.pid;
            worker.flights[at].cancelled = true;
            worker.flights[at].tell(pid, Err(cancelled(task)));
        }
        stopped
    }

    /// Gives up on all requests of a sink that were not begun; what runs is left alone, and nobody hears of it.
    pub(super) fn abandon(&self, sink: &Arc<Sink>) {
        let mut state = self.lock();
        let State { queue, workers, .. } = &mut *state;
        queue.retain(|request| !Arc::ptr_eq(&request.sink, sink));
        for worker in workers {
            let Worker { flights, link, .. } = worker;
            for flight in flights.iter_mut() {
                if Arc::ptr_eq(&flight.sink, sink) {
                    let _ = link.revoke(flight.position);
                    flight.cancelled = true;
                }
            }
        }
    }
}

impl Worker {
    /// Kills it in the middle of flight `at`, so that nothing else is hurt: what comes after is not begun. `false`, and
    /// nothing is done, when it is through with that flight.
    fn halt_after(&mut self, at: usize) -> bool {
        for flight in self.flights.iter().skip(at + 1) {
            match self.link.halt(flight.position) {
                Revoked::InTime => {}
                // Cancelled before, or about to be passed over.
                Revoked::Over if flight.cancelled => {}
                // It went on to this one. A worker that meets what was halted leaves, and what it left is given to others.
                Revoked::Begun | Revoked::Over => {
                    self.leaving = true;
                    return false;
                }
            }
        }
        self.dismiss();
        true
    }
}
