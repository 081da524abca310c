//! The world of one counted line: participants make it anew, hand it on through a real cell, drop it and die; reapers
//! settle what they left, and die as well.
//!
//! The steps are those of `held`, `transfer` and `reap`, written once more on the explored memory; the cell is the real
//! one. It is one line and one message at a time, so that a double free has nowhere to hide.

use std::sync::atomic::Ordering::SeqCst;

use shm_core::cells::{
    CellArray, Cells, Claim, Owner, PAYLOAD_WORDS, Take, is_claimed_by, is_taken_by,
};
use shm_core::sync::Atomic64;

use crate::engine::{Process, State, World};
use crate::memory::{self, Explored, Log, Machine, PROCESSES, Steps, WORDS};

const LINE: usize = 0;
const CLAIMANT: usize = 1;
const TAIL: usize = 2;
const HEAD: usize = 3;
const ORPHANS: usize = 4;
const CELL: usize = 5;
const PAYLOAD: usize = 6;
/// Of each user: its row, and the state word and generation of its two entries.
const USERS: usize = 8;
const USER: usize = 5;

/// A generation that the line never has.
const NEVER: u64 = 999;

/// What is done otherwise, to see that the explorer notices.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Variant {
    /// Nothing.
    Right,
    /// The generation alone tells whose the line has become.
    NoClaimant,
    /// The claim is given up before the entry says HELD.
    UnclaimFirst,
    /// Cells are mended before tickets are settled.
    CellsFirst,
    /// The sender's entry stays HELD over the publication.
    NoTicket,
    /// A further reference is counted only when it is published.
    CountLate,
    /// A reaper takes a failed swap for done.
    SkipAfterFailure,
    /// A shared reference is subtracted before its record is cleared.
    SubtractFirst,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// Makes the line anew, against others, and drops it.
    Loaner,
    /// Makes the line anew, alone, and sends it away.
    Mover,
    /// The same, and keeps a reference of its own, which it drops later.
    Sharer,
    /// Takes it and drops it.
    Taker,
}

/// A world to explore.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Config {
    pub(crate) users: &'static [Role],
    /// How often each of them does it.
    pub(crate) rounds: u8,
    pub(crate) reapers: usize,
    pub(crate) kills: u8,
    /// All idle reapers go for a dead row at once, not only one.
    pub(crate) together: bool,
    pub(crate) variant: Variant,
}

#[derive(Debug)]
pub(crate) struct Leases {
    config: Config,
    words: [Explored; WORDS],
    payload: [Explored; PAYLOAD_WORDS],
    never_closed: Explored,
}

#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Local {
    round: u8,
    act: Act,
}

#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
enum Act {
    // Making it anew.
    Look,
    Claim,
    Fill,
    Count {
        generation: u64,
    },
    Hold {
        generation: u64,
    },
    Unclaim {
        generation: u64,
    },
    GiveUp,
    // Sending.
    ClaimCell {
        generation: u64,
    },
    Write {
        generation: u64,
        pos: u64,
    },
    Give {
        generation: u64,
        pos: u64,
    },
    Publish {
        generation: u64,
        pos: u64,
    },
    CountLate {
        generation: u64,
    },
    Forget {
        generation: u64,
    },
    // Receiving.
    TakeCell {
        seen: u64,
    },
    Read {
        seen: u64,
        pos: u64,
    },
    Record {
        seen: u64,
        pos: u64,
        generation: u64,
    },
    Release {
        pos: u64,
        generation: u64,
    },
    Arrive {
        generation: u64,
    },
    /// Whoever is here uses what the line stands for.
    Drop {
        generation: u64,
    },
    // A reaper, with the dead one's row and the entry it is at.
    Idle,
    Settle {
        row: u8,
        entry: u8,
    },
    Mend {
        row: u8,
    },
    GiveBack {
        row: u8,
        entry: u8,
    },
    Free {
        row: u8,
    },
    Done,
    Dead,
}

/// Rows of the dead that are not free yet, as bits; and who is at which.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Ghost {
    dead: u8,
    leaks: u8,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[repr(u64)]
