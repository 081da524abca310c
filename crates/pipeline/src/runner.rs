//! The thread that supervises a run: starts it when all are ready, takes time cards home, replaces what failed, and ends
//! it, for one reason.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mp_queue::Receiver;
use shm_core::Arena;
use shm_core::clock::now_ns;
use spawn::{ErrorKind as SpawnErrorKind, Group, Signals, SpawnContext, Worker};

use crate::account::Account;
use crate::board::Cause;
use crate::client::Progress;
use crate::error::{Error, ErrorKind, Result};
use crate::item::Item;
use crate::lookout::Lookout;
use crate::process::{Outcome, Work};
use crate::progress::ProgressLine;
use crate::run::{Report, Shared};
use crate::run_dir::RunDir;
use crate::step::Unfinished;
use crate::time_card::{Batch, Entry, Outcome as ItemOutcome, TimeCard};
use crate::wiring::Wiring;

/// How long the thread sleeps while there is nothing to do.
const NAP: Duration = Duration::from_millis(5);
/// So many cards of one process at once are reason to look again before a nap.
const MANY: usize = 1024;
/// How often it looks for processes that hang or wait for each other.
pub(crate) const ROUND: Duration = Duration::from_millis(250);

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
    pub(crate) signals: Option<Signals>,
    pub(crate) progress: Arc<Progress>,
    pub(crate) client: Option<JoinHandle<Result<()>>>,
    pub(crate) count: Option<u64>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) grace: Option<Duration>,
    pub(crate) dir: Option<RunDir>,
    pub(crate) line: Option<ProgressLine>,
    pub(crate) config: serde_json::Value,
    pub(crate) account: Account,
    /// Time cards that came home from each process; from the last, where it was replaced.
    pub(crate) cards: Vec<u64>,
    /// How many cards of each process's tally were read, and inputs of a first step.
    pub(crate) read: Vec<(u64, u64)>,
    pub(crate) restarts: Vec<u32>,
    pub(crate) outcomes: Vec<Option<Outcome>>,
    pub(crate) workers: Vec<Option<Worker>>,
    pub(crate) error: Option<Error>,
    /// Processes that were killed because they hung, with what is told of it.
    pub(crate) hung: Vec<Option<String>>,
}

