//! An origin that is killed, at each step of a tensor's way: what its consumer is told, by each path, whether or not anybody
//! has buried the dead yet. And for how long the work of a killed process is not taken for lost.

use std::time::{Duration, Instant};

use cuda_emulator::Session;
use cuda_ipc::{DeviceTensor, ErrorKind, SharedDeviceTensor};
use integration_tests::{Test, kill, pidfd, resume, see_stopped, stop, tests, wait_for_end};
use tensormp::prelude::*;
use tensormp::spawn_api::builder;

use crate::paths::kind_of;
use crate::support::{machine, no_memory_is_left};

pub(crate) const TESTS: &[Test] = &tests![
    an_origin_killed_before_it_says_ready_has_sent_nothing,
    a_tensor_on_its_way_from_a_killed_origin_is_told_by_its_path,
    a_tensor_received_from_a_killed_origin_is_told_by_its_path,
    an_origin_killed_before_its_work_was_done_is_told_by_its_path,
    work_of_a_killed_process_is_not_told_gone_within_its_time,
    time_in_which_a_process_was_stopped_is_not_counted_against_the_dead,
    an_origin_that_is_stopped_is_waited_for_once_and_named,
    a_read_of_nothing_says_nothing_of_work_before_it,
];

type Bytes = DeviceTensor<u8>;
type Shared = SharedDeviceTensor<u8>;

const PATHS: [&str; 3] = ["handle", "descriptor", "host"];

/// Where to send it, that all is prepared, that it may begin, and that it is sent.
type Part = (String, Sender<Shared>, [Event; 3]);

/// Sends a tensor of its own and waits to be killed; at a label, if there is one.
fn send_one(_rank: usize, (label, to, [ready, go, sent]): Part) -> tensormp::Result<()> {
    let source = DeviceTensor::from_slice([100], &[8; 100])?;
    let mut mine = Bytes::zeros([100])?;
    mine.stream().synchronize()?;
    ready.set();
    go.wait()?;
    #[cfg(debug_assertions)]
    tensormp::shm_core::failpoint::arm((!label.is_empty()).then_some(&*label));
    let _ = label;
    mine.copy_from(&source)?;
    let stream = mine.stream().clone();
    to.put(mine.freeze())?;
    sent.set();
    stream.synchronize()?;
    std::thread::sleep(Duration::from_secs(60));
    Ok(())
}

struct Origin {
    context: SpawnContext<()>,
    pid: u32,
    from: Receiver<Shared>,
    go: Event,
    sent: Event,
}

/// One that is ready to send.
fn origin(path: &str, label: &str) -> Origin {
    let (to, from) = Queue::bounded(4).unwrap().split();
    let [ready, go, sent] = [(); 3].map(|()| Event::new().unwrap());
    let part = (
        label.to_owned(),
        to,
        [ready.clone(), go.clone(), sent.clone()],
    );
    let context = builder().env("TENSORMP_CUDA_PATH", path);
    let context = context.spawn(send_one, part, 1).unwrap();
    ready.wait().unwrap();
    Origin {
        pid: context.pids()[0],
        context,
        from,
        go,
        sent,
    }
}

impl Origin {
    /// It has sent its tensor, which is written.
    fn sends(&self, session: &Session) {
        self.go.set();
        self.sent.wait().unwrap();
        session.settle();
    }

    fn dies(&self) {
        let end = pidfd(self.pid);
        kill(self.pid);
        wait_for_end(&end);
    }

    fn ends(mut self) {
        assert!(self.context.join().is_err());
        drop(self.from);
        cuda_ipc::collect();
    }
}

