//! A program whose workers are another executable, which finds functions by their names.
//!
//! The program is a test of the standard harness: it never calls `init`, as a host that only loads Rust would not.

use std::process::Command;

use integration_tests::named::{decode, double, panics, unnamed};
use tensormp::Tensor;
use tensormp::spawn_api::{self as spawn, Builder, ErrorKind, Group, Process};

const WORKER: &str = env!("CARGO_BIN_EXE_named-worker");

fn workers() -> Builder {
    spawn::builder().executable(WORKER)
}

#[test]
fn a_function_is_found_by_name_in_another_executable() {
    let tensor = Tensor::full([4, 4], 0.5_f32).unwrap();
    let results = workers()
        .spawn(decode, tensor, 1)
        .unwrap()
        .into_results()
        .unwrap();
    assert_eq!(results, [(8.0, "named-worker".to_owned())]);
    assert_eq!(
        workers()
            .spawn(double::<f32>, 1.5, 2)
            .unwrap()
            .into_results()
            .unwrap(),
        [3.0, 3.0]
    );
}

#[test]
fn one_of_other_types_or_another_name_is_refused_with_what_there_is() {
    let error = workers()
        .spawn(double::<f64>, 1.5, 1)
        .unwrap()
        .join()
        .unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::NeverStarted { .. }),
        "{error:?}"
    );
    let text = error.to_string();
    assert!(
        text.contains("no function `integration_tests::named::double<f64>`"),
        "{text}"
    );
    assert!(
        text.contains("named::decode") && text.contains("worker_main!"),
        "{text}"
    );
    let error = workers().spawn(unnamed, (), 1).unwrap().join().unwrap_err();
    assert!(error.to_string().contains("named::unnamed"), "{error}");
}

#[test]
fn errors_come_home_from_another_executable_too() {
    let error = workers()
        .spawn(panics, "enough".to_owned(), 1)
        .unwrap()
        .join()
        .unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::ProcessPanicked { .. }),
        "{error:?}"
    );
    assert!(error.to_string().contains("enough"), "{error}");
}

#[test]
fn without_it_a_program_that_did_not_call_init_may_not_spawn() {
    let error = spawn::spawn(unnamed, (), 1).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::NotInitialized),
        "{error:?}"
    );
    // Nor when only one of two is another executable.
    let mut group = Group::new();
    group
        .add(Process::named("there").executable(WORKER), unnamed, ())
        .unwrap();
    assert!(group.add("here", unnamed, ()).is_err());
}

#[test]
fn the_worker_alone_says_what_it_is() {
    let output = Command::new(WORKER).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&output.stderr).contains("this program is a worker"));
}

#[test]
fn an_executable_that_is_no_worker_is_told_at_once() {
    let error = spawn::builder()
        .executable("/bin/true")
        .spawn(unnamed, (), 1)
        .unwrap()
        .join()
        .unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::NeverStarted { .. }),
        "{error:?}"
    );
    assert!(
        error.to_string().contains("before it reached `init`"),
        "{error}"
    );
}
