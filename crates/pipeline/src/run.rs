//! A pipeline while it runs, and what a run came to.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::account::Items;
use crate::counts::Counts;
use crate::error::{Error, ErrorKind, Result};
use crate::process::Outcome;
use crate::replaced::Replaced;
use crate::stage::Stage;

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Termination {
    /// So many inputs were finished as the client was to reach.
    TargetReached,
    /// There was no more input, or the steps had enough.
    InputEnded,
    /// A queue or ring was full, and its policy is to fail.
    QueueFull,
    /// A process failed, or the client did.
    Failed,
    /// Processes waited for each other for ever: for slots that one of them keeps, or for room in its queue.
    Deadlock,
    /// It was stopped on request.
    Interrupted,
    /// The run took longer than its limit, or a process longer than its step's for one item.
    TimedOut,
}

impl fmt::Display for Termination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TargetReached => "target_reached",
            Self::InputEnded => "input_ended",
            Self::QueueFull => "queue_full",
            Self::Failed => "failed",
            Self::Deadlock => "deadlock",
            Self::Interrupted => "interrupted",
            Self::TimedOut => "timed_out",
        })
    }
}

impl Termination {
    /// Whether the run came to its end.
    #[must_use]
    pub fn is_success(self) -> bool {
        matches!(self, Self::TargetReached | Self::InputEnded)
    }

    pub(crate) fn of(error: &Error) -> Self {
        match error.kind() {
            ErrorKind::QueueFull => Self::QueueFull,
            ErrorKind::Deadlock => Self::Deadlock,
            ErrorKind::Interrupted => Self::Interrupted,
            ErrorKind::TimedOut => Self::TimedOut,
            _ => Self::Failed,
        }
    }
}

/// What the run's thread and its handles know of each other.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// 0: go on, 1: stop, 2: kill.
    stop: AtomicU8,
    pids: Mutex<Vec<u32>>,
}

impl Shared {
    pub(crate) fn wanted(&self) -> u8 {
        self.stop.load(Ordering::Relaxed)
    }

    fn want(&self, what: u8) {
        self.stop.fetch_max(what, Ordering::Relaxed);
    }

    pub(crate) fn pids(&self) -> Vec<u32> {
        self.pids
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn set_pids(&self, pids: Vec<u32>) {
        *self.pids.lock().unwrap_or_else(PoisonError::into_inner) = pids;
    }
}

/// Stops a pipeline from another thread; made by [`Running::stopper`], and harmless once it has ended.
#[derive(Clone, Debug)]
pub struct Stopper(Arc<Shared>);

impl Stopper {
    /// Asks all processes to end: SIGTERM, and SIGKILL after the grace period. [`Running::join`] then says `Interrupted`.
    pub fn terminate(&self) {
        self.0.want(1);
    }

    /// Ends all processes now, with SIGKILL.
    pub fn kill(&self) {
        self.0.want(2);
    }

    /// The process ids, in the order of the steps; those of the last processes, once they have ended.
    #[must_use]
    pub fn pids(&self) -> Vec<u32> {
        self.0.pids()
    }
}

/// A pipeline whose processes run. Dropping it stops them and waits until they have ended.
#[derive(Debug)]
pub struct Running {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Report>>,
}

impl Running {
    pub(crate) fn new(shared: Arc<Shared>, thread: JoinHandle<Report>) -> Self {
        Self {
            shared,
            thread: Some(thread),
        }
    }

    /// Waits until all processes have ended, and tells what they brought home.
    ///
    /// # Errors
    /// Why the run did not come to its end: `Process` for the first failure of any process, by time; `QueueFull`,
    /// `Deadlock`, `TimedOut`, `Interrupted`.
    pub fn join(self) -> Result<Report> {
        let mut report = self.wait();
        match report.error.take() {
            Some(error) => Err(error),
            None => Ok(report),
        }
    }

    /// Waits until all processes have ended, and tells what became of the run, whatever that is.
    #[must_use]
    pub fn wait(mut self) -> Report {
        let answer = self.thread.take().map(JoinHandle::join);
        answer.and_then(Result::ok).unwrap_or_else(|| Report {
            termination: Termination::Failed,
            error: Some(Error::new(
                ErrorKind::Process,
                "the thread that supervises the run ended unexpectedly",
            )),
            items: Items::default(),
            processes: Vec::new(),
            started_ns: None,
            ended_ns: 0,
        })
    }

    /// The process ids, in the order of the steps.
    #[must_use]
    pub fn pids(&self) -> Vec<u32> {
        self.shared.pids()
    }

    /// What stops the pipeline from another thread.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.shared))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.shared.want(1);
            let _ = thread.join();
        }
    }
}

/// What became of one process.
#[derive(Clone, Debug)]
pub struct ProcessReport {
    pub(crate) step: String,
    pub(crate) name: String,
    pub(crate) pid: u32,
    pub(crate) device: i32,
    pub(crate) replica: usize,
    pub(crate) restarts: u32,
    pub(crate) replaced: Vec<Replaced>,
    pub(crate) counts: Counts,
    /// Items taken and published, as the process noted them while it worked.
    pub(crate) noted: (u64, u64),
    pub(crate) outcome: Option<Outcome>,
}

