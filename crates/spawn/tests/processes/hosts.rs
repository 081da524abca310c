//! Programs that are hard on their workers: signals blocked or ignored, descriptors closed, runtimes, Ctrl-C.

use libtest_mimic::Trial;
use rustix::process::{Signal, pidfd_send_signal};
use spawn::{ErrorKind, Signals};
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::support::{
    self, Reaped, block_signals, close_descriptors, end_of, exists, ignore_signal, method, pidfd,
    scene, sleep_for_ever, sleeps, spawn, wait_for_end,
};
use crate::{trials, trials_once};

pub(crate) fn tests() -> Vec<Trial> {
    let mut tests = trials![
        a_host_that_blocks_and_ignores_signals_has_workers_that_do_not,
        a_signal_that_ends_the_program_ends_its_workers,
        signals_that_are_handed_on_stop_the_workers_and_the_program_goes_on,
        a_program_that_ignores_its_hangup_goes_on_with_a_guard_too,
        a_second_signal_kills_what_the_first_did_not_stop,
        a_hangup_that_comes_again_insists_on_nothing,
        the_guard_gives_signals_back,
        a_guard_that_outlives_or_follows_another_hands_signals_on,
        a_worker_may_start_a_runtime_also_under_one,
        what_a_host_without_stdout_prints_goes_into_nothing_of_ours,
    ];
    tests.extend(trials_once![
        a_host_that_closes_all_descriptors_hangs_nowhere_and_has_no_orphan,
        a_worker_whose_descriptors_got_others_files_during_a_join_is_lost_and_not_never_started,
        a_supervisor_that_was_given_up_closes_no_file_that_has_its_numbers_now,
        what_workers_write_to_stderr_is_kept_when_the_reader_of_it_lost_its_descriptor,
    ]);
    tests
}

fn what_a_host_without_stdout_prints_goes_into_nothing_of_ours() {
    support::play("closed");
}

/// The system gives the lowest number that is free: the next thing that is opened gets that of a stream that was closed.
pub(crate) fn closed_scene() {
    fn standard() -> Vec<String> {
        let target = |fd| std::fs::read_link(format!("/proc/self/fd/{fd}"));
        (0..3)
            .filter_map(|fd| Some(target(fd).ok()?.display().to_string()))
            .collect()
    }
    fn prints(_rank: usize, bytes: Vec<u8>) -> Result<(Vec<String>, Vec<u8>), String> {
        println!("to nobody");
        eprintln!("to nobody");
        Ok((standard(), bytes))
    }
    // Another thread may have just opened something and not yet closed it, or given it another number.
    let become_closed = || {
        while !standard().is_empty() {
            std::thread::yield_now();
        }
    };
    support::guarded("closed", || {
        support::close_standard_streams();
        // Too much for the control socket: it goes through the arena.
        let bytes = vec![7; 100_000];
        for _ in 0..2 {
            println!("over the arena's first bytes?");
            eprintln!("to the supervisor's bell?");
            // Nor is the pipe by which the end of a stderr is kept.
            let kept = support::builder()
                .stderr_tail(true)
                .stderr(spawn::Output::Null);
            let kept = kept.spawn(prints, bytes.clone(), 1).unwrap();
            become_closed();
            kept.into_results().unwrap();
            let found = spawn(prints, bytes.clone(), 2).unwrap().into_results();
            let expected = (vec!["/dev/null".to_owned(); 3], bytes.clone());
            assert_eq!(found.unwrap(), [expected.clone(), expected]);
            become_closed();
        }
    });
}

fn a_host_that_blocks_and_ignores_signals_has_workers_that_do_not() {
    support::play("masked");
}

pub(crate) fn masked_scene() {
    fn masks(_rank: usize, _: ()) -> Result<Vec<u64>, std::io::Error> {
        let status = std::fs::read_to_string("/proc/thread-self/status")?;
        Ok(["SigBlk:", "SigIgn:"]
            .map(|field| {
                let line = status.lines().find_map(|line| line.strip_prefix(field));
                u64::from_str_radix(line.unwrap_or("").trim(), 16).unwrap_or(u64::MAX)
            })
            .to_vec())
    }
    support::guarded("masked", || {
        ignore_signal(libc::SIGINT);
        ignore_signal(libc::SIGTERM);
        block_signals();
        let results = spawn(masks, (), 1).unwrap().into_results().unwrap();
        let bit = |signal: i32| 1_u64 << (signal - 1);
        assert_eq!(results[0][0], 0, "blocked: {:x}", results[0][0]);
        let ending = bit(libc::SIGINT) | bit(libc::SIGTERM) | bit(libc::SIGCHLD);
        assert_eq!(results[0][1] & ending, 0, "ignored: {:x}", results[0][1]);
        // So SIGTERM is enough: with an hour of grace nothing else would end it.
        let context = support::builder()
            .grace(std::time::Duration::from_secs(3600))
            .spawn(sleeps, (), 2)
            .unwrap();
        drop(context);
    });
}

