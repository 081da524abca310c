//! Device tensors go to other processes, and are the same memory there.

use cuda_ipc::{Device, DeviceTensor, DynDeviceTensor, SharedDeviceTensor};
use integration_tests::{Test, tests};
use tensormp::prelude::*;
use tensormp::spawn_api::builder;

use crate::support::{all_is_well, machine};

pub(crate) const TESTS: &[Test] = &tests![
    a_tensor_that_was_sent_has_its_elements,
    a_process_by_a_fork_server_works_on_the_device,
    what_a_consumer_writes_into_an_exclusive_tensor_comes_back,
    a_producer_may_drop_what_it_sent,
    a_shared_tensor_is_read_by_several_processes,
    a_queue_of_length_one_carries_a_whole_state_dict,
    small_tensors_of_mixed_types_share_one_allocation,
    empty_scalar_and_strided_tensors_arrive_as_they_were,
    two_views_of_one_tensor_arrive_as_two_views_of_one,
    a_tensor_is_inherited_as_an_argument_and_comes_home_as_a_result,
    tensors_that_a_process_made_come_home_as_its_result,
    what_a_worker_made_outlives_the_worker_that_its_pool_replaced,
    a_tensor_without_its_type_is_sent_as_what_it_is,
    two_thousand_sends_of_one_tensor_open_it_once,
    a_hundred_thousand_tensors_through_three_processes_have_an_exact_sum,
    a_device_tensor_goes_to_another_device,
];

type Floats = DeviceTensor<f32>;

fn a_tensor_that_was_sent_has_its_elements() {
    fn sum(_rank: usize, from: Receiver<Floats>) -> tensormp::Result<Vec<f32>> {
        let tensor = from.get()?;
        assert!(!tensor.is_at_home());
        assert_eq!(tensor.shape(), [2, 3]);
        Ok(tensor.to_vec().unwrap())
    }
    let session = machine();
    let (sender, receiver) = Queue::bounded(4).unwrap().split();
    let mut context = spawn(sum, receiver, 1).unwrap();
    let elements = [0.0, 1.0, 2.0, 3.0, 4.0, 5.5];
    sender
        .put(DeviceTensor::from_slice([2, 3], &elements).unwrap())
        .unwrap();
    assert_eq!(context.join().unwrap(), [elements.to_vec()]);
    all_is_well(session);
}

fn a_process_by_a_fork_server_works_on_the_device() {
    fn double(
        _rank: usize,
        (from, to): (Receiver<Floats>, Sender<Floats>),
    ) -> tensormp::Result<Vec<f32>> {
        let mut tensor = from.get()?;
        let doubled: Vec<f32> = tensor.to_vec().unwrap().iter().map(|x| x * 2.0).collect();
        tensor.copy_from_slice(&doubled).unwrap();
        to.put(tensor)?;
        // One of its own, which goes with it.
        let own = DeviceTensor::from_slice([2], &[7.0_f32, 8.0]).unwrap();
        Ok(own.to_vec().unwrap())
    }
    let session = machine();
    // The program's own context is there before the server is.
    let tensors = [1.0_f32, 2.0].map(|x| DeviceTensor::from_slice([3], &[x; 3]).unwrap());
    for (round, tensor) in tensors.into_iter().enumerate() {
        let (sender, receiver) = Queue::bounded(1).unwrap().split();
        let (back, home) = Queue::bounded(1).unwrap().split();
        let mut context = tensormp::spawn_api::builder()
            .start_method(tensormp::StartMethod::Forkserver)
            .spawn(double, (receiver, back), 1)
            .unwrap();
        sender.put(tensor).unwrap();
        let tensor: Floats = home.get().unwrap();
        assert_eq!(tensor.to_vec().unwrap(), [2.0 * (round + 1) as f32; 3]);
        assert_eq!(context.join().unwrap(), [[7.0, 8.0]]);
    }
    let server = tensormp::forkserver::pid();
    assert!(server.is_some(), "they were started by spawn");
    all_is_well(session);
}

