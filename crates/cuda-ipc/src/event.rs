//! Events that processes lend to one another.
//!
//! A process has a *station*: a table of events in the arena, each made once, exported once and used again and again. They
//! belong to the origin of a memory, both those that its writers record and those that its readers record, so that they
//! live as long as the memory. Others open an event once and keep it for as long as they keep anything of that origin.
//!
//! Who waits for a record asks the event whether it has happened, and is told of its latest record. So an event is recorded
//! anew only behind its record before, in the order of streams; or when that was seen to have happened. One that may never
//! happen gives way to another.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use shm_core::Arena;
use shm_core::object::{Array, Object, ObjectKind};
use shm_core::patience::Patience;

use crate::device::Device;
use crate::driver::{Driver, RawEvent, check_not_forked};
use crate::error::{Error, ErrorKind, Result};
use crate::layout::{self, malformed, owner_word, station};
use crate::mark::{EventId, NO_NUMBER};
use crate::path::{TRIALS, has_room_for_a_file, is_passing};
use crate::stats::COUNTERS;

/// An event, destroyed with its last holder.
#[derive(Debug)]
pub(crate) struct Event {
    driver: &'static dyn Driver,
    raw: Option<RawEvent>,
}

impl Event {
    pub(crate) fn new(driver: &'static dyn Driver, raw: RawEvent) -> Self {
        let raw = Some(raw);
        Self { driver, raw }
    }

    pub(crate) fn driver(&self) -> &'static dyn Driver {
        self.driver
    }

    pub(crate) fn raw(&self) -> Result<&RawEvent> {
        self.raw
            .as_ref()
            .ok_or_else(|| Error::new(ErrorKind::Malformed, "the event is gone"))
    }

    /// Whether it is seen that its latest record has happened.
    fn has_happened(&self) -> bool {
        let asked = self.raw().and_then(|raw| self.driver.has_happened(raw));
        asked.unwrap_or(false)
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
    /// Of each device, by ordinal: indices that nobody is bound to, and whose records have happened.
    free: HashMap<u32, Vec<u16>>,
    /// Of each device, and each stream of this process by its number: as that, but the last record was made in that stream, and
    /// may not have happened. The eldest first.
    own: HashMap<(u32, u8), VecDeque<u16>>,
    /// How often it was seen that none can be shared, up to [`TRIALS`].
    refused: u32,
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
    /// The stream of this process in which it was recorded. None if it may be that another process recorded it, and has died
    /// since.
    stream: Option<u8>,
    /// How long it has been known that it has not happened.
    late: Option<Patience>,
}

