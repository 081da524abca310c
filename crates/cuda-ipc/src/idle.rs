//! What others ask of a process that does nothing: to close memory of theirs that it has open and does not use.
//!
//! Whoever uses device tensors looks for that when the next one comes. For who does not, the thread that watches the arena
//! looks, twice a second, at one word for each process of which memory is open. Closing waits for the device, so another
//! thread does it, which there is only as long as there is something to close.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::driver::check_not_forked;
use crate::hub::Hub;

/// Whether a thread closes memory.
static CLOSING: AtomicBool = AtomicBool::new(false);

/// Looks whether there is something to close; called by the thread that watches the arena.
pub(crate) fn look() {
    let Some(hub) = Hub::if_any() else { return };
    if check_not_forked().is_err()
        || !hub.is_asked_to_close()
        || CLOSING.swap(true, Ordering::AcqRel)
    {
        return;
    }
    let close = || {
        hub.close_retired();
        CLOSING.store(false, Ordering::Release);
    };
    let thread = std::thread::Builder::new().name("device-close".to_owned());
    if let Err(error) = thread.spawn(close) {
        tracing::warn!(%error, "memory of other processes is closed with the next device tensor only");
        CLOSING.store(false, Ordering::Release);
    }
}

impl Hub {
    /// Whether another process asks for memory to be closed. Waits for nobody.
    fn is_asked_to_close(&self) -> bool {
        let visited = self.visited.try_lock();
        visited.is_some_and(|visited| visited.values().any(|one| one.is_asking()))
    }

    /// Closes what others ask to have closed and nobody here uses.
    fn close_retired(&self) {
        let asking: Vec<_> = {
            let visited = self.visited.lock();
            let asking = visited.values().filter(|one| one.is_asking());
            asking.cloned().collect()
        };
        for visited in asking {
            let mut imports = self.imports.lock();
            let gone = Self::take_retired(&mut imports, &visited);
            drop(imports);
            // Closing waits for the device: outside of the lock.
            drop(gone);
        }
    }
}
