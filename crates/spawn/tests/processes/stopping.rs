//! How processes are stopped: by a failure, on request, by dropping the context.

use std::path::PathBuf;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::{Signal, pidfd_send_signal};
use spawn::{ErrorKind, Exit};

use crate::support::{
    self, Gate, builder, exists, ignore_signal, open_gate, pidfd, sleep_for_ever, sleeps, spawn,
    wait_at_gate, wait_for_end,
};
use crate::trials;

pub(crate) fn tests() -> Vec<Trial> {
    trials![
        a_failure_stops_the_others_before_anybody_joins,
        a_worker_killed_from_outside_is_a_failure_that_stops_the_others,
        one_that_ignores_sigterm_is_killed_after_the_grace,
        terminating_is_told_as_an_interruption,
        dropping_is_told_as_such,
        a_stopper_stops_while_another_thread_joins,
        killing_needs_no_grace,
        an_interrupt_in_a_worker_is_an_interruption,
        terminating_after_success_changes_nothing,
        a_join_with_a_timeout_stops_nothing,
        dropping_the_context_stops_its_processes,
        a_stopped_process_is_alive_until_it_is_killed,
        spawning_from_a_thread_that_ends_kills_nobody,
        what_cannot_be_signalled_by_its_descriptor_is_ended_all_the_same,
        what_cannot_be_signalled_at_all_is_ended_all_the_same,
    ]
}

fn first_fails(rank: usize, _: ()) -> Result<(), String> {
    if rank == 0 {
        return Err("enough".to_owned());
    }
    sleep_for_ever();
}

fn a_failure_stops_the_others_before_anybody_joins() {
    fn first_fails_at_the_gate(rank: usize, gate: PathBuf) -> Result<(), String> {
        if rank > 0 {
            sleep_for_ever();
        }
        wait_at_gate(&gate);
        Err("enough".to_owned())
    }
    let gate = Gate::new("before");
    let mut context = spawn(first_fails_at_the_gate, gate.path(), 3).unwrap();
    let sleepers: Vec<_> = context.pids()[1..].iter().map(|&pid| pidfd(pid)).collect();
    gate.open();
    // Nobody has called `join`.
    sleepers.iter().for_each(wait_for_end);
    assert!(context.join().unwrap_err().to_string().contains("enough"));
}

fn a_worker_killed_from_outside_is_a_failure_that_stops_the_others() {
    let mut context = spawn(sleeps, (), 3).unwrap();
    pidfd_send_signal(pidfd(context.pids()[1]), Signal::KILL).unwrap();
    let error = context.join().unwrap_err();
    match error.kind() {
        ErrorKind::ProcessExited {
            worker,
            exit: Exit::Signal { number: 9, .. },
            ..
        } => assert_eq!(worker.rank, 1),
        // The kill may have come before it reached `init`.
        ErrorKind::NeverStarted { worker, .. } => assert_eq!(worker.rank, 1),
        _ => panic!("{error:?}"),
    }
    assert!(error.to_string().contains("SIGKILL"), "{error}");
    assert!(context.pids().into_iter().all(|pid| !exists(pid)));
}

fn one_that_ignores_sigterm_is_killed_after_the_grace() {
    fn stubborn(rank: usize, gate: PathBuf) -> Result<(), String> {
        if rank == 0 {
            wait_at_gate(&gate);
            return Err("enough".to_owned());
        }
        ignore_signal(libc::SIGTERM);
        open_gate(&gate);
        sleep_for_ever();
    }
    let gate = Gate::new("stubborn");
    let mut context = builder()
        .grace(Duration::from_millis(100))
        .spawn(stubborn, gate.path(), 2)
        .unwrap();
    assert!(context.join().unwrap_err().to_string().contains("enough"));
    assert!(context.pids().into_iter().all(|pid| !exists(pid)));
}

fn terminating_is_told_as_an_interruption() {
    let mut context = spawn(sleeps, (), 2).unwrap();
    context.terminate();
    let error = context.join().unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::Interrupted { worker: None }),
        "{error:?}"
    );
    let text = error.to_string();
    assert!(
        text.starts_with("process \"sleeps.0\" (pid ")
            && text.contains(", with 1 more, was stopped on request"),
        "{text}"
    );
    assert!(context.pids().into_iter().all(|pid| !exists(pid)));
}

fn dropping_is_told_as_such() {
    let context = spawn(sleeps, (), 1).unwrap();
    let (sender, told) = std::sync::mpsc::channel();
    context.on_end(move |end| sender.send(end.clone().unwrap_err()).unwrap());
    drop(context);
    let error = told.recv().unwrap();
    assert!(
        matches!(error.kind(), ErrorKind::Interrupted { worker: None }),
        "{error:?}"
    );
    let text = error.to_string();
    assert!(
        text.contains("because its SpawnContext was dropped"),
        "{text}"
    );
    assert!(!text.contains("on request"), "{text}");
}

