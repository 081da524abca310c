//! How handles to an arena come and go, and what it takes to leave it with the last one.

use core::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::{Arena, Inner};
use crate::layout::row;
use crate::participant::table::{self, Row};
use crate::strategy::file_system;
use crate::watcher::Gate;

/// The arenas that this process takes part in.
static ENTERED: Mutex<Vec<Weak<Inner>>> = Mutex::new(Vec::new());

impl Arena {
    /// This process has become a participant.
    pub(super) fn entered(&self) {
        if self.0.named {
            file_system::exit::register(self);
        }
        let mut entered = ENTERED.lock();
        entered.retain(|inner| inner.strong_count() > 0);
        entered.push(Arc::downgrade(&self.0));
    }

    /// Says in each arena of this process that its function has returned in order, and told whoever waits for that: with
    /// what is still in its hands when the process ends, as in a static, it has not died. To be called when nothing of its
    /// work is left to be done. One that is killed before it comes to say so has died with all that it holds.
    pub fn note_return() {
        // Outside of the lock: the last handle of an arena leaves it.
        let arenas = ENTERED.lock().clone();
        for arena in arenas.iter().filter_map(Weak::upgrade).map(Arena) {
            arena.note_own_return();
        }
    }

    pub(crate) fn note_own_return(&self) {
        if self.is_forked() {
            return;
        }
        if let Some(row) = Row::get(self.segment(), self.me().row) {
            // Release pairs with the load of who reaps this row, which the end of the process comes before in any case. The
            // epoch says whose word it is: whoever has the row next begins with none.
            row.word(row::RETURNED)
                .store(u64::from(self.me().epoch) + 1, Ordering::Release);
        }
    }
}

impl Clone for Arena {
    #[inline]
    fn clone(&self) -> Self {
        if self.0.gate.is_looking() {
            self.0.gate.cloned();
        }
        Self(Arc::clone(&self.0))
    }
}

impl Drop for Arena {
    #[inline]
    fn drop(&mut self) {
        if self.0.gate.is_looking() {
            Gate::dropped(self);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.segment.is_forked() {
            self.watcher.forget();
            return;
        }
        // No handle of ours is left (each keeps the arena), so there is nothing to drop but chunks and the row.
        crate::heap::bury_chunks(&self.segment, self.me);
        crate::heap::give_back_inherited(&self.segment, self.me);
        table::leave(&self.segment, self.me, &self.locks);
        if self.named {
            // After the row is free: either whoever comes finds the name gone, or we find them in their row.
            file_system::exit::left(&self.segment, &self.locks);
        }
    }
}

#[cfg(test)]
impl Arena {
    /// Ends the watcher, as SIGKILL ends all threads.
    pub(crate) fn end_watcher(&self) {
        self.0.watcher.end();
    }
}
