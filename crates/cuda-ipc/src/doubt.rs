//! When to give up an event: its recorder has died, or waits itself for one that has.

use std::time::{Duration, Instant};

use shm_core::Arena;
use shm_core::patience::Patience;
use shm_core::word::Owner;
use smallvec::SmallVec;

use crate::device::Device;
use crate::error::{Error, ErrorKind};
use crate::ledger::{self, Book, Said};
use crate::mark::By;

/// How long an event may take to happen after its recorder has died without a word. By then, the driver is done with what
/// the dead had; and what this process, or a third one, recorded with the same event since has happened as well, or takes
/// very long. Twice as long where nobody but the thread that watches the arena looks, which is twice a second.
const GRACE: Duration = Duration::from_secs(2);
/// How long a process that lives may take to say what becomes of a stream that waits for somebody dead, perhaps: one that
/// runs needs twice [`GRACE`] and half a second, and one that is stopped says nothing. Counted as that.
const SILENCE: Duration = Duration::from_secs(10);

/// A record that is waited for: one of the first `upto` of a stream.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) by: By,
    pub(crate) upto: u64,
    /// What the recorder says of its streams.
    pub(crate) book: Option<Book>,
}

impl Record {
    /// The latest that was recorded there, of which a mark speaks that was seen.
    pub(crate) fn latest(arena: &Arena, by: By) -> Self {
        let book = ledger::of(arena, by.who);
        let recorded = |book: &Book| ledger::recorded_in(book, by.stream);
        Self {
            by,
            upto: book.as_ref().map_or(u64::MAX, recorded),
            book,
        }
    }

    /// What its recorder says of it.
    pub(crate) fn said(&self) -> Said {
        match &self.book {
            Some(book) => ledger::said(book, self.by.stream, self.upto),
            None => Said::Nothing,
        }
    }

    /// Whether there is somebody dead or lost behind it, as far as can be seen at little cost.
    pub(crate) fn is_doubtful(&self, arena: &Arena) -> bool {
        match self.said() {
            Said::Over => false,
            Said::Lost => true,
            Said::Nothing => !arena.is_present(self.by.who),
        }
    }
}

/// Why it may be that an event never happens, and since when that is known.
#[derive(Clone, Debug, Default)]
pub(crate) struct Doubt {
    dead_since: Option<Patience>,
    /// Those behind a process that says nothing, each since when.
    silent: SmallVec<[(By, Patience); 1]>,
    looked_behind: Option<Instant>,
}

impl Doubt {
    /// Who died, if it is over with an event that has not happened yet.
    pub(crate) fn look(&mut self, arena: &Arena, record: &Record) -> Option<Owner> {
        let who = record.by.who;
        match record.said() {
            Said::Over => return None,
            Said::Lost => return Some(who),
            Said::Nothing => {}
        }
        if who != arena.me() && !arena.is_running(who) {
            let now = Instant::now();
            let wait = self
                .dead_since
                .get_or_insert_with(|| Patience::new_at(GRACE, now));
            // What it said last, it may have said just before it ended.
            let is_late = wait.is_over(now) || crate::sabotage::is("grace");
            return (is_late && record.said() != Said::Over).then_some(who);
        }
        // It has not said so, and may be stopped: who is behind it?
        let now = Instant::now();
        if self
            .looked_behind
            .is_some_and(|then| now - then < Duration::from_millis(100))
        {
            return None;
        }
        self.looked_behind = Some(now);
        let book = record.book.as_ref()?;
        let dead = ledger::dead_behind(arena, book, record.by, record.upto);
        // One that runs sees to each of them in time, though there may always be another one.
        self.silent.retain(|(one, _)| dead.contains(one));
        for one in dead {
            if self.silent.iter().all(|(known, _)| *known != one) {
                self.silent.push((one, Patience::new_at(SILENCE, now)));
            }
        }
        // Each of them is looked at.
        let mut over = None;
        for (one, wait) in &mut self.silent {
            if wait.is_over(now) {
                over.get_or_insert(one.who);
            }
        }
        over
    }
}

/// A stream lost what it waits for.
pub(crate) fn lost_stream(device: Device, who: &str) -> Error {
    Error::new(
        ErrorKind::WriterGone,
        format!(
            "a stream of device {} waits for {who}, which has ended before its work was done, or waits itself for one that has; the stream cannot go on. \
             Tensors that are on it are lost; make another stream",
            device.ordinal()
        ),
    )
}
