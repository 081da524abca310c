//! Which way memory goes to another process, and what happens where the best one does not work.

use cuda_emulator::{Feature, Knobs};
use cuda_ipc::{DeviceTensor, ErrorKind, Options, Path, SharedDeviceTensor};
use integration_tests::{Test, kill, resume, see_stopped, stop, tests};
use tensormp::prelude::*;
use tensormp::spawn_api::builder;

use crate::support::{all_is_well, machine, no_memory_is_left, with};

pub(crate) const TESTS: &[Test] = &tests![
    a_way_is_tried_again_where_what_went_wrong_may_pass,
    by_handle_where_that_works,
    by_descriptor_where_handles_do_not_work,
    through_the_host_where_neither_works,
    a_path_that_is_forced_is_taken_or_an_error,
    descriptors_are_closed_once_they_are_mapped,
    memory_that_cannot_be_opened_comes_as_a_copy_and_by_another_way_next_time,
    a_driver_without_calls_for_handles_takes_descriptors,
    a_driver_without_a_call_for_either_goes_through_the_host,
    a_driver_without_calls_for_shared_events_lets_senders_wait,
    a_path_that_there_is_not_is_an_error_that_names_those_there_are,
    what_has_no_room_is_told_with_how_much_there_is,
    a_queue_of_another_arena_refuses_a_device_tensor_with_what_to_do,
    a_stopped_origin_holds_no_receiver_up_and_loses_no_tensor,
    an_origin_that_ends_while_its_memory_is_opened_is_gone,
    an_origin_that_ends_a_while_after_it_was_seen_to_live_is_gone,
    a_copy_that_waits_for_its_writer_keeps_nobody_from_a_descriptor,
    what_cannot_be_opened_comes_as_a_copy_also_of_an_origin_that_is_a_little_late,
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
        // It is open now, also where its origin took long to answer.
        first.to_vec()?;
        let before = open_descriptors();
        let rest: Vec<_> = from.iter().collect();
        let more = open_descriptors() - before;
        assert_eq!(rest.len(), 19);
        // Nobody closes memory while a stream waits for its origin.
        first.stream().synchronize()?;
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
    // The thread that was asked for them may be about to close the last socket.
    while open_descriptors() > before + 19 {
        std::thread::yield_now();
    }
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

fn a_copy_that_waits_for_its_writer_keeps_nobody_from_a_descriptor() {
    type Bytes = DeviceTensor<u8>;
    fn read(_rank: usize, (from, begins): (Receiver<Bytes>, Event)) -> tensormp::Result<Vec<u8>> {
        cuda_ipc::devices().unwrap();
        begins.set();
        Ok(from.get()?.to_vec()?)
    }
    /// Opens memory, and waits for no stream.
    fn open(_rank: usize, from: Receiver<Bytes>) -> tensormp::Result<String> {
        let tensor = from.get()?;
        tensor.read_in(tensor.stream())?;
        Ok(format!("{:?}", tensor.path()))
    }
    let session = machine();
    Options::new().path(Path::Descriptor).install().unwrap();
    let source = DeviceTensor::from_slice([100], &[8_u8; 100]).unwrap();
    let mut late = Bytes::zeros([100]).unwrap();
    let other = Bytes::zeros([3 << 20]).unwrap();
    late.stream().synchronize().unwrap();
    session.hold();
    late.copy_from(&source).unwrap();
    let (to, from) = Queue::bounded(1).unwrap().split();
    let begins = Event::new().unwrap();
    // As in another container: its origin makes a copy for it, behind work that is held back.
    let reader = builder().env("CUDA_EMULATOR_FAIL", "cuMemImportFromShareableHandle:999");
    let mut reader = reader.spawn(read, (from, begins.clone()), 1).unwrap();
    to.put(late).unwrap();
    begins.wait().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(300));
    let (to, from) = Queue::bounded(1).unwrap().split();
    let mut opener = spawn(open, from, 1).unwrap();
    to.put(other).unwrap();
    assert_eq!(opener.join().unwrap(), ["Descriptor"]);
    session.let_go();
    assert_eq!(reader.join().unwrap(), [[8; 100]]);
    drop(source);
    no_memory_is_left(session);
}

