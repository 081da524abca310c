//! What goes on when a stream of a process is lost, since it waits for the dead: all that has nothing to do with that stream.

use std::time::Duration;

use cuda_ipc::{Device, DeviceTensor, Options, Path, PinnedTensor, Sealed, SharedDeviceTensor};
use integration_tests::{Test, tests};
use tensormp::prelude::*;
use tensormp::spawn_api::builder;

use crate::behind::{Behind, behind, dies};
use crate::support::{machine, no_memory_is_left};

pub(crate) const TESTS: &[Test] = &tests![
    a_pinned_tensor_is_copied_again_though_a_stream_that_read_it_before_is_lost,
    memory_of_the_host_stays_registered_while_a_stream_waits_for_the_dead,
    a_view_of_a_copy_comes_though_the_stream_of_the_first_one_is_lost,
    events_of_a_stream_that_is_lost_give_way_to_others,
    an_event_that_a_third_process_finds_unfinished_goes_back_to_its_origin,
    an_event_that_a_third_process_finds_unfinished_goes_back_though_no_word_is_free,
    who_makes_a_copy_for_another_process_does_not_stay_behind_the_dead,
    a_block_that_is_copied_for_a_process_that_died_is_not_given_out_meanwhile,
];

type Bytes = DeviceTensor<u8>;
type Shared = SharedDeviceTensor<u8>;

/// The default stream of this process is lost.
fn lose_the_stream(session: &cuda_emulator::Session) {
    let Behind { writer, mine, .. } = behind(session);
    dies(writer, session);
    assert!(mine.to_vec().is_err());
}

fn a_pinned_tensor_is_copied_again_though_a_stream_that_read_it_before_is_lost() {
    let session = machine();
    let host = Tensor::from_slice([3], &[7_u8; 3]).unwrap();
    let mut input = PinnedTensor::new(host, Device::new(0).unwrap()).unwrap();
    let mut there = Bytes::zeros([3]).unwrap();
    input.copy_to(&mut there).unwrap();
    input.wait().unwrap();
    lose_the_stream(&session);
    input.as_mut_slice().unwrap().fill(8);
    let mut fresh = Bytes::zeros([3]).unwrap();
    input.copy_to(&mut fresh).unwrap();
    assert_eq!(fresh.to_vec().unwrap(), [8; 3]);
}

/// The driver waits for the device when it is unregistered.
fn memory_of_the_host_stays_registered_while_a_stream_waits_for_the_dead() {
    let session = machine();
    let host = Tensor::from_slice([3], &[7_u8; 3]).unwrap();
    drop(PinnedTensor::new(host, Device::new(0).unwrap()).unwrap());
    let Behind { writer, mine, .. } = behind(&session);
    dies(writer, &session);
    cuda_ipc::collect();
    assert_eq!(cuda_ipc::stats().pinned.regions, 1);
    assert!(mine.to_vec().is_err());
    cuda_ipc::collect();
    assert_eq!(cuda_ipc::stats().pinned.regions, 1);
    // It is of use again.
    let host = Tensor::from_slice([3], &[7_u8; 3]).unwrap();
    let input = PinnedTensor::new(host, Device::new(0).unwrap()).unwrap();
    let mut there = Bytes::zeros([3]).unwrap();
    input.copy_to(&mut there).unwrap();
    assert_eq!(there.to_vec().unwrap(), [7; 3]);
}

fn a_view_of_a_copy_comes_though_the_stream_of_the_first_one_is_lost() {
    fn send_views(_rank: usize, (to, next): (Sender<Shared>, Event)) -> tensormp::Result<()> {
        Options::new().path(Path::Host).install()?;
        let all = DeviceTensor::from_slice([4], &[1_u8, 2, 3, 4])?.freeze();
        to.put(all.clone())?;
        next.wait()?;
        to.put(all.narrow(0, 1, 2)?)?;
        Ok(())
    }
    let session = machine();
    let (sender, receiver) = Queue::bounded(4).unwrap().split();
    let next = Event::new().unwrap();
    let mut context = spawn(send_views, (sender, next.clone()), 1).unwrap();
    let first = receiver.get().unwrap();
    assert_eq!(first.to_vec().unwrap(), [1, 2, 3, 4]);
    lose_the_stream(&session);
    next.set();
    assert_eq!(receiver.get().unwrap().to_vec().unwrap(), [2, 3]);
    context.join().unwrap();
}

