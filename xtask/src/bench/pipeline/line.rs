//! A real pipeline of two steps, in processes of their own: the first on the CPU of side A, the second beside it. Side A
//! starts it and gives it orders; side B has nothing to do.

use mp_queue::{Event, Queue, Receiver, Sender, WaitPolicy};
use pipeline::{
    Context, Flow, Input, Output, Pipeline, Running, Stage, StageError, Step, TensorSpec,
};
use serde::{Deserialize, Serialize};
use shm_core::{AliasedTensor, Tensor};

use super::super::pool::{Idle, pin_beside};
use super::super::subject::{Connection, End, Link, Side, Subject};
use super::super::{clock, payload, payload::Size};
use super::{Load, PAUSE_NS, WORK_NS, later, spend};
use crate::Result;

/// Slots of the first step where nothing else is measured.
const SLOTS: u32 = 4;
/// Hand-overs of a batch at most.
const MOST: usize = 1024;

#[derive(Copy, Clone, Debug)]
pub(crate) struct Line {
    pub(crate) load: Load,
    pub(crate) size: Size,
    /// Processes of the second step, which share one queue.
    pub(crate) replicas: usize,
    pub(crate) slots: u32,
}

impl Line {
    pub(crate) fn new(load: Load, size: Size) -> Self {
        Self {
            load,
            size,
            replicas: 1,
            slots: SLOTS,
        }
    }
}

impl Subject for Line {
    fn name(&self) -> String {
        let mut name = format!("ring {} {}", self.load.name(), self.size.name);
        if self.replicas > 1 {
            name += &format!(" to {}", self.replicas);
        }
        if self.slots != SLOTS {
            name += &format!(" of {}", self.slots);
        }
        name
    }

    fn key(&self) -> String {
        format!("pipeline {}", self.name())
    }

    fn metric(&self) -> &'static str {
        "finish_to_start_ns"
    }

    fn batch(&self) -> usize {
        self.load.batch()
    }

    fn room(&self) -> u64 {
        self.size.bytes as u64 * u64::from(self.slots)
    }

    fn connect(&self) -> Result<Connection> {
        Ok(Connection::of(Vec::new(), Vec::new()))
    }

    fn open(&self, side: Side, _: Link) -> Result<Box<dyn End>> {
        if side == Side::B {
            return Ok(Box::new(Idle));
        }
        let (orders, to_source) = Queue::bounded(4)?.split();
        let (done, answers) = Queue::bounded(4)?.split();
        let seen = Seen(Tensor::<u64>::zeros([MOST + 1])?.alias());
        let policy = match self.load {
            Load::Parked => WaitPolicy::Park,
            // It sleeps only between two batches, so that the floor has both CPUs.
            Load::Busy if self.replicas == 1 => WaitPolicy::Spin,
            Load::Busy | Load::Full => WaitPolicy::Eager,
        };
        let begins = (policy == WaitPolicy::Spin).then(Event::new).transpose()?;
        let source = SourceParams {
            load: self.load,
            bytes: self.size.bytes,
            orders: to_source,
            done,
            seen: seen.clone(),
            begins: begins.clone(),
        };
        let running = Pipeline::new()
            .wait_policy(policy)
            .step(Step::of::<Source>("source", source).slots(self.slots))
            .step(
                Step::of::<Sink>("sink", (self.load, seen.clone(), begins)).replicas(self.replicas),
            )
            .start()?;
        Ok(Box::new(LineEnd {
            orders,
            answers,
            seen,
            _running: running,
        }))
    }
}

/// What the receivers saw: how many items, and of each how long it was on its way.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Seen(pub(super) AliasedTensor<u64>);

impl Seen {
    pub(super) fn count(&self) -> Result<u64, StageError> {
        Ok(self.0.load(&[0])?)
    }

    pub(super) fn note(&self, index: u64, ns: u64) -> Result<(), StageError> {
        self.0.store(&[1 + index as usize % MOST], ns)?;
        self.0.fetch_add(&[0], 1)?;
        Ok(())
    }

