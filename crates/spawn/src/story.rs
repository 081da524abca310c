//! What a context and the supervisor share: who the processes are, and how it ended.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::desk;
use crate::error::{Error, ErrorKind, Worker};
use crate::link::{self, Deadlock, Joining};
use crate::watched::{Only, Waited};

/// Where a process is in its life, as the supervisor has seen it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Phase {
    /// It has not reached [`init`](crate::init) yet.
    Starting,
    /// Its function runs.
    Running,
    /// Its function returned a value, and it has not ended yet.
    Returned,
    /// It is the one that failed first, and it has not ended yet.
    Failed,
    /// It has ended, after its function had returned a value.
    Finished,
    /// It has ended in another way.
    Ended,
}

impl Phase {
    fn is_end(self) -> bool {
        matches!(self, Phase::Finished | Phase::Ended)
    }
}

/// How long a wait sleeps before it looks whether it can end at all.
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
    /// Where the end of the only process shows, until somebody waits there, or it has come.
    only: Option<Only>,
    /// What processes returned, by their ranks, as far as it is not in their letterboxes.
    values: HashMap<usize, Vec<u8>>,
    /// The ranks of those that have ended, in the order in which they did.
    ended: Vec<usize>,
    /// It will end with an error, as soon as all have been stopped.
    failing: bool,
    end: Option<Result<(), Error>>,
    hooks: Hooks,
    /// Tasks that wait for the end, by the key of their wait.
    sleepers: Vec<(u64, Waker)>,
    keys: u64,
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

/// Calls what is the program's. The supervisor serves all contexts of the program; what one of them does wrong must not
/// end it.
fn call(told: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(told)) {
        // It may panic when it is dropped.
        std::mem::forget(payload);
        link::say!(
            error,
            "what was to be called at the end of a context panicked"
        );
    }
}

