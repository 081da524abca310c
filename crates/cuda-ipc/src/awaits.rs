//! What a stream waits for that may never happen, and what becomes of it.
//!
//! A stream that was made to wait for work of another process cannot go on when that one dies before the work is done. So
//! each stream keeps what it waits for, with who recorded it; so does one that waits for such a stream of its own process.
//! A thread looks at that before it enters a call of the driver in which it would wait for the stream, and keeps others
//! from adding to it meanwhile. The thread that watches the arena looks as well, twice a second, and says in the
//! [ledger](crate::ledger) which streams are lost, for those who wait for what was recorded in them, and how far the others
//! have come.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use shm_core::Arena;
use shm_core::word::Owner;
use smallvec::SmallVec;

use crate::device::Device;
use crate::doubt::{Doubt, Record};
use crate::driver::{Driver, RawEvent, RawStream, check_not_forked};
use crate::error::{Error, Result};
use crate::ledger::{self, Said};
use crate::mark::{By, NO_NUMBER};
use crate::sabotage;
use crate::stream::Inner;
use crate::stuck;
use crate::waiting::{Awaited, Entry, List, Source};

/// What one stream waits for. It stays after the stream's last handle, until it is known what becomes of its work.
#[derive(Debug)]
pub(crate) struct Awaits {
    pub(crate) device: Device,
    /// What marks call the stream.
    pub(crate) number: u8,
    /// The driver's pointer, if somebody else made the stream.
    pub(crate) borrowed: Option<usize>,
    pub(crate) handles: AtomicU64,
    list: Mutex<List>,
    driver: &'static dyn Driver,
    /// To look how far the stream is, as long as somebody has it.
    stream: Mutex<Weak<Inner>>,
    /// An event of this process in the stream, and what is over when it has happened.
    passing: Mutex<Passing>,
    /// How many records the stream had at the last look, and for how many looks it has had no more.
    seen: Mutex<(u64, u32)>,
    /// Held to add something; and, shared, by threads that wait for the stream in the driver.
    calm: RwLock<()>,
    lost: AtomicBool,
}

#[derive(Debug, Default)]
struct Passing {
    event: Option<RawEvent>,
    serials: Vec<u64>,
    /// So many records come before it; none when it does not stand for anything.
    upto: Option<u64>,
}

/// No stream gets anything more to wait for as long as it is held, or one.
#[derive(Debug)]
pub(crate) struct Calm<'a> {
    _held: RwLockReadGuard<'a, ()>,
}

impl Awaits {
    /// Of a new stream.
    pub(crate) fn new(
        driver: &'static dyn Driver,
        device: Device,
        borrowed: Option<usize>,
        number: u8,
    ) -> Self {
        Self {
            device,
            number,
            borrowed,
            handles: AtomicU64::new(1),
            list: Mutex::default(),
            driver,
            stream: Mutex::default(),
            passing: Mutex::default(),
            seen: Mutex::default(),
            calm: RwLock::new(()),
            lost: AtomicBool::new(false),
        }
    }

    /// The stream that it is of.
    pub(crate) fn belongs_to(&self, stream: &Arc<Inner>) {
        *self.stream.lock() = Arc::downgrade(stream);
    }

    /// Whether the stream has come to a point behind what it waited for some time ago. An event of another process may have
    /// been recorded anew meanwhile, by one that died, or for what comes later, and then says nothing.
    fn has_passed(&self) -> Result<bool> {
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
        let stream = self.stream.lock().upgrade();
        let marked = match &stream {
            Some(stream) => stream.raw().and_then(|raw| self.mark(&mut passing, raw)),
            None => Ok(()),
        };
        // Before the stream, of which this may be the last handle.
        drop(passing);
        drop(stream);
        marked.map(|()| false)
    }

    fn mark(&self, passing: &mut Passing, raw: &RawStream) -> Result<()> {
        // What is in the list then, the stream waits for already. Whoever has it does not wait for what this thread holds.
        let Some(_calm) = self.calm.try_write() else {
            return Ok(());
        };
        let upto = ledger::recorded(self.number);
        let event = match passing.event.take() {
            Some(event) => event,
            None => self.driver.new_event(self.device.ordinal(), false)?,
        };
        self.driver.record(passing.event.insert(event), raw)?;
        let list = self.list.lock();
        let serial = |entry: &Entry| entry.awaited.serial;
        passing.serials = list.events.values().map(serial).collect();
        passing.upto = Some(upto);
        Ok(())
    }

