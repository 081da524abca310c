//! One child as its supervisor sees it: what it said, whether it lives, and what that means.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::Shutdown;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};

use crate::control::{self, Heard};
use crate::death::{self, OomKills, Seen};
use crate::entry::DETACH;
use crate::error::{ErrorKind, Exit, Worker};
use crate::failure::Failure;
use crate::frame::{Frame, Panicking};
use crate::launch::{Arguments, Launched, Plan};
use crate::link::{self, Patience};
use crate::tail::Tail;
use crate::testing::leads_through_a_test;

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

/// A child.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) worker: Worker,
    /// Closed once the process was waited for.
    pub(crate) pidfd: Option<Arc<OwnedFd>>,
    /// Closed once it has ended.
    pub(crate) control: Option<Arc<OwnedFd>>,
    /// Its arguments, as long as it may not have taken them.
    arguments: Option<Arguments>,
    /// What it returned, if that came as bytes and nobody has taken it yet.
    value: Option<Vec<u8>>,
    arena: Option<link::Member>,
    arrived: bool,
    word: Word,
    panicking: Option<Panicking>,
    /// The program's own panic hooks have not let go of that panic yet.
    in_hook: bool,
    /// Something in this program closed the descriptor by which it was heard.
    deaf: bool,
    /// It said something after which it leaves by itself.
    leaving: bool,
    /// We sent it a signal that ends it.
    signalled: bool,
    exit: Option<Exit>,
    /// How long something else may take to happen.
    due: Option<Patience>,
    /// What there was to do after its end has been done.
    settled: bool,
    /// The end of its stderr, where it is kept.
    tail: Option<Arc<Tail>>,
    daemon: bool,
    /// What it takes to be a worker, for whoever has to see to that.
    way_in: &'static str,
    /// What it answered when it was told to live on.
    disarmed: Option<bool>,
}

