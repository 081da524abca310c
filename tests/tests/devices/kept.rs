//! What a process keeps for as long as it lives: blocks on which it has work behind the dead, of which no event can tell.

use std::time::Duration;

use cuda_emulator::{Driver, Knobs};
use cuda_ipc::{
    Device, DeviceTensor, ErrorKind, Options, PinnedTensor, SharedDeviceTensor, Stream,
};
use integration_tests::{Test, tests};
use shm_core::trace::Trace;
use tensormp::prelude::*;
use tensormp::spawn_api::builder;

use crate::lifetime::promise;
use crate::support::{machine, no_memory_is_left, with};

pub(crate) const TESTS: &[Test] = &tests![
    a_reader_behind_the_dead_that_has_no_word_left_keeps_the_memory,
    a_reader_behind_the_dead_that_has_no_word_and_no_room_left_keeps_the_memory,
    a_block_is_not_written_where_one_stream_of_its_reader_is_lost_and_another_one_still_reads,
    a_block_is_not_written_where_two_streams_of_its_reader_are_lost_and_one_goes_on_after_all,
    a_pinned_tensor_is_kept_whose_copy_behind_the_dead_could_not_be_noted,
];

type Bytes = DeviceTensor<u8>;
type Shared = SharedDeviceTensor<u8>;

/// Copies what it received, and drops it before the copy is made: one of the words that say so is taken.
fn copy(
    _rank: usize,
    (from, [ready, go, dropped]): (Receiver<Shared>, [Event; 3]),
) -> tensormp::Result<()> {
    let mut mine = Bytes::zeros([100])?;
    let tensor = from.get()?;
    mine.stream().synchronize()?;
    ready.set();
    go.wait()?;
    mine.copy_from_shared(&tensor)?;
    drop(tensor);
    dropped.set();
    std::thread::sleep(Duration::from_secs(60));
    Ok(())
}

/// As that, in a stream that waits for the dead; when that is known.
fn copy_behind_the_dead(
    _rank: usize,
    (from, late, [ready, copied, others, dropped], is_crowded): (
        Receiver<Shared>,
        Receiver<Shared>,
        [Event; 4],
        bool,
    ),
) -> tensormp::Result<()> {
    let mut mine = Bytes::zeros([100])?;
    let tensor = from.get()?;
    mine.stream().synchronize()?;
    ready.set();
    let late = late.get()?;
    mine.copy_from_shared(&tensor)?;
    copied.set();
    others.wait()?;
    assert!(late.to_vec().is_err());
    let all = is_crowded.then(take_all_room);
    drop(tensor);
    assert_eq!(cuda_ipc::stats().kept_tensors, 1);
    drop(all);
    dropped.set();
    std::thread::sleep(Duration::from_secs(60));
    Ok(())
}

/// Nothing is left of the arena, nor room for one more reference of this process.
fn take_all_room() -> impl Sized {
    let all = [1 << 20, 4096, 64].map(|bytes| {
        let room = std::iter::from_fn(|| Tensor::<u8>::uninit([bytes]).ok());
        room.collect::<Vec<_>>()
    });
    let any = Trace::of(&all[2][0]);
    let holds: Vec<_> = std::iter::from_fn(|| any.hold().ok()).collect();
    (holds, all)
}

fn a_reader_behind_the_dead_that_has_no_word_and_no_room_left_keeps_the_memory() {
    let arena = Arena::builder().capacity(256 << 20).create().unwrap();
    Arena::install_current(arena).unwrap();
    keeps_the_memory(true);
}

fn a_reader_behind_the_dead_that_has_no_word_left_keeps_the_memory() {
    keeps_the_memory(false);
}

