//! Which way memory goes to another process, and what happens where the best one does not work.

use cuda_emulator::{Feature, Knobs};
use cuda_ipc::{DeviceTensor, Options, Path, SharedDeviceTensor};
use integration_tests::{Test, tests};
use tensormp::prelude::*;
use tensormp::spawn_api::builder;

use crate::support::{all_is_well, no_memory_is_left, with};

pub(crate) const TESTS: &[Test] = &tests![
    by_handle_where_that_works,
    by_descriptor_where_handles_do_not_work,
    through_the_host_where_neither_works,
    a_path_that_is_forced_is_taken_or_an_error,
    descriptors_are_closed_once_they_are_mapped,
    memory_that_cannot_be_opened_comes_as_a_copy_and_by_another_way_next_time,
    without_shared_events_senders_wait_and_nothing_is_lost,
    more_tensors_than_events_are_sent_all_the_same,
];

type Pair = (DeviceTensor<u32>, SharedDeviceTensor<u32>);

/// What a receiver saw: sums of elements, the paths, and how it reaches whom.
type Seen = (u64, Vec<String>, Vec<String>);

fn look(_rank: usize, from: Receiver<Pair>) -> tensormp::Result<Seen> {
    let mut seen = (0, Vec::new(), Vec::new());
    for (exclusive, shared) in &from {
        for elements in [exclusive.to_vec(), shared.to_vec()] {
            seen.0 += elements.unwrap().iter().map(|&x| u64::from(x)).sum::<u64>();
        }
        seen.1.push(format!("{:?}", exclusive.path()));
    }
    for peer in cuda_ipc::stats().peers {
        seen.2.push(format!("{:?}: {}", peer.path, peer.why));
    }
    Ok(seen)
}

fn pair(value: u32) -> Pair {
    let exclusive = DeviceTensor::from_slice([100], &[value; 100]).unwrap();
    let whole: Vec<u32> = (0..100).map(|x| x * value).collect();
    let matrix = DeviceTensor::from_slice([10, 10], &whole).unwrap().freeze();
    (
        exclusive,
        matrix.narrow(0, 5, 2).unwrap().transpose(0, 1).unwrap(),
    )
}

/// What [`look`] finds of three pairs.
fn sum() -> u64 {
    let shared: u64 = (50..70).sum();
    (1..=3).map(|value| value * (100 + shared)).sum()
}

fn three_pairs_to(context: spawn_builder::Builder) -> Seen {
    let (sender, receiver) = Queue::bounded(4).unwrap().split();
    let mut context = context.spawn(look, receiver, 1).unwrap();
    for value in 1..=3 {
        sender.put(pair(value)).unwrap();
    }
    drop(sender);
    let seen = context.join().unwrap()[0].clone();
    assert_eq!(seen.0, sum(), "{seen:?}");
    seen
}

use tensormp::spawn_api as spawn_builder;

fn by_handle_where_that_works() {
    let session = with(&Knobs::new());
    let seen = three_pairs_to(builder());
    assert_eq!(seen.1, ["Handle"; 3]);
    assert_eq!(seen.2, ["Handle: it could be opened"]);
    all_is_well(session);
}

fn by_descriptor_where_handles_do_not_work() {
    let session = with(&Knobs::new().without(Feature::LegacyIpc));
    let seen = three_pairs_to(builder());
    assert_eq!(seen.1, ["Descriptor"; 3]);
    no_memory_is_left(session);
}

fn through_the_host_where_neither_works() {
    let session = with(
        &Knobs::new()
            .without(Feature::LegacyIpc)
            .without(Feature::Vmm),
    );
    let seen = three_pairs_to(builder());
    assert_eq!(seen.1, ["Host"; 3]);
    assert_eq!(cuda_ipc::stats().staged, 6);
    no_memory_is_left(session);
}

fn a_path_that_is_forced_is_taken_or_an_error() {
    let session = with(&Knobs::new().without(Feature::Vmm));
    Options::new().path(Path::Descriptor).install().unwrap();
    let error = DeviceTensor::<u8>::zeros([1]).unwrap_err();
    assert_eq!(*error.kind(), cuda_ipc::ErrorKind::NoPath);
    assert!(error.to_string().contains("virtual memory"), "{error}");
    no_memory_is_left(session);
}

