//! What safe code may try, and must be refused: things used twice, or with what they do not belong to.

use super::{arena, assert_clean, assert_empty, queue};
use crate::error::ErrorKind;
use crate::letterbox::Letterbox;
use crate::message;
use crate::object::{Array, Object, ObjectKind};
use crate::slots::Slots;
use crate::tensor::{SharedTensor, Tensor};
use crate::transfer::{Get, Put};

fn get<T: serde::de::DeserializeOwned>(queue: &Object, array: usize) -> Option<T> {
    match queue.try_get(array, &mut u64::MAX.clone()).unwrap() {
        Get::Message(message, _) => Some(message.decode().unwrap()),
        _ => None,
    }
}

#[test]
fn a_message_that_was_put_is_not_put_again() {
    let here = arena();
    let sender = queue(&here, 2);
    for array in [0, 1] {
        let kept = Tensor::<u32>::full_in(&here, [10], 7).unwrap().freeze();
        let mut message = message::encode(&here, kept.clone()).unwrap();
        assert!(matches!(
            sender.try_put(array, &mut message),
            Ok(Put::Done(_))
        ));
        let error = sender.try_put(array, &mut message).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Stale);
        let copy = message
            .duplicate()
            .map(|mut copy| sender.try_put(array, &mut copy));
        assert!(!matches!(copy, Ok(Ok(_))), "{copy:?}");
        assert!(message.decode::<SharedTensor<u32>>().is_err());
        drop(get::<SharedTensor<u32>>(&sender, array).unwrap());
        assert_eq!(kept.as_slice(), [7; 10]);
        assert_clean(&here);
    }
    drop(sender);
    assert_empty(&here);
}

#[test]
fn a_letterbox_may_be_read_by_what_is_read_from_it() {
    thread_local! {
        static LETTERS: std::cell::RefCell<Option<Letterbox>> = const { std::cell::RefCell::new(None) };
    }
    struct Curious(Option<u32>);
    impl<'de> serde::Deserialize<'de> for Curious {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            u32::deserialize(deserializer)?;
            let letters = LETTERS.with_borrow(Clone::clone).unwrap();
            Ok(Self(letters.try_recv().unwrap()))
        }
    }
    let here = arena();
    let letters = Letterbox::create(&here, 2).unwrap();
    LETTERS.set(Some(letters.clone()));
    letters.send(1_u32).unwrap();
    letters.send(2_u32).unwrap();
    assert_eq!(letters.try_recv::<Curious>().unwrap().unwrap().0, Some(2));
    LETTERS.set(None);
}

#[test]
fn a_slot_goes_through_its_own_ring_only() {
    let here = arena();
    let ring = || {
        let arrays = [Array::Lane { capacity: 2 }, Array::Slots { count: 2 }];
        Object::create(&here, ObjectKind::Ring, arrays, 0).unwrap()
    };
    let (one, other) = (ring(), ring());
    let slots = Slots::create(&one, 1, 4096).unwrap();
    let others = Slots::create(&other, 1, 4096).unwrap();
    let mut end = one.lane_end(0).unwrap();
    let mut loan = others.try_loan(0).unwrap().unwrap();
    let error = slots
        .put_lane_end(&mut end, &mut loan, &[0; 5])
        .unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::WrongMode);
    drop(loan);
    assert_clean(&here);
    drop((end, slots, others, one, other));
    assert_empty(&here);
}

#[test]
fn a_message_put_where_slots_go_gives_back_what_it_holds_taken_or_not() {
    let here = arena();
    for messages in [Array::Cells { capacity: 2 }, Array::Lane { capacity: 2 }] {
        for taken in [true, false] {
            let arrays = [messages, Array::Slots { count: 2 }];
            let ring = Object::create(&here, ObjectKind::Ring, arrays, 0).unwrap();
            let slots = Slots::create(&ring, 1, 4096).unwrap();
            let tensor = Tensor::<u8>::zeros_in(&here, [100]).unwrap();
            let queue = queue(&here, 1);
            let end = queue.end(0).unwrap();
            let message = (tensor, "too long for a cell".repeat(10), end);
            let mut message = message::encode(&here, message).unwrap();
            assert!(matches!(
                ring.try_put(0, &mut message).unwrap(),
                Put::Done(_)
            ));
            drop(queue);
            if taken {
                let mut seat = slots.seat().unwrap();
                let outcome = match messages {
                    Array::Lane { .. } => {
                        let mut end = ring.lane_end(1).unwrap();
                        slots.take_lane_end(&mut end, &mut seat)
                    }
                    _ => slots.take(&ring.end(1).unwrap(), &mut seat, &mut 0),
                };
                assert_eq!(*outcome.unwrap_err().kind(), ErrorKind::Decode);
                drop(seat);
                // The ring and the memory of its slots.
                assert_eq!(here.audit().lines, 2);
                assert_clean(&here);
            }
            drop((slots, ring));
            assert_empty(&here);
        }
    }
}
