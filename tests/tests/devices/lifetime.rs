//! Device memory lives as long as somebody holds it, and no longer, whoever dies.

use std::time::Duration;

use cuda_emulator::Knobs;
use cuda_ipc::{DeviceTensor, ErrorKind, Gate, Options, SharedDeviceTensor};
use integration_tests::{Test, kill, pidfd, tests, wait_for_end};
use tensormp::prelude::*;

use crate::support::{all_is_well, machine, no_memory_is_left, with};

pub(crate) const TESTS: &[Test] = &tests![
    messages_that_nobody_receives_release_their_memory,
    a_consumer_that_is_killed_gives_back_what_it_held,
    closing_waits_for_consumers_and_names_those_who_are_late,
    a_tensor_of_a_dead_producer_is_an_error_and_not_garbage,
    a_message_of_a_producer_that_ended_is_an_error_when_it_is_received,
    a_descriptor_keeps_the_memory_of_a_dead_producer,
    a_stream_that_waits_for_a_dead_process_is_an_error_and_no_hang,
    with_a_gate_on_the_host_no_stream_waits_for_a_dead_process,
    a_producer_killed_at_any_step_leaves_no_memory,
    a_consumer_killed_at_any_step_leaves_no_memory,
    a_consumer_that_goes_on_for_long_keeps_no_events,
    a_device_that_is_full_takes_back_what_nobody_uses,
    slots_that_could_not_be_made_leave_no_memory,
    a_copy_whose_end_could_not_be_noted_is_waited_for_all_the_same,
];

type Bytes = DeviceTensor<u8>;

fn messages_that_nobody_receives_release_their_memory() {
    let session = machine();
    let queue = Queue::bounded(8).unwrap();
    let kept = DeviceTensor::from_slice([10], &[1_u8; 10])
        .unwrap()
        .freeze();
    for _ in 0..4 {
        queue.put(kept.clone()).unwrap();
    }
    drop(queue);
    assert!(kept.try_thaw().is_ok(), "no message holds it any more");
    let queue = Queue::bounded(8).unwrap();
    for _ in 0..8 {
        queue
            .put(DeviceTensor::<u8>::zeros([3 << 20]).unwrap())
            .unwrap();
    }
    assert!(cuda_ipc::stats().allocated >= 8 * (4 << 20));
    drop(queue);
    cuda_ipc::collect();
    assert_eq!(cuda_ipc::stats().allocations, 0);
    all_is_well(session);
}

fn hold(
    _rank: usize,
    (from, held): (Receiver<SharedDeviceTensor<u8>>, Sender<u32>),
) -> tensormp::Result<()> {
    let mut all = Vec::new();
    while let Ok(tensor) = from.get() {
        all.push(tensor);
        held.put(std::process::id())?;
    }
    Ok(())
}

fn a_consumer_that_is_killed_gives_back_what_it_held() {
    let session = machine();
    let (sender, receiver) = Queue::bounded(4).unwrap().split();
    let (told, held) = Queue::bounded(4).unwrap().split();
    let mut context = spawn(hold, (receiver, told), 1).unwrap();
    let tensor = DeviceTensor::<u8>::zeros([5 << 20]).unwrap().freeze();
    for _ in 0..3 {
        sender.put(tensor.clone()).unwrap();
        held.get().unwrap();
    }
    // And two that it will not have received.
    kill(context.pids()[0]);
    assert!(context.join().is_err());
    let _ = sender.try_put(tensor.clone());
    drop((sender, held, context));
    let mut tensor = tensor.try_thaw().expect("the dead hold nothing");
    tensor.clear().unwrap();
    assert_eq!(tensor.to_vec().unwrap()[0], 0);
    drop(tensor);
    no_memory_is_left(session);
}

fn closing_waits_for_consumers_and_names_those_who_are_late() {
    let session = machine();
    let (sender, receiver) = Queue::bounded(4).unwrap().split();
    let (told, held) = Queue::bounded(4).unwrap().split();
    let mut context = spawn(hold, (receiver, told), 1).unwrap();
    sender
        .put(DeviceTensor::<u8>::zeros([1000]).unwrap().freeze())
        .unwrap();
    let pid: u32 = held.get().unwrap();
    let error = cuda_ipc::close(Duration::from_millis(50)).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::TimedOut);
    let text = error.to_string();
    assert!(
        text.contains(&format!("process {pid}")) && text.contains("1 tensors of 1024 bytes"),
        "{text}"
    );
    sender
        .put(DeviceTensor::<u8>::zeros([1000]).unwrap().freeze())
        .unwrap();
    // The consumer ends with its queue, and with it what it holds.
    drop(sender);
    held.get().unwrap();
    // As long as it takes: no moment that a clock could say.
    cuda_ipc::close(Duration::MAX).unwrap();
    context.join().unwrap();
    all_is_well(session);
}

