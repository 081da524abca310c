//! The world of locks: processes that lock, read, write or meet at a barrier, and reapers, over the real permits,
//! readers' words, rounds and events. Waiting processes sleep without a time limit, so a lost wake is somebody who never
//! goes on.

use shm_core::event::Event;
use shm_core::permits::{Left, Permits};
use shm_core::rounds::Rounds;

mod acts;
mod promises;

use crate::engine::{Process, State, World};
use crate::memory::{self, Explored, Log, Machine, PROCESSES, Steps};

/// `seq` and `waiters` of the two events.
const EVENTS: [usize; 2] = [0, 2];
const BROKEN: usize = 4;
/// The permits, or the barrier's word.
const FIRST: usize = 5;
/// What a dead holder's pid is told to be.
const PID: u32 = 100;

/// What is left out of the protocol, to see that the explorer notices.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Variant {
    Right,
    /// A row's next user has the same epoch.
    SameEpoch,
    /// A reaper wakes nobody.
    SilentReaper,
    /// Who releases wakes nobody.
    SilentRelease,
    /// A reader does not look at the writer's word after it has taken its own.
    ReaderDoesNotLook,
    /// A reader that steps back tells nobody.
    SilentStepBack,
    /// A barrier is not marked as broken when one of its processes dies.
    NotBroken,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    Locker,
    Reader,
    Writer,
    Party,
    Reaper,
}

#[derive(Copy, Clone, Debug)]
pub(crate) struct Config {
    pub(crate) roles: &'static [Role],
    /// Words of permits; for readers and writers the writer's is among them.
    pub(crate) words: usize,
    /// How often each locks, reads, writes or meets.
    pub(crate) rounds: u8,
    pub(crate) kills: u8,
    pub(crate) reuses: u8,
    pub(crate) variant: Variant,
}

#[derive(Debug)]
pub(crate) struct Locks {
    config: Config,
    words: Vec<Explored>,
}

#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Local {
    epoch: u8,
    round: u8,
    act: Act,
}

/// A process's next act; `ticket` is a waiter's registration.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
enum Act {
    /// Tries to get what it wants.
    Try(Want, Option<u64>),
    /// Tells the writer that it is not in the way any more, then waits for what it wants.
    StepBack(Option<u64>),
    Register(Want),
    Sleep(Want, u64),
    /// Leaves the waiters, having got it or not.
    Leave(Want, u64, Result<Got, ()>),
    /// Holds it and gives it back.
    Release(Got),
    /// Tells of a release: the first event, or the second.
    Tell(Got, usize),
    /// Takes its arrival back: the barrier is broken.
    Withdraw(u8),
    Reap {
        row: u8,
        epoch: u8,
    },
    Rouse {
        row: u8,
        epoch: u8,
        event: usize,
    },
    Reaped {
        row: u8,
        epoch: u8,
    },
    Watch,
    Done,
    Broken,
    Dead,
}

#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
enum Want {
    Permit,
    Reading,
    /// The writer's word, and then that nobody reads.
    Claim,
    Drained(Option<Left>),
    Arrival,
    Passage(u8),
}

#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
enum Got {
    Permit(usize, Option<Left>),
    Reading(usize),
    Claim(Option<Left>),
    Writing(Option<Left>),
    Arrival(u8),
    Last,
    Passage,
    Broken,
}

/// What the model knows.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Ghost {
    /// Who holds what: process + 1 by word.
    holder: [u8; 4],
    writing: bool,
    /// Words that a dead one held, which the next holder is to be told.
    left: u8,
    /// Dead and not yet reaped.
    dead: u8,
    arrivals: u8,
    reuses: u8,
}

impl Locks {
    pub(crate) fn new(config: Config) -> Self {
        let words = (0..FIRST + config.words.max(1))
            .map(Explored::Word)
            .collect();
        Self { config, words }
    }

    fn is(&self, variant: Variant) -> bool {
        self.config.variant == variant
    }

    fn role(&self, process: usize) -> Role {
        self.config.roles[process]
    }

    fn permits(&self) -> Permits<'_, Steps> {
        Permits(&self.words[FIRST..])
    }

    fn rounds(&self) -> Rounds<'_, Steps> {
        Rounds(&self.words[FIRST])
    }

    fn event(&self, event: usize) -> Event<'_, Steps> {
        Event::new(&self.words[EVENTS[event]], &self.words[EVENTS[event] + 1])
    }

    fn wake(&self, event: usize) -> impl Fn(u32) -> u32 {
        move |how_many| memory::wake(&self.words[EVENTS[event]], how_many)
    }

    fn first_act(&self, process: usize) -> Act {
        match self.role(process) {
            Role::Locker => Act::Try(Want::Permit, None),
            Role::Reader => Act::Try(Want::Reading, None),
            Role::Writer => Act::Try(Want::Claim, None),
            Role::Party => Act::Try(Want::Arrival, None),
            Role::Reaper => Act::Watch,
        }
    }

    fn parties(&self) -> u8 {
        self.config
            .roles
            .iter()
            .filter(|role| **role == Role::Party)
            .count() as u8
    }

    /// Notes that a process has got something.
    fn note(&self, process: usize, got: Got, ghost: &mut Ghost) -> Result<(), String> {
        let (index, told) = match got {
            Got::Permit(index, left) => (index, Some(left)),
            Got::Reading(index) => (index, None),
            Got::Writing(left) => (0, Some(left)),
            _ => return Ok(()),
        };
        if ghost.holder[index] != 0 {
            return Err(format!("two hold word {index}"));
        }
        ghost.holder[index] = process as u8 + 1;
        let readers = ghost.holder[1..].iter().any(|holder| *holder != 0);
        let writes = matches!(got, Got::Writing(_));
        if (writes && readers) || (matches!(got, Got::Reading(_)) && ghost.writing) {
            return Err("somebody reads while another writes".into());
        }
        ghost.writing |= writes;
        if let Some(left) = told {
            let owed = ghost.left & 1 << index != 0;
            if left.is_some_and(|left| left.pid == PID) != owed {
                return Err(format!("a holder was told {left:?}, a death: {owed}"));
            }
            ghost.left &= !(1 << index);
        }
        Ok(())
    }

    fn assign(&self, state: &mut State<Local, Ghost>) {
        let Some(row) = (0..PROCESSES as u8).find(|row| state.ghost.dead & 1 << row != 0) else {
            return;
        };
        let epoch = state.processes[usize::from(row)].local.epoch;
        for process in 0..state.count {
            let local = state.processes[process].local;
            if local.act == Act::Watch {
                let act = Act::Reap { row, epoch };
                state.set(process, Local { act, ..local });
            }
        }
    }
}

