//! The thread that supervises a run: starts it when all are ready, takes time cards home, replaces what failed, and ends
//! it, for one reason.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mp_queue::Receiver;
use shm_core::clock::now_ns;
use spawn::{ErrorKind as SpawnErrorKind, SpawnContext, Worker};

use crate::account::Account;
use crate::board::{Cause, State};
use crate::client::Progress;
use crate::counts::Counts;
use crate::error::{Error, ErrorKind, Result};
use crate::lookout::Lookout;
use crate::process::Outcome;
use crate::progress::ProgressLine;
use crate::replaced::{Brought, Leaving, Replaced};
use crate::run::{Report, Shared};
use crate::run_dir::RunDir;
use crate::signals::SignalsHeard;
use crate::time_card::{Batch, Entry};
use crate::wiring::Wiring;

/// How long the thread sleeps while there is nothing to do.
const NAP: Duration = Duration::from_millis(5);
/// So many cards of one process, or messages, at once are reason to look again before a nap.
const MANY: usize = 1024;
/// How often it looks for processes that hang or wait for each other.
pub(crate) const ROUND: Duration = Duration::from_millis(250);
/// A process that has returned and is there for longer than this waits for those who hold its memory.
const LINGERS: Duration = Duration::from_millis(100);

/// Processes that live and fail together, and their ranks.
pub(crate) struct Crew {
    pub(crate) context: SpawnContext<Outcome>,
    pub(crate) ranks: Vec<usize>,
    pub(crate) over: bool,
}

impl Crew {
    pub(crate) fn new(context: SpawnContext<Outcome>, ranks: Vec<usize>) -> Self {
        Self {
            context,
            ranks,
            over: false,
        }
    }
}

/// See the module.
pub(crate) struct Runner {
    pub(crate) wiring: Wiring,
    pub(crate) crews: Vec<Crew>,
    pub(crate) log: Receiver<Batch>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) signals: SignalsHeard,
    pub(crate) progress: Arc<Progress>,
    pub(crate) client: Option<JoinHandle<Result<()>>>,
    pub(crate) count: Option<u64>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) grace: Option<Duration>,
    pub(crate) dir: Option<RunDir>,
    pub(crate) line: Option<ProgressLine>,
    /// Whether what is to be known while it runs goes to stderr, and not only into the log.
    pub(crate) tells: bool,
    pub(crate) config: serde_json::Value,
    pub(crate) account: Account,
    /// How much of what the client offered is in the account.
    pub(crate) offered: u64,
    /// Time cards of inputs that came home from each process; from the last, where it was replaced.
    pub(crate) cards: Vec<u64>,
    /// How many cards of each process's tally were read, and inputs of a first step.
    pub(crate) read: Vec<(u64, u64)>,
    pub(crate) restarts: Vec<u32>,
    /// Processes that are gone and may have brought home what is not here yet.
    pub(crate) leaving: Vec<Leaving>,
    /// Those that each process came after.
    pub(crate) replaced: Vec<Vec<Replaced>>,
    /// What became of the items of each process, and of those before it.
    pub(crate) counts: Vec<Counts>,
    pub(crate) outcomes: Vec<Option<Outcome>>,
    /// The same of processes that may still be there: none of these is missed, whatever becomes of it.
    pub(crate) brought: Vec<Option<Outcome>>,
    pub(crate) workers: Vec<Option<Worker>>,
    pub(crate) error: Option<Error>,
    /// Items that were given up though some of their segments are held.
    pub(crate) in_vain: u64,
    /// The process whose failure ended the run.
    pub(crate) failed_rank: Option<usize>,
    /// Processes that were killed because they hung, with what is told of it.
    pub(crate) hung: Vec<Option<String>>,
    /// Of each step: its processes have returned, and what they put has ended; they cannot be replaced any more.
    pub(crate) returned: Vec<bool>,
}

