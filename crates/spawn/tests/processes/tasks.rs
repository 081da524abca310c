//! What a process says that it works on is told by the error when it ends, whenever that is.

use std::path::PathBuf;
use std::thread;

use libtest_mimic::Trial;
use rustix::process::{Signal, pidfd_send_signal};
use spawn::{ErrorKind, forkserver};

use crate::support::{self, Gate, by_server, method, open_gate, pidfd, sleep_for_ever, spawn};
use crate::{trials, trials_once};

pub(crate) fn tests() -> Vec<Trial> {
    let mut tests = trials![
        a_process_that_is_killed_while_it_notes_tasks_is_told_with_a_whole_one,
        what_is_noted_before_init_is_told,
    ];
    tests.extend(trials_once![
        what_a_preload_notes_is_no_task_of_the_processes_and_hurts_none,
    ]);
    tests
}

/// Runs the program of a scene.
pub(crate) fn play(name: &str) -> bool {
    let scene: fn() = match name {
        "early-task" => early_scene,
        "preload-task" => preload_scene,
        _ => return false,
    };
    scene();
    true
}

/// Set where `main` notes that before `init`, in all processes.
const EARLY: &str = "SPAWN_TEST_TASK";

/// What `main` does before `init`.
pub(crate) fn note_early() {
    if let Ok(task) = std::env::var(EARLY) {
        spawn::set_task(&task);
    }
}

/// What the only process of a context worked on last, which has failed.
fn last_task(error: &spawn::Error) -> Option<String> {
    match error.kind() {
        ErrorKind::ProcessExited { last_task, .. } => last_task.clone(),
        other => panic!("{other:?}"),
    }
}

/// One that cannot be told from another by its length, and each of whose words is its own.
fn text(thread: usize) -> String {
    ["\u{fc}", "ab", "\u{20ac}", "z"][thread % 4].repeat(20 + 5 * thread)
}

fn a_process_that_is_killed_while_it_notes_tasks_is_told_with_a_whole_one() {
    fn notes(_rank: usize, (threads, gate): (usize, PathBuf)) {
        for thread in 0..threads {
            let text = text(thread);
            // All have been noted before the gate is opened.
            spawn::set_task(&text);
            thread::spawn(move || {
                loop {
                    spawn::set_task(&text);
                }
            });
        }
        open_gate(&gate);
        sleep_for_ever()
    }
    for threads in [1, 1, 1, 1, 4, 4, 4, 4] {
        let gate = Gate::new(&format!("task-{}", method()));
        let mut context = spawn(notes, (threads, gate.path()), 1).unwrap();
        let process = pidfd(context.pids()[0]);
        support::wait_at_gate(&gate.path());
        pidfd_send_signal(&process, Signal::KILL).unwrap();
        let task = last_task(&context.join().unwrap_err());
        let texts: Vec<_> = (0..threads).map(text).collect();
        assert!(
            task.as_ref().is_some_and(|task| texts.contains(task)),
            "{threads}: {task:?}"
        );
    }
}

fn exits(_rank: usize, _: ()) {
    std::process::exit(3)
}

fn what_is_noted_before_init_is_told() {
    let output = support::scene("early-task")
        .env(EARLY, "early")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
}

fn early_scene() {
    support::guarded("early-task", || {
        let error = spawn(exits, (), 1).unwrap().join().unwrap_err();
        assert_eq!(last_task(&error).as_deref(), Some("early"));
    });
}

fn what_a_preload_notes_is_no_task_of_the_processes_and_hurts_none() {
    support::play("preload-task");
}

fn preload_scene() {
    support::guarded("preload-task", || {
        forkserver::preload(|| spawn::set_task("preloading")).unwrap();
        let error = by_server().spawn(exits, (), 1).unwrap().join().unwrap_err();
        assert_eq!(last_task(&error), None);
    });
}
