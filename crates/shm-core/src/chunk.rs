//! Chunks: 2 MiB pieces of the arena, each with one owner.
//!
//! A process claims a chunk by one compare-and-swap on the chunk's state word, so a dead owner is visible and
//! no allocator lock crosses processes. A chunk is a *slab* of equal blocks, the head or the tail of a *run*
//! (one large block), or holds *leases*. States: FREE → OWNED(me) by a claim; OWNED → FREE when its owner
//! retires it; OWNED → ORPHAN when its owner dies while others still use its blocks; ORPHAN → OWNED(me) by
//! adoption. A kill between two steps leaves a chunk OWNED by a dead participant, which its reaper finds.

use core::sync::atomic::Ordering;

use crate::cells::Owner;
use crate::error::{Error, Result};
use crate::layout::{
    self, CHUNK, DESCRIPTOR, DESCRIPTORS_START, DESCRIPTORS_STEP, LINE, PAGE, descriptor, header,
};
use crate::segment::Segment;

const FREE: u64 = 0;
const OWNED: u64 = 1;
const ORPHAN: u64 = 2;

/// What a chunk is used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Use {
    /// Claimed, not formatted yet.
    Nothing,
    /// Equal blocks of this size class.
    Slab(u32),
    /// First chunk of a run of so many chunks.
    Run(u32),
    /// A later chunk of a run: distance to its head.
    Tail(u32),
    /// Lease entries.
    Leases,
}

impl Use {
    /// Its part of a chunk's state word.
    const fn bits(self) -> u64 {
        match self {
            Self::Nothing => 0,
            Self::Slab(class) => (1 << 2) | ((class as u64) << 34),
            Self::Run(chunks) => (2 << 2) | ((chunks as u64) << 34),
            Self::Tail(distance) => (3 << 2) | ((distance as u64) << 34),
            Self::Leases => 4 << 2,
        }
    }
}

/// Whose a chunk is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Free,
    Owned(Owner, Use),
    Orphan(Use),
}

impl State {
    pub(crate) fn from_word(word: u64) -> Self {
        let parameter = (word >> 34) as u32;
        let used = match (word >> 2) & 0xf {
            1 => Use::Slab(parameter),
            2 => Use::Run(parameter),
            3 => Use::Tail(parameter),
            4 => Use::Leases,
            _ => Use::Nothing,
        };
        match word & 3 {
            OWNED => {
                let row = ((word >> 6) & 0xfff) as u16;
                let epoch = ((word >> 18) & 0xffff) as u16;
                Self::Owned(Owner { row, epoch }, used)
            }
            ORPHAN => Self::Orphan(used),
            _ => Self::Free,
        }
    }

    pub(crate) const fn to_word(self) -> u64 {
        match self {
            Self::Free => FREE,
            Self::Owned(owner, used) => {
                OWNED | used.bits() | ((owner.row as u64) << 6) | ((owner.epoch as u64) << 18)
            }
            Self::Orphan(used) => ORPHAN | used.bits(),
        }
    }
}

/// What one process knows of the chunks in use, so that it need not look at all of them for each claim.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    /// The number of freed chunks at that time.
    freed: u64,
    /// No chunk before this one was free then.
    taken: u64,
}

/// The chunk table of an arena, seen by one participant.
#[derive(Clone, Copy)]
pub(crate) struct Chunks<'a> {
    pub(crate) segment: &'a Segment,
}

impl<'a> Chunks<'a> {
    pub(crate) fn new(segment: &'a Segment) -> Self {
        Self { segment }
    }

    /// Offset of a chunk's first byte.
    pub(crate) fn offset(&self, chunk: u64) -> u64 {
        layout::chunks_start(self.segment.capacity()) + chunk * CHUNK
    }

    /// The chunk that holds `offset`, if it lies in one that was ever claimed.
    pub(crate) fn of_offset(&self, offset: u64) -> Option<u64> {
        let chunk = offset.checked_sub(layout::chunks_start(self.segment.capacity()))? / CHUNK;
        (chunk < self.high()).then_some(chunk)
    }

