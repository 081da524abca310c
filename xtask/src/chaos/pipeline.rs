//! The suite `pipeline`: processes that run one pipeline after the other, whose stages are killed while items are on their
//! way, with and without replacement.
//!
//! A number goes through three steps: the first writes tensors that only it can have, the second reads and copies them, the
//! third reads them and counts the number in a word of the arena. How many processes, slots and segments there are, who gets
//! what, in which order, what becomes of unfinished items and how the run is ended is drawn. However it ends, each input that was offered is
//! finished, dropped, failed or unfinished; what is finished was counted; where order is wanted, no more came out of it than are told; and no more failed than processes died.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use pipeline::{
    Client, Context, Delivery, ErrorKind, Flow, Input, Output, Pipeline, Report, Running, Stage,
    StageError, Step, TensorSpec, Unfinished,
};
use serde::{Deserialize, Serialize};
use shm_core::{AliasedTensor, Arena, Tensor};

use super::control::Control;
use super::killer::Aim;
use super::orphans::name_of;
use super::parents::{Parents, settle_in};
use super::pattern::{check, fill};
use super::strike::{Blow, strike};
use super::suite::{Scene, Suite, Worker};
use super::traces::{check_children, check_descriptors, note_group};
use crate::Result;

const CREW: usize = 2;
/// How often a process is replaced, where it is: more often than it is hit. One that is to die at a label that comes by while
/// it starts would otherwise be replaced for longer than anybody waits.
const RESTARTS: u32 = 150;
const ROWS: usize = 12;
const ROW: usize = 40;

/// The suite.
#[derive(Debug)]
pub(crate) struct Pipelines;

impl Suite for Pipelines {
    fn name(&self) -> &'static str {
        "pipeline"
    }

    fn crew(&self) -> usize {
        CREW
    }

    fn counts(&self) -> &'static str {
        "items"
    }

    /// Who runs a pipeline is killed now and then; it kills its stages meanwhile.
    fn pause(&self) -> Duration {
        Duration::from_millis(400)
    }

    fn labels(&self) -> &'static [&'static str] {
        &["put.", "get.", "block.", "stage."]
    }

    /// A process of the second step, and whoever comes in its place.
    fn aim(&self) -> Aim {
        Aim::At(format!("{}b.0", name_of(std::process::id())))
    }

    fn open(&self, _: &Arena, _: fastrand::Rng) -> Result<Box<dyn Scene>> {
        Ok(Box::new(Parents))
    }

    fn work(&self, mut worker: Worker) -> Result<()> {
        let before = settle_in(&worker, || {
            let mut plan = Plan::draw(&mut fastrand::Rng::with_seed(1), 0);
            plan.items = 1;
            let seen = Tensor::<u64>::zeros([2])?.alias();
            plan.start(&seen)?.join()?;
            Ok(())
        })?;
        while !worker.control.is_stopping() {
            let round = worker.part.parent.unsigned_abs();
            let plan = Plan::draw(&mut worker.rng, round);
            worker.arena.recorder().set_task("running a pipeline");
            let mut rng = worker.rng.fork();
            plan.play(&mut rng, &worker.control)
                .map_err(|error| format!("{error}; {plan:?}"))?;
            worker.arena.recorder().set_task("looking who is left");
            check_children()?;
            check_descriptors(&before)?;
            worker.control.step(worker.part.slot)?;
        }
        Ok(())
    }
}

/// How a run is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Wait,
    Terminate,
    Kill,
    Drop,
}

/// What a run is to be.
#[derive(Clone, Debug)]
struct Plan {
    /// What names of its steps begin with.
    name: String,
    items: u64,
    replicas: [usize; 3],
    slots: u32,
    segments: u32,
    every: bool,
    /// Each process of the second step gets everything, too.
    every_first: bool,
    /// Items that the queues behind the first two steps hold.
    queue_size: Option<usize>,
    /// The last step is one process that gets its items in order, and is left alone.
    ordered: bool,
    /// How often each process is replaced.
    restarts: u32,
    unfinished: Unfinished,
    ending: Ending,
    /// After how long who is hit, and how.
    blows: Vec<(Duration, usize, Blow)>,
}

