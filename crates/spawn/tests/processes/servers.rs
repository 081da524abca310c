//! The end of a fork server at a bad moment, and what may have changed in the program since it was started.

use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process, pidfd_send_signal};
use shm_core::failpoint;
use spawn::{ErrorKind, StartMethod, forkserver};

use crate::support::{
    self, Gate, by_server, nothing, open_gate, pidfd, scene_by, wait_at_gate, wait_for_end,
};
use crate::trials_once;

pub(crate) fn tests() -> Vec<Trial> {
    trials_once![
        a_server_killed_between_a_copy_and_its_answer_leaves_nobody,
        a_server_that_ended_just_before_it_is_asked_is_started_anew,
        answers_of_a_server_that_ended_are_read_to_the_last,
        what_a_server_that_was_killed_had_not_begun_is_begun_by_another,
        the_server_dies_with_the_program,
        a_program_that_gives_rights_away_gets_a_server_without_them,
        a_program_that_is_another_users_now_gets_a_server_of_that_user,
        a_server_that_was_killed_is_in_the_way_of_no_preload,
        threads_that_run_before_init_are_told_as_such,
        a_variable_that_no_program_can_set_hurts_no_process,
        a_stopped_server_that_takes_no_more_orders_is_told_and_replaced,
        a_hook_does_not_wait_for_a_server_that_is_being_started,
        a_server_that_lost_its_descriptors_closes_no_file_that_has_their_numbers_now,
    ]
}

/// Runs the program of a scene.
pub(crate) fn play(name: &str) -> bool {
    let scene: fn() = match name {
        "fork-between" => between_scene,
        "fork-found" => found_scene,
        "fork-answers" => answers_scene,
        "fork-unread" => unread_scene,
        "fork-dies" => dies_scene,
        "fork-rights" => rights_scene,
        "fork-user" => user_scene,
        "fork-late" => late_scene,
        "fork-early" => early_scene,
        "fork-odd" => odd_scene,
        "fork-full" => full_scene,
        "fork-hook" => hook_scene,
        "fork-lost" => lost_scene,
        _ => return false,
    };
    scene();
    true
}

fn a_server_killed_between_a_copy_and_its_answer_leaves_nobody() {
    let mut command = scene_by("fork-between", StartMethod::Forkserver);
    let output = command
        .env("TENSORMP_FAILPOINT", "forkserver.copied=kill")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn between_scene() {
    support::guarded("fork-between", || {
        for _ in 0..3 {
            let error = by_server().spawn(nothing, (), 2).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Launch), "{error:?}");
            // The server's own end is seen to by the thread that started it.
            let server = forkserver::pid().unwrap();
            while support::exists(server) {
                std::thread::yield_now();
            }
            assert_eq!(crate::scenes::zombies_and_children(), 0);
        }
    });
}

/// Plays a scene that tells the server's process id, and stops itself once it may go on, which it waits for; it goes on
/// again when the server has ended, which `end` sees to.
fn play_while_its_server_ends(name: &str, end: fn(&OwnedFd)) {
    let mut command = scene_by(name, StartMethod::Forkserver);
    let mut program = support::Reaped(command.stdin(Stdio::piped()).spawn().unwrap());
    let server = pidfd(first_number(&mut program));
    drop(program.0.stdin.take());
    let me = Pid::from_child(&program.0);
    let stat = format!("/proc/{me}/stat");
    while !std::fs::read_to_string(&stat).unwrap().contains(") T ") {
        std::thread::yield_now();
    }
    end(&server);
    wait_for_end(&server);
    kill_process(me, Signal::CONT).unwrap();
    let (status, text) = support::end_of(program);
    assert!(status.success(), "{text}");
}

fn a_server_that_ended_just_before_it_is_asked_is_started_anew() {
    play_while_its_server_ends("fork-found", |server| {
        pidfd_send_signal(server, Signal::KILL).unwrap();
    });
}

fn found_scene() {
    support::guarded("fork-found", || {
        forkserver::start().unwrap();
        let first = forkserver::pid();
        println!("{}", first.unwrap());
        support::wait_to_go_on();
        // Once it has found its server alive.
        failpoint::arm(Some("forkserver.found=stop"));
        by_server().spawn(nothing, (), 2).unwrap().join().unwrap();
        assert_ne!(forkserver::pid(), first);
    });
}

fn answers_of_a_server_that_ended_are_read_to_the_last() {
    // It kills itself at its second copy.
    play_while_its_server_ends("fork-answers", |_| ());
}

fn answers_scene() {
    fn dies_at_the_second() {
        failpoint::arm(Some("forkserver.copied:2=kill"));
    }
    support::guarded("fork-answers", || {
        forkserver::preload(dies_at_the_second).unwrap();
        forkserver::start().unwrap();
        println!("{}", forkserver::pid().unwrap());
        support::wait_to_go_on();
        // Once it has asked for all: one answer waits, one never comes, and one order is never read.
        failpoint::arm(Some("forkserver.asked=stop"));
        let error = by_server().spawn(nothing, (), 3).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Launch), "{error:?}");
        let server = forkserver::pid().unwrap();
        while support::exists(server) {
            std::thread::yield_now();
        }
        assert_eq!(crate::scenes::zombies_and_children(), 0);
    });
}

