//! Streams that wait for a process that has died: nobody hangs behind them, in this process or in a third one.

use std::time::Duration;

use cuda_ipc::{Device, DeviceTensor, ErrorKind, PinnedTensor, SharedDeviceTensor, Stream};
use integration_tests::{Test, kill, tests};
use tensormp::prelude::*;

use crate::behind::{Behind, Between, behind, dies, read_by_a_third, sent_by_one_that_is_stopped};
use crate::lifetime::promise;
use crate::support::machine;

pub(crate) const TESTS: &[Test] = &tests![
    what_was_sent_behind_work_of_the_dead_is_an_error_and_no_hang,
    what_was_sent_behind_work_of_the_dead_by_one_that_is_stopped_is_an_error,
    what_would_stay_behind_work_of_the_dead_is_not_sent,
    ones_own_tensor_behind_work_of_the_dead_is_an_error_on_any_stream,
    a_stream_is_not_made_to_wait_for_one_that_is_lost,
    a_pinned_tensor_behind_work_of_the_dead_is_told_and_no_hang,
    a_first_tensor_is_made_behind_work_of_the_dead,
    memory_with_work_behind_the_dead_is_not_used_again_while_its_reader_lives,
    slots_with_work_behind_the_dead_are_not_used_again_while_their_reader_lives,
    slots_go_round_though_their_workers_are_killed,
    closing_keeps_its_time_and_collecting_waits_for_nobody_else,
    an_event_of_many_that_never_happens_is_not_recorded_again_while_a_stream_waits_for_it,
    an_event_that_another_one_stands_for_is_not_recorded_again_before_it_has_happened,
    a_stream_that_was_behind_an_early_record_of_an_event_does_not_hide_a_later_one,
];

type Bytes = DeviceTensor<u8>;
type Shared = SharedDeviceTensor<u8>;

fn what_was_sent_behind_work_of_the_dead_is_an_error_and_no_hang() {
    let session = machine();
    let mut dead = 0;
    let read = read_by_a_third(&session, || {
        let Behind {
            writer,
            theirs,
            mine,
        } = behind(&session);
        dead = writer.pids()[0];
        (writer, mine, theirs)
    });
    assert!(read.contains("has ended"), "{read}");
    let [stuck] = &cuda_ipc::stats().stuck[..] else {
        panic!("this process knows as well");
    };
    assert_eq!(stuck.writer, format!("process {dead} (promise)"));
}

fn what_was_sent_behind_work_of_the_dead_by_one_that_is_stopped_is_an_error() {
    /// Receives what is not written yet, and sends its own behind it.
    fn send_behind(_rank: usize, (from, to, ready): Between) -> tensormp::Result<()> {
        let mut mine = DeviceTensor::from_slice([3], &[1_u8, 2, 3])?;
        ready.set();
        let _theirs = from.get()?;
        mine.clear()?;
        to.put(mine)?;
        std::thread::sleep(Duration::from_secs(60));
        Ok(())
    }
    let session = machine();
    let begin = |part| spawn(send_behind, part, 1).unwrap();
    sent_by_one_that_is_stopped(&session, begin, |tensor| {
        let error = tensor.to_vec().unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::WriterGone, "{error}");
    });
}

fn what_would_stay_behind_work_of_the_dead_is_not_sent() {
    let session = machine();
    let (sender, _receiver) = Queue::bounded(4).unwrap().split();
    let Behind { writer, mine, .. } = behind(&session);
    let pid = writer.pids()[0];
    dies(writer, &session);
    let error = sender.put(mine).map_err(|failed| failed.into_parts().0);
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains(&format!("process {pid} (promise)")) && error.contains("cannot go on"),
        "{error}"
    );
    // Another stream sends what is its own.
    sender.put(Bytes::zeros([2]).unwrap()).unwrap();
}

fn ones_own_tensor_behind_work_of_the_dead_is_an_error_on_any_stream() {
    let session = machine();
    let (sender, receiver) = Queue::bounded(4).unwrap().split();
    let Behind { writer, mine, .. } = behind(&session);
    sender.put(mine).unwrap();
    let side = Stream::new(Device::new(0).unwrap()).unwrap();
    let back = side.scope(|| receiver.get()).unwrap();
    dies(writer, &session);
    let error = back.to_vec().unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::WriterGone, "{error}");
}

