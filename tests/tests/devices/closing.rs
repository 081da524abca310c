//! Memory that its origin wants back from those who have it open, and memory that nobody can give back.

use std::time::{Duration, Instant};

use cuda_emulator::{Driver, Knobs};
use cuda_ipc::{Device, DeviceTensor, ErrorKind, Options, Path, Stream};
use integration_tests::{Test, tests};
use tensormp::prelude::*;

use crate::lifetime::{promise, receiver_of};
use crate::support::{all_is_well, machine, no_memory_is_left, with};

pub(crate) const TESTS: &[Test] = &tests![
    memory_that_is_given_back_is_closed_by_those_who_had_it_open,
    an_idle_process_closes_what_it_is_asked_to_close,
    a_full_device_gets_back_what_an_idle_process_has_open,
    a_device_that_others_have_filled_is_told_full_at_once,
    memory_is_unmapped_only_when_this_process_is_done_with_it,
    memory_is_unmapped_only_when_this_process_is_done_with_what_it_dropped,
    what_was_known_of_processes_that_have_ended_is_forgotten_by_itself,
    memory_that_was_opened_and_cannot_be_used_is_closed_again,
    what_another_thread_is_about_to_close_is_closed_when_collect_returns,
    memory_behind_a_stream_that_waits_for_the_dead_is_told_and_does_not_grow,
    closing_looks_no_longer_than_it_may_for_work_in_streams_of_other_devices,
];

type Bytes = DeviceTensor<u8>;

fn memory_that_is_given_back_is_closed_by_those_who_had_it_open() {
    fn consume(_rank: usize, (from, done): (Receiver<Bytes>, Sender<u64>)) -> tensormp::Result<()> {
        for tensor in &from {
            let is_last = tensor.numel() == 100;
            drop(tensor);
            // A thread of its own closes what it is asked to close.
            while is_last && cuda_ipc::stats().imports > 1 {
                std::thread::sleep(Duration::from_millis(1));
            }
            done.put(cuda_ipc::stats().imports)?;
        }
        Ok(())
    }
    let session = machine();
    let (sender, receiver) = Queue::bounded(2).unwrap().split();
    let (done, told) = Queue::bounded(2).unwrap().split();
    let mut context = spawn(consume, (receiver, done), 1).unwrap();
    let send = |bytes: usize| {
        sender.put(DeviceTensor::zeros([bytes]).unwrap()).unwrap();
        told.get().unwrap()
    };
    assert_eq!(send(3 << 20), 1);
    assert_eq!(send(7 << 20), 2);
    // Nobody uses either, and the consumer has both open: it is asked to close them.
    assert_eq!(cuda_ipc::collect(), 0);
    assert_eq!(send(100), 1, "it has closed both");
    assert!(cuda_ipc::collect() >= 10 << 20);
    drop(sender);
    context.join().unwrap();
    all_is_well(session);
}

/// Sends one tensor, and ends when its memory has come back.
fn produce(_rank: usize, to: Sender<Bytes>) -> tensormp::Result<()> {
    to.put(Bytes::zeros([3])?)?;
    cuda_ipc::close(Duration::from_secs(60))?;
    Ok(())
}

/// Producers come and go, and their consumer asks for nothing: it keeps neither their events nor their tables of these.
fn what_was_known_of_processes_that_have_ended_is_forgotten_by_itself() {
    let session = machine();
    let (to, from) = Queue::bounded(1).unwrap().split();
    let arena = shm_core::Arena::current().unwrap();
    let mut live = u64::MAX;
    for _ in 0..3 {
        let mut producer = spawn(produce, to.clone(), 1).unwrap();
        assert_eq!(from.get().unwrap().to_vec().unwrap(), [0; 3]);
        producer.join().unwrap();
        // What the last one said of its streams is kept until there is another one.
        while session.live().events > 0 || arena.stats().live > live {
            std::thread::sleep(Duration::from_millis(1));
        }
        live = arena.stats().live;
    }
    no_memory_is_left(session);
}

fn memory_that_was_opened_and_cannot_be_used_is_closed_again() {
    let session = with(&Knobs::new().fail("cuMemGetAddressRange_v2", 999, Some(1)));
    let (to, from) = Queue::bounded(1).unwrap().split();
    let mut producer = spawn(produce, to, 1).unwrap();
    // As a copy.
    assert_eq!(from.get().unwrap().to_vec().unwrap(), [0; 3]);
    producer.join().unwrap();
    no_memory_is_left(session);
}

