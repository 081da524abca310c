//! Virtual memory: memory and addresses apart, and memory that travels as a descriptor.
//!
//! Each piece is a file of its own, with a first page that says what it is. So the kernel counts: memory stays for as long
//! as a process has a handle, a mapping or the descriptor.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::board::{self, BLOCK, What};
use crate::calls::Call;
use crate::code::{self, Answer, Refusal, invalid, refuse};
use crate::knobs::Feature;
use crate::process::Process;
use crate::space::{Range, Target, Use};

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub(crate) const DESCRIPTOR: u32 = 1;

const MAGIC: u64 = 0x656d_755f_766d_6d31;

/// What memory is asked for: `CUmemAllocationProp`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Properties {
    kind: u32,
    handle_types: u32,
    location: Location,
    windows: usize,
    flags: [u8; 8],
}

/// `CUmemLocation`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Location {
    kind: u32,
    id: i32,
}

/// `CUmemAccessDesc`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Access {
    location: Location,
    flags: u32,
}

impl Properties {
    /// Pinned memory on a device.
    pub(crate) fn of(device: i32, exportable: bool) -> Self {
        Self {
            kind: 1,
            handle_types: if exportable { DESCRIPTOR } else { 0 },
            location: Location {
                kind: 1,
                id: device,
            },
            windows: 0,
            flags: [0; 8],
        }
    }
}

impl Access {
    /// Reading and writing by a device.
    pub(crate) fn of(device: i32) -> Self {
        Self {
            location: Location {
                kind: 1,
                id: device,
            },
            flags: 3,
        }
    }
}

/// A handle of memory without an address.
#[derive(Clone, Debug)]
pub(crate) struct Virtual {
    segment: Arc<Segment>,
    target: Target,
}

/// The file of a piece of memory, and where the emulator finds it.
#[derive(Debug)]
pub(crate) struct Segment {
    file: File,
    at: usize,
    len: usize,
    exportable: bool,
}

impl Drop for Segment {
    fn drop(&mut self) {
        board::retire(self.at, self.len);
    }
}

impl Segment {
    fn new(file: File, size: u64, exportable: bool) -> Answer<Self> {
        let len = (size + BLOCK) as usize;
        let at = board::map_data(&file, 0, len).map_err(system)?;
        Ok(Self {
            file,
            at,
            len,
            exportable,
        })
    }
}

fn system(error: impl std::fmt::Display) -> Refusal {
    Refusal {
        code: code::OPERATING_SYSTEM,
        why: format!("the memory's file: {error}").into(),
    }
}

impl Process {
    fn check_vmm(&self) -> Answer {
        match self.knobs.has(Feature::Vmm) {
            true => Ok(()),
            false => refuse(
                code::NOT_SUPPORTED,
                "this device has no virtual memory management",
            ),
        }
    }

    fn check_properties(&self, wanted: &Properties) -> Answer<usize> {
        self.check_vmm()?;
        if wanted.kind != 1 || wanted.location.kind != 1 {
            return invalid("only pinned memory on a device is there (kinds 1 and 1)");
        }
        if wanted.handle_types & !DESCRIPTOR != 0 {
            return refuse(
                code::NOT_SUPPORTED,
                format!(
                    "handle types {:#x}; there are only descriptors (1)",
                    wanted.handle_types
                ),
            );
        }
        if wanted.handle_types != 0 && !self.knobs.has(Feature::PosixDescriptors) {
            return refuse(code::NOT_SUPPORTED, "this device exports no descriptors");
        }
        self.device(wanted.location.id)
    }

    pub(crate) fn granularity(&self, wanted: &Properties) -> Answer<usize> {
        self.check_properties(wanted)?;
        Ok(BLOCK as usize)
    }

    pub(crate) fn create_virtual(
        &self,
        size: usize,
        wanted: &Properties,
        flags: u64,
    ) -> Answer<u64> {
        let device = self.check_properties(wanted)?;
        let size = size as u64;
        if size == 0 || !size.is_multiple_of(BLOCK) || flags != 0 {
            return invalid(format!(
                "{size} bytes, which have to be a multiple of {BLOCK}, with flags {flags}"
            ));
        }
        let file = File::from(
            memfd_create("emulated-device-memory", MemfdFlags::CLOEXEC).map_err(system)?,
        );
        ftruncate(&file, size + BLOCK).map_err(system)?;
        let segment = Segment::new(file, size, wanted.handle_types & DESCRIPTOR != 0)?;
        let target = self.enter_virtual(device, size, segment.at)?;
        let key = self.board.lock().allocations[target.index].key;
        let words = [
            MAGIC,
            self.board.id(),
            size,
            device as u64,
            target.index as u64,
            u64::from(target.generation),
            key,
        ];
        let page: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        segment.file.write_all_at(&page, 0).map_err(system)?;
        Ok(self.keep_virtual(Virtual {
            segment: Arc::new(segment),
            target,
        }))
    }