fn a_stream_is_not_made_to_wait_for_one_that_is_lost() {
    let session = machine();
    let (sender, receiver) = Queue::bounded(4).unwrap().split();
    let Behind { writer, mine, .. } = behind(&session);
    sender.put(mine).unwrap();
    let also_behind = Bytes::zeros([2]).unwrap();
    dies(writer, &session);
    let error = also_behind.to_vec().unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::WriterGone, "{error}");
    let side = Stream::new(Device::new(0).unwrap()).unwrap();
    let error = side.scope(|| receiver.get()).unwrap_err().to_string();
    assert!(error.contains("has ended"), "{error}");
    // So it goes on.
    let fresh = DeviceTensor::from_slice_on(&side, [2], &[5_u8, 6]).unwrap();
    assert_eq!(fresh.to_vec().unwrap(), [5, 6]);
}

fn a_pinned_tensor_behind_work_of_the_dead_is_told_and_no_hang() {
    let session = machine();
    let device = Device::new(0).unwrap();
    let host = Tensor::from_slice([3], &[7_u8; 3]).unwrap();
    let input = PinnedTensor::new(host, device).unwrap();
    let Behind {
        writer, mut mine, ..
    } = behind(&session);
    input.copy_to(&mut mine).unwrap();
    dies(writer, &session);
    let error = input.into_inner().unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::WriterGone, "{error}");
    integration_tests::allow_leaks(1);
}

fn a_first_tensor_is_made_behind_work_of_the_dead() {
    let session = machine();
    let (sender, receiver) = Queue::bounded(4).unwrap().split();
    let (ready, go) = (Event::new().unwrap(), Event::new().unwrap());
    let writer = spawn(promise, (sender, ready.clone(), go.clone()), 1).unwrap();
    ready.wait().unwrap();
    session.hold();
    go.set();
    let _theirs = receiver.get().unwrap();
    dies(writer, &session);
    // What the device can do is tried with memory that is given back.
    let fresh = DeviceTensor::from_slice([2], &[5_u8, 6]).unwrap();
    assert_eq!(fresh.to_vec().unwrap(), [5, 6]);
}

fn memory_with_work_behind_the_dead_is_not_used_again_while_its_reader_lives() {
    read_behind_the_dead(|| (0..3).map(|_| Bytes::zeros([100]).unwrap()).collect());
}

fn slots_with_work_behind_the_dead_are_not_used_again_while_their_reader_lives() {
    read_behind_the_dead(|| Bytes::slots(3, [100]).unwrap());
}

fn read_behind_the_dead(make: fn() -> Many) {
    /// Sends on what it receives: the one event that says so is taken from one of the tensors.
    fn pass_on(_rank: usize, (from, to): (Receiver<Many>, Sender<Many>)) -> tensormp::Result<()> {
        to.put(from.get()?)?;
        Ok(())
    }
    /// Copies what it gets on a stream that waits for the dead, and drops it when that is known.
    fn copy(
        _rank: usize,
        (late, from, waits, said): (Receiver<Shared>, Receiver<Many>, Event, Event),
    ) -> tensormp::Result<()> {
        let late = late.get()?;
        let tensors = from.get()?;
        let copied = tensors.iter().map(|one| one.to_device(one.device()));
        let _copies: Many = copied.collect::<Result<_, _>>()?;
        waits.set();
        assert!(late.to_vec().is_err());
        drop(tensors);
        said.set();
        std::thread::sleep(Duration::from_secs(60));
        Ok(())
    }
    let session = machine();
    let (to, passed) = Queue::bounded(1).unwrap().split();
    let (sender, from) = Queue::bounded(1).unwrap().split();
    let (promised, late) = Queue::bounded(1).unwrap().split();
    let [ready, go, waits, said] = [(); 4].map(|()| Event::new().unwrap());
    let mut passing = spawn(pass_on, (passed, sender), 1).unwrap();
    to.put(make()).unwrap();
    while from.is_empty() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut writer = spawn(promise, (promised, ready.clone(), go.clone()), 1).unwrap();
    ready.wait().unwrap();
    session.settle();
    session.hold();
    go.set();
    let part = (late, from, waits.clone(), said.clone());
    let mut reader = spawn(copy, part, 1).unwrap();
    waits.wait().unwrap();
    writer.kill();
    assert!(writer.join().is_err());
    session.let_go();
    said.wait().unwrap();
    // None of these is written where that process may still read.
    let fresh: Many = (0..20).map(|_| Bytes::zeros([100]).unwrap()).collect();
    assert!(session.faults().is_empty(), "{:#?}", session.faults());
    drop(fresh);
    passing.join().unwrap();
    reader.kill();
    assert!(reader.join().is_err());
    cuda_ipc::close(Duration::from_secs(20)).unwrap();
}

