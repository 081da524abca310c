//! Streams that CUDA orders by itself: its legacy default stream, and the blocking streams of a device. What is behind work of
//! the dead that way is an error and no hang.

use cuda_emulator::{Driver, Session};
use cuda_ipc::{Device, DeviceTensor, ErrorKind, SharedDeviceTensor, Stream};
use cudarc::driver::{CudaContext, DevicePtr};
use integration_tests::{Test, tests};
use tensormp::prelude::*;

use crate::lifetime::promise;
use crate::lost::{Behind, behind, dies};
use crate::support::machine;

pub(crate) const TESTS: &[Test] = &tests![
    what_is_put_into_the_default_stream_of_cuda_holds_up_no_stream_of_ours,
    a_blocking_stream_behind_another_one_that_waits_for_the_dead_is_an_error_and_no_hang,
    cudarc_does_not_wait_for_the_dead_when_a_view_was_used,
];

type Shared = SharedDeviceTensor<u8>;

fn device() -> Device {
    Device::new(0).unwrap()
}

/// A stream of the program's own, which it keeps until it ends.
fn lent(flags: u32) -> Stream {
    let driver = Driver::loaded();
    driver.start(0).unwrap();
    let raw = driver.stream(flags).unwrap();
    // SAFETY: it is a stream of that device, and is not destroyed.
    unsafe { Stream::from_raw(device(), raw) }.unwrap()
}

/// CUDA's own default stream.
fn legacy() -> Stream {
    // SAFETY: it is there as long as the process.
    unsafe { Stream::from_raw(device(), 0) }.unwrap()
}

/// Memory of the program's own, and a fill of it in CUDA's own default stream.
fn use_the_default_stream_of_cuda() {
    let driver = Driver::loaded();
    driver.start(0).unwrap();
    let at = driver.alloc(8).unwrap();
    driver.fill_async(at, 1, 8, 0).unwrap();
}

/// A process that is about to write a tensor, for which this stream waits now.
fn late_in(stream: &Stream, session: &Session) -> (SpawnContext<()>, Shared) {
    let (sender, receiver) = Queue::bounded(4).unwrap().split();
    let (ready, go) = (Event::new().unwrap(), Event::new().unwrap());
    let writer = spawn(promise, (sender, ready.clone(), go.clone()), 1).unwrap();
    ready.wait().unwrap();
    session.hold();
    go.set();
    let theirs = stream.scope(|| receiver.get()).unwrap();
    (writer, theirs)
}

fn is_lost<T: std::fmt::Debug>(outcome: cuda_ipc::Result<T>) {
    let error = outcome.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::WriterGone, "{error}");
}

/// In CUDA's default stream something comes after all that blocking streams have to do, and they go on after it.
fn what_is_put_into_the_default_stream_of_cuda_holds_up_no_stream_of_ours() {
    let session = machine();
    let side = Stream::new(device()).unwrap();
    let beside = DeviceTensor::from_slice_on(&side, [2], &[5_u8, 6]).unwrap();
    let Behind { writer, mine, .. } = behind(&session);
    use_the_default_stream_of_cuda();
    let copy = side.scope(|| beside.to_device(device())).unwrap();
    dies(writer, &session);
    assert_eq!(copy.to_vec().unwrap(), [5, 6]);
    is_lost(mine.to_vec());
    use_the_default_stream_of_cuda();
    // On the default stream that was made anew.
    let fresh = DeviceTensor::from_slice([2], &[7_u8, 8]).unwrap();
    assert_eq!(fresh.to_vec().unwrap(), [7, 8]);
}

fn a_blocking_stream_behind_another_one_that_waits_for_the_dead_is_an_error_and_no_hang() {
    let session = machine();
    let [one, two] = [(); 2].map(|()| lent(0));
    let apart = lent(1);
    let sources = [&two, &apart].map(|stream| DeviceTensor::from_slice_on(stream, [2], &[5_u8, 6]));
    let [mine, beside] = sources.map(Result::unwrap);
    let (writer, theirs) = late_in(&one, &session);
    use_the_default_stream_of_cuda();
    let copies = [(&two, &mine), (&apart, &beside)];
    let copies = copies.map(|(stream, source)| stream.scope(|| source.to_device(device())));
    let [behind, not_behind] = copies.map(Result::unwrap);
    dies(writer, &session);
    is_lost(behind.to_vec());
    assert!(theirs.to_vec().is_err());
    assert_eq!(not_behind.to_vec().unwrap(), [5, 6]);
}

/// By default cudarc tracks no events as long as it has made no stream.
fn cudarc_does_not_wait_for_the_dead_when_a_view_was_used() {
    let session = machine();
    let context = CudaContext::new(0).unwrap();
    let stream = context.default_stream();
    let Behind {
        writer,
        theirs,
        mine: _mine,
    } = behind(&session);
    let view = theirs.for_cudarc(&stream).unwrap();
    drop(view.device_ptr(&stream));
    drop(view);
    dies(writer, &session);
    is_lost(theirs.to_vec());
    let fresh = DeviceTensor::from_slice([2], &[7_u8, 8]).unwrap();
    assert_eq!(fresh.to_vec().unwrap(), [7, 8]);
}
