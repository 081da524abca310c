//! Tensors of an origin that has ended, in memory that was mapped from its descriptor: its events are gone, and nobody can open
//! one any more.

use std::time::{Duration, Instant};

use cuda_emulator::{Driver, Knobs, Session};
use cuda_ipc::{Device, DeviceTensor, ErrorKind, SharedDeviceTensor, Stream};
use integration_tests::{Test, kill, pidfd, tests, wait_for_end};
use serde::{Deserialize, Serialize};
use tensormp::prelude::*;
use tensormp::spawn_api::builder;

use crate::again::lent;
use crate::paths::kind_of;
use crate::support::{machine, no_memory_is_left, with};

pub(crate) const TESTS: &[Test] = &tests![
    what_is_on_its_way_comes_though_its_origin_ends_in_peace,
    what_is_on_its_way_comes_though_its_stream_went_while_another_one_was_waited_for,
    what_is_on_its_way_comes_though_its_origin_is_killed_when_it_had_said_that_it_was_done,
    what_is_on_its_way_and_was_not_written_is_an_error_of_its_writer,
    what_has_no_origin_any_more_goes_round_among_those_who_have_it_open,
    what_has_no_origin_any_more_comes_from_a_writer_that_goes_on_in_its_stream,
    what_has_no_origin_any_more_comes_from_a_writer_that_has_closed_its_memory,
    what_has_no_origin_any_more_comes_from_a_writer_whose_stream_never_rests,
    what_has_no_origin_any_more_comes_from_a_writer_whose_stream_has_no_number,
    what_has_no_origin_any_more_is_sent_on_before_that_one_is_buried,
];

type Bytes = DeviceTensor<u8>;
type Shared = SharedDeviceTensor<u8>;

/// Says that it has sent everything, and is told to end.
type Part = (Sender<Shared>, [Event; 3]);

/// Sends two tensors of one allocation, each with an event of its own; the second is `late`.
fn send_two(_rank: usize, (to, [ready, go, end]): Part) -> tensormp::Result<()> {
    let source = DeviceTensor::from_slice([100], &[1; 100])?;
    let mut second = Bytes::zeros([100])?;
    let stream = second.stream().clone();
    to.put(Bytes::zeros([100])?.freeze())?;
    stream.synchronize()?;
    ready.set();
    go.wait()?;
    second.copy_from(&source)?;
    to.put(second.freeze())?;
    drop(source);
    ready.set();
    end.wait()?;
    stream.synchronize()?;
    ready.set();
    std::thread::sleep(std::time::Duration::from_secs(60));
    Ok(())
}

struct Origin {
    context: SpawnContext<()>,
    from: Receiver<Shared>,
    events: [Event; 3],
    first: Shared,
}

/// One of whose memory this process has a tensor, and which is about to write and send another one of the same allocation.
fn origin() -> Origin {
    let (to, from) = Queue::bounded(2).unwrap().split();
    let events = [(); 3].map(|()| Event::new().unwrap());
    let part: Part = (to, events.clone());
    let context = builder().env("TENSORMP_CUDA_PATH", "descriptor").apart();
    let context = context.spawn(send_two, part, 1).unwrap();
    let first = from.get().unwrap();
    // It is open now.
    assert_eq!(first.to_vec().unwrap(), [0; 100]);
    let origin = Origin {
        context,
        from,
        events,
        first,
    };
    origin.is_ready();
    origin
}

impl Origin {
    fn is_ready(&self) {
        let [ready, ..] = &self.events;
        ready.wait().unwrap();
        ready.clear();
    }

    /// It sends the second.
    fn sends(&self) {
        self.events[1].set();
        self.is_ready();
    }

    /// It is killed; what is received then.
    fn dies(&mut self, session: &Session) -> tensormp::mp_queue::Result<Shared> {
        self.context.kill();
        assert!(self.context.join().is_err());
        // The driver has taken back all that it had.
        assert_eq!(session.live().processes, 1);
        self.from.get()
    }

    fn ends(self, session: Session) {
        assert_eq!(self.first.to_vec().unwrap(), [0; 100]);
        drop(self);
        cuda_ipc::collect();
        no_memory_is_left(session);
    }
}

