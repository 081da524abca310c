//! The board: a few words a process in shared memory, where each says what it is doing.
//!
//! Whoever supervises a run reads there which process hangs, which holds whose slots, and how much is on its way, also of
//! processes that cannot answer. The words are hints that change all the time; nothing is freed because of them.

use serde::{Deserialize, Serialize};
use shm_core::clock::now_ns;
use shm_core::{AliasedTensor, Tensor};

use crate::error::Result;

mod help;

pub(crate) use help::Help;

/// Words of a cache line.
const LINE: usize = 8;
/// Words of each process: a line that it writes all the time, one that hardly changes, which others look at, and one for
/// what it rarely notes.
const WORDS: usize = 3 * LINE;
const STATE: usize = 0;
const SINCE: usize = 1;
const ITEM: usize = 2;
const SERIAL: usize = 3;
const INPUTS: usize = 4;
const OUTPUTS: usize = 5;
const READY: usize = LINE;
const CAUSE: usize = LINE + 1;
const DONE: usize = LINE + 2;
/// How many items the process keeps back for those before them, how many of them may be in slots of others, how many came
/// late, and in which of its states it is helped, and how.
const KEPT: usize = LINE + 3;
const HELD: usize = LINE + 4;
const LATE: usize = LINE + 5;
const HELP: usize = LINE + 6;
/// The last question whether it finds a slot when it looks once more, and the last that it has answered with no.
const ASKED: usize = LINE + 7;
const ANSWERED: usize = 6;
/// How many threads of the process are the library's.
const THREADS: usize = 7;

/// How many segments the process holds until the others of their items come.
const PARTS: usize = 2 * LINE;
/// Whether the process has sent what it brings home.
const BROUGHT: usize = 2 * LINE + 1;
/// How many threads of the program's own are in the middle of letting go of an input.
const LETTING_GO: usize = 2 * LINE + 2;

/// In which of its states the process may make slots anew that are nowhere.
const RENEWS: usize = 2 * LINE + 3;

/// A word of a slot: who reads it in the lower bits, one bit for each process by its rank, and above them the turn of the
/// memory that they read.
const READERS: u32 = 48;
const READER_BITS: u64 = (1 << READERS) - 1;

/// In place of an item's number: the stage's input has ended, and it finishes.
pub(crate) const ENDING: u64 = u64::MAX;
/// In place of an item's number: the stage was woken, since its time had come, and has no item.
pub(crate) const WOKEN: u64 = u64::MAX - 1;

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
    /// Waits for room in this lane.
    WaitsForRoom(u32),
    /// Waits for what ends by itself.
    Pauses,
    /// Of the client: waits until it is known what became of all that it offered.
    WaitsForOutcomes,
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
            Self::WaitsForOutcomes => 6,
            Self::WaitsForRoom(lane) => 7 | u64::from(lane) << 8,
        }
    }

    fn from_word(word: u64) -> Self {
        match word & 0xff {
            1 => Self::Working,
            2 => Self::WaitsForInput((word >> 8) as u32),
            3 => Self::WaitsForSlot,
            4 => Self::Pauses,
            5 => Self::Done,
            6 => Self::WaitsForOutcomes,
            7 => Self::WaitsForRoom((word >> 8) as u32),
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

/// A slot, and which of the memories it had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    /// The process whose slot it is.
    pub(crate) rank: u32,
    pub(crate) slot: u32,
    pub(crate) turn: u16,
}

/// Of more processes than bits, several share one: then one of them that lets go is taken for all, and a knot may go unseen.
fn bit(rank: u32) -> u64 {
    1 << (rank % READERS)
}

/// The readers of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Readers(u64);

impl Readers {
    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn includes(self, rank: u32) -> bool {
        self.0 & bit(rank) != 0
    }

    /// Whether each of them is one that this is true of.
    pub(crate) fn all(self, ranks: u32, is: impl Fn(u32) -> bool) -> bool {
        let known = (0..ranks).filter(|&rank| self.includes(rank) && is(rank));
        known.fold(0, |bits, rank| bits | bit(rank)) == self.0
    }
}

/// The board of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Board {
    words: AliasedTensor<u64>,
    processes: usize,
    /// Where the words of each process's slots begin; one more at the end.
    slots: Vec<usize>,
}

