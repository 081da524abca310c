//! What a program may do wrong, or to an extreme, without harm to what else it runs.

use std::future::Future;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, getpid, kill_process};
use spawn::{ErrorKind, Signals, forkserver};

use crate::support::{self, Gate, builder, exists, scene, sleeps, spawn};
use crate::{trials, trials_once};

pub(crate) fn tests() -> Vec<Trial> {
    let mut tests = trials![
        what_panics_when_it_is_told_of_an_end_harms_no_other_context,
        what_would_wait_on_the_supervisors_thread_is_told_so,
        a_deadline_without_an_end_is_one_for_detaching_too,
        small_stacks_by_default_are_enough_for_the_threads_of_the_crate,
        a_name_of_any_length_is_cut_and_stays_a_name,
        another_executable_that_is_no_worker_is_told_with_what_it_takes,
        what_panics_when_it_is_told_by_tracing_ends_no_supervision,
        a_guard_of_signals_is_dropped_in_a_bare_fork_as_if_it_were_its_own,
    ];
    tests.extend(trials_once![
        what_starts_processes_when_it_is_told_that_one_is_started_is_told_so,
    ]);
    tests
}

/// Runs the program of a scene.
pub(crate) fn play(name: &str) -> bool {
    let scene: fn() = match name {
        "panicking" => panicking_scene,
        "waiting-hook" => waiting_scene,
        "small-stacks" => small_scene,
        "tracing" => tracing_scene,
        "guard-forked" => guard_scene,
        "starting" => starting_scene,
        _ => return false,
    };
    scene();
    true
}

fn double(_rank: usize, x: u32) -> Result<u32, String> {
    Ok(2 * x)
}

fn what_panics_when_it_is_told_of_an_end_harms_no_other_context() {
    support::play("panicking");
}

fn panicking_scene() {
    struct Fragile;
    impl Drop for Fragile {
        fn drop(&mut self) {
            panic!("as it fell");
        }
    }
    struct Loud;
    impl Wake for Loud {
        fn wake(self: Arc<Self>) {
            panic!("out of bed");
        }
    }
    support::guarded("panicking", || {
        let other = spawn(sleeps, (), 1).unwrap();
        let mut context = spawn(double, 1, 2).unwrap();
        context.on_end(|_| std::panic::panic_any(Fragile));
        assert_eq!(context.join().unwrap(), [2, 2]);
        let mut context = spawn(double, 2, 2).unwrap();
        let (ended, end) = channel();
        context.on_end(move |_| ended.send(()).unwrap());
        {
            let waker = Waker::from(Arc::new(Loud));
            let mut join = pin!(context.join_async());
            let mut task = Context::from_waker(&waker);
            while join.as_mut().poll(&mut task).is_pending() && end.try_recv().is_err() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        assert_eq!(context.join().unwrap(), [4, 4]);
        assert!(exists(other.pids()[0]));
        assert_eq!(spawn(double, 3, 1).unwrap().join().unwrap(), [6]);
    });
}

fn what_would_wait_on_the_supervisors_thread_is_told_so() {
    support::play("waiting-hook");
}

fn waiting_scene() {
    fn double_at_gate(rank: usize, (x, gate): (u32, PathBuf)) -> Result<u32, String> {
        support::wait_at_gate(&gate);
        double(rank, x)
    }
    support::guarded("waiting-hook", || {
        let (tell, told) = channel();
        let mut dropped = Some(spawn(sleeps, (), 1).unwrap());
        let pid = dropped.as_ref().unwrap().pids()[0];
        let mut joined = spawn(sleeps, (), 1).unwrap();
        let detached = spawn(sleeps, (), 1).unwrap();
        // What has ended before the hook is there has it called here.
        let gate = Gate::new("waiting-hook");
        let mut context = spawn(double_at_gate, (1, gate.path()), 2).unwrap();
        let builder = builder();
        context.on_end(move |_| {
            let started = builder.spawn(double, 1, 1).map(drop);
            let any = joined.wait_any().map(drop);
            let polled = {
                let mut task = Context::from_waker(Waker::noop());
                match pin!(joined.join_async()).as_mut().poll(&mut task) {
                    Poll::Ready(joined) => joined.map(drop),
                    Poll::Pending => Ok(()),
                }
            };
            let errors = [
                started,
                joined.join().map(drop),
                any,
                polled,
                detached.detach().map(drop),
            ];
            drop(dropped.take());
            tell.send((errors, joined)).unwrap();
        });
        gate.open();
        assert_eq!(context.join().unwrap(), [2, 2]);
        let (errors, joined) = told.recv().unwrap();
        for error in errors {
            let error = error.unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Usage), "{error:?}");
            assert!(error.to_string().contains("supervises"), "{error}");
        }
        // It could not wait for that, and stopped it all the same.
        while exists(pid) {
            std::thread::yield_now();
        }
        drop(joined);
        assert_eq!(spawn(double, 3, 1).unwrap().join().unwrap(), [6]);
    });
}

fn a_deadline_without_an_end_is_one_for_detaching_too() {
    let context = builder()
        .hello_deadline(Duration::MAX)
        .grace(Duration::MAX)
        .spawn(sleeps, (), 1)
        .unwrap();
    let workers = context.detach().unwrap();
    kill_process(Pid::from_raw(workers[0].pid as i32).unwrap(), Signal::KILL).unwrap();
}

fn small_stacks_by_default_are_enough_for_the_threads_of_the_crate() {
    let output = scene("small-stacks")
        .env("RUST_MIN_STACK", "16384")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
}

