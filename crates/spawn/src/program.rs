//! A program to run: by a start of our own where the system allows it, else by the standard library.

use std::ffi::{CString, OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Access, Mode, OFlags};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::death;
use crate::entry::MARKER;
use crate::image::SELF;
use crate::link;
use crate::link::apart;
use crate::vfork::{self, NotStarted, Ready, Step, Texts};

/// The program, and what it gets.
#[derive(Debug)]
pub(crate) struct Program<'a> {
    pub(crate) path: &'a OsStr,
    /// What `ps` shows as its command.
    pub(crate) title: OsString,
    pub(crate) arguments: &'a [String],
    /// It gets nothing of this process's environment.
    pub(crate) env_clear: bool,
    /// Variables that are set in its environment, or removed from it; the last word on each counts.
    pub(crate) env: &'a [(OsString, Option<OsString>)],
    pub(crate) directory: Option<&'a Path>,
    pub(crate) stdin: BorrowedFd<'a>,
    pub(crate) stdout: Stream<'a>,
    pub(crate) stderr: Stream<'a>,
    /// It is in a process group of its own.
    pub(crate) leads_group: bool,
}

/// Where a program writes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stream<'a> {
    /// Where this process writes.
    Inherit,
    Null,
    To(BorrowedFd<'a>),
}

/// Why a program does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The directory that it was to be in.
    Directory(Errno),
    /// A descriptor that it takes.
    Descriptor(Errno),
    /// A text that it was to get has a zero byte in it.
    Zero,
    /// What it does before it runs, which has these words.
    Before(&'static str, Errno),
    /// There was no process to run it.
    Process(Errno),
    /// All else.
    Program(Errno),
}

/// Room for an environment of a usual size.
const ROOM: usize = 8 << 10;

/// A system that refused to start a process in our own way is not asked again.
static UNABLE: AtomicBool = AtomicBool::new(false);

