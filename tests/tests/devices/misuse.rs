//! What nobody should do, and some will: lengths that nothing has, use at the end of a thread, owners that panic, what is used in
//! two streams.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use cuda_emulator::{Driver, Feature, Knobs};
use cuda_ipc::{Device, DeviceTensor, ErrorKind, PinnedTensor, Stream};
use cudarc::driver::CudaContext;
use integration_tests::{Test, tests};
use tensormp::prelude::*;
use tensormp::spawn_api::builder;

use crate::support::{all_is_well, machine, no_memory_is_left, slow_machine, with};

pub(crate) const TESTS: &[Test] = &tests![
    lengths_that_nothing_has_are_errors_and_no_panics,
    slots_that_nothing_can_hold_are_an_error,
    slots_take_back_what_nobody_uses,
    a_context_that_could_not_be_made_is_tried_again,
    the_values_of_a_thread_use_tensors_when_it_ends,
    owners_that_panic_keep_no_others,
    a_tensor_is_not_written_before_it_was_read_in_other_streams,
    a_fork_is_told_so_by_everything_and_waits_for_no_lock,
    a_pinned_tensor_stays_where_nobody_can_tell_that_a_copy_is_over,
    a_pinned_tensor_comes_back_where_its_region_cannot_be_unregistered,
    memory_that_a_consumer_cannot_close_is_not_given_back_under_it,
    memory_of_another_device_is_refused,
    no_copy_is_begun_whose_end_cannot_be_waited_for,
    cudarc_uses_a_tensor_in_order_in_streams_of_another_device,
];

fn lengths_that_nothing_has_are_errors_and_no_panics() {
    let session = with(&Knobs::new().without(Feature::Pools));
    let is_refused = |outcome: cuda_ipc::Result<()>| {
        let error = outcome.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Shape, "{error}");
    };
    is_refused(DeviceTensor::<u8>::from_slice([usize::MAX, 2], &[1]).map(drop));
    is_refused(DeviceTensor::<u8>::from_slice([1 << 32, 1 << 32], &[]).map(drop));
    is_refused(DeviceTensor::<f64>::zeros([usize::MAX]).map(drop));
    let stream = CudaContext::new(0).unwrap().default_stream();
    let slice = stream.clone_htod(&[3_u32; 32]).unwrap();
    is_refused(DeviceTensor::copy_cudarc(&slice, [usize::MAX, 2]).map(drop));
    let (error, slice) = DeviceTensor::wrap_cudarc(slice, [usize::MAX, 2]).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Shape, "{error}");
    // Behind the beginning of its storage, so that the sum is more than any number.
    let mut bytes = DeviceTensor::<u8>::zeros([16]).unwrap();
    bytes.narrow(0, 8, 8).unwrap();
    is_refused(bytes.part_mut::<u8>(usize::MAX, [1]).map(drop));
    is_refused(bytes.part_mut::<u8>(usize::MAX, [usize::MAX]).map(drop));
    let shared = bytes.freeze();
    is_refused(shared.part::<u16>(usize::MAX - 7, [4]).map(drop));
    is_refused(shared.part::<u8>(usize::MAX, [0]).map(drop));
    drop((shared, slice));
    no_memory_is_left(session);
}

fn slots_that_nothing_can_hold_are_an_error() {
    let session = machine();
    // All of them have 2 MiB more than there are numbers for.
    let third = ((1_usize << 43) + 1) / 3;
    for (count, bytes) in [(3, third << 21), (1 << 20, 1 << 44), (2, 1 << 62)] {
        let error = DeviceTensor::<u8>::slots(count, [bytes]).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Shape, "{error}");
        assert!(error.to_string().contains(&bytes.to_string()), "{error}");
    }
    all_is_well(session);
}

