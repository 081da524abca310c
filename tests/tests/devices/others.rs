//! Memory that somebody else made, cudarc's views, pinned tensors, slots that go round, forks, and machines without a driver.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cuda_emulator::{Driver, Feature, Knobs};
use cuda_ipc::{
    Device, DeviceTensor, ErrorKind, PinnedTensor, SharedDeviceTensor, Stream, Unavailable,
};
use cudarc::driver::{CudaContext, DevicePtr, DevicePtrMut, DeviceSlice};
use integration_tests::{Test, play, tests};
use tensormp::pipeline::{
    Context, Flow, Input, Output, Pipeline, QueueGroup, Stage, StageError, Step, TensorSpec,
};
use tensormp::prelude::*;

use crate::support::{all_is_well, machine, no_memory_is_left, slow_machine, with};

pub(crate) const TESTS: &[Test] = &tests![
    memory_of_others_is_sent_without_a_copy_and_given_back_at_the_end,
    who_wraps_piece_after_piece_gets_those_back_that_nobody_uses,
    an_owner_of_memory_is_dropped_though_streams_always_wait_for_others,
    memory_of_a_pool_is_refused_with_the_reason_and_can_be_copied,
    cudarc_reads_and_writes_device_tensors_in_order,
    cudarcs_slices_become_device_tensors,
    slots_go_round_without_opening_or_making_anything,
    a_pinned_tensor_is_not_written_before_the_copies_that_read_it,
    many_tensors_are_pinned_by_one_registration_of_the_region_they_lie_in,
    what_cannot_be_pinned_is_copied_all_the_same,
    a_pipelines_process_makes_its_tensors_on_its_device,
    use_after_a_fork_is_an_error,
    without_a_driver_nothing_panics,
];

pub(crate) const SCENES: &[Test] = &tests![no_driver];

