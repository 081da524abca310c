//! What the model of one line knows: who is dead and who reaps, who uses the line, and what must hold at the end.

use std::sync::atomic::Ordering::SeqCst;

use shm_core::cells::Cells;
use shm_core::sync::Atomic64;

use super::{Act, CELL, Ghost, Kind, LINE, Leases, Local, Role, USER, USERS, Variant, kind_of};
use crate::engine::{Process, State, World};
use crate::memory::{self, Log, Machine, PROCESSES};

impl Leases {
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
