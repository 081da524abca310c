//! [`Process`]: what one process is called, what it gets from this one, and how it runs.

use std::ffi::OsString;
use std::fs::File;
use std::io::{PipeReader, PipeWriter};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use crate::entry;
use crate::error::{Error, ErrorKind, Result};
use crate::hello::NAME;
use crate::trampoline::Target;

/// What a process finds when it reads its stdin.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Stdin {
    /// Nothing: /dev/null.
    #[default]
    Null,
    /// This process's own stdin: the same open file. What this process has read ahead into a buffer does not travel,
    /// so read nothing from it before. The child stays in this process's group, so that it may read a terminal; Ctrl-C
    /// there reaches it too.
    Inherit,
    /// A file, the reading end of a pipe, a socket: what `From` takes. Replicas share the one open file.
    Descriptor(Arc<OwnedFd>),
}

/// Where the stdout or the stderr of a process goes.
///
/// ```no_run
/// # fn speak(_rank: usize, _: ()) { println!("hello") }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # spawn::init();
/// use std::io::Read;
///
/// let (mut reader, writer) = std::io::pipe()?;
/// let mut context = spawn::builder().stdout(writer).spawn(speak, (), 1)?;
/// let mut text = String::new();
/// reader.read_to_string(&mut text)?; // the worker has the only writing end left
/// assert_eq!(text, "hello\n");
/// context.join()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Output {
    /// Where this process's own goes.
    #[default]
    Inherit,
    /// Nowhere: /dev/null.
    Null,
    /// A file, the writing end of a pipe, a socket: what `From` takes. Replicas share the one open file.
    Descriptor(Arc<OwnedFd>),
}

/// A process to be started: its name, what it gets from this one, and how it runs.
///
/// A string is one too: `group.add("decode", decode, input)`.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Process {
    pub(crate) name: Option<String>,
    pub(crate) stdin: Stdin,
    pub(crate) stdout: Output,
    pub(crate) stderr: Output,
    pub(crate) stderr_tail: bool,
    pub(crate) env_clear: bool,
    /// In the order of the calls; `None` removes.
    pub(crate) env: Vec<(OsString, Option<OsString>)>,
    pub(crate) current_dir: Option<PathBuf>,
    pub(crate) nice: Option<i32>,
    pub(crate) cpus: Vec<usize>,
    pub(crate) daemon: bool,
    pub(crate) executable: Option<PathBuf>,
}

impl Process {
    /// A process with a name. Errors, `ps`, `top` and debuggers show it (the latter two the first 15 bytes). Without
    /// one it is named after its function. Replicas get their number behind it. What is longer than 64 bytes is cut.
    pub fn named(name: impl Into<String>) -> Process {
        Process {
            name: Some(name.into()),
            ..Process::default()
        }
    }

    /// What it finds as its stdin. Nothing if not set.
    pub fn stdin(mut self, stdin: impl Into<Stdin>) -> Process {
        self.stdin = stdin.into();
        self
    }

    /// Where its stdout goes. To this process's if not set.
    pub fn stdout(mut self, stdout: impl Into<Output>) -> Process {
        self.stdout = stdout.into();
        self
    }

    /// Where its stderr goes. To this process's if not set.
    pub fn stderr(mut self, stderr: impl Into<Output>) -> Process {
        self.stderr = stderr.into();
        self
    }

    /// Keeps the last 8 KiB that it writes to its stderr, whoever in it writes: `eprintln!`, a C library, the loader.
    /// [`ProcessExited`](ErrorKind::ProcessExited) and [`NeverStarted`](ErrorKind::NeverStarted) then show them. All
    /// of it still goes where [`stderr`](Process::stderr) says, by way of a pipe and a thread of this process: so the
    /// process finds no terminal there, and a program that is killed may take the last lines with it. Where nobody
    /// reads there, a process that has written more than a pipe holds (64 KiB) waits, as it would without this; whoever
    /// joins or drops others does not.
    pub fn stderr_tail(mut self, keep: bool) -> Process {
        self.stderr_tail = keep;
        self
    }

