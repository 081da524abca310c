//! [`SpawnContext`]: the processes that were started together, and what became of them.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;

use crate::desk;
use crate::error::{BoxError, Error, ErrorKind, Result, Worker};
use crate::hello::Handle;
use crate::link::{self, Mailbox, Patience};
use crate::run::Why;
use crate::story::{Phase, Story, after};
use crate::tail::Tail;

/// Reads a value out of the bytes that came instead of it, or out of its letterbox, if it is there.
type Read<R> = Box<dyn Fn(&Mailbox, Option<&[u8]>) -> Result<Option<R>, BoxError> + Send + Sync>;

/// Where the result of one process will be, and how to read it.
pub(crate) struct Inbox<R> {
    mailbox: Mailbox,
    read: Read<R>,
}

impl<R> Inbox<R> {
    /// An inbox for a value of type `T`, which becomes an `R`.
    pub(crate) fn new<T: DeserializeOwned>(
        mailbox: Mailbox,
        into: impl Fn(T) -> R + Send + Sync + 'static,
    ) -> Inbox<R> {
        Inbox {
            mailbox,
            read: Box::new(move |mailbox, bytes| {
                let value = match bytes {
                    Some(bytes) => Some(link::read_plain::<T>(bytes)?),
                    None => mailbox.take::<T>()?,
                };
                Ok(value.map(&into))
            }),
        }
    }

    /// Names the letterbox to the process that fills it.
    pub(crate) fn handle(&self) -> Handle {
        self.mailbox.handle()
    }

    fn open(&self, worker: Worker, bytes: Option<&[u8]>) -> Result<R> {
        let reason = match (self.read)(&self.mailbox, bytes) {
            Ok(Some(value)) => return Ok(value),
            Ok(None) => "it said that it had returned, but its letterbox is empty".to_owned(),
            Err(error) => error.to_string(),
        };
        Err(Error::from_process(ErrorKind::ResultLost {
            worker,
            reason,
        }))
    }
}

/// Stops the processes of a [`SpawnContext`]; made by [`SpawnContext::stopper`], and harmless once they have ended.
#[derive(Clone, Debug)]
pub struct Stopper {
    story: Arc<Story>,
}

impl Stopper {
    /// As [`SpawnContext::terminate`].
    pub fn terminate(&self) {
        desk::stop(&self.story, false, Why::Asked);
    }

    /// As [`SpawnContext::kill`].
    pub fn kill(&self) {
        desk::stop(&self.story, true, Why::Asked);
    }
}

/// Processes that were started together, and that stop together when one of them fails.
///
/// They are supervised from the start, whether anybody joins or not: at the first failure the others get SIGTERM, and
/// SIGKILL after the grace period; waits on the queues that they were handed end with the failure. Dropping the
/// context stops the processes that still run, and waits until they have ended.
#[must_use = "dropping it stops the processes; keep it and call `join`"]
pub struct SpawnContext<R> {
    story: Arc<Story>,
    /// By rank; `None` for a daemon, whose result nobody waits for.
    inboxes: Vec<Option<Inbox<R>>>,
    /// Kept so that what daemons return has a place.
    daemons: Vec<Inbox<R>>,
    /// The ends of what the processes write to their stderr, where they are kept.
    tails: Vec<Arc<Tail>>,
    /// How many ends `wait_any` has told.
    told: usize,
    end: Option<Result<Vec<R>>>,
    /// Whose result was being made a value of this program, which is that program's code.
    opening: Option<usize>,
}

/// A process of a [`SpawnContext`] and where it is in its life; given by [`SpawnContext::processes`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProcessState {
    /// Its rank, process id and name.
    pub worker: Worker,
    /// Where it is.
    pub phase: Phase,
}

