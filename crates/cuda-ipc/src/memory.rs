//! Memory of this process on a device: one allocation of the driver, cut into blocks of one size.
//!
//! The allocation has an object in the arena, by which others find it. This process holds the object for as long as the
//! memory is there; whoever has it open holds it too, so the memory is given back to the driver only when nobody has.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::sync::Weak;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use shm_core::object::{Array, Object, ObjectKind};
use shm_core::trace::Trace;
use smallvec::SmallVec;

use crate::device::Device;
use crate::driver::{Mapping, check_not_forked};
use crate::error::{Error, ErrorKind, Result};
use crate::hub::Hub;
use crate::later::What;
use crate::layout::{self, Described, Path, memory, station};
use crate::moment::{After, Work};
use crate::stream::Stream;
use crate::using::Use;

/// What keeps the memory, and how it is given back.
enum Kept {
    /// By the driver, for us.
    Allocated,
    /// By the driver, for whoever maps it.
    Mapped(Mapping),
    /// By somebody else, who is dropped when nobody uses it any more.
    Wrapped { _owner: Box<dyn Any + Send> },
}

/// An allocation of this process.
pub(crate) struct Memory {
    pub(crate) object: Object,
    trace: Trace,
    pub(crate) device: Device,
    /// Where block 0 begins.
    address: u64,
    pub(crate) bytes: u64,
    pub(crate) stride: u64,
    pub(crate) count: u32,
    pub(crate) path: Path,
    kept: Mutex<Option<Kept>>,
    /// Of each block: streams that used it last, and that nobody recorded an event of.
    after: Mutex<Vec<SmallVec<[After; 1]>>>,
    pub(crate) uses: Mutex<HashMap<u32, Weak<Use>>>,
    /// This process's work on it in tensors that are gone, where giving it back would not wait for that: on memory that
    /// somebody else made or that is mapped, or in streams of other devices.
    pub(crate) worked: Mutex<Work>,
    copied: Mutex<Copied>,
}

/// What threads of this process copy for others, who may be dead by then and hold nothing any more.
#[derive(Debug, Default)]
struct Copied {
    blocks: SmallVec<[u32; 1]>,
    /// The memory is about to be given back.
    is_going: bool,
}

/// A block that is being copied for another process: nobody gets it, and its memory stays.
#[derive(Debug)]
pub(crate) struct Copying<'a> {
    memory: &'a Memory,
    index: u32,
}

