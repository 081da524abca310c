//! The allocator of one process: blocks out of the chunks it owns.
//!
//! Whatever lies in shared memory decides: a block is free exactly when its count is 0. The lists here are
//! private hints about where to look, and every allocation ends in a compare-and-swap on the block's word, so
//! a wrong hint costs a retry and never a block given twice. Blocks freed by other processes are found through
//! a bitmap in the chunk and a few dirty bits in the owner's row ([`hint`]).

use core::sync::atomic::Ordering;
use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::cells::Owner;
use crate::chunk::{Chunks, Seen, State, Use};
use crate::class::{self, CLASSES};
use crate::error::{ErrorKind, Result};
use crate::layout::{LINE, counted, descriptor, header};
use crate::lease::Leases;
use crate::line::{Counted, Mode, Tag};
use crate::segment::Segment;
use crate::steps;

mod bury;
mod cache;
mod hint;
mod locate;
mod prefault;
mod pressure;
mod run;
mod slab;
mod trim;

use bury::sweep_orphans;
pub(crate) use bury::{bury_chunks, free_orphaned_run};
pub(crate) use cache::give_back_inherited;
pub(crate) use hint::{hint_after_free, hint_before_free};
pub(crate) use locate::{block_around, in_object, locate, owner_of_line, prefetch_block};
#[cfg(test)]
pub(crate) use pressure::PATIENCE;
pub(crate) use pressure::Request;
pub(crate) use trim::usage;

/// Chunks with which a process watches whether others lack memory: 4 MiB. With fewer it answers only when it allocates or
/// frees, and costs nobody a thread.
const MUCH: u64 = 2;

/// One process's allocator.
pub(crate) struct Heap {
    me: Owner,
    inner: Mutex<Inner>,
}

struct Inner {
    /// Lines of blocks that are probably free, by class.
    free: [Vec<u64>; CLASSES],
    /// The slab that still has blocks never handed out, by class.
    filling: [Option<u64>; CLASSES],
    /// First chunks of own runs that are probably free, by number of chunks.
    runs: BTreeMap<u32, Vec<u64>>,
    /// Own chunks; the index is the chunk's owner slot.
    owned: Vec<u64>,
    /// Whether chunks came to the own ones, of which there are [`MUCH`], since somebody was told.
    grown: bool,
    /// What is known of all chunks.
    seen: Seen,
    /// The number of orphans when there was none of this class.
    no_orphan: [Option<u64>; CLASSES],
    /// The last request of others that was answered.
    answered: u64,
    /// Participants that were asked for memory, with the request that they had not answered in time.
    silent: Vec<(Owner, u64)>,
    cache: cache::Cache,
}

/// A block that was taken from the lists, not yet counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) line: u64,
    pub(crate) generation: u64,
}

/// A block that was made anew.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    pub(crate) line: u64,
    pub(crate) generation: u64,
    /// Offset of its first byte.
    pub(crate) data: u64,
    /// Whether this process has so many chunks by now that it should notice when others lack memory.
    pub(crate) should_watch: bool,
}

impl Heap {
    pub(crate) fn new(segment: &Segment, me: Owner) -> Self {
        Self {
            me,
            inner: Mutex::new(Inner {
                free: [const { Vec::new() }; CLASSES],
                filling: [None; CLASSES],
                runs: BTreeMap::new(),
                owned: Vec::new(),
                grown: false,
                seen: Seen::default(),
                no_orphan: [None; CLASSES],
                answered: segment.word(header::PRESSURE).load(Ordering::Relaxed),
                silent: Vec::new(),
                cache: cache::Cache::new(segment),
            }),
        }
    }

