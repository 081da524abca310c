//! Blocks whose origin has ended, in memory that was mapped from a descriptor and stays.
//!
//! The origin's events went with it: who has not opened one before cannot any more. So what a mark's event would say is taken
//! from the ledger of whoever recorded it, and who sends such a block on waits for its stream and says *done*, for which
//! nobody needs an event.

use std::sync::Arc;
use std::time::{Duration, Instant};

use shm_core::patience::Patience;

use crate::doubt::Record;
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::layout::{Path, block};
use crate::ledger::{self, Said};
use crate::mark::{By, EventId, Mark};
use crate::place::Place;

/// How long a process that lives may take to say that what it recorded has happened: it is asked, and looks twice a second.
pub(crate) const SAID_BY: Duration = Duration::from_secs(10);

impl Place {
    /// Whether the memory is another process's, and stays when that ends.
    fn outlives_its_origin(&self) -> bool {
        matches!(self, Self::Away(import) if import.path == Path::Descriptor)
    }

    /// Whether it is so, and its origin has ended.
    pub(crate) fn is_orphaned(&self) -> bool {
        let is_here = |origin| self.object().arena().is_present(origin);
        matches!(self, Self::Away(import) if self.outlives_its_origin() && !is_here(import.origin))
    }

    /// The event of a record that is waited for; none where it went with its origin, and the memory did not.
    pub(crate) fn event_if_any(&self, id: EventId) -> Result<Option<Arc<Event>>> {
        match self.event(id) {
            Err(error)
                if self.outlives_its_origin()
                    && matches!(error.kind(), ErrorKind::OriginGone { .. }) =>
            {
                Ok(None)
            }
            other => other.map(Some),
        }
    }

    /// Waits until a process says that all it has recorded in a stream so far has happened, where no event can be asked.
    pub(crate) fn wait_for_word(&self, by: By, patience: Duration) -> Result<()> {
        let arena = self.object().arena();
        let record = Record::latest(arena, by);
        let mut wait = Patience::new(patience);
        let mut pause = Duration::from_micros(20);
        loop {
            // Before what it says: what it said last, it may have said just before it ended.
            let lives = by.who == arena.me() || arena.is_running(by.who);
            let said = record.said();
            if said == Said::Over {
                return Ok(());
            }
            let who = || ledger::name_of(arena, by.who);
            if said == Said::Lost || record.book.is_none() || !lives {
                return Err(Error::new(
                    ErrorKind::WriterGone,
                    format!(
                        "{} has written a device tensor and did not say that it was done, and the event that would tell has gone with the process whose \
                         memory the tensor lies in; what was written is taken for lost",
                        who()
                    ),
                ));
            }
            if wait.is_over(Instant::now()) {
                return Err(Error::new(
                    ErrorKind::TimedOut,
                    format!(
                        "{} has not said within {patience:?} that its work on a device tensor is done, and the event that would tell has gone with the process \
                         whose memory the tensor lies in",
                        who()
                    ),
                ));
            }
            record.book.iter().for_each(|book| ledger::ask(book));
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(1));
        }
    }

    /// A shared block that was said to be written is sent on: said once more, so that it needs no event, if its origin has
    /// ended and this process sees that it was done.
    pub(crate) fn say_for_the_dead(&self, index: u32) -> Result<()> {
        if self.is_orphaned()
            && let Mark::Recorded(id, _) | Mark::Joint(id, _) = self.mark(index, block::READY)
            && let Some(event) = self.event_if_any(id)?
            && event.driver().has_happened(event.raw()?)?
        {
            self.set(index, block::READY, Mark::Done(None));
        }
        Ok(())
    }
}
