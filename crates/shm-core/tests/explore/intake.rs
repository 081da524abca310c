//! The world of messages that die with their consumer: over the real cells and the real notes of what was taken out of them,
//! whatever is killed where, the count of lost messages is right.
//!
//! A message that was put ends with a program, in the queue, or is lost; what is lost was counted, and nothing else was. A
//! reaper that is killed may miss one. Two consumers can be threads of one process, which are killed together.

use shm_core::cells::{CellArray, Cells, Claim, Owner, Take};
use shm_core::intake;
use shm_core::sync::Atomic64;
use shm_core::word::{CellState, decode};
use std::sync::atomic::Ordering::Relaxed;

use crate::engine::{Process, State, World};
use crate::memory::{self, Explored, Log, Machine, PROCESSES, Steps, WORDS};
use crate::{all_is_well, is_noticed};

const TAIL: usize = 0;
const HEAD: usize = 1;
const ORPHANS: usize = 2;
const CLOSED: usize = 3;
const LOST: usize = 4;
/// A word for each consumer.
const NOTES: usize = 5;
const CELLS: usize = 9;

/// What is left out, to see that the explorer notices.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Variant {
    /// Nothing.
    Right,
    /// The note is written after the cell was freed.
    NoteAfterRelease,
    /// A reaper hands back what is in the cells before it reads the notes.
    CellsFirst,
    /// A reaper takes a cell that the dead was taking in another lap for the one that was noted.
    AnyLap,
    /// A reaper does not look at the cell.
    NoLook,
}

#[derive(Copy, Clone, Debug)]
struct Config {
    capacity: u64,
    messages: u8,
    /// The row of each consumer; two of one row are threads of one process.
    consumers: &'static [u16],
    reapers: usize,
    kills: u8,
    variant: Variant,
}

const BASE: Config = Config {
    capacity: 1,
    messages: 2,
    consumers: &[1, 2],
    reapers: 1,
    kills: 1,
    variant: Variant::Right,
};

#[derive(Debug)]
struct Intakes {
    config: Config,
    words: [Explored; WORDS],
    payload: [Explored; 7],
}

#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
enum Act {
    Claim {
        n: u8,
    },
    Publish {
        n: u8,
        pos: u64,
    },
    Take {
        seen: u64,
    },
    Note {
        seen: u64,
        pos: u64,
    },
    Release {
        seen: u64,
        pos: u64,
    },
    Clear {
        seen: u64,
    },
    Watch,
    /// Reads what the dead had noted.
    ReapNotes {
        row: u16,
    },
    ReapCells {
        row: u16,
    },
    Reaped {
        row: u16,
    },
    Done,
    Dead,
}

/// What the model knows.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
struct Ghost {
    /// Messages that were put, and that a program has.
    published: u8,
    delivered: u8,
    /// Bit per row: dead and not yet reaped.
    dead: u8,
    /// Reapers that were killed.
    reapers_lost: u8,
}

impl CellArray for &Intakes {
    type M = Steps;

    fn capacity(&self) -> u64 {
        self.config.capacity
    }
    fn word(&self, index: u64) -> &Explored {
        &self.words[CELLS + index as usize]
    }
    fn payload(&self, _: u64) -> &[Explored; 7] {
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
        &self.words[CLOSED]
    }
}

const fn owner(row: u16) -> Owner {
    Owner { row, epoch: 0 }
}

impl Intakes {
    fn new(config: Config) -> Self {
        Self {
            config,
            words: std::array::from_fn(Explored::Word),
            payload: std::array::from_fn(|_| Explored::Nothing),
        }
    }

    fn cells(&self) -> Cells<&Self> {
        Cells(self)
    }

    /// The row of a process: the producer has 0, reapers have none.
    fn row(&self, process: usize) -> Option<u16> {
        match process {
            0 => Some(0),
            _ => self.config.consumers.get(process - 1).copied(),
        }
    }

    fn is_reaper(&self, process: usize) -> bool {
        process > self.config.consumers.len()
    }

    /// Reads what the threads of a dead process had noted, and counts what is lost.
    fn reap_notes(&self, row: u16) {
        for (thread, _) in self
            .config
            .consumers
            .iter()
            .enumerate()
            .filter(|(_, of)| **of == row)
        {
            let Some((cell, lap)) = intake::take_note(&self.words[NOTES + thread]) else {
                continue;
            };
            let cells: &Self = self;
            let word = (&cells).word(cell);
            let has_it = match self.config.variant {
                Variant::NoLook => false,
                Variant::AnyLap => matches!(
                    decode(word.load(Relaxed)),
                    CellState::Taking { owner: by, .. } if by == owner(row)
                ),
                _ => intake::has_it_still(word, owner(row), lap),
            };
            if !has_it {
                self.words[LOST].fetch_add(1, Relaxed);
            }
        }
    }

