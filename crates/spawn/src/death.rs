//! How a process ended, and whether the system killed it for want of memory.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process, pidfd_send_signal, waitid,
};

use crate::control;
use crate::error::Exit;
use crate::link::Patience;

/// What a look at a process finds.
#[derive(Debug)]
pub(crate) enum Seen {
    Alive,
    Ended(Exit),
    /// The descriptor is none, or none of a process: nothing is known.
    Blind,
}

/// Looks at a process without waiting, and reaps it if it has ended.
pub(crate) fn look(pidfd: impl AsFd) -> Seen {
    collect(pidfd, WaitIdOptions::EXITED | WaitIdOptions::NOHANG)
}

/// Sends a signal to a child that nobody has waited for: by its descriptor, or, where a filter of system calls that is
/// older than that call stands in the way, by its id, which is its own until then.
pub(crate) fn signal(pidfd: &OwnedFd, pid: u32, signal: Signal) -> Result<(), Errno> {
    let refused = match pidfd_send_signal(pidfd, signal) {
        Err(errno @ (Errno::PERM | Errno::NOSYS)) => errno,
        other => return other,
    };
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    match (
        waitid(WaitId::PidFd(pidfd.as_fd()), look),
        Pid::from_raw(pid as i32),
    ) {
        (Ok(None), Some(pid)) => kill_process(pid, signal),
        (Ok(None), None) => Err(refused),
        // It has ended, or is nobody's child here any more.
        _ => Err(Errno::SRCH),
    }
}

/// A child that several look at: whoever finds first how it ended keeps it for the others.
#[derive(Debug)]
pub(crate) struct Child {
    pub(crate) pidfd: Arc<OwnedFd>,
    exit: Mutex<Option<Exit>>,
}

impl Drop for Child {
    fn drop(&mut self) {
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        if matches!(collect(&self.pidfd, look), Seen::Blind) {
            // Something in this program closed it: what has its number is not ours to close.
            std::mem::forget(Arc::clone(&self.pidfd));
        }
    }
}

impl Child {
    pub(crate) fn new(pidfd: OwnedFd) -> Child {
        Child {
            pidfd: Arc::new(pidfd),
            exit: Mutex::new(None),
        }
    }

    /// Looks at it without waiting, and reaps it if it has ended. How it ended, if it has.
    pub(crate) fn look(&self) -> Option<Exit> {
        let mut exit = self.exit.lock();
        if exit.is_none() {
            *exit = match look(&self.pidfd) {
                Seen::Alive => None,
                Seen::Ended(exit) => Some(exit),
                Seen::Blind => Some(Exit::Unknown),
            };
        }
        exit.clone()
    }

    /// The same, once it has ended or that has passed.
    pub(crate) fn ends(&self, within: Duration) -> Option<Exit> {
        let _ = control::is_readable(&self.pidfd, &mut Patience::new(within));
        self.look()
    }
}

/// Waits for a process to end.
pub(crate) fn wait(pidfd: impl AsFd) {
    collect(pidfd, WaitIdOptions::EXITED);
}

fn collect(pidfd: impl AsFd, options: WaitIdOptions) -> Seen {
    loop {
        return match waitid(WaitId::PidFd(pidfd.as_fd()), options) {
            Ok(Some(status)) => Seen::Ended(exit_of(&status)),
            Ok(None) => Seen::Alive,
            Err(Errno::INTR) => continue,
            Err(Errno::BADF | Errno::INVAL) => Seen::Blind,
            // Not our child any more: the system reaped it by itself because the host ignores SIGCHLD, or something
            // in this program waited for it. While it lives it is our child, so it is gone.
            Err(_) => Seen::Ended(Exit::Unknown),
        };
    }
}

fn exit_of(status: &WaitIdStatus) -> Exit {
    if let Some(code) = status.exit_status() {
        Exit::Code(code)
    } else if let Some(number) = status.terminating_signal() {
        Exit::Signal {
            number,
            name: signal_name(number),
            core: status.dumped(),
        }
    } else {
        Exit::Unknown
    }
}

