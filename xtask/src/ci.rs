//! Run everything that has to pass before a change lands, each step with its time; the first failure ends it, with its name.
//!
//! The steps: formatting; clippy without warnings, also with none and with each small feature of `shm-core`; tidy; the
//! documentation without warnings; the loom models; and, last, so that the output ends with cargo test's closing lines, the
//! tests as the README runs them. `.ci/run` calls this.

use std::time::{Duration, Instant};

use crate::workspace::{TEST_COMMAND, cargo};
use crate::{Result, loom, process, tidy};

/// A name and what it does; what it returns is said in the summary.
type Step = (&'static str, fn() -> Result<String>);

const STEPS: [Step; 7] = [
    ("fmt", || passes(cargo(["fmt", "--all", "--check"]))),
    ("clippy", || {
        passes(cargo([
            "clippy",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ]))
    }),
    ("features", features),
    ("tidy", || tidy::run().map(|()| String::new())),
    ("doc", doc),
    ("loom", loom),
    ("test", test),
];

pub(crate) fn run() -> Result<()> {
    let mut summary = Vec::new();
    for (name, step) in STEPS {
        println!("==> {name}");
        let start = Instant::now();
        let said = step().map_err(|error| {
            format!(
                "ci failed at step `{name}` after {}: {error}",
                seconds(start.elapsed())
            )
        })?;
        println!("<== {name}: {}", seconds(start.elapsed()));
        summary.push(format!("{name:<8}{:>9}  {said}", seconds(start.elapsed())));
    }
    println!("\nci passed\n{}", summary.join("\n"));
    Ok(())
}

fn passes(command: std::process::Command) -> Result<String> {
    process::run(command).map(|()| String::new())
}

/// The workspace is checked with the small features of `shm-core` on, as its tests have them; here it is with none, and
/// with each alone.
fn features() -> Result<String> {
    let small = ["", "dlpack", "ndarray", "safetensors"];
    for feature in small {
        let command = [
            "clippy",
            "--package",
            "shm-core",
            "--all-targets",
            "--features",
            feature,
        ];
        passes(cargo(command.into_iter().chain(["--", "-D", "warnings"])))?;
    }
    Ok(format!("{} sets", small.len()))
}

fn doc() -> Result<String> {
    let mut command = cargo(["doc", "--workspace", "--no-deps"]);
    command.env("RUSTDOCFLAGS", "-D warnings");
    passes(command)
}

fn loom() -> Result<String> {
    let tally = loom::models()?;
    Ok(format!(
        "{} passed in {} models",
        tally.passed, tally.programs
    ))
}

fn test() -> Result<String> {
    let tally = process::run_tests(cargo(&TEST_COMMAND[1..]))?;
    if tally.passed == 0 {
        return Err(format!("`{}` ran no test", TEST_COMMAND.join(" ")).into());
    }
    Ok(format!(
        "{} passed, {} ignored, in {} programs",
        tally.passed, tally.ignored, tally.programs
    ))
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
