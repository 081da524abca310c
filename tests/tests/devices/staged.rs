//! Tensors that go through memory of the host, where no process can open another's: one copy for each storage.

use cuda_ipc::{DeviceTensor, Options, Path, SharedDeviceTensor};
use integration_tests::{Test, tests};
use tensormp::prelude::*;
use tensormp::spawn_api::builder;

use crate::support::{machine, no_memory_is_left, slow_machine};

pub(crate) const TESTS: &[Test] = &tests![
    views_of_one_tensor_through_the_host_are_one_copy_and_one_block,
    a_tensor_that_is_sent_again_through_the_host_is_copied_once,
    a_copy_through_the_host_ends_where_the_tensor_is_written_again,
    what_a_receiver_writes_again_is_no_copy_any_more,
    a_view_that_is_alone_takes_no_more_than_it_needs,
    copies_that_are_only_kept_give_way,
    views_that_cannot_be_opened_are_fetched_once,
];

type Shared = SharedDeviceTensor<u32>;

fn through_the_host() {
    Options::new().path(Path::Host).install().unwrap();
}

fn counting(from: u32) -> Shared {
    let elements: Vec<u32> = (from..from + 1_000).collect();
    DeviceTensor::from_slice([1_000], &elements)
        .unwrap()
        .freeze()
}

fn two_views(whole: &Shared) -> (Shared, Shared) {
    let matrix = whole.reshape([10, 100]).unwrap();
    (
        matrix.narrow(0, 2, 3).unwrap(),
        matrix.transpose(0, 1).unwrap().narrow(0, 50, 7).unwrap(),
    )
}

/// What the elements of [`two_views`] come to.
fn sums(from: u32) -> [u64; 2] {
    let element = |row: u32, column: u32| u64::from(from + row * 100 + column);
    let sum = |rows: std::ops::Range<u32>, columns: std::ops::Range<u32>| {
        rows.flat_map(|row| columns.clone().map(move |column| element(row, column)))
            .sum()
    };
    [sum(2..5, 0..100), sum(0..10, 50..57)]
}

fn sum(tensor: &Shared) -> u64 {
    tensor.to_vec().unwrap().iter().map(|&x| u64::from(x)).sum()
}

fn views_of_one_tensor_through_the_host_are_one_copy_and_one_block() {
    type Four = (Shared, Shared, DynDeviceTensor, Shared);
    fn look(_rank: usize, from: Receiver<Four>) -> tensormp::Result<Vec<[u64; 2]>> {
        let mut seen = Vec::new();
        for (one, other, third, apart) in &from {
            let third = third.downcast_shared::<u32>().unwrap();
            assert!(one.same_storage(&other) && other.same_storage(&third));
            assert!(!one.same_storage(&apart));
            assert_eq!(third.to_vec().unwrap()[0], apart.to_vec().unwrap()[0]);
            seen.push([sum(&one), sum(&other)]);
        }
        Ok(seen)
    }
    let session = slow_machine();
    through_the_host();
    let (sender, receiver) = Queue::bounded(2).unwrap().split();
    let mut context = spawn(look, receiver, 1).unwrap();
    for round in 0..5 {
        let whole = counting(round);
        let (one, other) = two_views(&whole);
        let first = whole.narrow(0, 0, 1).unwrap();
        let apart = DeviceTensor::from_slice([1], &[round]).unwrap().freeze();
        drop(whole);
        sender.put((one, other, first.into(), apart)).unwrap();
        let stats = cuda_ipc::stats();
        assert_eq!(stats.host_copies, 2 * u64::from(round + 1), "{stats:?}");
        assert_eq!(stats.kept_copies, 0, "the tensors are gone: {stats:?}");
    }
    drop(sender);
    assert_eq!(
        context.join().unwrap(),
        [(0..5).map(sums).collect::<Vec<_>>()]
    );
    no_memory_is_left(session);
}

fn a_tensor_that_is_sent_again_through_the_host_is_copied_once() {
    fn look(_rank: usize, from: Receiver<Shared>) -> tensormp::Result<u64> {
        let first = from.get()?;
        let mut all = sum(&first);
        for tensor in &from {
            assert!(tensor.same_storage(&first));
            all += sum(&tensor);
        }
        assert_eq!(cuda_ipc::stats().allocations, 1);
        Ok(all)
    }
    let session = machine();
    through_the_host();
    let (sender, receiver) = Queue::bounded(8).unwrap().split();
    let mut context = spawn(look, receiver, 1).unwrap();
    let whole = counting(0);
    let (one, other) = two_views(&whole);
    for _ in 0..100 {
        sender.put(one.clone()).unwrap();
        sender.put(other.clone()).unwrap();
    }
    let stats = cuda_ipc::stats();
    assert_eq!((stats.host_copies, stats.staged), (1, 200), "{stats:?}");
    assert_eq!(
        (stats.kept_copies, stats.kept_bytes),
        (1, 4_000),
        "{stats:?}"
    );
    // The copy is kept for what comes, and no longer than that is wanted.
    cuda_ipc::collect();
    assert_eq!(cuda_ipc::stats().kept_copies, 0);
    drop(sender);
    let [first, second] = sums(0);
    assert_eq!(context.join().unwrap(), [100 * (first + second)]);
    drop((whole, one, other));
    no_memory_is_left(session);
}