impl Board {
    /// A board for processes with so many slots each.
    pub(crate) fn new(slots: &[usize]) -> Result<Self> {
        let mut next = slots.len() * WORDS;
        let mut begins = Vec::with_capacity(slots.len() + 1);
        for &count in slots {
            begins.push(next);
            next += count;
        }
        begins.push(next);
        Ok(Self {
            words: Tensor::<u64>::zeros([next + 3])?.alias(),
            processes: slots.len(),
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

    /// The same state in another word: no other moment, nor another turn of it.
    pub(crate) fn show(&self, rank: u32, state: State) {
        self.set(rank as usize * WORDS + STATE, state.to_word());
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

    /// Notes that the process holds so many more segments until the others of their items come; or, if negative, fewer.
    pub(crate) fn hold_parts(&self, rank: u32, more: i64) {
        let at = rank as usize * WORDS + PARTS;
        let _ = self.words.fetch_add(&[at], more as u64);
    }

    pub(crate) fn parts(&self, rank: u32) -> u64 {
        self.get(rank as usize * WORDS + PARTS)
    }

    /// Notes that the process has sent what it brings home: it is on its way to whoever supervises the run.
    pub(crate) fn set_brought(&self, rank: u32) {
        self.set(rank as usize * WORDS + BROUGHT, 1);
    }

    pub(crate) fn has_brought(&self, rank: u32) -> bool {
        self.get(rank as usize * WORDS + BROUGHT) != 0
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

    /// The first of the words of the run itself, which are the last.
    fn deaths_at(&self) -> usize {
        self.slots.last().copied().unwrap_or(0)
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

    /// Slot `slot` of process `rank` has other memory from now on, which nobody reads: the turn of it. What was written into
    /// the memory before may be read for long, since items outlive their writer, and is no slot of anybody's then.
    pub(crate) fn turn(&self, rank: u32, slot: u32) -> u16 {
        let Some(at) = self.slot_at(rank, slot) else {
            return 0;
        };
        let turn = ((self.get(at) >> READERS) as u16).wrapping_add(1);
        self.set(at, u64::from(turn) << READERS);
        turn
    }

    /// Changes the word of a slot as long as its memory has this turn.
    fn change(&self, place: Place, change: impl Fn(u64) -> u64) {
        let Some(at) = self.slot_at(place.rank, place.slot) else {
            return;
        };
        let mut seen = self.get(at);
        while (seen >> READERS) as u16 == place.turn {
            match self.words.compare_exchange(&[at], seen, change(seen)) {
                Ok(Err(other)) => seen = other,
                _ => return,
            }
        }
    }

    /// Notes that `reader` reads a slot.
    pub(crate) fn hold(&self, place: Place, reader: u32) {
        self.change(place, |word| word | bit(reader));
    }

    /// Notes that `reader` reads it no longer.
    pub(crate) fn let_go(&self, place: Place, reader: u32) {
        self.change(place, |word| word & !bit(reader));
    }

    /// Who reads a slot of process `rank`; nobody while it is free or on its way.
    pub(crate) fn readers(&self, rank: u32, slot: u32) -> Readers {
        let word = self.slot_at(rank, slot).map_or(0, |at| self.get(at));
        Readers(word & READER_BITS)
    }

    /// Forgets what process `rank` was doing, for the one that takes its place; what it read is given back by then.
    pub(crate) fn forget(&self, rank: u32) {
        for word in [
            ITEM, INPUTS, OUTPUTS, READY, CAUSE, DONE, KEPT, HELD, ANSWERED, PARTS, BROUGHT,
            LETTING_GO, RENEWS, STATE,
        ] {
            self.set(rank as usize * WORDS + word, 0);
        }
        let all = self.slots.first().zip(self.slots.last());
        for at in all.map_or(0..0, |(&begin, &end)| begin..end) {
            let mut seen = self.get(at);
            while seen & bit(rank) != 0 {
                match self.words.compare_exchange(&[at], seen, seen & !bit(rank)) {
                    Ok(Err(other)) => seen = other,
                    _ => break,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_process_notes_another_reads() {
        let board = Board::new(&[2, 0, 3]).unwrap();
        board.enter(1, State::WaitsForInput(7));
        assert_eq!(board.state(1), State::WaitsForInput(7));
        assert_eq!(board.state(0), State::Starting);
        let place = |rank, slot| Place {
            rank,
            slot,
            turn: board.turn(rank, slot),
        };
        let (one, other) = (place(2, 1), place(0, 1));
        board.hold(one, 0);
        board.hold(one, 1);
        board.hold(other, 1);
        assert!(board.readers(2, 1).includes(0) && board.readers(2, 0).is_empty());
        board.let_go(one, 1);
        assert!(board.readers(2, 1).includes(0), "another's note stays");
        board.forget(0);
        assert!(board.readers(2, 1).is_empty() && board.readers(0, 1).includes(1));
        assert!(board.readers(1, 0).is_empty(), "it has no slots");
    }

    #[test]
    fn whoever_reads_a_slots_old_memory_reads_no_slot() {
        let board = Board::new(&[1, 0]).unwrap();
        let place = |turn| Place {
            rank: 0,
            slot: 0,
            turn,
        };
        let (old, new) = (board.turn(0, 0), board.turn(0, 0));
        board.hold(place(old), 1);
        assert!(board.readers(0, 0).is_empty());
        board.hold(place(new), 1);
        board.let_go(place(old), 1);
        assert!(board.readers(0, 0).includes(1));
        assert!(board.readers(0, 0).all(2, |rank| rank == 1));
        assert!(!board.readers(0, 0).all(2, |_| false));
        board.let_go(place(new), 1);
        assert!(board.readers(0, 0).is_empty());
    }
}
