//! What a process gets from its parent, and how it runs.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use spawn::{ErrorKind, Group, Output, Process, spawn_one};

use crate::support::{
    self, Gate, builder, exists, method, open_gate, pidfd, scene, sleep_for_ever, spawn,
    wait_at_gate, wait_for_end,
};
use crate::{trials, trials_once};

pub(crate) fn tests() -> Vec<Trial> {
    let mut tests = trials![
        the_environment_and_the_directory_can_be_set,
        an_environment_can_be_emptied,
        stdout_and_stderr_go_where_they_are_sent,
        stdin_can_be_a_pipe,
        the_stderr_tail_is_in_the_error_whoever_wrote_it,
        a_stderr_tail_tells_why_a_process_never_started,
        one_whose_stderr_nobody_reads_holds_up_no_other,
        who_waits_for_a_process_waits_not_for_whoever_reads_its_stderr,
        nice_and_processors_are_set_before_the_function_runs,
        what_cannot_be_set_is_told,
        daemons_end_when_the_others_have,
        a_daemon_that_fails_is_a_failure,
        only_daemons_are_a_mistake,
    ];
    tests.extend(trials_once![
        what_a_worker_writes_is_passed_on_before_join_returns,
        a_program_may_hold_its_stderr_while_it_joins,
        one_process_takes_no_rank_and_gives_one_result,
    ]);
    tests
}

fn variables(
    _rank: usize,
    names: Vec<String>,
) -> Result<(Vec<Option<String>>, PathBuf), std::io::Error> {
    let values = names.iter().map(|name| std::env::var(name).ok()).collect();
    Ok((values, std::env::current_dir()?))
}

fn the_environment_and_the_directory_can_be_set() {
    let directory = std::env::temp_dir().canonicalize().unwrap();
    let results = builder()
        .env("SPAWN_TEST_ADDED", "here")
        .env("SPAWN_TEST_TWICE", "first")
        .env("SPAWN_TEST_TWICE", "last")
        .env_remove("PATH")
        .current_dir(&directory)
        .spawn(
            variables,
            ["SPAWN_TEST_ADDED", "SPAWN_TEST_TWICE", "PATH"]
                .map(str::to_owned)
                .to_vec(),
            1,
        )
        .unwrap()
        .into_results()
        .unwrap();
    let expected = vec![Some("here".to_owned()), Some("last".to_owned()), None];
    assert_eq!(results, [(expected, directory)]);
}

fn an_environment_can_be_emptied() {
    fn all(_rank: usize, _: ()) -> Result<Vec<String>, String> {
        Ok(std::env::vars().map(|(name, _)| name).collect())
    }
    let results = builder()
        .env("SPAWN_TEST_LOST", "x")
        .env_clear()
        .env("SPAWN_TEST_KEPT", "x")
        .spawn(all, (), 1)
        .unwrap()
        .into_results()
        .unwrap();
    let mut names = results[0].clone();
    names.sort();
    assert_eq!(names, ["SPAWN_TEST_KEPT", "TENSORMP_WORKER_OF"]);
}

fn speaks(rank: usize, _: ()) -> std::io::Result<()> {
    std::io::stdout().write_all(format!("out {rank}\n").as_bytes())?;
    std::io::stderr().write_all(format!("err {rank}\n").as_bytes())
}

fn stdout_and_stderr_go_where_they_are_sent() {
    let (mut out, out_end) = std::io::pipe().unwrap();
    let (mut err, err_end) = std::io::pipe().unwrap();
    let mut context = builder()
        .stdout(out_end)
        .stderr(err_end)
        .spawn(speaks, (), 2)
        .unwrap();
    // The workers have the only writing ends, so these end when the workers do.
    let (mut said, mut complained) = (String::new(), String::new());
    out.read_to_string(&mut said).unwrap();
    err.read_to_string(&mut complained).unwrap();
    context.join().unwrap();
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&said), ["out 0", "out 1"]);
    assert_eq!(sorted(&complained), ["err 0", "err 1"]);
    builder()
        .stdout(Output::Null)
        .stderr(Output::Null)
        .spawn(speaks, (), 1)
        .unwrap()
        .join()
        .unwrap();
}

fn stdin_can_be_a_pipe() {
    fn reads(_rank: usize, _: ()) -> std::io::Result<String> {
        std::io::read_to_string(std::io::stdin())
    }
    let (reader, mut writer) = std::io::pipe().unwrap();
    let context = builder().stdin(reader).spawn(reads, (), 1).unwrap();
    writer.write_all(b"through a pipe").unwrap();
    drop(writer);
    assert_eq!(context.into_results().unwrap(), ["through a pipe"]);
}

