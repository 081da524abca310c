//! Another process's station, as this one sees it: its events are opened once each, and it is asked for nothing while it
//! is silent, or ends.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use shm_core::Arena;
use shm_core::object::{Object, ObjectKind};
use shm_core::patience::Patience;
use shm_core::word::Owner;

use crate::device::Device;
use crate::driver::Driver;
use crate::error::Result;
use crate::event::Event;
use crate::layout::{self, Path, malformed, owner_of, station};
use crate::mark::EventId;
use crate::silence::Silence;
use crate::stats::COUNTERS;

/// Device and index of an event that was opened.
type Key = (u32, u16);

/// Another process's station, as this one sees it.
#[derive(Debug)]
pub(crate) struct Visited {
    pub(crate) object: Object,
    pub(crate) origin: Owner,
    driver: &'static dyn Driver,
    opened: Mutex<HashMap<Key, (u16, Arc<Event>)>>,
    /// How many of the origin's requests to close memory were followed.
    heeded: AtomicU64,
    /// It had not answered when it was asked last.
    late: AtomicBool,
    /// A descriptor of its memory was mapped here.
    mapped: AtomicBool,
    /// Until when it is waited for where there is no other way.
    pub(crate) silence: Silence,
    /// When it was waited for whether it ends, and did not.
    lived_on: Mutex<Option<Instant>>,
}

/// How long a receiver waits for an origin's descriptor, if one of that origin was mapped before: it is asked again when the
/// tensor is used.
const SOON: Duration = Duration::from_millis(20);
/// How long for the first: where the system does not let it be mapped, the tensor comes as a copy, and it has to be known for
/// that when it is received.
const AT_FIRST: Duration = Duration::from_secs(1);

/// A process that is killed loses its files, and what the driver has of it, before it is seen as dead.
const ENDS_WITHIN: Duration = Duration::from_millis(500);
/// One that was seen not to end is not waited for again so soon.
const ASKED_AGAIN: Duration = Duration::from_secs(5);

impl Visited {
    pub(crate) fn open(
        arena: &Arena,
        driver: &'static dyn Driver,
        handle: [u64; 2],
    ) -> Result<Self> {
        let object = crate::import::open_object(arena, handle)?;
        object.expect(ObjectKind::DeviceStation)?;
        if object.word_count() < station::EVENTS {
            return Err(malformed("a station is too short"));
        }
        let origin = owner_of(object.word(station::OWNER).load(Ordering::Acquire));
        Ok(Self {
            object,
            origin,
            driver,
            opened: Mutex::default(),
            heeded: AtomicU64::new(0),
            late: AtomicBool::new(false),
            mapped: AtomicBool::new(false),
            silence: Silence::default(),
            lived_on: Mutex::default(),
        })
    }

    /// Whether the origin has not answered when it was asked last.
    pub(crate) fn is_late(&self) -> bool {
        self.late.load(Ordering::Relaxed)
    }

    pub(crate) fn set_late(&self, late: bool) {
        self.late.store(late, Ordering::Relaxed);
    }

    /// How long who receives a tensor of its memory waits for a descriptor.
    pub(crate) fn patience(&self) -> Duration {
        match self.mapped.load(Ordering::Relaxed) {
            true => SOON,
            false => AT_FIRST,
        }
    }

    pub(crate) fn was_mapped(&self) {
        self.mapped.store(true, Ordering::Relaxed);
    }

    /// After something of the origin's was not found: whether it has ended, or does so now. Waited for now and then, not each
    /// time.
    pub(crate) fn is_ending(&self) -> bool {
        let arena = self.object.arena();
        let mut wait = Patience::new(ENDS_WITHIN);
        while arena.is_running(self.origin) {
            let mut lived_on = self.lived_on.lock();
            if lived_on.is_some_and(|then| then.elapsed() < ASKED_AGAIN) {
                return false;
            }
            let now = Instant::now();
            if wait.is_over(now) {
                *lived_on = Some(now);
            }
            drop(lived_on);
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// The origin has let go of a connection before it answered, which is the first that is seen of one that ends: it is waited
    /// for whether it does, also where it was seen to live just before.
    pub(crate) fn has_hung_up(&self) {
        *self.lived_on.lock() = None;
    }

    /// Whether the origin has asked for memory to be closed since this was asked last.
    pub(crate) fn asks_to_close(&self) -> bool {
        let asked = self.object.word(station::RETIRED).load(Ordering::Acquire);
        self.heeded.swap(asked, Ordering::Relaxed) != asked
    }

    /// Tells the origin that its memory cannot be opened here this way.
    pub(crate) fn refuse(&self, path: Path) {
        let bit = 1 << (path.code() - 1);
        self.object
            .word(station::REFUSED)
            .fetch_or(bit, Ordering::AcqRel);
    }

    /// The event of that name, opened once for each device.
    pub(crate) fn event(&self, device: Device, id: EventId) -> Result<Arc<Event>> {
        let mut opened = self.opened.lock();
        let key = (device.ordinal(), id.index);
        if let Some((generation, event)) = opened.get(&key)
            && *generation == id.generation
        {
            return Ok(event.clone());
        }
        let at = station::EVENTS + u64::from(id.index) * station::EVENT;
        if at + station::EVENT > self.object.word_count() {
            return Err(malformed("an event beyond its station"));
        }
        let generation = || self.object.word(at).load(Ordering::Acquire) & 0xfff;
        let before = generation();
        let handle = layout::read_handle(&self.object, at + 1);
        if before != u64::from(id.generation) || generation() != before {
            return Err(malformed("an event that its station does not have"));
        }
        let raw = match self.driver.import_event(device.ordinal(), &handle) {
            Ok(raw) => raw,
            Err(error) => {
                drop(opened);
                return Err(match self.is_ending() {
                    true => crate::import::memory_gone().because(error),
                    false => error,
                });
            }
        };
        COUNTERS.events_opened.add(1);
        let event = Arc::new(Event::new(self.driver, raw));
        opened.insert(key, (id.generation, event.clone()));
        Ok(event)
    }
}
