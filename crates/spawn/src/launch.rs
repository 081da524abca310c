//! Starting one child: a socket pair, the greeting in it, and this executable once more with the other end as stdin.
//!
//! No code of ours or of the program runs between the start of a process and its executable: what a child must do
//! first, it does in [`init`](crate::init). That keeps the start as fast for a parent that maps gigabytes as for a small
//! one.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::control;
use crate::error::{BoxError, Error, ErrorKind, Result};
use crate::hello::{Greeting, Handle, Hello, SERVER, Signature, WORKER};
use crate::image::{Build, SELF, image};
use crate::link::{self, Mailbox, Member};
use crate::program::{Program, Stream, Trouble};
use crate::server::TITLE;
use crate::setup::Setup;
use crate::trampoline::Target;

/// What to say when the process, or the system, has no file descriptor left.
pub(crate) const NO_DESCRIPTOR: &str = "this process has as many files open as it may (each child takes two): close some, or raise `ulimit -n`";

/// What a child is to be.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) target: Target,
    pub(crate) name: String,
    pub(crate) rank: usize,
    /// The context's number in this process.
    pub(crate) context: u32,
    pub(crate) depth: u32,
    pub(crate) arguments: Arguments,
    pub(crate) outcome: Handle,
    /// The stdin to hand over, if it gets one.
    pub(crate) stdin: Option<OwnedFd>,
    /// What else is arranged for it.
    pub(crate) setup: Setup,
}

/// The arguments of a child, until it has them.
#[derive(Debug)]
pub(crate) enum Arguments {
    /// They travel in the greeting.
    Plain(Vec<u8>),
    /// They lie in a letterbox.
    Mailbox(Mailbox),
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
    let failed = |what: &str, source: BoxError| plan.failed(what, source);
    let (ours, theirs) = greet(plan)?;
    let (pid, pidfd) = run(&plan.setup.program(title(&plan.name), theirs.as_fd()))
        .map_err(|(what, source)| failed(&what, source))?;
    Ok(Launched {
        pid,
        pidfd,
        control: ours,
    })
}

/// Starts a fork server, which preloads that. To be called on the thread that its children's parent-death signals are to
/// be tied to.
pub(crate) fn launch_server(preload: Option<&Target>) -> Result<Launched> {
    let failed = |what: &str, source: BoxError| {
        let what = format!("a fork server could not be started: {what}");
        Error::caused(ErrorKind::Launch, what, source)
    };
    let (ours, theirs) = control::pair().map_err(|errno| no_pair(errno, failed))?;
    let image = image().map_err(|reason| failed(NOT_AGAIN, reason.into()))?;
    let hello = Hello::new(&Greeting {
        build: image.build(),
        signature: preload.map_or(Signature::NONE, |target| target.signature),
        offset: preload.map_or(0, |target| target.offset),
        arguments: [0; 2],
        outcome: [0; 2],
        parent: std::process::id(),
        rank: 0,
        depth: 0,
        stdin: false,
        role: SERVER,
        inline: false,
        supervisor: Member::default(),
        context: 0,
        name: "forkserver".to_owned(),
    });
    control::send(ours.as_fd(), hello.as_bytes(), &[])
        .map_err(|errno| failed(NOT_SENT, errno.into()))?;
    // Its copies write their own titles over this one.
    let mut long = title("forkserver").into_encoded_bytes();
    long.resize(long.len().max(TITLE), b' ');
    let program = Program {
        path: OsStr::new(SELF),
        title: OsString::from_vec(long),
        arguments: &[],
        env_clear: false,
        env: &[],
        directory: None,
        stdin: theirs.as_fd(),
        stdout: Stream::Inherit,
        stderr: Stream::Inherit,
        leads_group: true,
    };
    let (pid, pidfd) = run(&program).map_err(|(what, source)| failed(&what, source))?;
    Ok(Launched {
        pid,
        pidfd,
        control: ours,
    })
}

/// What to do where this executable is not found by its link.
const NO_PROC: &str = " (/proc is not there, as below a root directory that was changed by `chroot`: mount proc at /proc \
                       in it, or start processes before)";
const NOT_AGAIN: &str = "this executable cannot be run again";
const NO_ARENA: &str = "no arena to give to it";
const NOT_SENT: &str = "the greeting could not be sent";

impl Plan {
    /// The error that this child could not be started.
    pub(crate) fn failed(&self, what: &str, source: impl Into<BoxError>) -> Error {
        let (rank, name) = (self.rank, &self.name);
        let what = format!("process {rank} (\"{name}\") could not be started: {what}");
        Error::caused(ErrorKind::Launch, what, source)
    }
}

fn no_pair(errno: Errno, failed: impl Fn(&str, BoxError) -> Error) -> Error {
    match errno {
        Errno::MFILE | Errno::NFILE => failed(NO_DESCRIPTOR, errno.into()),
        _ => failed("no socket pair for it", errno.into()),
    }
}

