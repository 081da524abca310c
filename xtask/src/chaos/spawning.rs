//! The suite `spawn`: parents that start children by both methods, children that start children, and kills among all of
//! them.
//!
//! A parent draws what each child is to do (return, fail, panic, exit, kill itself, sleep, have children), starts them
//! under one context, hits some of them and the fork server meanwhile, and compares what it is told with what it knows: an
//! error must name a process that something was done to, and what. Then nobody may be left of its children, dead or alive,
//! and no descriptor. Parents are killed from outside; the round sees whether anybody outlives them.

use std::cell::RefCell;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use shm_core::{Arena, Tensor};
use spawn::{ErrorKind, Exit, SpawnContext, StartMethod, forkserver};

use super::control::Control;
use super::killer::labels;
use super::orphans::name_of;
use super::parents::{Parents, settle_in};
use super::pattern::{check, element, fill};
use super::strike::{Blow, strike};
use super::suite::{Scene, Suite, Worker};
use super::traces::{check_children, check_descriptors, note_group, wait_for_the_lost};
use crate::Result;

const CREW: usize = 3;
/// Children that have children, from the parents of the crew on.
const DEEPEST: u32 = 2;
/// From SIGTERM to SIGKILL.
const GRACE: Duration = Duration::from_millis(100);
/// What begins the text of an error that says that something is wrong.
const WRONG: &str = "wrong: ";
/// The variable by which a child kills itself at a step.
const FAILPOINT: &str = "TENSORMP_FAILPOINT";
/// Steps of a child that takes part in the arena and sends a tensor.
const LABELS: [&str; 5] = ["attach.", "row.", "put.", "block.", "chunk."];

/// The suite.
#[derive(Debug)]
pub(crate) struct Spawning;

impl Suite for Spawning {
    fn name(&self) -> &'static str {
        "spawn"
    }

    fn crew(&self) -> usize {
        CREW
    }

    fn counts(&self) -> &'static str {
        "children"
    }

    /// A parent is worth more alive: it hits its children.
    fn pause(&self) -> Duration {
        Duration::from_millis(50)
    }

    /// Children get labels from their parents.
    fn labels(&self) -> &'static [&'static str] {
        &[]
    }

    fn open(&self, _: &Arena, _: fastrand::Rng) -> Result<Box<dyn Scene>> {
        Ok(Box::new(Parents))
    }

    fn work(&self, mut worker: Worker) -> Result<()> {
        let mut family = Family {
            rng: worker.rng.fork(),
            control: worker.control.clone(),
            round: worker.part.parent.unsigned_abs(),
            life: worker.part.life,
            depth: 0,
            killed_server: None,
        };
        let name = name_of(family.round);
        let before = settle_in(&worker, || {
            for method in StartMethod::ALL {
                let context = spawn::builder().name(name.clone()).start_method(method);
                context.spawn(nothing, (), 1)?.join()?;
            }
            Ok(())
        })?;
        while !worker.control.is_stopping() {
            worker.arena.recorder().set_task("having children");
            family.live()?;
            worker.arena.recorder().set_task("looking who is left");
            check_children()?;
            check_descriptors(&before)?;
            worker.control.step(worker.part.slot)?;
        }
        Ok(())
    }
}

fn nothing(_rank: usize, _: ()) {}

/// What a child is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Plan {
    Return,
    Fail,
    Panic,
    Exit(u8),
    KillItself,
    Sleep,
    HaveChildren,
}

impl Plan {
    fn fails(self) -> bool {
        matches!(
            self,
            Plan::Fail | Plan::Panic | Plan::Exit(_) | Plan::KillItself
        )
    }
}

/// What children are told.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Lot {
    plans: Vec<Plan>,
    seed: u64,
    round: u32,
    life: u64,
    depth: u32,
}

/// What a child returns.
#[derive(Debug, Serialize, Deserialize)]
enum Value {
    Plain(u64),
    InArena(Tensor<u64>),
}