/// Receives, drops, and does nothing more.
fn idle(
    _rank: usize,
    (from, done, end): (Receiver<Bytes>, Sender<u64>, Event),
) -> tensormp::Result<()> {
    for _ in 0..2 {
        drop(from.get()?);
        done.put(cuda_ipc::stats().imports)?;
    }
    end.wait()?;
    Ok(())
}

fn an_idle_process_closes_what_it_is_asked_to_close() {
    let session = machine();
    let (sender, receiver) = Queue::bounded(2).unwrap().split();
    let (done, told) = Queue::bounded(2).unwrap().split();
    let end = Event::new().unwrap();
    let mut context = spawn(idle, (receiver, done, end.clone()), 1).unwrap();
    for bytes in [3 << 20, 7 << 20] {
        sender.put(DeviceTensor::zeros([bytes]).unwrap()).unwrap();
        told.get().unwrap();
    }
    assert_eq!(cuda_ipc::collect(), 0, "the other process has both open");
    // It waits for something else, and closes them all the same.
    let mut freed = 0;
    while freed < 10 << 20 {
        std::thread::sleep(Duration::from_millis(20));
        freed += cuda_ipc::collect();
    }
    assert_eq!(cuda_ipc::stats().allocations, 0);
    end.set();
    context.join().unwrap();
    all_is_well(session);
}

/// The stream of this process was made to wait for one that has been done for long, and nobody has looked since.
fn a_device_that_others_have_filled_is_told_full_at_once() {
    fn fill(_rank: usize, (to, end): (Sender<Bytes>, Event)) -> tensormp::Result<()> {
        let all = Bytes::zeros([50 << 20])?;
        to.put(Bytes::zeros([100])?)?;
        end.wait()?;
        drop(all);
        cuda_ipc::close(Duration::from_secs(60))?;
        Ok(())
    }
    let session = with(&Knobs::new().memory(64));
    // What is tried once a process was tried.
    drop(Bytes::zeros([1]).unwrap());
    cuda_ipc::collect();
    let (to, from) = Queue::bounded(1).unwrap().split();
    let end = Event::new().unwrap();
    let mut context = spawn(fill, (to, end.clone()), 1).unwrap();
    let theirs = from.get().unwrap();
    session.settle();
    let begun = Instant::now();
    let error = Bytes::zeros([30 << 20]).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::OutOfMemory { .. }),
        "{error}"
    );
    // Nobody was asked to close anything, and nothing is waited for.
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
    drop(theirs);
    cuda_ipc::collect();
    end.set();
    context.join().unwrap();
    no_memory_is_left(session);
}

fn a_full_device_gets_back_what_an_idle_process_has_open() {
    let session = with(&Knobs::new().memory(64));
    let (sender, receiver) = Queue::bounded(2).unwrap().split();
    let (done, told) = Queue::bounded(2).unwrap().split();
    let end = Event::new().unwrap();
    let mut context = spawn(idle, (receiver, done, end.clone()), 1).unwrap();
    for bytes in [20 << 20, 24 << 20] {
        sender.put(DeviceTensor::zeros([bytes]).unwrap()).unwrap();
        told.get().unwrap();
    }
    // There is room for it only without those two.
    let large = DeviceTensor::<u8>::zeros([50 << 20]).unwrap();
    drop(large);
    end.set();
    context.join().unwrap();
    no_memory_is_left(session);
}

/// Puts work on what it receives into its stream, which is held back, drops it, and closes what it is asked to with the next
/// tensor.
fn write_late(
    _rank: usize,
    (from, [ready, go, dropped, asked, seen]): (Receiver<Bytes>, [Event; 5]),
) -> tensormp::Result<(u64, u64)> {
    let source = DeviceTensor::from_slice([3 << 20], &vec![7; 3 << 20]).unwrap();
    let mut tensor = from.get()?;
    assert_eq!(tensor.path(), Path::Descriptor);
    // It is open now, also where its origin took long to answer.
    tensor.to_vec().unwrap();
    ready.set();
    go.wait()?;
    tensor.copy_from(&source).unwrap();
    drop(tensor);
    dropped.set();
    asked.wait()?;
    drop(from.get()?);
    // Long enough for the thread that closes what is of no use.
    std::thread::sleep(Duration::from_millis(500));
    let before = cuda_ipc::stats().imports;
    seen.set();
    source.stream().synchronize().unwrap();
    cuda_ipc::collect();
    Ok((before, cuda_ipc::stats().imports))
}

