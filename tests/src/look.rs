//! Looking at processes from outside, by pidfd and /proc.

use std::ffi::OsStr;
use std::fmt::Write;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process, pidfd_open, waitid,
};

use crate::harness::MARK;

fn number(pid: u32) -> Pid {
    Pid::from_raw(pid.cast_signed()).expect("a process id")
}

/// A descriptor of a process that is there, or a zombie.
///
/// # Panics
/// When it is not.
#[must_use]
pub fn pidfd(pid: u32) -> OwnedFd {
    pidfd_open(number(pid), PidfdFlags::empty()).expect("a process")
}

/// Waits until the process has ended. The watchdog bounds it.
pub fn wait_for_end(pidfd: &OwnedFd) {
    while poll(&mut [PollFd::new(pidfd, PollFlags::IN)], None) == Err(Errno::INTR) {}
}

/// Whether the process ends before the deadline.
pub(crate) fn ends_before(pidfd: &OwnedFd, deadline: Instant) -> bool {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).expect("a short time");
        match poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&left)) {
            Err(Errno::INTR) => {}
            answer => return answer == Ok(1),
        }
    }
}

/// Sends SIGKILL. Nothing happens when the process has ended.
///
/// # Panics
/// When it is not ours to kill.
pub fn kill(pid: u32) {
    match kill_process(number(pid), Signal::KILL) {
        Ok(()) | Err(Errno::SRCH) => {}
        Err(errno) => panic!("process {pid} cannot be killed: {errno}"),
    }
}

/// Sends SIGSTOP to a child and waits until it has stopped.
///
/// # Panics
/// When there is no such child.
pub fn stop(pid: u32) {
    kill_process(number(pid), Signal::STOP).expect("a process to stop");
    see_stopped(pid);
}

/// The same of a process that is a child of another one.
///
/// # Panics
/// When it cannot be stopped, or has ended.
pub fn stop_below(pid: u32) {
    kill_process(number(pid), Signal::STOP).expect("a process to stop");
    see_stopped_below(pid);
}

/// Waits until a child has stopped. The watchdog bounds it.
pub fn see_stopped(pid: u32) {
    // It stays waitable: its end is the supervisor's to hear of.
    let options = WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
    while let Err(Errno::INTR) = waitid(WaitId::Pid(number(pid)), options) {}
}

/// The same of a process that is a child of another one.
///
/// # Panics
/// When it has ended.
pub fn see_stopped_below(pid: u32) {
    while state_and_parent(pid).expect("a process that stops").0 != "T" {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Lets a stopped process go on.
///
/// # Panics
/// When there is no such process.
pub fn resume(pid: u32) {
    kill_process(number(pid), Signal::CONT).expect("a process to resume");
}

/// Whether a process, or a zombie of it, is there.
#[must_use]
pub fn exists(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

fn pids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// State and parent of a process: "pid (name) state parent …", and the name may contain anything.
fn state_and_parent(pid: u32) -> Option<(String, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut words = stat.rsplit(')').next()?.split_whitespace();
    Some((words.next()?.to_owned(), words.next()?.parse().ok()?))
}

/// The processes, dead or alive, that have this one as their parent.
#[must_use]
pub fn children() -> Vec<u32> {
    children_of(std::process::id())
}

/// The processes, dead or alive, that have that one as their parent.
#[must_use]
pub fn children_of(parent: u32) -> Vec<u32> {
    pids()
        .filter(|&pid| state_and_parent(pid).is_some_and(|(_, of)| of == parent))
        .collect()
}

/// What a living process is called; the system keeps 15 bytes of it.
#[must_use]
pub fn name_of(pid: u32) -> Option<String> {
    let (state, _) = state_and_parent(pid)?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    (state != "Z").then(|| name.trim_end().to_owned())
}

/// The living processes that carry a mark. A zombie's environment cannot be read, so it is none of them.
fn marked(mark: &str) -> Vec<u32> {
    let wanted = format!("{MARK}={mark}");
    pids()
        .filter(|pid| {
            fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environment| {
                environment
                    .split(|&byte| byte == 0)
                    .any(|word| word == wanted.as_bytes())
            })
        })
        .collect()
}

/// The processes with a mark that have not ended by the deadline. They are killed.
pub(crate) fn leftovers(mark: &str, deadline: Instant) -> Vec<String> {
    let mut left = Vec::new();
    for pid in marked(mark) {
        let Ok(fd) = pidfd_open(number(pid), PidfdFlags::empty()) else {
            continue;
        };
        if !ends_before(&fd, deadline) {
            left.push(threads_of(pid));
            let _ = rustix::process::pidfd_send_signal(&fd, Signal::KILL);
        }
    }
    left
}

/// What the processes with a mark are doing, for the report of a hang.
pub(crate) fn story_of(mark: &str) -> String {
    marked(mark).into_iter().map(threads_of).collect()
}

fn threads_of(pid: u32) -> String {
    let mut text = format!("process {pid}\n");
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    for task in tasks.into_iter().flatten().flatten() {
        let read = |file| {
            let text = fs::read_to_string(task.path().join(file)).unwrap_or_default();
            text.trim_end().to_owned()
        };
        let stat = read("stat");
        let state = stat.rsplit(')').next().unwrap_or_default();
        let state = state.split_whitespace().next().unwrap_or("?").to_owned();
        let (name, place, call) = (read("comm"), read("wchan"), read("syscall"));
        let _ = writeln!(
            text,
            "  {name}: state {state}, in {place}, system call {call}"
        );
    }
    text
}

/// Whether a process has this file of /dev/shm open or mapped.
pub(crate) fn is_held(name: &OsStr) -> bool {
    let path = Path::new("/dev/shm").join(name);
    let text = path.to_string_lossy().into_owned();
    pids().any(|pid| {
        let files = fs::read_dir(format!("/proc/{pid}/fd"));
        let mut files = files.into_iter().flatten().flatten();
        files.any(|file| fs::read_link(file.path()).is_ok_and(|file| file == path))
            || fs::read_to_string(format!("/proc/{pid}/maps"))
                .is_ok_and(|maps| maps.contains(&text))
    })
}

/// Waits until all threads of a process sleep, as those of an idle worker do.
///
/// # Panics
/// When there is no such process.
pub fn wait_until_asleep(pid: u32) {
    let sleeps = |task: &Path| {
        // A thread that has ended meanwhile counts as asleep.
        let stat = fs::read_to_string(task.join("stat")).unwrap_or_default();
        stat.rsplit_once(") ")
            .is_none_or(|(_, rest)| rest.starts_with('S'))
    };
    loop {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("a process");
        if tasks.flatten().all(|task| sleeps(&task.path())) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}
