//! Run the tests of device tensors and the benchmarks `cuda` on the GPU of this machine, and print one table.
//!
//! The tests are those that `cargo test` runs on the emulated driver; what only that can show (counts of calls, machines that
//! lack something, streams that are held back) is skipped and counted. Where there is no GPU nothing runs, which is said, and
//! the command ends with 3; with 1 when something failed.

use std::process::{Command, ExitCode, Stdio};

use serde_json::Value;

use crate::process::{self, Tally};
use crate::workspace::cargo;
use crate::{Result, bench};

/// What ends with no GPU to run on: neither passed nor failed.
const NOTHING_RAN: u8 = 3;

/// Test programs that can run on a real driver: package and name.
const SUITES: [(&str, &str); 2] = [
    ("integration-tests", "devices"),
    ("cuda-emulator", "misuse"),
];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// As few pairs as a ratio needs.
    #[arg(long)]
    quick: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if let Err(why) = look() {
        eprintln!("no GPU: {why}\nNothing was run, so nothing has passed.");
        return Ok(ExitCode::from(NOTHING_RAN));
    }
    let mut table = vec![format!("date    {}", bench::today())];
    for device in cuda_ipc::devices()? {
        table.push(format!(
            "device  {}, {} MiB, {}",
            device.name,
            device.memory >> 20,
            device.uuid
        ));
        for (what, works) in [
            ("handles", device.handles),
            ("descriptors", device.descriptors),
            ("events", device.events),
        ] {
            let says = works.err().unwrap_or("yes");
            table.push(format!("        {what} for other processes: {says}"));
        }
    }
    table.push(format!("driver  {}", driver_version()));
    let mut failed = false;
    for (package, name) in SUITES {
        let (tally, passed) = test(package, name)?;
        failed |= !passed || tally.passed == 0;
        table.push(format!(
            "tests   {name:<10} {} passed, {} failed, {} skipped",
            tally.passed, tally.failed, tally.ignored
        ));
    }
    match measure(args.quick) {
        Ok(lines) => table.extend(lines),
        Err(error) => {
            failed = true;
            table.push(format!("bench   failed: {error}"));
        }
    }
    println!("\n{}", table.join("\n"));
    if failed {
        return Err("on this GPU not everything is as on the emulated driver; see above".into());
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether there is a device, and a real one.
fn look() -> std::result::Result<(), String> {
    if cuda_emulator::is_inherited() {
        return Err("the driver of this process is the emulated one".to_owned());
    }
    let found = cuda_ipc::devices().map_err(|error| error.to_string())?;
    match found.is_empty() {
        true => Err("the driver sees no device".to_owned()),
        false => Ok(()),
    }
}

/// As the driver's kernel module says it.
fn driver_version() -> String {
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let first = text.lines().next().unwrap_or_default().trim();
    match first {
        "" => "of a version that /proc/driver/nvidia/version does not tell".to_owned(),
        line => line.to_owned(),
    }
}

/// One test program on the system's driver, one test at a time: a GPU that is shared is slow, and watchdogs are not.
fn test(package: &str, name: &str) -> Result<(Tally, bool)> {
    let mut command = cargo([
        "test",
        "--package",
        package,
        "--test",
        name,
        "--",
        "--test-threads",
        "1",
    ]);
    command.env("CUDA_EMULATOR_OFF", "1");
    process::count_tests(command)
}

/// The suite `cuda` of `bench`, a line for each case.
fn measure(quick: bool) -> Result<Vec<String>> {
    let mut command: Command = cargo(["run", "--quiet", "--release", "--package", "xtask", "--"]);
    command.args(["bench", "cuda", "--json"]);
    if quick {
        command.arg("--quick");
    }
    let output = command.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("{} ended with {}", process::shown(&command), output.status).into());
    }
    let text = String::from_utf8(output.stdout)?;
    let lines: Vec<Value> = text
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?;
    if lines.is_empty() {
        return Err("no case could be measured".into());
    }
    Ok(lines.iter().map(line_of).collect())
}

fn line_of(figures: &Value) -> String {
    let text = |key: &str| figures[key].as_str().unwrap_or("?").to_owned();
    let number = |key: &str| figures[key].as_u64().unwrap_or(0);
    format!(
        "bench   {:<30} {:>14} ns  (p99 {:>14} ns, {:.2} times {})",
        text("case"),
        number("p50"),
        number("p99"),
        figures["floor_ratio"].as_f64().unwrap_or(0.0),
        text("floor")
    )
}

#[cfg(test)]
mod tests {
    use super::line_of;

    #[test]
    fn a_line_says_what_was_measured_and_against_what() {
        let figures = serde_json::json!({
            "case": "device put", "p50": 1234, "p99": 5678, "floor_ratio": 10.5, "floor": "cache line"
        });
        let line = line_of(&figures);
        for part in ["device put", "1234 ns", "5678 ns", "10.50 times cache line"] {
            assert!(line.contains(part), "{line}");
        }
    }
}
