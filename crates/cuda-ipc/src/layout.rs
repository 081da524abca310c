//! What lies where in the two kinds of objects that this crate has in the arena.
//!
//! A *memory* is an allocation on a device, cut into blocks of one size; each block has a record of eight words beside it. A
//! *station* is what a process lends to those who use its memories: events, and where it can be asked. What is read from
//! either is checked before it is used.

use std::sync::atomic::{AtomicU64, Ordering};

use shm_core::object::Object;
use shm_core::word::Owner;

use crate::device::Uuid;
use crate::driver::HandleBytes;
use crate::error::{Error, ErrorKind, Result};

/// Words of a memory.
pub(crate) mod memory {
    pub(crate) const PATH: u64 = 0;
    /// Two words: which station.
    pub(crate) const STATION: u64 = 1;
    pub(crate) const ORIGIN: u64 = 3;
    /// Two words.
    pub(crate) const UUID: u64 = 4;
    pub(crate) const BYTES: u64 = 6;
    pub(crate) const STRIDE: u64 = 7;
    pub(crate) const COUNT: u64 = 8;
    /// Where block 0 begins in the allocation.
    pub(crate) const FIRST: u64 = 9;
    /// Not 0: its origin asks everybody to close it.
    pub(crate) const RETIRED: u64 = 10;
    /// Eight words.
    pub(crate) const HANDLE: u64 = 11;
    pub(crate) const PID: u64 = 19;
    /// Records of blocks.
    pub(crate) const BLOCKS: u64 = 20;
    pub(crate) const BLOCK: u64 = 8;
}

/// Words of a block's record.
pub(crate) mod block {
    /// How often the block was given out.
    pub(crate) const USE: u64 = 0;
    /// The mark that says when the writer is done.
    pub(crate) const READY: u64 = 1;
    /// Marks that say when holders are done.
    pub(crate) const RELEASES: std::ops::Range<u64> = 2..7;
}

/// Words of a station.
pub(crate) mod station {
    pub(crate) const OWNER: u64 = 0;
    pub(crate) const CAPACITY: u64 = 1;
    /// Grows when a memory of it is retired.
    pub(crate) const RETIRED: u64 = 2;
    /// What others found that does not work with this process: bit 0 handles, bit 1 descriptors.
    pub(crate) const REFUSED: u64 = 3;
    /// Length, then at most eight words of the name of its socket.
    pub(crate) const SOCKET: u64 = 4;
    /// Records of events: generation, then the eight words of the handle.
    pub(crate) const EVENTS: u64 = 16;
    pub(crate) const EVENT: u64 = 9;
}

/// Words of what a process says of its streams.
pub(crate) mod streams {
    /// Of each stream, by its number: how many events were recorded in it for others.
    pub(crate) const RECORDED: u64 = 0;
    /// How many of these are known to have happened.
    pub(crate) const DONE: u64 = 256;
    /// 0; or, of one that will never go on, the first of its records that may never happen.
    pub(crate) const LOST: u64 = 512;
    /// What they wait for.
    pub(crate) const WAITS: u64 = 768;
    /// So many have room.
    pub(crate) const ROOM: u64 = 96;
    /// Who waits for whom, how far, since when; the handle of that one's own such object, and its process id.
    pub(crate) const WAIT: u64 = 6;
    /// Of the process itself: its id.
    pub(crate) const PID: u64 = WAITS + ROOM * WAIT;
    /// 0, or the process id of somebody dead for whom a device stands still here.
    pub(crate) const STUCK: u64 = PID + 1;
    /// A bit for each device that stands still: which one, is made of its UUID, and another device may have the same.
    pub(crate) const STUCK_ON: u64 = STUCK + 1;
    /// Not 0: somebody waits until it is said how far these streams have come.
    pub(crate) const ASKED: u64 = STUCK_ON + 1;
    pub(crate) const WORDS: u64 = ASKED + 1;
}

/// Which way memory goes to another process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Path {
    /// The driver's handle of 64 bytes. The memory is gone when its origin ends.
    Handle,
    /// A file descriptor, from the origin by a socket. The memory lives while anybody maps it.
    Descriptor,
    /// A copy through memory of the host: works everywhere, and costs two copies.
    Host,
}

impl Path {
    pub(crate) const fn code(self) -> u64 {
        match self {
            Self::Handle => 1,
            Self::Descriptor => 2,
            Self::Host => 3,
        }
    }