impl Runner {
    /// The life of the thread.
    pub(crate) fn run(mut self) -> Report {
        let begun = Instant::now();
        let mut started: Option<(u64, u64)> = None;
        let mut looked = Instant::now();
        let mut lookout = Lookout::new(&self.wiring);
        let (round, mut looked_for_hangs) = (self.round(), Instant::now());
        self.note_pids();
        loop {
            let heard = self.hear();
            self.look_after_crews();
            self.look_after_client();
            if self.crews.iter().all(|crew| crew.over) && self.leaving.is_empty() {
                break;
            }
            let wanted = self.wanted();
            if wanted > 0 {
                self.fail(self.signals.interrupted());
            }
            if wanted > 1 {
                self.crews.iter().for_each(|crew| crew.context.kill());
            }
            if let Some(timeout) = self.timeout.filter(|&timeout| begun.elapsed() >= timeout) {
                self.fail(Error::new(
                    ErrorKind::TimedOut,
                    format!(
                        "the run has not ended within its limit of {timeout:?}{}",
                        self.not_ready()
                    ),
                ));
            }
            if started.is_none() && self.is_ready() {
                // Before the clock starts: it writes a file.
                self.note_start((now_ns(), unix_ns()));
                started = Some((now_ns(), unix_ns()));
                self.line.iter_mut().for_each(ProgressLine::begin);
                self.wiring.go.set();
            }
            if started.is_some() {
                self.look_for_knots(&mut lookout);
            }
            if started.is_some() && looked_for_hangs.elapsed() >= round {
                looked_for_hangs = Instant::now();
                self.look_for_hangs();
            }
            if looked.elapsed() >= ROUND {
                looked = Instant::now();
                if started.is_some() {
                    self.let_go_of_returned_steps();
                    self.look_for_inputs(&mut lookout);
                }
                if let Some(line) = &mut self.line {
                    line.show(&self.account.items(), self.count);
                }
            }
            if !heard {
                // Before the start there is news to wait for; later the nap also keeps cards from coming one by one.
                if started.is_none() {
                    self.wiring.news.clear();
                    if !self.is_ready() {
                        let _ = self.wiring.news.wait_timeout(NAP);
                    }
                } else {
                    std::thread::sleep(lookout.nap(NAP));
                }
            }
        }
        self.finish(started)
    }

    /// Whether the run is to stop, 1, or at once, 2: by its handles, or by signals.
    pub(crate) fn wanted(&self) -> u8 {
        self.shared.wanted().max(self.signals.count().min(2) as u8)
    }

    fn is_ready(&self) -> bool {
        let mut ranks = 0..self.wiring.seats.len() as u32;
        ranks.all(|rank| self.wiring.board.is_ready(rank))
    }

    /// Takes home what time cards there are. Whether there were so many that there may be more.
    pub(crate) fn hear(&mut self) -> bool {
        let mut heard = false;
        let mut many = false;
        for rank in 0..self.read.len() {
            let seat = &self.wiring.seats[rank];
            let (cards, offered) = &mut self.read[rank];
            let mut entries = seat.tally.read(cards);
            let now_offered = seat.tally.offered();
            let new = now_offered.saturating_sub(*offered);
            *offered = now_offered;
            for Entry { card, .. } in &mut entries {
                (card.step, card.rank) = (seat.step as u32, rank as u32);
                card.device = seat.device;
            }
            many |= entries.len() >= MANY;
            if new > 0 || !entries.is_empty() {
                heard = true;
                self.take_home(&Batch {
                    rank: rank as u32,
                    offered: new,
                    entries,
                    ..Batch::default()
                });
            }
        }
        // Of who sends faster than they are read no end is waited for: there is more to look after.
        for _ in 0..MANY {
            let Ok(mut batch) = self.log.try_get() else {
                break;
            };
            (heard, many) = (true, true);
            let rank = batch.rank as usize;
            // Of one that was replaced nothing is new.
            if let Some((restarts, outcome)) = batch.outcome.take().map(|outcome| *outcome)
                && self.restarts.get(rank) == Some(&restarts)
            {
                self.brought[rank] = Some(outcome);
            }
            self.take_home(&batch);
        }
        // After the cards: what they tell of was offered before, and that is seen by who has them.
        let offered = self.progress.offered.load(Ordering::Relaxed);
        if offered > self.offered {
            self.account.offer(offered - self.offered);
            self.offered = offered;
            heard = true;
        }
        if heard {
            self.publish_progress();
        }
        many
    }

