//! The account of a run: which inputs are done, which were dropped, which failed, from the time cards that come home.

use std::collections::{HashMap, HashSet};

use crate::item::{FULL, Member};
use crate::time_card::Outcome;

/// How many inputs of a run came to what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct Items {
    /// Offered to the first step, or made by it.
    pub offered: u64,
    /// Handled to the end: by the last step, or by one that made nothing of it.
    pub completed: u64,
    /// Dropped, wholly or in part, as the policy of a queue or ring says, or since nobody wanted them any more.
    pub dropped: u64,
    /// Not finished when the run ended, or lost with a process that failed.
    pub failed: u64,
    /// Delivered again after a process failed; counts deliveries.
    pub redelivered: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Account {
    items: Items,
    /// Inputs of which some weight is back.
    open: HashMap<u64, Open>,
    /// Inputs that are done, while a redelivered item may come back a second time.
    done: Option<HashSet<u64>>,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    left: u128,
    worst: Outcome,
}

impl Account {
    /// An account of a run whose processes may be replaced, or not.
    pub(crate) fn new(replaceable: bool) -> Self {
        Self {
            done: replaceable.then(HashSet::new),
            ..Self::default()
        }
    }

    pub(crate) fn offer(&mut self, inputs: u64) {
        self.items.offered += inputs;
    }

    pub(crate) fn redelivered(&mut self) {
        self.items.redelivered += 1;
    }

    /// Takes back the weight of what ended somewhere.
    pub(crate) fn end(&mut self, ended: &[Member], outcome: Outcome) {
        for &Member { root, weight } in ended {
            if self.done.as_ref().is_some_and(|done| done.contains(&root)) {
                continue;
            }
            let open = self.open.entry(root).or_insert(Open {
                left: FULL,
                worst: Outcome::Ok,
            });
            open.left = open.left.saturating_sub(weight);
            match (open.worst, outcome) {
                (_, Outcome::Failed) => open.worst = Outcome::Failed,
                (Outcome::Ok, Outcome::Dropped) => open.worst = Outcome::Dropped,
                _ => {}
            }
            if open.left > 0 {
                continue;
            }
            match open.worst {
                Outcome::Dropped => self.items.dropped += 1,
                Outcome::Failed => self.items.failed += 1,
                Outcome::Ok | Outcome::Redelivered => self.items.completed += 1,
            }
            self.open.remove(&root);
            if let Some(done) = &mut self.done {
                done.insert(root);
            }
        }
    }

    pub(crate) fn items(&self) -> Items {
        self.items
    }

    /// Counts what was offered and is not known to be done as failed: it can't come back any more. How many that is.
    pub(crate) fn write_off(&mut self) -> u64 {
        let items = &mut self.items;
        let known = items.completed + items.dropped + items.failed;
        let lost = items.offered.saturating_sub(known);
        items.failed += lost;
        self.open.clear();
        lost
    }

    /// The account at the end of a run. What was offered and never came back failed with the run, or was dropped when the
    /// steps behind it had enough.
    pub(crate) fn close(&mut self, failed: bool) -> Items {
        let items = &mut self.items;
        let known = items.completed + items.dropped + items.failed;
        let missing = items.offered.saturating_sub(known);
        if failed || self.done.is_some() {
            items.failed += missing;
        } else {
            items.dropped += missing;
        }
        *items
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(root: u64, weight: u128) -> Member {
        Member { root, weight }
    }

    #[test]
    fn an_input_is_done_when_all_of_it_is_back_in_any_order() {
        let mut account = Account::new(false);
        account.end(&[part(1, FULL / 4), part(0, FULL)], Outcome::Ok);
        account.offer(3);
        assert_eq!(account.items().completed, 1);
        account.end(&[part(1, FULL / 2)], Outcome::Dropped);
        account.end(&[part(1, FULL / 4)], Outcome::Ok);
        let items = account.close(true);
        assert_eq!((items.completed, items.dropped, items.failed), (1, 1, 1));
    }

    #[test]
    fn what_is_written_off_is_not_missed_again() {
        let mut account = Account::new(true);
        account.offer(3);
        account.end(&[part(0, FULL), part(1, FULL / 2)], Outcome::Ok);
        assert_eq!((account.write_off(), account.write_off()), (2, 0));
        let items = account.close(false);
        assert_eq!((items.completed, items.failed), (1, 2));
    }

    #[test]
    fn what_is_delivered_twice_counts_once() {
        let mut account = Account::new(true);
        account.offer(1);
        account.end(&[part(5, FULL)], Outcome::Ok);
        account.end(&[part(5, FULL)], Outcome::Ok);
        let items = account.close(false);
        assert_eq!((items.completed, items.failed), (1, 0));
    }
}