    const fn from_code(code: u64) -> Option<Self> {
        match code {
            1 => Some(Self::Handle),
            2 => Some(Self::Descriptor),
            _ => None,
        }
    }
}

pub(crate) const fn owner_word(owner: Owner) -> u64 {
    owner.row as u64 | (owner.epoch as u64) << 16
}

pub(crate) const fn owner_of(word: u64) -> Owner {
    Owner {
        row: word as u16,
        epoch: (word >> 16) as u16,
    }
}

/// What a memory's words say, copied once and checked.
#[derive(Clone, Debug)]
pub(crate) struct Described {
    pub(crate) path: Path,
    pub(crate) station: [u64; 2],
    pub(crate) origin: Owner,
    pub(crate) pid: u32,
    pub(crate) uuid: Uuid,
    pub(crate) bytes: u64,
    pub(crate) stride: u64,
    pub(crate) count: u64,
    pub(crate) first: u64,
    pub(crate) handle: HandleBytes,
}

/// How many words a memory of so many blocks has.
pub(crate) const fn memory_words(count: u64) -> u64 {
    memory::BLOCKS + count * memory::BLOCK
}

impl Described {
    pub(crate) fn write(&self, object: &Object) {
        let store = |word, value| object.word(word).store(value, Ordering::Relaxed);
        store(memory::PATH, self.path.code());
        store(memory::STATION, self.station[0]);
        store(memory::STATION + 1, self.station[1]);
        store(memory::ORIGIN, owner_word(self.origin));
        let uuid = self.uuid.to_words();
        store(memory::UUID, uuid[0]);
        store(memory::UUID + 1, uuid[1]);
        store(memory::BYTES, self.bytes);
        store(memory::STRIDE, self.stride);
        store(memory::COUNT, self.count);
        store(memory::FIRST, self.first);
        write_handle(object, memory::HANDLE, &self.handle);
        store(memory::PID, u64::from(self.pid));
    }

    pub(crate) fn read(object: &Object) -> Result<Self> {
        if object.word_count() < memory::BLOCKS {
            return Err(malformed("a memory is too short"));
        }
        let load = |word| object.word(word).load(Ordering::Acquire);
        let read = Self {
            path: Path::from_code(load(memory::PATH))
                .ok_or_else(|| malformed("a memory of unknown path"))?,
            station: [load(memory::STATION), load(memory::STATION + 1)],
            origin: owner_of(load(memory::ORIGIN)),
            pid: load(memory::PID) as u32,
            uuid: Uuid::from_words([load(memory::UUID), load(memory::UUID + 1)]),
            bytes: load(memory::BYTES),
            stride: load(memory::STRIDE),
            count: load(memory::COUNT),
            first: load(memory::FIRST),
            handle: read_handle(object, memory::HANDLE),
        };
        let end = read
            .stride
            .checked_mul(read.count)
            .and_then(|bytes| bytes.checked_add(read.first));
        let words = read
            .count
            .checked_mul(memory::BLOCK)
            .and_then(|words| words.checked_add(memory::BLOCKS));
        if end.is_none_or(|end| end > read.bytes)
            || words.is_none_or(|words| words > object.word_count())
        {
            return Err(malformed("a memory's blocks do not fit into it"));
        }
        Ok(read)
    }
}

/// A word of a block's record. `index` was checked against the memory's count.
pub(crate) fn record(object: &Object, index: u32, word: u64) -> &AtomicU64 {
    object.word(memory::BLOCKS + u64::from(index) * memory::BLOCK + word)
}

pub(crate) fn write_handle(object: &Object, at: u64, handle: &HandleBytes) {
    for (word, eight) in handle.as_chunks::<8>().0.iter().enumerate() {
        object
            .word(at + word as u64)
            .store(u64::from_le_bytes(*eight), Ordering::Relaxed);
    }
}

pub(crate) fn read_handle(object: &Object, at: u64) -> HandleBytes {
    let mut handle = [0; 64];
    for (word, eight) in handle.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *eight = object
            .word(at + word as u64)
            .load(Ordering::Acquire)
            .to_le_bytes();
    }
    handle
}

#[cold]
pub(crate) fn malformed(why: &str) -> Error {
    Error::new(
        ErrorKind::Malformed,
        format!(
            "a device tensor does not add up ({why}); a participant wrote where it must not, or its version differs"
        ),
    )
}
