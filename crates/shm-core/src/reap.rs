//! Reaping: what a dead participant held goes back, whoever finds it dead.
//!
//! Four phases, each by compare-and-swap on exact values, so that a reaper may be killed at any step and another
//! takes up where it stopped: (1) references on their way are settled, by their tickets, into HELD or nothing;
//! (2) cells it was in the middle of are voided or handed back, and waiters woken; (3) what it held is dropped,
//! ends and slots before blocks before objects; (4) its chunks and at last its row are given back.
//! `docs/src/protocols.md` says why no other order will do.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::arena::Arena;
use crate::cells::Owner;
use crate::doubt::{self, Looker};
use crate::heap;
use crate::held;
use crate::intake;
use crate::layout::{LINE, counted, object as object_layout, row};
use crate::lease::{self, Entry, EntryRef, Kind};
use crate::line::Counted;
use crate::object;
use crate::participant::liveness::{self, Verdict};
use crate::participant::lock::RowLocks;
use crate::participant::table::{self, Life, Row, RowState, tag_of};
use crate::segment::Segment;
use crate::steps::{self, Named, Reaper};

/// The verdict about a participant, from what its row says.
pub(crate) fn verdict(arena: &Arena, row: Row<'_>) -> Option<(Owner, RowState, Verdict)> {
    let (owner, state) = row.occupant()?;
    if owner == arena.me() {
        return Some((owner, state, Verdict::Alive));
    }
    judge(arena.locks(), row)
}

/// As [`verdict`], by somebody who need not be a participant.
pub(crate) fn judge(locks: &RowLocks, row: Row<'_>) -> Option<(Owner, RowState, Verdict)> {
    let (owner, state) = row.occupant()?;
    let verdict = verdict_of(
        state,
        row.word(row::START_TIME).load(Ordering::Acquire),
        row.word(row::PID_NAMESPACE).load(Ordering::Acquire),
        row.word(row::UNLOCKED).load(Ordering::Acquire),
        || locks.is_held_elsewhere(owner.row).ok(),
    );
    // The row may have changed hands while we looked.
    (row.occupant() == Some((owner, state))).then_some((owner, state, verdict))
}

/// What follows from the words of a row that somebody is in; `locked` as for [`liveness::is_dead`]. It is not asked where
/// the row says that its occupant has no lock.
pub(crate) fn verdict_of(
    state: RowState,
    start_time: u64,
    namespace: u64,
    unlocked: u64,
    locked: impl FnOnce() -> Option<bool>,
) -> Verdict {
    if state.life == Life::Joining {
        // Its identity may not be written yet. All that is known is its pid, if it is of our namespace; being gone
        // is then certain, and a reused pid leaves the row to a later look.
        let ours = liveness::own_namespace().is_some_and(|own| tag_of(own) == state.tag);
        return match ours && liveness::has_ended(state.pid) {
            true => Verdict::Dead,
            false => Verdict::Unknown,
        };
    }
    liveness::is_dead(state.pid, start_time, namespace, || {
        (unlocked == 0).then(locked).flatten()
    })
}

/// Whether a process that runs has the pid in this row, be it the participant or not. `false` also where that can't be told.
pub(crate) fn somebody_has_its_pid(row: Row<'_>) -> bool {
    row.occupant().is_some_and(|(_, state)| {
        state.life == Life::Alive && is_of_our_namespace(row) && liveness::runs(state.pid)
    })
}

/// Whether the pid in this row is one that we see.
pub(crate) fn is_of_our_namespace(row: Row<'_>) -> bool {
    liveness::own_namespace() == Some(row.word(row::PID_NAMESPACE).load(Ordering::Acquire))
}

