//! Processes that end in peace, and streams that have nothing to do with the dead: nobody takes their work for lost, however
//! late it comes. And nobody waits for others where memory is closed, given back or tried.

use std::collections::VecDeque;
use std::time::Duration;

use cuda_emulator::Knobs;
use cuda_ipc::{Device, DeviceTensor, ErrorKind, Options, Path, SharedDeviceTensor, Stream};
use integration_tests::{Test, kill, resume, see_stopped, stop, tests};
use tensormp::prelude::*;

use crate::lifetime::promise;
use crate::support::{machine, no_memory_is_left, with};

pub(crate) const TESTS: &[Test] = &tests![
    an_event_recorded_anew_is_no_doubt_of_who_recorded_it_before_and_ended_in_peace,
    what_a_stream_recorded_is_not_lost_with_the_next_one,
    what_was_recorded_before_a_stream_came_to_wait_for_the_dead_is_not_lost,
    a_stopped_process_is_not_given_up_for_one_that_ended_in_peace_and_it_had_waited_for,
    a_first_tensor_is_made_while_a_stream_waits_for_one_that_is_late,
    who_receives_does_not_wait_for_memory_to_be_closed,
    who_receives_does_not_wait_for_memory_of_the_dead_to_be_closed,
    memory_is_closed_though_streams_always_wait_for_others,
    a_process_whose_device_stands_still_need_not_wait_for_those_who_have_its_memory_open,
    who_cannot_close_memory_is_named_with_the_reason,
    closing_does_not_wait_for_those_who_can_do_nothing_about_it,
    closing_names_who_has_work_on_memory_that_was_mapped,
    memory_comes_back_where_no_event_can_be_made,
];

type Bytes = DeviceTensor<u8>;

/// Longer than a stream is given after the death of a process that it waits for.
const DOUBTED: Duration = Duration::from_secs(6);

fn an_event_recorded_anew_is_no_doubt_of_who_recorded_it_before_and_ended_in_peace() {
    /// Writes what it gets, sends it on, and ends.
    fn first(
        _rank: usize,
        (from, to, done, end): (Receiver<Bytes>, Sender<Bytes>, Event, Event),
    ) -> tensormp::Result<()> {
        let mut tensor = from.get()?;
        tensor.clear()?;
        let stream = tensor.stream().clone();
        to.put(tensor)?;
        stream.synchronize()?;
        done.set();
        end.wait()?;
        Ok(())
    }
    /// Overwrites it behind work of its own, sends it on, and reads what lies on the same stream.
    fn second(
        _rank: usize,
        (from, to, ready, go): (Receiver<Bytes>, Sender<Bytes>, Event, Event),
    ) -> tensormp::Result<Vec<u8>> {
        let source = DeviceTensor::from_slice([100], &[8_u8; 100])?;
        let mut own = Bytes::zeros([100])?;
        own.stream().synchronize()?;
        let mut tensor = from.get()?;
        ready.set();
        go.wait()?;
        own.copy_from(&source)?;
        tensor.copy_from(&source)?;
        to.put(tensor)?;
        Ok(own.to_vec()?)
    }
    let session = machine();
    let (to_first, first_in) = Queue::bounded(1).unwrap().split();
    let (to_second, second_in) = Queue::bounded(1).unwrap().split();
    let (to_us, back) = Queue::bounded(1).unwrap().split();
    let [done, end, ready, go] = [(); 4].map(|()| Event::new().unwrap());
    let part = (first_in, to_second, done.clone(), end.clone());
    let mut one = spawn(first, part, 1).unwrap();
    let mut two = spawn(second, (second_in, to_us, ready.clone(), go.clone()), 1).unwrap();
    to_first.put(Bytes::zeros([100]).unwrap()).unwrap();
    ready.wait().unwrap();
    done.wait().unwrap();
    session.settle();
    session.hold();
    go.set();
    // With its event, which speaks of the second process's work now.
    let tensor = back.get().unwrap();
    end.set();
    one.join().unwrap();
    std::thread::sleep(DOUBTED);
    session.let_go();
    assert_eq!(tensor.to_vec().unwrap(), [8; 100]);
    assert_eq!(two.join().unwrap(), [[8; 100]]);
    drop(tensor);
    no_memory_is_left(session);
}

