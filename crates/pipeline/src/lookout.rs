//! What the supervisor of a run looks for: processes that hang, and those that wait for each other.

use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use shm_core::Arena;
use shm_core::clock::now_ns;
use shm_core::patience::Patience;

use crate::board::{ENDING, Help, State, WOKEN};
use crate::error::{Error, ErrorKind};
use crate::knot::{self, Parties, Stuck};
use crate::runner::{ROUND, Runner};
use crate::threads;
use crate::wiring::Wiring;

/// How often it looks for knots where there may be one that it helps out of: each time between two naps.
const SOON: Duration = Duration::from_millis(4);
/// How soon it looks again where it has seen one, and for how long.
const AT_ONCE: Duration = Duration::from_millis(1);
const IN_VAIN: Duration = Duration::from_millis(100);
/// After how long it looks anew at threads that may let go of slots.
const AGAIN: Duration = Duration::from_secs(1);
/// How long the client waits for inputs that a process with threads of its own holds, before it ends the input.
const PATIENCE: Duration = Duration::from_secs(5);

/// So many items a killed process may have left without one of their segments: of one that it worked on and is not delivered
/// again, and of one that it was about to take.
const PER_DEATH: u64 = 2;

/// How often it looks for processes that hang at most: a nap.
const ROUND_LEAST: Duration = Duration::from_millis(5);
/// So long a first step without a client may take for its first input before that is told.
const NOTHING: Duration = Duration::from_secs(3);

/// What it has seen.
pub(crate) struct Lookout {
    parties: Parties,
    /// Whether items may be lost, so that others wait for them in vain.
    may_lose: bool,
    /// Whether there may be a knot that it helps out of.
    helps: bool,
    looked: Instant,
    /// How long it may take until there is an input.
    nothing: Patience,
    /// Whether it was told that nothing comes.
    told: bool,
    /// Processes that wait for each other, as first seen, and when that was.
    knot: Vec<Stuck>,
    since: Instant,
    /// How long threads of the processes themselves have to let go of what they hold.
    holds: Patience,
    /// What those of them were asked that wait for slots.
    question: u64,
    /// Those of them that are stuck whatever threads of the program's own do; as it was before the question.
    for_good: Vec<Stuck>,
}

impl Lookout {
    pub(crate) fn new(wiring: &Wiring) -> Self {
        let now = Instant::now();
        Self {
            parties: wiring.parties(),
            may_lose: wiring.may_lose(),
            helps: wiring.may_lose() || wiring.is_ordered(),
            looked: now,
            nothing: Patience::new_at(NOTHING, now),
            told: false,
            knot: Vec::new(),
            since: now,
            holds: Patience::new_at(PATIENCE, now),
            question: 0,
            for_good: Vec::new(),
        }
    }
}

impl Lookout {
    /// How long to sleep before the next look, for who would sleep so long.
    pub(crate) fn nap(&self, most: Duration) -> Duration {
        if self.may_help_soon() { AT_ONCE } else { most }
    }

    fn may_help_soon(&self) -> bool {
        self.helps && !self.knot.is_empty() && self.since.elapsed() < IN_VAIN
    }
}

/// How often to look for processes that hang: often enough for the smallest limit to mean something.
fn round(limit: Option<Duration>) -> Duration {
    limit.map_or(ROUND, |limit| (limit / 4).clamp(ROUND_LEAST, ROUND))
}

impl Runner {
    /// Which processes the start still waits for.
    pub(crate) fn not_ready(&self) -> String {
        let seats = self.wiring.seats.iter().enumerate();
        let waited_for: Vec<_> = seats
            .filter(|(rank, _)| !self.wiring.board.is_ready(*rank as u32))
            .map(|(rank, seat)| format!("process {rank} ({:?})", seat.name))
            .collect();
        match &waited_for[..] {
            [] => String::new(),
            some => format!("; its start still waits for {}", some.join(", ")),
        }
    }

    /// How often it looks for processes that hang.
    pub(crate) fn round(&self) -> Duration {
        let limits = (0..self.wiring.seats.len()).filter_map(|rank| self.wiring.limit(rank));
        round(limits.min())
    }

