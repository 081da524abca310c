//! What must hold of references in every state, and when all is done.

use std::sync::atomic::Ordering::SeqCst;

use shm_core::cells::Cells;
use shm_core::lane::Lane;
use shm_core::steps::{self, Counted, Entry, Kind};
use shm_core::sync::Atomic64;
use shm_core::word::{CellState, decode};

use super::{
    Act, CELL, CELLS, Corpse, ENTRY, GONE, Ghost, LINE, LINES, Local, Ref, References, Role,
    Variant, occupied, owner, read_name,
};
use crate::engine::{Process, State, World};
use crate::memory::{self, Log, Machine, PROCESSES};

type Here = State<Local, Ghost>;

impl References {
    fn line(&self, state: &Here, line: usize) -> Counted {
        Counted::from_word(state.machine.words[LINES + line * LINE])
    }

    fn cell_word(&self, state: &Here, cell: usize) -> u64 {
        state.machine.words[CELLS + cell * CELL]
    }

    /// The references that messages hold.
    fn messages<'a>(&'a self, state: &'a Here) -> impl Iterator<Item = Ref> + 'a {
        (0..self.config.cells as usize).filter_map(|cell| {
            let held = matches!(
                decode(self.cell_word(state, cell)),
                CellState::Ready { .. } | CellState::Taking { .. }
            );
            held.then(|| read_name(state.machine.words[CELLS + cell * CELL + 1]))
        })
    }

    /// The entries that are not FREE: whose, and what they say.
    fn records<'a>(&'a self, state: &'a Here) -> impl Iterator<Item = (usize, Entry, usize)> + 'a {
        (0..self.users()).flat_map(move |row| {
            (0..self.entries_of(row)).filter_map(move |index| {
                let at = self.entries[row] + index * ENTRY;
                let entry = Entry::from_word(state.machine.words[at]);
                (entry.kind != Kind::Free).then_some((row, entry, at))
            })
        })
    }

    /// Whether an entry counts, by the table of `lease`.
    fn counts(&self, state: &Here, (row, entry, at): (usize, Entry, usize)) -> bool {
        let words = &state.machine.words;
        let [generation, cell, position] = [1, 2, 3].map(|field| words[at + field]);
        let line = entry.line as usize;
        let now = self.line(state, line);
        let who = owner(row, entry.epoch as u8);
        match entry.kind {
            Kind::Free => false,
            Kind::Held => true,
            Kind::Leaving | Kind::Entering | Kind::Looking => false,
            Kind::Dropping => now == Counted::new(generation, 1),
            Kind::Alloc => {
                let claimed = !self.config.slots
                    || self.is(Variant::NoClaimant)
                    || words[LINES + line * LINE + 1] == steps::claimant(who);
                claimed && now.count > 0 && now.generation == generation
            }
            kind => {
                let word = self.cell_word(state, cell as usize);
                steps::ticket_counts(kind, word, who, position, self.config.cells)
            }
        }
    }

    /// What a living process uses at this moment.
    fn used(&self, process: &Process<Local>) -> Option<Ref> {
        let untouched = process.log.len() == 0;
        match process.local.act {
            Act::Share { held }
            | Act::Claim { held }
            | Act::Write { held, .. }
            | Act::Give { held, .. }
            | Act::Decide { held, .. }
            | Act::Arrive { held } => Some(held),
            Act::TakeBack { held, .. } | Act::Return { held } => Some(held),
            Act::Publish { held, .. } | Act::Drop { held } if untouched => Some(held),
            _ => None,
        }
    }

    /// Whether a process has nothing to do until another does something.
    fn resting(&self, state: &Here, process: usize) -> bool {
        let Process { local, log } = &state.processes[process];
        match local.act {
            Act::Done | Act::Dead | Act::Idle => true,
            // In the middle, too: of several that poll, not all are ever at the beginning.
            Act::Take { .. } => self.messages(state).next().is_none(),
            Act::Claim { .. } => self.messages(state).count() as u64 == self.config.cells,
            Act::Make { .. } if log.len() > 0 => false,
            Act::Make { .. } if self.config.slots => {
                (0..self.config.lines).all(|line| self.line(state, line).count > 0)
            }
            Act::Make { line } => self.line(state, line.into()).count > 0,
            _ => false,
        }
    }

