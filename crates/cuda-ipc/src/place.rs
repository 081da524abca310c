//! Where a tensor's block lies, and the order of work on it: which marks are set and waited for, and when.
//!
//! A writer records *ready* behind its work and then sends; whoever receives makes its stream wait for it. A holder that
//! lets go records one of the *releases*; whoever is the only one left, and the origin before it gives the block out again,
//! waits for those. All events are the origin's. A mark is stored (release) after its event was recorded, and loaded
//! (acquire) before the event is waited for, so the wait is for that record or a later one.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use shm_core::object::Object;
use shm_core::patience::Patience;
use shm_core::word::Owner;
use smallvec::SmallVec;

use crate::device::Device;
use crate::doubt::{Doubt, Record};
use crate::error::{Error, ErrorKind, Result};
use crate::event::{Event, Station};
use crate::hub::Hub;
use crate::import::Import;
use crate::joint;
use crate::layout::{block, record};
use crate::ledger;
use crate::mark::{By, EventId, Mark};
use crate::memory::Memory;
use crate::options::{Gate, options};
use crate::orphan::SAID_BY;
use crate::sabotage;
use crate::stats::COUNTERS;
use crate::stream::Stream;

/// What becomes of a block whose last users are not done with it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Late {
    /// Another one is taken: the driver is asked, and nothing waits. Nobody's death can then stop the stream.
    IsLeft,
    /// There is no other. The stream waits, as that of a receiver does; with [`Gate::Host`] the thread, for so long.
    WaitsFor(Duration),
}

/// Memory of this process, or of another one.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    Home(Arc<Memory>, Arc<Station>),
    Away(Arc<Import>),
}

impl Place {
    pub(crate) fn object(&self) -> &Object {
        match self {
            Self::Home(memory, _) => &memory.object,
            Self::Away(import) => &import.object,
        }
    }

    pub(crate) fn device(&self) -> Device {
        match self {
            Self::Home(memory, _) => memory.device,
            Self::Away(import) => import.device,
        }
    }

    pub(crate) fn address_of(&self, index: u32) -> Result<u64> {
        match self {
            Self::Home(memory, _) => Ok(memory.address_of(index)),
            Self::Away(import) => import.address_of(index),
        }
    }

    /// How many blocks there are, and how large each is.
    pub(crate) fn blocks(&self) -> (u32, u64) {
        match self {
            Self::Home(memory, _) => (memory.count, memory.stride),
            Self::Away(import) => (import.count, import.stride),
        }
    }

    /// Fails when the memory went with its origin.
    pub(crate) fn check_alive(&self, closely: bool) -> Result<()> {
        match self {
            Self::Home(..) => Ok(()),
            Self::Away(import) => import.check_alive(closely),
        }
    }

    /// What went wrong with what is another process's: that this process has ended, if it has, or is about to.
    pub(crate) fn explain(&self, error: Error) -> Error {
        match self {
            Self::Home(..) => error,
            Self::Away(import) => import.explain(error),
        }
    }

    pub(crate) fn event(&self, id: EventId) -> Result<Arc<Event>> {
        match self {
            Self::Home(_, station) => station.event(id),
            Self::Away(import) => import.visited.event(import.device, id),
        }
    }

    pub(crate) fn me(&self) -> Owner {
        self.object().arena().me()
    }

    pub(crate) fn mark(&self, index: u32, word: u64) -> Mark {
        // Acquire: pairs with the release in `set`; the event was recorded before.
        Mark::from_word(record(self.object(), index, word).load(Ordering::Acquire))
    }

    pub(crate) fn set(&self, index: u32, word: u64, mark: Mark) {
        // Release: whoever sees the mark waits for a record that was made before.
        record(self.object(), index, word).store(mark.to_word(), Ordering::Release);
    }

    /// How often the block was given out.
    pub(crate) fn turn(&self, index: u32) -> u64 {
        record(self.object(), index, block::USE).load(Ordering::Acquire)
    }