/// There are five words to say that a holder is done, and the work of five is still to be done when the sixth lets go.
fn keeps_the_memory(is_crowded: bool) {
    let session = machine();
    // As many as it takes for one tensor with all words, and another one.
    Options::new().events(7).install().unwrap();
    let tensor = Bytes::zeros([100]).unwrap().freeze();
    let to_one = |tensor: &Shared| {
        let (to, from) = Queue::bounded(1).unwrap().split();
        to.put(tensor.clone()).unwrap();
        from
    };
    let mut others = Vec::new();
    for _ in 0..5 {
        let events = [(); 3].map(|()| Event::new().unwrap());
        let context = spawn(copy, (to_one(&tensor), events.clone()), 1).unwrap();
        others.push((context, events));
    }
    let (promised, late) = Queue::bounded(1).unwrap().split();
    let events = [(); 4].map(|()| Event::new().unwrap());
    let [ready, copied, all, dropped] = events.clone();
    let part = (to_one(&tensor), late, events, is_crowded);
    let mut reader = spawn(copy_behind_the_dead, part, 1).unwrap();
    let [begins, writes] = [(); 2].map(|()| Event::new().unwrap());
    let part = (promised, begins.clone(), writes.clone());
    let mut writer = spawn(promise, part, 1).unwrap();
    begins.wait().unwrap();
    ready.wait().unwrap();
    others
        .iter()
        .for_each(|(_, [ready, ..])| ready.wait().unwrap());
    session.settle();
    session.hold();
    writes.set();
    copied.wait().unwrap();
    writer.kill();
    assert!(writer.join().is_err());
    for (_, [_, go, dropped]) in &others {
        go.set();
        dropped.wait().unwrap();
    }
    all.set();
    dropped.wait().unwrap();
    session.let_go();
    drop(tensor);
    // It is not written where that process may still read.
    let fresh: Vec<_> = (0..20).map(|_| Bytes::zeros([100]).unwrap()).collect();
    assert!(session.faults().is_empty(), "{:#?}", session.faults());
    drop(fresh);
    let pid = reader.pids()[0].to_string();
    // When the others are done, there is a word again for it to say so, and it holds nothing any more.
    loop {
        let error = cuda_ipc::close(Duration::from_millis(1)).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(&pid), "{text}");
        if text.contains("has work on it that is not done") && cuda_ipc::stats().live == 0 {
            break;
        }
    }
    reader.kill();
    assert!(reader.join().is_err());
    for (mut context, _) in others {
        context.kill();
        assert!(context.join().is_err());
    }
    crate::given_up::see_all_events(crate::given_up::send_two);
    no_memory_is_left(session);
}

/// The driver refuses to record an event, and the copy is behind the dead: nobody will ever see that it is over.
fn a_pinned_tensor_is_kept_whose_copy_behind_the_dead_could_not_be_noted() {
    let session = with(&Knobs::new().fail("cuEventRecord", 999, None));
    let host = Tensor::from_slice([3], &[7_u8; 3]).unwrap();
    let mut input = PinnedTensor::new(host, Device::new(0).unwrap()).unwrap();
    let mut mine = Bytes::zeros([3]).unwrap();
    mine.stream().synchronize().unwrap();
    let (promised, late) = Queue::bounded(1).unwrap().split();
    let [ready, go] = [(); 2].map(|()| Event::new().unwrap());
    let mut writer = builder()
        .env("CUDA_EMULATOR_FAIL", "")
        .spawn(promise, (promised, ready.clone(), go.clone()), 1)
        .unwrap();
    ready.wait().unwrap();
    session.hold();
    go.set();
    let _late: Shared = late.get().unwrap();
    writer.kill();
    assert!(writer.join().is_err());
    assert!(input.copy_to(&mut mine).is_err());
    session.let_go();
    let error = input.as_mut_slice().unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::WriterGone, "{error}");
    assert!(input.into_inner().is_err());
    integration_tests::allow_leaks(1);
}

