//! `init` and what happens without it, what a worker finds in its process, and processes that start processes.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, waitpid};
use spawn::{ErrorKind, Stdin};

use crate::support::{self, Gate, Reaped, builder, exists, scene, sleep_for_ever, spawn};
use crate::{trials, trials_once};

pub(crate) fn tests() -> Vec<Trial> {
    let mut trials = trials_once![
        a_program_that_forgets_init_is_told_at_once,
        a_worker_that_never_reaches_init_is_told_after_the_deadline,
        a_worker_that_ends_before_init_is_told_at_once,
        a_worker_that_calls_init_off_its_main_thread_is_told_at_once,
        a_worker_without_init_cannot_start_a_fork_bomb,
        a_worker_killed_before_it_speaks_is_told_and_is_no_zombie,
        a_worker_stopped_before_init_ends_under_a_foreign_reaper_when_it_is_let_go,
        no_processes_is_a_mistake,
    ];
    trials.extend(trials![
        a_worker_may_spawn,
        endless_nesting_ends_at_the_limit,
        a_worker_has_its_name_everywhere,
        a_worker_may_start_other_programs_of_this_kind,
        a_program_of_this_kind_that_a_worker_left_behind_is_no_worker_of_its_heir,
        a_program_that_was_started_through_the_loader_is_told,
        stdin_is_empty_unless_it_is_given,
        the_parents_stdin_can_be_given_to_a_worker,
    ]);
    trials
}

/// What this executable does instead of calling `init`, when its name says so: the ways to get it wrong.
pub(crate) fn without_init() -> Option<ExitCode> {
    let mut words = std::env::args();
    let title = words.next()?;
    if words.next().as_deref() == Some("without-init") {
        let error = spawn(|_, ()| (), (), 1).unwrap_err();
        println!("{error}");
        return Some(ExitCode::SUCCESS);
    }
    if title.ends_with("[lost]") {
        sleep_for_ever();
    }
    if title.ends_with("[talker]") {
        eprintln!("no licence");
        return Some(ExitCode::FAILURE);
    }
    // As a runtime does that `main` is made in.
    if std::env::var_os("SPAWN_TEST_EARLY").is_some() && title.trim_end().ends_with("[forkserver]")
    {
        let (started, waits) = std::sync::mpsc::channel();
        let early = std::thread::Builder::new().name("early".to_owned());
        let early = early.spawn(move || {
            // Now it has its name.
            let _ = started.send(());
            sleep_for_ever()
        });
        assert!(early.is_ok() && waits.recv().is_ok());
    }
    if title.ends_with("[astray]") {
        let _ = std::thread::spawn(spawn::init).join();
        return Some(ExitCode::SUCCESS);
    }
    if title.ends_with("[halted]") {
        // Goes on to `init` when somebody lets it go.
        let _ = kill_process(getpid(), Signal::STOP);
    }
    if title.ends_with("[hook-aborts]") {
        std::panic::set_hook(Box::new(|_| std::process::abort()));
    }
    if title.ends_with("[hook-exits]") {
        std::panic::set_hook(Box::new(|_| std::process::exit(3)));
    }
    if title.ends_with("[hasty]") {
        return Some(ExitCode::from(9));
    }
    if title.ends_with("[bomb]") {
        let error = spawn(|_, ()| (), (), 1).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::NotInitialized));
        assert!(error.to_string().contains("started as a worker"), "{error}");
        return Some(ExitCode::from(10));
    }
    None
}

fn nothing(_rank: usize, _: ()) {}

fn a_program_that_forgets_init_is_told_at_once() {
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .arg("without-init")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        text.contains("make `init()` the first line of `main`"),
        "{text}"
    );
}

fn a_worker_that_never_reaches_init_is_told_after_the_deadline() {
    let mut context = builder()
        .name("lost")
        .hello_deadline(Duration::from_millis(200))
        .spawn(nothing, (), 1)
        .unwrap();
    let error = context.join().unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::NeverStarted { .. }),
        "{error:?}"
    );
    assert!(
        error
            .to_string()
            .contains("did not reach `init` within 200ms"),
        "{error}"
    );
}

fn a_worker_that_ends_before_init_is_told_at_once() {
    let error = builder()
        .name("hasty")
        .spawn(nothing, (), 1)
        .unwrap()
        .join()
        .unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::NeverStarted { .. }),
        "{error:?}"
    );
    assert!(
        error
            .to_string()
            .contains("it exited with code 9 before it reached `init`"),
        "{error}"
    );
}

fn a_worker_that_calls_init_off_its_main_thread_is_told_at_once() {
    let mut context = builder().name("astray").spawn(nothing, (), 1).unwrap();
    let error = context.join().unwrap_err().to_string();
    assert!(error.contains("init_in_test!()"), "{error}");
}