impl Runner {
    /// The life of the thread.
    pub(crate) fn run(mut self) -> Report {
        let begun = Instant::now();
        let mut started: Option<(u64, u64)> = None;
        let mut looked = Instant::now();
        let mut lookout = Lookout::new(&self.wiring);
        self.note_pids();
        loop {
            let heard = self.hear();
            self.look_after_crews();
            self.look_after_client();
            if self.crews.iter().all(|crew| crew.over) {
                break;
            }
            let signal = self.signals.as_ref().and_then(Signals::received);
            match self.shared.wanted() {
                0 if signal.is_none() => {}
                wanted => {
                    self.fail(interrupted(signal.as_deref()));
                    if wanted > 1 {
                        self.crews.iter().for_each(|crew| crew.context.kill());
                    }
                }
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
            if looked.elapsed() >= ROUND {
                looked = Instant::now();
                if started.is_some() {
                    self.look_for_hangs();
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
                    std::thread::sleep(NAP);
                }
            }
        }
        self.finish(started)
    }

    /// Which processes the start still waits for.
    fn not_ready(&self) -> String {
        let seats = self.wiring.seats.iter().enumerate();
        let waited_for: Vec<_> = seats
            .filter(|(rank, _)| !self.wiring.board.is_ready(*rank as u32))
            .map(|(rank, seat)| format!("process {rank} ({:?})", seat.name))
            .collect();
        match &waited_for[..] {
            [] => String::new(),
            some => format!("; its start still waits for {}", some.join(", ")),
        }
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
                    samples: Vec::new(),
                });
            }
        }
        while let Ok(batch) = self.log.try_get() {
            (heard, many) = (true, true);
            self.take_home(&batch);
        }
        if heard {
            self.publish_progress();
        }
        many
    }

    fn take_home(&mut self, batch: &Batch) {
        self.account.offer(batch.offered);
        if let Some(cards) = self.cards.get_mut(batch.rank as usize) {
            *cards += batch.entries.len() as u64;
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
        let items = self.account.items();
        let lost = items.dropped + items.failed;
        self.progress.lost.store(lost, Ordering::Relaxed);
        self.progress
            .completed
            .store(items.completed, Ordering::Relaxed);
    }

    /// Remembers why the run ends, and stops all processes.
    pub(crate) fn fail(&mut self, error: Error) {
        if self.error.is_some() {
            return;
        }
        tracing::debug!(%error, "the run ends");
        self.error = Some(error);
        self.progress.stop.store(true, Ordering::Relaxed);
        for crew in &self.crews {
            crew.context.terminate();
        }
        // Whoever waits for the start, too.
        self.wiring.go.set();
    }

    fn look_after_crews(&mut self) {
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

    fn let_go_of_finished_steps(&mut self) {
        let steps = self.wiring.steps.len();
        let mut done = vec![true; steps];
        for (rank, seat) in self.wiring.seats.iter().enumerate() {
            done[seat.step] &= self.outcomes[rank].is_some();
        }
        let done = |step: usize| done.get(step).copied().unwrap_or(true);
        self.wiring.let_go(done, done);
    }

    /// A process failed: it is replaced, or the run ends.
    fn crew_failed(&mut self, index: usize, error: spawn::Error) {
        if self.error.is_some() {
            return;
        }
        // A signal to this program reached them before it was looked for here.
        if matches!(error.kind(), SpawnErrorKind::Interrupted { .. })
            && let Some(signal) = self.signals.as_ref().and_then(Signals::received)
        {
            return self.fail(interrupted(Some(&signal)));
        }
        let ranks = self.crews[index].ranks.clone();
        let of_crew = error.worker().map_or(0, |worker| worker.rank);
        let Some(&rank) = ranks.get(of_crew) else {
            return self.fail(error.into());
        };
        let cause = self.wiring.board.cause(rank as u32);
        let may = self.wiring.step_of(rank).restarts;
        if self.restarts[rank] < may && cause.is_none() {
            tracing::warn!(process = %self.wiring.seats[rank].name, %error, "replacing a process");
            if let Err(error) = self.replace(index, rank) {
                self.fail(error);
            }
            return;
        }
        let error = match (cause, self.hung[rank].take()) {
            (Some(Cause::QueueFull), _) => {
                Error::caused(ErrorKind::QueueFull, "a queue is full", error)
            }
            (Some(Cause::Deadlock), _) => {
                Error::caused(ErrorKind::Deadlock, "a process waits for itself", error)
            }
            (None, Some(told)) => Error::new(ErrorKind::TimedOut, told),
            (None, None) => error.into(),
        };
        self.fail(error);
    }

    fn replace(&mut self, index: usize, rank: usize) -> Result<()> {
        self.hung[rank] = None;
        self.restarts[rank] += 1;
        // What the dead process noted last is here by now.
        self.hear();
        let mut backlog = Vec::new();
        let unfinished = self.wiring.unfinished(rank);
        for place in &self.wiring.seats[rank].ledger.clone() {
            let Ok(item) = place.try_get() else { continue };
            let outcome = match unfinished {
                Unfinished::Redeliver => ItemOutcome::Redelivered,
                Unfinished::Report => ItemOutcome::Failed,
            };
            self.note_unfinished(rank, &item, outcome)?;
            match unfinished {
                Unfinished::Redeliver => backlog.push(item),
                Unfinished::Report => self.account.end(&item.members, outcome),
            }
        }
        self.publish_progress();
        // Taken from the end.
        backlog.sort_by_key(|item| std::cmp::Reverse((item.id, item.part)));
        self.wiring.board.forget(rank as u32);
        self.cards[rank] = 0;
        self.wiring.board.count_death();
        // What it read is free, and no reader tells those who wait for it.
        Arena::current()?.bury_the_dead();
        self.wiring.wake_writers();
        let post = self.wiring.post(rank, self.restarts[rank]);
        let Some(mut post) = post else {
            return Err(Error::invalid(
                "a process was to be replaced after the run had let go of its queues",
            ));
        };
        post.slots = self.wiring.make_slots(rank)?;
        post.backlog = backlog;
        let work = Work { params: (), post };
        let mut group = Group::new().apart();
        if let Some(grace) = self.grace {
            group = group.grace(grace);
        }
        let maker = Arc::clone(&self.wiring.group_of(rank).maker);
        maker.add(&mut group, self.wiring.process(rank), work)?;
        self.crews[index] = Crew::new(group.start()?, vec![rank]);
        self.note_pids();
        Ok(())
    }

    fn note_unfinished(&mut self, rank: usize, item: &Item, outcome: ItemOutcome) -> Result<()> {
        if outcome == ItemOutcome::Redelivered {
            self.account.redelivered();
        }
        let card = TimeCard {
            item: item.id,
            part: item.part,
            parents: item.parents.clone(),
            step: self.wiring.seats[rank].step as u32,
            rank: rank as u32,
            device: self.wiring.seats[rank].device,
            enqueued: item.enqueued,
            outcome,
            ..TimeCard::default()
        };
        match &mut self.dir {
            Some(dir) => dir.write_card(&card),
            None => Ok(()),
        }
    }

    fn note_pids(&mut self) {
        for crew in &self.crews {
            for (&rank, worker) in crew.ranks.iter().zip(crew.context.workers()) {
                self.workers[rank] = Some(worker);
            }
        }
        let pids = self.workers.iter().flatten().map(|worker| worker.pid);
        self.shared.set_pids(pids.collect());
    }

    pub(crate) fn look_after_client(&mut self) {
        if !self.client.as_ref().is_some_and(JoinHandle::is_finished) {
            return;
        }
        let Some(client) = self.client.take() else {
            return;
        };
        let answer = client.join().unwrap_or_else(|_| {
            Err(Error::new(
                ErrorKind::Process,
                "the iterator that makes the inputs panicked",
            ))
        });
        match answer {
            // That nobody takes its inputs has a reason, which is told by whoever it happened to.
            Err(error) if !crate::client::follows(&error) => {
                self.fail(crate::client::client_failed(error));
            }
            _ => {}
        }
    }
}

fn interrupted(signal: Option<&str>) -> Error {
    let by = signal.map_or_else(String::new, |signal| format!(" ({signal})"));
    Error::new(
        ErrorKind::Interrupted,
        format!("the run was stopped on request{by}"),
    )
}

pub(crate) fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}
