//! Streams of others that were destroyed, and whose handle another one has.

use std::time::Duration;

use cuda_emulator::{Driver, Kind, Knobs, Session};
use cuda_ipc::{Device, DeviceTensor, ErrorKind, Stream};
use cudarc::driver::{CudaContext, DevicePtrMut};
use integration_tests::{Test, tests};
use tensormp::prelude::*;

use crate::behind::dies;
use crate::legacy::late_in;
use crate::support::{machine, with};

pub(crate) const TESTS: &[Test] = &tests![
    a_stream_that_goes_with_its_last_handle_is_in_no_call_of_another_thread,
    a_stream_that_goes_with_its_last_handle_is_in_no_call_of_who_gives_memory_back,
    a_stream_of_cudarc_that_has_the_handle_of_another_one_uses_a_view_behind_that,
    a_stream_of_cudarc_that_has_the_handle_of_another_one_uses_a_view_behind_that_without_ids,
    a_stream_is_destroyed_when_no_tensor_is_on_it_and_nobody_asks_for_it_again,
    a_stream_is_destroyed_when_no_tensor_is_on_it_also_where_no_event_could_be_made,
    what_a_stream_had_done_before_it_was_lost_is_done,
    a_stream_that_has_the_handle_of_a_lost_one_is_not_lost,
    a_stream_that_has_the_handle_of_a_lost_one_is_not_lost_where_the_driver_tells_no_ids,
    a_stream_that_has_the_handle_of_a_lost_one_and_much_to_do_is_lost_where_the_driver_tells_no_ids,
];

type Bytes = DeviceTensor<u8>;

/// The program's own, on the device 0.
fn make() -> usize {
    let driver = Driver::loaded();
    driver.start(0).unwrap();
    driver.stream(1).unwrap()
}

pub(crate) fn lent(raw: usize) -> Stream {
    // SAFETY: it is a stream of that device, and outlives what is made of it.
    unsafe { Stream::from_raw(Device::new(0).unwrap(), raw) }.unwrap()
}

fn knobs() -> Knobs {
    Knobs::new().stream_handles_again()
}

fn is_lost(stream: &Stream) {
    let error = stream.synchronize().unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::WriterGone, "{error}");
}

/// A stream is lost behind the dead, and destroyed; its handle is another one's.
fn lose_one(session: &Session) -> usize {
    let raw = make();
    let stream = lent(raw);
    let (writer, theirs) = late_in(&stream, session);
    dies(writer, session);
    is_lost(&stream);
    drop((theirs, stream));
    Driver::loaded().destroy_stream(raw).unwrap();
    assert_eq!(make(), raw);
    raw
}

fn is_as_good_as_new(raw: usize) {
    let (sender, receiver) = Queue::bounded(1).unwrap().split();
    let mine = DeviceTensor::from_slice_on(&lent(raw), [2], &[5_u8, 6]).unwrap();
    assert_eq!(mine.to_vec().unwrap(), [5, 6]);
    sender.put(mine).unwrap();
    let back: Bytes = lent(raw).scope(|| receiver.get()).unwrap();
    assert_eq!(back.to_vec().unwrap(), [5, 6]);
}

fn a_stream_that_has_the_handle_of_a_lost_one_is_not_lost() {
    let session = with(&knobs());
    let raw = lose_one(&session);
    // Also while it has something to do.
    let driver = Driver::loaded();
    let at = driver.alloc(8).unwrap();
    session.hold();
    driver.fill_async(at, 1, 8, raw).unwrap();
    let stream = lent(raw);
    session.let_go();
    stream.synchronize().unwrap();
    is_as_good_as_new(raw);
}

fn a_stream_that_has_the_handle_of_a_lost_one_is_not_lost_where_the_driver_tells_no_ids() {
    let session = with(&knobs().missing(&["cuStreamGetId"]));
    is_as_good_as_new(lose_one(&session));
}

/// Until it was seen with nothing to do, which the lost one never is.
fn a_stream_that_has_the_handle_of_a_lost_one_and_much_to_do_is_lost_where_the_driver_tells_no_ids()
{
    let session = with(&knobs().missing(&["cuStreamGetId"]));
    let raw = lose_one(&session);
    let driver = Driver::loaded();
    let at = driver.alloc(8).unwrap();
    session.hold();
    driver.fill_async(at, 1, 8, raw).unwrap();
    is_lost(&lent(raw));
    session.let_go();
    driver.synchronize_stream(raw).unwrap();
    is_as_good_as_new(raw);
}