enum Kind {
    Free = 0,
    Alloc = 1,
    Held = 2,
    Giving = 3,
    Recv = 4,
    Dropping = 5,
}

/// State word of an entry: the kind, and the ticket's position.
fn entry(kind: Kind, pos: u64) -> u64 {
    kind as u64 | pos << 8
}

fn kind_of(entry: u64) -> Kind {
    match entry & 0xff {
        1 => Kind::Alloc,
        2 => Kind::Held,
        3 => Kind::Giving,
        4 => Kind::Recv,
        5 => Kind::Dropping,
        _ => Kind::Free,
    }
}

fn line(generation: u64, count: u64) -> u64 {
    generation << 8 | count
}

impl CellArray for &Leases {
    type M = Steps;

    fn capacity(&self) -> u64 {
        1
    }
    fn word(&self, _: u64) -> &Explored {
        &self.words[CELL]
    }
    fn payload(&self, _: u64) -> &[Explored; PAYLOAD_WORDS] {
        &self.payload
    }
    fn tail(&self) -> &Explored {
        &self.words[TAIL]
    }
    fn head(&self) -> &Explored {
        &self.words[HEAD]
    }
    fn orphan_epoch(&self) -> &Explored {
        &self.words[ORPHANS]
    }
    fn closed(&self) -> &Explored {
        &self.never_closed
    }
}

