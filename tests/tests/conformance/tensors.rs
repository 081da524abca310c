//! What arrives: the same bytes in the same place, whatever the tensor looks like. The CPU part of the list that torch's
//! own tests check, with a second participant of any kind.

use integration_tests::{Test, tests};
use tensormp::prelude::*;
use tensormp::{Complex64, Complex128};

use crate::peer::{here, peer};

pub(crate) const PROMISES: &[Test] = &tests![
    a_child_fills_a_tensor_and_a_column_and_the_parent_sees_it,
    a_child_writes_in_place_and_the_parent_sees_it,
    the_same_tensor_sent_twice_is_one_storage,
    a_tensor_and_views_of_it_sent_together_keep_one_storage,
    a_view_keeps_its_strides_and_its_place,
    what_a_worker_writes_in_place_comes_back,
    a_tensor_inherited_as_an_argument_is_the_same_memory,
    empty_tensors_go_through,
    a_tensor_without_dimensions_goes_through,
    every_element_type_arrives_aligned,
    a_tensor_of_any_type_keeps_its_type,
    a_message_sent_before_the_receiver_started_arrives,
    a_tensor_that_was_received_can_be_sent_on,
    a_name_that_one_gives_others_find,
];

fn a_child_fills_a_tensor_and_a_column_and_the_parent_sees_it() {
    type Both = (SharedTensor<f32>, SharedTensor<f32>);
    fn fill(_rank: usize, mut tensor: Tensor<f32>) -> tensormp::Result<Both> {
        tensor.fill(4.0);
        for row in 0..5 {
            tensor.set(&[row, 2], 5.0)?;
        }
        let whole = tensor.freeze();
        let column = whole.narrow(1, 2, 1)?;
        Ok((whole, column))
    }
    let tensor = Tensor::zeros([5, 5]).unwrap();
    let (whole, column) = peer(fill, tensor).join();
    assert!(whole.same_storage(&column));
    assert_eq!(column.shape(), [5, 1]);
    assert_eq!(column.to_vec(), [5.0; 5]);
    let expected: Vec<f32> = (0..25)
        .map(|i| if i % 5 == 2 { 5.0 } else { 4.0 })
        .collect();
    assert_eq!(whole.as_slice(), expected);
}

fn a_child_writes_in_place_and_the_parent_sees_it() {
    type Both = (AliasedTensor<f32>, AliasedTensor<f32>);
    fn fill(_rank: usize, (whole, column): Both) -> tensormp::Result<bool> {
        whole.fill(4.0);
        column.fill(5.0);
        Ok(whole.same_storage(&column))
    }
    let whole = Tensor::<f32>::zeros([5, 5]).unwrap().alias();
    let column = whole.narrow(1, 2, 1).unwrap();
    assert!(peer(fill, (whole.clone(), column.clone())).join());
    // What this process kept all the time.
    assert_eq!(column.to_vec(), [5.0; 5]);
    let expected: Vec<f32> = (0..25)
        .map(|i| if i % 5 == 2 { 5.0 } else { 4.0 })
        .collect();
    assert_eq!(whole.to_vec(), expected);
}

fn the_same_tensor_sent_twice_is_one_storage() {
    fn receive(_rank: usize, from: Receiver<SharedTensor<i32>>) -> tensormp::Result<bool> {
        let (first, second) = (from.get()?, from.get()?);
        Ok(first.same_storage(&second) && first.as_slice().as_ptr() == second.as_slice().as_ptr())
    }
    let tensor = Tensor::full([5, 5], 7).unwrap().freeze();
    let (sender, receiver) = Queue::bounded(4).unwrap().split();
    let worker = peer(receive, receiver);
    for _ in 0..2 {
        sender.put(tensor.clone()).unwrap();
    }
    assert!(worker.join());
}

fn a_tensor_and_views_of_it_sent_together_keep_one_storage() {
    type Family = (SharedTensor<u16>, Vec<SharedTensor<u16>>);
    fn relate(_rank: usize, (whole, views): Family) -> tensormp::Result<bool> {
        Ok(views.iter().all(|view| view.same_storage(&whole)) && views[1].to_vec() == [4, 12])
    }
    let whole = Tensor::from_fn([4, 4], |at| (at[0] * 4 + at[1]) as u16)
        .unwrap()
        .freeze();
    let views = vec![
        whole.transpose(0, 1).unwrap(),
        whole.slice(0, 1.., 2).unwrap().select(1, 0).unwrap(),
        whole.narrow(1, 3, 1).unwrap(),
    ];
    assert!(peer(relate, (whole, views)).join());
}

