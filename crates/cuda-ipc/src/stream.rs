//! Streams: what work on a device is in the order of.
//!
//! Each tensor is on a stream: what is done with it is done in that stream's order, and what travels is an event behind
//! the work so far. A tensor that arrives is put on the stream that is current on the receiving thread
//! ([`Stream::scope`]), else on the default stream of its device, which this crate makes once a process.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use shm_core::Arena;
use shm_core::word::Owner;

use crate::device::{Device, of_device};
use crate::driver::{Driver, RawEvent, RawStream, check_not_forked};
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::stuck;

/// An event of another process, who recorded it, and in which arena that one is.
type Awaited = (Arc<Event>, Owner, Arena);

/// A stream of a device. Clones are the same stream.
#[derive(Clone)]
pub struct Stream(Arc<Inner>);

struct Inner {
    driver: &'static dyn Driver,
    device: Device,
    raw: Option<RawStream>,
    /// An event of one's own, by which other streams are made to wait; made when it is first needed.
    scratch: Mutex<Option<RawEvent>>,
    /// Events of one's own that moments are done with.
    spare: Mutex<Vec<RawEvent>>,
    /// Events of other processes that the stream waits for, as far as is known, and who recorded them.
    awaited: Mutex<HashMap<usize, Awaited>>,
    /// It waits for a process that is dead, and will for ever.
    stuck: AtomicBool,
}

/// How long an event may take to happen after its recorder has died. By then, the driver is done with what the dead had;
/// and what this process, or a third one, recorded with the same event since has happened as well, or takes very long.
const GRACE: Duration = Duration::from_secs(2);

thread_local! {
    static CURRENT: RefCell<Vec<Stream>> = const { RefCell::new(Vec::new()) };
}

