//! What a process of a crew sees of what it may leave behind: children, descriptors; and the groups that its children are
//! in, for the round to look at.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use spawn::forkserver;

use super::orphans::{processes, reap, seen};
use super::receipts::{Pen, Receipt, Receipts};
use crate::Result;

/// After so long a descriptor is one too many.
const LEAKED: Duration = Duration::from_secs(20);

/// The process groups that children noted.
pub(crate) fn groups(receipts: &Receipts) -> Result<BTreeSet<u32>> {
    let all = receipts.read()?;
    Ok(all.iter().map(|receipt| receipt.number as u32).collect())
}

/// Notes the process group of this process.
pub(crate) fn note_group(by: u64) -> Result<()> {
    Pen.write(Receipt {
        taken: true,
        sender: std::process::id().into(),
        number: seen(std::process::id()).map_or(0, |own| u64::from(own.group)),
        by,
    })
}

/// What the descriptors of this process lead to, without those of living processes that are none of its children: who
/// watches an arena has one for each participant.
pub(crate) fn descriptors() -> Vec<String> {
    let me = std::process::id();
    let of_a_stranger = |number: &str| {
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}"));
        // "Pid:" is in that of a pidfd, and below 1 once the process is gone.
        info.unwrap_or_default()
            .lines()
            .find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok())
            .and_then(seen)
            .is_some_and(|seen| seen.parent != me)
    };
    let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten();
    entries
        .flatten()
        .filter(|entry| !of_a_stranger(&entry.file_name().to_string_lossy()))
        .filter_map(|entry| std::fs::read_link(entry.path()).ok())
        .map(|path| path.display().to_string())
        .collect()
}

/// Says when there are more than before, and stay: who watches the arena lets go of the dead a moment later.
pub(crate) fn check_descriptors(before: &[String]) -> Result<()> {
    let start = Instant::now();
    loop {
        let now = descriptors();
        if now.len() <= before.len() {
            return Ok(());
        }
        if start.elapsed() >= LEAKED {
            let (now_count, count) = (now.len(), before.len());
            return Err(format!(
                "{now_count} descriptors instead of {count}: {now:?} instead of {before:?}"
            )
            .into());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The children of this process, dead or alive, other than its fork server.
fn children() -> String {
    let me = std::process::id();
    let server = forkserver::pid();
    let left = processes()
        .into_iter()
        .filter(|seen| seen.parent == me && Some(seen.pid) != server)
        .map(|seen| {
            let what = if seen.is_zombie { "dead" } else { "alive" };
            format!("process {} (\"{}\"), {what}", seen.pid, seen.name)
        });
    left.collect::<Vec<_>>().join(", ")
}

/// Says who is left, where nobody may be.
pub(crate) fn check_children() -> Result<()> {
    match children() {
        left if left.is_empty() => Ok(()),
        left => Err(format!("children are left: {left}").into()),
    }
}

/// A server that is killed between copying itself and saying so leaves a child that nobody knows. It ends at once, since
/// nobody holds the other end of its control socket, and is waited for by whoever can tell it: here that is everyone, as
/// there are no others. Whoever lives on is found when all children are counted.
pub(crate) fn wait_for_the_lost() -> Result<()> {
    let start = Instant::now();
    while !children().is_empty() && start.elapsed() < LEAKED {
        reap(forkserver::pid())?;
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
