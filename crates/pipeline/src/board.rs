//! The board: a few words a process in shared memory, where each says what it is doing.
//!
//! Whoever supervises a run reads there which process hangs, which holds whose slots, and how much is on its way, also of
//! processes that cannot answer. The words are hints that change all the time; nothing is freed because of them.

use serde::{Deserialize, Serialize};
use shm_core::clock::now_ns;
use shm_core::{AliasedTensor, Tensor};

use crate::error::Result;

/// Words of a cache line.
const LINE: usize = 8;
/// Words of each process: a line that it writes all the time, and one that hardly changes, which others look at.
const WORDS: usize = 2 * LINE;
const STATE: usize = 0;
const SINCE: usize = 1;
const ITEM: usize = 2;
const SERIAL: usize = 3;
const INPUTS: usize = 4;
const OUTPUTS: usize = 5;
const READY: usize = LINE;
const CAUSE: usize = LINE + 1;
const DONE: usize = LINE + 2;
/// Words of each lane: items put, and items taken, each in a line of its own.
const LANE_WORDS: usize = 2 * LINE;
const TAKEN: usize = LINE;

/// In place of an item's number: the stage's input has ended, and it finishes.
pub(crate) const ENDING: u64 = u64::MAX;

/// What a process is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Not there yet, or being replaced.
    Starting,
    /// The stage works.
    Working,
    /// Waits for an item of this lane.
    WaitsForInput(u32),
    /// Waits for one of its own slots.
    WaitsForSlot,
    /// Waits for what ends by itself: room in a queue, or a time.
    Pauses,
    /// Has returned.
    Done,
}

impl State {
    fn to_word(self) -> u64 {
        match self {
            Self::Starting => 0,
            Self::Working => 1,
            Self::WaitsForInput(lane) => 2 | u64::from(lane) << 8,
            Self::WaitsForSlot => 3,
            Self::Pauses => 4,
            Self::Done => 5,
        }
    }

    fn from_word(word: u64) -> Self {
        match word & 0xff {
            1 => Self::Working,
            2 => Self::WaitsForInput((word >> 8) as u32),
            3 => Self::WaitsForSlot,
            4 => Self::Pauses,
            5 => Self::Done,
            _ => Self::Starting,
        }
    }
}

/// Why a process ends the run, where that is no failure of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// A queue or ring was full and its policy is to fail.
    QueueFull,
    /// It holds all the slots there are and wants one more.
    Deadlock,
}

/// The board of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Board {
    words: AliasedTensor<u64>,
    processes: usize,
    lanes: usize,
    /// Where the holders of each process's slots begin; one more at the end.
    slots: Vec<usize>,
}

impl Board {
    /// A board for processes with so many slots each, and so many lanes.
    pub(crate) fn new(slots: &[usize], lanes: usize) -> Result<Self> {
        let mut next = slots.len() * WORDS + lanes * LANE_WORDS;
        let mut begins = Vec::with_capacity(slots.len() + 1);
        for &count in slots {
            begins.push(next);
            next += count;
        }
        begins.push(next);
        Ok(Self {
            words: Tensor::<u64>::zeros([next + 1])?.alias(),
            processes: slots.len(),
            lanes,
            slots: begins,
        })
    }

    /// A word outside is nobody's: it is read as 0 and written by nobody.
    fn get(&self, at: usize) -> u64 {
        self.words.load(&[at]).unwrap_or(0)
    }

    fn set(&self, at: usize, value: u64) {
        let _ = self.words.store(&[at], value);
    }

    pub(crate) fn processes(&self) -> usize {
        self.processes
    }

    /// Notes what process `rank` does from now on.
    pub(crate) fn enter(&self, rank: u32, state: State) {
        self.enter_at(rank, state, now_ns());
    }

    /// The same for who knows what time it is.
    pub(crate) fn enter_at(&self, rank: u32, state: State, now: u64) {
        let at = rank as usize * WORDS;
        self.set(at + SINCE, now);
        // Nobody else writes it.
        self.set(at + SERIAL, self.get(at + SERIAL).wrapping_add(1));
        self.set(at + STATE, state.to_word());
        if state == State::Done {
            self.set(at + DONE, 1);
        }
    }

    /// Whether process `rank` has returned.
    pub(crate) fn is_done(&self, rank: u32) -> bool {
        self.get(rank as usize * WORDS + DONE) != 0
    }

    pub(crate) fn state(&self, rank: u32) -> State {
        State::from_word(self.get(rank as usize * WORDS + STATE))
    }

    /// Since when, and the how-manieth state this is.
    pub(crate) fn since(&self, rank: u32) -> (u64, u64) {
        let at = rank as usize * WORDS;
        (self.get(at + SINCE), self.get(at + SERIAL))
    }

    /// Notes which item is worked on.
    pub(crate) fn set_item(&self, rank: u32, item: u64) {
        self.set(rank as usize * WORDS + ITEM, item);
    }

    pub(crate) fn item(&self, rank: u32) -> u64 {
        self.get(rank as usize * WORDS + ITEM)
    }

    /// Notes how many items the process has taken.
    pub(crate) fn set_inputs(&self, rank: u32, inputs: u64) {
        self.set(rank as usize * WORDS + INPUTS, inputs);
    }

    /// Notes how many items the process has published.
    pub(crate) fn set_outputs(&self, rank: u32, outputs: u64) {
        self.set(rank as usize * WORDS + OUTPUTS, outputs);
    }