impl Plan {
    fn draw(rng: &mut fastrand::Rng, round: u32) -> Self {
        let restarts = if rng.u8(..3) == 0 { 0 } else { RESTARTS };
        let most = if restarts == 0 { 1 } else { 8 };
        let blows = (0..rng.usize(0..=most)).map(|_| {
            let blow = match rng.u8(..8) {
                0 => Blow::Pause(Duration::from_millis(rng.u64(1..30))),
                _ => Blow::Kill,
            };
            (
                Duration::from_micros(rng.u64(0..15_000)),
                rng.usize(..6),
                blow,
            )
        });
        let blows = blows.collect();
        let slots = rng.u32(1..=3);
        let segments = rng.u32(1..=slots);
        Self {
            name: name_of(round),
            items: rng.u64(1..300),
            replicas: std::array::from_fn(|_| rng.usize(1..=2)),
            slots,
            segments,
            every: segments == 1 && rng.bool(),
            every_first: rng.u8(..4) == 0,
            queue_size: rng.bool().then(|| rng.usize(1..=4)),
            restarts,
            ordered: restarts > 0 && rng.bool(),
            unfinished: if rng.bool() {
                Unfinished::Redeliver
            } else {
                Unfinished::Report
            },
            ending: match rng.u8(..8) {
                0 => Ending::Terminate,
                1 => Ending::Kill,
                2 => Ending::Drop,
                _ => Ending::Wait,
            },
            blows,
        }
    }

    fn start(&self, seen: &AliasedTensor<u64>) -> Result<Running> {
        // What would be reported is what order would wait for, right behind it.
        let unfinished = match self.ordered {
            true => Unfinished::Redeliver,
            false => self.unfinished,
        };
        let step = |step: Step, at: usize| {
            let step = step.replicas(self.replicas[at]);
            if self.restarts > 0 {
                step.restart(self.restarts, unfinished)
            } else {
                step
            }
        };
        let name = |letter: &str| format!("{}{letter}", self.name);
        let delivery = if self.every {
            Delivery::Every
        } else {
            Delivery::One
        };
        let queues = |step: Step| match self.queue_size {
            Some(size) => step.queue_size(size),
            None => step,
        };
        let first = if self.every_first {
            Delivery::Every
        } else {
            Delivery::One
        };
        let count = Step::of::<Count>(name("c"), seen.clone());
        let count = match self.ordered {
            true => count.ordered(),
            false => step(count, 2),
        };
        let running = Pipeline::new()
            .client(Client::new(0..self.items))
            .grace(Duration::from_millis(100))
            .step(queues(step(
                Step::of::<Write>(name("a"), ())
                    .slots(self.slots)
                    .delivery(first),
                0,
            )))
            .step(queues(step(
                Step::of::<Copy>(name("b"), ())
                    .slots(self.slots)
                    .segments(self.segments)
                    .delivery(delivery),
                1,
            )))
            .step(count)
            .start()?;
        Ok(running)
    }

    /// Runs it, with its blows. The error says what is wrong.
    fn play(&self, rng: &mut fastrand::Rng, control: &Control) -> Result<()> {
        // Beside how often each number was counted, how many came behind larger ones.
        let seen = Tensor::<u64>::zeros([self.items as usize + 1])?.alias();
        let running = self.start(&seen)?;
        let stopper = running.stopper();
        let ends_after = Duration::from_micros(rng.u64(0..20_000));
        let killed = Mutex::new(BTreeSet::new());
        let report = std::thread::scope(|scope| {
            scope.spawn(|| {
                for &(after, which, blow) in &self.blows {
                    std::thread::sleep(after);
                    let pids = stopper.pids();
                    let targets = pids.len() - usize::from(self.ordered && !pids.is_empty());
                    let Some(&pid) = pids.get(which % targets.max(1)) else {
                        continue;
                    };
                    if strike(pid, blow, control)
                        && blow == Blow::Kill
                        && let Ok(mut killed) = killed.lock()
                    {
                        killed.insert(pid);
                    }
                }
            });
            match self.ending {
                Ending::Wait => {}
                Ending::Terminate | Ending::Kill | Ending::Drop => std::thread::sleep(ends_after),
            }
            match self.ending {
                Ending::Wait => {}
                Ending::Terminate => stopper.terminate(),
                Ending::Kill => stopper.kill(),
                Ending::Drop => {
                    drop(running);
                    return None;
                }
            }
            Some(running.wait())
        });
        for _ in 0..self.items {
            control.message()?;
        }
        let Some(report) = report else { return Ok(()) };
        let killed = killed.into_inner().unwrap_or_default().len() as u64;
        self.judge(&report, killed, &seen, control)
    }

