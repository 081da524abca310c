//! What whoever supervises a run and the processes of a knot tell each other: what is kept back, whether a slot is free, and
//! how to go on.

use std::sync::atomic::{Ordering, fence};

use super::{
    ANSWERED, ASKED, Board, HELD, HELP, KEPT, LATE, LETTING_GO, RENEWS, SERIAL, THREADS, WORDS,
};

/// How a process that keeps items back is helped out of a knot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Help {
    /// It is to give back the slots of what it keeps, for others seem to wait for some.
    MakeRoom,
    /// They do wait. If something was lost on its way, and more has come since than can be on its way, what is before the
    /// items that it keeps can't come any more; else it is to give their slots back.
    MakeRoomOrPass,
    /// What is before the items that it keeps can't come any more.
    Pass,
}

impl Board {
    /// Notes whether anything may have been lost on its way, without a place holder.
    pub(crate) fn set_lossy(&self, lossy: bool) {
        self.set(self.deaths_at() + 1, u64::from(lossy));
    }

    pub(crate) fn is_lossy(&self) -> bool {
        self.get(self.deaths_at() + 1) != 0
    }

    /// Notes that the run is being ended before its time: what ends from now on ends because of that.
    pub(crate) fn end_early(&self) {
        self.set(self.deaths_at() + 2, 1);
        // Before any process is told: whoever then sees that others have ended knows why.
        fence(Ordering::SeqCst);
    }

    pub(crate) fn ends_early(&self) -> bool {
        // Between what was seen of others, and this.
        fence(Ordering::SeqCst);
        self.get(self.deaths_at() + 2) != 0
    }

    /// Notes that process `rank` keeps back so many items, of which so many are in slots of others, and whether its stage is
    /// called at some time though nothing comes. Written only where it changes: whoever publishes looks at this line for each
    /// item, and would have to fetch it back.
    pub(crate) fn set_kept(&self, rank: u32, (kept, held): (usize, usize), wakes: bool) {
        let at = rank as usize * WORDS;
        let word = (kept as u64) << 1 | u64::from(wakes);
        for (at, word) in [(at + KEPT, word), (at + HELD, held as u64)] {
            if self.get(at) != word {
                self.set(at, word);
            }
        }
    }

    pub(crate) fn keeps_back(&self, rank: u32) -> bool {
        self.get(rank as usize * WORDS + KEPT) > 1
    }

    /// Whether the stage of process `rank` goes on by itself, though the process waits for an input.
    pub(crate) fn wakes(&self, rank: u32) -> bool {
        self.get(rank as usize * WORDS + KEPT) & 1 != 0
    }

    pub(crate) fn keeps_slots(&self, rank: u32) -> bool {
        self.get(rank as usize * WORDS + HELD) != 0
    }

    /// Notes how many items came to process `rank` after those that they should have come before.
    pub(crate) fn set_late(&self, rank: u32, items: u64) {
        self.set(rank as usize * WORDS + LATE, items);
    }

    pub(crate) fn late(&self, rank: u32) -> u64 {
        self.get(rank as usize * WORDS + LATE)
    }

    /// Helps process `rank` in its how-manieth state, which it says with the next.
    pub(crate) fn give_help(&self, rank: u32, serial: u64, help: Help) {
        let help = match help {
            Help::MakeRoom => 1,
            Help::MakeRoomOrPass => 2,
            Help::Pass => 3,
        };
        let word = serial << 2 | help;
        self.set(rank as usize * WORDS + HELP, word);
    }

    /// How process `rank` is helped, in the state it is in.
    pub(crate) fn help(&self, rank: u32) -> Option<Help> {
        let at = rank as usize * WORDS;
        let word = self.get(at + HELP);
        if word >> 2 != self.get(at + SERIAL) {
            return None;
        }
        match word & 3 {
            0 => None,
            1 => Some(Help::MakeRoom),
            2 => Some(Help::MakeRoomOrPass),
            _ => Some(Help::Pass),
        }
    }