/// Counts how often it is dropped.
pub(crate) struct Owner(pub(crate) Arc<AtomicUsize>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn read(_rank: usize, from: Receiver<SharedDeviceTensor<u32>>) -> tensormp::Result<Vec<u32>> {
    Ok(from.get()?.to_vec()?)
}

fn memory_of_others_is_sent_without_a_copy_and_given_back_at_the_end() {
    let session = machine();
    let stream = Stream::current().unwrap();
    let driver = Driver::loaded();
    driver.start(0).unwrap();
    let address = driver.alloc(1 << 20).unwrap();
    let dropped = Arc::new(AtomicUsize::new(0));
    driver
        .fill_words_async(address + 400, 9, 50, stream.as_raw())
        .unwrap();
    let owner = Owner(dropped.clone());
    // SAFETY: the memory is freed below, when its owner is dropped, and written by that stream alone.
    let tensor =
        unsafe { DeviceTensor::<u32>::wrap_raw(&stream, [50], address + 400, owner) }.unwrap();
    let (sender, receiver) = Queue::bounded(1).unwrap().split();
    let mut context = spawn(read, receiver, 1).unwrap();
    sender.put(tensor.freeze()).unwrap();
    assert_eq!(context.join().unwrap(), [[9; 50]]);
    drop((sender, context));
    // Nothing more is done with devices here.
    while dropped.load(Ordering::Relaxed) == 0 {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(cuda_ipc::stats().wrapped, 0);
    // SAFETY: the range is too long, so nothing is made of it.
    let long = unsafe { DeviceTensor::<u32>::wrap_raw(&stream, [1 << 20], address, ()) };
    assert_eq!(*long.unwrap_err().kind(), ErrorKind::Shape);
    driver.free(address).unwrap();
    all_is_well(session);
}

/// Gives its memory back to the driver when it is dropped, as a framework does.
struct Piece(u64);

impl Drop for Piece {
    fn drop(&mut self) {
        let driver = Driver::loaded();
        driver.start(0).unwrap();
        driver.free(self.0).unwrap();
    }
}

/// Four elements of what was allocated elsewhere, cleared.
pub(crate) fn piece<T: Element>(stream: &Stream, bytes: usize) -> DeviceTensor<T> {
    let driver = Driver::loaded();
    driver.start(0).unwrap();
    let address = driver.alloc(bytes).unwrap();
    // SAFETY: the memory is there as long as its owner, and nobody else has it.
    let piece = unsafe { DeviceTensor::wrap_raw(stream, [4], address, Piece(address)) };
    let mut piece = piece.unwrap();
    piece.clear().unwrap();
    piece
}

fn who_wraps_piece_after_piece_gets_those_back_that_nobody_uses() {
    let session = with(&Knobs::new().memory(100));
    let stream = Stream::current().unwrap();
    for _ in 0..100 {
        // There is room for 25 of them.
        drop(piece::<u32>(&stream, 4 << 20));
        stream.synchronize().unwrap();
    }
    no_memory_is_left(session);
}

fn an_owner_of_memory_is_dropped_though_streams_always_wait_for_others() {
    /// Writes one tensor after the other.
    fn write(_rank: usize, to: Sender<DeviceTensor<u8>>) -> tensormp::Result<()> {
        let source = DeviceTensor::from_slice([100], &[5_u8; 100])?;
        loop {
            let mut tensor = DeviceTensor::zeros([100])?;
            tensor.copy_from(&source)?;
            if to.put(tensor).is_err() {
                return Ok(());
            }
        }
    }
    let session = with(&Knobs::new().delay(Duration::from_millis(10)));
    let (sender, receiver) = Queue::bounded(2).unwrap().split();
    let mut writer = spawn(write, sender, 1).unwrap();
    let driver = Driver::loaded();
    driver.start(0).unwrap();
    let side = Stream::new(Device::new(0).unwrap()).unwrap();
    let address = driver.alloc(64).unwrap();
    let dropped = Arc::new(AtomicUsize::new(0));
    // SAFETY: the memory is there as long as its owner.
    let piece =
        unsafe { DeviceTensor::<u8>::wrap_raw(&side, [64], address, Owner(dropped.clone())) };
    let mut piece = Some(piece.unwrap());
    let mut all = VecDeque::new();
    // The next few are received before the eldest is read.
    while dropped.load(Ordering::Relaxed) == 0 {
        all.push_back(receiver.get().unwrap());
        if all.len() > 3 {
            drop(piece.take());
            assert_eq!(all.pop_front().unwrap().to_vec().unwrap(), [5; 100]);
        }
    }
    drop((receiver, all));
    writer.join().unwrap();
    driver.free(address).unwrap();
    no_memory_is_left(session);
}

fn memory_of_a_pool_is_refused_with_the_reason_and_can_be_copied() {
    let session = machine();
    let stream = Stream::current().unwrap();
    let driver = Driver::loaded();
    driver.start(0).unwrap();
    let address = driver.alloc_async(4096, stream.as_raw()).unwrap();
    driver
        .fill_words_async(address, 5, 1024, stream.as_raw())
        .unwrap();
    // SAFETY: it is refused.
    let refused = unsafe { DeviceTensor::<u32>::wrap_raw(&stream, [1024], address, ()) };
    let error = refused.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::NotExportable);
    assert!(error.to_string().contains("pool"), "{error}");
    // SAFETY: the memory is freed in the order of the stream, after the copy.
    let copy = unsafe { DeviceTensor::<u32>::copied_from_raw(&stream, [1024], address) }.unwrap();
    driver.free_async(address, stream.as_raw()).unwrap();
    assert_eq!(copy.to_vec().unwrap(), [5; 1024]);
    drop(copy);
    no_memory_is_left(session);
}

fn cudarc_reads_and_writes_device_tensors_in_order() {
    let session = slow_machine();
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    let mut tensor = DeviceTensor::from_slice([64], &[1_u32; 64]).unwrap();
    let target = DeviceTensor::<u32>::zeros([64]).unwrap();
    for round in 2..6 {
        let mut view = tensor.for_cudarc_mut(&stream).unwrap();
        assert_eq!((view.len(), view.num_bytes()), (64, 256));
        let (address, after) = view.device_ptr_mut(&stream);
        let driver = Driver::loaded();
        driver
            .fill_words_async(address, round, 64, stream.cu_stream().addr())
            .unwrap();
        drop(after);
        drop(view);
        assert_eq!(tensor.to_vec().unwrap(), [round; 64]);
    }
    let shared = tensor.freeze();
    {
        let view = shared.for_cudarc(&stream).unwrap();
        let copied = stream.clone_dtoh(&view).unwrap();
        assert_eq!(copied, [5; 64]);
        let (address, _after) = view.device_ptr(&stream);
        assert_eq!(address, shared.read_in(shared.stream()).unwrap());
    }
    drop((shared, target));
    all_is_well(session);
}

fn cudarcs_slices_become_device_tensors() {
    // A device without pools is where cudarc allocates so that others can be shown it.
    let session = with(&Knobs::new().without(Feature::Pools));
    let context = CudaContext::new(0).unwrap();
    let stream = context.default_stream();
    let slice = stream.clone_htod(&[3_u32; 32]).unwrap();
    let copy = DeviceTensor::copy_cudarc(&slice, [4, 8]).unwrap();
    assert_eq!(copy.to_vec().unwrap(), [3; 32]);
    let (error, slice) = DeviceTensor::wrap_cudarc(slice, [31]).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Shape);
    let tensor = DeviceTensor::wrap_cudarc(slice, [32]).unwrap();
    let (sender, receiver) = Queue::bounded(1).unwrap().split();
    let mut worker = spawn(read, receiver, 1).unwrap();
    sender.put(tensor.freeze()).unwrap();
    assert_eq!(worker.join().unwrap(), [[3; 32]]);
    drop((sender, worker, copy));
    no_memory_is_left(session);
}