fn what_cannot_be_opened_comes_as_a_copy_also_of_an_origin_that_is_a_little_late() {
    type Bytes = DeviceTensor<u8>;
    fn read(_rank: usize, (from, begins): (Receiver<Bytes>, Event)) -> tensormp::Result<u8> {
        cuda_ipc::devices().unwrap();
        begins.set();
        Ok(from.get()?.to_vec()?[0])
    }
    let session = machine();
    let (sender, receiver) = Queue::bounded(4).unwrap().split();
    let (ready, begins) = (Event::new().unwrap(), Event::new().unwrap());
    let origin = builder().env("TENSORMP_CUDA_PATH", "descriptor");
    let origin = origin.spawn(send_large, (sender, ready.clone()), 1);
    let mut origin = origin.unwrap();
    ready.wait().unwrap();
    let pid = origin.pids()[0];
    stop(pid);
    see_stopped(pid);
    // As in another container.
    let reader = builder().env("CUDA_EMULATOR_FAIL", "cuMemImportFromShareableHandle:999");
    let mut reader = reader.spawn(read, (receiver, begins.clone()), 1).unwrap();
    begins.wait().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(200));
    resume(pid);
    assert_eq!(reader.join().unwrap(), [1]);
    origin.kill();
    assert!(origin.join().is_err());
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

/// Sends tensors of allocations of their own, says so, and waits for its end.
fn send_large(
    _rank: usize,
    (to, ready): (Sender<DeviceTensor<u8>>, Event),
) -> tensormp::Result<()> {
    for value in 1..=3 {
        let tensor = DeviceTensor::from_slice([3 << 20], &vec![value; 3 << 20])?;
        let stream = tensor.stream().clone();
        to.put(tensor)?;
        stream.synchronize()?;
    }
    ready.set();
    std::thread::sleep(std::time::Duration::from_secs(120));
    Ok(())
}

fn a_stopped_origin_holds_no_receiver_up_and_loses_no_tensor() {
    let session = machine();
    let (sender, receiver) = Queue::bounded(4).unwrap().split();
    let ready = Event::new().unwrap();
    let context = builder().env("TENSORMP_CUDA_PATH", "descriptor");
    let context = context.spawn(send_large, (sender, ready.clone()), 1);
    let mut context = context.unwrap();
    let pid = context.pids()[0];
    ready.wait().unwrap();
    stop(pid);
    see_stopped(pid);
    let tensors: [_; 3] = std::array::from_fn(|_| receiver.try_get().unwrap());
    resume(pid);
    for (value, tensor) in (1..).zip(&tensors[..2]) {
        assert_eq!(tensor.path(), Path::Descriptor);
        assert_eq!(tensor.to_vec().unwrap(), vec![value; 3 << 20]);
    }
    // What had not been opened when its origin ended is gone with it.
    context.kill();
    assert!(context.join().is_err());
    let error = tensors[2].to_vec().unwrap_err();
    assert_eq!(
        *error.kind(),
        ErrorKind::OriginGone { pid: Some(pid) },
        "{error}"
    );
    // The others outlive it.
    assert_eq!(tensors[0].to_vec().unwrap()[0], 1);
    drop(tensors);
    cuda_ipc::collect();
    no_memory_is_left(session);
}

