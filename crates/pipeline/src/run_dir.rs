//! The run directory: what a run leaves for those who look at it afterwards.
//!
//! `items.jsonl` has a line for each item in each step, `rings.jsonl` how many slots were in use, `run.json` what ran
//! where and how it ended. Reports are made of these files alone, at the end of the run and whenever somebody asks.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Value, json};

use crate::error::{Error, ErrorKind, Result};
use crate::report;
use crate::time_card::{Batch, Sample, TimeCard};

/// The name and version of the format.
const FORMAT: &str = "tensormp-run";
const VERSION: u32 = 1;

/// See the module.
#[derive(Debug)]
pub(crate) struct RunDir {
    path: PathBuf,
    items: BufWriter<File>,
    rings: BufWriter<File>,
    /// Step and ring of each process, and the names of the rings.
    steps: Vec<String>,
    ring_of: Vec<Option<usize>>,
    ring_names: Vec<String>,
}

/// A line of `items.jsonl`: a [`TimeCard`] with names, and `null` for moments that a step need not have.
#[derive(Serialize)]
struct Line<'a> {
    item: u64,
    part: u32,
    parent: Option<&'a [u64]>,
    step: &'a str,
    rank: u32,
    device: i32,
    enqueued: u64,
    dequeued: u64,
    slot_acquired: Option<u64>,
    slot_wait: u64,
    started: u64,
    finished: u64,
    copy_done: Option<u64>,
    published: Option<u64>,
    released: Option<u64>,
    outcome: crate::time_card::Outcome,
}

fn failed(path: &Path, error: std::io::Error) -> Error {
    Error::caused(
        ErrorKind::File,
        format!("{} could not be written", path.display()),
        error,
    )
}

fn create(path: &Path) -> Result<BufWriter<File>> {
    Ok(BufWriter::new(
        File::create(path).map_err(|error| failed(path, error))?,
    ))
}

/// The file of the items, which is locked as long as a run writes into the directory, whatever becomes of that.
fn claim(dir: &Path, overwrites: bool) -> Result<BufWriter<File>> {
    let refuse_another = || match !overwrites && dir.join("run.json").exists() {
        true => Err(Error::invalid(format!(
            "{}: there is a run already; name another directory, or say that it is to be written over (Pipeline::overwrite)",
            dir.display()
        ))),
        false => Ok(()),
    };
    refuse_another()?;
    let path = dir.join("items.jsonl");
    let mut options = File::options();
    let opened = options.create(true).write(true).truncate(false).open(&path);
    let items = opened.map_err(|error| failed(&path, error))?;
    match items.try_lock() {
        Ok(()) => {}
        Err(std::fs::TryLockError::WouldBlock) => {
            return Err(Error::invalid(format!(
                "{}: another run writes into it; name another directory",
                dir.display()
            )));
        }
        Err(std::fs::TryLockError::Error(error)) => return Err(failed(&path, error)),
    }
    // One that had the lock before may have begun and ended meanwhile.
    refuse_another()?;
    items.set_len(0).map_err(|error| failed(&path, error))?;
    Ok(BufWriter::new(items))
}

impl RunDir {
    /// Makes the directory, and writes over the run that is there only where that is wanted. `steps` has the step of each process, the client last; `rings` the ring of each.
    pub(crate) fn create(
        path: &Path,
        overwrites: bool,
        steps: Vec<String>,
        ring_of: Vec<Option<usize>>,
        rings: Vec<String>,
    ) -> Result<Self> {
        if path.exists() && !path.is_dir() {
            let text = format!(
                "{} is no directory, into which a run is to be written",
                path.display()
            );
            return Err(Error::new(ErrorKind::File, text));
        }
        std::fs::create_dir_all(path).map_err(|error| {
            let text = format!("the run directory {} could not be made", path.display());
            Error::caused(ErrorKind::File, text, error)
        })?;
        let items = claim(path, overwrites)?;
        // What an earlier run left there is of that run.
        for name in [
            "run.json",
            "summary.txt",
            "summary.json",
            "trace.json",
            "report.html",
        ] {
            let _ = std::fs::remove_file(path.join(name));
        }
        Ok(Self {
            items,
            rings: create(&path.join("rings.jsonl"))?,
            path: path.to_owned(),
            steps,
            ring_of,
            ring_names: rings,
        })
    }

