//! How handles to an arena come and go, and what it takes to leave it with the last one.

use std::sync::Arc;

use super::{Arena, Inner};
use crate::participant::table;
use crate::strategy::file_system;
use crate::watcher::Gate;

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