fn the_stderr_tail_is_in_the_error_whoever_wrote_it() {
    fn dies(_rank: usize, _: ()) {
        eprintln!("a line of Rust");
        // As a C library would, past all that Rust knows of.
        support::print_as_c_would("a line of C");
        std::process::abort();
    }
    let error = builder()
        .stderr(Output::Null)
        .stderr_tail(true)
        .spawn(dies, (), 1)
        .unwrap()
        .join()
        .unwrap_err();
    let ErrorKind::ProcessExited {
        stderr_tail: Some(tail),
        ..
    } = error.kind()
    else {
        panic!("{error:?}")
    };
    let lines: Vec<&str> = tail.lines().collect();
    assert_eq!((lines.len(), lines[0]), (2, "a line of Rust"), "{tail}");
    assert!(lines[1].starts_with("a line of C: "), "{tail}");
    let text = error.to_string();
    assert!(
        text.ends_with(&format!(
            "its stderr ended with: {} | {}",
            lines[0], lines[1]
        )),
        "{text}"
    );
    assert!(format!("{error:?}").ends_with(&format!("The end of its stderr:\n{tail}")));
}

fn a_stderr_tail_tells_why_a_process_never_started() {
    // See `entry::without_init`: this one says something and ends before `init`.
    let error = builder()
        .name("talker")
        .stderr(Output::Null)
        .stderr_tail(true)
        .spawn(speaks, (), 1)
        .unwrap()
        .join()
        .unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::NeverStarted { .. }),
        "{error:?}"
    );
    assert!(
        error.to_string().contains("stderr ended with: no licence"),
        "{error}"
    );
}

/// The program prints after `join`, so what its worker wrote must come before.
fn what_a_worker_writes_is_passed_on_before_join_returns() {
    let output = scene("relay").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2001, "{text:.500}");
    assert_eq!(
        (lines[0], lines[1999], lines[2000]),
        ("line 0", "line 1999", "joined")
    );
}

pub(crate) fn relay_scene() {
    fn writes(_rank: usize, _: ()) {
        for line in 0..2000 {
            eprintln!("line {line}");
        }
    }
    support::guarded("relay", || {
        let mut context = builder().stderr_tail(true).spawn(writes, (), 1).unwrap();
        context.join().unwrap();
        eprintln!("joined");
    });
}

fn a_program_may_hold_its_stderr_while_it_joins() {
    let output = scene("locked").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text:.500}");
    assert_eq!(text.lines().count(), 20_001, "{text:.500}");
}

pub(crate) fn locked_scene() {
    fn writes(_rank: usize, _: ()) {
        for line in 0..20_000 {
            eprintln!("line {line}");
        }
    }
    support::guarded("locked", || {
        let mut stderr = std::io::stderr().lock();
        let mut context = builder().stderr_tail(true).spawn(writes, (), 1).unwrap();
        context.join().unwrap();
        writeln!(stderr, "joined").unwrap();
    });
}

fn who_waits_for_a_process_waits_not_for_whoever_reads_its_stderr() {
    fn writes(_rank: usize, lines: usize) {
        for _ in 0..lines {
            eprintln!("{}", "x".repeat(1000));
        }
    }
    // Together more than a pipe holds. Each process has one of its own, which takes all of it: none waits to write.
    let lines = 50;
    let (_reader, writer) = std::io::pipe().unwrap();
    let start = || {
        let to = writer.try_clone().unwrap();
        let context = builder().stderr_tail(true).stderr(to);
        context.spawn(writes, lines, 1).unwrap()
    };
    let joined = &mut start();
    while joined
        .join_timeout(Duration::from_millis(10))
        .unwrap()
        .is_none()
    {}
    start().join().unwrap();
    drop(start());
    start().detach().unwrap();
}

fn one_whose_stderr_nobody_reads_holds_up_no_other() {
    fn writes(_rank: usize, lines: usize) {
        for _ in 0..lines {
            eprintln!("{}", "x".repeat(1000));
        }
    }
    let (reader, writer) = std::io::pipe().unwrap();
    let full = writer.try_clone().unwrap();
    let stuck = builder().stderr_tail(true).stderr(writer);
    let mut stuck = stuck.spawn(writes, 1000, 1).unwrap();
    let has_room = || {
        let mut look = [PollFd::new(&full, PollFlags::OUT)];
        poll(&mut look, Some(&Timespec::default())).unwrap() == 1
    };
    while has_room() {
        std::thread::yield_now();
    }
    let null = std::fs::File::options().write(true).open("/dev/null");
    for to in [Output::Null, null.unwrap().into()] {
        let others = builder().stderr_tail(true).stderr(to);
        others.spawn(writes, 200, 2).unwrap().join().unwrap();
        if stuck.try_join().unwrap().is_some() {
            panic!("somebody read it");
        }
    }
    // What has no reader any more has no need to be passed on.
    drop(reader);
    stuck.join().unwrap();
}