    /// Allocates a block for `bytes`, counted once and recorded in the entry `lease`.
    ///
    /// The lock is held until the block is counted: a chunk is retired only when all of its counts are 0, so
    /// a candidate must not outlive the lock.
    pub(crate) fn allocate(
        &self,
        segment: &Segment,
        leases: &Leases,
        lease: u32,
        bytes: u64,
        mode: Mode,
    ) -> Result<Block> {
        let class = class::class_of_size(bytes);
        let mut inner = self.inner.lock();
        inner.answer(segment, self.me);
        let mut trimmed = false;
        loop {
            let found = match class {
                Some(class) => inner.small(segment, self.me, class),
                None => inner.large(segment, self.me, bytes),
            };
            let found = match found {
                Ok(found) => found,
                // What is kept for other sizes may be what is missing for this one.
                Err(error) if !trimmed && matches!(error.kind(), ErrorKind::OutOfRoom(_)) => {
                    trimmed = true;
                    if inner.trim(segment, self.me) == 0 {
                        return Err(error);
                    }
                    continue;
                }
                Err(error) => return Err(error),
            };
            // A mark that a broken peer raised: what was never committed is no block.
            let Some(data) = locate::data_of(segment, class, found.line) else {
                continue;
            };
            let word = segment.word(found.line * LINE + counted::WORD);
            // Before it counts: whoever finds the block counted, our reaper say, finds it to be what it is. Nobody
            // but the chunk's owner, under this lock, makes a block anew, so nobody relies on these words now.
            let prepare = || {
                segment
                    .word(found.line * LINE + counted::LENGTH)
                    .store(bytes, Ordering::Relaxed);
                segment
                    .word(found.line * LINE + counted::META)
                    .store(Tag::meta_of_block(mode), Ordering::Relaxed);
                segment
                    .word(found.line * LINE + counted::DOUBT)
                    .store(0, Ordering::Relaxed);
            };
            let block = (found.line, found.generation);
            let entry = leases.entry(segment, lease);
            if steps::allocate(&entry, self.me.epoch, block, word, prepare) {
                inner.keep_within_limit(segment, self.me);
                return Ok(Block {
                    line: found.line,
                    generation: found.generation,
                    data,
                    should_watch: core::mem::take(&mut inner.grown),
                });
            }
        }
    }

    /// Says that a block of one of our own chunks is free again.
    pub(crate) fn freed_here(&self, segment: &Segment, line: u64) {
        let mut inner = self.inner.lock();
        inner.put(segment, self.me, line);
        inner.answer(segment, self.me);
        inner.keep_within_limit(segment, self.me);
    }
}

impl Inner {
    /// Claims chunks; when the arena has none left, gives own unused ones back first and tries once more.
    fn claim(&mut self, segment: &Segment, me: Owner, count: u64) -> Result<u64> {
        let chunks = Chunks::new(segment);
        chunks.claim(me, count, &mut self.seen).or_else(|error| {
            if self.retire_unused(segment, me) == 0 && !sweep_orphans(segment, me) {
                return Err(error);
            }
            chunks.claim(me, count, &mut self.seen)
        })
    }

    fn own(&mut self, chunks: &Chunks<'_>, chunk: u64) {
        chunks
            .word(chunk, descriptor::OWNER_SLOT)
            .store(self.owned.len() as u64, Ordering::Release);
        self.owned.push(chunk);
        let chunks_of = |state| match state {
            State::Owned(_, Use::Run(count)) => u64::from(count),
            _ => 1,
        };
        self.grown |= self.owned.len() as u64 >= MUCH || chunks_of(chunks.state(chunk)) >= MUCH;
    }

    fn disown(&mut self, chunks: &Chunks<'_>, chunk: u64) {
        let noted = chunks
            .word(chunk, descriptor::OWNER_SLOT)
            .load(Ordering::Relaxed) as usize;
        // Where it says, unless somebody has written over that.
        let slot = match self.owned.get(noted) {
            Some(&owned) if owned == chunk => Some(noted),
            _ => self.owned.iter().position(|&owned| owned == chunk),
        };
        if let Some(slot) = slot {
            self.owned.swap_remove(slot);
            if let Some(&moved) = self.owned.get(slot) {
                chunks
                    .word(moved, descriptor::OWNER_SLOT)
                    .store(slot as u64, Ordering::Release);
            }
        }
    }

    /// Puts a block of an own chunk on its list, if that is what the line still names.
    fn put(&mut self, segment: &Segment, me: Owner, line: u64) {
        let chunks = Chunks::new(segment);
        let Some(span) = locate(segment, line) else {
            return;
        };
        match chunks.state(span.chunk) {
            State::Owned(owner, Use::Slab(class)) if owner == me => {
                if let Some(list) = self.free.get_mut(class as usize) {
                    list.push(line);
                    self.cache.freed(span.capacity);
                }
            }
            State::Owned(owner, Use::Run(count)) if owner == me => {
                let heads = self.runs.entry(count).or_default();
                if !heads.contains(&span.chunk) {
                    heads.push(span.chunk);
                    self.cache.freed_run();
                }
                self.share_runs(segment, me);
            }
            _ => {}
        }
    }
}

/// The block of `line`, if its count is 0 now.
fn free_block(segment: &Segment, line: u64) -> Option<Candidate> {
    let counted = Counted::from_word(segment.word(line * LINE).load(Ordering::Acquire));
    (counted.count == 0).then(|| Candidate {
        line,
        generation: counted.next_generation(),
    })
}