    /// How many items the process took and published, also where it did not come to its end.
    pub(crate) fn counts(&self, rank: u32) -> (u64, u64) {
        let at = rank as usize * WORDS;
        (self.get(at + INPUTS), self.get(at + OUTPUTS))
    }

    pub(crate) fn set_ready(&self, rank: u32) {
        self.set(rank as usize * WORDS + READY, 1);
    }

    pub(crate) fn is_ready(&self, rank: u32) -> bool {
        self.get(rank as usize * WORDS + READY) != 0
    }

    pub(crate) fn set_cause(&self, rank: u32, cause: Cause) {
        let word = match cause {
            Cause::QueueFull => 1,
            Cause::Deadlock => 2,
        };
        self.set(rank as usize * WORDS + CAUSE, word);
    }

    pub(crate) fn cause(&self, rank: u32) -> Option<Cause> {
        match self.get(rank as usize * WORDS + CAUSE) {
            1 => Some(Cause::QueueFull),
            2 => Some(Cause::Deadlock),
            _ => None,
        }
    }

    /// Counts a process that died and is replaced.
    pub(crate) fn count_death(&self) {
        let _ = self.words.fetch_add(&[self.deaths_at()], 1);
    }

    /// How many processes have died and been replaced.
    pub(crate) fn deaths(&self) -> u64 {
        self.get(self.deaths_at())
    }

    /// The last word of all.
    fn deaths_at(&self) -> usize {
        self.slots.last().copied().unwrap_or(0)
    }

    fn lane_at(&self, lane: u32) -> usize {
        self.processes * WORDS + (lane as usize).min(self.lanes.saturating_sub(1)) * LANE_WORDS
    }

    /// Counts an item that is about to be put; before it is there, so that a count of 0 means none.
    pub(crate) fn count_put(&self, lane: u32, put: bool) {
        let at = [self.lane_at(lane)];
        let _ = if put {
            self.words.fetch_add(&at, 1)
        } else {
            self.words.fetch_sub(&at, 1)
        };
    }

    pub(crate) fn count_taken(&self, lane: u32) {
        let _ = self.words.fetch_add(&[self.lane_at(lane) + TAKEN], 1);
    }

    /// Items on their way through a lane; never fewer than there are.
    pub(crate) fn on_the_way(&self, lane: u32) -> u64 {
        // Taken first: an item that is put and taken in between only makes the answer larger.
        let taken = self.get(self.lane_at(lane) + TAKEN);
        self.get(self.lane_at(lane)).saturating_sub(taken)
    }

    /// How many slots process `rank` has.
    pub(crate) fn slot_count(&self, rank: u32) -> usize {
        let rank = rank as usize;
        match (self.slots.get(rank), self.slots.get(rank + 1)) {
            (Some(&begin), Some(&end)) => end - begin,
            _ => 0,
        }
    }

    fn slot_at(&self, rank: u32, slot: u32) -> Option<usize> {
        ((slot as usize) < self.slot_count(rank)).then(|| self.slots[rank as usize] + slot as usize)
    }

    /// Notes who reads a slot of process `rank`.
    pub(crate) fn hold(&self, rank: u32, slot: u32, holder: u32) {
        if let Some(at) = self.slot_at(rank, slot) {
            self.set(at, u64::from(holder) + 1);
        }
    }

    /// Notes that `holder` reads it no longer. Of several readers the last to come is the one that is noted.
    pub(crate) fn let_go(&self, rank: u32, slot: u32, holder: u32) {
        if let Some(at) = self.slot_at(rank, slot) {
            let _ = self.words.compare_exchange(&[at], u64::from(holder) + 1, 0);
        }
    }

    /// Who reads a slot of process `rank`, as far as known; `None` while it is free or on its way.
    pub(crate) fn holder(&self, rank: u32, slot: u32) -> Option<u32> {
        let at = self.slot_at(rank, slot)?;
        (self.get(at) as u32).checked_sub(1)
    }

    /// Forgets what process `rank` was doing, for the one that takes its place; what it read is given back by then.
    pub(crate) fn forget(&self, rank: u32) {
        for word in [ITEM, INPUTS, OUTPUTS, READY, CAUSE, DONE, STATE] {
            self.set(rank as usize * WORDS + word, 0);
        }
        for (owner, begin) in self.slots.iter().enumerate().take(self.processes) {
            for at in *begin..self.slots[owner + 1] {
                let _ = self.words.compare_exchange(&[at], u64::from(rank) + 1, 0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_process_notes_another_reads() {
        let board = Board::new(&[2, 0, 3], 2).unwrap();
        board.enter(1, State::WaitsForInput(7));
        assert_eq!(board.state(1), State::WaitsForInput(7));
        assert_eq!(board.state(0), State::Starting);
        board.hold(2, 1, 0);
        board.hold(0, 1, 1);
        assert_eq!((board.holder(2, 1), board.holder(2, 0)), (Some(0), None));
        board.let_go(2, 1, 1);
        assert_eq!(board.holder(2, 1), Some(0), "another's note stays");
        board.forget(0);
        assert_eq!((board.holder(2, 1), board.holder(0, 1)), (None, Some(1)));
        assert_eq!(board.holder(1, 0), None, "it has no slots");
        board.count_put(1, true);
        assert_eq!((board.on_the_way(1), board.on_the_way(0)), (1, 0));
        board.count_taken(1);
        assert_eq!(board.on_the_way(1), 0);
    }
}
