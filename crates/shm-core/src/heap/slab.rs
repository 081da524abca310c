//! Slabs: chunks of equal blocks, for what is up to 256 KiB.

use core::sync::atomic::Ordering;

use super::{Candidate, Inner, free_block};
use crate::cells::Owner;
use crate::chunk::{Chunks, State, Use};
use crate::class::{SLABS, Slab};
use crate::error::Result;
use crate::layout::{CHUNK, LINE, PAGE, WORD, counted, descriptor, header};
use crate::line::Counted;
use crate::prefetch::{AHEAD, prefetch};
use crate::segment::Segment;

/// Slab memory is committed in steps of this many bytes.
const COMMIT_STEP: u64 = 256 << 10;

impl Inner {
    pub(super) fn small(&mut self, segment: &Segment, me: Owner, class: u32) -> Result<Candidate> {
        loop {
            let free = &mut self.free[class as usize];
            while let Some(line) = free.pop() {
                if let Some(&next) = free.len().checked_sub(AHEAD).and_then(|at| free.get(at)) {
                    prefetch(segment.word(next * LINE));
                }
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
                let chunk = match self.claim(segment, me, 1) {
                    Ok(chunk) => chunk,
                    // Looking for chunks to give back, it met blocks that others had freed.
                    Err(_) if !self.free[class as usize].is_empty() => return Ok(None),
                    Err(error) => return Err(error),
                };
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

    /// Takes over a slab of this class whose owner died, with its free blocks.
    fn adopt_slab(&mut self, segment: &Segment, me: Owner, class: u32) -> bool {
        let chunks = Chunks::new(segment);
        let orphan = State::Orphan(Use::Slab(class));
        // Before the first look: an orphan that comes after we passed it changes the number.
        let orphans = Some(segment.word(header::ORPHANED).load(Ordering::Acquire));
        if self.no_orphan[class as usize] == orphans {
            return false;
        }
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
        self.no_orphan[class as usize] = orphans;
        false
    }
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
pub(super) fn slab_is_unused(segment: &Segment, chunk: u64, class: u32) -> bool {
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
pub(super) fn retire_slab(segment: &Segment, chunk: u64, class: u32, from: State) {
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
