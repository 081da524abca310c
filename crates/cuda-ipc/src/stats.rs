//! What this process has done with device tensors so far, and what it holds.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::device::Device;
use crate::layout::Path;

/// A number that only grows.
#[derive(Debug)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters of this process.
#[derive(Debug)]
pub(crate) struct Counters {
    pub(crate) sent: Counter,
    pub(crate) received: Counter,
    pub(crate) opened: Counter,
    pub(crate) events_made: Counter,
    pub(crate) events_opened: Counter,
    pub(crate) events_replaced: Counter,
    pub(crate) host_waits: Counter,
    pub(crate) staged: Counter,
    pub(crate) host_copies: Counter,
    pub(crate) reused: Counter,
}

pub(crate) static COUNTERS: Counters = Counters {
    sent: Counter::new(),
    received: Counter::new(),
    opened: Counter::new(),
    events_made: Counter::new(),
    events_opened: Counter::new(),
    events_replaced: Counter::new(),
    host_waits: Counter::new(),
    staged: Counter::new(),
    host_copies: Counter::new(),
    reused: Counter::new(),
};

/// What this process has done with device tensors so far, and what it holds. See [`stats`](crate::stats).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Tensors put into messages.
    pub sent: u64,
    /// Tensors taken out of messages, those that came back among them.
    pub received: u64,
    /// Allocations of this process on devices.
    pub allocations: u64,
    /// Bytes of them.
    pub allocated: u64,
    /// Pieces of memory that somebody else made, and whose owners were not dropped yet.
    pub wrapped: u64,
    /// Tensors that lie in them and that somebody still holds, as far as was looked.
    pub live: u64,
    /// Allocations of other processes that are open here.
    pub imports: u64,
    /// Allocations of other processes that were ever opened here.
    pub opened: u64,
    /// Events of this process that others can use.
    pub events: u64,
    /// Events of other processes that were ever opened here.
    pub events_opened: u64,
    /// Events replaced because whoever recorded them had died.
    pub events_replaced: u64,
    /// Blocks given out again.
    pub reused: u64,
    /// Times that this process waited for a device because no event could be had.
    pub host_waits: u64,
    /// Tensors that went through memory of the host.
    pub staged: u64,
    /// Copies of tensors that this process made in memory of the host to send them: one for all views of a storage.
    pub host_copies: u64,
    /// Copies that are kept for what may be sent again.
    pub kept_copies: u64,
    /// Bytes of them.
    pub kept_bytes: u64,
    /// Tensors that this process lets go of later: a stream behind a dead process may still use them, and there was no room
    /// to say so to others.
    pub kept_tensors: u64,
    /// Memory of the host that is registered for devices.
    pub pinned: Pinned,
    /// Devices whose memory stays until this process ends, since a stream waits there for a process that has died.
    pub stuck: Vec<Stuck>,
    /// For each process whose memory is or was reached: how, and why so.
    pub peers: Vec<Peer>,
}

/// Memory of the host that is registered with the driver, for copies that need no staging.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pinned {
    /// Regions that are registered: each once, however many tensors are pinned in it.
    pub regions: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Tensors that could not be pinned, and are copied all the same.
    pub refused: u64,
    /// Why the last of them could not.
    pub why: Option<String>,
}

/// A device on which a stream of this process waits for a process that died before its work was done. The driver waits for
/// all streams of a device when memory is given back, so none there is any more, though it is still used again.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stuck {
    /// The device.
    pub device: Device,
    /// Who died, in words.
    pub writer: String,
    /// Allocations of this process there, which are used again and not given back.
    pub allocations: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Tensors' blocks among them that the stream has work on: they are not used again either.
    pub blocks: u64,
    /// Allocations of other processes that stay open here, and that their origins keep for it.
    pub imports: u64,
}

/// How another process's memory is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Peer {
    /// Its process id, in its own namespace.
    pub pid: u32,
    /// The path.
    pub path: Path,
    /// Why this one.
    pub why: String,
}
