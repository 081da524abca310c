//! A run directory, read and checked.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind as IoErrorKind};
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::replaced::Replaced;
use crate::time_card::Outcome;

/// What `run.json` must say in `format`.
const FORMAT: &str = "tensormp-run";
/// The version of the directory that this version reads.
const VERSION: u32 = 1;

/// A run, as its directory tells it. All times are nanoseconds of CLOCK_MONOTONIC.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Run {
    format: String,
    version: u32,
    /// When it began, nanoseconds since 1970.
    #[serde(default)]
    pub started_unix_ns: u64,
    /// When the steps began to work.
    pub clock_start_ns: u64,
    /// When the last process had ended.
    pub ended_ns: u64,
    /// How long it took in seconds, from all processes' being ready to the last one's result: what its inputs a second are
    /// taken from. Nothing where it has not ended.
    #[serde(default)]
    pub seconds: Option<f64>,
    /// How it ended.
    pub termination: Termination,
    /// The machine, as far as it was noted: processor, kernel, CPUs.
    #[serde(default)]
    pub machine: serde_json::Value,
    /// The command line.
    #[serde(default)]
    pub command: Vec<String>,
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// The processes, in the order of their ranks.
    pub processes: Vec<Process>,
    /// The rings.
    #[serde(default)]
    pub rings: Vec<Ring>,
    /// What became of the items.
    #[serde(default)]
    pub items: Items,
    /// Items that processes took and of which no time card came home, since the processes were ended.
    #[serde(default)]
    pub cards_missing: u64,
    /// The configuration as it was run.
    #[serde(default)]
    pub config: serde_json::Value,
    /// The time cards, in the order in which they were written.
    #[serde(skip)]
    pub cards: Vec<Card>,
    /// The samples of the rings.
    #[serde(skip)]
    pub samples: Vec<RingSample>,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Termination {
    /// The reason, by its name (`target_reached`, `input_ended`, `failed`, …).
    pub reason: String,
    /// More about it, for people.
    #[serde(default)]
    pub detail: Option<String>,
}

/// A step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Step {
    /// Its name.
    pub name: String,
    /// Its stage's name.
    #[serde(default)]
    pub stage: String,
    /// The ranks of its processes.
    #[serde(default)]
    pub ranks: Vec<u32>,
}

/// A process of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Process {
    /// Its rank in the run.
    pub rank: u32,
    /// Its process id.
    pub pid: u32,
    /// The step it works for.
    pub step: String,
    /// Which of the step's processes it is.
    #[serde(default)]
    pub replica: u32,
    /// Its device; −1 is the CPU.
    #[serde(default = "cpu")]
    pub device: i32,
    /// The process's own name.
    #[serde(default)]
    pub name: String,
    /// Items that it took; those of the last, where it was replaced.
    #[serde(default)]
    pub inputs: u64,
    /// Items that it published; those of the last, where it was replaced.
    #[serde(default)]
    pub outputs: u64,
    /// Items that it had in its hands when its failure ended the run; no time card tells of them.
    #[serde(default)]
    pub failed: u64,
    /// The processes that it came after.
    #[serde(default)]
    pub replaced: Vec<Replaced>,
}

fn cpu() -> i32 {
    -1
}

/// A ring between two steps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Ring {
    /// Its name.
    pub name: String,
    /// The step whose outputs lie in its slots.
    #[serde(default)]
    pub from: String,
    /// How many slots it has.
    pub slots: u32,
    /// Bytes of a slot.
    #[serde(default)]
    pub slot_bytes: u64,
}

/// What became of the items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[serde(default)]
pub struct Items {
    /// Those that the client offered.
    pub offered: u64,
    /// Those that the last step finished.
    pub completed: u64,
    /// Those that a full queue dropped.
    pub dropped: u64,
    /// Those that a process had in its hands when it failed.
    pub failed: u64,
    /// Those that were on their way when the run was ended before its time.
    pub unfinished: u64,
    /// Those that were given to another process after theirs had died.
    pub redelivered: u64,
    /// Those that came to a step that gets them in order after others that they should have come before.
    pub late: u64,
}

