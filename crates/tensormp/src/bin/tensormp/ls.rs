//! `tensormp ls`: the arenas of this user.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use shm_core::inspect::{Inspection, Member, Seen, find};
use shm_core::participant::liveness::Verdict;

use crate::Where;
use crate::directories::to_search;
use crate::output::{Out, Size, Stopped, complain, plain};

/// Answers whether everything could be read.
pub(crate) fn run(place: &Where, out: &mut Out) -> Result<bool, Stopped> {
    let (directories, well) = to_search(&place.directories);
    let mut all = match find(&directories) {
        Ok(all) => all,
        Err(error) => {
            complain(&error);
            return Ok(false);
        }
    };
    let chosen = !place.directories.is_empty();
    if chosen {
        all.retain(|seen| is_in(seen, &directories));
    }
    let mut left_out = Vec::new();
    let mut shown = 0;
    for seen in &all {
        match &seen.contents {
            Ok(inside) if out.is_json() => out.object(&object(seen, inside))?,
            Ok(inside) => {
                if shown > 0 {
                    out.line("")?;
                }
                shown += 1;
                show(out, seen, inside)?;
            }
            Err(error) => {
                out.object(&json!({
                    "strategy": seen.strategy,
                    "path": path(seen),
                    "holders": seen.holders,
                    "error": error.to_string(),
                }))?;
                left_out.push(format!("left out: {}", plain(&error.to_string())));
            }
        }
    }
    if shown == 0 {
        let places: Vec<_> = directories
            .iter()
            .map(|directory| plain(&directory.display().to_string()))
            .collect();
        let places = match places.is_empty() {
            true => "any directory".to_owned(),
            false => places.join(", "),
        };
        let elsewhere = match chosen {
            true => "",
            false => ", and none in its processes",
        };
        out.line(format_args!(
            "no arenas of this user: none in {places}{elsewhere}"
        ))?;
    }
    if shown > 0 && !left_out.is_empty() {
        out.line("")?;
    }
    for line in left_out {
        out.line(line)?;
    }
    Ok(well)
}

/// Whether its file is, or was until it was removed, in one of these directories, by whatever name they go.
fn is_in(seen: &Seen, directories: &[PathBuf]) -> bool {
    let parent = seen.path.as_ref().and_then(|path| path.parent());
    parent.is_some_and(|parent| {
        let place = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let parent = place(parent);
        directories
            .iter()
            .any(|directory| place(directory) == parent)
    })
}

fn path(seen: &Seen) -> Option<String> {
    let path = seen.path.as_ref()?;
    Some(path.to_string_lossy().into_owned())
}

fn object(seen: &Seen, inside: &Inspection) -> Value {
    let participants: Vec<_> = inside
        .members
        .iter()
        .map(|member| {
            let process = Process::of(member);
            json!({
                "pid": member.pid,
                "pid_is_ours": member.pid_is_ours,
                "name": member.name,
                "command": process.command,
                "state": state(member),
                "stopped": process.stopped,
                "leaving": member.leaving,
                "blocks": member.blocks,
                "bytes": member.bytes,
                "task": member.task,
            })
        })
        .collect();
    json!({
        "strategy": seen.strategy,
        "path": path(seen),
        "holders": seen.holders,
        "id": format!("{:016x}{:016x}", inside.id[1], inside.id[0]),
        "capacity": inside.capacity,
        "taken": inside.taken,
        "committed": inside.committed,
        "live": inside.live,
        "cached": inside.cached,
        "blocks": inside.blocks,
        "inhabited": inside.is_inhabited(),
        "participants": participants,
    })
}

