//! Real children, killed at every labelled step; a survivor buries them, and all that is lost is what was in hand.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::atomic::Ordering;

use super::{arena, assert_clean, assert_empty, join, kill, queue, wipe};
use crate::arena::Arena;
use crate::chunk::{Chunks, State};
use crate::failpoint::LABELS;
use crate::held::Held;
use crate::line::Mode;
use crate::message::{self, Outgoing};
use crate::object::{Array, Object, ObjectKind};
use crate::slots::Slots;
use crate::storage::Storage;
use crate::tensor::{SharedTensor, Tensor};
use crate::testing::{output, rerun};
use crate::transfer::{Get, Put};

/// Where a child finds the arena and an object of its parent.
pub(super) fn lend(command: &mut Command, arena: &Arena, object: &Object) {
    let file = format!(
        "/proc/{}/fd/{}",
        std::process::id(),
        arena.as_fd().as_raw_fd()
    );
    let [line, generation] = object.handle();
    command
        .env("TEST_ARENA", file)
        .env("TEST_OBJECT", format!("{line} {generation}"));
}

pub(super) fn borrowed() -> (Arena, Object) {
    let path = std::env::var("TEST_ARENA").unwrap();
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let arena = Arena::join(OwnedFd::from(file)).unwrap();
    let handle = std::env::var("TEST_OBJECT").unwrap();
    let (line, generation) = handle.split_once(' ').unwrap();
    let handle = [line, generation].map(|number| number.parse().unwrap());
    let object = Object::open(&arena, handle).unwrap();
    (arena, object)
}

/// Words of the queue's own: what was received, by whom, as bits.
const RECEIVED: u64 = 0;
const PREPARED: u64 = 16;

fn put(queue: &Object, array: usize, mut message: Outgoing) {
    assert!(matches!(
        queue.try_put(array, &mut message).unwrap(),
        Put::Done(_)
    ));
}

fn parcel(arena: &Arena, number: u64, shared: &SharedTensor<u8>) -> Outgoing {
    let tensor = Tensor::<u8>::full_in(arena, [300], number as u8).unwrap();
    message::encode(arena, (number, tensor, shared.clone())).unwrap()
}

/// Takes one message and marks it as received. It must be whole, and nobody may have had it before.
fn receive(queue: &Object, array: usize, seen: &mut u64) -> bool {
    let Get::Message(message, _) = queue.try_get(array, seen).unwrap() else {
        return false;
    };
    let (number, tensor, shared): (u64, Tensor<u8>, SharedTensor<u8>) = message.decode().unwrap();
    assert!(tensor.as_slice().iter().all(|&byte| byte == number as u8));
    assert!(shared.to_vec().iter().all(|&byte| byte == 200));
    let before = queue
        .word(RECEIVED + array as u64)
        .fetch_or(1 << number, Ordering::SeqCst);
    assert_eq!(
        before & (1 << number),
        0,
        "message {number} was delivered twice"
    );
    true
}

/// Does everything that has a label.
fn live() {
    let (arena, queue) = borrowed();
    let shared = Tensor::<u8>::full_in(&arena, [300], 200).unwrap().freeze();
    let mut seen = u64::MAX;
    for round in 0..4_u64 {
        // Blocks of all kinds, one of them held twice.
        let small = Storage::allocate(&arena, 100, Mode::Message).unwrap();
        let large = Storage::allocate(&arena, 5 << 20, Mode::Message).unwrap();
        let (line, generation) = small.id();
        let twice = Held::open(&arena, line, generation).unwrap();
        drop((small, large, twice));
        arena.trim();
        for array in [0, 1] {
            put(&queue, array, parcel(&arena, 32 + round, &shared));
            receive(&queue, array, &mut seen);
        }
        // A ring of its own.
        let ring = Object::create(
            &arena,
            ObjectKind::Ring,
            [Array::Lane { capacity: 2 }, Array::Slots { count: 2 }],
            0,
        )
        .unwrap();
        let (mut producer, mut consumer) = (ring.lane_end(0).unwrap(), ring.lane_end(1).unwrap());
        let slots = Slots::create(&ring, 1, 4096).unwrap();
        let mut loan = slots.try_loan(0).unwrap().unwrap();
        let _ = slots
            .put_lane_end(&mut producer, &mut loan, &[0; 5])
            .unwrap();
        let mut seat = slots.seat().unwrap();
        let _ = slots.take_lane_end(&mut consumer, &mut seat).unwrap();
        drop(seat.into_borrow());
        // Left in it: whoever buries us empties it.
        let mut left = slots.try_loan(0).unwrap().unwrap();
        let _ = slots
            .put_lane_end(&mut producer, &mut left, &[0; 5])
            .unwrap();
        drop((left, producer, consumer, slots, ring));
        // Another one dies, and we bury it.
        let other = join(&arena);
        let theirs = Object::open(&other, queue.handle()).unwrap();
        let cells = theirs.cells(0).unwrap();
        let _ = cells.take(other.me(), &mut seen.clone());
        // It lacks memory, and we keep some.
        drop(Storage::allocate(&arena, 5 << 20, Mode::Message).unwrap());
        assert!(crate::heap::Request::send(&other).is_some());
        arena.heap().answer(arena.segment());
        let own = super::queue(&other, 2);
        put(
            &own,
            0,
            parcel(
                &other,
                1,
                &Tensor::full_in(&other, [300], 200).unwrap().freeze(),
            ),
        );
        let dead = kill(other, (theirs, own));
        arena.bury_for_certain(dead);
    }
}

