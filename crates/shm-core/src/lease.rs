//! Leases: what each participant holds, written down where its reapers can read it.
//!
//! An entry is four words: state `{kind: 4 | epoch: 16 | line: 38}`, the generation of that line, and a ticket
//! (line of a cell, position) for references that are on their way. A participant alone writes its entries
//! while it lives; after its death they change only by compare-and-swap on the exact state word, epoch
//! included. Whether an entry counts as its participant's reference:
//!
//! | kind | counts |
//! |---|---|
//! | ALLOC | only if the line already shows the entry's generation, and for an end or slot names it as claimant |
//! | HELD | yes |
//! | GIVING | only while the ticket's cell is still CLAIMED by this participant at that position |
//! | RECV | only once the ticket's cell is no longer TAKING by this participant at that position |
//! | GIVING_LANE | only while the ticket's cell is FREE at that position |
//! | RECV_LANE | only once the ticket's cell is no longer READY at that position |
//! | DROPPING | yes, if the line is still (generation, 1) |
//! | LEAVING, ENTERING | nobody can tell: killed here, it leaves a count in [doubt](crate::doubt) |
//! | LOOKING | no; a count in doubt is being looked into |
//!
//! Tickets are written before the state word that makes them count.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::OnceLock;

use parking_lot::Mutex;

use crate::cells::Owner;
use crate::chunk::{Chunks, Seen, State, Use};
use crate::error::{Error, ErrorKind, Result};
use crate::layout::{
    CHUNK, LEASE, LEASES_PER_CHUNK, LEASES_STEP, LINE, ROW, ROWS_START, descriptor, row,
};
use crate::participant::table::Row;
use crate::prefetch::{AHEAD, prefetch};
use crate::segment::Segment;
use crate::sync::Atomic64;

/// What an entry says about its participant and the line it names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// Nothing.
    Free = 0,
    /// The line is being made anew.
    Alloc = 1,
    /// The participant holds the line.
    Held = 2,
    /// A message through cells is to hold the line.
    Giving = 3,
    /// A message through cells held the line.
    Recv = 4,
    /// A message through a lane is to hold the line.
    GivingLane = 5,
    /// A message through a lane held the line.
    RecvLane = 6,
    /// The participant's reference goes, and it is the last one.
    Dropping = 7,
    /// The participant's reference goes, and others stay: counted or not any more.
    Leaving = 8,
    /// One more reference comes: counted already or not.
    Entering = 9,
    /// Its participant looks whether a count is too high.
    Looking = 10,
}

impl Kind {
    /// Whether a kill here leaves it open whether the line counts this reference.
    #[must_use]
    pub const fn is_in_doubt(self) -> bool {
        matches!(self, Self::Leaving | Self::Entering | Self::Looking)
    }

    /// Whether an entry of a living participant says this for a moment only, and may name what it does not hold any more,
    /// or not yet.
    #[must_use]
    pub const fn is_passing(self) -> bool {
        matches!(
            self,
            Self::Leaving | Self::Entering | Self::Giving | Self::GivingLane
        )
    }

    const fn from_code(code: u64) -> Self {
        match code {
            1 => Self::Alloc,
            2 => Self::Held,
            3 => Self::Giving,
            4 => Self::Recv,
            5 => Self::GivingLane,
            6 => Self::RecvLane,
            7 => Self::Dropping,
            8 => Self::Leaving,
            9 => Self::Entering,
            10 => Self::Looking,
            _ => Self::Free,
        }
    }
}

/// An entry's state word, taken apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// What it says.
    pub kind: Kind,
    /// Which user of the row wrote it.
    pub epoch: u16,
    /// The line it is about.
    pub line: u64,
}

impl Entry {
    /// Reads a state word. One that no entry has, with bits beyond the line's, is read as FREE: swaps from it would fail
    /// for ever.
    #[must_use]
    pub const fn from_word(word: u64) -> Self {
        let code = if word >> 58 == 0 { word & 0xf } else { 0 };
        Self {
            kind: Kind::from_code(code),
            epoch: (word >> 4) as u16,
            line: (word >> 20) & ((1 << 38) - 1),
        }
    }