fn a_worker_without_init_cannot_start_a_fork_bomb() {
    let error = builder()
        .name("bomb")
        .spawn(nothing, (), 1)
        .unwrap()
        .join()
        .unwrap_err();
    assert!(error.to_string().contains("exited with code 10"), "{error}");
}

fn a_worker_killed_before_it_speaks_is_told_and_is_no_zombie() {
    for joined in [false, true] {
        let mut context = builder().name("lost").spawn(nothing, (), 1).unwrap();
        let pid = context.pids()[0];
        kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
        // The supervisor waits for it, though nobody joins.
        while !joined && exists(pid) {
            std::thread::yield_now();
        }
        let error = context.join().unwrap_err();
        assert!(!exists(pid));
        let ErrorKind::NeverStarted { reason, .. } = error.kind() else {
            panic!("{error:?}")
        };
        let expected = "it was killed by SIGKILL before it reached `init`";
        assert!(reason.starts_with(expected), "{reason}");
    }
}

fn a_worker_stopped_before_init_ends_under_a_foreign_reaper_when_it_is_let_go() {
    support::play("reaper");
}

/// What takes over orphans, as a service manager does: neither the parent nor the first process of the system.
pub(crate) fn reaper_scene() {
    support::guarded("reaper", || {
        let me = getpid();
        rustix::process::set_child_subreaper(Some(me)).unwrap();
        let gate = Gate::new("reaper");
        let mut parent = Reaped(
            scene("halted")
                .env("SPAWN_TEST_GATE", gate.path())
                .spawn()
                .unwrap(),
        );
        let mut line = String::new();
        BufReader::new(parent.0.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let worker = Pid::from_raw(line.trim().parse().unwrap()).unwrap();
        let state = || {
            let stat = std::fs::read_to_string(format!("/proc/{worker}/stat")).unwrap();
            // "pid (name) state parent …"
            let rest = stat
                .rsplit(')')
                .next()
                .unwrap_or_default()
                .trim()
                .to_owned();
            let mut fields = rest.split_whitespace().map(str::to_owned);
            (fields.next().unwrap(), fields.next().unwrap())
        };
        while state().0 != "T" {
            std::thread::yield_now();
        }
        drop(parent); // SIGKILL
        while state().1 != me.to_string() {
            std::thread::yield_now();
        }
        assert_eq!(state().0, "T");
        kill_process(worker, Signal::CONT).unwrap();
        let (_, status) = waitpid(Some(worker), WaitOptions::empty())
            .unwrap()
            .unwrap();
        assert_eq!(status.terminating_signal(), Some(Signal::KILL.as_raw()));
        assert!(!gate.path().exists(), "its function ran");
    });
}

/// The parent in the scene above: it has a worker that stops before `init`.
pub(crate) fn halted_scene() {
    fn opens(_rank: usize, gate: std::path::PathBuf) {
        support::open_gate(&gate);
    }
    let gate = std::env::var_os("SPAWN_TEST_GATE").unwrap();
    let context = builder()
        .name("halted")
        .spawn(opens, gate.into(), 1)
        .unwrap();
    println!("{}", context.pids()[0]);
    sleep_for_ever();
}

fn no_processes_is_a_mistake() {
    let error = spawn(nothing, (), 0).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Usage), "{error:?}");
}

fn a_worker_may_spawn() {
    fn inner(rank: usize, x: u64) -> Result<u64, String> {
        Ok(x + rank as u64)
    }
    fn outer(rank: usize, x: u64) -> spawn::Result<u64> {
        Ok(spawn(inner, x * 10 + rank as u64, 2)?.join()?.iter().sum())
    }
    assert_eq!(
        spawn(outer, 1, 2).unwrap().join().unwrap(),
        [10 + 11, 11 + 12]
    );
}

fn endless_nesting_ends_at_the_limit() {
    fn deeper(_rank: usize, depth: u32) -> spawn::Result<u32> {
        match spawn(deeper, depth + 1, 1) {
            Ok(mut context) => Ok(context.join()?[0]),
            Err(error) if matches!(error.kind(), ErrorKind::TooDeep { depth: 8 }) => Ok(depth),
            Err(error) => Err(error),
        }
    }
    assert_eq!(spawn(deeper, 1, 1).unwrap().join().unwrap(), [8]);
}