impl ProcessReport {
    /// The step's name.
    #[must_use]
    pub fn step(&self) -> &str {
        &self.step
    }

    /// The process's own name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The process id it had; that of the last, where it was replaced.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The device it was given; -1 is the CPU.
    #[must_use]
    pub fn device(&self) -> i32 {
        self.device
    }

    /// How often it was replaced.
    #[must_use]
    pub fn restarts(&self) -> u32 {
        self.restarts
    }

    /// The processes that it came after, each with why it failed, in the order of time.
    #[must_use]
    pub fn replaced(&self) -> &[Replaced] {
        &self.replaced
    }

    /// What it took, what became of that, and what it gave; together with the processes that it came after.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Items it took; those of the last process, where it was replaced ([`counts`](Self::counts) has all).
    #[must_use]
    pub fn inputs(&self) -> u64 {
        let noted = self.noted.0;
        self.outcome
            .as_ref()
            .map_or(noted, |outcome| outcome.inputs)
    }

    /// Items it published; those of the last process, where it was replaced ([`counts`](Self::counts) has all).
    #[must_use]
    pub fn outputs(&self) -> u64 {
        let noted = self.noted.1;
        self.outcome
            .as_ref()
            .map_or(noted, |outcome| outcome.outputs)
    }

    /// Adds up what the last process and those before it say.
    pub(crate) fn close(mut self) -> Self {
        let before = self.replaced.iter();
        let (taken, published) = before.fold((self.inputs(), self.outputs()), |sum, one| {
            (sum.0 + one.inputs, sum.1 + one.outputs)
        });
        self.counts.close(taken, published);
        self
    }
}

/// What a run came to.
#[derive(Debug)]
pub struct Report {
    pub(crate) termination: Termination,
    pub(crate) error: Option<Error>,
    pub(crate) items: Items,
    pub(crate) processes: Vec<ProcessReport>,
    /// When all processes were ready; `None` where the run ended before.
    pub(crate) started_ns: Option<u64>,
    pub(crate) ended_ns: u64,
}

impl Report {
    /// Why the run ended.
    #[must_use]
    pub fn termination(&self) -> Termination {
        self.termination
    }

    /// What went wrong, for a run that did not come to its end ([`Running::wait`]).
    #[must_use]
    pub fn error(&self) -> Option<&Error> {
        self.error.as_ref()
    }

    /// What became of the inputs.
    #[must_use]
    pub fn items(&self) -> Items {
        self.items
    }

    /// The processes, in the order of the steps.
    #[must_use]
    pub fn processes(&self) -> &[ProcessReport] {
        &self.processes
    }

    /// What the processes of the step called `step`, of stage `S`, brought home, in the order of its replicas.
    ///
    /// # Errors
    /// When there is no such step, a process of it did not come to its end, or its results are of another type.
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
                let outcome = process.outcome.as_ref().ok_or_else(|| {
                    Error::new(
                        ErrorKind::Result,
                        format!("process {:?} did not come to its end", process.name),
                    )
                })?;
                let wanted = std::any::type_name::<S::Result>();
                // Most values read as many a type.
                if outcome.result_type != wanted {
                    return Err(Error::new(
                        ErrorKind::Result,
                        format!(
                            "the result of step {step:?} is of type {}, not {wanted}",
                            outcome.result_type
                        ),
                    ));
                }
                postcard::from_bytes(&outcome.result).map_err(|error| {
                    Error::result(
                        format!("the result of step {step:?} does not read as {wanted}: {error}"),
                        error,
                    )
                })
            })
            .collect()
    }

    /// Seconds from the start of the run, when all processes were ready, until the last process had its result, or until
    /// the run was found to have failed; 0 where it never started.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        seconds(&self.processes, self.started_ns, self.ended_ns)
    }

    /// When all processes were ready, CLOCK_MONOTONIC nanoseconds, from which the times in reports count; `None` where the run
    /// never started.
    #[must_use]
    pub fn clock_start_ns(&self) -> Option<u64> {
        self.started_ns
    }

    /// Inputs that were finished in one of these [seconds](Self::seconds), which is also the throughput that a report of the
    /// run's directory says; `None` where the run never started.
    #[must_use]
    pub fn rate(&self) -> Option<f64> {
        let seconds = self.seconds();
        (seconds > 0.0).then(|| self.items.completed as f64 / seconds)
    }
}

/// As [`Report::seconds`].
pub(crate) fn seconds(processes: &[ProcessReport], started_ns: Option<u64>, ended_ns: u64) -> f64 {
    let outcomes: Option<Vec<_>> = processes
        .iter()
        .map(|process| process.outcome.as_ref())
        .collect();
    // Where all came home they say when they worked.
    let worked = outcomes.and_then(|outcomes| {
        let first = outcomes.iter().map(|outcome| outcome.started_ns).min()?;
        let last = outcomes.iter().map(|outcome| outcome.ended_ns).max()?;
        Some((first, last))
    });
    let (first, last) = match (worked, started_ns) {
        (Some(worked), _) => worked,
        (None, Some(started)) => (started, ended_ns),
        (None, None) => return 0.0,
    };
    last.saturating_sub(first) as f64 / 1e9
}