fn what_is_on_its_way_comes_though_its_origin_ends_in_peace() {
    fn send_three(_rank: usize, (to, end): (Sender<Shared>, Event)) -> tensormp::Result<()> {
        for value in 0..3_u8 {
            to.put(DeviceTensor::from_slice([100], &[value; 100])?.freeze())?;
        }
        end.wait()?;
        Ok(())
    }
    let session = machine();
    let (to, from) = Queue::bounded(3).unwrap().split();
    let end = Event::new().unwrap();
    let context = builder().env("TENSORMP_CUDA_PATH", "descriptor");
    let mut context = context.spawn(send_three, (to, end.clone()), 1).unwrap();
    let first = from.get().unwrap();
    assert_eq!(first.to_vec().unwrap(), [0; 100]);
    end.set();
    context.join().unwrap();
    assert_eq!(session.live().processes, 1);
    for value in 1..3 {
        assert_eq!(from.get().unwrap().to_vec().unwrap(), [value; 100]);
    }
    drop(first);
    cuda_ipc::collect();
    no_memory_is_left(session);
}

/// Blocking streams may wait for one another, so what is known of them is known of all.
fn what_is_on_its_way_comes_though_its_stream_went_while_another_one_was_waited_for() {
    fn send(
        _rank: usize,
        (to, [held, waits, goes]): (Sender<Shared>, [Event; 3]),
    ) -> tensormp::Result<()> {
        let driver = Driver::loaded();
        driver.start(0).unwrap();
        let [first, second] = [(); 2].map(|()| driver.stream(0).unwrap());
        let mut tensors = [(); 2].map(|()| Bytes::zeros_on(&lent(second), [100]).unwrap());
        to.put(Bytes::zeros([100])?.freeze())?;
        held.wait()?;
        driver
            .fill_async(driver.alloc(8).unwrap(), 1, 8, first)
            .unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| lent(first).synchronize().unwrap());
            waits.wait().unwrap();
            tensors[0].clear().unwrap();
            for tensor in tensors {
                to.put(tensor.freeze()).unwrap();
            }
            driver.destroy_stream(second).unwrap();
            goes.set();
        });
        Ok(())
    }
    let session = machine();
    let (to, from) = Queue::bounded(4).unwrap().split();
    let [held, waits, goes] = [(); 3].map(|()| Event::new().unwrap());
    let part = (to, [held.clone(), waits.clone(), goes.clone()]);
    let context = builder().env("TENSORMP_CUDA_PATH", "descriptor");
    let mut context = context.spawn(send, part, 1).unwrap();
    let first = from.get().unwrap();
    assert_eq!(first.to_vec().unwrap(), [0; 100]);
    let waited = || {
        let calls = session.calls_of(context.pids()[0]);
        calls.of("cuStreamSynchronize")
    };
    let before = waited();
    session.hold();
    held.set();
    while waited() == before {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    waits.set();
    goes.wait().unwrap();
    session.let_go();
    context.join().unwrap();
    // The driver has taken back all that it had.
    assert_eq!(session.live().processes, 1);
    for _ in 0..2 {
        assert_eq!(from.get().unwrap().to_vec().unwrap(), [0; 100]);
    }
    drop(first);
    cuda_ipc::collect();
    no_memory_is_left(session);
}

fn what_is_on_its_way_comes_though_its_origin_is_killed_when_it_had_said_that_it_was_done() {
    let session = machine();
    let mut origin = origin();
    origin.sends();
    origin.events[2].set();
    origin.is_ready();
    let second = origin.dies(&session).unwrap();
    assert_eq!(second.to_vec().unwrap(), [1; 100]);
    drop(second);
    origin.ends(session);
}

fn what_is_on_its_way_and_was_not_written_is_an_error_of_its_writer() {
    let session = machine();
    let mut origin = origin();
    session.hold();
    origin.sends();
    let error = origin.dies(&session).unwrap_err();
    assert_eq!(kind_of(&error), Some(ErrorKind::WriterGone), "{error}");
    session.let_go();
    origin.ends(session);
}