    fn judge(
        &self,
        report: &Report,
        killed: u64,
        seen: &AliasedTensor<u64>,
        control: &Control,
    ) -> Result<()> {
        let items = report.items();
        let restarts: u32 = report
            .processes()
            .iter()
            .map(|process| process.restarts())
            .sum();
        let deaths = u64::from(restarts).max(killed);
        if u64::from(restarts) > killed {
            for _ in killed..restarts.into() {
                control.kill_at_label()?;
            }
        }
        let told = || {
            format!(
                "{items:?}, {restarts} replaced, {killed} killed, {:?}",
                report.error()
            )
        };
        if items.completed + items.dropped + items.failed + items.unfinished != items.offered {
            return Err(format!("inputs that nobody knows of: {}", told()).into());
        }
        let counted = seen.to_vec();
        let (behind, counted) = counted.split_last().unwrap_or((&0, &[]));
        let counted = counted.iter().filter(|&&times| times > 0).count() as u64;
        if self.ordered && *behind > items.late {
            return Err(format!("{behind} came out of order: {}", told()).into());
        }
        if counted < items.completed {
            return Err(format!("{counted} were counted: {}", told()).into());
        }
        match report.error() {
            None if self.ending == Ending::Wait => {
                // Each death costs what the process had in its hands, and what it was about to take.
                if items.offered != self.items || items.dropped > 0 || items.failed > 2 * deaths {
                    return Err(format!("too much is lost: {}", told()).into());
                }
                Ok(())
            }
            None => Ok(()),
            Some(error) => {
                let text = error.to_string();
                let fits = match error.kind() {
                    ErrorKind::Interrupted => self.ending != Ending::Wait,
                    // Where nobody is replaced any more a kill ends the run, and says so.
                    ErrorKind::Process => {
                        let mut processes = report.processes().iter();
                        text.contains("SIGKILL")
                            && processes.any(|process| process.restarts() >= self.restarts)
                    }
                    _ => false,
                };
                if fits {
                    return Ok(());
                }
                Err(format!("told: {text} ({:?}): {}", error.kind(), told()).into())
            }
        }
    }
}

/// Writes tensors that only this number has.
struct Write;

impl Stage for Write {
    type Params = ();
    type Result = ();

    fn output_spec(_: &()) -> Vec<TensorSpec> {
        vec![TensorSpec::of::<u64>([ROWS, ROW])]
    }

    fn new(_: (), _: &Context) -> Result<Self, StageError> {
        note_group(0)?;
        Ok(Self)
    }

    fn process(&mut self, input: Option<Input>, output: &mut Output) -> Result<Flow, StageError> {
        let input = input.ok_or("a step without an input")?;
        let number: u64 = input.payload()?;
        let mut slot = output.loan()?;
        fill(number, slot.tensor_mut::<u64>(0)?);
        slot.set_sequence(number);
        output.publish(slot)?;
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<(), StageError> {
        Ok(())
    }
}

/// Reads and copies them.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Copy;

impl Stage for Copy {
    type Params = ();
    type Result = ();

    fn output_spec(_: &()) -> Vec<TensorSpec> {
        vec![TensorSpec::of::<u64>([ROWS, ROW])]
    }

    fn new(_: (), _: &Context) -> Result<Self, StageError> {
        note_group(0)?;
        Ok(Self)
    }

    fn process(&mut self, input: Option<Input>, output: &mut Output) -> Result<Flow, StageError> {
        let input = input.ok_or("a step without an input")?;
        let read = input.tensor::<u64>(0)?;
        check(input.sequence(), 0, read, "a slot")?;
        let mut slot = output.loan()?;
        slot.tensor_mut::<u64>(0)?.copy_from_slice(read);
        slot.set_sequence(input.sequence());
        output.publish(slot)?;
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<(), StageError> {
        Ok(())
    }
}

/// Reads them and counts the number.
struct Count {
    seen: AliasedTensor<u64>,
    /// The largest number so far.
    last: u64,
}

impl Stage for Count {
    type Params = AliasedTensor<u64>;
    type Result = ();

    fn output_spec(_: &Self::Params) -> Vec<TensorSpec> {
        Vec::new()
    }

    fn new(seen: Self::Params, _: &Context) -> Result<Self, StageError> {
        note_group(0)?;
        Ok(Self { seen, last: 0 })
    }

    fn process(&mut self, input: Option<Input>, _: &mut Output) -> Result<Flow, StageError> {
        let input = input.ok_or("a step without an input")?;
        let (part, parts) = input.part();
        // A copy has its own part of the rows.
        let rows = |before: u32| before as usize * (ROWS / parts as usize);
        let first = rows(part) * ROW;
        check(
            input.sequence(),
            first,
            input.tensor::<u64>(0)?,
            "a segment",
        )?;
        let number = input.sequence();
        let times = self.seen.fetch_add(&[number as usize], 1)?;
        if number < self.last && times == 0 {
            self.seen.fetch_add(&[self.seen.numel() - 1], 1)?;
        }
        self.last = self.last.max(number);
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<(), StageError> {
        Ok(())
    }
}
