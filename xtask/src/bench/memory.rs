//! The floors of a tensor's bytes: copying them, and touching fresh shared pages. One process works; the other has no part.

use std::hint::black_box;
use std::sync::atomic::Ordering::Relaxed;

use super::mapping::{self, Words};
use super::subject::{Connection, End, Link, Side, Subject};
use super::{clock, payload};
use crate::Result;

const PAGE: usize = 4096;

pub(crate) struct Memcpy;

impl Subject for Memcpy {
    fn name(&self) -> String {
        format!("memcpy {}", payload::LARGE.name)
    }

    fn metric(&self) -> &'static str {
        "copy_ns"
    }

    fn batch(&self) -> usize {
        10
    }

    fn connect(&self) -> Result<Connection> {
        Ok(Connection::of(Vec::new(), Vec::new()))
    }

    fn open(&self, side: Side, _link: Link) -> Result<Box<dyn End>> {
        if side == Side::B {
            return Ok(Box::new(Idle));
        }
        // Not zeroes: those would be pages that were never touched.
        let buffer = || vec![1; payload::LARGE.bytes];
        Ok(Box::new(Copier {
            from: buffer(),
            to: buffer(),
            number: 0,
        }))
    }
}

struct Copier {
    from: Vec<u8>,
    to: Vec<u8>,
    number: u64,
}

impl End for Copier {
    fn run(&mut self, samples: usize) -> Result<Vec<u64>> {
        let mut taken = Vec::with_capacity(samples);
        for _ in 0..samples {
            self.number += 1;
            payload::mark(&mut self.from, self.number);
            let start = clock::now();
            self.to.copy_from_slice(black_box(&self.from));
            black_box(&mut self.to);
            taken.push(clock::now() - start);
            payload::check(&self.to, self.number)?;
        }
        Ok(taken)
    }
}

pub(crate) struct FirstTouch;

impl Subject for FirstTouch {
    fn name(&self) -> String {
        format!("first touch {}", payload::LARGE.name)
    }

    fn metric(&self) -> &'static str {
        "touch_ns"
    }

    fn batch(&self) -> usize {
        4
    }

    fn connect(&self) -> Result<Connection> {
        Ok(Connection::of(Vec::new(), Vec::new()))
    }

    fn open(&self, side: Side, _link: Link) -> Result<Box<dyn End>> {
        Ok(if side == Side::A {
            Box::new(Toucher)
        } else {
            Box::new(Idle)
        })
    }
}

struct Toucher;

impl End for Toucher {
    fn run(&mut self, samples: usize) -> Result<Vec<u64>> {
        let mut taken = Vec::with_capacity(samples);
        for number in 1..=samples as u64 {
            // A file of its own each time, so that no page is there before.
            let words = Words::map(&mapping::file(payload::LARGE.bytes)?)?;
            let pages = || (0..words.len()).step_by(PAGE / size_of::<u64>());
            let start = clock::now();
            for first in pages() {
                words.word(first).store(number, Relaxed);
            }
            taken.push(clock::now() - start);
            if pages().any(|first| words.word(first).load(Relaxed) != number) {
                return Err("first touch: a page does not hold what was written".into());
            }
        }
        Ok(taken)
    }
}

/// The other side of what one process does alone.
pub(crate) struct Idle;

impl End for Idle {
    fn run(&mut self, _samples: usize) -> Result<Vec<u64>> {
        Ok(Vec::new())
    }
}