fn slots_go_round_without_opening_or_making_anything() {
    type Slot = DeviceTensor<u32>;
    const ROUNDS: u32 = 100;
    fn consume(
        _rank: usize,
        (from, back): (Receiver<Slot>, Sender<Slot>),
    ) -> tensormp::Result<Vec<u32>> {
        let mut copies = Vec::new();
        for slot in &from {
            copies.push(slot.to_device(slot.device())?);
            back.put(slot)?;
        }
        copies.iter().map(|copy| Ok(copy.to_vec()?[100])).collect()
    }
    let session = slow_machine();
    let (full, receiver) = Queue::bounded(3).unwrap().split();
    let (sender, empty) = Queue::bounded(3).unwrap().split();
    let mut context = spawn(consume, (receiver, sender.clone()), 1).unwrap();
    for slot in Slot::slots(3, [256]).unwrap() {
        sender.put(slot).unwrap();
    }
    drop(sender);
    let child = context.pids()[0];
    let names = [
        "cuMemAlloc_v2",
        "cuIpcOpenMemHandle_v2",
        "cuIpcOpenEventHandle",
        "cuEventCreate",
        "cuIpcCloseMemHandle",
    ];
    let mut warm = None;
    let sources: Vec<_> = (0..10)
        .map(|value| DeviceTensor::from_slice([256], &[value; 256]).unwrap())
        .collect();
    for round in 0..ROUNDS {
        let mut slot: Slot = empty.get().unwrap();
        slot.copy_from(&sources[round as usize % 10]).unwrap();
        full.put(slot).unwrap();
        if round == 10 {
            warm = Some(session.calls_of(std::process::id()));
        }
    }
    let now = session.calls_of(std::process::id());
    for name in names {
        assert_eq!(now.of(name), warm.as_ref().unwrap().of(name), "{name}");
    }
    // The memory and an event for each slot, whatever its own copies took.
    assert_eq!(session.calls_of(child).of("cuIpcOpenMemHandle_v2"), 1);
    assert!(session.calls_of(child).of("cuIpcOpenEventHandle") <= 3);
    drop(full);
    let wanted: Vec<u32> = (0..ROUNDS).map(|round| round % 10).collect();
    assert_eq!(context.join().unwrap(), [wanted]);
    drop((sources, empty));
    all_is_well(session);
}