    pub(crate) fn write(&mut self, batch: &Batch) -> Result<()> {
        for entry in &batch.entries {
            self.write_card(&entry.card)?;
        }
        for sample in &batch.samples {
            self.write_sample(batch.rank, sample)?;
        }
        Ok(())
    }

    pub(crate) fn write_card(&mut self, card: &TimeCard) -> Result<()> {
        let there = |ns: u64| (ns != 0).then_some(ns);
        // What an item did not come to, because it was dropped or made by the step itself, takes no time.
        let first = [card.enqueued, card.dequeued, card.started]
            .into_iter()
            .find(|&ns| ns != 0)
            .unwrap_or(card.finished);
        let enqueued = there(card.enqueued).unwrap_or(first);
        let dequeued = there(card.dequeued).unwrap_or(enqueued);
        let started = there(card.started).unwrap_or(dequeued);
        let line = Line {
            item: card.item,
            part: card.part,
            parent: (!card.parents.is_empty()).then_some(&card.parents),
            step: self
                .steps
                .get(card.rank as usize)
                .map_or("?", String::as_str),
            rank: card.rank,
            device: card.device,
            enqueued,
            dequeued,
            slot_acquired: there(card.slot_acquired),
            slot_wait: card.slot_wait,
            started,
            finished: there(card.finished).unwrap_or(started),
            copy_done: there(card.copy_done),
            published: there(card.published),
            released: there(card.released),
            outcome: card.outcome,
        };
        let written = serde_json::to_writer(&mut self.items, &line)
            .map_err(std::io::Error::from)
            .and_then(|()| self.items.write_all(b"\n"));
        written.map_err(|error| failed(&self.path.join("items.jsonl"), error))
    }

    /// A ring is that of a step: the slots of all its processes. Each process tells of its own, and when it gets to it, so
    /// whoever reads puts them in order and adds them up.
    fn write_sample(&mut self, rank: u32, sample: &Sample) -> Result<()> {
        let Some(ring) = self.ring_of.get(rank as usize).copied().flatten() else {
            return Ok(());
        };
        let name = &self.ring_names[ring];
        let line = json!({"t": sample.t, "ring": name, "rank": rank, "in_use": sample.in_use});
        writeln!(self.rings, "{line}")
            .map_err(|error| failed(&self.path.join("rings.jsonl"), error))
    }

    /// Ends the run: what it was goes into `run.json`, last of all.
    pub(crate) fn finish(mut self, run: Value) -> Result<()> {
        for (file, name) in [
            (&mut self.items, "items.jsonl"),
            (&mut self.rings, "rings.jsonl"),
        ] {
            file.flush()
                .map_err(|error| failed(&self.path.join(name), error))?;
        }
        self.note(run)?;
        report::write(&self.path).map(drop)
    }

    /// Writes `run.json`, whole or not at all.
    pub(crate) fn note(&self, mut run: Value) -> Result<()> {
        run["format"] = json!(FORMAT);
        run["version"] = json!(VERSION);
        run["machine"] = machine();
        run["command"] = json!(std::env::args().collect::<Vec<_>>());
        let path = self.path.join("run.json");
        let half = self.path.join(".run.json");
        let text = serde_json::to_string_pretty(&run).map_err(std::io::Error::from);
        text.and_then(|text| std::fs::write(&half, text + "\n"))
            .and_then(|()| std::fs::rename(&half, &path))
            .map_err(|error| failed(&path, error))
    }
}

/// What the run ran on.
fn machine() -> Value {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, key: &str| {
        let line = text.lines().find(|line| line.starts_with(key));
        line.and_then(|line| line.split_once(':'))
            .map(|(_, value)| value.trim().to_owned())
    };
    json!({
        "cpus": std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get),
        "processor": field(&read("/proc/cpuinfo"), "model name"),
        "memory": field(&read("/proc/meminfo"), "MemTotal"),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
    })
}