/// A program that prints the pids of its workers and waits for them; its stderr is what comes after. Its stdin is open.
fn program(
    name: &str,
) -> (
    Reaped,
    Vec<std::os::fd::OwnedFd>,
    BufReader<std::process::ChildStdout>,
) {
    let mut program = Reaped(scene(name).stdin(Stdio::piped()).spawn().unwrap());
    let mut output = BufReader::new(program.0.stdout.take().unwrap());
    let workers: Vec<_> = line_of(&mut output)
        .split_whitespace()
        .map(|pid| pidfd(pid.parse().unwrap()))
        .collect();
    assert!(!workers.is_empty());
    (program, workers, output)
}

/// The next line that it says.
fn line_of(output: &mut impl BufRead) -> String {
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

fn signal(program: &Reaped, signal: Signal) {
    pidfd_send_signal(pidfd(program.0.id()), signal).unwrap();
}

fn a_signal_that_ends_the_program_ends_its_workers() {
    use std::os::unix::process::ExitStatusExt;

    for number in [Signal::INT, Signal::TERM, Signal::HUP] {
        let (program, workers, _output) = program("parent");
        signal(&program, number);
        workers.iter().for_each(wait_for_end);
        let (status, text) = end_of(program);
        assert_eq!(status.signal(), Some(number.as_raw()));
        // No storm of reports from processes that were ended together.
        assert_eq!(text, "");
    }
}

fn signals_that_are_handed_on_stop_the_workers_and_the_program_goes_on() {
    for (number, name) in [
        (Signal::INT, "SIGINT"),
        (Signal::TERM, "SIGTERM"),
        (Signal::HUP, "SIGHUP"),
    ] {
        let (program, workers, mut output) = program("signals");
        signal(&program, number);
        workers.iter().for_each(wait_for_end);
        assert_eq!(line_of(&mut output), format!("stopped by {name}"));
        let (status, text) = end_of(program);
        assert!(status.success(), "{text}");
        assert_eq!(text, "");
    }
}

fn a_program_that_ignores_its_hangup_goes_on_with_a_guard_too() {
    let (program, workers, mut output) = program("nohup");
    signal(&program, Signal::HUP);
    signal(&program, Signal::TERM);
    workers.iter().for_each(wait_for_end);
    assert_eq!(line_of(&mut output), "stopped by SIGTERM");
    let (status, text) = end_of(program);
    assert!(status.success(), "{text}");
}

/// As `nohup` starts a program.
pub(crate) fn nohup_scene() {
    ignore_signal(libc::SIGHUP);
    drop(Signals::forward().unwrap());
    signals_scene();
    assert_eq!(Signals::seen(), 1);
}

pub(crate) fn signals_scene() {
    let signals = Signals::forward().unwrap();
    let mut context = spawn(sleeps, (), 3).unwrap();
    print_pids(&context.pids());
    let error = context.join().unwrap_err();
    assert!(matches!(
        error.kind(),
        ErrorKind::Interrupted { worker: None }
    ));
    assert!(context.pids().into_iter().all(|pid| !exists(pid)));
    println!("stopped by {}", signals.received().unwrap());
}

fn a_second_signal_kills_what_the_first_did_not_stop() {
    let (program, workers, mut output) = program("stubborn");
    signal(&program, Signal::INT);
    assert_eq!(line_of(&mut output), "SIGINT was seen");
    signal(&program, Signal::TERM);
    workers.iter().for_each(wait_for_end);
    assert_eq!(line_of(&mut output), "2 came");
    let (status, text) = end_of(program);
    assert!(status.success(), "{text}");
}

/// A shell that is closed tells its jobs, and so does the system when their terminal is gone.
fn a_hangup_that_comes_again_insists_on_nothing() {
    let (program, workers, mut output) = program("stubborn");
    signal(&program, Signal::HUP);
    assert_eq!(line_of(&mut output), "SIGHUP was seen");
    signal(&program, Signal::HUP);
    signal(&program, Signal::TERM);
    workers.iter().for_each(wait_for_end);
    // With one more, this would have been the third, which ends the program.
    assert_eq!(line_of(&mut output), "2 came");
    let (status, text) = end_of(program);
    assert!(status.success(), "{text}");
}

pub(crate) fn stubborn_scene() {
    fn stubborn(_rank: usize, gate: std::path::PathBuf) {
        ignore_signal(libc::SIGTERM);
        support::open_gate(&gate);
        sleep_for_ever();
    }
    let gate = support::Gate::new("second-signal");
    let signals = Signals::forward().unwrap();
    let mut context = support::builder()
        .grace(std::time::Duration::from_secs(3600))
        .spawn(stubborn, gate.path(), 1)
        .unwrap();
    support::wait_at_gate(&gate.path());
    print_pids(&context.pids());
    while signals.received().is_none() {
        std::thread::yield_now();
    }
    println!("{} was seen", signals.received().unwrap());
    context.join().unwrap_err();
    println!("{} came", signals.count());
}

fn the_guard_gives_signals_back() {
    use std::os::unix::process::ExitStatusExt;

    let (program, workers, _output) = program("released");
    signal(&program, Signal::TERM);
    workers.iter().for_each(wait_for_end);
    assert_eq!(end_of(program).0.signal(), Some(libc::SIGTERM));
}

fn a_guard_that_outlives_or_follows_another_hands_signals_on() {
    let (program, workers, mut output) = program("guards");
    signal(&program, Signal::TERM);
    workers.iter().for_each(wait_for_end);
    assert_eq!(line_of(&mut output), "stopped by SIGTERM");
    assert!(end_of(program).0.success());
}

pub(crate) fn guards_scene() {
    drop(Signals::forward().unwrap());
    let outlived = Signals::forward().unwrap();
    let signals = Signals::forward().unwrap();
    drop(outlived);
    let mut context = spawn(sleeps, (), 1).unwrap();
    print_pids(&context.pids());
    let error = context.join().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Interrupted { .. }));
    println!("stopped by {}", signals.received().unwrap());
}