fn a_pinned_tensor_is_not_written_before_the_copies_that_read_it() {
    let session = slow_machine();
    let device = Device::new(0).unwrap();
    let mut input = PinnedTensor::new(Tensor::<u32>::zeros([2048]).unwrap(), device).unwrap();
    input.outcome().unwrap();
    let mut there = DeviceTensor::<u32>::zeros([2048]).unwrap();
    let mut copies = Vec::new();
    let before = session.calls_of(std::process::id());
    for round in 0..5 {
        input.as_mut_slice().unwrap().fill(round);
        input.copy_to(&mut there).unwrap();
        copies.push(there.to_device(device).unwrap());
    }
    let calls = session.calls_of(std::process::id());
    assert_eq!(
        calls.of("cuStreamSynchronize"),
        before.of("cuStreamSynchronize"),
        "nobody waited for a stream"
    );
    for (round, copy) in (0..).zip(&copies) {
        assert_eq!(copy.to_vec().unwrap(), [round; 2048]);
    }
    let tensor = input.into_inner().unwrap();
    assert_eq!(tensor.as_slice(), [4; 2048]);
    drop((tensor, there, copies));
    all_is_well(session);
}

fn many_tensors_are_pinned_by_one_registration_of_the_region_they_lie_in() {
    let session = machine();
    let device = Device::new(0).unwrap();
    let registered = || {
        let calls = session.calls_of(std::process::id());
        (
            calls.of("cuMemHostRegister_v2"),
            calls.of("cuMemHostUnregister"),
        )
    };
    // In one chunk, once it has all its memory.
    let filler: Vec<_> = (0..1500)
        .map(|_| Tensor::<u8>::zeros([1000]).unwrap())
        .collect();
    let mut there = DeviceTensor::<u8>::zeros([1000]).unwrap();
    let mut pinned = Vec::new();
    for tensor in filler {
        let tensor = PinnedTensor::new(tensor, device).unwrap();
        tensor.outcome().unwrap();
        tensor.copy_to(&mut there).unwrap();
        pinned.push(tensor);
    }
    let (of_small, _) = registered();
    assert!(of_small <= 2, "{of_small} for 1,500 tensors");
    // A large one has a region of its own, which stays for the next one there.
    for _ in 0..5 {
        let large = Tensor::<f32>::zeros([3 << 20]).unwrap();
        PinnedTensor::new(large, device).unwrap().outcome().unwrap();
    }
    assert_eq!(registered(), (of_small + 1, 0));
    let stats = cuda_ipc::stats().pinned;
    assert_eq!(
        (stats.regions, stats.refused),
        (of_small + 1, 0),
        "{stats:?}"
    );
    assert!(stats.bytes >= 12 << 20, "{stats:?}");
    // Its pages stay while it is registered, though nothing is in it.
    let arena = shm_core::Arena::current().unwrap();
    arena.trim();
    let with_it = arena.stats().committed;
    drop((pinned, there));
    cuda_ipc::collect();
    assert_eq!(registered(), (of_small + 1, of_small + 1));
    assert_eq!(cuda_ipc::stats().pinned.regions, 0);
    arena.trim();
    assert!(arena.stats().committed + (12 << 20) <= with_it);
    all_is_well(session);
}

