//! Streams: what work on a device is in the order of.
//!
//! Each tensor is on a stream: what is done with it is done in that stream's order, and what travels is an event behind
//! the work so far. A tensor that arrives is put on the stream that is current on the receiving thread
//! ([`Stream::scope`]), else on the default stream of its device, which this crate makes once a process.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use shm_core::Arena;
use shm_core::patience::Patience;

use crate::awaits::Awaits;
use crate::company::Calm;
use crate::device::{Device, of_device};
use crate::doubt::Record;
use crate::driver::{Driver, RawEvent, RawStream, check_not_forked};
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::ledger::{self, Said};
use crate::mark::{By, NO_NUMBER};
use crate::stats::COUNTERS;
use crate::waiting::Awaited;

/// A stream of a device. Clones are the same stream.
#[derive(Clone)]
pub struct Stream(Arc<Inner>);

pub(crate) struct Inner {
    driver: &'static dyn Driver,
    device: Device,
    raw: Option<RawStream>,
    /// An event of one's own, by which other streams are made to wait; made when it is first needed.
    scratch: Mutex<Option<RawEvent>>,
    /// Events of one's own that moments are done with.
    spare: Mutex<Vec<RawEvent>>,
    /// What the stream waits for, as far as that may never happen.
    awaits: Arc<Awaits>,
}

/// All streams that live, and whether whoever made one may destroy it when the last handle of it is gone.
static ALL: Mutex<Vec<(bool, Weak<Inner>)>> = Mutex::new(Vec::new());

/// The default streams, by ordinal.
static DEFAULTS: Mutex<Vec<Option<Stream>>> = Mutex::new(Vec::new());

