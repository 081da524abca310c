//! Steps and their queue groups, as a user describes them.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use spawn::{Group, Process, Stdin};

use crate::check::PROCESSES_MAX;
use crate::error::{Error, Result};
use crate::process::{Outcome, Work, run_stage};
use crate::route::{Backpressure, Delivery};
use crate::selector::{RoundRobin, Selector};
use crate::spec::TensorSpec;
use crate::stage::{Segments, Stage};

/// Slots of each process where nothing else is said.
pub(crate) const SLOTS: u32 = 8;
/// The name of the selector that a group brings with it.
pub(crate) const OWN: &str = "own";

/// A stage with its parameters, whatever its type.
pub(crate) trait Maker: Send + Sync {
    fn stage(&self) -> String;
    fn output_spec(&self, input: &[TensorSpec]) -> Result<Vec<TensorSpec>>;
    fn input_spec(&self) -> Result<Option<Vec<TensorSpec>>>;
    fn needs_next(&self) -> Result<bool>;
    fn needs_segments(&self) -> Result<Segments>;
    fn keeps(&self) -> Result<usize>;
    /// Those that are its own, beside those that are built in.
    fn selectors(&self) -> Vec<String>;
    fn add(
        &self,
        group: &mut Group<Outcome>,
        process: Process,
        work: Work<()>,
    ) -> spawn::Result<()>;
}

/// A stage that is known by its type, with a selector that is.
struct Typed<S: Stage, C>(S::Params, PhantomData<fn(C)>);

impl<S: Stage, C: Selector> Maker for Typed<S, C> {
    fn stage(&self) -> String {
        let name = std::any::type_name::<S>();
        name.rsplit("::").next().unwrap_or(name).to_owned()
    }

    fn output_spec(&self, input: &[TensorSpec]) -> Result<Vec<TensorSpec>> {
        S::output_spec_for(&self.0, input).map_err(|error| Error::invalid(error.to_string()))
    }

    fn input_spec(&self) -> Result<Option<Vec<TensorSpec>>> {
        Ok(S::input_spec(&self.0))
    }

    fn needs_next(&self) -> Result<bool> {
        Ok(S::needs_next(&self.0))
    }

    fn needs_segments(&self) -> Result<Segments> {
        Ok(S::needs_segments(&self.0))
    }

    fn keeps(&self) -> Result<usize> {
        Ok(S::keeps(&self.0))
    }

    fn selectors(&self) -> Vec<String> {
        vec![OWN.to_owned()]
    }

    fn add(
        &self,
        group: &mut Group<Outcome>,
        process: Process,
        work: Work<()>,
    ) -> spawn::Result<()> {
        let (work, ()) = work.with(self.0.clone());
        let run = |_: usize, work: Work<S::Params>| {
            run_stage::<S>(work, &|name, queues| {
                (name == OWN).then(|| Box::new(C::new(queues)) as Box<dyn Selector>)
            })
        };
        group.add(process, run, work).map(drop)
    }
}

/// What is left of a stage when its processes have been started: its name.
struct Gone(String);

impl Maker for Gone {
    fn stage(&self) -> String {
        self.0.clone()
    }

    fn output_spec(&self, _: &[TensorSpec]) -> Result<Vec<TensorSpec>> {
        Ok(Vec::new())
    }

    fn input_spec(&self) -> Result<Option<Vec<TensorSpec>>> {
        Ok(None)
    }

    fn needs_next(&self) -> Result<bool> {
        Ok(false)
    }

    fn needs_segments(&self) -> Result<Segments> {
        Ok(Segments::Any)
    }

    fn keeps(&self) -> Result<usize> {
        Ok(0)
    }

    fn selectors(&self) -> Vec<String> {
        Vec::new()
    }

    fn add(&self, _: &mut Group<Outcome>, _: Process, _: Work<()>) -> spawn::Result<()> {
        Ok(())
    }
}

/// Processes of a step that share a queue, in RnB's terms: which devices they have, where their items come from, and
/// where their outputs go.
#[derive(Clone)]
#[must_use = "a queue group does nothing until it is in a step"]
pub struct QueueGroup {
    pub(crate) maker: Arc<dyn Maker>,
    pub(crate) devices: Vec<i32>,
    /// How many processes were asked for, where that was said instead of devices.
    pub(crate) replicas: Option<usize>,
    /// Everything is on the CPU, whatever the stage says of its tensors.
    pub(crate) on_cpu: bool,
    pub(crate) in_queue: Option<u32>,
    pub(crate) out_queues: Option<Vec<u32>>,
    pub(crate) selector: String,
}