impl Program<'_> {
    /// Runs it. Gives its process id, and a descriptor for it unless it is gone already.
    pub(crate) fn run(&self) -> Result<(u32, Option<OwnedFd>), Trouble> {
        // Another program may be named by a word that is looked up, which the standard library
        // does.
        if self.path == SELF && !UNABLE.load(Ordering::Relaxed) {
            match self.start() {
                Ok((pid, pidfd)) => return Ok((pid, Some(keep(pidfd)?))),
                Err(NotStarted::Unable(errno)) => {
                    link::say!(debug, %errno, "processes are started by the standard library from now on");
                    UNABLE.store(true, Ordering::Relaxed);
                }
                Err(NotStarted::Zero) => return Err(Trouble::Zero),
                Err(NotStarted::Refused(errno @ (Errno::MFILE | Errno::NFILE))) => {
                    return Err(Trouble::Descriptor(errno));
                }
                Err(NotStarted::Failed(Step::Directory, errno)) => {
                    return Err(Trouble::Directory(errno));
                }
                Err(NotStarted::Failed(Step::Group, errno)) => {
                    return Err(Trouble::Before(
                        "a process group of its own (setpgid)",
                        errno,
                    ));
                }
                Err(NotStarted::Failed(Step::Streams, errno)) => {
                    return Err(Trouble::Before(
                        "its stdin, stdout and stderr (dup3)",
                        errno,
                    ));
                }
                Err(NotStarted::Refused(errno)) => return Err(Trouble::Process(errno)),
                Err(NotStarted::Failed(Step::Program, errno)) => {
                    return Err(Trouble::Program(errno));
                }
            }
        }
        self.command()
    }

    /// By a start of our own.
    fn start(&self) -> Result<(u32, OwnedFd), NotStarted> {
        let text = |bytes: &[u8]| CString::new(bytes).map_err(|_| NotStarted::Zero);
        let mut arguments = Texts::default();
        arguments.push(&[self.title.as_bytes()])?;
        for argument in self.arguments {
            arguments.push(&[argument.as_bytes()])?;
        }
        arguments.close();
        let environment = self.environment()?;
        let program = text(self.path.as_bytes())?;
        let directory = self.directory.map(|path| text(path.as_os_str().as_bytes()));
        let directory = directory.transpose()?;
        let null = if matches!(
            (self.stdout, self.stderr),
            (Stream::Null, _) | (_, Stream::Null)
        ) {
            Some(nowhere().map_err(NotStarted::Refused)?)
        } else {
            None
        };
        let place = |stream| match stream {
            Stream::Inherit => None,
            Stream::Null => null.as_ref().map(AsFd::as_fd),
            Stream::To(descriptor) => Some(descriptor),
        };
        vfork::start(&Ready {
            program: &program,
            arguments: &arguments,
            environment: &environment,
            directory: directory.as_deref(),
            streams: [Some(self.stdin), place(self.stdout), place(self.stderr)],
            leads_group: self.leads_group,
        })
    }

    /// Its environment, and in it whose worker it is.
    fn environment(&self) -> Result<Texts, NotStarted> {
        let mut texts = Texts::with_room(ROOM);
        let changed =
            |name: &OsStr| name == MARKER || self.env.iter().any(|(other, _)| other == name);
        if !self.env_clear {
            for (name, value) in std::env::vars_os() {
                if !changed(&name) {
                    texts.push(&[name.as_bytes(), b"=", value.as_bytes()])?;
                }
            }
        }
        for (index, (name, value)) in self.env.iter().enumerate() {
            let is_last = !self.env[index + 1..].iter().any(|(other, _)| other == name);
            if let Some(value) = value
                && is_last
                && name != MARKER
            {
                texts.push(&[name.as_bytes(), b"=", value.as_bytes()])?;
            }
        }
        texts.push(&[
            MARKER.as_bytes(),
            b"=",
            std::process::id().to_string().as_bytes(),
        ])?;
        texts.close();
        Ok(texts)
    }

    /// By the standard library, which stays on `posix_spawn` all the way: nothing here needs a step between fork and exec.
    fn command(&self) -> Result<(u32, Option<OwnedFd>), Trouble> {
        let owned = |descriptor: BorrowedFd<'_>| {
            let owned = descriptor.try_clone_to_owned();
            owned.map_err(|error| Trouble::Descriptor(number(&error).unwrap_or(Errno::MFILE)))
        };
        let mut command = Command::new(self.path);
        command.arg0(&self.title).args(self.arguments);
        if self.env_clear {
            command.env_clear();
        }
        for (name, value) in self.env {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.env(MARKER, std::process::id().to_string());
        if let Some(path) = self.directory {
            command.current_dir(path);
        }
        command.stdin(owned(self.stdin)?);
        match self.stdout {
            Stream::Inherit => {}
            Stream::Null => drop(command.stdout(Stdio::null())),
            Stream::To(descriptor) => drop(command.stdout(owned(descriptor)?)),
        }
        match self.stderr {
            Stream::Inherit => {}
            Stream::Null => drop(command.stderr(Stdio::null())),
            Stream::To(descriptor) => drop(command.stderr(owned(descriptor)?)),
        }
        if self.leads_group {
            command.process_group(0);
        }
        let mut child = command.spawn().map_err(|error| self.blame(&error))?;
        let pid = child.id();
        // A child that nobody waited for keeps its id, so this opens the right process. Only where the host ignores
        // SIGCHLD could the id be free again already; it would have to be given to another process within microseconds.
        let open = |pid| pidfd_open(pid, PidfdFlags::empty()).and_then(apart);
        match Pid::from_raw(pid as i32).map(open) {
            Some(Ok(pidfd)) => Ok((pid, Some(pidfd))),
            Some(Err(Errno::SRCH)) | None => Ok((pid, None)),
            Some(Err(errno)) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(Trouble::Descriptor(errno))
            }
        }
    }

    /// The standard library does not say whether it was the directory that could not be entered.
    fn blame(&self, error: &std::io::Error) -> Trouble {
        let Some(errno) = number(error) else {
            // It is its own, and the only one that it has.
            return Trouble::Zero;
        };
        let entered = self
            .directory
            .map(|path| rustix::fs::access(path.join("."), Access::EXEC_OK));
        match entered {
            Some(Err(other)) if other == errno => Trouble::Directory(errno),
            _ => Trouble::Program(errno),
        }
    }
}

/// The descriptor under a number above 2. Where there is none, the process is ended: nobody could watch it.
fn keep(pidfd: OwnedFd) -> Result<OwnedFd, Trouble> {
    if pidfd.as_raw_fd() > 2 {
        return Ok(pidfd);
    }
    fcntl_dupfd_cloexec(&pidfd, 3).map_err(|errno| {
        let _ = pidfd_send_signal(&pidfd, Signal::KILL);
        death::wait(&pidfd);
        Trouble::Descriptor(errno)
    })
}

fn nowhere() -> Result<OwnedFd, Errno> {
    rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).and_then(apart)
}

fn number(error: &std::io::Error) -> Option<Errno> {
    Errno::from_io_error(error)
}