fn a_view_keeps_its_strides_and_its_place() {
    type Looks = (Vec<usize>, Vec<isize>, usize, Vec<i64>);
    fn look(_rank: usize, view: SharedTensor<i64>) -> tensormp::Result<Looks> {
        let strides = view.strides().to_vec();
        Ok((view.shape().to_vec(), strides, view.offset(), view.to_vec()))
    }
    let whole = Tensor::from_fn([3, 4], |at| (at[0] * 4 + at[1]) as i64)
        .unwrap()
        .freeze();
    let view = whole.transpose(0, 1).unwrap().slice(0, 1.., 2).unwrap();
    let here = look(0, view.clone()).unwrap();
    assert_eq!(peer(look, view).join(), here);
    let spread = whole.select(0, 1).unwrap().expand([2, 4]).unwrap();
    let here = look(0, spread.clone()).unwrap();
    assert_eq!(here.1[0], 0);
    assert_eq!(peer(look, spread).join(), here);
}

fn what_a_worker_writes_in_place_comes_back() {
    type Work = (Receiver<Tensor<u32>>, Sender<Tensor<u32>>);
    fn square(_rank: usize, (from, to): Work) -> tensormp::Result<u32> {
        let mut count = 0;
        for mut tensor in &from {
            for x in tensor.as_mut_slice() {
                *x *= *x;
            }
            to.put(tensor)?;
            count += 1;
        }
        Ok(count)
    }
    let (work, from) = Queue::bounded(2).unwrap().split();
    let (to, done) = Queue::bounded(2).unwrap().split();
    let worker = peer(square, (from, to));
    for i in 0..20 {
        let tensor = Tensor::full(100, i).unwrap();
        let place = tensor.as_slice().as_ptr();
        work.put(tensor).unwrap();
        let back = done.get().unwrap();
        assert_eq!(back.as_slice(), [i * i; 100]);
        assert_eq!(back.as_slice().as_ptr(), place, "the very same memory");
    }
    drop(work);
    assert_eq!(worker.join(), 20);
}

fn a_tensor_inherited_as_an_argument_is_the_same_memory() {
    fn look(_rank: usize, both: [SharedTensor<u8>; 2]) -> tensormp::Result<(u8, bool)> {
        Ok((both[0].as_slice()[999], both[0].same_storage(&both[1])))
    }
    let tensor = Tensor::full(1000, 3_u8).unwrap().freeze();
    let committed = here().stats().committed;
    let answer = peer(look, [tensor.clone(), tensor.clone()]).join();
    assert_eq!(answer, (3, true));
    // Room for letters and leases, but none for another tensor of 64 MiB, say.
    assert!(here().stats().committed - committed < 8 << 20);
}

fn empty_tensors_go_through() {
    fn back(_rank: usize, all: Vec<Tensor<f64>>) -> tensormp::Result<Vec<Tensor<f64>>> {
        Ok(all)
    }
    let shapes: [&[usize]; 4] = [&[0], &[0, 3], &[3, 0, 2], &[1, 0]];
    let sent = shapes.map(|shape| Tensor::zeros(shape).unwrap());
    let back = peer(back, Vec::from(sent)).join();
    for (tensor, shape) in back.iter().zip(shapes) {
        assert_eq!(tensor.shape(), shape);
        assert_eq!(tensor.as_slice(), [0.0; 0]);
    }
}

fn a_tensor_without_dimensions_goes_through() {
    fn one_more(_rank: usize, mut tensor: Tensor<i16>) -> tensormp::Result<Tensor<i16>> {
        let value = tensor.get(&[])?;
        tensor.set(&[], value + 1)?;
        Ok(tensor)
    }
    let back = peer(one_more, Tensor::full([], 41_i16).unwrap()).join();
    assert_eq!(
        (back.ndim(), back.numel(), back.as_slice()),
        (0, 1, &[42][..])
    );
}

fn every_element_type_arrives_aligned() {
    fn check(_rank: usize, all: Vec<DynTensor>) -> tensormp::Result<usize> {
        for tensor in &all {
            let bytes = tensor.as_bytes()?;
            assert_eq!(bytes.as_ptr().addr() % 64, 0, "{:?}", tensor.dtype());
            assert!(bytes.iter().all(|&byte| byte == 1), "{:?}", tensor.dtype());
        }
        Ok(all.len())
    }
    // Lengths that leave the next one anywhere, were they packed.
    let all = Dtype::ALL.map(|dtype| {
        let mut tensor = DynTensor::zeros(dtype, [3]).unwrap();
        tensor.as_bytes_mut().unwrap().fill(1);
        tensor
    });
    assert_eq!(peer(check, Vec::from(all)).join(), Dtype::ALL.len());
}

