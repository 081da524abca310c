//! The command line of a program whose pipelines come from configuration files.

mod changes;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};
use serde_json::json;

use crate::config::Config;
use crate::error::{Error, ErrorKind, Result};
use crate::pipeline::Pipeline;
use crate::registry::Registry;
use crate::replaced::Replacements;
use crate::report::{Replacement, text};
use crate::run::{Report, Termination};
use changes::Changes;

/// Runs pipelines from configuration files.
///
/// Exit codes: 0 the run came to its end; 1 a process failed; 2 the configuration or the command line is wrong; 3 a queue
/// was full; 4 the run, or one item, took too long; 5 processes waited for each other; 130 it was interrupted.
#[derive(Debug, Parser)]
struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the pipeline of a configuration in TOML or JSON; RnB's own are read as they are.
    Run {
        /// The file.
        config: PathBuf,
        /// Mean time between two inputs, in milliseconds, as independent users would make them; 0: all at once.
        #[arg(long, short = 'm', value_name = "MS", allow_negative_numbers = true)]
        mean_interval_ms: Option<f64>,
        /// How many inputs are to be finished, 1 or more; without it, here and in the configuration, the run ends with the
        /// inputs, or at Ctrl-C where they have no end.
        #[arg(long, short = 'n', value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u64).range(1..))]
        count: Option<u64>,
        /// Items that the queue before the first step holds.
        #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u64).range(0..))]
        queue_size: Option<u64>,
        /// Puts every process on the CPU, whatever the configuration says.
        #[arg(long, value_enum, value_name = "DEVICE")]
        device: Option<On>,
        /// Changes a value of the configuration, such as load.slots=4 or pipeline.0.num_segments=2.
        #[arg(long, value_name = "KEY=VALUE")]
        set: Vec<String>,
        /// Only looks whether the configuration could run.
        #[arg(long)]
        check: bool,
        /// Writes what happened to each item, and when, into this directory; report.html shows it. One that holds a run
        /// already is left as it is, and nothing is run.
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
        /// Writes over the run that the directory of --out holds.
        #[arg(long, requires = "out")]
        overwrite: bool,
        /// Prints the outcome as one JSON object: {"error"} where nothing was started.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum On {
    /// The CPU.
    Cpu,
}

/// The `main` of a program whose pipelines come from configuration files: `run CONFIG` with the options that `--help`
/// lists. It must be the first thing that the program does.
///
/// ```no_run
/// use pipeline::Registry;
///
/// fn registry() -> Registry {
///     Registry::new() // .stage::<Load>("load") …
/// }
///
/// fn main() -> std::process::ExitCode {
///     pipeline::main(registry)
/// }
/// ```
///
/// Exit codes:
///
/// | code | meaning |
/// |---|---|
/// | 0 | the run came to its end: the target was reached, or the input ended |
/// | 1 | a process failed, items never came whole ([`ErrorKind::Incomplete`]), or a file could not be written |
/// | 2 | the configuration or the command line is wrong; nothing was started |
/// | 3 | a queue or ring was full, and its policy is to fail |
/// | 4 | the run, or one item in a step, took longer than its limit |
/// | 5 | processes waited for each other's slots |
/// | 130 | it was interrupted (SIGINT, SIGTERM, SIGHUP) |
pub fn main<F>(registry: F) -> ExitCode
where
    F: Fn() -> Registry + Copy + Send + Sync + 'static,
{
    spawn::init();
    let Options {
        command:
            Command::Run {
                config: file,
                mean_interval_ms,
                count,
                queue_size,
                device,
                set,
                check,
                out,
                overwrite,
                json,
            },
    } = Options::parse();
    let prepared = (|| {
        let mut config = Config::read(&file)?;
        if let Some(On::Cpu) = device {
            config = config.on_cpu();
        }
        let options = [
            (
                "--mean-interval-ms",
                "client.mean_interval_ms",
                mean_interval_ms.map(|ms| ms.to_string()),
            ),
            (
                "--count",
                "client.count",
                count.map(|count| count.to_string()),
            ),
            (
                "--queue-size",
                "client.queue_size",
                queue_size.map(|size| size.to_string()),
            ),
        ];
        let changes = Changes::of(options, &set)?;
        let changed = changes.make(&config)?;
        let about = |error: Error| {
            let look = |config: &Config| config.pipeline(registry)?.check();
            let place = changes.blamed(&config, &error, look);
            let place = place.unwrap_or_else(|| file.display().to_string());
            Error::invalid(format!("{place}: {error}"))
        };
        let mut pipeline = changed.pipeline(registry).map_err(about)?;
        pipeline = pipeline.progress().telling();
        pipeline.check().map_err(about)?;
        if let Some(out) = &out {
            if !overwrite && out.join("run.json").exists() {
                return Err(Error::invalid(format!(
                    "--out {}: there is a run already; name another directory, or write over it with --overwrite",
                    out.display()
                )));
            }
            pipeline = pipeline.run_dir(out);
            if overwrite {
                pipeline = pipeline.overwrite();
            }
        }
        Ok(pipeline)
    })();
    let pipeline: Pipeline = match prepared {
        Ok(pipeline) => pipeline,
        Err(error) => return never_ran(&error, 2, json),
    };
    let odd = pipeline.odd();
    for odd in &odd {
        say(&format!("warning: {odd}"));
    }
    if check {
        let text = match json {
            true => json!({"check": "ok", "warnings": odd}).to_string(),
            false => format!("{} could run", file.display()),
        };
        return match print(&(text + "\n")) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => told(&error, 1),
        };
    }
    if let Some(endless) = pipeline.endless() {
        say(&format!("note: {endless}"));
    }
    match run(pipeline) {
        Ok(report) => {
            let printed = print(&outcome(&report, out.as_deref(), json));
            match (report.error(), printed) {
                // A run that came to its end, of which not all could be written.
                (Some(error), _) => told(error, code(report.termination()).max(1)),
                (None, Err(error)) => told(&error, 1),
                (None, Ok(())) => ExitCode::SUCCESS,
            }
        }
        Err(error) => {
            let code = match error.kind() {
                ErrorKind::Invalid => 2,
                _ => 1,
            };
            never_ran(&error, code, json)
        }
    }
}

