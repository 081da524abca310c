//! Memory of other processes that is open here: once for each allocation, and kept for the next tensor in it.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use shm_core::Arena;
use shm_core::object::{Object, ObjectKind};
use shm_core::word::Owner;

use crate::device::Device;
use crate::driver::{Driver, Mapping, check_not_forked};
use crate::error::{Error, ErrorKind, Result};
use crate::hub::Hub;
use crate::later::What;
use crate::layout::{Described, Path, malformed, memory};
use crate::ledger::{self, Book};
use crate::moment::{After, Work};
use crate::silence::SLICE;
use crate::stats::COUNTERS;
use crate::stream::Stream;
use crate::using::Use;
use crate::visited::Visited;

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
    /// What its origin said of its streams: with its end, when its events are gone, that is all that can be had.
    _book: Option<Book>,
    /// Where block 0 begins in it.
    first: u64,
    bytes: u64,
    opened: OnceLock<Opened>,
    opening: Mutex<()>,
    driver: &'static dyn Driver,
    pub(crate) uses: Mutex<HashMap<u32, Weak<Use>>>,
    /// What this process has done here, in tensors that are gone.
    worked: Mutex<Work>,
}

/// Where it is open, here.
#[derive(Debug)]
struct Opened {
    base: u64,
    mapping: Option<Mapping>,
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
        let import = Self {
            object,
            origin: said.origin,
            pid: said.pid,
            device,
            path: said.path,
            visited,
            stride: said.stride,
            count,
            _book: ledger::of(&hub.arena, said.origin),
            first: said.first,
            bytes: said.bytes,
            opened: OnceLock::new(),
            opening: Mutex::default(),
            driver: hub.driver,
            uses: Mutex::default(),
            worked: Mutex::default(),
        };
        let opened = match said.path {
            Path::Handle => hub
                .driver
                .import(device.ordinal(), &said.handle)
                .and_then(|base| check_size(hub, &import, base))
                .map(|base| {
                    import.set_opened(Opened {
                        base,
                        mapping: None,
                    });
                }),
            Path::Descriptor if import.visited.is_late() => Ok(()),
            // Who receives must not wait for an origin that is stopped: it is asked again when the tensor is used.
            Path::Descriptor => match import.map(import.visited.patience()) {
                Err(error) if *error.kind() == ErrorKind::TimedOut => Ok(()),
                other => other,
            },
            Path::Host => return Err(malformed("a memory that nobody can open")),
        };
        opened.map_err(|error| {
            if import.visited.is_ending() {
                return gone().because(error);
            }
            error.while_doing(format_args!(
                "opening {} bytes of process {} on device {}",
                said.bytes,
                said.pid,
                device.ordinal()
            ))
        })?;
        Ok(import)
    }

    fn set_opened(&self, opened: Opened) {
        match self.opened.set(opened) {
            Ok(()) => COUNTERS.opened.add(1),
            // Another thread, that had waited for this one as long as for the origin, was faster.
            Err(second) => {
                let object = Some(self.object.clone());
                crate::later::leave(self.driver, self.device, second.into_what(), object);
            }
        }
    }

    /// Asks the origin for a descriptor, and maps it.
    fn map(&self, patience: Duration) -> Result<()> {
        let handle = self.object.handle();
        let asked = crate::asking::fetch_descriptor(&self.visited, self.pid, handle, patience);
        let is_late = |error: &Error| *error.kind() == ErrorKind::TimedOut;
        self.visited.set_late(asked.as_ref().is_err_and(is_late));
        let mapping = self
            .driver
            .map(self.device.ordinal(), asked?.as_fd(), self.bytes)?;
        self.set_opened(Opened {
            base: mapping.address,
            mapping: Some(mapping),
        });
        self.visited.was_mapped();
        Ok(())
    }

    /// Where it is open. Asks the origin, if that had not answered when the first tensor of it came.
    fn opened(&self) -> Result<&Opened> {
        if let Some(opened) = self.opened.get() {
            return Ok(opened);
        }
        // One at a time, and all of this origin's with one patience.
        let silence = &self.visited.silence;
        silence.left(Instant::now());
        let _turn = loop {
            let turn = self.opening.try_lock_for(SLICE);
            if turn.is_some() || silence.look(Instant::now()) {
                break turn;
            }
        };
        if self.opened.get().is_none() {
            self.map(silence.left(Instant::now()))
                .map_err(|error| match error.kind() {
                    // It may have ended just now.
                    ErrorKind::TimedOut if self.object.arena().is_running(self.origin) => {
                        self.silent().because(error)
                    }
                    ErrorKind::TimedOut => self.gone().because(error),
                    _ => self.explain(error),
                })?;
        }
        self.opened
            .get()
            .ok_or_else(|| malformed("a memory that was mapped and is not"))
    }

    /// Its origin lives and does not answer.
    fn silent(&self) -> Error {
        let waited = self.visited.silence.for_how_long(Instant::now());
        let who = ledger::name_of(self.object.arena(), self.origin);
        Error::new(
            ErrorKind::TimedOut,
            format!(
                "opening {} bytes of {who} on device {}: it was asked {:.1} s ago and has not answered since, it may be stopped. It is waited for once, by all \
                 who use tensors in memory of it that is not open here; this can be tried again when it goes on",
                self.bytes,
                self.device.ordinal(),
                waited.as_secs_f64()
            ),
        )
    }

    /// What went wrong with this memory, or with an event of its origin: that the origin has ended, if it has, or is about to.
    pub(crate) fn explain(&self, error: Error) -> Error {
        let may_be = error.code().is_some() || *error.kind() == ErrorKind::NoPath;
        if may_be && self.visited.is_ending() {
            return self.gone().because(error);
        }
        // What it had not written is of no interest where the memory is gone as well.
        let is_writers = *error.kind() == ErrorKind::WriterGone;
        match is_writers && self.check_alive(true).is_err() {
            true => self.gone().because(error),
            false => error,
        }
    }

    /// Notes which streams have worked on a block of it that nobody here uses any more.
    pub(crate) fn used_by(&self, streams: &[Stream]) {
        // The driver waits for them when it closes what was opened by handle.
        if self.path == Path::Descriptor {
            let worked = After::all_of(streams);
            self.worked.lock().note(worked);
        }
    }

    /// Whether all that this process has put into streams on this memory is done, so that it can be closed: no driver waits
    /// for that before it unmaps. Asked without waiting.
    pub(crate) fn is_quiet(&self) -> bool {
        self.worked.lock().is_over()
    }

    /// Where a block begins.
    pub(crate) fn address_of(&self, index: u32) -> Result<u64> {
        let begin = self.opened()?.base.wrapping_add(self.first);
        Ok(begin + u64::from(index) * self.stride)
    }

    /// A handle of one's own for another's memory, which no driver gives: for the test that a received tensor is sent on in
    /// another way.
    pub(crate) fn export(&self) -> Result<()> {
        let base = self.opened()?.base;
        self.driver.export(self.device.ordinal(), base).map(drop)
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
        Err(self.gone())
    }

    fn gone(&self) -> Error {
        Error::new(
            ErrorKind::OriginGone {
                pid: Some(self.pid),
            },
            format!(
                "process {}, whose memory this tensor lies in, has ended, and its memory with it; let a producer outlive its consumers \
                 (`cuda_ipc::close(timeout)` waits for them), or send by descriptors (`Options::path`), which keep the memory",
                self.pid
            ),
        )
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
fn check_size(hub: &Hub, import: &Import, base: u64) -> Result<u64> {
    let found = hub.driver.range_of(import.device.ordinal(), base);
    let is_as_long = |&(start, size): &(u64, u64)| start == base && size >= import.bytes;
    if found.as_ref().is_ok_and(is_as_long) {
        return Ok(base);
    }
    // Its origin does not give it back before it is closed here.
    let object = Some(import.object.clone());
    crate::later::leave(hub.driver, import.device, What::Opened(base), object);
    found.and(Err(malformed("a memory that is shorter than it says")))
}

pub(crate) fn origin_gone(said: &Described, hub: &Hub) -> Error {
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

impl Import {
    /// Closes it; all that this process has to do on the device is over.
    pub(crate) fn close(mut self) {
        let Some(opened) = self.opened.take() else {
            return;
        };
        let is_by_handle = opened.mapping.is_none();
        if let Err(error) = opened.into_what().go(self.driver, self.device)
            && self.object.arena().is_present(self.origin)
        {
            tracing::warn!(%error, "memory of process {} could not be closed", self.pid);
            if is_by_handle {
                crate::later::keep_open(self.object.clone());
            }
        }
    }

    /// Tells its origin that it is closed, which it is not.
    pub(crate) fn give_up(mut self) -> Option<Mapping> {
        self.opened.take()?.mapping
    }
}

impl Opened {
    fn into_what(self) -> What {
        match self.mapping {
            Some(mapping) => What::Mapped(mapping),
            None => What::Opened(self.base),
        }
    }
}

impl Drop for Import {
    fn drop(&mut self) {
        if check_not_forked().is_ok()
            && let Some(opened) = self.opened.take()
        {
            let object = Some(self.object.clone());
            crate::later::leave(self.driver, self.device, opened.into_what(), object);
        }
    }
}
