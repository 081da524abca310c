//! A failure of one child, as one of several among which the first by time counts.

use crate::error::ErrorKind;

/// A failure and when it happened, on the clock that all processes share.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) at: u64,
    /// The process says itself that another one is the reason.
    pub(crate) follows: bool,
    pub(crate) kind: ErrorKind,
    /// The error itself, where it can be told: the name of its type, and its bytes.
    pub(crate) typed: Option<(String, Vec<u8>)>,
}

impl Failure {
    pub(crate) fn at(at: u64, kind: ErrorKind) -> Failure {
        Failure {
            at,
            follows: false,
            kind,
            typed: None,
        }
    }

    /// What comes first is the reason for what comes after.
    pub(crate) fn order(&self) -> (bool, u64) {
        (self.follows, self.at)
    }
}