fn slots_take_back_what_nobody_uses() {
    let session = with(&Knobs::new().memory(64));
    drop(DeviceTensor::<u8>::zeros([50 << 20]).unwrap());
    drop(DeviceTensor::<u8>::slots(3, [10 << 20]).unwrap());
    let error = DeviceTensor::<u8>::slots(3, [30 << 20]).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::OutOfMemory { asked } if *asked >= 90 << 20),
        "{error}"
    );
    assert!(error.to_string().contains("this process has"), "{error}");
    no_memory_is_left(session);
}

fn a_context_that_could_not_be_made_is_tried_again() {
    // As on a device that others have filled.
    let session = with(&Knobs::new().fail("cuDevicePrimaryCtxRetain", 2, Some(1)));
    let error = DeviceTensor::<u8>::zeros([4]).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::OutOfMemory { .. }),
        "{error}"
    );
    drop(DeviceTensor::<u8>::zeros([4]).unwrap());
    no_memory_is_left(session);
}

/// Uses its tensor when its thread ends, and then counts itself.
struct AtTheEnd(Option<DeviceTensor<u32>>, Arc<AtomicUsize>);

impl Drop for AtTheEnd {
    fn drop(&mut self) {
        let tensor = self.0.take().unwrap();
        let queue = Queue::bounded(2).unwrap();
        // More than a cell has room for.
        let much = vec![7_u8; 10_000];
        queue.put((tensor, much)).unwrap();
        let (tensor, much) = queue.get().unwrap();
        assert_eq!(much.len(), 10_000);
        let made = tensor.to_device(Device::new(1).unwrap()).unwrap();
        let side = Stream::new(tensor.device()).unwrap();
        let zeros = side.scope(|| DeviceTensor::<u32>::zeros([2])).unwrap();
        assert!(zeros.stream().same(&side) && !Stream::current().unwrap().same(&side));
        assert_eq!(made.to_vec().unwrap(), [1, 2]);
        assert_eq!(zeros.to_vec().unwrap(), [0, 0]);
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

fn the_values_of_a_thread_use_tensors_when_it_ends() {
    thread_local! {
        static KEPT: RefCell<Option<AtTheEnd>> = const { RefCell::new(None) };
    }
    let session = machine();
    let ended = Arc::new(AtomicUsize::new(0));
    let count = ended.clone();
    std::thread::spawn(move || {
        // The first value of the thread, and so dropped behind all that this crate and others have there.
        KEPT.set(None);
        let tensor = DeviceTensor::from_slice([2], &[1, 2]).unwrap();
        let side = Stream::new(tensor.device()).unwrap();
        side.scope(|| side.scope(|| ()));
        let queue = Queue::bounded(1).unwrap();
        queue.put(vec![7_u8; 10_000]).unwrap();
        KEPT.set(Some(AtTheEnd(Some(tensor), count)));
    })
    .join()
    .unwrap();
    assert_eq!(ended.load(Ordering::Relaxed), 1);
    all_is_well(session);
}

/// Panics when it is dropped, and counts how often it was.
struct Panicking(Arc<AtomicUsize>);

impl Drop for Panicking {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
        panic!("an owner panics");
    }
}

fn owners_that_panic_keep_no_others() {
    let session = machine();
    let stream = Stream::current().unwrap();
    let driver = Driver::loaded();
    driver.start(0).unwrap();
    let dropped = Arc::new(AtomicUsize::new(0));
    let address = driver.alloc(4096).unwrap();
    let wrapped: Vec<_> = (0..5)
        .map(|piece| {
            let (at, owner) = (address + 512 * piece, Panicking(dropped.clone()));
            // SAFETY: the memory is there until it is freed below, and nobody else uses it.
            unsafe { DeviceTensor::<u32>::wrap_raw(&stream, [4], at, owner) }.unwrap()
        })
        .collect();
    drop(wrapped);
    stream.synchronize().unwrap();
    cuda_ipc::collect();
    cuda_ipc::close(Duration::from_secs(20)).unwrap();
    assert_eq!(dropped.load(Ordering::Relaxed), 5);
    driver.free(address).unwrap();
    no_memory_is_left(session);
}

fn a_tensor_is_not_written_before_it_was_read_in_other_streams() {
    let session = slow_machine();
    let driver = Driver::loaded();
    driver.start(0).unwrap();
    let copies = driver.alloc(6 * 4096).unwrap();
    let other = Stream::new(Device::new(0).unwrap()).unwrap();
    let mut tensor = DeviceTensor::<u32>::zeros([1024]).unwrap();
    let source = DeviceTensor::from_slice([1024], &[9; 1024]).unwrap();
    let read = |tensor: &DeviceTensor<u32>, copy: u64| {
        let from = tensor.read_in(&other).unwrap();
        let to = copies + 4096 * copy;
        driver.copy_async(to, from, 4096, other.as_raw()).unwrap();
    };
    read(&tensor, 0);
    tensor.copy_from_slice(&[1; 1024]).unwrap();
    read(&tensor, 1);
    tensor.copy_from(&source).unwrap();
    read(&tensor, 2);
    tensor.clear().unwrap();
    read(&tensor, 3);
    let third = Stream::new(tensor.device()).unwrap();
    let to = tensor.write_in(&third).unwrap();
    driver
        .fill_words_async(to, 5, 1024, third.as_raw())
        .unwrap();
    read(&tensor, 4);
    let cudarcs = CudaContext::new(0).unwrap().default_stream();
    let mut view = tensor.for_cudarc_mut(&cudarcs).unwrap();
    cudarcs.memset_zeros(&mut view).unwrap();
    drop(view);
    assert_eq!(tensor.to_vec().unwrap(), [0; 1024]);
    // What is sent comes behind it, too, also where it was written elsewhere.
    read(&tensor, 5);
    let queue = Queue::bounded(1).unwrap();
    queue.put(tensor).unwrap();
    let mut tensor = queue.get().unwrap();
    tensor.copy_from_slice(&[2; 1024]).unwrap();
    other.synchronize().unwrap();
    driver.free(copies).unwrap();
    drop((tensor, source));
    all_is_well(session);
}

fn is_refused<T>(outcome: cuda_ipc::Result<T>) -> bool {
    outcome.is_err_and(|error| *error.kind() == ErrorKind::AfterFork)
}

/// A word that forks of this process see, too.
fn shared_word() -> &'static AtomicU64 {
    let (read_write, shared) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_SHARED | libc::MAP_ANONYMOUS,
    );
    let nowhere = std::ptr::null_mut();
    // SAFETY: it asks for new memory.
    let page = unsafe { libc::mmap(nowhere, 4096, read_write, shared, -1, 0) };
    assert_ne!(page, libc::MAP_FAILED);
    // SAFETY: it is a page of zeros that stays, and is used as this alone.
    unsafe { &*page.cast() }
}