/// Sends some, then says so and waits to be killed.
fn produce(
    _rank: usize,
    (to, go): (Sender<SharedDeviceTensor<u8>>, Event),
) -> tensormp::Result<()> {
    for value in 1..=2 {
        to.put(
            DeviceTensor::from_slice([100], &[value; 100])
                .unwrap()
                .freeze(),
        )?;
    }
    let keep = DeviceTensor::<u8>::zeros([100]).unwrap();
    keep.stream().synchronize().unwrap();
    go.set();
    std::thread::sleep(Duration::from_secs(60));
    Ok(())
}

fn a_tensor_of_a_dead_producer_is_an_error_and_not_garbage() {
    let session = machine();
    let (sender, receiver) = Queue::bounded(4).unwrap().split();
    let go = Event::new().unwrap();
    let mut context = spawn(produce, (sender, go.clone()), 1).unwrap();
    go.wait().unwrap();
    let tensor = receiver.get().unwrap();
    assert_eq!(tensor.to_vec().unwrap(), [1; 100]);
    let pid = context.pids()[0];
    let end = pidfd(pid);
    kill(pid);
    wait_for_end(&end);
    // Seen at once where the host is told something, also before anybody has buried the dead.
    let error = tensor.to_vec().unwrap_err();
    assert_eq!(
        *error.kind(),
        ErrorKind::OriginGone { pid: Some(pid) },
        "{error}"
    );
    assert!(context.join().is_err());
    let error = tensor.read_in(tensor.stream()).unwrap_err();
    assert!(
        error.to_string().contains(&format!("process {pid}")),
        "{error}"
    );
    let other = Queue::bounded(1).unwrap();
    let error = other.put(tensor.clone()).unwrap_err().to_string();
    assert!(error.contains("has ended"), "{error}");
    // What was on its way is an error for who receives it, and goes.
    let error = receiver.get().unwrap_err().to_string();
    assert!(error.contains("has ended"), "{error}");
    drop(tensor);
    cuda_ipc::collect();
    // Also where a thread of its own was about to close it.
    assert_eq!(cuda_ipc::stats().imports, 0);
    no_memory_is_left(session);
}

fn a_message_of_a_producer_that_ended_is_an_error_when_it_is_received() {
    fn one(_rank: usize, to: Sender<Bytes>) -> tensormp::Result<()> {
        to.put(DeviceTensor::from_slice([4], &[1, 2, 3, 4]).unwrap())?;
        Ok(())
    }
    let session = machine();
    let (sender, receiver) = Queue::bounded(4).unwrap().split();
    spawn(one, sender, 1).unwrap().join().unwrap();
    let error = receiver.get().unwrap_err().to_string();
    assert!(
        error.contains("has ended") && error.contains("close"),
        "{error}"
    );
    no_memory_is_left(session);
}

fn a_descriptor_keeps_the_memory_of_a_dead_producer() {
    let session = with(&Knobs::new().without(cuda_emulator::Feature::LegacyIpc));
    let (sender, receiver) = Queue::bounded(4).unwrap().split();
    let go = Event::new().unwrap();
    let mut context = spawn(produce, (sender, go.clone()), 1).unwrap();
    go.wait().unwrap();
    let tensor = receiver.get().unwrap();
    assert_eq!(tensor.path(), cuda_ipc::Path::Descriptor);
    // It is open now, also where its producer took long to answer.
    assert_eq!(tensor.to_vec().unwrap(), [1; 100]);
    context.kill();
    assert!(context.join().is_err());
    assert_eq!(tensor.to_vec().unwrap(), [1; 100]);
    drop(tensor);
    cuda_ipc::collect();
    no_memory_is_left(session);
}

/// Where to send it, that all is prepared, and that it may begin.
pub(crate) type Promise = (Sender<SharedDeviceTensor<u8>>, Event, Event);

/// Sends a tensor that its stream has yet to write, and is told to wait for its end.
pub(crate) fn promise(_rank: usize, (to, ready, go): Promise) -> tensormp::Result<()> {
    // Made before the streams are held back, so that only the last copy is late.
    let source = DeviceTensor::from_slice([100], &[8; 100])?;
    let mut late = DeviceTensor::<u8>::zeros([100])?;
    late.stream().synchronize()?;
    ready.set();
    go.wait()?;
    late.copy_from(&source)?;
    to.put(late.freeze())?;
    std::thread::sleep(Duration::from_secs(60));
    Ok(())
}

