//! What a process says that it works on, for whoever hears of its end.
//!
//! It is written into the process's place in the arena. A worker has none before [`init`](crate::init), so what it says
//! until then is kept; a fork server has none at all.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::entry::{self, Role};
use crate::link;

/// What was said before there was a place for it.
static EARLY: Mutex<Option<String>> = Mutex::new(None);

/// This is a fork server, which works on nothing.
static NOWHERE: AtomicBool = AtomicBool::new(false);

/// Notes what this process is at, in up to 120 bytes. If it ends before its function returns, the error says so
/// ([`ProcessExited`](crate::ErrorKind::ProcessExited), `last_task`), however it was killed; `tensormp ls` shows it while
/// it lives. Of what several threads note at once one counts, and a process that is killed while it notes the next is told
/// by what it had noted before.
///
/// What is noted lies in shared memory, and is overwritten by the next: cheap enough for each item of a loop. The first
/// call makes the process take part in the arena; where that cannot be done, nothing is noted. What a worker notes before
/// [`init`](crate::init) is written there by that; what a function notes that a fork server preloads is not kept.
///
/// ```no_run
/// fn decode(_rank: usize, files: Vec<String>) -> std::io::Result<u64> {
///     let mut bytes = 0;
///     for file in files {
///         spawn::set_task(&file);
///         bytes += std::fs::read(&file)?.len() as u64;
///     }
///     Ok(bytes)
/// }
/// ```
pub fn set_task(task: &str) {
    if NOWHERE.load(Ordering::Relaxed) {
        return;
    }
    if !entry::INITIALIZED.load(Ordering::Relaxed) && matches!(entry::role(), Role::Worker) {
        *EARLY.lock() = Some(task.to_owned());
        return;
    }
    link::set_task(task);
}

/// This worker has a place in the arena to come, and may have said before what it works on.
pub(crate) fn note_early() {
    if let Some(task) = EARLY.lock().take() {
        link::set_task(&task);
    }
}

/// While this runs, nothing is noted.
pub(crate) fn without<R>(run: impl FnOnce() -> R) -> R {
    NOWHERE.store(true, Ordering::Relaxed);
    let done = run();
    NOWHERE.store(false, Ordering::Relaxed);
    done
}