fn is_gone(error: &(dyn std::error::Error + 'static)) -> bool {
    matches!(kind_of(error), Some(ErrorKind::OriginGone { .. }))
}

fn an_origin_killed_before_it_says_ready_has_sent_nothing() {
    if !cfg!(debug_assertions) {
        return eprintln!("skipped: this build has no failpoints");
    }
    let session = machine();
    for path in ["handle", "descriptor"] {
        let origin = origin(path, "device.ready.recorded:1=kill");
        let end = pidfd(origin.pid);
        origin.go.set();
        wait_for_end(&end);
        let error = origin.from.get().unwrap_err();
        assert_eq!(kind_of(&error), None, "{path}: {error}");
        origin.ends();
    }
    no_memory_is_left(session);
}

fn a_tensor_on_its_way_from_a_killed_origin_is_told_by_its_path() {
    let session = machine();
    for path in PATHS {
        let origin = origin(path, "");
        origin.sends(&session);
        origin.dies();
        match origin.from.get() {
            Ok(tensor) => {
                assert_eq!(path, "host");
                assert_eq!(tensor.to_vec().unwrap(), [8; 100]);
            }
            // Nobody has it open, so a descriptor keeps nothing either.
            Err(error) => assert!(path != "host" && is_gone(&error), "{path}: {error}"),
        }
        origin.ends();
    }
    no_memory_is_left(session);
}

fn a_tensor_received_from_a_killed_origin_is_told_by_its_path() {
    let session = machine();
    for path in PATHS {
        let mut origin = origin(path, "");
        origin.sends(&session);
        let tensor = origin.from.get().unwrap();
        assert_eq!(tensor.to_vec().unwrap(), [8; 100]);
        origin.dies();
        let (other, _keep) = Queue::bounded(1).unwrap().split();
        let whatever_is_done = || {
            let put = other.put(tensor.clone());
            [
                ("to_vec", tensor.to_vec().map(drop)),
                ("to_device", tensor.to_device(tensor.device()).map(drop)),
                ("read_in", tensor.read_in(tensor.stream()).map(drop)),
            ]
            .map(|(what, done)| (what, done.map_err(|error| error.kind().clone())))
            .into_iter()
            .chain([(
                "put",
                put.map_err(|failed| kind_of(&failed.into_parts().0).expect("of a device")),
            )])
            .collect::<Vec<_>>()
        };
        let told = Err(ErrorKind::OriginGone {
            pid: Some(origin.pid),
        });
        let wanted = if path == "handle" { told } else { Ok(()) };
        // The host is told something: it has to be right at once. What is given to a stream only is looked at closely when it
        // comes back.
        assert_eq!(
            tensor
                .to_vec()
                .map(drop)
                .map_err(|error| error.kind().clone()),
            wanted,
            "{path}"
        );
        // Buried, it is seen by everything.
        assert!(origin.context.join().is_err());
        for (what, done) in whatever_is_done() {
            assert_eq!(done, wanted, "{path}, {what}");
        }
        drop((tensor, other, _keep));
        drop(origin.from);
        cuda_ipc::collect();
    }
    no_memory_is_left(session);
}

fn an_origin_killed_before_its_work_was_done_is_told_by_its_path() {
    for path in ["handle", "descriptor"] {
        let session = machine();
        // Received before the death, or after it.
        for is_received in [true, false] {
            let origin = origin(path, "");
            session.hold();
            origin.go.set();
            origin.sent.wait().unwrap();
            let early = is_received.then(|| {
                let tensor = origin.from.get().unwrap();
                // It is open now, also where its origin took long to answer; no thread waits for the stream.
                tensor.read_in(tensor.stream()).unwrap();
                tensor
            });
            origin.dies();
            session.let_go();
            let error: Box<dyn std::error::Error> = match early {
                Some(tensor) => Box::new(tensor.to_vec().unwrap_err()),
                None => Box::new(origin.from.get().unwrap_err()),
            };
            let kind = kind_of(&*error).expect("of a device");
            let is_lost = path == "descriptor" && is_received;
            assert!(
                if is_lost {
                    kind == ErrorKind::WriterGone
                } else {
                    is_gone(&*error)
                },
                "{path}, received: {is_received}: {error}"
            );
            origin.ends();
        }
    }
}

fn work_of_a_killed_process_is_not_told_gone_within_its_time() {
    wait_behind_one_that_is_killed(false);
}

fn time_in_which_a_process_was_stopped_is_not_counted_against_the_dead() {
    wait_behind_one_that_is_killed(true);
}

/// What waits for a process that was killed when its work was done, and for a live one that has the event now; `stopped`: and
/// does not run for a while.
fn wait_behind_one_that_is_killed(stopped: bool) {
    /// Writes what it gets and sends it on, and says nothing of what is done.
    fn first(_rank: usize, (from, to): (Receiver<Bytes>, Sender<Bytes>)) -> tensormp::Result<()> {
        let mut tensor = from.get()?;
        tensor.clear()?;
        to.put(tensor)?;
        std::thread::sleep(Duration::from_secs(60));
        Ok(())
    }
    /// Has its stream wait for that, overwrites it behind work of its own, and reads what lies on the same stream.
    fn second(
        _rank: usize,
        (from, to, ready, go, told): (Receiver<Bytes>, Sender<Bytes>, Event, Event, Sender<String>),
    ) -> tensormp::Result<()> {
        let source = DeviceTensor::from_slice([100], &[8_u8; 100])?;
        let mut own = Bytes::zeros([100])?;
        own.stream().synchronize()?;
        let mut tensor = from.get()?;
        ready.set();
        go.wait()?;
        own.copy_from(&source)?;
        tensor.copy_from(&source)?;
        // With its event, which speaks of this process's work now.
        to.put(tensor)?;
        told.put(match own.to_vec() {
            Ok(elements) => format!("{:?}", &elements[..2]),
            Err(error) => format!("{:?}", error.kind()),
        })?;
        Ok(())
    }
    let session = machine();
    let (to_first, first_in) = Queue::bounded(1).unwrap().split();
    let (to_second, second_in) = Queue::bounded(1).unwrap().split();
    let (to_us, back) = Queue::bounded(1).unwrap().split();
    let (say, told) = Queue::bounded(1).unwrap().split();
    let [ready, go] = [(); 2].map(|()| Event::new().unwrap());
    let mut one = spawn(first, (first_in, to_second), 1).unwrap();
    let part = (second_in, to_us, ready.clone(), go.clone(), say);
    let mut two = spawn(second, part, 1).unwrap();
    to_first.put(Bytes::zeros([100]).unwrap()).unwrap();
    ready.wait().unwrap();
    session.settle();
    session.hold();
    go.set();
    let tensor = back.get().unwrap();
    let killed = Instant::now();
    kill(one.pids()[0]);
    assert!(one.join().is_err());
    // It is looked for whether the dead will ever be done.
    std::thread::sleep(Duration::from_millis(700));
    let mut wanted = Duration::from_secs(2);
    if stopped {
        let pid = two.pids()[0];
        stop(pid);
        see_stopped(pid);
        let begun = Instant::now();
        std::thread::sleep(Duration::from_secs(3));
        resume(pid);
        std::thread::sleep(Duration::from_millis(100));
        wanted += begun.elapsed();
    }
    session.let_go();
    let told: String = told.get().unwrap();
    // On a machine that has much else to do it may be told gone, and not before its time; without the guard it always is.
    let is_guarded = std::env::var_os("CUDA_IPC_SABOTAGE").is_none();
    let is_late = is_guarded && killed.elapsed() > wanted;
    assert!(
        told == "[8, 8]" || is_late,
        "{told} after {:?}",
        killed.elapsed()
    );
    two.join().unwrap();
    drop(tensor);
    cuda_ipc::collect();
}

fn an_origin_that_is_stopped_is_waited_for_once_and_named() {
    /// Tensors of allocations of their own.
    fn send_three(_rank: usize, (to, sent): (Sender<Shared>, Event)) -> tensormp::Result<()> {
        for value in 1..=3 {
            let tensor = DeviceTensor::from_slice([3 << 20], &vec![value; 3 << 20])?;
            let stream = tensor.stream().clone();
            to.put(tensor.freeze())?;
            stream.synchronize()?;
        }
        sent.set();
        std::thread::sleep(Duration::from_secs(120));
        Ok(())
    }
    let session = machine();
    let (to, from) = Queue::bounded(4).unwrap().split();
    let sent = Event::new().unwrap();
    let context = builder().env("TENSORMP_CUDA_PATH", "descriptor");
    let mut context = context.spawn(send_three, (to, sent.clone()), 1).unwrap();
    let pid = context.pids()[0];
    sent.wait().unwrap();
    stop(pid);
    see_stopped(pid);
    let tensors: [_; 3] = std::array::from_fn(|_| from.try_get().unwrap());
    // One after the other: were each waited for, the watchdog would end this test.
    for tensor in &tensors {
        let error = tensor.to_vec().unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::TimedOut, "{error}");
        let text = error.to_string();
        assert!(
            text.contains(&format!("process {pid} (send_three)"))
                && text.contains("may be stopped"),
            "{text}"
        );
    }
    resume(pid);
    for (value, tensor) in (1..).zip(&tensors) {
        let elements = loop {
            match tensor.to_vec() {
                // It goes on, when the machine lets it.
                Err(error) if *error.kind() == ErrorKind::TimedOut => {}
                read => break read.unwrap(),
            }
        };
        assert_eq!(elements, vec![value; 3 << 20]);
    }
    drop(tensors);
    context.kill();
    assert!(context.join().is_err());
    cuda_ipc::collect();
    no_memory_is_left(session);
}

