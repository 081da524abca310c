//! Who a participant is, and when it counts as dead.
//!
//! Memory of a dead participant is given to others, so a wrong "dead" corrupts and a wrong "alive" only leaks: whenever the signs disagree or cannot be read,
//! the answer is not "dead". Time plays no part: a process that is stopped, swapped out or held by a debugger is alive.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::OnceLock;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open, test_kill_process};

use crate::error::{Error, ErrorKind, Result};

/// What tells one process from every other, in this namespace and over reuse of its pid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its pid, as it sees it itself.
    pub pid: u32,
    /// When it started, in clock ticks since boot as its own time namespace counts them.
    pub start_time: u64,
    /// Its pid namespace (inode, low half) and time namespace (inode, high half): start times can only be compared within both.
    pub namespace: u64,
}

impl Identity {
    /// This process's own.
    ///
    /// # Errors
    /// `Unsupported` if /proc is not mounted or does not show this process.
    pub fn of_self() -> Result<Self> {
        let missing = |file: &str| {
            Error::new(
                ErrorKind::Unsupported,
                format!(
                    "joining an arena needs {file} to tell this process from others, but it can't be read; mount /proc"
                ),
            )
        };
        Ok(Self {
            pid: getpid().as_raw_pid().cast_unsigned(),
            start_time: start_time_in("/proc/self/stat")
                .ok_or_else(|| missing("/proc/self/stat"))?,
            namespace: own_namespace().ok_or_else(|| missing("/proc/self/ns/pid"))?,
        })
    }
}

/// What can be said about a participant's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It runs, or is stopped.
    Alive,
    /// It has ended, for certain.
    Dead,
    /// The signs are unreadable or contradict each other: what it holds must stay untouched.
    Unknown,
}

/// What the process table shows under a pid of our own namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sighting {
    Gone,
    /// Ended, though perhaps nobody has waited for it yet.
    Ended,
    /// A process that started then; `None` where that can't be read.
    Running(Option<u64>),
}

/// Judges the participant that registered with these three values of its [`Identity`].
///
/// `lock` tells whether its life lock is held ([`RowLocks`](super::lock::RowLocks)), `None` if that can't be told; it is only asked where the process table
/// can't answer.
pub fn is_dead(
    pid: u32,
    start_time: u64,
    namespace: u64,
    lock: impl FnOnce() -> Option<bool>,
) -> Verdict {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return Verdict::Unknown;
    };
    match own_namespace() {
        Some(own) if own == namespace => judge_by_sight(sight(pid), start_time),
        Some(_) => judge_by_lock(lock(), || is_seen_elsewhere(pid, namespace)),
        None => Verdict::Unknown,
    }
}

/// Whether the process of this pid, in our own namespace, has ended: all that can be asked of one that has not written
/// down yet when it started. A pid that another process has by now counts as running.
pub(crate) fn has_ended(pid: u32) -> bool {
    i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .is_some_and(|pid| matches!(sight(pid), Sighting::Gone | Sighting::Ended))
}

/// Whether a process of this pid, in our own namespace, runs, whoever it is.
pub(crate) fn runs(pid: u32) -> bool {
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let process = i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    process.is_some_and(|process| {
        poll(
            &mut [PollFd::from_borrowed_fd(process.as_fd(), PollFlags::IN)],
            Some(&now),
        ) == Ok(0)
    })
}

/// The rule within one namespace. The lock has no say: a forked child may keep it, a wholesale close may lose it.
fn judge_by_sight(sighting: Sighting, start_time: u64) -> Verdict {
    match sighting {
        Sighting::Gone | Sighting::Ended => Verdict::Dead,
        Sighting::Running(Some(started)) if started == start_time => Verdict::Alive,
        // Another process has the pid now.
        Sighting::Running(Some(_)) => Verdict::Dead,
        Sighting::Running(None) => Verdict::Unknown,
    }
}

/// The rule across namespaces: the lock decides, unless the process is seen alive all the same.
fn judge_by_lock(held: Option<bool>, is_seen: impl FnOnce() -> bool) -> Verdict {
    match held {
        Some(true) => Verdict::Alive,
        Some(false) if is_seen() => Verdict::Unknown,
        Some(false) => Verdict::Dead,
        None => Verdict::Unknown,
    }
}

