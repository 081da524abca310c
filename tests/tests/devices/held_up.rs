//! Who is held up by processes that are stopped or dead: nobody but those who wait for what these have.

use std::time::{Duration, Instant};

use cuda_ipc::{Device, DeviceTensor, SharedDeviceTensor, Stream};
use integration_tests::{Test, allow_leaks, resume, see_stopped, stop, tests};
use tensormp::prelude::*;
use tensormp::spawn_api::builder;

use crate::others::piece;
use crate::support::{machine, no_memory_is_left};

pub(crate) const TESTS: &[Test] = &tests![
    who_wraps_memory_does_not_wait_for_other_processes,
    a_process_that_is_stopped_at_any_step_holds_nobody_up_who_does_not_wait_for_it,
    who_receives_waits_for_a_stopped_origin_no_longer_than_is_said,
];

type Bytes = DeviceTensor<u8>;
type Shared = SharedDeviceTensor<u8>;

/// Less than anything here is waited for.
const SOON: Duration = Duration::from_secs(4);

fn who_wraps_memory_does_not_wait_for_other_processes() {
    type Part = (Receiver<Shared>, Receiver<Bytes>, Sender<Bytes>, [Event; 2]);
    /// Holds one piece, and is about to write and send back another.
    fn hold(_rank: usize, (shared, own, back, [ready, go]): Part) -> tensormp::Result<()> {
        let held = shared.get()?;
        let mut own = own.get()?;
        assert_eq!(held.to_vec()?, own.to_vec()?);
        ready.set();
        go.wait()?;
        own.clear()?;
        back.put(own)?;
        std::thread::sleep(Duration::from_secs(600));
        Ok(())
    }
    for dies in [false, true] {
        let session = machine();
        let (shared, first) = Queue::bounded(1).unwrap().split();
        let (own, second) = Queue::bounded(1).unwrap().split();
        let (back, returned) = Queue::bounded(1).unwrap().split();
        let [ready, go] = [(); 2].map(|()| Event::new().unwrap());
        let part = (first, second, back, [ready.clone(), go.clone()]);
        let mut other = builder().apart().spawn(hold, part, 1).unwrap();
        let pid = other.pids()[0];
        let device = Device::new(0).unwrap();
        let [waits, side] = [(); 2].map(|()| Stream::new(device).unwrap());
        shared.put(piece(&side, 4096).freeze()).unwrap();
        own.put(piece(&side, 4096)).unwrap();
        ready.wait().unwrap();
        session.hold();
        go.set();
        // A stream of this process waits for the other one, which does not come to it any more.
        let late = waits.scope(|| returned.get().unwrap());
        match dies {
            true => {
                other.kill();
                assert!(other.join().is_err());
                session.let_go();
            }
            false => stop(pid),
        }
        let begun = Instant::now();
        for _ in 0..20 {
            drop(piece::<u8>(&side, 4096));
            cuda_ipc::collect();
        }
        drop(late);
        drop(piece::<u8>(&side, 4096));
        let took = begun.elapsed();
        assert!(took < SOON, "{took:?}, dead: {dies}");
        if !dies {
            resume(pid);
            session.let_go();
            other.kill();
            assert!(other.join().is_err());
        }
    }
}