/// No byte has to wait for the work before it, so that none came says nothing of it.
fn a_read_of_nothing_says_nothing_of_work_before_it() {
    fn reads_nothing(
        _rank: usize,
        (to, [ready, go, read]): (Sender<Bytes>, [Event; 3]),
    ) -> tensormp::Result<()> {
        let nothing = Bytes::zeros([0])?;
        let mut tensor = Bytes::zeros([3])?;
        tensor.stream().synchronize()?;
        ready.set();
        go.wait()?;
        tensor.clear()?;
        to.put(tensor)?;
        assert!(nothing.to_vec()?.is_empty());
        read.set();
        std::thread::sleep(Duration::from_secs(60));
        Ok(())
    }
    let session = machine();
    let (to, from) = Queue::bounded(1).unwrap().split();
    let events = [(); 3].map(|()| Event::new().unwrap());
    let [ready, go, read] = events.clone();
    // By a descriptor, so that the memory outlives it.
    let writer = builder().env("TENSORMP_CUDA_PATH", "descriptor");
    let mut writer = writer.spawn(reads_nothing, (to, events), 1).unwrap();
    ready.wait().unwrap();
    session.hold();
    go.set();
    let tensor = from.get().unwrap();
    // It is open now, also where its origin took long to answer.
    tensor.read_in(tensor.stream()).unwrap();
    read.wait().unwrap();
    writer.kill();
    assert!(writer.join().is_err());
    session.let_go();
    let error = tensor.to_vec().unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::WriterGone, "{error}");
}
