//! The CUDA driver as a [`Driver`]: one method, one or a few calls.
//!
//! Everything here enters the device's primary context first, and leaves the thread as it was. Numbers that the driver
//! answers become errors in one place (`check`). What each call wants is in NVIDIA's "CUDA Driver API".

mod context;
mod ipc;
mod memory;
mod order;
mod symbols;
mod virtual_memory;

use std::ffi::{c_char, c_int};
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};

use context::Contexts;
use symbols::Symbols;

use super::{Description, Driver, HandleBytes, Mapping, RawEvent, RawStream, Unavailable};
use crate::error::{ErrorKind, Result, check};

/// Attributes of devices, by their numbers: those are stable, where names move.
const UNIFIED_ADDRESSING: c_int = 41;
const INTEGRATED: c_int = 18;
const VIRTUAL_MEMORY: c_int = 102;
const POSIX_DESCRIPTORS: c_int = 103;
const IPC_EVENTS: c_int = 125;

/// The driver, started.
pub(super) struct Cuda {
    symbols: Symbols,
    contexts: Contexts,
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cuda").finish_non_exhaustive()
    }
}

impl Cuda {
    /// Loads and starts the driver.
    pub(super) fn start() -> Result<Self, Unavailable> {
        let symbols = Symbols::load()?;
        let init = symbols
            .init()
            .map_err(|_| Unavailable::TooOld { call: "cuInit" })?;
        // SAFETY: it takes a number.
        match unsafe { init(0) } {
            0 => Ok(Self {
                symbols,
                contexts: Contexts::new(),
            }),
            code => Err(Unavailable::Refused {
                call: "cuInit",
                code,
            }),
        }
    }

