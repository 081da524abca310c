//! Messages through cells and lanes: references move or are shared, and nothing is left when the queue goes.

use super::{arena, assert_clean, assert_empty, join, queue};
use crate::arena::Arena;
use crate::cells::{CellArray, Owner};
use crate::error::ErrorKind;
use crate::held::Held;
use crate::letterbox::Letterbox;
use crate::line::Mode;
use crate::message::{self, Outgoing};
use crate::object::{Array, Object, ObjectKind};
use crate::slots::{Loan, Slots, Taken};
use crate::storage::Storage;
use crate::tensor::{SharedTensor, Tensor};
use crate::transfer::{Get, Put};

fn put<T: serde::Serialize>(queue: &Object, array: usize, value: T) {
    let mut message = message::encode(queue.arena(), value).unwrap();
    assert!(matches!(
        queue.try_put(array, &mut message).unwrap(),
        Put::Done(_)
    ));
}

fn get<T: serde::de::DeserializeOwned>(queue: &Object, array: usize) -> Option<T> {
    match queue.try_get(array, &mut u64::MAX.clone()).unwrap() {
        Get::Message(message, _) => Some(message.decode().unwrap()),
        _ => None,
    }
}

#[test]
fn a_tensor_moves_and_its_bytes_stay_where_they_are() {
    let here = arena();
    let there = join(&here);
    let sender = queue(&here, 2);
    let receiver = Object::open(&there, sender.handle()).unwrap();
    for array in [0, 1] {
        let tensor = Tensor::<u32>::full_in(&here, [1000], 7).unwrap();
        put(&sender, array, tensor);
        assert_clean(&here);
        let tensor: Tensor<u32> = get(&receiver, array).unwrap();
        assert!(tensor.as_slice().iter().all(|&element| element == 7));
        assert_clean(&here);
    }
    drop((sender, receiver));
    assert_empty(&here);
}

#[test]
fn a_shared_tensor_is_held_by_both_until_both_let_go() {
    let here = arena();
    let there = join(&here);
    let sender = queue(&here, 2);
    let receiver = Object::open(&there, sender.handle()).unwrap();
    for array in [0, 1] {
        let kept = Tensor::<u32>::full_in(&here, [10], 7).unwrap().freeze();
        put(&sender, array, kept.clone());
        let kept = kept.try_thaw().unwrap_err();
        let arrived: SharedTensor<u32> = get(&receiver, array).unwrap();
        let kept = kept.try_thaw().unwrap_err();
        drop(kept);
        assert_eq!(arrived.to_vec(), [7; 10]);
        let mut thawed = arrived.try_thaw().unwrap();
        thawed.fill(8);
    }
    drop((sender, receiver));
    assert_empty(&here);
}

#[test]
fn a_dropped_queue_releases_the_messages_in_it() {
    let arena = arena();
    let outer = queue(&arena, 4);
    let kept = Tensor::<u8>::zeros_in(&arena, [10]).unwrap().freeze();
    for array in [0, 1] {
        put(&outer, array, Tensor::<u8>::zeros_in(&arena, [10]).unwrap());
        put(&outer, array, kept.clone());
        put(
            &outer,
            array,
            (
                "x".repeat(1000),
                Tensor::<u8>::zeros_in(&arena, [3 << 20]).unwrap(),
            ),
        );
        let inner = queue(&arena, 2);
        put(&inner, array, Tensor::<u8>::zeros_in(&arena, [10]).unwrap());
        // An object, and an end of it that must go first.
        let end = inner.end(0).unwrap();
        put(&outer, array, (inner, end));
    }
    assert_clean(&arena);
    drop(outer);
    assert_clean(&arena);
    assert!(kept.try_thaw().is_ok(), "all other holders are gone");
    assert_empty(&arena);
}

#[test]
fn a_queue_in_a_queue_in_a_queue_takes_no_stack() {
    // A thread with less stack than the depth would need.
    let run = || {
        let arena = arena();
        let mut innermost = queue(&arena, 1);
        for _ in 0..3_000 {
            let outer = queue(&arena, 1);
            put(&outer, 0, innermost);
            innermost = outer;
        }
        drop(innermost);
        assert_empty(&arena);
    };
    std::thread::Builder::new()
        .stack_size(512 << 10)
        .spawn(run)
        .unwrap()
        .join()
        .unwrap();
}

