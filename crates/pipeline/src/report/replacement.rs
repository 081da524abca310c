//! Each process that failed and was replaced, on a line of its own.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::text::{plural, time};
use crate::replaced::Replaced;

/// So many items are told by their numbers; of more it is told how many they are.
const ITEMS_TOLD: usize = 5;

/// A process that failed and was replaced.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Replacement {
    /// Its step.
    pub step: String,
    /// Its name.
    pub process: String,
    /// Its rank in the run.
    pub rank: u32,
    /// The process id that it had.
    pub pid: u32,
    /// When it was seen to have failed, in seconds since all processes were ready; less than 0 before that.
    pub at_s: f64,
    /// Why, in one line, without whom it is about.
    pub cause: String,
    /// The items that it had, by their numbers.
    pub items: Vec<u64>,
    /// Of these, those that were delivered again.
    pub redelivered: u64,
    /// Of these, those that count as failed.
    pub failed: u64,
}

impl Replacement {
    /// Those of a run, in the order of time: of its places, each with its rank, the step and the process's name, and with
    /// those that were replaced there. All processes were ready at `start_ns`.
    pub(crate) fn all<'a>(
        start_ns: u64,
        places: impl IntoIterator<Item = (u32, &'a str, &'a str, &'a [Replaced])>,
    ) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for (rank, step, process, replaced) in places {
            all.extend(replaced.iter().map(|one| Self {
                step: step.to_owned(),
                process: process.to_owned(),
                rank,
                pid: one.pid,
                at_s: (one.at_ns as f64 - start_ns as f64) / 1e9,
                cause: one.in_short(process),
                items: one.items.clone(),
                redelivered: one.redelivered,
                failed: one.failed,
            }));
        }
        all.sort_by(|one, other| one.at_s.total_cmp(&other.at_s));
        all
    }

    /// When that was, for people.
    pub(super) fn at(&self) -> String {
        match self.at_s {
            before if before < 0.0 => "before the start".to_owned(),
            at => time(at * 1e9),
        }
    }

    /// What became of what it had.
    pub(super) fn outcome(&self) -> String {
        let count = self.redelivered + self.failed;
        let all_are_told = self.items.len() as u64 == count && self.items.len() <= ITEMS_TOLD;
        let (items, are) = match (&self.items[..], count) {
            (_, 0) => return "it had no item".to_owned(),
            ([item], 1) => (format!("item {item}"), "was"),
            (some, _) if all_are_told => {
                let numbers: Vec<_> = some.iter().map(u64::to_string).collect();
                (format!("items {}", numbers.join(", ")), "were")
            }
            (_, 1) => ("1 item".to_owned(), "was"),
            (_, count) => (plural(count, "item"), "were"),
        };
        match (self.redelivered, self.failed) {
            (_, 0) => format!("{items} {are} delivered again"),
            (0, _) => format!("{items} {are} counted as failed"),
            (again, failed) => {
                format!("{items}: {again} delivered again, {failed} counted as failed")
            }
        }
    }
}

/// `1.50 s: step "infer", rank 1 (process "infer.0", pid 4711) was killed by SIGKILL; item 17 was delivered again`
impl fmt::Display for Replacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            step,
            process,
            rank,
            pid,
            cause,
            ..
        } = self;
        let (at, outcome) = (self.at(), self.outcome());
        write!(
            f,
            "{at}: step {step:?}, rank {rank} (process {process:?}, pid {pid}) {cause}; {outcome}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::Replacement;

    #[test]
    fn what_became_of_its_items_is_told_with_their_numbers_where_they_are_few() {
        let told = |items: &[u64], redelivered, failed| {
            let one = Replacement {
                step: "infer".to_owned(),
                process: "infer.0".to_owned(),
                rank: 1,
                pid: 90,
                at_s: -0.25,
                cause: "panicked: no".to_owned(),
                items: items.to_vec(),
                redelivered,
                failed,
            };
            one.to_string()
        };
        let about =
            "before the start: step \"infer\", rank 1 (process \"infer.0\", pid 90) panicked: no; ";
        for (items, redelivered, failed, outcome) in [
            (&[][..], 0, 0, "it had no item"),
            (&[7], 1, 0, "item 7 was delivered again"),
            (&[7, 9], 0, 2, "items 7, 9 were counted as failed"),
            (&[1, 2, 3, 4, 5, 6], 6, 0, "6 items were delivered again"),
            // Directories of older versions do not say which.
            (&[], 1, 0, "1 item was delivered again"),
            (&[], 0, 2, "2 items were counted as failed"),
        ] {
            assert_eq!(
                told(items, redelivered, failed),
                format!("{about}{outcome}")
            );
        }
    }
}