fn what_has_no_origin_any_more_goes_round_among_those_who_have_it_open() {
    type Both = (Bytes, Shared, Vec<Bytes>);
    fn send(_rank: usize, (to, opened): ([Sender<Both>; 2], Event)) -> tensormp::Result<()> {
        let shared = DeviceTensor::from_slice([100], &[7; 100])?.freeze();
        let make = || Bytes::zeros([100]);
        let many = (0..3).map(|_| make()).collect::<Result<_, _>>()?;
        to[0].put((make()?, shared, many))?;
        to[1].put((make()?, make()?.freeze(), Vec::new()))?;
        opened.wait()?;
        Ok(())
    }
    /// Has the memory open, and none of the events of what comes then.
    fn write(
        _rank: usize,
        (once, from, back, opened): (Receiver<Both>, Receiver<Both>, Sender<Both>, Event),
    ) -> tensormp::Result<()> {
        let (held, ..) = once.get()?;
        assert_eq!(held.to_vec()?, [0; 100]);
        opened.set();
        for (mut own, shared, mut many) in &from {
            assert_eq!(shared.to_vec()?, [7; 100]);
            for one in many.iter_mut().chain([&mut own]) {
                let next: Vec<_> = one.to_vec()?.iter().map(|x| x + 1).collect();
                one.copy_from(&DeviceTensor::from_slice([100], &next)?)?;
            }
            back.put((own, shared, many))?;
        }
        Ok(())
    }
    let session = machine();
    let (to_me, for_me) = Queue::bounded(1).unwrap().split();
    let (to_other, for_other) = Queue::bounded(1).unwrap().split();
    let (to, from) = Queue::bounded(1).unwrap().split();
    let (back, returned) = Queue::bounded(1).unwrap().split();
    let opened = Event::new().unwrap();
    let part = (for_other, from, back, opened.clone());
    let mut other = builder().spawn(write, part, 1).unwrap();
    let origin = builder().env("TENSORMP_CUDA_PATH", "descriptor");
    let part = ([to_me, to_other], opened);
    let mut origin = origin.spawn(send, part, 1).unwrap();
    let (mut own, mut shared, mut many) = for_me.get().unwrap();
    own.clear().unwrap();
    origin.join().unwrap();
    // The driver has taken back all that it had.
    assert_eq!(session.live().processes, 2);
    for round in 0..5 {
        to.put((own, shared, many)).unwrap();
        (own, shared, many) = returned.get().unwrap();
        for one in many.iter().chain([&own]) {
            assert_eq!(one.to_vec().unwrap(), [round + 1; 100]);
        }
    }
    drop(to);
    other.join().unwrap();
    drop((own, shared, many));
    cuda_ipc::collect();
    no_memory_is_left(session);
}

/// Makes three tensors of one allocation.
fn make(_rank: usize, (to_me, to_other): (Sender<Bytes>, Sender<Bytes>)) -> tensormp::Result<()> {
    to_me.put(Bytes::zeros([100])?)?;
    for _ in 0..2 {
        to_other.put(Bytes::zeros([100])?)?;
    }
    std::thread::sleep(Duration::from_secs(60));
    Ok(())
}

/// Writes one of two while their origin is there, and sends it back.
type Writing = (Receiver<Bytes>, Sender<Bytes>, [Event; 2]);

#[derive(Clone, Copy, Serialize, Deserialize)]
enum Then {
    Sends,
    Closes,
    Works,
    HasMany,
}

/// Sends others by the same stream after that, until it is told to end.
fn write_and_send((from, back, [sent, end]): Writing) -> tensormp::Result<()> {
    let (mut second, _held) = (from.get()?, from.get()?);
    second.copy_from(&DeviceTensor::from_slice([100], &[5; 100])?)?;
    back.put(second)?;
    send_others(&sent, &end)
}

/// As that, and has nothing of the memory open any more.
fn write_and_close((from, back, [sent, end]): Writing) -> tensormp::Result<()> {
    let (mut second, held) = (from.get()?, from.get()?);
    second.copy_from(&DeviceTensor::from_slice([100], &[5; 100])?)?;
    back.put(second)?;
    drop(held);
    while cuda_ipc::stats().imports > 0 {
        cuda_ipc::collect();
    }
    send_others(&sent, &end)
}

fn send_others(sent: &Event, end: &Event) -> tensormp::Result<()> {
    let (to, own) = Queue::bounded(1)?.split();
    let mut other = Bytes::zeros([100])?;
    sent.set();
    while !end.is_set() {
        to.put(other)?;
        other = own.get()?;
    }
    Ok(())
}

