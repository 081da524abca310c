//! Each way in which a function can end comes home as what it was.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use libtest_mimic::Trial;
use serde::{Deserialize, Serialize};
use spawn::{Error, ErrorKind, Exit};

use crate::support::{self, Gate, open_gate, spawn, wait_at_gate};
use crate::{trials, trials_once};

pub(crate) fn tests() -> Vec<Trial> {
    let mut tests = trials![
        a_panic_whose_hook_was_replaced_by_one_that_aborts_is_told_as_the_signal,
        results_come_in_the_order_of_ranks,
        arguments_and_results_of_any_shape_and_size_arrive,
        a_function_may_return_nothing,
        generic_instances_and_closures_are_told_apart,
        an_error_comes_home_with_its_chain,
        a_huge_error_comes_home_clipped,
        a_panic_comes_home_with_message_and_location,
        a_panic_with_a_value_says_so,
        an_exit_code_is_told,
        exit_0_before_returning_is_not_success,
        a_killing_signal_is_named,
        what_it_last_worked_on_is_told_however_it_ended,
        an_abort_is_named,
        a_panic_that_aborts_still_has_its_message,
        a_panic_that_was_caught_is_not_the_reason_of_a_later_abort,
        a_panic_while_another_unwinds_is_told_with_the_first_one,
        a_result_that_cannot_be_encoded_is_told,
        arguments_that_cannot_be_decoded_are_told,
        a_panic_while_encoding_the_result_is_a_panic,
        the_first_failure_by_time_is_the_one_that_is_told,
        joining_again_tells_the_same_story,
    ];
    tests.extend(trials_once![
        a_panic_hook_that_ends_the_process_is_told_as_the_panic,
    ]);
    tests
}

/// The error of a context whose processes fail.
fn failure<R: fmt::Debug>(context: spawn::Result<spawn::SpawnContext<R>>) -> Error {
    context.unwrap().join().unwrap_err()
}

fn results_come_in_the_order_of_ranks() {
    fn rank(rank: usize, factor: usize) -> Result<usize, String> {
        Ok(rank * factor)
    }
    let mut context = spawn(rank, 10, 4).unwrap();
    assert_eq!(context.join().unwrap(), [0, 10, 20, 30]);
    assert_eq!(context.into_results().unwrap(), [0, 10, 20, 30]);
}

fn arguments_and_results_of_any_shape_and_size_arrive() {
    type Shape = (BTreeMap<String, Vec<Option<f64>>>, Vec<u8>);
    fn echo(_rank: usize, shape: Shape) -> Result<Shape, String> {
        Ok(shape)
    }
    let map = BTreeMap::from([
        ("ä".to_owned(), vec![None, Some(0.5)]),
        (String::new(), vec![]),
    ]);
    let sent: Shape = (map, (0..3_000_000).map(|i| i as u8).collect());
    let results = spawn(echo, sent.clone(), 1)
        .unwrap()
        .into_results()
        .unwrap();
    assert!(results == [sent]);
}

fn a_function_may_return_nothing() {
    fn nothing(_rank: usize, _: ()) {}
    assert_eq!(spawn(nothing, (), 2).unwrap().join().unwrap(), [(), ()]);
}

fn generic_instances_and_closures_are_told_apart() {
    fn add<const N: u32>(_rank: usize, x: u32) -> Result<u32, String> {
        Ok(x + N)
    }
    assert_eq!(spawn(add::<5>, 1, 1).unwrap().join().unwrap(), [6]);
    assert_eq!(spawn(add::<6>, 1, 1).unwrap().join().unwrap(), [7]);
    assert_eq!(
        spawn(|_, x: u32| Ok::<_, String>(x * 2), 4, 1)
            .unwrap()
            .join()
            .unwrap(),
        [8]
    );
    assert_eq!(
        spawn(|_, x: u32| Ok::<_, String>(x * 3), 4, 1)
            .unwrap()
            .join()
            .unwrap(),
        [12]
    );
}