/// So many joint events more than are in use are left alone.
const JOINT_SPARE: usize = 8;
/// So many events that have others in their places are not destroyed yet: there is one for each death, and those that a stream
/// that is lost had recorded.
const REPLACED: usize = 4_096;
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

    /// An event for a block on `device`, or to be recorded next in a stream of this process, which has that number; `None` when
    /// there are as many as there may be, or the device shares none. Who gets none waits on the host instead.
    pub(crate) fn bind(&self, device: Device, stream: Option<u8>) -> Result<Option<EventId>> {
        let mut places = self.places.lock();
        let ordinal = device.ordinal();
        let own = stream.and_then(|stream| places.own.get_mut(&(ordinal, stream)));
        let found = own
            .and_then(VecDeque::pop_front)
            .or_else(|| places.free.get_mut(&ordinal).and_then(Vec::pop))
            .or_else(|| places.take_own(ordinal));
        if let Some(index) = found {
            let generation = places.events[usize::from(index)].generation;
            return Ok(Some(EventId { index, generation }));
        }
        let index = places.events.len() as u16;
        if places.refused >= TRIALS
            || index >= self.capacity
            || device.description().events.is_err()
        {
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
                places.refused += match is_passing(&error) {
                    true => u32::from(has_room_for_a_file()),
                    false => TRIALS,
                };
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

    /// No block is bound to it any more. What was recorded with it may be waited for all the same.
    pub(crate) fn give_back(&self, id: EventId) {
        match self.has_happened(id) {
            true => self.places.lock().set_free(id.index),
            false => self.set_aside(id, None),
        }
    }

    /// Whether its latest record has happened.
    fn has_happened(&self, id: EventId) -> bool {
        let event = self.event(id);
        event.is_ok_and(|event| event.has_happened())
    }

    /// It was recorded for several blocks, and every one of them says so: in a stream of this process, perhaps, that has a
    /// number. Or it was given back, and has not happened.
    pub(crate) fn set_aside(&self, id: EventId, stream: Option<u8>) {
        let stream = stream.filter(|stream| *stream != NO_NUMBER);
        self.places.lock().joint.push(Joint {
            id,
            stream,
            late: None,
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
        let now = Instant::now();
        for mut joint in over {
            if let Some(stream) = joint.stream {
                self.places.lock().set_own(joint.id.index, stream);
                continue;
            }
            let id = if self.has_happened(joint.id) {
                Some(joint.id)
            } else if !joint
                .late
                .get_or_insert(Patience::new_at(LATE, now))
                .is_over(now)
            {
                in_use.push(joint);
                continue;
            } else {
                // Whoever recorded it is dead, it may be, and then it never happens.
                self.give_way(joint.id)
            };
            self.free_again(id);
        }
        let mut places = self.places.lock();
        places.joint_in_use = in_use.len();
        places.joint.extend(in_use);
    }

    /// Of streams of this process that are lost: other events in place of those that were recorded there and that no block
    /// speaks of any more; whether there were any.
    pub(crate) fn replace_lost(&self, is_lost: impl Fn(u8) -> bool) -> bool {
        let mut places = self.places.lock();
        let Places { own, events, .. } = &mut *places;
        let own = own.extract_if(|(_, stream), _| is_lost(*stream));
        let id = |index: u16| EventId {
            index,
            generation: events[usize::from(index)].generation,
        };
        let lost: Vec<_> = own.flat_map(|(_, all)| all).map(id).collect();
        drop(places);
        for id in &lost {
            self.free_again(match self.has_happened(*id) {
                true => Some(*id),
                false => self.give_way(*id),
            });
        }
        !lost.is_empty()
    }

    fn free_again(&self, id: Option<EventId>) {
        let mut places = self.places.lock();
        id.into_iter().for_each(|id| places.set_free(id.index));
    }

    /// Another event in place of one that may never happen, since whoever recorded it is dead; none where the driver has none now.
    /// Then it is seen to later.
    pub(crate) fn give_way(&self, id: EventId) -> Option<EventId> {
        let replaced = self.replace(id);
        if let Err(error) = &replaced {
            tracing::warn!(%error, "there is no event now in place of one that may never happen");
            self.give_back(id);
        }
        replaced.ok()
    }

    fn replace(&self, id: EventId) -> Result<EventId> {
        let mut places = self.places.lock();
        let place = places
            .events
            .get_mut(usize::from(id.index))
            .ok_or_else(|| malformed("an event that this process never had"))?;
        // Of twelve bits; 0 is no event.
        let generation = place.generation % 0xfff + 1;
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
        let own: usize = places.own.values().map(VecDeque::len).sum();
        let all = places.events.len();
        (all as u64, (all - free - own) as u64)
    }
}

impl Places {
    /// Nobody is bound to it, and its records have happened.
    fn set_free(&mut self, index: u16) {
        if let Some(place) = self.events.get(usize::from(index)) {
            self.free.entry(place.device).or_default().push(index);
        }
    }

    /// Nobody is bound to it, and its last record was made in a stream of this process.
    fn set_own(&mut self, index: u16, stream: u8) {
        if let Some(place) = self.events.get(usize::from(index)) {
            let own = self.own.entry((place.device, stream)).or_default();
            own.push_back(index);
        }
    }

    /// One of a device that was recorded in any stream of this process, and has happened.
    fn take_own(&mut self, device: u32) -> Option<u16> {
        let events = &self.events;
        let of_device = self.own.iter_mut().filter(|((on, _), _)| *on == device);
        let mut all = of_device.map(|(_, own)| own);
        let has_happened = |index: &u16| events[usize::from(*index)].event.has_happened();
        let found = all.find(|own| own.front().is_some_and(has_happened));
        found.and_then(VecDeque::pop_front)
    }
}