fn what_a_consumer_writes_into_an_exclusive_tensor_comes_back() {
    fn double(
        _rank: usize,
        (from, to): (Receiver<Floats>, Sender<Floats>),
    ) -> tensormp::Result<()> {
        for mut tensor in &from {
            let doubled: Vec<f32> = tensor.to_vec().unwrap().iter().map(|x| x * 2.0).collect();
            tensor.copy_from_slice(&doubled).unwrap();
            to.put(tensor)?;
        }
        Ok(())
    }
    let session = machine();
    let (sender, receiver) = Queue::bounded(4).unwrap().split();
    let (back, home) = Queue::bounded(4).unwrap().split();
    let mut context = spawn(double, (receiver, back), 1).unwrap();
    for round in 0..10 {
        let tensor = DeviceTensor::from_slice([1000], &[round as f32; 1000]).unwrap();
        sender.put(tensor).unwrap();
        let tensor: Floats = home.get().unwrap();
        assert!(tensor.is_at_home(), "it is the original");
        assert_eq!(tensor.to_vec().unwrap(), [2.0 * round as f32; 1000]);
    }
    drop(sender);
    context.join().unwrap();
    all_is_well(session);
}

fn a_producer_may_drop_what_it_sent() {
    fn late(
        _rank: usize,
        (go, from): (Event, Receiver<SharedDeviceTensor<u32>>),
    ) -> tensormp::Result<u32> {
        go.wait()?;
        Ok(from.iter().map(|tensor| tensor.to_vec().unwrap()[99]).sum())
    }
    let session = machine();
    let (sender, receiver) = Queue::bounded(16).unwrap().split();
    let go = Event::new().unwrap();
    let mut context = spawn(late, (go.clone(), receiver), 1).unwrap();
    for value in 0..10 {
        let tensor = DeviceTensor::from_slice([100], &[value; 100])
            .unwrap()
            .freeze();
        sender.put(tensor.clone()).unwrap();
        drop(tensor);
        // What would be written over it, were the memory free.
        drop(DeviceTensor::from_slice([100], &[1_000_u32; 100]).unwrap());
    }
    drop(sender);
    go.set();
    assert_eq!(context.join().unwrap(), [45]);
    all_is_well(session);
}

fn a_shared_tensor_is_read_by_several_processes() {
    fn read(_rank: usize, tensor: SharedDeviceTensor<i64>) -> tensormp::Result<i64> {
        Ok(tensor.to_vec().unwrap().iter().sum())
    }
    let session = machine();
    let elements: Vec<i64> = (0..5000).collect();
    let tensor = DeviceTensor::from_slice([5000], &elements)
        .unwrap()
        .freeze();
    let mut context = spawn(read, tensor.clone(), 3).unwrap();
    assert_eq!(context.join().unwrap(), [12_497_500; 3]);
    let mut tensor = tensor.try_thaw().expect("nobody else has it any more");
    tensor.clear().unwrap();
    assert_eq!(tensor.to_vec().unwrap(), [0; 5000]);
    drop(tensor);
    all_is_well(session);
}

fn a_queue_of_length_one_carries_a_whole_state_dict() {
    type Dict = Vec<(String, DynDeviceTensor)>;
    fn sum(_rank: usize, from: Receiver<Dict>) -> tensormp::Result<f64> {
        let mut sum = 0.0;
        for dict in &from {
            for (name, tensor) in dict {
                let values = tensor.downcast_shared::<f64>().unwrap().to_vec().unwrap();
                assert_eq!(name, format!("layer.{}", values[0]));
                sum += values.iter().sum::<f64>();
            }
        }
        Ok(sum)
    }
    let session = machine();
    let (sender, receiver) = Queue::bounded(1).unwrap().split();
    let mut context = spawn(sum, receiver, 1).unwrap();
    for _ in 0..3 {
        let dict: Dict = (0..200)
            .map(|i| {
                let tensor = DeviceTensor::from_slice([10], &[f64::from(i); 10]).unwrap();
                (format!("layer.{i}"), tensor.freeze().into())
            })
            .collect();
        sender.put(dict).unwrap();
    }
    drop(sender);
    assert_eq!(context.join().unwrap(), [3.0 * 10.0 * 19_900.0]);
    all_is_well(session);
}