    /// A record for memory that has none on the board.
    fn enter_virtual(&self, device: usize, size: u64, at: usize) -> Answer<Target> {
        let order = board::Order {
            row: self.row,
            device,
            size,
            what: What::Virtual,
            limit: self.knobs.memory,
        };
        let mut tables = self.board.lock();
        let index = tables.allocate(self.board, order, self.pid)?;
        let it = &mut tables.allocations[index];
        // Whoever made it has no rights of its own: it lives as long as somebody holds it.
        it.owner = 0;
        it.importers[self.row] = 1;
        Ok(Target {
            index,
            generation: it.generation,
            device,
            data: at + BLOCK as usize,
            size,
        })
    }

    fn keep_virtual(&self, held: Virtual) -> u64 {
        let mut local = self.local();
        let handle = local.handle() as u64;
        local.virtuals.insert(handle, held);
        handle
    }

    fn virtual_of(&self, handle: u64) -> Answer<Virtual> {
        match self.local().virtuals.get(&handle) {
            Some(held) => Ok(held.clone()),
            None => invalid("the handle was released, or never was one of this process"),
        }
    }

    /// One more, or one less, of what this process has of that memory.
    fn count_virtual(&self, target: Target, more: bool) {
        let mut tables = self.board.lock();
        let it = &mut tables.allocations[target.index];
        if !it.live || it.generation != target.generation {
            return;
        }
        let count = &mut it.importers[self.row];
        *count = if more {
            count.saturating_add(1)
        } else {
            count.saturating_sub(1)
        };
        if !it.is_imported() {
            tables.forget(self.board, target.index);
        }
    }

    pub(crate) fn release_virtual(&self, handle: u64) -> Answer {
        let Some(held) = self.local().virtuals.remove(&handle) else {
            return invalid("the handle was released, or never was one of this process");
        };
        self.count_virtual(held.target, false);
        Ok(())
    }

    pub(crate) fn reserve_addresses(&self, size: usize, fixed: u64, flags: u64) -> Answer<u64> {
        self.check_vmm()?;
        let size = size as u64;
        if size == 0 || !size.is_multiple_of(BLOCK) || flags != 0 {
            return invalid(format!(
                "{size} bytes, which have to be a multiple of {BLOCK}, with flags {flags}"
            ));
        }
        // A wish for an address is only a wish.
        let _ = fixed;
        self.local().space.place(Range {
            len: size,
            what: Use::Reserved { granted: false },
            target: None,
        })
    }

    pub(crate) fn free_addresses(&self, at: u64, size: usize) -> Answer {
        let mut local = self.local();
        match local.space.at(at) {
            Some(Range {
                what: Use::Reserved { .. },
                target: None,
                len,
            }) if *len == size as u64 => {}
            Some(Range {
                target: Some(_), ..
            }) => return invalid("memory is still mapped there"),
            _ => return invalid(format!("{size} bytes at {at:#x} are no reservation")),
        }
        local.space.remove(at);
        Ok(())
    }

    pub(crate) fn map_virtual(
        &self,
        at: u64,
        size: usize,
        offset: usize,
        handle: u64,
        flags: u64,
    ) -> Answer {
        let held = self.virtual_of(handle)?;
        if offset != 0 || flags != 0 || held.target.size != size as u64 {
            return invalid("the emulator maps a piece of memory as a whole, with flags 0");
        }
        let mut local = self.local();
        match local.space.at(at) {
            Some(Range {
                target: Some(_), ..
            }) => return refuse(code::ALREADY_MAPPED, "memory is mapped there already"),
            Some(
                range @ Range {
                    what: Use::Reserved { .. },
                    ..
                },
            ) if range.len == size as u64 => {
                range.target = Some(held.target);
            }
            _ => {
                return invalid(format!(
                    "{size} bytes at {at:#x} are no reservation of that size"
                ));
            }
        }
        local.mapped.insert(at, held.segment);
        drop(local);
        self.count_virtual(held.target, true);
        Ok(())
    }