/// Names by number, as the common architectures of Linux have them.
pub(crate) fn signal_name(number: i32) -> String {
    const NAMES: [&str; 31] = [
        "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2",
        "PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG",
        "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
    ];
    match usize::try_from(number - 1)
        .ok()
        .and_then(|index| NAMES.get(index))
    {
        Some(name) => format!("SIG{name}"),
        None => format!("signal {number}"),
    }
}

/// The kernel's counters of out-of-memory kills that this process can see, at one moment.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct OomKills(Vec<(String, u64)>);

impl OomKills {
    /// Reads them: our cgroups (version 2 and 1) and the whole machine. Where there is none, there is none.
    pub(crate) fn read() -> OomKills {
        OomKills::read_below(Path::new("/"))
    }

    /// The same in a tree of files that starts there.
    fn read_below(root: &Path) -> OomKills {
        let mut counters = Vec::new();
        for file in cgroup_files(root) {
            if let Some(count) = counter_in(&file) {
                counters.push((file.display().to_string(), count));
            }
        }
        let vmstat = root.join("proc/vmstat");
        if let Some(count) = counter_in(&vmstat) {
            counters.push((vmstat.display().to_string(), count));
        }
        OomKills(counters)
    }

    /// The nearest counter that has grown since. Others share the counters, so it is only a likely cause.
    pub(crate) fn grown_since(&self, before: &OomKills) -> Option<String> {
        self.0.iter().find_map(|(name, now)| {
            let then = before.0.iter().find(|(other, _)| other == name)?.1;
            (*now > then)
                .then(|| format!("the counter oom_kill in {name} went from {then} to {now}"))
        })
    }
}

fn counter_in(file: &Path) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    text.lines()
        .find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

/// The files with a counter for the groups that this process is in.
fn cgroup_files(root: &Path) -> Vec<PathBuf> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    groups
        .lines()
        .filter_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            let path = path.trim_start_matches('/');
            if controllers.is_empty() {
                Some(root.join("sys/fs/cgroup").join(path).join("memory.events"))
            } else if controllers
                .split(',')
                .any(|controller| controller == "memory")
            {
                Some(
                    root.join("sys/fs/cgroup/memory")
                        .join(path)
                        .join("memory.oom_control"),
                )
            } else {
                None
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_the_names_that_people_know() {
        assert_eq!(
            signal_name(rustix::process::Signal::KILL.as_raw()),
            "SIGKILL"
        );
        assert_eq!(
            signal_name(rustix::process::Signal::SEGV.as_raw()),
            "SIGSEGV"
        );
        assert_eq!(signal_name(34), "signal 34");
        assert_eq!(signal_name(0), "signal 0");
    }

    #[test]
    fn the_counters_of_both_kinds_of_cgroup_and_of_the_machine_are_read() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(
            "proc/self/cgroup",
            "5:cpu,memory:/old\n4:cpuset:/x\n0::/new/inner\n",
        );
        write("proc/vmstat", "pgfault 7\noom_kill 1\n");
        write(
            "sys/fs/cgroup/new/inner/memory.events",
            "low 0\noom 2\noom_kill 2\n",
        );
        write(
            "sys/fs/cgroup/memory/old/memory.oom_control",
            "under_oom 0\noom_kill 3\n",
        );
        let before = OomKills::read_below(root.path());
        assert_eq!(
            before.0.iter().map(|(_, count)| *count).collect::<Vec<_>>(),
            [3, 2, 1]
        );
        write(
            "sys/fs/cgroup/new/inner/memory.events",
            "low 0\noom 3\noom_kill 3\n",
        );
        let grown = OomKills::read_below(root.path())
            .grown_since(&before)
            .unwrap();
        assert!(grown.ends_with("memory.events went from 2 to 3"), "{grown}");
    }

    #[test]
    fn a_counter_that_grew_is_named_and_one_that_is_new_is_not() {
        let before = OomKills(vec![("a".into(), 3), ("b".into(), 3)]);
        let after = OomKills(vec![("c".into(), 9), ("a".into(), 3), ("b".into(), 4)]);
        assert_eq!(
            after.grown_since(&before).unwrap(),
            "the counter oom_kill in b went from 3 to 4"
        );
        assert_eq!(before.grown_since(&before), None);
    }
}