fn what_a_stream_recorded_is_not_lost_with_the_next_one() {
    lose_a_stream(false);
}

fn what_was_recorded_before_a_stream_came_to_wait_for_the_dead_is_not_lost() {
    lose_a_stream(true);
}

/// A process records something in a stream, and then waits for the dead, in the `same` stream or in another one.
fn lose_a_stream(same: bool) {
    type Late = Receiver<SharedDeviceTensor<u8>>;
    /// Writes what it gets in a stream, and has that or another one wait for what is never written.
    fn write_and_wait(
        _rank: usize,
        (same, from, to, late, [ready, go, waits, end], lost): (
            bool,
            Receiver<Bytes>,
            Sender<Bytes>,
            Late,
            [Event; 4],
            Sender<bool>,
        ),
    ) -> tensormp::Result<()> {
        let device = Device::new(0)?;
        let stream = Stream::new(device)?;
        let mut tensor = stream.scope(|| from.get())?;
        stream.synchronize()?;
        ready.set();
        go.wait()?;
        tensor.clear()?;
        to.put(tensor)?;
        let waiting = if same {
            stream
        } else {
            drop(stream);
            Stream::new(device)?
        };
        let late = waiting.scope(|| late.get())?;
        waits.set();
        lost.put(late.to_vec().is_err())?;
        end.wait()?;
        Ok(())
    }
    let session = machine();
    let (to_writer, from_us) = Queue::bounded(1).unwrap().split();
    let (to_us, back): (_, Receiver<Bytes>) = Queue::bounded(1).unwrap().split();
    let (promised, late) = Queue::bounded(1).unwrap().split();
    let (lost, is_lost) = Queue::bounded(1).unwrap().split();
    let events = [(); 4].map(|()| Event::new().unwrap());
    let [prepared, promise_now] = [(); 2].map(|()| Event::new().unwrap());
    let part = (promised, prepared.clone(), promise_now.clone());
    let mut dies = spawn(promise, part, 1).unwrap();
    let part = (same, from_us, to_us, late, events.clone(), lost);
    let mut writer = spawn(write_and_wait, part, 1).unwrap();
    let [ready, go, waits, end] = events;
    let tensor = DeviceTensor::from_slice([3], &[1_u8, 2, 3]).unwrap();
    to_writer.put(tensor).unwrap();
    prepared.wait().unwrap();
    ready.wait().unwrap();
    session.settle();
    session.hold();
    go.set();
    let tensor = back.get().unwrap();
    promise_now.set();
    waits.wait().unwrap();
    let reader = std::thread::spawn(move || tensor.to_vec().map_err(|error| error.to_string()));
    kill(dies.pids()[0]);
    assert!(dies.join().is_err());
    assert!(is_lost.get().unwrap());
    // Whoever is to hear of it has.
    std::thread::sleep(Duration::from_secs(1));
    session.let_go();
    assert_eq!(reader.join().unwrap().unwrap(), [0; 3]);
    end.set();
    writer.join().unwrap();
}