fn memory_is_unmapped_only_when_this_process_is_done_with_it() {
    let session = machine();
    Options::new().path(Path::Descriptor).install().unwrap();
    let (sender, receiver) = Queue::bounded(2).unwrap().split();
    let events = [(); 5].map(|()| Event::new().unwrap());
    let [ready, go, dropped, asked, seen] = events.clone();
    let mut context = spawn(write_late, (receiver, events), 1).unwrap();
    for bytes in [3 << 20, 7 << 20] {
        sender.put(DeviceTensor::zeros([bytes]).unwrap()).unwrap();
    }
    ready.wait().unwrap();
    session.settle();
    session.hold();
    go.set();
    dropped.wait().unwrap();
    // It is asked to close the one, and gets another.
    assert_eq!(cuda_ipc::collect(), 0);
    asked.set();
    seen.wait().unwrap();
    session.let_go();
    assert_eq!(context.join().unwrap()[0], (2, 0));
    no_memory_is_left(session);
}

fn what_another_thread_is_about_to_close_is_closed_when_collect_returns() {
    let session = machine();
    let (sender, receiver) = Queue::bounded(1).unwrap().split();
    let sent = Event::new().unwrap();
    let mut origin = spawn(send_and_stay, (sender, sent.clone()), 1).unwrap();
    sent.wait().unwrap();
    let tensor: Bytes = receiver.get().unwrap();
    assert_eq!(tensor.to_vec().unwrap(), [1, 2, 3]);
    origin.kill();
    assert!(origin.join().is_err());
    // A stream of which this crate knows nothing, for which the driver waits when it closes memory.
    let driver = Driver::loaded();
    driver.start(0).unwrap();
    let stream = driver.stream(1).unwrap();
    let address = driver.alloc(4096).unwrap();
    session.hold();
    driver.fill_words_async(address, 9, 10, stream).unwrap();
    drop(tensor);
    // The thread that sees to what is of no use has begun with it.
    std::thread::sleep(Duration::from_secs(1));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            session.let_go();
        });
        cuda_ipc::collect();
        assert_eq!(cuda_ipc::stats().imports, 0);
    });
    driver.free(address).unwrap();
    no_memory_is_left(session);
}

/// Sends a tensor, and says that it is written.
fn send_and_stay(_rank: usize, (to, sent): (Sender<Bytes>, Event)) -> tensormp::Result<()> {
    let tensor = DeviceTensor::from_slice([3], &[1, 2, 3])?;
    let stream = tensor.stream().clone();
    to.put(tensor)?;
    stream.synchronize()?;
    sent.set();
    std::thread::sleep(Duration::from_secs(60));
    Ok(())
}

