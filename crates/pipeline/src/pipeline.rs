//! A pipeline: steps of replicated processes, in a row.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mp_queue::WaitPolicy;
use shm_core::Arena;
use spawn::Group;

use crate::account::Account;
use crate::check::{Specs, check, check_room, odd_end, odd_keeping};
use crate::client::{Client, Progress, feed};
use crate::counts::Counts;
use crate::device::cuda_devices;
use crate::ending::rings;
use crate::error::{Error, ErrorKind, Result};
use crate::home::{CLIENT, Home, Known, Upstreams};
use crate::panicking;
use crate::process::{Outcome, Work};
use crate::progress::ProgressLine;
use crate::run::{Report, Running, Shared};
use crate::run_dir::RunDir;
use crate::runner::{Crew, Runner};
use crate::signals::SignalsHeard;
use crate::spec::Layout;
use crate::step::Step;
use crate::wiring::Wiring;

/// Steps in a row, each in processes of its own. Tensors stay where they were written; what travels from one step to the
/// next says in which slot.
///
/// ```no_run
/// use pipeline::{Context, Flow, Input, Output, Pipeline, Stage, StageError, Step, TensorSpec};
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
///     fn process(&mut self, _: Option<Input>, output: &mut Output) -> Result<Flow, StageError> {
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
///     fn process(&mut self, input: Option<Input>, _: &mut Output) -> Result<Flow, StageError> {
///         if let Some(item) = input {
///             self.0 += item.tensor::<f32>(0)?.iter().sum::<f32>(); // read where it was written
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
    pub(crate) steps: Vec<Step>,
    pub(crate) client: Option<Client>,
    grace: Option<Duration>,
    timeout: Option<Duration>,
    wait: Option<WaitPolicy>,
    dir: Option<PathBuf>,
    overwrites: bool,
    progress: bool,
    tells: bool,
    signals: Option<spawn::Signals>,
    pub(crate) config: Option<serde_json::Value>,
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

    /// Where the inputs come from. Without one the first step makes them itself.
    pub fn client(mut self, client: Client) -> Self {
        self.client = Some(client);
        self
    }

    /// How long processes have to end by themselves after SIGTERM when another one failed, and a client's iterator to come
    /// back once the processes have ended; 3 s where nothing is said.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = Some(grace);
        self
    }

    /// How long the run may take, from the start of its processes.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// How processes wait for items and for room in a queue. Where nothing is said they spin for a while (tens of
    /// microseconds at most, less where it has not paid lately) if there are no more of them than cores, and else sleep.
    /// For a free slot of its own a process always looks for a while before it sleeps (0.2 ms at most, and twice as long as
    /// it worked before), unless it is to [`Park`](WaitPolicy::Park).
    pub fn wait_policy(mut self, policy: WaitPolicy) -> Self {
        self.wait = Some(policy);
        self
    }

    /// Writes what happened to each item, and when, into this directory, which is made; with a table, a trace
    /// and a page with plots beside it ([`report`](crate::report)). The guide says what is in it. Where it holds a run
    /// already, or another run writes into it, the run is not started; see [`overwrite`](Self::overwrite).
    pub fn run_dir(mut self, path: impl Into<PathBuf>) -> Self {
        self.dir = Some(path.into());
        self
    }

    /// Writes over the run that the [directory](Self::run_dir) may hold. One that still goes on is left as it is all the same.
    pub fn overwrite(mut self) -> Self {
        self.overwrites = true;
        self
    }

    /// Shows how far the run is in a line on stderr, if that is a terminal.
    pub fn progress(mut self) -> Self {
        self.progress = true;
        self
    }

    /// Says on stderr what somebody who waits for the run should know, such as that a process was replaced. Without this it
    /// is a `tracing` event.
    #[cfg(feature = "command")]
    pub(crate) fn telling(mut self) -> Self {
        self.tells = true;
        self
    }

    /// What there is to be known of the end of the run where it is not sure to come by itself.
    #[cfg(feature = "command")]
    pub(crate) fn endless(&self) -> Option<String> {
        let why = self.client.as_ref()?.endless()?;
        let until = match self.timeout {
            Some(limit) => format!("its limit of {limit:?} or Ctrl-C"),
            None => "Ctrl-C".to_owned(),
        };
        Some(format!(
            "{why}: the run goes on until {until}; give --count to end it"
        ))
    }

    /// Ends the run as interrupted when a signal came.
    #[cfg(feature = "command")]
    pub(crate) fn heeding(mut self, signals: spawn::Signals) -> Self {
        self.signals = Some(signals);
        self
    }

    /// Everything that can be known to be wrong before anything starts. Whether there is room for all slots is looked at where
    /// this process has its arena already, and by [`start`](Self::start) in any case: beside what the arena holds at that
    /// moment, another pipeline's slots among it.
    ///
    /// # Errors
    /// `Invalid`, naming step, queue group and key; `Arena` for slots that there is no room for, with the bytes that they
    /// need.
    pub fn check(&self) -> Result<()> {
        let specs = check(&self.steps, self.client.as_ref(), &cuda_devices)?;
        match Arena::has_current() {
            true => check_room(&self.steps, &specs, &Arena::current()?),
            false => Ok(()),
        }
    }

    /// What is odd, and may be on purpose.
    #[cfg(feature = "command")]
    pub(crate) fn odd(&self) -> Vec<String> {
        let specs = check(&self.steps, self.client.as_ref(), &cuda_devices);
        specs.map_or_else(|_| Vec::new(), |specs| self.odd_with(&specs))
    }

    /// The same for who has checked it.
    fn odd_with(&self, specs: &Specs) -> Vec<String> {
        let count = self.client.as_ref().and_then(|client| client.count);
        let keeping = odd_keeping(&self.steps, specs, count);
        let written = self.steps.iter().flat_map(|step| step.odd.iter().cloned());
        let found = odd_end(&self.steps).into_iter().chain(keeping);
        written.chain(found).collect()
    }

    /// Starts the processes, waits until all have ended, and tells what they brought home.
    ///
    /// # Errors
    /// `Invalid` for steps that do not fit together; as [`Running::join`].
    #[track_caller]
    pub fn run(self) -> Result<Report> {
        self.start()?.join()
    }

    /// Makes the queues and slots and starts the processes.
    ///
    /// # Errors
    /// `Invalid` for steps that do not fit together; what making queues, slots and processes can answer.
    #[track_caller]
    pub fn start(mut self) -> Result<Running> {
        // Before anything is started, or even looked at: a signal that comes from here on is one to the run.
        let signals = SignalsHeard::from_now(self.signals.take());
        let specs = check(&self.steps, self.client.as_ref(), &cuda_devices)?;
        check_room(&self.steps, &specs, &Arena::current()?)?;
        for odd in self.odd_with(&specs) {
            tracing::warn!("{odd}");
        }
        let apart = self.steps.iter().any(|step| step.restarts > 0);
        let (mut wiring, log) = Wiring::lay(self.steps, specs, self.client.as_ref(), self.wait)?;
        let dir = self.dir.as_deref();
        let dir = dir.map(|dir| open_dir(dir, self.overwrites, &wiring));
        let dir = dir.transpose()?;
        let crews = start_crews(&wiring, apart, self.grace)?;

        let processes = wiring.seats.len();
        let progress = Arc::new(Progress::default());
        let count = self.client.as_ref().and_then(|client| client.count);
        let client = match self.client {
            Some(client) => Some(start_client(client, &wiring, &progress)?),
            None => None,
        };
        if apart {
            // The replacements need theirs; only the client alone parties the first queue.
            wiring.let_go(|step| step == usize::MAX, |_| false);
        } else {
            wiring.let_go(|_| true, |_| true);
            wiring.log = None;
            for step in &mut wiring.steps {
                step.groups
                    .iter_mut()
                    .for_each(crate::step::QueueGroup::let_go);
            }
        }
        let shared = Arc::new(Shared::default());
        let runner = Runner {
            wiring,
            crews,
            log,
            shared: Arc::clone(&shared),
            progress,
            signals,
            client,
            count,
            timeout: self.timeout,
            grace: self.grace,
            dir,
            line: self.progress.then(ProgressLine::if_watched).flatten(),
            tells: self.tells,
            config: self.config.unwrap_or_default(),
            account: Account::new(apart),
            offered: 0,
            cards: vec![0; processes],
            read: vec![(0, 0); processes],
            restarts: vec![0; processes],
            leaving: Vec::new(),
            replaced: vec![Vec::new(); processes],
            counts: vec![Counts::default(); processes],
            outcomes: vec![None; processes],
            brought: vec![None; processes],
            workers: vec![None; processes],
            error: None,
            in_vain: 0,
            failed_rank: None,
            hung: vec![None; processes],
            returned: Vec::new(),
        };
        let pids = runner.crews.iter().flat_map(|crew| crew.context.pids());
        shared.set_pids(pids.collect());
        let thread = thread("pipeline", move || runner.run())?;
        Ok(Running::new(shared, thread))
    }
}