/// Receives a tensor whose writer is killed before it is written; what reading it answers.
fn read_of_the_dead(session: cuda_emulator::Session) -> Result<Vec<u8>, String> {
    let (sender, receiver) = Queue::bounded(4).unwrap().split();
    let (ready, go) = (Event::new().unwrap(), Event::new().unwrap());
    let ours = DeviceTensor::from_slice([3], &[1_u8, 2, 3]).unwrap();
    let mut context = spawn(promise, (sender, ready.clone(), go.clone()), 1).unwrap();
    ready.wait().unwrap();
    session.hold();
    go.set();
    let got = receiver_of(&receiver);
    context.kill();
    assert!(context.join().is_err());
    session.let_go();
    let read = got.and_then(|tensor| tensor.to_vec().map_err(|error| error.to_string()));
    // What is this process's own goes on.
    let mine = ours.to_device(ours.device());
    assert!(mine.is_ok() || read.is_err());
    read
}

pub(crate) fn receiver_of(
    from: &Receiver<SharedDeviceTensor<u8>>,
) -> Result<SharedDeviceTensor<u8>, String> {
    from.get().map_err(|error| error.to_string())
}

fn a_stream_that_waits_for_a_dead_process_is_an_error_and_no_hang() {
    let session = machine();
    let error = read_of_the_dead(session).unwrap_err();
    assert!(error.contains("has ended"), "{error}");
    // The next tensors are on another stream.
    let tensor = DeviceTensor::from_slice([2], &[5_u8, 6]).unwrap();
    assert_eq!(tensor.to_vec().unwrap(), [5, 6]);
}

fn with_a_gate_on_the_host_no_stream_waits_for_a_dead_process() {
    fn kill_later(pid: u32) {
        std::thread::sleep(Duration::from_millis(100));
        kill(pid);
    }
    let session = machine();
    patient();
    let (sender, receiver) = Queue::bounded(4).unwrap().split();
    let (ready, go) = (Event::new().unwrap(), Event::new().unwrap());
    let mut context = spawn(promise, (sender, ready.clone(), go.clone()), 1).unwrap();
    ready.wait().unwrap();
    session.hold();
    go.set();
    while receiver.is_empty() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let pid = context.pids()[0];
    let killer = std::thread::spawn(move || kill_later(pid));
    // Looks until the writer is gone.
    let error = receiver_of(&receiver).unwrap_err();
    assert!(error.contains("has ended"), "{error}");
    killer.join().unwrap();
    session.let_go();
    assert!(context.join().is_err());
    let tensor = DeviceTensor::from_slice([2], &[5_u8, 6]).unwrap();
    assert_eq!(tensor.to_vec().unwrap(), [5, 6]);
    drop(tensor);
    no_memory_is_left(session);
}

const STEPS: [&str; 4] = [
    "device.ready.recorded",
    "device.joint.recorded",
    "device.release.claimed",
    "device.release.recorded",
];

pub(crate) fn arm(label: &str) {
    #[cfg(debug_assertions)]
    tensormp::shm_core::failpoint::arm(Some(label));
    #[cfg(not(debug_assertions))]
    panic!("this build has no failpoints, to stop at {label}");
}

/// No stream of this process waits for another, which may be killed.
fn patient() {
    let gate = Gate::Host(Duration::from_secs(20));
    Options::new().gate(gate).install().unwrap();
}

/// How many tensors a message has on whose way there is that step.
fn company(label: &str) -> u8 {
    if label.starts_with("device.joint") {
        3
    } else {
        1
    }
}

pub(crate) fn has_failpoints() -> bool {
    if !cfg!(debug_assertions) {
        eprintln!("skipped: this build has no failpoints");
    }
    cfg!(debug_assertions)
}

fn a_producer_killed_at_any_step_leaves_no_memory() {
    fn produce(
        _rank: usize,
        (label, to): (String, Sender<Vec<SharedDeviceTensor<u8>>>),
    ) -> tensormp::Result<()> {
        arm(&label);
        for value in 0..20 {
            let tensors: Vec<_> = (0..company(&label))
                .map(|_| DeviceTensor::from_slice([100], &[value; 100]).unwrap())
                .map(DeviceTensor::freeze)
                .collect();
            to.put(tensors.clone())?;
        }
        Ok(())
    }
    if !has_failpoints() {
        return;
    }
    let session = machine();
    patient();
    for label in STEPS {
        let (sender, receiver) = Queue::bounded(32).unwrap().split();
        let mut context = spawn(produce, (format!("{label}:5=kill"), sender), 1).unwrap();
        while let Ok(tensors) = receiver.get() {
            for tensor in tensors {
                if let Ok(elements) = tensor.to_vec() {
                    assert!(elements.iter().all(|x| *x == elements[0]), "torn");
                }
            }
        }
        let error = context.join().unwrap_err().to_string();
        assert!(error.contains("SIGKILL"), "{label}: {error}");
        drop((receiver, context));
        cuda_ipc::collect();
    }
    no_memory_is_left(session);
    integration_tests::allow_leaks(8);
}

