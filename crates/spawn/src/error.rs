//! What can go wrong, told so that the reader knows what to do next.
//!
//! An [`Error`] is cheap to clone, because a context tells the same story each time it is asked. What happened in
//! another process is data ([`ErrorKind`]); the sentence is made from it once, here, so that all of them sound alike.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use shm_core::failure::Named;

pub use crate::link::Deadlock;
use crate::typed;

/// What fallible functions of this crate return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The error type at the boundary to what users return and serialize.
pub(crate) type BoxError = Box<dyn StdError + Send + Sync>;

/// One process of a context.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Worker {
    /// Its index in the context, from 0; also the first argument of its function.
    pub rank: usize,
    /// Its process id; 0 when it could not be started.
    pub pid: u32,
    /// Its name, as `top` and a debugger show it too.
    pub name: String,
}

impl fmt::Display for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not its rank: where a context has several processes, their names end with it; of one that is alone, such as a
        // pool's worker, it says nothing.
        write!(f, "{}", Named(&self.name, self.pid))
    }
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Exit {
    /// It called `exit`, or its `main` returned.
    Code(i32),
    /// A signal ended it.
    Signal {
        /// The signal's number.
        number: i32,
        /// The signal's name, like `SIGKILL`.
        name: String,
        /// Whether it left a core dump.
        core: bool,
    },
    /// It is gone, and the system did not keep how: this program ignores `SIGCHLD`, or something else in it waited
    /// for the process.
    Unknown,
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exit::Code(code) => write!(f, "exited with code {code}"),
            Exit::Signal { name, core, .. } => {
                write!(
                    f,
                    "was killed by {name}{}",
                    if *core { " and left a core dump" } else { "" }
                )
            }
            Exit::Unknown => write!(
                f,
                "ended in a way that the system did not keep (this program ignores SIGCHLD, or another part of it \
                 waited for the process)"
            ),
        }
    }
}

/// What happened, as data.
///
/// New kinds may be added.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// [`init`](crate::init) was not called in this process, so a child could not be told from the program itself.
    NotInitialized,
    /// Processes that start processes that start processes: deeper than the limit.
    TooDeep {
        /// The depth of the process that tried to spawn; the program itself has depth 0.
        depth: u32,
    },
    /// The call asks for something that cannot be: no processes at all, one stdin for two processes.
    Usage,
    /// The arguments could not be encoded, or not for several processes.
    Arguments,
    /// The system did not start a process.
    Launch,
    /// The shared arena could not be used.
    Arena,
    /// The function returned an error.
    ProcessRaised {
        /// Which process.
        worker: Worker,
        /// The error's text, then that of its source, and so on.
        chain: Vec<String>,
        /// The backtrace that the error carried, if any.
        backtrace: Option<String>,
    },
    /// The function panicked, or another thread did and that aborted the process.
    ProcessPanicked {
        /// Which process.
        worker: Worker,
        /// What the panic said.
        message: String,
        /// `file:line:column`, as far as known.
        location: Option<String>,
        /// The backtrace, when `RUST_BACKTRACE` asked for one.
        backtrace: Option<String>,
    },
    /// The process ended before its function returned (also with code 0), or badly after it had.
    ProcessExited {
        /// Which process.
        worker: Worker,
        /// How it ended.
        exit: Exit,
        /// It had already returned its result; it ended badly while it was leaving.
        after_result: bool,
        /// Set when a counter of out-of-memory kills grew while it ran and nobody here sent the signal: which one.
        likely_out_of_memory: Option<String>,
        /// What it last said that it was working on.
        last_task: Option<String>,
        /// What the last panic in it said, if it was aborted: that may have been caught, and have nothing to do with it.
        last_panic: Option<String>,
        /// The last that it wrote to its stderr, if [`Process::stderr_tail`](crate::Process::stderr_tail) keeps it.
        stderr_tail: Option<String>,
    },
    /// It was stopped on purpose: by [`terminate`](crate::SpawnContext::terminate),
    /// [`kill`](crate::SpawnContext::kill), or an interrupt from the terminal.
    Interrupted {
        /// Which process; `None` when the whole context was asked to stop.
        worker: Option<Worker>,
    },
    /// The process was started, but its function never was.
    NeverStarted {
        /// Which process.
        worker: Worker,
        /// Why, as far as known.
        reason: String,
    },
    /// The process cannot be heard any more, or is there and cannot be ended.
    LostContact {
        /// Which process.
        worker: Worker,
        /// What was seen.
        reason: String,
    },
    /// This process joined processes that wait for it, or for each other: nothing would ever have happened again.
    Deadlock {
        /// Who waits where.
        deadlock: Deadlock,
    },
    /// The function returned, but its value could not be brought home.
    ResultLost {
        /// Which process.
        worker: Worker,
        /// Why.
        reason: String,
    },
}