pub(crate) fn released_scene() {
    drop(Signals::forward().unwrap());
    let context = spawn(sleeps, (), 1).unwrap();
    print_pids(&context.pids());
    sleep_for_ever();
}

fn print_pids(pids: &[u32]) {
    let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
    println!("{}", pids.join(" "));
}

fn a_worker_may_start_a_runtime_also_under_one() {
    support::play("runtime");
}

pub(crate) fn runtime_scene() {
    fn starts_a_runtime(rank: usize, x: usize) -> Result<usize, std::io::Error> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()?;
        Ok(runtime
            .block_on(async move { tokio::spawn(async move { x + rank }).await.unwrap_or(0) }))
    }
    #[tokio::main]
    async fn program() {
        let mut context = spawn(starts_a_runtime, 40, 2).unwrap();
        assert_eq!(context.join_async().await.unwrap(), [40, 41]);
        // Workers of a worker, and that from a task on another thread.
        let task = tokio::task::spawn_blocking(|| {
            let method = method();
            spawn::builder()
                .start_method(method)
                .spawn(starts_a_runtime, 1, 1)
                .unwrap()
                .into_results()
                .unwrap()
        });
        assert_eq!(task.await.unwrap(), [1]);
    }
    support::guarded("runtime", program);
}

fn a_host_that_closes_all_descriptors_hangs_nowhere_and_has_no_orphan() {
    let (mut program, workers, _output) = program("closing");
    drop(program.0.stdin.take());
    workers.iter().for_each(wait_for_end);
    // The standard library ends a program that closes what others own; what counts is that there is an end.
    let (_, text) = end_of(program);
    assert!(!text.contains("closing hangs"), "{text}");
}

pub(crate) fn closing_scene() {
    support::guarded("closing", || {
        let mut context = spawn(sleeps, (), 2).unwrap();
        print_pids(&context.pids());
        support::wait_to_go_on();
        close_descriptors(3);
        assert!(context.join().is_err());
    });
}

fn a_worker_whose_descriptors_got_others_files_during_a_join_is_lost_and_not_never_started() {
    support::play("reused");
}

