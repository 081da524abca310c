//! How an owner learns which of its blocks others have freed: a bit per block in its chunk, and a few dirty bits in
//! the owner's row that say which chunks to look at. Hints only; a lost one is found again by a scan.

use core::sync::atomic::Ordering;

use super::locate::{chunk_of_line, locate};
use super::{Inner, free_block};
use crate::cells::Owner;
use crate::chunk::{Chunks, State, Use};
use crate::class::SLABS;
use crate::layout::{LINE, ROW, ROWS_START, WORD, descriptor, row};
use crate::participant::table::Row;
use crate::segment::Segment;

/// First half of telling a block's owner that it is free, done *while the block is still counted*: a bit in
/// the chunk. (Afterwards the chunk may be retired and its bytes be somebody's tensor.) The owner puts back a
/// bit whose block is not free yet.
pub(crate) fn hint_before_free(segment: &Segment, line: u64) {
    let chunks = Chunks::new(segment);
    let Some(span) = locate(segment, line) else {
        return;
    };
    let Some(index) = span.index else {
        return;
    };
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
    // The state word may be a broken peer's: only rows that exist are written to.
    let Some(row) = Row::get(segment, owner.row) else {
        return;
    };
    // Release: the owner that takes the bit (acquire) finds the count 0.
    row.word(row::DIRTY + bit / 64 * WORD)
        .fetch_or(1 << (bit % 64), Ordering::AcqRel);
}

impl Inner {
    /// Takes in what other processes freed. Returns whether there was anything.
    pub(super) fn collect_dirty(&mut self, segment: &Segment, me: Owner) -> bool {
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

    /// Takes in what others freed in every own chunk, also where no dirty bit (any more) tells.
    pub(super) fn collect_all(&mut self, segment: &Segment) {
        for chunk in self.owned.clone() {
            self.collect_chunk(&Chunks::new(segment), chunk);
        }
    }

    fn collect_chunk(&mut self, chunks: &Chunks<'_>, chunk: u64) -> bool {
        match chunks.state(chunk) {
            State::Owned(_, Use::Slab(class)) => {
                let Some(slab) = SLABS.get(class as usize) else {
                    return false;
                };
                let mut found = false;
                let bump = chunks
                    .word(chunk, descriptor::BUMP)
                    .load(Ordering::Relaxed)
                    .min(slab.blocks);
                for index in 0..slab.blocks.div_ceil(64) {
                    let word = chunks.segment.word(chunks.offset(chunk) + index * WORD);
                    if word.load(Ordering::Relaxed) == 0 {
                        continue;
                    }
                    let mut freed = word.swap(0, Ordering::AcqRel);
                    while freed != 0 {
                        let bit = freed.trailing_zeros();
                        freed &= freed - 1;
                        let block = index * 64 + u64::from(bit);
                        if block >= bump {
                            continue;
                        }
                        let line = (chunks.offset(chunk) + slab.lines) / LINE + block;
                        if free_block(chunks.segment, line).is_some() {
                            self.free[class as usize].push(line);
                            self.cache.freed(slab.size);
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
                    self.cache.freed_run();
                }
                free
            }
            _ => false,
        }
    }
}
