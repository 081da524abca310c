//! Memory that is made, reserved and mapped in steps of its own, and shown to others by a file descriptor.
//!
//! The driver counts who maps it, so the memory outlives the process that made it.

use std::ffi::{c_int, c_void};
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use super::symbols::{CUmemAccessDesc, CUmemAllocationProp};
use super::{Cuda, no_room};
use crate::driver::Mapping;
use crate::error::{Result, check};

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`, of which other modules need the number only.
const POSIX_DESCRIPTOR: c_int = 1;

impl Cuda {
    /// What memory of a device that can be shared by descriptor is like.
    fn properties(device: u32) -> CUmemAllocationProp {
        use cudarc::driver::sys::{
            CUmemAllocationHandleType, CUmemAllocationType, CUmemLocationType,
        };
        // SAFETY: a struct of C numbers, enums that have a variant for zero, and pointers: all zero is one of it.
        let mut properties: CUmemAllocationProp = unsafe { mem::zeroed() };
        properties.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.requestedHandleTypes =
            CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        properties.location.type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        properties.location.__bindgen_anon_1.id = device as c_int;
        properties
    }

    pub(super) fn create_mapped(&self, device: u32, bytes: u64) -> Result<Mapping> {
        let _entered = self.enter(device)?;
        let properties = Self::properties(device);
        let granularity = self.symbols.granularity()?;
        let mut step = 0;
        // SAFETY: it reads a struct that lives and writes a size to where one is.
        let code = unsafe { granularity(&raw mut step, &raw const properties, 0) };
        check("cuMemGetAllocationGranularity", code)?;
        let bytes = bytes.max(1).next_multiple_of(step.max(1) as u64);
        let create = self.symbols.mem_create()?;
        let mut handle = 0;
        // SAFETY: it reads a struct that lives and writes a handle to where a number is.
        let code = unsafe { create(&raw mut handle, bytes as usize, &raw const properties, 0) };
        check("cuMemCreate", code).map_err(|error| no_room(error, bytes, device))?;
        self.map_handle(device, handle, bytes)
    }

    /// Reserves addresses for exactly the memory and maps it there. The handle is gone if that fails.
    fn map_handle(&self, device: u32, handle: u64, bytes: u64) -> Result<Mapping> {
        let size = bytes as usize;
        let mapped = (|| {
            let reserve = self.symbols.reserve()?;
            let mut address = 0;
            // SAFETY: it writes an address to where a number is.
            check("cuMemAddressReserve", unsafe {
                reserve(&raw mut address, size, 0, 0, 0)
            })?;
            let done = (|| {
                let map = self.symbols.map()?;
                // SAFETY: it takes numbers; the range was just reserved.
                check("cuMemMap", unsafe { map(address, size, 0, handle, 0) })?;
                let allowed = self.allow(device, address, size);
                if allowed.is_err() {
                    let unmap = self.symbols.unmap()?;
                    // SAFETY: it takes numbers; the range was just mapped.
                    let _ = check("cuMemUnmap", unsafe { unmap(address, size) });
                }
                allowed
            })();
            if done.is_err() {
                let unreserve = self.symbols.unreserve()?;
                // SAFETY: it takes numbers; the range was just reserved, and nothing is mapped there.
                let _ = check("cuMemAddressFree", unsafe { unreserve(address, size) });
            }
            done.map(|()| address)
        })();
        match mapped {
            Ok(address) => Ok(Mapping {
                address,
                bytes,
                handle,
            }),
            Err(error) => {
                let _ = self.release(handle);
                Err(error)
            }
        }
    }

    fn allow(&self, device: u32, address: u64, bytes: usize) -> Result<()> {
        use cudarc::driver::sys::{CUmemAccess_flags, CUmemLocationType};
        let set = self.symbols.set_access()?;
        // SAFETY: a struct of C numbers and enums that have a variant for zero: all zero is one of it.
        let mut access: CUmemAccessDesc = unsafe { mem::zeroed() };
        access.location.type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        access.location.__bindgen_anon_1.id = device as c_int;
        access.flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        // SAFETY: it reads one struct that lives; the range is mapped.
        check("cuMemSetAccess", unsafe {
            set(address, bytes, &raw const access, 1)
        })
    }

    fn release(&self, handle: u64) -> Result<()> {
        let release = self.symbols.mem_release()?;
        // SAFETY: it takes a number; one that is no handle is an error of it.
        check("cuMemRelease", unsafe { release(handle) })
    }

    pub(super) fn export_descriptor(&self, mapping: &Mapping) -> Result<OwnedFd> {
        let export = self.symbols.export_descriptor()?;
        let mut descriptor: c_int = -1;
        // SAFETY: of this handle type it writes a descriptor, an int, to where one is.
        let code = unsafe {
            export(
                (&raw mut descriptor).cast::<c_void>(),
                mapping.handle,
                POSIX_DESCRIPTOR,
                0,
            )
        };
        check("cuMemExportToShareableHandle", code)?;
        // SAFETY: the driver made it for us, and nobody else closes it.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }

    pub(super) fn import_mapped(
        &self,
        device: u32,
        descriptor: BorrowedFd<'_>,
        bytes: u64,
    ) -> Result<Mapping> {
        let _entered = self.enter(device)?;
        let import = self.symbols.import_descriptor()?;
        let mut handle = 0;
        let number = ptr::without_provenance_mut::<c_void>(descriptor.as_raw_fd() as usize);
        // SAFETY: of this handle type it takes the descriptor's number in place of a pointer, and writes a handle to where
        // a number is.
        check("cuMemImportFromShareableHandle", unsafe {
            import(&raw mut handle, number, POSIX_DESCRIPTOR)
        })?;
        let mapping = self.map_handle(device, handle, bytes)?;
        // The mapping keeps the memory; the handle would be one more thing to keep, until the mapping goes.
        let handle = match self.release(handle) {
            Ok(()) => 0,
            Err(_) => handle,
        };
        Ok(Mapping { handle, ..mapping })
    }

    pub(super) fn take_away(&self, device: u32, mapping: Mapping) -> Result<()> {
        let _entered = self.enter(device)?;
        let size = mapping.bytes as usize;
        let unmap = self.symbols.unmap()?;
        // SAFETY: it takes numbers; what is not mapped is an error of it.
        check("cuMemUnmap", unsafe { unmap(mapping.address, size) })?;
        let unreserve = self.symbols.unreserve()?;
        // SAFETY: as above.
        check("cuMemAddressFree", unsafe {
            unreserve(mapping.address, size)
        })?;
        match mapping.handle {
            0 => Ok(()),
            handle => self.release(handle),
        }
    }
}
