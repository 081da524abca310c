//! The allocator of one process: blocks out of the chunks it owns.
//!
//! Whatever lies in shared memory decides: a block is free exactly when its count is 0. The lists here are
//! private hints about where to look, and every allocation ends in a compare-and-swap on the block's word, so
//! a wrong hint costs a retry and never a block given twice. Blocks freed by other processes are found through
//! a bitmap in the chunk and a few dirty bits in the owner's row.

use core::sync::atomic::Ordering;
use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::cells::Owner;
use crate::chunk::{Chunks, State, Use};
use crate::class::{self, CLASSES, SLABS, Slab};
use crate::error::Result;
use crate::layout::{CHUNK, LINE, PAGE, ROW, ROWS_START, WORD, counted, descriptor, row};
use crate::lease::{Kind, Leases};
use crate::line::{Counted, Mode, Tag};
use crate::segment::Segment;

/// Slab memory is committed in steps of this many bytes.
const COMMIT_STEP: u64 = 256 << 10;

/// Where a block's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// Offset of the first byte.
    pub(crate) data: u64,
    /// Bytes the block can hold without committing more.
    pub(crate) capacity: u64,
    /// The chunk the block lies (or begins) in.
    pub(crate) chunk: u64,
}

/// Finds the block whose counted line has number `line`; `None` for anything that is no block now.
pub(crate) fn locate(segment: &Segment, line: u64) -> Option<Span> {
    let chunks = Chunks::new(segment);
    let offset = line.checked_mul(LINE)?;
    if let Some(chunk) = chunks.run_of_line(offset) {
        let (State::Owned(_, Use::Run(count)) | State::Orphan(Use::Run(count))) =
            chunks.state(chunk)
        else {
            return None;
        };
        let end = chunk.checked_add(u64::from(count))?;
        if count == 0 || end > chunks.high() {
            return None;
        }
        let committed = chunks
            .word(chunk, descriptor::COMMITTED)
            .load(Ordering::Acquire);
        let capacity = committed.min(u64::from(count) * CHUNK);
        return Some(Span {
            data: chunks.offset(chunk),
            capacity,
            chunk,
        });
    }
    let chunk = chunks.of_offset(offset)?;
    let (State::Owned(_, Use::Slab(class)) | State::Orphan(Use::Slab(class))) = chunks.state(chunk)
    else {
        return None;
    };
    let slab = SLABS.get(class as usize)?;
    let index = (offset - chunks.offset(chunk)).checked_sub(slab.lines)? / LINE;
    let bump = chunks
        .word(chunk, descriptor::BUMP)
        .load(Ordering::Acquire)
        .min(slab.blocks);
    (index < bump).then(|| Span {
        data: chunks.offset(chunk) + slab.data + index * slab.size,
        capacity: slab.size,
        chunk,
    })
}

/// The block whose bytes hold the line with number `line`.
pub(crate) fn block_around(segment: &Segment, line: u64) -> Option<Span> {
    let chunks = Chunks::new(segment);
    let offset = line.checked_mul(LINE)?;
    let chunk = chunks.of_offset(offset)?;
    match chunks.state(chunk) {
        State::Owned(_, Use::Slab(class)) | State::Orphan(Use::Slab(class)) => {
            let slab = SLABS.get(class as usize)?;
            let index = (offset - chunks.offset(chunk)).checked_sub(slab.data)? / slab.size;
            locate(segment, (chunks.offset(chunk) + slab.lines) / LINE + index)
        }
        State::Owned(_, Use::Run(_)) | State::Orphan(Use::Run(_)) => {
            locate(segment, Chunks::run_line(chunk))
        }
        State::Owned(_, Use::Tail(distance)) | State::Orphan(Use::Tail(distance)) => {
            let head = chunk.checked_sub(u64::from(distance))?;
            locate(segment, Chunks::run_line(head))
        }
        _ => None,
    }
    .filter(|span| offset >= span.data && offset + LINE <= span.data + span.capacity)
}