fn a_tensor_of_any_type_keeps_its_type() {
    type Several = (
        Tensor<Bool>,
        Tensor<f16>,
        Tensor<bf16>,
        Tensor<Complex64>,
        Tensor<Complex128>,
    );
    fn sum(_rank: usize, all: Several) -> tensormp::Result<(u32, f32, f32, f32, f64)> {
        let (truth, half, brain, small, large) = all;
        Ok((
            truth.iter().map(|x| u32::from(x.is_true())).sum(),
            half.iter().map(|x| x.to_f32()).sum(),
            brain.iter().map(|x| x.to_f32()).sum(),
            small.iter().map(|x| x.re + x.im).sum(),
            large.iter().map(|x| x.re + x.im).sum(),
        ))
    }
    let sent = (
        Tensor::full(3, Bool::from(true)).unwrap(),
        Tensor::full(3, f16::from_f32(0.5)).unwrap(),
        Tensor::full(3, bf16::from_f32(2.0)).unwrap(),
        Tensor::full(3, Complex64 { re: 1.0, im: 2.0 }).unwrap(),
        Tensor::full(3, Complex128 { re: 3.0, im: 4.0 }).unwrap(),
    );
    assert_eq!(peer(sum, sent).join(), (3, 1.5, 6.0, 9.0, 21.0));
    let (sender, receiver) = Queue::bounded(1).unwrap().split();
    sender.put(DynTensor::zeros(Dtype::U8, 3).unwrap()).unwrap();
    let error = receiver.get().unwrap().downcast::<f32>().unwrap_err();
    let text = error.to_string();
    assert!(text.contains("u8") && text.contains("f32"), "{text}");
}

fn a_message_sent_before_the_receiver_started_arrives() {
    fn take(_rank: usize, from: Receiver<Tensor<u64>>) -> tensormp::Result<u64> {
        Ok(from
            .iter()
            .map(|tensor| tensor.as_slice().iter().sum::<u64>())
            .sum())
    }
    let (sender, receiver) = Queue::bounded(10).unwrap().split();
    for i in 0..10 {
        sender.put(Tensor::full(10, i).unwrap()).unwrap();
    }
    drop(sender);
    assert_eq!(peer(take, receiver).join(), 450);
}

fn a_tensor_that_was_received_can_be_sent_on() {
    fn pass_on(
        _rank: usize,
        (from, to): (Receiver<Tensor<u8>>, Sender<Tensor<u8>>),
    ) -> tensormp::Result<()> {
        for tensor in &from {
            to.put(tensor)?;
        }
        Ok(())
    }
    let (sender, a) = Queue::bounded(1).unwrap().split();
    let (to, b) = Queue::bounded(1).unwrap().split();
    let (end, receiver) = Queue::bounded(1).unwrap().split();
    let workers = [peer(pass_on, (a, to)), peer(pass_on, (b, end))];
    sender.put(Tensor::full(9, 9_u8).unwrap()).unwrap();
    assert_eq!(receiver.get().unwrap().as_slice(), [9; 9]);
    drop(sender);
    for worker in workers {
        worker.join();
    }
}

fn a_name_that_one_gives_others_find() {
    fn find(_rank: usize, to: Sender<()>) -> tensormp::Result<Vec<u32>> {
        let arena = here();
        let weights: SharedTensor<u32> = arena.open("weights")?;
        arena.publish("answer", &(weights.clone(), to))?;
        Ok(weights.to_vec())
    }
    let arena = here();
    let weights = Tensor::from_slice(3, &[1_u32, 2, 3]).unwrap().freeze();
    arena.publish("weights", &weights).unwrap();
    let (sender, receiver) = Queue::bounded(1).unwrap().split();
    assert_eq!(peer(find, sender).join(), [1, 2, 3]);
    // Its publisher is gone, or soon will be.
    let (same, to): (SharedTensor<u32>, Sender<()>) = arena.open("answer").unwrap();
    assert!(same.same_storage(&weights));
    to.put(()).unwrap();
    receiver.get().unwrap();
    let names: Vec<_> = arena
        .published()
        .unwrap()
        .into_iter()
        .map(|one| one.name)
        .collect();
    assert_eq!(names, ["weights", "answer"]);
    arena.unpublish("answer").unwrap();
    drop(to);
    assert!(receiver.get().is_err(), "the last sender is gone");
}
