//! What a message costs beyond one word, with no library at all: the same 64 bytes, by hand, between two processes that spin.
//!
//! `bare line`: one line that both sides write in turn, a word and 56 bytes: no queue. `bare lane`: two lanes of such lines,
//! one for each direction, as a queue of one producer and one consumer must have them: look whether the cell is free, write 56
//! bytes, publish by compare-and-swap; look, read, and free the cell before the next look. No lease, no check, no wait but the
//! look. What these cost on a machine, no queue between its processes can do without.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use super::clock;
use super::floor::{ROUND_TRIPS, connect, map};
use super::mapping::Words;
use super::subject::{Connection, End, Link, Side, Subject};
use crate::Result;

/// Cells of a lane, as many as a ring of the suite `handoff` has.
const CELLS: u64 = 16;
/// Words in a line: one that says whose it is, and the rest.
const LINE: usize = 8;

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Bare {
    Line,
    Lane,
}

impl Subject for Bare {
    fn name(&self) -> String {
        match self {
            Bare::Line => "bare line busy 64B",
            Bare::Lane => "bare lane busy 64B",
        }
        .to_owned()
    }

    fn batch(&self) -> usize {
        400
    }

    fn connect(&self) -> Result<Connection> {
        connect()
    }

    fn open(&self, side: Side, link: Link) -> Result<Box<dyn End>> {
        Ok(Box::new(Ends {
            words: map(&link)?,
            way: *self,
            side,
            sent: 0,
            received: 0,
            unfreed: None,
        }))
    }
}

struct Ends {
    words: Words,
    way: Bare,
    side: Side,
    /// How many messages went in each direction.
    sent: u64,
    received: u64,
    /// The cell that was read last, and what makes it free.
    unfreed: Option<(usize, u64)>,
}

impl Ends {
    /// Where the line of a message is: its first word. What A writes comes first.
    fn line(&self, from: Side, number: u64) -> usize {
        match self.way {
            Bare::Line => 0,
            Bare::Lane => {
                let direction = if from == Side::A { 0 } else { CELLS };
                (direction + number % CELLS) as usize * LINE
            }
        }
    }

    fn payload(&self, line: usize) -> impl Iterator<Item = &AtomicU64> {
        (line + 1..line + LINE).map(|word| self.words.word(word))
    }

    /// What a word says of a message before it is there, and when it is.
    fn states(&self, from: Side, number: u64) -> (u64, u64) {
        match self.way {
            // It counts up: what A writes is odd.
            Bare::Line => {
                let before = 2 * number + u64::from(from == Side::B);
                (before, before + 1)
            }
            Bare::Lane => {
                let lap = number / CELLS;
                (2 * lap, 2 * lap + 1)
            }
        }
    }

    fn send(&mut self) -> Result<()> {
        let (line, (before, there)) = (
            self.line(self.side, self.sent),
            self.states(self.side, self.sent),
        );
        let word = self.words.word(line);
        // Acquire: pairs with the reader's release of the cell.
        while word.load(Acquire) != before {}
        for (offset, place) in (0..).zip(self.payload(line)) {
            place.store(self.sent + offset, Relaxed);
        }
        if self.way == Bare::Line {
            word.store(there, Release);
        } else if word
            .compare_exchange(before, there, SeqCst, Relaxed)
            .is_err()
        {
            return Err("a cell was written by somebody else".into());
        }
        self.sent += 1;
        Ok(())
    }

    fn receive(&mut self, from: Side) -> Result<()> {
        if let Some((line, free)) = self.unfreed.take() {
            // Release: what was read of it was read before.
            self.words.word(line).store(free, Release);
        }
        let (line, (_, there)) = (
            self.line(from, self.received),
            self.states(from, self.received),
        );
        // Acquire: the payload comes with it.
        while self.words.word(line).load(Acquire) != there {}
        let read: u64 = self.payload(line).map(|place| place.load(Relaxed)).sum();
        let due: u64 = (0..LINE as u64 - 1)
            .map(|offset| self.received + offset)
            .sum();
        if read != due {
            return Err(format!(
                "message {}: its words come to {read} and not {due}",
                self.received
            )
            .into());
        }
        if self.way == Bare::Lane {
            self.unfreed = Some((line, there + 1));
        }
        self.received += 1;
        Ok(())
    }
}

impl End for Ends {
    fn run(&mut self, samples: usize) -> Result<Vec<u64>> {
        let mut taken = Vec::with_capacity(samples);
        for _ in 0..samples {
            let start = clock::now();
            for _ in 0..ROUND_TRIPS {
                match self.side {
                    Side::A => {
                        self.send()?;
                        self.receive(Side::B)?;
                    }
                    Side::B => {
                        self.receive(Side::A)?;
                        self.send()?;
                    }
                }
            }
            if self.side == Side::A {
                taken.push((clock::now() - start) / (2 * ROUND_TRIPS));
            }
        }
        Ok(taken)
    }
}