    /// Gives idle reapers the next dead row.
    fn assign(&self, state: &mut Here) {
        let row = state.ghost.dead.trailing_zeros() as usize;
        if row >= self.users() {
            return;
        }
        let epoch = state.processes[row].local.epoch;
        for reaper in self.users()..state.count {
            let local = &mut state.processes[reaper].local;
            if local.act == Act::Idle {
                let row = row as u8;
                let dead = Corpse { row, epoch };
                local.act = Act::Become { dead };
            }
        }
    }

    /// The first reaper that is through with a row gives it free.
    fn give_free(&self, dead: Corpse, state: &mut Here) -> Result<(), String> {
        let row = usize::from(dead.row);
        let mut left = self.records(state);
        if let Some((_, entry, _)) = left.find(|(of, ..)| *of == row) {
            return Err(format!("a row is given free with {entry:?} in it"));
        }
        drop(left);
        state.ghost.dead &= !(1 << row);
        if state.ghost.reuses == 0 || state.processes[row].local.round >= self.config.rounds {
            return Ok(());
        }
        state.ghost.reuses -= 1;
        let same = self.is(Variant::SameEpoch);
        let epoch = dead.epoch + u8::from(!same);
        state.machine.words[super::ROWS + row * super::ROW] = occupied(epoch);
        state.machine.words[super::ENDED + row] = 0;
        let local = state.processes[row].local;
        let act = self.first(row);
        state.set(
            row,
            Local {
                epoch,
                act,
                ..local
            },
        );
        Ok(())
    }

    fn check_reapers(&self, state: &Here) -> Result<(), String> {
        let at_work = |process: &Process<Local>| match process.local.act {
            Act::Settle { dead, .. }
            | Act::Mend { dead }
            | Act::GiveBack { dead, .. }
            | Act::Bury { dead } => Some(dead),
            _ => None,
        };
        let reapers = &state.processes[self.users()..state.count];
        for (index, reaper) in reapers.iter().enumerate() {
            let dead = at_work(reaper);
            if dead.is_some() && reapers[..index].iter().any(|other| at_work(other) == dead) {
                return Err(format!("two reapers are at {dead:?}"));
            }
        }
        Ok(())
    }
}

impl World for References {
    type Local = Local;
    type Ghost = Ghost;