#[derive(Debug)]
struct Outer(std::io::Error);
impl fmt::Display for Outer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the weights are missing")
    }
}
impl std::error::Error for Outer {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

fn an_error_comes_home_with_its_chain() {
    fn fails(_rank: usize, path: PathBuf) -> Result<(), Outer> {
        std::fs::read(path).map(drop).map_err(Outer)
    }
    let error = failure(spawn(fails, "/nowhere/at/all".into(), 1));
    let ErrorKind::ProcessRaised { worker, chain, .. } = error.kind() else {
        panic!("{error:?}")
    };
    assert_eq!((worker.rank, worker.name.as_str()), (0, "fails"));
    assert_eq!(chain.len(), 2, "{chain:?}");
    assert_eq!(chain[0], "the weights are missing");
    assert!(
        chain[1].starts_with("No such file or directory"),
        "{chain:?}"
    );
    assert_eq!(
        error.to_string(),
        format!(
            "process \"fails\" (pid {}) returned an error: {}: {}",
            worker.pid, chain[0], chain[1]
        )
    );
}

fn a_huge_error_comes_home_clipped() {
    fn fails(_rank: usize, _: ()) -> Result<(), String> {
        Err("no ".repeat(1 << 20))
    }
    let error = failure(spawn(fails, (), 1)).to_string();
    assert!(
        error.contains("no no no") && error.contains("more bytes"),
        "{error:.200}"
    );
}

fn a_panic_comes_home_with_message_and_location() {
    fn panics(_rank: usize, index: usize) -> Result<u8, String> {
        Ok([1_u8, 2, 3][index])
    }
    let line = line!() - 2;
    let error = failure(spawn(panics, 7, 1));
    let ErrorKind::ProcessPanicked {
        message,
        location: Some(location),
        ..
    } = error.kind()
    else {
        panic!("{error:?}")
    };
    assert_eq!(
        message,
        "index out of bounds: the len is 3 but the index is 7"
    );
    assert!(
        location.starts_with(&format!("{}:{line}:", file!())),
        "{location}"
    );
}

fn a_panic_with_a_value_says_so() {
    fn panics(_rank: usize, _: ()) {
        std::panic::panic_any(7_u32);
    }
    let error = failure(spawn(panics, (), 1));
    assert!(error.to_string().contains("not text"), "{error}");
}

fn an_exit_code_is_told() {
    fn exits(_rank: usize, code: i32) {
        std::process::exit(code);
    }
    let error = failure(spawn(exits, 3, 1));
    assert!(
        matches!(
            error.kind(),
            ErrorKind::ProcessExited {
                exit: Exit::Code(3),
                ..
            }
        ),
        "{error:?}"
    );
    assert!(
        error
            .to_string()
            .contains("exited with code 3 before its function returned"),
        "{error}"
    );
}

fn exit_0_before_returning_is_not_success() {
    fn exits(_rank: usize, _: ()) -> Result<u8, String> {
        std::process::exit(0);
    }
    let error = failure(spawn(exits, (), 1));
    assert!(
        matches!(
            error.kind(),
            ErrorKind::ProcessExited {
                exit: Exit::Code(0),
                ..
            }
        ),
        "{error:?}"
    );
    assert!(
        error.to_string().contains("so there is no result"),
        "{error}"
    );
}

fn a_killing_signal_is_named() {
    fn dies(_rank: usize, _: ()) {
        let _ =
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
    let error = failure(spawn(dies, (), 1));
    let ErrorKind::ProcessExited {
        exit:
            Exit::Signal {
                number: 9,
                name,
                core: false,
            },
        ..
    } = error.kind()
    else {
        panic!("{error:?}")
    };
    assert_eq!(name, "SIGKILL");
}

fn what_it_last_worked_on_is_told_however_it_ended() {
    fn dies(_rank: usize, items: u32) {
        for item in 0..items {
            spawn::set_task(&format!("item {item}"));
        }
        let _ =
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
    let error = failure(spawn(dies, 3, 1));
    let ErrorKind::ProcessExited { last_task, .. } = error.kind() else {
        panic!("{error:?}")
    };
    assert_eq!(last_task.as_deref(), Some("item 2"));
    assert!(error.to_string().contains("item 2"), "{error}");
}

fn an_abort_is_named() {
    fn aborts(_rank: usize, _: ()) {
        std::process::abort();
    }
    let error = failure(spawn(aborts, (), 1));
    assert!(
        error.to_string().contains("was killed by SIGABRT"),
        "{error}"
    );
}

fn a_panic_that_aborts_still_has_its_message() {
    // Nothing may unwind out of a C function: as with `panic = "abort"`, the process ends at once.
    extern "C" fn no_way_out() {
        panic!("the last words");
    }
    fn aborts(_rank: usize, _: ()) {
        no_way_out();
    }
    let error = failure(spawn(aborts, (), 1));
    let ErrorKind::ProcessPanicked {
        message,
        location: Some(location),
        ..
    } = error.kind()
    else {
        panic!("{error:?}")
    };
    assert!(message.starts_with("the last words"), "{message}");
    assert!(location.starts_with(file!()), "{location}");
}

fn a_panic_that_was_caught_is_not_the_reason_of_a_later_abort() {
    fn aborts(_rank: usize, panics: usize) {
        for _ in 0..panics {
            let _ = std::panic::catch_unwind(|| panic!("harmless"));
        }
        std::process::abort();
    }
    // The parent is told of the first panics only; what comes after them is in the recorder.
    for panics in [1, 40] {
        let error = failure(spawn(aborts, panics, 1));
        assert!(
            matches!(error.kind(), ErrorKind::ProcessExited { last_panic: Some(said), .. } if said.ends_with("harmless")),
            "{error}"
        );
        let text = error.to_string();
        assert!(text.contains("was killed by SIGABRT"), "{text}");
        assert!(text.contains("may have been caught"), "{text}");
    }
    // Many that were caught do not hide the one that ends the process.
    fn ends(_rank: usize, _: ()) {
        extern "C" fn no_way_out() {
            panic!("the last words");
        }
        for _ in 0..40 {
            let _ = std::panic::catch_unwind(|| panic!("harmless"));
        }
        no_way_out();
    }
    let error = failure(spawn(ends, (), 1));
    assert!(
        matches!(error.kind(), ErrorKind::ProcessPanicked { message, .. } if message.starts_with("the last words")),
        "{error}"
    );
}

fn a_panic_while_another_unwinds_is_told_with_the_first_one() {
    struct Fragile;
    impl Drop for Fragile {
        fn drop(&mut self) {
            panic!("as it fell");
        }
    }
    fn falls(_rank: usize, _: ()) {
        let _fragile = Fragile;
        panic!("the reason");
    }
    let error = failure(spawn(falls, (), 1));
    let ErrorKind::ProcessPanicked { message, .. } = error.kind() else {
        panic!("{error:?}")
    };
    let (first, rest) = message.split_once(" (and then, ").unwrap_or_default();
    assert_eq!(first, "the reason", "{message}");
    assert!(rest.contains("as it fell"), "{message}");
    // One whose value panics when it is dropped is told as any other.
    fn throws(_rank: usize, _: ()) {
        std::panic::panic_any(Fragile);
    }
    let error = failure(spawn(throws, (), 1));
    assert!(
        matches!(error.kind(), ErrorKind::ProcessPanicked { .. }),
        "{error:?}"
    );
}

fn panics_at_last(_rank: usize, _: ()) {
    panic!("no way");
}

fn a_panic_hook_that_ends_the_process_is_told_as_the_panic() {
    for (hook, how) in [
        ("hook-aborts", "it was killed by SIGABRT"),
        ("hook-exits", "it exited with code 3"),
    ] {
        let builder = support::builder().name(hook);
        let error = failure(builder.spawn(panics_at_last, (), 1));
        let ErrorKind::ProcessPanicked {
            message,
            location: Some(location),
            ..
        } = error.kind()
        else {
            panic!("{error:?}")
        };
        assert!(message.starts_with("no way (and a panic hook"), "{message}");
        assert!(message.contains(how), "{message}");
        assert!(location.starts_with(file!()), "{location}");
    }
}

fn a_panic_whose_hook_was_replaced_by_one_that_aborts_is_told_as_the_signal() {
    fn replaces(rank: usize, _: ()) {
        std::panic::set_hook(Box::new(|_| std::process::abort()));
        panics_at_last(rank, ());
    }
    // Nothing was heard of it: ours was not called.
    let error = failure(spawn(replaces, (), 1));
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
    assert!(error.to_string().contains("SIGABRT"), "{error}");
}

#[derive(Debug, Deserialize)]
struct Unsendable;
impl Serialize for Unsendable {
    fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("this stays here"))
    }
}

fn a_result_that_cannot_be_encoded_is_told() {
    fn returns(_rank: usize, _: ()) -> Result<Unsendable, String> {
        Ok(Unsendable)
    }
    let error = failure(spawn(returns, (), 1));
    assert!(
        matches!(error.kind(), ErrorKind::ResultLost { .. }),
        "{error:?}"
    );
    // And arguments that cannot be encoded are the caller's error, at once.
    let error = spawn(|_, _: Unsendable| (), Unsendable, 1).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Arguments), "{error:?}");
}

