//! Giving memory back to the system: the pages of chunks that hold nothing.
//!
//! Freed blocks keep their pages, since the first touch of fresh ones is what costs. When a limit is reached, or when
//! the user asks, free chunks lose theirs: a chunk is claimed, its mark of committed bytes set to 0, then a hole is
//! punched. A kill between leaves a chunk that its reaper frees, with pages that the next commit finds there.

use core::sync::atomic::Ordering;

use super::bury::sweep_orphans;
use super::{Heap, Inner};
use crate::cells::Owner;
use crate::chunk::{Chunks, State, Use};
use crate::class::SLABS;
use crate::layout::{CHUNK, LINE, descriptor, header};
use crate::line::Counted;
use crate::segment::Segment;

/// What is in use, and what is kept for the next allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) blocks: u64,
    pub(crate) live: u64,
    pub(crate) committed: u64,
    /// Bytes of chunks that hold leases, a part of what is committed.
    pub(crate) leases: u64,
}

impl Heap {
    /// Gives the pages of everything unused that this process can reach back to the system. Returns their bytes.
    pub(crate) fn trim(&self, segment: &Segment) -> u64 {
        self.inner.lock().trim(segment, self.me)
    }
}

impl Inner {
    pub(super) fn trim(&mut self, segment: &Segment, me: Owner) -> u64 {
        self.retire_unused(segment, me);
        sweep_orphans(segment, me);
        let chunks = Chunks::new(segment);
        let free = (0..chunks.high()).filter(|&chunk| chunks.state(chunk) == State::Free);
        free.map(|chunk| give_pages_back(&chunks, me, chunk)).sum()
    }
}

/// Punches a free chunk's pages out, if nobody claims it first. Returns how many bytes that were.
pub(super) fn give_pages_back(chunks: &Chunks<'_>, me: Owner, chunk: u64) -> u64 {
    let mark = chunks.word(chunk, descriptor::COMMITTED);
    let ours = State::Owned(me, Use::Nothing);
    // A device may still be reading or writing there, for one who is gone.
    if mark.load(Ordering::Relaxed) == 0
        || chunks.is_pinned(chunk)
        || !chunks.change(chunk, State::Free, ours)
    {
        return 0;
    }
    let committed = mark
        .swap(0, Ordering::Relaxed)
        .min(CHUNK)
        .next_multiple_of(chunks.page());
    crate::failpoint!("chunk.trim.unmarked");
    let punched = chunks.segment.punch(chunks.offset(chunk), committed);
    let given_back = match punched {
        Ok(()) => {
            chunks
                .segment
                .word(header::COMMITTED)
                .fetch_sub(committed, Ordering::Relaxed);
            committed
        }
        Err(error) => {
            // Its pages stay; the next commit finds them there.
            crate::say!(warn, %error, "a free chunk keeps its memory");
            mark.store(committed, Ordering::Relaxed);
            0
        }
    };
    chunks.change(chunk, ours, State::Free);
    given_back
}

/// Looks at every block of the arena; takes time in proportion to their number.
pub(crate) fn usage(segment: &Segment) -> Usage {
    let chunks = Chunks::new(segment);
    let mut usage = Usage {
        committed: segment.word(header::COMMITTED).load(Ordering::Relaxed),
        ..Usage::default()
    };
    let mut add = |line: u64, bytes: u64| {
        if Counted::from_word(segment.word(line * LINE).load(Ordering::Acquire)).count > 0 {
            usage.blocks += 1;
            usage.live += bytes;
        }
    };
    let mut leases = 0;
    for chunk in 0..chunks.high() {
        match chunks.state(chunk) {
            State::Owned(_, Use::Leases) => {
                let committed = chunks.word(chunk, descriptor::COMMITTED);
                leases += committed.load(Ordering::Acquire).min(CHUNK);
            }
            State::Owned(_, Use::Slab(class)) | State::Orphan(Use::Slab(class)) => {
                let Some(slab) = SLABS.get(class as usize) else {
                    continue;
                };
                let bump = chunks
                    .word(chunk, descriptor::BUMP)
                    .load(Ordering::Acquire)
                    .min(slab.blocks);
                let first = (chunks.offset(chunk) + slab.lines) / LINE;
                (first..first + bump).for_each(|line| add(line, slab.size));
            }
            State::Owned(_, Use::Run(count)) | State::Orphan(Use::Run(count)) => {
                let committed = chunks
                    .word(chunk, descriptor::COMMITTED)
                    .load(Ordering::Acquire);
                add(
                    Chunks::run_line(chunk),
                    committed.min(u64::from(count) * CHUNK),
                );
            }
            _ => {}
        }
    }
    usage.leases = leases;
    usage
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::arena::Arena;
    use crate::error::ErrorKind;
    use crate::held::Held;
    use crate::line::Mode;
    use crate::room::FixedLimits;

    const MIB: u64 = 1 << 20;

    #[test]
    fn trimming_gives_back_what_holds_nothing_and_only_that() {
        let arena = Arena::builder().capacity(1 << 30).create().unwrap();
        let kept = Held::allocate(&arena, 3 * MIB, Mode::Exclusive).unwrap();
        let small: Vec<_> = (0..1000)
            .map(|_| Held::allocate(&arena, 4096, Mode::Exclusive).unwrap())
            .collect();
        let large = Held::allocate(&arena, 40 * MIB, Mode::Exclusive).unwrap();
        let before = arena.stats();
        assert_eq!(before.blocks, 1002);
        assert!(before.live >= 43 * MIB && before.committed >= before.live);
        drop((small, large));
        let freed = arena.stats();
        assert_eq!((freed.blocks, freed.committed), (1, before.committed));
        assert!(freed.cached >= 43 * MIB, "{freed:?}");

        let given_back = arena.trim();
        let after = arena.stats();
        assert!(given_back >= 43 * MIB, "{given_back}");
        assert_eq!(after.committed, freed.committed - given_back);
        assert!(after.live >= 3 * MIB);
        drop(kept);
        // Everything can be had again.
        let again = Held::allocate(&arena, 40 * MIB, Mode::Exclusive).unwrap();
        drop(again);
        assert!(arena.audit().leaked.is_empty());
    }

    #[test]
    fn what_is_kept_for_one_size_makes_room_for_another_at_the_limit() {
        let limits = Arc::new(FixedLimits::new(u64::MAX));
        let arena = Arena::builder()
            .capacity(1 << 30)
            .limits(limits.clone())
            .create()
            .unwrap();
        let first = Held::allocate(&arena, 12 * MIB, Mode::Exclusive).unwrap();
        drop(first);
        // Nothing more may be taken, until something is given back.
        limits.set_free(8 * MIB);
        let error = Held::allocate(&arena, 200 * MIB, Mode::Exclusive).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::OutOfRoom(_)), "{error}");
        assert!(
            arena.stats().committed < 12 * MIB,
            "the 12 MiB were given back: {:?}",
            arena.stats()
        );
        limits.set_free(u64::MAX);
        Held::allocate(&arena, 200 * MIB, Mode::Exclusive).unwrap();
    }
}