fn small_scene() {
    let starts = || {
        for _ in 0..3 {
            let tail = builder().stderr_tail(true).spawn(double, 1, 2).unwrap();
            assert_eq!(tail.into_results().unwrap(), [2, 2]);
            assert_eq!(spawn(double, 2, 2).unwrap().join().unwrap(), [4, 4]);
        }
    };
    let thread = std::thread::Builder::new().stack_size(1 << 20);
    thread.spawn(starts).unwrap().join().unwrap();
}

fn a_name_of_any_length_is_cut_and_stays_a_name() {
    fn fails(rank: usize, _: ()) -> Result<(), String> {
        if rank == 1 {
            return Err("no".to_owned());
        }
        support::sleep_for_ever()
    }
    let mut context = builder()
        .name("ü".repeat(200_000))
        .spawn(fails, (), 2)
        .unwrap();
    let error = context.join().unwrap_err();
    let name = &error.worker().unwrap().name;
    assert!(
        name.len() <= 64 && name.starts_with('ü') && name.ends_with(".1"),
        "{name:.99}"
    );
    assert!(error.to_string().len() < 200, "{error:.999}");
}

fn another_executable_that_is_no_worker_is_told_with_what_it_takes() {
    let builder = builder().executable("/bin/true");
    let error = builder.spawn(double, 1, 1).unwrap().join().unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::NeverStarted { .. }),
        "{error:?}"
    );
    assert!(error.to_string().contains("worker_main!"), "{error}");
}

/// A subscriber that panics at whatever the supervisor's thread tells it.
struct Panicking;

/// How often it did.
static PANICS: AtomicU32 = AtomicU32::new(0);

impl tracing::Subscriber for Panicking {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        if std::thread::current().name() == Some("supervisor") {
            PANICS.fetch_add(1, Ordering::Relaxed);
            panic!("at {}", event.metadata().name());
        }
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

fn what_panics_when_it_is_told_by_tracing_ends_no_supervision() {
    support::play("tracing");
}

fn tracing_scene() {
    fn fails(rank: usize, _: ()) -> Result<(), String> {
        if rank == 0 {
            return Err("as told".to_owned());
        }
        support::sleep_for_ever()
    }
    support::guarded("tracing", || {
        tracing::subscriber::set_global_default(Panicking).unwrap();
        let other = spawn(sleeps, (), 2).unwrap();
        let stopped = spawn(sleeps, (), 2).unwrap();
        let pids = stopped.pids();
        drop(stopped);
        assert!(PANICS.load(Ordering::Relaxed) > 0);
        assert!(pids.into_iter().all(|pid| !exists(pid)));
        let error = spawn(fails, (), 2).unwrap().join().unwrap_err().to_string();
        assert!(error.contains("as told"), "{error}");
        assert!(other.pids().into_iter().all(exists));
        assert_eq!(spawn(double, 3, 2).unwrap().join().unwrap(), [6, 6]);
        let pids = other.pids();
        drop(other);
        assert!(pids.into_iter().all(|pid| !exists(pid)));
    });
}

/// A subscriber that starts a process by the fork server when it is told that one preloads, and keeps the error.
struct Starting;

/// What it was told.
static TOLD: Mutex<Option<String>> = Mutex::new(None);

impl tracing::Subscriber for Starting {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {
        let started = support::by_server().spawn(double, 1, 1);
        *TOLD.lock().unwrap() = started.err().map(|error| error.to_string());
        support::open_gate(&gate());
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// Where the file is that lets the preloaded function go on.
const GATE: &str = "SPAWN_TEST_GATE";

fn gate() -> std::path::PathBuf {
    std::env::var_os(GATE).unwrap().into()
}

fn what_starts_processes_when_it_is_told_that_one_is_started_is_told_so() {
    let gate = support::Gate::new("starting");
    let output = scene("starting").env(GATE, gate.path()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
}

fn starting_scene() {
    fn preloads() {
        support::wait_at_gate(&gate());
    }
    support::guarded("starting", || {
        tracing::subscriber::set_global_default(Starting).unwrap();
        forkserver::preload(preloads).unwrap();
        loop {
            // So long after its start it is told of that it still preloads.
            let builder = support::by_server().hello_deadline(Duration::from_millis(500));
            match builder.spawn(double, 2, 1) {
                // Too hasty for the process, too, which may take longer.
                Ok(context) => break drop(context),
                // The start itself took longer.
                Err(error) => assert!(error.to_string().contains("in time"), "{error}"),
            }
        }
        let told = TOLD.lock().unwrap().take().unwrap();
        assert!(told.contains("do it on another thread"), "{told}");
        let mut context = support::by_server().spawn(double, 2, 1).unwrap();
        assert_eq!(context.join().unwrap(), [4]);
    });
}

fn a_guard_of_signals_is_dropped_in_a_bare_fork_as_if_it_were_its_own() {
    support::play("guard-forked");
}

fn guard_scene() {
    support::guarded("guard-forked", || {
        let guard = Signals::forward().unwrap();
        let (mut told, mut tell) = std::io::pipe().unwrap();
        let terminate = || kill_process(getpid(), Signal::TERM).unwrap();
        support::bare_fork(|| {
            drop(guard);
            tell.write_all(b"dropped").unwrap();
            terminate();
            tell.write_all(b", and not ended").unwrap();
        });
        drop(tell);
        let mut text = String::new();
        told.read_to_string(&mut text).unwrap();
        assert_eq!(text, "dropped");
    });
    // What the fork did is not the program's affair.
    let guard = Signals::forward().unwrap();
    kill_process(getpid(), Signal::TERM).unwrap();
    while guard.received().is_none() {
        std::thread::yield_now();
    }
}
