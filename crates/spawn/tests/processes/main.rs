//! What this crate promises, with real processes.
//!
//! This file is also the worked example of the recipe for tests in the crate's documentation: no standard harness,
//! `init` first. Scenes that need a whole program to themselves run this same executable again with `scene NAME`.
//!
//! All of it runs twice: then once more where `clone3` is unknown, as in an old container, so that the standard library
//! starts the processes.

use std::process::{Command, ExitCode};

use libtest_mimic::{Arguments, Trial};

mod arena;
mod contexts;
mod endings;
mod entry;
mod forkserver;
mod group;
mod hosts;
mod misuse;
mod namespaces;
mod options;
mod preloads;
mod rights;
mod scenes;
mod servers;
mod starts;
mod stopping;
mod support;
mod tasks;

/// Set where these tests run for the second time.
const WITHOUT_CLONE3: &str = "SPAWN_TEST_WITHOUT_CLONE3";

fn main() -> ExitCode {
    // Programs that get `init` wrong, see `entry`.
    if let Some(code) = entry::without_init() {
        return code;
    }
    tasks::note_early();
    spawn::init();
    let mut words = std::env::args().skip(1);
    if words.next().as_deref() == Some("scene") {
        return scenes::play(&words.next().unwrap_or_default());
    }
    let mut tests: Vec<Trial> = [
        arena::tests(),
        contexts::tests(),
        endings::tests(),
        entry::tests(),
        forkserver::tests(),
        group::tests(),
        hosts::tests(),
        misuse::tests(),
        namespaces::tests(),
        options::tests(),
        preloads::tests(),
        rights::tests(),
        starts::tests(),
        stopping::tests(),
        scenes::tests(),
        servers::tests(),
        tasks::tests(),
    ]
    .into_iter()
    .flatten()
    .collect();
    let arguments = Arguments::from_args();
    let again = std::env::var_os(WITHOUT_CLONE3).is_some();
    if again {
        support::refuse_clone3(false);
        // How the server is started makes no difference to what comes from it.
        tests.retain(|test| !test.name().ends_with("_by_forkserver"));
    }
    let conclusion = libtest_mimic::run(&arguments, tests);
    if again || arguments.list || conclusion.has_failed() {
        return conclusion.exit_code();
    }
    println!("without clone3:");
    let once_more = Command::new(std::env::current_exe().expect("a path of this executable"))
        .args(std::env::args_os().skip(1))
        .env(WITHOUT_CLONE3, "1")
        .status()
        .expect("this executable runs again");
    ExitCode::from(u8::from(!once_more.success()))
}
