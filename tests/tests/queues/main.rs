//! Queues, lanes, locks, events and barriers between real processes.

use std::process::ExitCode;

mod ends;
mod fairness;
mod hostile;
mod locks;
mod memory;
mod refusals;
mod signals;
mod tasks;
mod together;
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
        locks::TESTS,
        tasks::TESTS,
        together::TESTS,
        fairness::TESTS,
        hostile::TESTS,
    ];
    integration_tests::main(&suites.concat())
}