    /// The state word.
    #[must_use]
    pub const fn to_word(self) -> u64 {
        (self.kind as u64) | ((self.epoch as u64) << 4) | (self.line << 20)
    }

    /// The same with another kind.
    #[must_use]
    pub const fn with(self, kind: Kind) -> Self {
        Self { kind, ..self }
    }
}

/// The four words of one entry in shared memory.
#[derive(Debug)]
pub struct EntryRef<'a, W = AtomicU64> {
    /// Kind, epoch and line.
    pub state: &'a W,
    /// The generation of the line.
    pub generation: &'a W,
    /// The line of the ticket's cell.
    pub ticket_cell: &'a W,
    /// The position of the ticket.
    pub ticket_position: &'a W,
}

impl<'a> EntryRef<'a> {
    #[inline]
    fn at(segment: &'a Segment, offset: u64) -> Self {
        let [state, generation, ticket_cell, ticket_position] = segment.block_at(offset);
        Self {
            state,
            generation,
            ticket_cell,
            ticket_position,
        }
    }
}

impl<W: Atomic64> EntryRef<'_, W> {
    /// What the entry says.
    #[inline]
    #[must_use]
    pub fn load(&self) -> Entry {
        Entry::from_word(self.state.load(Ordering::Acquire))
    }

    /// Changes the entry from exactly `from` to `to`; how everyone but its living owner changes one.
    #[inline]
    pub fn change(&self, from: Entry, to: Entry) -> bool {
        self.state
            .compare_exchange(
                from.to_word(),
                to.to_word(),
                Ordering::AcqRel,
                Ordering::Acquire,
            )
            .is_ok()
    }

    /// Its living owner writes the state alone.
    #[inline]
    pub fn store(&self, entry: Entry) {
        // Release: a reaper that reads the state word sees the words it makes valid.
        self.state.store(entry.to_word(), Ordering::Release);
    }

    /// Its living owner writes it: generation first, then the state that makes it count.
    #[inline]
    pub fn record(&self, epoch: u16, kind: Kind, line: u64, generation: u64) {
        self.generation.store(generation, Ordering::Relaxed);
        self.store(Entry { kind, epoch, line });
    }

    /// Its living owner writes it for a reference that is on its way: ticket first, then the state. `cell` is a line.
    #[inline]
    pub fn record_ticket(
        &self,
        epoch: u16,
        (kind, line, generation): (Kind, u64, u64),
        (cell, position): (u64, u64),
    ) {
        self.generation.store(generation, Ordering::Relaxed);
        self.ticket_cell.store(cell, Ordering::Relaxed);
        self.ticket_position.store(position, Ordering::Relaxed);
        self.store(Entry { kind, epoch, line });
    }

    /// Its living owner changes the kind.
    #[inline]
    pub fn set(&self, kind: Kind) {
        self.store(self.load().with(kind));
    }

    /// Its living owner makes it FREE.
    #[inline]
    pub fn clear(&self, epoch: u16) {
        self.store(Entry {
            kind: Kind::Free,
            epoch,
            line: 0,
        });
    }
}

/// A lease chunk of a participant, as its directory names it. The directory is checked, not trusted: it may be that of
/// the row's previous occupant, whose chunks are somebody else's by now.
fn lease_chunk(segment: &Segment, owner: Owner, slot: u64) -> Option<u64> {
    let word = ROWS_START + u64::from(owner.row) * ROW + row::DIRECTORY + slot * 8;
    let chunk = segment.word(word).load(Ordering::Acquire).checked_sub(1)?;
    let chunks = Chunks::new(segment);
    (chunk < chunks.high() && chunks.state(chunk) == State::Owned(owner, Use::Leases))
        .then_some(chunk)
}