impl<R> SpawnContext<R> {
    /// Of processes whose inboxes come with whether the process is a daemon.
    pub(crate) fn new(
        story: Arc<Story>,
        inboxes: Vec<(Inbox<R>, bool)>,
        tails: Vec<Arc<Tail>>,
    ) -> SpawnContext<R> {
        let mut daemons = Vec::new();
        let inboxes = inboxes
            .into_iter()
            .map(|(inbox, daemon)| {
                if daemon {
                    daemons.push(inbox);
                    return None;
                }
                Some(inbox)
            })
            .collect();
        SpawnContext {
            story,
            inboxes,
            daemons,
            tails,
            told: 0,
            end: None,
            opening: None,
        }
    }

    /// Waits until all processes have ended, and gives what their functions returned, in the order of their ranks.
    ///
    /// May be called again, and then says the same again. When a process fails, the others are stopped first, so after
    /// an error nothing runs any more either.
    ///
    /// # Errors
    ///
    /// The first failure of any process, by time. [`Deadlock`](ErrorKind::Deadlock) when this wait could never end,
    /// because this process and those it waits for all wait for each other; the processes are stopped then.
    /// [`ResultLost`](ErrorKind::ResultLost) after a join in which the program's own code panicked, that makes a value of
    /// what a process returned.
    ///
    /// ```no_run
    /// # fn square(_rank: usize, x: u32) -> Result<u32, String> { Ok(x * x) }
    /// # fn main() -> spawn::Result<()> {
    /// # spawn::init();
    /// let mut context = spawn::spawn(square, 3, 2)?;
    /// assert_eq!(context.join()?, [9, 9]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn join(&mut self) -> Result<&[R]> {
        self.settle(None)?;
        self.told()
    }

    /// Like [`join`](SpawnContext::join), but waits no longer than `timeout`: `None` if a process still runs then. It
    /// stops nothing, and does not look for a [`Deadlock`](ErrorKind::Deadlock): a wait with a limit ends by itself.
    ///
    /// # Errors
    ///
    /// The first failure of any process, by time.
    pub fn join_timeout(&mut self, timeout: Duration) -> Result<Option<&[R]>> {
        self.settle(after(timeout))?;
        match &self.end {
            None => Ok(None),
            Some(_) => self.told().map(Some),
        }
    }

    /// Like [`join_timeout`](SpawnContext::join_timeout), without waiting.
    ///
    /// # Errors
    ///
    /// The first failure of any process, by time.
    pub fn try_join(&mut self) -> Result<Option<&[R]>> {
        self.join_timeout(Duration::ZERO)
    }

    /// Like [`join_timeout`](SpawnContext::join_timeout), with another grace period than the context was made with. The
    /// two arguments of `join` in torch.
    ///
    /// - `timeout`: how long this call waits at most, for all of it: it does not start again with each process, nor when
    ///   they begin to be stopped.
    /// - `grace`: how long what is stopped has from SIGTERM to SIGKILL. It holds from now on, also after this call, and
    ///   zero sends SIGKILL at once. What is being stopped already has what it had.
    ///
    /// `Ok(None)` means that the timeout has passed and at least one process has not ended: all run, or one has failed
    /// and the others, which are being stopped, have not all ended yet. Nothing is stopped because of the timeout, no
    /// result is lost, and another join goes on where this one left off.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn work(_rank: usize, _: ()) -> Result<u32, String> { Ok(1) }
    /// # fn main() -> spawn::Result<()> {
    /// # spawn::init();
    /// let mut context = spawn::spawn(work, (), 4)?;
    /// let grace = Duration::from_millis(500);
    /// let total: u32 = loop {
    ///     match context.join_within(Duration::from_secs(10), grace)? {
    ///         Some(results) => break results.iter().sum(),
    ///         None => println!("still at work: {:?}", context.processes()),
    ///     }
    /// };
    /// # let _ = total;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The first failure of any process, by time, once all have ended.
    pub fn join_within(&mut self, timeout: Duration, grace: Duration) -> Result<Option<&[R]>> {
        desk::set_grace(&self.story, grace);
        self.join_timeout(timeout)
    }

    /// Waits until a process has ended that no earlier call told of, whatever its rank. `None` when all have been told.
    ///
    /// ```no_run
    /// # fn work(_rank: usize, _: ()) {}
    /// # fn main() -> spawn::Result<()> {
    /// # spawn::init();
    /// let mut context = spawn::spawn(work, (), 4)?;
    /// while let Some(worker) = context.wait_any()? {
    ///     println!("{worker} is done");
    /// }
    /// context.join()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The first failure of any process, by time, once it is known and the others have been stopped.
    /// [`Deadlock`](ErrorKind::Deadlock) as for [`join`](SpawnContext::join).
    pub fn wait_any(&mut self) -> Result<Option<Worker>> {
        let stuck = |deadlock| desk::give_up(&self.story, deadlock);
        let Some(worker) = self.story.wait_for_end_of(self.told, stuck) else {
            return self.join().map(|_| None);
        };
        // One that ended badly stops the others; then that is the news. What the others return then is none.
        if self.story.is_failing() {
            self.join()?;
        }
        self.told += 1;
        Ok(Some(worker))
    }

    /// Lets the processes live on, supervised by nobody: they no longer end when this process does. Returns when each
    /// has confirmed that.
    ///
    /// What they return goes nowhere, and what becomes of them is told to nobody. As long as this process lives it
    /// reaps them. One whose stderr's tail is kept loses its stderr with this process.
    ///
    /// # Errors
    ///
    /// When one has failed, or does not confirm in the time that a process has to reach [`init`](crate::init); then all
    /// are stopped, as by dropping the context.
    pub fn detach(self) -> Result<Vec<Worker>> {
        desk::detach(&self.story)?;
        Ok(self.workers())
    }

    /// Waits as [`join`](SpawnContext::join) does, and gives the values away.
    ///
    /// # Errors
    ///
    /// The first failure of any process, by time.
    pub fn into_results(mut self) -> Result<Vec<R>> {
        self.settle(None)?;
        self.end.take().unwrap_or_else(|| Err(unsettled()))
    }

    /// The process ids, in the order of the ranks.
    pub fn pids(&self) -> Vec<u32> {
        self.story
            .members()
            .into_iter()
            .map(|(worker, _)| worker.pid)
            .collect()
    }

    /// The processes, in the order of their ranks.
    pub fn workers(&self) -> Vec<Worker> {
        self.story
            .members()
            .into_iter()
            .map(|(worker, _)| worker)
            .collect()
    }

    /// The processes and where each is in its life, in the order of their ranks. That a function runs or has returned
    /// wakes nobody, so [`Phase::Running`] and [`Phase::Returned`] may show up to a second late; a failure and an end
    /// show at once.
    pub fn processes(&self) -> Vec<ProcessState> {
        self.story
            .members()
            .into_iter()
            .map(|(worker, phase)| ProcessState { worker, phase })
            .collect()
    }

    /// Asks all processes to end: SIGTERM now, SIGKILL after the grace period. Returns at once;
    /// [`join`](SpawnContext::join) waits, and says [`Interrupted`](ErrorKind::Interrupted) unless all had returned or
    /// one had failed before.
    pub fn terminate(&self) {
        desk::stop(&self.story, false, Why::Asked);
    }

    /// Ends all processes now, with SIGKILL. Returns at once.
    pub fn kill(&self) {
        desk::stop(&self.story, true, Why::Asked);
    }

    /// A handle that stops the processes from elsewhere, such as a thread that waits for signals while this one joins.
    pub fn stopper(&self) -> Stopper {
        Stopper {
            story: Arc::clone(&self.story),
        }
    }

    /// Has `hook` called when all processes have ended, with what [`join`](SpawnContext::join) would say, or at once if
    /// they have. It runs on the thread that supervises all processes of this program, so it must not block. What would
    /// wait for that thread (to start a process, to join one that runs, to let it go) is an error there, and a context
    /// that is dropped there is stopped without being waited for.
    pub fn on_end(&self, hook: impl FnOnce(&Result<()>) + Send + 'static) {
        self.story.on_end(Box::new(hook));
    }

    /// The end that has come.
    pub(crate) fn join_at_once(&mut self) -> Result<&[R]> {
        if self.story.would_never_end() {
            return Err(desk::not_here());
        }
        self.settle(Some(Instant::now()))?;
        self.told()
    }

    /// Waits for the end and reads the results, once.
    fn settle(&mut self, until: Option<Instant>) -> Result<()> {
        if self.end.is_some() {
            return Ok(());
        }
        let stuck = |deadlock| desk::give_up(&self.story, deadlock);
        let Some(end) = self.story.wait(until, stuck) else {
            return Ok(());
        };
        // It cannot be waited for here; elsewhere it may be.
        if self.story.end().is_none() {
            return end;
        }
        let workers = self.workers();
        // What they wrote comes before what is told about them, unless whoever reads it is slow.
        self.pass_on(until);
        if let Some(worker) = self.opening.and_then(|rank| workers.get(rank)) {
            let (worker, reason) = (worker.clone(), PANICKED.to_owned());
            self.end = Some(Err(Error::told(
                ErrorKind::ResultLost { worker, reason },
                None,
            )));
            self.inboxes.clear();
            return Ok(());
        }
        let opening = &mut self.opening;
        self.end = Some(end.and_then(|()| {
            self.inboxes
                .iter()
                .zip(workers)
                .filter_map(|(inbox, worker)| {
                    *opening = Some(worker.rank);
                    let bytes = self.story.take_value(worker.rank);
                    inbox
                        .as_ref()
                        .map(|inbox| inbox.open(worker, bytes.as_deref()))
                })
                .collect()
        }));
        // The letterboxes have nothing more to give.
        self.inboxes.clear();
        self.daemons.clear();
        Ok(())
    }

    /// Passes on what the processes wrote to their stderr as far as it is read soon; the rest goes on its way without
    /// this context.
    fn pass_on(&mut self, until: Option<Instant>) {
        let left = until.map_or(SOON, |until| {
            until.saturating_duration_since(Instant::now())
        });
        let whole = match desk::is_supervisor() {
            true => Duration::ZERO,
            false => left.clamp(AT_ONCE, SOON),
        };
        let mut wait = Patience::new(whole);
        let flush = |tail: Arc<Tail>| tail.flush(&mut wait);
        self.tails.drain(..).for_each(flush);
    }

    pub(crate) fn story(&self) -> &Story {
        &self.story
    }

    fn told(&self) -> Result<&[R]> {
        match &self.end {
            Some(Ok(results)) => Ok(results),
            Some(Err(error)) => Err(error.clone()),
            None => Err(unsettled()),
        }
    }
}

