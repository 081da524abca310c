//! Names in an arena: what can have one, who finds it, and that no kill leaves the table in pieces.

use super::{arena, assert_clean, join, kill, queue};
use crate::arena::Arena;
use crate::error::ErrorKind;
use crate::names::Published;
use crate::object::Object;
use crate::tensor::{SharedTensor, Tensor};
use crate::testing::{assert_passed, output, rerun};

use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::WaitOptions;

fn shared(arena: &Arena, value: u32) -> SharedTensor<u32> {
    Tensor::full_in(arena, [100], value).unwrap().freeze()
}

fn value(arena: &Arena, name: &str) -> u32 {
    let tensor: SharedTensor<u32> = arena.open(name).unwrap();
    assert!(tensor.as_slice().iter().all(|&x| x == tensor.as_slice()[0]));
    tensor.as_slice()[0]
}

fn names(arena: &Arena) -> Vec<String> {
    let list = arena.published().unwrap();
    list.into_iter()
        .map(|Published { name, .. }| name)
        .collect()
}

fn kind<T>(outcome: crate::Result<T>) -> ErrorKind {
    outcome.err().unwrap().kind().clone()
}

#[test]
fn what_one_participant_publishes_others_open() {
    let (one, other) = {
        let arena = arena();
        let other = join(&arena);
        (arena, other)
    };
    let made = queue(&one, 3);
    one.publish("numbers", &(7_u8, shared(&one, 5), made.clone()))
        .unwrap();
    one.publish("weights", &shared(&one, 9)).unwrap();
    assert_eq!(names(&other), ["numbers", "weights"]);
    let (number, tensor, found): (u8, SharedTensor<u32>, Object) = other.open("numbers").unwrap();
    assert_eq!((number, tensor.as_slice()[99]), (7, 5));
    assert_eq!(found.handle(), made.handle());
    assert_eq!(value(&other, "weights"), 9);
    assert_eq!(value(&one, "weights"), 9);
    let listed = &one.published().unwrap()[1];
    assert_eq!(listed.pid, std::process::id());
    assert!(listed.type_name.contains("SharedTensor"), "{listed:?}");
    assert_clean(&one);
}

#[test]
fn a_taken_name_stays_until_it_is_unpublished_or_taken_over() {
    let arena = arena();
    arena.publish("a", &shared(&arena, 1)).unwrap();
    let before = arena.audit().lines;
    assert_eq!(
        kind(arena.publish("a", &shared(&arena, 2))),
        ErrorKind::AlreadyExists
    );
    assert_eq!(value(&arena, "a"), 1);
    let opened: SharedTensor<u32> = arena.open("a").unwrap();
    arena.republish("a", &shared(&arena, 3)).unwrap();
    assert_eq!(value(&arena, "a"), 3);
    assert_eq!(opened.as_slice()[0], 1, "who opened it keeps it");
    drop(opened);
    assert_eq!(
        arena.audit().lines,
        before,
        "what had the name before is gone"
    );
    arena.unpublish("a").unwrap();
    let error = arena.open::<SharedTensor<u32>>("a").unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::NotFound);
    assert_eq!(kind(arena.unpublish("a")), ErrorKind::NotFound);
    assert_eq!(names(&arena), [""; 0]);
    // The object of the names, and the message of none.
    assert_eq!(arena.audit().lines, 1);
    assert_clean(&arena);
}

#[test]
fn an_unknown_name_names_those_that_exist() {
    let arena = arena();
    assert_eq!(kind(arena.open::<Object>("a")), ErrorKind::NotFound);
    assert_eq!(kind(arena.unpublish("a")), ErrorKind::NotFound);
    arena.publish("camera", &queue(&arena, 1)).unwrap();
    let error = arena.open::<Object>("cam").unwrap_err();
    assert!(error.to_string().contains("camera"), "{error}");
    for name in ["", &"x".repeat(256)] {
        assert_eq!(kind(arena.publish(name, &1)), ErrorKind::Name);
    }
    // Not all of very many, and none as it drives a terminal.
    for name in 0..100 {
        arena.publish(&format!("\u{1b}[{name}J"), &name).unwrap();
    }
    let error = arena.open::<Object>("cam").unwrap_err().to_string();
    assert!(
        error.contains("101 names") && error.contains("81 more") && error.len() < 1000,
        "{error}"
    );
    assert!(!error.contains('\u{1b}'), "{error}");
}

#[test]
fn what_is_exclusive_cannot_be_published() {
    let arena = arena();
    let tensor = Tensor::<u8>::zeros_in(&arena, [10]).unwrap();
    let error = arena.publish("a", &tensor).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::StillHeld);
    assert!(error.to_string().contains("freeze()"), "{error}");
    assert_eq!(names(&arena), [""; 0]);
    arena.publish("a", &tensor.freeze()).unwrap();
}

