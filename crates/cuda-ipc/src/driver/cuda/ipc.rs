//! Memory and events by handles of 64 bytes.

use std::ptr;

use super::Cuda;
use super::order::event_of;
use super::symbols::Bytes64;
use crate::driver::{HandleBytes, RawEvent};
use crate::error::{Result, check};

/// The one flag that opening takes: access between devices is set up where it is needed.
const LAZY_PEER_ACCESS: u32 = 1;

impl Cuda {
    pub(super) fn ipc_export(&self, device: u32, base: u64) -> Result<HandleBytes> {
        let _entered = self.enter(device)?;
        let export = self.symbols.ipc_export()?;
        let mut handle = Bytes64([0; 64]);
        // SAFETY: it writes 64 bytes to where as many are.
        check("cuIpcGetMemHandle", unsafe {
            export(&raw mut handle, base)
        })?;
        Ok(handle.0)
    }

    pub(super) fn ipc_open(&self, device: u32, handle: &HandleBytes) -> Result<u64> {
        let _entered = self.enter(device)?;
        let open = self.symbols.ipc_open()?;
        let mut base = 0;
        // SAFETY: it takes 64 bytes by value, which it checks, and writes an address to where a number is.
        let code = unsafe { open(&raw mut base, Bytes64(*handle), LAZY_PEER_ACCESS) };
        check("cuIpcOpenMemHandle_v2", code)?;
        Ok(base)
    }

    pub(super) fn ipc_close(&self, device: u32, base: u64) -> Result<()> {
        let _entered = self.enter(device)?;
        let close = self.symbols.ipc_close()?;
        // SAFETY: it takes a number; one that was not opened is an error of it.
        check("cuIpcCloseMemHandle", unsafe { close(base) })
    }

    pub(super) fn ipc_export_event(&self, event: &RawEvent) -> Result<HandleBytes> {
        let _entered = self.enter(event.device)?;
        let export = self.symbols.ipc_export_event()?;
        let mut handle = Bytes64([0; 64]);
        // SAFETY: it writes 64 bytes to where as many are; the event lives, as its handle does.
        check("cuIpcGetEventHandle", unsafe {
            export(&raw mut handle, event_of(event))
        })?;
        Ok(handle.0)
    }

    pub(super) fn ipc_open_event(&self, device: u32, handle: &HandleBytes) -> Result<RawEvent> {
        let _entered = self.enter(device)?;
        let open = self.symbols.ipc_open_event()?;
        let mut event = ptr::null_mut();
        // SAFETY: it takes 64 bytes by value, which it checks, and writes a pointer to where one is.
        check("cuIpcOpenEventHandle", unsafe {
            open(&raw mut event, Bytes64(*handle))
        })?;
        Ok(RawEvent {
            device,
            raw: event.addr(),
        })
    }
}
