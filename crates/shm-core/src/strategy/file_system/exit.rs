//! What a process owes a named arena when it leaves: the last one out removes the name.
//!
//! An arena that is dropped does that at once. Most programs never drop theirs: the current arena lies in a static, and
//! the process just ends. Hence a handler that runs when it exits. It only says, in this process's row, that the name
//! is no longer needed here, and removes it if everybody else said so, left, or is dead; the memory stays mapped for
//! whatever other threads still do.

use core::sync::atomic::Ordering;
use std::sync::{Once, Weak};

use parking_lot::Mutex;

use super::{PATIENCE, remove};
use crate::arena::{Arena, Inner};
use crate::layout::row;
use crate::participant::liveness::Verdict;
use crate::participant::lock::RowLocks;
use crate::participant::table::{Row, rows};
use crate::reap;
use crate::segment::Segment;
use std::os::fd::AsFd;

/// The named arenas that this process takes part in.
static NAMED: Mutex<Vec<Weak<Inner>>> = Mutex::new(Vec::new());

/// From now on the end of this process is told to the arena.
pub(crate) fn register(arena: &Arena) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| crate::exit::register(at_exit));
    let mut named = NAMED.lock();
    named.retain(|inner| inner.strong_count() > 0);
    named.push(std::sync::Arc::downgrade(&arena.0));
}

fn at_exit() {
    // Another thread may be in there, or may have been when this process was forked: then the sweep has it.
    let named = NAMED
        .try_lock()
        .map(|mut named| std::mem::take(&mut *named));
    for arena in named
        .into_iter()
        .flatten()
        .filter_map(|inner| inner.upgrade())
    {
        exiting(&Arena(arena));
    }
}

fn exiting(arena: &Arena) {
    if arena.is_forked() {
        return;
    }
    if let Some(row) = Row::get(arena.segment(), arena.me().row) {
        row.word(row::LEAVING)
            .store(u64::from(arena.me().epoch) + 1, Ordering::Release);
    }
    left(arena.segment(), arena.locks());
}

/// Somebody has left: removes the arena's name if nobody is there.
pub(crate) fn left(segment: &Segment, locks: &RowLocks) {
    crate::failpoint!("named.left");
    let outcome = locks.gate(PATIENCE).and_then(|gate| match gate {
        Some(_gate) if !is_inhabited(segment, locks) => {
            crate::failpoint!("named.alone");
            remove(segment.as_fd())
        }
        _ => Ok(false),
    });
    if let Err(error) = outcome {
        crate::say!(warn, %error, "the file of a named arena stays behind");
    }
}

/// Whether anybody needs the arena's name: in doubt, yes. Asked with the gate in hand.
pub(crate) fn is_inhabited(segment: &Segment, locks: &RowLocks) -> bool {
    rows(segment).any(|row| match reap::judge(locks, row) {
        Some((owner, _, verdict)) => {
            let leaving = row.word(row::LEAVING).load(Ordering::Acquire);
            verdict != Verdict::Dead && leaving != u64::from(owner.epoch) + 1
        }
        // Nobody, or it changed hands while we looked.
        None => row.occupant().is_some(),
    })
}
