//! Rights belong to threads, and a process has those of the thread that starts it: `no_new_privs`, filters of system
//! calls, capabilities.

use std::collections::HashSet;
use std::thread;

use libtest_mimic::Trial;
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set, set_no_new_privs};
use spawn::forkserver;

use crate::support::{self, builder, by_server, nothing};
use crate::{trials, trials_once};

pub(crate) fn tests() -> Vec<Trial> {
    let mut tests = trials![
        a_process_has_the_rights_of_the_thread_that_starts_it,
        what_a_thread_gives_away_later_the_next_process_does_not_have,
    ];
    tests.extend(trials_once![
        threads_with_different_rights_have_a_server_each,
        threads_with_ever_other_rights_leave_none_behind_that_nobody_needs,
    ]);
    tests.extend(trials![
        a_root_directory_without_proc_is_told_with_what_to_do,
    ]);
    tests
}

/// Runs the program of a scene.
pub(crate) fn play(name: &str) -> bool {
    let scene: fn() = match name {
        "rights-thread" => thread_scene,
        "rights-later" => later_scene,
        "rights-servers" => servers_scene,
        "rights-root" => root_scene,
        "rights-kinds" => kinds_scene,
        _ => return false,
    };
    scene();
    true
}

/// What this thread may do, as far as it does not change when a program is run.
fn rights() -> std::io::Result<Vec<String>> {
    let status = std::fs::read_to_string("/proc/thread-self/status")?;
    let names = ["NoNewPrivs:", "Seccomp:", "Seccomp_filters:", "CapBnd:"];
    let lines = status.lines().map(str::to_owned);
    Ok(lines
        .filter(|line| names.iter().any(|name| line.starts_with(name)))
        .collect())
}

fn found(_rank: usize, _: ()) -> Result<Vec<String>, std::io::Error> {
    rights()
}

/// Starts two processes on this thread, and compares what they may do with what it may.
fn compare(what: &str) {
    let mine = rights().unwrap();
    for theirs in builder().spawn(found, (), 2).unwrap().join().unwrap() {
        assert_eq!(*theirs, mine, "{what}");
    }
}

fn a_process_has_the_rights_of_the_thread_that_starts_it() {
    support::play("rights-thread");
}

fn thread_scene() {
    support::guarded("rights-thread", || {
        let plain = rights().unwrap();
        thread::spawn(|| compare("as the program")).join().unwrap();
        let less = thread::spawn(|| {
            set_no_new_privs(true).unwrap();
            compare("no new rights");
            support::forbid_here(libc::SYS_swapon);
            compare("a filter");
            rights().unwrap()
        });
        assert_ne!(less.join().unwrap(), plain);
        // Nobody else is concerned, on whatever thread.
        assert_eq!(rights().unwrap(), plain);
        compare("the main thread");
        thread::spawn(|| compare("another thread")).join().unwrap();
    });
}

fn what_a_thread_gives_away_later_the_next_process_does_not_have() {
    support::play("rights-later");
}

fn later_scene() {
    support::guarded("rights-later", || {
        compare("at first");
        match remove_capability_from_bounding_set(CapabilitySet::SYS_BOOT) {
            Ok(()) => compare("a capability less to gain"),
            Err(errno) => eprintln!("skipped: this program cannot drop a capability: {errno}"),
        }
        set_no_new_privs(true).unwrap();
        compare("no new rights");
        support::forbid(libc::SYS_swapon);
        compare("a filter");
        support::forbid(libc::SYS_swapoff);
        compare("another filter");
    });
}

fn threads_with_different_rights_have_a_server_each() {
    support::play("rights-servers");
}

fn servers_scene() {
    /// Starts processes by a server, here and on a thread that may do less, by turns. Gives the server of each.
    fn by_turns() -> HashSet<Option<u32>> {
        let used = || {
            by_server().spawn(nothing, (), 1).unwrap().join().unwrap();
            forkserver::pid()
        };
        let (turn, turns) = std::sync::mpsc::channel::<()>();
        let (done, other) = std::sync::mpsc::channel();
        let less = thread::spawn(move || {
            set_no_new_privs(true).unwrap();
            for () in turns {
                done.send(used()).unwrap();
            }
        });
        let mut servers = HashSet::new();
        for _ in 0..3 {
            servers.insert(used());
            turn.send(()).unwrap();
            servers.insert(other.recv().unwrap());
        }
        drop(turn);
        less.join().unwrap();
        servers
    }
    support::guarded("rights-servers", || {
        if rustix::thread::no_new_privs().unwrap() {
            eprintln!("skipped: this program cannot gain rights as it is");
            return;
        }
        forkserver::start().unwrap();
        let first = forkserver::pid();
        let servers = by_turns();
        assert_eq!(servers.len(), 2, "{servers:?}");
        assert!(servers.contains(&first));
        // They are found again by the next threads, and die with the program.
        assert_eq!(by_turns(), servers);
    });
}

fn threads_with_ever_other_rights_leave_none_behind_that_nobody_needs() {
    support::play("rights-kinds");
}

fn kinds_scene() {
    fn waits(_rank: usize, gate: std::path::PathBuf) -> Result<u32, String> {
        support::wait_at_gate(&gate);
        Ok(std::process::id())
    }
    /// Threads that start processes for others.
    fn starters() -> usize {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        tasks
            .filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok())
            .filter(|name| name.trim_end() == "starter")
            .count()
    }
    support::guarded("rights-kinds", || {
        let gate = support::Gate::new("kinds");
        let path = gate.path();
        let first = thread::spawn(|| {
            support::forbid_here(libc::SYS_swapon);
            spawn::spawn(waits, path, 1).unwrap()
        });
        let mut first = first.join().unwrap();
        for further in 2..20 {
            let thread = thread::spawn(move || {
                (0..further).for_each(|_| support::forbid_here(libc::SYS_swapoff));
                spawn::spawn(nothing, (), 1).unwrap().join().unwrap();
            });
            thread.join().unwrap();
        }
        // One that was let go of may not have ended yet.
        while starters() > 8 {
            thread::yield_now();
        }
        // Whoever was started by the first of them lives.
        let pid = first.pids()[0];
        support::open_gate(&gate.path());
        assert_eq!(first.join().unwrap(), [pid]);
    });
}

/// Where the directory is that becomes the root.
const ROOT: &str = "SPAWN_TEST_ROOT";

fn a_root_directory_without_proc_is_told_with_what_to_do() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can have another root directory");
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let output = support::scene("rights-root")
        .env(ROOT, root.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
}

fn root_scene() {
    support::guarded("rights-root", || {
        builder().spawn(nothing, (), 1).unwrap().join().unwrap();
        let root = std::env::var_os(ROOT).unwrap();
        if let Err(errno) = rustix::process::chroot(root) {
            eprintln!("skipped: this root cannot have another root directory: {errno}");
            return;
        }
        let error = builder().spawn(nothing, (), 1).unwrap_err().to_string();
        assert!(
            error.contains("running /proc/self/exe failed") && error.contains("mount proc"),
            "{error}"
        );
    });
}
