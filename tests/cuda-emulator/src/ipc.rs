//! Handles of memory and events that other processes open: 64 bytes that name the board, the process and the record.

use crate::board::{self, What};
use crate::code::{self, Answer, invalid, refuse};
use crate::event::{DISABLE_TIMING, Event, INTERPROCESS};
use crate::knobs::Feature;
use crate::process::{Local, Process};
use crate::space::{Range, Target, Use};

/// The one flag that opening memory takes, and has to be given.
const LAZY_ENABLE_PEER_ACCESS: u32 = 1;
/// Since then the same memory can be opened more than once.
const COUNTED_OPENS: i32 = 11_010;

/// What an exporter gives away, by value.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Handle(pub(crate) [u8; 64]);

/// What is in a handle.
struct Name {
    magic: [u8; 8],
    board: u64,
    key: u64,
    index: u32,
    generation: u32,
    pid: u32,
}

const MEMORY: [u8; 8] = *b"emu-mem\0";
const EVENT: [u8; 8] = *b"emu-evt\0";

impl Name {
    fn to_handle(&self) -> Handle {
        let mut bytes = [0; 64];
        bytes[..8].copy_from_slice(&self.magic);
        bytes[8..16].copy_from_slice(&self.board.to_ne_bytes());
        bytes[16..24].copy_from_slice(&self.key.to_ne_bytes());
        bytes[24..28].copy_from_slice(&self.index.to_ne_bytes());
        bytes[28..32].copy_from_slice(&self.generation.to_ne_bytes());
        bytes[32..36].copy_from_slice(&self.pid.to_ne_bytes());
        Handle(bytes)
    }

    /// What the bytes say, when they are a handle of that sort and of this board.
    fn of(handle: &Handle, magic: [u8; 8], process: &Process) -> Answer<Self> {
        let word = |at: usize| u32::from_ne_bytes(std::array::from_fn(|i| handle.0[at + i]));
        let long = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| handle.0[at + i]));
        let name = Self {
            magic: std::array::from_fn(|i| handle.0[i]),
            board: long(8),
            key: long(16),
            index: word(24),
            generation: word(28),
            pid: word(32),
        };
        if name.magic != magic || name.board != process.board.id() {
            return invalid("these bytes are no handle of that sort on this machine");
        }
        if name.pid == process.pid {
            return refuse(
                code::INVALID_CONTEXT,
                format!(
                    "the handle is of a process with the number {}, which is this one's",
                    name.pid
                ),
            );
        }
        Ok(name)
    }
}

impl Process {
    fn supports(&self, feature: Feature, what: &'static str) -> Answer {
        match self.knobs.has(feature) {
            true => Ok(()),
            false => refuse(code::NOT_SUPPORTED, what),
        }
    }

    pub(crate) fn export_memory(&self, at: u64) -> Answer<Handle> {
        self.current()?;
        self.supports(
            Feature::LegacyIpc,
            "this system has no handles of memory for other processes",
        )?;
        let local = self.local();
        let Some((_, range)) = local.space.around(at) else {
            return invalid(format!("{at:#x} is no device address of this process"));
        };
        let target = match (range.what, range.target) {
            (Use::Own { pooled: false }, Some(target)) => target,
            (Use::Own { pooled: true }, _) => {
                return invalid("memory of a pool cannot be exported");
            }
            (Use::Import { .. }, _) => {
                return invalid("memory that was opened by a handle cannot be exported again");
            }
            _ => return invalid("virtual memory has no handle of this kind"),
        };
        let key = self.board.lock().allocations[target.index].key;
        let name = Name {
            magic: MEMORY,
            board: self.board.id(),
            key,
            index: target.index as u32,
            generation: target.generation,
            pid: self.pid,
        };
        Ok(name.to_handle())
    }

