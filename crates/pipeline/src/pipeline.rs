//! A pipeline: steps of replicated processes, a ring between each two.

use std::fmt;
use std::time::Duration;

use mp_queue::Barrier;
use shm_core::Arena;
use spawn::{Group, Process, Stdin};

use crate::error::{Error, Result};
use crate::ring::{Consumer, Producer, Topology, ring};
use crate::run::{Outcome, Running, Work, run_stage};
use crate::spec::TensorSpec;
use crate::stage::Stage;

/// Slots between two steps where nothing else is said.
const SLOTS: u32 = 8;

/// Processes that an arena has room for beside this one.
const PROCESSES_MAX: usize = Arena::PARTICIPANTS_MAX - 1;

type Add = Box<dyn FnOnce(&mut Group<Outcome>, Process, Joints) -> spawn::Result<()>>;

/// What a step is connected to.
struct Joints {
    step: String,
    first: usize,
    replicas: usize,
    input: Option<Consumer>,
    output: Option<Producer>,
    start: Barrier,
}

/// One step: a stage, its parameters, and in how many processes it runs.
#[must_use = "a step does nothing until it is in a pipeline that runs"]
pub struct Step {
    name: String,
    replicas: usize,
    slots: u32,
    stdin: Stdin,
    outputs: Vec<TensorSpec>,
    add: Add,
}

impl Step {
    /// A step that runs stage `S` with these parameters, in one process.
    pub fn of<S: Stage>(name: impl Into<String>, params: S::Params) -> Self {
        let outputs = S::output_spec(&params);
        let add = Box::new(
            move |group: &mut Group<Outcome>, process: Process, joints: Joints| {
                let Joints {
                    step,
                    first,
                    replicas,
                    input,
                    output,
                    start,
                } = joints;
                let work = Work {
                    step,
                    first,
                    replicas,
                    input,
                    output,
                    start,
                    params,
                };
                group
                    .add_replicas(process, run_stage::<S>, work, replicas)
                    .map(drop)
            },
        );
        Self {
            name: name.into(),
            replicas: 1,
            slots: SLOTS,
            stdin: Stdin::default(),
            outputs,
            add,
        }
    }

    /// Runs the step in `n` processes; each item goes to one of them.
    pub fn replicas(mut self, n: usize) -> Self {
        self.replicas = n;
        self
    }

    /// Slots of the ring behind this step, all in all; 8 where nothing is said. One suffices where each process holds one
    /// at a time, two let producer and consumer work at the same time; a stage that waits for one more than there are
    /// waits for ever.
    pub fn slots(mut self, n: u32) -> Self {
        self.slots = n;
        self
    }

    /// What the step's process finds as its stdin; nothing where nothing is said. Only a step of one process can have
    /// this process's own.
    pub fn stdin(mut self, stdin: Stdin) -> Self {
        self.stdin = stdin;
        self
    }
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Step")
            .field("name", &self.name)
            .field("replicas", &self.replicas)
            .field("slots", &self.slots)
            .field("outputs", &self.outputs)
            .finish_non_exhaustive()
    }
}

/// Steps in a row, each in processes of its own. Only the index of a slot travels from one to the next.
///
/// ```no_run
/// use pipeline::{Borrowed, Context, Flow, Output, Pipeline, Stage, StageError, Step, TensorSpec};
///
/// struct Numbers(f32);
///
/// impl Stage for Numbers {
///     type Params = f32;
///     type Result = ();
///     fn output_spec(_: &f32) -> Vec<TensorSpec> {
///         vec![TensorSpec::of::<f32>([1024])]
///     }
///     fn new(end: f32, _: &Context) -> Result<Self, StageError> {
///         Ok(Self(end))
///     }
///     fn process(&mut self, _: Option<Borrowed>, output: &mut Output) -> Result<Flow, StageError> {
///         let mut slot = output.loan()?;
///         slot.tensor_mut::<f32>(0)?.fill(self.0);
///         output.publish(slot)?;
///         self.0 -= 1.0;
///         Ok(if self.0 > 0.0 { Flow::Continue } else { Flow::End })
///     }
///     fn finish(self, _: &mut Output) -> Result<(), StageError> {
///         Ok(())
///     }
/// }
///
/// struct Sum(f32);
///
/// impl Stage for Sum {
///     type Params = ();
///     type Result = f32;
///     fn output_spec(_: &()) -> Vec<TensorSpec> {
///         Vec::new()
///     }
///     fn new(_: (), _: &Context) -> Result<Self, StageError> {
///         Ok(Self(0.0))
///     }
///     fn process(&mut self, input: Option<Borrowed>, _: &mut Output) -> Result<Flow, StageError> {
///         if let Some(slot) = input {
///             self.0 += slot.tensor::<f32>(0)?.iter().sum::<f32>(); // read where it was written
///         }
///         Ok(Flow::Continue)
///     }
///     fn finish(self, _: &mut Output) -> Result<f32, StageError> {
///         Ok(self.0)
///     }
/// }
///
/// fn main() -> Result<(), Box<dyn std::error::Error>> {
///     spawn::init();
///     let report = Pipeline::new()
///         .step(Step::of::<Numbers>("numbers", 10.0))
///         .step(Step::of::<Sum>("sum", ()).replicas(2))
///         .run()?;
///     println!("{}", report.results::<Sum>("sum")?.iter().sum::<f32>());
///     Ok(())
/// }
/// ```
#[derive(Debug, Default)]
#[must_use = "a pipeline does nothing until it runs"]
pub struct Pipeline {
    steps: Vec<Step>,
    grace: Option<Duration>,
}

