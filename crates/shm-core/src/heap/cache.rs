//! The limit on free memory that a process keeps, where the arena was made with one.
//!
//! What is free is counted only now and then: after so many bytes were freed as were missing to the limit when it was
//! counted last. So freeing a small block stays a matter of a subtraction.

use core::sync::atomic::Ordering;

use super::Inner;
use super::trim::give_pages_back;
use crate::cells::Owner;
use crate::chunk::{Chunks, State};
use crate::class;
use crate::layout::{CHUNK, descriptor, header};
use crate::segment::Segment;

/// The least that is freed between two counts.
const STEP: u64 = 1 << 20;

pub(super) struct Cache {
    limit: Option<u64>,
    /// Bytes that may still be freed before it is counted again.
    left: u64,
}

impl Cache {
    pub(super) fn new(segment: &Segment) -> Self {
        let limit = limit_of(segment);
        Self {
            limit,
            left: limit.unwrap_or(u64::MAX),
        }
    }

    /// A block of a slab is free.
    pub(super) fn freed(&mut self, bytes: u64) {
        self.left = self.left.saturating_sub(bytes);
    }

    /// A run is free. It can be given back whole, so what is kept is counted at once.
    pub(super) fn freed_run(&mut self) {
        self.left = 0;
    }
}

/// Gives back what is nobody's: chunks that a participant has shared, or left when it went, count against the limit as
/// well.
pub(crate) fn give_back_inherited(segment: &Segment, me: Owner) {
    if let Some(limit) = limit_of(segment) {
        give_back_above(segment, me, limit);
    }
}

/// The limit that the arena was made with.
fn limit_of(segment: &Segment) -> Option<u64> {
    segment
        .word(header::CACHE_LIMIT)
        .load(Ordering::Relaxed)
        .checked_sub(1)
}

impl Inner {
    /// Gives free memory back if there may be more than the limit.
    #[inline]
    pub(super) fn keep_within_limit(&mut self, segment: &Segment, me: Owner) {
        if self.cache.left == 0
            && let Some(limit) = self.cache.limit
        {
            self.shrink(segment, me, limit);
        }
    }

    #[cold]
    fn shrink(&mut self, segment: &Segment, me: Owner, limit: u64) {
        if self.kept() > limit {
            self.retire_unused(segment, me);
            give_back_above(segment, me, limit);
        }
        // Blocks in chunks that hold others, too, can't be given back: to look for them each time would be in vain.
        let kept = self.kept();
        self.cache.left = limit.saturating_sub(kept).max(kept / 2).max(STEP);
    }

    /// Bytes of blocks that are probably free.
    fn kept(&self) -> u64 {
        let blocks = |(class, list): (usize, &Vec<u64>)| {
            class::size_of_class(class as u32) * list.len() as u64
        };
        let small: u64 = self.free.iter().enumerate().map(blocks).sum();
        small.saturating_add(self.kept_chunks().saturating_mul(CHUNK))
    }
}

/// Punches free chunks, from the last one on, until those that are left have no more than `limit` bytes together.
fn give_back_above(segment: &Segment, me: Owner, limit: u64) {
    let chunks = Chunks::new(segment);
    let mut kept = 0_u64;
    for chunk in 0..chunks.high() {
        if chunks.state(chunk) != State::Free {
            continue;
        }
        let committed = chunks
            .word(chunk, descriptor::COMMITTED)
            .load(Ordering::Relaxed)
            .min(CHUNK);
        if kept + committed > limit {
            give_pages_back(&chunks, me, chunk);
        } else {
            kept += committed;
        }
    }
}
