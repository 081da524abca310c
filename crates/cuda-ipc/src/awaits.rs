//! What a stream waits for that may never happen, and what becomes of it.
//!
//! A stream that was made to wait for work of another process cannot go on when that one dies before the work is done. So
//! each stream keeps what it waits for, with who recorded it; so does one that waits for such a stream of its own process.
//! A thread looks at that before it enters a call of the driver in which it would wait for the stream, and keeps others
//! from adding to it meanwhile. What streams wait for that the driver orders by itself, they have in common: their
//! [company](crate::company) keeps it. The thread that watches the arena looks as well, twice a second, and says in the
//! [ledger](crate::ledger) which streams are lost, for those who wait for what was recorded in them, and how far the others
//! have come.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use shm_core::Arena;
use shm_core::patience::Patience;
use smallvec::SmallVec;

use crate::company::{Calm, Company};
use crate::device::Device;
use crate::doubt::Record;
use crate::driver::{Driver, RawEvent, RawStream, check_not_forked};
use crate::error::Result;
use crate::ledger::{self, Said};
use crate::mark::{By, NO_NUMBER};
use crate::stream::Inner;
use crate::stuck;
use crate::waiting::{Awaited, Entry, Source};

/// A stream that somebody else made, as the driver calls it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Borrowed {
    /// The driver's pointer, which may be another stream's once this one was destroyed.
    pub(crate) raw: usize,
    /// What no other stream has, where the driver tells.
    pub(crate) id: Option<u64>,
}

/// What one stream waits for. It stays after the stream's last handle, until it is known what becomes of its work.
#[derive(Debug)]
pub(crate) struct Awaits {
    pub(crate) device: Device,
    /// What marks call the stream.
    pub(crate) number: u8,
    /// Which stream it is, if somebody else made it.
    pub(crate) borrowed: Option<Borrowed>,
    pub(crate) handles: AtomicU64,
    /// What it waits for, and those that it may wait for without being told.
    pub(crate) company: Arc<Company>,
    /// This one.
    me: Weak<Self>,
    driver: &'static dyn Driver,
    /// To look how far the stream is, as long as somebody has it, where it is one of this crate.
    own: Mutex<Weak<Inner>>,
    /// The same of one that somebody else made, with how many have it. Whoever lets go of the last handle takes it away from
    /// here before: the stream may be destroyed then. So it is used only while this is locked, and only by calls of the driver
    /// that wait for nothing.
    lent: Mutex<(Option<RawStream>, u32)>,
    /// An event of this process in the stream, and what is over when it has happened.
    passing: Mutex<Passing>,
    /// How many records the stream had at the last look, and for how many looks it has had no more.
    seen: Mutex<(u64, u32)>,
}

#[derive(Debug, Default)]
struct Passing {
    event: Option<RawEvent>,
    serials: Vec<u64>,
    /// So many records come before it; none when it does not stand for anything.
    upto: Option<u64>,
}

impl Awaits {
    /// Of a new stream.
    pub(crate) fn new(
        driver: &'static dyn Driver,
        device: Device,
        borrowed: Option<Borrowed>,
        number: u8,
        company: Arc<Company>,
    ) -> Result<Arc<Self>> {
        let made = Arc::new_cyclic(|me| Self {
            device,
            number,
            borrowed,
            handles: AtomicU64::new(1),
            company,
            me: me.clone(),
            driver,
            own: Mutex::default(),
            lent: Mutex::default(),
            passing: Mutex::default(),
            seen: Mutex::default(),
        });
        made.company.join(&made)?;
        Ok(made)
    }

    /// The stream that it is of: one handle more.
    pub(crate) fn belongs_to(&self, stream: &Arc<Inner>) {
        if self.borrowed.is_none() {
            *self.own.lock() = Arc::downgrade(stream);
            return;
        }
        let mut lent = self.lent.lock();
        lent.1 += 1;
        // Used as long as there is any handle: it goes from here before the last one does (`let_go`).
        lent.0 = stream.raw().ok().and_then(RawStream::lent);
    }