    /// Gives the next dead process to a reaper that has nothing to do, unless one is at it.
    fn assign(&self, state: &mut State<Act, Ghost>) {
        let row = state.ghost.dead.trailing_zeros() as u16;
        let reapers = self.config.consumers.len() + 1..state.count;
        let is_busy = reapers
            .clone()
            .any(|reaper| !matches!(state.processes[reaper].local, Act::Watch | Act::Dead));
        if row > 7 || is_busy {
            return;
        }
        let idle = reapers
            .into_iter()
            .find(|&reaper| state.processes[reaper].local == Act::Watch);
        if let Some(reaper) = idle {
            let first = match self.config.variant {
                Variant::CellsFirst => Act::ReapCells { row },
                _ => Act::ReapNotes { row },
            };
            state.set(reaper, first);
        }
    }
}

impl World for Intakes {
    type Local = Act;
    type Ghost = Ghost;

    fn start(&self) -> State<Act, Ghost> {
        let consumers = self.config.consumers.len();
        let mut state = State {
            machine: Machine::ZEROED,
            processes: [Process {
                local: Act::Done,
                log: Log::EMPTY,
            }; PROCESSES],
            count: 1 + consumers + self.config.reapers,
            ghost: Ghost {
                published: 0,
                delivered: 0,
                dead: 0,
                reapers_lost: 0,
            },
            kills_left: self.config.kills,
        };
        state.set(0, Act::Claim { n: 0 });
        for process in 1..state.count {
            let first = match self.is_reaper(process) {
                true => Act::Watch,
                false => Act::Take { seen: 0 },
            };
            state.set(process, first);
        }
        memory::set_up(&mut state.machine, || self.cells().init());
        state
    }

    fn is_enabled(&self, _: usize, local: Act, _: &Ghost) -> bool {
        !matches!(local, Act::Watch | Act::Done | Act::Dead)
    }

    fn act(&self, process: usize, act: Act) -> Result<Act, String> {
        let cells = self.cells();
        let me = owner(self.row(process).unwrap_or(7));
        let late = self.config.variant == Variant::NoteAfterRelease;
        Ok(match act {
            Act::Claim { n } => match cells.claim(me) {
                Claim::At(pos) => Act::Publish { n, pos },
                Claim::Full | Claim::Pending(_) => act,
                other => return Err(format!("a claim answered {other:?}")),
            },
            Act::Publish { n, pos } => {
                cells.publish(pos);
                match n + 1 < self.config.messages {
                    true => Act::Claim { n: n + 1 },
                    false => Act::Done,
                }
            }
            Act::Take { mut seen } => match cells.take(me, &mut seen) {
                Take::At { pos, .. } if late => Act::Release { seen, pos },
                Take::At { pos, .. } => Act::Note { seen, pos },
                Take::Empty | Take::Pending(_) => Act::Take { seen },
                other => return Err(format!("a take answered {other:?}")),
            },
            Act::Note { seen, pos } => {
                let (cell, lap) = (pos % self.config.capacity, pos / self.config.capacity);
                intake::note(&self.words[NOTES + process - 1], cell, lap);
                match late {
                    true => Act::Clear { seen },
                    false => Act::Release { seen, pos },
                }
            }
            Act::Release { seen, pos } => {
                let _ = cells.release(pos);
                match late {
                    true => Act::Note { seen, pos },
                    false => Act::Clear { seen },
                }
            }
            Act::Clear { seen } => {
                intake::clear(&self.words[NOTES + process - 1]);
                Act::Take { seen }
            }
            Act::ReapNotes { row } => {
                self.reap_notes(row);
                match self.config.variant {
                    Variant::CellsFirst => Act::Reaped { row },
                    _ => Act::ReapCells { row },
                }
            }
            Act::ReapCells { row } => {
                if cells.reap(owner(row)).damaged > 0 {
                    return Err("a reap found the queue damaged".into());
                }
                match self.config.variant {
                    Variant::CellsFirst => Act::ReapNotes { row },
                    _ => Act::Reaped { row },
                }
            }
            Act::Watch | Act::Reaped { .. } | Act::Done | Act::Dead => {
                unreachable!("these do nothing")
            }
        })
    }

