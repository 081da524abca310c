//! What is to be done when this process exits in an orderly way: by returning from `main`, or by `exit`.
//!
//! The other threads still run then, and may be anywhere; so a handler waits for nothing for long.

use std::sync::Once;

use parking_lot::Mutex;

static HANDLERS: Mutex<Vec<fn()>> = Mutex::new(Vec::new());

/// Has `handler` called when this process exits, those that were registered last first. Once for each time it is
/// registered. Not after `_exit`, a signal or an abort.
pub fn register(handler: fn()) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler is a function of this program, takes nothing, and does not unwind (see there).
        let failed = unsafe { libc::atexit(at_exit) } != 0;
        if failed {
            crate::say!(
                warn,
                "no exit handler to be had; the file of a named arena may stay behind"
            );
        }
    });
    HANDLERS.lock().push(handler);
}

extern "C" fn at_exit() {
    // Another thread may be in there, or may have been when this process was forked: then others clean up.
    let handlers = HANDLERS
        .try_lock()
        .map(|mut handlers| std::mem::take(&mut *handlers));
    for handler in handlers.into_iter().flatten().rev() {
        // A panic has printed itself; there is nobody left to tell.
        let _ = std::panic::catch_unwind(handler);
    }
}
