//! Events that processes lend to one another.
//!
//! A process has a *station*: a table of events in the arena, each made once, exported once and used again and again. They
//! belong to the origin of a memory, both those that its writers record and those that its readers record, so that they
//! live as long as the memory. Others open an event once and keep it for as long as they keep anything of that origin.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use shm_core::Arena;
use shm_core::object::{Array, Object, ObjectKind};
use shm_core::word::Owner;

use crate::device::Device;
use crate::driver::{Driver, RawEvent, check_not_forked};
use crate::error::{Error, ErrorKind, Result};
use crate::layout::{self, Path, malformed, owner_of, owner_word, station};
use crate::mark::EventId;
use crate::stats::COUNTERS;

/// An event, destroyed with its last holder.
#[derive(Debug)]
pub(crate) struct Event {
    driver: &'static dyn Driver,
    raw: Option<RawEvent>,
}

impl Event {
    pub(crate) fn driver(&self) -> &'static dyn Driver {
        self.driver
    }

    pub(crate) fn raw(&self) -> Result<&RawEvent> {
        self.raw
            .as_ref()
            .ok_or_else(|| Error::new(ErrorKind::Malformed, "the event is gone"))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if check_not_forked().is_err() {
            return;
        }
        if let Some(Err(error)) = self.raw.take().map(|raw| self.driver.drop_event(raw)) {
            tracing::warn!(%error, "an event could not be destroyed");
        }
    }
}

/// The events of this process.
#[derive(Debug)]
pub(crate) struct Station {
    pub(crate) object: Object,
    driver: &'static dyn Driver,
    capacity: u16,
    places: Mutex<Places>,
}

#[derive(Debug, Default)]
struct Places {
    events: Vec<Place>,
    /// Of each device, by ordinal: indices that nobody is bound to.
    free: HashMap<u32, Vec<u16>>,
    /// Whether it is known that no event can be shared.
    refused: bool,
    /// When blocks that nobody uses were found to have none.
    none_idle: Option<Instant>,
    /// Which have others in their places; the eldest first.
    replaced: VecDeque<Arc<Event>>,
    /// Recorded for several blocks each, and free again when none of them says so any more.
    joint: Vec<Joint>,
    /// So many of them are left alone.
    joint_in_use: usize,
}

/// An event that was recorded for several blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Joint {
    pub(crate) id: EventId,
    /// It may be that another process recorded it, and has died since.
    by_others: bool,
    /// Since when it is known that it has not happened.
    late_since: Option<Instant>,
}

/// So many joint events more than are in use are left alone.
const JOINT_SPARE: usize = 8;
/// So many events that have others in their places are not destroyed yet: there is one for each death at most.
const REPLACED: usize = 1_024;
/// How long a joint event of another process may take, once no block speaks of it, before there is another one in its place.
const LATE: Duration = Duration::from_secs(2);

#[derive(Debug)]
struct Place {
    event: Arc<Event>,
    generation: u16,
    device: u32,
}

impl Station {
    pub(crate) fn new(arena: &Arena, driver: &'static dyn Driver, capacity: u16) -> Result<Self> {
        let words = station::EVENTS + u64::from(capacity) * station::EVENT;
        let none = [Array::None, Array::None];
        let object = Object::create(arena, ObjectKind::DeviceStation, none, words)?;
        object
            .word(station::OWNER)
            .store(owner_word(arena.me()), Ordering::Relaxed);
        object
            .word(station::CAPACITY)
            .store(capacity.into(), Ordering::Release);
        Ok(Self {
            object,
            driver,
            capacity,
            places: Mutex::default(),
        })
    }

