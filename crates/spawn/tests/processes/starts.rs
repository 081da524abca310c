//! What happens on the way from a start to a process of its own, and what only looks like one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::{Signal, getpid, kill_process, kill_process_group, setpgid};
use spawn::ErrorKind;

use crate::scenes::{descriptors, zombies_and_children};
use crate::support::{self, bare_fork, builder, spawn};
use crate::trials;

pub(crate) fn tests() -> Vec<Trial> {
    trials![
        a_start_that_fails_says_why_and_leaves_no_descriptor_and_no_process,
        what_a_filter_forbids_is_told_as_forbidden,
        a_program_that_gets_signals_all_the_time_starts_processes,
        what_stops_the_group_of_a_program_in_the_middle_of_a_start_does_not_stop_what_it_starts,
        a_panic_in_a_bare_fork_of_a_worker_is_not_the_workers,
        what_a_bare_fork_of_a_worker_returns_is_not_the_workers_word,
    ]
}

fn a_start_that_fails_says_why_and_leaves_no_descriptor_and_no_process() {
    support::play("failing");
}

pub(crate) fn failing_scene() {
    fn nothing(_rank: usize, _: ()) {}
    support::guarded("failing", || {
        let huge = "x".repeat(8 << 20);
        let told = |builder: ::spawn::Builder, expected: &[&str]| {
            let error = builder.spawn(nothing, (), 2).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Launch), "{error:?}");
            let text = error.to_string();
            for part in expected {
                assert!(text.contains(part), "{text}");
            }
        };
        let each = || {
            let place = "working directory /nowhere/at/all";
            told(
                builder().current_dir("/nowhere/at/all"),
                &[place, "No such file"],
            );
            let place = "working directory /dev/null";
            told(
                builder().current_dir("/dev/null"),
                &[place, "Not a directory"],
            );
            told(
                builder().env("HUGE", &huge),
                &["running /proc/self/exe", "environment is larger"],
            );
            let variable = "variable \"SHORT\" of its environment has a zero byte";
            told(builder().env("SHORT", "a\0b"), &[variable]);
            let directory = "path of its working directory, \"/tmp\\0/x\", has a zero byte";
            told(builder().current_dir("/tmp\0/x"), &[directory]);
            let executable = "path of its executable, \"/bin\\0\", has a zero byte";
            told(builder().executable("/bin\0"), &[executable]);
        };
        spawn(nothing, (), 1).unwrap().join().unwrap();
        each();
        let before = descriptors();
        (0..10).for_each(|_| each());
        assert_eq!((descriptors(), zombies_and_children()), (before, 0));
        spawn(nothing, (), 2).unwrap().join().unwrap();
    });
}

fn what_a_filter_forbids_is_told_as_forbidden() {
    support::play("forbidden");
}

pub(crate) fn forbidden_scene() {
    fn nothing(_rank: usize, _: ()) {}
    support::guarded("forbidden", || {
        spawn(nothing, (), 1).unwrap().join().unwrap();
        if let Some(server) = ::spawn::forkserver::pid() {
            // The next one is started under the filter.
            let server = support::pidfd(server);
            rustix::process::pidfd_send_signal(&server, Signal::KILL).unwrap();
            support::wait_for_end(&server);
        }
        for call in [libc::SYS_clone3, libc::SYS_clone, libc::SYS_vfork] {
            support::forbid(call);
        }
        let error = spawn(nothing, (), 1).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Launch), "{error:?}");
        let text = error.to_string();
        assert!(
            text.contains("does a filter of system calls forbid it"),
            "{text}"
        );
    });
}

fn a_program_that_gets_signals_all_the_time_starts_processes() {
    support::play("storm");
}

pub(crate) fn storm_scene() {
    fn doubles(rank: usize, x: usize) -> Result<usize, String> {
        Ok(rank + 2 * x)
    }
    support::guarded("storm", || {
        let seen = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(libc::SIGUSR1, Arc::clone(&seen)).unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    kill_process(getpid(), Signal::USR1).unwrap();
                    std::thread::sleep(Duration::from_micros(20));
                }
            });
            for round in 0..50 {
                let results = spawn(doubles, round, 2).unwrap().into_results();
                assert_eq!(results.unwrap(), [2 * round, 2 * round + 1]);
            }
            over.store(true, Ordering::Relaxed);
        });
        assert!(seen.load(Ordering::Relaxed));
        assert_eq!(zombies_and_children(), 0);
    });
}

fn what_stops_the_group_of_a_program_in_the_middle_of_a_start_does_not_stop_what_it_starts() {
    // The standard library's start has that hole.
    if std::env::var_os(crate::WITHOUT_CLONE3).is_none() {
        support::play("stops");
    }
}

pub(crate) fn stops_scene() {
    fn doubles(_rank: usize, x: usize) -> Result<usize, String> {
        Ok(2 * x)
    }
    support::guarded("stops", || {
        // As Ctrl-Z, but that this process takes it and goes on: nobody has to make it go on again.
        setpgid(None, None).unwrap();
        let seen = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(libc::SIGTSTP, Arc::clone(&seen)).unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    kill_process_group(getpid(), Signal::TSTP).unwrap();
                    std::thread::sleep(Duration::from_micros(20));
                }
            });
            for round in 0..50 {
                let results = spawn(doubles, round, 1).unwrap().into_results();
                assert_eq!(results.unwrap(), [2 * round]);
            }
            over.store(true, Ordering::Relaxed);
        });
        assert!(seen.load(Ordering::Relaxed));
        assert_eq!(zombies_and_children(), 0);
    });
}

fn a_panic_in_a_bare_fork_of_a_worker_is_not_the_workers() {
    fn forks(_rank: usize, _: ()) {
        bare_fork(|| panic!("in the fork"));
        std::process::abort();
    }
    let error = spawn(forks, (), 1).unwrap().join().unwrap_err();
    assert!(
        matches!(
            error.kind(),
            ErrorKind::ProcessExited {
                last_panic: None,
                ..
            }
        ),
        "{error:?}"
    );
    let text = error.to_string();
    assert!(text.contains("was killed by SIGABRT"), "{text}");
}

fn what_a_bare_fork_of_a_worker_returns_is_not_the_workers_word() {
    fn comes_back_twice(_rank: usize, _: ()) -> Result<u32, String> {
        if support::fork_and_wait() {
            return Err("from the fork".to_owned());
        }
        Ok(2)
    }
    let mut context = spawn(comes_back_twice, (), 1).unwrap();
    assert_eq!(context.join().unwrap(), [2]);
}
