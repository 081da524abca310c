//! The participant table: one row per process, with its identity and its flight recorder.
//!
//! A row's state word is `{state: 4 | epoch: 16 | pid: 32 | namespace tag: 12}`, changed by compare-and-swap only:
//! FREE(e) → JOINING(e+1, pid) → ALIVE → FREE(e+1), the last by the participant itself or by a reaper, after
//! everything that names the row is reaped. The pid is in the word from the first step on, so a process that
//! dies while joining can be reaped as well; the tag tells whose pid it is before the whole namespace is written.

use core::sync::atomic::{AtomicU64, Ordering, fence};

use crate::cells::Owner;
use crate::clock::now_ns;
use crate::error::{Error, ErrorKind, Result};
use crate::intake;
use crate::layout::{PAGE, ROW, ROWS, ROWS_START, ROWS_STEP, WORD, header, row};
use crate::participant::liveness::Identity;
use crate::participant::lock::RowLocks;
use crate::participant::task;
use crate::segment::Segment;

/// What a row is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Life {
    Free,
    Joining,
    Alive,
}

/// A row's state word, taken apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RowState {
    pub(crate) life: Life,
    pub(crate) epoch: u16,
    pub(crate) pid: u32,
    /// 12 bits of the pid's namespace.
    pub(crate) tag: u16,
}

/// The tag of a namespace as [`Identity`] gives it. Two namespaces may have one tag; a pid is then looked up in the
/// wrong one, once in 4,096 of the cases in which a process of another namespace is caught between two steps of
/// joining.
pub(crate) const fn tag_of(namespace: u64) -> u16 {
    let mixed = namespace.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 52) as u16
}

impl RowState {
    /// Nobody is in the row; `epoch` was the last.
    pub(crate) const fn free(epoch: u16) -> Self {
        Self {
            life: Life::Free,
            epoch,
            pid: 0,
            tag: 0,
        }
    }

    pub(crate) const fn from_word(word: u64) -> Self {
        let life = match word & 0xf {
            1 => Life::Joining,
            2 => Life::Alive,
            _ => Life::Free,
        };
        Self {
            life,
            epoch: (word >> 4) as u16,
            pid: (word >> 20) as u32,
            tag: (word >> 52) as u16,
        }
    }

    pub(crate) const fn to_word(self) -> u64 {
        let life = match self.life {
            Life::Free => 0,
            Life::Joining => 1,
            Life::Alive => 2,
        };
        life | ((self.epoch as u64) << 4)
            | ((self.pid as u64) << 20)
            | (((self.tag & 0xfff) as u64) << 52)
    }
}

/// One row, seen through the mapping.
#[derive(Clone, Copy)]
pub(crate) struct Row<'a> {
    segment: &'a Segment,
    pub(crate) number: u16,
}

impl<'a> Row<'a> {
    /// The row of that number, if it is committed.
    pub(crate) fn get(segment: &'a Segment, number: u16) -> Option<Self> {
        (u64::from(number) < rows_high(segment)).then_some(Self { segment, number })
    }

    pub(crate) fn word(&self, field: u64) -> &'a AtomicU64 {
        self.segment
            .word(ROWS_START + u64::from(self.number) * ROW + field)
    }

    pub(crate) fn state(&self) -> RowState {
        RowState::from_word(self.word(row::STATE).load(Ordering::Acquire))
    }

    /// Who is in the row now, if anyone is.
    pub(crate) fn occupant(&self) -> Option<(Owner, RowState)> {
        let state = self.state();
        (state.life != Life::Free).then_some((
            Owner {
                row: self.number,
                epoch: state.epoch,
            },
            state,
        ))
    }

    pub(crate) fn change(&self, from: RowState, to: RowState) -> bool {
        self.word(row::STATE)
            .compare_exchange(
                from.to_word(),
                to.to_word(),
                Ordering::AcqRel,
                Ordering::Acquire,
            )
            .is_ok()
    }

    /// Writes a text into a field of `words` words; longer texts are cut at a character.
    pub(crate) fn write_text(&self, field: u64, words: u64, text: &str) {
        write_text(
            self.segment,
            ROWS_START + u64::from(self.number) * ROW + field,
            words,
            text,
        );
    }

    /// Reads a text back; whatever bytes are there become some text.
    pub(crate) fn read_text(&self, field: u64, words: u64) -> String {
        read_text(
            self.segment,
            ROWS_START + u64::from(self.number) * ROW + field,
            words,
        )
    }
}