fn slots_go_round_though_their_workers_are_killed() {
    /// Fills each slot and sends it back, and is killed behind one that it has begun to fill.
    fn fill(_rank: usize, (from, to): (Receiver<Bytes>, Sender<Bytes>)) -> tensormp::Result<()> {
        let source = DeviceTensor::from_slice([2_000], &[9_u8; 2_000])?;
        for count in 1.. {
            let mut slot = from.get()?;
            slot.copy_from(&source)?;
            to.put(slot)?;
            if count == 5 {
                kill(std::process::id());
            }
        }
        Ok(())
    }
    let _session = crate::support::slow_machine();
    let (to, work) = Queue::bounded(8).unwrap().split();
    let (done, from) = Queue::bounded(8).unwrap().split();
    let slots = || Bytes::slots(3, [2_000]).unwrap();
    let mut free = slots();
    let (mut whole, mut deaths) = (0, 0);
    let mut worker = spawn(fill, (work.clone(), done.clone()), 1).unwrap();
    while deaths < 3 || whole < 10 {
        if free.is_empty() && to.is_empty() && from.is_empty() {
            free = slots();
        }
        if let Some(mut slot) = free.pop() {
            // Lost with its stream: another one is made.
            if slot.clear().is_ok() {
                let _ = to.put(slot);
            }
        }
        if let Ok(slot) = from.get_timeout(Duration::from_millis(20))
            && let Ok(elements) = slot.to_vec()
        {
            assert_eq!(elements, [9; 2_000]);
            whole += 1;
            free.push(slot);
        }
        if worker.try_join().is_err() {
            deaths += 1;
            worker = spawn(fill, (work.clone(), done.clone()), 1).unwrap();
        }
    }
    worker.kill();
    let _ = worker.join();
    integration_tests::allow_leaks(8);
}

fn closing_keeps_its_time_and_collecting_waits_for_nobody_else() {
    let session = machine();
    let other = DeviceTensor::<u8>::zeros([3 << 20]).unwrap();
    other.stream().synchronize().unwrap();
    drop(other);
    let Behind {
        writer,
        theirs,
        mine,
    } = behind(&session);
    drop((theirs, mine));
    // The writer lives, and its work is held back: what waits for it is left for later.
    assert_eq!(cuda_ipc::collect(), 0);
    let error = cuda_ipc::close(Duration::from_millis(50)).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::TimedOut, "{error}");
    session.let_go();
    cuda_ipc::close(Duration::from_secs(60)).unwrap();
    kill(writer.pids()[0]);
    let mut writer = writer;
    assert!(writer.join().is_err());
}

type Many = Vec<Bytes>;

/// What is made now is recorded in another stream than the default one, with events that are free: each message has one event
/// for both of its tensors.
fn record_elsewhere(messages: usize) -> (Stream, Receiver<Many>) {
    let (sender, receiver) = Queue::bounded(messages).unwrap().split();
    let side = Stream::new(Device::new(0).unwrap()).unwrap();
    let message = || (0..2).map(|_| Bytes::uninit([4])).collect::<Result<_, _>>();
    side.scope(|| (0..messages).for_each(|_| sender.put(message().unwrap()).unwrap()));
    (side, receiver)
}

/// Who sends what it received on says with other events that it was written, and no block speaks of the first one any more;
/// its stream waits for that all the same.
fn an_event_of_many_that_never_happens_is_not_recorded_again_while_a_stream_waits_for_it() {
    type Part = (Receiver<Many>, Sender<Bytes>, [Event; 3], Sender<String>);
    fn pass_on(_rank: usize, (from, to, [ready, passed, go], said): Part) -> tensormp::Result<()> {
        let mine: Bytes = DeviceTensor::from_slice([3], &[1_u8, 2, 3])?;
        ready.set();
        for tensor in from.get()? {
            to.put(tensor)?;
        }
        passed.set();
        go.wait()?;
        said.put(match mine.to_vec() {
            Ok(elements) => format!("{elements:?}"),
            Err(error) => format!("{:?}: {error}", error.kind()),
        })?;
        Ok(())
    }
    let session = machine();
    let (sender, from) = Queue::bounded(1).unwrap().split();
    let (to, _on_their_way) = Queue::<Bytes>::bounded(4).unwrap().split();
    let (said, told) = Queue::bounded(1).unwrap().split();
    let events = [(); 3].map(|()| Event::new().unwrap());
    let [ready, passed, go] = events.clone();
    let mut passing = spawn(pass_on, (from, to, events, said), 1).unwrap();
    ready.wait().unwrap();
    let also = Bytes::uninit([3]).unwrap();
    let Behind {
        mut writer, mine, ..
    } = behind(&session);
    // One event for both, behind the promise.
    sender.put(vec![mine, also]).unwrap();
    passed.wait().unwrap();
    writer.kill();
    assert!(writer.join().is_err());
    let (side, _sent) = record_elsewhere(40);
    session.let_go();
    side.synchronize().unwrap();
    go.set();
    let read = told.get().unwrap();
    assert!(read.contains("WriterGone"), "{read}");
    passing.join().unwrap();
}