/// Every entry that a participant ever used; none for a row that is not committed.
pub(crate) fn entries_of(segment: &Segment, owner: Owner) -> impl Iterator<Item = EntryRef<'_>> {
    let row = Row::get(segment, owner.row);
    let high = row.map_or(0, |row| row.word(row::LEASES_HIGH).load(Ordering::Acquire));
    let high = high.min(row::DIRECTORY_WORDS * LEASES_PER_CHUNK);
    let slots = high.div_ceil(LEASES_PER_CHUNK);
    (0..slots).flat_map(move |slot| {
        let used = (high - slot * LEASES_PER_CHUNK).min(LEASES_PER_CHUNK);
        lease_chunk(segment, owner, slot)
            .into_iter()
            .flat_map(move |chunk| {
                let chunks = Chunks::new(segment);
                // Nothing beyond is committed, whatever the row says.
                let committed = chunks
                    .word(chunk, descriptor::COMMITTED)
                    .load(Ordering::Acquire);
                let start = chunks.offset(chunk);
                (0..used.min(committed / LEASE))
                    .map(move |index| EntryRef::at(segment, start + index * LEASE))
            })
    })
}

/// This process's own leases: the shared entries, and beside each the number of local handles to it.
pub(crate) struct Leases {
    me: Owner,
    /// The entry that was put back last, or [`NONE`]: what sends and receives in turn takes the lock of the pool for
    /// neither.
    last: AtomicU32,
    pool: Mutex<Pool>,
    chunks: [AtomicU64; row::DIRECTORY_WORDS as usize],
    locals: [OnceLock<Box<[AtomicU32]>>; row::DIRECTORY_WORDS as usize],
}

/// No entry: there are never so many.
const NONE: u32 = u32::MAX;

struct Pool {
    free: Vec<u32>,
    high: u64,
    committed: u64,
    seen: Seen,
}

impl Leases {
    pub(crate) fn new(me: Owner) -> Self {
        Self {
            me,
            last: AtomicU32::new(NONE),
            pool: Mutex::new(Pool {
                free: Vec::new(),
                high: 0,
                committed: 0,
                seen: Seen::default(),
            }),
            chunks: [const { AtomicU64::new(0) }; row::DIRECTORY_WORDS as usize],
            locals: [const { OnceLock::new() }; row::DIRECTORY_WORDS as usize],
        }
    }

    /// An entry of one's own to write into; it is FREE.
    #[inline]
    pub(crate) fn reserve(&self, segment: &Segment) -> Result<u32> {
        // Acquire: pairs with `put_back`; the thread that had it is done with it.
        match self.last.swap(NONE, Ordering::Acquire) {
            NONE => self.reserve_from_pool(segment),
            index => Ok(index),
        }
    }

    fn reserve_from_pool(&self, segment: &Segment) -> Result<u32> {
        let mut pool = self.pool.lock();
        if let Some(index) = pool.free.pop() {
            let ahead = pool.free.len().checked_sub(AHEAD);
            if let Some(&next) = ahead.and_then(|at| pool.free.get(at)) {
                prefetch(self.local(next));
                prefetch(self.entry(segment, next).state);
            }
            return Ok(index);
        }
        if pool.high == pool.committed {
            self.grow(segment, &mut pool)?;
        }
        let index = pool.high;
        pool.high += 1;
        segment
            .word(ROWS_START + u64::from(self.me.row) * ROW + row::LEASES_HIGH)
            .store(pool.high, Ordering::Release);
        Ok(index as u32)
    }

    /// Puts back an entry that is FREE again.
    #[inline]
    pub(crate) fn put_back(&self, index: u32) {
        // Release: pairs with `reserve`.
        let before = self.last.swap(index, Ordering::AcqRel);
        if before != NONE {
            self.pool.lock().free.push(before);
        }
    }

