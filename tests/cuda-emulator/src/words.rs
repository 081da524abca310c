//! Words in memory that streams write and wait for.

use crate::calls::Call;
use crate::code::{self, Answer, invalid, refuse};
use crate::knobs::Feature;
use crate::process::{Local, Process};
use crate::stream::{Issue, Place, Until, Work};

/// Flag of a wait: flush what remote devices wrote.
const FLUSH: u32 = 1 << 30;

impl Process {
    fn check_words(&self, at: u64, wide: bool) -> Answer {
        if !self.knobs.has(Feature::MemoryOperations) {
            return refuse(
                code::NOT_SUPPORTED,
                "streams of this device neither write nor wait for words",
            );
        }
        let size = if wide { 8 } else { 4 };
        match at.is_multiple_of(size) {
            true => Ok(()),
            false => invalid(format!("{at:#x} is no multiple of {size}")),
        }
    }

    pub(crate) fn write_value(
        &'static self,
        call: Call,
        stream: usize,
        at: u64,
        value: u64,
        wide: bool,
        flags: u32,
    ) -> Answer {
        let current = self.current()?;
        self.check_words(at, wide)?;
        if flags > 1 {
            return invalid(format!("flags {flags:#x}"));
        }
        let mut local = self.local();
        let stream = local.stream(self, stream, current)?;
        let to = self.word(&local, at, if wide { 8 } else { 4 })?;
        let issue = Issue::new(call, Work::Store { to, value, wide });
        local.issue(self, &stream, issue, |_, _, _| ());
        Ok(())
    }

    pub(crate) fn wait_value(
        &'static self,
        call: Call,
        stream: usize,
        at: u64,
        value: u64,
        wide: bool,
        flags: u32,
    ) -> Answer {
        let current = self.current()?;
        self.check_words(at, wide)?;
        let until = match flags & !FLUSH {
            0 => Until::AtLeast,
            1 => Until::Equal,
            2 => Until::AnyBit,
            3 => Until::NotAllBits,
            _ => return invalid(format!("flags {flags:#x}")),
        };
        let mut local = self.local();
        let stream = local.stream(self, stream, current)?;
        let at = self.word(&local, at, if wide { 8 } else { 4 })?;
        let issue = Issue::new(
            call,
            Work::Await {
                at,
                value,
                wide,
                until,
            },
        );
        // Which write ends the wait is not known yet, and may come from the host: from here on nothing is said about the
        // order of this stream.
        local.issue(self, &stream, issue, |tables, ticket, _| {
            tables.streams[usize::from(ticket.stream)].lenient = true
        });
        Ok(())
    }

    fn word(&self, local: &Local, at: u64, size: usize) -> Answer<Place> {
        if local.pinned_around(at as usize, size) {
            return Ok(Place::Host(at as usize));
        }
        let (_, target, offset) = local.space.bytes(at, size as u64)?;
        Ok(Place::Device(target, offset))
    }
}