    /// Asks process `rank`, which waits for a slot, to look once more. The numbers of questions go up.
    pub(crate) fn ask(&self, rank: u32, question: u64) {
        self.set(rank as usize * WORDS + ASKED, question);
    }

    /// The last question, to be read before the look that is to answer it.
    pub(crate) fn asked(&self, rank: u32) -> u64 {
        let asked = self.get(rank as usize * WORDS + ASKED);
        // What had been done before it was asked is seen by the look.
        fence(Ordering::SeqCst);
        asked
    }

    /// Process `rank` has looked since it was asked, and there was no slot.
    pub(crate) fn answer(&self, rank: u32, question: u64) {
        fence(Ordering::Release);
        self.set(rank as usize * WORDS + ANSWERED, question);
    }

    pub(crate) fn answered(&self, rank: u32) -> u64 {
        self.get(rank as usize * WORDS + ANSWERED)
    }

    /// Process `rank` may make slots anew in its how-manieth state: those that nobody reads are nowhere.
    pub(crate) fn let_renew(&self, rank: u32, serial: u64) {
        // One more: 0 is none.
        self.set(rank as usize * WORDS + RENEWS, serial.wrapping_add(1));
    }

    /// Whether it may, in the state it is in.
    pub(crate) fn may_renew(&self, rank: u32) -> bool {
        let at = rank as usize * WORDS;
        self.get(at + RENEWS) == self.get(at + SERIAL).wrapping_add(1)
    }

    /// Notes how many threads of process `rank` are the library's.
    pub(crate) fn set_threads(&self, rank: u32, threads: u64) {
        self.set(rank as usize * WORDS + THREADS, threads);
    }

    pub(crate) fn threads(&self, rank: u32) -> u64 {
        self.get(rank as usize * WORDS + THREADS)
    }

    /// Notes that one more thread of the program's own is in the middle of letting go of an input of process `rank`; or, if
    /// negative, that one no longer is.
    pub(crate) fn let_go_aside(&self, rank: u32, more: i64) {
        let at = rank as usize * WORDS + LETTING_GO;
        let _ = self.words.fetch_add(&[at], more as u64);
    }

    /// Whether one is: what it has in hand is nobody's on the board, and is about to come back.
    pub(crate) fn lets_go_aside(&self, rank: u32) -> bool {
        self.get(rank as usize * WORDS + LETTING_GO) != 0
    }

    /// Whether process `rank` reads any slot.
    pub(crate) fn reads_any(&self, rank: u32) -> bool {
        (0..self.processes as u32).any(|writer| {
            let mut slots = 0..self.slot_count(writer) as u32;
            slots.any(|slot| self.readers(writer, slot).includes(rank))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::board::State;

    #[test]
    fn slots_may_be_made_anew_only_in_the_state_in_which_that_was_said() {
        let board = Board::new(&[1, 0]).unwrap();
        assert!(!board.may_renew(0));
        board.enter(0, State::WaitsForSlot);
        let serial = board.since(0).1;
        assert!(!board.may_renew(0));
        board.let_renew(0, serial);
        assert!(board.may_renew(0) && !board.may_renew(1));
        board.enter(0, State::WaitsForSlot);
        assert!(!board.may_renew(0));
        board.let_renew(0, serial + 1);
        board.forget(0);
        assert!(!board.may_renew(0));
    }

    #[test]
    fn help_is_given_to_a_process_in_one_state_of_it() {
        let board = Board::new(&[0, 0]).unwrap();
        for help in [Help::MakeRoom, Help::MakeRoomOrPass, Help::Pass] {
            board.enter(0, State::WaitsForInput(0));
            let serial = board.since(0).1;
            assert_eq!(board.help(0), None);
            board.give_help(0, serial, help);
            assert_eq!(board.help(0), Some(help));
            board.enter(0, State::WaitsForInput(0));
            assert_eq!(board.help(0), None);
        }
    }
}