/// Reads what it received in one stream, and has another one that is lost; or both are. Either waits for work that was done just
/// before its process was killed, and goes on when it is told.
fn read_in_two(
    _rank: usize,
    (from, written, on, [ready, dead, dropped, go, went, end], lost): (
        Receiver<Shared>,
        Receiver<Bytes>,
        Sender<Bytes>,
        [Event; 6],
        usize,
    ),
) -> tensormp::Result<Vec<u8>> {
    let driver = Driver::loaded();
    driver.start(0).unwrap();
    let streams = [(); 3].map(|()| Stream::new(Device::new(0).unwrap()).unwrap());
    let [side, other, reading] = &streams;
    let tensor = reading.scope(|| from.get())?;
    tensor.read_in(other)?;
    let mut mine = Bytes::zeros_on(reading, [100])?;
    let address = mine.read_in(reading)?;
    let words = [(); 2].map(|()| driver.alloc(8).unwrap());
    for word in words {
        driver.fill_async(word, 0, 8, side.as_raw()).unwrap();
    }
    side.synchronize()?;
    let equal = 1;
    for (at, stream) in [other, reading].into_iter().enumerate() {
        let theirs = (at < lost).then(|| stream.scope(|| written.get()));
        let theirs = theirs.transpose()?;
        driver
            .wait_value(stream.as_raw(), words[at], 7, equal)
            .unwrap();
        // The event of who wrote it speaks of this process's work from now on.
        if let Some(mut theirs) = theirs {
            theirs.clear()?;
            on.put(theirs)?;
        }
    }
    mine.copy_from_shared(&tensor)?;
    ready.set();
    dead.wait()?;
    for stream in [other, reading].into_iter().take(lost) {
        let error = stream.synchronize().unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::WriterGone, "{error}");
    }
    drop(tensor);
    dropped.set();
    let goes_on = |at: usize| driver.write_value(side.as_raw(), words[at], 7, 0).unwrap();
    go.wait()?;
    goes_on(0);
    // If it waits for nobody else, it is done by then.
    std::thread::sleep(Duration::from_millis(200));
    went.set();
    end.wait()?;
    goes_on(1);
    driver.synchronize_stream(reading.as_raw()).unwrap();
    Ok(driver.download(address, 100).unwrap())
}

fn is_not_written_before_it_was_read(lost: usize) {
    fn write(_rank: usize, (from, to): (Receiver<Bytes>, Sender<Bytes>)) -> tensormp::Result<()> {
        for mut tensor in &from {
            tensor.clear()?;
            to.put(tensor)?;
        }
        std::thread::sleep(Duration::from_secs(60));
        Ok(())
    }
    let session = machine();
    let (to, from) = Queue::bounded(1).unwrap().split();
    let (to_writer, unwritten) = Queue::bounded(2).unwrap().split();
    let (on, written) = Queue::bounded(2).unwrap().split();
    let (back, _home) = Queue::bounded(2).unwrap().split();
    let events = [(); 6].map(|()| Event::new().unwrap());
    let [ready, dead, dropped, go, went, end] = events.clone();
    let mut writer = spawn(write, (unwritten, on), 1).unwrap();
    let part = (from, written, back, events, lost);
    let mut reader = spawn(read_in_two, part, 1).unwrap();
    let tensor = DeviceTensor::from_slice([100], &[5_u8; 100])
        .unwrap()
        .freeze();
    to.put(tensor.clone()).unwrap();
    for _ in 0..lost {
        to_writer.put(Bytes::zeros([100]).unwrap()).unwrap();
    }
    ready.wait().unwrap();
    writer.kill();
    assert!(writer.join().is_err());
    dead.set();
    dropped.wait().unwrap();
    drop(tensor);
    go.set();
    went.wait().unwrap();
    let fresh = (0..20).map(|_| DeviceTensor::from_slice([100], &[6_u8; 100]).unwrap());
    let fresh: Vec<_> = fresh.collect();
    end.set();
    assert_eq!(reader.join().unwrap(), [[5; 100]]);
    assert!(session.faults().is_empty(), "{:#?}", session.faults());
    drop(fresh);
}

fn a_block_is_not_written_where_one_stream_of_its_reader_is_lost_and_another_one_still_reads() {
    is_not_written_before_it_was_read(1);
}

fn a_block_is_not_written_where_two_streams_of_its_reader_are_lost_and_one_goes_on_after_all() {
    is_not_written_before_it_was_read(2);
}
