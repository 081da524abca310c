//! How a child is dressed: what its parent arranges before it runs, and what the child does to itself in `init`.
//!
//! What the system can do on the way (environment, directory, where its output goes) is done on the way, because that
//! keeps the start on `posix_spawn`. The rest travels behind the greeting, in the same packet, as [`Orders`]: the child
//! follows them before the function's thread exists, since nice values and processors belong to threads.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::thread::CpuSet;
use serde::{Deserialize, Serialize};

use crate::error::BoxError;
use crate::image::SELF;
use crate::link::apart;
use crate::process::{Output, Process};
use crate::program::{Program, Stream};
use crate::tail::Tail;

/// The most bytes that orders take; names of generic functions are long.
pub(crate) const ORDERS: usize = 16 << 10;

/// What a child is told to do to itself.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Orders {
    nice: Option<i32>,
    cpus: Vec<u32>,
    /// The function's name, where its place means nothing because the child is another executable.
    pub(crate) door: Option<String>,
    /// The last descriptor of the packet is the stdout that it is given; what it has now is /dev/null.
    pub(crate) stdout: bool,
    /// Arguments by which this executable reaches `init` again: it is a test.
    pub(crate) arguments: Vec<String>,
}

impl Orders {
    /// What follows the greeting in a packet, and what follows that.
    pub(crate) fn read(bytes: &[u8]) -> Result<(Orders, &[u8]), String> {
        postcard::take_from_bytes(bytes)
            .map_err(|error| format!("what follows the greeting cannot be read: {error}"))
    }

    /// Sets what belongs to a thread and is inherited by those it starts.
    pub(crate) fn follow(&self) -> Result<(), String> {
        if let Some(nice) = self.nice {
            // The system takes the nearest that there is.
            if !(-20..=19).contains(&nice) {
                return Err(format!(
                    "its nice value was to be {nice}; they go from -20 to 19"
                ));
            }
            rustix::process::setpriority_process(None, nice).map_err(|errno| {
                format!("its nice value could not be set to {nice}: {errno} (below 0 takes CAP_SYS_NICE)")
            })?;
        }
        if !self.cpus.is_empty() {
            let mut set = CpuSet::new();
            for &cpu in &self.cpus {
                let cpu = cpu as usize;
                if cpu >= CpuSet::MAX_CPU {
                    return Err(format!(
                        "processor {cpu} was asked for; the most that can be named is {}",
                        CpuSet::MAX_CPU - 1
                    ));
                }
                set.set(cpu);
            }
            rustix::thread::sched_setaffinity(None, &set).map_err(|errno| {
                format!(
                    "it could not be bound to the processors {:?}: {errno} (this machine, or the group this process is \
                     in, has none of them)",
                    self.cpus
                )
            })?;
        }
        Ok(())
    }
}

/// How one child is dressed.
#[derive(Debug)]
pub(crate) struct Setup {
    process: Process,
    orders: Orders,
    /// Its output, where it is a descriptor of its own; opened once, before anything is started.
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
    pub(crate) tail: Option<Arc<Tail>>,
}

impl Setup {
    /// Prepares for a child whose function has this name, and opens what it takes.
    pub(crate) fn new(
        process: Process,
        function: &str,
        arguments: &[String],
    ) -> Result<Setup, BoxError> {
        let foreign = process.executable.is_some();
        let in_test = !foreign && !arguments.is_empty();
        let orders = Orders {
            nice: process.nice,
            cpus: process
                .cpus
                .iter()
                .map(|&cpu| u32::try_from(cpu).unwrap_or(u32::MAX))
                .collect(),
            door: foreign.then(|| function.to_owned()),
            // A test harness prints before it comes to the test.
            stdout: in_test && !matches!(process.stdout, Output::Null),
            arguments: if in_test {
                arguments.to_vec()
            } else {
                Vec::new()
            },
        };
        let stdout = match &process.stdout {
            Output::Inherit if orders.stdout => Some(rustix::stdio::stdout().try_clone_to_owned()?),
            stdout => stdout.duplicate()?,
        };
        let (stderr, tail) = if process.stderr_tail {
            let (tail, writer) = Tail::new(&process.stderr)?;
            (Some(writer), Some(tail))
        } else {
            (process.stderr.duplicate()?, None)
        };
        Ok(Setup {
            process,
            orders,
            // Put in place one after the other, so none may have the number of another one's place.
            stdout: stdout.map(apart).transpose()?,
            stderr: stderr.map(apart).transpose()?,
            tail,
        })
    }