    /// The origin gives the block out once more.
    pub(crate) fn begin_turn(&self, index: u32) -> u64 {
        let word = record(self.object(), index, block::USE);
        word.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// The origin binds events to the block, as far as there are any, so that it can be sent: one to say that it was
    /// written, and for `readers` holders one each to say that they are done.
    pub(crate) fn bind(&self, index: u32, readers: usize) -> Result<()> {
        let words = std::iter::once(block::READY).chain(block::RELEASES.take(readers));
        self.bind_to(index, words)
    }

    /// As [`bind`](Self::bind), of these words.
    pub(crate) fn bind_to(&self, index: u32, words: impl Iterator<Item = u64>) -> Result<()> {
        let Self::Home(memory, station) = self else {
            return Ok(());
        };
        for word in words {
            let mark = self.mark(index, word);
            if mark.own().is_some() {
                continue;
            }
            self.take_lent(index, word, mark);
            match Hub::get()?.event_for(station, memory.device, None)? {
                Some(event) => self.set(index, word, Mark::Bound(event)),
                None => break,
            }
        }
        Ok(())
    }

    /// Says that what is in `stream` so far wrote the block. Only the one writer calls it.
    pub(crate) fn publish(&self, index: u32, stream: &Stream) -> Result<()> {
        // Of an origin that has ended, who receives it may not be able to open one; nor may this process, before that is buried.
        let is_orphaned = self.is_orphaned();
        let own = (!is_orphaned).then(|| self.own_event(index)).flatten();
        let event = own.map(|id| self.event_if_any(id)).transpose()?;
        match own.zip(event.flatten()) {
            Some((id, event)) => {
                self.claim_ready(index, id);
                let by = self.record(stream, &event)?;
                shm_core::failpoint!("device.ready.recorded");
                self.set(index, block::READY, Mark::Recorded(id, by));
            }
            None => {
                COUNTERS.host_waits.add(1);
                stream.synchronize()?;
                self.set(index, block::READY, Mark::Done(None));
            }
        }
        Ok(())
    }

    /// Records the event behind what is in `stream` so far.
    pub(crate) fn record(&self, stream: &Stream, event: &Event) -> Result<By> {
        if sabotage::is("ordering") {
            let (who, stream) = (self.me(), crate::mark::NO_NUMBER);
            return Ok(By { who, stream });
        }
        stream.record(event)
    }

    /// Before a process that is not the origin records *ready* anew: were it killed before it says so, the origin would take
    /// the record for that of whoever had said it before, and wait for it for ever.
    fn claim_ready(&self, index: u32, id: EventId) {
        if matches!(self, Self::Away(_)) {
            self.set(index, block::READY, Mark::Claimed(id, self.me()));
        }
    }

    /// Makes `stream` wait for whoever wrote the block; for the tensors of one message that one event stands for, once.
    pub(crate) fn arrive(&self, index: u32, stream: &Stream) -> Result<()> {
        match self.mark(index, block::READY) {
            Mark::Recorded(id, by) => self.wait(stream, id, by),
            Mark::Joint(id, by) => match self.event_if_any(id)? {
                Some(event) => joint::once(stream, &event, || self.wait(stream, id, by)),
                None => self.wait_for_word(by, SAID_BY),
            },
            Mark::Done(_) => Ok(()),
            _ => Err(unwritten()),
        }
    }

    /// As [`arrive`](Self::arrive), but this thread waits.
    pub(crate) fn wait_for_writer(&self, index: u32, patience: Duration) -> Result<()> {
        match self.mark(index, block::READY) {
            Mark::Recorded(id, by) | Mark::Joint(id, by) => {
                self.wait_patiently(&*self.event(id)?, by, patience)
            }
            Mark::Done(_) => Ok(()),
            _ => Err(unwritten()),
        }
    }

    /// Makes `stream` wait for what a process recorded.
    fn wait(&self, stream: &Stream, id: EventId, by: By) -> Result<()> {
        let Some(event) = self.event_if_any(id)? else {
            return self.wait_for_word(by, SAID_BY);
        };
        if sabotage::is("ordering") {
            return Ok(());
        }
        let driver = stream.driver();
        let arena = self.object().arena();
        if by.who == arena.me() {
            return stream.wait_for_event(&event, by, arena);
        }
        if !arena.is_present(by.who) {
            // Whoever is gone has its work done, or it never will be.
            return match driver.has_happened(event.raw()?)? {
                true => Ok(()),
                false => Err(self.writer_gone(by.who)),
            };
        }
        match options().gate {
            Gate::Stream => stream.wait_for_event(&event, by, arena),
            Gate::Host(timeout) => {
                // As its user has said.
                let begun = Instant::now();
                self.wait_here(&event, by, timeout, |now| now - begun >= timeout)
            }
        }
    }

    /// As [`wait_here`](Self::wait_here), for as long as it takes one that has its turns.
    fn wait_patiently(&self, event: &Event, by: By, patience: Duration) -> Result<()> {
        let mut wait = Patience::new(patience);
        self.wait_here(event, by, patience, |now| wait.is_over(now))
    }

    /// Waits until what a process recorded has happened.
    fn wait_here(
        &self,
        event: &Event,
        by: By,
        patience: Duration,
        mut is_over: impl FnMut(Instant) -> bool,
    ) -> Result<()> {
        let (driver, arena) = (event.driver(), self.object().arena());
        let mut doubt = Doubt::default();
        let record = Record::latest(arena, by);
        let mut pause = Duration::from_micros(20);
        while !driver.has_happened(event.raw()?)? {
            if !arena.is_running(by.who) {
                return match driver.has_happened(event.raw()?)? {
                    true => Ok(()),
                    false => Err(self.writer_gone(by.who)),
                };
            }
            if doubt.look(arena, &record).is_some() && !driver.has_happened(event.raw()?)? {
                return Err(self.writer_gone(by.who));
            }
            if is_over(Instant::now()) {
                return Err(Error::new(
                    ErrorKind::TimedOut,
                    format!(
                        "the work of {} on a device tensor was not done within {patience:?}",
                        ledger::name_of(arena, by.who)
                    ),
                ));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Says that what is in `stream` so far used the block, and nothing of this process will any more. `alone`: nobody else
    /// holds it.
    pub(crate) fn release(&self, index: u32, stream: &Stream, alone: bool) -> Result<()> {
        if sabotage::is("release") {
            return Ok(());
        }
        let me = self.me();
        for word in block::RELEASES {
            let mark = self.mark(index, word);
            let Mark::Bound(id) = mark else { continue };
            let claimed = record(self.object(), index, word).compare_exchange(
                mark.to_word(),
                Mark::Claimed(id, me).to_word(),
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
            if claimed.is_err() {
                continue;
            }
            shm_core::failpoint!("device.release.claimed");
            let by = stream.record(&*self.event(id)?)?;
            shm_core::failpoint!("device.release.recorded");
            self.set(index, word, Mark::Recorded(id, by));
            return Ok(());
        }
        // Where nobody else has said that it is done, *ready* can say it as well: this process has waited for it.
        let says = |word| matches!(self.mark(index, word), Mark::Recorded(..));
        if alone
            && let Some(id) = self.mark(index, block::READY).own()
            && !block::RELEASES.into_iter().any(says)
        {
            let event = self.event(id)?;
            self.claim_ready(index, id);
            let by = stream.record(&event)?;
            self.set(index, block::READY, Mark::Recorded(id, by));
            return Ok(());
        }
        COUNTERS.host_waits.add(1);
        stream.synchronize()
    }

    /// Says that this process may have work on the block for as long as it lives; `false` where there is no room to say so, now.
    pub(crate) fn keep(&self, index: u32) -> bool {
        let me = self.me();
        let has_happened = |id| {
            let event = self.event(id)?;
            event.driver().has_happened(event.raw()?)
        };
        block::RELEASES.into_iter().any(|word| {
            let record = record(self.object(), index, word);
            // As it is: several words say nothing.
            let now = record.load(Ordering::Acquire);
            let kept = match Mark::from_word(now) {
                Mark::None => Mark::Kept(me, None),
                Mark::Bound(id) => Mark::Kept(me, Some(id)),
                Mark::Recorded(id, _) if has_happened(id).unwrap_or(false) => {
                    Mark::Kept(me, Some(id))
                }
                _ => return false,
            };
            // Release: pairs with the acquire in `mark`; the reference to the token goes after it.
            record
                .compare_exchange(now, kept.to_word(), Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        })
    }

    /// Makes sure that everybody is done who used the block, and clears what they said: before it is written again. Only who
    /// is alone with the block calls it. `false` when somebody is not done yet, and another block will do.
    pub(crate) fn settle(&self, index: u32, stream: &Stream, late: Late) -> Result<bool> {
        let mut waited = false;
        // Cleared together in the end: if the block is left after all, the next to come waits for all of it.
        let mut over = SmallVec::<[(u64, Mark); 6]>::new();
        for word in block::RELEASES.chain(std::iter::once(block::READY)) {
            let mark = self.mark(index, word);
            let (id, by) = match mark {
                Mark::Recorded(id, by) | Mark::Joint(id, by) => (id, by),
                Mark::Kept(who, _) if self.object().arena().is_present(who) => return Ok(false),
                Mark::Lent(_) => {
                    self.take_lent(index, word, mark);
                    continue;
                }
                Mark::Claimed(id, _) => {
                    self.forget(index, word, id);
                    continue;
                }
                // Which may be taken for something else meanwhile.
                Mark::None => continue,
                _ => {
                    over.push((word, mark.cleared()));
                    continue;
                }
            };
            // Who released had waited for the writer.
            if word != block::READY || !waited {
                match self.finish(stream, id, by, late) {
                    Ok(true) => waited = true,
                    Ok(false) => return Ok(false),
                    Err(error) if *error.kind() == ErrorKind::WriterGone => {
                        match mark {
                            // It is of no block, and seen to when none speaks of it any more.
                            Mark::Joint(..) => self.set(index, word, Mark::None),
                            Mark::Recorded(..) if matches!(self, Self::Away(_)) => {
                                self.pass_to_origin(index, word, id);
                            }
                            _ => self.forget(index, word, id),
                        }
                        continue;
                    }
                    Err(error) => return Err(error),
                }
            }
            over.push((word, mark.cleared()));
        }
        for (word, mark) in over {
            self.set(index, word, mark);
        }
        Ok(true)
    }

    /// Makes `stream` wait for what a process recorded, or looks whether it has happened.
    fn finish(&self, stream: &Stream, id: EventId, by: By, late: Late) -> Result<bool> {
        let Some(event) = self.event_if_any(id)? else {
            return match self.wait_for_word(by, SAID_BY) {
                Err(error) if *error.kind() == ErrorKind::TimedOut => Ok(false),
                other => other.map(|()| true),
            };
        };
        let (driver, arena) = (stream.driver(), self.object().arena());
        let is_here = by.who == self.me() || arena.is_present(by.who);
        if is_here && ledger::is_lost(arena, by.who, by.stream) {
            // Its work on the block may begin after all as long as its process lives.
            return driver.has_happened(event.raw()?);
        }
        let is_waited_for = || match stream.wait_for_event(&event, by, arena) {
            // Lost since: as above.
            Err(error) if *error.kind() == ErrorKind::WriterGone => Ok(false),
            other => other.map(|()| true),
        };
        if by.who == self.me() {
            return is_waited_for();
        }
        match (late, options().gate) {
            (Late::WaitsFor(_), Gate::Stream) if is_here => is_waited_for(),
            (Late::IsLeft, _) if is_here => driver.has_happened(event.raw()?),
            (Late::WaitsFor(patience), _) => match self.wait_patiently(&event, by, patience) {
                Err(error) if *error.kind() == ErrorKind::TimedOut => Ok(false),
                // Lost, by one that lives.
                Err(_) if arena.is_running(by.who) => Ok(false),
                other => other.map(|()| true),
            },
            (Late::IsLeft, _) => match driver.has_happened(event.raw()?)? {
                true => Ok(true),
                false => Err(self.writer_gone(by.who)),
            },
        }
    }

    /// An event that its recorder may not have recorded, or that may never happen, gives way to another. Its work went with
    /// its process: the driver ends what a dead process had on a device before the process is seen as dead.
    fn forget(&self, index: u32, word: u64, id: EventId) {
        let mark = match self {
            Self::Home(_, station) => station.give_way(id).map_or(Mark::None, |id| {
                COUNTERS.events_replaced.add(1);
                Mark::Bound(id)
            }),
            // Not ours to replace. Nobody was told of a record, so nobody waits for it.
            Self::Away(_) => Mark::Bound(id),
        };
        self.set(index, word, mark);
    }

    /// The events that are bound to a block go back to the station; whether there were any. The origin calls it, of a block
    /// that nobody uses and that is quiet.
    pub(crate) fn unbind(&self, index: u32) -> bool {
        let mut found = false;
        if let Self::Home(_, station) = self {
            for word in std::iter::once(block::READY).chain(block::RELEASES) {
                let mark = self.mark(index, word);
                self.take_lent(index, word, mark);
                if let Some(id) = mark.own() {
                    self.set(index, word, Mark::None);
                    station.give_back(id);
                    found = true;
                } else if let Mark::Joint(..) | Mark::Kept(..) = mark {
                    self.set(index, word, Mark::None);
                    found = true;
                }
            }
        }
        found
    }

    fn writer_gone(&self, who: Owner) -> Error {
        let who = ledger::name_of(self.object().arena(), who);
        Error::new(
            ErrorKind::WriterGone,
            format!(
                "{who} has written a device tensor, and has ended before its work on the device was done, or waits itself for one that has; what it wrote is lost"
            ),
        )
    }
}

fn unwritten() -> Error {
    crate::layout::malformed("a tensor that nobody says to have written")
}
