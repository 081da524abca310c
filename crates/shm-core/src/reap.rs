//! Reaping: what a dead participant held goes back, whoever finds it dead.
//!
//! Four phases, each by compare-and-swap on exact values, so that a reaper may be killed at any step and another
//! takes up where it stopped: (1) references on their way are settled, by their tickets, into HELD or nothing;
//! (2) cells it was in the middle of are voided or handed back, and waiters woken; (3) what it held is dropped,
//! ends and slots before blocks before objects; (4) its chunks and at last its row are given back.
//! `docs/src/protocols.md` says why no other order will do.

use core::sync::atomic::Ordering;

use crate::arena::Arena;
use crate::cells::{self, Owner};
use crate::heap;
use crate::held;
use crate::lane;
use crate::layout::{LINE, counted, object as object_layout, row};
use crate::lease::{self, Entry, EntryRef, Kind};
use crate::line::Counted;
use crate::object;
use crate::participant::liveness::{self, Verdict};
use crate::participant::lock::RowLocks;
use crate::participant::table::{self, Life, Row, RowState, tag_of};
use crate::segment::Segment;

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
    if state.life == Life::Joining {
        // Its identity may not be written yet. All that is known is its pid, if it is of our namespace; being gone
        // is then certain, and a reused pid leaves the row to a later look.
        let ours = liveness::own_namespace().is_some_and(|own| tag_of(own) == state.tag);
        let verdict = if ours && liveness::has_ended(state.pid) {
            Verdict::Dead
        } else {
            Verdict::Unknown
        };
        return (row.occupant() == Some((owner, state))).then_some((owner, state, verdict));
    }
    let start_time = row.word(row::START_TIME).load(Ordering::Acquire);
    let namespace = row.word(row::PID_NAMESPACE).load(Ordering::Acquire);
    let verdict = liveness::is_dead(state.pid, start_time, namespace, || {
        locks.is_held_elsewhere(owner.row).ok()
    });
    // The row may have changed hands while we looked.
    (row.occupant() == Some((owner, state))).then_some((owner, state, verdict))
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
    if occupant != dead || !become_reaper(arena, row, dead) {
        return false;
    }
    // Once more, now that nobody else finishes it meanwhile.
    if row.occupant() != Some((dead, state)) {
        return false;
    }
    crate::failpoint!("reap.begun");
    settle_tickets(arena, dead);
    crate::failpoint!("reap.settled");
    mend_objects(arena, dead, state.pid);
    crate::failpoint!("reap.mended");
    for wave in [Wave::EndsAndSlots, Wave::Blocks, Wave::Objects] {
        drop_held(arena, dead, wave);
    }
    crate::failpoint!("reap.dropped");
    heap::bury_chunks(arena.segment(), dead);
    crate::failpoint!("reap.returned");
    // The row comes last: until now a killed reaper's successor finds it.
    row.change(state, RowState::free(dead.epoch));
    table::changed(arena.segment());
    true
}