impl Member {
    /// A child that was just started and has so long to reach `init`.
    pub(crate) fn new(plan: Plan, launched: Launched, due: Patience) -> Member {
        let Plan {
            rank,
            name,
            arguments,
            setup,
            ..
        } = plan;
        Member {
            worker: Worker {
                rank,
                pid: launched.pid,
                name,
            },
            pidfd: launched.pidfd.map(Arc::new),
            control: Some(Arc::new(launched.control)),
            arguments: Some(arguments),
            value: None,
            arena: None,
            arrived: false,
            word: Word::None,
            panicking: None,
            in_hook: false,
            deaf: false,
            leaving: false,
            signalled: false,
            exit: None,
            due: Some(due),
            settled: false,
            daemon: setup.is_daemon(),
            way_in: if setup.is_foreign() {
                "make that executable a worker, by `worker_main!` or by `init_with` as the first line of its `main`"
            } else if leads_through_a_test() {
                "make `init_in_test!()` the first line of the test itself, not of a function that it calls"
            } else {
                "make `init()` the first line of `main`"
            },
            tail: setup.tail.clone(),
            disarmed: None,
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

    /// What it may take its time for.
    pub(crate) fn due(&mut self) -> Option<&mut Patience> {
        let runs = !self.has_ended();
        self.due.as_mut().filter(|_| runs)
    }

    /// When to look whether it took too long.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        let due = self.due.as_ref().filter(|_| !self.has_ended());
        due.map(Patience::next)
    }

    /// Looks at the process and hears all it said. Gives the failures that this brought to light.
    pub(crate) fn look(&mut self, buffer: &mut Vec<u8>, oom_before: &OomKills) -> Vec<Failure> {
        let mut failures = Vec::new();
        if self.has_ended() {
            return failures;
        }
        // First the process, then the socket: what it said before it ended is in the socket by now.
        let exit = match &self.pidfd {
            Some(pidfd) => match death::look(pidfd) {
                Seen::Alive => None,
                Seen::Ended(exit) => Some(exit),
                Seen::Blind => self.look_again(),
            },
            None => Some(Exit::Unknown),
        };
        self.hear(buffer, exit.is_none(), &mut failures);
        if let Some(exit) = exit {
            failures.extend(self.end(exit, oom_before));
        }
        failures
    }

    /// Something in this program closed the descriptor, which says nothing about the process. A child that nobody
    /// waited for keeps its id, so another descriptor can be had by that.
    fn look_again(&mut self) -> Option<Exit> {
        link::say!(warn, worker = %self.worker, "something in this program closed the descriptor of this process");
        // Not ours to close any more: it may be somebody else's by now.
        std::mem::forget(self.pidfd.take());
        let pid = Pid::from_raw(self.worker.pid as i32);
        match pid.map(|pid| pidfd_open(pid, PidfdFlags::empty())) {
            Some(Ok(pidfd)) => {
                let seen = death::look(&pidfd);
                self.pidfd = Some(Arc::new(pidfd));
                match seen {
                    Seen::Ended(exit) => Some(exit),
                    Seen::Alive | Seen::Blind => None,
                }
            }
            _ => Some(Exit::Unknown),
        }
    }

    fn hear(&mut self, buffer: &mut Vec<u8>, alive: bool, failures: &mut Vec<Failure>) {
        while let Some(control) = &self.control {
            let frame = match control::listen(control.as_fd(), buffer) {
                Heard::Frame(frame) => frame,
                Heard::Noise => {
                    link::say!(warn, worker = %self.worker, "a packet from this process is no message; it is ignored");
                    continue;
                }
                Heard::Silence => return,
                // It said its last word. This end stays open: closing it would look as if this process were gone.
                Heard::End if self.leaving => return,
                Heard::End => {
                    self.control = None;
                    if alive {
                        self.due = Some(Patience::new(SEVERED));
                    }
                    return;
                }
                Heard::Lost => {
                    self.go_deaf();
                    if alive {
                        self.due = Some(Patience::new(SEVERED));
                    }
                    return;
                }
            };
            failures.extend(self.take(frame));
        }
    }

    /// Nothing more can be heard of it, for a reason that lies in this program.
    fn go_deaf(&mut self) {
        link::say!(warn, worker = %self.worker, "something in this program closed the control socket of this process");
        self.deaf = true;
        // Not ours to close any more: it may be somebody else's by now.
        std::mem::forget(self.control.take());
    }

    fn take(&mut self, frame: Frame) -> Option<Failure> {
        let worker = self.worker.clone();
        let failure = match frame {
            Frame::Arrived => {
                self.arrived = true;
                self.due = None;
                // Before `init` it may have ignored what its host ignores.
                if self.signalled {
                    self.signal(Signal::TERM);
                }
                return None;
            }
            Frame::Joined { row, epoch } => {
                self.arena = Some(link::Member { row, epoch });
                return None;
            }
            Frame::Panicking(panic) => {
                self.panicking = Some(panic);
                self.in_hook = true;
                return None;
            }
            Frame::HooksRan { at } => {
                self.in_hook &= self.panicking.as_ref().is_none_or(|panic| panic.at != at);
                return None;
            }
            Frame::Caught => {
                self.panicking = None;
                self.in_hook = false;
                return None;
            }
            Frame::Detached { disarmed } => {
                self.disarmed = Some(disarmed);
                return None;
            }
            Frame::Returned { plain } => {
                self.value = plain;
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
                typed,
            } => Failure {
                at,
                follows,
                kind: ErrorKind::ProcessRaised {
                    worker,
                    chain,
                    backtrace,
                },
                typed,
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
        self.due = Some(Patience::new(LEAVING));
    }

    /// The process is gone. A failure, unless it had said its last word or we made it end.
    fn end(&mut self, exit: Exit, oom_before: &OomKills) -> Option<Failure> {
        self.exit = Some(exit.clone());
        // It said nothing at all, or that went to whoever has the number now.
        let silent = !self.arrived && self.word == Word::None;
        let is_other = |control: &Arc<OwnedFd>| !control::is_one_of_a_pair(control.as_fd());
        if silent && self.control.as_ref().is_some_and(is_other) {
            self.go_deaf();
        }
        // Before that is told: whoever joined finds no descriptor of it any more.
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
        Some(Failure::at(
            0,
            self.cause_of(exit, || OomKills::read().grown_since(oom_before)),
        ))
    }

    /// What it returned, once, if that did not go to its letterbox.
    pub(crate) fn take_value(&mut self) -> Option<Vec<u8>> {
        self.value.take()
    }

    pub(crate) fn is_daemon(&self) -> bool {
        self.daemon
    }

    /// Tells it to live on when this process ends; it answers when it will.
    pub(crate) fn ask_to_live_on(&self) {
        if let Some(control) = &self.control {
            let _ = control::send(control.as_fd(), DETACH, &[]);
        }
    }

    /// What it answered. One that has ended needs no answer.
    pub(crate) fn lives_on(&self) -> Option<bool> {
        if self.has_ended() {
            Some(true)
        } else {
            self.disarmed
        }
    }

    /// Something that must have happened by now has not.
    pub(crate) fn overdue(&mut self, hello_deadline: Duration) -> Option<Failure> {
        self.due = None;
        let worker = self.worker.clone();
        let kind = if !self.arrived {
            ErrorKind::NeverStarted {
                worker,
                reason: format!(
                    "it was started, but did not reach `init` within {hello_deadline:?}: {}, or set a longer \
                     `hello_deadline` if what comes before it takes its time",
                    self.way_in
                ),
            }
        } else if self.leaving {
            link::say!(warn, worker = %self.worker, "it said its last word and did not exit within {LEAVING:?}; killing it");
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

    /// Without a descriptor there is no child any more, and its number may be somebody else's.
    fn signal(&mut self, signal: Signal) {
        if let Some(pidfd) = &self.pidfd {
            self.signalled = true;
            match death::signal(pidfd, self.worker.pid, signal) {
                Ok(()) | Err(Errno::SRCH) => {}
                Err(errno) => {
                    link::say!(warn, worker = %self.worker, %errno, "could not be signalled");
                    // Without a parent that it can hear it ends itself. Others have the socket, too, so that is not closed.
                    if let Some(control) = self.control.as_ref().filter(|_| signal == Signal::KILL)
                    {
                        let _ = rustix::net::shutdown(control, Shutdown::Both);
                    }
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
        // One that said its last word would have said before that it had joined.
        if self.arena.is_some() || self.word == Word::None {
            link::bury(self.arena);
        }
    }
}

mod cause;
#[cfg(test)]
mod tests;