/// The control socket of a child that is to be, with the greeting in it: our end and the child's.
pub(crate) fn greet(plan: &Plan) -> Result<(OwnedFd, OwnedFd)> {
    let failed = |what: &str, source: BoxError| plan.failed(what, source);
    let (ours, theirs) = control::pair().map_err(|errno| no_pair(errno, failed))?;
    // Another executable is asked by name, not by place.
    let build = if plan.setup.is_foreign() {
        Build::none()
    } else {
        let image = image().map_err(|reason| failed(NOT_AGAIN, reason.into()))?;
        image.build()
    };
    let (handle, plain) = match &plan.arguments {
        Arguments::Plain(bytes) => ([0; 2], Some(bytes)),
        Arguments::Mailbox(mailbox) => (mailbox.handle(), None),
    };
    let hello = Hello::new(&Greeting {
        build,
        signature: plan.target.signature,
        offset: plan.target.offset,
        arguments: handle,
        outcome: plan.outcome,
        parent: std::process::id(),
        rank: u32::try_from(plan.rank).unwrap_or(u32::MAX),
        depth: plan.depth,
        stdin: plan.stdin.is_some(),
        role: WORKER,
        inline: plain.is_some(),
        supervisor: link::me().map_err(|error| failed(NO_ARENA, error))?,
        context: plan.context,
        name: plan.name.clone(),
    });
    let arena = link::arena().map_err(|error| failed(NO_ARENA, error))?;
    let mut descriptors = vec![arena.as_fd()];
    descriptors.extend(plan.stdin.as_ref().map(|stdin| stdin.as_fd()));
    descriptors.extend(plan.setup.descriptor());
    let mut packet = hello.as_bytes().to_vec();
    let orders = plan.setup.orders();
    packet.extend(orders.map_err(|error| failed(NOT_SENT, error))?);
    packet.extend(plain.into_iter().flatten());
    control::send(ours.as_fd(), &packet, &descriptors).map_err(|errno| {
        let error = std::io::Error::from(errno);
        failed(&format!("{NOT_SENT}{}", advice(&error)), error.into())
    })?;
    Ok((ours, theirs))
}

/// Runs a program. An error says what failed.
fn run(program: &Program<'_>) -> Result<(u32, Option<OwnedFd>), (String, BoxError)> {
    program.run().map_err(|trouble| {
        let (what, errno) = match trouble {
            Trouble::Directory(errno) => {
                let path = program.directory.unwrap_or(Path::new("."));
                let what = format!(
                    "its working directory {} could not be entered",
                    path.display()
                );
                (what, errno)
            }
            Trouble::Zero => {
                let what = format!("{} has a zero byte in it", with_a_zero(program));
                return (what, "the system takes a text to end there".into());
            }
            Trouble::Descriptor(errno @ (Errno::MFILE | Errno::NFILE)) => {
                (NO_DESCRIPTOR.to_owned(), errno)
            }
            Trouble::Descriptor(errno) => {
                let what = "no descriptor for the process (it takes Linux 5.4 or newer)";
                (what.to_owned(), errno)
            }
            Trouble::Before(step, errno) => {
                let what = format!("the new process was refused {step}, before it ran anything");
                (what, errno)
            }
            Trouble::Process(errno) => {
                let what = format!("the system made no process{}", advice(&errno.into()));
                (what, errno)
            }
            Trouble::Program(errno) => {
                let path = program.path.display();
                let advice = match errno {
                    Errno::NOENT if program.path == SELF => NO_PROC,
                    _ => advice(&errno.into()),
                };
                (format!("running {path} failed{advice}"), errno)
            }
        };
        (what, errno.into())
    })
}

/// Which of the texts that it gets has a zero byte in it.
fn with_a_zero(program: &Program<'_>) -> String {
    let has = |text: &OsStr| text.as_bytes().contains(&0);
    let variable = |(name, value): &&(OsString, Option<OsString>)| {
        has(name) || value.as_deref().is_some_and(has)
    };
    if let Some((name, _)) = program.env.iter().find(variable) {
        format!("the variable {name:?} of its environment")
    } else if program.directory.is_some_and(|path| has(path.as_os_str())) {
        format!(
            "the path of its working directory, {:?},",
            program.directory.unwrap_or(Path::new(""))
        )
    } else if has(program.path) {
        format!("the path of its executable, {:?},", program.path)
    } else {
        "one of its arguments".to_owned()
    }
}

/// What to do about it, where the system's own words do not say.
pub(crate) fn advice(error: &std::io::Error) -> &'static str {
    match Errno::from_io_error(error) {
        Some(Errno::AGAIN) => {
            " (this user, or this container, has as many processes and threads as it may: see `ulimit -u` and the \
             `pids.max` of its cgroup)"
        }
        Some(Errno::MFILE) => {
            " (this process has as many files open as it may: close some, or raise `ulimit -n`)"
        }
        Some(Errno::NFILE) => {
            " (all programs together have as many files open as they may: see /proc/sys/fs/file-max)"
        }
        Some(Errno::TOOMANYREFS) => {
            " (this user's processes have as many file descriptors on their way to others as they may: raise `ulimit -n`, \
             or start fewer processes at once)"
        }
        Some(Errno::PERM) => " (does a filter of system calls forbid it?)",
        Some(Errno::TOOBIG) => " (the environment is larger than the system hands to a program)",
        _ => "",
    }
}

/// What `ps` shows as the command: the program's own, and which worker of it.
pub(crate) fn title(name: &str) -> OsString {
    let mut title = std::env::args_os().next().unwrap_or_else(|| SELF.into());
    title.push(" [");
    title.push(name);
    title.push("]");
    title
}

/// Whether it is what [`title`] makes.
pub(crate) fn is_a_title(text: &OsStr) -> bool {
    let text = text.to_string_lossy();
    text.ends_with(']') && text.contains(" [")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_and_a_huge_environment_are_told_with_what_to_do() {
        let said = |errno: Errno| advice(&errno.into());
        assert!(said(Errno::AGAIN).contains("ulimit -u"));
        assert!(said(Errno::MFILE).contains("ulimit -n"));
        assert!(said(Errno::NFILE).contains("file-max"));
        assert!(said(Errno::TOOBIG).contains("environment"));
        assert!(said(Errno::TOOMANYREFS).contains("ulimit -n"));
        assert_eq!(said(Errno::NOENT), "");
    }
}