    /// Asks the driver something of the stream that it answers at once, as long as somebody has it.
    fn with_stream<R>(&self, ask: impl FnOnce(&RawStream) -> R) -> Option<R> {
        if self.borrowed.is_some() {
            return self.lent.lock().0.as_ref().map(ask);
        }
        let stream = self.own.lock().upgrade()?;
        stream.raw().ok().map(ask)
    }

    /// Whether the stream has come to a point behind what it waited for some time ago. An event of another process may have
    /// been recorded anew meanwhile, by one that died, or for what comes later, and then says nothing.
    pub(crate) fn has_passed(&self) -> Result<bool> {
        let mut passing = self.passing.lock();
        if passing.upto.is_some()
            && let Some(event) = &passing.event
        {
            if !self.driver.has_happened(event)? {
                return Ok(false);
            }
            let over = std::mem::take(&mut passing.serials);
            let upto = passing.upto.take();
            drop(passing);
            upto.into_iter()
                .for_each(|upto| ledger::set_done(self.number, upto));
            self.remove(&over);
            return Ok(true);
        }
        drop(passing);
        let marked = self.with_stream(|raw| {
            let mut passing = self.passing.lock();
            match passing.upto {
                // Another thread was faster.
                Some(_) => Ok(true),
                None => self.mark(&mut passing, raw),
            }
        });
        marked.unwrap_or(Ok(true)).map(|_| false)
    }

    /// Records where the stream is; `false` where that can't be said now, since it is being made to wait for more.
    fn mark(&self, passing: &mut Passing, raw: &RawStream) -> Result<bool> {
        // What is in the list then, the stream waits for already. Whoever adds to it does not wait for what this thread holds;
        // those who wait for a stream of the company may go on doing so.
        let Some(_told) = self.company.try_hold_shared() else {
            return Ok(false);
        };
        let upto = ledger::recorded(self.number);
        let event = match passing.event.take() {
            Some(event) => event,
            None => self.driver.new_event(self.device.ordinal(), false)?,
        };
        self.driver.record(passing.event.insert(event), raw)?;
        passing.serials = self.own().iter().map(|one| one.serial).collect();
        passing.upto = Some(upto);
        Ok(true)
    }