impl Pipeline {
    /// A pipeline without steps.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a step behind those that are there.
    pub fn step(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }

    /// How long processes have to end by themselves after SIGTERM when another one failed.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = Some(grace);
        self
    }

    /// Starts the processes, waits until all have ended, and tells what they brought home.
    ///
    /// # Errors
    /// `Invalid` for steps that do not fit together; `Process` for the first failure of any process, by time.
    #[track_caller]
    pub fn run(self) -> Result<crate::Report> {
        self.start()?.join()
    }

    /// Makes the rings and starts the processes.
    ///
    /// # Errors
    /// `Invalid` for steps that do not fit together; what making rings and processes can answer.
    #[track_caller]
    pub fn start(self) -> Result<Running> {
        self.check()?;
        let total = self
            .steps
            .iter()
            .fold(0, |sum: usize, step| sum.saturating_add(step.replicas));
        let start = Barrier::new(
            u32::try_from(total)
                .map_err(|_| Error::invalid(format!("{total} processes were asked for")))?,
        )?;
        let mut group = Group::new();
        if let Some(grace) = self.grace {
            group = group.grace(grace);
        }
        let mut names = Vec::new();
        let mut input = None;
        let mut steps = self.steps.into_iter().peekable();
        while let Some(step) = steps.next() {
            let (output, next) = match steps.peek() {
                Some(after) => {
                    let topology = match (step.replicas, after.replicas) {
                        (1, 1) => Topology::OneToOne,
                        _ => Topology::Replicas,
                    };
                    let (producer, consumer) = ring(step.slots, &step.outputs, topology)?;
                    (Some(producer), Some(consumer))
                }
                None => (None, None),
            };
            let joints = Joints {
                step: step.name.clone(),
                first: names.len(),
                replicas: step.replicas,
                input: std::mem::replace(&mut input, next),
                output,
                start: start.clone(),
            };
            names.extend((0..step.replicas).map(|_| step.name.clone()));
            (step.add)(
                &mut group,
                Process::named(step.name).stdin(step.stdin),
                joints,
            )?;
        }
        drop(start);
        Ok(Running::new(group.start()?, names))
    }

    /// Everything that can be known to be wrong before anything starts.
    fn check(&self) -> Result<()> {
        let Some(last) = self.steps.len().checked_sub(1) else {
            return Err(Error::invalid(
                "a pipeline without steps was to run; add at least one",
            ));
        };
        for (index, step) in self.steps.iter().enumerate() {
            let name = &step.name;
            if self.steps[..index].iter().any(|other| other.name == *name) {
                return Err(Error::invalid(format!(
                    "two steps are called {name:?}; give each a name of its own"
                )));
            }
            if step.replicas > PROCESSES_MAX {
                return Err(Error::invalid(format!(
                    "step {name:?} was to run in {} processes; an arena has room for {PROCESSES_MAX}",
                    step.replicas
                )));
            }
            if step.replicas == 0 {
                return Err(Error::invalid(format!(
                    "step {name:?} was to run in 0 processes; give it at least 1"
                )));
            }
            if index < last && step.outputs.is_empty() {
                return Err(Error::invalid(format!(
                    "step {name:?} has no output tensors, but a step comes after it; name them in its output_spec"
                )));
            }
            if index == last && !step.outputs.is_empty() {
                return Err(Error::invalid(format!(
                    "step {name:?} is the last, but its output_spec names tensors that nobody would take; let it name none, or add a step"
                )));
            }
            if index == 0 && step.replicas > 1 {
                return Err(Error::invalid(format!(
                    "step {name:?} is the first and has {} replicas, which would each make the whole input; give it 1",
                    step.replicas
                )));
            }
            if index < last && step.slots == 0 {
                return Err(Error::invalid(format!(
                    "the ring behind step {name:?} was to have 0 slots; give it at least 1"
                )));
            }
        }
        Ok(())
    }
}