/// Writes `{length, bytes…}` into `words` words at `offset`.
pub(crate) fn write_text(segment: &Segment, offset: u64, words: u64, text: &str) {
    let most = ((words - 1) * WORD) as usize;
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    segment.word(offset).store(0, Ordering::Relaxed);
    for (index, bytes) in text.as_bytes()[..end].chunks(8).enumerate() {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        segment
            .word(offset + (index as u64 + 1) * WORD)
            .store(u64::from_le_bytes(word), Ordering::Relaxed);
    }
    // Release: who sees the length sees the bytes.
    segment.word(offset).store(end as u64, Ordering::Release);
}

/// Reads what [`write_text`] wrote.
pub(crate) fn read_text(segment: &Segment, offset: u64, words: u64) -> String {
    // Acquire: the length first, then the bytes that were there before it.
    let load = |index| segment.word(offset + index * WORD).load(Ordering::Acquire);
    text_of(&(0..words).map(load).collect::<Vec<_>>())
}

/// The text in the words of a text field, whatever they hold.
pub(crate) fn text_of(words: &[u64]) -> String {
    let Some((&length, words)) = words.split_first() else {
        return String::new();
    };
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.truncate(usize::try_from(length).unwrap_or(usize::MAX));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Rows that are committed.
pub(crate) fn rows_high(segment: &Segment) -> u64 {
    segment
        .word(header::ROWS_HIGH)
        .load(Ordering::Acquire)
        .min(ROWS)
}

/// Every row that is committed.
pub(crate) fn rows(segment: &Segment) -> impl Iterator<Item = Row<'_>> {
    (0..rows_high(segment)).map(move |number| Row {
        segment,
        number: number as u16,
    })
}

/// Commits the first step of rows, or the next one.
///
/// One step of [`Segment::commit`], so a failed one takes nothing back that another process took meanwhile.
pub(crate) fn commit_rows(segment: &Segment, high: u64) -> Result<()> {
    let wanted = (high + ROWS_STEP).min(ROWS);
    let start = ROWS_START + high * ROW;
    let end = (ROWS_START + wanted * ROW).next_multiple_of(PAGE);
    segment.commit(start, end - start)?;
    segment
        .word(header::ROWS_HIGH)
        .fetch_max(wanted, Ordering::AcqRel);
    Ok(())
}

/// Takes a free row for this process, with its life lock, and fills it in.
///
/// The lock comes first, and a row whose byte somebody else has is passed over: its last occupant may be just leaving, or
/// a bare fork of it may keep the lock for long. Whoever lived there without the lock would be taken for dead in other
/// pid namespaces once that one is gone. Only where the system gives no locks at all does a participant live without
/// one, and its row says so.
pub(crate) fn join(segment: &Segment, who: Identity, locks: &RowLocks) -> Result<Owner> {
    loop {
        for row in rows(segment) {
            let state = row.state();
            if state.life != Life::Free {
                continue;
            }
            let joining = RowState {
                life: Life::Joining,
                epoch: state.epoch.wrapping_add(1),
                pid: who.pid,
                tag: tag_of(who.namespace),
            };
            let unlocked = match locks.try_lock(row.number) {
                Ok(true) => false,
                Ok(false) => continue,
                Err(error) => {
                    crate::say!(warn, %error, "no life lock to be had; if this process dies, other pid namespaces do not notice");
                    true
                }
            };
            if !row.change(state, joining) {
                // Somebody was faster. A byte that cannot be unlocked keeps others from the row, and harms nobody.
                let _ = locks.unlock(row.number);
                continue;
            }
            crate::failpoint!("row.joining");
            // Pairs with the fence in `record::read_last`: whoever sees a word of what follows sees the new epoch, too.
            fence(Ordering::Release);
            fill_in(row, who);
            // Seen by whoever sees the row ALIVE.
            row.word(row::UNLOCKED)
                .store(unlocked.into(), Ordering::Relaxed);
            let alive = RowState {
                life: Life::Alive,
                ..joining
            };
            // It fails only if somebody took us for dead, against all rules: then the row is not ours any more.
            if row.change(joining, alive) {
                changed(segment);
                return Ok(Owner {
                    row: row.number,
                    epoch: joining.epoch,
                });
            }
            let _ = locks.unlock(row.number);
        }
        let high = rows_high(segment);
        if high >= ROWS {
            return Err(Error::new(
                ErrorKind::ParticipantsFull { rows: ROWS as u32 },
                format!(
                    "all {ROWS} rows for participants of this arena are taken; end some processes, or use a second arena"
                ),
            ));
        }
        commit_rows(segment, high)?;
    }
}