impl ErrorKind {
    /// The process that this is about, if it is about one.
    pub fn worker(&self) -> Option<&Worker> {
        match self {
            ErrorKind::ProcessRaised { worker, .. }
            | ErrorKind::ProcessPanicked { worker, .. }
            | ErrorKind::ProcessExited { worker, .. }
            | ErrorKind::NeverStarted { worker, .. }
            | ErrorKind::LostContact { worker, .. }
            | ErrorKind::ResultLost { worker, .. } => Some(worker),
            ErrorKind::Interrupted { worker } => worker.as_ref(),
            ErrorKind::NotInitialized
            | ErrorKind::TooDeep { .. }
            | ErrorKind::Usage
            | ErrorKind::Arguments
            | ErrorKind::Launch
            | ErrorKind::Deadlock { .. }
            | ErrorKind::Arena => None,
        }
    }

    /// What happened without the process's name in front: what its peers are told.
    pub(crate) fn cause(&self) -> String {
        match self {
            ErrorKind::ProcessRaised { chain, .. } => {
                format!("returned an error: {}", chain.join(": "))
            }
            ErrorKind::ProcessPanicked {
                message, location, ..
            } => match location {
                Some(location) => format!("panicked at {location}: {message}"),
                None => format!("panicked: {message}"),
            },
            ErrorKind::ProcessExited {
                exit,
                after_result,
                likely_out_of_memory,
                last_task,
                last_panic,
                stderr_tail,
                ..
            } => {
                let mut text = exit.to_string();
                match (exit, after_result) {
                    (_, true) => text.push_str(" while it was leaving; it had already returned its result"),
                    (Exit::Code(0), false) => text.push_str(
                        " before its function returned, so there is no result (does something in it call `exit`?)",
                    ),
                    (_, false) => text.push_str(" before its function returned"),
                }
                if let Some(task) = last_task {
                    text.push_str(&format!("; it was last working on: {task}"));
                }
                if let Some(panic) = last_panic {
                    text.push_str(&format!(
                        "; the last panic in it, which may have been caught, was at {panic}"
                    ));
                }
                if let Some(counter) = likely_out_of_memory {
                    text.push_str(&format!(
                        "; it was likely killed for want of memory ({counter})"
                    ));
                }
                if let Some(tail) = stderr_tail {
                    text.push_str(&format!("; its stderr ended with: {}", last_lines(tail)));
                }
                text
            }
            ErrorKind::Interrupted { worker: Some(_) } => {
                "was interrupted (SIGINT or SIGHUP)".to_owned()
            }
            ErrorKind::Interrupted { worker: None } => "was stopped on purpose".to_owned(),
            ErrorKind::Deadlock { deadlock } => deadlock.to_string(),
            ErrorKind::NeverStarted { reason, .. } => format!("never ran its function: {reason}"),
            ErrorKind::LostContact { reason, .. } => {
                format!("cannot be reached any more: {reason}")
            }
            ErrorKind::ResultLost { reason, .. } => {
                format!("returned, but its result could not be brought home: {reason}")
            }
            ErrorKind::NotInitialized
            | ErrorKind::TooDeep { .. }
            | ErrorKind::Usage
            | ErrorKind::Arguments
            | ErrorKind::Launch
            | ErrorKind::Arena => String::new(),
        }
    }
}

/// How many lines of a stderr go into a sentence.
const LINES: usize = 3;

/// The last lines of a text, in one.
pub(crate) fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim_end)
        .filter(|line| !line.is_empty())
        .collect();
    lines[lines.len().saturating_sub(LINES)..].join(" | ")
}

/// An error of this crate: [what happened](Error::kind), a sentence, and the error below it if there is one.
///
/// `Debug` prints the sentence and what is known beyond it (backtraces, hints), because that is what a `main` that
/// returns an error shows.
#[derive(Clone, thiserror::Error)]
#[error("{}", .0.message)]
pub struct Error(Arc<Inner>);