fn a_consumer_killed_at_any_step_leaves_no_memory() {
    fn consume(
        _rank: usize,
        (label, from): (String, Receiver<Vec<Bytes>>),
    ) -> tensormp::Result<()> {
        arm(&label);
        for tensors in &from {
            // And on to somebody: itself.
            let again = Queue::bounded(1)?;
            again.put(tensors)?;
            for tensor in again.get()? {
                assert_eq!(tensor.to_vec().unwrap().len(), 100);
            }
        }
        Ok(())
    }
    if !has_failpoints() {
        return;
    }
    let session = machine();
    patient();
    for label in STEPS {
        let (sender, receiver) = Queue::bounded(4).unwrap().split();
        let mut context = spawn(consume, (format!("{label}:5=kill"), receiver), 1).unwrap();
        for value in 0..20 {
            let tensors = (0..company(label))
                .map(|_| DeviceTensor::from_slice([100], &[value; 100]).unwrap())
                .collect();
            if sender.put(tensors).is_err() {
                break;
            }
        }
        let error = context.join().unwrap_err().to_string();
        assert!(error.contains("SIGKILL"), "{label}: {error}");
        drop((sender, context));
    }
    assert!(cuda_ipc::stats().events_replaced >= 1 || cuda_ipc::stats().events > 0);
    no_memory_is_left(session);
    integration_tests::allow_leaks(8);
}

fn a_consumer_that_goes_on_for_long_keeps_no_events() {
    fn consume(_rank: usize, (from, done): (Receiver<Bytes>, Sender<u64>)) -> tensormp::Result<()> {
        for tensor in &from {
            drop(tensor);
            done.put(cuda_ipc::stats().events_opened)?;
        }
        Ok(())
    }
    let session = machine();
    let (sender, receiver) = Queue::bounded(2).unwrap().split();
    let (done, told) = Queue::bounded(2).unwrap().split();
    let mut context = spawn(consume, (receiver, done), 1).unwrap();
    let send = |count: usize| {
        (0..count)
            .map(|_| {
                sender.put(DeviceTensor::zeros([100]).unwrap()).unwrap();
                let opened = told.get().unwrap();
                // A block whose last holder is not done yet is left for another one.
                session.settle();
                opened
            })
            .max()
    };
    // A few blocks go round, and each has its events.
    let opened = send(500).unwrap();
    assert!(opened <= 60, "{opened}");
    let live = session.live().events;
    assert!(live <= 70, "{live}");
    drop(sender);
    context.join().unwrap();
    all_is_well(session);
}

fn a_device_that_is_full_takes_back_what_nobody_uses() {
    let session = with(&Knobs::new().memory(64));
    // More than there is, in different sizes, one after another.
    for size in 1..=20 {
        drop(DeviceTensor::<u8>::zeros([(size * 3) << 20]).unwrap());
    }
    let error = DeviceTensor::<u8>::zeros([65 << 20]).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::OutOfMemory { asked } if *asked >= 65 << 20),
        "{error}"
    );
    no_memory_is_left(session);
}

fn slots_that_could_not_be_made_leave_no_memory() {
    let session = with(&Knobs::new().fail("cuIpcGetEventHandle", 999, Some(3)));
    let made = DeviceTensor::<u8>::slots(3, [100]);
    let error = made.unwrap_err();
    assert_eq!(error.code(), Some(999), "{error}");
    assert!(cuda_ipc::collect() > 0);
    no_memory_is_left(session);
}

fn a_copy_whose_end_could_not_be_noted_is_waited_for_all_the_same() {
    // The copy waits for the source's stream with the first record, and the source's stream for the copy with the second.
    let knobs = Knobs::new().delay(Duration::from_millis(20));
    let session = with(&knobs.fail("cuEventRecord", 999, Some(2)));
    let source = DeviceTensor::from_slice([300_000], &[7_u8; 300_000]).unwrap();
    let second = cuda_ipc::Device::new(1).unwrap();
    let error = source.to_device(second).unwrap_err();
    assert_eq!(error.code(), Some(999), "{error}");
    drop(source);
    cuda_ipc::collect();
    no_memory_is_left(session);
}