struct Aftermath {
    killed: bool,
    epoch: u16,
}

/// Runs a child that dies at `label`, buries it, and looks at what is left.
fn die_at(name: &str, label: &str, nth: u32) -> Aftermath {
    let root = arena();
    let queue = queue(&root, 32);
    let shared = Tensor::<u8>::full_in(&root, [300], 200).unwrap().freeze();
    for number in 0..PREPARED {
        for array in [0, 1] {
            put(&queue, array, parcel(&root, number, &shared));
        }
    }
    let mut child = rerun(name).unwrap();
    child.env("TENSORMP_FAILPOINT", format!("{label}:{nth}=kill"));
    lend(&mut child, &root, &queue);
    let output = output(&mut child);
    let killed = output.status.signal() == Some(9);
    assert!(
        killed || output.status.success(),
        "{label}: {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    root.bury_the_dead();
    assert_eq!(root.participants(), 1, "{label}");
    let audit = root.audit();
    assert!(audit.missing.is_empty(), "{label}: {audit:?}");
    let leaked: u64 = audit.leaked.iter().map(|one| one.count - one.holders).sum();
    // What others still hold stays in doubt until they let go of it.
    assert!(leaked <= u64::from(killed), "{label}: {audit:?}");
    // What is left is delivered once; at most one message of each array was in the hands of the dead.
    for array in [0, 1] {
        let mut seen = u64::MAX;
        while receive(&queue, array, &mut seen) {}
        let received = queue.word(RECEIVED + array as u64).load(Ordering::SeqCst) & 0xffff;
        assert!(
            received.count_zeros() - 48 <= u32::from(killed),
            "{label}: {received:b} of array {array}"
        );
    }
    // No chunk is anybody's but ours.
    let chunks = Chunks::new(root.segment());
    let states: Vec<State> = (0..chunks.high())
        .map(|chunk| chunks.state(chunk))
        .collect();
    let theirs = states
        .iter()
        .filter(|state| matches!(state, State::Owned(owner, _) if *owner != root.me()))
        .count();
    assert_eq!(theirs, 0, "{label}: {states:?}");
    drop((queue, shared));
    let left = root.audit();
    assert_eq!(left.lines, 0, "{label}: {left:?}");
    assert_empty(&root);
    let total = crate::layout::chunk_count(root.segment().capacity());
    let whole: Vec<Storage> =
        std::iter::from_fn(|| Storage::allocate(&root, 2 << 20, Mode::Message).ok()).collect();
    assert!(
        whole.len() as u64 + 2 >= total,
        "{label}: {} of {total}",
        whole.len()
    );
    // The row is given out again, with the next epoch.
    let next = join(&root).me();
    assert_eq!(next.row, 1, "{label}");
    Aftermath {
        killed,
        epoch: next.epoch,
    }
}

#[test]
fn a_child_killed_at_any_step_is_buried_and_loses_at_most_what_it_had_in_hand() {
    const NAME: &str =
        "tests::death::a_child_killed_at_any_step_is_buried_and_loses_at_most_what_it_had_in_hand";
    if rerun(NAME).is_none() {
        return live();
    }
    // What names an arena and the things in it is gone through by tests of its own, and so are the primitives,
    // the stages and the fork server of the crates above.
    let elsewhere = [
        "attach.",
        "named.",
        "names.",
        "barrier.",
        "forkserver.",
        "input.",
        "device.",
        "mutex.",
        "rwlock.",
        "semaphore.",
        "stage.",
        "task.",
        "doubt.",
    ];
    let here = |label: &&&str| !elsewhere.iter().any(|prefix| label.starts_with(prefix));
    for label in LABELS.iter().filter(here) {
        for nth in [1, 4] {
            let after = die_at(NAME, label, nth);
            assert!(after.killed || nth > 1, "{label} was never reached");
            assert!(after.epoch >= 2);
        }
    }
    let whole = die_at(NAME, "none", 1);
    assert!(!whole.killed, "a child that nobody kills ends well");
}

#[test]
fn every_label_in_the_sources_is_listed() {
    let mut found = std::collections::BTreeSet::new();
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let mut folders = vec![format!("{root}/crates"), format!("{root}/tests")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path().to_string_lossy().into_owned();
            if entry.file_type().unwrap().is_dir() {
                folders.push(path);
            } else if path.ends_with(".rs") && !path.ends_with("tests/death.rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                for (at, mark) in text.match_indices("failpoint!(\"") {
                    let label = &text[at + mark.len()..];
                    found.insert(label.split('"').next().unwrap().to_owned());
                }
            }
        }
    }
    let listed = LABELS.iter().map(|&label| label.to_owned()).collect();
    assert_eq!(found, listed);
}

