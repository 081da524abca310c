//! `tensormp gc`: removes what was left by arenas whose processes were all killed.

use serde_json::json;
use shm_core::participant::liveness::Verdict;
use shm_core::strategy::file_system::{Found, Standing, list, sweep};

use crate::Where;
use crate::directories::to_search;
use crate::output::{Out, Size, Stopped, complain, plain};

/// Answers whether everything could be read, and removed if it was to be.
pub(crate) fn run(place: &Where, dry_run: bool, out: &mut Out) -> Result<bool, Stopped> {
    let (directories, mut well) = to_search(&place.directories);
    for directory in &directories {
        let swept = match sweep(directory, dry_run) {
            Ok(swept) => swept,
            Err(error) => {
                complain(&error);
                well = false;
                continue;
            }
        };
        let mut removed = 0;
        let mut told = Vec::new();
        for swept in swept {
            let action = match (swept.removed, dry_run) {
                (true, _) => "removed",
                (false, true) => "would remove",
                // Somebody came or removed it before us: what is there now is told below.
                (false, false) => continue,
            };
            removed += 1;
            tell(out, &swept.found, action)?;
            told.push(swept.found.path);
        }
        let kept = match list(directory) {
            Ok(found) => found,
            Err(error) => {
                complain(&error);
                well = false;
                continue;
            }
        };
        for found in kept.iter().filter(|found| !told.contains(&found.path)) {
            tell(out, found, "kept")?;
        }
        if removed == 0 {
            out.line(format_args!(
                "nothing to remove in {}",
                plain(&directory.display().to_string())
            ))?;
        }
    }
    Ok(well)
}

fn tell(out: &mut Out, found: &Found, action: &str) -> Result<(), Stopped> {
    let pids: Vec<u32> = found
        .participants
        .iter()
        .filter(|inhabitant| inhabitant.verdict != Verdict::Dead)
        .map(|inhabitant| inhabitant.pid)
        .collect();
    let (code, why) = match found.standing {
        Standing::Abandoned => ("abandoned", "nobody lives there any more".to_owned()),
        Standing::Unfinished => (
            "unfinished",
            "its maker did not live to finish it".to_owned(),
        ),
        Standing::Damaged => (
            "damaged",
            "its file was cut short or does not add up, and nobody has it locked".to_owned(),
        ),
        Standing::Inhabited if pids.is_empty() => {
            ("inhabited", "somebody lives there, or may".to_owned())
        }
        Standing::Inhabited => {
            let pids: Vec<_> = pids.iter().map(u32::to_string).collect();
            ("inhabited", format!("used by process {}", pids.join(", ")))
        }
        Standing::Busy => ("busy", "somebody comes or leaves just now".to_owned()),
        Standing::OtherVersion(version) => (
            "other version",
            format!("laid out by another version ({version}), so who lives there can't be told"),
        ),
        _ => ("unknown", "what it is can't be told".to_owned()),
    };
    let path = plain(&found.path.display().to_string());
    out.object(&json!({
        "path": found.path.to_string_lossy(),
        "action": action,
        "why": code,
        "taken": found.taken,
        "participants": pids,
    }))?;
    out.line(format_args!(
        "{action} {path}: {why} ({})",
        Size(found.taken)
    ))
}