impl Leases {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            config,
            words: std::array::from_fn(Explored::Word),
            payload: std::array::from_fn(|word| match word {
                0 => Explored::Word(PAYLOAD),
                _ => Explored::Nothing,
            }),
            never_closed: Explored::Nothing,
        }
    }

    fn is(&self, variant: Variant) -> bool {
        self.config.variant == variant
    }

    fn owner(&self, user: usize) -> Owner {
        Owner {
            row: user as u16,
            epoch: 1,
        }
    }

    fn word(&self, at: usize) -> &Explored {
        &self.words[at]
    }

    fn row(&self, user: usize) -> &Explored {
        self.word(USERS + user * USER)
    }

    fn state(&self, user: usize, entry: usize) -> &Explored {
        self.word(USERS + user * USER + 1 + entry * 2)
    }

    fn generation(&self, user: usize, entry: usize) -> &Explored {
        self.word(USERS + user * USER + 2 + entry * 2)
    }

    fn swap_line(&self, from: u64, to: u64) -> bool {
        self.word(LINE)
            .compare_exchange(from, to, SeqCst, SeqCst)
            .is_ok()
    }

    fn record(&self, user: usize, at: usize, generation: u64, state: u64) {
        self.generation(user, at).store(generation, SeqCst);
        self.state(user, at).store(state, SeqCst);
    }

    /// One less, by somebody who has no record of it any more.
    fn subtract(&self, generation: u64) -> Result<(), String> {
        loop {
            let seen = self.word(LINE).load(SeqCst);
            if seen >> 8 != generation || seen & 0xff == 0 {
                return Err("a reference was given back twice".into());
            }
            if self.swap_line(seen, seen - 1) {
                return Ok(());
            }
        }
    }

    fn next_round(&self, me: usize, local: Local) -> Local {
        let round = local.round + 1;
        let act = if round == self.config.rounds {
            Act::Done
        } else {
            self.first(me)
        };
        Local { round, act }
    }

    fn first(&self, me: usize) -> Act {
        match self.config.users.get(me) {
            Some(Role::Taker) => Act::TakeCell { seen: u64::MAX },
            Some(_) => Act::Look,
            None => Act::Idle,
        }
    }

    fn perform(&self, me: usize, local: Local) -> Result<Local, String> {
        let go = |act| Ok(Local { act, ..local });
        let role = self.config.users.get(me).copied();
        match local.act {
            Act::Look => {
                if self.word(LINE).load(SeqCst) & 0xff != 0 {
                    return go(Act::Look);
                }
                if role != Some(Role::Loaner) {
                    return go(Act::Fill);
                }
                self.record(me, 0, NEVER, entry(Kind::Alloc, 0));
                go(Act::Claim)
            }
            Act::Claim => {
                let mine = me as u64 + 1;
                let claim = self.word(CLAIMANT);
                if self.is(Variant::NoClaimant) {
                    return go(Act::Fill);
                }
                let Err(seen) = claim.compare_exchange(0, mine, SeqCst, SeqCst) else {
                    return go(Act::Fill);
                };
                let gone = seen != mine && self.row(seen as usize - 1).load(SeqCst) == 0;
                if gone && claim.compare_exchange(seen, mine, SeqCst, SeqCst).is_ok() {
                    return go(Act::Fill);
                }
                go(Act::GiveUp)
            }
            Act::Fill => {
                let seen = self.word(LINE).load(SeqCst);
                if seen & 0xff != 0 {
                    return go(Act::GiveUp);
                }
                let generation = (seen >> 8) + 1;
                self.record(me, 0, generation, entry(Kind::Alloc, 0));
                go(Act::Count { generation })
            }
            Act::Count { generation } => {
                if !self.swap_line(line(generation - 1, 0), line(generation, 1)) {
                    return go(Act::GiveUp);
                }
                if self.is(Variant::UnclaimFirst) {
                    self.word(CLAIMANT).store(0, SeqCst);
                }
                go(Act::Hold { generation })
            }
            Act::Hold { generation } => {
                self.state(me, 0).store(entry(Kind::Held, 0), SeqCst);
                if role == Some(Role::Loaner)
                    && !self.is(Variant::NoClaimant)
                    && !self.is(Variant::UnclaimFirst)
                {
                    go(Act::Unclaim { generation })
                } else {
                    go(self.after_hold(role, generation))
                }
            }
            Act::Unclaim { generation } => {
                self.word(CLAIMANT).store(0, SeqCst);
                go(self.after_hold(role, generation))
            }
            Act::GiveUp => {
                self.state(me, 0).store(entry(Kind::Free, 0), SeqCst);
                // Only one's own claim; a variant without claims has none.
                let mine = me as u64 + 1;
                let _ = self
                    .word(CLAIMANT)
                    .compare_exchange(mine, 0, SeqCst, SeqCst);
                go(Act::Look)
            }
            Act::ClaimCell { generation } => match Cells(self).claim(self.owner(me)) {
                Claim::At(pos) => go(Act::Write { generation, pos }),
                Claim::Full | Claim::Pending(_) => go(Act::ClaimCell { generation }),
                other => Err(format!("a claim was answered by {other:?}")),
            },
            Act::Write { generation, pos } => {
                self.payload[0].store(generation, SeqCst);
                go(Act::Give { generation, pos })
            }
            Act::Give { generation, pos } => {
                if role == Some(Role::Sharer) {
                    if !self.is(Variant::CountLate) {
                        self.one_more(generation)?;
                    }
                    self.record(me, 1, generation, entry(Kind::Giving, pos));
                } else if !self.is(Variant::NoTicket) {
                    self.state(me, 0).store(entry(Kind::Giving, pos), SeqCst);
                }
                go(Act::Publish { generation, pos })
            }
            Act::Publish { generation, pos } => {
                Cells(self).publish(pos);
                if role == Some(Role::Sharer) && self.is(Variant::CountLate) {
                    go(Act::CountLate { generation })
                } else {
                    go(Act::Forget { generation })
                }
            }
            Act::CountLate { generation } => {
                self.one_more(generation)?;
                go(Act::Forget { generation })
            }
            Act::Forget { generation } => {
                let sharing = role == Some(Role::Sharer);
                self.state(me, usize::from(sharing))
                    .store(entry(Kind::Free, 0), SeqCst);
                if sharing {
                    go(Act::Drop { generation })
                } else {
                    Ok(self.next_round(me, local))
                }
            }
            Act::TakeCell { mut seen } => match Cells(self).take(self.owner(me), &mut seen) {
                Take::At { pos, .. } => go(Act::Read { seen, pos }),
                Take::Empty | Take::Pending(_) => go(Act::TakeCell { seen }),
                other => Err(format!("a take was answered by {other:?}")),
            },
            Act::Read { seen, pos } => {
                let generation = self.payload[0].load(SeqCst);
                let word = self.word(LINE).load(SeqCst);
                if word >> 8 != generation || word & 0xff == 0 {
                    return Err("a message names what is gone".into());
                }
                go(Act::Record {
                    seen,
                    pos,
                    generation,
                })
            }
            Act::Record {
                pos, generation, ..
            } => {
                self.record(me, 0, generation, entry(Kind::Recv, pos));
                go(Act::Release { pos, generation })
            }
            Act::Release { pos, generation } => {
                let _ = Cells(self).release(pos);
                go(Act::Arrive { generation })
            }
            Act::Arrive { generation } => {
                self.state(me, 0).store(entry(Kind::Held, 0), SeqCst);
                go(Act::Drop { generation })
            }
            Act::Drop { generation } => {
                self.drop_own(me, generation)?;
                Ok(self.next_round(me, local))
            }
            Act::Settle { row, entry } => {
                self.settle_entry(row.into(), entry.into());
                go(match entry {
                    0 => Act::Settle { row, entry: 1 },
                    _ if self.is(Variant::CellsFirst) => Act::GiveBack { row, entry: 0 },
                    _ => Act::Mend { row },
                })
            }
            Act::Mend { row } => {
                if Cells(self).reap(self.owner(row.into())).damaged > 0 {
                    return Err("a reap found the cell damaged".into());
                }
                go(if self.is(Variant::CellsFirst) {
                    Act::Settle { row, entry: 0 }
                } else {
                    Act::GiveBack { row, entry: 0 }
                })
            }
            Act::GiveBack { row, entry } => {
                self.give_back(row.into(), entry.into())?;
                go(match entry {
                    0 => Act::GiveBack { row, entry: 1 },
                    _ => Act::Free { row },
                })
            }
            Act::Free { row } => {
                self.row(row.into()).store(0, SeqCst);
                go(Act::Idle)
            }
            Act::Idle | Act::Done | Act::Dead => unreachable!("these do nothing"),
        }
    }

    fn after_hold(&self, role: Option<Role>, generation: u64) -> Act {
        match role {
            Some(Role::Loaner) => Act::Drop { generation },
            _ => Act::ClaimCell { generation },
        }
    }

    fn one_more(&self, generation: u64) -> Result<(), String> {
        loop {
            let seen = self.word(LINE).load(SeqCst);
            if seen >> 8 != generation || seen & 0xff == 0 {
                return Err("what a participant holds is gone under its hands".into());
            }
            if self.swap_line(seen, seen + 1) {
                return Ok(());
            }
        }
    }

    fn drop_own(&self, me: usize, generation: u64) -> Result<(), String> {
        let seen = self.word(LINE).load(SeqCst);
        if seen >> 8 != generation || seen & 0xff == 0 {
            return Err("what a participant holds is gone under its hands".into());
        }
        if seen == line(generation, 1) {
            self.state(me, 0).store(entry(Kind::Dropping, 0), SeqCst);
            if !self.swap_line(seen, line(generation, 0)) {
                return Err("the sole holder was not alone".into());
            }
            self.state(me, 0).store(entry(Kind::Free, 0), SeqCst);
            return Ok(());
        }
        if self.is(Variant::SubtractFirst) {
            self.subtract(generation)?;
            self.state(me, 0).store(entry(Kind::Free, 0), SeqCst);
            return Ok(());
        }
        self.state(me, 0).store(entry(Kind::Free, 0), SeqCst);
        self.subtract(generation)
    }

    fn settle_entry(&self, row: usize, at: usize) {
        let state = self.state(row, at);
        loop {
            let seen = state.load(SeqCst);
            let dead = self.owner(row);
            let pos = seen >> 8;
            let counts = match kind_of(seen) {
                Kind::Free | Kind::Held | Kind::Dropping => return,
                Kind::Alloc => {
                    let loaner = self.config.users[row] == Role::Loaner;
                    let ours = !loaner
                        || self.is(Variant::NoClaimant)
                        || self.word(CLAIMANT).load(SeqCst) == row as u64 + 1;
                    let word = self.word(LINE).load(SeqCst);
                    let generation = self.generation(row, at).load(SeqCst);
                    ours && word & 0xff > 0 && word >> 8 == generation
                }
                Kind::Giving => is_claimed_by(self.word(CELL).load(SeqCst), dead, pos, 1),
                Kind::Recv => !is_taken_by(self.word(CELL).load(SeqCst), dead, pos, 1),
            };
            let to = if counts { Kind::Held } else { Kind::Free };
            if state
                .compare_exchange(seen, entry(to, 0), SeqCst, SeqCst)
                .is_ok()
            {
                return;
            }
        }
    }

    fn give_back(&self, row: usize, at: usize) -> Result<(), String> {
        let state = self.state(row, at);
        loop {
            let seen = state.load(SeqCst);
            let kind = kind_of(seen);
            if !matches!(kind, Kind::Held | Kind::Dropping) {
                return Ok(());
            }
            let generation = self.generation(row, at).load(SeqCst);
            let word = self.word(LINE).load(SeqCst);
            let clear = || {
                state
                    .compare_exchange(seen, entry(Kind::Free, 0), SeqCst, SeqCst)
                    .is_ok()
            };
            match (kind, word & 0xff) {
                // A failed swap means that another reaper was here: read again, never skip.
                (_, count) if word >> 8 != generation || count == 0 => {
                    let cleared = clear();
                    if cleared || self.is(Variant::SkipAfterFailure) {
                        return Ok(());
                    }
                }
                (Kind::Held, 1) => {
                    let dropping = entry(Kind::Dropping, 0);
                    let _ = state.compare_exchange(seen, dropping, SeqCst, SeqCst);
                }
                (Kind::Dropping, 1) => {
                    self.swap_line(line(generation, 1), line(generation, 0));
                }
                _ => {
                    if clear() {
                        return self.subtract(generation);
                    }
                }
            }
        }
    }

    /// Gives idle reapers the dead rows that nobody is at.
    fn assign(&self, state: &mut State<Local, Ghost>) {
        let users = self.config.users.len();
        for row in (0..users).filter(|row| state.ghost.dead & 1 << row != 0) {
            let at_it = |act: Act| match act {
                Act::Settle { row: at, .. }
                | Act::Mend { row: at }
                | Act::GiveBack { row: at, .. }
                | Act::Free { row: at } => usize::from(at) == row,
                _ => false,
            };
            for reaper in users..state.count {
                let busy =
                    (users..state.count).any(|other| at_it(state.processes[other].local.act));
                if state.processes[reaper].local.act == Act::Idle && (self.config.together || !busy)
                {
                    let row = row as u8;
                    state.processes[reaper].local.act = if self.is(Variant::CellsFirst) {
                        Act::Mend { row }
                    } else {
                        Act::Settle { row, entry: 0 }
                    };
                }
            }
        }
    }

    /// The line is counted for whoever uses it, and never too low.
    fn check(&self, state: &State<Local, Ghost>) -> Result<(), String> {
        let word = state.machine.words[LINE];
        let mut loans = 0;
        for process in &state.processes[..self.config.users.len()] {
            let held = match process.local.act {
                Act::Hold { generation }
                | Act::Unclaim { generation }
                | Act::ClaimCell { generation }
                | Act::Write { generation, .. }
                | Act::Give { generation, .. }
                | Act::Arrive { generation } => generation,
                // Between its own steps of dropping it, it is no longer used.
                Act::Drop { generation } if process.log.len() == 0 => generation,
                _ => continue,
            };
            loans += 1;
            if word >> 8 != held || word & 0xff == 0 {
                return Err("what a participant holds is gone under its hands".into());
            }
        }
        let exclusive = self.config.users.iter().all(|role| *role == Role::Loaner);
        if exclusive && loans > 1 {
            return Err("two participants have the same slot".into());
        }
        Ok(())
    }
}

