//! Tests across crates. The library holds the harness under which tests with child processes run, and the README and those pages of
//! the book that hold Rust, so that rustdoc compiles and runs their blocks; the tests with child processes are in `tests/`, their
//! helper programs in `src/bin/`.

mod harness;
mod keeper;
mod look;
pub mod named;
mod receipts;

pub use harness::{Test, allow_leaks, main, main_with_scenes, play};
pub use keeper::Keeper;
pub use look::{
    children, children_of, exists, kill, name_of, pidfd, resume, see_stopped, see_stopped_below,
    stop, stop_below, wait_for_end, wait_until_asleep,
};
pub use receipts::{Account, Pen, Receipts, Writer};

/// The first page of the repository.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
#[derive(Debug)]
pub struct Readme;

/// The page about tensors.
#[cfg(doctest)]
#[doc = include_str!("../../docs/src/tensors.md")]
#[derive(Debug)]
pub struct Tensors;

/// The page about processes.
#[cfg(doctest)]
#[doc = include_str!("../../docs/src/spawning.md")]
#[derive(Debug)]
pub struct Spawning;
/// Queues, locks and what else processes meet at.
#[cfg(doctest)]
#[doc = include_str!("../../docs/src/primitives.md")]
#[derive(Debug)]
pub struct Primitives;

/// How an arena's file comes to be, and names.
#[cfg(doctest)]
#[doc = include_str!("../../docs/src/strategies.md")]
#[derive(Debug)]
pub struct Strategies;

/// How processes are started.
#[cfg(doctest)]
#[doc = include_str!("../../docs/src/starting.md")]
#[derive(Debug)]
pub struct Starting;
/// Limits on memory, and what is kept of it.
#[cfg(doctest)]
#[doc = include_str!("../../docs/src/memory.md")]
#[derive(Debug)]
pub struct Memory;

/// How pipelines are described, and run.
#[cfg(doctest)]
#[doc = include_str!("../../docs/src/pipelines.md")]
#[derive(Debug)]
pub struct Pipelines;

/// Pools.
#[cfg(doctest)]
#[doc = include_str!("../../docs/src/pool.md")]
#[derive(Debug)]
pub struct Pools;

/// Tensors on devices.
#[cfg(doctest)]
#[doc = include_str!("../../docs/src/cuda.md")]
#[derive(Debug)]
pub struct Cuda;
