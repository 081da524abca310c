//! What a message may hold, and that it arrives as it was, where it was.

use std::collections::BTreeMap;

use integration_tests::{Test, tests};
use serde::{Deserialize, Serialize};
use tensormp::prelude::*;
use tensormp::{Complex64, Complex128};

pub(crate) const TESTS: &[Test] = &tests![
    a_message_may_be_nested_as_deeply_as_serde_goes,
    a_child_fills_a_tensor_and_the_parent_sees_it,
    tensors_in_arguments_and_results_stay_where_they_are,
    a_received_tensor_can_be_sent_on_and_on,
    put_and_get_in_one_process_give_the_original_back,
    a_shared_tensor_and_its_views_stay_one_storage,
    a_transposed_tensor_arrives_transposed,
    elements_of_every_type_arrive_and_are_aligned,
    empty_tensors_and_tensors_without_dimensions_arrive,
    a_message_sent_before_the_receiver_started_arrives,
    a_message_of_a_sender_that_is_gone_arrives,
    a_queue_goes_through_a_queue,
];

#[derive(Debug, Serialize, Deserialize)]
enum Label {
    Nothing,
    Named(String),
    Boxes { corners: Tensor<f32>, count: u32 },
    Many(Vec<SharedTensor<u8>>),
}

#[derive(Debug, Serialize, Deserialize)]
struct Sample {
    title: String,
    frames: Vec<SharedTensor<f32>>,
    labels: Vec<Label>,
    mask: Option<Tensor<u8>>,
    nothing: Option<Tensor<u8>>,
    any: DynTensor,
    facts: BTreeMap<String, Option<f64>>,
    unit: (),
}

fn sample() -> tensormp::Result<Sample> {
    let image = Tensor::from_fn([2, 3], |at| (10 * at[0] + at[1]) as f32)?.freeze();
    Ok(Sample {
        title: "a title that does not fit into the fifty-six bytes of a cell".repeat(3),
        frames: vec![image.clone(), image.transpose(0, 1)?, image],
        labels: vec![
            Label::Nothing,
            Label::Named("ä".into()),
            Label::Boxes {
                corners: Tensor::full([4, 2], 0.5)?,
                count: 4,
            },
            Label::Many(vec![
                Tensor::full(3, 7)?.freeze(),
                Tensor::zeros(())?.freeze(),
            ]),
        ],
        mask: Some(Tensor::full([2, 3], 1)?),
        nothing: None,
        any: Tensor::full(2, -1_i64)?.into(),
        facts: BTreeMap::from([("fps".into(), Some(25.0)), ("cut".into(), None)]),
        unit: (),
    })
}

fn check(sample: &Sample) {
    assert!(sample.title.ends_with("of a cell") && sample.title.len() == 180);
    let [first, second, third] = &sample.frames[..] else {
        panic!("{} frames", sample.frames.len());
    };
    assert_eq!(first.to_vec(), [0.0, 1.0, 2.0, 10.0, 11.0, 12.0]);
    assert_eq!(second.to_vec(), [0.0, 10.0, 1.0, 11.0, 2.0, 12.0]);
    assert!(first.same_storage(second) && first.same_storage(third));
    let [
        Label::Nothing,
        Label::Named(name),
        Label::Boxes { corners, count },
        Label::Many(many),
    ] = &sample.labels[..]
    else {
        panic!("other labels");
    };
    assert_eq!((name.as_str(), *count), ("ä", 4));
    assert_eq!(
        (corners.shape(), corners.as_slice()),
        (&[4, 2][..], &[0.5; 8][..])
    );
    assert_eq!(
        (many[0].as_slice(), many[1].to_vec()),
        (&[7; 3][..], vec![0])
    );
    assert_eq!(sample.mask.as_ref().unwrap().as_slice(), [1; 6]);
    assert!(sample.nothing.is_none());
    assert_eq!(sample.any.as_slice::<i64>().unwrap(), [-1; 2]);
    assert_eq!(sample.facts["fps"], Some(25.0));
    assert_eq!(sample.facts["cut"], None);
}

/// Sends what comes back where it came from, or further.
fn relay<T>(_rank: usize, (from, to): (Receiver<T>, Sender<T>)) -> tensormp::Result<()>
where
    T: Serialize + for<'de> Deserialize<'de> + 'static,
{
    for value in &from {
        to.put(value)?;
    }
    Ok(())
}

/// The values after a way through `n` other processes, one after the other.
fn around<T>(values: Vec<T>, n: usize) -> Vec<T>
where
    T: Serialize + for<'de> Deserialize<'de> + 'static,
{
    let (first, mut last) = Queue::bounded(4).unwrap().split();
    let mut group = Group::new();
    for _ in 0..n {
        let (to, from) = Queue::bounded(4).unwrap().split();
        group.add("relay", relay::<T>, (last, to)).unwrap();
        last = from;
    }
    let mut context = group.start().unwrap();
    let mut back = Vec::new();
    for value in values {
        first.put(value).unwrap();
        back.push(last.get().unwrap());
    }
    drop(first);
    context.join().unwrap();
    assert!(last.get().is_err());
    back
}