fn a_stopper_stops_while_another_thread_joins() {
    let mut context = spawn(sleeps, (), 2).unwrap();
    let stopper = context.stopper();
    let error = std::thread::scope(|scope| {
        let joiner = scope.spawn(|| context.join().unwrap_err());
        stopper.terminate();
        joiner.join().unwrap()
    });
    assert!(
        matches!(error.kind(), ErrorKind::Interrupted { worker: None }),
        "{error:?}"
    );
    stopper.kill();
}

fn killing_needs_no_grace() {
    fn stubborn(_rank: usize, gate: PathBuf) {
        ignore_signal(libc::SIGTERM);
        open_gate(&gate);
        sleep_for_ever();
    }
    let gate = Gate::new("kill");
    // Were there a grace, the watchdog would end this test.
    let mut context = builder()
        .grace(Duration::from_secs(3600))
        .spawn(stubborn, gate.path(), 1)
        .unwrap();
    wait_at_gate(&gate.path());
    context.terminate();
    context.kill();
    assert!(matches!(
        context.join().unwrap_err().kind(),
        ErrorKind::Interrupted { worker: None }
    ));
}

fn an_interrupt_in_a_worker_is_an_interruption() {
    fn interrupted(_rank: usize, _: ()) {
        let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::INT);
        sleep_for_ever();
    }
    let error = spawn(interrupted, (), 1).unwrap().join().unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::Interrupted { worker: Some(_) }),
        "{error:?}"
    );
}

fn terminating_after_success_changes_nothing() {
    let mut context = spawn(|rank, ()| Ok::<_, String>(rank), (), 2).unwrap();
    let processes: Vec<_> = context.pids();
    while processes.iter().any(|&pid| exists(pid)) {
        std::thread::yield_now();
    }
    context.terminate();
    assert_eq!(context.join().unwrap(), [0, 1]);
}

fn a_join_with_a_timeout_stops_nothing() {
    let gate = Gate::new("timeout");
    let mut context = spawn(
        |_, gate: PathBuf| {
            wait_at_gate(&gate);
            Ok::<_, String>(7)
        },
        gate.path(),
        1,
    )
    .unwrap();
    assert_eq!(
        context.join_timeout(Duration::from_millis(10)).unwrap(),
        None
    );
    gate.open();
    assert_eq!(
        context.join_timeout(Duration::from_secs(3600)).unwrap(),
        Some([7].as_slice())
    );
}

fn dropping_the_context_stops_its_processes() {
    let context = spawn(sleeps, (), 3).unwrap();
    let pids = context.pids();
    drop(context);
    assert!(pids.into_iter().all(|pid| !exists(pid)));
}

fn a_stopped_process_is_alive_until_it_is_killed() {
    let mut context = builder()
        .grace(Duration::from_millis(100))
        .spawn(first_fails, (), 2)
        .unwrap();
    // A stopped process does not act on SIGTERM; it may have been stopped (or have ended) at any point by now.
    let _ = rustix::process::kill_process(
        rustix::process::Pid::from_raw(context.pids()[1] as i32).unwrap(),
        Signal::STOP,
    );
    assert!(context.join().unwrap_err().to_string().contains("enough"));
    assert!(context.pids().into_iter().all(|pid| !exists(pid)));
}

fn spawning_from_a_thread_that_ends_kills_nobody() {
    let gate = Gate::new("thread");
    let path = gate.path();
    let method = support::method();
    let mut context = std::thread::spawn(move || {
        spawn::builder()
            .start_method(method)
            .spawn(
                |_, gate: PathBuf| {
                    wait_at_gate(&gate);
                    Ok::<_, String>("alive".to_owned())
                },
                path,
                2,
            )
            .unwrap()
    })
    .join()
    .unwrap();
    gate.open();
    assert_eq!(context.join().unwrap(), ["alive", "alive"]);
}

fn what_cannot_be_signalled_by_its_descriptor_is_ended_all_the_same() {
    support::play("unsignalled");
}

/// A filter that is older than the system call, as that of a container.
pub(crate) fn unsignalled_scene() {
    support::guarded("unsignalled", || {
        support::forbid(libc::SYS_pidfd_send_signal);
        let mut context = spawn(sleeps, (), 2).unwrap();
        let pids = context.pids();
        context.terminate();
        context.join().unwrap_err();
        assert!(!pids.into_iter().any(exists));
        ends_anyhow();
    });
}

fn what_cannot_be_signalled_at_all_is_ended_all_the_same() {
    support::play("untouchable");
}

/// As a program that gave the right to do so away, but that its processes cannot have kept it here.
pub(crate) fn untouchable_scene() {
    support::guarded("untouchable", || {
        support::forbid(libc::SYS_pidfd_send_signal);
        support::forbid(libc::SYS_kill);
        ends_anyhow();
    });
}

fn ends_anyhow() {
    let running = spawn(waits_for_nothing, (), 2).unwrap();
    let pids = running.pids();
    running.kill();
    drop(running);
    assert!(!pids.into_iter().any(exists));
}

/// Forbidden calls are forbidden to a worker too: it ends itself by another.
fn waits_for_nothing(_rank: usize, _: ()) {
    sleep_for_ever();
}