/// The time card of one item in one step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Card {
    /// The item.
    pub item: u64,
    /// Which part of it, where it was split.
    #[serde(default)]
    pub part: u32,
    /// The step.
    pub step: String,
    /// The process.
    pub rank: u32,
    /// The device; −1 is the CPU.
    #[serde(default = "cpu")]
    pub device: i32,
    /// The items that it was made of, where it has a number of its own: a batch, or one of several outputs. Said by the step
    /// that got it first.
    #[serde(default, deserialize_with = "list")]
    pub parent: Vec<u64>,
    /// When it was offered to the step: published by the step before, or by the client.
    pub enqueued: u64,
    /// When the process took it.
    pub dequeued: u64,
    /// When a slot for the output was there.
    #[serde(default)]
    pub slot_acquired: Option<u64>,
    /// How long the process waited for slots for outputs while it worked on the item, in nanoseconds.
    #[serde(default)]
    pub slot_wait: u64,
    /// When the stage began to work on it.
    pub started: u64,
    /// When the stage had finished.
    pub finished: u64,
    /// When what of it had to be copied between devices was there, or as the stage noted.
    #[serde(default)]
    pub copy_done: Option<u64>,
    /// When its output was handed over.
    #[serde(default)]
    pub published: Option<u64>,
    /// When its input's slot was given back.
    #[serde(default)]
    pub released: Option<u64>,
    /// `ok`, `dropped`, `failed` or `redelivered`.
    #[serde(default = "ok")]
    pub outcome: String,
}

fn ok() -> String {
    "ok".to_owned()
}

/// A list that is `null` where there is nothing in it.
fn list<'de, D: serde::Deserializer<'de>>(from: D) -> std::result::Result<Vec<u64>, D::Error> {
    Option::deserialize(from).map(Option::unwrap_or_default)
}

/// How a ring was used at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RingSample {
    /// When.
    pub t: u64,
    /// Which ring.
    pub ring: String,
    /// Slots in use, of all processes of the step.
    pub in_use: u32,
    /// Whose slots were looked at; its own alone are told in the file.
    #[serde(default)]
    pub rank: Option<u32>,
}

/// Puts samples in order and adds up what processes of one ring told, each for itself.
fn add_up(samples: &mut [RingSample]) {
    samples.sort_by_key(|sample| sample.t);
    let mut last = std::collections::HashMap::new();
    for sample in samples {
        let Some(rank) = sample.rank else { continue };
        let of_ring: &mut std::collections::BTreeMap<u32, u32> =
            last.entry(sample.ring.clone()).or_default();
        of_ring.insert(rank, sample.in_use);
        sample.in_use = of_ring.values().sum();
    }
}

impl Run {
    /// Reads the run in `directory`.
    ///
    /// # Errors
    /// `Invalid` for a directory that holds no run, or one that this version cannot read; with the file, line and reason.
    pub fn open(directory: &Path) -> Result<Self> {
        let path = directory.join("run.json");
        let text = std::fs::read_to_string(&path).map_err(|error| {
            Error::invalid(format!(
                "{} could not be read: {error}; a run directory is what `run --out DIR` leaves",
                path.display()
            ))
        })?;
        let mut run: Self = serde_json::from_str(&text).map_err(|error| {
            Error::invalid(format!(
                "{}: this is no description of a run: {error}",
                path.display()
            ))
        })?;
        if run.format != FORMAT || run.version != VERSION {
            return Err(Error::invalid(format!(
                "{}: it says format {:?}, version {}; this version of tensormp reads {FORMAT:?}, version {VERSION}",
                path.display(),
                run.format,
                run.version
            )));
        }
        let cards = directory.join("items.jsonl");
        // Made with the directory, before anything runs.
        run.cards = lines(&cards)?.ok_or_else(|| {
            Error::invalid(format!(
                "{} is missing: without it nothing is known of what went through the run",
                cards.display()
            ))
        })?;
        run.samples = lines(&directory.join("rings.jsonl"))?.unwrap_or_default();
        add_up(&mut run.samples);
        if !run.has_ended() {
            // How far it came is in the cards alone.
            let last = run.cards.iter().map(Card::done).max();
            run.ended_ns = last.unwrap_or(0).max(run.clock_start_ns);
        }
        Ok(run)
    }

    /// Whether somebody said how it ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.termination.reason != "unknown"
    }

    /// Whether it came to its end, rather than being ended.
    #[must_use]
    pub fn is_success(&self) -> bool {
        matches!(&*self.termination.reason, "target_reached" | "input_ended")
    }

    /// How long it took from the start of work to its end, nanoseconds.
    #[must_use]
    pub fn duration_ns(&self) -> u64 {
        self.ended_ns.saturating_sub(self.clock_start_ns)
    }

    /// The process of a rank.
    #[must_use]
    pub fn process(&self, rank: u32) -> Option<&Process> {
        self.processes.iter().find(|process| process.rank == rank)
    }
}

