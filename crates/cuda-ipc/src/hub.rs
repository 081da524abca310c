//! What this process knows of device memory: its own, and what it has open of others.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use shm_core::Arena;
use shm_core::trace::Trace;
use shm_core::word::Owner;

use crate::device::Device;
use crate::driver::{Driver, driver};
use crate::error::{Error, ErrorKind, Result};
use crate::event::{Station, Visited};
use crate::import::Import;
use crate::layout::Path;
use crate::memory::Memory;
use crate::options::options;
use crate::place::Place;
use crate::pool::{BlockRef, Pool, class_of};
use crate::stats::{COUNTERS, Peer, Stats};
use crate::stream::Stream;

/// All there is, once a process.
#[derive(Debug)]
pub(crate) struct Hub {
    pub(crate) arena: Arena,
    pub(crate) driver: &'static dyn Driver,
    station: Mutex<Option<Arc<Station>>>,
    pools: Mutex<HashMap<(u32, Path), Arc<Mutex<Pool>>>>,
    memories: Mutex<HashMap<[u64; 2], Arc<Memory>>>,
    imports: Mutex<HashMap<[u64; 2], Arc<Import>>>,
    visited: Mutex<HashMap<[u64; 2], Arc<Visited>>>,
    peers: Mutex<Vec<(Owner, Peer)>>,
}

static HUB: OnceLock<Hub> = OnceLock::new();

