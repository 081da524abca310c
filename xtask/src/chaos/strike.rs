//! Blows that a process of the crew deals to its own children, at a moment that nobody chose.

use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::control::Control;
use super::orphans::seen;

/// What is done to a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blow {
    Kill,
    /// SIGSTOP, and SIGCONT so much later.
    Pause(Duration),
    /// SIGSTOP, and nothing more.
    Freeze,
}

/// Deals it, and answers whether there was somebody to hit. Only a child of this process is hit, whatever has become of
/// the number meanwhile.
pub(crate) fn strike(pid: u32, blow: Blow, control: &Control) -> bool {
    let Some(fd) =
        Pid::from_raw(pid.cast_signed()).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok())
    else {
        return false;
    };
    // The descriptor is of one process for ever, so what is seen after it was opened is that of this one, if it is ours.
    if !seen(pid).is_some_and(|seen| seen.parent == std::process::id() && !seen.is_zombie) {
        return false;
    }
    let send = |signal| pidfd_send_signal(&fd, signal).is_ok();
    match blow {
        Blow::Kill => {
            let hit = send(Signal::KILL);
            if hit {
                let _ = control.kill();
            }
            hit
        }
        Blow::Pause(time) => {
            let hit = send(Signal::STOP);
            let _ = control.child_stopped();
            std::thread::sleep(time);
            let _ = send(Signal::CONT);
            hit
        }
        Blow::Freeze => {
            let _ = control.child_stopped();
            send(Signal::STOP)
        }
    }
}
