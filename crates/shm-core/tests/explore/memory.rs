//! Memory in which every atomic operation is one step that the explorer takes for a process.
//!
//! A process is not kept in the middle of its code. It is run again from the start of its current
//! *act* (one call or so of the real algorithm), with the answers that its operations got before,
//! then takes one more operation for real, and is cut off by unwinding at the operation after that.
//! So its whole state is the act and the log of answers.

use std::cell::RefCell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::Ordering;

use shm_core::sync::{Atomic32, Atomic64, Memory};

/// Words of memory in a world, at most.
pub(crate) const WORDS: usize = 42;
/// Answers that one act can have got, at most.
const LOG: usize = 64;
/// Processes in a world, at most.
pub(crate) const PROCESSES: usize = 8;

/// The answers that a process got since its act began.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Log {
    answers: [u64; LOG],
    len: usize,
}

impl Log {
    pub(crate) const EMPTY: Self = Self {
        answers: [0; LOG],
        len: 0,
    };

    pub(crate) fn push(&mut self, answer: u64) {
        self.answers[self.len] = answer;
        self.len += 1;
    }

    pub(crate) fn as_slice(&self) -> &[u64] {
        &self.answers[..self.len]
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

/// What the processes share: words, and who sleeps on which of them.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Machine {
    pub(crate) words: [u64; WORDS],
    /// For each process, the word it sleeps on.
    pub(crate) asleep: [Option<u8>; PROCESSES],
    /// Processes that this step woke.
    woken: u32,
}

impl Machine {
    pub(crate) const ZEROED: Self = Self {
        words: [0; WORDS],
        asleep: [None; PROCESSES],
        woken: 0,
    };

    /// The processes woken since the last call.
    pub(crate) fn take_woken(&mut self) -> u32 {
        std::mem::take(&mut self.woken)
    }
}

struct Run {
    machine: Machine,
    log: Log,
    cursor: usize,
    stepped: bool,
    retry_from: usize,
    me: usize,
    choice: usize,
    choices: usize,
    /// Every operation is for real and none is logged.
    free: bool,
}

impl Run {
    fn new(machine: Machine, log: Log, me: usize, choice: usize) -> Self {
        Self {
            machine,
            log,
            cursor: 0,
            stepped: false,
            retry_from: 0,
            me,
            choice,
            choices: 1,
            free: false,
        }
    }
}

thread_local! {
    static RUN: RefCell<Option<Run>> = const { RefCell::new(None) };
}

/// Cuts a process off before an operation that is not its turn.
struct Cut;

/// What became of one step.
pub(crate) struct Stepped<T> {
    pub(crate) machine: Machine,
    pub(crate) log: Log,
    /// The act's result, if it came to its end.
    pub(crate) end: Option<T>,
    /// In how many ways the operation can end; for all but the first the step is to be repeated.
    pub(crate) choices: usize,
}

/// Runs an act through its log and one operation on.
pub(crate) fn step<T>(
    machine: Machine,
    log: Log,
    me: usize,
    choice: usize,
    act: impl FnOnce() -> T,
) -> Stepped<T> {
    RUN.with_borrow_mut(|slot| *slot = Some(Run::new(machine, log, me, choice)));
    let outcome = panic::catch_unwind(AssertUnwindSafe(act));
    let run = RUN.take().expect("the run is still there");
    let end = match outcome {
        Ok(end) => Some(end),
        Err(cut) if cut.is::<Cut>() => None,
        Err(panic) => panic::resume_unwind(panic),
    };
    Stepped {
        machine: run.machine,
        log: run.log,
        end,
        choices: run.choices,
    }
}

/// Runs code on the machine's words at once, as no process's step.
pub(crate) fn set_up(machine: &mut Machine, code: impl FnOnce()) {
    let run = Run {
        free: true,
        ..Run::new(*machine, Log::EMPTY, 0, 0)
    };
    RUN.with_borrow_mut(|slot| *slot = Some(run));
    code();
    *machine = RUN.take().expect("the run is still there").machine;
}

fn operate(operation: impl FnOnce(&mut Run) -> Option<u64>) -> u64 {
    let answer = RUN.with_borrow_mut(|slot| {
        let run = slot.as_mut().expect("an operation outside a step");
        if run.free {
            return operation(run);
        }
        if let Some(answer) = run.log.as_slice().get(run.cursor) {
            run.cursor += 1;
            return Some(*answer);
        }
        if run.stepped {
            return None;
        }
        run.stepped = true;
        let answer = operation(run)?;
        run.log.push(answer);
        run.cursor += 1;
        Some(answer)
    });
    answer.unwrap_or_else(|| panic::resume_unwind(Box::new(Cut)))
}

/// One of several ways to go on, all of which are explored.
pub(crate) fn choose(ways: usize) -> usize {
    operate(|run| {
        run.choices = ways;
        Some(run.choice as u64)
    }) as usize
}

/// Sleeps on a word while it has this value, as the kernel does; without a time limit, so that a
/// lost wake is a process that never goes on.
pub(crate) fn sleep_on(word: &Explored, value: u32) {
    operate(|run| {
        if run.machine.words[word.address()] != u64::from(value) {
            return Some(0);
        }
        run.machine.asleep[run.me] = Some(word.address() as u8);
        None
    });
}

/// Wakes so many sleepers, any of them, and says how many.
pub(crate) fn wake(word: &Explored, how_many: u32) -> u32 {
    operate(|run| {
        let address = Some(word.address() as u8);
        let asleep = (0..PROCESSES).filter(|process| run.machine.asleep[*process] == address);
        let asleep: Vec<_> = asleep.collect();
        let chosen: &[usize] = if how_many == 1 && !asleep.is_empty() {
            run.choices = asleep.len();
            &asleep[run.choice..=run.choice]
        } else {
            &asleep
        };
        for process in chosen {
            run.machine.asleep[*process] = None;
            run.machine.woken |= 1 << process;
        }
        Some(chosen.len() as u64)
    }) as u32
}

/// An atomic of either width: the address of a word.
#[derive(Debug)]
pub(crate) enum Explored {
    Word(usize),
    /// Additions to it are lost (for a control variant).
    Frozen(usize),
    /// A plain word that only the process whose turn it is touches: to write it belongs to the step
    /// that follows.
    Quiet(usize),
    /// Holds 0 whatever is written, and to touch it is no step: for what a model leaves out.
    Nothing,
}

impl Explored {
    fn address(&self) -> usize {
        match self {
            Self::Word(address) | Self::Frozen(address) => *address,
            Self::Quiet(_) | Self::Nothing => {
                unreachable!("nothing sleeps on a word that is left out")
            }
        }
    }

