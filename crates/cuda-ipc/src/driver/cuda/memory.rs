//! Memory and copies.

use std::ffi::c_void;
use std::ptr;

use super::{Cuda, no_room};
use crate::driver::RawStream;
use crate::error::{Result, check};

/// A pointer attribute: the device that it lies on.
const DEVICE_ORDINAL: i32 = 9;
/// A pointer attribute: whether the allocation can be exported by `cuIpcGetMemHandle`.
const LEGACY_IPC_CAPABLE: i32 = 10;

impl Cuda {
    pub(super) fn mem_alloc(&self, device: u32, bytes: u64) -> Result<u64> {
        let _entered = self.enter(device)?;
        let allocate = self.symbols.mem_alloc()?;
        let mut address = 0;
        // SAFETY: it writes an address to where a number is.
        check("cuMemAlloc_v2", unsafe {
            allocate(&raw mut address, bytes as usize)
        })
        .map_err(|error| no_room(error, bytes, device))?;
        Ok(address)
    }

    pub(super) fn mem_free(&self, device: u32, address: u64) -> Result<()> {
        let _entered = self.enter(device)?;
        let free = self.symbols.mem_free()?;
        // SAFETY: it takes a number; one that is no allocation is an error of it.
        check("cuMemFree_v2", unsafe { free(address) })
    }

    pub(super) fn mem_range(&self, device: u32, address: u64) -> Result<(u64, u64)> {
        let _entered = self.enter(device)?;
        let range = self.symbols.mem_range()?;
        let (mut base, mut bytes) = (0, 0);
        // SAFETY: it writes an address and a size to where numbers are.
        let code = unsafe { range(&raw mut base, &raw mut bytes, address) };
        check("cuMemGetAddressRange_v2", code)?;
        Ok((base, bytes as u64))
    }

    pub(super) fn legacy_capable(&self, device: u32, address: u64) -> Result<Option<bool>> {
        let value = self.pointer_attribute(device, LEGACY_IPC_CAPABLE, address)?;
        Ok(value.map(|value| value & 0xff != 0))
    }

    pub(super) fn ordinal_of(&self, device: u32, address: u64) -> Result<Option<u32>> {
        let value = self.pointer_attribute(device, DEVICE_ORDINAL, address)?;
        Ok(value.map(|value| value as u32))
    }