fn a_fork_is_told_so_by_everything_and_waits_for_no_lock() {
    let session = machine();
    let device = Device::new(0).unwrap();
    let made = || DeviceTensor::from_slice([8], &[1_u8; 8]).unwrap();
    let (mut tensor, source, shared) = (made(), made(), made().freeze());
    let sealed = shared.seal().unwrap();
    let moment = tensor.stream().moment().unwrap();
    let mut pinned = PinnedTensor::new(Tensor::<u8>::zeros([8]).unwrap(), device).unwrap();
    pinned.copy_to(&mut tensor).unwrap();
    let ends = Arc::new(AtomicBool::new(false));
    // In the middle of something whenever this process is forked.
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let ends = ends.clone();
            std::thread::spawn(move || {
                while !ends.load(Ordering::Relaxed) {
                    let host = Tensor::<u8>::zeros([3 << 20]).unwrap();
                    drop(PinnedTensor::new(host, device).unwrap());
                    drop(Stream::new(device).unwrap().moment().unwrap());
                    cuda_ipc::collect();
                }
            })
        })
        .collect();
    let at = shared_word();
    for _ in 0..30 {
        // SAFETY: the child calls what is being tested, which has to touch no lock that another thread may hold, and leaves.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: it ends this process, should it hang.
            unsafe { libc::alarm(10) };
            let mut step = 0;
            let mut expect = |is_right: bool| {
                step += 1;
                if !is_right {
                    // SAFETY: as below.
                    unsafe { libc::_exit(step) };
                }
                at.store(step as u64, Ordering::Relaxed);
            };
            expect(cuda_ipc::stats() == cuda_ipc::Stats::default());
            expect(cuda_ipc::collect() == 0);
            expect(cuda_ipc::close(Duration::ZERO).is_ok());
            expect(is_refused(tensor.to_vec()));
            expect(is_refused(tensor.copy_from_slice(&[2; 8])));
            expect(is_refused(tensor.copy_from(&source)));
            expect(is_refused(tensor.clear()));
            expect(is_refused(tensor.to_device(device)));
            expect(is_refused(source.read_in(source.stream())));
            expect(is_refused(tensor.write_in(source.stream())));
            expect(is_refused(shared.seal()));
            expect(is_refused(sealed.open()));
            expect(is_refused(moment.has_passed()));
            expect(is_refused(source.stream().moment()));
            expect(is_refused(Stream::new(device)));
            expect(is_refused(Stream::current()));
            expect(is_refused(Stream::legacy(device)));
            expect(is_refused(pinned.copy_to(&mut tensor)));
            expect(is_refused(pinned.as_mut_slice()));
            expect(is_refused(pinned.wait()));
            expect(is_refused(device.probe()));
            expect(is_refused(device.try_pinning()));
            expect(!format!("{tensor:?} {shared:?} {moment:?} {pinned:?} {sealed:?}").is_empty());
            expect(shared.clone().try_thaw().is_err());
            drop((tensor, source, shared, sealed, moment, pinned));
            expect(true);
            // SAFETY: it ends this process, without handlers that are the parent's.
            unsafe { libc::_exit(0) };
        }
        let mut status = -1;
        // SAFETY: it writes a number to where one is.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "after step {}", at.load(Ordering::Relaxed));
    }
    ends.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(source.to_vec().unwrap(), [1; 8]);
    assert_eq!(tensor.to_vec().unwrap(), [0; 8]);
    drop((sealed, pinned, moment));
    assert!(shared.try_thaw().is_ok());
    drop((tensor, source));
    all_is_well(session);
}