impl Hub {
    /// The one of this process, in its current arena.
    pub(crate) fn get() -> Result<&'static Self> {
        if let Some(hub) = HUB.get() {
            hub.arena.check_not_forked("using a device tensor")?;
            return Ok(hub);
        }
        let driver = driver()?;
        let arena = Arena::current()?;
        arena.check_not_forked("using a device tensor")?;
        // To hear of deaths also while nobody here waits for anything.
        arena.watch();
        Ok(HUB.get_or_init(|| Self {
            arena,
            driver,
            station: Mutex::default(),
            pools: Mutex::default(),
            memories: Mutex::default(),
            imports: Mutex::default(),
            visited: Mutex::default(),
            peers: Mutex::default(),
        }))
    }

    /// The one of this process, if it has used device tensors.
    fn if_any() -> Option<&'static Self> {
        HUB.get().filter(|hub| !hub.arena.is_forked())
    }

    /// The events of this process.
    pub(crate) fn station(&self) -> Result<Arc<Station>> {
        let mut station = self.station.lock();
        if let Some(station) = &*station {
            return Ok(station.clone());
        }
        let made = Arc::new(Station::new(&self.arena, self.driver, options().events)?);
        // Without it handles still work; who needs more is told.
        if let Err(error) = crate::service::open(&made.object) {
            tracing::warn!(%error, "others can reach device memory of this process by handle only");
        }
        *station = Some(made.clone());
        Ok(made)
    }

    fn pool(&self, device: Device, path: Path) -> Arc<Mutex<Pool>> {
        let mut pools = self.pools.lock();
        pools.entry((device.ordinal(), path)).or_default().clone()
    }

    /// A block of at least so many bytes, and where it lies. `stream` waits for whoever used it before.
    pub(crate) fn allocate(
        &self,
        device: Device,
        bytes: u64,
        stream: &Stream,
    ) -> Result<(BlockRef, Place)> {
        let (stride, count) = class_of(bytes);
        let path = crate::path::choose(self, device)?;
        let pool = self.pool(device, path);
        let taken = pool.lock().take(stride);
        let block = match taken {
            Some(block) => {
                COUNTERS.reused.add(1);
                block
            }
            None => {
                let make = || Memory::allocate(self, device, path, stride, count);
                let memory = match make() {
                    Err(error) if matches!(error.kind(), ErrorKind::OutOfMemory { .. }) => {
                        self.collect();
                        make()?
                    }
                    made => made?,
                };
                let memory = Arc::new(memory);
                self.memories
                    .lock()
                    .insert(memory.object.handle(), memory.clone());
                let mut pool = pool.lock();
                pool.add(&memory);
                match pool.take(stride) {
                    Some(block) => block,
                    // Another thread took all of it in between.
                    None => {
                        drop(pool);
                        return self.allocate(device, bytes, stream);
                    }
                }
            }
        };
        let place = Place::Home(block.memory.clone(), self.station()?);
        let settled = (|| {
            for last in block.memory.take_after(block.index) {
                stream.wait_for(&last)?;
            }
            place.settle(block.index, stream)
        })();
        if let Err(error) = settled {
            pool.lock().put_back(block);
            return Err(error);
        }
        place.begin_turn(block.index);
        Ok((block, place))
    }

    /// Memory that somebody else made, as a place with one block.
    pub(crate) fn adopt(&self, memory: Memory) -> Result<(BlockRef, Place)> {
        let memory = Arc::new(memory);
        let pool = self.pool(memory.device, memory.path);
        self.memories
            .lock()
            .insert(memory.object.handle(), memory.clone());
        pool.lock().add_wrapped(&memory);
        let place = Place::Home(memory.clone(), self.station()?);
        place.begin_turn(0);
        Ok((BlockRef { memory, index: 0 }, place))
    }

    /// The block stands for that token from now on.
    pub(crate) fn lend(&self, block: BlockRef, token: Trace) {
        let pool = self.pool(block.memory.device, block.memory.path);
        pool.lock().lend(block, token);
    }

    /// A block that was taken and did not become a tensor.
    pub(crate) fn put_back(&self, block: BlockRef) {
        let pool = self.pool(block.memory.device, block.memory.path);
        pool.lock().put_back(block);
    }

    /// The station of another process.
    pub(crate) fn visit(&self, handle: [u64; 2]) -> Result<Arc<Visited>> {
        let mut visited = self.visited.lock();
        if let Some(known) = visited.get(&handle) {
            return Ok(known.clone());
        }
        let made = Arc::new(Visited::open(&self.arena, self.driver, handle)?);
        visited.insert(handle, made.clone());
        Ok(made)
    }

    /// Where the memory of that name lies: the original, if it is of this process; else open here, once.
    pub(crate) fn place(&self, handle: [u64; 2]) -> Result<Place> {
        if !crate::sabotage::is("same-process")
            && let Some(memory) = self.memories.lock().get(&handle)
        {
            return Ok(Place::Home(memory.clone(), self.station()?));
        }
        let mut imports = self.imports.lock();
        if let Some(import) = imports.get(&handle) {
            return Ok(Place::Away(import.clone()));
        }
        // Those of the dead are of no use any more, and hold a mapping each.
        imports.retain(|_, import| {
            Arc::strong_count(import) > 1 || self.arena.is_present(import.origin)
        });
        let import = Arc::new(Import::open(self, handle)?);
        imports.insert(handle, import.clone());
        drop(imports);
        self.note_peer(import.origin, import.pid, import.path, "it could be opened");
        Ok(Place::Away(import))
    }

    /// Remembers how another process is reached.
    pub(crate) fn note_peer(&self, owner: Owner, pid: u32, path: Path, why: &str) {
        let mut peers = self.peers.lock();
        let peer = Peer {
            pid,
            path,
            why: why.to_owned(),
        };
        match peers.iter_mut().find(|(known, _)| *known == owner) {
            Some((_, known)) => *known = peer,
            None => {
                peers.retain(|(known, _)| self.arena.is_present(*known));
                peers.push((owner, peer));
            }
        }
    }

    /// The memory of this process that has that name.
    pub(crate) fn memory(&self, handle: [u64; 2]) -> Option<Arc<Memory>> {
        self.memories.lock().get(&handle).cloned()
    }

    fn pools(&self) -> Vec<Arc<Mutex<Pool>>> {
        self.pools.lock().values().cloned().collect()
    }

    /// Gives back what nobody needs; the number of bytes given back to devices.
    fn collect(&self) -> u64 {
        self.close_idle();
        let mut freed = 0;
        for pool in self.pools() {
            let mut pool = pool.lock();
            pool.sweep();
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
            (0..memory.count).for_each(|index| place.unbind(index));
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

/// An import that its origin asked to have closed, and that was used for the last time.
pub(crate) fn forget_retired(import: &Arc<Import>) {
    if let Some(hub) = Hub::if_any() {
        let mut imports = hub.imports.lock();
        let handle = import.object.handle();
        // In the table, in the use that is going, and in nobody else's hands.
        let gone = match imports.get(&handle) {
            Some(known) if Arc::strong_count(known) <= 2 => imports.remove(&handle),
            _ => None,
        };
        drop(imports);
        drop(gone);
    }
}

/// What this process has done with device tensors so far, and what it holds.
#[must_use]
pub fn stats() -> Stats {
    let mut stats = Hub::if_any().map(Hub::stats).unwrap_or_default();
    stats.sent = COUNTERS.sent.get();
    stats.received = COUNTERS.received.get();
    stats.opened = COUNTERS.opened.get();
    stats.events_opened = COUNTERS.events_opened.get();
    stats.events_replaced = COUNTERS.events_replaced.get();
    stats.reused = COUNTERS.reused.get();
    stats.host_waits = COUNTERS.host_waits.get();
    stats.staged = COUNTERS.staged.get();
    stats
}

/// Gives back to the devices what nobody needs: allocations without a tensor in them, and what is open here of other
/// processes and not used. Returns the number of bytes given back.
///
/// Nothing has to call this: memory is used again, and given back when a device has no more. Allocations that others have
/// open wait until those have closed them, which they do with their own `collect` or their next tensor of that
/// allocation.
pub fn collect() -> u64 {
    Hub::if_any().map_or(0, Hub::collect)
}

/// Waits until nobody holds a tensor of this process's memory any more, and gives all of it back: what a producer does
/// before it ends, so that its consumers do not lose what they have.
///
/// # Errors
/// `TimedOut`, naming who holds how much, when that takes longer than `timeout`; it can be called again.
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
        if now >= until {
            return Err(Error::new(
                ErrorKind::TimedOut,
                format!(
                    "device memory of this process is still held after {timeout:?}: {}",
                    hub.holders().join("; ")
                ),
            ));
        }
        std::thread::sleep(pause.min(until - now));
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}