    pub(crate) fn open_memory(&self, handle: &Handle, flags: u32) -> Answer<u64> {
        let current = self.current()?;
        self.supports(
            Feature::LegacyIpc,
            "this system has no handles of memory for other processes",
        )?;
        if flags != LAZY_ENABLE_PEER_ACCESS {
            return invalid(format!("flags {flags}; only 1 is taken"));
        }
        let name = Name::of(handle, MEMORY, self)?;
        let mut local = self.local();
        let mut tables = self.board.lock();
        let index = name.index as usize;
        let Some(it) = tables.allocations.get(index) else {
            return invalid("the handle names no memory");
        };
        if !it.live || it.key != name.key || it.what != What::Plain as u8 {
            return invalid("the memory of this handle was freed");
        }
        let owner = (it.owner as usize)
            .checked_sub(1)
            .map(|row| tables.processes[row]);
        if !owner.is_some_and(|owner| board::is_alive(owner.pid, owner.start)) {
            return invalid("the process of this handle is gone");
        }
        let device = it.device as usize;
        if device != current && !self.knobs.has(Feature::Peers) {
            return refuse(
                code::PEER_UNSUPPORTED,
                format!("device {current} cannot use memory of device {device}"),
            );
        }
        let target = Target {
            index,
            generation: it.generation,
            device,
            data: self.heap + it.offset as usize,
            size: it.size,
        };
        let is_it = |range: &Range| {
            let same = |it: Target| it.index == index && it.generation == target.generation;
            matches!(range.what, Use::Import { .. }) && range.target.is_some_and(same)
        };
        if let Some(at) = local.space.find(is_it) {
            if self.knobs.version < COUNTED_OPENS {
                return refuse(
                    code::ALREADY_MAPPED,
                    "this process has opened the memory already",
                );
            }
            if let Some(Range {
                what: Use::Import { opened },
                ..
            }) = local.space.at(at)
            {
                *opened += 1;
            }
            return Ok(at);
        }
        let at = local.space.place(Range {
            len: target.size,
            what: Use::Import { opened: 1 },
            target: Some(target),
        })?;
        tables.allocations[index].importers[self.row] += 1;
        Ok(at)
    }

    pub(crate) fn close_memory(&self, at: u64) -> Answer {
        self.current()?;
        let device = match self.local().space.at(at) {
            Some(Range {
                what: Use::Import { .. },
                target: Some(target),
                ..
            }) => target.device,
            Some(_) => return invalid("this memory was not opened by a handle"),
            None => return invalid(format!("{at:#x} is nothing that is open")),
        };
        // As a driver does: closing waits for the device.
        self.synchronize(device);
        for current in self
            .current()
            .into_iter()
            .filter(|&current| current != device)
        {
            self.synchronize(current);
        }
        let mut local = self.local();
        match local.space.at(at) {
            Some(Range {
                what: Use::Import { opened },
                ..
            }) if *opened > 1 => *opened -= 1,
            Some(Range {
                what: Use::Import { .. },
                ..
            }) => close(self, &mut local, at),
            _ => return invalid(format!("{at:#x} was closed meanwhile")),
        }
        Ok(())
    }

    pub(crate) fn export_event(&self, handle: usize) -> Answer<Handle> {
        self.current()?;
        self.supports(
            Feature::IpcEvents,
            "this device has no events for other processes",
        )?;
        let event = self.local().event(handle)?;
        if event.imported {
            return invalid("an event that was opened by a handle cannot be exported again");
        }
        if event.flags & (INTERPROCESS | DISABLE_TIMING) != INTERPROCESS | DISABLE_TIMING {
            return invalid(format!(
                "the event was created with flags {}, which leave other processes out",
                event.flags
            ));
        }
        let name = Name {
            magic: EVENT,
            board: self.board.id(),
            key: 0,
            index: event.index as u32,
            generation: event.generation,
            pid: self.pid,
        };
        Ok(name.to_handle())
    }

    pub(crate) fn open_event(&self, handle: &Handle) -> Answer<usize> {
        let current = self.current()?;
        self.supports(
            Feature::IpcEvents,
            "this device has no events for other processes",
        )?;
        let name = Name::of(handle, EVENT, self)?;
        let mut local = self.local();
        let mut tables = self.board.lock();
        let index = name.index as usize;
        match tables.events.get_mut(index) {
            Some(event) if event.live && event.generation == name.generation => {
                event.importers[self.row] += 1;
            }
            _ => return invalid("the event of this handle was destroyed"),
        }
        drop(tables);
        let opened = local.handle();
        let flags = INTERPROCESS | DISABLE_TIMING;
        let event = Event {
            index,
            generation: name.generation,
            device: current,
            flags,
            imported: true,
        };
        local.events.insert(opened, event);
        Ok(opened)
    }
}

/// Closes an import: the address means nothing from now on.
pub(crate) fn close(process: &Process, local: &mut Local, at: u64) {
    let Some(target) = local.space.remove(at).and_then(|range| range.target) else {
        return;
    };
    let mut tables = process.board.lock();
    let it = &mut tables.allocations[target.index];
    if !it.live || it.generation != target.generation {
        return;
    }
    let count = &mut it.importers[process.row];
    *count = count.saturating_sub(1);
    // Whoever made it is dead, and nobody else has it: then it is gone.
    if it.owner == 0 && !it.is_imported() {
        let (offset, size) = tables.forget(process.board, target.index);
        drop(tables);
        board::forget(&process.file, offset, size);
    }
}