/// Writes identity and an empty flight recorder into a row that is JOINING for this process.
fn fill_in(row: Row<'_>, who: Identity) {
    for (field, value) in [
        (row::START_TIME, who.start_time),
        (row::PID_NAMESPACE, who.namespace),
        (row::LEASES_HIGH, 0),
        (row::JOINED, now_ns()),
        (row::WAITING_FOR, 0),
        (row::LEAVING, 0),
        (row::CONTEXT, 0),
        (row::STOPPING, 0),
        (row::SERVANTS, 0),
        (row::STREAMS, 0),
        (row::RETURNED, 0),
    ] {
        row.word(field).store(value, Ordering::Relaxed);
    }
    for index in 0..row::DIRECTORY_WORDS {
        row.word(row::DIRECTORY + index * WORD)
            .store(0, Ordering::Relaxed);
    }
    for index in 0..row::DIRTY_WORDS {
        row.word(row::DIRTY + index * WORD)
            .store(0, Ordering::Relaxed);
    }
    for entry in 0..row::WAIT_ENTRIES {
        // The version stays: who looked at the last occupant's must not find the same.
        let state = row.word(row::WAITS + entry * 4 * WORD);
        state.store(state.load(Ordering::Relaxed) & !0xf, Ordering::Relaxed);
    }
    intake::init(row);
    task::clear(&row);
    for (field, words) in [(row::NAME, row::NAME_WORDS), (row::PANIC, row::PANIC_WORDS)] {
        row.write_text(field, words, "");
    }
}

/// Gives the row of this process back, when it holds nothing any more, and its life lock right after it.
pub(crate) fn leave(segment: &Segment, me: Owner, locks: &RowLocks) {
    let Some(row) = Row::get(segment, me.row) else {
        return;
    };
    let state = row.state();
    if state.life == Life::Alive && state.epoch == me.epoch {
        row.change(state, RowState::free(me.epoch));
        // Not before: a row that is ALIVE without its lock looks dead from another pid namespace. By name, not by closing:
        // a bare fork may have the description as well, and keep the row from others.
        let _ = locks.unlock(me.row);
        changed(segment);
    }
}

/// Somebody came or went: tells those who look, and counts who is there.
///
/// Counted anew rather than added to, so that a process killed between two steps leaves no error behind.
pub(crate) fn changed(segment: &Segment) {
    let membership = segment.word(header::MEMBERSHIP);
    let mut seen = membership.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
    loop {
        let alive = rows(segment)
            .filter(|row| row.state().life == Life::Alive)
            .count();
        segment
            .word(header::ALIVE)
            .store(alive as u64, Ordering::Release);
        // Whoever changed something meanwhile may have stored its count before us.
        let now = membership.load(Ordering::Acquire);
        if now == seen {
            return;
        }
        seen = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_survives_its_word() {
        for life in [Life::Free, Life::Joining, Life::Alive] {
            let state = RowState {
                life,
                epoch: u16::MAX,
                pid: u32::MAX,
                tag: 0xfff,
            };
            assert_eq!(RowState::from_word(state.to_word()), state);
        }
        assert_eq!(RowState::from_word(u64::MAX).life, Life::Free);
    }
}
