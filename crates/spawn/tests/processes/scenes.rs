//! Promises about a whole program: it needs a process of its own to be kept, killed or counted.

use std::io::{BufRead, BufReader};
use std::process::{ExitCode, Stdio};

use libtest_mimic::Trial;
use spawn::{ErrorKind, Exit};

use crate::arena;
use crate::contexts;
use crate::entry;
use crate::forkserver;
use crate::hosts;
use crate::misuse;
use crate::namespaces;
use crate::options;
use crate::preloads;
use crate::rights;
use crate::servers;
use crate::starts;
use crate::stopping;
use crate::support::{
    self, Gate, Reaped, ignore_signal, pidfd, scene, sleep_for_ever, sleeps, spawn, wait_for_end,
};
use crate::tasks;
use crate::trials;

pub(crate) fn tests() -> Vec<Trial> {
    trials![
        workers_die_with_a_parent_that_is_killed,
        workers_of_workers_die_with_the_root,
        workers_die_with_a_parent_that_returns,
        a_host_that_ignores_sigchld_is_served,
        two_hundred_spawns_leave_no_descriptor_and_no_zombie,
        a_descriptor_limit_is_an_error_that_leaves_nobody,
        descriptors_on_their_way_are_waited_for_where_they_are_limited,
        each_descriptor_that_is_missing_is_told_with_what_to_do,
        a_deleted_executable_still_spawns,
    ]
}