fn a_stopped_process_is_not_given_up_for_one_that_ended_in_peace_and_it_had_waited_for() {
    fn send_one(_rank: usize, (to, end): (Sender<Bytes>, Event)) -> tensormp::Result<()> {
        to.put(DeviceTensor::from_slice([3], &[1_u8, 2, 3])?)?;
        end.wait()?;
        Ok(())
    }
    /// Receives on the stream on which it writes what it sends.
    fn write_late(
        _rank: usize,
        (from, to, ready, go): (Receiver<Bytes>, Sender<Bytes>, Event, Event),
    ) -> tensormp::Result<()> {
        let mut tensor = Bytes::zeros([3])?;
        let _received = from.get()?;
        ready.set();
        go.wait()?;
        tensor.clear()?;
        to.put(tensor)?;
        std::thread::sleep(Duration::from_secs(60));
        Ok(())
    }
    let session = machine();
    let (to_writer, from_first) = Queue::bounded(1).unwrap().split();
    let (to_us, from_writer) = Queue::bounded(1).unwrap().split();
    let [end, ready, go] = [(); 3].map(|()| Event::new().unwrap());
    let mut first = spawn(send_one, (to_writer, end.clone()), 1).unwrap();
    let part = (from_first, to_us, ready.clone(), go.clone());
    let mut writer = spawn(write_late, part, 1).unwrap();
    ready.wait().unwrap();
    session.settle();
    session.hold();
    go.set();
    let tensor: Bytes = from_writer.get().unwrap();
    let pid = writer.pids()[0];
    stop(pid);
    see_stopped(pid);
    end.set();
    first.join().unwrap();
    let reader = std::thread::spawn(move || tensor.to_vec().map_err(|error| error.to_string()));
    // Longer than a process may say nothing that has somebody dead behind it.
    std::thread::sleep(Duration::from_secs(12));
    resume(pid);
    session.let_go();
    let read = reader.join().unwrap();
    assert!(read.is_ok(), "{read:?}");
    kill(pid);
    assert!(writer.join().is_err());
}

/// A tensor of another process for which the current stream waits, and will until all streams are let go.
fn wait_for_a_late_one(session: &cuda_emulator::Session) -> (SpawnContext<()>, impl Sized + use<>) {
    let (sender, receiver): (_, Receiver<SharedDeviceTensor<u8>>) =
        Queue::bounded(4).unwrap().split();
    let (ready, go) = (Event::new().unwrap(), Event::new().unwrap());
    let writer = spawn(promise, (sender, ready.clone(), go.clone()), 1).unwrap();
    ready.wait().unwrap();
    session.hold();
    go.set();
    let late = receiver.get().unwrap();
    (writer, late)
}

fn end(mut writer: SpawnContext<()>, session: &cuda_emulator::Session) {
    session.let_go();
    session.settle();
    writer.kill();
    assert!(writer.join().is_err());
}

fn a_first_tensor_is_made_while_a_stream_waits_for_one_that_is_late() {
    let session = machine();
    let (writer, late) = wait_for_a_late_one(&session);
    // What the device can do is tried with memory that is given back when the device is at rest.
    let side = Stream::new(Device::new(0).unwrap()).unwrap();
    let fresh = side.scope(|| Bytes::zeros([30])).unwrap();
    drop((fresh, late));
    end(writer, &session);
    no_memory_is_left(session);
}

/// Sends two tensors, of which the second lies in other memory, and ends when it is told to.
fn send_two(_rank: usize, (to, next, end): (Sender<Bytes>, Event, Event)) -> tensormp::Result<()> {
    to.put(DeviceTensor::from_slice([3], &[1_u8, 2, 3])?)?;
    next.wait()?;
    // The memory of the first is wanted back.
    cuda_ipc::collect();
    to.put(Bytes::zeros([3 << 20])?)?;
    end.wait()?;
    Ok(())
}

fn who_receives_does_not_wait_for_memory_to_be_closed() {
    let session = machine();
    drop(Bytes::zeros([1]).unwrap());
    let (to, from): (_, Receiver<Bytes>) = Queue::bounded(1).unwrap().split();
    let [next, done] = [(); 2].map(|()| Event::new().unwrap());
    let mut maker = spawn(send_two, (to, next.clone(), done.clone()), 1).unwrap();
    assert_eq!(from.get().unwrap().to_vec().unwrap(), [1, 2, 3]);
    let (writer, late) = wait_for_a_late_one(&session);
    next.set();
    let side = Stream::new(Device::new(0).unwrap()).unwrap();
    let second = side.scope(|| from.get()).unwrap();
    drop((second, late));
    end(writer, &session);
    done.set();
    maker.join().unwrap();
    no_memory_is_left(session);
}