#[test]
fn a_value_opened_as_another_type_is_an_error_that_says_what_it_is() {
    let arena = arena();
    arena.publish("a", &shared(&arena, 1)).unwrap();
    let error = arena.open::<Object>("a").unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::WrongMode);
    assert!(error.to_string().contains("SharedTensor<u32>"), "{error}");
    let error = arena.open::<SharedTensor<u8>>("a").unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Dtype { .. }), "{error}");
    assert_eq!(kind(arena.open::<()>("a")), ErrorKind::Decode);
    assert_eq!(value(&arena, "a"), 1);
    // As bytes they are alike.
    arena.publish("b", &7_u32).unwrap();
    let error = arena.open::<i64>("b").unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::WrongMode);
    assert!(error.to_string().contains("u32"), "{error}");
    assert_eq!(arena.open::<u32>("b").unwrap(), 7);
    assert_clean(&arena);
}

#[test]
fn a_name_outlives_its_publisher() {
    let root = arena();
    let other = join(&root);
    other.publish("a", &shared(&other, 4)).unwrap();
    drop(other);
    assert_eq!(value(&root, "a"), 4);
    let other = join(&root);
    other.publish("b", &shared(&other, 5)).unwrap();
    let dead = kill(other, ());
    root.bury_for_certain(dead);
    assert_eq!((value(&root, "a"), value(&root, "b")), (4, 5));
    assert_clean(&root);
}

#[test]
fn a_large_table_with_large_values_is_no_different() {
    let arena = arena();
    let many: Vec<_> = (0..50).map(|i| shared(&arena, i)).collect();
    for index in 0..50 {
        arena.publish(&format!("{index}"), &many).unwrap();
    }
    assert_eq!(names(&arena).len(), 50);
    let opened: Vec<SharedTensor<u32>> = arena.open("17").unwrap();
    assert_eq!(opened[49].as_slice()[0], 49);
    assert_clean(&arena);
    for index in 0..50 {
        arena.unpublish(&format!("{index}")).unwrap();
    }
    drop((many, opened));
    assert_eq!(arena.audit().lines, 1);
}

