//! What is kept under the board's lock: processes, streams, events, allocations, the host's clock, reports.
//!
//! Any bytes are valid here, and indices from records are checked before use: a killed process may leave a record half
//! written.

use super::report::Log;
use super::shadow::Shadow;
use super::{ALLOCATIONS, BLOCK, Board, Clock, DEVICES, EVENTS, HEAP_LEN, PROCESSES, STREAMS};
use crate::calls;
use crate::code::{self, Answer, refuse};

/// An operation of a stream: where it stands in that stream, whoever has the slot later.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Ticket {
    pub(crate) stream: u16,
    pub(crate) generation: u32,
    pub(crate) sequence: u32,
}

#[repr(C)]
pub(crate) struct Tables {
    pub(crate) processes: [Person; PROCESSES],
    pub(crate) streams: [Stream; STREAMS],
    pub(crate) events: [Event; EVENTS],
    pub(crate) allocations: [Allocation; ALLOCATIONS],
    /// What the host knows to be finished, by having waited for it. One clock for all threads of all processes: the
    /// emulator does not see how they talk to each other, only in which order they call.
    pub(crate) host: Clock,
    pub(crate) log: Log,
    /// Processes so far.
    pub(crate) people: u64,
    /// Where the next search for a free stream begins, so that slots are taken again as late as possible.
    next_stream: u32,
    /// Events from here on were never used, nor looked at: their pages do not exist yet.
    events_end: u32,
    /// The same for allocations.
    allocations_end: u32,
    /// Allocations so far; also the key that tells them apart.
    pub(crate) keys: u64,
    /// The first byte of device memory that was never given out.
    heap: u64,
    /// Bytes in use on each device.
    pub(crate) used: [u64; DEVICES],
    /// Calls of processes that are gone.
    pub(crate) past_calls: [u64; calls::COUNT],
}

/// A process that has started the driver.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Person {
    /// Zero: the row is free.
    pub(crate) pid: u32,
    /// When the process started, in the kernel's ticks: a number that is used again is not the same process.
    pub(crate) start: u64,
    /// How many came before.
    pub(crate) serial: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Stream {
    /// The row of the process plus one; zero: free.
    pub(crate) owner: u32,
    pub(crate) issued: u32,
    /// It waits for words, so what it comes after is not known: it is taken to come after everything that was issued.
    pub(crate) lenient: bool,
    /// What the next operation comes after.
    pub(crate) clock: Clock,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Event {
    pub(crate) live: bool,
    pub(crate) generation: u32,
    /// The row of the process that created it plus one; zero when that process died.
    pub(crate) owner: u32,
    pub(crate) pid: u32,
    pub(crate) device: u32,
    pub(crate) recorded: bool,
    /// The latest record.
    pub(crate) ticket: Ticket,
    pub(crate) clock: Clock,
    /// How often each process has it open besides the owner.
    pub(crate) importers: [u16; PROCESSES],
}

/// Of what kind an allocation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum What {
    /// From `cuMemAlloc`.
    Plain,
    /// From `cuMemAllocAsync`.
    Pooled,
    /// From `cuMemCreate`.
    Virtual,
}

#[repr(C)]
pub(crate) struct Allocation {
    pub(crate) live: bool,
    pub(crate) generation: u32,
    /// One of [`What`], as a number.
    pub(crate) what: u8,
    /// The row of the process that made it plus one; zero when that process died.
    pub(crate) owner: u32,
    pub(crate) pid: u32,
    pub(crate) device: u32,
    /// Where it begins in device memory.
    pub(crate) offset: u64,
    pub(crate) size: u64,
    /// Tells allocations apart for ever.
    pub(crate) key: u64,
    /// How often each process has it open; for virtual memory, how many handles and mappings each process has.
    pub(crate) importers: [u16; PROCESSES],
    pub(crate) shadow: Shadow,
}

impl Allocation {
    /// Whether any process has it open.
    pub(crate) fn is_imported(&self) -> bool {
        self.importers.iter().any(|&count| count > 0)
    }
}

/// Whose memory, how much, and where.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    pub(crate) row: usize,
    pub(crate) device: usize,
    pub(crate) size: u64,
    pub(crate) what: What,
    /// How much the device has.
    pub(crate) limit: u64,
}

impl Tables {
    /// The events that were ever used.
    pub(crate) fn known_events(&self) -> std::ops::Range<usize> {
        0..(self.events_end as usize).min(EVENTS)
    }

