//! The turn of a request: one word by which whoever works and whoever asked decide whether it is begun.
//!
//! ```text
//!                 begin                            end
//!   OPEN(p) ------------------> BEGUN(p) --------------------> OPEN(p + capacity)
//!      |   revoke                                              ^
//!      +------------> REVOKED(p) ------------------------------+  passed over
//!      |   halt
//!      +------------> HALTED(p)    whoever works leaves
//! ```
//!
//! One compare-and-swap decides, so a request is begun or taken away and never both. The position in the word keeps an
//! attempt that comes late from hitting the next request in the same place.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::sync::{Atomic64, Memory};

const OPEN: u64 = 0;
const BEGUN: u64 = 1;
const REVOKED: u64 = 2;
const HALTED: u64 = 3;

const fn word(position: u64, state: u64) -> u64 {
    position << 2 | state
}

/// The word of one place in a lane of requests.
#[derive(Debug)]
pub struct Turn<'a, M: Memory>(pub &'a M::U64);

/// What became of an attempt to take a turn away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revoked {
    /// It will not be begun.
    InTime,
    /// It was begun.
    Begun,
    /// It is over, or was taken away before.
    Over,
}

/// What is found by whoever wants to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// It may.
    Mine,
    /// It passes the request over.
    Revoked,
    /// It leaves.
    Halted,
}

impl<M: Memory> Turn<'_, M> {
    /// The first request that comes to this place is the one at `position`. Before others know the word.
    pub fn init(&self, position: u64) {
        self.0.store(word(position, OPEN), Relaxed);
    }

    /// Begins the request at `position`, once that is there.
    pub fn begin(&self, position: u64) -> Found {
        match self.take(position, BEGUN) {
            Ok(_) => Found::Mine,
            Err(now) if now == word(position, HALTED) => Found::Halted,
            Err(_) => Found::Revoked,
        }
    }

    /// Takes the request at `position` away, to be passed over.
    pub fn revoke(&self, position: u64) -> Revoked {
        self.take_away(position, REVOKED)
    }

    /// As [`revoke`](Self::revoke), and whoever works is to leave rather than go on.
    pub fn halt(&self, position: u64) -> Revoked {
        self.take_away(position, HALTED)
    }

    /// Opens the place for the request at `next`; before the reply, after which that may come.
    pub fn end(&self, next: u64) {
        // Release: whoever finds the place open for the next one sees what was done for this one.
        self.0.store(word(next, OPEN), Release);
    }

    fn take_away(&self, position: u64, state: u64) -> Revoked {
        match self.take(position, state) {
            Ok(_) => Revoked::InTime,
            Err(now) if now == word(position, BEGUN) => Revoked::Begun,
            Err(_) => Revoked::Over,
        }
    }

    fn take(&self, position: u64, state: u64) -> Result<u64, u64> {
        let open = word(position, OPEN);
        // Acquire and release on both sides: whoever comes second sees what the first one did before.
        self.0
            .compare_exchange(open, word(position, state), AcqRel, Acquire)
    }
}