/// Its stream always has something to do after that, of which nobody else is told.
fn write_and_work((from, back, [sent, end]): Writing) -> tensormp::Result<()> {
    let (mut second, _held) = (from.get()?, from.get()?);
    second.copy_from(&DeviceTensor::from_slice([100], &[5; 100])?)?;
    let stream = second.stream().clone();
    let driver = Driver::loaded();
    driver.start(0).unwrap();
    let side = driver.stream(1).unwrap();
    let word = driver.alloc(8).unwrap();
    driver.fill_async(word, 0, 8, side).unwrap();
    driver.synchronize_stream(side).unwrap();
    back.put(second)?;
    let at_least = 0;
    let waits_for = |turn| driver.wait_value(stream.as_raw(), word, turn, at_least);
    let begun = Instant::now();
    let mut turn = 1;
    waits_for(turn).unwrap();
    while !end.is_set() {
        waits_for(turn + 1).unwrap();
        driver.write_value(side, word, turn, 0).unwrap();
        turn += 1;
        // It has sent nothing else for a while.
        if begun.elapsed() > Duration::from_secs(3) {
            sent.set();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    driver.write_value(side, word, turn, 0).unwrap();
    stream.synchronize()?;
    driver.synchronize_stream(side).unwrap();
    driver.destroy_stream(side).unwrap();
    driver.free(word).unwrap();
    Ok(())
}

/// Has so many streams that marks have no number for the one in which it writes.
fn write_unnumbered((from, back, [sent, end]): Writing) -> tensormp::Result<()> {
    let device = Device::new(0)?;
    let many = (0..255).map(|_| Stream::new(device));
    let _many = many.collect::<Result<Vec<_>, _>>()?;
    let stream = Stream::new(device)?;
    let mut second = stream.scope(|| from.get())?;
    second.copy_from(&DeviceTensor::from_slice([100], &[5; 100])?)?;
    back.put(second)?;
    sent.set();
    end.wait()?;
    Ok(())
}

fn what_has_no_origin_any_more_comes_from_a_writer_that_goes_on_in_its_stream() {
    comes_from_a_writer_that(Then::Sends);
}

fn what_has_no_origin_any_more_comes_from_a_writer_that_has_closed_its_memory() {
    comes_from_a_writer_that(Then::Closes);
}

fn what_has_no_origin_any_more_comes_from_a_writer_whose_stream_never_rests() {
    comes_from_a_writer_that(Then::Works);
}

fn what_has_no_origin_any_more_comes_from_a_writer_whose_stream_has_no_number() {
    comes_from_a_writer_that(Then::HasMany);
}

fn write(_rank: usize, (then, writing): (Then, Writing)) -> tensormp::Result<()> {
    match then {
        Then::Sends => write_and_send(writing),
        Then::Closes => write_and_close(writing),
        Then::Works => write_and_work(writing),
        Then::HasMany => write_unnumbered(writing),
    }
}

fn comes_from_a_writer_that(then: Then) {
    // As from a driver where the event of one that has ended can't be opened, though another process has it open.
    let session = with(&Knobs::new().fail("cuIpcOpenEventHandle", 1, Some(2)));
    let (to_me, for_me) = Queue::bounded(1).unwrap().split();
    let (to_other, for_other) = Queue::bounded(2).unwrap().split();
    let (back, returned) = Queue::bounded(1).unwrap().split();
    let [sent, end] = [(); 2].map(|()| Event::new().unwrap());
    let part = (for_other, back, [sent.clone(), end.clone()]);
    let mut writer = builder()
        .env("CUDA_EMULATOR_FAIL", "")
        .apart()
        .spawn(write, (then, part), 1)
        .unwrap();
    let origin = builder()
        .env("CUDA_EMULATOR_FAIL", "")
        .env("TENSORMP_CUDA_PATH", "descriptor")
        .apart();
    let mut origin = origin.spawn(make, (to_me, to_other), 1).unwrap();
    let first = for_me.get().unwrap();
    sent.wait().unwrap();
    origin.kill();
    assert!(origin.join().is_err());
    assert_eq!(session.live().processes, 2);
    let second = returned.get().unwrap();
    assert_eq!(second.to_vec().unwrap(), [5; 100]);
    end.set();
    writer.join().unwrap();
    drop((first, second));
    cuda_ipc::collect();
    no_memory_is_left(session);
}

/// Its tensors were written together, so that nobody has opened the events that each of them has for itself.
fn what_has_no_origin_any_more_is_sent_on_before_that_one_is_buried() {
    fn send(_rank: usize, to: Sender<Vec<Bytes>>) -> tensormp::Result<()> {
        for _ in 0..10 {
            to.put(vec![Bytes::zeros([100])?, Bytes::zeros([100])?])?;
        }
        std::thread::sleep(Duration::from_secs(60));
        Ok(())
    }
    let session = machine();
    for together in [false, true] {
        let (to, from) = Queue::bounded(10).unwrap().split();
        let context = builder().env("TENSORMP_CUDA_PATH", "descriptor");
        let mut context = context.spawn(send, to, 1).unwrap();
        let all: Vec<Vec<Bytes>> = (0..10).map(|_| from.get().unwrap()).collect();
        for one in all.iter().flatten() {
            assert_eq!(one.to_vec().unwrap(), [0; 100]);
        }
        let pid = context.pids()[0];
        let end = pidfd(pid);
        kill(pid);
        wait_for_end(&end);
        assert_eq!(session.live().processes, 1);
        let (to, back) = Queue::bounded(20).unwrap().split();
        for mut tensors in all {
            tensors.iter_mut().for_each(|one| one.clear().unwrap());
            match together {
                true => to.put(tensors).unwrap(),
                false => tensors
                    .into_iter()
                    .for_each(|one| to.put(vec![one]).unwrap()),
            }
        }
        drop(to);
        assert_eq!(back.iter().flatten().count(), 20);
        assert!(context.join().is_err());
        cuda_ipc::collect();
    }
    no_memory_is_left(session);
}