    /// Whether the stream is seen to be done with all that it has to do. Asked without waiting, and noted.
    pub(crate) fn is_idle(&self, raw: &RawStream) -> Result<bool> {
        let upto = ledger::recorded(self.number);
        // While one is added, the stream may not have been told yet to wait for what is in the list.
        let told = self.calm.try_read();
        let list = told.map(|_told| self.all()).unwrap_or_default();
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
        let is_done = self.is_lost() || (self.is_empty() && ledger::is_done(self.number));
        if let Some(raw) = raw
            && !is_done
            && !self.is_idle(raw).unwrap_or(false)
            && let Err(error) = self.mark(&mut self.passing.lock(), raw)
        {
            tracing::warn!(%error, "it is not seen when a stream comes to its end");
        }
        self.handles.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether nobody has the stream, and all that was recorded in it has happened: its number can be another one's.
    pub(crate) fn is_over(&self) -> bool {
        self.handles.load(Ordering::Acquire) == 0
            && !self.is_lost()
            && self.list.lock().events.is_empty()
            && (self.number == NO_NUMBER || ledger::is_done(self.number))
    }

    /// Whether it is known that it will never go on.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// That it will never go on, as an error.
    fn loss(&self, arena: Option<&Arena>) -> Error {
        let dead = self.list.lock().dead;
        let known = stuck::arena();
        let name = match (dead, arena.or(known)) {
            (Some(dead), Some(arena)) => ledger::name_of(arena, dead),
            _ => "a process".to_owned(),
        };
        crate::doubt::lost_stream(self.device, &name)
    }

    /// Adds what the stream is made to wait for by `wait`.
    pub(crate) fn add(
        &self,
        all: impl IntoIterator<Item = Awaited>,
        wait: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let _calm = self.calm.write();
        let _giving_back = crate::rest::giving_back(self.device).read();
        let since = ledger::recorded(self.number);
        // All of it before the stream waits: whoever looks meanwhile sees rather too much.
        for one in all {
            self.list.lock().put(self.number, since, one)?;
        }
        wait()
    }

    /// What the stream waits for.
    pub(crate) fn all(&self) -> Vec<Awaited> {
        let list = self.list.lock();
        list.events
            .values()
            .map(|entry| entry.awaited.clone())
            .collect()
    }

    /// Whether it waits for nothing that is not of its own.
    pub(crate) fn is_empty(&self) -> bool {
        self.list.lock().events.is_empty()
    }

    /// How much it waits for that is not of its own.
    pub(crate) fn count(&self) -> usize {
        self.list.lock().events.len()
    }

    fn remove(&self, serials: &[u64]) {
        let mut list = self.list.lock();
        // It may be awaited anew, by that name.
        list.events
            .retain(|_, entry| !serials.contains(&entry.awaited.serial));
        if list.events.is_empty() {
            list.pause();
        }
    }

    /// It waits for that process, which is dead or waits for the dead, and will for ever.
    fn lose(&self, arena: &Arena, dead: Owner) {
        // What was recorded before it came to wait happens all the same.
        let over: Vec<_> = {
            let all = self.all().into_iter();
            let over = all.filter(|one| one.has_happened().unwrap_or(false));
            over.map(|one| one.serial).collect()
        };
        self.remove(&over);
        let mut list = self.list.lock();
        list.dead.get_or_insert(dead);
        let since = list.events.values().map(|entry| entry.since).min();
        drop(list);
        self.lost.store(true, Ordering::Release);
        ledger::set_lost(arena, self.number, since.unwrap_or(0));
        stuck::note(self.device, dead, arena);
    }

    /// Fails when it waits for somebody who is dead and had not finished. Waits for what the dead left, but not for the
    /// living; costs a look at a word or two when nobody died.
    ///
    /// # Errors
    /// `WriterGone`.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_lost() {
            return Err(self.loss(None));
        }
        if sabotage::is("refusal") {
            return Ok(());
        }
        let doubtful: SmallVec<[Awaited; 4]> = {
            let list = self.list.lock();
            let Some(any) = list.events.values().next() else {
                return Ok(());
            };
            let arena = &any.awaited.arena;
            if !list
                .sources
                .iter()
                .any(|source| source.record.is_doubtful(arena))
            {
                return Ok(());
            }
            let all = list.events.values().map(|entry| &entry.awaited);
            all.filter(|one| one.record.is_doubtful(arena))
                .cloned()
                .collect()
        };
        for one in doubtful {
            self.wait_out(one, None)?;
        }
        Ok(())
    }

    /// Waits until it waits for nobody else, and keeps it so until the guard is dropped; none if that has not come `until`
    /// then.
    ///
    /// # Errors
    /// `WriterGone`; the stream is of no use any more then.
    pub(crate) fn calm(&self, until: Option<Instant>) -> Result<Option<Calm<'_>>> {
        check_not_forked()?;
        loop {
            if self.is_lost() {
                return Err(self.loss(None));
            }
            // One at a time, so that others can add theirs meanwhile.
            let next = {
                let list = self.list.lock();
                list.events
                    .values()
                    .next()
                    .map(|entry| entry.awaited.clone())
            };
            let Some(one) = next else {
                let held = self.calm.read();
                if self.is_empty() && !self.is_lost() {
                    return Ok(Some(Calm { _held: held }));
                }
                continue;
            };
            if !self.wait_out(one, until)? {
                return Ok(None);
            }
        }
    }

    /// Waits for one thing; whether it is over.
    fn wait_out(&self, one: Awaited, until: Option<Instant>) -> Result<bool> {
        let begun = Instant::now();
        let mut doubt = one.doubt.clone();
        let mut pause = Duration::from_micros(20);
        let is_there = || {
            let list = self.list.lock();
            list.events
                .values()
                .any(|it| it.awaited.serial == one.serial)
        };
        while !one.has_happened()? {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let is_slow = begun.elapsed() > Duration::from_millis(50);
            if (is_slow || left == Some(Duration::ZERO)) && self.has_passed()? && !is_there() {
                return Ok(true);
            }
            if let Some(dead) = doubt.look(&one.arena, &one.record) {
                // Seen once more: this thread may have slept since.
                if one.has_happened()? || self.has_passed()? && !is_there() {
                    break;
                }
                self.lose(&one.arena, dead);
                return Err(self.loss(Some(&one.arena)));
            }
            if left == Some(Duration::ZERO) {
                self.keep_doubt(one.serial, doubt);
                return Ok(false);
            }
            std::thread::sleep(left.map_or(pause, |left| pause.min(left)));
            pause = (pause * 2).min(Duration::from_millis(2));
        }
        self.remove(&[one.serial]);
        Ok(true)
    }

    fn keep_doubt(&self, serial: u64, doubt: Doubt) {
        let mut list = self.list.lock();
        let mut all = list.events.values_mut();
        if let Some(same) = all.find(|entry| entry.awaited.serial == serial) {
            same.awaited.doubt = doubt;
        }
    }

    /// Whether it waits for nobody else, now. Forgets all that has happened.
    pub(crate) fn is_calm(&self) -> bool {
        let all = self.all();
        let count = all.len();
        let over = all.iter().filter(|one| one.has_happened().unwrap_or(false));
        let over: Vec<_> = over.map(|one| one.serial).collect();
        if !over.is_empty() {
            self.remove(&over);
        }
        let is_rest_over = || self.has_passed().unwrap_or(false) && self.is_empty();
        !self.is_lost() && (over.len() == count || is_rest_over())
    }

    /// A look from time to time, which waits for nothing: whether somebody died for whom it waits.
    pub(crate) fn look(&self) {
        self.look_how_far();
        let is_over = self.handles.load(Ordering::Acquire) == 0;
        let all = self.all();
        let Some(arena) = stuck::arena().cloned() else {
            return;
        };
        let bad: SmallVec<[By; 4]> = {
            let list = self.list.lock();
            let is_bad = |source: &&Source| is_bad(&arena, &source.record);
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
                    false => self.lose(&arena, dead),
                }
            } else {
                self.keep_doubt(one.serial, one.doubt);
            }
        }
        // Those who live stay as long as there is room: they will be waited for again.
        let is_tight = ledger::is_tight();
        let mut list = self.list.lock();
        list.tidy(|source| is_tight || !arena.is_present(source.record.by.who));
    }

    /// Says how far the stream has come, where nobody else will: of one that has been left alone for a while, so that the
    /// death of this process is no reason to doubt what it had done long before.
    fn look_how_far(&self) {
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
        let stream = self.stream.lock().upgrade();
        if looks >= LOOKS
            && let Some(stream) = &stream
            && let Ok(raw) = stream.raw()
        {
            let _ = self.is_idle(raw);
        }
    }

    /// As long as there is time: waits until nothing of a stream that nobody has any more is left to do; whether it is so.
    pub(crate) fn is_left_done(&self, is_over: &mut dyn FnMut() -> bool) -> bool {
        let is_done = || match self.number {
            NO_NUMBER => self.passing.lock().upto.is_none(),
            number => ledger::is_done(number),
        };
        while !is_done() && self.handles.load(Ordering::Acquire) == 0 {
            if self.is_lost() || !self.has_passed().unwrap_or(false) && is_over() {
                return false;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        self.number == NO_NUMBER || is_done()
    }
}

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