#[test]
fn a_message_that_finds_no_room_is_still_the_senders() {
    let arena = arena();
    let queue = queue(&arena, 1);
    for array in [0, 1] {
        put(&queue, array, 1_u8);
        let tensor = Tensor::<u8>::full_in(&arena, [4], 9).unwrap();
        let mut message = message::encode(&arena, tensor).unwrap();
        assert_eq!(queue.try_put(array, &mut message).unwrap(), Put::Full);
        let tensor: Tensor<u8> = message.decode().unwrap();
        assert_eq!(tensor.as_slice(), [9; 4]);
    }
    queue.cells(0).unwrap().close();
    let mut message = message::encode(&arena, 1_u8).unwrap();
    assert_eq!(queue.try_put(0, &mut message).unwrap(), Put::Closed);
    drop((queue, message));
    assert_empty(&arena);
}

#[test]
fn a_message_can_be_sent_several_times_unless_it_holds_something_exclusive() {
    let arena = arena();
    let queue = queue(&arena, 4);
    let shared = Tensor::<u8>::full_in(&arena, [4], 3).unwrap().freeze();
    for value in [vec![shared.clone()], vec![shared.clone(); 9]] {
        let count = value.len();
        let message = message::encode(&arena, value).unwrap();
        let mut copies: Vec<Outgoing> = (0..3).map(|_| message.duplicate().unwrap()).collect();
        drop(message);
        for copy in &mut copies {
            assert!(matches!(queue.try_put(0, copy).unwrap(), Put::Done(_)));
        }
        assert_clean(&arena);
        for _ in 0..3 {
            let arrived: Vec<SharedTensor<u8>> = get(&queue, 0).unwrap();
            assert_eq!(arrived.len(), count);
        }
    }
    let exclusive = Tensor::<u8>::zeros_in(&arena, [4]).unwrap();
    let message = message::encode(&arena, exclusive).unwrap();
    let error = message.duplicate().unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::StillHeld);
    drop((queue, message, shared));
    assert_empty(&arena);
}

/// Takes all the arena's chunks, and all of this participant's lease entries but `spare`.
fn exhaust(arena: &Arena, keep: &Object, spare: usize) -> (Vec<Storage>, Vec<Held>) {
    let mut memory = Vec::new();
    while let Ok(block) = Storage::allocate(arena, 2 << 20, Mode::Message) {
        memory.push(block);
    }
    let mut held: Vec<Held> = Vec::new();
    let [line, generation] = keep.handle();
    while let Ok(one) = Held::open(arena, line, generation) {
        held.push(one);
    }
    held.truncate(held.len() - spare);
    (memory, held)
}

#[test]
fn without_room_for_leases_messages_stay_where_they_are() {
    let arena = arena();
    let queue = queue(&arena, 4);
    let keep = super::queue(&arena, 1);
    let shared = Tensor::<u8>::zeros_in(&arena, [4]).unwrap().freeze();
    for array in [0, 1] {
        put(&queue, array, vec![shared.clone(); 3]);
    }
    let (memory, held) = exhaust(&arena, &keep, 2);
    for array in [0, 1] {
        let error = queue.try_get(array, &mut u64::MAX.clone()).unwrap_err();
        assert!(error.is_shortage(), "{error}");
        let mut message = Outgoing {
            payload: [1; 7],
            pins: message::Pins::default(),
        };
        message.pins.0.extend((0..3).map(|_| message::Pin {
            held: keep.held.clone(),
            what: message::What::Object,
        }));
        let error = queue.try_put(array, &mut message).unwrap_err();
        assert!(error.is_shortage(), "{error}");
    }
    assert_clean(&arena);
    drop((memory, held));
    for array in [0, 1] {
        let arrived: Vec<SharedTensor<u8>> = get(&queue, array).unwrap();
        assert_eq!(arrived.len(), 3);
    }
    drop((queue, keep, shared));
    assert_empty(&arena);
}

#[test]
fn without_room_for_leases_a_dropped_queue_still_releases_its_messages() {
    let arena = arena();
    let queue = queue(&arena, 4);
    let keep = super::queue(&arena, 1);
    let shared = Tensor::<u8>::zeros_in(&arena, [4]).unwrap().freeze();
    for array in [0, 1] {
        put(&queue, array, vec![shared.clone(); 3]);
        put(&queue, array, Tensor::<u8>::zeros_in(&arena, [4]).unwrap());
    }
    let (memory, held) = exhaust(&arena, &keep, 0);
    drop(queue);
    drop((memory, held, keep));
    assert!(shared.try_thaw().is_ok());
    assert_empty(&arena);
}

