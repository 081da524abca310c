//! Streams that CUDA orders by itself: its legacy default stream, and the blocking streams of a device. What is behind work of
//! the dead that way is an error and no hang.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cuda_emulator::{Driver, Session};
use cuda_ipc::{Device, DeviceTensor, ErrorKind, SharedDeviceTensor, Stream};
use cudarc::driver::{CudaContext, DevicePtr, DevicePtrMut};
use integration_tests::{Test, tests};
use tensormp::prelude::*;

use crate::behind::{
    Behind, Between, behind, dies, read_by_a_third, read_one, sent_by_one_that_is_stopped,
};
use crate::lifetime::promise;
use crate::order::costs_one_record_and_one_wait_a_side;
use crate::others::Owner;
use crate::support::{all_is_well, machine, slow_machine};

pub(crate) const TESTS: &[Test] = &tests![
    what_is_put_into_the_default_stream_of_cuda_holds_up_no_stream_of_ours,
    a_blocking_stream_behind_another_one_that_waits_for_the_dead_is_an_error_and_no_hang,
    what_would_stay_behind_another_blocking_stream_is_not_sent,
    what_was_sent_behind_another_blocking_stream_is_an_error_and_no_hang,
    what_was_sent_behind_another_blocking_stream_of_one_that_is_stopped_is_an_error,
    what_a_blocking_stream_was_given_before_another_one_came_to_wait_is_not_lost,
    tensors_are_in_order_with_the_default_stream_of_cuda,
    a_hand_over_in_the_default_stream_of_cuda_costs_no_more_than_in_others,
    the_default_stream_of_a_thread_is_refused,
    cudarc_does_not_wait_for_the_dead_when_a_view_was_used,
    cudarc_uses_tensors_in_order_without_waiting_where_it_tracks_nothing,
    an_owner_of_memory_is_not_dropped_while_a_stream_waits_for_the_dead,
];

type Bytes = DeviceTensor<u8>;
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

/// Memory of the program's own, and a fill of it in CUDA's own default stream.
fn use_the_default_stream_of_cuda() {
    let driver = Driver::loaded();
    driver.start(0).unwrap();
    let at = driver.alloc(8).unwrap();
    driver.fill_async(at, 1, 8, 0).unwrap();
}

/// A process that is about to write a tensor, for which this stream waits now.
pub(crate) fn late_in(stream: &Stream, session: &Session) -> (SpawnContext<()>, Shared) {
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

/// Two streams that CUDA may order by itself, and a tensor on the second.
fn two() -> ([Stream; 2], Bytes) {
    let streams = [(); 2].map(|()| lent(0));
    let mine = DeviceTensor::from_slice_on(&streams[1], [3], &[1_u8, 2, 3]).unwrap();
    (streams, mine)
}

fn what_would_stay_behind_another_blocking_stream_is_not_sent() {
    let session = machine();
    let (sender, _receiver) = Queue::bounded(1).unwrap().split();
    let ([one, _two], mine) = two();
    let (writer, _theirs) = late_in(&one, &session);
    let pid = writer.pids()[0];
    dies(writer, &session);
    let error = sender.put(mine).map_err(|failed| failed.into_parts().0);
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains(&format!("process {pid} (promise)")),
        "{error}"
    );
    // Nor does one go on that comes later: it may be behind them.
    is_lost(lent(0).synchronize());
    is_lost(Stream::legacy(device()).unwrap().synchronize());
    lent(1).synchronize().unwrap();
    sender.put(Bytes::zeros([2]).unwrap()).unwrap();
}

fn what_was_sent_behind_another_blocking_stream_is_an_error_and_no_hang() {
    let session = machine();
    read_by_a_third(&session, || {
        let ([one, two], mut mine) = two();
        let (writer, theirs) = late_in(&one, &session);
        use_the_default_stream_of_cuda();
        mine.clear().unwrap();
        (writer, mine, (theirs, one, two))
    });
}