/// What was said with them is said for ever, and their blocks are given up; but there are only so many events.
fn events_of_a_stream_that_is_lost_give_way_to_others() {
    let session = machine();
    Options::new().events(48).install().unwrap();
    let (sender, receiver) = Queue::bounded(10).unwrap().split();
    let two = || [(); 2].map(|()| Bytes::zeros([4]).unwrap());
    for _ in 0..3 {
        let Behind {
            writer,
            theirs,
            mine,
        } = behind(&session);
        (0..10).for_each(|_| sender.put(two()).unwrap());
        dies(writer, &session);
        assert!(mine.to_vec().is_err());
        (0..10).for_each(|_| assert!(receiver.get().is_err()));
        drop(theirs);
        let waits = cuda_ipc::stats().host_waits;
        for _ in 0..40 {
            sender.put(two()).unwrap();
            let [back, _] = receiver.get().unwrap();
            assert_eq!(back.to_vec().unwrap(), [0; 4]);
        }
        assert_eq!(cuda_ipc::stats().host_waits, waits);
    }
}

type Part = (Receiver<Bytes>, Sender<Shared>, [Event; 2]);

/// Writes what it receives when it may, and sends it on.
fn write(_rank: usize, (from, to, [ready, go]): Part) -> tensormp::Result<()> {
    let mut tensor = from.get()?;
    tensor.stream().synchronize()?;
    ready.set();
    go.wait()?;
    tensor.clear()?;
    to.put(tensor.freeze())?;
    std::thread::sleep(Duration::from_secs(60));
    Ok(())
}