impl QueueGroup {
    /// One process on the CPU that runs stage `S` with these parameters, and reads and writes queue 0.
    pub fn of<S: Stage>(params: S::Params) -> Self {
        Self::made_by(Arc::new(Typed::<S, RoundRobin>(params, PhantomData))).selector("round_robin")
    }

    /// The same with a selector of the user's own.
    pub fn selecting<S: Stage, C: Selector>(params: S::Params) -> Self {
        Self::made_by(Arc::new(Typed::<S, C>(params, PhantomData))).selector(OWN)
    }

    pub(crate) fn made_by(maker: Arc<dyn Maker>) -> Self {
        Self {
            maker,
            devices: vec![-1],
            replicas: None,
            on_cpu: false,
            in_queue: None,
            out_queues: None,
            selector: "round_robin".to_owned(),
        }
    }

    /// Lets go of the parameters: what is in them, such as one end of a queue, would stay open in this process.
    pub(crate) fn let_go(&mut self) {
        self.maker = Arc::new(Gone(self.maker.stage()));
    }

    /// One process for each of these devices; -1 is the CPU, and a device that is named twice gets two.
    pub fn devices(mut self, devices: impl Into<Vec<i32>>) -> Self {
        self.devices = devices.into();
        self.replicas = None;
        self
    }

    /// So many processes on the CPU.
    pub fn replicas(self, n: usize) -> Self {
        // More than there can be are refused, and need no list of that length.
        let mut group = self.devices(vec![-1; n.min(PROCESSES_MAX + 1)]);
        group.replicas = Some(n);
        group
    }

    /// How many processes were asked for, and by which key.
    pub(crate) fn asked(&self) -> (&'static str, usize) {
        match self.replicas {
            Some(replicas) => ("replicas", replicas),
            None => ("devices", self.devices.len()),
        }
    }

    /// The queue, of those between the step before and this one, that the processes read; 0 where nothing is said.
    pub fn in_queue(mut self, queue: u32) -> Self {
        self.in_queue = Some(queue);
        self
    }

    /// The queues, of those between this step and the next, that outputs go into; 0 where nothing is said.
    pub fn out_queues(mut self, queues: impl Into<Vec<u32>>) -> Self {
        self.out_queues = Some(queues.into());
        self
    }

    /// Which of the queues an output goes into: `round_robin`, `by_size` or `least_loaded`.
    pub fn selector(mut self, name: impl Into<String>) -> Self {
        self.selector = name.into();
        self
    }
}

impl fmt::Debug for QueueGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueGroup")
            .field("stage", &self.maker.stage())
            .field("devices", &self.devices)
            .field("in_queue", &self.in_queue)
            .field("out_queues", &self.out_queues)
            .field("selector", &self.selector)
            .finish()
    }
}

/// What becomes of the items that a process had begun when it is replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unfinished {
    /// They are delivered again, to any process that reads the queue. One that was published in the very moment of the
    /// death may be handled twice, and one that was taken out of the queue in that moment is counted as failed.
    #[default]
    Redeliver,
    /// They are counted as failed.
    Report,
}

/// One step: a stage, its parameters, and in how many processes it runs.
#[derive(Clone, Debug)]
#[must_use = "a step does nothing until it is in a pipeline that runs"]
pub struct Step {
    pub(crate) name: String,
    pub(crate) groups: Vec<QueueGroup>,
    pub(crate) slots: Option<u32>,
    pub(crate) segments: u32,
    pub(crate) delivery: Delivery,
    pub(crate) backpressure: Backpressure,
    pub(crate) queue_size: Option<usize>,
    pub(crate) ordered: bool,
    pub(crate) restarts: u32,
    pub(crate) unfinished: Unfinished,
    pub(crate) limit: Option<Duration>,
    pub(crate) stdin: Stdin,
    /// Whether its groups were named one by one: where they were not, errors speak of none.
    pub(crate) groups_are_listed: bool,
    /// Whether it was written in RnB's words, which errors then use.
    pub(crate) in_rnbs_words: bool,
    /// What is odd about how it was written, and may be on purpose.
    pub(crate) odd: Vec<String>,
}

