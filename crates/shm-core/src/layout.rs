//! Where everything lies in an arena: the shared layout, in words and lines.
//!
//! All shared control structures are 8-byte atomic words, grouped in 64-byte *lines*. This file alone says
//! what each offset means; `docs/src/wire.md` describes the same in prose and carries this file's hash, so
//! that a change here without one there (and without a new [`VERSION`]) does not pass `cargo xtask tidy`. What is in
//! a word is said where the word is read and written; `shape.rs` makes one number of those and of this file.

/// First word of every arena: `tensormp` in ASCII, little endian.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"tensormp");
/// Version of this layout. Processes with different versions refuse to share an arena.
pub(crate) const VERSION: u64 = 1;

/// Bytes in a word.
pub(crate) const WORD: u64 = 8;
/// Bytes in a line: a cache line, and the unit in which counted things are named.
pub(crate) const LINE: u64 = 64;
/// Bytes in a page. Larger system pages still work: commits are rounded up by the kernel.
pub(crate) const PAGE: u64 = 4096;
/// Bytes in a chunk: what a process claims at once.
pub(crate) const CHUNK: u64 = 2 << 20;

// ---------------------------------------------------------------------------------------- header page
/// Header words, all in the arena's first page.
pub(crate) mod header {
    /// [`super::MAGIC`], stored last when an arena is made.
    pub(crate) const MAGIC: u64 = 0;
    /// [`super::VERSION`].
    pub(crate) const VERSION: u64 = 8;
    /// Capacity of the arena in bytes; equals the size of the file.
    pub(crate) const CAPACITY: u64 = 16;
    /// First half of the arena's random identity.
    pub(crate) const ID_LOW: u64 = 24;
    /// Second half of the arena's random identity.
    pub(crate) const ID_HIGH: u64 = 32;
    /// Which boot of the machine the arena was made in, or 0 where that can't be told.
    pub(crate) const BOOT: u64 = 40;
    /// Line of the object that holds the published names, or 0; set once. The header counts as a holder of it.
    pub(crate) const NAMES: u64 = 48;
    /// [`crate::shape::FINGERPRINT`] of the build that made the arena.
    pub(crate) const SHAPE: u64 = 56;
    /// Rows of the participant table that are committed; grows only.
    pub(crate) const ROWS_HIGH: u64 = 64;
    /// Grows with each join and each burial; watchers look at it.
    pub(crate) const MEMBERSHIP: u64 = 72;
    /// Participants that are alive now.
    pub(crate) const ALIVE: u64 = 80;
    /// The inode of the arena's file: a copy of the file has another one.
    pub(crate) const INODE: u64 = 88;
    /// Chunks that were ever claimed; grows only.
    pub(crate) const CHUNKS_HIGH: u64 = 128;
    /// Chunk descriptors that are committed; grows only.
    pub(crate) const DESCRIPTORS_HIGH: u64 = 136;
    /// Bytes committed by this arena so far (chunks only).
    pub(crate) const COMMITTED: u64 = 144;
    /// Grows each time a participant lacks memory and asks the others to give back what they keep.
    pub(crate) const PRESSURE: u64 = 192;
    /// Bytes of free memory that a participant keeps at most, plus 1; 0 without a limit. Set when the arena is made.
    pub(crate) const CACHE_LIMIT: u64 = 200;
    /// 1 when huge pages were asked for as the arena was made.
    pub(crate) const HUGE_PAGES: u64 = 208;
    /// Grows after chunks became free; who found none looks again only then.
    pub(crate) const FREED: u64 = 256;
    /// Grows after chunks became orphans.
    pub(crate) const ORPHANED: u64 = 264;
}

// ----------------------------------------------------------------------------------- participant rows
/// Rows in the participant table; row numbers have 12 bits and 4,095 is never given.
pub(crate) const ROWS: u64 = 4095;
/// Bytes in a row.
pub(crate) const ROW: u64 = 2048;
/// Offset of the first row.
pub(crate) const ROWS_START: u64 = PAGE;
/// Rows that are committed in one step (64 KiB).
pub(crate) const ROWS_STEP: u64 = 32;