impl World for Locks {
    type Local = Local;
    type Ghost = Ghost;

    fn start(&self) -> State<Local, Ghost> {
        let process = |process| Process {
            local: Local {
                epoch: 1,
                round: 0,
                act: if process < self.config.roles.len() {
                    self.first_act(process)
                } else {
                    Act::Done
                },
            },
            log: Log::EMPTY,
        };
        State {
            machine: Machine::ZEROED,
            processes: std::array::from_fn(process),
            count: self.config.roles.len(),
            ghost: Ghost {
                reuses: self.config.reuses,
                ..Ghost::default()
            },
            kills_left: self.config.kills,
        }
    }

    fn is_enabled(&self, _: usize, local: Local, _: &Ghost) -> bool {
        !matches!(local.act, Act::Watch | Act::Done | Act::Broken | Act::Dead)
    }

    fn act(&self, process: usize, local: Local) -> Result<Local, String> {
        self.perform(process, local)
    }

    fn settle(
        &self,
        process: usize,
        before: Local,
        state: &mut State<Local, Ghost>,
    ) -> Result<(), String> {
        let local = state.processes[process].local;
        let got = match local.act {
            Act::Leave(_, _, Ok(got)) | Act::Release(got) => Some(got),
            _ => None,
        };
        if let (Act::Try(want, _), Some(got)) = (before.act, got) {
            if got == Got::Passage {
                let done = u32::from(self.parties()) * u32::from(local.round + 1);
                if u32::from(state.ghost.arrivals) < done {
                    return Err(format!("passed with {} arrivals", state.ghost.arrivals));
                }
            }
            let _ = want;
            self.note(process, got, &mut state.ghost)?;
        }
        if let Act::Try(Want::Arrival, _) = before.act {
            let arrived = matches!(
                local.act,
                Act::Try(Want::Passage(_), _)
                    | Act::Tell(Got::Last, _)
                    | Act::Leave(_, _, Ok(Got::Arrival(_) | Got::Last))
            );
            state.ghost.arrivals += u8::from(arrived);
        }
        if let Act::Release(got) = before.act {
            match got {
                Got::Permit(index, _) | Got::Reading(index) => state.ghost.holder[index] = 0,
                Got::Writing(_) => {
                    state.ghost.holder[0] = 0;
                    state.ghost.writing = false;
                }
                _ => {}
            }
        }
        if let Act::Reaped { row, epoch } = local.act {
            let dead = state.processes[usize::from(row)].local;
            state.set(
                process,
                Local {
                    act: Act::Watch,
                    ..local
                },
            );
            if dead.act == Act::Dead && dead.epoch == epoch && state.ghost.dead & 1 << row != 0 {
                state.ghost.dead &= !(1 << row);
                if state.ghost.reuses > 0 {
                    state.ghost.reuses -= 1;
                    let successor = Local {
                        epoch: epoch + u8::from(!self.is(Variant::SameEpoch)),
                        round: 0,
                        act: self.first_act(row.into()),
                    };
                    state.set(row.into(), successor);
                }
            }
        }
        self.assign(state);
        Ok(())
    }

    fn kill(&self, process: usize, state: &mut State<Local, Ghost>) -> bool {
        let local = state.processes[process].local;
        if matches!(local.act, Act::Dead | Act::Done | Act::Broken | Act::Watch) {
            return false;
        }
        if self.role(process) == Role::Reaper {
            let others = (0..state.count).filter(|other| {
                *other != process
                    && self.role(*other) == Role::Reaper
                    && state.processes[*other].local.act != Act::Dead
            });
            if others.count() == 0 {
                return false;
            }
        } else {
            state.ghost.dead |= 1 << process;
        }
        for (index, holder) in state.ghost.holder.iter_mut().enumerate() {
            if *holder == process as u8 + 1 {
                *holder = 0;
                // A dead reader changed nothing.
                if index == 0 || self.role(process) == Role::Locker {
                    state.ghost.left |= 1 << index;
                }
                state.ghost.writing &= index != 0;
            }
        }
        state.set(
            process,
            Local {
                act: Act::Dead,
                ..local
            },
        );
        self.assign(state);
        true
    }

    fn is_final(&self, state: &State<Local, Ghost>) -> Result<bool, String> {
        let over = |act| matches!(act, Act::Watch | Act::Done | Act::Broken | Act::Dead);
        if state.ghost.dead != 0
            || !(0..state.count).all(|process| over(state.processes[process].local.act))
        {
            return Ok(false);
        }
        let words = &state.machine.words[FIRST..FIRST + self.config.words];
        if self.parties() == 0 && words.iter().any(|word| word & 0b11 != 0) {
            return Err(format!("a permit is nobody's and not free: {words:x?}"));
        }
        Ok(true)
    }
}
