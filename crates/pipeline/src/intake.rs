//! Where a process gets its items from: a queue, in the order in which they come or in that of their numbers.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use mp_queue::{Deadline, ErrorKind as QueueErrorKind, Receiver};
use serde::{Deserialize, Serialize};
use shm_core::clock::now_ns;
use shm_core::message::Incoming;
use shm_core::patience::Patience;

use crate::board::{Help, State};
use crate::error::{Error, ErrorKind, Result};
use crate::home::Home;
use crate::input::{Blank, Input};
use crate::item::Item;
use crate::ledger::{Ledger, Receipt};
use crate::order::Order;
use crate::wire::{self, Slim};

/// In which order a process gets its items.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Sequence {
    /// As they come.
    AsTheyCome,
    /// By their numbers. Place holders tell of what ended on its way, but not of what a killed process had in hand, or what
    /// was given up where a queue was full: so whoever supervises the run tells this process when nothing before what it
    /// keeps back can come any more, and also when it keeps slots that others need to go on. Of items so many may be on
    /// their way at once.
    ByNumber { ahead: u64 },
}

/// What came.
#[derive(Debug)]
pub(crate) enum Next {
    /// An item, where the caller wants it.
    Item,
    /// Nothing, until the time that was given.
    Nothing,
    /// A place holder, which the next step is to get as well.
    Gone,
    /// No more can come.
    End,
}

/// A wait that is longer than this is used to send time cards home.
const SOON: Duration = Duration::from_millis(5);

/// So soon whoever supervises a run ends it when a process has failed.
const FAILURES_ARE_TOLD: Duration = Duration::from_secs(10);

/// See the module.
pub(crate) struct Intake {
    lane: u32,
    from: Receiver<Item>,
    writers: Vec<u32>,
    sequence: Sequence,
    /// Unless they are taken as they come.
    order: Option<Order>,
    ledger: Ledger,
    /// What comes before all else.
    backlog: Vec<Item>,
    /// What came, read where it was put.
    message: Incoming,
    /// For the next input: made before there is a message.
    blank: Option<Blank>,
    ended: bool,
}

impl Intake {
    pub(crate) fn new(
        (lane, from, writers): (u32, Receiver<Item>, Vec<u32>),
        sequence: Sequence,
        ledger: Ledger,
        backlog: Vec<Item>,
    ) -> Self {
        Self {
            lane,
            from,
            writers,
            sequence,
            order: (sequence != Sequence::AsTheyCome).then(Order::default),
            ledger,
            backlog,
            message: Incoming::default(),
            blank: None,
            ended: false,
        }
    }

