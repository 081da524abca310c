//! Waiting for processes in every way, letting them go, and errors that come home as themselves.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use libtest_mimic::Trial;
use serde::{Deserialize, Serialize};
use spawn::{ErrorKind, Phase, Typed};

use crate::support::{
    Gate, Reaped, builder, close_descriptors, exists, ignore_signal, open_gate, pidfd, scene,
    sleep_for_ever, spawn, wait_at_gate, wait_for_end,
};
use crate::{trials, trials_once};

pub(crate) fn tests() -> Vec<Trial> {
    let mut tests = trials![
        repeated_joins_that_do_not_wait_stop_nothing,
        processes_are_told_in_the_order_in_which_they_end,
        waiting_for_any_tells_a_failure,
        an_end_that_was_told_is_not_told_again_when_the_others_are_stopped,
        processes_show_where_they_are,
        a_join_may_shorten_the_grace,
        success_then_failure_is_a_failure,
        all_failures_are_told_as_the_first,
        detached_processes_outlive_their_parent,
        detaching_what_has_failed_is_an_error,
        a_worker_that_closes_its_descriptors_loses_contact_and_hangs_nobody,
        a_worker_that_closes_its_descriptors_and_runs_on_is_ended,
        an_error_comes_home_as_itself,
        a_panic_under_abort_has_message_location_and_backtrace,
    ];
    tests.extend(trials_once![
        an_async_join_waits_without_a_thread_and_can_be_given_up,
    ]);
    tests
}

fn at_gate(rank: usize, gates: Vec<PathBuf>) -> Result<usize, String> {
    wait_at_gate(&gates[rank]);
    Ok(rank)
}

fn repeated_joins_that_do_not_wait_stop_nothing() {
    let gate = Gate::new("try");
    let mut context = spawn(at_gate, vec![gate.path()], 1).unwrap();
    for _ in 0..100 {
        assert_eq!(context.try_join().unwrap(), None);
    }
    gate.open();
    let results = loop {
        if let Some(results) = context.try_join().unwrap() {
            break results.to_vec();
        }
        std::thread::yield_now();
    };
    assert_eq!(results, [0]);
    assert_eq!(context.try_join().unwrap(), Some([0].as_slice()));
}

fn processes_are_told_in_the_order_in_which_they_end() {
    let gates: Vec<Gate> = ["any-0", "any-1", "any-2"].map(Gate::new).into();
    let paths = gates.iter().map(Gate::path).collect::<Vec<_>>();
    let mut context = spawn(at_gate, paths, 3).unwrap();
    for rank in [2, 0, 1] {
        gates[rank].open();
        assert_eq!(context.wait_any().unwrap().unwrap().rank, rank);
    }
    assert_eq!(context.wait_any().unwrap(), None);
    assert_eq!(context.join().unwrap(), [0, 1, 2]);
}

fn waiting_for_any_tells_a_failure() {
    fn second_fails(rank: usize, _: ()) -> Result<(), String> {
        match rank {
            1 => Err("enough".to_owned()),
            _ => sleep_for_ever(),
        }
    }
    let mut context = spawn(second_fails, (), 3).unwrap();
    let error = context.wait_any().unwrap_err();
    assert!(error.to_string().contains("enough"), "{error}");
    assert!(context.wait_any().is_err());
}

fn an_end_that_was_told_is_not_told_again_when_the_others_are_stopped() {
    fn first_returns(rank: usize, _: ()) {
        if rank > 0 {
            sleep_for_ever()
        }
    }
    let mut context = spawn(first_returns, (), 2).unwrap();
    assert_eq!(context.wait_any().unwrap().unwrap().rank, 0);
    context.terminate();
    let error = context.wait_any().unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::Interrupted { .. }),
        "{error:?}"
    );
    let phases: Vec<_> = context.processes().iter().map(|it| it.phase).collect();
    assert_eq!(phases, [Phase::Finished, Phase::Ended]);
}