/// The thread that watches the arena asks how far it is, where it was left alone.
fn a_stream_that_goes_with_its_last_handle_is_in_no_call_of_another_thread() {
    let session = with(&Knobs::new().slow("cuStreamQuery", Duration::from_millis(200)));
    let raw = make();
    let stream = lent(raw);
    let (sender, receiver) = Queue::bounded(1).unwrap().split();
    // Something is recorded in it, so that others may want to know.
    let mine = DeviceTensor::from_slice_on(&stream, [2], &[5_u8, 6]).unwrap();
    sender.put(mine).unwrap();
    let back: Bytes = receiver.get().unwrap();
    assert_eq!(back.to_vec().unwrap(), [5, 6]);
    drop(back);
    let asked = session.calls().of("cuStreamQuery");
    while session.calls().of("cuStreamQuery") == asked {
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(stream);
    Driver::loaded().destroy_stream(raw).unwrap();
    crate::support::all_is_well(session);
}

fn a_stream_that_goes_with_its_last_handle_is_in_no_call_of_who_gives_memory_back() {
    let session = with(&Knobs::new().slow("cuStreamQuery", Duration::from_millis(200)));
    let raw = make();
    let stream = lent(raw);
    drop(Bytes::zeros([3 << 20]).unwrap());
    let asked = session.calls().of("cuStreamQuery");
    std::thread::scope(|scope| {
        let gives_back = scope.spawn(cuda_ipc::collect);
        while session.calls().of("cuStreamQuery") == asked {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(stream);
        Driver::loaded().destroy_stream(raw).unwrap();
        assert!(gives_back.join().unwrap() > 0);
    });
    crate::support::all_is_well(session);
}

fn a_stream_is_destroyed_when_no_tensor_is_on_it_and_nobody_asks_for_it_again() {
    let session = machine();
    let raw = make();
    let stream = lent(raw);
    let mine = DeviceTensor::from_slice_on(&stream, [100], &[5_u8; 100]).unwrap();
    let fill = |mut tensor: Bytes| tensor.clear().unwrap();
    fill(mine);
    drop(stream);
    Driver::loaded().destroy_stream(raw).unwrap();
    // In the same memory, behind what was done there.
    let fresh = Bytes::zeros([100]).unwrap();
    assert_eq!(fresh.to_vec().unwrap(), [0; 100]);
    drop(fresh);
    crate::support::all_is_well(session);
}

/// Whoever uses the memory next is ordered behind it by an event, which the driver does not make for once.
fn a_stream_is_destroyed_when_no_tensor_is_on_it_also_where_no_event_could_be_made() {
    // The first is the trial's.
    let session = with(&Knobs::new().fail("cuEventCreate", 2, Some(2)));
    let raw = make();
    let stream = lent(raw);
    let mut mine = DeviceTensor::from_slice_on(&stream, [100], &[5_u8; 100]).unwrap();
    mine.clear().unwrap();
    drop(mine);
    assert_eq!(session.reports_of(Kind::Refused).len(), 1);
    drop(stream);
    Driver::loaded().destroy_stream(raw).unwrap();
    let fresh = Bytes::zeros([100]).unwrap();
    assert_eq!(fresh.to_vec().unwrap(), [0; 100]);
    drop(fresh);
    crate::support::no_memory_is_left(session);
}

/// Nobody has to wait for what was over long before.
fn what_a_stream_had_done_before_it_was_lost_is_done() {
    let session = machine();
    let stream = lent(make());
    drop(DeviceTensor::from_slice_on(&stream, [100], &[5_u8; 100]).unwrap());
    session.settle();
    let (writer, theirs) = late_in(&stream, &session);
    dies(writer, &session);
    is_lost(&stream);
    let fresh = Bytes::zeros([100]).unwrap();
    assert_eq!(fresh.to_vec().unwrap(), [0; 100]);
    assert_eq!(cuda_ipc::stats().reused, 1);
    drop(theirs);
}

/// What a view was used for in a stream of cudarc that was destroyed, and in one that has its handle.
fn uses_a_view_in_order(session: Session) {
    let context = CudaContext::new(0).unwrap();
    let first = context.new_stream().unwrap();
    let mut tensor = DeviceTensor::from_slice([64], &[0_u32; 64]).unwrap();
    let driver = Driver::loaded();
    let mut view = tensor.for_cudarc_mut(&first).unwrap();
    let mut handles = [0; 2];
    for (round, handle) in (1..).zip(&mut handles) {
        let stream = context.new_stream().unwrap();
        *handle = stream.cu_stream().addr();
        let (address, _after) = view.device_ptr_mut(&stream);
        driver
            .fill_words_async(address, round, 64, *handle)
            .unwrap();
    }
    assert_eq!(handles[0], handles[1]);
    drop(view);
    assert_eq!(tensor.to_vec().unwrap(), [2; 64]);
    drop(tensor);
    crate::support::no_memory_is_left(session);
}

fn a_stream_of_cudarc_that_has_the_handle_of_another_one_uses_a_view_behind_that() {
    uses_a_view_in_order(with(&knobs()));
}

fn a_stream_of_cudarc_that_has_the_handle_of_another_one_uses_a_view_behind_that_without_ids() {
    uses_a_view_in_order(with(&knobs().missing(&["cuStreamGetId"])));
}
