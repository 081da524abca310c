//! What happened to the processes that an object belongs to, written into the object so that its waiters learn it.

use core::sync::atomic::{AtomicBool, Ordering};
use std::fmt;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::cells::Owner;
use crate::layout::object;
use crate::object::Object;
use crate::participant::table::{read_text, write_text};

const NONE: u64 = 0;
const WRITING: u64 = 1;
const VALID: u64 = 2;

/// Which process of a context failed first, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerFailure {
    /// Its rank in the context; [`UNKNOWN_RANK`](Self::UNKNOWN_RANK) for a process of no context.
    pub rank: u32,
    /// Its process id.
    pub pid: u32,
    /// Its name, where it has one.
    pub name: String,
    /// The cause, as a sentence ("was killed by SIGKILL").
    pub cause: String,
}

impl PeerFailure {
    /// The rank of a process that belongs to no context.
    pub const UNKNOWN_RANK: u32 = u32::MAX;
}

/// A process as every message names it: `process "eat.1" (pid 4711)`, or `the process with pid 4711` where it has no name.
#[derive(Clone, Copy, Debug)]
pub struct Named<'a>(pub &'a str, pub u32);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self("", pid) => write!(f, "the process with pid {pid}"),
            Self(name, pid) => write!(f, "process {name:?} (pid {pid})"),
        }
    }
}

impl fmt::Display for PeerFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", Named(&self.name, self.pid), self.cause)
    }
}

impl std::error::Error for PeerFailure {}

static UNREPORTED: Mutex<Option<String>> = Mutex::new(None);
/// Whether there may be one: asked after each task of a pool.
static ANY_UNREPORTED: AtomicBool = AtomicBool::new(false);

/// Notes an error that the code which met it could not return, such as one that ended a `for` loop over a queue. In a
/// spawned process, the first one makes the function's success a failure, so that it is not overlooked.
pub fn note_unreported(error: String) {
    let mut unreported = UNREPORTED.lock();
    unreported.get_or_insert(error);
    // Release: whoever sees it and takes the lock finds the error.
    ANY_UNREPORTED.store(true, Ordering::Release);
}

/// The first error that nobody was told, once.
#[must_use]
#[inline]
pub fn take_unreported() -> Option<String> {
    if !ANY_UNREPORTED.load(Ordering::Acquire) {
        return None;
    }
    let mut unreported = UNREPORTED.lock();
    ANY_UNREPORTED.store(false, Ordering::Relaxed);
    unreported.take()
}

impl Object {
    /// Writes down that the context this object belongs to has failed, and wakes whoever waits. The first
    /// failure stays.
    pub fn record_failure(&self, failure: &PeerFailure) {
        let state = self.header(object::FAILURE);
        let me = self.arena().me();
        let writing = WRITING | (u64::from(me.row) + 1) << 8 | u64::from(me.epoch) << 24;
        let seen = state.load(Ordering::Acquire);
        // What somebody began to write who died over it is written anew.
        let abandoned = seen & 0xff == WRITING && seen != writing && {
            let row = ((seen >> 8) as u16).wrapping_sub(1);
            let epoch = (seen >> 24) as u16;
            !self.arena().is_present(Owner { row, epoch })
        };
        if (seen == NONE || abandoned)
            && state
                .compare_exchange(seen, writing, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        {
            self.header(object::FAILURE_WHO).store(
                u64::from(failure.rank) | (u64::from(failure.pid) << 32),
                Ordering::Relaxed,
            );
            let text = self.base() + object::FAILURE_TEXT;
            write_text(
                self.arena().segment(),
                text,
                object::FAILURE_TEXT_WORDS,
                // A name has no line break (the system would not take it), a cause may have some.
                &format!("{}\n{}", failure.name, failure.cause),
            );
            // Release: who sees VALID sees the record.
            state.store(VALID, Ordering::Release);
        }
        self.notify_all();
    }

    /// The first failure of the context this object belongs to.
    #[must_use]
    pub fn failure(&self) -> Option<PeerFailure> {
        if self.header(object::FAILURE).load(Ordering::Acquire) != VALID {
            return None;
        }
        let who = self.header(object::FAILURE_WHO).load(Ordering::Relaxed);
        let text = self.base() + object::FAILURE_TEXT;
        let text = read_text(self.arena().segment(), text, object::FAILURE_TEXT_WORDS);
        let (name, cause) = text.split_once('\n').unwrap_or(("", &text));
        Some(PeerFailure {
            rank: who as u32,
            pid: (who >> 32) as u32,
            name: name.to_owned(),
            cause: cause.to_owned(),
        })
    }

    /// Writes down that a process of the context returned in order, for the message of a queue that nobody reads
    /// any more. That it did not die with what it still held then, its own row says ([`note_return`](crate::Arena::note_return)).
    pub fn record_departure(&self, rank: u32, pid: u32) {
        // Release pairs with `departed`; nothing but the word itself is read there.
        self.header(object::DEPARTED).store(
            (u64::from(rank) + 1) | (u64::from(pid) << 32),
            Ordering::Release,
        );
        self.notify_all();
    }

    /// The rank and pid of the process of the context that returned last.
    #[must_use]
    pub fn departed(&self) -> Option<(u32, u32)> {
        // Acquire: see `record_departure`.
        let word = self.header(object::DEPARTED).load(Ordering::Acquire);
        (word as u32)
            .checked_sub(1)
            .map(|rank| (rank, (word >> 32) as u32))
    }

    /// Forgets what became of an earlier context that had this object, when a new one takes it over.
    pub fn begin_anew(&self) {
        for field in [object::FAILURE, object::DEPARTED, object::BEREAVED] {
            self.header(field).store(0, Ordering::Release);
        }
    }

    /// Names the participant whose supervisor will record failures in this object.
    pub fn set_supervisor(&self, owner: Owner) {
        self.header(object::SUPERVISOR).store(
            (u64::from(owner.row) + 1) | (u64::from(owner.epoch) << 16),
            Ordering::Release,
        );
    }

    /// The participant that supervises a context this object belongs to, if it is still there.
    #[must_use]
    pub fn supervisor(&self) -> Option<Owner> {
        let word = self.header(object::SUPERVISOR).load(Ordering::Acquire);
        let row = (word as u16).checked_sub(1)?;
        let owner = Owner {
            row,
            epoch: (word >> 16) as u16,
        };
        self.arena().is_present(owner).then_some(owner)
    }

    /// The pid of a participant that died while it held this object: of the first, if there were several.
    #[must_use]
    pub fn bereaved(&self) -> Option<u32> {
        match self.header(object::BEREAVED).load(Ordering::Acquire) {
            0 => None,
            pid => Some(pid as u32),
        }
    }

    /// Notes that participant `pid` died while it held this object. The first one stays.
    pub(crate) fn set_bereaved(&self, pid: u32) {
        // Release pairs with `bereaved`.
        let _ = self.header(object::BEREAVED).compare_exchange(
            0,
            pid.into(),
            Ordering::Release,
            Ordering::Relaxed,
        );
    }
}
