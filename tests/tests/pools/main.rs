//! Pools of real processes, and of threads: one suite over both, and what only processes can do and suffer.

use std::process::ExitCode;

mod deaths;
mod ends;
mod hostile;
mod limits;
mod maps;
mod steps;
mod tasks;
mod workers;

fn main() -> ExitCode {
    let suites = [
        tasks::TESTS,
        maps::TESTS,
        ends::TESTS,
        deaths::TESTS,
        limits::TESTS,
        steps::TESTS,
        hostile::TESTS,
    ];
    integration_tests::main_with_scenes(&suites.concat(), steps::SCENES)
}
