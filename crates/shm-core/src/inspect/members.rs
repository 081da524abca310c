//! Who takes part in an arena, as its rows say and the system confirms.

use super::{Header, Reader};
use crate::cells::Owner;
use crate::error::Result;
use crate::layout::{ROW, ROWS_START, ROWS_STEP, WORD, row};
use crate::participant::liveness::{self, Verdict};
use crate::participant::lock::RowLocks;
use crate::participant::table::{Life, RowState, tag_of, text_of};
use crate::participant::task;
use crate::reap;

/// A row is looked at again when it changed hands meanwhile, so often.
const TRIES: usize = 4;

/// Words in a row.
const ROW_WORDS: usize = (ROW / WORD) as usize;

/// A participant of an arena, seen from outside. Dead ones are there until another participant buries them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Member {
    /// Its row and epoch.
    pub who: Owner,
    /// Its process id, in its own pid namespace.
    pub pid: u32,
    /// Whether that is the pid namespace of this process, so that the pid means the same here.
    pub pid_is_ours: bool,
    /// The name it gave itself, or an empty text.
    pub name: String,
    /// What it worked on last, or an empty text.
    pub task: String,
    /// Whether it is alive; a stopped process is.
    pub verdict: Verdict,
    /// Whether it has said that it ends and needs the arena's name no longer.
    pub leaving: bool,
    /// Blocks that it holds: tensors, queues, spilled messages. One that several hold counts for each.
    pub blocks: u64,
    /// Bytes of those blocks.
    pub bytes: u64,
}

impl Member {
    /// Whether the arena must stay for it: in doubt, yes.
    pub(crate) fn needs_the_arena(&self) -> bool {
        self.verdict != Verdict::Dead && !self.leaving
    }
}

/// The words of a row that somebody is in.
pub(super) struct Occupied {
    pub(super) member: Member,
    words: [u64; ROW_WORDS],
}

impl Occupied {
    pub(super) fn word(&self, field: u64) -> u64 {
        self.words[(field / WORD) as usize]
    }
}

/// Everyone in the rows of the arena; what they hold is not counted.
pub(crate) fn members(
    reader: &Reader<'_>,
    header: &Header,
    locks: &RowLocks,
) -> Result<Vec<Member>> {
    let occupied = occupied(reader, header, locks)?;
    Ok(occupied.into_iter().map(|row| row.member).collect())
}

pub(super) fn occupied(
    reader: &Reader<'_>,
    header: &Header,
    locks: &RowLocks,
) -> Result<Vec<Occupied>> {
    let mut all = Vec::new();
    let mut first = 0;
    while first < header.rows {
        let count = ROWS_STEP.min(header.rows - first);
        let words = reader.words(ROWS_START + first * ROW, count * (ROW / WORD))?;
        for (number, words) in (first..).zip(words.as_chunks().0) {
            all.extend(judge(reader, header, locks, number as u16, *words)?);
        }
        first += count;
    }
    Ok(all)
}

/// Who is in this row, whose words were read.
fn judge(
    reader: &Reader<'_>,
    header: &Header,
    locks: &RowLocks,
    number: u16,
    mut words: [u64; ROW_WORDS],
) -> Result<Option<Occupied>> {
    let at = ROWS_START + u64::from(number) * ROW;
    for last in (0..TRIES).map(|attempt| attempt + 1 == TRIES) {
        let state = RowState::from_word(words[(row::STATE / WORD) as usize]);
        if state.life == Life::Free {
            return Ok(None);
        }
        let (task, counted) = task::read_copy(&words);
        let mut found = occupant(locks, number, state, words, task);
        if header.earlier {
            found.member.verdict = Verdict::Dead;
            return Ok(Some(found));
        }
        let mut again = [0; ROW_WORDS];
        reader.read(at, &mut again)?;
        if again[(row::STATE / WORD) as usize] == words[(row::STATE / WORD) as usize] {
            if again[counted] == words[counted] {
                return Ok(Some(found));
            }
            if last {
                // It is somebody who works on something else all the time.
                found.member.task = String::new();
                return Ok(Some(found));
            }
        }
        if last {
            // People come and go all the time: somebody is there.
            found.member.verdict = Verdict::Unknown;
            return Ok(Some(found));
        }
        words = again;
    }
    Ok(None)
}

fn occupant(
    locks: &RowLocks,
    number: u16,
    state: RowState,
    words: [u64; ROW_WORDS],
    task: String,
) -> Occupied {
    let word = |field: u64| words[(field / WORD) as usize];
    let text = |field: u64, len: u64| {
        let start = (field / WORD) as usize;
        text_of(&words[start..start + len as usize])
    };
    let namespace = word(row::PID_NAMESPACE);
    let own = liveness::own_namespace();
    let pid_is_ours = match state.life {
        // The rest of the row may not be written yet.
        Life::Joining => own.is_some_and(|own| tag_of(own) == state.tag),
        _ => own == Some(namespace),
    };
    let verdict = reap::verdict_of(
        state,
        word(row::START_TIME),
        namespace,
        word(row::UNLOCKED),
        || locks.is_held_elsewhere(number).ok(),
    );
    let member = Member {
        who: Owner {
            row: number,
            epoch: state.epoch,
        },
        pid: state.pid,
        pid_is_ours,
        name: text(row::NAME, row::NAME_WORDS),
        task,
        verdict,
        leaving: word(row::LEAVING) == u64::from(state.epoch) + 1,
        blocks: 0,
        bytes: 0,
    };
    Occupied { member, words }
}