/// The function of each child.
fn child(rank: usize, lot: Lot) -> Result<Value> {
    note_group(lot.life)?;
    let id = lot.seed ^ rank as u64;
    let mut rng = fastrand::Rng::with_seed(id);
    std::thread::sleep(Duration::from_micros(rng.u64(0..12_000)));
    match lot.plans[rank] {
        Plan::Return => {}
        Plan::Fail => return Err(format!("planned {id}").into()),
        Plan::Panic => panic!("planned {id}"),
        Plan::Exit(code) => std::process::exit(code.into()),
        Plan::KillItself => {
            let me = rustix::process::getpid();
            rustix::process::kill_process(me, rustix::process::Signal::KILL)?;
            sleep();
        }
        Plan::Sleep => sleep(),
        Plan::HaveChildren => {
            let mut family = Family {
                rng,
                control: Control::open(&Arena::current()?)?,
                round: lot.round,
                life: lot.life,
                depth: lot.depth + 1,
                killed_server: None,
            };
            family.live().map_err(|error| format!("{WRONG}{error}"))?;
        }
    }
    if id.is_multiple_of(2) {
        return Ok(Value::Plain(element(id, 0)));
    }
    let mut tensor = Tensor::uninit([16 + id as usize % 400])?;
    fill(id, tensor.as_mut_slice());
    Ok(Value::InArena(tensor))
}

fn sleep() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

/// How a parent ends what it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Join,
    WaitAny,
    Poll,
    Terminate,
    Kill,
    Drop,
}

impl Ending {
    /// Whether the parent waits until the children have ended by themselves.
    fn waits(self) -> bool {
        matches!(self, Ending::Join | Ending::WaitAny | Ending::Poll)
    }
}

/// A process that has children.
struct Family {
    rng: fastrand::Rng,
    control: Control,
    round: u32,
    life: u64,
    depth: u32,
    /// The fork server that was killed at the start before this one, which may have ended before it.
    killed_server: Option<u32>,
}

/// What a parent knows about one context.
#[derive(Debug)]
struct Known {
    lot: Lot,
    ending: Ending,
    /// Children that were sent SIGKILL, by process id.
    killed: Vec<u32>,
    /// Whether each child kills itself somewhere, if it comes by.
    at_label: bool,
}