    /// An event for a block on `device`; `None` when there are as many as there may be, or the device shares none. Who gets
    /// none waits on the host instead.
    pub(crate) fn bind(&self, device: Device) -> Result<Option<EventId>> {
        let mut places = self.places.lock();
        let ordinal = device.ordinal();
        if let Some(index) = places.free.get_mut(&ordinal).and_then(Vec::pop) {
            let generation = places.events[usize::from(index)].generation;
            return Ok(Some(EventId { index, generation }));
        }
        let index = places.events.len() as u16;
        if places.refused || index >= self.capacity || device.description().events.is_err() {
            return Ok(None);
        }
        match self.make(ordinal, index, 1) {
            Ok(event) => {
                places.events.push(Place {
                    event: Arc::new(event),
                    generation: 1,
                    device: ordinal,
                });
                Ok(Some(EventId {
                    index,
                    generation: 1,
                }))
            }
            // The driver said that it could, and cannot: in a container, say.
            Err(error) if matches!(error.code(), Some(1 | 304 | 800 | 801)) => {
                tracing::warn!(%error, "events cannot be shared; senders wait for the device instead");
                places.refused = true;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether blocks that nobody uses may have events that are needed elsewhere.
    pub(crate) fn may_look_for_idle(&self) -> bool {
        let places = self.places.lock();
        let is_long_ago = |then: Instant| then.elapsed() > Duration::from_millis(20);
        !places.events.is_empty() && places.none_idle.is_none_or(is_long_ago)
    }

    /// They have none: not to be looked for again at once.
    pub(crate) fn found_none_idle(&self) {
        self.places.lock().none_idle = Some(Instant::now());
    }

    /// Makes and exports the event of a place.
    fn make(&self, device: u32, index: u16, generation: u16) -> Result<Event> {
        let event = Event {
            driver: self.driver,
            raw: Some(self.driver.new_event(device, true)?),
        };
        let handle = self.driver.export_event(event.raw()?)?;
        let at = station::EVENTS + u64::from(index) * station::EVENT;
        // 0 while it is written, so that nobody opens half a handle.
        self.object.word(at).store(0, Ordering::Release);
        layout::write_handle(&self.object, at + 1, &handle);
        self.object
            .word(at)
            .store(generation.into(), Ordering::Release);
        COUNTERS.events_made.add(1);
        Ok(event)
    }

    /// The event of that name.
    pub(crate) fn event(&self, id: EventId) -> Result<Arc<Event>> {
        let places = self.places.lock();
        let place = places.events.get(usize::from(id.index));
        place
            .filter(|place| place.generation == id.generation)
            .map(|place| place.event.clone())
            .ok_or_else(|| malformed("an event that this process never had"))
    }

    /// Nobody is bound to it any more.
    pub(crate) fn give_back(&self, id: EventId) {
        let mut places = self.places.lock();
        if let Some(place) = places.events.get(usize::from(id.index)) {
            let device = place.device;
            places.free.entry(device).or_default().push(id.index);
        }
    }

    /// It was recorded for several blocks, and every one of them says so.
    pub(crate) fn set_aside(&self, id: EventId, by_others: bool) {
        self.places.lock().joint.push(Joint {
            id,
            by_others,
            late_since: None,
        });
    }

    /// The joint events, if there are enough to be worth a look at all blocks, or `at_once`: to be given to
    /// [`put_joint`](Self::put_joint). Soon enough for the same few to go round, which others have open.
    pub(crate) fn take_joint(&self, at_once: bool) -> Vec<Joint> {
        let mut places = self.places.lock();
        let is_few = places.joint.len() < places.joint_in_use + JOINT_SPARE;
        if is_few && !at_once {
            return Vec::new();
        }
        std::mem::take(&mut places.joint)
    }

    /// Of what [`take_joint`](Self::take_joint) gave: those that blocks still speak of; the others are free.
    pub(crate) fn put_joint(&self, mut in_use: Vec<Joint>, over: Vec<Joint>) {
        for mut joint in over {
            let has_happened = || {
                let event = self.event(joint.id)?;
                self.driver.has_happened(event.raw()?)
            };
            let id = if !joint.by_others || has_happened().unwrap_or(false) {
                Ok(joint.id)
            } else if joint.late_since.get_or_insert_with(Instant::now).elapsed() < LATE {
                in_use.push(joint);
                continue;
            } else {
                // Whoever recorded it is dead, it may be, and then it never happens.
                self.replace(joint.id)
            };
            match id {
                Ok(id) => self.give_back(id),
                Err(error) => tracing::warn!(%error, "an event is of no use any more"),
            }
        }
        let mut places = self.places.lock();
        places.joint_in_use = in_use.len();
        places.joint.extend(in_use);
    }

    /// Another event in place of one that may never happen, since whoever recorded it is dead.
    pub(crate) fn replace(&self, id: EventId) -> Result<EventId> {
        let mut places = self.places.lock();
        let place = places
            .events
            .get_mut(usize::from(id.index))
            .ok_or_else(|| malformed("an event that this process never had"))?;
        let generation = (place.generation + 1) & 0xfff;
        let made = Arc::new(self.make(place.device, id.index, generation)?);
        let old = std::mem::replace(&mut place.event, made);
        place.generation = generation;
        // Streams of others may still wait for it, and ask whether it has happened.
        places.replaced.push_back(old);
        if places.replaced.len() > REPLACED {
            places.replaced.pop_front();
        }
        Ok(EventId {
            index: id.index,
            generation,
        })
    }

    /// How many events there are, and how many of them are bound to blocks.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let places = self.places.lock();
        let free: usize = places.free.values().map(Vec::len).sum();
        let all = places.events.len();
        (all as u64, (all - free) as u64)
    }
}

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
}

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
        })
    }

    /// Whether the origin has asked for memory to be closed since this was asked last.
    pub(crate) fn asks_to_close(&self) -> bool {
        let asked = self.object.word(station::RETIRED).load(Ordering::Acquire);
        self.heeded.swap(asked, Ordering::Relaxed) != asked
    }

    /// As [`asks_to_close`](Self::asks_to_close), which then still says so.
    pub(crate) fn is_asking(&self) -> bool {
        let asked = self.object.word(station::RETIRED).load(Ordering::Acquire);
        self.heeded.load(Ordering::Relaxed) != asked
    }

    /// The origin's requests are to be looked at again.
    pub(crate) fn look_again(&self) {
        self.heeded.store(u64::MAX, Ordering::Relaxed);
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
            Err(error) if self.object.arena().is_running(self.origin) => return Err(error),
            Err(error) => return Err(crate::import::memory_gone().because(error)),
        };
        COUNTERS.events_opened.add(1);
        let event = Arc::new(Event {
            driver: self.driver,
            raw: Some(raw),
        });
        opened.insert(key, (id.generation, event.clone()));
        Ok(event)
    }
}