fn a_pinned_tensor_stays_where_nobody_can_tell_that_a_copy_is_over() {
    const N: usize = 100_000;
    // The one record is of the copy, and the first wait for a stream in the driver is what is done in its place.
    let knobs = Knobs::new().fail("cuEventRecord", 999, Some(1));
    let session = with(&knobs.fail("cuStreamSynchronize", 999, Some(1)));
    let mut there = DeviceTensor::<u32>::zeros([N]).unwrap();
    session.hold();
    let host = Tensor::<u32>::full([N], 7).unwrap();
    let mut pinned = PinnedTensor::new(host, there.device()).unwrap();
    let error = pinned.copy_to(&mut there).unwrap_err();
    assert_eq!(error.code(), Some(999), "{error}");
    assert!(pinned.as_mut_slice().is_err() && pinned.wait().is_err());
    drop(pinned);
    let others: Vec<_> = (0..20)
        .map(|_| Tensor::<u32>::full([N], 1).unwrap())
        .collect();
    session.let_go();
    assert_eq!(there.to_vec().unwrap(), vec![7; N]);
    integration_tests::allow_leaks(1);
    drop((there, others));
    no_memory_is_left(session);
}

fn a_pinned_tensor_comes_back_where_its_region_cannot_be_unregistered() {
    let session = with(&Knobs::new().fail("cuMemHostUnregister", 999, Some(1)));
    // So much that it is unregistered at once when it is not needed any more.
    let host = Tensor::<u8>::uninit([257 << 20]).unwrap();
    let pinned = PinnedTensor::new(host, Device::new(0).unwrap()).unwrap();
    pinned.outcome().unwrap();
    let host = pinned.into_inner().unwrap();
    assert_eq!(host.numel(), 257 << 20);
    assert_eq!(session.calls().of("cuMemHostUnregister"), 1);
    drop(host);
    no_memory_is_left(session);
}

