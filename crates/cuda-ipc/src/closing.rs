//! Giving memory back, and who is in the way of that.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use shm_core::word::Owner;

use crate::error::{Error, ErrorKind, Result};
use crate::hub::Hub;
use crate::memory::Memory;
use crate::place::Place;
use crate::pool::Pool;
use crate::stats::{COUNTERS, Stats, Stuck};
use crate::stuck::{self, gate_device};

impl Hub {
    pub(crate) fn pools(&self) -> Vec<Arc<Mutex<Pool>>> {
        self.pools.lock().values().cloned().collect()
    }

    /// Gives back what nobody needs; the number of bytes given back to devices.
    pub(crate) fn collect(&self) -> u64 {
        self.close_idle();
        let mut freed = 0;
        for pool in self.pools() {
            let mut pool = pool.lock();
            pool.sweep();
            let is_stuck = pool
                .device()
                .is_some_and(|device| gate_device(device).is_err());
            if is_stuck {
                continue;
            }
            let gone = pool.take_unused(|memory| {
                if memory.is_open_elsewhere() {
                    memory.retire(self);
                    return false;
                }
                self.is_quiet(memory)
            });
            drop(pool);
            for memory in gone {
                freed += self.give_up(&memory);
            }
        }
        freed
    }

    /// Whether all work on a memory is over. Waits for work of this process.
    fn is_quiet(&self, memory: &Arc<Memory>) -> bool {
        let Ok(station) = self.station() else {
            return false;
        };
        let place = Place::Home(memory.clone(), station);
        (0..memory.count).all(|index| {
            let streams = memory.take_after(index);
            streams.iter().all(|stream| stream.synchronize().is_ok())
                && place.is_quiet(index, self.driver).unwrap_or(false)
        })
    }

    fn give_up(&self, memory: &Arc<Memory>) -> u64 {
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

    /// Closes memory of others that is open here and not used.
    fn close_idle(&self) {
        let idle: Vec<_> = {
            let mut imports = self.imports.lock();
            imports
                .extract_if(|_, import| Arc::strong_count(import) == 1)
                .collect()
        };
        drop(idle);
        let mut visited = self.visited.lock();
        visited.retain(|_, station| {
            Arc::strong_count(station) > 1 || self.arena.is_present(station.origin)
        });
    }

    fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        for pool in self.pools() {
            let pool = pool.lock();
            let (count, bytes) = pool.size();
            stats.allocations += count;
            stats.allocated += bytes;
            stats.live += pool.held().len() as u64;
        }
        stats.stuck = self.stuck();
        stats.imports = self.imports.lock().len() as u64;
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
        let on = |known: stuck::Known| {
            let mut stuck = Stuck {
                device: known.device,
                writer: known.who(),
                allocations: 0,
                bytes: 0,
                blocks: 0,
                imports: known.imports,
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

    /// Whether all that is left is on devices of which nothing is given back any more.
    fn is_all_stuck(&self) -> bool {
        let stuck = stuck::all();
        let memories = self.memories.lock();
        let is_stuck = |device| stuck.iter().any(|known| known.device == device);
        memories.values().all(|memory| is_stuck(memory.device))
    }

    /// Who still holds tensors of this process, or has its memory open: one line each.
    fn holders(&self) -> Vec<String> {
        let mut seen: HashMap<Option<Owner>, (u64, u64)> = HashMap::new();
        for pool in self.pools() {
            let held = pool.lock().held();
            for (token, bytes) in held {
                let holders = token.holders();
                let keys: Vec<_> = if holders.is_empty() {
                    vec![None]
                } else {
                    holders.into_iter().map(Some).collect()
                };
                for key in keys {
                    let sum = seen.entry(key).or_default();
                    *sum = (sum.0 + 1, sum.1 + bytes);
                }
            }
        }
        for memory in self.memories.lock().values() {
            for holder in memory.holders() {
                seen.entry(Some(holder)).or_default();
            }
        }
        let mut lines: Vec<_> = seen
            .into_iter()
            .map(|(holder, (tensors, bytes))| {
                let what = match tensors {
                    0 => "has memory of it open".to_owned(),
                    count => format!("holds {count} tensors of {bytes} bytes"),
                };
                match holder {
                    None => format!(
                        "messages that nobody has received: {tensors} tensors of {bytes} bytes"
                    ),
                    Some(owner) if owner == self.arena.me() => {
                        format!("this process itself {what}")
                    }
                    Some(owner) => {
                        let record = self.arena.record_of(owner);
                        let (pid, name) =
                            record.map_or((0, String::new()), |record| (record.pid, record.name));
                        format!("process {pid} {name} {what}")
                    }
                }
            })
            .collect();
        lines.sort();
        lines
    }
}

/// What this process has done with device tensors so far, and what it holds.
#[must_use]
pub fn stats() -> Stats {
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
    stats
}

/// Gives back to the devices what nobody needs: allocations without a tensor in them, and what is open here of other
/// processes and not used. Returns the number of bytes given back.
///
/// Memory of the host that is registered for devices and has no pinned tensor in it is unregistered.
///
/// Nothing has to call this: memory is used again, and given back when a device has no more. Allocations that others have
/// open wait until those have closed them, which they do with their next tensor of that process, with their own `collect`, or
/// by themselves within about half a second.
pub fn collect() -> u64 {
    crate::regions::collect();
    crate::staging::give_up();
    Hub::if_any().map_or(0, Hub::collect)
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
/// that, when nobody holds anything any more, and what is left is on a device where a stream waits for a process that has
/// died: it goes with this process.
pub fn close(timeout: Duration) -> Result<()> {
    let Some(hub) = Hub::if_any() else {
        return Ok(());
    };
    let until = Instant::now() + timeout;
    let mut pause = Duration::from_micros(100);
    loop {
        hub.arena.bury_the_dead();
        hub.collect();
        if hub.memories.lock().is_empty() {
            return Ok(());
        }
        let now = Instant::now();
        let stuck: Vec<_> = hub.stuck().iter().map(told).collect();
        let is_over = !stuck.is_empty() && hub.is_all_stuck();
        if now >= until || is_over {
            let mut holders = hub.holders();
            if is_over && holders.is_empty() {
                return Err(Error::new(ErrorKind::WriterGone, stuck.join("; ")));
            }
            if now >= until {
                holders.extend(stuck);
                return Err(Error::new(
                    ErrorKind::TimedOut,
                    format!(
                        "device memory of this process is still held after {timeout:?}: {}",
                        holders.join("; ")
                    ),
                ));
            }
        }
        std::thread::sleep(pause.min(until - now));
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}
