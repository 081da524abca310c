//! The flight recorder: what a participant was doing, readable after it was killed.

use core::sync::atomic::{Ordering, fence};

use parking_lot::Mutex;

use super::table::Row;
use super::task;
use crate::arena::Arena;
use crate::cells::Owner;
use crate::clock::now_ns;
use crate::layout::{LINE, row};
use crate::object::Object;

/// Of threads that say at once what they work on, one after the other does.
static TASK: Mutex<()> = Mutex::new(());

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

    /// What the process works on now, up to 120 bytes. Whoever reads it after this process has ended finds the last text
    /// that was written whole, also if it was killed meanwhile.
    pub fn set_task(&self, task: &str) {
        // Before the lock, which a fork may find taken by a thread that it does not have.
        if let Some(row) = self.row() {
            let _turn = TASK.lock();
            task::write(&row, task);
        }
    }

    /// The panic that is going on, up to 632 bytes: readable even if it ends in an abort.
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

    /// The object in which others read what this process's streams of devices wait for. It stays for as long as the process
    /// takes part.
    pub fn set_streams(&self, object: &Object) {
        if let Some(row) = self.row() {
            let [line, _] = object.handle();
            // Release: pairs with the acquire in `streams_of`; whoever sees the line sees the object.
            row.word(row::STREAMS).store(line, Ordering::Release);
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
    (occupant == owner).then(|| said_in(&row, state.pid))
}

/// The same, also once that participant has left or was buried, as long as nobody else has taken the row. It has no process
/// id then.
pub(crate) fn read_last(arena: &Arena, owner: Owner) -> Option<Record> {
    let row = Row::get(arena.segment(), owner.row)?;
    let state = row.state();
    let last = said_in(&row, state.pid);
    // Who takes the row has another epoch there before it changes anything else. Pairs with the fence after that: who saw a
    // word of the next one's sees its epoch now.
    fence(Ordering::Acquire);
    let still_theirs = [state, row.state()]
        .iter()
        .all(|state| state.epoch == owner.epoch);
    still_theirs.then_some(last)
}

fn said_in(row: &Row<'_>, pid: u32) -> Record {
    let panic = row.read_text(row::PANIC, row::PANIC_WORDS);
    let waits = row.word(row::WAITING_FOR).load(Ordering::Relaxed) != 0;
    Record {
        pid,
        name: row.read_text(row::NAME, row::NAME_WORDS),
        task: task::read(row),
        panic: (!panic.is_empty()).then_some(panic),
        waiting_ns: waits
            .then(|| now_ns().saturating_sub(row.word(row::WAITING_SINCE).load(Ordering::Relaxed))),
    }
}

impl Arena {
    /// The handle of the object in which a participant says what its streams of devices wait for, if it is there and has one;
    /// see [`Recorder::set_streams`].
    #[must_use]
    pub fn streams_of(&self, owner: Owner) -> Option<[u64; 2]> {
        let row = Row::get(self.segment(), owner.row)?;
        // Acquire: pairs with the release in `set_streams`.
        let line = row.word(row::STREAMS).load(Ordering::Acquire);
        let handle = Object::current_handle(self, line)?;
        // Looked at last: it was this participant's all the time, which holds it.
        let (occupant, _) = row.occupant()?;
        (occupant == owner).then_some(handle)
    }
}