    fn take_home(&mut self, batch: &Batch) {
        self.account.offer(batch.offered);
        if let Some(cards) = self.cards.get_mut(batch.rank as usize) {
            // Others are of outputs.
            let of_inputs = batch.entries.iter().filter(|one| one.card.released != 0);
            *cards += of_inputs.count() as u64;
        }
        if let Some(counts) = self.counts.get_mut(batch.rank as usize) {
            for Entry { card, .. } in &batch.entries {
                counts.note(card.outcome, card.released != 0);
            }
        }
        for entry in &batch.entries {
            self.account.end(&entry.ended, entry.card.outcome);
        }
        if let Some(Err(error)) = self.dir.as_mut().map(|dir| dir.write(batch)) {
            self.dir = None;
            self.fail(error);
        }
    }

    pub(crate) fn publish_progress(&self) {
        self.progress
            .lost
            .store(self.account.lost(), Ordering::Relaxed);
        self.progress
            .completed
            .store(self.account.items().completed, Ordering::Relaxed);
    }

    /// Remembers why the run ends, and stops all processes.
    pub(crate) fn fail(&mut self, error: Error) {
        if self.error.is_some() {
            return;
        }
        tracing::debug!(%error, "the run ends");
        self.error = Some(error);
        // Before the client ends its input because of that.
        self.wiring.board.end_early();
        self.progress.stop.store(true, Ordering::Relaxed);
        for crew in &self.crews {
            crew.context.terminate();
        }
        // Whoever waits for the start, too.
        self.wiring.go.set();
    }

    fn look_after_crews(&mut self) {
        for failed in std::mem::take(&mut self.leaving) {
            self.process_failed(failed);
        }
        for index in 0..self.crews.len() {
            let crew = &mut self.crews[index];
            if crew.over {
                continue;
            }
            let outcomes = match crew.context.join_timeout(Duration::ZERO) {
                Ok(None) => continue,
                Ok(Some(outcomes)) => outcomes.to_vec(),
                Err(error) => {
                    crew.over = true;
                    self.crew_failed(index, error);
                    continue;
                }
            };
            crew.over = true;
            for (&rank, outcome) in crew.ranks.iter().zip(outcomes) {
                self.outcomes[rank] = Some(outcome);
            }
            self.let_go_of_finished_steps();
        }
    }

    pub(crate) fn let_go_of_finished_steps(&mut self) {
        let steps = self.wiring.steps.len();
        let mut done = vec![true; steps];
        for (rank, seat) in self.wiring.seats.iter().enumerate() {
            done[seat.step] &= self.outcomes[rank].is_some();
        }
        let done = |step: usize| done.get(step).copied().unwrap_or(true);
        self.wiring.let_go(done, done);
    }

    /// Ends what a step has put once all its processes have returned, also while they are still there for those who hold
    /// their memory: a reader may hold it until it sees the end.
    fn let_go_of_returned_steps(&mut self) {
        let now = now_ns();
        let board = &self.wiring.board;
        let mut returned = vec![true; self.wiring.steps.len()];
        for (rank, seat) in self.wiring.seats.iter().enumerate() {
            let since = board.since(rank as u32).0;
            let lingers = board.state(rank as u32) == State::Done
                && now.saturating_sub(since) > LINGERS.as_nanos() as u64
                && !self.is_leaving(rank);
            returned[seat.step] &= lingers || self.outcomes[rank].is_some();
        }
        // What has been let go of stays so, though one that lingered may be gone by now.
        for (now, before) in returned.iter_mut().zip(&self.returned) {
            *now |= before;
        }
        let lets_go = |step: usize| returned.get(step).copied().unwrap_or(false);
        self.wiring.let_go(lets_go, |_| false);
        self.returned = returned;
    }