fn nice_and_processors_are_set_before_the_function_runs() {
    fn looks(_rank: usize, _: ()) -> Result<(i32, Vec<usize>), String> {
        // Also in a thread that the function starts.
        std::thread::spawn(|| {
            let nice = rustix::process::getpriority_process(None).map_err(|e| e.to_string())?;
            let set = rustix::thread::sched_getaffinity(None).map_err(|e| e.to_string())?;
            let cpus = (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu));
            Ok((nice, cpus.collect()))
        })
        .join()
        .map_err(|_| "panicked".to_owned())?
    }
    let ours = rustix::thread::sched_getaffinity(None).unwrap();
    let last = (0..rustix::thread::CpuSet::MAX_CPU)
        .rfind(|&cpu| ours.is_set(cpu))
        .unwrap();
    let before = rustix::process::getpriority_process(None).unwrap();
    let nicer = (before + 3).min(19);
    let results = builder()
        .nice(nicer)
        .cpus([last])
        .spawn(looks, (), 2)
        .unwrap()
        .into_results()
        .unwrap();
    assert_eq!(results, [(nicer, vec![last]), (nicer, vec![last])]);
    assert_eq!(rustix::process::getpriority_process(None).unwrap(), before);
}

fn what_cannot_be_set_is_told() {
    let error = builder()
        .cpus([1023])
        .spawn(speaks, (), 1)
        .unwrap()
        .join()
        .unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::NeverStarted { .. }),
        "{error:?}"
    );
    assert!(
        error.to_string().contains("the processors [1023]"),
        "{error}"
    );
    let error = builder()
        .nice(99)
        .spawn(speaks, (), 1)
        .unwrap()
        .join()
        .unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::NeverStarted { .. })
            && error
                .to_string()
                .contains("to be 99; they go from -20 to 19"),
        "{error:?}"
    );
    let error = builder()
        .current_dir("/nowhere/at/all")
        .spawn(speaks, (), 1)
        .unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Launch), "{error:?}");
    let text = error.to_string();
    assert!(
        text.contains("its working directory /nowhere/at/all could not be entered"),
        "{text}"
    );
}

fn daemons_end_when_the_others_have() {
    fn serves(_rank: usize, runs: PathBuf) -> Result<u32, String> {
        open_gate(&runs);
        sleep_for_ever();
    }
    fn works(rank: usize, may_end: PathBuf) -> Result<u32, String> {
        wait_at_gate(&may_end);
        Ok(rank as u32)
    }
    let (runs, may_end) = (Gate::new("daemon-runs"), Gate::new("daemon-may-end"));
    let mut group = Group::new().start_method(method());
    group
        .add(Process::named("server").daemon(true), serves, runs.path())
        .unwrap();
    group
        .add_replicas("worker", works, may_end.path(), 2)
        .unwrap();
    let mut context = group.start().unwrap();
    wait_at_gate(&runs.path());
    // It is not stopped before the workers have ended.
    let server = pidfd(context.pids()[0]);
    open_gate(&may_end.path());
    // Its result is left out, and that it was stopped is no failure.
    assert_eq!(context.join().unwrap(), [1, 2]);
    wait_for_end(&server);
    assert!(context.pids().into_iter().all(|pid| !exists(pid)));
}

fn a_daemon_that_fails_is_a_failure() {
    let mut group = Group::new().start_method(method());
    group
        .add(
            Process::named("server").daemon(true),
            |_, ()| Err::<(), _>("no port"),
            (),
        )
        .unwrap();
    group.add("worker", support::sleeps, ()).unwrap();
    let error = group.start().unwrap().join().unwrap_err();
    assert!(error.to_string().contains("no port"), "{error}");
}

fn only_daemons_are_a_mistake() {
    let mut group = Group::new().start_method(method());
    group
        .add(Process::named("server").daemon(true), support::sleeps, ())
        .unwrap();
    let error = group.start().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Usage), "{error:?}");
}

fn one_process_takes_no_rank_and_gives_one_result() {
    fn length(text: String) -> Result<usize, String> {
        Ok(text.len())
    }
    let mut process = spawn_one(Process::default(), length, "four".to_owned()).unwrap();
    assert_eq!(process.state().unwrap().worker.name, "length");
    assert_eq!(*process.join().unwrap(), 4);
    assert_eq!(process.into_result().unwrap(), 4);
    let mut process = spawn_one("sleeper", |()| -> () { sleep_for_ever() }, ()).unwrap();
    assert_eq!(process.join_timeout(Duration::ZERO).unwrap(), None);
    process.terminate();
    assert!(matches!(
        process.join().unwrap_err().kind(),
        ErrorKind::Interrupted { worker: None }
    ));
    // The short form and this one agree on what an error is.
    assert!(
        spawn(|_, ()| Err::<(), _>("no"), (), 1)
            .unwrap()
            .join()
            .is_err()
    );
}