fn small_tensors_of_mixed_types_share_one_allocation() {
    type Mixed = (
        DeviceTensor<u8>,
        DeviceTensor<f64>,
        DeviceTensor<bf16>,
        DeviceTensor<i16>,
    );
    fn read(
        _rank: usize,
        (bytes, doubles, halves, words): Mixed,
    ) -> tensormp::Result<(u8, f64, f32, i16)> {
        assert_eq!(
            cuda_ipc::stats().imports,
            1,
            "all four are in one allocation"
        );
        Ok((
            bytes.to_vec().unwrap()[2],
            doubles.to_vec().unwrap()[1],
            f32::from(halves.to_vec().unwrap()[0]),
            words.to_vec().unwrap()[4],
        ))
    }
    let session = machine();
    let mixed = (
        DeviceTensor::from_slice([3], &[1_u8, 2, 3]).unwrap(),
        DeviceTensor::from_slice([2], &[0.5_f64, -7.25]).unwrap(),
        DeviceTensor::from_slice([1], &[bf16::from_f32(1.5)]).unwrap(),
        DeviceTensor::from_slice([5], &[0_i16, 0, 0, 0, -9]).unwrap(),
    );
    assert_eq!(cuda_ipc::stats().allocations, 1);
    let mut context = spawn(read, mixed, 1).unwrap();
    assert_eq!(context.join().unwrap(), [(3, -7.25, 1.5, -9)]);
    all_is_well(session);
}

fn empty_scalar_and_strided_tensors_arrive_as_they_were() {
    type Odd = (
        DeviceTensor<f32>,
        DeviceTensor<u8>,
        DeviceTensor<i32>,
        SharedDeviceTensor<i32>,
    );
    fn look(_rank: usize, (empty, scalar, turned, column): Odd) -> tensormp::Result<()> {
        assert_eq!(
            (empty.shape(), empty.to_vec().unwrap().len()),
            ([3, 0].as_slice(), 0)
        );
        assert_eq!((scalar.ndim(), scalar.to_vec().unwrap()), (0, vec![7]));
        assert_eq!(turned.shape(), [3, 2]);
        assert_eq!(turned.to_vec().unwrap(), [0, 3, 1, 4, 2, 5]);
        assert_eq!(column.to_vec().unwrap(), [1, 4]);
        assert_eq!(column.to_host().unwrap().as_slice(), [1, 4]);
        Ok(())
    }
    let session = machine();
    let empty = DeviceTensor::<f32>::zeros([3, 0]).unwrap();
    let scalar = DeviceTensor::from_slice((), &[7_u8]).unwrap();
    let elements = [0, 1, 2, 3, 4, 5];
    let mut turned = DeviceTensor::from_slice([2, 3], &elements).unwrap();
    turned.transpose(0, 1).unwrap();
    let matrix = DeviceTensor::from_slice([2, 3], &elements)
        .unwrap()
        .freeze();
    let column = matrix.select(1, 1).unwrap();
    drop(matrix);
    let mut context = spawn(look, (empty, scalar, turned, column), 1).unwrap();
    context.join().unwrap();
    all_is_well(session);
}

fn two_views_of_one_tensor_arrive_as_two_views_of_one() {
    type Two = (SharedDeviceTensor<u16>, SharedDeviceTensor<u16>);
    fn look(_rank: usize, (one, other): Two) -> tensormp::Result<bool> {
        assert_eq!(one.to_vec().unwrap(), [0, 1]);
        assert_eq!(other.to_vec().unwrap(), [2, 3]);
        Ok(one.same_storage(&other) && cuda_ipc::stats().opened == 1)
    }
    let session = machine();
    let whole = DeviceTensor::from_slice([4], &[0_u16, 1, 2, 3])
        .unwrap()
        .freeze();
    let views = (
        whole.narrow(0, 0, 2).unwrap(),
        whole.narrow(0, 2, 2).unwrap(),
    );
    drop(whole);
    let mut context = spawn(look, views, 1).unwrap();
    assert_eq!(context.join().unwrap(), [true]);
    all_is_well(session);
}

