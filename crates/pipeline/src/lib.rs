//! Stages of replicated processes, joined by rings of tensors.
//!
//! A [`Pipeline`] has [`Step`]s, each a [`Stage`] that runs in processes of its own. A process has a ring of slots, made
//! before the run, each with the same tensors. It takes any free slot, writes its tensors in place and publishes it;
//! what travels is a small message that names the slot. Readers see the tensors where they are, and the slot is free
//! again when the last of them is done. Inputs come from a [`Client`], or the first step makes them.
//!
//! The idea, and the words, are those of the RnB video pipeline (snuspl/rnb): steps, queue groups, selectors, segments,
//! time cards. What its users had to get right by hand (an event per tensor, as many end markers as consumers, slots
//! that are waited for in turn, a barrier that a crash would hang) is in the types here.
//!
//! Beside that there is the [`ring`](ring()) itself, for two processes that want the shortest way between them and
//! nothing else.
//!
//! With the feature `cuda` a step's slots can lie on its processes' devices ([`Device`]).
//!
//! What it does not do: run on other machines.
#![deny(unsafe_code)]

mod account;
mod board;
mod call;
mod card;
mod check;
mod client;
#[cfg(feature = "command")]
mod command;
mod config;
mod counts;
mod descent;
mod device;
mod ending;
mod error;
mod fields;
mod gather;
mod home;
mod input;
mod intake;
mod item;
mod knot;
mod ledger;
mod looking;
mod lookout;
mod nearest;
mod order;
mod output;
mod panicking;
mod pipeline;
mod pool;
mod process;
mod progress;
mod reading;
mod registry;
mod replaced;
pub mod report;
mod ring;
mod ring_end;
mod route;
mod run;
mod run_dir;
mod runner;
mod selector;
mod signals;
mod slot;
mod spec;
mod stage;
pub mod stages;
mod step;
mod tally;
mod threads;
mod time_card;
mod wire;
mod wiring;

pub use account::Items;
pub use client::Client;
#[cfg(feature = "command")]
pub use command::main;
pub use config::Config;
pub use counts::Counts;
pub use error::{Error, ErrorKind, Result, StageError};
pub use gather::{Batch, Parts};
pub use input::Input;
pub use mp_queue::WaitPolicy;
pub use output::Output;
pub use pipeline::Pipeline;
pub use pool::OutputSlot;
pub use registry::Registry;
pub use replaced::{Replaced, Replacements};
pub use ring::{Consumer, Producer, Topology, ring, ring_in};
pub use route::{Backpressure, Delivery};
pub use run::{ProcessReport, Report, Running, Stopper, Termination};
pub use selector::{BySize, LeastLoaded, Outgoing, RoundRobin, Selector};
pub use slot::{Borrowed, Slot};
pub use spec::{Device, TENSORS_MAX, TensorSpec};
pub use stage::{Context, Flow, Segments, Stage};
pub use step::{QueueGroup, Step, Unfinished};
pub use time_card::{Outcome, TimeCard};
