//! Processes that fail and are replaced, and what is told of them.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use shm_core::Arena;
use shm_core::clock::now_ns;
use shm_core::patience::Patience;
use spawn::Group;

use crate::board::State;
use crate::error::{Error, Result};
use crate::item::Item;
use crate::process::Work;
use crate::progress::notice;
use crate::runner::{Crew, Runner};
use crate::step::Unfinished;
use crate::time_card::{Outcome as ItemOutcome, TimeCard};

/// How long what a dead process has sent is waited for. Who keeps it back for longer was stopped.
const PATIENCE: Duration = Duration::from_secs(5);

/// A process that has failed, and whose fate is not decided yet: what it brought home is on its way.
#[derive(Debug)]
pub(crate) struct Leaving {
    /// Its crew, and its rank.
    pub(crate) index: usize,
    pub(crate) rank: usize,
    error: spawn::Error,
    /// When it was seen to have failed, CLOCK_MONOTONIC nanoseconds.
    at_ns: u64,
    /// How long what it brought home may still be on its way.
    patience: Patience,
}

impl Leaving {
    pub(crate) fn now(index: usize, rank: usize, error: spawn::Error) -> Self {
        Self {
            index,
            rank,
            error,
            at_ns: now_ns(),
            patience: Patience::new(PATIENCE),
        }
    }

    pub(crate) fn into_error(self) -> spawn::Error {
        self.error
    }

    /// Whether what it brought home may still be waited for.
    pub(crate) fn is_patient(&mut self) -> bool {
        !self.patience.is_over(Instant::now())
    }
}

/// What a process that is gone brought home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Brought {
    All,
    Nothing,
    /// All, but another is in the middle of sending something before it: it is slow, or dead.
    NotHereYet,
}

/// A process that failed, and whose place another one took ([`Step::restart`](crate::Step::restart)).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[serde(default)]
pub struct Replaced {
    /// The process id that it had.
    pub pid: u32,
    /// When it was seen to have failed, CLOCK_MONOTONIC nanoseconds.
    pub at_ns: u64,
    /// Why, as its error would have been told.
    pub cause: String,
    /// Items that it had taken.
    pub inputs: u64,
    /// Items that it had published.
    pub outputs: u64,
    /// Of the items that it had, those that were delivered again.
    pub redelivered: u64,
    /// Of the items that it had, those that count as failed.
    pub failed: u64,
    /// The items that it had, by their numbers, in the order in which it took them. An item of which it had several segments
    /// is there as often.
    pub items: Vec<u64>,
}

/// Processes of one place that were replaced for one cause.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[serde(default)]
pub struct Replacements {
    /// The step.
    pub step: String,
    /// The processes' name.
    pub process: String,
    /// How often.
    pub count: u64,
    /// Why, in one line, without the process id; of the first, where the times in it differ.
    pub cause: String,
}

impl Replacements {
    /// Puts together what is of one cause, in the order of the first of each.
    pub(crate) fn gather<'a>(
        places: impl IntoIterator<Item = (&'a str, &'a str, &'a [Replaced])>,
    ) -> Vec<Self> {
        let mut gathered: Vec<Self> = Vec::new();
        for (step, process, replaced) in places {
            let from = gathered.len();
            for one in replaced {
                let cause = one.in_short(process);
                let kind = without_its_time(&cause);
                let mut before = gathered[from..].iter_mut();
                match before.find(|same| without_its_time(&same.cause) == kind) {
                    Some(same) => same.count += 1,
                    None => gathered.push(Self {
                        step: step.to_owned(),
                        process: process.to_owned(),
                        count: 1,
                        cause,
                    }),
                }
            }
        }
        gathered
    }
}

/// `process "infer.1" was replaced 2 times: it was killed by SIGKILL …`
impl fmt::Display for Replacements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            process,
            count,
            cause,
            ..
        } = self;
        write!(
            f,
            "process {process:?} was replaced {}: it {cause}",
            times(*count)
        )
    }
}

/// What two causes have in common: how long a process had hung when it was ended differs each time.
fn without_its_time(cause: &str) -> (&str, &str) {
    let cut = cause
        .split_once("; the step's limit is ")
        .and_then(|(hung, limit)| Some((hung.rsplit_once(" for ")?.0, limit)));
    cut.unwrap_or((cause, ""))
}

/// `once`, `2 times`.
pub(crate) fn times(count: u64) -> String {
    match count {
        1 => "once".to_owned(),
        count => format!("{count} times"),
    }
}

impl Replaced {
    /// The first line of the cause, without whom it is about.
    pub(crate) fn in_short(&self, process: &str) -> String {
        let line = self.cause.lines().next().unwrap_or_default();
        // By its process id, and where it was ended for hanging by its step and rank as well.
        let (named, pid) = (
            format!("process {process:?} ("),
            format!("pid {}) ", self.pid),
        );
        let said = line.split_once(&named).map(|(_, said)| said);
        said.and_then(|said| said.split_once(&pid).map(|(_, cause)| cause))
            .unwrap_or(line)
            .to_owned()
    }
}