    /// Offset of a chunk's descriptor.
    pub(crate) fn descriptor(chunk: u64) -> u64 {
        DESCRIPTORS_START + chunk * DESCRIPTOR
    }

    /// A word of a chunk's descriptor.
    pub(crate) fn word(&self, chunk: u64, field: u64) -> &'a core::sync::atomic::AtomicU64 {
        self.segment.word(Self::descriptor(chunk) + field)
    }

    /// The line number of a run's counted line.
    pub(crate) fn run_line(chunk: u64) -> u64 {
        (Self::descriptor(chunk) + descriptor::RUN_LINE) / LINE
    }

    /// The first chunk of the run whose counted line is at `offset`.
    pub(crate) fn chunk_of_run_line(offset: u64) -> u64 {
        (offset - DESCRIPTORS_START) / DESCRIPTOR
    }

    /// The run whose counted line is at `offset`, if there is one.
    pub(crate) fn run_of_line(&self, offset: u64) -> Option<u64> {
        let within = offset.checked_sub(DESCRIPTORS_START)?;
        let chunk = within / DESCRIPTOR;
        (within % DESCRIPTOR == descriptor::RUN_LINE && chunk < self.high()).then_some(chunk)
    }

    /// Chunks that were ever claimed.
    pub(crate) fn high(&self) -> u64 {
        // Whatever a broken peer wrote, never look beyond the table.
        self.segment
            .word(header::CHUNKS_HIGH)
            .load(Ordering::Acquire)
            .min(layout::chunk_count(self.segment.capacity()))
    }

    /// How many chunks of a run of `count` there can be at most: its head's word may be a broken peer's.
    pub(crate) fn run_length(&self, head: u64, count: u32) -> u32 {
        u32::try_from(self.high().saturating_sub(head)).map_or(count, |most| count.min(most))
    }

    pub(crate) fn state(&self, chunk: u64) -> State {
        State::from_word(self.word(chunk, descriptor::STATE).load(Ordering::Acquire))
    }

    /// Changes a chunk's state from exactly `from` to `to`.
    pub(crate) fn change(&self, chunk: u64, from: State, to: State) -> bool {
        // AcqRel: what the previous owner wrote into the descriptor is seen by the next one.
        let changed = self
            .word(chunk, descriptor::STATE)
            .compare_exchange(
                from.to_word(),
                to.to_word(),
                Ordering::AcqRel,
                Ordering::Relaxed,
            )
            .is_ok();
        match to {
            State::Free if changed => self.tell(header::FREED),
            State::Orphan(_) if changed => self.tell(header::ORPHANED),
            _ => {}
        }
        changed
    }

    /// Says that there are new free chunks, or orphans, after they are there. Whoever is killed before it gets here is
    /// reaped, and burying says both anew.
    pub(crate) fn tell(&self, what: u64) {
        // Release: who reads the new number (acquire) sees the chunks as they are now.
        self.segment.word(what).fetch_add(1, Ordering::Release);
    }

    /// Claims `count` chunks in a row for `me`, all in [`Use::Nothing`].
    pub(crate) fn claim(&self, me: Owner, count: u64, seen: &mut Seen) -> Result<u64> {
        if let Some(first) = self.claim_below_high(me, count, seen) {
            return Ok(first);
        }
        loop {
            let high = self.high();
            let total = layout::chunk_count(self.segment.capacity());
            if count > total - high {
                // What is free right below goes together with what was never used.
                let first = self.free_below(high);
                if count <= total - first {
                    self.commit_descriptors(first + count)?;
                    let raised = self.segment.word(header::CHUNKS_HIGH).compare_exchange(
                        high,
                        first + count,
                        Ordering::AcqRel,
                        Ordering::Relaxed,
                    );
                    if raised.is_ok() && self.claim_exactly(me, first, count) {
                        return Ok(first);
                    }
                    continue;
                }
                // Whatever was seen: before it fails, each chunk is looked at.
                *seen = Seen::default();
                return self.claim_below_high(me, count, seen).ok_or_else(|| {
                    let (free, largest) = self.free(high, total);
                    let asked = count.saturating_mul(CHUNK);
                    Error::capacity(asked, self.segment.capacity(), free, largest)
                });
            }
            self.commit_descriptors(high + count)?;
            if self
                .segment
                .word(header::CHUNKS_HIGH)
                .compare_exchange(high, high + count, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
                && self.claim_exactly(me, high, count)
            {
                return Ok(high);
            }
        }
    }

    /// The first of the free chunks that end at `high`; `high` itself if there are none.
    fn free_below(&self, high: u64) -> u64 {
        let mut first = high;
        while first > 0 && self.state(first - 1) == State::Free {
            first -= 1;
        }
        first
    }

    /// Claims `count` free chunks in a row among those that were in use before.
    fn claim_below_high(&self, me: Owner, count: u64, seen: &mut Seen) -> Option<u64> {
        // Before the first look: a chunk that becomes free after we passed it changes the number.
        let freed = self.segment.word(header::FREED).load(Ordering::Acquire);
        if seen.freed != freed {
            *seen = Seen { freed, taken: 0 };
        }
        let high = self.high();
        let (mut run, mut first_free) = (0, None);
        for chunk in seen.taken..high {
            if self.state(chunk) != State::Free {
                run = 0;
                continue;
            }
            run += 1;
            first_free.get_or_insert(chunk);
            let first = chunk + 1 - count.min(chunk + 1);
            if run == count && self.claim_exactly(me, first, count) {
                seen.taken = match first_free {
                    Some(free) if free < first => free,
                    _ => first + count,
                };
                return Some(first);
            }
        }
        seen.taken = first_free.unwrap_or(high).max(seen.taken);
        None
    }

    /// Bytes in free chunks, and those of the longest run of them, as they are found one by one.
    fn free(&self, high: u64, total: u64) -> (u64, u64) {
        let never_used = total - high;
        let (mut free, mut run, mut longest) = (never_used, 0, 0);
        for chunk in 0..high {
            let is_free = self.state(chunk) == State::Free;
            run = if is_free { run + 1 } else { 0 };
            free += u64::from(is_free);
            longest = longest.max(run);
        }
        (free * CHUNK, longest.max(run + never_used) * CHUNK)
    }

    fn claim_exactly(&self, me: Owner, first: u64, count: u64) -> bool {
        for chunk in first..first + count {
            if !self.change(chunk, State::Free, State::Owned(me, Use::Nothing)) {
                for claimed in first..chunk {
                    self.change(claimed, State::Owned(me, Use::Nothing), State::Free);
                }
                return false;
            }
            crate::failpoint!("chunk.claim.one");
        }
        true
    }

    /// Commits the descriptors of the first `count` chunks.
    ///
    /// Step by step, each noted before the next: a failing [`Segment::commit`] takes back what it took itself, and
    /// another process may be using descriptors of the same step already, but never more than one step is at stake,
    /// and one step is one system call, which fails whole.
    fn commit_descriptors(&self, count: u64) -> Result<()> {
        let high = self.segment.word(header::DESCRIPTORS_HIGH);
        let most = layout::chunk_count(self.segment.capacity());
        loop {
            let committed = high.load(Ordering::Acquire);
            if count.min(most) <= committed {
                return Ok(());
            }
            let wanted = committed.next_multiple_of(DESCRIPTORS_STEP) + DESCRIPTORS_STEP;
            let start = DESCRIPTORS_START + committed * DESCRIPTOR;
            let end = (DESCRIPTORS_START + wanted * DESCRIPTOR)
                .min(layout::chunks_start(self.segment.capacity()));
            self.segment
                .commit(start, (end - start).next_multiple_of(PAGE))?;
            // Only from what was seen: a mark that someone raised meanwhile is looked at again.
            let _ = high.compare_exchange(committed, wanted, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// What memory in chunks is taken and given back by: a page, or a huge one where the file consists of those.
    pub(crate) fn page(&self) -> u64 {
        self.segment.page().min(CHUNK)
    }

    /// Commits a chunk's (or a run's) first `bytes`; only its owner calls this.
    pub(crate) fn commit(&self, chunk: u64, bytes: u64) -> Result<()> {
        let mark = self.word(chunk, descriptor::COMMITTED);
        let committed = mark.load(Ordering::Relaxed);
        if bytes <= committed {
            return Ok(());
        }
        let wanted = bytes.next_multiple_of(self.page());
        self.segment
            .commit(self.offset(chunk) + committed, wanted - committed)?;
        self.segment
            .word(header::COMMITTED)
            .fetch_add(wanted - committed, Ordering::Relaxed);
        mark.store(wanted, Ordering::Release);
        Ok(())
    }

    /// Formats `count` freshly claimed chunks as one run and says how much of it is committed already.
    pub(crate) fn format_run(&self, me: Owner, first: u64, count: u64) {
        let mut committed = 0;
        let mut generation = 0;
        for chunk in first..first + count {
            let own = self
                .word(chunk, descriptor::COMMITTED)
                .load(Ordering::Relaxed)
                .min(CHUNK);
            if committed == (chunk - first) * CHUNK {
                committed += own;
            } else if own > 0 {
                // It will be committed again, as a part of the run, and counted then.
                self.segment
                    .word(header::COMMITTED)
                    .fetch_sub(own, Ordering::Relaxed);
                self.word(chunk, descriptor::COMMITTED)
                    .store(0, Ordering::Relaxed);
            }
            generation = generation.max(
                self.word(chunk, descriptor::GENERATION)
                    .load(Ordering::Relaxed),
            );
        }
        for chunk in first + 1..first + count {
            let distance = (chunk - first) as u32;
            self.word(chunk, descriptor::STATE).store(
                State::Owned(me, Use::Tail(distance)).to_word(),
                Ordering::Release,
            );
        }
        self.word(first, descriptor::COMMITTED)
            .store(committed, Ordering::Relaxed);
        self.word(first, descriptor::GENERATION)
            .store(generation, Ordering::Relaxed);
        let line = self.segment.word(Self::run_line(first) * LINE);
        let word = crate::line::Counted::new(generation, 0).to_word();
        line.store(word, Ordering::Relaxed);
        crate::failpoint!("chunk.run.unformatted");
        // Release: whoever finds the head formatted sees its tails and its line.
        self.word(first, descriptor::STATE).store(
            State::Owned(me, Use::Run(count as u32)).to_word(),
            Ordering::Release,
        );
    }

    /// Gives the chunks of a run back, for whoever owns them as `from` says. The run's block must be free.
    pub(crate) fn retire_run(&self, first: u64, count: u64, owner: Owner) {
        let word = self
            .segment
            .word(Self::run_line(first) * LINE)
            .load(Ordering::Acquire);
        let next = crate::line::Counted::from_word(word).next_generation();
        let committed = self
            .word(first, descriptor::COMMITTED)
            .load(Ordering::Relaxed);
        for chunk in (first..(first + count).min(self.high())).rev() {
            let index = chunk - first;
            let used = if index == 0 {
                Use::Run(count as u32)
            } else {
                Use::Tail(index as u32)
            };
            let ours = State::Owned(owner, used);
            // Tails first, the head last: a kill between leaves a head that still names the whole run, and
            // whoever reaps it passes over tails that are free or already someone else's. Nobody but the
            // owner, or its one reaper, changes a chunk from this state, so the check holds.
            if self.state(chunk) == ours {
                let own = committed.saturating_sub(index * CHUNK).min(CHUNK);
                self.word(chunk, descriptor::COMMITTED)
                    .store(own, Ordering::Relaxed);
                self.word(chunk, descriptor::GENERATION)
                    .store(next, Ordering::Relaxed);
                self.change(chunk, ours, State::Free);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_survive_their_word() {
        let owner = Owner {
            row: 4094,
            epoch: 65_535,
        };
        for used in [
            Use::Nothing,
            Use::Slab(43),
            Use::Run((1 << 30) - 1),
            Use::Tail(7),
            Use::Leases,
        ] {
            for state in [State::Owned(owner, used), State::Orphan(used)] {
                assert_eq!(State::from_word(state.to_word()), state);
            }
        }
        assert_eq!(State::from_word(State::Free.to_word()), State::Free);
    }
}
