//! Tests across crates. The library itself holds nothing but the README and those pages of the book that hold Rust, so that
//! rustdoc compiles and runs their blocks; the tests with child processes are in `tests/`, their helper programs in
//! `src/bin/`.

/// The first page of the repository.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
#[derive(Debug)]
pub struct Readme;