    /// A process failed: it is replaced, or the run ends.
    fn crew_failed(&mut self, index: usize, error: spawn::Error) {
        if self.error.is_some() {
            return;
        }
        // A signal to this program reached them before it was looked for here.
        if matches!(error.kind(), SpawnErrorKind::Interrupted { .. }) && self.signals.count() > 0 {
            return self.fail(self.signals.interrupted());
        }
        let ranks = self.crews[index].ranks.clone();
        // A program of its own that hands signals on (`Signals`) stops all its processes, these too.
        let stopped = matches!(error.kind(), SpawnErrorKind::Interrupted { worker: None });
        if stopped && ranks.iter().all(|&rank| self.hung[rank].is_none()) {
            return self.fail(stopped_by(error));
        }
        let of_crew = error.worker().map_or(0, |worker| worker.rank);
        let Some(&rank) = ranks.get(of_crew) else {
            return self.fail(error.into());
        };
        self.process_failed(Leaving::now(index, rank, error));
    }

    /// The same once it is known which process it was. One that is alone may have brought home all that it was there for.
    fn process_failed(&mut self, mut failed: Leaving) {
        if self.error.is_some() {
            return;
        }
        let rank = failed.rank;
        if self.crews[failed.index].ranks.len() == 1 {
            match self.brought_by(rank) {
                Brought::All => return self.has_returned(rank),
                // There is more to look after meanwhile.
                Brought::NotHereYet if failed.is_patient() => return self.leaving.push(failed),
                Brought::NotHereYet | Brought::Nothing => {}
            }
        }
        let cause = self.wiring.board.cause(rank as u32);
        let may = self.wiring.step_of(rank).restarts;
        // One that had returned is not: what would be new of it nobody takes any more.
        let step = self.wiring.seats[rank].step;
        let has_returned = self.returned.get(step).copied().unwrap_or(false);
        if self.restarts[rank] < may && cause.is_none() && !has_returned {
            if let Err(error) = self.replace(&failed) {
                self.fail(error);
            }
            return;
        }
        let error = failed.into_error();
        // Ctrl-C reaches all processes of a terminal, and the program may live on.
        if matches!(
            error.kind(),
            SpawnErrorKind::Interrupted { worker: Some(_) }
        ) {
            return self.fail(stopped_by(error));
        }
        self.failed_rank = Some(rank);
        let last = self.last_item(rank);
        let error = match (cause, self.hung[rank].take()) {
            (Some(Cause::QueueFull), _) => {
                Error::caused(ErrorKind::QueueFull, "a queue is full", error)
            }
            (Some(Cause::Deadlock), _) => {
                Error::caused(ErrorKind::Deadlock, "a process waits for itself", error)
            }
            (None, Some(told)) => Error::new(ErrorKind::TimedOut, told),
            (None, None) => match (error.kind(), last) {
                // None of these says what it was at.
                (
                    SpawnErrorKind::ProcessExited { .. }
                    | SpawnErrorKind::ProcessRaised { .. }
                    | SpawnErrorKind::ProcessPanicked { .. },
                    Some(item),
                ) => {
                    let told = format!("item {item} was being worked on");
                    Error::caused(ErrorKind::Process, told, error)
                }
                _ => error.into(),
            },
        };
        self.fail(error);
    }

    pub(crate) fn note_pids(&mut self) {
        for crew in &self.crews {
            for (&rank, worker) in crew.ranks.iter().zip(crew.context.workers()) {
                self.workers[rank] = Some(worker);
            }
        }
        let pids = self.workers.iter().flatten().map(|worker| worker.pid);
        self.shared.set_pids(pids.collect());
    }
}

fn stopped_by(error: spawn::Error) -> Error {
    Error::caused(ErrorKind::Interrupted, "the run was stopped", error)
}

pub(crate) fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}
