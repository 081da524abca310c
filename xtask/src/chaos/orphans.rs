//! Who is left of a round: processes that belong to it by the marker in their environment, by their name, or by their
//! process group, though everyone who may live has ended.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use crate::Result;

/// The variable that every process of a round has, and hands on to what it starts.
pub(crate) const MARKER: &str = "TENSORMP_CHAOS";

/// A look at all processes.
const LOOK: Duration = Duration::from_millis(20);

/// What a process of this round can be told by.
#[derive(Debug)]
pub(crate) struct Signs {
    /// The value of [`MARKER`].
    pub(crate) marker: String,
    /// What names begin with.
    pub(crate) name: String,
    /// Process groups that processes of the round said they are in.
    pub(crate) groups: BTreeSet<u32>,
}

/// One process as /proc shows it.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) pid: u32,
    pub(crate) name: String,
    pub(crate) is_zombie: bool,
    /// As /proc has it: R, S, D, T, Z.
    state: String,
    pub(crate) parent: u32,
    pub(crate) group: u32,
    pub(crate) session: u32,
}

impl Seen {
    fn send(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.pid.cast_signed()) {
            let _ = kill_process(pid, signal);
        }
    }
}

/// What names of the round's processes begin with, as `ps` shows them: other rounds have other beginnings.
pub(crate) fn name_of(round: u32) -> String {
    format!("c{round}.")
}

/// All processes there are.
pub(crate) fn processes() -> Vec<Seen> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            seen(pid)
        })
        .collect()
}

/// One of them.
pub(crate) fn seen(pid: u32) -> Option<Seen> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // "pid (name) state parent group session …", and the name may contain anything.
    let (start, rest) = stat.rsplit_once(')')?;
    let mut rest = rest.split_whitespace();
    let state = rest.next()?.to_owned();
    let mut number = || rest.next()?.parse().ok();
    Some(Seen {
        pid,
        name: start.split_once('(')?.1.to_owned(),
        is_zombie: matches!(&*state, "Z" | "X"),
        state,
        parent: number()?,
        group: number()?,
        session: number()?,
    })
}

fn is_marked(pid: u32, marker: &str) -> bool {
    let wanted = format!("{MARKER}={marker}");
    fs::read(Path::new("/proc").join(pid.to_string()).join("environ")).is_ok_and(|bytes| {
        bytes
            .split(|&byte| byte == 0)
            .any(|one| one == wanted.as_bytes())
    })
}

/// Those that live and belong to the round, each with how that is known.
fn left(signs: &Signs) -> Vec<(Seen, String)> {
    let me = std::process::id();
    // As /proc says it, 0 where the session was made outside of this pid namespace; the system call's wrapper has no 0.
    let session = seen(me).map_or(0, |own| own.session);
    processes()
        .into_iter()
        .filter(|seen| seen.pid != me && !seen.is_zombie)
        .filter_map(|seen| {
            let how = if is_marked(seen.pid, &signs.marker) {
                "by the marker in its environment"
            } else if seen.name.starts_with(&signs.name) {
                "by its name"
            } else if seen.session == session && signs.groups.contains(&seen.group) {
                "by its process group"
            } else {
                return None;
            };
            let text = format!(
                "process {} (\"{}\", state {}, parent {}) belongs to the round {how}",
                seen.pid, seen.name, seen.state, seen.parent
            );
            Some((seen, text))
        })
        .collect()
}

/// Waits until nobody is left, or nobody may be any more; kills who is, and says who it was. Who is stopped is let go on:
/// a parent was killed that would have done it, and before a process has come to `init`, where it asks to be killed with
/// its parent, it has to run in order to end.
pub(crate) fn wait(signs: &Signs, patience: Duration) -> Vec<String> {
    let start = Instant::now();
    loop {
        let left = left(signs);
        if left.is_empty() {
            return Vec::new();
        }
        if start.elapsed() >= patience {
            left.iter().for_each(|(seen, _)| seen.send(Signal::KILL));
            return left.into_iter().map(|(_, text)| text).collect();
        }
        for (seen, _) in left.iter().filter(|(seen, _)| seen.state == "T") {
            seen.send(Signal::CONT);
        }
        std::thread::sleep(LOOK);
    }
}

/// Waits for the dead children of this process, other than that one; of a round, those that the system handed to this one
/// when their parents died. Answers how many could not be waited for.
pub(crate) fn reap(other_than: Option<u32>) -> Result<usize> {
    let me = std::process::id();
    let mut left = 0;
    for zombie in processes() {
        if zombie.parent == me
            && zombie.is_zombie
            && Some(zombie.pid) != other_than
            && let Some(pid) = Pid::from_raw(zombie.pid.cast_signed())
        {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
            left += usize::from(waitid(WaitId::Pid(pid), options)?.is_none());
        }
    }
    Ok(left)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use super::{MARKER, Signs, seen, wait};

    #[test]
    fn who_is_left_is_found_by_each_of_the_signs_and_killed() {
        let marker = format!("test-{}", std::process::id());
        let nothing = || Signs {
            marker: "none".to_owned(),
            name: "no such name".to_owned(),
            groups: Default::default(),
        };
        for sign in ["marker", "name", "group"] {
            let mut child = Command::new("sleep")
                .arg("600")
                .env(MARKER, &marker)
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            // `spawn` returns when exec has begun; the new name and environment are there a moment later.
            let environment = format!("/proc/{}/environ", child.id());
            while std::fs::read(&environment).is_ok_and(|environment| environment.is_empty()) {
                std::thread::yield_now();
            }
            let found = seen(child.id()).unwrap();
            assert!(!found.is_zombie && found.parent == std::process::id());
            let mut signs = nothing();
            match sign {
                "marker" => signs.marker = marker.clone(),
                // Other processes sleep, too, and are not to be killed by this.
                "name" => {
                    std::fs::write(format!("/proc/{}/comm", child.id()), "chaos-test-left").ok();
                    let Some(found) =
                        seen(child.id()).filter(|seen| seen.name == "chaos-test-left")
                    else {
                        println!("skipped: a process cannot be given a name here");
                        let _ = child.kill();
                        let _ = child.wait();
                        continue;
                    };
                    signs.name = found.name;
                }
                // In the group of these tests, so not by `wait`, which kills.
                _ => {
                    let group = found.group;
                    signs.groups.insert(group);
                    let left = super::left(&signs);
                    assert!(
                        left.iter().any(|(seen, _)| seen.pid == child.id()),
                        "{left:?}"
                    );
                    let _ = child.kill();
                    let _ = child.wait();
                    continue;
                }
            }
            let left = wait(&signs, Duration::ZERO);
            assert_eq!(left.len(), 1, "{left:?}");
            assert!(left[0].contains(sign), "{left:?}");
            let _ = child.wait();
            assert!(wait(&signs, Duration::ZERO).is_empty());
        }
    }
}
