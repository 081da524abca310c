//! Who holds what somebody waits for, in words: name, pid, what it works on, and whether it is stopped.

use std::fmt::Write as _;

use shm_core::arena::Arena;
use shm_core::cells::Owner;
use shm_core::failure::Named;

/// A participant as a message should name it.
pub(crate) fn describe(arena: &Arena, owner: Owner) -> String {
    let Some(record) = arena.record_of(owner) else {
        return "a process that is gone".into();
    };
    let mut text = if owner == arena.me() {
        format!("this process itself (pid {})", record.pid)
    } else {
        Named(&record.name, record.pid).to_string()
    };
    if !record.task.is_empty() {
        let _ = write!(text, " at \"{}\"", record.task);
    }
    if is_stopped(record.pid) {
        text += ", which is stopped";
    }
    text
}

/// What to add to a message about a wait that was in vain.
pub(crate) fn clause(arena: &Arena, holder: Option<Owner>) -> String {
    holder.map_or(String::new(), |owner| {
        format!("; it is in the hands of {}", describe(arena, owner))
    })
}

/// Whether a signal or a debugger has stopped the process. `false` where that cannot be told.
fn is_stopped(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .ok()
        // The name before it is in brackets and may contain any.
        .and_then(|stat| {
            stat.rsplit_once(')')
                .map(|(_, rest)| rest.trim_start().to_owned())
        })
        .is_some_and(|rest| rest.starts_with(['T', 't']))
}
