//! Items that wait for those before them, where a step is to get them in the order of their numbers.
//!
//! An item may come in several portions: its segments, and one copy for each reader where a step before delivers to every
//! one. What is behind an item has its turn when all of the item has come: every segment, of each the copies from all
//! readers, or place holders for what ended on its way. Which portion something is of travels with it, so a portion that
//! comes twice, from a process that was killed and from its replacement, stands for no other.

use std::collections::{BTreeMap, VecDeque};

use crate::error::{Error, ErrorKind, Result};
use crate::home::Home;
use crate::item::{ALL, FIRST_NEW, Item, NO_SLOT, Portion, Share};
use crate::ledger::Receipt;

/// An item with its place in the ledger, and when it was asked for.
pub(crate) type Noted = (Item, Option<Receipt>, u64);

/// An item's number, and how far in its segments.
type At = (u64, u64);

/// See the module.
#[derive(Default)]
pub(crate) struct Order {
    /// All before it has come.
    next: At,
    /// What has come of the item in question, as far as it goes beyond that.
    come: Vec<Portion>,
    /// One of a number may have come twice: from a process that was killed and from its replacement, or on two ways.
    waiting: BTreeMap<At, VecDeque<Noted>>,
    /// How many items wait, and how many of those may still be in slots of others.
    kept: usize,
    held: usize,
    /// How many items have come since one had its turn.
    stalled: u64,
    /// What was waited for no longer: from where to where.
    passed: BTreeMap<At, At>,
    late: u64,
}

impl Order {
    /// Whether an item has a place in the order. One with a number of its own nobody waits for: it comes behind what it was
    /// made of.
    pub(crate) fn numbers(item: &Item) -> bool {
        item.id < FIRST_NEW
    }

    /// Keeps an item until its turn, with its slots.
    pub(crate) fn keep(&mut self, home: &Home, noted: Noted) {
        for share in &noted.0.shares {
            home.hold(share.place(), share.is_part());
        }
        if self.put(noted) {
            home.board.set_late(home.rank, self.late);
        }
    }

    /// Whether it comes late.
    fn put(&mut self, noted: Noted) -> bool {
        let key = (noted.0.id, noted.0.portion().segment().0);
        self.kept += 1;
        self.held += usize::from(is_held(&noted.0));
        self.stalled += 1;
        let before = self.passed.range(..=key).next_back();
        let is_late = !noted.0.gone && before.is_some_and(|(_, &to)| key < to);
        self.late += u64::from(is_late);
        self.waiting.entry(key).or_default().push_back(noted);
        is_late
    }

    /// How many items wait, and how many of those are still in slots of others, which [`make_room`](Self::make_room) would
    /// give back.
    pub(crate) fn kept(&self) -> (usize, usize) {
        (self.kept, self.held)
    }

    /// How many items have come since one had its turn.
    pub(crate) fn stalled(&self) -> u64 {
        self.stalled
    }

    /// Waits for those before the first no longer.
    pub(crate) fn pass_over(&mut self) {
        if let Some((&first, _)) = self.waiting.first_key_value()
            && first > self.next
        {
            self.passed.insert(self.next, first);
            self.next = first;
            self.come.clear();
        }
    }

    /// Copies what waits in slots of others into memory of its own, and gives the slots back.
    ///
    /// # Errors
    /// When there is no room for that.
    pub(crate) fn make_room(&mut self, home: &Home) -> Result<()> {
        // What is left is none that can be copied.
        self.held = 0;
        for (item, ..) in self.waiting.values_mut().flatten() {
            for share in &mut item.shares {
                let (place, is_part) = (share.place(), share.is_part());
                let copy = match detached(home, share) {
                    Ok(Some(copy)) => copy,
                    Ok(None) => continue,
                    Err(error) if *error.kind() == ErrorKind::Lost => continue,
                    Err(error) => return Err(error),
                };
                home.let_go(place, is_part);
                drop(std::mem::replace(share, copy));
                // After the reference is gone: whoever is woken finds the slot free.
                if let Some(known) = home.upstream.get(place.rank) {
                    known.freed.set();
                }
            }
        }
        Ok(())
    }

    /// The next in order; when no more can come, whatever is next.
    pub(crate) fn take(&mut self, ended: bool) -> Option<Noted> {
        let mut first = self.waiting.first_entry()?;
        let at = *first.key();
        // What is before the next has been waited for already: an item that was delivered twice.
        if at > self.next && !ended {
            return None;
        }
        let taken = first.get_mut().pop_front();
        if first.get().is_empty() {
            first.remove();
        }
        let noted = taken?;
        self.kept -= 1;
        self.held = self.held.saturating_sub(usize::from(is_held(&noted.0)));
        self.stalled = 0;
        if at > self.next {
            self.next = at;
            self.come.clear();
        }
        if at.0 == self.next.0 {
            self.count(noted.0.portion());
        }
        Some(noted)
    }

    /// Notes that this much of the item in question has come.
    fn count(&mut self, portion: Portion) {
        self.come.push(portion);
        loop {
            let at = self.next.1;
            let here = |portion: &&Portion| {
                let (from, to) = portion.segment();
                from <= at && at < to
            };
            // From copy to copy, as long as there is one that goes on where the others end.
            let mut copies = 0;
            while copies < ALL {
                let mut known = self.come.iter().filter(here).map(Portion::copies);
                let Some((_, to)) = known.find(|&(from, to)| from <= copies && copies < to) else {
                    return;
                };
                copies = to;
            }
            let ends = self.come.iter().filter(here);
            let end = ends.map(|portion| portion.segment().1).min();
            let end = end.unwrap_or(ALL);
            if end == ALL {
                self.next = (self.next.0.saturating_add(1), 0);
                self.come.clear();
                return;
            }
            self.next.1 = end;
            self.come.retain(|portion| portion.segment().1 > end);
        }
    }
}