    /// The child is another executable, which finds its function by name.
    pub(crate) fn is_foreign(&self) -> bool {
        self.process.executable.is_some()
    }

    /// The others do not wait for it.
    pub(crate) fn is_daemon(&self) -> bool {
        self.process.daemon
    }

    /// It gets something on the way from exec, which a copy of a fork server does not go.
    pub(crate) fn needs_exec(&self) -> bool {
        let process = &self.process;
        self.is_foreign()
            || self.stdout.is_some()
            || self.stderr.is_some()
            || !matches!(
                (&process.stdout, &process.stderr),
                (Output::Inherit, Output::Inherit)
            )
            || process.env_clear
            || !process.env.is_empty()
            || process.current_dir.is_some()
            || !self.orders.arguments.is_empty()
    }

    /// What follows the greeting.
    pub(crate) fn orders(&self) -> Result<Vec<u8>, BoxError> {
        let bytes = postcard::to_stdvec(&self.orders)?;
        if bytes.len() > ORDERS {
            return Err(format!(
                "the name of its function and its processors take {} bytes, more than {ORDERS}",
                bytes.len()
            )
            .into());
        }
        Ok(bytes)
    }

    /// The descriptor that the orders speak of.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.stdout
            .as_ref()
            .filter(|_| self.orders.stdout)
            .map(|stdout| stdout.as_fd())
    }

    /// The program to run, in its environment, its directory and its group, with its output in place.
    pub(crate) fn program<'a>(&'a self, title: OsString, stdin: BorrowedFd<'a>) -> Program<'a> {
        let process = &self.process;
        let stream = |output: &Output, own: &'a Option<OwnedFd>| match own {
            Some(descriptor) => Stream::To(descriptor.as_fd()),
            None if matches!(output, Output::Inherit) => Stream::Inherit,
            None => Stream::Null,
        };
        Program {
            path: process
                .executable
                .as_deref()
                .map_or(OsStr::new(SELF), Path::as_os_str),
            title,
            arguments: &self.orders.arguments,
            env_clear: process.env_clear,
            env: &process.env,
            directory: process.current_dir.as_deref(),
            stdin,
            stdout: if self.orders.stdout {
                Stream::Null
            } else {
                stream(&process.stdout, &self.stdout)
            },
            stderr: stream(&process.stderr, &self.stderr),
            // A group of its own keeps the terminal's Ctrl-C with the parent, which decides what becomes of its children.
            // One that reads the terminal must stay in the foreground group, or reading would stop it.
            leads_group: !process.reads_our_stdin(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_arrive_and_noise_is_refused() {
        // The one that it has: another may take rights.
        let nice = rustix::process::getpriority_process(None).unwrap();
        let process = Process::named("x").nice(nice).cpus([0, 70_000]);
        let setup = Setup::new(process, "f", &[]).unwrap();
        let mut bytes = setup.orders().unwrap();
        bytes.extend(b"arguments");
        let (orders, rest) = Orders::read(&bytes).unwrap();
        assert_eq!((&orders, rest), (&setup.orders, b"arguments".as_slice()));
        assert!(Orders::read(&[0xff; 40]).is_err());
        assert!(orders.follow().unwrap_err().contains("processor 70000"));
    }

    #[test]
    fn only_another_executable_is_asked_by_name() {
        let arguments = ["--exact".to_owned()];
        let own = Setup::new(Process::named("x"), "f", &arguments).unwrap();
        assert_eq!(own.orders.door, None);
        assert_eq!(own.orders.arguments, arguments);
        let process = Process::named("x").executable("/bin/true");
        let other = Setup::new(process, "f", &arguments).unwrap();
        assert_eq!(other.orders.door.as_deref(), Some("f"));
        assert!(other.orders.arguments.is_empty());
    }
}
