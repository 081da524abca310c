//! Vector clocks: for each stream, how many of its operations happened before.

use super::STREAMS;

/// What an operation, an event or the host comes after. Component `s` is a sequence number of stream `s`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Clock([u32; STREAMS]);

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let reached = self
            .0
            .iter()
            .enumerate()
            .filter(|(_, sequence)| **sequence > 0);
        f.debug_map().entries(reached).finish()
    }
}

impl Clock {
    pub(crate) fn set(&mut self, stream: usize, sequence: u32) {
        self.0[stream] = sequence;
    }

    /// Whether this comes after that operation.
    pub(crate) fn covers(&self, stream: usize, sequence: u32) -> bool {
        self.0
            .get(stream)
            .is_some_and(|&reached| reached >= sequence)
    }

    /// Comes after everything that `other` comes after, too.
    pub(crate) fn join(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).max(*theirs);
        }
    }
}
