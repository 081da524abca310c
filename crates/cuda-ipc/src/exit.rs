//! The end of the process: what was sent has been written before it is gone.
//!
//! A process that ends takes its work on devices with it, also what its last messages stand for, a result that goes home
//! among them. So a process that ends in peace waits for its streams, for a while.

use std::sync::Once;
use std::time::Duration;

use shm_core::patience::Patience;

use crate::driver::check_not_forked;
use crate::stream::Stream;

/// A stream may wait for another process that never comes to an end.
const PATIENCE: Duration = Duration::from_secs(5);

/// From now on the end of this process waits for its streams.
pub(crate) fn wait_for_streams() {
    static ONCE: Once = Once::new();
    extern "C" fn drain() {
        // In a thread of its own: what this thread had of its own is gone by now, also what a driver keeps there.
        let work = || Stream::drain_all(Patience::new(PATIENCE));
        if check_not_forked().is_ok()
            && let Ok(thread) = std::thread::Builder::new().spawn(work)
        {
            let _ = thread.join();
        }
    }
    ONCE.call_once(|| {
        // SAFETY: the handler is a function of this program, and does not unwind: it calls what gives errors back. Registered
        // after the driver was started, it runs before the driver's own.
        let code = unsafe { libc::atexit(drain) };
        if code != 0 {
            tracing::warn!("a process that ends right after it sent a device tensor may lose it");
        }
    });
}