/// Offsets within a row.
pub(crate) mod row {
    /// `{state: 4 | epoch: 16 | pid: 32 | tag of the pid's namespace: 12}` from the low bits up.
    pub(crate) const STATE: u64 = 0;
    /// Start time of the process in clock ticks since boot (field 22 of `/proc/PID/stat`).
    pub(crate) const START_TIME: u64 = 8;
    /// Inode of the pid namespace the pid belongs to.
    pub(crate) const PID_NAMESPACE: u64 = 16;
    /// Who reaps which epoch of this row: 0, or `{row + 1: 16 | epoch: 16 | reaped epoch: 16}`.
    pub(crate) const REAPER: u64 = 24;
    /// Lease entries that were ever used; grows only while the row lives.
    pub(crate) const LEASES_HIGH: u64 = 32;
    /// When the participant joined, CLOCK_MONOTONIC nanoseconds.
    pub(crate) const JOINED: u64 = 40;
    /// `epoch + 1` of the participant that is about to end and needs the arena's name no longer, or less.
    pub(crate) const LEAVING: u64 = 48;
    /// The last request of [`super::header::PRESSURE`] that the participant has answered.
    pub(crate) const TRIMMED: u64 = 56;
    /// Where the participant's lease chunks are: chunk number + 1, or 0.
    pub(crate) const DIRECTORY: u64 = 64;
    /// Words in the directory.
    pub(crate) const DIRECTORY_WORDS: u64 = 64;
    /// Bits that tell the participant which of its chunks have blocks freed by others.
    pub(crate) const DIRTY: u64 = DIRECTORY + DIRECTORY_WORDS * 8;
    /// Words of dirty bits.
    pub(crate) const DIRTY_WORDS: u64 = 16;
    /// Flight recorder: name of the process, a text field of 8 words.
    pub(crate) const NAME: u64 = DIRTY + DIRTY_WORDS * 8;
    /// Words of [`NAME`].
    pub(crate) const NAME_WORDS: u64 = 8;
    /// Flight recorder: the current task, two fields that are written by turns: `{length: 8 | turn: 56}`, 0 while the text
    /// behind it is not whole, and the text. The one of the higher turn counts.
    pub(crate) const TASK: u64 = NAME + NAME_WORDS * 8;
    /// Words of each field of [`TASK`].
    pub(crate) const TASK_WORDS: u64 = 16;
    /// Flight recorder: line of the object the participant waits for, or 0.
    pub(crate) const WAITING_FOR: u64 = TASK + 2 * TASK_WORDS * 8;
    /// Flight recorder: since when it waits, CLOCK_MONOTONIC nanoseconds.
    pub(crate) const WAITING_SINCE: u64 = WAITING_FOR + 8;
    /// Flight recorder: the last panic, a text field of 80 words.
    pub(crate) const PANIC: u64 = WAITING_SINCE + 8;
    /// Words of [`PANIC`].
    pub(crate) const PANIC_WORDS: u64 = 80;
    /// Which context started this participant: 0, or `{row + 1: 16 | epoch: 16 | context: 16 | own epoch: 16}`, the
    /// first two of the participant that supervises it. Written by that one.
    pub(crate) const CONTEXT: u64 = PANIC + PANIC_WORDS * 8;
    /// Contexts of this participant whose processes are being stopped.
    pub(crate) const STOPPING: u64 = CONTEXT + 8;
    /// Threads of this participant that serve the library and do none of the user's work.
    pub(crate) const SERVANTS: u64 = STOPPING + 8;
    /// 1 when the participant has no life lock because its system gives none; the lock then says nothing about it.
    pub(crate) const UNLOCKED: u64 = SERVANTS + 8;
    /// Where others read what the participant's streams of devices wait for: line of an object that it holds, or 0.
    pub(crate) const STREAMS: u64 = UNLOCKED + 8;
    /// `epoch + 1` of the participant whose function has returned in order: what it still holds when its process ends it did
    /// not die with.
    pub(crate) const RETURNED: u64 = STREAMS + 8;
    /// What its threads wait for without a deadline: entries of four words, `{kind: 4 | version: 60}`, then for an
    /// object its line and `{sequence: 32 | event: 32}`, for a context its number and how many processes run; and since
    /// when, CLOCK_MONOTONIC nanoseconds. Kind 0 is no wait.
    pub(crate) const WAITS: u64 = (RETURNED + 8).next_multiple_of(super::LINE);
    /// Entries of [`WAITS`]; a participant with more waiting threads is never taken for stuck.
    pub(crate) const WAIT_ENTRIES: u64 = 8;
    /// What its threads have taken out of cells and not handed to the program yet: `{line of the cell + 1: 38 | lap: 26}`
    /// each, or 0.
    pub(crate) const INTAKE: u64 = WAITS + WAIT_ENTRIES * 32;
    /// Words of [`INTAKE`].
    pub(crate) const INTAKES: u64 = 8;
    const _: () = assert!(INTAKE + INTAKES * 8 <= super::ROW);
}