/// Reaps `dead`, which is known to be dead (or is this process, leaving). `false` if a live reaper is at it, or
/// it is gone already.
pub(crate) fn reap(arena: &Arena, dead: Owner) -> bool {
    let Some(row) = Row::get(arena.segment(), dead.row) else {
        return false;
    };
    let Some((occupant, state)) = row.occupant() else {
        return false;
    };
    let reaper = row.word(row::REAPER);
    if occupant != dead || !steps::become_reaper(reaper, arena.me(), dead, |o| is_alive(arena, o)) {
        return false;
    }
    // Once more, now that nobody else finishes it meanwhile.
    if row.occupant() != Some((dead, state)) {
        return false;
    }
    crate::failpoint!("reap.begun");
    settle_tickets(arena, dead);
    crate::failpoint!("reap.settled");
    intake::reap(arena, dead);
    // Acquire: see `Arena::note_own_return`. Read before anybody is told of the death.
    let returned = row.word(row::RETURNED).load(Ordering::Acquire) == u64::from(dead.epoch) + 1;
    mend_objects(arena, dead, state.pid, returned);
    crate::failpoint!("reap.mended");
    for wave in [Wave::EndsAndSlots, Wave::Blocks, Wave::Objects] {
        drop_held(arena, dead, wave);
    }
    crate::failpoint!("reap.dropped");
    heap::bury_chunks(arena.segment(), dead);
    heap::give_back_inherited(arena.segment(), arena.me());
    crate::failpoint!("reap.returned");
    // The row comes last: until now a killed reaper's successor finds it.
    row.change(state, RowState::free(dead.epoch));
    table::changed(arena.segment());
    true
}

/// Whether a participant, as far as anyone knows, is not dead.
fn is_alive(arena: &Arena, other: Owner) -> bool {
    Row::get(arena.segment(), other.row)
        .and_then(|row| verdict(arena, row))
        .is_some_and(|(owner, _, verdict)| owner == other && verdict != Verdict::Dead)
}

/// Phase 1: every reference on its way becomes HELD or nothing.
fn settle_tickets(arena: &Arena, dead: Owner) {
    for entry in lease::entries_of(arena.segment(), dead) {
        doubt::settle(&entry, dead, |line| {
            let there = wave_of(arena.segment(), line).is_some();
            there.then(|| arena.segment().word(line * LINE + counted::DOUBT))
        });
        steps::settle(&entry, dead, |seen| match seen.kind {
            Kind::Alloc => alloc_counts(arena.segment(), dead, &entry, seen.line),
            _ => ticket_counts(arena.segment(), dead, &entry, seen),
        });
    }
}

/// Whether the dead participant was done making the entry's line anew.
fn alloc_counts(segment: &Segment, dead: Owner, entry: &EntryRef<'_>, line: u64) -> bool {
    let in_object = heap::locate(segment, line).is_none();
    if in_object && !heap::in_object(segment, line) {
        return false;
    }
    let word = segment.word(line * LINE + counted::WORD);
    let claim = in_object.then(|| segment.word(line * LINE + counted::CLAIMANT));
    steps::alloc_counts(entry, dead, word, claim)
}

/// Whether a reference with a ticket counts as its (dead) participant's.
fn ticket_counts(segment: &Segment, dead: Owner, entry: &EntryRef<'_>, seen: Entry) -> bool {
    let cell = entry.ticket_cell.load(Ordering::Relaxed);
    let position = entry.ticket_position.load(Ordering::Relaxed);
    let Some(capacity) = cell_capacity(segment, cell) else {
        // The object the ticket names is no more: it was emptied by its last holder, and the message with it.
        // That cannot be while the dead one held it, so the ticket is damaged. Leak rather than free.
        return false;
    };
    let word = segment.word(cell * LINE).load(Ordering::Acquire);
    steps::ticket_counts(seen.kind, word, dead, position, capacity)
}