#[test]
fn many_that_publish_at_once_lose_no_name() {
    let root = arena();
    std::thread::scope(|scope| {
        for participant in 0..4 {
            let own = join(&root);
            scope.spawn(move || {
                for round in 0..20 {
                    let name = format!("{participant}.{round}");
                    own.publish(&name, &shared(&own, round)).unwrap();
                    assert_eq!(value(&own, &name), round);
                    if round % 2 == 0 {
                        own.unpublish(&name).unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(names(&root).len(), 40);
    assert_clean(&root);
}

#[test]
fn whoever_is_killed_while_publishing_leaves_a_whole_table() {
    const NAME: &str = "tests::names::whoever_is_killed_while_publishing_leaves_a_whole_table";
    if rerun(NAME).is_none() {
        let arena = Arena::join(super::lent()).unwrap();
        arena.publish("new", &shared(&arena, 2)).unwrap();
        arena.republish("old", &shared(&arena, 3)).unwrap();
        return arena.unpublish("going").unwrap();
    }
    let steps = [
        "names.counted",
        "names.locked",
        "names.two_tables",
        "names.one_table",
        "put.claimed",
        "put.giving",
        "put.published",
        "get.taken",
        "get.recorded",
        "get.released",
        "block.drop.recorded",
        "block.drop.left",
    ];
    for step in steps {
        for nth in [1, 2, 3, 4, 5, 7, 9] {
            let root = arena();
            // The first of all makes the table, the others find one.
            let fresh = step == "names.counted";
            if !fresh {
                root.publish("old", &shared(&root, 1)).unwrap();
                root.publish("going", &shared(&root, 1)).unwrap();
            }
            let mut child = rerun(NAME).unwrap();
            child.env("TENSORMP_FAILPOINT", format!("{step}:{nth}=kill"));
            super::lend(&mut child, &root);
            let output = output(&mut child);
            let killed = output.status.signal() == Some(libc::SIGKILL);
            assert!(killed || nth > 1, "{step} was never reached");
            if !killed && !fresh {
                assert_passed(&output);
            }
            root.bury_the_dead();
            let there = names(&root);
            for name in &there {
                assert!((1..=3).contains(&value(&root, name)), "{step}:{nth}");
            }
            if !fresh {
                assert!(there.contains(&"old".to_owned()), "{step}:{nth}: {there:?}");
            }
            // And it goes on.
            root.republish("old", &shared(&root, 9)).unwrap();
            assert_eq!(value(&root, "old"), 9);
            let audit = root.audit();
            assert!(audit.missing.is_empty(), "{step}:{nth}: {audit:?}");
            assert!(audit.leaked.len() <= 1, "{step}:{nth}: {audit:?}");
        }
    }
}

#[test]
fn one_killed_in_the_same_step_again_and_again_does_not_fill_the_table() {
    let root = arena();
    root.publish("a", &shared(&root, 1)).unwrap();
    let (line, generation) = crate::names::header_reference(&root).unwrap();
    for _ in 0..40 {
        let other = join(&root);
        let table = Object::open(&other, [line, generation]).unwrap();
        let claim = table.cells(0).unwrap().claim(other.me());
        assert!(matches!(
            claim,
            crate::cells::Claim::At(_) | crate::cells::Claim::Full
        ));
        let dead = kill(other, table);
        root.bury_for_certain(dead);
    }
    root.publish("b", &shared(&root, 2)).unwrap();
    root.publish("c", &shared(&root, 3)).unwrap();
    assert_eq!(["a", "b", "c"].map(|name| value(&root, name)), [1, 2, 3]);
}

#[test]
fn who_is_stopped_while_publishing_delays_nobody_who_looks() {
    const NAME: &str = "tests::names::who_is_stopped_while_publishing_delays_nobody_who_looks";
    if rerun(NAME).is_none() {
        let arena = Arena::join(super::lent()).unwrap();
        return arena.republish("its own", &shared(&arena, 2)).unwrap();
    }
    let steps = [
        ("names.locked", 1, 1),
        ("put.claimed", 2, 1),
        ("put.giving", 2, 1),
        ("put.published", 2, 2),
        ("names.two_tables", 1, 2),
        ("get.taken", 1, 2),
        ("get.recorded", 1, 2),
        ("get.released", 1, 2),
        ("names.one_table", 1, 2),
    ];
    // A table that fits its cell, and one that does not.
    for others in [0, 40] {
        for (step, nth, seen) in steps {
            let root = arena();
            for other in 0..others {
                root.publish(&format!("{other}"), &other).unwrap();
            }
            root.publish("its own", &shared(&root, 1)).unwrap();
            root.publish("another", &shared(&root, 7)).unwrap();
            let mut child = rerun(NAME).unwrap();
            child.env("TENSORMP_FAILPOINT", format!("{step}:{nth}=stop"));
            super::lend(&mut child, &root);
            let child = Stopped::start(&mut child);
            assert_eq!(value(&root, "another"), 7, "{step}");
            assert_eq!(value(&root, "its own"), seen, "{step}");
            assert_eq!(names(&root).len(), others + 2, "{step}");
            let error = root.open::<()>("none").unwrap_err();
            assert_eq!(error.kind(), &ErrorKind::NotFound, "{step}");
            drop(child);
            root.bury_the_dead();
            root.republish("its own", &shared(&root, 3)).unwrap();
            assert_eq!(value(&root, "its own"), 3, "{step}");
            let audit = root.audit();
            assert!(audit.missing.is_empty(), "{step}: {audit:?}");
            assert!(audit.leaked.len() <= 1, "{step}: {audit:?}");
        }
    }
}

#[test]
fn who_looks_while_others_publish_sees_each_name_as_it_was_at_some_moment() {
    let root = arena();
    for name in ["a", "b"] {
        root.publish(name, &shared(&root, 0)).unwrap();
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for name in ["a", "b"] {
            let (own, done) = (join(&root), &done);
            scope.spawn(move || {
                for round in 1..=300 {
                    own.republish(name, &shared(&own, round)).unwrap();
                }
                done.store(true, Ordering::SeqCst);
            });
        }
        for _ in 0..2 {
            let (own, done) = (join(&root), &done);
            scope.spawn(move || {
                let mut last = [0, 0];
                while !done.load(Ordering::SeqCst) {
                    for (name, last) in ["a", "b"].into_iter().zip(&mut last) {
                        let now = value(&own, name);
                        assert!(now >= *last, "{name} went from {last} back to {now}");
                        *last = now;
                    }
                    assert_eq!(names(&own).len(), 2);
                }
            });
        }
    });
    assert_eq!((value(&root, "a"), value(&root, "b")), (300, 300));
    assert_clean(&root);
}

/// A child that has stopped itself; killed when this is dropped.
struct Stopped(std::process::Child);

impl Stopped {
    fn start(command: &mut std::process::Command) -> Self {
        let child = command.stdout(std::process::Stdio::null()).spawn().unwrap();
        let pid = rustix::process::Pid::from_raw(child.id().cast_signed());
        let status = rustix::process::waitpid(pid, WaitOptions::UNTRACED).unwrap();
        let this = Self(child);
        assert!(status.unwrap().1.stopped(), "it never came to the step");
        this
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn who_looks_at_a_table_that_is_gone_counts_nothing_that_somebody_else_has_alone() {
    let root = arena();
    root.publish("a", &shared(&root, 0)).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let (own, done) = (join(&root), &done);
            scope.spawn(move || {
                for round in 1..=400 {
                    own.republish("a", &shared(&own, round)).unwrap();
                }
                done.store(true, Ordering::SeqCst);
            });
        }
        for _ in 0..3 {
            let (own, done) = (join(&root), &done);
            scope.spawn(move || {
                while !done.load(Ordering::SeqCst) {
                    let mut found: SharedTensor<u32> = own.open("a").unwrap();
                    for _ in 0..50 {
                        match found.try_thaw() {
                            Err(shared) => found = shared,
                            // Nobody else has it, nor may anybody find it any more.
                            Ok(tensor) => {
                                for _ in 0..20 {
                                    std::thread::yield_now();
                                    assert!(tensor.placed().storage().held().is_sole());
                                }
                                break;
                            }
                        }
                        std::thread::yield_now();
                    }
                }
            });
        }
    });
    assert_clean(&root);
}