fn sight(pid: Pid) -> Sighting {
    let started = || {
        let path = format!("/proc/{}/stat", pid.as_raw_pid());
        proc_shows_our_pids().then(|| start_time_in(path)).flatten()
    };
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(process) => {
            // Read before the look at the pidfd: if that is still not ready, what was read belongs to the process it stands for.
            let started = started();
            let now = Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            // A pidfd is ready when all threads have ended, waited for or not. The state in /proc would call a process whose main thread ended a zombie too.
            let ended = poll(
                &mut [PollFd::from_borrowed_fd(process.as_fd(), PollFlags::IN)],
                Some(&now),
            );
            if ended == Ok(1) {
                Sighting::Ended
            } else {
                Sighting::Running(started)
            }
        }
        Err(Errno::SRCH) => Sighting::Gone,
        // No descriptor left, an old kernel, a sandbox, or a pid that a thread has now.
        Err(_) => match test_kill_process(pid) {
            Err(Errno::SRCH) => Sighting::Gone,
            _ => Sighting::Running(started()),
        },
    }
}

/// Whether /proc shows some process of that namespace under that pid: possible for namespaces below ours.
fn is_seen_elsewhere(pid: Pid, namespace: u64) -> bool {
    let wanted = namespace & u64::from(u32::MAX);
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return false;
    };
    entries.flatten().any(|entry| {
        let numeric = entry
            .file_name()
            .to_str()
            .is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
        numeric
            && namespace_inode(&entry.path().join("ns/pid")) == Some(wanted)
            && std::fs::read_to_string(entry.path().join("status"))
                .is_ok_and(|status| innermost_pid(&status) == Some(pid.as_raw_pid()))
    })
}

/// The last number in the `NSpid:` line: the pid in the process's own namespace.
fn innermost_pid(status: &str) -> Option<i32> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().next_back()?.parse().ok()
}

/// This process's pid and time namespaces as one number. They can't change under us, so they are read once.
pub(crate) fn own_namespace() -> Option<u64> {
    static OWN: OnceLock<Option<u64>> = OnceLock::new();
    *OWN.get_or_init(|| {
        let pids = namespace_inode(Path::new("/proc/self/ns/pid"))?;
        // Before Linux 5.6 there is one time namespace for all.
        let time = namespace_inode(Path::new("/proc/self/ns/time")).unwrap_or(0);
        Some(time << 32 | pids)
    })
}

/// The number in a link like `pid:[4026531836]`. Namespaces' inodes have 32 bits.
fn namespace_inode(link: &Path) -> Option<u64> {
    let target = std::fs::read_link(link).ok()?;
    let (_, number) = target.to_str()?.split_once(":[")?;
    number.strip_suffix(']')?.parse::<u32>().ok().map(u64::from)
}

/// Whether the numbers in /proc are pids of our own namespace; a container may have the host's /proc.
fn proc_shows_our_pids() -> bool {
    static OURS: OnceLock<bool> = OnceLock::new();
    *OURS.get_or_init(|| {
        let own = getpid().as_raw_pid().to_string();
        std::fs::read_link("/proc/self").is_ok_and(|target| target.as_os_str() == own.as_str())
    })
}

fn start_time_in(path: impl AsRef<Path>) -> Option<u64> {
    start_time(&std::fs::read(path).ok()?)
}

/// Field 22 of a stat line.
fn start_time(stat: &[u8]) -> Option<u64> {
    stat_field(stat, 22)
}

/// How many threads a process of our own pid namespace has.
pub(crate) fn threads_of(pid: u32) -> Option<u64> {
    if !proc_shows_our_pids() {
        return None;
    }
    stat_field(&std::fs::read(format!("/proc/{pid}/stat")).ok()?, 20)
}