    /// `None` where the driver does not know the attribute, as an old one.
    fn pointer_attribute(&self, device: u32, attribute: i32, address: u64) -> Result<Option<u64>> {
        let _entered = self.enter(device)?;
        let get = self.symbols.pointer_attribute()?;
        // Of a boolean one byte is written, says the driver API, and more by some versions; of a number four.
        let mut value = 0_u64;
        // SAFETY: it writes a boolean or a number to where eight bytes are.
        let code = unsafe { get((&raw mut value).cast::<c_void>(), attribute, address) };
        match check("cuPointerGetAttribute", code) {
            Ok(()) => Ok(Some(value)),
            Err(error) if matches!(error.code(), Some(1 | 801)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn copy_in(&self, stream: &RawStream, to: u64, from: &[u8]) -> Result<()> {
        if from.is_empty() {
            return Ok(());
        }
        // All that can fail for another reason comes before the copy.
        let _entered = self.enter(stream.device)?;
        let synchronize = self.symbols.stream_synchronize()?;
        // SAFETY: the slice lives until the stream has been waited for. If that fails, it is an error of the device, after
        // which it reads nothing any more.
        unsafe { self.copy_in_later(stream, to, from) }?;
        // SAFETY: the stream lives, as its handle does.
        check("cuStreamSynchronize", unsafe { synchronize(raw(stream)) })
    }

    /// # Safety
    /// The bytes are neither written nor freed before the stream has come to the copy's end.
    pub(super) unsafe fn copy_in_later(
        &self,
        stream: &RawStream,
        to: u64,
        from: &[u8],
    ) -> Result<()> {
        let _entered = self.enter(stream.device)?;
        let copy = self.symbols.copy_to_device()?;
        let source = from.as_ptr().cast::<c_void>();
        // SAFETY: it reads the bytes of the slice, which stay as they are until then, as the caller promises.
        check("cuMemcpyHtoDAsync_v2", unsafe {
            copy(to, source, from.len(), raw(stream))
        })
    }

    pub(super) fn copy_out(&self, stream: &RawStream, to: &mut [u8], from: u64) -> Result<()> {
        if to.is_empty() {
            return Ok(());
        }
        let _entered = self.enter(stream.device)?;
        let copy = self.symbols.copy_to_host()?;
        // All that can fail for another reason comes before the copy.
        let synchronize = self.symbols.stream_synchronize()?;
        // SAFETY: it writes the bytes of the slice, which nobody else has until the stream has been waited for below.
        let code = unsafe {
            copy(
                to.as_mut_ptr().cast::<c_void>(),
                from,
                to.len(),
                raw(stream),
            )
        };
        check("cuMemcpyDtoHAsync_v2", code)?;
        // An error here is one of the device, after which it writes nothing any more.
        // SAFETY: the stream lives, as its handle does.
        check("cuStreamSynchronize", unsafe { synchronize(raw(stream)) })
    }

    pub(super) fn copy_within(
        &self,
        stream: &RawStream,
        to: u64,
        from: u64,
        bytes: u64,
    ) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let _entered = self.enter(stream.device)?;
        let copy = self.symbols.copy_on_device()?;
        // SAFETY: it takes numbers, and a stream that lives.
        let code = unsafe { copy(to, from, bytes as usize, raw(stream)) };
        check("cuMemcpyDtoDAsync_v2", code)
    }

    pub(super) fn copy_to_peer(
        &self,
        stream: &RawStream,
        to: (u32, u64),
        from: (u32, u64),
        bytes: u64,
    ) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let [there, here] = [to.0, from.0].map(|device| self.contexts.of(&self.symbols, device));
        let (there, here) = (there?, here?);
        let _entered = self.enter(stream.device)?;
        let copy = self.symbols.copy_to_peer()?;
        let context = ptr::without_provenance_mut::<c_void>;
        // SAFETY: it takes numbers, two contexts that are never released, and a stream that lives.
        let code = unsafe {
            copy(
                to.1,
                context(there),
                from.1,
                context(here),
                bytes as usize,
                raw(stream),
            )
        };
        check("cuMemcpyPeerAsync", code)
    }

    pub(super) fn set_bytes(
        &self,
        stream: &RawStream,
        to: u64,
        value: u8,
        bytes: u64,
    ) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let _entered = self.enter(stream.device)?;
        let set = self.symbols.set_bytes()?;
        // SAFETY: it takes numbers, and a stream that lives.
        let code = unsafe { set(to, value, bytes as usize, raw(stream)) };
        check("cuMemsetD8Async", code)
    }

    /// # Safety
    /// The range is mapped, and stays so until `host_unregister`.
    pub(super) unsafe fn host_register(
        &self,
        device: u32,
        start: *mut u8,
        bytes: usize,
    ) -> Result<()> {
        let _entered = self.enter(device)?;
        let register = self.symbols.host_register()?;
        // Flag 1, portable: for all contexts of this process.
        // SAFETY: the range is mapped and stays so, as the caller promises.
        check("cuMemHostRegister_v2", unsafe {
            register(start.cast::<c_void>(), bytes, 1)
        })
    }

    pub(super) fn host_unregister(&self, device: u32, start: *mut u8) -> Result<()> {
        let _entered = self.enter(device)?;
        let unregister = self.symbols.host_unregister()?;
        // SAFETY: it takes an address; one that is not registered is an error of it.
        check("cuMemHostUnregister", unsafe {
            unregister(start.cast::<c_void>())
        })
    }
}

pub(super) fn raw(stream: &RawStream) -> *mut c_void {
    ptr::without_provenance_mut(stream.raw)
}