    /// Tells whoever waits for the run that nothing comes: a first step without a client that expects input answers for ever
    /// that it goes on.
    pub(crate) fn look_for_inputs(&mut self, lookout: &mut Lookout) {
        if lookout.told || !lookout.nothing.is_over(Instant::now()) {
            return;
        }
        lookout.told = true;
        let first = self.wiring.seats.iter().take_while(|seat| seat.step == 0);
        let mut made = first.map(|seat| seat.tally.offered());
        let has_client = self.wiring.strands.iter().any(|strand| strand.step == 0);
        if has_client || made.any(|made| made > 0) {
            return;
        }
        let told = format!(
            "step {:?} has made nothing for {} s; it is the first and gets no input: the pipeline has no client, and a \
             configuration of it names no iterator",
            self.wiring.steps[0].name,
            NOTHING.as_secs()
        );
        self.tell(&told);
    }

    /// Ends processes that work on one item for longer than they may.
    pub(crate) fn look_for_hangs(&mut self) {
        for rank in 0..self.wiring.seats.len() {
            let Some(limit) = self.wiring.limit(rank) else {
                continue;
            };
            let board = &self.wiring.board;
            let is_at_work = board.state(rank as u32) == State::Working;
            if !is_at_work || self.hung[rank].is_some() || self.is_leaving(rank) {
                continue;
            }
            let (since, _) = board.since(rank as u32);
            let worked = Duration::from_nanos(now_ns().saturating_sub(since));
            if worked < limit {
                continue;
            }
            // As exact as limits are: `12ms`, `1.5s`.
            let worked = Duration::from_millis(worked.as_millis() as u64);
            let told = match board.item(rank as u32) {
                ENDING => format!("has been ending (finish) for {worked:?}"),
                WOKEN => format!("has been in woken for {worked:?}"),
                item => format!("has worked on item {item} for {worked:?}"),
            };
            let seat = &self.wiring.seats[rank];
            let pid = self.workers[rank].as_ref();
            let pid = pid.map_or(String::new(), |worker| format!(", pid {}", worker.pid));
            let told = format!(
                "step {:?}, replica {}: process {:?} (rank {rank}{pid}) {told}; the step's limit is {limit:?}",
                self.wiring.steps[seat.step].name, seat.replica, seat.name
            );
            let alone = self
                .crews
                .iter()
                .position(|crew| !crew.over && crew.ranks == [rank]);
            match alone {
                Some(crew) => {
                    self.hung[rank] = Some(told);
                    self.crews[crew].context.kill();
                }
                None => {
                    self.failed_rank.get_or_insert(rank);
                    self.fail(Error::new(ErrorKind::TimedOut, told));
                }
            }
        }
    }

    /// Looks for processes that wait for each other. Where one of them keeps back items, since those before them may still
    /// come, it gives back their slots, or is told that they can't. Where the client waits for items that are nowhere any
    /// more, they are counted as lost; where they are held by those who wait for more input, the input ends. Else the run
    /// ends.
    pub(crate) fn look_for_knots(&mut self, lookout: &mut Lookout) {
        let pause = match lookout.helps {
            true if lookout.may_help_soon() => Duration::ZERO,
            true => SOON,
            false => ROUND,
        };
        if self.error.is_some() || lookout.looked.elapsed() < pause {
            return;
        }
        lookout.looked = Instant::now();
        let strands = &self.wiring.strands;
        let is_empty = |lane: usize| strands[lane].channel.is_empty();
        let knot = self.knot(lookout, &is_empty, &|_| false);
        if knot.is_empty() || knot != lookout.knot {
            // Before they are asked: what is let go of from here on they see when they look.
            lookout.for_good = self.for_good(lookout, &knot, &is_empty);
            self.ask(lookout, &knot);
            (lookout.knot, lookout.since) = (knot, lookout.looked);
            lookout.holds = Patience::new_at(PATIENCE, lookout.looked);
            return;
        }
        // The same in the same states. A death may have left the lengths of queues wrong, and a dead process waits for
        // nothing: its replacement will bring what it had in hand.
        let holds_nothing = |lane: usize| strands[lane].channel.holds_nothing();
        if self.knot(lookout, &holds_nothing, &|_| false) != knot || !self.are_alive(&knot) {
            lookout.knot.clear();
            return;
        }
        let board = &self.wiring.board;
        // Who has not looked yet may be stopped, and find a slot.
        let answered = |rank: u32| board.answered(rank) >= lookout.question;
        let is_certain = knot::waits_for_slots(&knot).all(answered);
        if self.help(&knot, is_certain) || !is_certain || lookout.since.elapsed() < ROUND {
            return;
        }
        if knot::waits_for_slots(&knot).next().is_some() {
            if knot::waits_for_slots(&lookout.for_good).next().is_none() {
                // A thread that has ended since, or had no name yet, may have been taken for one that lets go of slots.
                if lookout.since.elapsed() >= AGAIN {
                    lookout.knot.clear();
                }
                return;
            }
            let seats = &self.wiring.seats;
            let missing =
                knot::misses_slots(board, &lookout.parties, &lookout.for_good, holds_nothing);
            if !missing.is_empty() {
                // What nobody keeps is no reason to wait for ever. It may be in the hands of somebody who is slow; but where
                // processes have died it may be gone, and who waits for it may know of fewer losses than there were.
                for one in missing.iter().filter(|_| board.deaths() > 0) {
                    board.let_renew(one.rank, one.serial);
                    seats[one.rank as usize].freed.set();
                }
                lookout.knot.clear();
                return;
            }
            let name = |rank: u32| format!("process {rank} ({:?})", seats[rank as usize].name);
            let text = knot::describe(board, &lookout.for_good, name);
            self.fail(Error::new(ErrorKind::Deadlock, text));
        } else if lookout.may_lose {
            self.settle(&knot, lookout.holds.is_over(lookout.looked));
        }
    }

