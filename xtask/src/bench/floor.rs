//! The floors of a hand-over: what two processes cannot do faster, whatever the protocol.
//!
//! `cache line`: one word goes back and forth between two processes that spin. `futex wake`: the same between two processes
//! of which the receiving one sleeps in the kernel.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use rustix::io::Errno;
use rustix::thread::futex;

use super::clock;
use super::mapping::{self, Words};
use super::subject::{Connection, End, Link, Side, Subject};
use crate::Result;

/// Round trips in one sample of what spins: reading the clock costs a good part of a hand-over.
pub(crate) const ROUND_TRIPS: u64 = 64;

/// A file that both sides map.
pub(crate) fn connect() -> Result<Connection> {
    let file = mapping::file(4096)?;
    Ok(Connection::of(vec![file.try_clone()?], vec![file]))
}

pub(crate) fn map(link: &Link) -> Result<Words> {
    let [file] = link.descriptors.as_slice() else {
        return Err("needs exactly one descriptor".into());
    };
    Words::map(file)
}

pub(crate) struct CacheLine;

impl Subject for CacheLine {
    fn name(&self) -> String {
        "cache line".to_owned()
    }

    fn batch(&self) -> usize {
        400
    }

    fn connect(&self) -> Result<Connection> {
        connect()
    }

    fn open(&self, side: Side, link: Link) -> Result<Box<dyn End>> {
        Ok(Box::new(Spinner {
            words: map(&link)?,
            side,
            last: 0,
        }))
    }
}

/// One word counts up: A makes it odd, B makes it even.
struct Spinner {
    words: Words,
    side: Side,
    last: u64,
}

/// Stores the next number.
fn send(word: &AtomicU64, last: &mut u64) {
    *last += 1;
    // Release: pairs with the other side's acquire in `receive`, as a hand-over with a payload would need it.
    word.store(*last, Release);
}

/// Waits for the next number.
fn receive(word: &AtomicU64, last: &mut u64) -> Result<()> {
    // A bare load: a pause between two would be part of the floor.
    let mut now = *last;
    while now == *last {
        now = word.load(Acquire);
    }
    if now != *last + 1 {
        return Err(format!("cache line: {now} arrived where {} was due", *last + 1).into());
    }
    *last = now;
    Ok(())
}

impl End for Spinner {
    fn run(&mut self, samples: usize) -> Result<Vec<u64>> {
        let mut taken = Vec::with_capacity(samples);
        let (word, last) = (self.words.word(0), &mut self.last);
        for _ in 0..samples {
            let start = clock::now();
            for _ in 0..ROUND_TRIPS {
                match self.side {
                    Side::A => {
                        send(word, last);
                        receive(word, last)?;
                    }
                    Side::B => {
                        receive(word, last)?;
                        send(word, last);
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

pub(crate) struct FutexWake;

impl Subject for FutexWake {
    fn name(&self) -> String {
        "futex wake".to_owned()
    }

    fn batch(&self) -> usize {
        100
    }

    fn connect(&self) -> Result<Connection> {
        connect()
    }

    fn open(&self, side: Side, link: Link) -> Result<Box<dyn End>> {
        Ok(Box::new(Sleeper {
            words: map(&link)?,
            side,
            round: 0,
        }))
    }
}

/// Two futex words, one for each direction, and for each the clock of its sender; all in lines of their own.
struct Sleeper {
    words: Words,
    side: Side,
    round: u32,
}

impl Sleeper {
    /// What a side receives in: the index of its futex, and of its clock.
    fn index(to: Side) -> usize {
        if to == Side::A { 0 } else { 64 }
    }

    fn send(&self, to: Side) -> Result<()> {
        let futex = self.words.futex(Self::index(to));
        clock::settle();
        self.words
            .word(Self::index(to))
            .store(clock::now(), Relaxed);
        // Release: the receiver's acquire of this word makes the clock visible.
        futex.store(self.round, Release);
        // Not private: the waiter is another process.
        futex::wake(futex, futex::Flags::empty(), 1)?;
        Ok(())
    }

    /// Waits for this round's hand-over; says how long it took if this side slept until it was woken.
    fn receive(&self) -> Result<Option<u64>> {
        let futex = self.words.futex(Self::index(self.side));
        let mut slept = false;
        loop {
            let now = futex.load(Acquire);
            if now == self.round {
                break;
            }
            if now != self.round.wrapping_sub(1) {
                return Err(format!(
                    "futex wake: round {now} arrived where {} was due",
                    self.round
                )
                .into());
            }
            match futex::wait(futex, futex::Flags::empty(), now, None) {
                Ok(()) => slept = true,
                // It changed before we slept: not a wake, so not a sample.
                Err(Errno::AGAIN | Errno::INTR) => slept = false,
                Err(error) => return Err(format!("futex wait: {error}").into()),
            }
        }
        let took = clock::now() - self.words.word(Self::index(self.side)).load(Relaxed);
        Ok(slept.then_some(took))
    }
}

impl End for Sleeper {
    fn run(&mut self, samples: usize) -> Result<Vec<u64>> {
        let mut taken = Vec::with_capacity(samples);
        for _ in 0..samples {
            self.round += 1;
            if self.side == Side::A {
                self.send(Side::B)?;
            }
            taken.extend(self.receive()?);
            if self.side == Side::B {
                self.send(Side::A)?;
            }
        }
        Ok(taken)
    }
}