/// All that is exchanged with somebody else meanwhile, of the same allocations.
fn a_process_that_is_stopped_at_any_step_holds_nobody_up_who_does_not_wait_for_it() {
    if !cfg!(debug_assertions) {
        return eprintln!("skipped: this build has no failpoints");
    }
    type Message = (Bytes, Shared, Vec<Bytes>);
    /// Sends back what it gets, written anew, and parts of what is its own.
    fn answer(
        _rank: usize,
        (from, back, label): (Receiver<Message>, Sender<Message>, String),
    ) -> tensormp::Result<()> {
        let held = from.get()?;
        #[cfg(debug_assertions)]
        tensormp::shm_core::failpoint::arm((!label.is_empty()).then_some(&*label));
        let _ = label;
        for (mut own, shared, many) in &from {
            assert_eq!(shared.to_vec()?, own.to_vec()?);
            own.copy_from_shared(&held.1)?;
            drop((shared, many));
            let many = (0..2)
                .map(|_| Bytes::zeros([100]))
                .collect::<Result<_, _>>()?;
            back.put((own, Bytes::zeros([100])?.freeze(), many))?;
        }
        Ok(())
    }
    let labels = [
        "device.release.claimed:2",
        "device.release.recorded:2",
        "device.ready.recorded",
        "device.joint.recorded",
        "get.taken:2",
        "get.released:2",
        "put.claimed",
        "put.written",
        "block.alloc.recorded:2",
        "block.drop.recorded:3",
        "chunk.slab.unformatted",
        "object.unborn",
    ];
    allow_leaks(10 * labels.len());
    let session = machine();
    let make = || {
        let many = (0..3).map(|_| Bytes::zeros([100]).unwrap()).collect();
        (
            Bytes::zeros([100]).unwrap(),
            Bytes::zeros([100]).unwrap().freeze(),
            many,
        )
    };
    let start = |label: &str| {
        let (to, from) = Queue::<Message>::bounded(4).unwrap().split();
        let (back, returned) = Queue::bounded(4).unwrap().split();
        let context = builder().apart();
        let context = context
            .spawn(answer, (from, back, label.to_owned()), 1)
            .unwrap();
        to.put(make()).unwrap();
        (to, returned, context)
    };
    let (to, returned, mut other) = start("");
    for label in labels {
        let (feed, _returned, mut stopped) = start(&format!("{label}=stop"));
        for _ in 0..3 {
            feed.put(make()).unwrap();
        }
        see_stopped(stopped.pids()[0]);
        let begun = Instant::now();
        for round in 0..10 {
            to.put(make()).unwrap();
            let (own, shared, many) = returned.get().unwrap();
            assert_eq!(own.to_vec().unwrap(), shared.to_vec().unwrap());
            drop((own, shared, many));
            if round % 3 == 0 {
                cuda_ipc::collect();
            }
            drop(Bytes::zeros([3 << 20]).unwrap());
            // Memory of this process is still held, by both.
            cuda_ipc::close(Duration::ZERO).unwrap_err();
        }
        let took = begun.elapsed();
        assert!(took < SOON, "{label}: {took:?}");
        stopped.kill();
        assert!(stopped.join().is_err());
    }
    drop(to);
    other.join().unwrap();
    drop(returned);
    no_memory_is_left(session);
}

fn who_receives_waits_for_a_stopped_origin_no_longer_than_is_said() {
    const ROUNDS: usize = 12;
    fn send(_rank: usize, (to, go, sent): (Sender<Bytes>, Event, Event)) -> tensormp::Result<()> {
        for _ in 0..=ROUNDS {
            go.wait()?;
            go.clear();
            to.put(Bytes::zeros([3 << 20])?)?;
            Stream::current()?.synchronize()?;
            sent.set();
        }
        cuda_ipc::close(Duration::from_secs(60))?;
        Ok(())
    }
    let session = machine();
    let (to, from) = Queue::bounded(1).unwrap().split();
    let [go, sent] = [(); 2].map(|()| Event::new().unwrap());
    let origin = builder().env("TENSORMP_CUDA_PATH", "descriptor");
    let part = (to, go.clone(), sent.clone());
    let mut origin = origin.spawn(send, part, 1).unwrap();
    let pid = origin.pids()[0];
    let mut all = Vec::new();
    let mut waited = Duration::ZERO;
    for round in 0..=ROUNDS {
        go.set();
        sent.wait().unwrap();
        sent.clear();
        // A descriptor of it was mapped before.
        if round > 0 {
            stop(pid);
        }
        let begun = Instant::now();
        let tensor = from.get().unwrap();
        if round > 0 {
            waited += begun.elapsed();
            resume(pid);
        }
        // Each is an allocation of its own, and is opened now.
        assert_eq!(tensor.to_vec().unwrap()[0], 0);
        all.push(tensor);
    }
    // 20 ms each, and what a machine with more to do makes of that.
    assert!(
        waited < Duration::from_millis(100) * ROUNDS as u32,
        "{waited:?}"
    );
    drop(all);
    cuda_ipc::collect();
    origin.join().unwrap();
    no_memory_is_left(session);
}