impl Card {
    /// Nanoseconds in which it waited for a process of the step.
    #[must_use]
    pub fn queueing_ns(&self) -> u64 {
        self.dequeued.saturating_sub(self.enqueued)
    }

    /// Nanoseconds in which the process, which had it, waited for a free slot for the output.
    #[must_use]
    pub fn slot_wait_ns(&self) -> u64 {
        match self.slot_acquired {
            // In the middle of the work only the process can tell.
            _ if self.slot_wait > 0 => self.slot_wait,
            Some(acquired) if acquired <= self.started => acquired.saturating_sub(self.dequeued),
            _ => 0,
        }
    }

    /// Nanoseconds of work: from the stage's being called with it to its answer, without the wait for slots.
    #[must_use]
    pub fn service_ns(&self) -> u64 {
        let worked = self.finished.saturating_sub(self.started);
        match self.is_held() {
            // What was waited for then was waited for later.
            true => worked,
            false => worked.saturating_sub(self.slot_wait),
        }
    }

    /// Whether what was made of it was published later than in the call that it was given in.
    fn is_held(&self) -> bool {
        self.published.is_some_and(|at| at > self.finished)
    }

    /// Nanoseconds for which a copy between devices went on after the stage had answered; one that was over by then is part of
    /// the service.
    #[must_use]
    pub fn copy_ns(&self) -> u64 {
        self.copy_done
            .map_or(0, |done| done.saturating_sub(self.finished))
    }

    /// Nanoseconds for which the stage kept it after the call that it was given in, until what was made of it was handed over,
    /// without the wait for a slot: what the first item of a batch waits for the others.
    #[must_use]
    pub fn held_ns(&self) -> u64 {
        if !self.is_held() {
            return 0;
        }
        let since = self.finished.max(self.copy_done.unwrap_or(0));
        let held = self.published.unwrap_or(0).saturating_sub(since);
        held.saturating_sub(self.slot_wait)
    }

    /// Nanoseconds that the hand-over itself took: from the item's being taken from its queue (and from having a slot, if that
    /// came next) to the stage's being called.
    #[must_use]
    pub fn hand_off_ns(&self) -> u64 {
        let acquired = self.slot_acquired.filter(|&at| at <= self.started);
        let had = acquired.unwrap_or(0).max(self.dequeued);
        self.started.saturating_sub(had)
    }

    /// When the step was done with it.
    #[must_use]
    pub fn done(&self) -> u64 {
        self.published.unwrap_or(self.finished).max(self.finished)
    }

    /// What became of it, and whether the process had it: no more than its outcome is known of an output that was dropped.
    pub(super) fn counted(&self) -> (Outcome, bool) {
        let outcome = match &*self.outcome {
            "dropped" => Outcome::Dropped,
            "failed" => Outcome::Failed,
            "redelivered" => Outcome::Redelivered,
            "incomplete" => Outcome::Incomplete,
            _ => Outcome::Ok,
        };
        (outcome, self.released.is_some())
    }

    /// Whether it went through the step as it should.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.outcome == "ok"
    }
}

/// A file with one JSON object a line; one that is not there has none.
fn lines<T: DeserializeOwned>(path: &Path) -> Result<Option<Vec<T>>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == IoErrorKind::NotFound => return Ok(None),
        Err(error) => {
            return Err(Error::invalid(format!(
                "{} could not be opened: {error}",
                path.display()
            )));
        }
    };
    let mut read = Vec::new();
    let mut lines = BufReader::new(file).split(b'\n').enumerate().peekable();
    while let Some((index, line)) = lines.next() {
        let wrong = |error: &dyn std::fmt::Display| {
            Error::invalid(format!("{}:{}: {error}", path.display(), index + 1))
        };
        let line = line.map_err(|error| wrong(&error))?;
        if line.trim_ascii().is_empty() {
            continue;
        }
        match serde_json::from_slice(&line) {
            Ok(value) => read.push(value),
            // A program that was ended while it wrote leaves half a line, at the end.
            Err(error) if error.is_eof() && lines.peek().is_none() => {}
            Err(error) => {
                // It counts lines, too, and there is one.
                let text = error.to_string();
                let what = text
                    .rsplit_once(" at line ")
                    .map_or(&*text, |(what, _)| what);
                let (line, column) = (index + 1, error.column());
                let path = path.display();
                return Err(Error::invalid(format!("{path}:{line}:{column}: {what}")));
            }
        }
    }
    Ok(Some(read))
}