fn what_was_sent_behind_another_blocking_stream_of_one_that_is_stopped_is_an_error() {
    /// Receives in one stream what is not written yet, and sends its own behind it in another one.
    fn send_behind(_rank: usize, (from, to, ready): Between) -> tensormp::Result<()> {
        let ([one, _two], mut mine) = two();
        ready.set();
        let _theirs = one.scope(|| from.get())?;
        use_the_default_stream_of_cuda();
        mine.clear()?;
        to.put(mine)?;
        std::thread::sleep(Duration::from_secs(60));
        Ok(())
    }
    let session = machine();
    let begin = |part| spawn(send_behind, part, 1).unwrap();
    sent_by_one_that_is_stopped(&session, begin, |tensor| is_lost(tensor.to_vec()));
}

fn what_a_blocking_stream_was_given_before_another_one_came_to_wait_is_not_lost() {
    let session = machine();
    let (sender, receiver) = Queue::bounded(1).unwrap().split();
    let (said, told) = Queue::bounded(1).unwrap().split();
    let mut third = spawn(read_one, (receiver, said), 1).unwrap();
    let ([one, _two], mut mine) = two();
    let (promised, late) = Queue::bounded(1).unwrap().split();
    let [ready, go] = [(); 2].map(|()| Event::new().unwrap());
    let mut writer = spawn(promise, (promised, ready.clone(), go.clone()), 1).unwrap();
    ready.wait().unwrap();
    session.hold();
    mine.clear().unwrap();
    sender.put(mine).unwrap();
    assert_eq!(told.get().unwrap(), "received");
    go.set();
    let _theirs: Shared = one.scope(|| late.get()).unwrap();
    writer.kill();
    assert!(writer.join().is_err());
    while cuda_ipc::stats().stuck.is_empty() {
        std::thread::sleep(Duration::from_millis(5));
    }
    session.let_go();
    assert_eq!(told.get().unwrap(), "[0, 0, 0]");
    third.join().unwrap();
}

/// What is put into it is in order with a tensor for as long as the stream is named.
fn tensors_are_in_order_with_the_default_stream_of_cuda() {
    let session = slow_machine();
    let legacy = Stream::legacy(device()).unwrap();
    let (driver, (sender, receiver)) = (Driver::loaded(), Queue::bounded(1).unwrap().split());
    driver.start(0).unwrap();
    let mut tensor = DeviceTensor::from_slice([64], &[1_u32; 64]).unwrap();
    for round in 2..8 {
        let address = tensor.write_in(&legacy).unwrap();
        driver.fill_words_async(address, round, 64, 0).unwrap();
        let copy = tensor.to_device(device()).unwrap();
        sender.put(tensor).unwrap();
        tensor = receiver.get().unwrap();
        assert_eq!(copy.to_vec().unwrap(), [round; 64]);
    }
    // One that is on it needs no name.
    let on_it = legacy.scope(|| tensor.to_device(device())).unwrap();
    let address = on_it.read_in(on_it.stream()).unwrap();
    driver.fill_words_async(address, 9, 64, 0).unwrap();
    assert_eq!(on_it.to_vec().unwrap(), [9; 64]);
    drop((tensor, on_it));
    all_is_well(session);
}

fn a_hand_over_in_the_default_stream_of_cuda_costs_no_more_than_in_others() {
    fn turn(_rank: usize, (from, back): (Receiver<Bytes>, Sender<Bytes>)) -> tensormp::Result<()> {
        let [legacy, _also] = [Stream::legacy(device())?, lent(0)];
        legacy.scope(|| {
            for mut tensor in &from {
                tensor.clear()?;
                back.put(tensor)?;
            }
            Ok(())
        })
    }
    let session = machine();
    let (full, receiver) = Queue::bounded(1).unwrap().split();
    let (sender, empty) = Queue::bounded(1).unwrap().split();
    let mut context = spawn(turn, (receiver, sender), 1).unwrap();
    let [legacy, _also] = [Stream::legacy(device()).unwrap(), lent(0)];
    legacy.scope(|| {
        let [slot] = &mut Bytes::slots(1, [512]).unwrap()[..] else {
            panic!("one slot");
        };
        let mut slot = Some(std::mem::replace(slot, Bytes::zeros([1]).unwrap()));
        let mut round = || {
            let mut tensor = slot.take().unwrap();
            tensor.clear().unwrap();
            full.put(tensor).unwrap();
            slot = Some(empty.get().unwrap());
        };
        costs_one_record_and_one_wait_a_side(&session, context.pids()[0], 40, &mut round);
    });
    drop(full);
    context.join().unwrap();
    drop(legacy);
    all_is_well(session);
}