impl World for Leases {
    type Local = Local;
    type Ghost = Ghost;

    fn start(&self) -> State<Local, Ghost> {
        let users = self.config.users.len();
        let mut state = State {
            machine: Machine::ZEROED,
            processes: [Process {
                local: Local {
                    round: 0,
                    act: Act::Done,
                },
                log: Log::EMPTY,
            }; PROCESSES],
            count: users + self.config.reapers,
            ghost: Ghost { dead: 0, leaks: 0 },
            kills_left: self.config.kills,
        };
        for process in 0..state.count {
            let act = self.first(process);
            state.set(process, Local { round: 0, act });
        }
        memory::set_up(&mut state.machine, || {
            Cells(self).init();
            for user in 0..users {
                self.row(user).store(1, SeqCst);
            }
        });
        state
    }

    fn is_enabled(&self, _: usize, local: Local, _: &Ghost) -> bool {
        !matches!(local.act, Act::Idle | Act::Done | Act::Dead)
    }

    fn act(&self, process: usize, local: Local) -> Result<Local, String> {
        self.perform(process, local)
    }

    fn settle(
        &self,
        _: usize,
        before: Local,
        state: &mut State<Local, Ghost>,
    ) -> Result<(), String> {
        if let Act::Free { row } = before.act {
            state.ghost.dead &= !(1 << row);
        }
        self.assign(state);
        self.check(state)
    }