    /// Makes those that wait for slots look once more.
    fn ask(&self, lookout: &mut Lookout, knot: &[Stuck]) {
        let board = &self.wiring.board;
        // Behind all that was seen.
        fence(Ordering::SeqCst);
        lookout.question += 1;
        for rank in knot::waits_for_slots(knot) {
            board.ask(rank, lookout.question);
            self.wiring.seats[rank as usize].freed.set();
        }
    }

    /// Helps those of a knot that keep items back. Whether there were any, or one that reads has gone on.
    fn help(&self, knot: &[Stuck], is_certain: bool) -> bool {
        let board = &self.wiring.board;
        let lossy = self.is_lossy();
        board.set_lossy(lossy);
        // As they were seen: who has gone on since has what is waited for in hand.
        let waits_for_room = knot
            .iter()
            .any(|one| matches!(one.state, State::WaitsForSlot | State::WaitsForRoom(_)));
        let mut helped = false;
        for &Stuck {
            rank,
            serial,
            state,
        } in knot
        {
            let State::WaitsForInput(lane) = state else {
                continue;
            };
            let (keeps_back, keeps_slots) = (board.keeps_back(rank), board.keeps_slots(rank));
            // What it keeps it says before its next state. One that has gone on since it was seen, with the help that it got
            // then, may keep no slots any more: that says nothing of this knot, which is none by now.
            fence(Ordering::Acquire);
            if board.state(rank) != state || board.since(rank).1 != serial {
                return true;
            }
            if !keeps_back {
                continue;
            }
            let help = match (is_certain, waits_for_room) {
                // It costs a copy, and is right whatever the others do.
                (false, _) if keeps_slots => Help::MakeRoom,
                (false, _) => continue,
                // What they have in hand may be what is waited for.
                (true, true) if keeps_slots || lossy => Help::MakeRoomOrPass,
                (true, true) => continue,
                (true, false) => Help::Pass,
            };
            board.give_help(rank, serial, help);
            self.wiring.strands[lane as usize].channel.nudge();
            helped = true;
        }
        helped
    }

    fn knot(
        &self,
        lookout: &Lookout,
        is_empty: &dyn Fn(usize) -> bool,
        lets_go: &dyn Fn(u32) -> bool,
    ) -> Vec<Stuck> {
        let board = &self.wiring.board;
        let is_full = |lane: usize| {
            let channel = &self.wiring.strands[lane].channel;
            channel.len() >= channel.capacity()
        };
        let is_done = self.client.is_none();
        knot::find_where(board, &lookout.parties, is_empty, is_full, is_done, lets_go)
    }

    /// Whether anything may have been lost on its way.
    fn is_lossy(&self) -> bool {
        self.wiring.board.deaths() > 0 || self.account.lost() > 0
    }