fn open_descriptors() -> usize {
    // Those of processes aside, which the thread that watches them opens when it sees them.
    let is_ours = |path: std::path::PathBuf| {
        std::fs::read_link(path).is_ok_and(|to| !to.to_string_lossy().contains("pidfd"))
    };
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    all.filter(|entry| is_ours(entry.as_ref().unwrap().path()))
        .count()
}

fn descriptors_are_closed_once_they_are_mapped() {
    fn keep(_rank: usize, from: Receiver<DeviceTensor<u8>>) -> tensormp::Result<usize> {
        let first = from.get()?;
        let before = open_descriptors();
        let rest: Vec<_> = from.iter().collect();
        let more = open_descriptors() - before;
        assert_eq!(rest.len(), 19);
        drop((first, rest));
        cuda_ipc::collect();
        assert!(open_descriptors() <= before);
        Ok(more)
    }
    let session = with(&Knobs::new());
    Options::new().path(Path::Descriptor).install().unwrap();
    let (sender, receiver) = Queue::bounded(4).unwrap().split();
    let mut context = spawn(keep, receiver, 1).unwrap();
    sender.put(DeviceTensor::zeros([3 << 20]).unwrap()).unwrap();
    let before = open_descriptors();
    for _ in 0..19 {
        sender.put(DeviceTensor::zeros([3 << 20]).unwrap()).unwrap();
    }
    drop(sender);
    // The emulated driver has a file for each piece; what came over the socket would be one more each.
    assert!(context.join().unwrap()[0] <= 19);
    assert!(open_descriptors() <= before + 19);
    all_is_well(session);
}

fn memory_that_cannot_be_opened_comes_as_a_copy_and_by_another_way_next_time() {
    let session = with(&Knobs::new());
    // There, opening a handle fails as between two containers.
    let seen = three_pairs_to(builder().env("CUDA_EMULATOR_FAIL", "cuIpcOpenMemHandle_v2:201"));
    assert_eq!(
        seen.1[0], "Handle",
        "its own memory, which holds a copy: {seen:?}"
    );
    let way = seen.2.concat();
    assert!(
        way.starts_with("Host") || way.starts_with("Descriptor"),
        "{way}"
    );
    // The origin knows now, and takes another way.
    let next = three_pairs_to(builder());
    assert_eq!(next.1, ["Descriptor"; 3]);
    no_memory_is_left(session);
}

fn without_shared_events_senders_wait_and_nothing_is_lost() {
    let session = with(&Knobs::new().without(Feature::IpcEvents));
    three_pairs_to(builder());
    let stats = cuda_ipc::stats();
    assert!(stats.host_waits >= 6 && stats.events == 0, "{stats:?}");
    no_memory_is_left(session);
}

fn more_tensors_than_events_are_sent_all_the_same() {
    fn collect(_rank: usize, from: Receiver<DeviceTensor<u32>>) -> tensormp::Result<Vec<u32>> {
        let all: Vec<_> = from.iter().collect();
        Ok(all
            .iter()
            .map(|tensor| tensor.to_vec().unwrap()[0])
            .collect())
    }
    let session = with(&Knobs::new());
    Options::new().events(6).install().unwrap();
    let (sender, receiver) = Queue::bounded(4).unwrap().split();
    let mut context = spawn(collect, receiver, 1).unwrap();
    for value in 0..20 {
        sender
            .put(DeviceTensor::from_slice([1], &[value]).unwrap())
            .unwrap();
    }
    drop(sender);
    assert_eq!(context.join().unwrap(), [(0..20).collect::<Vec<_>>()]);
    let stats = cuda_ipc::stats();
    assert_eq!(stats.events, 6);
    assert!(stats.host_waits > 0, "{stats:?}");
    // All of them are free again, for tensors of another size as well.
    drop(DeviceTensor::<u8>::zeros([4000]).unwrap());
    all_is_well(session);
}