    /// Sets a variable in its environment, which otherwise is this process's.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Process {
        self.env.push((name.into(), Some(value.into())));
        self
    }

    /// Removes a variable from its environment.
    pub fn env_remove(mut self, name: impl Into<OsString>) -> Process {
        self.env.push((name.into(), None));
        self
    }

    /// Gives it an environment with nothing in it but what later calls set, and one variable by which it knows that it
    /// is a worker.
    pub fn env_clear(mut self) -> Process {
        self.env_clear = true;
        self.env.clear();
        self
    }

    /// Its working directory. This process's if not set.
    pub fn current_dir(mut self, path: impl Into<PathBuf>) -> Process {
        self.current_dir = Some(path.into());
        self
    }

    /// Its nice value, from -20 to 19: larger values yield to others. The process sets it before its function runs;
    /// what it may not set ends it with [`NeverStarted`](ErrorKind::NeverStarted).
    pub fn nice(mut self, nice: i32) -> Process {
        self.nice = Some(nice);
        self
    }

    /// The processors that it may run on, by number from 0. The process binds itself before its function's thread
    /// starts. No numbers: as this process.
    pub fn cpus(mut self, cpus: impl IntoIterator<Item = usize>) -> Process {
        self.cpus = cpus.into_iter().collect();
        self
    }

    /// A process that the others do not wait for: once those that are no daemons have ended, it is stopped like one
    /// whose peer failed (SIGTERM, grace, SIGKILL), and that is no failure. [`join`](crate::SpawnContext::join) leaves
    /// its result out. One that fails before is a failure like any other.
    pub fn daemon(mut self, daemon: bool) -> Process {
        self.daemon = daemon;
        self
    }

    /// Runs another executable than this one as the worker: one whose `main` is made by
    /// [`worker_main!`](crate::worker_main), which finds the function by its name. The path is used as
    /// [`Command`](std::process::Command) would.
    pub fn executable(mut self, path: impl Into<PathBuf>) -> Process {
        self.executable = Some(path.into());
        self
    }

    /// The stdin to hand over, if it is to get one.
    pub(crate) fn own_stdin(&self) -> Result<Option<OwnedFd>> {
        let failed = |error: std::io::Error| {
            Error::caused(
                ErrorKind::Launch,
                "the stdin of a process cannot be handed on (is it closed?)",
                error,
            )
        };
        match &self.stdin {
            Stdin::Null => Ok(None),
            Stdin::Inherit => entry::own_stdin().map(Some).map_err(failed),
            Stdin::Descriptor(descriptor) => descriptor.try_clone().map(Some).map_err(failed),
        }
    }

    /// It reads this process's own stdin, which only one can.
    pub(crate) fn reads_our_stdin(&self) -> bool {
        matches!(self.stdin, Stdin::Inherit)
    }

    /// The name of replica `index` of `n`, in characters that the system takes.
    pub(crate) fn name_of(&self, target: &Target, index: usize, n: usize) -> String {
        let mut name: String = match &self.name {
            Some(name) => name
                .chars()
                .filter(|character| !character.is_control())
                .take(NAME)
                .collect(),
            None => short_name(target.name),
        };
        let number = if n > 1 {
            format!(".{index}")
        } else {
            String::new()
        };
        let mut end = name.len().min(NAME - number.len());
        while !name.is_char_boundary(end) {
            end -= 1;
        }
        name.truncate(end);
        name + &number
    }
}

impl Output {
    /// Another descriptor for the same open file, where there is one to give.
    pub(crate) fn duplicate(&self) -> std::io::Result<Option<OwnedFd>> {
        match self {
            Output::Inherit | Output::Null => Ok(None),
            Output::Descriptor(descriptor) => descriptor.as_fd().try_clone_to_owned().map(Some),
        }
    }
}

macro_rules! from_descriptors {
    ($target:ident: $($source:ty),*) => {$(
        impl From<$source> for $target {
            fn from(descriptor: $source) -> $target {
                $target::Descriptor(Arc::new(descriptor.into()))
            }
        }
    )*};
}

from_descriptors!(Stdin: OwnedFd, File, PipeReader);
from_descriptors!(Output: OwnedFd, File, PipeWriter);

impl From<&str> for Process {
    fn from(name: &str) -> Process {
        Process::named(name)
    }
}

impl From<String> for Process {
    fn from(name: String) -> Process {
        Process::named(name)
    }
}

/// The last word of a type's path: `app::decode::frames<f32>` is "frames", a closure is named after where it stands.
pub(crate) fn short_name(path: &str) -> String {
    let path = path.split('<').next().unwrap_or(path);
    let mut words = path
        .rsplit("::")
        .filter(|word| !word.starts_with('{') && !word.is_empty());
    words.next().unwrap_or("worker").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_from_the_last_word_of_the_function() {
        assert_eq!(short_name("app::decode::frames<app::Wide>"), "frames");
        assert_eq!(short_name("app::main::{{closure}}"), "main");
        assert_eq!(short_name("{{closure}}"), "worker");
    }
}