/// A tensor whose writer is killed before it is written; a third process, for which it is, has it alone then, and drops it.
fn is_thawed_by_a_third(session: &cuda_emulator::Session, tensor: Bytes) {
    /// Has it alone before it is known here that its own stream is lost.
    fn thaw(
        _rank: usize,
        (from, [waits, dead]): (Receiver<Shared>, [Event; 2]),
    ) -> tensormp::Result<()> {
        let mut tensor = from.get()?;
        waits.set();
        dead.wait()?;
        // The dead hold it no longer when they are buried.
        while let Err(shared) = tensor.try_thaw() {
            tensor = shared;
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
    let (to_writer, from) = Queue::bounded(1).unwrap().split();
    let (on, out) = Queue::bounded(1).unwrap().split();
    let [ready, go, waits, dead] = [(); 4].map(|()| Event::new().unwrap());
    let part = (from, on, [ready.clone(), go.clone()]);
    let mut writer = spawn(write, part, 1).unwrap();
    let mut third = spawn(thaw, (out, [waits.clone(), dead.clone()]), 1).unwrap();
    to_writer.put(tensor).unwrap();
    ready.wait().unwrap();
    session.hold();
    go.set();
    waits.wait().unwrap();
    writer.kill();
    assert!(writer.join().is_err());
    dead.set();
    third.join().unwrap();
    session.let_go();
}

/// When it was seen for long enough that an event does not happen, another one is made for it: nothing that is sent waits, from
/// then on.
pub(crate) fn see_all_events(send: fn()) {
    let mut rounds = 0;
    while rounds < 5 {
        let waits = cuda_ipc::stats().host_waits;
        send();
        // The origin looks for events that are of no use elsewhere every 20 ms.
        std::thread::sleep(Duration::from_millis(25));
        let has_waited = cuda_ipc::stats().host_waits != waits;
        rounds = if has_waited { 0 } else { rounds + 1 };
    }
}

fn an_event_that_a_third_process_finds_unfinished_goes_back_to_its_origin() {
    let session = machine();
    // No other one can take its place.
    Options::new().events(1).install().unwrap();
    is_thawed_by_a_third(&session, Bytes::zeros([3]).unwrap());
    see_all_events(send_one);
}

/// A tensor with as many events as it can have.
fn with_all_words() -> Bytes {
    let (sender, receiver) = Queue::bounded(1).unwrap().split();
    let shared = Bytes::zeros([3]).unwrap().freeze();
    sender.put(shared.clone()).unwrap();
    drop(receiver.get().unwrap());
    shared.try_thaw().unwrap()
}

fn send_one() {
    let (sender, receiver) = Queue::bounded(1).unwrap().split();
    sender.put(Bytes::zeros([3]).unwrap()).unwrap();
    assert_eq!(receiver.get().unwrap().to_vec().unwrap(), [0; 3]);
}

/// One that six events are bound to, while another one has the seventh.
pub(crate) fn send_two() {
    let (sender, receiver) = Queue::bounded(1).unwrap().split();
    let shared = Bytes::zeros([3]).unwrap().freeze();
    sender.put(shared).unwrap();
    send_one();
    receiver.get().unwrap();
}

fn an_event_that_a_third_process_finds_unfinished_goes_back_though_no_word_is_free() {
    let session = machine();
    Options::new().events(7).install().unwrap();
    is_thawed_by_a_third(&session, with_all_words());
    see_all_events(send_two);
}

fn who_makes_a_copy_for_another_process_does_not_stay_behind_the_dead() {
    fn read(
        _rank: usize,
        (from, begins): (Receiver<Shared>, Event),
    ) -> tensormp::Result<Option<String>> {
        cuda_ipc::devices()?;
        begins.set();
        Ok(from.get().err().map(|error| error.to_string()))
    }
    let session = machine();
    let (to, from) = Queue::bounded(1).unwrap().split();
    let (on, out) = Queue::bounded(1).unwrap().split();
    let [ready, go, begins] = [(); 3].map(|()| Event::new().unwrap());
    let mut writer = spawn(write, (from, on, [ready.clone(), go.clone()]), 1).unwrap();
    // As in another container: it asks this process for a copy.
    let reader = builder().env("CUDA_EMULATOR_FAIL", "cuIpcOpenMemHandle_v2:201");
    let mut reader = reader.spawn(read, (out, begins.clone()), 1).unwrap();
    to.put(Bytes::zeros([3]).unwrap()).unwrap();
    ready.wait().unwrap();
    begins.wait().unwrap();
    session.hold();
    let me = std::process::id();
    let before = session.calls_of(me);
    go.set();
    // For the writer: a stream of this process, or a thread.
    let so_far = |symbol| session.calls_of(me).of(symbol) - before.of(symbol);
    while so_far("cuStreamWaitEvent") == 0 && so_far("cuEventQuery") < 3 {
        std::thread::sleep(Duration::from_millis(1));
    }
    writer.kill();
    assert!(writer.join().is_err());
    session.let_go();
    let error = reader.join().unwrap()[0].clone().unwrap();
    assert!(error.contains("has ended before its work"), "{error}");
    assert_eq!(cuda_ipc::stats().stuck.len(), 0);
    no_memory_is_left(session);
}

fn a_block_that_is_copied_for_a_process_that_died_is_not_given_out_meanwhile() {
    fn open(_rank: usize, from: Receiver<Sealed>) -> tensormp::Result<()> {
        from.get()?.open()?;
        Ok(())
    }
    let session = machine();
    let tensor = Bytes::zeros([100]).unwrap().freeze();
    let sealed = tensor.seal().unwrap();
    session.settle();
    let (to, from) = Queue::bounded(1).unwrap().split();
    // As in another container: it asks this process for a copy, which is held back.
    let visitor = builder().env("CUDA_EMULATOR_FAIL", "cuIpcOpenMemHandle_v2:201");
    let mut visitor = visitor.spawn(open, from, 1).unwrap();
    session.hold();
    let me = std::process::id();
    let copies = || session.calls_of(me).of("cuMemcpyDtoHAsync_v2");
    let before = copies();
    to.put(sealed).unwrap();
    while copies() == before {
        std::thread::sleep(Duration::from_millis(1));
    }
    visitor.kill();
    assert!(visitor.join().is_err());
    drop(tensor);
    let mut next = Bytes::uninit([100]).unwrap();
    next.clear().unwrap();
    session.let_go();
    assert_eq!(next.to_vec().unwrap(), [0; 100]);
    drop(next);
    no_memory_is_left(session);
}
