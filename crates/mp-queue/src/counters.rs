//! What a queue has to tell of itself, counted where it costs nothing: puts and gets are the positions of its cells, and
//! the rest is counted only by those who spin, sleep or wake anyway.

use std::sync::atomic::Ordering;

use shm_core::object::Object;
use shm_core::permits::Permit;

/// Words of an object that keeps count.
pub(crate) const WORDS: u64 = 6;
/// Waits that began to spin.
pub(crate) const SPINS: u64 = 0;
/// Sleeps.
pub(crate) const PARKS: u64 = 1;
/// Wakes that went to the system.
pub(crate) const WAKES: u64 = 2;
/// Messages that a dead consumer was in the middle of taking. The third last word: the arena's own code adds to it.
const HANDED_BACK: u64 = 3;
/// Consumers that died. The last word but one: the arena's own code adds to it.
const DEAD: u64 = 4;
/// Messages that dead consumers had out of the queue and their programs did not have yet; tasks of dead consumers whose words
/// others have taken over. The last word: the arena's own code adds to it.
const LOST: u64 = 5;

/// Adds one, if the object keeps count.
#[cold]
pub(crate) fn note(object: &Object, counter: u64) {
    use shm_core::object::ObjectKind::{Queue, Ring};
    if matches!(object.kind(), Queue | Ring) && object.word_count() >= WORDS {
        // Relaxed: a statistic.
        object.word(counter).fetch_add(1, Ordering::Relaxed);
    }
}

/// What has happened to a queue since it was made, by all processes together. Read one after the other, so the numbers
/// of a queue in use need not fit each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Messages put. A position that a producer died over counts, too.
    pub put: u64,
    /// Messages taken, likewise.
    pub got: u64,
    /// Messages that were lost with a consumer that was killed while it took them: out of the queue, and not yet in its
    /// program's hands (of the first eight threads of each process that take). Of a [`JoinableQueue`](crate::JoinableQueue)
    /// all tasks that consumers had in hand when they died.
    pub lost: u64,
    /// Messages that a consumer was in the middle of taking when it was killed, and that went back into the queue.
    pub handed_back: u64,
    /// Processes that died with the getting side in hand. What their programs had in hand died with them, at most one message
    /// of each that takes one at a time. Whoever needs to know how many those were uses a
    /// [`JoinableQueue`](crate::JoinableQueue).
    pub dead_consumers: u64,
    /// Waits that began by spinning.
    pub spins: u64,
    /// Sleeps. A long wait sleeps anew every half a second.
    pub parks: u64,
    /// Wakes that were sent to sleepers, each a system call.
    pub wakes_sent: u64,
    /// Puts and gets that needed no wake, since nobody slept.
    pub wakes_elided: u64,
}

/// Reads them.
pub(crate) fn stats(object: &Object) -> Stats {
    let (put, got) = object.traffic();
    let word = |index| {
        if object.word_count() >= WORDS {
            object.word(index).load(Ordering::Relaxed)
        } else {
            0
        }
    };
    let wakes_sent = word(WAKES);
    let dead: u64 = object
        .permits(1)
        .iter()
        .map(|count| match count {
            Permit::Free(Some(left)) => u64::from(left.tag),
            _ => 0,
        })
        .sum();
    Stats {
        put,
        got,
        lost: word(LOST) + dead,
        handed_back: word(HANDED_BACK),
        dead_consumers: word(DEAD),
        spins: word(SPINS),
        parks: word(PARKS),
        wakes_sent,
        wakes_elided: (put + got).saturating_sub(wakes_sent),
    }
}
