//! Runs other programs: either their output simply passes through, or it passes through and the closing lines of tests are
//! counted on the way.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::Result;

/// How long after a program's end its output may stay open. A process that it left behind keeps it open for ever.
const OUTPUT_GRACE: Duration = Duration::from_secs(10);

/// Runs it with its output passed through.
pub(crate) fn run(mut command: Command) -> Result<()> {
    let status = command
        .status()
        .map_err(|error| format!("cannot start {}: {error}", shown(&command)))?;
    check(&command, status)
}

/// What the closing lines of all test programs add up to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) programs: u64,
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) ignored: u64,
}

impl Tally {
    /// Adds a closing line (`test result: ok. 3 passed; 0 failed; …`); any other line is left alone.
    fn add(&mut self, line: &str) {
        let Some(result) = line.strip_prefix("test result: ") else {
            return;
        };
        self.programs += 1;
        let counts = result.split_once(". ").map_or("", |(_, counts)| counts);
        for part in counts.split(';') {
            if let Some((number, what)) = part.trim().split_once(' ') {
                let number = number.parse().unwrap_or(0);
                match what {
                    "passed" => self.passed += number,
                    "failed" => self.failed += number,
                    "ignored" => self.ignored += number,
                    _ => {}
                }
            }
        }
    }
}

/// Runs `cargo test …` with its output passed through, and counts. An error when a test fails.
pub(crate) fn run_tests(command: Command) -> Result<Tally> {
    let name = shown(&command);
    match count_tests(command)? {
        (tally, true) => Ok(tally),
        (_, false) => Err(format!("{name} failed").into()),
    }
}

/// The same, with failed tests counted and no error; whether all passed.
pub(crate) fn count_tests(mut command: Command) -> Result<(Tally, bool)> {
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cannot start {}: {error}", shown(&command)))?;
    let Some(output) = child.stdout.take() else {
        return Err("the output of cargo test was not piped".into());
    };
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let _ = sender.send(tally(BufReader::new(output), std::io::stdout()));
    });
    let status = child.wait()?;
    let tally = receiver.recv_timeout(OUTPUT_GRACE).map_err(|_| {
        format!(
            "{} ended, but a process that a test started still holds its output {} s later: tests must leave no process",
            shown(&command),
            OUTPUT_GRACE.as_secs()
        )
    })?;
    Ok((tally, status.success()))
}

/// Passes lines on as they come, and counts.
fn tally(mut lines: impl BufRead, mut to: impl Write) -> Tally {
    let mut tally = Tally::default();
    let mut line = Vec::new();
    while lines
        .read_until(b'\n', &mut line)
        .is_ok_and(|read| read > 0)
    {
        // A reader that is gone is no reason to stop counting.
        let _ = to.write_all(&line);
        tally.add(String::from_utf8_lossy(&line).trim_end());
        line.clear();
    }
    tally
}

fn check(command: &Command, status: ExitStatus) -> Result<()> {
    if status.success() {
        Ok(())
    } else {
        Err(format!("{} ended with {status}", shown(command)).into())
    }
}

/// The command as one would type it, with the program's path left out.
pub(crate) fn shown(command: &Command) -> String {
    let program = std::path::Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str());
    let mut words = vec![name.to_string_lossy().into_owned()];
    words.extend(
        command
            .get_args()
            .map(|arg| arg.to_string_lossy().into_owned()),
    );
    format!("`{}`", words.join(" "))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::{Tally, run, shown, tally};

    #[test]
    fn closing_lines_add_up_and_other_lines_do_not_count() {
        let mut tally = Tally::default();
        tally.add("test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s");
        tally.add("test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s");
        tally.add("test cells::tests::something ... ok");
        assert_eq!(
            tally,
            Tally {
                programs: 2,
                passed: 7,
                failed: 2,
                ignored: 1
            }
        );
    }

    #[test]
    fn a_command_that_fails_is_named_with_its_arguments() {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "exit 3"]);
        let error = run(command).unwrap_err().to_string();
        assert_eq!(error, "`sh -c exit 3` ended with exit status: 3");
    }

    #[test]
    fn a_program_that_does_not_exist_is_an_error_that_names_it() {
        let error = run(Command::new("/nonexistent/program"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("cannot start `program`"), "{error}");
    }

    #[test]
    fn tests_are_counted_while_their_output_passes_through() {
        let output =
            b"running 5 tests\ntest result: ok. 5 passed; 0 failed; 0 ignored; 0 measured\n";
        let mut passed_on = Vec::new();
        assert_eq!(tally(&output[..], &mut passed_on).passed, 5);
        assert_eq!(passed_on, output);
    }

    #[test]
    fn the_path_of_the_program_is_not_shown() {
        assert_eq!(shown(&Command::new("/usr/bin/cargo")), "`cargo`");
    }
}
