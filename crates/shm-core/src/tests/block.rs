//! Messages that are all bytes of one shared block.

use super::{arena, assert_clean, assert_empty, join, queue};
use crate::cells::Claim;
use crate::error::ErrorKind;
use crate::line::Mode;
use crate::message::{FORM_BLOCK, Outgoing};
use crate::object::Object;
use crate::tensor::{SharedBytes, SharedTensor, Tensor};
use crate::transfer::{Get, Put};

fn of(tensor: Tensor<u8>) -> SharedBytes {
    SharedBytes::try_from(tensor.freeze()).unwrap()
}

#[test]
fn a_whole_tensor_arrives_with_the_words_beside_it() {
    let bytes = of(Tensor::from_slice(3, &[1_u8, 2, 3]).unwrap());
    let message = Outgoing::of_block(bytes.clone(), [1, 2, 3, 4, u64::MAX]);
    let (back, words) = message.into_block().unwrap();
    assert!(back.same_storage(&bytes));
    assert_eq!(words, [1, 2, 3, 4, u64::MAX]);
}

#[test]
fn one_that_refers_to_bytes_counts_one_more_reference_and_leaves_them_where_they_are() {
    let bytes = of(Tensor::from_slice(3, &[1_u8, 2, 3]).unwrap());
    let mut message = Outgoing::default();
    message.refer_to(&bytes, [5; 5]).unwrap();
    let bytes = bytes.try_thaw().unwrap_err();
    let (back, words) = message.into_block().unwrap();
    assert!(back.same_storage(&bytes));
    assert_eq!(words, [5; 5]);
    drop(back);
    bytes.try_thaw().unwrap();
}

#[test]
fn it_goes_through_cells_and_lanes_and_is_held_by_both_until_both_let_go() {
    let here = arena();
    let there = join(&here);
    let sender = queue(&here, 2);
    let receiver = Object::open(&there, sender.handle()).unwrap();
    for array in [0, 1] {
        let kept = of(Tensor::<u8>::full_in(&here, [10], 7).unwrap());
        let mut message = Outgoing::of_block(kept.clone(), [9; 5]);
        let put = sender.try_put(array, &mut message).unwrap();
        assert!(matches!(put, Put::Done(_)));
        let kept = kept.try_thaw().unwrap_err();
        let Get::Message(mut message, _) = receiver.try_get(array, &mut u64::MAX.clone()).unwrap()
        else {
            panic!("nothing came");
        };
        assert_eq!(message.beside_block(), Some([9; 5]));
        let (tensor, words) = message.take_block().unwrap().unwrap();
        assert_eq!((tensor.as_slice(), words), (&[7; 10][..], [9; 5]));
        assert!(message.take_block().is_none(), "it is taken once");
        assert!(message.beside_block().is_none());
        let kept = kept.try_thaw().unwrap_err();
        drop(tensor);
        kept.try_thaw().unwrap();
        assert_clean(&here);
    }
    drop((sender, receiver));
    assert_empty(&here);
}

#[test]
fn whoever_reads_it_as_a_value_gets_an_error_and_what_it_held_is_let_go() {
    let here = arena();
    let queue = queue(&here, 2);
    let bytes = of(Tensor::<u8>::full_in(&here, [10], 7).unwrap());
    let mut message = Outgoing::of_block(bytes, [0; 5]);
    assert!(message.duplicate().unwrap().decode::<u64>().is_err());
    assert!(matches!(
        queue.try_put(0, &mut message).unwrap(),
        Put::Done(_)
    ));
    let Get::Message(message, _) = queue.try_get(0, &mut u64::MAX.clone()).unwrap() else {
        panic!("nothing came");
    };
    let error = message
        .decode::<(SharedTensor<u8>, [u8; 7], [u8; 32])>()
        .unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Decode);
    drop(queue);
    assert_empty(&here);
}

#[test]
fn one_that_names_what_is_not_shared_is_refused() {
    let here = arena();
    let queue = queue(&here, 2);
    let tensor = Tensor::<u8>::full_in(&here, [10], 7).unwrap();
    let placed = tensor.into_placed();
    let (line, generation) = placed.storage().id();
    let cells = queue.cells(0).unwrap();
    let Claim::At(pos) = cells.claim(here.me()) else {
        panic!("a new queue is full");
    };
    cells.write(
        pos,
        &[u64::from(FORM_BLOCK) | line << 8, generation, 0, 0, 0, 0, 0],
    );
    cells.publish(pos);
    let error = queue.try_get(0, &mut u64::MAX.clone()).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::WrongMode);
    assert_eq!(placed.storage().mode(), Mode::Exclusive);
    drop((queue, placed));
    assert_empty(&here);
}