fn memory_that_a_consumer_cannot_close_is_not_given_back_under_it() {
    fn look(
        _rank: usize,
        (from, closed, end): (Receiver<DeviceTensor<u8>>, Event, Event),
    ) -> tensormp::Result<u64> {
        drop(from.get()?.to_vec()?);
        cuda_ipc::collect();
        closed.set();
        end.wait()?;
        Ok(cuda_ipc::stats().imports)
    }
    let session = machine();
    let (sender, receiver) = Queue::bounded(1).unwrap().split();
    let (closed, end) = (Event::new().unwrap(), Event::new().unwrap());
    let worker = builder().env("CUDA_EMULATOR_FAIL", "cuIpcCloseMemHandle:999");
    let arguments = (receiver, closed.clone(), end.clone());
    let mut worker = worker.spawn(look, arguments, 1).unwrap();
    sender.put(DeviceTensor::zeros([4]).unwrap()).unwrap();
    closed.wait().unwrap();
    let error = cuda_ipc::close(Duration::from_millis(300)).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::TimedOut, "{error}");
    let pid = worker.pids()[0].to_string();
    assert!(error.to_string().contains(&pid), "{error}");
    end.set();
    assert_eq!(worker.join().unwrap(), [1]);
    no_memory_is_left(session);
}

fn memory_of_another_device_is_refused() {
    let session = machine();
    let driver = Driver::loaded();
    driver.start(0).unwrap();
    let address = driver.alloc(4096).unwrap();
    let other = Stream::new(Device::new(1).unwrap()).unwrap();
    // SAFETY: nothing is made of it.
    let made = unsafe { DeviceTensor::<u32>::wrap_raw(&other, [4], address, ()) };
    let error = made.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::WrongDevice, "{error}");
    driver.free(address).unwrap();
    all_is_well(session);
}

fn no_copy_is_begun_whose_end_cannot_be_waited_for() {
    // The device would go on reading, or writing, what the program uses for something else.
    let session = with(&Knobs::new().missing(&["cuStreamSynchronize"]));
    let mut tensor = DeviceTensor::<u8>::zeros([4]).unwrap();
    for outcome in [tensor.copy_from_slice(&[1; 4]), tensor.to_vec().map(drop)] {
        let error = outcome.unwrap_err();
        assert!(error.to_string().contains("cuStreamSynchronize"), "{error}");
    }
    let calls = session.calls();
    assert_eq!(calls.of("cuMemcpyHtoDAsync_v2"), 0);
    assert_eq!(calls.of("cuMemcpyDtoHAsync_v2"), 0);
    drop(tensor);
    no_memory_is_left(session);
}

fn cudarc_uses_a_tensor_in_order_in_streams_of_another_device() {
    let session = slow_machine();
    let [first, second] = [0, 1].map(|device| CudaContext::new(device).unwrap());
    let side = second.new_stream().unwrap();
    let mut tensor = DeviceTensor::from_slice([64], &[1_u32; 64]).unwrap();
    for round in 0..3 {
        // Late, in the tensor's own stream.
        tensor.clear().unwrap();
        let mut view = tensor.for_cudarc_mut(&first.default_stream()).unwrap();
        // All default streams have the same handle.
        for stream in [
            &second.default_stream(),
            &side,
            &first.default_stream(),
            &second.default_stream(),
        ] {
            assert_eq!(stream.clone_dtoh(&view).unwrap(), [0; 64], "{round}");
            stream.memset_zeros(&mut view).unwrap();
        }
    }
    assert_eq!(tensor.to_vec().unwrap(), [0; 64]);
    drop(tensor);
    no_memory_is_left(session);
}