fn processes_show_where_they_are() {
    fn opens(_rank: usize, (ready, go): (PathBuf, PathBuf)) {
        open_gate(&ready);
        wait_at_gate(&go);
    }
    let (ready, go) = (Gate::new("ready"), Gate::new("go"));
    let mut context = builder()
        .name("shown")
        .spawn(opens, (ready.path(), go.path()), 1)
        .unwrap();
    wait_at_gate(&ready.path());
    // The news of its arrival came before the gate opened; the supervisor reads it when it gets to it.
    let process = loop {
        let process = context.processes().remove(0);
        if process.phase != Phase::Starting {
            break process;
        }
        std::thread::yield_now();
    };
    assert_eq!(process.phase, Phase::Running);
    assert_eq!(
        (process.worker.rank, process.worker.name.as_str()),
        (0, "shown")
    );
    assert_eq!(process.worker.pid, context.pids()[0]);
    go.open();
    context.join().unwrap();
    assert_eq!(context.processes()[0].phase, Phase::Finished);
}

fn a_join_may_shorten_the_grace() {
    fn stubborn(rank: usize, gate: PathBuf) -> Result<(), String> {
        if rank == 0 {
            wait_at_gate(&gate);
            return Err("enough".to_owned());
        }
        ignore_signal(libc::SIGTERM);
        open_gate(&gate);
        sleep_for_ever();
    }
    let gate = Gate::new("shorter");
    // With the grace that it was made with, the watchdog would end this test.
    let mut context = builder()
        .grace(Duration::from_secs(3600))
        .spawn(stubborn, gate.path(), 2)
        .unwrap();
    // The order comes before the failure: its cause waits for the other process to have started.
    let error = match context.join_within(Duration::ZERO, Duration::from_millis(50)) {
        Err(error) => error,
        Ok(_) => context.join().unwrap_err(),
    };
    assert!(error.to_string().contains("enough"), "{error}");
    assert!(context.pids().into_iter().all(|pid| !exists(pid)));
}

fn success_then_failure_is_a_failure() {
    fn ends(rank: usize, gate: PathBuf) -> Result<(), String> {
        if rank == 0 {
            return Ok(());
        }
        wait_at_gate(&gate);
        Err("late".to_owned())
    }
    let gate = Gate::new("late");
    let mut context = spawn(ends, gate.path(), 2).unwrap();
    assert_eq!(context.wait_any().unwrap().unwrap().rank, 0);
    gate.open();
    assert!(context.join().unwrap_err().to_string().contains("late"));
    assert!(context.into_results().is_err());
}

fn all_failures_are_told_as_the_first() {
    fn fails(rank: usize, _: ()) -> Result<(), String> {
        Err(format!("no {rank}"))
    }
    let mut context = spawn(fails, (), 3).unwrap();
    let error = context.join().unwrap_err();
    let rank = error.worker().unwrap().rank;
    assert!(
        error.to_string().ends_with(&format!("no {rank}")),
        "{error}"
    );
    assert!(context.pids().into_iter().all(|pid| !exists(pid)));
}

fn detached_processes_outlive_their_parent() {
    use std::io::{BufRead, BufReader};

    let gate = Gate::new("detached");
    let mut program = Reaped(
        scene("detached")
            .env("SPAWN_TEST_GATE", gate.path())
            .spawn()
            .unwrap(),
    );
    let mut line = String::new();
    BufReader::new(program.0.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let worker = pidfd(line.trim().parse().unwrap());
    assert!(program.0.wait().unwrap().success());
    // The parent is gone, and so is its control socket: whoever still opens gates now has outlived both.
    let answer = PathBuf::from(format!("{}.answer", gate.path().display()));
    assert!(!answer.exists());
    gate.open();
    wait_for_end(&worker);
    assert!(std::fs::remove_file(&answer).is_ok());
}

pub(crate) fn detached_scene() {
    fn answers(_rank: usize, gate: PathBuf) {
        wait_at_gate(&gate);
        open_gate(&PathBuf::from(format!("{}.answer", gate.display())));
    }
    let gate = PathBuf::from(std::env::var_os("SPAWN_TEST_GATE").unwrap());
    let workers = spawn(answers, gate, 1).unwrap().detach().unwrap();
    println!("{}", workers[0].pid);
}

fn detaching_what_has_failed_is_an_error() {
    let mut context = spawn(|_, ()| Err::<(), _>("no"), (), 1).unwrap();
    context.join().unwrap_err();
    let error = context.detach().unwrap_err();
    assert!(
        error.to_string().contains("returned an error: no"),
        "{error}"
    );
}

fn a_worker_that_closes_its_descriptors_loses_contact_and_hangs_nobody() {
    fn closes(_rank: usize, _: ()) -> Result<u8, String> {
        close_descriptors(3);
        Ok(7)
    }
    let error = spawn(closes, (), 1).unwrap().join().unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::LostContact { .. }),
        "{error:?}"
    );
    assert!(error.to_string().contains("close"), "{error}");
}

