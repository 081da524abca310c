//! The end of the process: what it has not given back by then is reported as a leak.

use crate::board::Kind;
use crate::process;

/// Looks around when the process ends by `exit` or by returning from `main`.
pub(crate) fn at_exit() {
    extern "C" fn look() {
        // A fork of a process that had the driver has nothing of its own.
        let Some(process) = process::started() else {
            return;
        };
        for line in process.belongings(None) {
            process.report(
                Kind::Leak,
                &format!("{line} at the end of process {}", process.pid),
            );
        }
    }
    // SAFETY: the handler is a function of a library that is never unloaded; it neither unwinds nor exits.
    unsafe { libc::atexit(look) };
}
