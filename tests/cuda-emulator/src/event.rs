//! Events: a place in a stream, for other streams and other processes to wait for.

use crate::board::{Access, Kind, Ticket};
use crate::calls::Call;
use crate::code::{self, Answer, invalid, refuse};
use crate::process::{Local, Process};
use crate::stream::{Issue, Work};

pub(crate) const DISABLE_TIMING: u32 = 2;
pub(crate) const INTERPROCESS: u32 = 4;
const KNOWN: u32 = 1 | DISABLE_TIMING | INTERPROCESS;

/// An event as this process has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    /// Its place in the board, and which event of that place it is.
    pub(crate) index: usize,
    pub(crate) generation: u32,
    pub(crate) device: usize,
    pub(crate) flags: u32,
    pub(crate) imported: bool,
}

impl Event {
    /// Gives the event back to the board.
    pub(crate) fn close(self, process: &Process) {
        let mut tables = process.board.lock();
        let it = &mut tables.events[self.index];
        if !it.live || it.generation != self.generation {
            return;
        }
        if !self.imported {
            return tables.close_event(self.index);
        }
        let count = &mut it.importers[process.row];
        *count = count.saturating_sub(1);
        if it.owner == 0 && it.importers.iter().all(|&count| count == 0) {
            tables.close_event(self.index);
        }
    }
}

impl Local {
    pub(crate) fn event(&self, handle: usize) -> Answer<Event> {
        match self.events.get(&handle) {
            Some(event) => Ok(*event),
            None => refuse(
                code::INVALID_HANDLE,
                "the event was destroyed, or never was one of this process",
            ),
        }
    }
}

impl Process {
    pub(crate) fn create_event(&self, flags: u32) -> Answer<usize> {
        let device = self.current()?;
        if flags & !KNOWN != 0 {
            return invalid(format!(
                "the flags {flags:#x} have bits that events do not know"
            ));
        }
        if flags & INTERPROCESS != 0 && flags & DISABLE_TIMING == 0 {
            return invalid(
                "an event for other processes must not take the time: flags 2 and 4 go together",
            );
        }
        let mut local = self.local();
        let mut tables = self.board.lock();
        let index = tables.open_event(self.row, self.pid, device)?;
        let generation = tables.events[index].generation;
        drop(tables);
        let handle = local.handle();
        local.events.insert(
            handle,
            Event {
                index,
                generation,
                device,
                flags,
                imported: false,
            },
        );
        Ok(handle)
    }

    pub(crate) fn destroy_event(&self, handle: usize) -> Answer {
        self.current()?;
        let mut local = self.local();
        local.event(handle)?;
        let event = local.events.remove(&handle);
        event.into_iter().for_each(|event| event.close(self));
        Ok(())
    }

    /// Whether the event is still there: an imported one may have been destroyed by who created it.
    fn check_event(&self, event: Event, by: Access) -> Answer {
        let tables = self.board.lock();
        let it = &tables.events[event.index];
        if it.live && it.generation == event.generation {
            return Ok(());
        }
        let why = format!("{by} uses an event that the process that created it has destroyed");
        drop(tables);
        self.report(Kind::FreedWhileOpen, &why);
        refuse(code::INVALID_HANDLE, why)
    }

    pub(crate) fn record(&'static self, call: Call, handle: usize, stream: usize) -> Answer {
        let current = self.current()?;
        let mut local = self.local();
        let event = local.event(handle)?;
        let stream = local.stream(self, stream, current)?;
        if event.device != stream.device {
            return refuse(
                code::INVALID_HANDLE,
                format!(
                    "the event belongs to device {}, the stream to device {}",
                    event.device, stream.device
                ),
            );
        }
        self.check_event(event, self.place(call))?;
        local.issue(
            self,
            &stream,
            Issue::new(call, Work::Nothing),
            |tables, ticket, clock| {
                let it = &mut tables.events[event.index];
                it.recorded = true;
                it.ticket = ticket;
                it.clock = *clock;
            },
        );
        Ok(())
    }

    /// The latest record of an event, if there is one.
    fn latest(&self, event: Event) -> Option<(Ticket, crate::board::Clock)> {
        let tables = self.board.lock();
        let it = &tables.events[event.index];
        it.recorded.then_some((it.ticket, it.clock))
    }

    pub(crate) fn wait_event(
        &'static self,
        call: Call,
        stream: usize,
        handle: usize,
        flags: u32,
    ) -> Answer {
        let current = self.current()?;
        if flags > 1 {
            return invalid(format!("flags {flags:#x}"));
        }
        let mut local = self.local();
        let event = local.event(handle)?;
        let stream = local.stream(self, stream, current)?;
        self.check_event(event, self.place(call))?;
        // The record of this moment; one that comes later is none of this stream's business, and no record is no wait.
        let after = self.latest(event);
        if after.is_some() {
            let issue = Issue {
                after,
                ..Issue::new(call, Work::Nothing)
            };
            local.issue(self, &stream, issue, |_, _, _| ());
        }
        Ok(())
    }

    pub(crate) fn query_event(&self, call: Call, handle: usize) -> Answer {
        self.current()?;
        let event = self.local().event(handle)?;
        self.check_event(event, self.place(call))?;
        match self.latest(event) {
            Some((ticket, clock)) if self.progress(ticket) == crate::board::Progress::Done => {
                self.board.lock().host.join(&clock);
                Ok(())
            }
            Some(_) => refuse(code::NOT_READY, "the event has not happened yet"),
            None => Ok(()),
        }
    }

    pub(crate) fn synchronize_event(&self, call: Call, handle: usize) -> Answer {
        self.current()?;
        let event = self.local().event(handle)?;
        self.check_event(event, self.place(call))?;
        let latest = self.latest(event);
        latest.into_iter().for_each(|latest| self.wait_for(latest));
        self.current().map(|_| ())
    }
}
