//! Why nobody is left on the other side, as far as that was said.

use std::time::Duration;

use shm_core::failure::PeerFailure;

use super::{CAUSE_PATIENCE, CONSUMERS, Channel, DEATH_PATIENCE, NOT_FULL, PRODUCERS};
use crate::error::{Error, ErrorKind};
use crate::wait::{Deadline, wait_patiently};

impl Channel {
    pub(super) fn why_drained(&self, deadline: Deadline) -> Error {
        if self.says_more_than_drained() {
            return self.why_gone(PRODUCERS, "waiting for a message", deadline);
        }
        self.drained()
    }

    /// Whether a holder that died may have been about to put: then say why it died rather than that all is well.
    pub(super) fn says_more_than_drained(&self) -> bool {
        let died = self.object.bereaved().is_some() && self.object.supervisor().is_some();
        died || self.object.failure().is_some()
    }

    pub(super) fn drained(&self) -> Error {
        Error::new(
            ErrorKind::Closed,
            format!("{} is closed and empty", self.object),
        )
    }

    /// Why nobody is left on side `end`. Where a supervisor is about to say why, it is given a moment, except by who must
    /// not wait at all. Who waits for a time gives it that moment at most beyond it.
    #[cold]
    pub fn why_gone(&self, end: u64, doing: &str, deadline: Deadline) -> Error {
        if let Some(error) = self.said(doing) {
            return error;
        }
        if deadline.is_now() {
            return self
                .departed(end, doing)
                .unwrap_or_else(|| self.nothing_said(end, doing));
        }
        let after_a_death = deadline
            .left()
            .map_or(DEATH_PATIENCE, |left| left.min(DEATH_PATIENCE));
        // What is known about a death may come to be known only during the first wait.
        for patience in [CAUSE_PATIENCE, after_a_death] {
            if !self.is_worth_waiting(patience) {
                break;
            }
            let answer = wait_patiently(&self.object, NOT_FULL, patience, |_| {
                let said = self.said(doing).or_else(|| self.departed(end, doing));
                let said = said.or_else(|| self.nothing_more_to_say(end));
                said.map(Err::<(), _>)
            });
            if let Some(Err(error)) = answer {
                return error;
            }
        }
        self.nothing_said(end, doing)
    }

    /// As [`why_gone`](Self::why_gone) for who has waited so long already; `None`: wait a bit longer.
    #[cfg(feature = "tokio")]
    pub(super) fn why_gone_after(&self, end: u64, doing: &str, waited: Duration) -> Option<Error> {
        if let Some(error) = self.said(doing) {
            return Some(error);
        }
        let patience = match waited < CAUSE_PATIENCE {
            true => CAUSE_PATIENCE,
            false => DEATH_PATIENCE,
        };
        if self.is_worth_waiting(patience) && waited < CAUSE_PATIENCE + DEATH_PATIENCE {
            let said = self.departed(end, doing);
            return said.or_else(|| self.nothing_more_to_say(end));
        }
        Some(self.nothing_said(end, doing))
    }

    /// Whether a supervisor may still say something, for that long.
    fn is_worth_waiting(&self, patience: Duration) -> bool {
        let known = patience == CAUSE_PATIENCE || self.object.bereaved().is_some();
        known && self.object.supervisor().is_some()
    }

    /// Who had died with its end in hand, as it seemed, had returned in order.
    fn nothing_more_to_say(&self, end: u64) -> Option<Error> {
        (end == PRODUCERS && !self.says_more_than_drained()).then(|| self.drained())
    }

    fn said(&self, doing: &str) -> Option<Error> {
        let failure = self.object.failure()?;
        Some(Error::peer_failed(failure, doing))
    }

    fn departed(&self, end: u64, doing: &str) -> Option<Error> {
        let (rank, pid) = self.object.departed().filter(|_| end == CONSUMERS)?;
        let cause = "returned, and with it went the last receiver of the queue".into();
        let failure = PeerFailure {
            rank,
            pid,
            name: String::new(),
            cause,
        };
        Some(Error::peer_failed(failure, doing))
    }

    /// Nobody said why in time.
    fn nothing_said(&self, end: u64, doing: &str) -> Error {
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