/// The kind of the device's error in a chain.
pub(crate) fn kind_of(mut error: &(dyn std::error::Error + 'static)) -> Option<ErrorKind> {
    loop {
        if let Some(error) = error.downcast_ref::<cuda_ipc::Error>() {
            return Some(error.kind().clone());
        }
        error = error.source()?;
    }
}

fn an_origin_that_ends_while_its_memory_is_opened_is_gone() {
    end_while_it_is_opened(std::time::Duration::from_millis(50));
}

fn an_origin_that_ends_a_while_after_it_was_seen_to_live_is_gone() {
    end_while_it_is_opened(std::time::Duration::from_millis(1_500));
}

/// Who opens it asks for a copy when the origin does not end at once, and hears nothing until that ends `later`.
fn end_while_it_is_opened(later: std::time::Duration) {
    fn open(
        _rank: usize,
        (from, begins): (Receiver<DeviceTensor<u8>>, Event),
    ) -> tensormp::Result<String> {
        cuda_ipc::devices().unwrap();
        begins.set();
        let error = from.get().unwrap_err();
        Ok(format!("{:?}", kind_of(&error)))
    }
    let session = machine();
    let (sender, receiver) = Queue::bounded(4).unwrap().split();
    let (ready, begins) = (Event::new().unwrap(), Event::new().unwrap());
    let mut origin = spawn(send_large, (sender, ready.clone()), 1).unwrap();
    let pid = origin.pids()[0];
    ready.wait().unwrap();
    // It cannot make a copy either, as one that has lost its files; but it is seen to live.
    stop(pid);
    see_stopped(pid);
    // Its handles are of no use any more.
    let context = builder().env("CUDA_EMULATOR_FAIL", "cuIpcOpenMemHandle_v2:1");
    let mut context = context.spawn(open, (receiver, begins.clone()), 1).unwrap();
    begins.wait().unwrap();
    // It knows whose memory it is, and has seen that the handle is of no use.
    let opener = context.pids()[0];
    while session.calls_of(opener).of("cuIpcOpenMemHandle_v2") == 0 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    std::thread::sleep(later);
    kill(pid);
    assert!(origin.join().is_err());
    let gone = format!("{:?}", Some(ErrorKind::OriginGone { pid: Some(pid) }));
    assert_eq!(context.join().unwrap(), [gone]);
    no_memory_is_left(session);
}

fn a_driver_without_calls_for_handles_takes_descriptors() {
    // As it is at both ends: one call to export, and one to make sure of what was opened.
    let session = with(&Knobs::new().missing(&["cuIpcGetMemHandle", "cuMemGetAddressRange_v2"]));
    let probe = cuda_ipc::Device::new(0).unwrap().probe().unwrap();
    let why = probe.handle.unwrap_err();
    assert!(why.contains("lacks cuIpcGetMemHandle"), "{why}");
    assert_eq!(three_pairs_to(builder()).1, ["Descriptor"; 3]);
    no_memory_is_left(session);
}

fn a_driver_without_a_call_for_either_goes_through_the_host() {
    let session = with(&Knobs::new().missing(&["cuIpcOpenMemHandle_v2", "cuMemCreate"]));
    let probe = cuda_ipc::Device::new(0).unwrap().probe().unwrap();
    let why = probe.descriptor.unwrap_err();
    assert!(why.contains("lacks cuMemCreate"), "{why}");
    assert_eq!(three_pairs_to(builder()).1, ["Host"; 3]);
    no_memory_is_left(session);
}

fn a_driver_without_calls_for_shared_events_lets_senders_wait() {
    let session = with(&Knobs::new().missing(&["cuIpcGetEventHandle"]));
    assert_eq!(three_pairs_to(builder()).1, ["Handle"; 3]);
    assert!(cuda_ipc::stats().host_waits > 0);
    no_memory_is_left(session);
}

fn a_path_that_there_is_not_is_an_error_that_names_those_there_are() {
    fn make(_rank: usize, _: ()) -> tensormp::Result<String> {
        let error = DeviceTensor::<u8>::zeros([1]).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::NoPath);
        Ok(error.to_string())
    }
    let session = with(&Knobs::new());
    let context = builder().env("TENSORMP_CUDA_PATH", "handles");
    let told = context.spawn(make, (), 1).unwrap().join().unwrap().to_vec();
    let told = &told[0];
    assert!(
        told.contains("`handles`") && told.contains("descriptor"),
        "{told}"
    );
    no_memory_is_left(session);
}

fn what_has_no_room_is_told_with_how_much_there_is() {
    let session = with(&Knobs::new().memory(64));
    let kept = DeviceTensor::<u8>::zeros([40 << 20]).unwrap();
    let error = DeviceTensor::<u8>::zeros([30 << 20]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::OutOfMemory { .. }));
    let told = error.to_string();
    for part in [
        &(64 << 20).to_string(),
        &(40 << 20).to_string(),
        "1 allocations",
    ] {
        assert!(told.contains(part), "{told}");
    }
    drop(kept);
    no_memory_is_left(session);
}

fn a_queue_of_another_arena_refuses_a_device_tensor_with_what_to_do() {
    let session = machine();
    let arena = Arena::builder().capacity(64 << 20).create().unwrap();
    let queue = Queue::bounded_in(&arena, 1).unwrap();
    let tensor = DeviceTensor::<u8>::zeros([4]).unwrap();
    let error = queue.put(tensor).unwrap_err().to_string();
    assert!(error.contains("Arena::current"), "{error}");
    drop(queue);
    no_memory_is_left(session);
}

fn a_way_is_tried_again_where_what_went_wrong_may_pass() {
    const OPERATING_SYSTEM: i32 = 304;
    const NOT_SUPPORTED: i32 = 801;
    /// How often it worked, of twenty times.
    fn tries(_rank: usize, _: ()) -> tensormp::Result<usize> {
        let device = cuda_ipc::Device::new(0)?;
        let probes = (0..20)
            .map(|_| device.probe())
            .collect::<Result<Vec<_>, _>>()?;
        Ok(probes.iter().filter(|probe| probe.handle.is_ok()).count())
    }
    let session = with(&Knobs::new());
    let call = "cuIpcGetMemHandle";
    let tried = |code: i32, which: &str| {
        let before = session.calls().of(call);
        let child = builder().env("CUDA_EMULATOR_FAIL", format!("{call}:{code}{which}"));
        let worked = child.spawn(tries, (), 1).unwrap().join().unwrap().to_vec();
        (worked[0], session.calls().of(call) - before)
    };
    assert_eq!(tried(OPERATING_SYSTEM, ":1"), (19, 2));
    // Not for ever.
    assert_eq!(tried(OPERATING_SYSTEM, ""), (0, 8));
    assert_eq!(tried(NOT_SUPPORTED, ""), (0, 1));
    no_memory_is_left(session);
}