fn memory_behind_a_stream_that_waits_for_the_dead_is_told_and_does_not_grow() {
    let session = machine();
    let (sender, receiver) = Queue::bounded(4).unwrap().split();
    let (ready, go) = (Event::new().unwrap(), Event::new().unwrap());
    let mut context = spawn(promise, (sender, ready.clone(), go.clone()), 1).unwrap();
    ready.wait().unwrap();
    let mut caught = DeviceTensor::<u8>::zeros([3 << 20]).unwrap();
    caught.stream().synchronize().unwrap();
    session.hold();
    go.set();
    let received = receiver_of(&receiver).unwrap();
    // Work of this process behind it, in the same stream.
    caught.clear().unwrap();
    let dead = context.pids()[0];
    context.kill();
    assert!(context.join().is_err());
    session.let_go();
    assert_eq!(cuda_ipc::stats().stuck, []);
    assert!(received.to_vec().is_err());
    assert!(caught.to_vec().is_err(), "it is on that stream");
    drop((received, caught));

    let free = || DeviceTensor::from_slice([1_000], &[5_u8; 1_000]).unwrap();
    assert_eq!(free().to_vec().unwrap(), [5; 1_000]);
    let allocated = cuda_ipc::stats().allocated;
    for _ in 0..200 {
        drop(free());
        drop(DeviceTensor::<u8>::zeros([3 << 20]).unwrap());
    }
    cuda_ipc::collect();
    let stats = cuda_ipc::stats();
    assert!(
        stats.allocated <= allocated + (4 << 20),
        "{allocated}: {stats:?}"
    );
    let [stuck] = &stats.stuck[..] else {
        panic!("{stats:?}");
    };
    assert_eq!(stuck.device.ordinal(), 0);
    assert_eq!(stuck.writer, format!("process {dead} (promise)"));
    assert_eq!(stuck.bytes, stats.allocated);
    assert!(stuck.allocations >= 2 && stuck.blocks >= 1, "{stuck:?}");
    assert_eq!(stuck.imports, 1, "the dead process's memory: {stuck:?}");

    // Nobody holds anything: to wait for longer would not help, and the reason is told at once.
    let error = cuda_ipc::close(Duration::from_secs(600)).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::WriterGone, "{error}");
    let text = error.to_string();
    assert!(
        text.contains("device 0")
            && text.contains(&stuck.bytes.to_string())
            && text.contains(&stuck.writer),
        "{text}"
    );
    // The other device is as it was.
    let second = cuda_ipc::Device::new(1).unwrap();
    let there = free().to_device(second).unwrap();
    assert_eq!(there.to_vec().unwrap()[0], 5);
    drop(there);
    assert_eq!(cuda_ipc::collect(), 2 << 20);
}

fn memory_is_unmapped_only_when_this_process_is_done_with_what_it_dropped() {
    let session = with(&Knobs::new().delay(Duration::from_millis(20)));
    Options::new().path(Path::Descriptor).install().unwrap();
    let device = Device::new(0).unwrap();
    let [one, two] = [(); 2].map(|()| Stream::new(device).unwrap());
    let new = || Bytes::zeros_on(&one, [3 << 20]).unwrap();
    let mut late = [new(), new()];
    let mut busy = Bytes::zeros_on(&two, [100]).unwrap();
    one.synchronize().unwrap();
    (0..15).for_each(|_| busy.clear().unwrap());
    let before = session.calls();
    std::thread::scope(|scope| {
        scope.spawn(cuda_ipc::collect);
        // It has seen that the first stream has nothing to do, and waits for the second.
        while session.calls().of("cuEventQuery") == before.of("cuEventQuery") {
            std::thread::yield_now();
        }
        (0..15).for_each(|_| late.iter_mut().for_each(|one| one.clear().unwrap()));
        drop(late);
        // Sees that both are free, and takes one.
        drop(new());
    });
    one.synchronize().unwrap();
    drop(busy);
    all_is_well(session);
}

/// Giving memory back waits for the streams of its own device alone, so for work in those of others it is looked for a while;
/// not by who has no time left.
fn closing_looks_no_longer_than_it_may_for_work_in_streams_of_other_devices() {
    // The copy waits for the source's stream with the first record, and the source's stream for the copy with the second.
    let session = with(&Knobs::new().fail("cuEventRecord", 999, Some(2)));
    let source = Bytes::zeros([3 << 20]).unwrap();
    source.stream().synchronize().unwrap();
    let second = Device::new(1).unwrap();
    let [side, other] = [(); 2].map(|()| Stream::new(second).unwrap());
    let driver = Driver::loaded();
    driver.start(1).unwrap();
    let word = driver.alloc(8).unwrap();
    driver.fill_async(word, 0, 8, side.as_raw()).unwrap();
    let equal = 1;
    driver.wait_value(side.as_raw(), word, 7, equal).unwrap();
    let copy = side.scope(|| source.to_device(second));
    assert_eq!(copy.unwrap_err().code(), Some(999));
    drop(source);
    let me = std::process::id();
    let before = session.calls_of(me);
    let error = cuda_ipc::close(Duration::ZERO).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::TimedOut, "{error}");
    let looks = session.calls_of(me).of("cuEventQuery") - before.of("cuEventQuery");
    // One for each thing that there is, and what is looked at twice a second; who looks for a second looks thousands of times.
    assert!(looks < 50, "{looks}");
    driver.write_value(other.as_raw(), word, 7, 0).unwrap();
    side.synchronize().unwrap();
    driver.free(word).unwrap();
    no_memory_is_left(session);
}