/// Nothing was started: what an object is wanted for says so, too.
fn never_ran(error: &Error, code: u8, as_json: bool) -> ExitCode {
    if as_json {
        let object = json!({"error": error.to_string()});
        if let Err(error) = print(&format!("{object}\n")) {
            return told(&error, 1);
        }
    }
    told(error, code)
}

fn told(error: &Error, code: u8) -> ExitCode {
    say(&format!("error: {error}"));
    ExitCode::from(code)
}

/// To stderr. Where nobody can read it any more, as when the terminal is gone, there is nobody to tell, and the exit code says
/// how it went.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

fn code(termination: Termination) -> u8 {
    match termination {
        Termination::TargetReached | Termination::InputEnded => 0,
        Termination::Failed => 1,
        Termination::QueueFull => 3,
        Termination::TimedOut => 4,
        Termination::Deadlock => 5,
        Termination::Interrupted => 130,
    }
}

/// Runs a pipeline; SIGINT, SIGTERM and SIGHUP stop it, a second one at once.
fn run(pipeline: Pipeline) -> Result<Report> {
    let signals = spawn::Signals::forward()?;
    Ok(pipeline.heeding(signals).start()?.wait())
}

/// Prints to whoever reads; one that has read enough is no mistake.
fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(Error::caused(
            ErrorKind::File,
            "the outcome could not be written",
            error,
        )),
        _ => Ok(()),
    }
}

/// The lines of processes that were replaced, as the summary has them; `has_page` where there is one.
fn replaced(report: &Report, has_page: bool) -> String {
    let places = || report.processes().iter().zip(0..);
    let summed = Replacements::gather(
        places().map(|(process, _)| (process.step(), process.name(), process.replaced())),
    );
    let start_ns = report.clock_start_ns().unwrap_or(report.ended_ns);
    let each = Replacement::all(
        start_ns,
        places().map(|(process, rank)| {
            let replaced = process.replaced();
            (rank, process.step(), process.name(), replaced)
        }),
    );
    let all_are = match has_page {
        true => "all of them in the report",
        false => "all of them with --json, or in the directory of --out",
    };
    text::replaced(&summed, &each, all_are)
}

/// What is told of a run; `dir` is where it was written.
fn outcome(report: &Report, dir: Option<&Path>, as_json: bool) -> String {
    let (items, seconds) = (report.items(), report.seconds());
    // Not there where it could not be written, of which the error tells.
    let page = dir.map(|dir| dir.join("report.html"));
    let page = page.filter(|page| page.is_file());
    if as_json {
        let processes = report.processes().iter().map(|process| {
            json!({
                "step": process.step(),
                "name": process.name(),
                "pid": process.pid(),
                "device": process.device(),
                "inputs": process.inputs(),
                "outputs": process.outputs(),
                "restarts": process.restarts(),
                "replaced": process.replaced(),
                "counts": process.counts(),
            })
        });
        let value = json!({
            "termination": report.termination(),
            "detail": report.error().map(Error::to_string),
            "items": items,
            "clock_start_ns": report.clock_start_ns(),
            "seconds": seconds,
            "per_second": report.rate(),
            "processes": processes.collect::<Vec<_>>(),
            "report": page.as_ref().map(|page| page.display().to_string()),
        });
        return format!("{value}\n");
    }
    let mut text = format!("{}: {} items", report.termination(), items.completed);
    match report.rate() {
        Some(rate) => text.push_str(&format!(" in {seconds:.3} s, {rate:.1}/s\n")),
        None => text.push_str("; it never started\n"),
    }
    if items.dropped + items.failed + items.unfinished + items.redelivered > 0 {
        text.push_str(&format!(
            "{} dropped, {} failed, {} unfinished, {} redelivered\n",
            items.dropped, items.failed, items.unfinished, items.redelivered
        ));
    }
    if items.late > 0 {
        text.push_str(&format!(
            "{} late, behind others in an ordered step\n",
            items.late
        ));
    }
    for process in report.processes() {
        let counts = process.counts();
        let row = format!(
            "{:<24} pid {:<8} {:>8} in {:>8} out  {counts}",
            process.name(),
            process.pid(),
            counts.taken,
            counts.published
        );
        text.push_str(row.trim_end());
        text.push('\n');
    }
    text.push_str(&replaced(report, page.is_some()));
    if let Some(page) = page {
        text.push_str(&format!("report: {}\n", page.display()));
    }
    text
}