/// How long a program that waits for its processes also waits for whoever reads what they wrote to their stderr.
const SOON: Duration = Duration::from_secs(1);
/// And one that does not wait, for a thread that is just passing that on.
const AT_ONCE: Duration = Duration::from_millis(20);

/// What is told of a result that this program's own code could not make.
const PANICKED: &str = "what was to make of it a value of this program panicked when it was joined";

/// Waiting without a limit ends only with the end, so nobody sees this.
fn unsettled() -> Error {
    Error::new(
        ErrorKind::Interrupted { worker: None },
        "the processes have not ended yet",
    )
}

impl<R> Drop for SpawnContext<R> {
    fn drop(&mut self) {
        if self.end.is_none() && self.story.end().is_none() {
            desk::stop(&self.story, false, Why::Dropped);
            // Bounded: grace, SIGKILL, and a limit for what even that does not end.
            self.story.wait(None, drop);
        }
        self.pass_on(None);
    }
}

impl<R> fmt::Debug for SpawnContext<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("SpawnContext");
        for (worker, phase) in self.story.members() {
            text.field(&worker.name, &format_args!("pid {} {phase:?}", worker.pid));
        }
        match self.story.end() {
            Some(Err(error)) => text.field("failed", &format_args!("{error}")),
            Some(Ok(())) => text.field("succeeded", &true),
            None => &mut text,
        };
        text.finish()
    }
}