impl Drop for Copying<'_> {
    fn drop(&mut self) {
        let mut copied = self.memory.copied.lock();
        let place = copied.blocks.iter().position(|one| *one == self.index);
        place.map(|place| copied.blocks.swap_remove(place));
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory")
            .field("device", &self.device)
            .field("address", &format_args!("{:#x}", self.address))
            .field("blocks", &(self.count, self.stride))
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl Memory {
    /// A new allocation of `count` blocks of `stride` bytes.
    pub(crate) fn allocate(
        hub: &Hub,
        device: Device,
        path: Path,
        stride: u64,
        count: u32,
    ) -> Result<Self> {
        let asked = stride * u64::from(count);
        let driver = hub.driver;
        let ordinal = device.ordinal();
        let (address, bytes, kept) = match path {
            Path::Descriptor => {
                let mapping = driver.map_new(ordinal, asked)?;
                (mapping.address, mapping.bytes, Kept::Mapped(mapping))
            }
            Path::Handle | Path::Host => (driver.allocate(ordinal, asked)?, asked, Kept::Allocated),
        };
        let handle = match path {
            Path::Handle => driver.export(ordinal, address),
            Path::Descriptor | Path::Host => Ok([0; 64]),
        };
        let made = handle.and_then(|handle| {
            let path = if path == Path::Host {
                // Nobody opens it; its copies travel.
                Path::Handle
            } else {
                path
            };
            describe(
                hub,
                device,
                Shape {
                    path,
                    bytes,
                    stride,
                    count,
                    first: 0,
                },
                handle,
            )
        });
        match made {
            Ok(object) => Ok(Self::over(
                object, device, address, path, kept, bytes, stride, count,
            )),
            Err(error) => {
                // Streams may wait for others now.
                let what = match kept {
                    Kept::Mapped(mapping) => What::Mapped(mapping),
                    _ => What::Own(address),
                };
                crate::later::leave(driver, device, what, None);
                Err(error)
            }
        }
    }

    /// Memory that somebody else made: `address` is where the one block begins, in an allocation that can be exported.
    pub(crate) fn wrap(
        hub: &Hub,
        device: Device,
        address: u64,
        bytes: u64,
        owner: Box<dyn Any + Send>,
    ) -> Result<Self> {
        let driver = hub.driver;
        let ordinal = device.ordinal();
        let (base, size) = driver.range_of(ordinal, address).map_err(|error| {
            error.while_doing(format_args!(
                "{address:#x} was to be a tensor on device {ordinal}, and the driver knows of no allocation there"
            ))
        })?;
        let first = address.checked_sub(base).unwrap_or(u64::MAX);
        if first.checked_add(bytes).is_none_or(|end| end > size) {
            return Err(Error::new(
                ErrorKind::Shape,
                format!(
                    "{bytes} bytes from {address:#x} were to be a tensor, and the allocation there has {size} bytes from {base:#x}"
                ),
            ));
        }
        let there = driver.device_of(ordinal, address)?;
        if let Some(there) = there.filter(|there| *there != ordinal) {
            return Err(Error::new(
                ErrorKind::WrongDevice,
                format!(
                    "the memory at {address:#x} lies on device {there}, and was to be a tensor in the order of a stream of device {ordinal}; give a \
                     stream of its device"
                ),
            ));
        }
        let refuse = |why: &dyn fmt::Display| {
            Error::new(
                ErrorKind::NotExportable,
                format!(
                    "the memory at {address:#x} cannot be shown to other processes: {why}. Memory of `cuMemAllocAsync` (cudarc's CudaSlice, and any memory \
                     pool), of `cuMemAllocManaged` and of `cuMemCreate` has no handle; use memory of `cuMemAlloc` (cudarc's `result::malloc_sync`), or \
                     copy it with `DeviceTensor::copied_from_raw`"
                ),
            )
        };
        if driver.is_exportable(ordinal, address)? == Some(false) {
            return Err(refuse(
                &"the driver says that its kind of allocation has no handle",
            ));
        }
        let handle = driver
            .export(ordinal, base)
            .map_err(|error| refuse(&error))?;
        let shape = Shape {
            path: Path::Handle,
            bytes: size,
            stride: bytes,
            count: 1,
            first,
        };
        let object = describe(hub, device, shape, handle)?;
        let kept = Kept::Wrapped { _owner: owner };
        Ok(Self::over(
            object,
            device,
            address,
            Path::Handle,
            kept,
            size,
            bytes,
            1,
        ))
    }

    #[expect(clippy::too_many_arguments, reason = "a constructor of one place")]
    fn over(
        object: Object,
        device: Device,
        address: u64,
        path: Path,
        kept: Kept,
        bytes: u64,
        stride: u64,
        count: u32,
    ) -> Self {
        Self {
            trace: Trace::of_object(&object),
            object,
            device,
            address,
            bytes,
            stride,
            count,
            path,
            kept: Mutex::new(Some(kept)),
            after: Mutex::new((0..count).map(|_| SmallVec::new()).collect()),
            uses: Mutex::default(),
            worked: Mutex::default(),
            copied: Mutex::default(),
        }
    }

    /// A block is about to be copied for another process, if it still `is_it`.
    pub(crate) fn begin_copy(
        &self,
        index: u32,
        is_it: impl FnOnce() -> bool,
    ) -> Option<Copying<'_>> {
        let mut copied = self.copied.lock();
        if copied.is_going || !is_it() {
            return None;
        }
        copied.blocks.push(index);
        Some(Copying {
            memory: self,
            index,
        })
    }

    /// A block is about to be given out, which `begins` its next turn; whether it can be. Whoever copies it meanwhile has it.
    pub(crate) fn begin_use(&self, index: u32, begins: impl FnOnce()) -> bool {
        let copied = self.copied.lock();
        let is_free = !copied.blocks.contains(&index);
        if is_free {
            begins();
        }
        is_free
    }

    /// The memory is about to be given back; whether it can be.
    pub(crate) fn begin_to_go(&self) -> bool {
        let mut copied = self.copied.lock();
        copied.is_going |= copied.blocks.is_empty();
        copied.is_going
    }

    /// Where a block begins.
    pub(crate) fn address_of(&self, index: u32) -> u64 {
        self.address + u64::from(index) * self.stride
    }

    /// Whether the driver, or somebody else, made it in another way than this crate does.
    pub(crate) fn is_wrapped(&self) -> bool {
        matches!(*self.kept.lock(), Some(Kept::Wrapped { .. }))
    }

    /// Notes which streams used a block last.
    pub(crate) fn used_by(&self, index: u32, streams: SmallVec<[Stream; 2]>) {
        // The driver waits for those of the memory's own device when the memory is freed, and for no others; and for none when
        // it is unmapped.
        let is_elsewhere = |stream: &Stream| stream.device() != self.device;
        let is_mapped = self.path == Path::Descriptor;
        if is_mapped || self.is_wrapped() || streams.iter().any(is_elsewhere) {
            let worked = After::all_of(&streams);
            self.worked.lock().note(worked);
        }
        let all = After::all_of(&streams);
        if let Some(after) = self.after.lock().get_mut(index as usize) {
            for last in all {
                match after.iter_mut().find(|known| known.is_of_that_of(&last)) {
                    Some(known) => *known = last,
                    None => after.push(last),
                }
            }
        }
    }

    /// Whether a stream that used a block last will never come to its end.
    pub(crate) fn is_stuck(&self, index: u32) -> bool {
        let after = self.after.lock();
        after
            .get(index as usize)
            .is_some_and(|streams| streams.iter().any(After::is_stuck))
    }

    /// The streams that used a block last; nobody waits for them but who asks.
    pub(crate) fn take_after(&self, index: u32) -> SmallVec<[After; 1]> {
        match self.after.lock().get_mut(index as usize) {
            Some(after) => std::mem::take(after),
            None => SmallVec::new(),
        }
    }

    /// Nobody waits for them yet, after all.
    pub(crate) fn put_after(&self, index: u32, streams: SmallVec<[After; 1]>) {
        if let Some(after) = self.after.lock().get_mut(index as usize) {
            after.extend(streams);
        }
    }

    /// Whether others have it open, or are about to.
    pub(crate) fn is_open_elsewhere(&self) -> bool {
        self.trace.references() > 1
    }

    /// Who has it open, this process aside.
    pub(crate) fn holders(&self) -> Vec<shm_core::word::Owner> {
        let me = self.object.arena().me();
        let mut holders = self.trace.holders();
        holders.retain(|holder| *holder != me);
        holders
    }

    /// Asks everybody who has it open to close it.
    pub(crate) fn retire(&self, hub: &Hub) {
        let word = self.object.word(memory::RETIRED);
        if word.swap(1, Ordering::AcqRel) == 0
            && let Ok(station) = hub.station()
        {
            station
                .object
                .word(station::RETIRED)
                .fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Whether everybody was asked to close it.
    pub(crate) fn is_retired(&self) -> bool {
        self.object.word(memory::RETIRED).load(Ordering::Acquire) != 0
    }

    /// It is used again: nobody has to close it.
    pub(crate) fn keep_open(&self) {
        let word = self.object.word(memory::RETIRED);
        if word.load(Ordering::Relaxed) != 0 {
            word.store(0, Ordering::Release);
        }
    }

    /// A descriptor by which another process maps it.
    pub(crate) fn descriptor(&self, hub: &Hub) -> Result<std::os::fd::OwnedFd> {
        match &*self.kept.lock() {
            Some(Kept::Mapped(mapping)) => hub.driver.descriptor_of(mapping),
            _ => Err(Error::new(
                ErrorKind::NotExportable,
                "this memory has no descriptor",
            )),
        }
    }

    /// Gives the memory back. Called when no block is used, nobody has it open, and all work on it is over.
    pub(crate) fn free(&self, hub: &Hub) -> Result<()> {
        match self.kept.lock().take() {
            Some(kept) => give_back(hub, self.device, self.address, kept),
            None => Ok(()),
        }
    }
}

struct Shape {
    path: Path,
    bytes: u64,
    stride: u64,
    count: u32,
    first: u64,
}

fn describe(hub: &Hub, device: Device, shape: Shape, handle: [u8; 64]) -> Result<Object> {
    let station = hub.station()?;
    let count = u64::from(shape.count);
    let object = Object::create(
        &hub.arena,
        ObjectKind::DeviceMemory,
        [Array::None, Array::None],
        layout::memory_words(count),
    )?;
    Described {
        path: shape.path,
        station: station.object.handle(),
        origin: hub.arena.me(),
        pid: std::process::id(),
        uuid: device.uuid(),
        bytes: shape.bytes,
        stride: shape.stride,
        count,
        first: shape.first,
        handle,
    }
    .write(&object);
    Ok(object)
}

fn give_back(hub: &Hub, device: Device, address: u64, kept: Kept) -> Result<()> {
    check_not_forked()?;
    match kept {
        Kept::Allocated => hub.driver.free(device.ordinal(), address),
        Kept::Mapped(mapping) => hub.driver.unmap(device.ordinal(), mapping),
        Kept::Wrapped { _owner: owner } => {
            drop(owner);
            Ok(())
        }
    }
}
