//! Why nobody is left on the other side, as far as that was said.

use std::cell::Cell;

use shm_core::failure::PeerFailure;

use super::{CAUSE_PATIENCE, CONSUMERS, Channel, DEATH_PATIENCE, NOT_FULL, PRODUCERS};
use crate::error::{Error, ErrorKind};
use crate::wait::{Deadline, WaitPolicy, wait};

impl Channel {
    pub(super) fn why_drained(&self) -> Error {
        // A holder that died may have been about to put: say why it died rather than that all is well.
        let died = self.object.bereaved().is_some() && self.object.supervisor().is_some();
        if died || self.object.failure().is_some() {
            return self.why_gone(PRODUCERS, "waiting for a message");
        }
        Error::new(
            ErrorKind::Closed,
            format!("{} is closed and empty", self.object),
        )
    }

    /// Why nobody is left on side `end`. Where a supervisor is about to say why, it is given a moment.
    #[cold]
    pub fn why_gone(&self, end: u64, doing: &str) -> Error {
        let said = || {
            self.object
                .failure()
                .map(|failure| Error::peer_failed(failure, doing))
        };
        let departed = || {
            let (rank, pid) = self.object.departed().filter(|_| end == CONSUMERS)?;
            let cause = "returned, and with it went the last receiver of the queue".into();
            Some(Error::peer_failed(
                PeerFailure {
                    rank,
                    pid,
                    name: String::new(),
                    cause,
                },
                doing,
            ))
        };
        if let Some(error) = said() {
            return error;
        }
        // What is known about a death may come to be known only during the first wait.
        for patience in [CAUSE_PATIENCE, DEATH_PATIENCE] {
            let worth_it = patience == CAUSE_PATIENCE || self.object.bereaved().is_some();
            if !worth_it || self.object.supervisor().is_none() {
                break;
            }
            let patience = Deadline::after(patience);
            let park = WaitPolicy::Park;
            let answer = wait(
                &self.object,
                NOT_FULL,
                park,
                patience,
                &Cell::new(None),
                || true,
                |_| said().or_else(departed).map(Err::<(), _>),
            );
            if let Some(Err(error)) = answer {
                return error;
            }
        }
        if let Some(pid) = self.object.bereaved() {
            let cause = "died while it held the queue".into();
            return Error::peer_failed(
                PeerFailure {
                    rank: PeerFailure::UNKNOWN_RANK,
                    pid,
                    name: String::new(),
                    cause,
                },
                doing,
            );
        }
        let side = if end == CONSUMERS {
            "receiver"
        } else {
            "sender"
        };
        Error::new(
            ErrorKind::Closed,
            format!("{doing}: every {side} of {} is gone", self.object),
        )
    }
}