    /// Those of the items up to the `last`, by their numbers.
    pub(super) fn take(&self, last: u64, count: usize) -> Result<Vec<u64>> {
        (last + 1 - count.min(MOST) as u64..=last)
            .map(|at| Ok(self.0.load(&[1 + at as usize % MOST])?))
            .collect()
    }
}

struct LineEnd {
    orders: Sender<usize>,
    answers: Receiver<u64>,
    seen: Seen,
    _running: Running,
}

impl End for LineEnd {
    fn run(&mut self, samples: usize) -> Result<Vec<u64>> {
        self.orders
            .put(samples.min(MOST))
            .map_err(|failed| failed.to_string())?;
        let last = self.answers.get()?;
        self.seen.take(last, samples)
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct SourceParams {
    load: Load,
    bytes: usize,
    orders: Receiver<usize>,
    done: Sender<u64>,
    seen: Seen,
    /// Set when a batch begins, where the receiver waits for that.
    begins: Option<Event>,
}

struct Source {
    params: SourceParams,
    rng: fastrand::Rng,
    sent: u64,
}

impl Stage for Source {
    type Params = SourceParams;
    type Result = ();

    fn output_spec(params: &SourceParams) -> Vec<TensorSpec> {
        vec![TensorSpec::of::<u8>([params.bytes])]
    }

    fn new(params: SourceParams, _: &Context) -> Result<Self, StageError> {
        Ok(Self {
            params,
            rng: fastrand::Rng::with_seed(7),
            sent: 0,
        })
    }

    /// A batch, from its order to its answer.
    fn process(&mut self, _: Option<Input>, output: &mut Output) -> Result<Flow, StageError> {
        let SourceParams {
            load,
            orders,
            done,
            seen,
            begins,
            ..
        } = &self.params;
        let Ok(count) = orders.get() else {
            return Ok(Flow::End);
        };
        if let Some(begins) = begins {
            begins.set();
        }
        let mut due = clock::now();
        for left in (0..count).rev() {
            let mut slot = output.loan()?;
            self.sent += 1;
            payload::mark(slot.tensor_mut(0)?, self.sent);
            slot.set_sequence(if left == 0 {
                self.sent | LAST
            } else {
                self.sent
            });
            match load {
                Load::Busy => {
                    while seen.count()? + 1 < self.sent {}
                    spend(PAUSE_NS);
                }
                Load::Parked => {
                    while seen.count()? + 1 < self.sent {}
                    clock::settle();
                }
                Load::Full => {
                    while clock::now() < due {}
                    due += later(&mut self.rng);
                }
            }
            slot.set_tag(clock::now());
            output.publish(slot)?;
        }
        while seen.count()? < self.sent {
            std::thread::yield_now();
        }
        done.put(self.sent).map_err(|failed| failed.to_string())?;
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<(), StageError> {
        Ok(())
    }
}

/// Beside the number of the last item of a batch.
const LAST: u64 = 1 << 63;

struct Sink(Load, Seen, Option<Event>);

impl Stage for Sink {
    type Params = (Load, Seen, Option<Event>);
    type Result = ();

    fn output_spec(_: &Self::Params) -> Vec<TensorSpec> {
        Vec::new()
    }

    fn new((load, seen, begins): Self::Params, _: &Context) -> Result<Self, StageError> {
        pin_beside();
        Ok(Self(load, seen, begins))
    }

    fn process(&mut self, input: Option<Input>, _: &mut Output) -> Result<Flow, StageError> {
        let now = clock::now();
        let input = input.ok_or("a step without an input")?;
        let number = input.sequence() & !LAST;
        let is_last = number != input.sequence();
        payload::check(input.tensor(0)?, number)?;
        if self.0 == Load::Full {
            spend(WORK_NS);
        }
        let took = now.saturating_sub(input.tag());
        drop(input);
        if is_last && let Some(begins) = &self.2 {
            begins.clear();
            self.1.note(number, took)?;
            begins.wait()?;
            return Ok(Flow::Continue);
        }
        self.1.note(number, took)?;
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<(), StageError> {
        Ok(())
    }
}