struct Inner {
    kind: ErrorKind,
    message: String,
    source: Option<BoxError>,
    /// What a function returned as its error, by name of its type and bytes.
    typed: Option<(String, Vec<u8>)>,
}

impl Error {
    /// An error on this side of the process boundary.
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error(Arc::new(Inner {
            kind,
            message: message.into(),
            source: None,
            typed: None,
        }))
    }

    /// The same with the error below it. The sentence repeats that error's text: a reader who prints only one line
    /// must see the reason.
    pub(crate) fn caused(
        kind: ErrorKind,
        message: impl fmt::Display,
        source: impl Into<BoxError>,
    ) -> Error {
        let source = source.into();
        let message = format!("{message}: {source}");
        Error(Arc::new(Inner {
            kind,
            message,
            source: Some(source),
            typed: None,
        }))
    }

    /// What happened in another process; the sentence is made from the kind.
    pub(crate) fn from_process(kind: ErrorKind) -> Error {
        Error::told(kind, None)
    }

    /// The same with the error itself, if the function returned one that can be told.
    pub(crate) fn told(kind: ErrorKind, typed: Option<(String, Vec<u8>)>) -> Error {
        let message = match kind.worker() {
            Some(worker) => format!("{worker} {}", kind.cause()),
            None => kind.cause(),
        };
        Error(Arc::new(Inner {
            kind,
            message,
            source: None,
            typed,
        }))
    }

    /// The error that the function returned, as what it was: for functions that return
    /// [`Typed`](crate::Typed) errors, of exactly this type. `None` for everything else; the text is in
    /// [`ErrorKind::ProcessRaised`] in any case.
    pub fn downcast<E: DeserializeOwned>(&self) -> Option<E> {
        self.0.typed.as_ref().and_then(typed::open)
    }

    /// What happened, as data.
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// The process that this is about, if it is about one.
    pub fn worker(&self) -> Option<&Worker> {
        self.0.kind.worker()
    }

    /// The error below this one, on this side of the process boundary. (What a child returned is text, in
    /// [`ErrorKind::ProcessRaised`].)
    pub fn cause(&self) -> Option<&(dyn StdError + Send + Sync + 'static)> {
        self.0.source.as_deref()
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        match &self.0.kind {
            ErrorKind::ProcessRaised {
                backtrace: Some(text),
                ..
            }
            | ErrorKind::ProcessPanicked {
                backtrace: Some(text),
                ..
            } => {
                write!(f, "\n\nBacktrace in that process:\n{text}")
            }
            ErrorKind::ProcessExited {
                stderr_tail: Some(tail),
                ..
            } => write!(f, "\n\nThe end of its stderr:\n{tail}"),
            ErrorKind::ProcessPanicked {
                backtrace: None, ..
            } => f.write_str("\n(set RUST_BACKTRACE=1 to see the backtrace in that process)"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker() -> Worker {
        Worker {
            rank: 2,
            pid: 4711,
            name: "resize.2".into(),
        }
    }

    #[test]
    fn a_message_names_the_process_the_cause_and_what_to_do() {
        let error = Error::from_process(ErrorKind::ProcessExited {
            worker: worker(),
            exit: Exit::Code(0),
            after_result: false,
            likely_out_of_memory: None,
            last_task: Some("frame 12".into()),
            last_panic: None,
            stderr_tail: None,
        });
        assert_eq!(
            error.to_string(),
            "process \"resize.2\" (pid 4711) exited with code 0 before its function returned, so there is no \
             result (does something in it call `exit`?); it was last working on: frame 12"
        );
    }

    #[test]
    fn debug_is_readable_because_main_prints_it() {
        let error = Error::from_process(ErrorKind::ProcessRaised {
            worker: worker(),
            chain: vec!["cannot read x.bin".into(), "No such file".into()],
            backtrace: Some("0: main".into()),
        });
        assert_eq!(
            format!("{error:?}"),
            "process \"resize.2\" (pid 4711) returned an error: cannot read x.bin: No such file\n\nBacktrace in \
             that process:\n0: main"
        );
    }

    #[test]
    fn an_error_fits_in_a_word() {
        assert_eq!(size_of::<Error>(), size_of::<usize>());
    }
}
