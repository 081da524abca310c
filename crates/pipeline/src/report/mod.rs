//! Reports of runs: a pure function of a run directory.
//!
//! A run leaves a directory with `run.json` (what was run and how it ended), `items.jsonl` (a time card per item and
//! step) and `rings.jsonl` (samples of the rings). [`Run::open`] reads it, [`Summary::of`] draws the conclusions, and
//! [`write()`] renders them beside it:
//!
//! | file | what |
//! |---|---|
//! | `summary.txt`, `summary.json` | a table per step, and where the bottleneck is |
//! | `trace.json` | one track per process; opens in Perfetto and `chrome://tracing` |
//! | `report.html` | one page with plots, without anything from elsewhere |
//!
//! [`Comparison`] holds two runs against each other.

mod compare;
mod html;
mod lineage;
mod plot;
mod read;
mod replacement;
mod series;
mod summary;
pub(crate) mod text;
mod trace;
mod verdict;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

pub use compare::Comparison;
pub use read::{Card, Items, Process, Ring, RingSample, Run, Step, Termination};
pub use replacement::Replacement;
pub use summary::{Quantiles, StepSummary, Summary};

use crate::error::{Error, Result};

/// Renders the run in `directory` again, and answers the files that were written.
///
/// # Errors
/// `Invalid` for a directory that holds no run, or one that this version cannot read; with the file, line and reason.
pub fn write(directory: &Path) -> Result<Vec<PathBuf>> {
    let run = Run::open(directory)?;
    let summary = Summary::of(&run);
    let mut written = Vec::new();
    put(directory, "summary.txt", &mut written, |out| {
        write!(out, "{summary}")
    })?;
    put(directory, "summary.json", &mut written, |out| {
        serde_json::to_writer_pretty(&mut *out, &summary)?;
        writeln!(out)
    })?;
    put(directory, "trace.json", &mut written, |out| {
        trace::write(&run, out)
    })?;
    put(directory, "report.html", &mut written, |out| {
        out.write_all(html::page(&run, &summary).as_bytes())
    })?;
    Ok(written)
}

/// Writes one file whole or not at all: under another name first.
fn put(
    directory: &Path,
    name: &str,
    written: &mut Vec<PathBuf>,
    fill: impl FnOnce(&mut BufWriter<File>) -> std::io::Result<()>,
) -> Result<()> {
    let path = directory.join(name);
    let half = directory.join(format!(".{name}.{}", std::process::id()));
    let done = File::create(&half).map(BufWriter::new).and_then(|mut out| {
        fill(&mut out)?;
        out.flush()?;
        drop(out);
        std::fs::rename(&half, &path)
    });
    match done {
        Ok(()) => {
            written.push(path);
            Ok(())
        }
        Err(error) => {
            let _ = std::fs::remove_file(&half);
            Err(Error::invalid(format!(
                "{} could not be written: {error}",
                path.display()
            )))
        }
    }
}

#[cfg(test)]
mod sample;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_of_batches;