#[test]
fn without_room_for_leases_the_dead_are_buried_all_the_same() {
    let root = arena();
    let keep = super::queue(&root, 1);
    let other = join(&root);
    let theirs = queue(&other, 2);
    let ours = Object::open(&root, theirs.handle()).unwrap();
    let cells = theirs.cells(0).unwrap();
    assert!(matches!(
        cells.claim(other.me()),
        crate::cells::Claim::At(0)
    ));
    put(&theirs, 1, Tensor::<u8>::zeros_in(&other, [4]).unwrap());
    let (memory, held) = exhaust(&root, &keep, 0);
    let dead = super::kill(other, theirs);
    root.bury_for_certain(dead);
    assert!(!root.is_present(dead));
    put_without_pins(&ours);
    drop((memory, held, keep, ours));
    assert_empty(&root);
}

/// The claim of the dead one is void: there is room, and it is usable.
fn put_without_pins(queue: &Object) {
    put(queue, 0, 1_u8);
    assert_eq!(get::<u8>(queue, 0), Some(1));
}

fn ring(arena: &Arena) -> (Object, Slots) {
    let object = Object::create(
        arena,
        ObjectKind::Ring,
        [Array::Lane { capacity: 4 }, Array::Slots { count: 4 }],
        0,
    )
    .unwrap();
    let slots = Slots::create(&object, 1, 5000).unwrap();
    (object, slots)
}

#[test]
fn a_slot_goes_round() {
    let here = arena();
    let there = join(&here);
    let (object, slots) = ring(&here);
    // Not through the ring itself, which would hold itself then.
    let way = queue(&here, 1);
    put(&way, 0, slots.clone());
    let theirs: Slots = get(&Object::open(&there, way.handle()).unwrap(), 0).unwrap();
    drop(way);
    let received = Object::open(&there, object.handle()).unwrap();
    assert_eq!(theirs.slot_bytes(), 8192);
    let mut producer = object.lane_end(0).unwrap();
    let mut consumer = received.lane_end(1).unwrap();
    let second = received.lane_end(0).unwrap_err();
    assert_eq!(
        second.kind(),
        &ErrorKind::AlreadyExists,
        "a lane has one producer"
    );
    assert!(
        slots
            .put_lane_end(
                &mut consumer,
                &mut slots.try_loan(0).unwrap().unwrap(),
                &[0; 5]
            )
            .is_err()
    );
    theirs.touch();
    for round in 0..20_u64 {
        let mut loan = slots.try_loan(round as u32).unwrap().unwrap();
        loan.slice_mut::<u64>(0, 1).unwrap()[0] = round;
        let put = slots.put_lane_end(&mut producer, &mut loan, &[round; 5]);
        assert!(matches!(put.unwrap(), Put::Done(_)));
        let again = slots.put_lane_end(&mut producer, &mut loan, &[round; 5]);
        assert_eq!(again.unwrap_err().kind(), &ErrorKind::Stale, "a spent loan");
        let late = loan.slice_mut::<u64>(0, 1).unwrap_err();
        assert_eq!(late.kind(), &ErrorKind::Stale, "another reads it now");
        drop(loan);
        let mut seat = theirs.seat().unwrap();
        let taken = theirs.take_lane_end(&mut consumer, &mut seat).unwrap();
        assert!(matches!(taken, Taken::Slot(_)));
        let borrow = seat.into_borrow();
        assert_eq!(borrow.slice::<u64>(0, 1).unwrap(), [round]);
        assert_eq!(borrow.meta(), &[round; 5]);
        assert_eq!(slots.in_use(), 1);
        drop(borrow);
        assert_eq!(slots.in_use(), 0);
        assert_clean(&here);
    }
    let loans: Vec<Loan> = std::iter::from_fn(|| slots.try_loan(0).unwrap()).collect();
    assert_eq!(loans.len(), 4);
    drop((loans, slots, producer, consumer, object, received, theirs));
    assert_empty(&here);
}

#[test]
fn slots_do_not_come_with_the_memory_of_others() {
    let arena = arena();
    let (object, slots) = ring(&arena);
    let error = Slots::create(&object, 1, 5000).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::AlreadyExists);
    let (other, others) = ring(&arena);
    // As a broken peer might combine them.
    let mut message = message::encode(&arena, (slots, others)).unwrap();
    message.pins.0.swap(1, 3);
    let error = message.decode::<(Slots, Slots)>().unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Decode);
    drop((object, other));
    assert_empty(&arena);
}