    fn enter(&self, device: u32) -> Result<context::Entered<'_>> {
        self.contexts.enter(&self.symbols, device)
    }

    fn ordinal(&self, device: u32) -> Result<c_int> {
        let get = self.symbols.device_get()?;
        let mut handle = 0;
        // SAFETY: it writes a number to where one is.
        check("cuDeviceGet", unsafe {
            get(&raw mut handle, device as c_int)
        })?;
        Ok(handle)
    }

    /// An attribute of a device; `None` where the driver does not know it, as an old one.
    fn attribute(&self, device: c_int, attribute: c_int) -> Result<Option<c_int>> {
        let get = self.symbols.device_attribute()?;
        let mut value = 0;
        // SAFETY: it writes a number to where one is; an unknown attribute is an error of it.
        let code = unsafe { get(&raw mut value, attribute, device) };
        match check("cuDeviceGetAttribute", code) {
            Ok(()) => Ok(Some(value)),
            Err(error) if error.code() == Some(1) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn describe(&self, device: u32) -> Result<Description> {
        let handle = self.ordinal(device)?;
        let mut name = [0_u8; 256];
        let get_name = self.symbols.device_name()?;
        // SAFETY: it writes at most so many bytes as it is told, which is one less than there are.
        let code = unsafe { get_name(name.as_mut_ptr().cast::<c_char>(), 255, handle) };
        check("cuDeviceGetName", code)?;
        let length = name.iter().position(|&byte| byte == 0).unwrap_or(0);
        let mut uuid = [0; 16];
        let get_uuid = self.symbols.device_uuid()?;
        // SAFETY: it writes the 16 bytes of a CUuuid, which `uuid` has.
        check("cuDeviceGetUuid_v2", unsafe {
            get_uuid(&raw mut uuid, handle)
        })?;
        let mut memory = 0;
        let get_memory = self.symbols.device_memory()?;
        // SAFETY: it writes a size to where one is.
        check("cuDeviceTotalMem_v2", unsafe {
            get_memory(&raw mut memory, handle)
        })?;
        let has =
            |attribute| Ok::<_, crate::Error>(self.attribute(handle, attribute)?.unwrap_or(0) != 0);
        let unified = has(UNIFIED_ADDRESSING)?;
        let integrated = has(INTEGRATED)?;
        let virtual_memory = has(VIRTUAL_MEMORY)?;
        let descriptors = has(POSIX_DESCRIPTORS)?;
        // Drivers before 11.4 know no such attribute, and shared events all the same.
        let events = self.attribute(handle, IPC_EVENTS)?.unwrap_or(1) != 0;
        Ok(Description {
            name: String::from_utf8_lossy(&name[..length]).into_owned(),
            uuid,
            memory: memory as u64,
            handles: match (unified, integrated) {
                (false, _) => Err("the device has no unified addressing"),
                (_, true) => {
                    Err("the device is integrated (Tegra), which shares no memory by handle")
                }
                _ => self.symbols.for_handles(),
            },
            descriptors: match (virtual_memory, descriptors) {
                (false, _) => Err("the device or its driver manages no virtual memory"),
                (_, false) => Err("the device shares no memory by descriptor"),
                _ => self.symbols.for_descriptors(),
            },
            events: if events {
                self.symbols.for_events()
            } else {
                Err("the device shares no events")
            },
        })
    }
}

impl Driver for Cuda {
    fn name(&self) -> &'static str {
        "CUDA"
    }

    fn version(&self) -> Result<i32> {
        let get = self.symbols.driver_version()?;
        let mut version = 0;
        // SAFETY: it writes a number to where one is.
        check("cuDriverGetVersion", unsafe { get(&raw mut version) })?;
        Ok(version)
    }

    fn device_count(&self) -> Result<u32> {
        let get = self.symbols.device_count()?;
        let mut count = 0;
        // SAFETY: it writes a number to where one is.
        check("cuDeviceGetCount", unsafe { get(&raw mut count) })?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    fn describe(&self, device: u32) -> Result<Description> {
        self.describe(device)
    }

    fn allocate(&self, device: u32, bytes: u64) -> Result<u64> {
        self.mem_alloc(device, bytes)
    }

    fn free(&self, device: u32, address: u64) -> Result<()> {
        self.mem_free(device, address)
    }

    fn range_of(&self, device: u32, address: u64) -> Result<(u64, u64)> {
        self.mem_range(device, address)
    }

    fn is_exportable(&self, device: u32, address: u64) -> Result<Option<bool>> {
        self.legacy_capable(device, address)
    }

    fn device_of(&self, device: u32, address: u64) -> Result<Option<u32>> {
        self.ordinal_of(device, address)
    }

    fn write(&self, stream: &RawStream, to: u64, from: &[u8]) -> Result<()> {
        self.copy_in(stream, to, from)
    }

    fn read(&self, stream: &RawStream, to: &mut [u8], from: u64) -> Result<()> {
        self.copy_out(stream, to, from)
    }

    fn copy(&self, stream: &RawStream, to: u64, from: u64, bytes: u64) -> Result<()> {
        self.copy_within(stream, to, from, bytes)
    }

    fn copy_between(
        &self,
        stream: &RawStream,
        to: (u32, u64),
        from: (u32, u64),
        bytes: u64,
    ) -> Result<()> {
        self.copy_to_peer(stream, to, from, bytes)
    }

    fn fill(&self, stream: &RawStream, to: u64, value: u8, bytes: u64) -> Result<()> {
        self.set_bytes(stream, to, value, bytes)
    }

    fn new_stream(&self, device: u32) -> Result<RawStream> {
        self.stream_create(device)
    }

    fn drop_stream(&self, stream: RawStream) -> Result<()> {
        self.stream_destroy(stream)
    }

    fn synchronize(&self, stream: &RawStream) -> Result<()> {
        self.stream_synchronize(stream)
    }

    fn is_blocking(&self, stream: &RawStream) -> Result<bool> {
        self.stream_is_blocking(stream)
    }

    fn stream_id(&self, stream: &RawStream) -> Result<Option<u64>> {
        self.stream_number(stream)
    }

    fn is_idle(&self, stream: &RawStream) -> Result<bool> {
        self.stream_query(stream)
    }

    fn new_event(&self, device: u32, shared: bool) -> Result<RawEvent> {
        self.event_create(device, shared)
    }

    fn drop_event(&self, event: RawEvent) -> Result<()> {
        self.event_destroy(event)
    }

    fn record(&self, event: &RawEvent, stream: &RawStream) -> Result<()> {
        self.event_record(event, stream)
    }

    fn wait(&self, stream: &RawStream, event: &RawEvent) -> Result<()> {
        self.stream_wait(stream, event)
    }

    fn has_happened(&self, event: &RawEvent) -> Result<bool> {
        self.event_query(event)
    }

    fn export(&self, device: u32, base: u64) -> Result<HandleBytes> {
        self.ipc_export(device, base)
    }

    fn import(&self, device: u32, handle: &HandleBytes) -> Result<u64> {
        self.ipc_open(device, handle)
    }

    fn close(&self, device: u32, base: u64) -> Result<()> {
        self.ipc_close(device, base)
    }

    fn export_event(&self, event: &RawEvent) -> Result<HandleBytes> {
        self.ipc_export_event(event)
    }

    fn import_event(&self, device: u32, handle: &HandleBytes) -> Result<RawEvent> {
        self.ipc_open_event(device, handle)
    }

    fn map_new(&self, device: u32, bytes: u64) -> Result<Mapping> {
        self.create_mapped(device, bytes)
    }

    fn descriptor_of(&self, mapping: &Mapping) -> Result<OwnedFd> {
        self.export_descriptor(mapping)
    }

    fn map(&self, device: u32, descriptor: BorrowedFd<'_>, bytes: u64) -> Result<Mapping> {
        self.import_mapped(device, descriptor, bytes)
    }

    fn unmap(&self, device: u32, mapping: Mapping) -> Result<()> {
        self.take_away(device, mapping)
    }

    unsafe fn write_later(&self, stream: &RawStream, to: u64, from: &[u8]) -> Result<()> {
        // SAFETY: the caller keeps the same contract.
        unsafe { self.copy_in_later(stream, to, from) }
    }

    unsafe fn pin(&self, device: u32, start: *mut u8, bytes: usize) -> Result<()> {
        // SAFETY: the caller keeps the same contract.
        unsafe { self.host_register(device, start, bytes) }
    }

    fn unpin(&self, device: u32, start: *mut u8) -> Result<()> {
        self.host_unregister(device, start)
    }
}

/// As an error of `call`, with what was asked, when there was no room.
fn no_room(error: crate::Error, bytes: u64, device: u32) -> crate::Error {
    match error.kind() {
        ErrorKind::OutOfMemory { .. } => {
            let text = format!("allocating {bytes} bytes on device {device}: {error}");
            crate::Error::new(ErrorKind::OutOfMemory { asked: bytes }, text)
        }
        _ => error,
    }
}