fn a_worker_that_closes_its_descriptors_and_runs_on_is_ended() {
    fn closes(_rank: usize, gate: PathBuf) {
        close_descriptors(3);
        open_gate(&gate);
        // A signal that it handles lets its watcher go on, and the socket with it.
        sleep_for_ever();
    }
    let gate = Gate::new("severed");
    let mut context = spawn(closes, gate.path(), 1).unwrap();
    wait_at_gate(&gate.path());
    context.terminate();
    assert!(context.join().is_err());
    assert!(context.pids().into_iter().all(|pid| !exists(pid)));
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Refusal {
    TooLarge { bytes: u64 },
}
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Refusal::TooLarge { bytes } = self;
        write!(f, "{bytes} bytes are too many")
    }
}
impl std::error::Error for Refusal {}

fn an_error_comes_home_as_itself() {
    fn checks(bytes: u64) -> Result<(), Refusal> {
        Err(Refusal::TooLarge { bytes })
    }
    fn loads(_rank: usize, bytes: u64) -> Result<(), Typed<Refusal>> {
        Ok(checks(bytes)?)
    }
    let error = spawn(loads, 7, 1).unwrap().join().unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("returned an error: 7 bytes are too many"),
        "{error}"
    );
    assert_eq!(error.downcast(), Some(Refusal::TooLarge { bytes: 7 }));
    assert_eq!(error.downcast::<u64>(), None);
    let error = spawn(|_, ()| Err::<(), _>("text"), (), 1)
        .unwrap()
        .join()
        .unwrap_err();
    assert_eq!(error.downcast::<String>(), None);
}

fn a_panic_under_abort_has_message_location_and_backtrace() {
    // As with `panic = "abort"`: the hook runs, and nothing after it.
    extern "C" fn no_way_out() {
        panic!("the last words");
    }
    fn aborts(_rank: usize, _: ()) {
        no_way_out();
    }
    let line = line!() - 5;
    let error = builder()
        .env("RUST_BACKTRACE", "1")
        .spawn(aborts, (), 1)
        .unwrap()
        .join()
        .unwrap_err();
    let ErrorKind::ProcessPanicked {
        message,
        location: Some(location),
        backtrace: Some(backtrace),
        ..
    } = error.kind()
    else {
        panic!("{error:?}")
    };
    assert!(message.starts_with("the last words"), "{message}");
    assert!(
        location.starts_with(&format!("{}:{line}:", file!())),
        "{location}"
    );
    assert!(backtrace.contains("aborts"), "{backtrace}");
}

fn an_async_join_waits_without_a_thread_and_can_be_given_up() {
    let gate = Gate::new("async");
    let mut context = spawn(at_gate, vec![gate.path()], 1).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(async {
        // Given up before the end: it goes on as if nobody had waited.
        let waited = tokio::time::timeout(Duration::from_millis(5), context.join_async()).await;
        assert!(waited.is_err());
        let opens = async {
            tokio::task::yield_now().await;
            gate.open();
        };
        let (results, ()) = tokio::join!(context.join_async(), opens);
        assert_eq!(results.unwrap(), [0]);
        assert_eq!(context.join_async().await.unwrap(), [0]);
        let mut one = spawn::spawn_one("fails", |()| Err::<(), _>("no"), ()).unwrap();
        assert!(one.wait().await.unwrap_err().to_string().contains("no"));
    });
    // And with many threads, some contexts at once.
    let runtime = tokio::runtime::Builder::new_multi_thread().build().unwrap();
    runtime.block_on(async {
        let tasks: Vec<_> = (0..4)
            .map(|number| {
                tokio::spawn(async move {
                    let mut context =
                        spawn(|rank, x: usize| Ok::<_, String>(rank + x), number, 2).unwrap();
                    context.join_async().await.unwrap().to_vec()
                })
            })
            .collect();
        for (number, task) in tasks.into_iter().enumerate() {
            assert_eq!(task.await.unwrap(), [number, number + 1]);
        }
    });
}