#[test]
fn an_end_is_counted_over_processes_and_messages() {
    let here = arena();
    let there = join(&here);
    let sender = queue(&here, 2);
    let receiver = Object::open(&there, sender.handle()).unwrap();
    let end = sender.end(0).unwrap();
    let second = receiver.end(0).unwrap();
    assert_eq!(sender.end_count(0), 2);
    put(&sender, 0, end);
    assert_eq!(sender.end_count(0), 2);
    let back: crate::object::End = get(&receiver, 0).unwrap();
    assert!(back.is_of(&receiver, 0) && !back.is_sole());
    drop(second);
    assert!(back.is_sole());
    // The end alone keeps its object.
    drop((sender, receiver));
    assert!(back.object().end_count(0) == 1);
    drop(back);
    assert_empty(&here);
}

#[test]
fn one_who_died_trying_to_take_a_slot_does_not_free_that_of_the_one_who_got_it() {
    let root = arena();
    let other = join(&root);
    let (object, slots) = ring(&root);
    let line = object.placed(1).unwrap().first / crate::layout::LINE;
    // It had seen the slot free and written down what it would make of it; then we were faster, and it was killed.
    let word = root.segment().word(line * crate::layout::LINE);
    let free = crate::line::Counted::from_word(word.load(core::sync::atomic::Ordering::SeqCst));
    let lease = other.leases().reserve(other.segment()).unwrap();
    other.leases().entry(other.segment(), lease).record(
        other.me().epoch,
        crate::lease::Kind::Alloc,
        line,
        free.next_generation(),
    );
    let loan = slots.try_loan(0).unwrap().unwrap();
    assert_eq!(loan.slot(), 0);
    let dead = super::kill(other, ());
    root.bury_for_certain(dead);
    assert_eq!(slots.in_use(), 1);
    assert_clean(&root);
    drop((loan, slots, object));
    assert_empty(&root);
}

#[test]
fn an_end_that_a_dead_participant_was_just_opening_is_opened_by_others() {
    let root = arena();
    let other = join(&root);
    let object = queue(&root, 1);
    let line = object.end_line(0);
    let claim = root
        .segment()
        .word(line * crate::layout::LINE + crate::layout::counted::CLAIMANT);
    claim.store(
        crate::steps::claimant(other.me()),
        core::sync::atomic::Ordering::SeqCst,
    );
    assert!(Held::acquire_free(&root, line).unwrap().is_none());
    let dead = super::kill(other, ());
    root.bury_for_certain(dead);
    drop(object.end(0).unwrap());
    claim.store(u64::MAX, core::sync::atomic::Ordering::SeqCst);
    drop(object.end(0).unwrap());
    drop(object);
    assert_empty(&root);
}

#[test]
fn a_letterbox_carries_whole_values() {
    let here = arena();
    let there = join(&here);
    let sender = Letterbox::create(&here, 1).unwrap();
    let receiver = Letterbox::open(&there, sender.handle()).unwrap();
    assert!(receiver.try_recv::<u8>().unwrap().is_none());
    sender
        .send(("a", Tensor::<u8>::zeros_in(&here, [4]).unwrap()))
        .unwrap();
    let full = sender.send(1_u8).unwrap_err();
    assert_eq!(full.error.kind(), &ErrorKind::Full);
    let (name, tensor): (String, Tensor<u8>) = receiver.try_recv().unwrap().unwrap();
    assert_eq!((name.as_str(), tensor.as_slice()), ("a", &[0; 4][..]));
    drop((tensor, sender, receiver));
    assert_empty(&here);
}

#[test]
fn damaged_cells_are_an_error_and_not_a_hang() {
    let arena = arena();
    let queue = queue(&arena, 2);
    let cells = queue.cells(0).unwrap();
    for garbage in [u64::MAX, 7, 0xf << 60, 5 << 4 | 3, 1 << 63 | 2] {
        for index in 0..2 {
            cells
                .0
                .word(index)
                .store(garbage, core::sync::atomic::Ordering::SeqCst);
        }
        let mut message = message::encode(&arena, 1_u8).unwrap();
        let _ = queue.try_put(0, &mut message);
        let _ = queue.try_get(0, &mut u64::MAX.clone());
        cells.reap(Owner { row: 1, epoch: 1 });
    }
    drop(queue);
}