impl Runner {
    /// What a process that is gone brought home.
    pub(crate) fn brought_by(&mut self, rank: usize) -> Brought {
        self.hear();
        if self.brought[rank].is_some() {
            return Brought::All;
        }
        if !self.wiring.board.has_brought(rank as u32) {
            return Brought::Nothing;
        }
        // Who is before it in the queue may be dead.
        if let Ok(arena) = Arena::current() {
            arena.bury_the_dead();
        }
        Brought::NotHereYet
    }

    /// A process is gone that had brought everything home: it is not missed.
    pub(crate) fn has_returned(&mut self, rank: usize) {
        let Some(outcome) = self.brought[rank].take() else {
            return;
        };
        tracing::debug!(rank, "a process failed behind its end");
        self.outcomes[rank] = Some(outcome);
        // Where it had no time to say so itself: those behind it end, and those before it learn that nobody takes more.
        self.wiring.board.enter(rank as u32, State::Done);
        if let Ok(arena) = Arena::current() {
            arena.bury_the_dead();
        }
        self.wiring.wake_writers();
        self.let_go_of_finished_steps();
    }

    /// Whether a process is gone, and what becomes of it not decided.
    pub(crate) fn is_leaving(&self, rank: usize) -> bool {
        self.leaving.iter().any(|one| one.rank == rank)
    }

    /// Starts another process in the place of one that failed, with what that had begun.
    pub(crate) fn replace(&mut self, failed: &Leaving) -> Result<()> {
        let (index, rank) = (failed.index, failed.rank);
        let hung = self.hung[rank].take();
        let mut replaced = Replaced {
            pid: self.workers[rank].as_ref().map_or(0, |worker| worker.pid),
            at_ns: failed.at_ns,
            cause: hung.unwrap_or_else(|| failed.error.to_string()),
            ..Replaced::default()
        };
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
            replaced.items.push(item.id);
            match unfinished {
                Unfinished::Redeliver => {
                    replaced.redelivered += 1;
                    backlog.push(item);
                }
                Unfinished::Report => {
                    replaced.failed += 1;
                    self.account.end(&item.members, outcome);
                }
            }
        }
        (replaced.inputs, replaced.outputs) = self.wiring.board.counts(rank as u32);
        self.note_replaced(rank, replaced);
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
        self.counts[rank].note(outcome, true);
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

    /// Notes that a process is replaced, and tells whoever waits for the run.
    pub(crate) fn note_replaced(&mut self, rank: usize, replaced: Replaced) {
        let items = |count: u64| match count {
            1 => "the 1 item that it had is".to_owned(),
            count => format!("the {count} items that it had are"),
        };
        let mut told = format!(
            "{}; another takes its place (restart {} of {})",
            replaced.cause.lines().next().unwrap_or_default(),
            self.restarts[rank],
            self.wiring.step_of(rank).restarts
        );
        for (count, what) in [
            (replaced.redelivered, "redelivered"),
            (replaced.failed, "counted as failed"),
        ] {
            if count > 0 {
                told.push_str(&format!(", and {} {what}", items(count)));
            }
        }
        self.replaced[rank].push(replaced);
        self.tell(&told);
    }

    /// Tells whoever waits for the run something that they should know while it goes on.
    pub(crate) fn tell(&mut self, told: &str) {
        if self.tells {
            notice(self.line.as_mut(), &format!("warning: {told}"));
        } else {
            tracing::warn!("{told}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_again_and_again_is_told_once_for_each_cause() {
        let one = |pid: u32, cause: &str| Replaced {
            pid,
            cause: format!("process \"infer.1\" (pid {pid}) {cause}\n\nBacktrace …"),
            ..Replaced::default()
        };
        let all = [
            one(7, "was killed by SIGKILL"),
            one(8, "panicked: no"),
            one(9, "was killed by SIGKILL"),
            Replaced {
                pid: 10,
                cause: "step \"infer\", replica 1: process \"infer.1\" (rank 3, pid 10) has worked on item 7 for 312ms; the \
                        step's limit is 300ms"
                    .to_owned(),
                ..Replaced::default()
            },
            Replaced {
                pid: 11,
                cause: "step \"infer\", replica 1: process \"infer.1\" (rank 3, pid 11) has worked on item 7 for 376ms; the \
                        step's limit is 300ms"
                    .to_owned(),
                ..Replaced::default()
            },
        ];
        let told: Vec<_> =
            Replacements::gather([("load", "load", &[][..]), ("infer", "infer.1", &all)])
                .iter()
                .map(Replacements::to_string)
                .collect();
        assert_eq!(
            told,
            [
                "process \"infer.1\" was replaced 2 times: it was killed by SIGKILL",
                "process \"infer.1\" was replaced once: it panicked: no",
                "process \"infer.1\" was replaced 2 times: it has worked on item 7 for 312ms; the step's limit is 300ms",
            ]
        );
    }
}