#[derive(Debug, Serialize)]
struct OneWay;
impl<'de> Deserialize<'de> for OneWay {
    fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(serde::de::Error::custom("no way back"))
    }
}

fn arguments_that_cannot_be_decoded_are_told() {
    fn takes(_rank: usize, _: OneWay) {}
    let error = failure(spawn(takes, OneWay, 1));
    assert!(
        matches!(error.kind(), ErrorKind::NeverStarted { .. }),
        "{error:?}"
    );
    assert!(
        error.to_string().contains("OneWay` could not be read"),
        "{error}"
    );
}

#[derive(Debug, Deserialize)]
struct Explosive;
impl Serialize for Explosive {
    fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        panic!("boom in serialize")
    }
}

fn a_panic_while_encoding_the_result_is_a_panic() {
    fn returns(_rank: usize, _: ()) -> Result<Explosive, String> {
        Ok(Explosive)
    }
    let error = failure(spawn(returns, (), 1));
    assert!(error.to_string().contains("boom in serialize"), "{error}");
}

fn the_first_failure_by_time_is_the_one_that_is_told() {
    fn second_of_two(rank: usize, gate: PathBuf) -> Result<(), String> {
        if rank == 0 {
            wait_at_gate(&gate);
            return Err("I only followed".to_owned());
        }
        // Opens the gate on its way out: the other one fails after it, though it has the lower rank.
        struct Opener(PathBuf);
        impl Drop for Opener {
            fn drop(&mut self) {
                open_gate(&self.0);
            }
        }
        let _opener = Opener(gate);
        panic!("I was first");
    }
    let gate = Gate::new("first");
    let error = failure(spawn(second_of_two, gate.path(), 2));
    assert!(error.to_string().contains("I was first"), "{error}");
    assert_eq!(error.worker().unwrap().rank, 1);
}

fn joining_again_tells_the_same_story() {
    fn fails(rank: usize, _: ()) -> Result<u8, String> {
        Err(format!("no {rank}"))
    }
    let mut context = spawn(fails, (), 2).unwrap();
    let first = context.join().unwrap_err();
    let again = context.join().unwrap_err();
    assert_eq!(first.to_string(), again.to_string());
    assert!(format!("{context:?}").contains("failed"), "{context:?}");
    assert_eq!(
        context.into_results().unwrap_err().to_string(),
        first.to_string()
    );
}