impl Step {
    /// A step without processes; add [groups](Self::group).
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            groups: Vec::new(),
            slots: None,
            segments: 1,
            delivery: Delivery::One,
            backpressure: Backpressure::Block,
            queue_size: None,
            ordered: false,
            restarts: 0,
            in_rnbs_words: false,
            odd: Vec::new(),
            groups_are_listed: false,
            unfinished: Unfinished::Redeliver,
            limit: None,
            stdin: Stdin::default(),
        }
    }

    /// A step that runs stage `S` with these parameters, in one process.
    pub fn of<S: Stage>(name: impl Into<String>, params: S::Params) -> Self {
        let mut step = Self::new(name).group(QueueGroup::of::<S>(params));
        step.groups_are_listed = false;
        step
    }

    /// Adds processes.
    pub fn group(mut self, group: QueueGroup) -> Self {
        self.groups.push(group);
        self.groups_are_listed = true;
        self
    }

    /// Runs the (last added) group in `n` processes on the CPU.
    pub fn replicas(mut self, n: usize) -> Self {
        if let Some(group) = self.groups.pop() {
            self.groups.push(group.replicas(n));
        }
        self
    }

    /// Slots of each process of this step (RnB's `num_shared_tensors`); 8 where nothing is said. One suffices where it
    /// holds one at a time and readers do, too; two let producer and consumer work at the same time.
    pub fn slots(mut self, n: u32) -> Self {
        self.slots = Some(n);
        self
    }

    /// Into how many segments each output is divided along the first dimension (RnB's `num_segments`); each is an item of
    /// its own in the next step, in the same slot.
    pub fn segments(mut self, n: u32) -> Self {
        self.segments = n;
        self
    }

    /// Who gets an output: one reader of its queue, or every one.
    pub fn delivery(mut self, delivery: Delivery) -> Self {
        self.delivery = delivery;
        self
    }

    /// What happens when no slot is free, or a queue behind this step is full.
    pub fn backpressure(mut self, policy: Backpressure) -> Self {
        self.backpressure = policy;
        self
    }

    /// How many items each queue behind this step holds; as many as there are slots where nothing is said, and 500 for
    /// values without tensors.
    pub fn queue_size(mut self, items: usize) -> Self {
        self.queue_size = Some(items);
        self
    }

    /// Gets its items in the order of their numbers, whatever the order in which several processes finished them. The step
    /// has one process then.
    ///
    /// An item has its turn when all of those before it have come: all segments, and where a step before delivers to
    /// [every](Delivery::Every) reader what each of them made of it. What ended in an earlier step is not waited for. Further
    /// outputs of an item, and batches, have no place in that order and come as they are made.
    ///
    /// What comes too early waits in its slot. Where those that make what is waited for cannot go on without that slot, it is
    /// copied out of it, so order holds with any number of slots; with more of them than items can be ahead nothing is copied.
    /// Slots on a device stay where they are, and too few of those end the run as a
    /// [`Deadlock`](crate::Termination::Deadlock). Items that are lost on their way with a killed process or dropped by the
    /// client are passed over when they can't come any more, as far as can be seen; what comes after all then is counted
    /// ([`Items::late`](crate::Items::late)).
    pub fn ordered(mut self) -> Self {
        self.ordered = true;
        self
    }

    /// Replaces a process of this step that returns an error, panics, is killed or takes too long, so often each, instead
    /// of ending the run. What its parameters hold stays open until the end of the run then.
    pub fn restart(mut self, times: u32, unfinished: Unfinished) -> Self {
        self.restarts = times;
        self.unfinished = unfinished;
        self
    }

    /// How long a process may work on one item, or on its end ([`Stage::finish`](crate::Stage::finish)), before it counts
    /// as hung.
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        self
    }

    /// What the step's process finds as its stdin; nothing where nothing is said. Only a step of one process can have
    /// this process's own.
    pub fn stdin(mut self, stdin: Stdin) -> Self {
        self.stdin = stdin;
        self
    }

    pub(crate) fn processes(&self) -> usize {
        let devices = self.groups.iter().map(|group| group.devices.len());
        devices.fold(0, usize::saturating_add)
    }
}
