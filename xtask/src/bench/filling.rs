//! A tensor of 12 MB, made and filled: out of memory that was freed before, and out of memory that the system has to give
//! first. The same by the system's allocator is the floor of the second. One process works; the other has no part.

use std::hint::black_box;

use shm_core::{Arena, Tensor};

use super::memory::Idle;
use super::subject::{Connection, End, Link, Side, Subject};
use super::{clock, payload};
use crate::Result;

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Filling {
    /// A tensor in the place of one that was dropped.
    Recycled,
    /// A tensor in an arena that has given all its free memory back.
    Fresh,
    /// A vector of the system's allocator, which may recycle or not.
    Malloc,
}

impl Subject for Filling {
    fn name(&self) -> String {
        let how = match self {
            Filling::Recycled => "recycled",
            Filling::Fresh => "fresh",
            Filling::Malloc => "malloc memcpy",
        };
        format!("{how} {}", payload::LARGE.name)
    }

    fn metric(&self) -> &'static str {
        "fill_ns"
    }

    fn batch(&self) -> usize {
        if *self == Filling::Fresh { 4 } else { 10 }
    }

    fn connect(&self) -> Result<Connection> {
        Ok(Connection::of(Vec::new(), Vec::new()))
    }

    fn open(&self, side: Side, _link: Link) -> Result<Box<dyn End>> {
        if side == Side::B {
            return Ok(Box::new(Idle));
        }
        Ok(Box::new(Filler {
            how: *self,
            arena: Arena::builder().capacity(1 << 30).create()?,
            // Not zeroes: those would be pages that were never touched.
            from: vec![1; payload::LARGE.bytes],
            number: 0,
        }))
    }
}

struct Filler {
    how: Filling,
    arena: Arena,
    from: Vec<u8>,
    number: u64,
}

impl End for Filler {
    fn run(&mut self, samples: usize) -> Result<Vec<u64>> {
        let mut taken = Vec::with_capacity(samples);
        for _ in 0..samples {
            self.number += 1;
            payload::mark(&mut self.from, self.number);
            let from = black_box(self.from.as_slice());
            let start = clock::now();
            if self.how == Filling::Malloc {
                let made = black_box(from.to_vec());
                taken.push(clock::now() - start);
                payload::check(&made, self.number)?;
                continue;
            }
            let made = Tensor::from_slice_in(&self.arena, [from.len()], from)?;
            taken.push(clock::now() - start);
            payload::check(made.as_slice(), self.number)?;
            drop(made);
            if self.how == Filling::Fresh {
                self.arena.trim();
            }
        }
        Ok(taken)
    }
}