fn what_a_server_that_was_killed_had_not_begun_is_begun_by_another() {
    play_while_its_server_ends("fork-unread", |server| {
        pidfd_send_signal(server, Signal::KILL).unwrap();
    });
}

fn unread_scene() {
    fn rank(rank: usize, _: ()) -> Result<usize, String> {
        Ok(rank)
    }
    support::guarded("fork-unread", || {
        forkserver::start().unwrap();
        let first = forkserver::pid().unwrap();
        // It takes the orders, and reads none.
        pidfd_send_signal(pidfd(first), Signal::STOP).unwrap();
        println!("{first}");
        support::wait_to_go_on();
        failpoint::arm(Some("forkserver.asked=stop"));
        let mut context = by_server().spawn(rank, (), 10).unwrap();
        assert_eq!(context.join().unwrap(), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_ne!(forkserver::pid(), Some(first));
    });
}

fn the_server_dies_with_the_program() {
    // One that is killed, and one that returns.
    for kill in [true, false] {
        let mut command = scene_by("fork-dies", StartMethod::Forkserver);
        let stdin = if kill { Stdio::piped() } else { Stdio::null() };
        let mut program = support::Reaped(command.stdin(stdin).spawn().unwrap());
        let server = first_number(&mut program);
        // It may be gone already where the program returned.
        let server = support::try_pidfd(server);
        if kill {
            drop(program);
        } else {
            assert!(program.0.wait().unwrap().success());
        }
        server.iter().for_each(wait_for_end);
    }
}

fn dies_scene() {
    forkserver::start().unwrap();
    println!("{}", forkserver::pid().unwrap());
    // At once, or not before the program is killed.
    support::wait_to_go_on();
}

/// What a program prints first: a process id.
fn first_number(program: &mut support::Reaped) -> u32 {
    let mut line = String::new();
    BufReader::new(program.0.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let Ok(number) = line.trim().parse() else {
        panic!("{line:?} is no pid")
    };
    number
}

fn status_line(name: &str) -> Result<String, std::io::Error> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    Ok(line.unwrap_or_default().trim().to_owned())
}

fn a_program_that_gives_rights_away_gets_a_server_without_them() {
    support::play("fork-rights");
}

fn rights_scene() {
    fn no_new(_rank: usize, _: ()) -> Result<String, std::io::Error> {
        status_line("NoNewPrivs:")
    }
    support::guarded("fork-rights", || {
        if rustix::thread::no_new_privs().unwrap() {
            eprintln!("skipped: this program cannot gain rights as it is");
            return;
        }
        forkserver::start().unwrap();
        let first = forkserver::pid();
        by_server().spawn(nothing, (), 1).unwrap().join().unwrap();
        assert_eq!(forkserver::pid(), first);
        support::forbid(libc::SYS_swapon);
        let found = by_server().spawn(no_new, (), 2).unwrap().into_results();
        assert_eq!(found.unwrap(), ["1", "1"]);
        let second = forkserver::pid();
        assert_ne!(second, first);
        by_server().spawn(nothing, (), 1).unwrap().join().unwrap();
        assert_eq!(forkserver::pid(), second);
        // The first has ended, and was waited for.
        while support::exists(first.unwrap()) {
            std::thread::yield_now();
        }
    });
}

fn a_program_that_is_another_users_now_gets_a_server_of_that_user() {
    if rustix::process::geteuid().is_root() {
        support::play("fork-user");
    } else {
        eprintln!("skipped: only root can become another user");
    }
}

fn user_scene() {
    fn users(_rank: usize, _: ()) -> Result<String, std::io::Error> {
        status_line("Uid:")
    }
    support::guarded("fork-user", || {
        forkserver::start().unwrap();
        if let Err(error) = support::become_user(65_534) {
            eprintln!("skipped: this root cannot become another user: {error}");
            return;
        }
        for method in StartMethod::ALL {
            let builder = spawn::builder().start_method(method);
            let found = builder.spawn(users, (), 1).unwrap().into_results().unwrap();
            assert_eq!(found, ["65534\t65534\t65534\t65534"], "{method}");
        }
    });
}

fn a_server_that_was_killed_is_in_the_way_of_no_preload() {
    support::play("fork-late");
}

fn late_scene() {
    static LOADED: AtomicBool = AtomicBool::new(false);
    fn load() {
        LOADED.store(true, Ordering::Relaxed);
    }
    fn loaded(_rank: usize, _: ()) -> Result<bool, String> {
        Ok(LOADED.load(Ordering::Relaxed))
    }
    support::guarded("fork-late", || {
        forkserver::start().unwrap();
        let server = pidfd(forkserver::pid().unwrap());
        pidfd_send_signal(&server, Signal::KILL).unwrap();
        wait_for_end(&server);
        forkserver::preload(load).unwrap();
        assert_eq!(
            by_server().spawn(loaded, (), 1).unwrap().join().unwrap(),
            [true]
        );
    });
}

fn threads_that_run_before_init_are_told_as_such() {
    let mut command = scene_by("fork-early", StartMethod::Forkserver);
    let output = command.env("SPAWN_TEST_EARLY", "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
}

fn early_scene() {
    support::guarded("fork-early", || {
        let error = forkserver::start().unwrap_err().to_string();
        assert!(error.contains("runs before `init`"), "{error}");
        assert!(error.contains("left threads running (early)"), "{error}");
    });
}

fn a_variable_that_no_program_can_set_hurts_no_process() {
    support::play("fork-odd");
}

fn odd_scene() {
    support::guarded("fork-odd", || {
        forkserver::start().unwrap();
        support::put_odd_variable();
        assert!(std::env::vars_os().any(|(name, _)| name == "=ODD"));
        by_server().spawn(nothing, (), 2).unwrap().join().unwrap();
    });
}

fn a_stopped_server_that_takes_no_more_orders_is_told_and_replaced() {
    support::play("fork-full");
}

fn full_scene() {
    support::guarded("fork-full", || {
        forkserver::start().unwrap();
        pidfd_send_signal(pidfd(forkserver::pid().unwrap()), Signal::STOP).unwrap();
        // Eight orders with that are more than a socket has room for.
        support::set_environment("FORK_LARGE", Some(&"x".repeat(40_000)));
        let hasty = by_server().hello_deadline(Duration::from_millis(100));
        let error = hasty.spawn(nothing, (), 8).unwrap_err().to_string();
        assert!(error.contains("did not answer in time"), "{error}");
        by_server().spawn(nothing, (), 2).unwrap().join().unwrap();
    });
}

fn a_hook_does_not_wait_for_a_server_that_is_being_started() {
    support::play("fork-hook");
}

fn hook_scene() {
    fn gates() -> [PathBuf; 2] {
        ["FORK_ARRIVED", "FORK_GO_ON"].map(|name| std::env::var_os(name).unwrap().into())
    }
    fn waits() {
        let [arrived, go_on] = gates();
        open_gate(&arrived);
        wait_at_gate(&go_on);
    }
    support::guarded("fork-hook", || {
        let (arrived, go_on) = (Gate::new("fork-arrived"), Gate::new("fork-go-on"));
        support::set_environment("FORK_ARRIVED", arrived.path().to_str());
        support::set_environment("FORK_GO_ON", go_on.path().to_str());
        forkserver::preload(waits).unwrap();
        let starting =
            std::thread::spawn(|| by_server().spawn(nothing, (), 1).unwrap().join().map(drop));
        wait_at_gate(&arrived.path());
        // What has ended before the hook is there has it called here.
        let may_end = Gate::new("fork-may-end");
        let at_gate = |_, gate: PathBuf| wait_at_gate(&gate);
        let mut context = spawn::spawn(at_gate, may_end.path(), 1).unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        context.on_end(move |_| {
            let preloaded = forkserver::preload(nothing_more);
            tell.send((forkserver::pid(), [forkserver::start(), preloaded]))
                .unwrap();
        });
        may_end.open();
        context.join().unwrap();
        let (pid, errors) = told.recv().unwrap();
        assert_eq!(pid, None);
        for error in errors {
            let error = error.unwrap_err().to_string();
            assert!(error.contains("supervises"), "{error}");
        }
        go_on.open();
        starting.join().unwrap().unwrap();
        assert!(forkserver::pid().is_some());
    });
}

fn nothing_more() {}

fn a_server_that_lost_its_descriptors_closes_no_file_that_has_their_numbers_now() {
    support::play("fork-lost");
}

fn lost_scene() {
    support::guarded("fork-lost", || {
        let before = crate::hosts::numbers(&["socket:", "anon_inode:[pidfd]"]);
        forkserver::start().unwrap();
        let first = forkserver::pid().unwrap();
        let mut numbers = crate::hosts::numbers(&["socket:", "anon_inode:[pidfd]"]);
        numbers.retain(|number| !before.contains(number));
        assert_eq!(numbers.len(), 2, "{numbers:?}");
        for &number in &numbers {
            support::put_nothing_in_place_of(number);
        }
        let are_there = || {
            numbers.iter().all(|number| {
                std::fs::read_link(format!("/proc/self/fd/{number}"))
                    .is_ok_and(|target| target.display().to_string() == "/dev/null")
            })
        };
        for _ in 0..2 {
            by_server().spawn(nothing, (), 2).unwrap().join().unwrap();
            assert!(are_there(), "{numbers:?}");
        }
        assert_ne!(forkserver::pid(), Some(first));
        // It is waited for all the same.
        while crate::scenes::zombies_and_children() > 0 {
            std::thread::yield_now();
        }
        assert!(are_there(), "{numbers:?}");
    });
}
