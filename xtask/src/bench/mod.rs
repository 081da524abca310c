//! Measure hand-overs between two real processes, against the floor of this machine.
//!
//! Suites: `floor` (a cache line between two processes, a raw futex wake, memcpy, the first touch of fresh shared pages, and
//! messages by hand in lines of their own),
//! `handoff` (the same payloads by each transport), `queue` (a tensor through a queue, and messages by other crates),
//! `memory` (making, filling, cloning, sending and dropping tensors, and joining an arena), `pool` (tasks of a pool, against
//! the round trip of a queue), `pipeline` (from the end of one stage's work to the next stage, four ways, and how near a
//! pipeline comes to its slowest step), `spawn` (starting a process, by each method and by another crate, against running this
//! program again) and `cuda` (device tensors, where there is a GPU). Floor and subject alternate in short batches, and a ratio is the median
//! over at least nine pairs; what arrives is verified. docs/src/measuring.md says how and what a sample is.

mod arena;
mod attach;
mod bare;
mod blocks;
mod catalogue;
mod clock;
mod control;
mod counting;
mod crowd;
mod cuda;
mod end;
mod filling;
mod floor;
mod harness;
mod machine;
mod many;
mod mapping;
mod memory;
mod pair;
mod payload;
mod peer;
mod pipeline;
mod pool;
mod python;
mod queue;
mod report;
mod ring;
mod start;
mod stats;
mod stream;
mod subject;

pub(crate) use crowd::{Args as MemberArgs, member as run_member};
pub(crate) use end::{Args as EndArgs, run as run_end};
pub(crate) use machine::today;

use std::process::Command;

use catalogue::Suite;
use harness::Effort;
use machine::Pins;

use crate::workspace::cargo;
use crate::{Result, process};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The suites to run; without any, all of them.
    #[arg(value_enum)]
    suites: Vec<Suite>,
    /// Only cases whose name contains this.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// As few pairs as a ratio needs.
    #[arg(long)]
    quick: bool,
    /// One object a line instead of a table.
    #[arg(long)]
    json: bool,
    /// The CPUs of the two processes; by default the first two allowed that are not threads of one core.
    #[arg(long, value_name = "A,B")]
    pin: Option<Pins>,
    /// Keep the run, with notes on the machine, as docs/runs/NAME.jsonl and docs/runs/NAME.md.
    #[arg(long, value_name = "NAME")]
    save: Option<String>,
    /// A Python whose own pool and queues are measured as well.
    #[arg(long, value_name = "PATH")]
    python: Option<std::path::PathBuf>,
    /// Run the suite `cuda` on the emulated driver, and count the driver's calls instead of measuring.
    #[arg(long)]
    emulated: bool,
    /// Measure with this build of xtask even if it isn't optimised: for testing the benchmark itself.
    #[arg(long, hide = true)]
    as_built: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if args.emulated {
        return counting::run(args.json);
    }
    if cfg!(debug_assertions) && !args.as_built {
        return process::run(optimised());
    }
    let pins = match args.pin {
        Some(pins) => pins,
        None => machine::choose_pins()?,
    };
    if let Some(path) = &args.python {
        python::use_python(path.clone());
    }
    let suites = if args.suites.is_empty() {
        Suite::all()
    } else {
        args.suites.clone()
    };
    let effort = if args.quick {
        Effort::Quick
    } else {
        Effort::Full
    };
    let mut all = Vec::new();
    for suite in suites {
        for case in suite.cases() {
            let name = case.subject.name();
            if args.only.as_ref().is_some_and(|only| !name.contains(only)) {
                continue;
            }
            if let Err(reason) = case.subject.prepare() {
                eprintln!(
                    "left out {}: {}: {reason}",
                    suite.name(),
                    case.subject.name()
                );
                continue;
            }
            let (needed, free) = (case.subject.room(), machine::room());
            if needed > free / 4 * 3 {
                eprintln!(
                    "left out {}: {}: it needs {} MiB, and of {} MiB that are free a quarter is left to others",
                    suite.name(),
                    case.subject.name(),
                    needed >> 20,
                    free >> 20
                );
                continue;
            }
            eprintln!("measuring {}: {}", suite.name(), case.subject.name());
            let figures = harness::measure(suite.name(), &case, effort, pins)?;
            if args.json {
                println!("{}", report::json(&figures)?);
            }
            all.push(figures);
        }
    }
    let table = report::table(&all);
    if !args.json {
        print!("{table}");
    }
    if let Some(name) = &args.save {
        report::save(name, &all, &table, &machine::notes(pins))?;
    }
    Ok(())
}

/// Whether this process was started to do nothing: the floor of starting one.
pub(crate) fn is_nothing() -> bool {
    std::env::args_os()
        .nth(1)
        .is_some_and(|word| word == start::NOTHING)
}

/// The same command, by an optimised xtask: `cargo xtask` itself is built for a quick start.
fn optimised() -> Command {
    eprintln!("building with optimisation first; the first time this takes minutes");
    let mut command = cargo(["run", "--quiet", "--release", "--package", "xtask", "--"]);
    command.args(std::env::args_os().skip(1));
    command
}
