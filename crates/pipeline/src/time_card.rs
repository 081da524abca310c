//! Time cards: what became of each item in each step, when, and where.
//!
//! A process writes a [`TimeCard`] when it is done with an item: when the stage has returned and the item's slots are
//! given back, into shared memory, where it outlives its process. The process that started the run reads and counts them.

use serde::{Deserialize, Serialize};

use crate::item::Member;

/// What became of an item in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Outcome {
    /// The stage handled it.
    #[default]
    Ok,
    /// It was dropped, as the policy of a full queue or ring says.
    Dropped,
    /// The process that had it failed.
    Failed,
    /// The process that had it failed, and another one gets it.
    Redelivered,
    /// A segment that waited in vain for the others of its item.
    Incomplete,
}

/// One item in one step. Times are CLOCK_MONOTONIC nanoseconds, 0 where the step does not have that moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TimeCard {
    /// The item's number.
    pub item: u64,
    /// Which segment of the item, from 0.
    pub part: u32,
    /// The items it was made of, where it is a new one: a batch, or one of several outputs.
    pub parents: Vec<u64>,
    /// The step, by its index.
    pub step: u32,
    /// The process, by its rank in the run.
    pub rank: u32,
    /// The device that the process was given; -1 is the CPU.
    pub device: i32,
    /// When it was put into the step's queue.
    pub enqueued: u64,
    /// When the process took it from there; where the stage was called with it at once, when that was.
    pub dequeued: u64,
    /// When the process had a slot for its (last) output.
    pub slot_acquired: u64,
    /// How long, in nanoseconds, the process waited for slots for its outputs.
    pub slot_wait: u64,
    /// When the stage was called.
    pub started: u64,
    /// When the stage had returned.
    pub finished: u64,
    /// When what had to be copied from or to a device was seen to be there, or as the stage says.
    pub copy_done: u64,
    /// When its (last) output was put into the next queue.
    pub published: u64,
    /// When its slots were given back.
    pub released: u64,
    /// What became of it.
    pub outcome: Outcome,
}

/// A time card on its way home, with the weight of what ended there.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) card: TimeCard,
    pub(crate) ended: Vec<Member>,
}

/// How many slots of a process were in use.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Sample {
    pub(crate) t: u64,
    pub(crate) in_use: u32,
}

/// What a process sends home now and then.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Batch {
    pub(crate) rank: u32,
    /// Inputs that a first step made itself.
    pub(crate) offered: u64,
    pub(crate) entries: Vec<Entry>,
    pub(crate) samples: Vec<Sample>,
    /// What it brings home, from a process that may be replaced: the last that it sends, with how many were there before it.
    pub(crate) outcome: Option<Box<(u32, crate::process::Outcome)>>,
}
