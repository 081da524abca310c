//! SIGKILL at any instruction: nobody hangs, nothing arrives twice, and what is lost was in the dead one's hands.
//!
//! Labelled steps are compiled into builds with debug assertions, so the tests at them are left out of others; kills at
//! random moments are in all.

use std::process::ExitCode;

use integration_tests::Test;

#[cfg(debug_assertions)]
mod locks;
mod random;
mod scene;
#[cfg(debug_assertions)]
mod steps;
mod stopped;

fn main() -> ExitCode {
    #[cfg(debug_assertions)]
    let (locks, steps, scenes): (&[Test], &[Test], &[Test]) =
        (locks::TESTS, steps::TESTS, steps::SCENES);
    #[cfg(not(debug_assertions))]
    let (locks, steps, scenes): (&[Test], &[Test], &[Test]) = (&[], &[], &[]);
    let tests = [locks, steps, random::TESTS, stopped::TESTS].concat();
    integration_tests::main_with_scenes(&tests, scenes)
}
