//! One child as its supervisor sees it: what it said, whether it lives, and what that means.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Signal, pidfd_send_signal};

use crate::control::{self, Heard};
use crate::death::{self, OomKills};
use crate::error::{ErrorKind, Exit, Worker};
use crate::frame::Frame;
use crate::launch::Launched;
use crate::link::{self, Mailbox};
use crate::time::monotonic_nanos;

/// How long a process may take to leave once its result is home: exit handlers may write profiles.
const LEAVING: Duration = Duration::from_secs(30);

/// How long a process may live after its control socket ended. It ends when the process does, moments before the
/// process can be waited for; much later means that the function closed the descriptor.
const SEVERED: Duration = Duration::from_secs(2);

/// The last word that a child said about its function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    None,
    Returned,
    Failed,
}

/// A panic that was told while it may still be caught.
#[derive(Debug)]
struct Panicking {
    at: u64,
    in_function: bool,
    message: String,
    location: Option<String>,
}

/// A panic is taken for the reason of an abort if it happened at most this long before.
const ABORTING: u64 = 10_000_000_000;

/// A failure and when it happened, on the clock that all processes share.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) at: u64,
    /// The process says itself that another one is the reason.
    pub(crate) follows: bool,
    pub(crate) kind: ErrorKind,
}

impl Failure {
    fn at(at: u64, kind: ErrorKind) -> Failure {
        Failure {
            at,
            follows: false,
            kind,
        }
    }

    /// What comes first is the reason for what comes after.
    pub(crate) fn order(&self) -> (bool, u64) {
        (self.follows, self.at)
    }
}

/// A child.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) worker: Worker,
    /// Closed once the process was waited for.
    pub(crate) pidfd: Option<OwnedFd>,
    /// Closed once it has ended.
    pub(crate) control: Option<OwnedFd>,
    /// Its arguments, as long as it may not have taken them.
    arguments: Option<Mailbox>,
    arena: Option<link::Member>,
    /// The arena knows to which context it belongs.
    noted: bool,
    arrived: bool,
    word: Word,
    panicking: Option<Panicking>,
    /// It said something after which it leaves by itself.
    leaving: bool,
    /// We sent it a signal that ends it.
    signalled: bool,
    exit: Option<Exit>,
    /// By when something else must have happened.
    deadline: Option<Instant>,
    /// What there was to do after its end has been done.
    settled: bool,
}

impl Member {
    /// A child that was just started and has until `deadline` to reach `init`.
    pub(crate) fn new(
        rank: usize,
        name: String,
        launched: Launched,
        arguments: Mailbox,
        deadline: Option<Instant>,
    ) -> Member {
        Member {
            worker: Worker {
                rank,
                pid: launched.pid,
                name,
            },
            pidfd: launched.pidfd,
            control: Some(launched.control),
            arguments: Some(arguments),
            arena: None,
            noted: false,
            arrived: false,
            word: Word::None,
            panicking: None,
            leaving: false,
            signalled: false,
            exit: None,
            deadline,
            settled: false,
        }
    }

