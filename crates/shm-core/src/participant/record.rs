//! The flight recorder: what a participant was doing, readable after it was killed.

use core::sync::atomic::Ordering;

use super::table::Row;
use crate::arena::Arena;
use crate::cells::Owner;
use crate::clock::now_ns;
use crate::layout::{LINE, row};
use crate::object::Object;

/// Writes this process's own flight recorder.
#[derive(Debug)]
pub struct Recorder<'a> {
    pub(crate) arena: &'a Arena,
}

impl Recorder<'_> {
    fn row(&self) -> Option<Row<'_>> {
        // A fork would write into its parent's.
        (!self.arena.is_forked())
            .then(|| Row::get(self.arena.segment(), self.arena.me().row))
            .flatten()
    }

    /// The name of this process, up to 56 bytes.
    pub fn set_name(&self, name: &str) {
        crate::failpoint::named(name);
        if let Some(row) = self.row() {
            row.write_text(row::NAME, row::NAME_WORDS, name);
        }
    }

    /// What the process works on now, up to 120 bytes.
    pub fn set_task(&self, task: &str) {
        if let Some(row) = self.row() {
            row.write_text(row::TASK, row::TASK_WORDS, task);
        }
    }

    /// The panic that is going on, up to 760 bytes: readable even if it ends in an abort.
    pub fn set_panic(&self, text: &str) {
        if let Some(row) = self.row() {
            row.write_text(row::PANIC, row::PANIC_WORDS, text);
        }
    }

    /// Notes that the process is about to park on `object`.
    pub fn waiting_for(&self, object: &Object) {
        if let Some(row) = self.row() {
            if row.word(row::WAITING_FOR).load(Ordering::Relaxed) == 0 {
                row.word(row::WAITING_SINCE)
                    .store(now_ns(), Ordering::Relaxed);
            }
            row.word(row::WAITING_FOR)
                .store(object.base() / LINE, Ordering::Relaxed);
        }
    }

    /// Notes that the process waits no longer.
    pub fn done_waiting(&self) {
        if let Some(row) = self.row() {
            row.word(row::WAITING_FOR).store(0, Ordering::Relaxed);
        }
    }
}

/// What a participant's row says of it, alive or just dead.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record {
    /// Its process id, in its own pid namespace.
    pub pid: u32,
    /// Its name, or an empty text.
    pub name: String,
    /// What it worked on last, or an empty text.
    pub task: String,
    /// The last panic it began, if any.
    pub panic: Option<String>,
    /// For how long it has been parked, in nanoseconds, if it is.
    pub waiting_ns: Option<u64>,
}

/// Reads the row of `owner`, if that participant is still (or, dead, not yet buried) in it.
pub(crate) fn read(arena: &Arena, owner: Owner) -> Option<Record> {
    let row = Row::get(arena.segment(), owner.row)?;
    let (occupant, state) = row.occupant()?;
    if occupant != owner {
        return None;
    }
    let panic = row.read_text(row::PANIC, row::PANIC_WORDS);
    let waits = row.word(row::WAITING_FOR).load(Ordering::Relaxed) != 0;
    Some(Record {
        pid: state.pid,
        name: row.read_text(row::NAME, row::NAME_WORDS),
        task: row.read_text(row::TASK, row::TASK_WORDS),
        panic: (!panic.is_empty()).then_some(panic),
        waiting_ns: waits
            .then(|| now_ns().saturating_sub(row.word(row::WAITING_SINCE).load(Ordering::Relaxed))),
    })
}