#[test]
fn a_reaper_that_is_killed_itself_leaves_nothing_undone() {
    // As above, but the dead one is a third process, and its reaper dies at each step.
    const NAME: &str = "tests::death::a_reaper_that_is_killed_itself_leaves_nothing_undone";
    if rerun(NAME).is_none() {
        let (arena, _object) = borrowed();
        arena.bury_the_dead();
        return;
    }
    for label in LABELS.iter().filter(|label| label.starts_with("reap.")) {
        let root = arena();
        let other = join(&root);
        let theirs = queue(&other, 4);
        let ours = queue(&root, 4);
        let opened = Object::open(&other, ours.handle()).unwrap();
        let shared = Tensor::<u8>::full_in(&root, [300], 200).unwrap().freeze();
        put(&ours, 0, parcel(&root, 3, &shared));
        let kept = Tensor::<u8>::full_in(&other, [300], 200).unwrap().freeze();
        for array in [0, 1] {
            put(&theirs, array, parcel(&other, 1, &kept));
        }
        assert!(matches!(
            opened
                .cells(0)
                .unwrap()
                .take(other.me(), &mut u64::MAX.clone()),
            crate::cells::Take::At { .. }
        ));
        let dead = kill(other, (theirs, opened, kept));
        // Or it may be faster than the child.
        root.end_watcher();
        // A process that has ended, in the row of the dead one.
        let row = crate::participant::table::Row::get(root.segment(), dead.row).unwrap();
        let mut ended = Command::new("true").spawn().unwrap();
        let pid = ended.id();
        ended.wait().unwrap();
        let state = row.state();
        assert!(row.change(state, crate::participant::table::RowState { pid, ..state }));
        let mut child = rerun(NAME).unwrap();
        child.env("TENSORMP_FAILPOINT", format!("{label}=kill"));
        lend(&mut child, &root, &ours);
        let output = output(&mut child);
        assert_eq!(output.status.signal(), Some(9), "{label}: {output:?}");
        root.bury_the_dead();
        root.bury_the_dead();
        assert_eq!(root.participants(), 1, "{label}");
        assert_clean(&root);
        let mut seen = u64::MAX;
        assert!(receive(&ours, 0, &mut seen), "{label}: it was handed back");
        drop((ours, shared));
        assert_empty(&root);
        wipe(&root);
    }
}

#[test]
fn nobody_alive_is_buried() {
    let root = arena();
    let other = join(&root);
    root.bury(other.me());
    root.bury(root.me());
    root.bury_the_dead();
    assert_eq!(root.participants(), 2);
    let tensor = Tensor::<u8>::zeros_in(&other, [4]).unwrap();
    drop((tensor, other));
    assert_eq!(root.participants(), 1);
}

