//! Device memory: allocated, freed, and what is known about an address.

use crate::board::{self, Kind, Touch, What};
use crate::calls::Call;
use crate::code::{self, Answer, invalid, refuse};
use crate::knobs::Feature;
use crate::process::{Local, Process};
use crate::raw;
use crate::space::{Range, Target, Use};
use crate::stream::{Issue, Work, is_heap};

/// Up to this size fresh memory holds a pattern, so that nobody relies on zeros.
const DIRTY: u64 = 4 << 20;
const PATTERN: u8 = 0xe5;

impl Process {
    fn allocate_in(
        &self,
        local: &mut Local,
        device: usize,
        size: usize,
        pooled: bool,
    ) -> Answer<(u64, Target)> {
        if size == 0 {
            return invalid("no bytes are wanted");
        }
        let what = if pooled { What::Pooled } else { What::Plain };
        let limit = self.knobs.memory;
        let order = board::Order {
            row: self.row,
            device,
            size: size as u64,
            what,
            limit,
        };
        let mut tables = self.board.lock();
        let index = match tables.allocate(self.board, order, self.pid) {
            Ok(index) => index,
            Err(_) => {
                // What the dead had may be enough.
                tables.bury(self.board, &self.file);
                tables.allocate(self.board, order, self.pid)?
            }
        };
        let it = &tables.allocations[index];
        let target = Target {
            index,
            generation: it.generation,
            device,
            data: self.heap + it.offset as usize,
            size: it.size,
        };
        drop(tables);
        if target.size <= DIRTY {
            raw::fill(target.data, &[PATTERN], size);
        }
        let range = Range {
            len: target.size,
            what: Use::Own { pooled },
            target: Some(target),
        };
        Ok((local.space.place(range)?, target))
    }

    pub(crate) fn allocate(&self, size: usize) -> Answer<u64> {
        let device = self.current()?;
        Ok(self.allocate_in(&mut self.local(), device, size, false)?.0)
    }

    pub(crate) fn allocate_async(
        &'static self,
        call: Call,
        size: usize,
        stream: usize,
    ) -> Answer<u64> {
        let current = self.current()?;
        if !self.knobs.has(Feature::Pools) {
            return refuse(code::NOT_SUPPORTED, "this device has no memory pools");
        }
        let mut local = self.local();
        let stream = local.stream(self, stream, current)?;
        let (at, target) = self.allocate_in(&mut local, stream.device, size, true)?;
        let mut issue = Issue::new(call, Work::Nothing);
        issue.touches.push((target, (0, target.size), Touch::Write));
        local.issue(self, &stream, issue, |_, _, _| ());
        Ok(at)
    }

    /// The own memory that begins exactly at an address.
    fn own(&self, local: &mut Local, at: u64) -> Answer<Target> {
        match local.space.at(at).copied() {
            Some(Range {
                what: Use::Own { .. },
                target: Some(target),
                ..
            }) => Ok(target),
            Some(Range {
                what: Use::Import { .. },
                ..
            }) => invalid("another process's memory is closed by cuIpcCloseMemHandle, not freed"),
            Some(_) => invalid("virtual memory is unmapped and released, not freed"),
            None if local.space.around(at).is_some() => {
                invalid(format!("{at:#x} is inside of an allocation"))
            }
            None if local.space.was_there(at) => {
                invalid(format!("{at:#x} was freed or closed before"))
            }
            None => invalid(format!("{at:#x} is no device address of this process")),
        }
    }

    pub(crate) fn free(&self, call: Call, at: u64) -> Answer {
        let device = self.current()?;
        if at == 0 {
            return Ok(());
        }
        let target = self.own(&mut self.local(), at)?;
        self.synchronize(target.device);
        self.synchronize(device);
        let mut local = self.local();
        self.own(&mut local, at)?;
        if self.knobs.races {
            let mut tables = self.board.lock();
            tables.touch_all(target.index, self.place(call));
        }
        local.space.remove(at);
        release(self, target);
        Ok(())
    }

    pub(crate) fn free_async(&'static self, call: Call, at: u64, stream: usize) -> Answer {
        let current = self.current()?;
        let mut local = self.local();
        let stream = local.stream(self, stream, current)?;
        let target = self.own(&mut local, at)?;
        local.space.remove(at);
        let mut issue = Issue::new(call, Work::Free(target));
        issue.touches.push((target, (0, target.size), Touch::Write));
        local.issue(self, &stream, issue, |_, _, _| ());
        Ok(())
    }

    /// Where the allocation around an address begins, and its size.
    pub(crate) fn range_of(&self, at: u64) -> Answer<(u64, u64)> {
        self.current()?;
        match self.local().space.around(at) {
            Some((start, range)) => Ok((start, range.len)),
            None => refuse(
                code::NOT_FOUND,
                format!("{at:#x} is no device address of this process"),
            ),
        }
    }
}

/// Memory goes back to the device. Another process that has it open finds that out at its next access, and is reported.
pub(crate) fn release(process: &Process, target: Target) {
    let mut tables = process.board.lock();
    let it = &tables.allocations[target.index];
    if !it.live || it.generation != target.generation {
        return;
    }
    let heap = is_heap(it.what);
    let holders: Vec<u32> = (it.importers.iter().zip(&tables.processes))
        .filter(|(count, person)| **count > 0 && board::is_alive(person.pid, person.start))
        .map(|(_, person)| person.pid)
        .collect();
    if !holders.is_empty() {
        let text = format!(
            "process {} freed {} bytes of device {} while {holders:?} had them open",
            process.pid, it.size, it.device
        );
        tables.log.add(Kind::FreedWhileOpen, &text);
    }
    let (offset, size) = tables.forget(process.board, target.index);
    if heap {
        board::forget(&process.file, offset, size);
    }
}