/// Runs the program of a scene.
pub(crate) fn play(name: &str) -> ExitCode {
    // A shell has what it runs in the background ignore these, and so has whatever starts the tests there.
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT] {
        support::heed_signal(signal);
    }
    match name {
        "arena" => arena::arena_scene(),
        "hello" => entry::hello_scene(),
        "heir" => entry::heir_scene(),
        "loader" => entry::loader_scene(),
        "reaper" => entry::reaper_scene(),
        "halted" => entry::halted_scene(),
        "stdin" => entry::stdin_scene(),
        "parent" => parent_scene(),
        "nested" => nested_scene(),
        "leaving" => leaving_scene(),
        "sigchld" => sigchld_scene(),
        "many" => many_scene(),
        "limit" => limit_scene(),
        "starved" => starved_scene(),
        "crowded" => crowded_scene(),
        "deleted" => deleted_scene(),
        other
            if forkserver::play(other)
                || preloads::play(other)
                || rights::play(other)
                || tasks::play(other)
                || servers::play(other)
                || misuse::play(other) => {}
        "detached" => contexts::detached_scene(),
        "masked" => hosts::masked_scene(),
        "guards" => hosts::guards_scene(),
        "signals" => hosts::signals_scene(),
        "nohup" => hosts::nohup_scene(),
        "stubborn" => hosts::stubborn_scene(),
        "released" => hosts::released_scene(),
        "runtime" => hosts::runtime_scene(),
        "closed" => hosts::closed_scene(),
        "closing" => hosts::closing_scene(),
        "reused" => hosts::reused_scene(),
        "deaf" => hosts::deaf_scene(),
        "forgotten" => hosts::forgotten_scene(),
        "outside" => namespaces::outside_scene(),
        "failing" => starts::failing_scene(),
        "forbidden" => starts::forbidden_scene(),
        "storm" => starts::storm_scene(),
        "stops" => starts::stops_scene(),
        "unsignalled" => stopping::unsignalled_scene(),
        "untouchable" => stopping::untouchable_scene(),
        "relay" => options::relay_scene(),
        "locked" => options::locked_scene(),
        _ => {
            eprintln!("there is no scene {name:?}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Starts a scene that prints pids on a line, and opens these processes. Until the scene is waited for its stdin is open.
fn program_with_workers(name: &str) -> (Reaped, Vec<std::os::fd::OwnedFd>) {
    let mut program = Reaped(scene(name).stdin(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(program.0.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let workers: Vec<_> = line
        .split_whitespace()
        .map(|pid| pidfd(pid.parse().unwrap()))
        .collect();
    assert!(!workers.is_empty());
    (program, workers)
}

fn workers_die_with_a_parent_that_is_killed() {
    let (program, workers) = program_with_workers("parent");
    drop(program); // SIGKILL
    workers.iter().for_each(wait_for_end);
}

fn parent_scene() {
    let context = spawn(sleeps, (), 3).unwrap();
    println!(
        "{}",
        context
            .pids()
            .iter()
            .map(u32::to_string)
            .collect::<Vec<_>>()
            .join(" ")
    );
    sleep_for_ever();
}

fn workers_of_workers_die_with_the_root() {
    let (program, workers) = program_with_workers("nested");
    drop(program);
    workers.iter().for_each(wait_for_end);
}

fn nested_scene() {
    fn spawns(_rank: usize, _: ()) {
        let context = spawn(sleeps, (), 1).unwrap();
        println!("{} {}", std::process::id(), context.pids()[0]);
        sleep_for_ever();
    }
    let _context = spawn(spawns, (), 1).unwrap();
    sleep_for_ever();
}

fn workers_die_with_a_parent_that_returns() {
    let (mut program, workers) = program_with_workers("leaving");
    assert!(program.0.wait().unwrap().success());
    workers.iter().for_each(wait_for_end);
}

fn leaving_scene() {
    let context = spawn(sleeps, (), 2).unwrap();
    println!(
        "{}",
        context
            .pids()
            .iter()
            .map(u32::to_string)
            .collect::<Vec<_>>()
            .join(" ")
    );
    support::wait_to_go_on();
    std::mem::forget(context);
}

fn a_host_that_ignores_sigchld_is_served() {
    support::play("sigchld");
}

/// The system reaps the children of such a program by itself, so how they ended is known only as far as they said it.
fn sigchld_scene() {
    fn aborts(_rank: usize, _: ()) {
        std::process::abort();
    }
    support::guarded("sigchld", || {
        ignore_signal(libc::SIGCHLD);
        assert_eq!(
            spawn(|rank, ()| Ok::<_, String>(rank), (), 3)
                .unwrap()
                .join()
                .unwrap(),
            [0, 1, 2]
        );
        let error = spawn(|_, ()| Err::<(), _>("told"), (), 1)
            .unwrap()
            .join()
            .unwrap_err();
        assert!(error.to_string().contains("told"), "{error}");
        let error = spawn(aborts, (), 1).unwrap().join().unwrap_err();
        assert!(
            matches!(
                error.kind(),
                ErrorKind::ProcessExited {
                    exit: Exit::Unknown,
                    ..
                }
            ),
            "{error:?}"
        );
        assert!(error.to_string().contains("ignores SIGCHLD"), "{error}");
        drop(spawn(sleeps, (), 2).unwrap());
        assert_eq!(zombies_and_children(), 0);
    });
}

fn two_hundred_spawns_leave_no_descriptor_and_no_zombie() {
    support::play("many");
}

fn many_scene() {
    fn ends(rank: usize, round: usize) -> Result<usize, String> {
        match round % 4 {
            0 => Ok(rank),
            1 => Err("no".to_owned()),
            2 => std::process::exit(5),
            _ => sleep_for_ever(),
        }
    }
    let by_hand = std::env::var("SPAWN_TEST_ROUNDS");
    let body = || {
        let one_of_each = |from: usize| {
            for round in from..from + 4 {
                let mut context = spawn(ends, round, 2).unwrap();
                match round % 4 {
                    0 => assert_eq!(context.join().unwrap(), [0, 1]),
                    3 => drop(context),
                    _ => assert!(context.join().is_err()),
                }
            }
        };
        // The supervisor itself, and what the standard library keeps.
        one_of_each(0);
        let before = descriptors();
        // Two processes each. More by hand: SPAWN_TEST_ROUNDS=5000 target/debug/deps/processes-… scene many
        let rounds = by_hand.as_ref().map_or(100, |text| text.parse().unwrap());
        for round in (0..rounds).step_by(4) {
            one_of_each(round);
        }
        assert_eq!(descriptors(), before);
        assert_eq!(zombies_and_children(), 0);
    };
    match by_hand {
        Ok(_) => body(),
        Err(_) => support::guarded("many", body),
    }
}

/// How many descriptors this process has.
pub(crate) fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// How many processes, dead or alive, have this one as their parent, beside its fork server.
pub(crate) fn zombies_and_children() -> usize {
    let me = std::process::id().to_string();
    let server = ::spawn::forkserver::pid().map(|pid| pid.to_string());
    std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok())
        .filter(|stat| stat.split_whitespace().next() != server.as_deref())
        // "pid (name) state parent …", and the name may contain anything.
        .filter(|stat| {
            stat.rsplit(')')
                .next()
                .and_then(|rest| rest.split_whitespace().nth(1))
                == Some(&me)
        })
        .count()
}

fn a_descriptor_limit_is_an_error_that_leaves_nobody() {
    support::play("limit");
}

fn limit_scene() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    support::guarded("limit", || {
        let whole = getrlimit(Resource::Nofile);
        spawn(|_, ()| (), (), 1).unwrap().join().unwrap();
        let before = descriptors();
        setrlimit(
            Resource::Nofile,
            Rlimit {
                current: Some(before as u64 + 20),
                ..whole
            },
        )
        .unwrap();
        let error = spawn(sleeps, (), 50).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Launch), "{error:?}");
        assert!(error.to_string().contains("Too many open files"), "{error}");
        assert_eq!((descriptors(), zombies_and_children()), (before, 0));
        setrlimit(Resource::Nofile, whole).unwrap();
        spawn(|_, ()| (), (), 20).unwrap().join().unwrap();
    });
}

fn descriptors_on_their_way_are_waited_for_where_they_are_limited() {
    support::play("crowded");
}

/// Where nobody takes what is sent for a while, more is on its way than a user without rights may have there.
fn crowded_scene() {
    use rustix::process::{Resource, Rlimit, Signal, getrlimit, pidfd_send_signal, setrlimit};

    support::guarded("crowded", || {
        if rustix::process::geteuid().is_root()
            && let Err(error) = support::become_user(65_533)
        {
            eprintln!("skipped: this root cannot become another user: {error}");
            return;
        }
        spawn(|_, ()| (), (), 1).unwrap().join().unwrap();
        // Each of eight takes two here, and by a fork server five on the way.
        let limit = Rlimit {
            current: Some(descriptors() as u64 + 20),
            ..getrlimit(Resource::Nofile)
        };
        setrlimit(Resource::Nofile, limit).unwrap();
        let server = ::spawn::forkserver::pid().map(pidfd);
        if let Some(server) = &server {
            pidfd_send_signal(server, Signal::STOP).unwrap();
        }
        let main = rustix::thread::gettid();
        let starting = std::thread::spawn(move || {
            // Once the main thread waits for it.
            let stat = format!("/proc/self/task/{main}/stat");
            while !std::fs::read_to_string(&stat).unwrap().contains(") S ") {
                std::thread::yield_now();
            }
            if let Some(server) = &server {
                pidfd_send_signal(server, Signal::CONT).unwrap();
            }
        });
        let mut context = spawn(|rank, ()| Ok::<_, String>(rank), (), 8).unwrap();
        starting.join().unwrap();
        assert_eq!(context.join().unwrap(), [0, 1, 2, 3, 4, 5, 6, 7]);
    });
}

fn each_descriptor_that_is_missing_is_told_with_what_to_do() {
    support::play("starved");
}

/// The first start of a program, with one descriptor more each time, until it is enough.
fn starved_scene() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    support::guarded("starved", || {
        let whole = getrlimit(Resource::Nofile);
        // Without the one by which they are counted.
        let before = descriptors() as u64 - 1;
        let mut told = Vec::new();
        for more in 0..40 {
            let limit = Rlimit {
                current: Some(before + more),
                ..whole
            };
            setrlimit(Resource::Nofile, limit).unwrap();
            let started = spawn(|_, ()| (), (), 1).and_then(|mut context| context.join().map(drop));
            setrlimit(Resource::Nofile, whole).unwrap();
            assert_eq!(zombies_and_children(), 0);
            match started {
                Ok(()) => break,
                Err(error) => told.push(error.to_string()),
            }
        }
        assert!((2..40).contains(&told.len()), "{told:#?}");
        for text in &told {
            assert!(text.contains("ulimit -n"), "{text}\n{told:#?}");
        }
    });
}

fn a_deleted_executable_still_spawns() {
    let copy = Gate::new("deleted");
    std::fs::copy(std::env::current_exe().unwrap(), copy.path()).unwrap();
    let output = loop {
        let run = std::process::Command::new(copy.path())
            .args(["scene", "deleted"])
            .output();
        match run {
            // A process that another test started just now has the file open for writing until it is its own program.
            Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => {}
            run => break run.unwrap(),
        }
    };
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn deleted_scene() {
    support::guarded("deleted", || {
        let path = std::env::current_exe().unwrap();
        std::fs::remove_file(&path).unwrap();
        // Another program takes its place, as a rebuild would put it there.
        std::fs::write(&path, b"not an executable").unwrap();
        assert_eq!(
            spawn(|_, x: u32| Ok::<_, String>(x + 1), 1, 2)
                .unwrap()
                .join()
                .unwrap(),
            [2, 2]
        );
    });
}