    fn settle(
        &self,
        process: usize,
        before: Act,
        state: &mut State<Act, Ghost>,
    ) -> Result<(), String> {
        match before {
            Act::Publish { .. } => state.ghost.published += 1,
            Act::Clear { .. } => state.ghost.delivered += 1,
            _ => {}
        }
        if let Act::Reaped { row } = state.processes[process].local {
            state.ghost.dead &= !(1 << row);
            state.set(process, Act::Watch);
        }
        self.assign(state);
        Ok(())
    }

    fn kill(&self, process: usize, state: &mut State<Act, Ghost>) -> bool {
        if process == 0 || state.processes[process].local == Act::Dead {
            return false;
        }
        if self.is_reaper(process) {
            let others = self.config.consumers.len() + 1..state.count;
            let is_last = others
                .filter(|&other| other != process)
                .all(|other| state.processes[other].local == Act::Dead);
            if is_last {
                return false;
            }
            state.ghost.reapers_lost += 1;
            state.set(process, Act::Dead);
        } else {
            // All threads of the process at once.
            let row = self.row(process);
            for thread in (1..state.count).filter(|&other| self.row(other) == row) {
                state.set(thread, Act::Dead);
            }
            state.ghost.dead |= 1 << row.unwrap_or(0);
        }
        self.assign(state);
        true
    }

    fn is_final(&self, state: &State<Act, Ghost>) -> Result<bool, String> {
        let consumers = 1..=self.config.consumers.len();
        let locals = |range: std::ops::RangeInclusive<usize>| {
            range.map(|process| state.processes[process].local)
        };
        let at_rest = |act| matches!(act, Act::Take { .. } | Act::Dead);
        let reaped = locals(*consumers.end() + 1..=state.count - 1)
            .all(|act| matches!(act, Act::Watch | Act::Dead));
        if state.ghost.dead != 0 || !reaped || !locals(consumers.clone()).all(at_rest) {
            return Ok(false);
        }
        let left = state.machine.words[CELLS..CELLS + self.config.capacity as usize]
            .iter()
            .filter(|&&word| matches!(decode(word), CellState::Ready { .. }))
            .count() as u64;
        // In the middle of a take: what is in its hands is in the cell, and not yet counted anywhere else.
        let is_taking = |&word: &u64| matches!(decode(word), CellState::Taking { .. });
        if state.machine.words[CELLS..CELLS + self.config.capacity as usize]
            .iter()
            .any(is_taking)
        {
            return Ok(false);
        }
        let alive = locals(consumers).any(|act| act != Act::Dead);
        let producer = state.processes[0].local;
        let is_putting = matches!(producer, Act::Publish { .. });
        if is_putting || alive && (left > 0 || producer != Act::Done) {
            return Ok(false);
        }
        let ghost = &state.ghost;
        let lost = u64::from(ghost.published)
            .checked_sub(u64::from(ghost.delivered) + left)
            .ok_or("a message was delivered twice")?;
        let counted = state.machine.words[LOST];
        // A reaper that was killed may have taken a note and not counted it.
        let missed = u64::from(ghost.reapers_lost);
        if counted > lost {
            return Err(format!("{counted} were counted lost, and {lost} are"));
        }
        if counted + missed < lost {
            return Err(format!("{lost} are lost, and only {counted} were counted"));
        }
        Ok(true)
    }
}

/// Two threads of one process, a message each and one more.
const THREADS: Config = Config {
    consumers: &[1, 1],
    messages: 2,
    ..BASE
};

#[test]
fn what_dies_with_its_consumer_is_counted_and_nothing_else() {
    let more = |config| Config {
        capacity: 2,
        ..config
    };
    let worlds = [
        ("two consumers", BASE),
        ("two consumers, two cells", more(BASE)),
        ("two threads", THREADS),
        ("two threads, two cells", more(THREADS)),
        ("two consumers, both killed", Config { kills: 2, ..BASE }),
        (
            "two threads, and a reaper that is killed",
            Config {
                reapers: 2,
                kills: 2,
                ..THREADS
            },
        ),
    ];
    for (name, config) in worlds {
        all_is_well(name, &Intakes::new(config));
    }
}

#[test]
fn counting_without_one_of_its_rules_is_noticed() {
    let variants = [
        (Variant::NoteAfterRelease, "only 0 were counted", BASE),
        (Variant::CellsFirst, "were counted lost, and", BASE),
        (Variant::NoLook, "were counted lost, and", BASE),
        (Variant::AnyLap, "were counted", THREADS),
    ];
    for (variant, with, config) in variants {
        is_noticed(&variant, with, &Intakes::new(Config { variant, ..config }));
    }
}