    /// The next item, into `place`, waiting until `until` at most. What was only just written costs more to move than to write.
    pub(crate) fn next(
        &mut self,
        home: &Arc<Home>,
        until: Option<Instant>,
        place: &mut Option<Input>,
    ) -> Result<Next> {
        loop {
            if let Some(order) = &mut self.order
                && let Some((item, receipt, asked)) = order.take(self.ended)
            {
                if item.gone {
                    home.note_gone(item.id, item.portion());
                    return Ok(Next::Gone);
                }
                match kept(home, item, asked, receipt) {
                    // Its card says so.
                    Err(error) if *error.kind() == ErrorKind::Lost => continue,
                    input => {
                        *place = Some(input?);
                        return Ok(Next::Item);
                    }
                }
            }
            if self.ended {
                return Ok(Next::End);
            }
            // Where nobody else needs to know of what is slim, no item is made of it first.
            let is_direct = self.order.is_none() && self.ledger.is_none();
            if is_direct && self.blank.is_none() {
                self.blank = Some(Blank::new(home));
            }
            let asked = now_ns();
            let item = match self.backlog.pop() {
                Some(item) => Ok(item),
                None => match self.get(home, until) {
                    Ok(true) => {
                        // The blank stays for the next one where this is no slim message.
                        if is_direct
                            && let Some(slim) = Slim::of(&self.message)
                            && let Some(blank) = self.blank.take()
                        {
                            let slim = slim?;
                            let input = place.insert(Input::of_slim(blank, &slim, asked));
                            input.open(slim.place, &mut self.message)?;
                            return Ok(Next::Item);
                        }
                        wire::came(&mut self.message)
                    }
                    Ok(false) => {
                        self.be_helped(home)?;
                        continue;
                    }
                    Err(error) => Err(error),
                },
            };
            let item = match item {
                Ok(item) => item,
                Err(error) if error.is_closed() => {
                    self.look_for_end(home)?;
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
                Some(order) if Order::numbers(&item) => order.keep(home, (item, receipt, asked)),
                _ if item.gone => {
                    home.note_gone(item.id, item.portion());
                    return Ok(Next::Gone);
                }
                _ => match Input::new(home, item, asked, receipt) {
                    Err(error) if *error.kind() == ErrorKind::Lost => {}
                    input => {
                        *place = Some(input?);
                        return Ok(Next::Item);
                    }
                },
            }
        }
    }

    /// Nobody can put any more, so all who did have returned; or else they have failed, or were ended with the run. A stage
    /// that took that for the end of its input would finish what it holds, or not, as it happens. Who failed is told by its own
    /// failure, which ends the run soon.
    ///
    /// # Errors
    /// When the run is ended before its time.
    fn look_for_end(&self, home: &Home) -> Result<()> {
        let mut wait = Patience::new(FAILURES_ARE_TOLD);
        while !home.board.ends_early() {
            if self.writers.iter().all(|&rank| home.board.is_done(rank)) {
                return Ok(());
            }
            if wait.is_over(Instant::now()) {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Err(Error::new(
            ErrorKind::Interrupted,
            "the run is ended before its time",
        ))
    }

    /// Does what whoever supervises the run says, who sees more.
    fn be_helped(&mut self, home: &Home) -> Result<()> {
        let (Some(order), Sequence::ByNumber { ahead }) = (&mut self.order, self.sequence) else {
            return Ok(());
        };
        let lossy = home.board.is_lossy();
        let may_come = !lossy || order.stalled() < ahead;
        match home.board.help(home.rank) {
            None => {}
            Some(Help::MakeRoom) => order.make_room(home)?,
            Some(Help::MakeRoomOrPass) if order.kept().1 > 0 && may_come => {
                order.make_room(home)?;
            }
            Some(Help::MakeRoomOrPass) if !lossy => {}
            Some(Help::MakeRoomOrPass | Help::Pass) => order.pass_over(),
        }
        Ok(())
    }

    /// The next message of the queue, to where messages are read; `false`: there is help.
    fn get(&mut self, home: &Home, until: Option<Instant>) -> mp_queue::Result<bool> {
        match self.from.take_into(Deadline::Now, &mut self.message) {
            Err(error) if *error.kind() == QueueErrorKind::Empty => self.wait(home, until),
            answer => answer.map(|()| true),
        }
    }

    fn wait(&mut self, home: &Home, until: Option<Instant>) -> mp_queue::Result<bool> {
        let kept = self.order.as_ref().map_or((0, 0), Order::kept);
        home.board.set_kept(home.rank, kept, until.is_some());
        // Who goes on at that time by itself is in no knot, unless it may be helped out of it.
        let waits = match until {
            Some(_) if kept.0 == 0 => State::Pauses,
            _ => State::WaitsForInput(self.lane),
        };
        home.enter(waits);
        // Time cards go home while there is nothing else to do, but not before each of many short waits.
        let left = || until.map(|until| until.saturating_duration_since(Instant::now()));
        let soon = left().map_or(SOON, |left| left.min(SOON));
        let keeps_back = self.order.is_some();
        let (from, message) = (&self.from, &mut self.message);
        let mut take = |deadline| take_waiting((from, message), deadline, home, waits, keeps_back);
        match take(Deadline::after(soon)) {
            Err(error) if *error.kind() == QueueErrorKind::TimedOut => home.flush(),
            answer => return answer,
        }
        let Some(left) = left() else {
            return take(Deadline::Never);
        };
        home.board.show(home.rank, waits);
        take(Deadline::after(left))
    }
}

/// Takes the next message, for a process that shows on the board that it waits: it is shown as pausing before it takes
/// anything, so that whoever sees it wait after the queue was empty knows that it has nothing. `false`: there is [`Help`], which
/// only who keeps items back may get.
///
/// # Errors
/// As [`Receiver::get_timeout`].
fn take_waiting(
    (from, message): (&Receiver<Item>, &mut Incoming),
    deadline: Deadline,
    home: &Home,
    waits: State,
    keeps_back: bool,
) -> mp_queue::Result<bool> {
    let board = &home.board;
    let is_helped = || {
        let is_helped = keeps_back && {
            // Between what was set before this wait was woken, and what it sees.
            fence(Ordering::SeqCst);
            board.help(home.rank).is_some()
        };
        board.show(home.rank, State::Pauses);
        is_helped
    };
    let in_vain = || board.show(home.rank, waits);
    from.take_unless(deadline, message, is_helped, in_vain)
}

/// An input of what was kept back.
fn kept(home: &Arc<Home>, item: Item, asked: u64, receipt: Option<Receipt>) -> Result<Input> {
    let places = item.shares.iter();
    let places: Vec<_> = places
        .map(|share| (share.place(), share.is_part()))
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

#[cfg(test)]
mod tests;