    pub(crate) fn grant(&self, at: u64, size: usize, access: &[Access]) -> Answer {
        for it in access {
            let device = self.device(it.location.id)?;
            if it.location.kind != 1 || it.flags != 3 {
                return invalid(
                    "only reading and writing by a device is granted (location 1, flags 3)",
                );
            }
            let mut local = self.local();
            match local.space.at(at) {
                Some(Range {
                    what: Use::Reserved { granted },
                    target: Some(target),
                    len,
                }) if *len == size as u64 => {
                    if target.device != device && !self.knobs.has(Feature::Peers) {
                        return refuse(
                            code::PEER_UNSUPPORTED,
                            "the device cannot use memory of the other",
                        );
                    }
                    *granted = true;
                }
                _ => return invalid(format!("{size} bytes at {at:#x} are no mapping")),
            }
        }
        Ok(())
    }

    pub(crate) fn unmap_virtual(&self, call: Call, at: u64, size: usize) -> Answer {
        let mut local = self.local();
        let target = match local.space.at(at) {
            Some(Range {
                what: Use::Reserved { granted },
                target,
                len,
            }) if *len == size as u64 => {
                *granted = false;
                target.take()
            }
            _ => return invalid(format!("{size} bytes at {at:#x} are no mapping")),
        };
        let Some(target) = target else {
            return invalid(format!("nothing is mapped at {at:#x}"));
        };
        local.mapped.remove(&at);
        drop(local);
        if self.knobs.races {
            let place = self.place(call);
            self.board.lock().touch_own(target.index, place);
        }
        self.count_virtual(target, false);
        Ok(())
    }

    pub(crate) fn export_virtual(&self, handle: u64, kind: u32, flags: u64) -> Answer<i32> {
        let held = self.virtual_of(handle)?;
        if kind != DESCRIPTOR || flags != 0 {
            return invalid(format!(
                "handle type {kind} with flags {flags}; there are only descriptors (1)"
            ));
        }
        if !held.segment.exportable {
            return invalid("the memory was not created to be exported");
        }
        let copy = held.segment.file.try_clone().map_err(system)?;
        Ok(copy.into_raw_fd())
    }

    pub(crate) fn import_virtual(&self, descriptor: BorrowedFd<'_>, kind: u32) -> Answer<u64> {
        self.check_vmm()?;
        if kind != DESCRIPTOR || !self.knobs.has(Feature::PosixDescriptors) {
            return refuse(code::NOT_SUPPORTED, format!("handle type {kind}"));
        }
        let file = File::from(descriptor.as_fd().try_clone_to_owned().map_err(system)?);
        let mut page = [0; 56];
        if file.read_exact_at(&mut page, 0).is_err() {
            return invalid("the descriptor is not of device memory");
        }
        let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| page[at * 8 + i]));
        let (size, device) = (word(2), word(3) as usize);
        let len = file.metadata().map_err(system)?.len();
        if word(0) != MAGIC
            || word(1) != self.board.id()
            || device >= board::DEVICES
            || Some(len) != size.checked_add(BLOCK)
        {
            return invalid("the descriptor is not of device memory of this machine");
        }
        if !self.knobs.devices.contains(&device) {
            return refuse(
                code::INVALID_DEVICE,
                "the memory is on a device that this process does not see",
            );
        }
        let segment = Segment::new(file, size, true)?;
        let known = {
            let mut tables = self.board.lock();
            let index = word(4) as usize % board::ALLOCATIONS;
            let it = &mut tables.allocations[index];
            let same = it.live && u64::from(it.generation) == word(5) && it.key == word(6);
            same.then(|| {
                it.importers[self.row] = it.importers[self.row].saturating_add(1);
                let data = segment.at + BLOCK as usize;
                Target {
                    index,
                    generation: it.generation,
                    device,
                    data,
                    size,
                }
            })
        };
        let target = match known {
            Some(target) => target,
            // Only the descriptor held it.
            None => self.enter_virtual(device, size, segment.at)?,
        };
        Ok(self.keep_virtual(Virtual {
            segment: Arc::new(segment),
            target,
        }))
    }
}