impl Family {
    /// One context, from its start to its end. The error says what is wrong.
    fn live(&mut self) -> Result<()> {
        let lot = self.draw();
        let ending = self.ending(&lot);
        let method = *self
            .rng
            .choice(StartMethod::ALL.iter())
            .unwrap_or(&StartMethod::Spawn);
        let mut builder = spawn::builder()
            .name(name_of(self.round))
            .grace(GRACE)
            .start_method(method);
        let label = self.label();
        if let Some(label) = label {
            let nth = self.rng.u8(1..3);
            builder = builder.env(FAILPOINT, format!("{label}:{nth}=kill"));
        }
        let mut known = Known {
            ending,
            killed: Vec::new(),
            // Those of a child that has it have it, too.
            at_label: label.is_some() || std::env::var_os(FAILPOINT).is_some(),
            lot: lot.clone(),
        };
        let n = lot.plans.len();
        let at_server = self.blow_at_server();
        let control = self.control.clone();
        let pause = Duration::from_micros(self.rng.u64(0..4000));
        let (started, was_hit) = std::thread::scope(|scope| {
            let server = at_server.map(|(pid, blow)| {
                let control = &control;
                scope.spawn(move || {
                    std::thread::sleep(pause);
                    strike(pid, blow, control)
                })
            });
            let started = builder.spawn(child, lot, n);
            let was_hit = server.is_some_and(|thread| thread.join().unwrap_or(false));
            (started, was_hit)
        });
        let was_killed = was_hit && matches!(at_server, Some((_, Blow::Kill)));
        let killed_now = at_server.map(|(pid, _)| pid).filter(|_| was_killed);
        let killed_before = std::mem::replace(&mut self.killed_server, killed_now);
        let mut context = match started {
            Ok(context) => context,
            // The server was ended while it was asked for a child.
            Err(error)
                if was_killed
                    && matches!(error.kind(), ErrorKind::Launch)
                    && error.to_string().contains("fork server") =>
            {
                return wait_for_the_lost();
            }
            // Or just before, and it is that one.
            Err(error)
                if matches!(error.kind(), ErrorKind::Launch)
                    && killed_before.is_some_and(|pid| {
                        error
                            .to_string()
                            .contains(&format!("the fork server gave none: it (pid {pid})"))
                    }) =>
            {
                return wait_for_the_lost();
            }
            Err(error) => return Err(format!("no child was started: {error}").into()),
        };
        for _ in 0..n {
            self.control.message()?;
        }
        let blows = self.blows(&context, ending);
        let hits = RefCell::new(Vec::new());
        let stopper = context.stopper();
        let told = std::thread::scope(|scope| {
            let striker = scope.spawn(|| {
                let mut killed = Vec::new();
                for (after, pid, blow) in blows {
                    std::thread::sleep(after);
                    if strike(pid, blow, &control) && blow == Blow::Kill {
                        killed.push(pid);
                    }
                }
                match ending {
                    Ending::Terminate => stopper.terminate(),
                    Ending::Kill => stopper.kill(),
                    _ => {}
                }
                killed
            });
            let wait = || -> spawn::Result<Option<Vec<Value>>> {
                match ending {
                    Ending::Drop => return Ok(None),
                    Ending::WaitAny => while context.wait_any()?.is_some() {},
                    Ending::Poll => {
                        while context.join_timeout(Duration::from_millis(3))?.is_none() {}
                    }
                    Ending::Join | Ending::Terminate | Ending::Kill => {}
                }
                context.into_results().map(Some)
            };
            let told = wait();
            *hits.borrow_mut() = striker.join().unwrap_or_default();
            told
        });
        known.killed = hits.into_inner();
        match told {
            Ok(None) => Ok(()),
            Ok(Some(values)) => known.values(&values),
            Err(error) => known.error(&error, &self.control),
        }
        .map_err(|text| format!("{text}; started by {method}, {known:?}").into())
    }

    fn draw(&mut self) -> Lot {
        let n = self.rng.usize(1..=3);
        let calm = self.rng.u8(..3) == 0;
        let depth = self.depth;
        let plans = (0..n)
            .map(|_| match self.rng.u8(..16) {
                _ if calm => Plan::Return,
                0..4 => Plan::Return,
                4 | 5 => Plan::Fail,
                6 | 7 => Plan::Panic,
                8 => Plan::Exit(0),
                9 => Plan::Exit(7),
                10 | 11 => Plan::KillItself,
                12 | 13 if depth < DEEPEST => Plan::HaveChildren,
                _ => Plan::Sleep,
            })
            .collect();
        Lot {
            plans,
            seed: self.rng.u64(..),
            round: self.round,
            life: self.life,
            depth,
        }
    }

    /// One that comes to an end: who sleeps is stopped by somebody.
    fn ending(&mut self, lot: &Lot) -> Ending {
        let ends = lot.plans.iter().any(|plan| plan.fails()) || !lot.plans.contains(&Plan::Sleep);
        match self.rng.u8(..8) {
            0 | 1 if ends => Ending::Join,
            2 | 3 if ends => Ending::WaitAny,
            4 if ends => Ending::Poll,
            0 | 1 | 5 => Ending::Terminate,
            2 | 3 | 6 => Ending::Kill,
            _ => Ending::Drop,
        }
    }

