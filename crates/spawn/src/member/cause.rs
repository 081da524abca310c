//! What the end of a process that had not said its last word is told as.

use rustix::process::Signal;

use super::{Member, Word};
use crate::error::{ErrorKind, Exit, last_lines};
use crate::link;
use crate::worker::UNHEARD;

impl Member {
    /// What the end of the process is told as. Whether memory ran out is looked up only where it may be the reason.
    pub(super) fn cause_of(
        &self,
        exit: Exit,
        oom_kill: impl FnOnce() -> Option<String>,
    ) -> ErrorKind {
        let worker = self.worker.clone();
        let stderr_tail = self.tail.as_ref().and_then(|tail| tail.text());
        if self.deaf && self.word == Word::None {
            return ErrorKind::LostContact {
                worker,
                reason: format!(
                    "it {exit}, and what it said before cannot be known: something in this program closed the descriptor \
                     of its control socket (all descriptors, or one that is not its own?), by which a process also \
                     knows that its parent is there, and without which it ends"
                ),
            };
        }
        if !self.arrived {
            let said = stderr_tail.map_or(String::new(), |tail| {
                format!("; its stderr ended with: {}", last_lines(&tail))
            });
            let advice = match &exit {
                Exit::Code(_) => format!(": {}", self.way_in),
                Exit::Signal { number, .. } if *number == Signal::KILL.as_raw() => oom_kill()
                    .map_or(String::new(), |counter| {
                        format!(", likely for want of memory ({counter})")
                    }),
                Exit::Signal { .. } | Exit::Unknown => String::new(),
            };
            return ErrorKind::NeverStarted {
                worker,
                reason: format!("it {exit} before it reached `init`{advice}{said}"),
            };
        }
        if exit == Exit::Code(UNHEARD) && self.word == Word::None {
            return ErrorKind::LostContact {
                worker,
                reason: format!(
                    "it exited with code {UNHEARD}, as a worker does whose function has ended and whose control socket \
                     is closed, so that it cannot say how (did something in it close all descriptors?); or something \
                     in it called `exit({UNHEARD})`"
                ),
            };
        }
        let record = self.arena.map(link::record_of).unwrap_or_default();
        let signal = match &exit {
            Exit::Signal { number, .. } => *number,
            _ => 0,
        };
        let aborted = signal == Signal::ABORT.as_raw();
        // "panic = abort", a panic while another one unwound, or a panic where none may leave: the process could not
        // report it, but had said that nothing catches it. Of any other nobody knows whether it has to do with the end.
        let in_hook = self.in_hook && (aborted || matches!(exit, Exit::Code(_)));
        if let Some(panic) = &self.panicking
            && (in_hook || (aborted && panic.is_final))
        {
            let message = if panic.is_final {
                panic.message.clone()
            } else {
                let message = &panic.message;
                format!("{message} (and a panic hook of the program ended the process: it {exit})")
            };
            return ErrorKind::ProcessPanicked {
                worker,
                message,
                location: panic.location.clone(),
                backtrace: panic.backtrace.clone(),
            };
        }
        let last_panic = self.panicking.as_ref().map(|panic| match &panic.location {
            Some(location) => format!("{location}: {}", panic.message),
            None => panic.message.clone(),
        });
        // A terminal sends both to all processes that it started, at a key and at its own end.
        if [Signal::INT, Signal::HUP]
            .map(Signal::as_raw)
            .contains(&signal)
        {
            return ErrorKind::Interrupted {
                worker: Some(worker),
            };
        }
        let likely_out_of_memory = (signal == Signal::KILL.as_raw()).then(oom_kill).flatten();
        ErrorKind::ProcessExited {
            worker,
            exit,
            after_result: self.word == Word::Returned,
            likely_out_of_memory,
            last_task: record.task,
            last_panic: last_panic.or(record.panic).filter(|_| aborted),
            stderr_tail,
        }
    }
}
