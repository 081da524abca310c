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
    /// In the hands of a process that failed, and not delivered again; or never whole again, since some of their segments
    /// came to nothing.
    pub failed: u64,
    /// On their way when the run was ended before its time: nothing was wrong with them.
    pub unfinished: u64,
    /// Delivered again after a process failed; counts deliveries.
    pub redelivered: u64,
    /// Came to a step that gets its items [in order](crate::Step::ordered) after others that they should have come before.
    pub late: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Account {
    items: Items,
    /// Inputs of which some weight is back.
    open: HashMap<u64, Open>,
    /// Inputs that are done, while a redelivered item may come back a second time.
    done: Option<HashSet<u64>>,
    /// How many were [written off](Self::write_off).
    written_off: u64,
    /// How many of the open ones can come to nothing good any more, since a part of them was dropped or failed.
    doomed: u64,
    /// How many were never whole again, though no part of them was dropped or had failed.
    incomplete: u64,
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
            let was_good = open.worst == Outcome::Ok;
            match (open.worst, outcome) {
                (_, Outcome::Failed) => open.worst = Outcome::Failed,
                (Outcome::Ok | Outcome::Incomplete, Outcome::Dropped) => {
                    open.worst = Outcome::Dropped;
                }
                (Outcome::Ok, Outcome::Incomplete) => open.worst = Outcome::Incomplete,
                _ => {}
            }
            let worst = open.worst;
            self.doomed += u64::from(was_good && worst != Outcome::Ok);
            if open.left > 0 {
                continue;
            }
            self.doomed -= u64::from(worst != Outcome::Ok);
            match worst {
                Outcome::Dropped => self.items.dropped += 1,
                Outcome::Failed => self.items.failed += 1,
                Outcome::Incomplete => {
                    self.items.failed += 1;
                    self.incomplete += 1;
                }
                Outcome::Ok | Outcome::Redelivered => self.items.completed += 1,
            }
            self.open.remove(&root);
            if let Some(done) = &mut self.done {
                done.insert(root);
            }
        }
    }

    /// What has come to what. Where more is known than was offered, what was written off has come back.
    pub(crate) fn items(&self) -> Items {
        let mut items = self.items;
        let excess = known(&items).saturating_sub(items.offered);
        items.failed -= excess.min(self.written_off);
        items
    }

    /// How much was offered and may still be done.
    pub(crate) fn missing(&self) -> u64 {
        let items = self.items();
        let missing = items.offered.saturating_sub(known(&items));
        missing.saturating_sub(self.doomed)
    }

    /// How much was dropped or has failed, also where a part of it is still held by somebody who waits in vain for the rest.
    pub(crate) fn lost(&self) -> u64 {
        let items = self.items();
        items.dropped + items.failed + self.doomed
    }

    /// How many count as failed since they never were whole again, though all of them came to where it was awaited, or to
    /// nothing.
    pub(crate) fn incomplete(&self) -> u64 {
        self.incomplete
    }

    /// Counts so many of those that are missing as failed, for nobody has them any more. One that comes back all the same
    /// counts as what it came to.
    pub(crate) fn write_off(&mut self, lost: u64) {
        self.items.failed += lost;
        self.written_off += lost;
    }

    /// The account at the end of a run. What was offered and never came back was on its way when the run was ended before its
    /// time, `in_hand` of it with processes that failed; or went with processes that were replaced; or was dropped when the
    /// steps behind it had enough.
    pub(crate) fn close(&mut self, ended_early: bool, in_hand: u64) -> Items {
        let mut items = self.items();
        let missing = items.offered.saturating_sub(known(&items));
        if ended_early {
            let failed = missing.min(in_hand);
            items.failed += failed;
            items.unfinished += missing - failed;
        } else if self.done.is_some() {
            items.failed += missing;
        } else {
            items.dropped += missing;
        }
        items
    }
}

fn known(items: &Items) -> u64 {
    items.completed + items.dropped + items.failed
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
        let items = account.close(true, 1);
        assert_eq!((items.completed, items.dropped, items.failed), (1, 1, 1));
    }

    #[test]
    fn what_was_on_its_way_when_a_run_was_ended_is_unfinished_and_not_failed() {
        for (in_hand, failed, unfinished) in [(0, 0, 3), (2, 2, 1), (9, 3, 0)] {
            for replaceable in [false, true] {
                let mut account = Account::new(replaceable);
                account.offer(4);
                account.end(&[part(0, FULL), part(1, FULL / 2)], Outcome::Ok);
                let items = account.close(true, in_hand);
                assert_eq!(items.completed, 1);
                assert_eq!((items.failed, items.unfinished), (failed, unfinished));
            }
        }
    }

    #[test]
    fn what_is_written_off_is_not_missed_again() {
        let mut account = Account::new(true);
        account.offer(3);
        account.end(&[part(0, FULL), part(1, FULL / 2)], Outcome::Ok);
        assert_eq!(account.missing(), 2);
        account.write_off(2);
        assert_eq!(account.missing(), 0);
        let items = account.close(false, 0);
        assert_eq!((items.completed, items.failed), (1, 2));
    }

    #[test]
    fn what_was_written_off_and_comes_back_counts_once() {
        let mut account = Account::new(true);
        account.offer(3);
        account.end(&[part(1, FULL / 2)], Outcome::Ok);
        account.write_off(2);
        account.end(&[part(0, FULL), part(1, FULL / 2)], Outcome::Ok);
        assert_eq!((account.items().completed, account.items().failed), (2, 1));
        account.end(&[part(2, FULL)], Outcome::Dropped);
        let items = account.close(false, 0);
        assert_eq!((items.completed, items.dropped, items.failed), (2, 1, 0));
    }

    #[test]
    fn what_is_lost_in_part_is_lost_before_the_rest_is_back() {
        let mut account = Account::new(false);
        account.offer(2);
        account.end(&[part(0, FULL / 2)], Outcome::Dropped);
        account.end(&[part(0, FULL / 4), part(1, FULL / 2)], Outcome::Ok);
        assert_eq!((account.lost(), account.missing()), (1, 1));
        assert_eq!(account.items().dropped, 0);
        account.end(&[part(0, FULL / 4)], Outcome::Dropped);
        assert_eq!((account.lost(), account.missing()), (1, 1));
        assert_eq!(account.items().dropped, 1);
        // All of it at once.
        account.end(&[part(2, FULL)], Outcome::Failed);
        account.offer(1);
        assert_eq!((account.lost(), account.missing()), (2, 1));
    }

    #[test]
    fn what_never_is_whole_again_has_failed_unless_it_was_dropped() {
        let mut account = Account::new(false);
        account.offer(3);
        account.end(&[part(0, FULL / 2)], Outcome::Ok);
        account.end(&[part(1, FULL / 2)], Outcome::Incomplete);
        account.end(&[part(1, FULL / 2)], Outcome::Dropped);
        account.end(&[part(2, FULL / 2)], Outcome::Incomplete);
        assert_eq!((account.missing(), account.incomplete()), (1, 0));
        account.end(&[part(0, FULL / 2)], Outcome::Incomplete);
        let items = account.close(false, 0);
        assert_eq!((items.completed, items.failed, items.dropped), (0, 1, 2));
        assert_eq!(account.incomplete(), 1);
    }

    #[test]
    fn what_is_delivered_twice_counts_once() {
        let mut account = Account::new(true);
        account.offer(1);
        account.end(&[part(5, FULL)], Outcome::Ok);
        account.end(&[part(5, FULL)], Outcome::Ok);
        let items = account.close(false, 0);
        assert_eq!((items.completed, items.failed), (1, 0));
    }
}
