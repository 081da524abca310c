//! What every sharing strategy owes, test by test: each test runs once for each strategy there is, with the second
//! participant in a process of its own, and those that need no second process once more with both in one. A test is
//! called `strategy::promise`; the book's page on reports from elsewhere says which of them guards against what.

use std::process::ExitCode;

use integration_tests::Test;
use tensormp::shm_core::strategy::all;

mod memory;
mod named;
mod peer;
mod processes;
mod tensors;

/// As what the second participant runs where it is no process: the same checks, within one process.
pub(crate) const ONE_PROCESS: &str = "one_process";

fn main() -> ExitCode {
    // Before anything else: in the test's own process the name says by which strategy its arena is made.
    if let Some(way) = peer::way()
        && way != ONE_PROCESS
    {
        tensormp::set_sharing_strategy(way.as_str()).expect("a strategy that exists");
    }
    let mut tests = Vec::new();
    for strategy in all() {
        let name = strategy.name();
        let promises = [tensors::PROMISES, memory::PROMISES, processes::PROMISES];
        tests.extend(of(name, &promises.concat()));
        if strategy.outlives_processes() {
            tests.extend(of(name, named::PROMISES));
        }
    }
    tests.extend(of(ONE_PROCESS, tensors::PROMISES));
    let scenes = of("file_system", named::SCENES);
    integration_tests::main_with_scenes(&tests, &scenes)
}

fn of(way: &str, promises: &[Test]) -> Vec<Test> {
    let named = |promise: &Test| Test {
        name: format!("{way}::{}", promise.name).leak(),
        body: promise.body,
    };
    promises.iter().map(named).collect()
}