fn is_held(item: &Item) -> bool {
    item.shares.iter().any(Share::is_in_a_slot)
}

/// What is valid of an item's slot, copied into memory of its own; `None` where it is in no slot of the arena.
///
/// # Errors
/// When the arena has no room for it; for a slot that no step before this one has.
fn detached(home: &Home, share: &Share) -> Result<Option<Share>> {
    if !share.is_in_a_slot() {
        return Ok(None);
    }
    let known = home.upstream.get(share.rank).ok_or_else(|| {
        Error::invalid(format!(
            "a slot of process {} arrived, which no step before this one has",
            share.rank
        ))
    })?;
    let store = share.memory.clone().open()?;
    Ok(Some(Share {
        slot: NO_SLOT,
        memory: store.detached(&known.layout, &share.views)?.send()?,
        ..share.clone()
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Puts (number, part, parts, copy, copies) one after the other; what had its turn when.
    fn turns(order: &mut Order, items: &[(u64, u32, u32, u32, u32)]) -> Vec<Vec<(u64, u32, u32)>> {
        let turn = |&(id, part, parts, copy, copies): &(u64, u32, u32, u32, u32)| {
            let item = Item {
                id,
                part,
                parts,
                copy,
                copies,
                ..Item::default()
            };
            order.put((item, None, 0));
            std::iter::from_fn(|| order.take(false))
                .map(|(item, ..)| (item.id, item.part, item.copy))
                .collect()
        };
        items.iter().map(turn).collect()
    }

    #[test]
    fn items_come_in_order_with_their_segments_and_without_those_that_ended() {
        let mut order = Order::default();
        let mut seen = Vec::new();
        let put = |order: &mut Order, id, part, gone| {
            let item = Item {
                id,
                part,
                parts: 2,
                gone,
                ..Item::default()
            };
            order.put((item, None, 0));
        };
        let mut take = |order: &mut Order, ended| {
            while let Some((item, ..)) = order.take(ended) {
                seen.push((item.id, item.part));
            }
        };
        for (id, part, gone) in [
            (1, 0, false),
            (0, 1, false),
            (2, 1, true),
            (0, 0, false),
            (2, 0, true),
            (1, 1, false),
            (4, 0, false),
            (4, 0, false),
        ] {
            put(&mut order, id, part, gone);
            take(&mut order, false);
        }
        take(&mut order, true);
        assert_eq!(
            seen,
            [
                (0, 0),
                (0, 1),
                (1, 0),
                (1, 1),
                (2, 0),
                (2, 1),
                (4, 0),
                (4, 0)
            ]
        );
    }

    #[test]
    fn an_item_has_come_when_the_copies_of_all_readers_have() {
        let mut order = Order::default();
        let come = [
            (0, 0, 1, 1, 3),
            (1, 0, 1, 0, 3),
            (0, 0, 1, 0, 3),
            // A copy that comes twice stands for no other.
            (0, 0, 1, 0, 3),
            (0, 0, 1, 2, 3),
            (1, 0, 1, 2, 3),
            (2, 0, 1, 0, 1),
            (1, 0, 1, 1, 3),
        ];
        assert_eq!(
            turns(&mut order, &come),
            [
                vec![(0, 0, 1)],
                vec![],
                vec![(0, 0, 0)],
                vec![(0, 0, 0)],
                vec![(0, 0, 2), (1, 0, 0)],
                vec![(1, 0, 2)],
                vec![],
                vec![(1, 0, 1), (2, 0, 0)],
            ]
        );
    }

    #[test]
    fn copies_may_be_divided_further_than_others() {
        // One reader ended it whole, the other's was divided in two, one of which went to two readers again.
        let mut order = Order::default();
        let come = [
            (1, 0, 1, 0, 1),
            (0, 0, 1, 1, 2),
            (0, 1, 2, 0, 2),
            (0, 0, 2, 0, 4),
            (0, 0, 2, 1, 4),
        ];
        assert_eq!(
            turns(&mut order, &come),
            [
                vec![],
                vec![(0, 0, 1)],
                vec![],
                vec![(0, 0, 0)],
                vec![(0, 0, 1), (0, 1, 0), (1, 0, 0)],
            ]
        );
    }

    #[test]
    fn what_comes_after_it_was_passed_over_is_late_and_what_comes_twice_is_not() {
        let mut order = Order::default();
        let whole = |id| (id, 0, 1, 0, 0);
        turns(&mut order, &[whole(0), whole(3), whole(4)]);
        assert_eq!((order.kept().0, order.stalled()), (2, 2));
        order.pass_over();
        assert_eq!(turns(&mut order, &[whole(5)]).concat().len(), 3);
        turns(&mut order, &[whole(0), whole(3), whole(5)]);
        assert_eq!(order.late, 0);
        assert_eq!(turns(&mut order, &[whole(2)]), [[(2, 0, 0)]]);
        assert_eq!(order.late, 1);
        assert_eq!((order.kept().0, order.next), (0, (6, 0)));
    }
}