fn what_cannot_be_pinned_is_copied_all_the_same() {
    let session = with(&Knobs::new().without(Feature::HostRegister));
    let device = Device::new(0).unwrap();
    let input = PinnedTensor::new(Tensor::<u8>::full([10], 7).unwrap(), device).unwrap();
    assert!(input.outcome().unwrap_err().contains("cuMemHostRegister"));
    let stats = cuda_ipc::stats().pinned;
    assert_eq!((stats.regions, stats.refused), (0, 1));
    assert!(stats.why.unwrap().contains("cuMemHostRegister"));
    let mut there = DeviceTensor::<u8>::zeros([10]).unwrap();
    input.copy_to(&mut there).unwrap();
    assert_eq!(there.to_vec().unwrap(), [7; 10]);
    let empty = PinnedTensor::new(Tensor::<u8>::zeros([0]).unwrap(), device).unwrap();
    empty.outcome().unwrap();
    drop((input, empty, there));
    no_memory_is_left(session);
}

/// Says on which device its tensors are.
struct Where(Vec<String>);

impl Stage for Where {
    type Params = ();
    type Result = Vec<String>;

    fn output_spec(_: &()) -> Vec<TensorSpec> {
        Vec::new()
    }

    fn new(_: (), _: &Context) -> Result<Self, StageError> {
        Ok(Self(Vec::new()))
    }

    fn process(&mut self, _: Option<Input>, _: &mut Output) -> Result<Flow, StageError> {
        let tensor = DeviceTensor::<f32>::zeros([10])?;
        self.0.push(tensor.device().uuid().to_string());
        Ok(Flow::End)
    }

    fn finish(self, _: &mut Output) -> Result<Vec<String>, StageError> {
        Ok(self.0)
    }
}

fn a_pipelines_process_makes_its_tensors_on_its_device() {
    let session = machine();
    let step = Step::new("where").group(QueueGroup::of::<Where>(()).devices([1]));
    let report = Pipeline::new().step(step).run().unwrap();
    let found = report.results::<Where>("where").unwrap().concat();
    let wanted = [Device::new(1).unwrap().uuid().to_string()];
    assert_eq!(found, wanted);
    no_memory_is_left(session);
}

fn use_after_a_fork_is_an_error() {
    let session = machine();
    let tensor = DeviceTensor::from_slice([2], &[1, 2]).unwrap();
    // SAFETY: the child calls what is being tested, which touches no lock that another thread may hold, and leaves.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let errors = [
            cuda_ipc::devices().map(drop).unwrap_err(),
            DeviceTensor::<u8>::zeros([1]).map(drop).unwrap_err(),
            tensor.to_vec().map(drop).unwrap_err(),
            tensor.stream().synchronize().unwrap_err(),
        ];
        drop(tensor);
        let wrong = errors
            .iter()
            .filter(|error| *error.kind() != ErrorKind::AfterFork)
            .count();
        // SAFETY: it ends this process, without handlers that are the parent's.
        unsafe { libc::_exit(wrong as i32) };
    }
    let mut status = -1;
    // SAFETY: it writes a number to where one is.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(
        status, 0,
        "that many of them were no such error, shifted by 8"
    );
    assert_eq!(tensor.to_vec().unwrap(), [1, 2]);
    drop(tensor);
    all_is_well(session);
}

/// Not in the place of a driver: as the machine is.
fn no_driver() {
    match cuda_ipc::device_count() {
        Err(Unavailable::NoDriver) => {
            assert!(!cuda_ipc::is_available());
            let error = DeviceTensor::<u8>::zeros([1]).unwrap_err();
            assert_eq!(*error.kind(), ErrorKind::Unavailable(Unavailable::NoDriver));
            assert!(error.to_string().contains("libcuda"), "{error}");
            assert!(Device::new(0).is_err() && Stream::current().is_err());
            assert_eq!(cuda_ipc::collect(), 0);
            cuda_ipc::close(std::time::Duration::ZERO).unwrap();
        }
        other => {
            println!("this machine has a driver, which answers {other:?}: nothing to see without")
        }
    }
}

fn without_a_driver_nothing_panics() {
    let outcome = play("no_driver").output().unwrap();
    let said = String::from_utf8_lossy(&outcome.stderr);
    assert!(outcome.status.success(), "{said}");
}
