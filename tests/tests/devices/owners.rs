//! Owners of wrapped memory, which do anything when they are dropped: give memory back, for which the driver waits for all
//! streams of the device, wait for others, or use tensors themselves.

use std::sync::mpsc::{self, Receiver as Told, Sender as Tell};
use std::thread::JoinHandle;
use std::time::Duration;

use cuda_emulator::{Driver, Session};
use cuda_ipc::{DeviceTensor, SharedDeviceTensor};
use integration_tests::{Test, resume, see_stopped, stop, tests};
use tensormp::prelude::*;

use crate::lifetime::promise;
use crate::support::machine;

pub(crate) const TESTS: &[Test] = &tests![
    no_stream_comes_to_wait_for_another_process_while_collecting_drops_an_owner,
    no_stream_comes_to_wait_for_another_process_while_an_owner_is_dropped_by_itself,
    an_owner_that_waits_for_who_receives_holds_it_up_for_a_while_only,
    an_owner_that_receives_and_collects_when_it_is_dropped_waits_for_nobody,
];

type Bytes = DeviceTensor<u8>;
type Shared = SharedDeviceTensor<u8>;

/// Does that when it is dropped.
struct Owner<F: FnOnce() + Send>(Option<F>);

impl<F: FnOnce() + Send> Drop for Owner<F> {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(|act| act());
    }
}

/// Memory whose owner does that, gives it back then, and says so.
fn wrap(act: impl FnOnce() + Send + 'static) -> (Bytes, Told<()>) {
    let (tell, told) = mpsc::channel();
    let driver = Driver::loaded();
    driver.start(0).unwrap();
    let address = driver.alloc(64).unwrap();
    let owner = Owner(Some(move || {
        act();
        driver.start(0).unwrap();
        driver.free(address).unwrap();
        let _ = tell.send(());
    }));
    let stream = cuda_ipc::Stream::current().unwrap();
    // SAFETY: the memory is there as long as its owner.
    let tensor = unsafe { Bytes::wrap_raw(&stream, [64], address, owner) }.unwrap();
    stream.synchronize().unwrap();
    (tensor, told)
}

/// A process that has sent a tensor, and is stopped before it has written it.
fn promises(session: &Session, (to, from): (Sender<Shared>, Receiver<Shared>)) -> SpawnContext<()> {
    let [ready, go] = [(); 2].map(|()| Event::new().unwrap());
    let writer = spawn(promise, (to, ready.clone(), go.clone()), 1).unwrap();
    ready.wait().unwrap();
    session.hold();
    go.set();
    while from.is_empty() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let pid = writer.pids()[0];
    stop(pid);
    see_stopped(pid);
    session.let_go();
    writer
}

/// What was promised is written.
fn is_written(mut writer: SpawnContext<()>, tensor: &Shared) {
    resume(writer.pids()[0]);
    assert_eq!(tensor.to_vec().unwrap(), [8; 100]);
    writer.kill();
    assert!(writer.join().is_err());
}

/// A thread that receives it when it is told to, and says so; and what it has received.
fn receive(from: Receiver<Shared>) -> (Tell<()>, Told<()>, JoinHandle<Shared>) {
    let (begin, begins) = mpsc::channel();
    let (tell, told) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        begins.recv().unwrap();
        let tensor = from.get().unwrap();
        let _ = tell.send(());
        tensor
    });
    (begin, told, thread)
}

/// While the owner is dropped, another thread is about to receive what is not written yet.
fn is_dropped_at_rest(drop_it: fn()) {
    let session = machine();
    let (to, from) = Queue::bounded(1).unwrap().split();
    let (begin, received, thread) = receive(from.clone());
    let (tensor, dropped) = wrap(move || {
        begin.send(()).unwrap();
        // It would have it at once.
        let _ = received.recv_timeout(Duration::from_millis(300));
    });
    let writer = promises(&session, (to, from));
    drop(tensor);
    drop_it();
    dropped.recv().unwrap();
    is_written(writer, &thread.join().unwrap());
}

fn no_stream_comes_to_wait_for_another_process_while_collecting_drops_an_owner() {
    is_dropped_at_rest(|| {
        cuda_ipc::collect();
    });
}

fn no_stream_comes_to_wait_for_another_process_while_an_owner_is_dropped_by_itself() {
    is_dropped_at_rest(|| {});
}

fn an_owner_that_waits_for_who_receives_holds_it_up_for_a_while_only() {
    let session = machine();
    let (to, from) = Queue::bounded(1).unwrap().split();
    let (begin, received, thread) = receive(from.clone());
    let (pid, pids) = mpsc::channel();
    let (tensor, _) = wrap(move || {
        begin.send(()).unwrap();
        received.recv().unwrap();
        resume(pids.recv().unwrap());
    });
    let writer = promises(&session, (to, from));
    pid.send(writer.pids()[0]).unwrap();
    drop(tensor);
    cuda_ipc::collect();
    is_written(writer, &thread.join().unwrap());
}

fn an_owner_that_receives_and_collects_when_it_is_dropped_waits_for_nobody() {
    let session = machine();
    let (to, from) = Queue::bounded(1).unwrap().split();
    let (tell, received) = mpsc::channel();
    let (pid, pids) = mpsc::channel();
    let theirs = from.clone();
    let (tensor, _) = wrap(move || {
        let tensor = theirs.get().unwrap();
        cuda_ipc::collect();
        tell.send(tensor).unwrap();
        resume(pids.recv().unwrap());
    });
    let writer = promises(&session, (to, from));
    pid.send(writer.pids()[0]).unwrap();
    drop(tensor);
    cuda_ipc::collect();
    is_written(writer, &received.recv().unwrap());
}
