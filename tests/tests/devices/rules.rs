//! What users of other libraries have to remember, and here nobody has.

use cuda_emulator::Knobs;
use cuda_ipc::{Device, DeviceTensor, ErrorKind, SharedDeviceTensor, Stream};
use integration_tests::{Test, tests};
use tensormp::prelude::*;
use tensormp::spawn_api::builder;

use crate::support::{all_is_well, machine, no_memory_is_left, with};

pub(crate) const TESTS: &[Test] = &tests![
    put_and_get_in_one_process_gives_the_original,
    a_received_tensor_is_sent_on_and_its_memory_stays,
    devices_travel_by_what_they_are_called_everywhere,
    a_device_that_the_receiver_does_not_see_is_an_error_that_says_so,
    another_device_may_be_current_when_a_tensor_is_sent_or_received,
    an_exclusive_tensor_that_is_still_held_is_not_sent,
    a_tensor_of_another_type_is_refused,
    a_tensor_outside_of_a_message_is_an_error,
    without_a_device_everything_says_why,
    a_driver_without_a_call_is_an_error_where_it_is_needed,
    options_are_chosen_before_the_first_tensor,
];

type Ints = DeviceTensor<i32>;

fn put_and_get_in_one_process_gives_the_original() {
    let session = machine();
    let queue = Queue::bounded(2).unwrap();
    let tensor = DeviceTensor::from_slice([3], &[1, 2, 3]).unwrap();
    let address = tensor.read_in(tensor.stream()).unwrap();
    queue.put(tensor).unwrap();
    let mut tensor: Ints = queue.get().unwrap();
    assert!(tensor.is_at_home());
    assert_eq!(tensor.read_in(tensor.stream()).unwrap(), address);
    tensor.copy_from_slice(&[4, 5, 6]).unwrap();
    let shared = tensor.freeze();
    let queue = Queue::bounded(2).unwrap();
    queue.put(shared.clone()).unwrap();
    let second: SharedDeviceTensor<i32> = queue.get().unwrap();
    assert!(second.same_storage(&shared));
    assert_eq!(second.to_vec().unwrap(), [4, 5, 6]);
    assert_eq!(cuda_ipc::stats().opened, 0);
    drop((second, shared));
    all_is_well(session);
}

fn a_received_tensor_is_sent_on_and_its_memory_stays() {
    fn pass(_rank: usize, (from, to): (Receiver<Ints>, Sender<Ints>)) -> tensormp::Result<()> {
        for tensor in &from {
            to.put(tensor)?;
        }
        Ok(())
    }
    fn last(_rank: usize, (go, from): (Event, Receiver<Ints>)) -> tensormp::Result<Vec<i32>> {
        go.wait()?;
        Ok(from
            .iter()
            .map(|tensor| tensor.to_vec().unwrap()[0])
            .collect())
    }
    let session = machine();
    let (sender, between) = Queue::bounded(8).unwrap().split();
    let (passed, receiver) = Queue::bounded(8).unwrap().split();
    let go = Event::new().unwrap();
    let mut end = spawn(last, (go.clone(), receiver), 1).unwrap();
    let mut middle = spawn(pass, (between, passed), 1).unwrap();
    for value in 0..5 {
        sender
            .put(DeviceTensor::from_slice([1000], &[value; 1000]).unwrap())
            .unwrap();
    }
    drop(sender);
    // Who passed them on is gone before they are received.
    middle.join().unwrap();
    drop(middle);
    for _ in 0..5 {
        drop(DeviceTensor::from_slice([1000], &[99; 1000]).unwrap());
    }
    go.set();
    assert_eq!(end.join().unwrap(), [[0, 1, 2, 3, 4]]);
    all_is_well(session);
}

fn devices_travel_by_what_they_are_called_everywhere() {
    fn look(_rank: usize, from: Receiver<Ints>) -> tensormp::Result<Vec<(u32, String, i32)>> {
        Ok(from
            .iter()
            .map(|tensor| {
                let device = tensor.device();
                (
                    device.ordinal(),
                    device.uuid().to_string(),
                    tensor.to_vec().unwrap()[0],
                )
            })
            .collect())
    }
    let session = machine();
    let (sender, receiver) = Queue::bounded(2).unwrap().split();
    // There, the devices are numbered the other way round.
    let other_way = builder().env("CUDA_VISIBLE_DEVICES", "1,0");
    let mut context = other_way.spawn(look, receiver, 1).unwrap();
    let mut wanted = Vec::new();
    for ordinal in [0, 1] {
        let device = Device::new(ordinal).unwrap();
        let stream = Stream::of(device).unwrap();
        let tensor = DeviceTensor::from_slice_on(&stream, [1], &[ordinal as i32 + 10]).unwrap();
        sender.put(tensor).unwrap();
        wanted.push((1 - ordinal, device.uuid().to_string(), ordinal as i32 + 10));
    }
    drop(sender);
    assert_eq!(context.join().unwrap(), [wanted]);
    all_is_well(session);
}

fn a_device_that_the_receiver_does_not_see_is_an_error_that_says_so() {
    fn look(_rank: usize, from: Receiver<Ints>) -> tensormp::Result<(String, i32)> {
        let refused = from.get().unwrap_err().to_string();
        Ok((refused, from.get()?.to_vec().unwrap()[0]))
    }
    let session = machine();
    let (sender, receiver) = Queue::bounded(2).unwrap().split();
    let one_only = builder().env("CUDA_VISIBLE_DEVICES", "0");
    let mut context = one_only.spawn(look, receiver, 1).unwrap();
    let [first, second] = [0, 1].map(|ordinal| Device::new(ordinal).unwrap());
    let away = Stream::of(second).unwrap();
    sender
        .put(DeviceTensor::from_slice_on(&away, [1], &[1]).unwrap())
        .unwrap();
    sender
        .put(DeviceTensor::from_slice([1], &[2]).unwrap())
        .unwrap();
    let results = context.join().unwrap();
    let (refused, value) = &results[0];
    for uuid in [first.uuid(), second.uuid()] {
        assert!(refused.contains(&uuid.to_string()), "{refused}");
    }
    assert_eq!(*value, 2);
    drop(sender);
    all_is_well(session);
}

