//! The story of a hang: what each process that is left is doing, by its flight recorder and by the kernel.

use std::fmt::Write;
use std::fs;

use shm_core::Arena;

use super::crew::Member;

pub(crate) fn story<'a>(arena: &Arena, left: impl Iterator<Item = &'a Member>) -> String {
    let mut text = String::new();
    for member in left {
        let pid = member.pid();
        let _ = writeln!(
            text,
            "process {pid}, life {} in place {}, armed with {}",
            member.life,
            member.slot,
            member
                .armed
                .as_ref()
                .map_or_else(|| "nothing".to_owned(), super::killer::Armed::text)
        );
        let record = arena
            .participant_of_pid(pid)
            .and_then(|owner| arena.record_of(owner));
        let _ = match record {
            Some(record) => writeln!(
                text,
                "  doing: {}; waiting: {}; panic: {}",
                record.task,
                record.waiting_ns.map_or_else(
                    || "no".to_owned(),
                    |ns| format!("for {} ms", ns / 1_000_000)
                ),
                record.panic.as_deref().unwrap_or("none")
            ),
            None => writeln!(text, "  it has no row in the arena"),
        };
        threads(pid, &mut text);
    }
    text
}

fn threads(pid: u32, text: &mut String) {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    for task in tasks.into_iter().flatten().flatten() {
        let read = |file| {
            fs::read_to_string(task.path().join(file))
                .unwrap_or_default()
                .trim_end()
                .to_owned()
        };
        // "pid (name) state …", and the name may contain anything.
        let stat = read("stat");
        let state = stat.rsplit(')').next().unwrap_or_default();
        let state = state.split_whitespace().next().unwrap_or("?").to_owned();
        let _ = writeln!(
            text,
            "  thread {}: state {state}, in {}, system call {}",
            read("comm"),
            read("wchan"),
            read("syscall")
        );
        let stack = read("stack");
        for line in stack.lines().take(8) {
            let _ = writeln!(text, "    {line}");
        }
    }
}
