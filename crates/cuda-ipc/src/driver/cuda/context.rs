//! Which device's context is current on a thread: ours for as long as a call takes, then the one before.

use std::ffi::c_void;
use std::ptr;
use std::sync::OnceLock;

use parking_lot::Mutex;

use super::symbols::Symbols;
use crate::error::{Error, ErrorKind, Result, check};

/// Devices that a process may have; NVIDIA's driver knows 64 at most.
const DEVICES: usize = 128;

/// The primary contexts of the devices, each made at first use and kept for good. One that could not be made is tried again:
/// the device may have been full.
pub(super) struct Contexts {
    made: [OnceLock<usize>; DEVICES],
    /// Held to make one, so that each is retained once.
    making: Mutex<()>,
}

impl Contexts {
    pub(super) fn new() -> Self {
        Self {
            made: [const { OnceLock::new() }; DEVICES],
            making: Mutex::new(()),
        }
    }

    /// The primary context of a device.
    pub(super) fn of(&self, symbols: &Symbols, device: u32) -> Result<usize> {
        let slot = self.made.get(device as usize).ok_or_else(|| {
            Error::new(
                ErrorKind::NoSuchDevice,
                format!("there is no device {device}"),
            )
        })?;
        if let Some(context) = slot.get() {
            return Ok(*context);
        }
        let retain = symbols.primary_retain()?;
        let _making = self.making.lock();
        if let Some(context) = slot.get() {
            return Ok(*context);
        }
        let mut context = ptr::null_mut();
        // SAFETY: the call writes a pointer to where a pointer is; a device that is not there is an error of it.
        let code = unsafe { retain(&raw mut context, device as i32) };
        check("cuDevicePrimaryCtxRetain", code)?;
        Ok(*slot.get_or_init(|| context.addr()))
    }

    /// Makes the context of `device` current for this thread, until the guard goes.
    pub(super) fn enter<'a>(&self, symbols: &'a Symbols, device: u32) -> Result<Entered<'a>> {
        let wanted = self.of(symbols, device)?;
        let get = symbols.context_get()?;
        let mut now: *mut c_void = ptr::null_mut();
        // SAFETY: the call writes a pointer to where a pointer is.
        check("cuCtxGetCurrent", unsafe { get(&raw mut now) })?;
        if now.addr() == wanted {
            return Ok(Entered {
                symbols,
                before: None,
            });
        }
        set(symbols, wanted)?;
        Ok(Entered {
            symbols,
            before: Some(now.addr()),
        })
    }
}

fn set(symbols: &Symbols, context: usize) -> Result<()> {
    let set = symbols.context_set()?;
    // SAFETY: the context is null or one that the driver gave out and that is never released.
    check("cuCtxSetCurrent", unsafe {
        set(ptr::without_provenance_mut(context))
    })
}

/// While it lives, a device's context is current on this thread.
pub(super) struct Entered<'a> {
    symbols: &'a Symbols,
    before: Option<usize>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if let Some(before) = self.before
            && let Err(error) = set(self.symbols, before)
        {
            tracing::warn!(%error, "the context that was current before could not be made so again");
        }
    }
}