fn another_device_may_be_current_when_a_tensor_is_sent_or_received() {
    fn look(_rank: usize, from: Receiver<Ints>) -> tensormp::Result<Vec<i32>> {
        let other = Stream::new(Device::new(1).unwrap()).unwrap();
        other.scope(|| {
            let tensors = from.iter().map(|tensor| {
                assert_eq!(tensor.device().ordinal(), 0);
                tensor.to_vec().unwrap()[0]
            });
            Ok(tensors.collect())
        })
    }
    let session = machine();
    let (sender, receiver) = Queue::bounded(2).unwrap().split();
    let mut context = spawn(look, receiver, 1).unwrap();
    let first = Stream::of(Device::new(0).unwrap()).unwrap();
    let other = Stream::of(Device::new(1).unwrap()).unwrap();
    for value in 0..5 {
        other.scope(|| {
            let tensor = DeviceTensor::from_slice_on(&first, [10], &[value; 10]).unwrap();
            assert_eq!(
                DeviceTensor::<u8>::zeros([1]).unwrap().device().ordinal(),
                1
            );
            sender.put(tensor).unwrap();
        });
    }
    drop(sender);
    assert_eq!(context.join().unwrap(), [[0, 1, 2, 3, 4]]);
    all_is_well(session);
}

fn an_exclusive_tensor_that_is_still_held_is_not_sent() {
    let session = machine();
    let queue = Queue::bounded(2).unwrap();
    let tensor = std::sync::Arc::new(DeviceTensor::from_slice([1], &[1]).unwrap());
    let error = queue.put(tensor.clone()).unwrap_err();
    assert!(error.to_string().contains("still holds"), "{error}");
    drop(queue);
    assert_eq!(tensor.to_vec().unwrap(), [1]);
    drop(tensor);
    all_is_well(session);
}

fn a_tensor_of_another_type_is_refused() {
    // What a message may hold is looked at when it is read: here one that says what it is, and one that does not.
    #[derive(serde::Serialize, serde::Deserialize)]
    struct Doubles(DeviceTensor<f64>);
    #[derive(Debug, serde::Serialize, serde::Deserialize)]
    struct Whole(DeviceTensor<i32>);
    fn look(_rank: usize, from: Receiver<Whole>) -> tensormp::Result<String> {
        Ok(from.get().unwrap_err().to_string())
    }
    let session = machine();
    let queue: Queue<Doubles> = Queue::bounded(2).unwrap();
    queue
        .put(Doubles(DeviceTensor::zeros([2]).unwrap()))
        .unwrap();
    // The same queue, believed to be of another type: in a tuple, since `open` looks at the types of a queue itself.
    let arena = Arena::current().unwrap();
    arena.publish("doubles", &(&queue,)).unwrap();
    let (lied,): (Queue<Whole>,) = arena.open("doubles").unwrap();
    let mut context = spawn(look, lied.receiver().clone(), 1).unwrap();
    let text = &context.join().unwrap()[0];
    assert!(text.contains("f64") && text.contains("i32"), "{text}");
    arena.unpublish("doubles").unwrap();
    drop((queue, lied));
    all_is_well(session);
}

fn a_tensor_outside_of_a_message_is_an_error() {
    let session = machine();
    let tensor = DeviceTensor::from_slice([1], &[1]).unwrap();
    let error = serde_json::to_string(&tensor).unwrap_err().to_string();
    assert!(error.contains("only into a message"), "{error}");
    drop(tensor);
    all_is_well(session);
}

fn without_a_device_everything_says_why() {
    let session = with(&Knobs::new().devices(0));
    assert!(!cuda_ipc::is_available());
    let why = cuda_ipc::device_count().unwrap_err().to_string();
    assert!(why.contains("100") && why.contains("nvidia-smi"), "{why}");
    for error in [
        cuda_ipc::devices().map(drop).unwrap_err(),
        Device::new(0).map(drop).unwrap_err(),
        Stream::current().map(drop).unwrap_err(),
        DeviceTensor::<u8>::zeros([1]).map(drop).unwrap_err(),
    ] {
        assert!(
            matches!(
                error.kind(),
                ErrorKind::Unavailable(_)
                    | ErrorKind::NoSuchDevice
                    | ErrorKind::Driver { code: 100, .. }
            ),
            "{error:?}"
        );
    }
    cuda_ipc::collect();
    no_memory_is_left(session);
}

fn a_driver_without_a_call_is_an_error_where_it_is_needed() {
    let session = with(&Knobs::new().missing(&["cuStreamCreate"]));
    assert_eq!(cuda_ipc::devices().unwrap().len(), 2);
    let error = DeviceTensor::<u8>::zeros([1]).unwrap_err();
    assert_eq!(
        *error.kind(),
        ErrorKind::MissingCall {
            call: "cuStreamCreate"
        },
        "{error}"
    );
    no_memory_is_left(session);
}

fn options_are_chosen_before_the_first_tensor() {
    let session = machine();
    cuda_ipc::Options::new().events(8).install().unwrap();
    drop(DeviceTensor::<u8>::zeros([1]).unwrap());
    let error = cuda_ipc::Options::new().install().unwrap_err();
    assert!(error.to_string().contains("first thing"), "{error}");
    all_is_well(session);
}
