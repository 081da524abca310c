//! A device that is full: what is let go of is given out again, as soon as whoever used it is done.

use std::time::Duration;

use cuda_emulator::{Driver, Knobs};
use cuda_ipc::{Device, DeviceTensor, Gate, Options, SharedDeviceTensor, Stream};
use integration_tests::{Test, resume, see_stopped, stop, tests};
use tensormp::prelude::*;

use crate::support::{no_memory_is_left, with};

pub(crate) const TESTS: &[Test] = &tests![
    a_full_device_takes_the_block_whose_reader_is_done_first,
    a_full_device_takes_the_blocks_of_readers_that_are_killed,
    threads_that_look_at_a_full_device_at_once_have_a_block_each,
    no_stream_waits_for_a_reader_where_another_block_came_free_meanwhile,
    a_full_device_gives_out_what_it_has_also_where_a_way_is_to_be_tried_again,
];

type Bytes = DeviceTensor<u8>;
type Shared = SharedDeviceTensor<u8>;

/// Two of them are all of the device but a little.
const LARGE: usize = 24 << 20;

/// Has work on what it received that is not done before it is told, when it has let go of it long since.
fn read_late(
    _rank: usize,
    (from, [dropped, go, done]): (Receiver<Shared>, [Event; 3]),
) -> tensormp::Result<()> {
    let tensor = from.get()?;
    let driver = Driver::loaded();
    driver.start(0).unwrap();
    let [side, other] = [(); 2].map(|()| Stream::new(Device::new(0).unwrap()).unwrap());
    let word = driver.alloc(8).unwrap();
    driver.fill_async(word, 0, 8, side.as_raw()).unwrap();
    side.synchronize()?;
    let equal = 1;
    driver.wait_value(side.as_raw(), word, 7, equal).unwrap();
    tensor.read_in(&side)?;
    drop(tensor);
    dropped.set();
    go.wait()?;
    driver.write_value(other.as_raw(), word, 7, 0).unwrap();
    side.synchronize()?;
    driver.free(word).unwrap();
    done.set();
    Ok(())
}

/// A block that nobody holds, and that a reader is not done with before it is told.
struct Busy {
    address: u64,
    go: Event,
    done: Event,
    context: SpawnContext<()>,
}

/// Two of them, which fill the device.
fn two_busy_blocks() -> [Busy; 2] {
    let mut tensors = Vec::new();
    let busy = [(); 2].map(|()| {
        let tensor = Bytes::zeros([LARGE]).unwrap().freeze();
        let address = tensor.read_in(tensor.stream()).unwrap();
        let (to, from) = Queue::bounded(1).unwrap().split();
        let [dropped, go, done] = [(); 3].map(|()| Event::new().unwrap());
        let part = (from, [dropped.clone(), go.clone(), done.clone()]);
        let context = spawn(read_late, part, 1).unwrap();
        to.put(tensor.clone()).unwrap();
        dropped.wait().unwrap();
        tensors.push(tensor);
        Busy {
            address,
            go,
            done,
            context,
        }
    });
    drop(tensors);
    busy
}

impl Busy {
    fn is_done(&self) {
        self.go.set();
        self.done.wait().unwrap();
    }

    fn ends(mut self) {
        self.go.set();
        self.context.join().unwrap();
    }
}

/// A machine with room for two large blocks, where threads wait, and not streams.
fn small_machine() -> cuda_emulator::Session {
    let session = with(&Knobs::new().memory(64));
    let gate = Gate::Host(Duration::from_secs(60));
    Options::new().gate(gate).install().unwrap();
    session
}

fn a_full_device_takes_the_block_whose_reader_is_done_first() {
    let session = small_machine();
    for first in [0, 1] {
        let busy = two_busy_blocks();
        std::thread::scope(|scope| {
            let fresh = scope.spawn(|| Bytes::zeros([LARGE]));
            // It is looking by then, or finds it done.
            std::thread::sleep(Duration::from_millis(200));
            busy[first].go.set();
            assert!(fresh.join().unwrap().is_ok());
        });
        busy.into_iter().for_each(Busy::ends);
    }
    no_memory_is_left(session);
}