fn thread<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<std::thread::JoinHandle<T>> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(body)
        .map_err(|error| Error::caused(ErrorKind::Process, format!("thread {name:?}"), error))
}

fn open_dir(path: &std::path::Path, overwrites: bool, wiring: &Wiring) -> Result<RunDir> {
    let rings = rings(wiring);
    let ring_of = wiring
        .seats
        .iter()
        .map(|seat| rings.iter().position(|(step, _)| *step == seat.step))
        .collect();
    let steps = (0..wiring.seats.len())
        .map(|rank| wiring.step_of(rank).name.clone())
        .chain(["client".to_owned()])
        .collect();
    let names = rings.into_iter().map(|(_, name)| name).collect();
    RunDir::create(path, overwrites, steps, ring_of, names)
}

/// Starts all processes: as one group that fails together, or each apart, to be replaced alone.
fn start_crews(wiring: &Wiring, apart: bool, grace: Option<Duration>) -> Result<Vec<Crew>> {
    let mut slots = Vec::new();
    for rank in 0..wiring.seats.len() {
        slots.push(wiring.make_slots(rank)?);
    }
    let mut works: Vec<Work<()>> = Vec::new();
    for rank in 0..wiring.seats.len() {
        let mut post = wiring.post(rank, 0).ok_or_else(|| {
            Error::invalid("a pipeline was started after it had let go of its queues")
        })?;
        let read = (0..rank).filter(|&writer| wiring.reads(rank, writer));
        post.touch = read.flat_map(|writer| slots[writer].clone()).collect();
        works.push(Work { params: (), post });
    }
    let group = || {
        let group = Group::<Outcome>::new();
        match grace {
            Some(grace) => group.grace(grace),
            None => group,
        }
    };
    let mut together = group();
    let mut crews = Vec::new();
    for (rank, mut work) in works.into_iter().enumerate() {
        work.post.slots = std::mem::take(&mut slots[rank]);
        let (maker, process) = (&wiring.group_of(rank).maker, wiring.process(rank));
        if apart {
            let mut alone = group().apart();
            maker.add(&mut alone, process, work)?;
            crews.push(Crew::new(alone.start()?, vec![rank]));
        } else {
            maker.add(&mut together, process, work)?;
        }
    }
    if !apart {
        let ranks = (0..wiring.seats.len()).collect();
        crews.push(Crew::new(together.start()?, ranks));
    }
    Ok(crews)
}

