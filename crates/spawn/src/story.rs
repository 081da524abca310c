//! What a context and the supervisor share: who the processes are, and how it ended.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::error::{Error, ErrorKind, Worker};
use crate::link::{Deadlock, Joining};

/// Where a process is in its life, as the supervisor has seen it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Starting,
    Running,
    Returned,
    Failed,
    Ended,
}

/// How long a wait without a limit sleeps before it looks whether it can end at all.
const SLICE: Duration = Duration::from_millis(500);

/// The processes of one context and their common end. The supervisor writes, the context reads and waits.
#[derive(Debug)]
pub(crate) struct Story {
    /// Names the context to the supervisor.
    pub(crate) id: u32,
    /// The process whose supervisor runs this; a bare fork of it has the memory, but no supervisor.
    pid: u32,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    members: Vec<(Worker, Phase)>,
    end: Option<Result<(), Error>>,
    hooks: Hooks,
}

/// What is to be called at the end.
type Hook = Box<dyn FnOnce(&Result<(), Error>) + Send>;

#[derive(Default)]
struct Hooks(Vec<Hook>);

impl std::fmt::Debug for Hooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} hooks", self.0.len())
    }
}

fn call(hook: Hook, end: &Result<(), Error>) {
    // The supervisor serves all contexts of the program; what one of them does wrong must not end it.
    if catch_unwind(AssertUnwindSafe(|| hook(end))).is_err() {
        tracing::error!("what was to be called at the end of a context panicked");
    }
}

impl State {
    /// How many processes have not ended yet.
    fn running(&self) -> usize {
        let ended = |phase: &Phase| *phase == Phase::Ended;
        self.members
            .iter()
            .filter(|(_, phase)| !ended(phase))
            .count()
    }
}

impl Story {
    pub(crate) fn new(id: u32) -> Story {
        Story {
            id,
            pid: std::process::id(),
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Whether this process supervises the context.
    pub(crate) fn is_ours(&self) -> bool {
        self.pid == std::process::id()
    }

    /// All processes have been started.
    pub(crate) fn begin(&self, workers: impl Iterator<Item = Worker>) {
        self.state.lock().members = workers.map(|worker| (worker, Phase::Starting)).collect();
    }

    pub(crate) fn note(&self, rank: usize, phase: Phase) {
        if let Some((_, now)) = self.state.lock().members.get_mut(rank) {
            *now = phase;
        }
    }

    /// The first end counts: it is the one that may have been told already.
    pub(crate) fn finish(&self, end: Result<(), Error>) {
        let mut state = self.state.lock();
        if state.end.is_some() {
            return;
        }
        state.end = Some(end.clone());
        let hooks = std::mem::take(&mut state.hooks);
        self.changed.notify_all();
        drop(state);
        for hook in hooks.0 {
            call(hook, &end);
        }
    }

    /// Has `hook` called at the end, on the supervisor's thread; at once if the end has come.
    pub(crate) fn on_end(&self, hook: Hook) {
        let mut state = self.state.lock();
        match state.end.clone() {
            None => state.hooks.0.push(hook),
            Some(end) => {
                drop(state);
                call(hook, &end);
            }
        }
    }

    /// Waits for the end, up to a time if one is given; `None` when it did not come until then. `stuck` is told of a wait
    /// without a limit that nobody can end any more, and has to see to the end itself.
    pub(crate) fn wait(
        &self,
        until: Option<Instant>,
        stuck: impl FnOnce(Deadlock),
    ) -> Option<Result<(), Error>> {
        if !self.is_ours() {
            return Some(Err(Error::new(
                ErrorKind::Usage,
                format!(
                    "this process was forked from process {}, which started and supervises these processes: only that \
                     one can wait for them or stop them",
                    self.pid
                ),
            )));
        }
        match until {
            None => Some(self.wait_for_ever(stuck)),
            Some(until) => {
                let mut state = self.state.lock();
                while state.end.is_none() && !self.changed.wait_until(&mut state, until).timed_out()
                {
                }
                state.end.clone()
            }
        }
    }

    fn wait_for_ever(&self, stuck: impl FnOnce(Deadlock)) -> Result<(), Error> {
        let mut stuck = Some(stuck);
        let mut joining = Joining::begin();
        let mut state = self.state.lock();
        loop {
            if let Some(end) = &state.end {
                return end.clone();
            }
            joining.on(self.id, state.running());
            if self.changed.wait_for(&mut state, SLICE).timed_out() && stuck.is_some() {
                // Not under the lock: the supervisor has news to write down.
                let found = MutexGuard::unlocked(&mut state, || joining.look());
                if let Some(found) = found.filter(|_| state.end.is_none())
                    && let Some(stuck) = stuck.take()
                {
                    MutexGuard::unlocked(&mut state, || stuck(found));
                }
            }
        }
    }

    /// The end, if it has come.
    pub(crate) fn end(&self) -> Option<Result<(), Error>> {
        self.state.lock().end.clone()
    }

    pub(crate) fn members(&self) -> Vec<(Worker, Phase)> {
        self.state.lock().members.clone()
    }
}

/// A point in time that a duration away, or none if that is beyond what the clock can say.
pub(crate) fn after(duration: Duration) -> Option<Instant> {
    Instant::now().checked_add(duration)
}
