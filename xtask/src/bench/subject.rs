//! What is measured: a subject is one way of handing something over, and has two ends, each in a process of its own.
//!
//! The benchmark's own process makes what both ends need (`connect`); each of the two processes then builds its end from its
//! part of that (`open`) and keeps it for the whole case. A batch runs both ends at once; they keep step by what they hand
//! over. A new subject implements the two traits and gets its line in `catalogue`.

use std::any::Any;
use std::os::fd::OwnedFd;

use crate::Result;

/// Which of the two processes.
#[derive(Copy, Clone, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Side {
    /// Begins each hand-over.
    A,
    /// Receives it.
    B,
}

/// What one end gets from the process that connects them.
#[derive(Debug, Default)]
pub(crate) struct Link {
    pub(crate) descriptors: Vec<OwnedFd>,
    /// Whatever else it needs to know, such as a handle.
    pub(crate) words: Vec<u64>,
}

/// What connects both ends.
pub(crate) struct Connection {
    pub(crate) a: Link,
    pub(crate) b: Link,
    /// Stays with the connecting process until the case is done, such as its share of what the ends use.
    pub(crate) keep: Box<dyn Any>,
}

impl Connection {
    /// Nothing is kept: the descriptors are all there is.
    pub(crate) fn of(a: Vec<OwnedFd>, b: Vec<OwnedFd>) -> Connection {
        let link = |descriptors| Link {
            descriptors,
            words: Vec::new(),
        };
        Connection {
            a: link(a),
            b: link(b),
            keep: Box::new(()),
        }
    }
}

pub(crate) trait Subject {
    /// Words from the left: transport, waiting, size.
    fn name(&self) -> String;
    /// By which the two processes find it: its name, unless another suite has one that is called the same.
    fn key(&self) -> String {
        self.name()
    }
    /// What a sample is, with its unit.
    fn metric(&self) -> &'static str {
        "one_way_ns"
    }
    /// Samples in a batch: some ten milliseconds' worth, so that floor and subject meet the same machine.
    fn batch(&self) -> usize;
    /// Makes what has to be there before anything is measured, or says why the case must be left out.
    fn prepare(&self) -> std::result::Result<(), String> {
        Ok(())
    }
    /// Bytes of memory that it needs; the case is left out where there is less.
    fn room(&self) -> u64 {
        0
    }
    fn connect(&self) -> Result<Connection>;
    fn open(&self, side: Side, link: Link) -> Result<Box<dyn End>>;
}

pub(crate) trait End {
    /// Does its part of a batch of that many hand-overs, verifies what arrives, and returns the samples that this side took,
    /// in nanoseconds: at most one each, none on the side that only plays along.
    fn run(&mut self, samples: usize) -> Result<Vec<u64>>;
}
