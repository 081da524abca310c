//! Running one input in a process of its own, and telling how that went.

use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::input::Input;
use crate::Result;

/// An input that takes longer hangs. What a wait for a damaged table of names may take is in it.
const WATCHDOG: Duration = Duration::from_secs(60);

/// The exit code of a process to which something was refused, as it should be.
pub(crate) const REFUSED: u8 = 4;

#[derive(Debug)]
pub(crate) enum Outcome {
    /// It came to its end; what was refused first, if anything was.
    Well { refused: Option<String> },
    /// It crashed, panicked or hung.
    Harm(String),
}

pub(crate) fn run(input: &Input) -> Result<Outcome> {
    let said = std::fs::File::from(rustix::fs::memfd_create(
        "said",
        rustix::fs::MemfdFlags::CLOEXEC,
    )?);
    let folder = tempfile::tempdir()?;
    let mut child = Command::new("/proc/self/exe")
        .arg("fuzz-child")
        .args(["--parent", &std::process::id().to_string()])
        .arg("--folder")
        .arg(folder.path())
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(said.try_clone()?)
        .spawn()
        .map_err(|error| format!("cannot start a process: {error}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        // One that has died already says so by its end.
        let _ = stdin.write_all(serde_json::to_string(input)?.as_bytes());
    }
    let pid = Pid::from_raw(child.id().cast_signed()).ok_or("a process without a number")?;
    // It was not waited for yet, so the number is its own.
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    let deadline = Instant::now() + WATCHDOG;
    let ended = loop {
        let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now()))?;
        match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&left)) {
            Err(Errno::INTR) => {}
            answer => break answer? > 0,
        }
    };
    if !ended {
        let wchan = std::fs::read_to_string(format!("/proc/{}/wchan", child.id()));
        child.kill()?;
        child.wait()?;
        let place = wchan.unwrap_or_default();
        return Ok(Outcome::Harm(format!(
            "hangs: not ended after {WATCHDOG:?}, in {place}"
        )));
    }
    let status = child.wait()?;
    let text = std::fs::read(format!("/proc/self/fd/{}", said.as_raw_fd()))?;
    let text = String::from_utf8_lossy(&text);
    match status.code() {
        Some(0) => return Ok(Outcome::Well { refused: None }),
        Some(code) if code == i32::from(REFUSED) => {
            let first = text.lines().next().unwrap_or("a count is off");
            return Ok(Outcome::Well {
                refused: Some(first.to_owned()),
            });
        }
        _ => {}
    }
    // What was refused comes first; the end is what matters.
    let mut lines: Vec<&str> = text.lines().rev().take(6).collect();
    lines.reverse();
    let how = match status.signal() {
        Some(signal) => format!("ended by signal {signal}"),
        None => status.to_string(),
    };
    Ok(Outcome::Harm(format!("{how}: {}", lines.join(" | "))))
}

#[cfg(test)]
mod tests {
    use super::{Outcome, run};
    use crate::fuzz::input::{Input, Target};

    #[test]
    fn a_process_that_does_not_come_to_its_end_is_harm() {
        // Here the program that is started again is this test, which knows no `fuzz-child`.
        let input = Input::random(Target::Message, &mut fastrand::Rng::with_seed(1));
        assert!(matches!(run(&input).unwrap(), Outcome::Harm(_)));
    }
}
