//! What this process knows of device memory: its own, and what it has open of others.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use shm_core::Arena;
use shm_core::patience::Patience;
use shm_core::trace::Trace;
use shm_core::word::Owner;
use smallvec::smallvec;

use crate::device::Device;
use crate::driver::{Driver, check_not_forked, driver};
use crate::error::{Error, ErrorKind, Result};
use crate::event::Station;
use crate::import::Import;
use crate::layout::Path;
use crate::looking::Looking;
use crate::memory::Memory;
use crate::options::options;
use crate::place::{Late, Place};
use crate::pool::{BlockRef, Pool, class_of};
use crate::staging::{Copied, CopyId};
use crate::stats::{COUNTERS, Peer};
use crate::stream::Stream;
use crate::visited::Visited;

/// What the thread that watches the arena does twice a second: it waits for nobody.
fn look() {
    if let Some(hub) = Hub::if_any()
        && check_not_forked().is_ok()
    {
        let is_asked = crate::ledger::was_asked();
        crate::numbers::look(is_asked || hub.has_orphans());
        crate::kept::look();
        crate::later::look(hub);
        hub.listen();
    }
}

/// Ordinal of the device, and the path of what is in the pool.
type PoolKey = (u32, Path);

/// All there is, once a process.
#[derive(Debug)]
pub(crate) struct Hub {
    pub(crate) arena: Arena,
    pub(crate) driver: &'static dyn Driver,
    pub(crate) station: Mutex<Option<Arc<Station>>>,
    pub(crate) pools: Mutex<HashMap<PoolKey, Arc<Mutex<Pool>>>>,
    pub(crate) memories: Mutex<HashMap<[u64; 2], Arc<Memory>>>,
    pub(crate) imports: Mutex<HashMap<[u64; 2], Arc<Import>>>,
    /// Those that are being opened.
    opening: Mutex<HashMap<[u64; 2], Arc<Mutex<()>>>>,
    pub(crate) visited: Mutex<HashMap<[u64; 2], Arc<Visited>>>,
    pub(crate) peers: Mutex<Vec<(Owner, Peer)>>,
    /// Blocks of this process that are copies of storages of others, by the copies' names.
    pub(crate) copies: Mutex<HashMap<CopyId, Copied>>,
}

/// How long a full device waits for others to be done with what they let go of.
const PATIENCE: Duration = Duration::from_secs(10);

/// And so long for one of several in a row.
const GLANCE: Duration = Duration::from_millis(1);