/// All streams that live.
static ALL: Mutex<Vec<Weak<Inner>>> = Mutex::new(Vec::new());

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
        Ok(Self::over(driver, device, raw))
    }

    /// The default stream of a device in this process: where tensors are made and received unless told otherwise. It is
    /// ordered with CUDA's own default stream.
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

    /// A stream that somebody else made, as cudarc or a library in C.
    ///
    /// # Safety
    /// `raw` is a `CUstream` of that device, and is not destroyed before everything that uses it is gone: this handle, its
    /// clones, and the tensors on it.
    ///
    /// # Errors
    /// When there is no driver.
    pub unsafe fn from_raw(device: Device, raw: usize) -> Result<Self> {
        let driver = of_device()?;
        // SAFETY: the caller keeps the same contract.
        let raw = unsafe { RawStream::borrowed(device.ordinal(), raw) };
        Ok(Self::over(driver, device, raw))
    }

    fn over(driver: &'static dyn Driver, device: Device, raw: RawStream) -> Self {
        let inner = Arc::new(Inner {
            driver,
            device,
            raw: Some(raw),
            scratch: Mutex::new(None),
            spare: Mutex::default(),
            awaited: Mutex::default(),
            stuck: AtomicBool::new(false),
        });
        let mut all = ALL.lock();
        all.retain(|known| known.strong_count() > 0);
        all.push(Arc::downgrade(&inner));
        drop(all);
        Self(inner)
    }

    /// All streams that live.
    pub(crate) fn all() -> Vec<Self> {
        let all = ALL.lock();
        all.iter().filter_map(Weak::upgrade).map(Self).collect()
    }

    /// Gives the streams of this process until then to do what they have to do: others may wait for it.
    pub(crate) fn drain_all(until: Instant) {
        // Threads may be in the middle of anything when a process ends.
        let Some(all) = ALL.try_lock_for(Duration::from_millis(100)) else {
            return;
        };
        let streams: Vec<_> = all.iter().filter_map(Weak::upgrade).map(Self).collect();
        drop(all);
        for stream in streams
            .iter()
            .filter(|stream| !stream.0.stuck.load(Ordering::Acquire))
        {
            // What the driver answers so late is of no use to anybody.
            let _ = stream.drain(until);
        }
        // Not destroyed now: the process ends.
        std::mem::forget(streams);
    }

    fn drain(&self, until: Instant) -> Result<()> {
        let driver = self.0.driver;
        let event = driver.new_event(self.device().ordinal(), false)?;
        driver.record(&event, self.raw()?)?;
        while !driver.has_happened(&event)? && Instant::now() < until {
            std::thread::sleep(Duration::from_micros(200));
        }
        driver.drop_event(event)
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
        self.gate()?;
        self.0.driver.synchronize(self.raw()?)
    }

    /// What is put into this stream from now on waits for an event of another process, as `who` recorded it.
    pub(crate) fn wait_for_peer(
        &self,
        event: &Arc<Event>,
        who: Owner,
        arena: &Arena,
    ) -> Result<()> {
        self.0.driver.wait(self.raw()?, event.raw()?)?;
        let key = Arc::as_ptr(event).addr();
        self.0
            .awaited
            .lock()
            .insert(key, (event.clone(), who, arena.clone()));
        Ok(())
    }

    /// Whether it waits for a process that is known to be dead, and that did not finish.
    pub(crate) fn is_stuck(&self) -> bool {
        if self.0.stuck.load(Ordering::Acquire) {
            return true;
        }
        let awaits_the_dead = self
            .0
            .awaited
            .lock()
            .values()
            .any(|(_, who, arena)| !arena.is_present(*who));
        awaits_the_dead && self.gate().is_err()
    }

    /// Before a thread waits for the stream: no process that the stream waits for has died. A thread that waited for a dead
    /// one would never come back.
    ///
    /// # Errors
    /// `WriterGone`; the stream is of no use any more then.
    pub(crate) fn gate(&self) -> Result<()> {
        let gone = |who: Owner| {
            Error::new(
                ErrorKind::WriterGone,
                format!(
                    "a process that a stream of device {} waits for (participant {}) has ended before its work was done; the stream cannot go on. Tensors \
                     that are on it are lost; make another stream",
                    self.device().ordinal(),
                    who.row
                ),
            )
        };
        check_not_forked()?;
        if self.0.stuck.load(Ordering::Acquire) {
            return Err(gone(stuck::writer_of(self.device())));
        }
        loop {
            // One at a time, so that others can add theirs meanwhile.
            let next = self
                .0
                .awaited
                .lock()
                .iter()
                .next()
                .map(|(key, entry)| (*key, entry.clone()));
            let Some((key, (event, who, arena))) = next else {
                return Ok(());
            };
            let mut dead_since = None;
            let mut pause = Duration::from_micros(20);
            while !self.0.driver.has_happened(event.raw()?)? {
                if dead_since.is_none() && !arena.is_running(who) {
                    dead_since = Some(Instant::now());
                }
                if dead_since.is_some_and(|since| since.elapsed() > GRACE) {
                    self.0.stuck.store(true, Ordering::Release);
                    stuck::note(self.device(), who, &arena);
                    return Err(gone(who));
                }
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(2));
            }
            let mut awaited = self.0.awaited.lock();
            // It may be awaited anew.
            if awaited.get(&key).is_some_and(|(_, now, _)| *now == who) {
                awaited.remove(&key);
            }
        }
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
        if other.is_stuck() {
            // It would be one more that never comes to an end.
            return other.gate();
        }
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
        driver.wait(self.raw()?, event)?;
        drop(scratch);
        // What the other waits for, this one does, too: by way of it, on another device perhaps.
        let inherited: Vec<_> = {
            let awaited = other.0.awaited.lock();
            awaited
                .iter()
                .map(|(key, one)| (*key, one.clone()))
                .collect()
        };
        if !inherited.is_empty() {
            self.0.awaited.lock().extend(inherited);
        }
        Ok(())
    }

    /// Makes this the current stream of the thread for as long as `f` runs: tensors that are made or received in it are on
    /// this stream.
    ///
    /// ```no_run
    /// # use cuda_ipc::{Device, DeviceTensor, Stream};
    /// # fn get() -> cuda_ipc::Result<DeviceTensor<f32>> { DeviceTensor::zeros([4]) }
    /// let side = Stream::new(Device::new(0)?)?;
    /// let tensor = side.scope(|| get())?; // `side` waits for whoever wrote it
    /// # Ok::<(), cuda_ipc::Error>(())
    /// ```
    pub fn scope<R>(&self, f: impl FnOnce() -> R) -> R {
        struct Leave;
        impl Drop for Leave {
            fn drop(&mut self) {
                CURRENT.with_borrow_mut(Vec::pop);
            }
        }
        CURRENT.with_borrow_mut(|streams| streams.push(self.clone()));
        let _leave = Leave;
        f()
    }

    /// The current stream of this thread: that of the innermost [`scope`](Self::scope), or else the default stream of
    /// device 0.
    ///
    /// # Errors
    /// When there is no device.
    pub fn current() -> Result<Self> {
        match CURRENT.with_borrow(|streams| streams.last().cloned()) {
            Some(stream) => Ok(stream),
            None => Self::of(Device::new(0)?),
        }
    }

    /// The stream for something on `device`: the current one if it is of that device, or else the device's default.
    pub(crate) fn for_device(device: Device) -> Result<Self> {
        let current = CURRENT.with_borrow(|streams| {
            streams
                .iter()
                .rev()
                .find(|stream| stream.device() == device)
                .cloned()
        });
        match current {
            Some(stream) => Ok(stream),
            None => Self::of(device),
        }
    }

    /// Whether both are the same stream.
    #[must_use]
    pub fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
            || (self.device() == other.device() && self.as_raw() == other.as_raw())
    }

    pub(crate) fn take_spare(&self) -> Option<RawEvent> {
        self.0.spare.lock().pop()
    }

    pub(crate) fn give_spare(&self, event: RawEvent) {
        self.0.spare.lock().push(event);
    }

    pub(crate) fn raw(&self) -> Result<&RawStream> {
        self.0
            .raw
            .as_ref()
            .ok_or_else(|| Error::new(ErrorKind::WrongDevice, "the stream is gone"))
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

impl Drop for Inner {
    fn drop(&mut self) {
        if check_not_forked().is_err() {
            return;
        }
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
