//! A CUDA driver without a GPU, for tests: strict, asynchronous, and shared by processes.
//!
//! The library part is a `libcuda.so` that a test loads in place of a driver. Device memory is a file in memory that no
//! process maps where another one does and that the host cannot touch; each stream is a thread; events, handles and
//! descriptors work between processes. What a driver leaves undefined is refused, reported, or made to go wrong: an address
//! that was freed is given out again at once, fresh memory is not zero, what is asynchronous by the manual is asynchronous.
//! A race detector follows the order of all accesses by streams, events and the host's waits, across processes.
//!
//! The other part is for tests: [`load`] puts the library in place, [`Session`] reads counters and reports and holds
//! streams back, [`Knobs`] says what the machine lacks, [`Driver`] calls the library without `unsafe`.
//!
//! It is never built into anything that users get: nothing but tests depends on it.

mod board;
mod calls;
mod code;
mod context;
mod copy;
mod driver;
mod event;
mod exit;
mod handles;
mod host;
mod ipc;
mod knobs;
mod load;
mod memory;
mod process;
mod raw;
mod session;
mod space;
mod stream;
mod symbols;
mod vmm;
mod words;

pub use board::Kind;
pub use driver::{Code, Driver, HandleBytes};
pub use knobs::Feature;
pub use load::{Error, Knobs, inherit, is_inherited, load};
pub use session::{Calls, Live, Report, Session};