    /// Writes down, once it is known where it is in the arena, that it belongs to this context.
    pub(crate) fn note_context(&mut self, context: u32) {
        if let Some(member) = self
            .arena
            .filter(|_| !std::mem::replace(&mut self.noted, true))
        {
            link::note_child(member, context);
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.exit.is_some()
    }

    pub(crate) fn is_running(&self) -> bool {
        self.arrived && self.is_undecided()
    }

    /// It may still have something to say about its function.
    pub(crate) fn is_undecided(&self) -> bool {
        !self.leaving && !self.has_ended()
    }

    /// When its function began to panic, if it did and nothing was heard of it since.
    pub(crate) fn panicking_since(&self) -> Option<u64> {
        self.panicking
            .as_ref()
            .filter(|panic| panic.in_function && self.is_undecided())
            .map(|panic| panic.at)
    }

    pub(crate) fn has_returned(&self) -> bool {
        self.word == Word::Returned
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        if self.has_ended() {
            None
        } else {
            self.deadline
        }
    }

    /// Looks at the process and hears all it said. Gives the failures that this brought to light.
    pub(crate) fn look(&mut self, buffer: &mut Vec<u8>, oom_before: &OomKills) -> Vec<Failure> {
        let mut failures = Vec::new();
        if self.has_ended() {
            return failures;
        }
        // First the process, then the socket: what it said before it ended is in the socket by now.
        let exit = match &self.pidfd {
            Some(pidfd) => death::look(pidfd),
            None => Some(Exit::Unknown),
        };
        self.hear(buffer, exit.is_none(), &mut failures);
        if let Some(exit) = exit {
            failures.extend(self.end(exit, oom_before));
        }
        failures
    }

    fn hear(&mut self, buffer: &mut Vec<u8>, alive: bool, failures: &mut Vec<Failure>) {
        while let Some(control) = &self.control {
            let frame = match control::listen(control.as_fd(), buffer) {
                Heard::Frame(frame) => frame,
                Heard::Noise => {
                    tracing::warn!(worker = %self.worker, "a packet from this process is no message; it is ignored");
                    continue;
                }
                Heard::Silence => return,
                Heard::End => {
                    self.control = None;
                    if alive && !self.leaving {
                        self.deadline = Instant::now().checked_add(SEVERED);
                    }
                    return;
                }
            };
            failures.extend(self.take(frame));
        }
    }

    fn take(&mut self, frame: Frame) -> Option<Failure> {
        let worker = self.worker.clone();
        let failure = match frame {
            Frame::Arrived { row, epoch } => {
                self.arrived = true;
                self.deadline = None;
                self.arena = Some(link::Member { row, epoch });
                return None;
            }
            Frame::Panicking {
                at,
                in_function,
                message,
                location,
            } => {
                self.panicking = Some(Panicking {
                    at,
                    in_function,
                    message,
                    location,
                });
                return None;
            }
            Frame::Returned => {
                self.word = Word::Returned;
                self.leave();
                return None;
            }
            Frame::Refused { reason } => Failure::at(0, ErrorKind::NeverStarted { worker, reason }),
            Frame::Raised {
                at,
                follows,
                chain,
                backtrace,
            } => Failure {
                at,
                follows,
                kind: ErrorKind::ProcessRaised {
                    worker,
                    chain,
                    backtrace,
                },
            },
            Frame::Panicked {
                at,
                message,
                location,
                backtrace,
            } => Failure::at(
                at,
                ErrorKind::ProcessPanicked {
                    worker,
                    message,
                    location,
                    backtrace,
                },
            ),
            Frame::ResultLost { at, reason } => {
                Failure::at(at, ErrorKind::ResultLost { worker, reason })
            }
        };
        self.word = Word::Failed;
        self.leave();
        Some(failure)
    }

    fn leave(&mut self) {
        self.leaving = true;
        self.arguments = None;
        self.deadline = Instant::now().checked_add(LEAVING);
    }

    /// The process is gone. A failure, unless it had said its last word or we made it end.
    fn end(&mut self, exit: Exit, oom_before: &OomKills) -> Option<Failure> {
        self.exit = Some(exit.clone());
        self.pidfd = None;
        self.control = None;
        let clean = matches!(exit, Exit::Code(0) | Exit::Unknown);
        match self.word {
            Word::Failed => return None,
            Word::Returned if clean || self.signalled => return None,
            Word::None if self.signalled => return None,
            Word::Returned | Word::None => {}
        }
        // The end of a process carries no time. It is taken to be older than what others said in the same look: they
        // may have failed because of it.
        Some(Failure::at(0, self.cause_of(exit, oom_before)))
    }

    fn cause_of(&self, exit: Exit, oom_before: &OomKills) -> ErrorKind {
        let worker = self.worker.clone();
        if !self.arrived {
            return ErrorKind::NeverStarted {
                worker,
                reason: format!(
                    "it {exit} before it reached `init`: make `init()` the first line of `main`"
                ),
            };
        }
        let record = self.arena.map(link::record_of).unwrap_or_default();
        let signal = match &exit {
            Exit::Signal { number, .. } => *number,
            _ => 0,
        };
        if signal == Signal::ABORT.as_raw() {
            // "panic = abort", a panic while another one unwound, or a panic where none may leave: the process could
            // not report it, but its word or its recorder has it.
            if let Some(panic) = &self.panicking
                && monotonic_nanos().saturating_sub(panic.at) < ABORTING
            {
                let (message, location) = (panic.message.clone(), panic.location.clone());
                return ErrorKind::ProcessPanicked {
                    worker,
                    message,
                    location,
                    backtrace: None,
                };
            }
            if let Some(message) = record.panic {
                return ErrorKind::ProcessPanicked {
                    worker,
                    message,
                    location: None,
                    backtrace: None,
                };
            }
        }
        if signal == Signal::INT.as_raw() {
            return ErrorKind::Interrupted {
                worker: Some(worker),
            };
        }
        let likely_out_of_memory = (signal == Signal::KILL.as_raw())
            .then(|| OomKills::read().grown_since(oom_before))
            .flatten();
        ErrorKind::ProcessExited {
            worker,
            exit,
            after_result: self.word == Word::Returned,
            likely_out_of_memory,
            last_task: record.task,
        }
    }

    /// Something that must have happened by now has not.
    pub(crate) fn overdue(&mut self, hello_deadline: Duration) -> Option<Failure> {
        self.deadline = None;
        let worker = self.worker.clone();
        let kind = if !self.arrived {
            ErrorKind::NeverStarted {
                worker,
                reason: format!(
                    "it was started, but did not reach `init` within {hello_deadline:?}: make `init()` the first line \
                     of `main`, or set a longer `hello_deadline` if what comes before it takes its time"
                ),
            }
        } else if self.leaving {
            tracing::warn!(worker = %self.worker, "it said its last word and did not exit within {LEAVING:?}; killing it");
            self.signal(Signal::KILL);
            return None;
        } else {
            ErrorKind::LostContact {
                worker,
                reason: "its control socket is closed, but it still runs (did something in it close all descriptors?)"
                    .to_owned(),
            }
        };
        self.word = Word::Failed;
        Some(Failure::at(0, kind))
    }

    /// Asks it to end. One that leaves by itself is let go.
    pub(crate) fn terminate(&mut self) {
        if !self.leaving {
            self.signal(Signal::TERM);
        }
    }

    /// Ends it.
    pub(crate) fn kill(&mut self) {
        self.signal(Signal::KILL);
    }

    /// Signals go through the descriptor only: it can mean no other process.
    fn signal(&mut self, signal: Signal) {
        if let Some(pidfd) = &self.pidfd {
            self.signalled = true;
            match pidfd_send_signal(pidfd, signal) {
                Ok(()) | Err(Errno::SRCH) => {}
                Err(errno) => {
                    tracing::warn!(worker = %self.worker, %errno, "could not be signalled")
                }
            }
        }
    }

    /// After its end, once: lets go of what was its own in the arena, and tells those that share things with it if it
    /// left in peace. To be called after a failure was recorded: whoever is woken must find the reason.
    pub(crate) fn settle(&mut self, shared: &[link::Shared]) {
        if !self.has_ended() || std::mem::replace(&mut self.settled, true) {
            return;
        }
        self.arguments = None;
        if self.has_returned() {
            for object in shared {
                object.record_departure(&self.worker);
            }
        }
        link::bury(self.arena);
    }
}
