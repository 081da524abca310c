//! What the operations on cells answer.

use crate::word::Owner;

/// The outcome of [`Cells::claim`](super::Cells::claim).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[must_use]
pub enum Claim {
    /// The cell of this position is the caller's: write, then publish.
    At(u64),
    /// The next cell holds a message, or one that is being taken out.
    Full,
    /// The next cell is in the hands of this owner. As good as full; if it lasts, name the owner.
    Pending(Owner),
    /// The queue is closed.
    Closed,
    /// The words contradict each other: something else wrote over them.
    Damaged,
}

/// The outcome of [`Cells::take`](super::Cells::take).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[must_use]
pub enum Take {
    /// The message of this position is the caller's: read, then release or hand back.
    At {
        /// Its position.
        pos: u64,
        /// Somebody had it before and died or gave it back, so it may be out of order.
        handed_back: bool,
    },
    /// There is no message.
    Empty,
    /// What comes next, or the last thing to wait for in a closed queue, is in the hands of this
    /// owner. As good as empty; if it lasts, name the owner.
    Pending(Owner),
    /// Closed, and no message is left or can come back.
    Drained,
    /// The words contradict each other: something else wrote over them.
    Damaged,
}

/// Whom a release must wake.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[must_use = "a closed queue's consumers stay parked unless all are woken"]
pub enum Wake {
    /// One producer, and by passing on one consumer.
    One,
    /// Everybody: the queue is closed, and this release may be what made it drained.
    All,
}

/// What a reap changed.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Reaped {
    /// Claims that were voided; nobody had seen a message there.
    pub voided: u32,
    /// Messages that are ready again.
    pub handed_back: u32,
    /// Cells left alone because their word contradicts the tail.
    pub damaged: u32,
}
