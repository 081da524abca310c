//! What this crate promises, with real processes.
//!
//! This file is also the worked example of the recipe for tests in the crate's documentation: no standard harness,
//! `init` first. Scenes that need a whole program to themselves run this same executable again with `scene NAME`.

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

mod arena;
mod contexts;
mod endings;
mod entry;
mod forkserver;
mod group;
mod hosts;
mod namespaces;
mod options;
mod scenes;
mod stopping;
mod support;

fn main() -> ExitCode {
    // Programs that get `init` wrong, see `entry`.
    if let Some(code) = entry::without_init() {
        return code;
    }
    spawn::init();
    let mut words = std::env::args().skip(1);
    if words.next().as_deref() == Some("scene") {
        return scenes::play(&words.next().unwrap_or_default());
    }
    let tests: Vec<Trial> = [
        arena::tests(),
        contexts::tests(),
        endings::tests(),
        entry::tests(),
        forkserver::tests(),
        group::tests(),
        hosts::tests(),
        namespaces::tests(),
        options::tests(),
        stopping::tests(),
        scenes::tests(),
    ]
    .into_iter()
    .flatten()
    .collect();
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}
