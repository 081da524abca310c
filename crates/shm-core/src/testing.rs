//! For tests that need a process of their own: the test runs itself again in a child.

use std::os::fd::AsFd;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

const MARK: &str = "SHM_CORE_TEST_CHILD";

/// Ends a child that hangs. Far longer than any test takes.
const WATCHDOG: Duration = Duration::from_secs(120);

/// The command that runs the test called `name` (with its modules) again in a child; `None` in that child.
pub(crate) fn rerun(name: &str) -> Option<Command> {
    if std::env::var_os(MARK).is_some_and(|mark| mark == name) {
        return None;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(MARK, name);
    Some(command)
}

/// Runs a command to its end and answers what it wrote; kills it if it hangs.
pub(crate) fn output(command: &mut Command) -> Output {
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
    // Opened before anyone waits for the child, so it can't be another process.
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
    let watchdog = std::thread::spawn(move || {
        let timeout = WATCHDOG.try_into().unwrap();
        let ready = poll(
            &mut [PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN)],
            Some(&timeout),
        );
        if ready == Ok(0) {
            let _ = pidfd_send_signal(&pidfd, Signal::KILL);
        }
    });
    let output = child.wait_with_output().unwrap();
    watchdog.join().unwrap();
    output
}

/// Fails unless the rerun test passed, showing what it wrote.
pub(crate) fn assert_passed(output: &Output) {
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{}\n{text}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}
