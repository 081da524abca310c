//! Stages of replicated processes joined by rings of tensors.
//!
//! A [`ring`](ring()) is a fixed set of slots, each with the same tensors. A producer takes any free slot, writes its
//! tensors in place and publishes it; only the slot's index travels. A consumer reads them where they are and gives
//! the slot back by dropping it. A [`Pipeline`] starts the processes of its [`Step`]s, joins them by rings, and ends
//! with the input, or with the first error of any process.
//!
//! The idea is that of the RnB video pipeline (snuspl/rnb): all output tensors exist before the run. What its users had
//! to get right by hand (an event per tensor, as many end markers as consumers, a barrier that a crash would hang) is
//! in the types here.
//!
//! What it does not do: run on other machines, keep items that a failed run had not finished, or copy tensors.
#![deny(unsafe_code)]

mod error;
mod pipeline;
pub mod report;
mod ring;
mod ring_end;
mod run;
mod slot;
mod spec;
mod stage;

pub use error::{Error, ErrorKind, Result, StageError};
pub use mp_queue::WaitPolicy;
pub use pipeline::{Pipeline, Step};
pub use ring::{Consumer, Producer, Topology, ring, ring_in};
pub use run::{ProcessReport, Report, Running};
pub use slot::{Borrowed, Slot};
pub use spec::{TENSORS_MAX, TensorSpec};
pub use stage::{Context, Flow, Output, Stage};