/// A field of a stat line, from 1. Field 2 is the program's name in parentheses, which may hold anything, so counting starts at the last ")".
fn stat_field(stat: &[u8], number: usize) -> Option<u64> {
    let name_end = stat.iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(&stat[name_end + 1..]).ok()?;
    rest.split_ascii_whitespace().nth(number - 3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Held, rerun};
    use proptest::prelude::*;
    use rustix::process::Signal;

    fn unasked() -> Option<bool> {
        panic!("the lock has no say within one namespace")
    }

    fn verdict(child: &Held, identity: Identity) -> Verdict {
        assert_eq!(identity.pid, child.pid());
        is_dead(
            identity.pid,
            identity.start_time,
            identity.namespace,
            unasked,
        )
    }

    fn identity_of(child: &Held) -> Identity {
        let start_time = start_time_in(format!("/proc/{}/stat", child.pid())).unwrap();
        Identity {
            pid: child.pid(),
            start_time,
            namespace: own_namespace().unwrap(),
        }
    }

    #[test]
    fn this_process_is_alive() {
        let own = Identity::of_self().unwrap();
        assert_eq!(
            is_dead(own.pid, own.start_time, own.namespace, unasked),
            Verdict::Alive
        );
    }

    #[test]
    fn only_an_ended_process_is_dead_waited_for_or_not() {
        let Some(mut child) =
            rerun("participant::liveness::tests::only_an_ended_process_is_dead_waited_for_or_not")
        else {
            return Held::stay();
        };
        let child = Held::start(&mut child);
        let identity = identity_of(&child);
        assert_eq!(verdict(&child, identity), Verdict::Alive);
        child.signal(Signal::STOP);
        assert_eq!(
            verdict(&child, identity),
            Verdict::Alive,
            "a stopped process is alive"
        );
        child.signal(Signal::KILL);
        child.wait_until_ended();
        assert_eq!(verdict(&child, identity), Verdict::Dead, "a zombie is dead");
        drop(child);
        assert_eq!(
            is_dead(
                identity.pid,
                identity.start_time,
                identity.namespace,
                unasked
            ),
            Verdict::Dead
        );
    }

    #[test]
    fn a_process_whose_main_thread_has_ended_is_alive() {
        let Some(mut child) =
            rerun("participant::liveness::tests::a_process_whose_main_thread_has_ended_is_alive")
        else {
            return Held::stay_without_main_thread();
        };
        let child = Held::start(&mut child);
        assert_eq!(verdict(&child, identity_of(&child)), Verdict::Alive);
    }

    #[test]
    fn a_reused_pid_is_not_the_participant() {
        let own = Identity::of_self().unwrap();
        assert_eq!(
            is_dead(own.pid, own.start_time + 1, own.namespace, unasked),
            Verdict::Dead
        );
    }

    #[test]
    fn a_row_without_a_pid_is_left_alone() {
        let own = own_namespace().unwrap();
        assert_eq!(is_dead(0, 1, own, unasked), Verdict::Unknown);
        assert_eq!(is_dead(u32::MAX, 1, own, unasked), Verdict::Unknown);
    }

    #[test]
    fn across_namespaces_the_lock_decides_and_doubt_is_never_death() {
        let own = Identity::of_self().unwrap();
        let foreign = own.namespace ^ 1;
        let judged = |held| is_dead(own.pid, own.start_time, foreign, || held);
        assert_eq!(judged(Some(true)), Verdict::Alive);
        assert_eq!(judged(Some(false)), Verdict::Dead);
        assert_eq!(judged(None), Verdict::Unknown);
        // The same pid namespace, seen from another time namespace: start times don't compare, but we are plainly there.
        let other_clock = own.namespace ^ (1 << 32);
        let judged = is_dead(own.pid, own.start_time, other_clock, || Some(false));
        assert_eq!(
            judged,
            Verdict::Unknown,
            "its lock is lost, but the process is seen"
        );
    }

    #[test]
    fn what_cannot_be_seen_clearly_is_not_dead() {
        assert_eq!(judge_by_sight(Sighting::Running(None), 5), Verdict::Unknown);
        assert_eq!(judge_by_lock(Some(false), || true), Verdict::Unknown);
    }

    #[test]
    fn a_programs_name_may_hold_spaces_and_parentheses() {
        let rest = " S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 19";
        for name in ["cat", "a b", "evil) S 1 2 (3", ") ) )", "\u{fffd}"] {
            assert_eq!(
                start_time(format!("77 ({name}){rest}").as_bytes()),
                Some(4242),
                "{name}"
            );
        }
        assert_eq!(
            start_time(b"77 (\xff\xfe) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 7 8"),
            Some(7)
        );
        for broken in ["", "77", "77 (cat", "77 (cat)", "77 (cat) S 1 2 3"] {
            assert_eq!(start_time(broken.as_bytes()), None, "{broken}");
        }
    }

    #[test]
    fn the_innermost_pid_is_the_last() {
        assert_eq!(
            innermost_pid("Name:\tx\nNSpid:\t300\t12\t1\nNSpgid:\t9\n"),
            Some(1)
        );
        assert_eq!(innermost_pid("Name:\tx\n"), None);
    }

    proptest! {
        #[test]
        fn no_stat_line_makes_the_parser_panic(line in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = start_time(&line);
        }
    }
}
