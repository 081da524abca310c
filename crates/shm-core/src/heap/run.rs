//! Runs: large blocks, each of whole chunks in a row.

use core::sync::atomic::Ordering;

use super::{Candidate, Inner, free_block};
use crate::cells::Owner;
use crate::chunk::{Chunks, State, Use};
use crate::error::Result;
use crate::layout::{CHUNK, LINE, counted};
use crate::line::Counted;
use crate::segment::Segment;

impl Inner {
    pub(super) fn large(&mut self, segment: &Segment, me: Owner, bytes: u64) -> Result<Candidate> {
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
}

pub(super) fn orphan_run(chunks: &Chunks<'_>, dead: Owner, head: u64, count: u32) {
    for distance in 1..chunks.run_length(head, count) {
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
pub(super) fn adopt_tails(chunks: &Chunks<'_>, owner: Owner, head: u64, count: u32) {
    for distance in 1..chunks.run_length(head, count) {
        let tail = Use::Tail(distance);
        chunks.change(
            head + u64::from(distance),
            State::Orphan(tail),
            State::Owned(owner, tail),
        );
    }
}
