//! Memory of other processes that is open here: once for each allocation, and kept for the next tensor in it.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use shm_core::Arena;
use shm_core::object::{Object, ObjectKind};
use shm_core::word::Owner;

use crate::device::Device;
use crate::driver::{Driver, Mapping, check_not_forked};
use crate::error::{Error, ErrorKind, Result};
use crate::event::Visited;
use crate::hub::Hub;
use crate::layout::{Described, Path, malformed, memory};
use crate::stats::COUNTERS;
use crate::stuck::{gate_device, note_import};
use crate::using::Use;

/// An allocation of another process, open in this one.
#[derive(Debug)]
pub(crate) struct Import {
    /// Held for as long as it is open: its origin gives the memory back only when nobody holds it.
    pub(crate) object: Object,
    pub(crate) origin: Owner,
    pub(crate) pid: u32,
    pub(crate) device: Device,
    pub(crate) path: Path,
    pub(crate) visited: Arc<Visited>,
    pub(crate) stride: u64,
    pub(crate) count: u32,
    /// Where block 0 begins, here.
    address: u64,
    base: u64,
    mapping: Option<Mapping>,
    driver: &'static dyn Driver,
    pub(crate) uses: Mutex<HashMap<u32, Weak<Use>>>,
}

impl Import {
    /// Opens the allocation that a token names; somebody holds it meanwhile, or it is gone with its origin.
    pub(crate) fn open(hub: &Hub, handle: [u64; 2]) -> Result<Self> {
        let object = open_object(&hub.arena, handle)?;
        object.expect(ObjectKind::DeviceMemory)?;
        let said = Described::read(&object)?;
        let count =
            u32::try_from(said.count).map_err(|_| malformed("a memory of too many blocks"))?;
        let device = Device::by_uuid(said.uuid)
            .map_err(|error| error.while_doing("receiving a device tensor"))?;
        let visited = hub.visit(said.station)?;
        if visited.origin != said.origin {
            return Err(malformed("a memory and its station have different origins"));
        }
        let gone = || origin_gone(&said, hub);
        if !hub.arena.is_present(said.origin) {
            return Err(gone());
        }
        let opened = match said.path {
            Path::Handle => hub
                .driver
                .import(device.ordinal(), &said.handle)
                .and_then(|base| check_size(hub, device, base, said.bytes))
                .map(|base| (base, None)),
            Path::Descriptor => crate::service::fetch_descriptor(&visited, said.pid, handle)
                .and_then(|descriptor| {
                    let mapping =
                        hub.driver
                            .map(device.ordinal(), descriptor.as_fd(), said.bytes)?;
                    Ok((mapping.address, Some(mapping)))
                }),
            Path::Host => return Err(malformed("a memory that nobody can open")),
        };
        let (base, mapping) = opened.map_err(|error| {
            if hub.arena.is_running(said.origin) {
                error.while_doing(format_args!(
                    "opening {} bytes of process {} on device {}",
                    said.bytes,
                    said.pid,
                    device.ordinal()
                ))
            } else {
                gone().because(error)
            }
        })?;
        COUNTERS.opened.add(1);
        Ok(Self {
            object,
            origin: said.origin,
            pid: said.pid,
            device,
            path: said.path,
            visited,
            stride: said.stride,
            count,
            address: base.wrapping_add(said.first),
            base,
            mapping,
            driver: hub.driver,
            uses: Mutex::default(),
        })
    }

    /// Where a block begins.
    pub(crate) fn address_of(&self, index: u32) -> u64 {
        self.address + u64::from(index) * self.stride
    }

    /// A handle of one's own for another's memory, which no driver gives: for the test that a received tensor is sent on in
    /// another way.
    pub(crate) fn export(&self) -> Result<()> {
        self.driver
            .export(self.device.ordinal(), self.base)
            .map(drop)
    }

    /// Whether its origin asked for it to be closed.
    pub(crate) fn is_retired(&self) -> bool {
        self.object.word(memory::RETIRED).load(Ordering::Acquire) != 0
    }

    /// Fails when the memory went with its origin. `closely` asks the system, and not only the table of participants.
    pub(crate) fn check_alive(&self, closely: bool) -> Result<()> {
        let arena = self.object.arena();
        let there = if closely {
            arena.is_running(self.origin)
        } else {
            arena.is_present(self.origin)
        };
        if there || self.path == Path::Descriptor {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::OriginGone {
                pid: Some(self.pid),
            },
            format!(
                "process {}, whose memory this tensor lies in, has ended, and its memory with it; let a producer outlive its consumers \
                 (`cuda_ipc::close(timeout)` waits for them), or send by descriptors (`Options::path`), which keep the memory",
                self.pid
            ),
        ))
    }
}

/// An object of another process, which is gone when that process is.
pub(crate) fn open_object(arena: &Arena, handle: [u64; 2]) -> Result<Object> {
    Object::open(arena, handle).map_err(|error| match error.kind() {
        shm_core::ErrorKind::Stale => memory_gone().because(error),
        _ => error.into(),
    })
}

/// The origin of what is received is gone, and nobody knows any more which process that was.
pub(crate) fn memory_gone() -> Error {
    Error::new(
        ErrorKind::OriginGone { pid: None },
        "the process whose memory a device tensor lies in has ended, and its memory with it; a producer must outlive what its consumers have not \
         received (`cuda_ipc::close(timeout)` waits for them and says who is late)",
    )
}

/// Makes sure that what was opened is as long as its origin says: addresses of blocks follow from that.
fn check_size(hub: &Hub, device: Device, base: u64, bytes: u64) -> Result<u64> {
    let (start, size) = hub.driver.range_of(device.ordinal(), base)?;
    if start == base && size >= bytes {
        return Ok(base);
    }
    hub.driver.close(device.ordinal(), base)?;
    Err(malformed("a memory that is shorter than it says"))
}

fn origin_gone(said: &Described, hub: &Hub) -> Error {
    let name = hub
        .arena
        .record_of(said.origin)
        .map(|record| record.name)
        .unwrap_or_default();
    let pid = said.pid;
    Error::new(
        ErrorKind::OriginGone { pid: Some(pid) },
        format!(
            "process {pid} {name} has ended, in whose memory a device tensor lies that is received now, and its memory with it; a producer must outlive what its \
             consumers have not received (`cuda_ipc::close(timeout)` waits for them and says who is late)"
        ),
    )
}

impl Drop for Import {
    fn drop(&mut self) {
        if check_not_forked().is_err() {
            return;
        }
        if let Err(error) = gate_device(self.device) {
            tracing::warn!(%error, "memory of process {} stays open", self.pid);
            note_import(self.device);
            // Its origin must not give it back.
            std::mem::forget(self.object.clone());
            return;
        }
        let ordinal = self.device.ordinal();
        let closed = match self.mapping.take() {
            Some(mapping) => self.driver.unmap(ordinal, mapping),
            None => self.driver.close(ordinal, self.base),
        };
        if let Err(error) = closed
            && self.object.arena().is_present(self.origin)
        {
            tracing::warn!(%error, "memory of process {} could not be closed", self.pid);
        }
    }
}