// ------------------------------------------------------------------------------------------- leases
/// Bytes in a lease entry: state word, generation, ticket's cell line, ticket's position.
pub(crate) const LEASE: u64 = 32;
/// Lease entries in one lease chunk.
pub(crate) const LEASES_PER_CHUNK: u64 = CHUNK / LEASE;
/// Lease entries that are committed in one step (64 KiB).
pub(crate) const LEASES_STEP: u64 = 2048;

// ------------------------------------------------------------------------------------------- chunks
/// Bytes in a chunk descriptor: a line of words and the counted line of a run.
pub(crate) const DESCRIPTOR: u64 = 128;
/// Offset of the first chunk descriptor.
pub(crate) const DESCRIPTORS_START: u64 = (ROWS_START + ROWS * ROW).next_multiple_of(PAGE);
/// Descriptors that are committed in one step (64 KiB).
pub(crate) const DESCRIPTORS_STEP: u64 = 512;

/// Offsets within a chunk descriptor.
pub(crate) mod descriptor {
    /// `{state: 2 | kind: 2 | owner row: 12 | owner epoch: 16 | parameter: 32}` from the low bits up.
    pub(crate) const STATE: u64 = 0;
    /// Bytes committed from the chunk's start; written by the owner.
    pub(crate) const COMMITTED: u64 = 8;
    /// Generation with which block lines of this chunk start; never falls.
    pub(crate) const GENERATION: u64 = 16;
    /// Who has this chunk pinned for a device, two in each word, `{row + 1: 16 | epoch: 16}`; pinned chunks are never
    /// punched.
    pub(crate) const PINS: [u64; 3] = [24, 48, 56];
    /// Blocks of a slab that were ever handed out; lines beyond are not initialised. Written by the owner.
    pub(crate) const BUMP: u64 = 32;
    /// Position in the owner's list of chunks, for its dirty bits.
    pub(crate) const OWNER_SLOT: u64 = 40;
    /// The counted line of a run.
    pub(crate) const RUN_LINE: u64 = super::LINE;
}

// -------------------------------------------------------------------------------------- counted lines
/// Offsets within a counted line.
pub(crate) mod counted {
    /// `{count: 24 | generation: 40}` from the low bits up.
    pub(crate) const WORD: u64 = 0;
    /// `{tag: 8 | mode: 8}` for blocks, `{tag: 8 | object line << 16}` for ends and slots.
    pub(crate) const META: u64 = 8;
    /// Bytes asked for (blocks).
    pub(crate) const LENGTH: u64 = 16;
    /// Who is making an end or slot anew: 0, or `{row + 1: 16 | epoch: 16}`.
    pub(crate) const CLAIMANT: u64 = 24;
    /// Whether the count may be too high: 0, 1, or who looks into it; see [`crate::doubt`].
    pub(crate) const DOUBT: u64 = 32;
}