/// Makes this process the one that reaps `dead`, unless a live one is at it.
///
/// The word says which epoch it is about, so what the reaper of an earlier one left there stands in nobody's way.
fn become_reaper(arena: &Arena, row: Row<'_>, dead: Owner) -> bool {
    let me = arena.me();
    let mine =
        (u64::from(me.row) + 1) | (u64::from(me.epoch) << 16) | (u64::from(dead.epoch) << 32);
    let word = row.word(row::REAPER);
    loop {
        let seen = word.load(Ordering::Acquire);
        let about = (seen >> 32) as u16;
        if seen != 0 && seen != mine && about == dead.epoch {
            let other = Owner {
                row: (seen as u16).wrapping_sub(1),
                epoch: (seen >> 16) as u16,
            };
            let alive = Row::get(arena.segment(), other.row)
                .and_then(|row| verdict(arena, row))
                .is_some_and(|(owner, _, verdict)| owner == other && verdict != Verdict::Dead);
            if alive {
                return false;
            }
        }
        // Threads of one process are kept apart by the arena's own lock, held by our caller.
        if word
            .compare_exchange(seen, mine, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
        {
            return true;
        }
    }
}

/// Phase 1: every reference on its way becomes HELD or nothing.
fn settle_tickets(arena: &Arena, dead: Owner) {
    for entry in lease::entries_of(arena.segment(), dead) {
        loop {
            let seen = entry.load();
            if seen.epoch != dead.epoch {
                break;
            }
            let counts = match seen.kind {
                Kind::Free | Kind::Held | Kind::Dropping => break,
                Kind::Alloc => alloc_counts(arena.segment(), dead, &entry, seen.line),
                Kind::Giving | Kind::Recv | Kind::GivingLane | Kind::RecvLane => {
                    ticket_counts(arena.segment(), dead, &entry, seen)
                }
            };
            // A failed swap means that another reaper was here (and died): look again.
            if entry.change(
                seen,
                seen.with(if counts { Kind::Held } else { Kind::Free }),
            ) {
                break;
            }
        }
    }
}

/// Whether the dead participant was done making the entry's line anew.
///
/// A block is made anew only by the owner of its chunk, so the generation alone tells. An end or a slot is made anew
/// by whoever comes first: there the line must still name the dead one as its claimant, who alone may change it then.
fn alloc_counts(segment: &Segment, dead: Owner, entry: &EntryRef<'_>, line: u64) -> bool {
    let in_object = heap::locate(segment, line).is_none();
    if in_object && !heap::in_object(segment, line) {
        return false;
    }
    let claimant = segment.word(line * LINE + counted::CLAIMANT);
    if in_object && claimant.load(Ordering::Acquire) != held::claimant(dead) {
        return false;
    }
    let word = segment
        .word(line * LINE + counted::WORD)
        .load(Ordering::Acquire);
    let now = Counted::from_word(word);
    now.generation == entry.generation.load(Ordering::Relaxed) && now.count > 0
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
    match seen.kind {
        Kind::Giving => cells::is_claimed_by(word, dead, position, capacity),
        Kind::Recv => !cells::is_taken_by(word, dead, position, capacity),
        Kind::GivingLane => lane::lane_is_free(word, position),
        Kind::RecvLane => !lane::lane_is_ready(word, position),
        _ => false,
    }
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

/// Phase 2: cells of the objects it held.
fn mend_objects(arena: &Arena, dead: Owner, pid: u32) {
    for entry in lease::entries_of(arena.segment(), dead) {
        let seen = entry.load();
        if seen.epoch != dead.epoch || !matches!(seen.kind, Kind::Held | Kind::Dropping) {
            continue;
        }
        if wave_of(arena.segment(), seen.line) == Some(Wave::Objects) {
            object::mend(
                arena,
                seen.line,
                entry.generation.load(Ordering::Relaxed),
                dead,
                pid,
            );
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
    let segment = arena.segment();
    for entry in lease::entries_of(segment, dead) {
        loop {
            let seen = entry.load();
            if seen.epoch != dead.epoch || !matches!(seen.kind, Kind::Held | Kind::Dropping) {
                break;
            }
            let generation = entry.generation.load(Ordering::Relaxed);
            let free = seen.with(Kind::Free);
            // A failed swap below means that another reaper was here (and died): read again, never skip.
            let found = wave_of(segment, seen.line);
            if found.is_some_and(|found| found != wave) {
                break;
            }
            let [meta, word] = [counted::META, counted::WORD].map(|field| {
                found.map_or(0, |_| {
                    segment
                        .word(seen.line * LINE + field)
                        .load(Ordering::Acquire)
                })
            });
            let word = Counted::from_word(word);
            match (seen.kind, word.count) {
                // It names nothing (any more).
                _ if found.is_none() || word.generation != generation => {
                    if entry.change(seen, free) {
                        break;
                    }
                }
                (kind, 0) => {
                    if kind == Kind::Dropping {
                        // Dropped, but perhaps nobody was told.
                        held::after_free(arena, seen.line, meta);
                    }
                    if entry.change(seen, free) {
                        break;
                    }
                }
                (Kind::Held, 1) => {
                    entry.change(seen, seen.with(Kind::Dropping));
                }
                (Kind::Dropping, 1) => {
                    held::free_last(arena, seen.line, generation);
                    crate::failpoint!("reap.freed");
                }
                _ => {
                    // Shared: clear the record, then subtract; only the one whose swap succeeded does.
                    if entry.change(seen, free) {
                        held::release_unrecorded(arena, seen.line, generation);
                        break;
                    }
                }
            }
        }
    }
}