fn a_copy_through_the_host_ends_where_the_tensor_is_written_again() {
    fn look(_rank: usize, from: Receiver<Shared>) -> tensormp::Result<Vec<u32>> {
        let all: Vec<_> = from.iter().collect();
        Ok(all
            .iter()
            .map(|tensor| tensor.to_vec().unwrap()[7])
            .collect())
    }
    let session = slow_machine();
    through_the_host();
    let (sender, receiver) = Queue::bounded(8).unwrap().split();
    let mut context = spawn(look, receiver, 1).unwrap();
    let mut tensor = counting(0);
    for round in 1..=6 {
        sender.put(tensor.clone()).unwrap();
        // No message holds the tensor: it went as a copy.
        let mut own = tensor.try_thaw().expect("nobody else has it");
        assert_eq!(cuda_ipc::stats().kept_copies, 0);
        own.copy_from_slice(&[round; 1_000]).unwrap();
        tensor = own.freeze();
    }
    sender.put(tensor).unwrap();
    drop(sender);
    assert_eq!(context.join().unwrap(), [vec![7, 1, 2, 3, 4, 5, 6]]);
    no_memory_is_left(session);
}

fn what_a_receiver_writes_again_is_no_copy_any_more() {
    fn write(_rank: usize, (from, next): (Receiver<Shared>, Sender<u32>)) -> tensormp::Result<()> {
        let first = from.get()?;
        let mut own = first.try_thaw().expect("it is the only one here");
        own.copy_from_slice(&[9; 1_000]).unwrap();
        let own = own.freeze();
        next.put(0)?;
        let second = from.get()?;
        assert!(!second.same_storage(&own));
        assert_eq!(second.to_vec().unwrap()[5], 5);
        assert_eq!(own.to_vec().unwrap()[5], 9);
        // And one that somebody else holds as well stays what it is.
        let held = second.clone();
        let second = second.try_thaw().unwrap_err();
        next.put(0)?;
        let third = from.get()?;
        assert!(third.same_storage(&second) && third.same_storage(&held));
        Ok(())
    }
    let session = machine();
    through_the_host();
    let (sender, receiver) = Queue::bounded(1).unwrap().split();
    let (next, told) = Queue::bounded(1).unwrap().split();
    let mut context = spawn(write, (receiver, next), 1).unwrap();
    let tensor = counting(0);
    for _ in 0..2 {
        sender.put(tensor.clone()).unwrap();
        let _: u32 = told.get().unwrap();
    }
    sender.put(tensor.clone()).unwrap();
    context.join().unwrap();
    assert_eq!(cuda_ipc::stats().host_copies, 1);
    drop(tensor);
    no_memory_is_left(session);
}

fn a_view_that_is_alone_takes_no_more_than_it_needs() {
    fn look(_rank: usize, from: Receiver<SharedDeviceTensor<u8>>) -> tensormp::Result<(u8, u64)> {
        let tensor = from.get()?;
        Ok((tensor.to_vec().unwrap()[0], cuda_ipc::stats().allocated))
    }
    let session = machine();
    through_the_host();
    let whole = DeviceTensor::<u8>::zeros([16 << 20]).unwrap().freeze();
    let view = whole.narrow(0, 5 << 20, 100).unwrap();
    drop(whole);
    let (sender, receiver) = Queue::bounded(1).unwrap().split();
    let mut context = spawn(look, receiver, 1).unwrap();
    sender.put(view).unwrap();
    assert_eq!(cuda_ipc::stats().kept_copies, 0);
    assert_eq!(
        context.join().unwrap(),
        [(0, 2 << 20)],
        "the least that there is"
    );
    no_memory_is_left(session);
}

fn copies_that_are_only_kept_give_way() {
    let session = machine();
    let arena = Arena::builder().capacity(64 << 20).create().unwrap();
    Arena::install_current(arena).unwrap();
    through_the_host();
    let queue = Queue::bounded(1).unwrap();
    let tensors: Vec<_> = (0..12)
        .map(|value| {
            DeviceTensor::<u8>::zeros([8 << 20]).map(|mut tensor| {
                tensor.copy_from_slice(&vec![value; 8 << 20]).unwrap();
                tensor.freeze()
            })
        })
        .collect::<Result<_, _>>()
        .unwrap();
    for (value, tensor) in (0..12).zip(&tensors) {
        queue.put(tensor.clone()).unwrap();
        let back = queue.get().unwrap();
        assert_eq!(back.to_vec().unwrap()[8 << 19], value);
    }
    let stats = cuda_ipc::stats();
    assert_eq!(stats.host_copies, 12);
    assert!((1..12).contains(&stats.kept_copies), "{stats:?}");
    drop((queue, tensors));
    no_memory_is_left(session);
}

fn views_that_cannot_be_opened_are_fetched_once() {
    type Two = (Shared, Shared);
    fn look(_rank: usize, from: Receiver<Two>) -> tensormp::Result<Vec<([u64; 2], u64)>> {
        let mut seen = Vec::new();
        for (one, other) in &from {
            assert!(one.is_at_home() && one.same_storage(&other));
            seen.push(([sum(&one), sum(&other)], cuda_ipc::stats().staged));
        }
        Ok(seen)
    }
    let session = machine();
    let (sender, receiver) = Queue::bounded(2).unwrap().split();
    // There, opening a handle fails as between two containers.
    let mut context = builder()
        .env("CUDA_EMULATOR_FAIL", "cuIpcOpenMemHandle_v2:201")
        .spawn(look, receiver, 1)
        .unwrap();
    // Made before the origin hears that this way does not work.
    let tensors: Vec<_> = (0..3).map(counting).collect();
    for whole in &tensors {
        sender.put(two_views(whole)).unwrap();
    }
    drop(sender);
    let wanted: Vec<_> = (0..3)
        .map(|from| (sums(from), 2 * u64::from(from + 1)))
        .collect();
    assert_eq!(context.join().unwrap(), [wanted]);
    drop(tensors);
    no_memory_is_left(session);
}