// ------------------------------------------------------------------------------------------- objects
/// Offsets within an object block.
pub(crate) mod object {
    use super::LINE;
    /// What the object is; see [`crate::object::Kind`].
    pub(crate) const KIND: u64 = 0;
    /// Flag bits; bit 0 is *closed*.
    pub(crate) const FLAGS: u64 = 8;
    /// Grows with each message that a reaper handed back.
    pub(crate) const ORPHAN_EPOCH: u64 = 16;
    /// Failure record: 0 none; `{1: 8 | row + 1: 16 | epoch: 16}` being written by that participant; 2 valid.
    pub(crate) const FAILURE: u64 = 24;
    /// Failure record: `{rank: 32 | pid: 32}`.
    pub(crate) const FAILURE_WHO: u64 = 32;
    /// The last process of a context that left in order: 0, or `{rank + 1: 32 | pid: 32}`.
    pub(crate) const DEPARTED: u64 = 40;
    /// The first process that died holding the object, and had not returned in order: 0, or its pid.
    pub(crate) const BEREAVED: u64 = 48;
    /// The participant that supervises a context this object belongs to: 0, or `{row + 1: 16 | epoch: 16}`.
    pub(crate) const SUPERVISOR: u64 = 56;
    /// Two array descriptors of four words: `{kind: 16 | capacity: 32}`, offset within the object, and for slots
    /// line and generation of their memory.
    pub(crate) const ARRAYS: u64 = LINE;
    /// Arrays per object.
    pub(crate) const ARRAY_COUNT: u64 = 2;
    /// Bytes in an array descriptor.
    pub(crate) const ARRAY: u64 = 32;
    /// Two events, a line each: sequence (u32) and waiters (u32).
    pub(crate) const EVENTS: u64 = 2 * LINE;
    /// Two ends, a counted line each.
    pub(crate) const ENDS: u64 = 4 * LINE;
    /// Failure record: the cause, a text field of 64 words.
    pub(crate) const FAILURE_TEXT: u64 = 6 * LINE;
    /// Words of [`FAILURE_TEXT`].
    pub(crate) const FAILURE_TEXT_WORDS: u64 = 64;
    /// Where the object was made, a text field of 16 words.
    pub(crate) const SITE: u64 = 14 * LINE;
    /// Words of [`SITE`].
    pub(crate) const SITE_WORDS: u64 = 16;
    /// Tail of array `i` at `TAILS + 2 * i * LINE`, its head one line on.
    pub(crate) const TAILS: u64 = 16 * LINE;
    /// Words that belong to the object's owner crate.
    pub(crate) const USER: u64 = 20 * LINE;
}

/// Offset of the first chunk in an arena of `capacity` bytes.
pub(crate) const fn chunks_start(capacity: u64) -> u64 {
    let descriptors = capacity / CHUNK;
    (DESCRIPTORS_START + descriptors * DESCRIPTOR).next_multiple_of(CHUNK)
}

/// Number of chunks in an arena of `capacity` bytes.
pub(crate) const fn chunk_count(capacity: u64) -> u64 {
    capacity.saturating_sub(chunks_start(capacity)) / CHUNK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_structures_do_not_overlap_and_stay_small() {
        const { assert!(DESCRIPTORS_START >= ROWS_START + ROWS * ROW) };
        for capacity in [1 << 30, 64 << 30, 2u64 << 40] {
            let start = chunks_start(capacity);
            assert!(start >= DESCRIPTORS_START + chunk_count(capacity) * DESCRIPTOR);
            assert!(start + chunk_count(capacity) * CHUNK <= capacity);
            assert!(start - PAGE <= capacity / 60 + 2 * CHUNK + ROWS * ROW);
        }
    }
}