/// The numbers of the descriptors of this process whose targets start with one of these.
pub(crate) fn numbers(kinds: &[&str]) -> Vec<i32> {
    std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .flatten()
        .filter_map(|entry| {
            let target = std::fs::read_link(entry.path()).ok()?.display().to_string();
            let wanted = kinds.iter().any(|kind| target.starts_with(kind));
            wanted.then(|| entry.file_name().to_string_lossy().parse().ok())?
        })
        .collect()
}

pub(crate) fn reused_scene() {
    fn waits(_rank: usize, gate: std::path::PathBuf) {
        support::wait_at_gate(&gate);
    }
    support::guarded("reused", || {
        let gate = support::Gate::new("reused");
        let mut context = spawn(waits, gate.path(), 1).unwrap();
        let (main, path) = (rustix::thread::gettid(), gate.path());
        let other = std::thread::spawn(move || {
            // Once the main thread waits for the process.
            let stat = format!("/proc/self/task/{main}/stat");
            while !std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") S ")) {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            let numbers = numbers(&["socket:", "anon_inode:[pidfd]", "pidfd:"]);
            assert!(numbers.len() >= 2, "{numbers:?}");
            for number in numbers {
                support::put_nothing_in_place_of(number);
            }
            support::open_gate(&path);
        });
        let error = context.join().unwrap_err();
        other.join().unwrap();
        let ErrorKind::LostContact { reason, .. } = error.kind() else {
            panic!("{error:?}")
        };
        assert!(reason.contains("closed the descriptor"), "{reason}");
        // Others are served as before.
        spawn(|_, ()| (), (), 2).unwrap().join().unwrap();
    });
}

fn what_workers_write_to_stderr_is_kept_when_the_reader_of_it_lost_its_descriptor() {
    support::play("deaf");
}

pub(crate) fn deaf_scene() {
    fn says_why(_rank: usize, _: ()) {
        eprintln!("this is why");
        std::process::exit(3);
    }
    support::guarded("deaf", || {
        let tail = || {
            let context = spawn::builder()
                .stderr_tail(true)
                .stderr(spawn::Output::Null);
            let error = context.spawn(says_why, (), 1).unwrap().join().unwrap_err();
            assert!(error.to_string().contains("this is why"), "{error}");
        };
        spawn(|_: usize, ()| (), (), 2).unwrap().join().unwrap();
        let supervisors = numbers(&["anon_inode:[eventpoll"]);
        tail();
        // What is there now and was not before reads what workers write.
        let ours = numbers(&["anon_inode:[eventpoll"]);
        let number = ours.iter().find(|&number| !supervisors.contains(number));
        support::put_nothing_in_place_of(*number.unwrap());
        tail();
        tail();
    });
}

fn a_supervisor_that_was_given_up_closes_no_file_that_has_its_numbers_now() {
    support::play("forgotten");
}

pub(crate) fn forgotten_scene() {
    support::guarded("forgotten", || {
        let nothing = |_: usize, ()| ();
        spawn(nothing, (), 2).unwrap().join().unwrap();
        // The bell and the epoll are files of somebody else from now on.
        let numbers = numbers(&["anon_inode:[event"]);
        assert_eq!(numbers.len(), 2, "{numbers:?}");
        for &number in &numbers {
            support::put_nothing_in_place_of(number);
        }
        let is_there = |number: &i32| {
            std::fs::read_link(format!("/proc/self/fd/{number}"))
                .is_ok_and(|target| target.display().to_string() == "/dev/null")
        };
        // On a thread that has to ask for each start. One may be lost with the old supervisor, and is told then.
        let started = std::thread::spawn(move || {
            (0..3).any(|_| {
                let joined = spawn(nothing, (), 2).and_then(|mut context| context.join().map(drop));
                joined.is_ok()
            })
        });
        assert!(started.join().unwrap(), "nothing starts any more");
        // The old one finds out when it looks around, and ends.
        let supervisors = || {
            let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
            tasks
                .filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok())
                .filter(|name| name.trim_end() == "supervisor")
                .count()
        };
        while supervisors() > 1 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(numbers.iter().all(is_there), "{numbers:?}");
        drop(spawn(sleeps, (), 1).unwrap());
        assert!(numbers.iter().all(is_there), "{numbers:?}");
    });
}