    /// Those of a knot that stay stuck though its processes may let go of slots while they wait: at their time, or on threads
    /// of the program's own.
    fn for_good(
        &self,
        lookout: &Lookout,
        knot: &[Stuck],
        is_empty: &dyn Fn(usize) -> bool,
    ) -> Vec<Stuck> {
        let board = &self.wiring.board;
        // Its stage is called at its time, and may do anything then.
        let wakes =
            |one: &Stuck| matches!(one.state, State::WaitsForInput(_)) && board.wakes(one.rank);
        if knot::waits_for_slots(knot).next().is_none() || knot.iter().any(wakes) {
            return Vec::new();
        }
        let processes = 0..self.wiring.seats.len() as u32;
        let reads = |rank: u32| {
            knot::waits_for_slots(knot).any(|writer| {
                let mut slots = 0..board.slot_count(writer) as u32;
                slots.any(|slot| board.readers(writer, slot).includes(rank))
            })
        };
        let has_threads: Vec<bool> = processes
            .map(|rank| reads(rank) && self.has_threads(rank))
            .collect();
        self.knot(lookout, is_empty, &|rank| has_threads[rank as usize])
    }

    /// Whether a process has threads of the program's own.
    fn has_threads(&self, rank: u32) -> bool {
        let worker = self.workers.get(rank as usize).and_then(Option::as_ref);
        let of_library = self.wiring.board.threads(rank);
        worker.is_some_and(|worker| threads::any_more(of_library, threads::count(worker.pid)))
    }

    /// Whether all processes of a knot live.
    fn are_alive(&self, knot: &[Stuck]) -> bool {
        let Ok(arena) = Arena::current() else {
            return false;
        };
        arena.bury_the_dead();
        knot.iter().all(|&Stuck { rank, .. }| {
            // The client is a thread.
            rank as usize == self.wiring.seats.len()
                || self.workers[rank as usize]
                    .as_ref()
                    .is_some_and(|worker| arena.participant_of_pid(worker.pid).is_some())
        })
    }

    /// Where all processes and the client wait, and nothing is on its way: what nobody holds went with a process that had just
    /// taken it, and so did what is missing of items whose other segments are held; others are offered in their place. What
    /// else is held comes back when the input ends.
    fn settle(&mut self, knot: &[Stuck], holds_for_long: bool) {
        let board = &self.wiring.board;
        let ranks = 0..self.wiring.seats.len() as u32;
        let everybody = ranks.clone().chain([ranks.end]).all(|rank| {
            board.state(rank) == State::Done || knot.iter().any(|one| one.rank == rank)
        });
        if !everybody {
            return;
        }
        self.hear();
        let board = &self.wiring.board;
        let in_hand = |rank: u32| match board.state(rank) {
            State::Done => 0,
            _ => self
                .in_hand(rank as usize)
                .max(u64::from(board.reads_any(rank))),
        };
        let held: u64 = ranks.clone().map(in_hand).sum();
        let parts: u64 = ranks.clone().map(|rank| board.parts(rank)).sum();
        let mut holders = ranks.filter(|&rank| in_hand(rank) > 0);
        if !holds_for_long && holders.any(|rank| self.has_threads(rank)) {
            return;
        }
        let missing = self.account.missing();
        let gone = missing.saturating_sub(held);
        // The rest of these is nowhere either, unless somebody holds it who waits for more. What each death took with it are
        // few items: of a stage that makes nothing of some segments there would be more without end.
        let in_vain = missing.saturating_sub(held.saturating_sub(parts)) - gone;
        let in_vain = in_vain.min((PER_DEATH * board.deaths()).saturating_sub(self.in_vain));
        let lost = gone + in_vain;
        self.in_vain += in_vain;
        if lost > 0 && self.is_lossy() {
            tracing::debug!(lost, "inputs went with processes that were killed");
            self.account.write_off(lost);
            self.publish_progress();
        } else if missing > 0 {
            self.progress.enough.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_limit_is_looked_at_more_often_than_a_long_one() {
        let ms = Duration::from_millis;
        for (limit, often) in [(100, 25), (2000, 250), (60_000, 250), (1, 5)] {
            assert_eq!(round(Some(ms(limit))), ms(often));
        }
        assert_eq!(round(None), ROUND);
    }
}
