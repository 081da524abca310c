//! The counts of a process or step: what it took, what became of that, and what it gave.

use std::fmt;
use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

use crate::time_card::Outcome;

/// Items that a process took, or all processes of a step did, and what became of them: `taken` is the sum of `done`,
/// `redelivered`, `failed`, `incomplete`, `dropped` and `unfinished`. An item that is delivered again is taken again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[serde(default)]
pub struct Counts {
    /// Deliveries of items: taken from a queue, or made, by a first step without a client.
    pub taken: u64,
    /// The stage handled them.
    pub done: u64,
    /// Their process failed, and they were delivered again.
    pub redelivered: u64,
    /// Their process failed, and they were not; also those that it had when its failure ended the run.
    pub failed: u64,
    /// Segments that waited in vain for the others of their item.
    pub incomplete: u64,
    /// There was no slot for what would have been made of them, or nobody wanted it any more.
    pub dropped: u64,
    /// Their process had them when it was ended for another reason.
    pub unfinished: u64,
    /// Outputs.
    pub published: u64,
    /// Outputs that were dropped on the way to the next step, as the policy of a full queue says.
    pub dropped_behind: u64,
}

impl Counts {
    /// Counts a time card. One of an item that the process never took is of an output that was dropped behind it.
    pub(crate) fn note(&mut self, outcome: Outcome, was_taken: bool) {
        match outcome {
            Outcome::Ok => self.done += 1,
            Outcome::Redelivered => self.redelivered += 1,
            Outcome::Failed => self.failed += 1,
            Outcome::Incomplete => self.incomplete += 1,
            Outcome::Dropped if was_taken => self.dropped += 1,
            Outcome::Dropped => self.dropped_behind += 1,
        }
    }

    /// Once all cards are noted: what the processes say of themselves.
    pub(crate) fn close(&mut self, taken: u64, published: u64) {
        let known = self.done + self.redelivered + self.failed + self.incomplete + self.dropped;
        // One that was killed when it had written a card, and had not said so yet, has one more of them; and who makes its
        // items itself takes none.
        self.taken = taken.max(known);
        self.unfinished = self.taken - known;
        self.published = published;
    }

    /// What became of those that were not simply done, by its name.
    pub(crate) fn others(&self) -> [(u64, &'static str); 5] {
        [
            (self.redelivered, "redelivered"),
            (self.failed, "failed"),
            (self.incomplete, "incomplete"),
            (self.dropped, "dropped"),
            (self.unfinished, "unfinished"),
        ]
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.taken += other.taken;
        self.done += other.done;
        self.redelivered += other.redelivered;
        self.failed += other.failed;
        self.incomplete += other.incomplete;
        self.dropped += other.dropped;
        self.unfinished += other.unfinished;
        self.published += other.published;
        self.dropped_behind += other.dropped_behind;
    }
}

/// How the counts add up, where more is to be told than that all was done: `201 in = 200 done + 1 redelivered`.
impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let others = self.others();
        let mut parts = others.iter().filter(|(count, _)| *count > 0).peekable();
        let mut separator = "";
        if parts.peek().is_some() {
            write!(f, "{} in = {} done", self.taken, self.done)?;
            for (count, what) in parts {
                write!(f, " + {count} {what}")?;
            }
            separator = "; ";
        }
        if self.dropped_behind > 0 {
            write!(
                f,
                "{separator}{} of its outputs dropped",
                self.dropped_behind
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_add_up_and_say_so() {
        let mut counts = Counts::default();
        for _ in 0..5 {
            counts.note(Outcome::Ok, true);
        }
        counts.note(Outcome::Redelivered, true);
        counts.note(Outcome::Dropped, true);
        counts.note(Outcome::Dropped, false);
        let mut whole = counts;
        whole.close(9, 5);
        assert_eq!(
            whole.to_string(),
            "9 in = 5 done + 1 redelivered + 1 dropped + 2 unfinished; 1 of its outputs dropped"
        );
        // A card more than the process said.
        counts.close(6, 5);
        assert_eq!((counts.taken, counts.unfinished), (7, 0));
        whole += counts;
        assert_eq!((whole.taken, whole.done, whole.published), (16, 10, 10));
        let mut plain = Counts::default();
        plain.note(Outcome::Ok, true);
        plain.close(1, 1);
        assert_eq!(plain.to_string(), "");
    }
}
