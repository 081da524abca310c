//! Where a process gets its items from: a queue, in the order in which they come or in that of their numbers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mp_queue::{Deadline, ErrorKind as QueueErrorKind, Receiver};
use shm_core::clock::now_ns;

use crate::board::State;
use crate::error::{ErrorKind, Result};
use crate::home::Home;
use crate::input::Input;
use crate::item::{FIRST_NEW, Item};
use crate::knot::{self, Feeds};
use crate::ledger::{Ledger, Receipt};
use crate::wire::{self, Came};

/// What came.
pub(crate) enum Next {
    Item(Input),
    /// Nothing, until the time that was given.
    Nothing,
    /// A place holder, which the next step is to get as well.
    Gone,
    /// No more can come.
    End,
}

/// A wait that is longer than this is used to send time cards home.
const SOON: Duration = Duration::from_millis(5);

/// How often who keeps back items looks whether those before them can still come.
const LOOK: Duration = Duration::from_millis(10);

type Noted = (Item, Option<Receipt>, u64);

/// See the module.
pub(crate) struct Intake {
    lane: u32,
    from: Receiver<Item>,
    order: Option<Order>,
    /// Where items may be lost: who may put into which lane, to see what cannot come any more.
    feeds: Option<Feeds>,
    ledger: Ledger,
    /// What comes before all else.
    backlog: Vec<Item>,
    ended: bool,
}

/// Items that wait for those before them, by number and part.
#[derive(Default)]
struct Order {
    next: (u64, u32),
    waiting: BTreeMap<(u64, u32), Noted>,
}

impl Intake {
    pub(crate) fn new(
        lane: u32,
        from: Receiver<Item>,
        ordered: Option<Option<Feeds>>,
        ledger: Ledger,
        backlog: Vec<Item>,
    ) -> Self {
        Self {
            lane,
            from,
            order: ordered.is_some().then(Order::default),
            feeds: ordered.flatten(),
            ledger,
            backlog,
            ended: false,
        }
    }

    /// The next item, waiting until `until` at most.
    pub(crate) fn next(&mut self, home: &Arc<Home>, until: Option<Instant>) -> Result<Next> {
        loop {
            if let Some(order) = &mut self.order
                && let Some((item, receipt, asked)) = order.take(self.ended)
            {
                if item.gone {
                    home.note_gone(item.id, item.part, item.parts);
                    return Ok(Next::Gone);
                }
                match Input::new(home, item, asked, receipt) {
                    // Its card says so.
                    Err(error) if *error.kind() == ErrorKind::Lost => continue,
                    input => return Ok(Next::Item(input?)),
                }
            }
            if self.ended {
                return Ok(Next::End);
            }
            let asked = now_ns();
            let keeps_back = |order: &Order| !order.waiting.is_empty();
            let stuck = self
                .feeds
                .as_ref()
                .filter(|_| self.order.as_ref().is_some_and(keeps_back));
            let item = match (self.backlog.pop(), stuck) {
                (Some(item), _) => Ok(Came::Item(item)),
                (None, None) => self.get(home, until),
                (None, Some(feeds)) => match self.get_unless_stuck(feeds, home, until) {
                    Ok(None) => {
                        self.order.as_mut().into_iter().for_each(Order::pass_over);
                        continue;
                    }
                    Ok(Some(came)) => Ok(came),
                    Err(error) => Err(error),
                },
            };
            let item = match item {
                // Nobody else needs to know of it: no item is made of it first.
                Ok(Came::Slim(slim)) if self.order.is_none() && self.ledger.is_none() => {
                    return Ok(Next::Item(Input::of_slim(home, slim, asked)?));
                }
                Ok(came) => Item::from(came),
                Err(error) if error.is_closed() => {
                    self.ended = true;
                    continue;
                }
                Err(error) if *error.kind() == QueueErrorKind::TimedOut => {
                    return Ok(Next::Nothing);
                }
                Err(error) => return Err(error.into()),
            };
            let receipt = self.ledger.note(&item);
            match &mut self.order {
                // One with a number of its own nobody waits for: it comes behind what it was made of.
                Some(order) if item.id < FIRST_NEW => {
                    for share in &item.shares {
                        home.board.hold(share.rank, share.slot, home.rank);
                    }
                    order.put((item, receipt, asked));
                }
                _ if item.gone => {
                    home.note_gone(item.id, item.part, item.parts);
                    return Ok(Next::Gone);
                }
                _ => match Input::new(home, item, asked, receipt) {
                    Err(error) if *error.kind() == ErrorKind::Lost => {}
                    input => return Ok(Next::Item(input?)),
                },
            }
        }
    }

