//! Tests across crates. The library holds the harness under which tests with child processes run, and the README and those pages of
//! the book that hold Rust, so that rustdoc compiles and runs their blocks; the tests with child processes are in `tests/`, their
//! helper programs in `src/bin/`.

mod harness;
mod look;

pub use harness::{Test, allow_leaks, main};
pub use look::{children, children_of, exists, kill, name_of, pidfd, stop_and_see, wait_for_end};

/// The first page of the repository.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
#[derive(Debug)]
pub struct Readme;