#[test]
fn the_watcher_buries_children_and_strangers_without_being_asked() {
    const NAME: &str =
        "tests::death::the_watcher_buries_children_and_strangers_without_being_asked";
    if rerun(NAME).is_none() {
        // A stranger is the child of a child that is gone.
        if std::env::var_os("TEST_STRANGER").is_some() {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command
                .args(std::env::args_os().skip(1))
                .env_remove("TEST_STRANGER");
            drop(command.spawn().unwrap());
            return;
        }
        let (arena, object) = borrowed();
        let shared = Tensor::<u8>::zeros_in(&arena, [4]).unwrap().freeze();
        put(&object, 0, message::encode(&arena, shared.clone()).unwrap());
        object
            .word(0)
            .store(u64::from(std::process::id()), Ordering::SeqCst);
        loop {
            std::thread::park();
        }
    }
    for stranger in [false, true] {
        let root = arena();
        root.watch();
        let object = queue(&root, 1);
        let mut child = rerun(NAME).unwrap();
        lend(&mut child, &root, &object);
        if stranger {
            child.env("TEST_STRANGER", "");
        }
        let mut child = child.stdout(std::process::Stdio::null()).spawn().unwrap();
        let until = |what: &str, condition: &dyn Fn() -> bool| {
            let start = std::time::Instant::now();
            while !condition() {
                assert!(start.elapsed().as_secs() < 60, "{what}");
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        };
        until("the child did not come", &|| {
            object.word(0).load(Ordering::SeqCst) != 0
        });
        let pid = object.word(0).load(Ordering::SeqCst) as i32;
        let dead = root.participant_of_pid(pid as u32).unwrap();
        assert_eq!(pid as u32 == child.id(), !stranger);
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        until("nobody buried it", &|| !root.is_present(dead));
        child.wait().unwrap();
        assert_clean(&root);
        let Get::Message(message, _) = object.try_get(0, &mut u64::MAX.clone()).unwrap() else {
            panic!("messages survive their sender");
        };
        // It is thawed because nobody else holds it.
        assert!(
            message
                .decode::<SharedTensor<u8>>()
                .unwrap()
                .try_thaw()
                .is_ok()
        );
        drop(object);
        assert_empty(&root);
        assert_eq!(join(&root).me().row, dead.row);
    }
}

#[test]
fn a_ring_has_all_its_slots_again_after_a_loaner_was_killed_at_any_step() {
    const NAME: &str =
        "tests::death::a_ring_has_all_its_slots_again_after_a_loaner_was_killed_at_any_step";
    let Some(_) = rerun(NAME) else {
        let (arena, queue) = borrowed();
        let Get::Message(message, _) = queue.try_get(0, &mut u64::MAX.clone()).unwrap() else {
            unreachable!("{:?} was sent the slots", arena.me());
        };
        let slots: Slots = message.decode().unwrap();
        let _ = slots.try_loan(0).unwrap().unwrap();
        return;
    };
    let loaning = LABELS.iter().filter(|label| {
        label.starts_with("line.acquire.")
            || label.starts_with("slot.loaned")
            || label.starts_with("block.drop.")
    });
    // Nobody else has the slot, so what is for references beside others is not on the way.
    for label in loaning
        .copied()
        .filter(|label| !["block.drop.leaving", "block.drop.left"].contains(label))
    {
        let root = arena();
        let queue = queue(&root, 1);
        let arrays = [Array::Lane { capacity: 1 }, Array::Slots { count: 1 }];
        let ring = Object::create(&root, ObjectKind::Ring, arrays, 0).unwrap();
        let slots = Slots::create(&ring, 1, 4096).unwrap();
        put(&queue, 0, message::encode(&root, slots.clone()).unwrap());
        let mut child = rerun(NAME).unwrap();
        child.env("TENSORMP_FAILPOINT", format!("{label}=kill"));
        lend(&mut child, &root, &queue);
        let output = output(&mut child);
        assert_eq!(output.status.signal(), Some(9), "{label}: {output:?}");
        root.bury_the_dead();
        assert_eq!(slots.in_use(), 0, "{label}");
        drop(slots.try_loan(0).unwrap().unwrap());
        assert_clean(&root);
        drop((slots, ring, queue));
        assert_empty(&root);
    }
}

#[test]
fn who_died_letting_go_of_an_object_leaves_no_mark_in_what_took_its_place() {
    let root = arena();
    let other = join(&root);
    let ours = queue(&root, 4);
    let [line, generation] = ours.handle();
    let theirs = Held::open(&other, line, generation).unwrap();
    drop(ours);
    // The last one goes, and dies before its entry is FREE.
    other
        .leases()
        .set(other.segment(), theirs.lease, crate::lease::Kind::Dropping);
    assert!(crate::held::free_last(&other, line, generation));
    let dead = kill(other, theirs);
    let another = queue(&root, 4);
    assert_eq!(another.handle(), [line, generation + 1]);
    root.bury_for_certain(dead);
    assert_eq!(another.bereaved(), None);
    drop(another);
    assert_empty(&root);
    wipe(&root);
}
