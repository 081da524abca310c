//! Counts that a kill left in doubt: they are given back as soon as nobody holds the line, and not before.

use std::os::unix::process::ExitStatusExt;

use super::death::{borrowed, lend};
use super::{arena, assert_clean, assert_empty, join, kill, queue, wipe};
use crate::arena::Arena;
use crate::held::{Held, give_back};
use crate::lease::Kind;
use crate::message;
use crate::tensor::{SharedTensor, Tensor};
use crate::testing::{output, rerun};
use crate::transfer::{Get, Put};

fn shared(arena: &Arena) -> SharedTensor<u8> {
    Tensor::<u8>::full_in(arena, [300], 200).unwrap().freeze()
}

/// A participant that dies while it lets go of `ours`, before or after the count went down.
fn dies_leaving(root: &Arena, ours: &Held, counted_down: bool) {
    let other = join(root);
    let theirs = Held::open(&other, ours.line, ours.generation).unwrap();
    let leases = other.leases();
    leases.set(other.segment(), theirs.lease, Kind::Leaving);
    if counted_down {
        assert!(crate::held::subtract_shared(
            &other,
            ours.line,
            ours.generation
        ));
    }
    let dead = kill(other, theirs);
    root.bury_for_certain(dead);
}

#[test]
fn a_reference_that_was_going_when_its_holder_was_killed_is_gone_when_the_others_are() {
    let root = arena();
    for counted_down in [false, true] {
        let ours = shared(&root);
        let held = ours.placed().storage().held().clone();
        for _ in 0..3 {
            dies_leaving(&root, &held, counted_down);
        }
        // One of the dead may still be counted, so it stays what it is; and it stays.
        let ours = if counted_down {
            ours
        } else {
            ours.try_thaw().unwrap_err()
        };
        assert_eq!(ours.to_vec(), [200; 300]);
        drop((ours, held));
        assert_empty(&root);
    }
    wipe(&root);
}

#[test]
fn who_dies_as_the_last_one_to_let_go_leaves_nothing_to_an_audit() {
    let root = arena();
    let ours = queue(&root, 4);
    let [line, generation] = ours.handle();
    let others = [join(&root), join(&root)];
    let theirs = [0, 1].map(|one: usize| Held::open(&others[one], line, generation).unwrap());
    drop(ours);
    // Both in the middle of it: neither is the last one for certain.
    for (other, held) in others.iter().zip(&theirs) {
        other
            .leases()
            .set(other.segment(), held.lease, Kind::Leaving);
    }
    let dead = others.map(|other| kill(other, ()));
    std::mem::forget(theirs);
    for dead in dead {
        root.bury_for_certain(dead);
    }
    assert_empty(&root);
    wipe(&root);
}

#[test]
fn what_is_in_a_message_is_held_by_somebody() {
    let root = arena();
    let letters = queue(&root, 4);
    // In a cell, in a block that its message takes, and in a lane.
    for (array, ballast) in [(0, 0), (0, 200), (1, 0), (1, 200)] {
        let ours = shared(&root);
        let held = ours.placed().storage().held().clone();
        let mut letter = message::encode(&root, (ours.clone(), vec![7_u8; ballast])).unwrap();
        assert!(matches!(
            letters.try_put(array, &mut letter).unwrap(),
            Put::Done(_)
        ));
        let other = join(&root);
        let theirs = Held::open(&other, held.line, held.generation).unwrap();
        drop((ours, held));
        let leases = other.leases();
        leases.set(other.segment(), theirs.lease, Kind::Leaving);
        let dead = kill(other, theirs);
        root.bury_for_certain(dead);
        let Get::Message(letter, _) = letters.try_get(array, &mut u64::MAX.clone()).unwrap() else {
            panic!("the letter is gone");
        };
        let (found, _): (SharedTensor<u8>, Vec<u8>) = letter.decode().unwrap();
        assert_eq!(found.to_vec(), [200; 300]);
        drop(found);
        assert_clean(&root);
    }
    drop(letters);
    assert_empty(&root);
    wipe(&root);
}