fn a_full_device_takes_the_blocks_of_readers_that_are_killed() {
    let session = with(&Knobs::new().memory(64).events_of_the_dead_never_happen());
    let gate = Gate::Host(Duration::from_secs(60));
    Options::new().gate(gate).install().unwrap();
    let mut busy = two_busy_blocks();
    std::thread::scope(|scope| {
        let fresh = [(); 2].map(|()| scope.spawn(|| Bytes::zeros([LARGE])));
        std::thread::sleep(Duration::from_millis(300));
        for one in &mut busy {
            one.context.kill();
            assert!(one.context.join().is_err());
        }
        let made = fresh.map(|one| one.join().unwrap());
        assert!(made.iter().all(Result::is_ok), "{made:?}");
    });
    no_memory_is_left(session);
}

fn threads_that_look_at_a_full_device_at_once_have_a_block_each() {
    let session = small_machine();
    let busy = two_busy_blocks();
    std::thread::scope(|scope| {
        let fresh = [(); 2].map(|()| scope.spawn(|| Bytes::zeros([LARGE])));
        // They are looking by then, or find it done.
        std::thread::sleep(Duration::from_millis(300));
        busy.iter().for_each(|one| one.go.set());
        let made = fresh.map(|one| one.join().unwrap());
        assert!(made.iter().all(Result::is_ok), "{made:?}");
    });
    busy.into_iter().for_each(Busy::ends);
    no_memory_is_left(session);
}

/// By default a stream waits for a reader where nothing else is to be had; but not for one while another one is done.
fn no_stream_waits_for_a_reader_where_another_block_came_free_meanwhile() {
    fn hold(
        _rank: usize,
        (from, [held, end]): (Receiver<Bytes>, [Event; 2]),
    ) -> tensormp::Result<()> {
        drop(from.get()?);
        held.set();
        end.wait()?;
        Ok(())
    }
    let session = with(&Knobs::new().memory(64));
    for first in [0, 1] {
        let (to, from) = Queue::bounded(1).unwrap().split();
        let [held, end] = [(); 2].map(|()| Event::new().unwrap());
        let mut holder = spawn(hold, (from, [held.clone(), end.clone()]), 1).unwrap();
        let pid = holder.pids()[0];
        to.put(Bytes::zeros([4 << 20]).unwrap()).unwrap();
        held.wait().unwrap();
        // It has memory open that nobody uses, and does not close it for a while.
        stop(pid);
        see_stopped(pid);
        let busy = two_busy_blocks();
        let asked = || {
            let calls = session.calls_of(std::process::id());
            calls.of("cuMemAlloc_v2")
        };
        let before = asked();
        std::thread::scope(|scope| {
            let fresh = scope.spawn(|| {
                let tensor = Bytes::uninit([LARGE]).unwrap();
                tensor.read_in(tensor.stream()).unwrap()
            });
            while asked() == before {
                std::thread::sleep(Duration::from_millis(1));
            }
            busy[first].is_done();
            // It waits for two seconds, unless this thread was late.
            let is_late = fresh.is_finished();
            let address = fresh.join().unwrap();
            assert!(is_late || address == busy[first].address);
        });
        busy.into_iter().for_each(Busy::ends);
        resume(pid);
        end.set();
        holder.join().unwrap();
        cuda_ipc::collect();
    }
    no_memory_is_left(session);
}

fn a_full_device_gives_out_what_it_has_also_where_a_way_is_to_be_tried_again() {
    // What the operating system had no room for may be there the next time.
    let session = with(&Knobs::new().memory(64).fail("cuIpcGetMemHandle", 304, None));
    let [first, second] = [(); 2].map(|()| Bytes::zeros([32 << 20]).unwrap());
    drop(first);
    drop(Bytes::zeros([32 << 20]).unwrap());
    drop(second);
    no_memory_is_left(session);
}