    /// The same where nobody will later: what is added to the company's list takes a call of the driver that waits for nothing.
    fn mark_at_last(&self, raw: &RawStream) -> Result<()> {
        let mut wait = Patience::new(AT_LAST);
        while !self.mark(&mut self.passing.lock(), raw)? && !wait.is_over(Instant::now()) {
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Whether the stream is seen to be done with all that it has to do. Asked without waiting, and noted.
    pub(crate) fn is_idle(&self, raw: &RawStream) -> Result<bool> {
        let upto = ledger::recorded(self.number);
        // While one is added, the stream may not have been told yet to wait for what is in the list.
        let told = self.company.try_hold_shared();
        let list = told.map(|_told| self.own()).unwrap_or_default();
        let serials: Vec<_> = list.iter().map(|one| one.serial).collect();
        let is_idle = self.driver.is_idle(raw)?;
        if is_idle {
            ledger::set_done(self.number, upto);
            self.remove(&serials);
        }
        Ok(is_idle)
    }

    /// One handle of the stream fewer, of which this may be the last.
    pub(crate) fn let_go(&self, raw: Option<&RawStream>) {
        let is_done = self.is_lost() || (self.count() == 0 && ledger::is_done(self.number));
        if let Some(raw) = raw
            && !is_done
            && !self.is_idle(raw).unwrap_or(false)
            && let Err(error) = self.mark_at_last(raw)
        {
            tracing::warn!(%error, "it is not seen when a stream comes to its end");
        }
        if self.borrowed.is_some() {
            // Nobody asks anything of it from here on.
            let mut lent = self.lent.lock();
            lent.1 = lent.1.saturating_sub(1);
            if lent.1 == 0 {
                lent.0 = None;
            }
        }
        self.handles.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether nobody has the stream, and all that was recorded in it has happened: its number can be another one's.
    pub(crate) fn is_over(&self) -> bool {
        self.handles.load(Ordering::Acquire) == 0
            && !self.is_lost()
            && self.count() == 0
            && match self.number {
                NO_NUMBER => self.has_come_to_its_mark(),
                number => ledger::is_done(number),
            }
    }

    /// Whether nothing is left of what was in the stream when a handle of it went: of one without a number no ledger says so.
    fn has_come_to_its_mark(&self) -> bool {
        let _ = self.has_passed();
        self.passing.lock().upto.is_none()
    }

    /// Whether nothing is left to do in the stream, as is seen without waiting.
    pub(crate) fn is_at_rest(&self) -> bool {
        let is_idle = self.with_stream(|raw| self.is_idle(raw).unwrap_or(false));
        // Whoever lets go of it says where it is before there is no handle any more.
        let is_gone = || self.handles.load(Ordering::Acquire) == 0 && self.has_come_to_its_mark();
        !self.is_lost() && is_idle.unwrap_or_else(is_gone)
    }

    /// Whether it is known that it will never go on.
    pub(crate) fn is_lost(&self) -> bool {
        self.company.is_lost()
    }

    /// Adds what the stream is made to wait for by `wait`.
    pub(crate) fn add(
        &self,
        all: impl IntoIterator<Item = Awaited>,
        wait: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        self.company.add(&self.me, all, wait)
    }

    /// What the stream waits for, as far as anybody can know.
    pub(crate) fn all(&self) -> Vec<Awaited> {
        self.company.all()
    }

    /// Whether it waits for nothing that is not of its own.
    pub(crate) fn is_empty(&self) -> bool {
        self.company.is_empty()
    }

    /// What it was itself made to wait for.
    fn own(&self) -> Vec<Awaited> {
        let list = self.company.list.lock();
        let own = list.events.values().filter(|entry| self.is_own(entry));
        own.map(|entry| entry.awaited.clone()).collect()
    }

    fn is_own(&self, entry: &Entry) -> bool {
        entry.told.is(&self.me)
    }

    /// How much it was itself made to wait for that is not of its own.
    pub(crate) fn count(&self) -> usize {
        let list = self.company.list.lock();
        let all = list.events.values();
        all.filter(|entry| self.is_own(entry)).count()
    }

    /// That is over for this stream. Another one that was made to wait for it may be less far.
    fn remove(&self, serials: &[u64]) {
        let is_over = |entry: &Entry| self.is_own(entry) && serials.contains(&entry.awaited.serial);
        self.company.list.lock().remove(is_over);
    }

    /// Its number may be another stream's from now on.
    pub(crate) fn leave(&self) {
        self.company.leave(&self.me);
    }

    /// As [`Company::check`].
    pub(crate) fn check(&self) -> Result<()> {
        self.company.check()
    }

    /// As [`Company::calm`].
    pub(crate) fn calm(&self, until: Option<Instant>) -> Result<Option<Calm<'_>>> {
        self.company.calm(until)
    }

    /// Whether it waits for nobody else of whom it was told, now. Forgets all that has happened.
    pub(crate) fn is_calm(&self) -> bool {
        let all = self.own();
        let count = all.len();
        let over = all.iter().filter(|one| one.has_happened().unwrap_or(false));
        let over: Vec<_> = over.map(|one| one.serial).collect();
        if !over.is_empty() {
            self.remove(&over);
        }
        let is_rest_over = || self.has_passed().unwrap_or(false) && self.count() == 0;
        !self.is_lost() && (over.len() == count || is_rest_over())
    }

    /// A look from time to time, which waits for nothing: whether somebody died for whom it waits. `soon`: it is said how far the
    /// stream has come also while it goes on.
    pub(crate) fn look(&self, soon: bool) {
        self.look_how_far(soon);
        let is_over = self.handles.load(Ordering::Acquire) == 0;
        let all = self.own();
        let Some(arena) = stuck::arena().cloned() else {
            return;
        };
        let bad: SmallVec<[By; 4]> = {
            let list = self.company.list.lock();
            let is_bad =
                |source: &&Source| source.of.is(&self.me) && is_bad(&arena, &source.record);
            list.sources
                .iter()
                .filter(is_bad)
                .map(|source| source.record.by)
                .collect()
        };
        for mut one in all {
            if self.is_lost() {
                return;
            }
            if !is_over && !bad.contains(&one.record.by) {
                continue;
            }
            if self.has_passed().unwrap_or(false) {
                // The others at the next look.
                return;
            }
            if one.has_happened().unwrap_or(false) {
                self.remove(&[one.serial]);
            } else if let Some(dead) = one.doubt.look(&arena, &one.record) {
                // Seen once more: this thread may have slept since.
                match one.has_happened().unwrap_or(false) {
                    true => self.remove(&[one.serial]),
                    false if self.has_passed().unwrap_or(false) => return,
                    false => self.company.lose(&arena, dead),
                }
            } else {
                self.company.keep_doubt(one.serial, &one.doubt);
            }
        }
        // Those who live stay as long as there is room: they will be waited for again.
        let is_tight = ledger::is_tight();
        let mut list = self.company.list.lock();
        list.tidy(|source| is_tight || !arena.is_present(source.record.by.who));
    }

    /// Says how far the stream has come, where nobody else will: of one that has been left alone for a while, so that the
    /// death of this process is no reason to doubt what it had done long before; of any one, also one that is never at rest,
    /// where others may wait for the word.
    fn look_how_far(&self, soon: bool) {
        if self.is_lost() || ledger::is_done(self.number) {
            return;
        }
        if self.handles.load(Ordering::Acquire) == 0 {
            let _ = self.has_passed();
            return;
        }
        let recorded = ledger::recorded(self.number);
        let mut seen = self.seen.lock();
        let looks = if seen.0 == recorded { seen.1 + 1 } else { 0 };
        *seen = (recorded, looks);
        drop(seen);
        let is_idle = || self.with_stream(|raw| self.is_idle(raw).unwrap_or(false));
        let is_at_rest = looks >= LOOKS && is_idle() == Some(true);
        if !is_at_rest && soon && self.has_passed().unwrap_or(false) {
            // And where it is now.
            let _ = self.has_passed();
        }
    }

    /// As long as there is time: waits until nothing of a stream that nobody has any more, or that somebody else made, is left to
    /// do; whether it is so.
    pub(crate) fn is_left_done(&self, is_over: &mut dyn FnMut() -> bool) -> bool {
        let is_idle = || self.with_stream(|raw| self.is_idle(raw).unwrap_or(false));
        let is_done = || match self.number {
            NO_NUMBER => is_idle().unwrap_or_else(|| self.passing.lock().upto.is_none()),
            number => ledger::is_done(number) || is_idle().unwrap_or(false),
        };
        let is_left = || self.borrowed.is_some() || self.handles.load(Ordering::Acquire) == 0;
        let mut passed = 0;
        while is_left() && !is_done() {
            if self.has_passed().unwrap_or(false) {
                passed += 1;
            } else if self.is_lost() || is_over() {
                return false;
            }
            // The second of its events was recorded after this began.
            if self.number == NO_NUMBER && passed == 2 {
                return true;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        self.number == NO_NUMBER || is_done()
    }
}

/// How long whoever lets go of a stream waits for others to be done with its company.
const AT_LAST: Duration = Duration::from_millis(100);

/// A stream is asked how far it is when it has been left alone for so many looks.
const LOOKS: u32 = 4;

fn is_bad(arena: &Arena, record: &Record) -> bool {
    match (record.said(), &record.book) {
        (Said::Over, _) => false,
        (Said::Lost, _) => true,
        (Said::Nothing, _) if !arena.is_running(record.by.who) => true,
        (Said::Nothing, Some(book)) => {
            !ledger::dead_behind(arena, book, record.by, record.upto).is_empty()
        }
        (Said::Nothing, None) => false,
    }
}

impl Drop for Awaits {
    fn drop(&mut self) {
        let event = self.passing.get_mut().event.take();
        if check_not_forked().is_ok()
            && let Some(Err(error)) = event.map(|event| self.driver.drop_event(event))
        {
            tracing::warn!(%error, "an event could not be destroyed");
        }
    }
}
