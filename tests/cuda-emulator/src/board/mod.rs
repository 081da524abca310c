//! The board: one shared file that stands for the devices, for all processes of a test.
//!
//! What a driver's kernel module and the hardware would know is here: which processes there are, their streams, events and
//! allocations, what a race detector remembers, counts of calls, and reports. Device memory itself follows in the same
//! file. The file is a memfd that processes find through `/proc/PID/fd/N` of one that has it, so nothing has to be removed
//! when all of them are killed. One robust lock guards what is not atomic; who dies while holding it leaves at worst a
//! record half written, which the next one tolerates, since every record is plain numbers.

mod clock;
mod lock;
mod map;
mod people;
mod report;
mod shadow;
mod tables;
mod words;

pub(crate) use clock::Clock;
pub(crate) use lock::Guard;
pub(crate) use map::{forget, map_data, map_heap, path_of, reserve, retire};
pub(crate) use people::is_alive;
pub use report::Kind;
pub(crate) use shadow::{Access, Touch};
pub(crate) use tables::{Order, Ticket, What};
pub(crate) use words::Progress;

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU64, Ordering};

use lock::RawLock;
use tables::Tables;
use words::Words;

/// Most streams at a time, of all processes.
pub(crate) const STREAMS: usize = 512;
/// Most events at a time, of all processes.
pub(crate) const EVENTS: usize = 8192;
/// Most allocations at a time, of all processes.
pub(crate) const ALLOCATIONS: usize = 2048;
/// Most processes at a time.
pub(crate) const PROCESSES: usize = 128;
/// Where device memory begins in the file.
pub(crate) const HEAP_AT: u64 = 1 << 30;
/// How much address space device memory has in the file. Only what is written takes memory.
pub(crate) const HEAP_LEN: u64 = 1 << 40;
/// Allocations begin at multiples of this, as a driver's blocks do.
pub(crate) const BLOCK: u64 = 2 << 20;
/// How many devices there are at most.
pub(crate) const DEVICES: usize = 2;

/// Says that a file is a board, and of this layout.
const MAGIC: u64 = 0x656d_755f_6375_0001;

#[repr(C)]
pub(crate) struct Board {
    /// [`MAGIC`], stored when everything else is in place.
    magic: AtomicU64,
    /// The size of this, by which builds that differ are told apart.
    layout: AtomicU64,
    /// Tells boards apart, in handles.
    id: AtomicU64,
    lock: RawLock,
    /// What is read and written without the lock.
    pub(crate) words: Words,
    tables: UnsafeCell<Tables>,
}

const _: () = assert!(size_of::<Board>() < HEAP_AT as usize);

impl Board {
    pub(crate) fn id(&self) -> u64 {
        self.id.load(Ordering::Relaxed)
    }
}