    fn start(&self) -> Here {
        let idle = Local {
            epoch: 0,
            round: 0,
            act: Act::Done,
        };
        let mut state = State {
            machine: Machine::ZEROED,
            processes: [Process {
                local: idle,
                log: Log::EMPTY,
            }; PROCESSES],
            count: self.users() + self.config.reapers,
            ghost: Ghost {
                dead: 0,
                reuses: self.config.reuses,
                regrets: self.config.regrets,
                killed: 0,
            },
            kills_left: self.config.kills,
        };
        for process in 0..state.count {
            let act = self.first(process);
            state.set(process, Local { act, ..idle });
        }
        memory::set_up(&mut state.machine, || {
            Cells(self).init();
            Lane(self).init();
            for row in 0..self.users() {
                self.row(row).store(occupied(0), SeqCst);
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

    fn settle(&self, process: usize, _: Local, state: &mut Here) -> Result<(), String> {
        let act = &mut state.processes[process].local.act;
        let otherwise = match *act {
            Act::TakeBack { held, pos } => Some(Act::Publish { held, pos }),
            Act::Refuse { seen, held, pos } => Some(Act::Release { seen, held, pos }),
            _ => None,
        };
        match (otherwise, state.ghost.regrets) {
            (Some(otherwise), 0) => *act = otherwise,
            (Some(_), _) => state.ghost.regrets -= 1,
            (None, _) => {}
        }
        if let Act::Buried { dead, won } = state.processes[process].local.act {
            state.processes[process].local.act = Act::Idle;
            if won {
                self.give_free(dead, state)?;
            }
        }
        self.assign(state);
        Ok(())
    }

    fn check(&self, state: &Here) -> Result<(), String> {
        let mut holders = [0; super::MOST_LINES];
        for held in self.messages(state) {
            if self.line(state, held.line.into()).generation != held.generation {
                return Err(format!("a message names {held:?}, which is gone"));
            }
            holders[usize::from(held.line)] += 1;
        }
        let mut users = holders;
        for record in self.records(state) {
            if self.counts(state, record) {
                let (_, entry, at) = record;
                let line = entry.line as usize;
                let generation = state.machine.words[at + 1];
                if self.line(state, line).generation != generation {
                    return Err(format!("{entry:?} counts for {generation}, which is gone"));
                }
                holders[line] += 1;
            }
        }
        for process in &state.processes[..self.users()] {
            if let Some(held) = self.used(process) {
                if self.line(state, held.line.into()).generation != held.generation {
                    return Err(format!("{held:?} is gone under its holder's hands"));
                }
                users[usize::from(held.line)] += 1;
            }
        }
        for line in 0..self.config.lines {
            let count = self.line(state, line).count;
            if count < holders[line] {
                return Err(format!(
                    "line {line} counts {count} of {} holders",
                    holders[line]
                ));
            }
            if count < users[line] {
                return Err(format!(
                    "line {line} counts {count} of {} users",
                    users[line]
                ));
            }
        }
        if self.config.exclusive {
            self.check_reapers(state)?;
        }
        Ok(())
    }

    fn kill(&self, process: usize, state: &mut Here) -> bool {
        let local = state.processes[process].local;
        if matches!(local.act, Act::Dead | Act::Done) {
            return false;
        }
        if process < self.users() {
            state.ghost.dead |= 1 << process;
            state.machine.words[super::ENDED + process] = 1;
        } else {
            let living = (self.users()..state.count)
                .filter(|reaper| state.processes[*reaper].local.act != Act::Dead);
            if living.count() < 2 {
                return false;
            }
            state.machine.words[GONE + process - self.users()] = 1;
        }
        let act = Act::Dead;
        state.set(process, Local { act, ..local });
        state.ghost.killed += 1;
        self.assign(state);
        true
    }

    fn is_final(&self, state: &Here) -> Result<bool, String> {
        if state.ghost.dead != 0 || !(0..state.count).all(|process| self.resting(state, process)) {
            return Ok(false);
        }
        // The audit: all that is left are messages that nobody takes, and what kills leaked.
        let waits_to_send =
            |row: &usize| matches!(state.processes[*row].local.act, Act::Claim { .. });
        let held = (0..self.users()).filter(waits_to_send).count();
        let records = self.records(state).count();
        if records != held {
            return Err(format!("{records} records are left, {held} in use"));
        }
        let mut leaked = 0;
        for line in 0..self.config.lines {
            let messages = self
                .messages(state)
                .filter(|held| usize::from(held.line) == line);
            let records = self
                .records(state)
                .filter(|(_, entry, _)| entry.line == line as u64);
            let holders = messages.count() + records.count();
            // What is still held, in a message that nobody takes, stays in doubt until somebody lets go of it.
            let in_doubt = state.machine.words[LINES + line * LINE + 2] != 0;
            if holders == 0 || !in_doubt {
                // `check` has seen that the count is not less.
                leaked += self.line(state, line).count.saturating_sub(holders as u64);
            }
        }
        // One kill leaks nothing. Of several within the same few steps one may hide what another left.
        if leaked > u64::from(state.ghost.killed.saturating_sub(1)) {
            return Err(format!(
                "{leaked} counts leaked by {} kills",
                state.ghost.killed
            ));
        }
        let taken =
            self.config.users.iter().enumerate().any(|(row, role)| {
                *role == Role::Taker && state.processes[row].local.act != Act::Dead
            });
        if taken && self.messages(state).next().is_some() {
            return Err("a message is left beside a taker".into());
        }
        Ok(true)
    }
}