/// A tensor that came back is sent together with others: its own event is free then, and what was recorded with it is waited
/// for by the stream on which it came back.
fn an_event_that_another_one_stands_for_is_not_recorded_again_before_it_has_happened() {
    fn write_late(
        _rank: usize,
        (from, back, [ready, go]): (Receiver<Bytes>, Sender<Bytes>, [Event; 2]),
    ) -> tensormp::Result<()> {
        let mut tensor = from.get()?;
        tensor.stream().synchronize()?;
        ready.set();
        go.wait()?;
        tensor.clear()?;
        back.put(tensor)?;
        std::thread::sleep(Duration::from_secs(60));
        Ok(())
    }
    let session = machine();
    let (sender, from) = Queue::bounded(1).unwrap().split();
    let (back, receiver) = Queue::bounded(1).unwrap().split();
    let events = [(); 2].map(|()| Event::new().unwrap());
    let [ready, go] = events.clone();
    let mut writer = spawn(write_late, (from, back, events), 1).unwrap();
    let mine: Bytes = DeviceTensor::from_slice([3], &[1_u8, 2, 3]).unwrap();
    sender.put(Bytes::zeros([3]).unwrap()).unwrap();
    ready.wait().unwrap();
    session.hold();
    go.set();
    let theirs = receiver.get().unwrap();
    let (together, _on_their_way) = Queue::bounded(1).unwrap().split();
    let also = Bytes::uninit([3]).unwrap();
    together.put(vec![also, theirs]).unwrap();
    let (side, _sent) = record_elsewhere(10);
    writer.kill();
    assert!(writer.join().is_err());
    session.let_go();
    side.synchronize().unwrap();
    let error = mine.to_vec().unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::WriterGone, "{error}");
}

/// A slot goes round, and its event with it. A side stream waited for the first record, which has happened long since; what
/// comes to wait for that stream waits for the second one all the same.
fn a_stream_that_was_behind_an_early_record_of_an_event_does_not_hide_a_later_one() {
    fn write_twice(
        _rank: usize,
        (to, back, [ready, go]): (Sender<Bytes>, Receiver<Bytes>, [Event; 2]),
    ) -> tensormp::Result<()> {
        to.put(Bytes::zeros([3])?)?;
        let mut tensor = back.get()?;
        // So it is known that the first one is done.
        tensor.stream().synchronize()?;
        ready.set();
        go.wait()?;
        tensor.clear()?;
        to.put(tensor)?;
        std::thread::sleep(Duration::from_secs(60));
        Ok(())
    }
    let session = machine();
    let (to, receiver) = Queue::bounded(1).unwrap().split();
    let (sender, back) = Queue::bounded(1).unwrap().split();
    let events = [(); 2].map(|()| Event::new().unwrap());
    let [ready, go] = events.clone();
    let mine: Bytes = DeviceTensor::from_slice([3], &[1_u8, 2, 3]).unwrap();
    let side = Stream::new(mine.device()).unwrap();
    let mut writer = spawn(write_twice, (to, back, events), 1).unwrap();
    let first: Bytes = receiver.get().unwrap();
    first.read_in(&side).unwrap();
    sender.put(first).unwrap();
    ready.wait().unwrap();
    session.hold();
    go.set();
    let _second = receiver.get().unwrap();
    mine.stream().wait_for(&side).unwrap();
    writer.kill();
    assert!(writer.join().is_err());
    session.let_go();
    let error = mine.to_vec().unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::WriterGone, "{error}");
}