fn a_tensor_is_inherited_as_an_argument_and_comes_home_as_a_result() {
    fn pass(_rank: usize, tensor: DeviceTensor<u64>) -> tensormp::Result<DeviceTensor<u64>> {
        Ok(tensor)
    }
    let session = machine();
    let tensor = DeviceTensor::from_slice([3], &[5_u64, 6, 7]).unwrap();
    let mut context = spawn(pass, tensor, 1).unwrap();
    context.join().unwrap();
    let results = context.into_results().unwrap();
    assert!(results[0].is_at_home());
    assert_eq!(results[0].to_vec().unwrap(), [5, 6, 7]);
    drop(results);
    all_is_well(session);
}

fn tensors_that_a_process_made_come_home_as_its_result() {
    type Made = (
        DeviceTensor<u64>,
        SharedDeviceTensor<u64>,
        SharedDeviceTensor<u64>,
    );
    fn make(rank: usize, _: ()) -> tensormp::Result<Made> {
        let one = DeviceTensor::from_slice([2], &[rank as u64, 5])?;
        let many = DeviceTensor::from_slice([3], &[6_u64, 7, 8])?.freeze();
        let view = many.narrow(0, 1, 2)?;
        Ok((one, many, view))
    }
    let session = machine();
    for path in ["handle", "descriptor", "host"] {
        let context = builder().env("TENSORMP_CUDA_PATH", path);
        let context = context.spawn(make, (), 2).unwrap();
        let results = context.into_results().unwrap();
        for (rank, (one, many, view)) in results.into_iter().enumerate() {
            assert_eq!(one.to_vec().unwrap(), [rank as u64, 5], "{path}");
            assert_eq!(many.to_vec().unwrap(), [6, 7, 8], "{path}");
            assert_eq!(view.to_vec().unwrap(), [7, 8], "{path}");
            assert!(view.same_storage(&many) && one.is_at_home());
        }
    }
    all_is_well(session);
}

fn what_a_worker_made_outlives_the_worker_that_its_pool_replaced() {
    let session = machine();
    let pool = Pool::builder().workers(2).max_tasks(3).start().unwrap();
    let make = |x: u64| -> tensormp::Result<DeviceTensor<u64>> {
        Ok(DeviceTensor::from_slice([2], &[x, x + 1])?)
    };
    let made: Vec<_> = pool.map(make, 0..20_u64).unwrap().collect();
    pool.shutdown().unwrap();
    for (x, tensor) in (0..).zip(made) {
        assert_eq!(tensor.unwrap().to_vec().unwrap(), [x, x + 1]);
    }
    all_is_well(session);
}

fn a_tensor_without_its_type_is_sent_as_what_it_is() {
    fn look(_rank: usize, from: Receiver<DynDeviceTensor>) -> tensormp::Result<()> {
        let exclusive = from.get()?;
        assert!(exclusive.is_exclusive());
        assert_eq!(exclusive.dtype(), Dtype::I32);
        assert_eq!(
            exclusive.downcast::<i32>().unwrap().to_vec().unwrap(),
            [4, 5]
        );
        let shared = from.get()?;
        assert!(!shared.is_exclusive());
        assert!(shared.downcast::<i32>().is_err());
        Ok(())
    }
    let session = machine();
    let (sender, receiver) = Queue::bounded(4).unwrap().split();
    let mut context = spawn(look, receiver, 1).unwrap();
    let make = || DynDeviceTensor::from(DeviceTensor::from_slice([2], &[4, 5]).unwrap());
    sender.put(make()).unwrap();
    sender.put(make().freeze()).unwrap();
    drop(sender);
    context.join().unwrap();
    all_is_well(session);
}

fn two_thousand_sends_of_one_tensor_open_it_once() {
    fn read(_rank: usize, from: Receiver<SharedDeviceTensor<u8>>) -> tensormp::Result<(u64, u64)> {
        let mut sum = 0;
        for tensor in &from {
            sum += u64::from(tensor.to_vec().unwrap()[0]);
        }
        Ok((sum, cuda_ipc::stats().opened))
    }
    let session = machine();
    let (sender, receiver) = Queue::bounded(16).unwrap().split();
    let mut context = spawn(read, receiver, 1).unwrap();
    let tensor = DeviceTensor::from_slice([3], &[3_u8; 3]).unwrap().freeze();
    for _ in 0..2000 {
        sender.put(tensor.clone()).unwrap();
    }
    drop(sender);
    assert_eq!(context.join().unwrap(), [(6000, 1)]);
    assert!(tensor.try_thaw().is_ok(), "nobody else has it any more");
    all_is_well(session);
}