/// Whether a line lies in the bytes of an object and says that it belongs to that object: an end or a slot.
pub(crate) fn in_object(segment: &Segment, line: u64) -> bool {
    let Some(around) = block_around(segment, line) else {
        return false;
    };
    let meta = segment
        .word(line * LINE + counted::META)
        .load(Ordering::Acquire);
    if !matches!(Tag::from_meta(meta), Some(Tag::End | Tag::Slot)) {
        return false;
    }
    let object = Tag::object_of(meta);
    locate(segment, object) == Some(around)
        && Mode::from_meta(
            segment
                .word(object * LINE + counted::META)
                .load(Ordering::Acquire),
        ) == Some(Mode::Object)
}

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
}

/// A block that was taken from the lists, not yet counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) line: u64,
    pub(crate) generation: u64,
}

impl Heap {
    pub(crate) fn new(me: Owner) -> Self {
        Self {
            me,
            inner: Mutex::new(Inner {
                free: [const { Vec::new() }; CLASSES],
                filling: [None; CLASSES],
                runs: BTreeMap::new(),
                owned: Vec::new(),
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
    ) -> Result<Candidate> {
        let mut inner = self.inner.lock();
        loop {
            let found = match class::class_of_size(bytes) {
                Some(class) => inner.small(segment, self.me, class)?,
                None => inner.large(segment, self.me, bytes)?,
            };
            leases.record(segment, lease, Kind::Alloc, found.line, found.generation);
            crate::failpoint!("block.alloc.recorded");
            let word = segment.word(found.line * LINE + counted::WORD);
            let free = word.load(Ordering::Relaxed);
            // Acquire: pairs with the release of whoever dropped the block; its accesses are over.
            if Counted::from_word(free).count == 0
                && word
                    .compare_exchange(
                        free,
                        Counted::new(found.generation, 1).to_word(),
                        Ordering::AcqRel,
                        Ordering::Relaxed,
                    )
                    .is_ok()
            {
                crate::failpoint!("block.alloc.counted");
                segment
                    .word(found.line * LINE + counted::LENGTH)
                    .store(bytes, Ordering::Relaxed);
                segment
                    .word(found.line * LINE + counted::META)
                    .store(Tag::meta_of_block(mode), Ordering::Release);
                leases.set(segment, lease, Kind::Held);
                return Ok(found);
            }
            leases.clear(segment, lease);
        }
    }

    /// Says that a block of one of our own chunks is free again.
    pub(crate) fn freed_here(&self, segment: &Segment, line: u64) {
        self.inner.lock().put(segment, self.me, line);
    }
}

/// First half of telling a block's owner that it is free, done *while the block is still counted*: a bit in
/// the chunk. (Afterwards the chunk may be retired and its bytes be somebody's tensor.) The owner puts back a
/// bit whose block is not free yet.
pub(crate) fn hint_before_free(segment: &Segment, line: u64) {
    let chunks = Chunks::new(segment);
    let Some(span) = locate(segment, line) else {
        return;
    };
    let (State::Owned(_, Use::Slab(class)) | State::Orphan(Use::Slab(class))) =
        chunks.state(span.chunk)
    else {
        return;
    };
    let Some(slab) = SLABS.get(class as usize) else {
        return;
    };
    let index = (line * LINE - chunks.offset(span.chunk) - slab.lines) / LINE;
    let word = chunks.offset(span.chunk) + index / 64 * WORD;
    segment
        .word(word)
        .fetch_or(1 << (index % 64), Ordering::AcqRel);
}

/// Second half, done once the count is 0: a dirty bit in the owner's row.
pub(crate) fn hint_after_free(segment: &Segment, line: u64) {
    let chunks = Chunks::new(segment);
    let Some(chunk) = chunk_of_line(segment, line) else {
        return;
    };
    let State::Owned(owner, _) = chunks.state(chunk) else {
        return;
    };
    let slot = chunks
        .word(chunk, descriptor::OWNER_SLOT)
        .load(Ordering::Acquire);
    let bit = slot % (64 * row::DIRTY_WORDS);
    let offset = ROWS_START + u64::from(owner.row) * ROW + row::DIRTY + bit / 64 * WORD;
    // Release: the owner that takes the bit (acquire) finds the count 0.
    segment
        .word(offset)
        .fetch_or(1 << (bit % 64), Ordering::AcqRel);
}

/// Who owns the chunk a block lies in, if it is owned.
pub(crate) fn owner_of_line(segment: &Segment, line: u64) -> Option<Owner> {
    match Chunks::new(segment).state(chunk_of_line(segment, line)?) {
        State::Owned(owner, _) => Some(owner),
        _ => None,
    }
}

fn chunk_of_line(segment: &Segment, line: u64) -> Option<u64> {
    let chunks = Chunks::new(segment);
    let offset = line.checked_mul(LINE)?;
    chunks
        .run_of_line(offset)
        .or_else(|| chunks.of_offset(offset))
}

impl Inner {
    fn small(&mut self, segment: &Segment, me: Owner, class: u32) -> Result<Candidate> {
        loop {
            while let Some(line) = self.free[class as usize].pop() {
                if let Some(found) = free_block(segment, line) {
                    return Ok(found);
                }
            }
            if self.collect_dirty(segment, me) {
                continue;
            }
            if let Some(found) = self.bump(segment, me, class)? {
                return Ok(found);
            }
        }
    }

    fn bump(&mut self, segment: &Segment, me: Owner, class: u32) -> Result<Option<Candidate>> {
        let chunks = Chunks::new(segment);
        let slab = SLABS[class as usize];
        let chunk = match self.filling[class as usize] {
            Some(chunk) => chunk,
            None => {
                if self.adopt_slab(segment, me, class) {
                    return Ok(None);
                }
                let chunk = self.claim(segment, me, 1)?;
                format_slab(&chunks, me, chunk, class, slab).inspect_err(|_| {
                    chunks.change(chunk, State::Owned(me, Use::Nothing), State::Free);
                })?;
                self.own(&chunks, chunk);
                self.filling[class as usize] = Some(chunk);
                chunk
            }
        };
        let bump = chunks.word(chunk, descriptor::BUMP).load(Ordering::Relaxed);
        if bump >= slab.blocks {
            self.filling[class as usize] = None;
            return Ok(None);
        }
        let end = slab.data + (bump + 1) * slab.size;
        if chunks
            .word(chunk, descriptor::COMMITTED)
            .load(Ordering::Relaxed)
            < end
        {
            chunks
                .commit(chunk, end.next_multiple_of(COMMIT_STEP).min(CHUNK))
                .or_else(|error| {
                    // The step may be what does not fit any more; the block itself may.
                    chunks
                        .commit(chunk, end.next_multiple_of(PAGE))
                        .map_err(|_| error)
                })?;
        }
        let generation = chunks
            .word(chunk, descriptor::GENERATION)
            .load(Ordering::Relaxed);
        let offset = chunks.offset(chunk) + slab.lines + bump * LINE;
        segment
            .word(offset + counted::META)
            .store(0, Ordering::Relaxed);
        segment
            .word(offset)
            .store(Counted::new(generation, 0).to_word(), Ordering::Relaxed);
        // Release: a line below the mark is initialised.
        chunks
            .word(chunk, descriptor::BUMP)
            .store(bump + 1, Ordering::Release);
        Ok(free_block(segment, offset / LINE))
    }

    fn large(&mut self, segment: &Segment, me: Owner, bytes: u64) -> Result<Candidate> {
        let chunks = Chunks::new(segment);
        let count = bytes.div_ceil(CHUNK);
        // A run up to a quarter longer than needed is reused rather than a fresh one claimed.
        let most = count + count / 4;
        self.collect_dirty(segment, me);
        if let (Ok(least), Ok(most)) = (u32::try_from(count), u32::try_from(most)) {
            while let Some((&length, heads)) = self.runs.range_mut(least..=most).next() {
                let Some(head) = heads.pop() else {
                    self.runs.remove(&length);
                    continue;
                };
                let Some(found) = free_block(segment, Chunks::run_line(head)) else {
                    continue;
                };
                if let Err(error) = chunks.commit(head, bytes) {
                    self.runs.entry(length).or_default().push(head);
                    return Err(error);
                }
                return Ok(found);
            }
        }
        let first = self.claim(segment, me, count)?;
        chunks.format_run(me, first, count);
        self.own(&chunks, first);
        if let Err(error) = chunks.commit(first, bytes) {
            self.disown(&chunks, first);
            chunks.retire_run(first, count, me);
            return Err(error);
        }
        let line = Chunks::run_line(first);
        segment
            .word(line * LINE + counted::META)
            .store(0, Ordering::Relaxed);
        let word = segment.word(line * LINE).load(Ordering::Relaxed);
        Ok(Candidate {
            line,
            generation: Counted::from_word(word).next_generation(),
        })
    }

    /// Claims chunks; when the arena has none left, gives own unused ones back first and tries once more.
    fn claim(&mut self, segment: &Segment, me: Owner, count: u64) -> Result<u64> {
        let chunks = Chunks::new(segment);
        chunks.claim(me, count).or_else(|error| {
            if self.retire_unused(segment, me) == 0 && !sweep_orphans(segment, me) {
                return Err(error);
            }
            chunks.claim(me, count)
        })
    }

    fn own(&mut self, chunks: &Chunks<'_>, chunk: u64) {
        chunks
            .word(chunk, descriptor::OWNER_SLOT)
            .store(self.owned.len() as u64, Ordering::Release);
        self.owned.push(chunk);
    }

    fn disown(&mut self, chunks: &Chunks<'_>, chunk: u64) {
        if let Some(slot) = self.owned.iter().position(|&owned| owned == chunk) {
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
                }
            }
            State::Owned(owner, Use::Run(count)) if owner == me => {
                let heads = self.runs.entry(count).or_default();
                if !heads.contains(&span.chunk) {
                    heads.push(span.chunk);
                }
            }
            _ => {}
        }
    }

    /// Takes in what other processes freed. Returns whether there was anything.
    fn collect_dirty(&mut self, segment: &Segment, me: Owner) -> bool {
        let chunks = Chunks::new(segment);
        let bits = 64 * row::DIRTY_WORDS as usize;
        let mut found = false;
        for index in 0..row::DIRTY_WORDS {
            let word =
                segment.word(ROWS_START + u64::from(me.row) * ROW + row::DIRTY + index * WORD);
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut dirty = word.swap(0, Ordering::AcqRel);
            while dirty != 0 {
                let first = index as usize * 64 + dirty.trailing_zeros() as usize;
                dirty &= dirty - 1;
                for slot in (first..self.owned.len()).step_by(bits) {
                    found |= self.collect_chunk(&chunks, self.owned[slot]);
                }
            }
        }
        found
    }

    fn collect_chunk(&mut self, chunks: &Chunks<'_>, chunk: u64) -> bool {
        match chunks.state(chunk) {
            State::Owned(_, Use::Slab(class)) => {
                let Some(slab) = SLABS.get(class as usize) else {
                    return false;
                };
                let mut found = false;
                for index in 0..slab.blocks.div_ceil(64) {
                    let word = chunks.segment.word(chunks.offset(chunk) + index * WORD);
                    if word.load(Ordering::Relaxed) == 0 {
                        continue;
                    }
                    let mut freed = word.swap(0, Ordering::AcqRel);
                    while freed != 0 {
                        let bit = freed.trailing_zeros();
                        freed &= freed - 1;
                        let line = (chunks.offset(chunk) + slab.lines) / LINE
                            + index * 64
                            + u64::from(bit);
                        if free_block(chunks.segment, line).is_some() {
                            self.free[class as usize].push(line);
                            found = true;
                        } else {
                            // Its last holder is between the two halves of the hint (or died there).
                            word.fetch_or(1 << bit, Ordering::AcqRel);
                        }
                    }
                }
                found
            }
            State::Owned(_, Use::Run(count)) => {
                let free = free_block(chunks.segment, Chunks::run_line(chunk)).is_some();
                let heads = self.runs.entry(count).or_default();
                if free && !heads.contains(&chunk) {
                    heads.push(chunk);
                }
                free
            }
            _ => false,
        }
    }

    /// Takes over a slab of this class whose owner died, with its free blocks.
    fn adopt_slab(&mut self, segment: &Segment, me: Owner, class: u32) -> bool {
        let chunks = Chunks::new(segment);
        let orphan = State::Orphan(Use::Slab(class));
        for chunk in 0..chunks.high() {
            if chunks.state(chunk) == orphan
                && chunks.change(chunk, orphan, State::Owned(me, Use::Slab(class)))
            {
                self.own(&chunks, chunk);
                let slab = SLABS[class as usize];
                let bump = chunks
                    .word(chunk, descriptor::BUMP)
                    .load(Ordering::Acquire)
                    .min(slab.blocks);
                let first = (chunks.offset(chunk) + slab.lines) / LINE;
                self.free[class as usize].extend(
                    (first..first + bump).filter(|&line| free_block(segment, line).is_some()),
                );
                if bump < slab.blocks {
                    self.filling[class as usize] = Some(chunk);
                }
                return true;
            }
        }
        false
    }

    fn retire_unused(&mut self, segment: &Segment, me: Owner) -> u64 {
        let chunks = Chunks::new(segment);
        self.collect_dirty(segment, me);
        let mut given_back = 0;
        for chunk in self.owned.clone() {
            // A device may still be reading or writing there.
            if chunks
                .word(chunk, descriptor::PIN_COUNT)
                .load(Ordering::Acquire)
                != 0
            {
                continue;
            }
            match chunks.state(chunk) {
                State::Owned(owner, Use::Run(count))
                    if owner == me && free_block(segment, Chunks::run_line(chunk)).is_some() =>
                {
                    self.disown(&chunks, chunk);
                    chunks.retire_run(chunk, u64::from(count), me);
                    given_back += u64::from(count);
                }
                State::Owned(owner, Use::Slab(class))
                    if owner == me && slab_is_unused(segment, chunk, class) =>
                {
                    self.disown(&chunks, chunk);
                    let slot = &mut self.filling[class as usize];
                    *slot = slot.filter(|&filling| filling != chunk);
                    retire_slab(segment, chunk, class, State::Owned(me, Use::Slab(class)));
                    given_back += 1;
                }
                _ => {}
            }
        }
        // Hints into chunks that are gone would be looked at in vain (or find a stranger's block).
        for list in &mut self.free {
            list.retain(|&line| {
                locate(segment, line).is_some_and(|span| matches!(chunks.state(span.chunk), State::Owned(owner, _) if owner == me))
            });
        }
        for (&count, heads) in &mut self.runs {
            heads.retain(|&head| chunks.state(head) == State::Owned(me, Use::Run(count)));
        }
        given_back
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

fn format_slab(chunks: &Chunks<'_>, me: Owner, chunk: u64, class: u32, slab: Slab) -> Result<()> {
    let first = (slab.data + slab.size).next_multiple_of(PAGE);
    chunks
        .commit(chunk, first.next_multiple_of(COMMIT_STEP).min(CHUNK))
        .or_else(|error| chunks.commit(chunk, first).map_err(|_| error))?;
    for word in 0..slab.lines / WORD {
        chunks
            .segment
            .word(chunks.offset(chunk) + word * WORD)
            .store(0, Ordering::Relaxed);
    }
    chunks
        .word(chunk, descriptor::BUMP)
        .store(0, Ordering::Relaxed);
    crate::failpoint!("chunk.slab.unformatted");
    chunks.word(chunk, descriptor::STATE).store(
        State::Owned(me, Use::Slab(class)).to_word(),
        Ordering::Release,
    );
    Ok(())
}

/// Whether no block of a slab is in use.
fn slab_is_unused(segment: &Segment, chunk: u64, class: u32) -> bool {
    let chunks = Chunks::new(segment);
    let Some(slab) = SLABS.get(class as usize) else {
        return false;
    };
    let bump = chunks
        .word(chunk, descriptor::BUMP)
        .load(Ordering::Acquire)
        .min(slab.blocks);
    let first = (chunks.offset(chunk) + slab.lines) / LINE;
    (first..first + bump).all(|line| free_block(segment, line).is_some())
}

/// Makes a slab without live blocks a free chunk; `from` is its present state.
fn retire_slab(segment: &Segment, chunk: u64, class: u32, from: State) {
    let chunks = Chunks::new(segment);
    let Some(slab) = SLABS.get(class as usize) else {
        return;
    };
    let bump = chunks
        .word(chunk, descriptor::BUMP)
        .load(Ordering::Acquire)
        .min(slab.blocks);
    let first = (chunks.offset(chunk) + slab.lines) / LINE;
    let mark = chunks.word(chunk, descriptor::GENERATION);
    let generation = (first..first + bump)
        .map(|line| {
            Counted::from_word(segment.word(line * LINE).load(Ordering::Acquire)).next_generation()
        })
        .max()
        .unwrap_or(0);
    mark.fetch_max(generation, Ordering::AcqRel);
    chunks.change(chunk, from, State::Free);
}

/// Gives the chunks of a dead participant back, or leaves them to be adopted while others use their blocks.
pub(crate) fn bury_chunks(segment: &Segment, dead: Owner) {
    let chunks = Chunks::new(segment);
    let mut leases = Vec::new();
    for chunk in 0..chunks.high() {
        let State::Owned(owner, used) = chunks.state(chunk) else {
            continue;
        };
        if owner != dead {
            continue;
        }
        let from = State::Owned(dead, used);
        match used {
            Use::Nothing | Use::Tail(_) => {
                // A tail whose head is a formatted run goes with its head.
                let headed = matches!(used, Use::Tail(distance) if chunk.checked_sub(u64::from(distance)).is_some_and(|head| {
                    matches!(chunks.state(head), State::Owned(owner, Use::Run(count)) if owner == dead && count > distance)
                        || matches!(chunks.state(head), State::Orphan(Use::Run(count)) if count > distance)
                }));
                if !headed {
                    chunks.change(chunk, from, State::Free);
                }
            }
            Use::Slab(class) => {
                if slab_is_unused(segment, chunk, class) {
                    retire_slab(segment, chunk, class, from);
                } else {
                    chunks.change(chunk, from, State::Orphan(used));
                }
            }
            Use::Run(count) => {
                if free_block(segment, Chunks::run_line(chunk)).is_some() {
                    let count = count.min((chunks.high() - chunk) as u32);
                    adopt_tails(&chunks, dead, chunk, count);
                    chunks.retire_run(chunk, u64::from(count), dead);
                } else {
                    orphan_run(&chunks, dead, chunk, count);
                }
            }
            Use::Leases => leases.push(chunk),
        }
    }
    // Last: until here an interrupted burial can be taken up again from the entries.
    for chunk in leases {
        chunks.change(chunk, State::Owned(dead, Use::Leases), State::Free);
    }
}

fn orphan_run(chunks: &Chunks<'_>, dead: Owner, head: u64, count: u32) {
    for distance in 1..count {
        let tail = Use::Tail(distance);
        chunks.change(
            head + u64::from(distance),
            State::Owned(dead, tail),
            State::Orphan(tail),
        );
    }
    chunks.change(
        head,
        State::Owned(dead, Use::Run(count)),
        State::Orphan(Use::Run(count)),
    );
}

/// Makes the orphaned tails of a run `owner`'s, as its head is.
fn adopt_tails(chunks: &Chunks<'_>, owner: Owner, head: u64, count: u32) {
    for distance in 1..count {
        let tail = Use::Tail(distance);
        chunks.change(
            head + u64::from(distance),
            State::Orphan(tail),
            State::Owned(owner, tail),
        );
    }
}

/// Frees orphaned chunks that nobody uses any more. Returns whether there were any.
pub(crate) fn sweep_orphans(segment: &Segment, me: Owner) -> bool {
    let chunks = Chunks::new(segment);
    let mut found = false;
    for chunk in 0..chunks.high() {
        let State::Orphan(used) = chunks.state(chunk) else {
            continue;
        };
        match used {
            Use::Slab(class)
                if slab_is_unused(segment, chunk, class)
                    && chunks.change(chunk, State::Orphan(used), State::Owned(me, used)) =>
            {
                retire_slab(segment, chunk, class, State::Owned(me, used));
                found = true;
            }
            Use::Run(count)
                if free_block(segment, Chunks::run_line(chunk)).is_some()
                    && chunks.change(chunk, State::Orphan(used), State::Owned(me, used)) =>
            {
                adopt_tails(&chunks, me, chunk, count);
                chunks.retire_run(chunk, u64::from(count), me);
                found = true;
            }
            _ => {}
        }
    }
    found
}
