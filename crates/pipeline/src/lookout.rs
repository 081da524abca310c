//! What the supervisor of a run looks for: processes that hang, and those that wait for each other.

use std::time::{Duration, Instant};

use shm_core::Arena;
use shm_core::clock::now_ns;

use crate::board::{ENDING, State};
use crate::error::{Error, ErrorKind};
use crate::knot::{self, Parties};
use crate::runner::{ROUND, Runner};
use crate::wiring::Wiring;

/// How often it looks for knots where there may be one that it helps out of.
const SOON: Duration = Duration::from_millis(10);

/// What it has seen.
pub(crate) struct Lookout {
    parties: Parties,
    /// Whether items may be lost, so that others wait for them in vain.
    may_lose: bool,
    looked: Instant,
    /// Processes that wait for each other, as first seen, and when that was.
    knot: Vec<(u32, u64)>,
    since: Instant,
}

impl Lookout {
    pub(crate) fn new(wiring: &Wiring) -> Self {
        let now = Instant::now();
        Self {
            parties: wiring.parties(),
            may_lose: wiring.may_lose(),
            looked: now,
            knot: Vec::new(),
            since: now,
        }
    }
}

impl Runner {
    /// Ends processes that work on one item for longer than they may.
    pub(crate) fn look_for_hangs(&mut self) {
        for rank in 0..self.wiring.seats.len() {
            let Some(limit) = self.wiring.limit(rank) else {
                continue;
            };
            let board = &self.wiring.board;
            if board.state(rank as u32) != State::Working || self.hung[rank].is_some() {
                continue;
            }
            let (since, _) = board.since(rank as u32);
            let worked = Duration::from_nanos(now_ns().saturating_sub(since));
            if worked < limit {
                continue;
            }
            let name = &self.wiring.seats[rank].name;
            let seconds = worked.as_secs_f64();
            let told = match board.item(rank as u32) {
                ENDING => format!("has been ending (finish) for {seconds:.1} s"),
                item => format!("has worked on item {item} for {seconds:.1} s"),
            };
            let told = format!("process {rank} ({name:?}) {told}; its step's limit is {limit:?}");
            let alone = self
                .crews
                .iter()
                .position(|crew| !crew.over && crew.ranks == [rank]);
            match alone {
                Some(crew) => {
                    self.hung[rank] = Some(told);
                    self.crews[crew].context.kill();
                }
                None => self.fail(Error::new(ErrorKind::TimedOut, told)),
            }
        }
    }

    /// Looks for processes that wait for each other. Where one of them keeps back items, since those before them may still
    /// come, it is told that they can't. Where the client waits for items that are nowhere any more, they are counted as
    /// lost. Else the run ends.
    pub(crate) fn look_for_knots(&mut self, lookout: &mut Lookout) {
        let pause = if lookout.may_lose { SOON } else { ROUND };
        if self.error.is_some() || lookout.looked.elapsed() < pause {
            return;
        }
        lookout.looked = Instant::now();
        let strands = &self.wiring.strands;
        let is_empty = |lane: usize| strands[lane].channel.is_empty();
        let knot = self.knot(lookout, &is_empty);
        if knot.is_empty() || knot != lookout.knot {
            (lookout.knot, lookout.since) = (knot, lookout.looked);
            return;
        }
        // The same in the same states. A death may have left the lengths of queues wrong, and a dead process waits for
        // nothing: its replacement will bring what it had in hand.
        let holds_nothing = |lane: usize| strands[lane].channel.holds_nothing();
        if self.knot(lookout, &holds_nothing) != knot || !self.are_alive(&knot) {
            lookout.knot.clear();
            return;
        }
        let board = &self.wiring.board;
        let mut passes = false;
        for &(rank, serial) in &knot {
            let State::WaitsForInput(lane) = board.state(rank) else {
                continue;
            };
            if board.keeps_back(rank) {
                board.let_pass(rank, serial);
                strands[lane as usize].channel.nudge();
                passes = true;
            }
        }
        if passes || lookout.since.elapsed() < ROUND {
            return;
        }
        let waits_for_slot = |&(rank, _): &(u32, u64)| board.state(rank) == State::WaitsForSlot;
        if knot.iter().any(waits_for_slot) {
            let seats = &self.wiring.seats;
            let name = |rank: u32| format!("process {rank} ({:?})", seats[rank as usize].name);
            let text = knot::describe(board, &knot, name);
            self.fail(Error::new(ErrorKind::Deadlock, text));
        } else if lookout.may_lose {
            self.write_off(&knot);
        }
    }

    fn knot(&self, lookout: &Lookout, is_empty: &dyn Fn(usize) -> bool) -> Vec<(u32, u64)> {
        let board = &self.wiring.board;
        let is_full = |lane: usize| {
            let channel = &self.wiring.strands[lane].channel;
            channel.len() >= channel.capacity()
        };
        let is_done = self.client.is_none();
        knot::find(board, &lookout.parties, is_empty, is_full, is_done)
    }

    /// Whether all processes of a knot live.
    fn are_alive(&self, knot: &[(u32, u64)]) -> bool {
        let Ok(arena) = Arena::current() else {
            return false;
        };
        arena.bury_the_dead();
        knot.iter().all(|&(rank, _)| {
            // The client is a thread.
            rank as usize == self.wiring.seats.len()
                || self.workers[rank as usize]
                    .as_ref()
                    .is_some_and(|worker| arena.participant_of_pid(worker.pid).is_some())
        })
    }

    /// Where all processes and the client wait, and nothing is on its way, what is not accounted for went with a process that
    /// had just taken it.
    fn write_off(&mut self, knot: &[(u32, u64)]) {
        let board = &self.wiring.board;
        let everybody = (0..=self.wiring.seats.len() as u32).all(|rank| {
            board.state(rank) == State::Done || knot.iter().any(|&(waits, _)| waits == rank)
        });
        if !everybody {
            return;
        }
        self.hear();
        let lost = self.account.write_off();
        if lost > 0 {
            tracing::debug!(lost, "inputs went with processes that were killed");
            self.publish_progress();
        }
    }
}