fn the_default_stream_of_a_thread_is_refused() {
    let _session = machine();
    // SAFETY: it is refused.
    let error = unsafe { Stream::from_raw(device(), 2) }.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::WrongDevice);
    assert!(error.to_string().contains("each thread"), "{error}");
    // SAFETY: another name of the legacy default stream.
    let legacy = unsafe { Stream::from_raw(device(), 1) }.unwrap();
    assert!(legacy.same(&Stream::legacy(device()).unwrap()));
}

/// By default cudarc tracks no events as long as it has made no stream.
fn cudarc_does_not_wait_for_the_dead_when_a_view_was_used() {
    let session = machine();
    let contexts = [(); 2].map(|()| CudaContext::new(0).unwrap());
    // SAFETY: what is used in its streams is ordered below.
    unsafe { contexts[1].disable_event_tracking() };
    let streams = [
        contexts[0].default_stream(),
        contexts[1].new_stream().unwrap(),
    ];
    let sides = [(); 2].map(|()| Stream::new(device()).unwrap());
    let others = sides.each_ref().map(|side| Bytes::zeros_on(side, [3]));
    let others = others.map(|made| made.unwrap().freeze());
    let Behind {
        writer,
        theirs,
        mine: _mine,
    } = behind(&session);
    for (stream, other) in streams.iter().zip(&others) {
        for tensor in [&theirs, other] {
            let view = tensor.for_cudarc(stream).unwrap();
            drop(view.device_ptr(stream));
        }
    }
    dies(writer, &session);
    // By way of the stream of cudarc that has read both.
    others.into_iter().for_each(|other| is_lost(other.to_vec()));
    let fresh = DeviceTensor::from_slice([2], &[7_u8, 8]).unwrap();
    assert_eq!(fresh.to_vec().unwrap(), [7, 8]);
}

fn cudarc_uses_tensors_in_order_without_waiting_where_it_tracks_nothing() {
    let session = slow_machine();
    let contexts = [(); 2].map(|()| CudaContext::new(0).unwrap());
    // SAFETY: what is used in its streams is ordered by the views.
    unsafe { contexts[1].disable_event_tracking() };
    let streams = [
        contexts[0].default_stream(),
        contexts[1].new_stream().unwrap(),
    ];
    let driver = Driver::loaded();
    let mut tensor = DeviceTensor::from_slice([64], &[1_u32; 64]).unwrap();
    drop(tensor.for_cudarc(&streams[0]).unwrap());
    let before = session.calls().of("cuStreamSynchronize");
    let mut round = 2;
    for _ in 0..3 {
        let mut view = tensor.for_cudarc_mut(&streams[0]).unwrap();
        for stream in streams.iter().chain(&streams) {
            let (address, _after) = view.device_ptr_mut(stream);
            let raw = stream.cu_stream().addr();
            driver.fill_words_async(address, round, 64, raw).unwrap();
            round += 1;
        }
    }
    let copy = tensor.to_device(device()).unwrap();
    assert_eq!(session.calls().of("cuStreamSynchronize"), before);
    assert_eq!(copy.to_vec().unwrap(), [round - 1; 64]);
    drop((tensor, copy));
    all_is_well(session);
}

/// Whoever drops it may wait for all that the device has to do, as `cuMemFree` does.
fn an_owner_of_memory_is_not_dropped_while_a_stream_waits_for_the_dead() {
    let session = machine();
    let side = Stream::new(device()).unwrap();
    let driver = Driver::loaded();
    driver.start(0).unwrap();
    let dropped = Arc::new(AtomicUsize::new(0));
    let wrap = || {
        let address = driver.alloc(64).unwrap();
        // SAFETY: the memory is there as long as the driver.
        unsafe { Bytes::wrap_raw(&side, [64], address, Owner(dropped.clone())) }.unwrap()
    };
    let first = wrap();
    let Behind { writer, mine, .. } = behind(&session);
    drop(first);
    dies(writer, &session);
    side.synchronize().unwrap();
    // It is looked then what is over.
    let _second = wrap();
    assert_eq!(dropped.load(Ordering::Relaxed), 0);
    is_lost(mine.to_vec());
    cuda_ipc::collect();
    assert_eq!(dropped.load(Ordering::Relaxed), 0);
}
