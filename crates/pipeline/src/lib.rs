//! Stages of replicated processes joined by rings of tensors.
#![deny(unsafe_code)]

mod error;
mod ring;
mod slot;
mod spec;

pub use error::{Error, ErrorKind, Result, StageError};
pub use mp_queue::WaitPolicy;
pub use ring::{Consumer, Producer, Topology, ring, ring_in};
pub use slot::{Borrowed, Slot};
pub use spec::{TENSORS_MAX, TensorSpec};
