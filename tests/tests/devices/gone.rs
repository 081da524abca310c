//! Streams of others of which the last handle goes while threads have to do with those that the driver orders them with: what
//! was in them is seen to be done all the same.

use std::time::Duration;

use cuda_emulator::Driver;
use cuda_ipc::{Device, DeviceTensor, SharedDeviceTensor, Stream};
use integration_tests::{Test, tests};
use tensormp::prelude::*;
use tensormp::spawn_api::builder;

use crate::again::lent;
use crate::support::{machine, no_memory_is_left};

pub(crate) const TESTS: &[Test] = &tests![
    what_is_on_its_way_comes_though_its_stream_went_while_one_was_waited_for_and_one_came_to_wait,
    what_is_on_its_way_comes_though_its_stream_went_while_another_one_was_made_to_wait,
    what_is_on_its_way_comes_though_its_stream_had_no_number_and_went,
];

type Bytes = DeviceTensor<u8>;
type Shared = SharedDeviceTensor<u8>;

/// Sends three tensors, two of them in a stream of its own that is destroyed while others of its company are waited for, if
/// `is_waited_for`, and made to wait for what comes `from` another process.
fn send(
    _rank: usize,
    (to, from, [held, goes], is_waited_for): (Sender<Shared>, Receiver<Shared>, [Event; 2], bool),
) -> tensormp::Result<()> {
    let session = cuda_emulator::load().unwrap();
    let driver = Driver::loaded();
    driver.start(0).unwrap();
    let [first, second, third] = [(); 3].map(|()| driver.stream(0).unwrap());
    let third = lent(third);
    let mut tensors = [(); 2].map(|()| Bytes::zeros_on(&lent(second), [100]).unwrap());
    to.put(Bytes::zeros([100])?.freeze())?;
    held.wait()?;
    let word = driver.alloc(8).unwrap();
    driver.fill_async(word, 1, 8, first).unwrap();
    let calls = |name| session.calls_of(std::process::id()).of(name);
    let begun = |name, before| {
        while calls(name) == before {
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    std::thread::scope(|scope| {
        if is_waited_for {
            let before = calls("cuStreamSynchronize");
            scope.spawn(|| lent(first).synchronize().unwrap());
            begun("cuStreamSynchronize", before);
        }
        let before = calls("cuStreamWaitEvent");
        scope.spawn(|| third.scope(|| from.get()).unwrap());
        match is_waited_for {
            // It comes behind whoever waits: nothing that it does shows.
            true => std::thread::sleep(Duration::from_millis(300)),
            false => begun("cuStreamWaitEvent", before),
        }
        tensors[0].clear().unwrap();
        for tensor in tensors {
            to.put(tensor.freeze()).unwrap();
        }
        driver.destroy_stream(second).unwrap();
        goes.set();
    });
    Ok(())
}

fn comes(is_waited_for: bool) {
    let session = machine();
    let (to, from) = Queue::bounded(4).unwrap().split();
    let (there, here) = Queue::bounded(4).unwrap().split();
    let [held, goes] = [(); 2].map(|()| Event::new().unwrap());
    let part = (to, here, [held.clone(), goes.clone()], is_waited_for);
    let context = builder()
        .env("TENSORMP_CUDA_PATH", "descriptor")
        .env("CUDA_EMULATOR_SLOW", "cuStreamWaitEvent:50");
    let mut context = context.spawn(send, part, 1).unwrap();
    let first = from.get().unwrap();
    assert_eq!(first.to_vec().unwrap(), [0; 100]);
    there.put(Bytes::zeros([100]).unwrap().freeze()).unwrap();
    session.hold();
    held.set();
    goes.wait().unwrap();
    session.let_go();
    context.join().unwrap();
    // Its events are gone, and nobody can open them any more.
    assert_eq!(session.live().processes, 1);
    for _ in 0..2 {
        assert_eq!(from.get().unwrap().to_vec().unwrap(), [0; 100]);
    }
    drop(first);
    cuda_ipc::collect();
    no_memory_is_left(session);
}

fn what_is_on_its_way_comes_though_its_stream_went_while_one_was_waited_for_and_one_came_to_wait() {
    comes(true);
}

fn what_is_on_its_way_comes_though_its_stream_went_while_another_one_was_made_to_wait() {
    comes(false);
}

/// There are so many streams that marks have no number for one more.
fn what_is_on_its_way_comes_though_its_stream_had_no_number_and_went() {
    fn send(
        _rank: usize,
        (to, [held, goes]): (Sender<Shared>, [Event; 2]),
    ) -> tensormp::Result<()> {
        let device = Device::new(0)?;
        let _many: Vec<_> = (0..255).map(|_| Stream::new(device).unwrap()).collect();
        let driver = Driver::loaded();
        driver.start(0).unwrap();
        let raw = driver.stream(1).unwrap();
        let source = DeviceTensor::from_slice_on(&lent(raw), [100], &[8; 100])?;
        let mut tensor = Bytes::zeros_on(&lent(raw), [100])?;
        to.put(Bytes::zeros([100])?.freeze())?;
        held.wait()?;
        tensor.copy_from(&source)?;
        to.put(tensor.freeze())?;
        drop(source);
        driver.destroy_stream(raw).unwrap();
        // Those of which nothing comes any more are forgotten.
        drop(Stream::new(device)?);
        goes.set();
        Ok(())
    }
    let session = machine();
    let (to, from) = Queue::bounded(4).unwrap().split();
    let [held, goes] = [(); 2].map(|()| Event::new().unwrap());
    let context = builder().env("TENSORMP_CUDA_PATH", "descriptor");
    let mut context = context
        .spawn(send, (to, [held.clone(), goes.clone()]), 1)
        .unwrap();
    let first = from.get().unwrap();
    assert_eq!(first.to_vec().unwrap(), [0; 100]);
    session.hold();
    held.set();
    goes.wait().unwrap();
    // It would have ended by then, if it waited for nothing.
    std::thread::sleep(Duration::from_millis(500));
    session.let_go();
    context.join().unwrap();
    assert_eq!(session.live().processes, 1);
    assert_eq!(from.get().unwrap().to_vec().unwrap(), [8; 100]);
    drop(first);
    cuda_ipc::collect();
    no_memory_is_left(session);
}
