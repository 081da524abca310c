//! Queues, lanes, events and barriers between real processes.

use std::process::ExitCode;

mod ends;
mod memory;
mod refusals;
mod signals;
mod traffic;
mod values;

fn main() -> ExitCode {
    let suites = [
        traffic::TESTS,
        values::TESTS,
        memory::TESTS,
        ends::TESTS,
        refusals::TESTS,
        signals::TESTS,
    ];
    integration_tests::main(&suites.concat())
}
