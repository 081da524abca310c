//! Blocks on which this process may have work for as long as it lives.
//!
//! What is in a stream behind somebody dead may begin as long as the process of the stream lives, and no event tells of its
//! end. So a word of the block says that this process *keeps* it. Where all of them say something else, which is not over,
//! the process holds the block's token until one is free: nobody takes a block for free whose token is held.

use std::time::Duration;

use parking_lot::Mutex;
use shm_core::trace::{Hold, Trace};

use crate::place::Place;

/// A block that has no word yet that says so.
#[derive(Debug)]
struct Kept {
    place: Place,
    index: u32,
    /// Dropped after the word was written, and with the process.
    _token: Hold,
}

static KEPT: Mutex<Vec<Kept>> = Mutex::new(Vec::new());

/// This process may have work on a block as long as it lives. It holds the block's token meanwhile, and may let go of it then.
pub(crate) fn keep(place: &Place, index: u32, token: &Trace) {
    let mut is_told = false;
    while !place.keep(index) {
        match token.hold() {
            Ok(token) => {
                let place = place.clone();
                return KEPT.lock().push(Kept {
                    place,
                    index,
                    _token: token,
                });
            }
            // Its token is gone already, and who writes the block next does not know of this.
            Err(error) if *error.kind() == shm_core::ErrorKind::Stale => {
                return tracing::error!(%error, "a device tensor went before its last use was noted");
            }
            // Whoever lets go waits rather than that the device reads what others write.
            Err(error) if !std::mem::replace(&mut is_told, true) => {
                tracing::error!(%error, "a device tensor that a stream behind a dead process uses cannot be let go of yet");
            }
            Err(_) => {}
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Those for which there is a word by now are held no longer; called by the thread that watches the arena.
pub(crate) fn look() {
    KEPT.lock().retain(|kept| !kept.place.keep(kept.index));
}
