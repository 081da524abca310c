//! What is read and written without the board's lock: how far streams are, which allocations live, counts, gates.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::{ALLOCATIONS, PROCESSES, STREAMS, Ticket};
use crate::calls;
use crate::raw::{futex_wait, futex_wake};

#[repr(C)]
pub(crate) struct Words {
    streams: [StreamWords; STREAMS],
    pub(crate) processes: [ProcessWords; PROCESSES],
    /// Of each allocation, the generation that lives; zero for none.
    allocations: [AtomicU32; ALLOCATIONS],
    /// 1 while all streams are held back.
    hold: AtomicU32,
}

#[repr(C)]
struct StreamWords {
    /// Who has the slot; counts up with each stream that gets it.
    generation: AtomicU32,
    /// Operations that are finished.
    done: AtomicU32,
    /// Changes when `done` or `generation` does; what waiters sleep on.
    bell: AtomicU32,
    /// Bit g % 64: the stream of generation g ended with work left, because its process died.
    torn: AtomicU64,
}

#[repr(C)]
pub(crate) struct ProcessWords {
    pub(crate) calls: [AtomicU64; calls::COUNT],
}

/// How far an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    Pending,
    Done,
    /// Its process died before it was finished: it never will be.
    Never,
}

impl Words {
    pub(crate) fn progress(&self, ticket: Ticket, dead_happen: bool) -> Progress {
        let stream = &self.streams[usize::from(ticket.stream)];
        // Acquire: pairs with `turn`, which sets `done` and `torn` before it counts up.
        let generation = stream.generation.load(Ordering::Acquire);
        if generation != ticket.generation {
            let torn = stream.torn.load(Ordering::Relaxed) >> (ticket.generation % 64) & 1;
            return match torn == 1 && !dead_happen {
                true => Progress::Never,
                false => Progress::Done,
            };
        }
        // Acquire: pairs with `finish`, so that what the operation wrote is seen.
        if stream.done.load(Ordering::Acquire) < ticket.sequence {
            return Progress::Pending;
        }
        // Acquire: pairs with `turn`, which counts up before it sets `done` for those who come next: such a `done` says
        // nothing of this ticket.
        match stream.generation.load(Ordering::Acquire) == generation {
            true => Progress::Done,
            false => self.progress(ticket, dead_happen),
        }
    }

    /// Whether a stream that is there has finished so many operations.
    pub(crate) fn has_done(&self, stream: usize, issued: u32) -> bool {
        // Acquire: pairs with `finish`.
        self.streams[stream].done.load(Ordering::Acquire) >= issued
    }

    /// Waits a while until the operation is finished; whether it is.
    pub(crate) fn wait(&self, ticket: Ticket, dead_happen: bool) -> bool {
        let stream = &self.streams[usize::from(ticket.stream)];
        // Acquire: pairs with `ring`.
        let bell = stream.bell.load(Ordering::Acquire);
        if self.progress(ticket, dead_happen) == Progress::Done {
            return true;
        }
        // The limit is for a slot whose process died: nobody rings then.
        futex_wait(&stream.bell, bell, Duration::from_millis(100));
        self.progress(ticket, dead_happen) == Progress::Done
    }

    /// A stream's next operation is finished.
    pub(crate) fn finish(&self, stream: usize, sequence: u32) {
        let words = &self.streams[stream];
        // Release: pairs with `progress`.
        words.done.store(sequence, Ordering::Release);
        self.ring(stream);
    }

    /// The slot's stream is no more, and operations count on from `issued`. `torn` says whether it left work undone.
    pub(super) fn turn(&self, stream: usize, issued: u32, torn: bool) -> u32 {
        let words = &self.streams[stream];
        let old = words.generation.load(Ordering::Relaxed);
        let bit = 1 << (old % 64);
        match torn {
            true => words.torn.fetch_or(bit, Ordering::Relaxed),
            false => words.torn.fetch_and(!bit, Ordering::Relaxed),
        };
        // Release: pairs with `progress`.
        words
            .generation
            .store(old.wrapping_add(1), Ordering::Release);
        words.done.store(issued, Ordering::Release);
        self.ring(stream);
        old.wrapping_add(1)
    }

    pub(super) fn done(&self, stream: usize) -> u32 {
        self.streams[stream].done.load(Ordering::Acquire)
    }

    fn ring(&self, stream: usize) {
        let bell = &self.streams[stream].bell;
        // Release: pairs with the load of the bell in `wait`.
        bell.fetch_add(1, Ordering::Release);
        futex_wake(bell);
    }

    /// Whether that allocation is there and is still the same one.
    pub(crate) fn lives(&self, index: usize, generation: u32) -> bool {
        self.allocations
            .get(index)
            .is_some_and(|word| word.load(Ordering::Acquire) == generation)
    }

    pub(super) fn set_living(&self, index: usize, generation: u32) {
        self.allocations[index].store(generation, Ordering::Release);
    }

    /// Holds all streams back, or lets them go.
    pub(crate) fn set_hold(&self, held: bool) {
        self.hold.store(u32::from(held), Ordering::Release);
        futex_wake(&self.hold);
    }

    /// Returns when streams are not held back.
    pub(crate) fn pass_hold(&self) {
        while self.hold.load(Ordering::Acquire) == 1 {
            futex_wait(&self.hold, 1, Duration::from_millis(100));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32};

    use super::*;
    use crate::board::Board;

    #[test]
    fn what_the_dead_left_undone_is_never_seen_as_done_while_its_slot_is_given_away() {
        let (_file, board) = Board::create().unwrap();
        let words = &board.words;
        let latest = AtomicU32::new(words.turn(7, 0, false));
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for sequence in 1..=200_000 {
                    latest.store(words.turn(7, sequence, true), Ordering::Release);
                }
                is_over.store(true, Ordering::Release);
            });
            while !is_over.load(Ordering::Acquire) {
                let ticket = Ticket {
                    stream: 7,
                    generation: latest.load(Ordering::Acquire),
                    // The one that its process dies with.
                    sequence: words.done(7) + 1,
                };
                // Of a slot that was not given away in between.
                if words.streams[7].generation.load(Ordering::Acquire) == ticket.generation {
                    assert_ne!(words.progress(ticket, false), Progress::Done, "{ticket:?}");
                }
            }
        });
    }
}
