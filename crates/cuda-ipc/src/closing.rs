//! Giving memory back, and who is in the way of that.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use shm_core::patience::Patience;

use crate::device::Device;
use crate::driver::check_not_forked;
use crate::error::{Error, ErrorKind, Result};
use crate::hub::Hub;
use crate::import::Import;
use crate::in_the_way::Rest;
use crate::later;
use crate::memory::Memory;
use crate::place::Place;
use crate::pool::Pool;
use crate::rest::{self, Holding};
use crate::stats::{COUNTERS, Stats, Stuck};
use crate::stream::Stream;
use crate::stuck;

/// Longer than any process lives, and yet a moment that a clock can say.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// How long [`collect`] waits for work of this process.
const OWN_WORK: Duration = Duration::from_secs(60);

/// How long [`close`] waits for processes that cannot do anything about it before they end, as they may at any time.
const LINGER: Duration = Duration::from_secs(5);

/// How often [`close`] looks whether waiting is of any use.
const LOOK: Duration = Duration::from_millis(100);

/// How long [`collect`] looks until it sees that this process's work is done on memory where the driver does not wait for that.
const SETTLED_BY: Duration = Duration::from_secs(1);

impl Hub {
    pub(crate) fn pools(&self) -> Vec<Arc<Mutex<Pool>>> {
        self.pools.lock().values().cloned().collect()
    }

    /// Gives back what nobody needs; the number of bytes given back to devices. Waits for work of this process, `until` then,
    /// and never for that of others: what waits for them is left for the next time. `held`: streams are kept from waiting for
    /// more of others meanwhile.
    pub(crate) fn collect(&self, until: Option<Instant>, held: bool) -> u64 {
        self.close_idle(until, held);
        let mut freed = 0;
        for pool in self.pools() {
            pool.lock().sweep();
            let device = pool.lock().device();
            freed += device.map_or(0, |device| self.free_unused(&pool, device, until, held));
        }
        freed
    }

