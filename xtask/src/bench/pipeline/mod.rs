//! RnB's measure: from the end of one stage's work on an item to the moment when the next stage is called with it
//! (*inference0_finish → runner1_start*).
//!
//! Four ways: a slot of a real pipeline, a tensor of its own through a queue, an index through a queue with an event for
//! each tensor (as RnB does it, with our primitives), and all bytes through a pipe. In each the producer takes the clock when
//! its output is written and before it is handed over, and the receiver when it has it.

mod by_hand;
mod line;
mod rate;

pub(crate) use by_hand::{ByHand, Handed};
pub(crate) use line::Line;
pub(crate) use rate::{Bare, Rate};

use super::payload::Size;
use super::stream::Stream;
use super::subject::{Connection, End, Link, Side, Subject};
use crate::Result;

/// 15 clips of 3×8×112×112 f32, RnB's larger tensor; its smaller one, of 10, is [`LARGE`](super::payload::LARGE).
pub(crate) const CLIPS_15: Size = Size {
    name: "18MB",
    bytes: 18_063_360,
};
/// Larger ones, to see whether anything grows.
pub(crate) const LARGER: [Size; 2] = [
    Size {
        name: "64MB",
        bytes: 64_000_000,
    },
    Size {
        name: "256MB",
        bytes: 256_000_000,
    },
];

/// How the next item comes upon the receiver.
#[derive(Copy, Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) enum Load {
    /// It has just begun to wait, and spins.
    Busy,
    /// It sleeps.
    Parked,
    /// It works, 95 % of the time: most items wait for those before them.
    Full,
}

impl Load {
    fn name(self) -> &'static str {
        match self {
            Load::Busy => "busy",
            Load::Parked => "parked",
            Load::Full => "full",
        }
    }

    /// Items in a batch.
    fn batch(self) -> usize {
        match self {
            Load::Busy => 400,
            Load::Parked => 100,
            Load::Full => 400,
        }
    }
}

/// How long the receiver works on an item where it is loaded, and how often one comes then.
const WORK_NS: u64 = 20_000;
const INTERVAL_NS: u64 = WORK_NS * 100 / 95;
/// From the receiver's end of work until it waits again, and still spins.
const PAUSE_NS: u64 = 8_000;

/// Looks at the clock until so much time has passed.
fn spend(ns: u64) {
    let end = super::clock::now() + ns;
    while super::clock::now() < end {
        std::hint::spin_loop();
    }
}

/// When the next item is due, after this one, where users come independently of each other.
fn later(rng: &mut fastrand::Rng) -> u64 {
    let uniform = 1.0 - rng.f64();
    (-uniform.ln() * INTERVAL_NS as f64) as u64
}

/// The bytes themselves, as they go through a pipe.
#[derive(Debug)]
pub(crate) struct Through(pub(crate) Stream);

impl Subject for Through {
    fn name(&self) -> String {
        self.0.name()
    }

    fn key(&self) -> String {
        format!("pipeline {}", self.0.name())
    }

    fn batch(&self) -> usize {
        self.0.batch()
    }

    fn connect(&self) -> Result<Connection> {
        self.0.connect()
    }

    fn open(&self, side: Side, link: Link) -> Result<Box<dyn End>> {
        self.0.open(side, link)
    }
}
