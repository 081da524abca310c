//! Starting one child: a socket pair, the greeting in it, and this executable once more with the other end as stdin.
//!
//! The standard library stays on `posix_spawn` as long as no hook runs between fork and exec, so none does: what a
//! child must do first, it does in [`init`](crate::init). That keeps the start as fast for a parent that maps
//! gigabytes as for a small one.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use zerocopy::IntoBytes;

use crate::control;
use crate::entry::MARKER;
use crate::error::{Error, ErrorKind, Result};
use crate::hello::{Greeting, Handle, Hello};
use crate::image::{SELF, image};
use crate::link::{self, Mailbox};
use crate::trampoline::Target;

/// What to say when the process, or the system, has no file descriptor left.
const NO_DESCRIPTOR: &str = "this process has as many files open as it may (each child takes two): close some, or raise `ulimit -n`";

/// What a child is to be.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) target: Target,
    pub(crate) name: String,
    pub(crate) rank: usize,
    pub(crate) depth: u32,
    /// Holds the arguments until the child has them.
    pub(crate) arguments: Mailbox,
    pub(crate) outcome: Handle,
    /// The stdin to hand over, if it gets one.
    pub(crate) stdin: Option<OwnedFd>,
}

/// A child that was started.
#[derive(Debug)]
pub(crate) struct Launched {
    pub(crate) pid: u32,
    /// `None`: it was gone, and reaped by the system, before it could be looked at.
    pub(crate) pidfd: Option<OwnedFd>,
    pub(crate) control: OwnedFd,
}

/// Starts the child. To be called on a thread that lives as long as the process: the child's parent-death signal is
/// sent when the *thread* that started it ends.
pub(crate) fn launch(plan: &Plan) -> Result<Launched> {
    let failed = |what: &str, source: crate::error::BoxError| {
        Error::caused(
            ErrorKind::Launch,
            format!(
                "process {} (\"{}\") could not be started: {what}",
                plan.rank, plan.name
            ),
            source,
        )
    };
    let (ours, theirs) = control::pair().map_err(|errno| match errno {
        Errno::MFILE | Errno::NFILE => failed(NO_DESCRIPTOR, errno.into()),
        _ => failed("no socket pair for it", errno.into()),
    })?;
    let image =
        image().map_err(|reason| failed("this executable cannot be run again", reason.into()))?;
    let hello = Hello::new(&Greeting {
        build: image.build(),
        signature: plan.target.signature,
        offset: plan.target.offset,
        arguments: plan.arguments.handle(),
        outcome: plan.outcome,
        parent: std::process::id(),
        rank: u32::try_from(plan.rank).unwrap_or(u32::MAX),
        depth: plan.depth,
        stdin: plan.stdin.is_some(),
        name: plan.name.clone(),
    });
    let arena = link::arena().map_err(|error| failed("no arena to give to it", error))?;
    let mut descriptors = vec![arena.as_fd()];
    descriptors.extend(plan.stdin.as_ref().map(|stdin| stdin.as_fd()));
    control::send(ours.as_fd(), hello.as_bytes(), &descriptors)
        .map_err(|errno| failed("the greeting could not be sent", errno.into()))?;

    let mut command = Command::new(SELF);
    command
        .arg0(title(&plan.name))
        .env(MARKER, std::process::id().to_string())
        .stdin(theirs);
    // A group of its own keeps the terminal's Ctrl-C with the parent, which decides what becomes of its children. One
    // that reads the terminal must stay in the foreground group, or reading would stop it.
    if plan.stdin.is_none() {
        command.process_group(0);
    }
    let child = command
        .spawn()
        .map_err(|error| failed(&format!("running {SELF} again failed"), error.into()))?;
    let pid = child.id();
    // A child that nobody waited for keeps its id, so this opens the right process. Only where the host ignores
    // SIGCHLD could the id be free again already; it would have to be given to another process within microseconds.
    let pidfd = match Pid::from_raw(pid as i32).map(|pid| pidfd_open(pid, PidfdFlags::empty())) {
        Some(Ok(pidfd)) => Some(pidfd),
        Some(Err(Errno::SRCH)) | None => None,
        Some(Err(errno)) => {
            let mut child = child;
            let _ = child.kill();
            let _ = child.wait();
            let why = match errno {
                Errno::MFILE | Errno::NFILE => NO_DESCRIPTOR,
                _ => "no descriptor for the process (it takes Linux 5.4 or newer)",
            };
            return Err(failed(why, errno.into()));
        }
    };
    Ok(Launched {
        pid,
        pidfd,
        control: ours,
    })
}

/// What `ps` shows as the command: the program's own, and which worker of it.
fn title(name: &str) -> std::ffi::OsString {
    let mut title = std::env::args_os().next().unwrap_or_else(|| SELF.into());
    title.push(" [");
    title.push(name);
    title.push("]");
    title
}