    fn grow(&self, segment: &Segment, pool: &mut Pool) -> Result<()> {
        let chunks = Chunks::new(segment);
        let slot = (pool.committed / LEASES_PER_CHUNK) as usize;
        if slot >= self.chunks.len() {
            let entries = (row::DIRECTORY_WORDS * LEASES_PER_CHUNK) as u32;
            return Err(Error::new(
                ErrorKind::LeasesFull { entries },
                format!(
                    "this process already holds {entries} references, as many as its lease table has room for; drop tensors that are no longer needed"
                ),
            ));
        }
        let within = pool.committed % LEASES_PER_CHUNK;
        if within == 0 {
            let chunk = chunks.claim(self.me, 1, &mut pool.seen)?;
            let formatted = chunks.commit(chunk, LEASES_STEP * LEASE);
            if let Err(error) = formatted {
                chunks.change(chunk, State::Owned(self.me, Use::Nothing), State::Free);
                return Err(error);
            }
            // A recycled chunk may hold anything: entries start out FREE.
            for index in 0..LEASES_STEP {
                segment
                    .word(chunks.offset(chunk) + index * LEASE)
                    .store(0, Ordering::Relaxed);
            }
            chunks.change(
                chunk,
                State::Owned(self.me, Use::Nothing),
                State::Owned(self.me, Use::Leases),
            );
            crate::failpoint!("lease.chunk.unlisted");
            segment
                .word(ROWS_START + u64::from(self.me.row) * ROW + row::DIRECTORY + slot as u64 * 8)
                .store(chunk + 1, Ordering::Release);
            self.chunks[slot].store(chunks.offset(chunk), Ordering::Release);
        } else {
            let start = self.chunks[slot].load(Ordering::Acquire);
            // From our own memory, so no peer can make it another's chunk.
            let chunk = (start - chunks.offset(0)) / CHUNK;
            chunks.commit(chunk, (within + LEASES_STEP) * LEASE)?;
            for index in within..within + LEASES_STEP {
                segment
                    .word(start + index * LEASE)
                    .store(0, Ordering::Relaxed);
            }
        }
        self.locals[slot]
            .get_or_init(|| (0..LEASES_PER_CHUNK).map(|_| AtomicU32::new(0)).collect());
        pool.committed += LEASES_STEP;
        Ok(())
    }

    /// An own entry, by its number.
    #[inline]
    pub(crate) fn entry<'a>(&self, segment: &'a Segment, index: u32) -> EntryRef<'a> {
        let slot = index as usize / LEASES_PER_CHUNK as usize;
        let within = u64::from(index) % LEASES_PER_CHUNK;
        EntryRef::at(
            segment,
            self.chunks[slot].load(Ordering::Relaxed) + within * LEASE,
        )
    }

    /// The number of local handles that share an entry.
    #[inline]
    pub(crate) fn local(&self, index: u32) -> &AtomicU32 {
        let slot = index as usize / LEASES_PER_CHUNK as usize;
        let within = index as usize % LEASES_PER_CHUNK as usize;
        match self.locals[slot].get() {
            Some(counts) => &counts[within],
            // `reserve` gives out no index before its counts exist.
            None => unreachable!("lease {index} was never reserved"),
        }
    }

    /// Changes the kind of an own entry.
    #[inline]
    pub(crate) fn set(&self, segment: &Segment, index: u32, kind: Kind) {
        self.entry(segment, index).set(kind);
    }

    /// Writes the state of an own entry whose other words are there already.
    #[inline]
    pub(crate) fn mark(&self, segment: &Segment, index: u32, kind: Kind, line: u64) {
        self.entry(segment, index).store(Entry {
            kind,
            epoch: self.me.epoch,
            line,
        });
    }

    /// Writes an entry for a reference that is on its way through a cell: ticket first, then the state.
    #[inline]
    pub(crate) fn record_ticket(
        &self,
        segment: &Segment,
        index: u32,
        reference: (Kind, u64, u64),
        ticket: Ticket,
    ) {
        let ticket = (ticket.cell / LINE, ticket.position);
        self.entry(segment, index)
            .record_ticket(self.me.epoch, reference, ticket);
    }

    /// Makes an own entry FREE; the caller puts it back or goes on using it.
    #[inline]
    pub(crate) fn clear(&self, segment: &Segment, index: u32) {
        self.entry(segment, index).clear(self.me.epoch);
    }
}

/// Which message a reference travels with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    /// Offset of the cell's word.
    pub(crate) cell: u64,
    /// The position at which the cell is written or read.
    pub(crate) position: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_an_entry_that_can_be_swapped_or_is_free() {
        let kinds = 0..16_u64;
        for word in kinds
            .flat_map(|kind| (0..60).map(move |bit| kind | 1 << bit))
            .chain([0, u64::MAX])
        {
            let entry = Entry::from_word(word);
            assert!(
                entry.kind == Kind::Free || entry.to_word() == word,
                "{word:x}"
            );
        }
    }
}
