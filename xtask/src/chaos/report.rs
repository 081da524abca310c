//! What a run came to, and how far it is.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{IsTerminal, Write};
use std::time::Instant;

use serde::Serialize;

/// Everything counted, for one suite.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Tally {
    pub(crate) suite: &'static str,
    pub(crate) seed: u64,
    pub(crate) rounds: u64,
    pub(crate) processes: u64,
    /// What the suite counts beside kills.
    pub(crate) counts: &'static str,
    pub(crate) messages: u64,
    pub(crate) killed_at_random: u64,
    /// Children of the crew, by their parents or by themselves.
    pub(crate) children_killed: u64,
    /// Those of them that killed themselves at a label.
    pub(crate) children_at_labels: u64,
    pub(crate) killed_at_labels: BTreeMap<&'static str, u64>,
    pub(crate) labels_never_reached: Vec<&'static str>,
    pub(crate) stops: u64,
    /// Wrong contents; messages that came twice, out of order, or not at all.
    pub(crate) corruptions: u64,
    /// Processes that panicked, crashed, or were told an error that they must not be told.
    pub(crate) crashes: u64,
    pub(crate) hangs: u64,
    /// Processes that lived on when everyone of their round had ended.
    pub(crate) orphans: u64,
    /// Dead ones that could not be waited for.
    pub(crate) zombies: u64,
    /// References that kills left counted, before the audit gave them back.
    pub(crate) leaks_before_audit: u64,
    pub(crate) leaks_after_audit: u64,
    /// Counts below their holders.
    pub(crate) counts_too_low: u64,
    /// Arenas that were still in /dev/shm after their round.
    pub(crate) files_left: u64,
    /// What was wrong, in words.
    pub(crate) problems: Vec<String>,
    #[serde(skip)]
    start: Option<Instant>,
    pub(crate) seconds: f64,
}

impl Tally {
    pub(crate) fn new(suite: &'static str, counts: &'static str, seed: u64) -> Tally {
        Tally {
            suite,
            counts,
            seed,
            start: Some(Instant::now()),
            ..Tally::default()
        }
    }

    pub(crate) fn kills(&self) -> u64 {
        self.killed_at_random + self.children_killed + self.at_labels()
    }

    fn at_labels(&self) -> u64 {
        self.killed_at_labels.values().sum()
    }

    pub(crate) fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }

    /// Notes something that is wrong.
    pub(crate) fn problem(&mut self, text: impl Into<String>) {
        let text = format!("round {}: {}", self.rounds, text.into());
        self.problems.push(text);
    }

    /// After each round.
    pub(crate) fn tick(&mut self) {
        self.seconds = self
            .start
            .map_or(0.0, |start| start.elapsed().as_secs_f64());
    }

    pub(crate) fn json(&self) -> String {
        // Of these fields none can fail.
        let mut value = serde_json::to_value(self).unwrap_or_default();
        value["kills"] = self.kills().into();
        value.to_string()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "chaos {}: seed {}, {} rounds in {:.1} s",
            self.suite, self.seed, self.rounds, self.seconds
        )?;
        writeln!(
            f,
            "  {} kills ({} at random, {} at labels, {} of children, {} of these at labels), {} stops; {} processes, {} {}",
            self.kills(),
            self.killed_at_random,
            self.at_labels(),
            self.children_killed,
            self.children_at_labels,
            self.stops,
            self.processes,
            self.messages,
            self.counts
        )?;
        for (label, kills) in &self.killed_at_labels {
            writeln!(f, "    {label:<24}{kills:>6}")?;
        }
        if !self.labels_never_reached.is_empty() {
            let never = self.labels_never_reached.join(", ");
            writeln!(f, "    never reached: {never}")?;
        }
        writeln!(
            f,
            "  {} corruptions, {} crashes, {} hangs, {} orphans, {} zombies, {} counts too low",
            self.corruptions,
            self.crashes,
            self.hangs,
            self.orphans,
            self.zombies,
            self.counts_too_low
        )?;
        writeln!(
            f,
            "  {} leaks before the audit, {} after; {} arenas left in /dev/shm",
            self.leaks_before_audit, self.leaks_after_audit, self.files_left
        )?;
        for problem in &self.problems {
            writeln!(f, "\n{problem}")?;
        }
        Ok(())
    }
}

/// One line that is written over again and again, where somebody watches.
#[derive(Debug)]
pub(crate) struct Progress {
    shown: Option<Instant>,
    on: bool,
}

impl Progress {
    pub(crate) fn start() -> Progress {
        Progress {
            shown: None,
            on: std::io::stderr().is_terminal(),
        }
    }

    pub(crate) fn show(&mut self, tally: &Tally, messages: u64) {
        if !self.on || self.shown.is_some_and(|at| at.elapsed().as_millis() < 200) {
            return;
        }
        self.shown = Some(Instant::now());
        let mut out = std::io::stderr();
        let _ = write!(
            out,
            "\r{}: round {}, {} kills, {} {}, {} problems ",
            tally.suite,
            tally.rounds,
            tally.kills(),
            tally.messages + messages,
            tally.counts,
            tally.problems.len()
        );
        let _ = out.flush();
    }

    pub(crate) fn end(&self) {
        if self.shown.is_some() {
            eprintln!();
        }
    }
}
