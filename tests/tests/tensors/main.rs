//! Tensors that several processes have at once: aliased ones, and those that come from or go to other libraries.

use std::process::ExitCode;

mod aliased;
mod dlpack;
mod files;

fn main() -> ExitCode {
    let suites = [aliased::TESTS, dlpack::TESTS, files::TESTS];
    integration_tests::main(&suites.concat())
}
