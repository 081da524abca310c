//! Where a process gets its items from: a queue, in the order in which they come or in that of their numbers.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use mp_queue::{Deadline, ErrorKind as QueueErrorKind, Receiver};
use serde::{Deserialize, Serialize};
use shm_core::clock::now_ns;
use shm_core::message::Incoming;

use crate::board::State;
use crate::error::{ErrorKind, Result};
use crate::home::Home;
use crate::input::Input;
use crate::item::{FIRST_NEW, Item};
use crate::ledger::{Ledger, Receipt};
use crate::wire::{self, Came};

/// In which order a process gets its items.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Sequence {
    /// As they come.
    AsTheyCome,
    /// By their numbers, each of which comes, or a place holder for it.
    ByNumber,
    /// By their numbers, of which some may be lost on the way. Place holders tell of what ended on its way, but not of what a
    /// killed process had in hand, or what was given up where a queue was full: so whoever supervises the run tells this
    /// process when nothing before what it keeps back can come any more.
    ByNumberWithGaps,
}

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

type Noted = (Item, Option<Receipt>, u64);

/// See the module.
pub(crate) struct Intake {
    lane: u32,
    from: Receiver<Item>,
    sequence: Sequence,
    /// Unless they are taken as they come.
    order: Option<Order>,
    ledger: Ledger,
    /// What comes before all else.
    backlog: Vec<Item>,
    ended: bool,
}

/// Items that wait for those before them, by number and part.
#[derive(Default)]
struct Order {
    next: (u64, u32),
    /// One of a number may have come twice: from a process that was killed and from its replacement, or on two ways.
    waiting: BTreeMap<(u64, u32), VecDeque<Noted>>,
}

impl Intake {
    pub(crate) fn new(
        lane: u32,
        from: Receiver<Item>,
        sequence: Sequence,
        ledger: Ledger,
        backlog: Vec<Item>,
    ) -> Self {
        Self {
            lane,
            from,
            sequence,
            order: (sequence != Sequence::AsTheyCome).then(Order::default),
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
                match kept(home, item, asked, receipt) {
                    // Its card says so.
                    Err(error) if *error.kind() == ErrorKind::Lost => continue,
                    input => return Ok(Next::Item(input?)),
                }
            }
            if self.ended {
                return Ok(Next::End);
            }
            let asked = now_ns();
            let item = match self.backlog.pop() {
                Some(item) => Ok(Some(Came::Item(item))),
                None => self.get(home, until),
            };
            let item = match item {
                // Nobody else needs to know of it: no item is made of it first.
                Ok(Some(Came::Slim(slim))) if self.order.is_none() && self.ledger.is_none() => {
                    return Ok(Next::Item(Input::of_slim(home, slim, asked)?));
                }
                Ok(Some(came)) => Item::from(came),
                Ok(None) => {
                    self.order.as_mut().into_iter().for_each(Order::pass_over);
                    continue;
                }
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
                Some(order) if item.id < FIRST_NEW => order.keep(home, (item, receipt, asked)),
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

    /// The next item of the queue; `None`: what those that are kept back wait for can't come.
    fn get(&self, home: &Home, until: Option<Instant>) -> mp_queue::Result<Option<Came>> {
        match wire::take(&self.from, Deadline::Now) {
            Err(error) if *error.kind() == QueueErrorKind::Empty => self.wait(home, until),
            answer => answer.map(Some),
        }
    }

    fn wait(&self, home: &Home, until: Option<Instant>) -> mp_queue::Result<Option<Came>> {
        let keeps = self
            .order
            .as_ref()
            .map_or(0, |order| order.waiting.len())
            .min(match self.sequence {
                Sequence::ByNumberWithGaps => usize::MAX,
                Sequence::AsTheyCome | Sequence::ByNumber => 0,
            });
        home.board.set_kept(home.rank, keeps);
        let waits = State::WaitsForInput(self.lane);
        home.enter(waits);
        // Time cards go home while there is nothing else to do, but not before each of many short waits.
        let left = || until.map(|until| until.saturating_duration_since(Instant::now()));
        let soon = left().map_or(SOON, |left| left.min(SOON));
        match take_waiting(&self.from, Deadline::after(soon), home, waits) {
            Err(error) if *error.kind() == QueueErrorKind::TimedOut => home.flush(),
            answer => return answer,
        }
        let Some(left) = left() else {
            return take_waiting(&self.from, Deadline::Never, home, waits);
        };
        // Who goes on at that time by itself is in no knot, unless it may be helped out of it.
        let waits = if keeps == 0 { State::Pauses } else { waits };
        home.board.show(home.rank, waits);
        take_waiting(&self.from, Deadline::after(left), home, waits)
    }
}

/// As [`wire::take`], for a process that shows on the board that it waits: it is shown as pausing before it takes anything, so
/// that whoever sees it wait after the queue was empty knows that it has nothing. `None`: it was told to wait no longer for
/// what is before the items that it keeps back.
///
/// # Errors
/// As [`wire::take`].
fn take_waiting(
    from: &Receiver<Item>,
    deadline: Deadline,
    home: &Home,
    waits: State,
) -> mp_queue::Result<Option<Came>> {
    let mut message = Incoming::default();
    let board = &home.board;
    let may_pass = || {
        // Between what was set before this wait was woken, and what it sees.
        fence(Ordering::SeqCst);
        let may = board.may_pass(home.rank);
        board.show(home.rank, State::Pauses);
        may
    };
    let in_vain = || board.show(home.rank, waits);
    let taken = from.take_unless(deadline, &mut message, may_pass, in_vain);
    Ok(if taken? {
        Some(wire::came(message)?)
    } else {
        None
    })
}

/// An input of what was kept back.
fn kept(home: &Arc<Home>, item: Item, asked: u64, receipt: Option<Receipt>) -> Result<Input> {
    let places = item.shares.iter();
    let places: Vec<_> = places
        .map(|share| (share.place(), !share.views.is_empty()))
        .collect();
    let input = Input::new(home, item, asked, receipt);
    for (place, is_part) in places {
        // The input holds what was kept; of a part that was one more.
        if is_part || input.is_err() {
            home.let_go(place, is_part);
        }
    }
    input
}

impl Order {
    fn keep(&mut self, home: &Home, noted: Noted) {
        for share in &noted.0.shares {
            home.hold(share.place(), !share.views.is_empty());
        }
        self.put(noted);
    }

    fn put(&mut self, noted: Noted) {
        let key = (noted.0.id, noted.0.part);
        self.waiting.entry(key).or_default().push_back(noted);
    }

    /// Waits for those before the first no longer.
    fn pass_over(&mut self) {
        if let Some((&first, _)) = self.waiting.first_key_value() {
            self.next = first;
        }
    }

    /// The next in order; when no more can come, whatever is next.
    fn take(&mut self, ended: bool) -> Option<Noted> {
        let mut first = self.waiting.first_entry()?;
        // What is before the next has been waited for already: an item that was delivered twice.
        if *first.key() > self.next && !ended {
            return None;
        }
        let taken = first.get_mut().pop_front();
        if first.get().is_empty() {
            first.remove();
        }
        let (item, receipt, asked) = taken?;
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
}