    fn kill(&self, process: usize, state: &mut State<Local, Ghost>) -> bool {
        let users = self.config.users.len();
        let local = state.processes[process].local;
        if matches!(local.act, Act::Dead | Act::Done) {
            return false;
        }
        if process >= users {
            let others = (users..state.count).filter(|other| {
                *other != process && state.processes[*other].local.act != Act::Dead
            });
            if others.count() == 0 {
                return false;
            }
        } else {
            state.ghost.dead |= 1 << process;
        }
        state.set(
            process,
            Local {
                act: Act::Dead,
                ..local
            },
        );
        state.ghost.leaks += 1;
        self.assign(state);
        true
    }

    fn is_final(&self, state: &State<Local, Ghost>) -> Result<bool, String> {
        let users = self.config.users.len();
        if state.ghost.dead != 0 {
            return Ok(false);
        }
        let resting = |act| matches!(act, Act::Done | Act::Dead);
        let waits = |process: usize| {
            let local = state.processes[process].local;
            match local.act {
                // Nobody sends any more, or nobody takes.
                Act::TakeCell { .. } | Act::ClaimCell { .. } => true,
                // What was leaked, or lies in the cell for a taker that is dead, is not made anew.
                Act::Look => {
                    state.processes[process].log.len() == 0 && state.machine.words[LINE] & 0xff > 0
                }
                act => resting(act),
            }
        };
        if !(0..users).all(waits)
            || !(users..state.count)
                .all(|reaper| matches!(state.processes[reaper].local.act, Act::Idle | Act::Dead))
        {
            return Ok(false);
        }
        let holders = (0..users)
            .flat_map(|user| [0, 1].map(|at| state.machine.words[USERS + user * USER + 1 + at * 2]))
            .filter(|entry| kind_of(*entry) != Kind::Free)
            .count() as u64;
        let word = shm_core::word::decode(state.machine.words[CELL]);
        let in_cell = matches!(word, shm_core::word::CellState::Ready { .. });
        if !in_cell && !matches!(word, shm_core::word::CellState::Free { .. }) {
            return Ok(false);
        }
        let pending =
            (0..users).any(|user| matches!(state.processes[user].local.act, Act::TakeCell { .. }));
        if in_cell && pending {
            return Ok(false);
        }
        let count = state.machine.words[LINE] & 0xff;
        let counted = holders + u64::from(in_cell);
        // Only what is shared can be leaked: a count before its record, a record cleared before its count.
        let shares = self.config.users.contains(&Role::Sharer);
        let leaks = if shares { state.ghost.leaks } else { 0 };
        if count < counted || count > counted + u64::from(leaks) {
            return Err(format!(
                "the count is {count}, held {counted} times, after {} kills",
                state.ghost.leaks
            ));
        }
        // Without a leak, whoever wants the line can have it.
        let wants = (0..users).any(|user| state.processes[user].local.act == Act::Look);
        Ok(!(wants && count == 0))
    }
}