/// How many cells the array has that the cell at this line belongs to.
fn cell_capacity(segment: &Segment, cell: u64) -> Option<u64> {
    let base = heap::block_around(segment, cell)?;
    let meta = segment
        .word(base.line * LINE + counted::META)
        .load(Ordering::Acquire);
    if !held::is_object(meta) || base.capacity < object_layout::USER {
        return None;
    }
    (0..object_layout::ARRAY_COUNT).find_map(|index| {
        let descriptor = base.data + object_layout::ARRAYS + index * object_layout::ARRAY;
        let count = segment.word(descriptor).load(Ordering::Acquire) >> 16;
        let first = segment.word(descriptor + 8).load(Ordering::Acquire);
        let within = (cell * LINE - base.data).checked_sub(first)?;
        (within / LINE < count && count <= u64::from(u32::MAX)).then_some(count)
    })
}

/// Phase 2: cells of the objects it held, and who hears that it died with them.
fn mend_objects(arena: &Arena, dead: Owner, pid: u32, returned: bool) {
    for entry in lease::entries_of(arena.segment(), dead) {
        let seen = entry.load();
        if seen.epoch != dead.epoch || !matches!(seen.kind, Kind::Held | Kind::Dropping) {
            continue;
        }
        if wave_of(arena.segment(), seen.line) != Some(Wave::Objects) {
            continue;
        }
        let generation = entry.generation.load(Ordering::Relaxed);
        let word = arena.segment().word(seen.line * LINE + counted::WORD);
        let now = Counted::from_word(word.load(Ordering::Acquire));
        // One that it had just let go as the last holder is somebody else's by now, or will be. While the line has the
        // generation and counts anybody, the dead one's reference is among those counted, and keeps it.
        if now.generation == generation && now.count > 0 {
            object::mend(arena, seen.line, generation, dead, (pid, returned));
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wave {
    EndsAndSlots,
    Blocks,
    Objects,
}

fn wave_of(segment: &Segment, line: u64) -> Option<Wave> {
    if heap::locate(segment, line).is_some() {
        let meta = segment
            .word(line * LINE + counted::META)
            .load(Ordering::Acquire);
        return Some(if held::is_object(meta) {
            Wave::Objects
        } else {
            Wave::Blocks
        });
    }
    heap::in_object(segment, line).then_some(Wave::EndsAndSlots)
}

/// Phase 3: drops what it held, as the living do, but by compare-and-swap on its entries.
fn drop_held(arena: &Arena, dead: Owner, wave: Wave) {
    for entry in lease::entries_of(arena.segment(), dead) {
        steps::drop_entry(&entry, dead, &Dropper { arena, wave });
    }
}

/// One wave of dropping.
struct Dropper<'a> {
    arena: &'a Arena,
    wave: Wave,
}

impl Reaper<AtomicU64> for Dropper<'_> {
    fn named(&self, line: u64) -> Named<'_, AtomicU64> {
        let segment = self.arena.segment();
        match wave_of(segment, line) {
            None => Named::Nothing,
            Some(found) if found != self.wave => Named::NotNow,
            Some(_) => Named::Line {
                words: held::words(segment, line),
                meta: segment
                    .word(line * LINE + counted::META)
                    .load(Ordering::Acquire),
            },
        }
    }

    fn free_last(&self, line: u64, generation: u64) -> bool {
        let freed = held::free_last(self.arena, line, generation);
        if freed {
            object::count_dead_consumer(self.arena, line);
        }
        freed
    }

    fn after_free(&self, line: u64, meta: u64) {
        held::after_free(self.arena, line, meta);
    }

    fn let_go(&self, line: u64) {
        object::count_dead_consumer(self.arena, line);
    }
}

impl Looker for Dropper<'_> {
    fn is_named(&self, line: u64, generation: u64) -> bool {
        self.arena.is_named(line, generation)
    }
}

impl Arena {
    /// Whether the process of this participant runs, as far as can be told: asks the system, where
    /// [`is_present`](Self::is_present) reads one word and may be late by as long as nobody has noticed.
    #[must_use]
    pub fn is_running(&self, owner: Owner) -> bool {
        Row::get(self.segment(), owner.row)
            .and_then(|row| verdict(self, row))
            .is_some_and(|(occupant, _, verdict)| occupant == owner && verdict != Verdict::Dead)
    }
}