    /// As [`collect`](Self::collect), of one pool.
    fn free_unused(
        &self,
        pool: &Mutex<Pool>,
        device: Device,
        until: Option<Instant>,
        held: bool,
    ) -> u64 {
        let mut freed = 0;
        let mut wait = Patience::new(SETTLED_BY);
        // As for what is closed: that work is done is seen a moment later.
        loop {
            let free = || self.free_what_is_over(pool, device);
            let Some((bytes, is_late)) = self.at_rest(device, until, held, free) else {
                // Others can close it meanwhile.
                pool.lock().take_unused(|memory| {
                    self.asks_to_close(memory);
                    false
                });
                return freed;
            };
            freed += bytes;
            if !is_late || !is_before(until) || wait.is_over(Instant::now()) {
                return freed;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Gives back what nobody needs and all work is over on; how many bytes, and whether some of it stays since this process's
    /// work there is not. The device is at rest.
    fn free_what_is_over(&self, pool: &Mutex<Pool>, device: Device) -> (u64, bool) {
        let mut is_late = false;
        let unused = pool.lock().take_unused(|memory| {
            if self.asks_to_close(memory) {
                return false;
            }
            let is_over = memory.worked.lock().is_over();
            is_late |= !is_over;
            is_over && self.is_quiet(memory) && memory.begin_to_go()
        });
        let (others, own): (Vec<_>, Vec<_>) =
            unused.into_iter().partition(|memory| memory.is_wrapped());
        let mut freed = own.iter().map(|memory| self.give_up(memory)).sum::<u64>();
        if !others.is_empty() {
            let drop_owners = || {
                others
                    .iter()
                    .map(|memory| self.drop_owner_of(memory))
                    .sum::<u64>()
            };
            freed += rest::dropping(device, drop_owners);
        }
        (freed, is_late)
    }

    /// Whether others have it open, who are asked to close it.
    fn asks_to_close(&self, memory: &Memory) -> bool {
        let is_open = memory.is_open_elsewhere();
        if is_open {
            memory.retire(self);
        }
        is_open
    }

    /// Does something in which the driver waits for all that this process has on a device, when nothing of that waits for
    /// another process.
    fn at_rest<R>(
        &self,
        device: Device,
        until: Option<Instant>,
        held: bool,
        act: impl FnOnce() -> R,
    ) -> Option<R> {
        if self.settle_own(device, until) {
            rest::while_calm(device, until, act)
        } else if held {
            rest::while_held(device, until, act).ok()
        } else {
            None
        }
    }

    /// Waits for what this process has to do on a device; whether it is done. Not if that waits for another process. Streams that
    /// somebody else made are the driver's business, since their work ends if they wait for nobody, as is looked at next.
    fn settle_own(&self, device: Device, until: Option<Instant>) -> bool {
        // Of what is stuck the next look is told; what takes long is looked at again.
        let until = until.unwrap_or_else(|| Instant::now() + OWN_WORK);
        let is_there = |stream: &Stream| stream.device() == device;
        Stream::all().into_iter().filter(is_there).all(|stream| {
            // A look without a wait: at others.
            matches!(stream.gate_until(Some(Instant::now())), Ok(Some(_)))
                && stream.finish(until).unwrap_or(false)
        })
    }

    /// Whether all work of others on a memory is over.
    fn is_quiet(&self, memory: &Arc<Memory>) -> bool {
        let Ok(station) = self.station() else {
            return false;
        };
        let place = Place::Home(memory.clone(), station);
        (0..memory.count).all(|index| place.is_quiet(index, self.driver).unwrap_or(false))
    }

    pub(crate) fn give_up(&self, memory: &Arc<Memory>) -> u64 {
        if let Ok(station) = self.station() {
            let place = Place::Home(memory.clone(), station);
            for index in 0..memory.count {
                place.unbind(index);
            }
        }
        self.memories.lock().remove(&memory.object.handle());
        match memory.free(self) {
            Ok(()) => memory.bytes,
            Err(error) => {
                tracing::warn!(%error, "memory of a device could not be given back");
                0
            }
        }
    }

    /// Closes memory of others that is open here and not used, and gives back what was left.
    fn close_idle(&self, until: Option<Instant>, held: bool) {
        let mut devices: HashSet<_> = {
            let imports = self.imports.lock();
            let idle = imports
                .values()
                .filter(|import| Arc::strong_count(import) == 1);
            idle.map(|import| import.device).collect()
        };
        // After the table, so that what another thread takes from there meanwhile is in one of the two.
        devices.extend(later::devices());
        for device in devices {
            if stuck::is_known(device) {
                continue;
            }
            // That work is done is seen a moment later; of what waits for the dead it never is.
            let mut wait = Patience::new(SETTLED_BY);
            let close = || self.close_there(device, true);
            while self.at_rest(device, until, held, close) == Some(false)
                && is_before(until)
                && !wait.is_over(Instant::now())
            {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
        self.leave_stations();
    }

    fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        for pool in self.pools() {
            let pool = pool.lock();
            let (count, bytes) = pool.size();
            stats.allocations += count;
            stats.allocated += bytes;
            stats.wrapped += pool.wrapped();
            stats.live += pool.held().len() as u64;
        }
        stats.stuck = self.stuck();
        let imports = self.imports.lock();
        stats.imports = imports.len() as u64 + later::opened();
        drop(imports);
        if let Some(station) = &*self.station.lock() {
            stats.events = station.counts().0;
        }
        stats.peers = self
            .peers
            .lock()
            .iter()
            .map(|(_, peer)| peer.clone())
            .collect();
        stats
    }

    /// What stays until this process ends.
    fn stuck(&self) -> Vec<Stuck> {
        let is_unused = |import: &&Arc<Import>| Arc::strong_count(import) == 1;
        let open_on = |device| {
            let imports = self.imports.lock();
            let unused = imports.values().filter(is_unused);
            unused.filter(|import| import.device == device).count() as u64
        };
        let on = |known: stuck::Known| {
            let mut stuck = Stuck {
                device: known.device,
                writer: known.who,
                allocations: 0,
                bytes: 0,
                blocks: 0,
                imports: known.imports + open_on(known.device),
            };
            for pool in self.pools() {
                let pool = pool.lock();
                if pool.device() == Some(known.device) {
                    let (count, bytes) = pool.size();
                    stuck.allocations += count;
                    stuck.bytes += bytes;
                    stuck.blocks += pool.stuck();
                }
            }
            stuck
        };
        stuck::all().into_iter().map(on).collect()
    }
}

fn is_before(until: Option<Instant>) -> bool {
    until.is_none_or(|until| Instant::now() < until)
}

/// What this process has done with device tensors so far, and what it holds. Nothing, in a bare fork of one that used them.
#[must_use]
pub fn stats() -> Stats {
    if check_not_forked().is_err() {
        // Locks may be held for ever there, by threads that only the other process has.
        return Stats::default();
    }
    let mut stats = Hub::if_any().map(Hub::stats).unwrap_or_default();
    stats.pinned = crate::regions::stats();
    stats.sent = COUNTERS.sent.get();
    stats.received = COUNTERS.received.get();
    stats.opened = COUNTERS.opened.get();
    stats.events_opened = COUNTERS.events_opened.get();
    stats.events_replaced = COUNTERS.events_replaced.get();
    stats.reused = COUNTERS.reused.get();
    stats.host_waits = COUNTERS.host_waits.get();
    stats.staged = COUNTERS.staged.get();
    stats.host_copies = COUNTERS.host_copies.get();
    (stats.kept_copies, stats.kept_bytes) = crate::staging::kept();
    stats.kept_tensors = crate::kept::count();
    stats
}

/// Gives back to the devices what nobody needs: allocations without a tensor in them, and what is open here of other
/// processes and not used. Returns the number of bytes given back.
///
/// Memory of the host that is registered for devices and has no pinned tensor in it is unregistered.
///
/// Waits for what this process has to do on a device, a minute at most, and never for other processes: where a stream waits
/// for one, memory of that device is left for the next time.
///
/// Nothing has to call this: memory is used again, and given back when a device has no more. Allocations that others have
/// open wait until those have closed them, which they do with their next tensor of that process, with their own `collect`, or
/// by themselves within about half a second.
pub fn collect() -> u64 {
    if check_not_forked().is_err() {
        return 0;
    }
    crate::regions::collect();
    crate::staging::give_up();
    Hub::if_any().map_or(0, |hub| hub.collect(None, false))
}

/// What stays, and why.
fn told(stuck: &Stuck) -> String {
    format!(
        "device {}: {} bytes in {} allocations stay until this process ends, since a stream there waits for {}, which died before its work was done",
        stuck.device.ordinal(),
        stuck.bytes,
        stuck.allocations,
        stuck.writer
    )
}

/// Waits until nobody holds a tensor of this process's memory any more, and gives all of it back: what a producer does
/// before it ends, so that its consumers do not lose what they have.
///
/// # Errors
/// `TimedOut`, naming who holds how much, when that takes longer than `timeout`; it can be called again. `WriterGone`, before
/// that, when nobody holds anything any more, and what is left cannot be given back: it is on a device where a stream waits
/// for a process that has died, or, for five seconds now, in the way are only other processes to which that has happened,
/// which are named. It goes with this process.
pub fn close(timeout: Duration) -> Result<()> {
    let Some(hub) = Hub::if_any() else {
        return Ok(());
    };
    let now = Instant::now();
    // A time that no clock has is as good as for ever.
    let until = now.checked_add(timeout).unwrap_or(now + FOR_EVER);
    let mut pause = Duration::from_micros(100);
    let mut holding = Holding::new();
    let mut next_look = now;
    let mut others: Option<Patience> = None;
    loop {
        hub.arena.bury_the_dead();
        let is_held = holding.is_due();
        hub.collect(Some(until), is_held);
        if hub.memories.lock().is_empty() {
            return Ok(());
        }
        if is_held {
            holding.was_tried(hub.pools().iter().all(|pool| {
                let device = pool.lock().device();
                device.is_none_or(|device| !rest::is_waiting(device))
            }));
        }
        let now = Instant::now();
        let rest = match now >= next_look {
            true => hub.what_is_left(),
            false => Rest::InWork,
        };
        if now >= next_look {
            next_look = now + LOOK;
            others =
                (rest == Rest::Elsewhere).then(|| others.unwrap_or(Patience::new_at(LINGER, now)));
        }
        let stuck = || hub.stuck().iter().map(told).collect::<Vec<_>>();
        // That others have it open is no reason to wait: it goes with this process in any case.
        if rest == Rest::Here {
            let stuck = stuck();
            if !stuck.is_empty() {
                return Err(Error::new(ErrorKind::WriterGone, stuck.join("; ")));
            }
        }
        let is_of_no_use = others.as_mut().is_some_and(|wait| wait.is_over(now));
        if is_of_no_use || now >= until {
            let mut lines = hub.who_is_in_the_way();
            lines.extend(stuck());
            if lines.is_empty() {
                lines.push("nobody holds a tensor, but work on it is not done yet".to_owned());
            }
            let lines = lines.join("; ");
            return Err(match is_of_no_use {
                true => Error::new(
                    ErrorKind::WriterGone,
                    format!(
                        "nobody holds device memory of this process, and it cannot be given back before others end: {lines}"
                    ),
                ),
                false => Error::new(
                    ErrorKind::TimedOut,
                    format!(
                        "device memory of this process is still held after {timeout:?}: {lines}"
                    ),
                ),
            });
        }
        std::thread::sleep(pause.min(until - now));
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}