impl State {
    /// How many processes have not ended yet.
    fn running(&self) -> usize {
        self.members
            .iter()
            .filter(|(_, phase)| !phase.is_end())
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

    /// This is the thread that is waited for.
    pub(crate) fn would_never_end(&self) -> bool {
        desk::is_supervisor() && self.end().is_none()
    }

    /// All processes have been started.
    pub(crate) fn begin(&self, workers: impl Iterator<Item = Worker>, only: Option<Only>) {
        let mut state = self.state.lock();
        state.members = workers.map(|worker| (worker, Phase::Starting)).collect();
        state.only = only;
    }

    /// Keeps what a process returned for whoever joins.
    pub(crate) fn keep(&self, rank: usize, value: Vec<u8>) {
        self.state.lock().values.insert(rank, value);
    }

    /// What was kept of a process, once.
    pub(crate) fn take_value(&self, rank: usize) -> Option<Vec<u8>> {
        self.state.lock().values.remove(&rank)
    }

    pub(crate) fn note(&self, rank: usize, phase: Phase) {
        let mut state = self.state.lock();
        let Some((_, now)) = state.members.get_mut(rank) else {
            return;
        };
        // Nothing comes after the end, and each end is told once.
        if now.is_end() {
            return;
        }
        *now = phase;
        if phase.is_end() {
            state.only = None;
            state.ended.push(rank);
            // The last end is told as the end of all, which comes next: who joins is woken once.
            let others_run = state.running() > 0;
            // Whoever is woken needs the lock.
            drop(state);
            if others_run {
                self.changed.notify_all();
            }
        }
    }

    /// The context has failed, by the process of that rank if by one, and its processes are about to be stopped.
    pub(crate) fn note_failure(&self, rank: Option<usize>) {
        self.state.lock().failing = true;
        if let Some(rank) = rank {
            self.note(rank, Phase::Failed);
        }
    }

    /// Whether the end will be an error: it is known, or a process has ended without a value.
    pub(crate) fn is_failing(&self) -> bool {
        let state = self.state.lock();
        let badly = |phase: &Phase| matches!(phase, Phase::Failed | Phase::Ended);
        state.failing || state.members.iter().any(|(_, phase)| badly(phase))
    }

    /// The process that ended as number `index` of all, from 0: waits until there is one, or the end, which may come
    /// without. `stuck` is as for [`wait`](Story::wait).
    pub(crate) fn wait_for_end_of(
        &self,
        index: usize,
        stuck: impl FnOnce(Deadlock),
    ) -> Option<Worker> {
        if !self.is_ours() || self.would_never_end() {
            return None;
        }
        self.wait_for_ever(stuck, |state| match state.ended.get(index) {
            Some(&rank) => Some(state.members.get(rank).map(|(worker, _)| worker.clone())),
            None => state.end.is_some().then_some(None),
        })
    }

    /// Whether the end has come; if not, the task is woken when it does. A wait has a key of its own, by which it is
    /// found again, and forgotten with [`forget`](Story::forget).
    pub(crate) fn poll(&self, key: &mut Option<u64>, task: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state.lock();
        // On the supervisor's own thread it would never come: who asks for it then is told.
        if state.end.is_some() || !self.is_ours() || desk::is_supervisor() {
            return Poll::Ready(());
        }
        let key = *key.get_or_insert_with(|| {
            state.keys += 1;
            state.keys
        });
        match state.sleepers.iter_mut().find(|(other, _)| *other == key) {
            Some((_, waker)) => waker.clone_from(task.waker()),
            None => state.sleepers.push((key, task.waker().clone())),
        }
        Poll::Pending
    }

    pub(crate) fn forget(&self, key: u64) {
        self.state
            .lock()
            .sleepers
            .retain(|(other, _)| *other != key);
    }

    /// The first end counts: it is the one that may have been told already.
    pub(crate) fn finish(&self, end: Result<(), Error>) {
        let mut state = self.state.lock();
        if state.end.is_some() {
            return;
        }
        state.end = Some(end.clone());
        let hooks = std::mem::take(&mut state.hooks);
        let sleepers = std::mem::take(&mut state.sleepers);
        // Whoever is woken needs the lock; and a hook is the user's code and a waker the runtime's, which may come back
        // here.
        drop(state);
        self.changed.notify_all();
        for (_, waker) in sleepers {
            call(|| waker.wake());
        }
        for hook in hooks.0 {
            call(|| hook(&end));
        }
    }

    /// Has `hook` called at the end, on the supervisor's thread; at once if the end has come.
    pub(crate) fn on_end(&self, hook: Hook) {
        let mut state = self.state.lock();
        match state.end.clone() {
            None => state.hooks.0.push(hook),
            Some(end) => {
                drop(state);
                call(|| hook(&end));
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
        let waits = until.is_none_or(|until| Instant::now() < until);
        if waits && self.would_never_end() {
            return Some(Err(desk::not_here()));
        }
        match until {
            None => Some(self.wait_for_ever(stuck, |state| state.end.clone())),
            Some(until) => {
                let mut state = self.state.lock();
                while state.end.is_none() && Instant::now() < until {
                    self.sleep(&mut state, Some(until));
                }
                state.end.clone()
            }
        }
    }

    fn wait_for_ever<T>(
        &self,
        stuck: impl FnOnce(Deadlock),
        done: impl Fn(&State) -> Option<T>,
    ) -> T {
        let mut stuck = Some(stuck);
        let mut joining = Joining::begin();
        let mut state = self.state.lock();
        // Not where the end has to be told to others: that is no work for whoever joins.
        let only = (state.hooks.0.is_empty() && state.sleepers.is_empty())
            .then(|| state.only.take())
            .flatten();
        let mut firsthand = only
            .and_then(|only| MutexGuard::unlocked(&mut state, || desk::firsthand(self.id, only)));
        loop {
            if let Some(done) = done(&state) {
                drop(state);
                return done;
            }
            joining.on(self.id, state.running());
            let waited = firsthand
                .as_mut()
                .map(|firsthand| MutexGuard::unlocked(&mut state, || firsthand.wait(SLICE)));
            let nothing_new = match waited {
                None => self.sleep(&mut state, None),
                Some(Waited::Looked) => false,
                Some(Waited::TimedOut) => {
                    MutexGuard::unlocked(&mut state, desk::nudge);
                    true
                }
                Some(Waited::Blind) => {
                    MutexGuard::unlocked(&mut state, || firsthand = None);
                    false
                }
            };
            if nothing_new && stuck.is_some() {
                // Not under the lock: the supervisor has news to write down.
                let found = MutexGuard::unlocked(&mut state, || joining.look());
                if let Some(found) = found.filter(|_| done(&state).is_none())
                    && let Some(stuck) = stuck.take()
                {
                    MutexGuard::unlocked(&mut state, || stuck(found));
                }
            }
        }
    }

    /// Waits for something to change, and not longer than that, or than a slice, after which it sees to it that the
    /// supervisor hears. Whether nothing has changed.
    fn sleep(&self, state: &mut MutexGuard<'_, State>, until: Option<Instant>) -> bool {
        let slice = Instant::now() + SLICE;
        let until = until.map_or(slice, |until| until.min(slice));
        let timed_out = self.changed.wait_until(state, until).timed_out();
        if timed_out {
            // It may tell the end, for which it needs the state.
            MutexGuard::unlocked(state, desk::nudge);
        }
        timed_out
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