/// Tells what there is of time cards when it goes.
struct Told<'a>(&'a Home);

impl Drop for Told<'_> {
    fn drop(&mut self) {
        self.0.flush();
    }
}

/// The thread that parties the first step.
fn start_client(
    client: Client,
    wiring: &Wiring,
    progress: &Arc<Progress>,
) -> Result<std::thread::JoinHandle<Result<()>>> {
    let lane = wiring.client_lane();
    let (Some(lane), Some(log)) = (lane, wiring.log.clone()) else {
        return Err(Error::invalid(
            "a pipeline with a client has no queue for it",
        ));
    };
    let mut upstream = Upstreams::default();
    let rank = wiring.seats.len() as u32;
    let (freed, layout) = (wiring.news.clone(), Arc::new(Layout::of(&[])?));
    upstream.insert(rank, Known { freed, layout });
    let home = Arc::new(Home::new(
        (rank, CLIENT, -1),
        wiring.board.clone(),
        upstream,
        log,
        None,
        false,
    ));
    let (go, progress) = (wiring.go.clone(), Arc::clone(progress));
    let replaces = wiring.may_lose();
    thread("client", move || {
        go.wait()?;
        // Also when the iterator panics.
        let _told = Told(&home);
        panicking::tells(|| feed(client, &home, &lane, &progress, replaces))
    })
}