    fn get(&self, home: &Home, until: Option<Instant>) -> mp_queue::Result<Came> {
        match wire::take(&self.from, Deadline::Now) {
            Err(error) if *error.kind() == QueueErrorKind::Empty => self.wait(home, until),
            answer => answer,
        }
        .inspect(|_| home.board.count_taken(self.lane))
    }

    /// As [`get`](Self::get) for who keeps back items: `None` when what they wait for can't come, since those who could
    /// bring it wait for the slots that are kept back.
    ///
    /// Place holders tell of what ended on its way, but not of what a killed process had in hand, or what was given up
    /// where a queue was full.
    fn get_unless_stuck(
        &self,
        feeds: &Feeds,
        home: &Home,
        until: Option<Instant>,
    ) -> mp_queue::Result<Option<Came>> {
        let mut seen = Vec::new();
        loop {
            home.enter(State::WaitsForInput(self.lane));
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let slice = left.map_or(LOOK, |left| left.min(LOOK));
            match wire::take(&self.from, Deadline::after(slice)) {
                Err(error) if *error.kind() == QueueErrorKind::TimedOut => home.flush(),
                answer => {
                    return answer
                        .inspect(|_| home.board.count_taken(self.lane))
                        .map(Some);
                }
            }
            if left.is_some_and(|left| left <= slice) {
                return Err(mp_queue::Error::new(
                    QueueErrorKind::TimedOut,
                    "nothing came before the time at which the stage is to be called",
                ));
            }
            let mut knot = knot::find(&home.board, feeds, false);
            let is_in_it = knot.iter().any(|&(rank, _)| rank == home.rank);
            knot.retain(|&(rank, _)| rank != home.rank);
            if is_in_it && knot == seen && !knot.is_empty() {
                return Ok(None);
            }
            seen = knot;
        }
    }

    fn wait(&self, home: &Home, until: Option<Instant>) -> mp_queue::Result<Came> {
        // Time cards go home while there is nothing else to do, but not before each of many short waits.
        home.enter(State::WaitsForInput(self.lane));
        let left = || until.map(|until| until.saturating_duration_since(Instant::now()));
        let soon = left().map_or(SOON, |left| left.min(SOON));
        match wire::take(&self.from, Deadline::after(soon)) {
            Err(error) if *error.kind() == QueueErrorKind::TimedOut => home.flush(),
            answer => return answer,
        }
        match left() {
            Some(left) => {
                home.enter(State::Pauses);
                wire::take(&self.from, Deadline::after(left))
            }
            None => wire::take(&self.from, Deadline::Never),
        }
    }
}

impl Order {
    fn put(&mut self, noted: Noted) {
        let key = (noted.0.id, noted.0.part);
        self.waiting.insert(key, noted);
    }

    /// Waits for those before the first no longer.
    fn pass_over(&mut self) {
        if let Some((&first, _)) = self.waiting.first_key_value() {
            self.next = first;
        }
    }

    /// The next in order; when no more can come, whatever is next.
    fn take(&mut self, ended: bool) -> Option<Noted> {
        let first = self.waiting.first_entry()?;
        // What is before the next has been waited for already: an item that was delivered twice.
        if *first.key() > self.next && !ended {
            return None;
        }
        let (item, receipt, asked) = first.remove();
        if (item.id, item.part) >= self.next {
            self.next = if item.part + 1 < item.parts {
                (item.id, item.part + 1)
            } else {
                (item.id.saturating_add(1), 0)
            };
        }
        Some((item, receipt, asked))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        ] {
            put(&mut order, id, part, gone);
            take(&mut order, false);
        }
        take(&mut order, true);
        assert_eq!(
            seen,
            [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1), (4, 0)]
        );
    }
}