    fn update(&self, update: impl FnOnce(u64) -> u64) -> u64 {
        match self {
            Self::Nothing => 0,
            Self::Quiet(address) => RUN.with_borrow_mut(|slot| {
                let run = slot.as_mut().expect("an operation outside a step");
                // In a replay it was done already, and the word may be another's by now.
                if !run.stepped && run.cursor == run.log.len() {
                    let word = &mut run.machine.words[*address];
                    *word = update(*word);
                }
                0
            }),
            Self::Word(address) | Self::Frozen(address) => operate(|run| {
                let word = &mut run.machine.words[*address];
                let before = *word;
                *word = update(before);
                Some(before)
            }),
        }
    }

    fn add(&self, update: impl FnOnce(u64) -> u64) -> u64 {
        match self {
            Self::Frozen(_) => self.update(|before| before),
            _ => self.update(update),
        }
    }

    /// The answer of an exchange is the value it found.
    fn exchange(&self, current: u64, new: u64) -> Result<u64, u64> {
        let found = self.update(|before| if before == current { new } else { before });
        if found == current {
            Ok(found)
        } else {
            Err(found)
        }
    }
}

/// The explorer's memory. Orderings mean nothing in it: it is sequentially consistent.
#[derive(Debug)]
pub(crate) struct Steps;

impl Memory for Steps {
    type U64 = Explored;
    type U32 = Explored;

    fn fence(_: Ordering) {}

    fn spin_hint() {}

    fn retry_loop() {
        RUN.with_borrow_mut(|slot| {
            let run = slot.as_mut().expect("a loop outside a step");
            run.retry_from = run.cursor;
        });
    }

    fn retry() {
        RUN.with_borrow_mut(|slot| {
            let run = slot.as_mut().expect("a loop outside a step");
            // Only ever reached behind the live operation: what failed before was forgotten here.
            run.log.len = run.retry_from;
            run.cursor = run.retry_from;
        });
    }
}

macro_rules! implement {
    ($name:ident, $value:ty) => {
        impl $name for Explored {
            fn load(&self, _: Ordering) -> $value {
                self.update(|before| before) as $value
            }
            fn store(&self, value: $value, _: Ordering) {
                self.update(|_| value.into());
            }
            fn swap(&self, value: $value, _: Ordering) -> $value {
                self.update(|_| value.into()) as $value
            }
            fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                _: Ordering,
                _: Ordering,
            ) -> Result<$value, $value> {
                match self.exchange(current.into(), new.into()) {
                    Ok(found) => Ok(found as $value),
                    Err(found) => Err(found as $value),
                }
            }
            fn fetch_add(&self, value: $value, _: Ordering) -> $value {
                self.add(|before| (before as $value).wrapping_add(value).into()) as $value
            }
            fn fetch_sub(&self, value: $value, _: Ordering) -> $value {
                self.add(|before| (before as $value).wrapping_sub(value).into()) as $value
            }
            fn fetch_or(&self, value: $value, _: Ordering) -> $value {
                self.update(|before| before | u64::from(value)) as $value
            }
            fn fetch_and(&self, value: $value, _: Ordering) -> $value {
                self.update(|before| before & u64::from(value)) as $value
            }
        }
    };
}

implement!(Atomic64, u64);
implement!(Atomic32, u32);