    /// The allocations that were ever used.
    pub(crate) fn known_allocations(&self) -> std::ops::Range<usize> {
        0..(self.allocations_end as usize).min(ALLOCATIONS)
    }

    /// Comes after all that any stream was given so far.
    pub(crate) fn join_all(&self, clock: &mut Clock) {
        for stream in self.streams.iter().filter(|stream| stream.owner != 0) {
            clock.join(&stream.clock);
        }
    }

    /// A slot for a stream of the process in that row: index and generation.
    pub(crate) fn open_stream(&mut self, board: &Board, row: usize) -> Answer<(usize, u32)> {
        let host = self.host;
        for step in 0..STREAMS {
            let index = (self.next_stream as usize + step) % STREAMS;
            if self.streams[index].owner != 0 {
                continue;
            }
            self.next_stream = (index + 1) as u32;
            let stream = &mut self.streams[index];
            stream.owner = row as u32 + 1;
            stream.lenient = false;
            stream.clock = host;
            stream.clock.set(index, stream.issued);
            let generation = board.words.turn(index, stream.issued, false);
            return Ok((index, generation));
        }
        refuse(
            code::OUT_OF_MEMORY,
            format!("there are {STREAMS} streams already, of all processes"),
        )
    }

    pub(crate) fn open_event(&mut self, row: usize, pid: u32, device: usize) -> Answer<usize> {
        let free = self.known_events().find(|&index| !self.events[index].live);
        let index = free.unwrap_or(self.known_events().end);
        if index == EVENTS {
            return refuse(
                code::OUT_OF_MEMORY,
                format!("there are {EVENTS} events already, of all processes"),
            );
        }
        self.events_end = self.events_end.max(index as u32 + 1);
        let event = &mut self.events[index];
        event.live = true;
        event.generation = event.generation.wrapping_add(1);
        event.owner = row as u32 + 1;
        event.pid = pid;
        event.device = device as u32;
        event.recorded = false;
        event.importers = [0; PROCESSES];
        Ok(index)
    }

    pub(crate) fn allocate(&mut self, board: &Board, order: Order, pid: u32) -> Answer<usize> {
        let Order {
            row,
            device,
            size,
            what,
            limit,
        } = order;
        if self.used[device].saturating_add(size) > limit {
            return refuse(
                code::OUT_OF_MEMORY,
                format!(
                    "{size} bytes are wanted, {} of {limit} are in use on device {device}",
                    self.used[device]
                ),
            );
        }
        let free = self
            .known_allocations()
            .find(|&index| !self.allocations[index].live);
        let index = free.unwrap_or(self.known_allocations().end);
        if index == ALLOCATIONS {
            return refuse(
                code::OUT_OF_MEMORY,
                format!("there are {ALLOCATIONS} allocations already, of all processes"),
            );
        }
        let offset = self.heap;
        let end = offset.saturating_add(size.next_multiple_of(BLOCK));
        // Virtual memory is in files of its own.
        if what != What::Virtual {
            if end > HEAP_LEN {
                return refuse(
                    code::OUT_OF_MEMORY,
                    "the board's address space for device memory is used up",
                );
            }
            self.heap = end;
        }
        self.allocations_end = self.allocations_end.max(index as u32 + 1);
        self.keys += 1;
        let it = &mut self.allocations[index];
        it.generation = it.generation.wrapping_add(1).max(1);
        it.what = what as u8;
        it.owner = row as u32 + 1;
        it.pid = pid;
        it.device = device as u32;
        it.offset = offset;
        it.size = size;
        it.key = self.keys;
        it.importers = [0; PROCESSES];
        it.shadow.clear();
        it.live = true;
        self.used[device] += size;
        board.words.set_living(index, it.generation);
        Ok(index)
    }

    /// The record goes, and everyone who still has it open is told so at the next access. Who calls this gives the pages
    /// back.
    pub(crate) fn forget(&mut self, board: &Board, index: usize) -> (u64, u64) {
        let it = &mut self.allocations[index];
        it.live = false;
        board.words.set_living(index, 0);
        let device = it.device as usize % DEVICES;
        self.used[device] = self.used[device].saturating_sub(it.size);
        (it.offset, it.size)
    }

    /// The event is free again.
    pub(crate) fn close_event(&mut self, index: usize) {
        let event = &mut self.events[index];
        event.live = false;
        event.generation = event.generation.wrapping_add(1);
    }
}