fn who_receives_does_not_wait_for_memory_of_the_dead_to_be_closed() {
    let session = machine();
    drop(Bytes::zeros([1]).unwrap());
    let (to, from_dead): (_, Receiver<Bytes>) = Queue::bounded(1).unwrap().split();
    let (to_us, from): (_, Receiver<Bytes>) = Queue::bounded(1).unwrap().split();
    let [never, next, done] = [(); 3].map(|()| Event::new().unwrap());
    let mut dead = spawn(send_two, (to, never.clone(), never), 1).unwrap();
    drop(from_dead.get().unwrap());
    let mut maker = spawn(send_two, (to_us, next.clone(), done.clone()), 1).unwrap();
    while from.is_empty() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let (writer, late) = wait_for_a_late_one(&session);
    dead.kill();
    assert!(dead.join().is_err());
    let side = Stream::new(Device::new(0).unwrap()).unwrap();
    let first = side.scope(|| from.get()).unwrap();
    assert!(cuda_ipc::stats().imports >= 2);
    drop((first, late));
    end(writer, &session);
    next.set();
    done.set();
    drop(from.get());
    maker.join().unwrap();
    no_memory_is_left(session);
}

fn memory_is_closed_though_streams_always_wait_for_others() {
    /// Writes one tensor after the other.
    fn write(_rank: usize, to: Sender<Bytes>) -> tensormp::Result<()> {
        let source = DeviceTensor::from_slice([100], &[5_u8; 100])?;
        loop {
            let mut tensor = Bytes::zeros([100])?;
            tensor.copy_from(&source)?;
            if to.put(tensor).is_err() {
                return Ok(());
            }
        }
    }
    /// Reads what comes, with the next few of it received already.
    fn read(
        _rank: usize,
        (once, from, dropped, end): (Receiver<Bytes>, Receiver<Bytes>, Event, Event),
    ) -> tensormp::Result<()> {
        drop(once.get()?);
        dropped.set();
        let mut all = VecDeque::new();
        while !end.is_set() {
            all.push_back(from.get()?);
            if all.len() > 3
                && let Some(eldest) = all.pop_front()
            {
                eldest.to_vec()?;
            }
        }
        Ok(())
    }
    let session = with(&Knobs::new().delay(Duration::from_millis(10)));
    let (to, once) = Queue::bounded(1).unwrap().split();
    let (sender, receiver) = Queue::bounded(2).unwrap().split();
    let [dropped, done] = [(); 2].map(|()| Event::new().unwrap());
    let mut writer = spawn(write, sender, 1).unwrap();
    let mut reader = spawn(read, (once, receiver, dropped.clone(), done.clone()), 1).unwrap();
    to.put(Bytes::zeros([3 << 20]).unwrap()).unwrap();
    dropped.wait().unwrap();
    // It is closed while the other two go on.
    cuda_ipc::close(Duration::from_secs(60)).unwrap();
    done.set();
    reader.join().unwrap();
    writer.join().unwrap();
    no_memory_is_left(session);
}

/// Drops what it gets, and does nothing more. Whoever is stopped does not close it either.
fn keep_open(_rank: usize, (from, dropped): (Receiver<Bytes>, Event)) -> tensormp::Result<()> {
    drop(from.get()?);
    dropped.set();
    std::thread::sleep(Duration::from_secs(60));
    Ok(())
}

fn a_process_whose_device_stands_still_need_not_wait_for_those_who_have_its_memory_open() {
    let session = machine();
    let (to, from) = Queue::bounded(1).unwrap().split();
    let dropped = Event::new().unwrap();
    let mut reader = spawn(keep_open, (from, dropped.clone()), 1).unwrap();
    to.put(Bytes::zeros([100]).unwrap()).unwrap();
    dropped.wait().unwrap();
    session.settle();
    let pid = reader.pids()[0];
    stop(pid);
    see_stopped(pid);
    let (writer, late) = wait_for_a_late_one(&session);
    kill(writer.pids()[0]);
    let mut writer = writer;
    assert!(writer.join().is_err());
    session.let_go();
    drop(late);
    let error = cuda_ipc::close(Duration::from_secs(600)).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::WriterGone, "{error}");
    resume(pid);
    kill(pid);
    assert!(reader.join().is_err());
}