impl Stream {
    /// A new stream.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn new(device: Device) -> Result<Self> {
        let driver = of_device()?;
        let raw = driver.new_stream(device.ordinal())?;
        Self::over(driver, device, raw, None)
    }

    /// The default stream of a device in this process: where tensors are made and received unless told otherwise. It is not
    /// CUDA's own default stream, and not ordered with that: see [`legacy`](Self::legacy).
    ///
    /// # Errors
    /// What the driver answers, the first time.
    pub fn of(device: Device) -> Result<Self> {
        check_not_forked()?;
        let mut defaults = DEFAULTS.lock();
        let index = device.ordinal() as usize;
        if defaults.len() <= index {
            defaults.resize(index + 1, None);
        }
        if let Some(stream) = &defaults[index]
            && !stream.is_stuck()
        {
            return Ok(stream.clone());
        }
        let stream = Self::new(device)?;
        defaults[index] = Some(stream.clone());
        Ok(stream)
    }

    /// One that was made here, or is `borrowed` by that pointer.
    pub(crate) fn over(
        driver: &'static dyn Driver,
        device: Device,
        raw: RawStream,
        borrowed: Option<usize>,
    ) -> Result<Self> {
        let awaits = match borrowed {
            Some(_) => crate::numbers::of_borrowed(driver, device, &raw)?,
            None => crate::numbers::of_new(driver, device)?,
        };
        let inner = Arc::new(Inner {
            driver,
            device,
            raw: Some(raw),
            scratch: Mutex::new(None),
            spare: Mutex::default(),
            awaits,
        });
        inner.awaits.belongs_to(&inner);
        let mut all = ALL.lock();
        all.retain(|(_, known)| known.strong_count() > 0);
        let may_go = borrowed.is_some_and(|raw| raw != 0);
        all.push((may_go, Arc::downgrade(&inner)));
        drop(all);
        Ok(Self(inner))
    }

    /// All streams that live, but those whose maker may destroy them as soon as the program has let go of them: nobody else
    /// has a handle of one then, who would use it.
    pub(crate) fn all() -> Vec<Self> {
        let all = ALL.lock();
        let stay = all.iter().filter(|(may_go, _)| !may_go);
        stay.filter_map(|(_, known)| known.upgrade())
            .map(Self)
            .collect()
    }

    /// Gives the streams of this process so long to do what they have to do: others may wait for it.
    pub(crate) fn drain_all(mut wait: Patience) {
        // Threads may be in the middle of anything when a process ends.
        let Some(all) = ALL.try_lock_for(Duration::from_millis(100)) else {
            return;
        };
        // The others are asked where whoever made them can't destroy them meanwhile.
        let stay = all.iter().filter(|(may_go, _)| !may_go);
        let streams = stay.filter_map(|(_, known)| known.upgrade());
        let streams: Vec<_> = streams.map(Self).collect();
        drop(all);
        let mut is_over = || wait.is_over(Instant::now());
        let mut is_done = true;
        for stream in &streams {
            // What the driver answers so late is of no use to anybody.
            is_done &= !stream.0.awaits.is_lost() && stream.pass(&mut is_over).unwrap_or(false);
        }
        crate::numbers::end(is_done, &mut is_over);
        // Not destroyed now: the process ends.
        std::mem::forget(streams);
    }

    /// What marks call it.
    pub(crate) fn number(&self) -> u8 {
        self.0.awaits.number
    }

    /// How many events were recorded in it for others.
    pub(crate) fn recorded(&self) -> u64 {
        ledger::recorded(self.0.awaits.number)
    }

    /// The first so many of these have happened: all before them in the stream is done.
    pub(crate) fn has_done(&self, upto: u64) {
        ledger::set_done(self.0.awaits.number, upto);
    }

    /// Whether it is seen to have nothing left to do. Asked without waiting.
    pub(crate) fn is_idle(&self) -> bool {
        let idle = self.raw().and_then(|raw| self.0.awaits.is_idle(raw));
        idle.unwrap_or(false)
    }

    /// The device it belongs to.
    #[must_use]
    pub fn device(&self) -> Device {
        self.0.device
    }

    /// The driver's pointer, as a number: for kernels that are started by other means.
    #[must_use]
    pub fn as_raw(&self) -> usize {
        self.0.raw.as_ref().map_or(0, RawStream::as_raw)
    }

    /// Waits until everything in the stream is done. The thread sleeps; nothing else has to, since tensors are ordered by
    /// events.
    ///
    /// # Errors
    /// What the driver answers, also to work that was started earlier.
    pub fn synchronize(&self) -> Result<()> {
        check_not_forked()?;
        let _calm = self.gate()?;
        let upto = self.recorded();
        self.0.driver.synchronize(self.raw()?)?;
        self.has_done(upto);
        Ok(())
    }

    /// What is put into this stream from now on waits for an event that was recorded `by` another process, or by this one.
    pub(crate) fn wait_for_event(&self, event: &Arc<Event>, by: By, arena: &Arena) -> Result<()> {
        let wait = || self.0.driver.wait(self.raw()?, event.raw()?);
        if by.who == arena.me() && !crate::numbers::may_be_lost(by.stream) {
            // Work of this process that waits for nobody comes to its end.
            return wait();
        }
        let record = Record::latest(arena, by);
        let has_happened = || self.0.driver.has_happened(event.raw()?);
        if record.book.is_none() && has_happened()? {
            // Of one that has ended, and of which nothing can be heard any more: it has to be seen now.
            return wait();
        }
        if record.said() == Said::Lost && !has_happened()? {
            let who = ledger::name_of(arena, by.who);
            return Err(Error::new(
                ErrorKind::WriterGone,
                format!(
                    "work on a device tensor is behind work of a process that has ended before it was done, in a stream of {who}; what was written is lost"
                ),
            ));
        }
        self.0
            .awaits
            .add([Awaited::new(event, record, arena)], wait)
    }

    /// Records an event for other processes, who learn by the stream's number what comes of it.
    pub(crate) fn record(&self, event: &Event) -> Result<By> {
        let awaits = &self.0.awaits;
        let arena = &crate::hub::Hub::get()?.arena;
        ledger::open(arena)?;
        let who = arena.me();
        let by = By {
            who,
            stream: awaits.number,
        };
        let _calm = match awaits.number == NO_NUMBER && !awaits.is_empty() {
            true => {
                COUNTERS.host_waits.add(1);
                Some(self.gate()?)
            }
            false => None,
        };
        self.0.driver.record(event.raw()?, self.raw()?)?;
        ledger::count(awaits.number);
        Ok(by)
    }

    /// Whether it waits for a process that is known to be dead, and that did not finish.
    pub(crate) fn is_stuck(&self) -> bool {
        self.check().is_err()
    }

    /// Whether that is known without a look.
    pub(crate) fn is_known_stuck(&self) -> bool {
        self.0.awaits.is_lost()
    }

    /// Fails when it waits for a process that died and that did not finish, or for one that waits for such a process. Does
    /// not wait for the living.
    ///
    /// # Errors
    /// `WriterGone`; the stream is of no use any more then.
    pub(crate) fn check(&self) -> Result<()> {
        self.0.awaits.check()
    }

    /// Before a thread waits for the stream in the driver: all is over that the stream waits for of other processes, and
    /// nothing is added before the guard is dropped. A thread that waited for a dead process would never come back.
    ///
    /// # Errors
    /// `WriterGone`; the stream is of no use any more then.
    pub(crate) fn gate(&self) -> Result<Calm<'_>> {
        loop {
            if let Some(calm) = self.gate_until(None)? {
                return Ok(calm);
            }
        }
    }

    /// As [`gate`](Self::gate), until then: none if it still waits for somebody.
    pub(crate) fn gate_until(&self, until: Option<Instant>) -> Result<Option<Calm<'_>>> {
        self.0.awaits.calm(until)
    }

    /// Waits until everything in the stream is done, until then; whether it is.
    ///
    /// # Errors
    /// `WriterGone`, and what the driver answers.
    pub(crate) fn finish(&self, until: Instant) -> Result<bool> {
        let Some(_) = self.gate_until(Some(until))? else {
            return Ok(false);
        };
        self.pass(&mut || Instant::now() >= until)
    }

    /// Waits until what is in the stream now is done, or the time is over; whether it is. If so, others are told.
    fn pass(&self, is_over: &mut dyn FnMut() -> bool) -> Result<bool> {
        if self.0.awaits.is_idle(self.raw()?)? {
            return Ok(true);
        }
        let upto = self.recorded();
        // Without an event, when the stream is seen with nothing to do at all.
        let moment = self.moment().ok();
        let mut pause = Duration::from_micros(20);
        let is_done = || match &moment {
            Some(moment) => moment.has_passed(),
            None => self.0.awaits.is_idle(self.raw()?),
        };
        while !is_done()? {
            // Something more to wait for may have come in front of the moment.
            if self.0.awaits.check().is_err() || is_over() {
                return Ok(false);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(2));
        }
        self.has_done(upto);
        Ok(true)
    }

    /// What is put into this stream from now on waits for what is in `other` now.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn wait_for(&self, other: &Self) -> Result<()> {
        if self.same(other) {
            return Ok(());
        }
        check_not_forked()?;
        // It would be one more that never comes to an end.
        other.check()?;
        let driver = self.0.driver;
        let mut scratch = other.0.scratch.lock();
        if scratch.is_none() {
            *scratch = Some(driver.new_event(other.device().ordinal(), false)?);
        }
        let Some(event) = scratch.as_ref() else {
            return Ok(());
        };
        // Under the lock: a wait is for the record before it.
        driver.record(event, other.raw()?)?;
        // What the other waits for, this one does, too: by way of it, on another device perhaps.
        self.wait_behind(event, other.0.awaits.all())
    }

    /// What is put into this stream from now on waits for an event of this process, behind what is in a stream that waits for
    /// that: it may be gone.
    pub(crate) fn wait_for_recorded(&self, event: &RawEvent, recorded_in: &Awaits) -> Result<()> {
        recorded_in.check()?;
        self.wait_behind(event, recorded_in.all())
    }

    /// What is put into this stream from now on waits for an event of this process, behind what is `inherited`.
    pub(crate) fn wait_behind(&self, event: &RawEvent, inherited: Vec<Awaited>) -> Result<()> {
        let wait = || self.0.driver.wait(self.raw()?, event);
        match inherited.is_empty() {
            true => wait(),
            false => self.0.awaits.add(inherited, wait),
        }
    }

    /// Whether both are the same stream.
    #[must_use]
    pub fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
            || (self.device() == other.device() && self.as_raw() == other.as_raw())
    }

    /// What it waits for.
    pub(crate) fn awaits(&self) -> &Arc<Awaits> {
        &self.0.awaits
    }

    /// With which other streams it is ordered by the driver.
    #[cfg(feature = "cudarc")]
    pub(crate) fn company(&self) -> Arc<crate::company::Company> {
        self.0.awaits.company.clone()
    }

    /// By which the driver tells it from others that had its handle.
    #[cfg(feature = "cudarc")]
    pub(crate) fn id(&self) -> Option<u64> {
        self.0.awaits.borrowed.and_then(|borrowed| borrowed.id)
    }

    /// Whether somebody else made it, and will destroy it.
    pub(crate) fn is_lent(&self) -> bool {
        self.0.raw.as_ref().is_some_and(|raw| !raw.is_owned())
    }

    pub(crate) fn take_spare(&self) -> Option<RawEvent> {
        self.0.spare.lock().pop()
    }

    pub(crate) fn give_spare(&self, event: RawEvent) {
        self.0.spare.lock().push(event);
    }

    pub(crate) fn raw(&self) -> Result<&RawStream> {
        self.0.raw()
    }

    pub(crate) fn driver(&self) -> &'static dyn Driver {
        self.0.driver
    }

    /// Fails unless it is a stream of `device`.
    pub(crate) fn expect(&self, device: Device) -> Result<()> {
        if self.device() == device {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::WrongDevice,
            format!(
                "a stream of device {} was given for a tensor on device {}; copy the tensor with `to_device`, or use a stream of its device",
                self.device().ordinal(),
                device.ordinal()
            ),
        ))
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("device", &self.0.device.ordinal())
            .field("raw", &format_args!("{:#x}", self.as_raw()))
            .finish()
    }
}

impl Inner {
    pub(crate) fn raw(&self) -> Result<&RawStream> {
        self.raw
            .as_ref()
            .ok_or_else(|| Error::new(ErrorKind::WrongDevice, "the stream is gone"))
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("device", &self.device.ordinal())
            .finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if check_not_forked().is_err() {
            return;
        }
        self.awaits.let_go(self.raw.as_ref());
        let spare = std::mem::take(self.spare.get_mut());
        let events = spare.into_iter().chain(self.scratch.get_mut().take());
        let gone = events
            .map(|event| self.driver.drop_event(event))
            .chain(self.raw.take().map(|raw| self.driver.drop_stream(raw)));
        for error in gone.filter_map(Result::err) {
            tracing::warn!(%error, "a stream could not be destroyed");
        }
    }
}