fn show(out: &mut Out, seen: &Seen, inside: &Inspection) -> Result<(), Stopped> {
    let holders: Vec<_> = seen.holders.iter().map(u32::to_string).collect();
    let holders = match holders.is_empty() {
        true => "of no process".to_owned(),
        false => format!("of process {}", holders.join(", ")),
    };
    let name = match (path(seen), seen.strategy) {
        (Some(path), _) => plain(&path),
        (None, "file_descriptor") => format!("memfd {holders}"),
        (None, _) => format!("file without a name any more, {holders}"),
    };
    out.line(name)?;
    out.line(format_args!(
        "  strategy {}, {} of address space",
        seen.strategy,
        Size(inside.capacity)
    ))?;
    out.line(format_args!(
        "  live {} (blocks: {}), cached {}, committed {}",
        Size(inside.live),
        inside.blocks,
        Size(inside.cached),
        Size(inside.committed)
    ))?;
    if !inside.members.is_empty() {
        let (pid, name, state, blocks, held) = ("PID", "NAME", "STATE", "BLOCKS", "HOLDING");
        out.line(format_args!(
            "  {pid:>7}  {name:<17} {state:<18} {blocks:>7} {held:>10}  TASK"
        ))?;
    }
    for member in &inside.members {
        let process = Process::of(member);
        let name = match member.name.is_empty() {
            true => match (&process.command, member.pid_is_ours) {
                (Some(program), _) => format!("({program})"),
                (None, true) => "(gone)".to_owned(),
                (None, false) => "(not seen here)".to_owned(),
            },
            false => member.name.clone(),
        };
        let state = match (state(member), process.stopped, member.leaving) {
            ("alive", true, _) => "alive, stopped",
            ("alive", false, true) => "alive, leaving",
            ("dead", ..) => "dead, not buried",
            ("unknown", ..) => "can't be told",
            (state, ..) => state,
        };
        let line = format!(
            "  {:>7}  {:<17} {:<18} {:>7} {:>10}  {}",
            member.pid,
            plain(&name),
            state,
            member.blocks,
            Size(member.bytes),
            plain(&member.task)
        );
        out.line(line.trim_end())?;
    }
    if !inside.is_inhabited() {
        let what = match (inside.earlier_boot, &seen.path) {
            (_, None) => {
                "nobody takes part in it any more; it goes with the last process that has it open"
            }
            (true, _) => "made before the machine's last boot; `tensormp gc` removes it",
            (false, _) => "nobody takes part in it any more; `tensormp gc` removes it",
        };
        out.line(format_args!("  {what}"))?;
    }
    if inside.members.iter().any(|member| member.name.is_empty()) {
        out.line("  a name in brackets is that of a program, whose process was given none")?;
    }
    if inside.members.iter().any(|member| !member.pid_is_ours) {
        out.line("  some pids are those of another pid namespace (a container)")?;
    }
    Ok(())
}

fn state(member: &Member) -> &'static str {
    match member.verdict {
        Verdict::Alive => "alive",
        Verdict::Dead => "dead",
        Verdict::Unknown => "unknown",
    }
}

/// What the system says about a participant's process.
struct Process {
    command: Option<String>,
    stopped: bool,
}

impl Process {
    fn of(member: &Member) -> Self {
        let stat = match member.pid_is_ours && member.verdict == Verdict::Alive {
            true => fs::read(format!("/proc/{}/stat", member.pid)).unwrap_or_default(),
            false => Vec::new(),
        };
        Self::from_stat(&String::from_utf8_lossy(&stat))
    }

    /// From a line like `77 (name) S …`, where the name may hold anything.
    fn from_stat(stat: &str) -> Self {
        let name = stat
            .split_once('(')
            .and_then(|(_, rest)| rest.rsplit_once(')'));
        Self {
            command: name.map(|(name, _)| name.to_owned()),
            // Stopped by a signal, or held by a debugger.
            stopped: name.is_some_and(|(_, rest)| rest.trim_start().starts_with(['T', 't'])),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Process;

    #[test]
    fn a_process_is_stopped_whatever_it_is_called() {
        let process = Process::from_stat("77 (a) T (b) T 1 2");
        assert_eq!(
            (process.command.as_deref(), process.stopped),
            (Some("a) T (b"), true)
        );
        let process = Process::from_stat("77 (T) S 1 2");
        assert_eq!(
            (process.command.as_deref(), process.stopped),
            (Some("T"), false)
        );
        let process = Process::from_stat("");
        assert_eq!((process.command, process.stopped), (None, false));
    }
}
