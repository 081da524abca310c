//! A pipeline while it runs: what each process does, and what comes home.

use mp_queue::Barrier;
use serde::{Deserialize, Serialize};
use shm_core::clock::now_ns;
use spawn::{SpawnContext, Stopper};

use crate::error::{Error, Result, StageError};
use crate::ring::{Consumer, Producer};
use crate::stage::{Context, Flow, Output, Stage};

/// What a process of a step is given.
#[derive(Serialize, Deserialize)]
pub(crate) struct Work<P> {
    pub(crate) step: String,
    pub(crate) first: usize,
    pub(crate) replicas: usize,
    pub(crate) input: Option<Consumer>,
    pub(crate) output: Option<Producer>,
    pub(crate) start: Barrier,
    pub(crate) params: P,
}

/// What a process of a step brings home.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Outcome {
    started_ns: u64,
    ended_ns: u64,
    inputs: u64,
    outputs: u64,
    result: Vec<u8>,
}

/// The life of one process: make the stage, touch the slots, wait for the others, work until the input ends.
pub(crate) fn run_stage<S: Stage>(
    rank: usize,
    work: Work<S::Params>,
) -> Result<Outcome, StageError> {
    let Work {
        step,
        first,
        replicas,
        mut input,
        output,
        start,
        params,
    } = work;
    // Stages may ask when an item was published and got; what that costs is little beside a stage's work.
    input = input.map(|consumer| consumer.timed(true));
    let output = output.map(|producer| producer.timed(true));
    let context = Context {
        step,
        rank,
        replica: rank - first.min(rank),
        replicas,
    };
    let mut stage = S::new(params, &context)?;
    // Each process pays for the pages of its rings now, not at the first item.
    if let Some(consumer) = &input {
        consumer.touch();
    }
    if let Some(producer) = &output {
        producer.touch();
    }
    start.wait()?;
    drop(start);
    let started_ns = now_ns();
    let mut output = Output {
        producer: output,
        published: 0,
    };
    let mut inputs = 0;
    loop {
        let item = match &mut input {
            None => None,
            Some(consumer) => match consumer.borrow()? {
                Some(item) => {
                    inputs += 1;
                    Some(item)
                }
                None => break,
            },
        };
        match stage.process(item, &mut output) {
            Ok(Flow::Continue) => {}
            Ok(Flow::End) => break,
            // The next step has had enough: that is an end like any other. (Had it died, its death would fail the run.)
            Err(_) if output.is_abandoned() => break,
            Err(error) => return Err(error),
        }
    }
    // Nothing more is taken; producers that still have something learn it.
    drop(input);
    let result = stage.finish(&mut output)?;
    let outputs = output.published;
    drop(output);
    let result = postcard::to_stdvec(&result)?;
    Ok(Outcome {
        started_ns,
        ended_ns: now_ns(),
        inputs,
        outputs,
        result,
    })
}

/// A pipeline whose processes run. Dropping it stops them.
#[derive(Debug)]
pub struct Running {
    context: SpawnContext<Outcome>,
    names: Vec<String>,
}

impl Running {
    pub(crate) fn new(context: SpawnContext<Outcome>, names: Vec<String>) -> Self {
        Self { context, names }
    }

    /// Waits until all processes have ended, and tells what they brought home.
    ///
    /// # Errors
    /// `Process` for the first failure of any process, by time.
    pub fn join(mut self) -> Result<Report> {
        let pids = self.context.pids();
        let outcomes = self.context.join()?;
        let processes = self
            .names
            .into_iter()
            .zip(pids)
            .zip(outcomes.iter().cloned())
            .map(|((step, pid), outcome)| ProcessReport { step, pid, outcome })
            .collect();
        Ok(Report { processes })
    }

    /// The process ids, in the order of the steps.
    #[must_use]
    pub fn pids(&self) -> Vec<u32> {
        self.context.pids()
    }

    /// What stops the pipeline from another thread.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        self.context.stopper()
    }
}

/// What became of one process.
#[derive(Clone, Debug)]
pub struct ProcessReport {
    step: String,
    pid: u32,
    outcome: Outcome,
}

impl ProcessReport {
    /// The step's name.
    #[must_use]
    pub fn step(&self) -> &str {
        &self.step
    }

    /// The process id it had.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Slots it took.
    #[must_use]
    pub fn inputs(&self) -> u64 {
        self.outcome.inputs
    }

    /// Slots it published.
    #[must_use]
    pub fn outputs(&self) -> u64 {
        self.outcome.outputs
    }
}

/// What a run came to.
#[derive(Clone, Debug)]
pub struct Report {
    processes: Vec<ProcessReport>,
}

impl Report {
    /// The processes, in the order of the steps.
    #[must_use]
    pub fn processes(&self) -> &[ProcessReport] {
        &self.processes
    }

    /// What the processes of the step called `step`, of stage `S`, brought home, in the order of its replicas.
    ///
    /// # Errors
    /// When there is no such step, or its results are of another type.
    pub fn results<S: Stage>(&self, step: &str) -> Result<Vec<S::Result>> {
        let of_step: Vec<_> = self
            .processes
            .iter()
            .filter(|process| process.step == step)
            .collect();
        if of_step.is_empty() {
            return Err(Error::invalid(format!("the pipeline has no step {step:?}")));
        }
        of_step
            .into_iter()
            .map(|process| {
                postcard::from_bytes(&process.outcome.result).map_err(|error| {
                    let wanted = std::any::type_name::<S::Result>();
                    Error::result(
                        format!("the result of step {step:?} does not read as {wanted}: {error}"),
                        error,
                    )
                })
            })
            .collect()
    }

    /// Seconds from the start barrier until the last process had its result.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        let started = self
            .processes
            .iter()
            .map(|process| process.outcome.started_ns)
            .min()
            .unwrap_or(0);
        let ended = self
            .processes
            .iter()
            .map(|process| process.outcome.ended_ns)
            .max()
            .unwrap_or(started);
        ended.saturating_sub(started) as f64 / 1e9
    }
}