/// Drops one tensor, and has its stream wait for one that is never written; `works`: with work on the first behind that.
fn be_stuck(
    _rank: usize,
    (works, from, late, said): (
        bool,
        Receiver<Bytes>,
        Receiver<SharedDeviceTensor<u8>>,
        Sender<bool>,
    ),
) -> tensormp::Result<()> {
    let tensor = from.get()?;
    let mut copy = Bytes::zeros([100])?;
    if works {
        let late = late.get()?;
        copy.copy_from(&tensor)?;
        drop(tensor);
        said.put(true)?;
        said.put(late.to_vec().is_err())?;
    } else {
        drop(tensor);
        let late = late.get()?;
        said.put(true)?;
        said.put(late.to_vec().is_err())?;
    }
    std::thread::sleep(Duration::from_secs(60));
    Ok(())
}

/// A process of whose device a stream waits for the dead, and which had a tensor of this one; who is dead, and it.
fn a_stuck_reader(session: &cuda_emulator::Session, works: bool) -> (u32, SpawnContext<()>) {
    let (to, from) = Queue::bounded(1).unwrap().split();
    let (promised, late) = Queue::bounded(1).unwrap().split();
    let (said, told) = Queue::bounded(2).unwrap().split();
    let (ready, go) = (Event::new().unwrap(), Event::new().unwrap());
    let mut writer = spawn(promise, (promised, ready.clone(), go.clone()), 1).unwrap();
    let reader = spawn(be_stuck, (works, from, late, said), 1).unwrap();
    to.put(Bytes::zeros([100]).unwrap()).unwrap();
    ready.wait().unwrap();
    session.settle();
    session.hold();
    go.set();
    assert!(told.get().unwrap());
    let dead = writer.pids()[0];
    kill(dead);
    assert!(writer.join().is_err());
    session.let_go();
    assert!(told.get().unwrap(), "it knows");
    (dead, reader)
}

fn who_cannot_close_memory_is_named_with_the_reason() {
    let session = machine();
    let (dead, mut reader) = a_stuck_reader(&session, false);
    let stuck = reader.pids()[0];
    let error = cuda_ipc::close(Duration::from_secs(1)).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::TimedOut, "{error}");
    let text = error.to_string();
    assert!(
        text.contains(&format!("process {stuck} be_stuck has memory of it open"))
            && text.contains(&format!("a stream there waits for process {dead}")),
        "{text}"
    );
    kill(stuck);
    assert!(reader.join().is_err());
    cuda_ipc::close(Duration::from_secs(20)).unwrap();
}

fn closing_does_not_wait_for_those_who_can_do_nothing_about_it() {
    is_told_of_the_stuck(false, "has memory of it open, and cannot close it");
}

fn closing_names_who_has_work_on_memory_that_was_mapped() {
    Options::new().path(Path::Descriptor).install().unwrap();
    is_told_of_the_stuck(true, "has work on it that is not done, and cannot do it");
}

fn is_told_of_the_stuck(works: bool, how: &str) {
    let session = machine();
    let (dead, mut reader) = a_stuck_reader(&session, works);
    let stuck = reader.pids()[0];
    // Nothing comes of waiting for longer, before that process ends.
    let error = cuda_ipc::close(Duration::from_secs(600)).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::WriterGone, "{error}");
    let text = error.to_string();
    assert!(
        text.contains(&format!("process {stuck} be_stuck {how}"))
            && text.contains(&format!("a stream there waits for process {dead}")),
        "{text}"
    );
    kill(stuck);
    assert!(reader.join().is_err());
    cuda_ipc::close(Duration::from_secs(20)).unwrap();
}

fn memory_comes_back_where_no_event_can_be_made() {
    let session = with(&Knobs::new().fail("cuEventCreate", 999, None));
    let tensor = DeviceTensor::from_slice([3], &[1_u8, 2, 3]).unwrap();
    assert_eq!(tensor.to_vec().unwrap(), [1, 2, 3]);
    drop(tensor);
    cuda_ipc::close(Duration::from_secs(60)).unwrap();
    assert_eq!(session.live().allocations, 0);
}
