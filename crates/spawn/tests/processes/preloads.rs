//! What a preloaded function must not do, and what comes of it: it ends the server, or changes what is the program's to
//! say.

use libtest_mimic::Trial;
use rustix::process::{Signal, getpid, kill_process};
use spawn::{StartMethod, forkserver};

use crate::support::{self, by_server, ignore_signal, nothing, set_environment};
use crate::trials_once;

pub(crate) fn tests() -> Vec<Trial> {
    trials_once![
        a_preload_that_ends_the_server_is_told_with_how_it_ended,
        what_a_preload_changes_of_the_server_is_as_the_program_has_it_in_what_is_started,
    ]
}

/// Runs the program of a scene.
pub(crate) fn play(name: &str) -> bool {
    let scene: fn() = match name {
        "fork-exit" => exit_scene,
        "fork-changes" => changes_scene,
        _ => return false,
    };
    scene();
    true
}

fn a_preload_that_ends_the_server_is_told_with_how_it_ended() {
    support::play("fork-exit");
}

fn exit_scene() {
    fn exits() {
        std::process::exit(3)
    }
    fn is_killed() {
        kill_process(getpid(), Signal::KILL).unwrap();
    }
    support::guarded("fork-exit", || {
        forkserver::preload(exits).unwrap();
        let error = forkserver::start().unwrap_err().to_string();
        assert!(
            error.contains("exits` could not be started: it (pid "),
            "{error}"
        );
        assert!(
            error.ends_with(") exited with code 3 before that had returned"),
            "{error}"
        );
        forkserver::preload(is_killed).unwrap();
        let error = by_server().spawn(nothing, (), 2).unwrap_err().to_string();
        assert!(
            error.ends_with(") was killed by SIGKILL before that had returned"),
            "{error}"
        );
        assert_eq!(crate::scenes::zombies_and_children(), 0);
        // And it goes on with one that returns.
        forkserver::preload(|| ()).unwrap();
        by_server().spawn(nothing, (), 2).unwrap().join().unwrap();
    });
}

fn what_a_preload_changes_of_the_server_is_as_the_program_has_it_in_what_is_started() {
    support::play("fork-changes");
}

fn changes_scene() {
    fn changes() {
        set_environment("FORK_OF_PRELOAD", Some("1"));
        set_environment("FORK_OF_BOTH", Some("2"));
        set_environment("FORK_OF_PROGRAM", None);
        std::env::set_current_dir("/").unwrap();
        ignore_signal(libc::SIGTERM);
        ignore_signal(libc::SIGUSR1);
        support::block_signals();
        rustix::process::umask(rustix::fs::Mode::RWXU);
    }
    fn found(_rank: usize, _: ()) -> Result<Vec<String>, std::io::Error> {
        let mut found = vec![format!("{:?}", std::env::current_dir()?)];
        let names = ["FORK_OF_PRELOAD", "FORK_OF_BOTH", "FORK_OF_PROGRAM"];
        found.extend(names.map(|name| format!("{name} {:?}", std::env::var(name))));
        let status = std::fs::read_to_string("/proc/thread-self/status")?;
        let of_interest = ["Umask:", "SigBlk:", "SigIgn:", "SigCgt:"];
        let lines = status.lines().map(str::to_owned);
        found.extend(lines.filter(|line| of_interest.iter().any(|name| line.starts_with(name))));
        Ok(found)
    }
    support::guarded("fork-changes", || {
        set_environment("FORK_OF_BOTH", Some("1"));
        set_environment("FORK_OF_PROGRAM", Some("1"));
        forkserver::preload(changes).unwrap();
        let [spawned, forked] = StartMethod::ALL.map(|method| {
            let builder = spawn::builder().start_method(method);
            builder.spawn(found, (), 1).unwrap().join().unwrap()[0].clone()
        });
        assert_eq!(forked, spawned);
        assert_eq!(spawned.len(), 8, "{spawned:?}");
    });
}