fn a_worker_has_its_name_everywhere() {
    fn names(_rank: usize, _: ()) -> Result<(String, String, String), std::io::Error> {
        let process = std::fs::read_to_string("/proc/self/comm")?
            .trim_end()
            .to_owned();
        let thread = std::thread::current().name().unwrap_or("").to_owned();
        let title = std::env::args().next().unwrap_or_default();
        Ok((process, thread, title))
    }
    let mut context = builder().name("sizer\0\n").spawn(names, (), 2).unwrap();
    let results = context.join().unwrap();
    for (index, (process, thread, title)) in results.iter().enumerate() {
        let name = format!("sizer.{index}");
        assert_eq!((process, thread), (&name, &name));
        assert!(title.ends_with(&format!("[{name}]")), "{title}");
    }
    assert_eq!(spawn(names, (), 1).unwrap().join().unwrap()[0].1, "names");
}

/// The marker is inherited by all that a worker starts; it must not make workers of them.
fn a_worker_may_start_other_programs_of_this_kind() {
    fn starts(_rank: usize, _: ()) -> Result<String, String> {
        let output = scene("hello").output().map_err(|error| error.to_string())?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
    assert_eq!(spawn(starts, (), 1).unwrap().join().unwrap(), ["[42]\n"]);
}

fn a_program_of_this_kind_that_a_worker_left_behind_is_no_worker_of_its_heir() {
    // The environment says whose worker it would be, and that is its parent now.
    assert_eq!(support::play("heir"), "[42]\n");
}

/// A program that inherits orphans, as the first process of a container does.
pub(crate) fn heir_scene() {
    fn leaves_behind(_rank: usize, gate: std::path::PathBuf) -> Result<u32, std::io::Error> {
        let wait = "while [ ! -e \"$1\" ]; do sleep 0.01; done; exec \"$0\" scene hello";
        let child = std::process::Command::new("/bin/sh")
            .args(["-c", wait])
            .arg(std::env::current_exe()?)
            .arg(gate)
            .spawn()?;
        Ok(child.id())
    }
    support::guarded("heir", || {
        rustix::process::set_child_subreaper(Some(getpid())).unwrap();
        let gate = Gate::new("heir");
        let mut context = spawn(leaves_behind, gate.path(), 1).unwrap();
        let orphan = Pid::from_raw(context.join().unwrap()[0] as i32).unwrap();
        gate.open();
        let (_, status) = waitpid(Some(orphan), WaitOptions::empty())
            .unwrap()
            .unwrap();
        assert_eq!(status.exit_status(), Some(0));
    });
}

fn a_program_that_was_started_through_the_loader_is_told() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let paths = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5));
    let is_loader = |path: &&str| {
        path.rsplit('/')
            .next()
            .is_some_and(|name| name.starts_with("ld-"))
    };
    let Some(loader) = paths.into_iter().find(is_loader) else {
        eprintln!("skipped: this executable has no loader");
        return;
    };
    let own = scene("loader");
    let mut command = std::process::Command::new(loader);
    command.arg(own.get_program()).args(own.get_args());
    for (name, value) in own.get_envs() {
        command.env(name, value.unwrap());
    }
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("start the program itself"), "{text}");
}

pub(crate) fn loader_scene() {
    println!("{}", spawn(nothing, (), 1).unwrap_err());
}

fn read_stdin(_rank: usize, _: ()) -> Result<String, std::io::Error> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    Ok(text)
}

fn stdin_is_empty_unless_it_is_given() {
    assert_eq!(spawn(read_stdin, (), 2).unwrap().join().unwrap(), ["", ""]);
}

fn the_parents_stdin_can_be_given_to_a_worker() {
    let mut program = Reaped(scene("stdin").stdin(Stdio::piped()).spawn().unwrap());
    let mut stdin = program.0.stdin.take().unwrap();
    stdin.write_all(b"line 1\nline 2\n").unwrap();
    drop(stdin);
    let mut text = String::new();
    program
        .0
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    assert_eq!(text, "got: line 1\\nline 2\\n\n");
    assert!(program.0.wait().unwrap().success());
}

/// The program for the test above.
pub(crate) fn stdin_scene() {
    let mut context = builder()
        .stdin(Stdin::Inherit)
        .spawn(read_stdin, (), 1)
        .unwrap();
    let text = context.join().unwrap()[0].replace('\n', "\\n");
    println!("got: {text}");
    // Two processes cannot both have it.
    let error = builder()
        .stdin(Stdin::Inherit)
        .spawn(read_stdin, (), 2)
        .unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Usage), "{error:?}");
}

/// The program that a worker starts.
pub(crate) fn hello_scene() {
    support::guarded("hello", || {
        let results = spawn(|_, x: u32| Ok::<_, String>(x * 2), 21, 1)
            .unwrap()
            .into_results()
            .unwrap();
        println!("{results:?}");
    });
}
