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
use crate::held::{self, Held};
use crate::lane;
use crate::layout::{LINE, counted, header, object as object_layout, row};
use crate::lease::{self, Entry, EntryRef, Kind};
use crate::line::{Counted, Mode, Tag};
use crate::object;
use crate::participant::liveness::{self, Verdict};
use crate::participant::table::{Life, Row, RowState};
use crate::segment::Segment;

/// The verdict about a participant, from what its row says.
pub(crate) fn verdict(arena: &Arena, row: Row<'_>) -> Option<(Owner, RowState, Verdict)> {
    let (owner, state) = row.occupant()?;
    if owner == arena.me() {
        return Some((owner, state, Verdict::Alive));
    }
    let start_time = row.word(row::START_TIME).load(Ordering::Acquire);
    let namespace = row.word(row::PID_NAMESPACE).load(Ordering::Acquire);
    if state.life == Life::Joining {
        // Its identity may not be written yet. All that is known is its pid, if it is of our namespace; being
        // gone is then certain, and a reused pid leaves the row to a later look.
        let gone = liveness::is_dead(
            state.pid,
            u64::MAX,
            liveness::own_namespace().unwrap_or(0),
            || None,
        ) == Verdict::Dead
            && rustix::process::Pid::from_raw(state.pid as i32).is_some_and(|pid| {
                rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH)
            });
        return Some((
            owner,
            state,
            if gone { Verdict::Dead } else { Verdict::Alive },
        ));
    }
    let verdict = liveness::is_dead(state.pid, start_time, namespace, || {
        arena.locks().is_held_elsewhere(owner.row).ok()
    });
    // The row may have changed hands while we looked.
    (row.occupant() == Some((owner, state))).then_some((owner, state, verdict))
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
    if occupant != dead || !become_reaper(arena, row) {
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
    if state.life == Life::Alive {
        arena
            .segment()
            .word(header::ALIVE)
            .fetch_sub(1, Ordering::AcqRel);
    }
    // The row comes last: until now a killed reaper's successor finds it.
    row.change(
        state,
        RowState {
            life: Life::Free,
            epoch: dead.epoch,
            pid: 0,
        },
    );
    arena
        .segment()
        .word(header::MEMBERSHIP)
        .fetch_add(1, Ordering::AcqRel);
    true
}

/// Makes this process the one that reaps the row, unless a live one is at it.
fn become_reaper(arena: &Arena, row: Row<'_>) -> bool {
    let me = (u64::from(arena.me().row) + 1) | (u64::from(arena.me().epoch) << 16);
    let word = row.word(row::REAPER);
    loop {
        let seen = word.load(Ordering::Acquire);
        if seen != 0 && seen != me {
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
            .compare_exchange(seen, me, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
        {
            return true;
        }
    }
}

/// Phase 1: every reference on its way becomes HELD or nothing.
fn settle_tickets(arena: &Arena, dead: Owner) {
    for entry in lease::entries_of(arena.segment(), dead.row) {
        loop {
            let seen = entry.load();
            if seen.epoch != dead.epoch {
                break;
            }
            let counts = match seen.kind {
                Kind::Free | Kind::Held | Kind::Dropping => break,
                Kind::Alloc => line_counted(arena.segment(), &entry, seen.line).is_some(),
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

/// The count of the entry's line, if the line is still in the entry's generation and counted.
fn line_counted(segment: &Segment, entry: &EntryRef<'_>, line: u64) -> Option<u64> {
    let known = heap::locate(segment, line).is_some() || heap::in_object(segment, line);
    let word = known.then(|| {
        segment
            .word(line * LINE + counted::WORD)
            .load(Ordering::Acquire)
    })?;
    let now = Counted::from_word(word);
    (now.generation == entry.generation.load(Ordering::Relaxed) && now.count > 0)
        .then_some(now.count)
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
    for index in 0..object_layout::ARRAY_COUNT {
        let descriptor = base.data + object_layout::ARRAYS + index * object_layout::ARRAY;
        let count = segment.word(descriptor).load(Ordering::Acquire) >> 16;
        let first = segment.word(descriptor + 8).load(Ordering::Acquire);
        let within = (cell * LINE - base.data).checked_sub(first);
        if within.is_some_and(|within| within / LINE < count) && count > 0 {
            return Some(count);
        }
    }
    None
}

/// Phase 2: cells of the objects it held.
fn mend_objects(arena: &Arena, dead: Owner, pid: u32) {
    for entry in lease::entries_of(arena.segment(), dead.row) {
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
        return match (Tag::from_meta(meta), Mode::from_meta(meta)) {
            (Some(Tag::Block), Some(Mode::Object)) => Some(Wave::Objects),
            _ => Some(Wave::Blocks),
        };
    }
    heap::in_object(segment, line).then_some(Wave::EndsAndSlots)
}

/// Phase 3: drops what it held, as the living do, but by compare-and-swap on its entries.
fn drop_held(arena: &Arena, dead: Owner, wave: Wave) {
    let segment = arena.segment();
    for entry in lease::entries_of(segment, dead.row) {
        loop {
            let seen = entry.load();
            if seen.epoch != dead.epoch || !matches!(seen.kind, Kind::Held | Kind::Dropping) {
                break;
            }
            let generation = entry.generation.load(Ordering::Relaxed);
            let free = seen.with(Kind::Free);
            match wave_of(segment, seen.line) {
                None => {
                    // It names nothing (any more).
                    entry.change(seen, free);
                    break;
                }
                Some(found) if found != wave => break,
                Some(_) => {}
            }
            let meta = segment
                .word(seen.line * LINE + counted::META)
                .load(Ordering::Acquire);
            let word = Counted::from_word(
                segment
                    .word(seen.line * LINE + counted::WORD)
                    .load(Ordering::Acquire),
            );
            if word.generation != generation {
                entry.change(seen, free);
                break;
            }
            match (seen.kind, word.count) {
                (Kind::Dropping, 0) => {
                    // Dropped, but perhaps nobody was told.
                    held::after_free(arena, seen.line, Tag::from_meta(meta), meta);
                    entry.change(seen, free);
                    break;
                }
                (_, 0) => {
                    entry.change(seen, free);
                    break;
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
                        subtract(arena, seen.line, generation);
                        break;
                    }
                }
            }
        }
    }
}

/// Takes one from a count that this process just became responsible for.
fn subtract(arena: &Arena, line: u64, generation: u64) {
    if held::subtract_shared(arena, line, generation) {
        return;
    }
    // It has become the last one meanwhile: adopt it and drop it as the living do. Without a lease for it, it
    // leaks until the audit.
    if let Ok(lease) = arena.leases().reserve(arena.segment()) {
        arena
            .leases()
            .record(arena.segment(), lease, Kind::Held, line, generation);
        drop(Held::adopt(arena, lease, line, generation));
    }
}