fn a_message_may_be_nested_as_deeply_as_serde_goes() {
    let back = around(vec![sample().unwrap(), sample().unwrap()], 1);
    back.iter().for_each(check);
}

fn a_child_fills_a_tensor_and_the_parent_sees_it() {
    fn fill(_rank: usize, queue: Queue<Tensor<f32>>) -> tensormp::Result<()> {
        let mut tensor = queue.get()?;
        tensor.fill(7.0);
        tensor.set(&[1, 2], 8.0)?;
        queue.put(tensor)?;
        Ok(())
    }
    let queue = Queue::bounded(1).unwrap();
    let tensor = Tensor::zeros([2, 3]).unwrap();
    let place = tensor.as_slice().as_ptr();
    queue.put(tensor).unwrap();
    spawn(fill, queue.clone(), 1).unwrap().join().unwrap();
    let tensor = queue.get().unwrap();
    assert_eq!(tensor.as_slice(), [7.0, 7.0, 7.0, 7.0, 7.0, 8.0]);
    assert_eq!(tensor.as_slice().as_ptr(), place, "no element was moved");
}

fn tensors_in_arguments_and_results_stay_where_they_are() {
    type Pair = (Tensor<u32>, SharedTensor<u32>);
    fn double(_rank: usize, (mut own, shared): Pair) -> tensormp::Result<Pair> {
        for (own, &shared) in own.as_mut_slice().iter_mut().zip(shared.as_slice()) {
            *own = 2 * shared;
        }
        Ok((own, shared))
    }
    let own = Tensor::zeros(1000).unwrap();
    let shared = Tensor::arange(0, 1000, 1).unwrap().freeze();
    let place = own.as_slice().as_ptr();
    let context = spawn(double, (own, shared.clone()), 1).unwrap();
    let (own, back) = context.into_results().unwrap().remove(0);
    assert_eq!(own.as_slice().as_ptr(), place);
    assert!(own.as_slice().iter().copied().eq((0..1000).map(|x| 2 * x)));
    assert!(back.same_storage(&shared));
}

fn a_received_tensor_can_be_sent_on_and_on() {
    let tensor = Tensor::arange(0_i32, 100, 1).unwrap();
    let place = tensor.as_slice().as_ptr();
    let mut back = around(vec![tensor], 4);
    let tensor = back.remove(0);
    assert!(tensor.as_slice().iter().copied().eq(0..100));
    assert_eq!(tensor.as_slice().as_ptr(), place);
    // And once more from here.
    assert_eq!(around(vec![tensor], 1)[0].as_slice().as_ptr(), place);
}

fn put_and_get_in_one_process_give_the_original_back() {
    let queue = Queue::bounded(2).unwrap();
    let mut tensor = Tensor::full(10, 1_u8).unwrap();
    let place = tensor.as_slice().as_ptr();
    for _ in 0..100 {
        queue.put(tensor).unwrap();
        tensor = queue.get().unwrap();
        tensor.as_mut_slice()[3] += 1;
    }
    assert_eq!(tensor.as_slice().as_ptr(), place);
    assert_eq!(tensor.as_slice()[2..5], [1, 101, 1]);

    let shared = tensor.freeze();
    let queue = Queue::bounded(2).unwrap();
    queue.put(shared.clone()).unwrap();
    let back: SharedTensor<u8> = queue.get().unwrap();
    assert!(back.same_storage(&shared));
    let shared = shared.try_thaw().unwrap_err();
    drop(back);
    assert!(
        shared.try_thaw().is_ok(),
        "the message holds nothing any more"
    );
}

fn a_shared_tensor_and_its_views_stay_one_storage() {
    let whole = Tensor::arange(0_i64, 12, 1).unwrap();
    let whole = whole.into_reshaped([3, 4]).unwrap().freeze();
    let column = whole.select(1, 2).unwrap();
    let back = around(vec![(whole.clone(), column.clone(), whole.clone())], 2);
    let (again, view, twice) = &back[0];
    assert!(again.same_storage(&whole) && view.same_storage(&whole) && twice.same_storage(&whole));
    assert_eq!((view.shape(), view.to_vec()), (&[3][..], vec![2, 6, 10]));
    assert_eq!(again.to_vec(), whole.to_vec());
}

fn a_transposed_tensor_arrives_transposed() {
    let mut tensor = Tensor::from_fn([2, 3], |at| (10 * at[0] + at[1]) as u16).unwrap();
    tensor.transpose(0, 1).unwrap();
    let back = around(vec![tensor], 1);
    assert_eq!(
        (back[0].shape(), back[0].strides()),
        (&[3, 2][..], &[1, 3][..])
    );
    assert_eq!(back[0].to_vec(), [0, 10, 1, 11, 2, 12]);
}