/// How long a full device waits for others to close what they do not use.
const CLOSED_BY: Duration = Duration::from_secs(2);

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
        crate::exit::wait_for_streams();
        Ok(HUB.get_or_init(|| {
            // To hear of deaths, and of what others ask, also while nobody here does anything.
            arena.at_each_look(look);
            Self {
                arena,
                driver,
                station: Mutex::default(),
                pools: Mutex::default(),
                memories: Mutex::default(),
                imports: Mutex::default(),
                opening: Mutex::default(),
                visited: Mutex::default(),
                peers: Mutex::default(),
                copies: Mutex::default(),
            }
        }))
    }

    /// The one of this process, if it has used device tensors.
    pub(crate) fn if_any() -> Option<&'static Self> {
        HUB.get().filter(|hub| !hub.arena.is_forked())
    }

    /// The events of this process.
    pub(crate) fn station(&self) -> Result<Arc<Station>> {
        let mut station = self.station.lock();
        if let Some(station) = &*station {
            return Ok(station.clone());
        }
        let made = Arc::new(Station::new(&self.arena, self.driver, options().events)?);
        // Without it handles still work; who needs more waits until it could be had after all.
        if let Err(error) = crate::service::open(&made.object) {
            tracing::warn!(%error, "others can reach device memory of this process by handle only, until this process can listen");
        }
        *station = Some(made.clone());
        Ok(made)
    }

    /// Listens for visitors, if that could not be had when the station was made.
    fn listen(&self) {
        if let Some(station) = self.station.try_lock()
            && let Some(station) = &*station
            && !crate::service::is_open(&station.object)
            && let Err(error) = crate::service::open(&station.object)
        {
            tracing::debug!(%error, "others can still reach device memory of this process by handle only");
        }
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
        let station = self.station()?;
        let mut made = false;
        let mut looking = Looking::new(&pool, stride);
        // Once there is no room for more of them: why, and how long one is waited for.
        let mut full: Option<(Error, Patience)> = None;
        let found = loop {
            let block = match (looking.take(), &mut full) {
                (Ok(block), _) => block,
                (Err(is_any), None) => {
                    match self.make_memory(device, path, (stride, count)) {
                        Ok(memory) => {
                            pool.lock().add(&memory);
                            made = true;
                        }
                        // Better to wait than to fail. That took its time, so first it is seen what is free by now.
                        Err(error)
                            if is_any && matches!(error.kind(), ErrorKind::OutOfMemory { .. }) =>
                        {
                            full = Some((error, Patience::new(PATIENCE)));
                            looking.put_back();
                        }
                        Err(error) => break Err(error),
                    }
                    continue;
                }
                (Err(is_any), Some((_, wait))) => {
                    match self.settle_any(&station, &mut looking, stream) {
                        Ok(Some(found)) => break Ok(found),
                        Ok(None) if is_any && !wait.is_over(Instant::now()) => {
                            looking.put_back();
                            std::thread::sleep(GLANCE);
                        }
                        Ok(None) => {
                            if let Some((error, _)) = full {
                                break Err(error);
                            }
                        }
                        Err(error) => break Err(error),
                    }
                    continue;
                }
            };
            if block.memory.is_stuck(block.index) {
                Place::Home(block.memory.clone(), station.clone()).give_up(block.index);
                pool.lock().set_stuck(block);
                looking.has_given();
                continue;
            }
            match self.settle(&station, block, stream, Late::IsLeft) {
                Ok(Err(block)) => looking.leaves(block),
                Ok(Ok(found)) => break Ok(found),
                Err(error) => break Err(error),
            }
        };
        drop(looking);
        let (block, place) = found?;
        COUNTERS.reused.add(u64::from(!made));
        block.memory.keep_open();
        Ok((block, place))
    }

    /// Whether this process has memory open whose origin has ended: what it writes there is told by its ledger alone.
    fn has_orphans(&self) -> bool {
        let imports = self.imports.lock();
        let is_orphan = |import: &Arc<Import>| {
            import.path == Path::Descriptor && !self.arena.is_present(import.origin)
        };
        imports.values().any(is_orphan)
    }

    /// Makes one of those that were busy one's own, whichever can be first, or none for now.
    fn settle_any(
        &self,
        station: &Arc<Station>,
        looking: &mut Looking<'_>,
        stream: &Stream,
    ) -> Result<Option<(BlockRef, Place)>> {
        let mut left = Vec::new();
        let mut found = Ok(None);
        while let Some(block) = looking.take_busy() {
            match self.settle(station, block, stream, Late::WaitsFor(GLANCE)) {
                Ok(Err(block)) => left.push(block),
                other => {
                    found = other.map(Result::ok);
                    break;
                }
            }
        }
        left.into_iter()
            .rev()
            .for_each(|block| looking.leaves(block));
        found
    }

    /// Makes a block one's own, if everybody who used it before is done; else it comes back.
    fn settle(
        &self,
        station: &Arc<Station>,
        block: BlockRef,
        stream: &Stream,
        late: Late,
    ) -> Result<Result<(BlockRef, Place), BlockRef>> {
        let place = Place::Home(block.memory.clone(), station.clone());
        let begins = || {
            place.begin_turn(block.index);
        };
        // Before all else: whoever was asked for a copy of what the block had sees that it is another one.
        if !block.memory.begin_use(block.index, begins) {
            return Ok(Err(block));
        }
        let settled = (|| {
            if !place.settle(block.index, stream, late)? {
                return Ok(false);
            }
            let last = block.memory.take_after(block.index);
            let waits = last
                .iter()
                .try_for_each(|last| last.is_waited_for_by(stream));
            if waits.is_err() {
                // Whoever comes next waits for them, and for what this stream was made to wait for in their place.
                block.memory.put_after(block.index, last);
                block.memory.used_by(block.index, smallvec![stream.clone()]);
            }
            waits.map(|()| true)
        })();
        match settled {
            Ok(true) => Ok(Ok((block, place))),
            Ok(false) => Ok(Err(block)),
            Err(error) => {
                self.put_back(block);
                Err(error)
            }
        }
    }

    /// One more allocation of the driver. Where a device has no room, after what nobody needs was given back.
    fn make_memory(
        &self,
        device: Device,
        path: Path,
        (stride, count): (u64, u32),
    ) -> Result<Arc<Memory>> {
        let make = || Memory::allocate(self, device, path, stride, count);
        let is_full = |made: &Result<Memory>| {
            made.as_ref()
                .is_err_and(|error| matches!(error.kind(), ErrorKind::OutOfMemory { .. }))
        };
        let mut made = make();
        if is_full(&made) {
            self.collect(None, false);
            made = make();
        }
        // Others have some of it open and were asked to close it, which an idle process does soon; or streams wait for them.
        let mut closing = Patience::new(CLOSED_BY);
        let mut working = Patience::new(PATIENCE);
        let mut is_in_time = || {
            let now = Instant::now();
            let (is_closed, is_done) = (closing.is_over(now), working.is_over(now));
            (!is_closed && self.waits_for_closing(device))
                || (!is_done && crate::rest::is_waiting(device))
        };
        while is_full(&made) && is_in_time() {
            std::thread::sleep(Duration::from_millis(10));
            if self.collect(None, false) > 0 {
                made = make();
            }
        }
        let memory = made.map_err(|error| self.told_what_is_there(device, error))?;
        let memory = Arc::new(memory);
        self.memories
            .lock()
            .insert(memory.object.handle(), memory.clone());
        Ok(memory)
    }

    /// With how much a device has, and this process of it, where there was no room.
    fn told_what_is_there(&self, device: Device, error: Error) -> Error {
        let ErrorKind::OutOfMemory { .. } = error.kind() else {
            return error;
        };
        let memories = self.memories.lock();
        let own = memories.values().filter(|memory| memory.device == device);
        let (count, bytes) = own.fold((0_u64, 0), |(count, bytes), memory| {
            (count + 1, bytes + memory.bytes)
        });
        drop(memories);
        let all = device.description().memory;
        let text = format!(
            "{error}. The device has {all} bytes, of which this process has {bytes} in {count} allocations that are in use or open elsewhere; others and the driver itself have the rest"
        );
        Error::new(error.kind().clone(), text).because(error)
    }

    /// Whether memory on a device could be given back, were it not open in other processes, which were asked to close it.
    fn waits_for_closing(&self, device: Device) -> bool {
        let memories = self.memories.lock();
        memories.values().any(|memory| {
            memory.device == device && memory.is_retired() && memory.is_open_elsewhere()
        })
    }

    /// One allocation of so many blocks, all of them for the caller, with events bound to each.
    pub(crate) fn allocate_slots(
        &self,
        device: Device,
        bytes: u64,
        count: u32,
    ) -> Result<Vec<(BlockRef, Place)>> {
        let path = crate::path::choose(self, device)?;
        // As blocks of the pool, so that they go there in the end.
        let (stride, _) = class_of(bytes);
        let all = stride.checked_mul(u64::from(count));
        if all.is_none_or(|all| all > isize::MAX as u64) {
            let text = format!(
                "{count} slots of {bytes} bytes were asked for, which is more than any device has"
            );
            return Err(Error::new(ErrorKind::Shape, text));
        }
        let station = self.station()?;
        let memory = self.make_memory(device, path, (stride, count))?;
        let pool = self.pool(device, memory.path);
        pool.lock().add_lent(&memory);
        let block = |index| BlockRef {
            memory: memory.clone(),
            index,
        };
        let made: Result<Vec<_>> = (0..memory.count)
            .map(|index| {
                let place = Place::Home(memory.clone(), station.clone());
                place.bind(index, 1)?;
                place.begin_turn(index);
                Ok((block(index), place))
            })
            .collect();
        if made.is_err() {
            let mut pool = pool.lock();
            (0..memory.count).for_each(|index| pool.put_back(block(index)));
        }
        made
    }

    /// Memory that somebody else made, as a place with one block.
    pub(crate) fn adopt(&self, memory: Memory) -> Result<(BlockRef, Place)> {
        let station = self.station()?;
        let memory = Arc::new(memory);
        let pool = self.pool(memory.device, memory.path);
        self.memories
            .lock()
            .insert(memory.object.handle(), memory.clone());
        pool.lock().add_lent(&memory);
        let place = Place::Home(memory.clone(), station);
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
        let known = || self.imports.lock().get(&handle).cloned();
        let import = match known() {
            Some(import) => import,
            // Each is opened once; those who need others do not wait for that.
            None => {
                let turn = self.opening.lock().entry(handle).or_default().clone();
                let _turn = turn.lock();
                match known() {
                    Some(import) => import,
                    None => self.open(handle)?,
                }
            }
        };
        if import.visited.asks_to_close() {
            crate::later::kick();
        }
        Ok(Place::Away(import))
    }

    /// Opens the memory of another process; one at a time opens that one.
    fn open(&self, handle: [u64; 2]) -> Result<Arc<Import>> {
        let opened = Import::open(self, handle).map(Arc::new);
        if let Ok(import) = &opened {
            self.imports.lock().insert(handle, import.clone());
            self.note_peer(import.origin, import.pid, import.path, "it could be opened");
        }
        self.opening.lock().remove(&handle);
        opened
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
}