    fn label(&mut self) -> Option<&'static str> {
        if self.rng.u8(..5) > 0 {
            return None;
        }
        self.rng.choice(labels(&LABELS))
    }

    /// What is done to the fork server while it is asked for children.
    fn blow_at_server(&mut self) -> Option<(u32, Blow)> {
        let server = forkserver::pid()?;
        match self.rng.u8(..8) {
            0 => Some((server, Blow::Kill)),
            1 => Some((server, self.brief())),
            _ => None,
        }
    }

    fn brief(&mut self) -> Blow {
        Blow::Pause(Duration::from_millis(self.rng.u64(1..40)))
    }

    /// What is done to which child, how long after what comes before.
    fn blows(
        &mut self,
        context: &SpawnContext<Value>,
        ending: Ending,
    ) -> Vec<(Duration, u32, Blow)> {
        let pids = context.pids();
        (0..self.rng.usize(0..=2))
            .map(|_| {
                let after = Duration::from_micros(self.rng.u64(0..15_000));
                let pid = pids[self.rng.usize(..pids.len())];
                let blow = match self.rng.u8(..8) {
                    0 | 1 => self.brief(),
                    // Only where the parent ends even this.
                    2 if !ending.waits() => Blow::Freeze,
                    _ => Blow::Kill,
                };
                (after, pid, blow)
            })
            .collect()
    }
}

impl Known {
    fn values(&self, values: &[Value]) -> Result<(), String> {
        if values.len() != self.lot.plans.len() {
            return Err(format!("{} values came", values.len()));
        }
        for (rank, (value, plan)) in values.iter().zip(&self.lot.plans).enumerate() {
            let id = self.lot.seed ^ rank as u64;
            if !matches!(plan, Plan::Return | Plan::HaveChildren) {
                return Err(format!("a value came of rank {rank}"));
            }
            match value {
                Value::Plain(word) => check(id, 0, &[*word], "a value"),
                Value::InArena(tensor) => check(id, 0, tensor.as_slice(), "a result"),
            }
            .map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Whether what the parent was told is what was done.
    fn error(&self, error: &spawn::Error, control: &Control) -> Result<(), String> {
        let is_wrong = || Err(format!("told: {error} ({:?})", error.kind()));
        let Some(worker) = error.worker() else {
            let stopped = matches!(error.kind(), ErrorKind::Interrupted { worker: None });
            return match stopped && !self.ending.waits() {
                true => Ok(()),
                false => is_wrong(),
            };
        };
        let text = error.to_string();
        let named = text.contains(&worker.name) && text.contains(&worker.pid.to_string());
        let Some(plan) = self.lot.plans.get(worker.rank) else {
            return is_wrong();
        };
        let planned = format!("planned {}", self.lot.seed ^ worker.rank as u64);
        let was_hit = self.killed.contains(&worker.pid);
        let is_in_order = named
            && match error.kind() {
                ErrorKind::ProcessRaised { chain, .. } => {
                    *plan == Plan::Fail && chain.concat().contains(&planned)
                }
                ErrorKind::ProcessPanicked { message, .. } => {
                    *plan == Plan::Panic && message.contains(&planned)
                }
                ErrorKind::ProcessExited {
                    exit: Exit::Code(code),
                    after_result: false,
                    ..
                } => matches!(plan, Plan::Exit(planned) if i32::from(*planned) == *code),
                ErrorKind::ProcessExited {
                    exit: Exit::Signal { name, .. },
                    ..
                } => {
                    let by_itself = *plan == Plan::KillItself;
                    let at_label = self.at_label && !was_hit && !by_itself;
                    let _ = match (was_hit, by_itself) {
                        (true, _) => Ok(()),
                        (_, true) => control.kill(),
                        _ => control.kill_at_label(),
                    };
                    name == "SIGKILL" && (was_hit || at_label || by_itself)
                }
                ErrorKind::NeverStarted { reason, .. } => {
                    (was_hit || self.at_label) && reason.contains("SIGKILL")
                }
                _ => false,
            };
        if is_in_order { Ok(()) } else { is_wrong() }
    }
}
