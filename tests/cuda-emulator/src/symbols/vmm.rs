//! Virtual memory.

use super::driver_calls;
use crate::raw::{self, In, Out};
use crate::vmm::{Access, Properties};

driver_calls! {
    fn cuMemGetAllocationGranularity(process, call, answer: Out<usize>, wanted: In<Properties>, _option: u32) {
        answer.set(process.granularity(&wanted.get(0)?)?)
    }

    fn cuMemCreate(process, call, handle: Out<u64>, size: usize, wanted: In<Properties>, flags: u64) {
        handle.set(process.create_virtual(size, &wanted.get(0)?, flags)?)
    }

    fn cuMemRelease(process, call, handle: u64) {
        process.release_virtual(handle)
    }

    fn cuMemAddressReserve(process, call, at: Out<u64>, size: usize, _alignment: usize, fixed: u64, flags: u64) {
        at.set(process.reserve_addresses(size, fixed, flags)?)
    }

    fn cuMemAddressFree(process, call, at: u64, size: usize) {
        process.free_addresses(at, size)
    }

    fn cuMemMap(process, call, at: u64, size: usize, offset: usize, handle: u64, flags: u64) {
        process.map_virtual(at, size, offset, handle, flags)
    }

    fn cuMemUnmap(process, call, at: u64, size: usize) {
        process.unmap_virtual(call, at, size)
    }

    fn cuMemSetAccess(process, call, at: u64, size: usize, access: In<Access>, count: usize) {
        let access: Vec<Access> = (0..count).map(|i| access.get(i)).collect::<Result<_, _>>()?;
        process.grant(at, size, &access)
    }

    fn cuMemExportToShareableHandle(process, call, descriptor: Out<i32>, handle: u64, kind: u32, flags: u64) {
        descriptor.set(process.export_virtual(handle, kind, flags)?)
    }

    fn cuMemImportFromShareableHandle(process, call, handle: Out<u64>, descriptor: usize, kind: u32) {
        handle.set(process.import_virtual(raw::descriptor(descriptor)?, kind)?)
    }
}