fn a_hundred_thousand_tensors_through_three_processes_have_an_exact_sum() {
    const COUNT: u64 = 100_000;
    // Numbers are written to the device, and read from there, so many at a time: nobody waits for each.
    const AT_ONCE: usize = 500;
    type Number = DeviceTensor<u64>;
    type Numbers = Vec<Number>;
    fn pass(
        _rank: usize,
        (from, to): (Receiver<Numbers>, Sender<Numbers>),
    ) -> tensormp::Result<()> {
        for tensors in &from {
            to.put(tensors)?;
        }
        Ok(())
    }
    fn sum(_rank: usize, from: Receiver<Numbers>) -> tensormp::Result<(u64, u64)> {
        let (mut count, mut sum) = (0, 0);
        let mut gathered = DeviceTensor::<u8>::zeros([8 * AT_ONCE]).unwrap();
        let mut at = 0;
        let mut add = |gathered: &mut DeviceTensor<u8>, at: usize| {
            let numbers = gathered.part_mut::<u64>(0, [at]).unwrap().to_vec().unwrap();
            sum += numbers.iter().sum::<u64>();
        };
        for tensor in from.iter().flatten() {
            let mut place = gathered.part_mut::<u64>(8 * at, ()).unwrap();
            place.copy_from(&tensor).unwrap();
            drop(place);
            count += 1;
            at += 1;
            if at == AT_ONCE {
                add(&mut gathered, at);
                at = 0;
            }
        }
        add(&mut gathered, at);
        Ok((count, sum))
    }
    let session = crate::support::with(&cuda_emulator::Knobs::new().without_races());
    let (sender, between) = Queue::bounded(8).unwrap().split();
    let (passed, last) = Queue::bounded(8).unwrap().split();
    let mut middle = spawn(pass, (between, passed), 1).unwrap();
    let mut end = spawn(sum, last, 1).unwrap();
    let numbers: Vec<u64> = (0..COUNT).collect();
    for some in numbers.chunks(AT_ONCE) {
        let written = DeviceTensor::from_slice([some.len()], some)
            .unwrap()
            .freeze();
        let numbers = (0..some.len()).map(|index| {
            let mut tensor = Number::uninit(()).unwrap();
            let number = written.select(0, index).unwrap();
            tensor.copy_from_shared(&number).unwrap();
            tensor
        });
        let mut numbers = numbers.peekable();
        while numbers.peek().is_some() {
            sender.put(numbers.by_ref().take(10).collect()).unwrap();
        }
    }
    drop(sender);
    middle.join().unwrap();
    assert_eq!(end.join().unwrap(), [(COUNT, COUNT * (COUNT - 1) / 2)]);
    let allocations = cuda_ipc::stats().allocations;
    assert!(allocations <= 3, "{:?}", cuda_ipc::stats());
    all_is_well(session);
}

fn a_device_tensor_goes_to_another_device() {
    let session = machine();
    let [first, second] = [0, 1].map(|ordinal| Device::new(ordinal).unwrap());
    let tensor = DeviceTensor::from_slice([2, 2], &[1.0_f32, 2.0, 3.0, 4.0]).unwrap();
    assert_eq!(tensor.device(), first);
    let mut copy = tensor.to_device(second).unwrap();
    assert_eq!(copy.device(), second);
    copy.transpose(0, 1).unwrap();
    assert_eq!(copy.to_vec().unwrap(), [1.0, 3.0, 2.0, 4.0]);
    let back = copy.to_device(first).unwrap();
    assert_eq!(back.to_vec().unwrap(), [1.0, 3.0, 2.0, 4.0]);
    drop((tensor, copy, back));
    all_is_well(session);
}