#[test]
fn a_receiver_hears_of_its_last_sender_also_when_that_was_killed_while_it_let_go() {
    let root = arena();
    let ours = queue(&root, 4);
    let others = [join(&root), join(&root)];
    let senders = others
        .each_ref()
        .map(|other| crate::object::Object::open(other, ours.handle()).unwrap())
        .map(|object| object.end(0).unwrap());
    assert_eq!(ours.end_count(0), 2);
    let [first, second] = senders;
    let [one, two] = others;
    // The first one is killed when it is counted no more, the second before it is.
    one.leases()
        .set(one.segment(), first.held.lease, Kind::Leaving);
    let (line, generation) = (first.held.line, first.held.generation);
    assert!(crate::held::subtract_shared(&one, line, generation));
    let dead = [kill(one, first)];
    for dead in dead {
        root.bury_for_certain(dead);
    }
    assert_eq!(ours.end_count(0), 1);
    drop(second);
    assert_eq!(ours.end_count(0), 0);
    drop(two);
    drop(ours);
    assert_empty(&root);
    wipe(&root);
}

#[test]
fn who_looks_into_a_doubt_and_is_killed_at_any_step_is_followed_by_another() {
    const NAME: &str =
        "tests::doubt::who_looks_into_a_doubt_and_is_killed_at_any_step_is_followed_by_another";
    if rerun(NAME).is_none() {
        let (arena, queue) = borrowed();
        let Get::Message(letter, _) = queue.try_get(0, &mut u64::MAX.clone()).unwrap() else {
            unreachable!("{:?} was sent a tensor", arena.me());
        };
        // The last one, of which one count too many is left.
        drop(letter.decode::<SharedTensor<u8>>().unwrap());
        return;
    }
    for label in [
        "doubt.looking",
        "doubt.taken",
        "doubt.held",
        "block.drop.leaving",
        "block.drop.left",
        "none",
    ] {
        let root = arena();
        let letters = queue(&root, 1);
        let ours = shared(&root);
        let held = ours.placed().storage().held().clone();
        dies_leaving(&root, &held, false);
        let mut letter = message::encode(&root, ours).unwrap();
        drop(held);
        assert!(matches!(
            letters.try_put(0, &mut letter).unwrap(),
            Put::Done(_)
        ));
        let mut child = rerun(NAME).unwrap();
        child.env("TENSORMP_FAILPOINT", format!("{label}=kill"));
        lend(&mut child, &root, &letters);
        let output = output(&mut child);
        let killed = output.status.signal() == Some(9);
        assert_eq!(killed, label != "none", "{label}: {output:?}");
        root.bury_the_dead();
        drop(letters);
        assert_empty(&root);
        wipe(&root);
    }
}

#[test]
fn who_is_killed_while_it_sends_one_more_reference_leaves_none() {
    const NAME: &str = "tests::doubt::who_is_killed_while_it_sends_one_more_reference_leaves_none";
    if rerun(NAME).is_none() {
        let (arena, queue) = borrowed();
        let Get::Message(letter, _) = queue.try_get(0, &mut u64::MAX.clone()).unwrap() else {
            unreachable!("{:?} was sent a tensor", arena.me());
        };
        let kept = letter.decode::<SharedTensor<u8>>().unwrap();
        let mut answer = message::encode(&arena, kept.clone()).unwrap();
        let put = queue.try_put(0, &mut answer).unwrap();
        unreachable!("{put:?} with {kept:?}");
    }
    for label in [
        "block.share.entering",
        "block.share.counted",
        "put.claimed",
        "put.giving",
        "put.published",
    ] {
        let root = arena();
        let letters = queue(&root, 1);
        let mut letter = message::encode(&root, shared(&root)).unwrap();
        assert!(matches!(
            letters.try_put(0, &mut letter).unwrap(),
            Put::Done(_)
        ));
        let mut child = rerun(NAME).unwrap();
        child.env("TENSORMP_FAILPOINT", format!("{label}=kill"));
        lend(&mut child, &root, &letters);
        let output = output(&mut child);
        assert_eq!(output.status.signal(), Some(9), "{label}: {output:?}");
        root.bury_the_dead();
        drop(letters);
        assert_empty(&root);
        wipe(&root);
    }
}

#[test]
fn an_own_reference_is_given_back_once_whatever_was_in_doubt() {
    let root = arena();
    let ours = shared(&root);
    let held = ours.placed().storage().held().clone();
    dies_leaving(&root, &held, false);
    // Opened again and again, and let go, while it is in doubt.
    for _ in 0..10 {
        let again = Held::open(&root, held.line, held.generation).unwrap();
        let lease = again.lease;
        std::mem::forget(again);
        root.leases()
            .local(lease)
            .store(0, core::sync::atomic::Ordering::Relaxed);
        give_back(&root, lease, held.line, held.generation);
        assert_eq!(ours.to_vec(), [200; 300]);
    }
    drop((ours, held));
    assert_empty(&root);
    wipe(&root);
}