fn elements_of_every_type_arrive_and_are_aligned() {
    fn tensor<T: Element>(values: &[T]) -> DynTensor {
        Tensor::from_slice(values.len(), values).unwrap().into()
    }
    fn arrived<T: Element>(tensor: &DynTensor, values: &[T]) {
        let elements = tensor.as_slice::<T>().unwrap();
        assert_eq!(elements, values);
        assert_eq!(tensor.dtype(), T::DTYPE);
        assert_eq!(
            elements.as_ptr().addr() % 64,
            0,
            "{} is not aligned",
            T::DTYPE
        );
    }
    macro_rules! each {
        ($($values:expr),* $(,)?) => {{
            let back = around(vec![$(tensor(&$values)),*], 1);
            let mut tensors = back.iter();
            $(arrived(tensors.next().unwrap(), &$values);)*
            back.len()
        }};
    }
    let types = each![
        [Bool(0), Bool(1), Bool(0)],
        [1_u8, u8::MAX],
        [1_u16, u16::MAX, 3],
        [1_u32, u32::MAX],
        [1_u64, u64::MAX],
        [-1_i8, i8::MIN],
        [-1_i16, i16::MIN],
        [-1_i32, i32::MIN],
        [-1_i64, i64::MIN],
        [f16::from_f32(0.5), f16::MAX],
        [bf16::from_f32(0.5), bf16::MIN],
        [0.1_f32, f32::INFINITY],
        [0.1_f64, f64::MIN_POSITIVE],
        [Complex64::new(1.0, -1.0)],
        [Complex128::new(1.0, -1.0), Complex128::ZERO],
    ];
    assert_eq!(types, Dtype::ALL.len());
}

fn empty_tensors_and_tensors_without_dimensions_arrive() {
    let back = around(
        vec![
            Tensor::<f64>::zeros(0).unwrap(),
            Tensor::zeros([3, 0, 2]).unwrap(),
            Tensor::full((), 2.5).unwrap(),
        ],
        1,
    );
    assert_eq!((back[0].shape(), back[0].as_slice()), (&[0][..], &[][..]));
    assert_eq!((back[1].shape(), back[1].numel()), (&[3, 0, 2][..], 0));
    assert_eq!((back[2].shape(), back[2].as_slice()), (&[][..], &[2.5][..]));
    let back = around(vec![Tensor::<u8>::zeros([0, 4]).unwrap().freeze()], 2);
    assert_eq!((back[0].shape(), back[0].len()), (&[0, 4][..], 0));
}

fn a_message_sent_before_the_receiver_started_arrives() {
    fn first(_rank: usize, from: Receiver<Sample>) -> tensormp::Result<()> {
        check(&from.get()?);
        assert!(from.get().unwrap_err().is_closed());
        Ok(())
    }
    let (sender, receiver) = Queue::bounded(1).unwrap().split();
    sender.put(sample().unwrap()).unwrap();
    drop(sender);
    spawn(first, receiver, 1).unwrap().join().unwrap();
}

fn a_message_of_a_sender_that_is_gone_arrives() {
    fn send(_rank: usize, to: Sender<Sample>) -> tensormp::Result<()> {
        for _ in 0..3 {
            to.put(sample()?)?;
        }
        Ok(())
    }
    let (sender, receiver) = Queue::bounded(4).unwrap().split();
    spawn(send, sender, 1).unwrap().join().unwrap();
    // The sender's process is gone and was waited for.
    let samples: Vec<_> = receiver.iter().collect();
    assert_eq!(samples.len(), 3);
    samples.iter().for_each(check);
}

fn a_queue_goes_through_a_queue() {
    /// A request, and where the answer is wanted.
    type Request = (Tensor<u32>, Sender<Tensor<u32>>);
    fn serve(_rank: usize, from: Receiver<Request>) -> tensormp::Result<()> {
        for (mut tensor, answer) in &from {
            for x in tensor.as_mut_slice() {
                *x += 1;
            }
            answer.put(tensor)?;
        }
        Ok(())
    }
    let (sender, receiver) = Queue::<Request>::bounded(4).unwrap().split();
    let mut context = spawn(serve, receiver, 2).unwrap();
    for i in 0..20 {
        let (answer, answers) = Queue::bounded(1).unwrap().split();
        sender.put((Tensor::full(3, i).unwrap(), answer)).unwrap();
        assert_eq!(answers.get().unwrap().as_slice(), [i + 1; 3]);
        // Its one sender was the one that went along.
        assert!(answers.get().unwrap_err().is_closed());
    }
    drop(sender);
    context.join().unwrap();
}
