//! The suite `cuda`: device tensors through two queues, on the emulated driver: three processes make them, two send them on,
//! three read them, and any of them is killed. Some lend their memory by descriptor, the others by handle.
//!
//! Every other round has a driver that completes the events of the dead, without their work, and one that never does: there
//! a stream that waits for one of them is lost, and who has one gives up what is on it, ends, and is replaced.
//!
//! Who reads looks at every element. A tensor whose writer died before it was done may be refused or hold anything; all
//! others hold their pattern. At the end the emulated driver has seen no read of freed memory, no race and nothing freed
//! while somebody had it open, and a process that ends in peace has got back everything that it made.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cuda_emulator::{Knobs, Live, Session};
use cuda_ipc::{Device, DeviceTensor, ErrorKind, Gate, Options, Path, SharedDeviceTensor, Stream};
use mp_queue::{Queue, Receiver, Sender};
use serde::{Deserialize, Serialize};
use shm_core::Arena;

use super::orphans;
use super::pattern::{check, element};
use super::receipts::Receipts;
use super::roles::{CREW, Role, missed, role};
use super::suite::{Scene, Suite, Worker};
use crate::Result;

const ROOM: usize = 4;
/// From the makers to those who send on, and from them to the readers.
const QUEUES: [&str; 2] = ["first queue", "second queue"];
/// How long a process that ends waits for those that hold its memory. Nobody is killed then.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a process waits for a message before it gives back what it does not need.
const IDLE: Duration = Duration::from_millis(50);

#[derive(Debug, Serialize, Deserialize)]
struct Message {
    /// Names the pattern of `shared`.
    id: u64,
    /// Names that of `own`.
    own_id: u64,
    /// Whoever had it in its hands, and may have left something undone.
    hands: Vec<u32>,
    own: DeviceTensor<u64>,
    shared: SharedDeviceTensor<u64>,
    /// The second half of `shared`: the same memory.
    view: SharedDeviceTensor<u64>,
    /// Small ones, on the stream of `own`: what is written there is said once for all of them.
    more: Vec<DeviceTensor<u64>>,
}

/// What names the pattern of the tensor of that place in `more`.
fn more_id(id: u64, place: usize) -> u64 {
    id ^ (0x5a00 + place as u64) << 48
}

/// The suite.
#[derive(Debug)]
pub(crate) struct Cuda;

#[derive(Debug)]
struct Devices {
    session: Session,
    queues: [Queue<Message>; 2],
}

/// The emulated devices, in this process and for the children that are started from now on. Work takes a while, so that there
/// is something to kill in.
fn emulate(events_of_the_dead_happen: bool) -> Result<Session> {
    let knobs = Knobs::new().delay(Duration::from_micros(200));
    let knobs = match events_of_the_dead_happen {
        // A stream that waits for a dead process's work goes on, with what is there: what that is, is known by the message.
        true => knobs.events_of_the_dead_happen(),
        false => knobs.events_of_the_dead_never_happen(),
    };
    Ok(knobs.load()?)
}

/// Whether a stream of this process waits for the dead, so that it must end to give its memory back.
fn is_stuck() -> bool {
    !cuda_ipc::stats().stuck.is_empty()
}

impl Suite for Cuda {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn crew(&self) -> usize {
        CREW
    }

    fn pause(&self) -> Duration {
        // A process needs a while until it has something on a device.
        Duration::from_millis(80)
    }

    fn labels(&self) -> &'static [&'static str] {
        &["device.", "get.", "put."]
    }

    fn open(&self, arena: &Arena, _rng: fastrand::Rng) -> Result<Box<dyn Scene>> {
        static ROUNDS: AtomicU64 = AtomicU64::new(0);
        let session = emulate(ROUNDS.fetch_add(1, Ordering::Relaxed) % 2 == 1)?;
        session.clear_reports();
        let queues = [
            Queue::bounded_in(arena, ROOM)?,
            Queue::bounded_in(arena, ROOM)?,
        ];
        for (name, queue) in QUEUES.iter().zip(&queues) {
            arena.publish(name, queue)?;
        }
        Ok(Box::new(Devices { session, queues }))
    }

    fn work(&self, mut worker: Worker) -> Result<()> {
        Arena::install_current(worker.arena.clone())?;
        let mut options = Options::new();
        if worker.rng.u8(..3) > 0 {
            options = options.gate(Gate::Host(PATIENCE));
        }
        if worker.rng.u8(..3) == 0 {
            options = options.path(Path::Descriptor);
        }
        options.install()?;
        let done = match role(worker.part.slot) {
            Role::Maker => make(&mut worker),
            Role::Sender => send_on(&mut worker),
            Role::Reader => read(&mut worker),
        };
        done?;
        // It ends in peace: all of its memory comes back.
        worker.arena.recorder().set_task("waiting for its memory");
        cuda_ipc::collect();
        let until = Instant::now() + PATIENCE;
        let closed = loop {
            let left = until.saturating_duration_since(Instant::now());
            match cuda_ipc::close(left) {
                // Others cannot close what they have open before they end, and wait for somebody in turn.
                Err(error)
                    if *error.kind() == ErrorKind::WriterGone && !is_stuck() && !left.is_zero() => {
                }
                closed => break closed,
            }
        };
        match closed {
            // It goes with this process, and nobody has any of it.
            Err(error) if *error.kind() == ErrorKind::WriterGone && is_stuck() => return Ok(()),
            closed => closed?,
        }
        let left = cuda_ipc::stats();
        if left.live > 0 || left.allocations > 0 {
            return Err(format!("its memory came back, and yet: {left:?}").into());
        }
        Ok(())
    }
}

impl Scene for Devices {
    fn start(&mut self, _slot: usize, _life: u64) -> Result<Vec<u64>> {
        Ok(Vec::new())
    }

    fn wind_down(&mut self, running: &[usize]) -> Result<()> {
        let is_there = |wanted: Role| running.iter().any(|&slot| role(slot) == wanted);
        // Makers stop making by themselves, and stay until everything of theirs was read.
        if !is_there(Role::Maker) {
            self.queues[0].close();
            if !is_there(Role::Sender) {
                self.queues[1].close();
            }
        }
        Ok(())
    }

    fn missed(&self, running: &[usize]) -> Option<usize> {
        missed(running)
    }

    fn check(self: Box<Self>, arena: &Arena, _receipts: &Receipts) -> Result<Vec<String>> {
        let Self { session, queues } = *self;
        let mut wrong: Vec<String> = session
            .faults()
            .into_iter()
            .map(|report| format!("{:?}: {}", report.kind, report.text))
            .collect();
        wrong.truncate(10);
        let live = session.live();
        if live != Live::default() {
            wrong.push(format!(
                "all processes have ended, and the devices have {live:?}"
            ));
        }
        for (name, queue) in QUEUES.iter().zip(queues) {
            arena.unpublish(name)?;
            drop(queue);
        }
        Ok(wrong)
    }
}

/// Whether something went wrong because a process is dead, as it may: its memory or its work is gone.
fn is_of_a_death(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<cuda_ipc::Error>() {
            return matches!(
                error.kind(),
                ErrorKind::OriginGone { .. } | ErrorKind::WriterGone
            );
        }
        cause = error.source();
    }
    false
}

/// Whether all who had the message in their hands live, so that nothing may be wrong with it.
fn is_of_the_living(message: &Message) -> bool {
    let lives = |&pid: &u32| orphans::seen(pid).is_some_and(|seen| !seen.is_zombie);
    message.hands.iter().all(lives)
}

/// The outcome, or none when a death explains that there is none.
fn unless_of_a_death<T, E>(outcome: Result<T, E>) -> Result<Option<T>>
where
    E: std::error::Error + Send + Sync + 'static,
{
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(error) if is_of_a_death(&error) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn pattern(id: u64, len: usize) -> Vec<u64> {
    (0..len).map(|index| element(id, index)).collect()
}

fn make(worker: &mut Worker) -> Result<()> {
    worker.arena.recorder().set_task("making");
    let queue: Queue<Message> = worker.arena.open(QUEUES[0])?;
    let (sender, _) = queue.split();
    let device = Device::new(0)?;
    let streams = [Stream::new(device)?, Stream::new(device)?];
    for number in 0.. {
        if worker.control.is_stopping() {
            break;
        }
        let id = (worker.part.life << 32) | number;
        // Hundreds to an allocation, a few, so that memory is used again soon, and now and then one alone.
        let len = match worker.rng.u8(..40) {
            0 => worker.rng.usize(100_000..300_000),
            1..20 => worker.rng.usize(17_000..32_000),
            _ => worker.rng.usize(2..200),
        };
        let [a, b] = &streams;
        // Copied on the device from what was uploaded: the work goes on while the message is on its way.
        let place = |stream: &Stream, id| -> Result<DeviceTensor<u64>> {
            let uploaded = DeviceTensor::from_slice_on(stream, [len], &pattern(id, len))?;
            Ok(stream.scope(|| uploaded.to_device(device))?)
        };
        let (own, shared) = (place(a, !id)?, place(b, id)?.freeze());
        let view = shared.narrow(0, len / 2, len - len / 2)?;
        let more = (0..worker.rng.usize(..4)).map(|at| -> Result<DeviceTensor<u64>> {
            let uploaded = DeviceTensor::from_slice_on(a, [16], &pattern(more_id(id, at), 16))?;
            Ok(a.scope(|| uploaded.to_device(device))?)
        });
        let hands = vec![std::process::id()];
        let message = Message {
            id,
            own_id: !id,
            hands,
            own,
            shared,
            view,
            more: more.collect::<Result<_>>()?,
        };
        sender
            .put(message)
            .map_err(|failed| failed.into_parts().0)?;
        worker.control.step(worker.part.slot)?;
    }
    Ok(())
}

/// The next message, or none when it was of a dead process; `None` at the end, or when this process is to end. Whoever holds
/// messages lets go of them when it `idles`: their makers may wait for that, and the queue's end for the makers.
fn next(
    worker: &Worker,
    receiver: &Receiver<Message>,
    mut idles: impl FnMut() -> Result<()>,
) -> Result<Option<Option<Message>>> {
    loop {
        match receiver.get_timeout(IDLE) {
            Err(error) if error.is_closed() => return Ok(None),
            Err(error) if matches!(error.kind(), mp_queue::ErrorKind::TimedOut) => {
                idles()?;
                // Whoever ends in peace waits until others have closed what they do not use.
                cuda_ipc::collect();
                worker.control.step(worker.part.slot)?;
                if is_stuck() {
                    // It cannot close what it has open: others wait for its end.
                    return Ok(None);
                }
            }
            outcome => return unless_of_a_death(outcome).map(Some),
        }
    }
}

fn send_on(worker: &mut Worker) -> Result<()> {
    worker.arena.recorder().set_task("sending on");
    let first: Queue<Message> = worker.arena.open(QUEUES[0])?;
    let second: Queue<Message> = worker.arena.open(QUEUES[1])?;
    let (_, receiver) = first.split();
    let (sender, _): (Sender<Message>, _) = second.split();
    let stream = Stream::new(Device::new(0)?)?;
    while let Some(message) = next(worker, &receiver, || Ok(()))? {
        worker.control.step(worker.part.slot)?;
        if is_stuck() {
            break;
        }
        let Some(mut message) = message else { continue };
        message.hands.push(std::process::id());
        let written = match worker.rng.u8(..3) {
            // The same memory with other contents.
            0 => {
                message.own_id ^= 1;
                let elements = pattern(message.own_id, message.own.numel());
                message
                    .own
                    .set_stream(&stream)
                    .and_then(|()| message.own.copy_from_slice(&elements))
            }
            // Memory of this process in its place.
            1 => {
                let elements = pattern(message.own_id, message.own.numel());
                let made = DeviceTensor::from_slice_on(&stream, [elements.len()], &elements);
                made.map(|made| message.own = made)
            }
            _ => Ok(()),
        };
        if unless_of_a_death(written)?.is_some() {
            unless_of_a_death(sender.put(message).map_err(|failed| failed.into_parts().0))?;
        }
    }
    Ok(())
}

fn read(worker: &mut Worker) -> Result<()> {
    worker.arena.recorder().set_task("reading");
    let queue: Queue<Message> = worker.arena.open(QUEUES[1])?;
    let (_, receiver) = queue.split();
    let stream = Stream::new(Device::new(0)?)?;
    let device = stream.device();
    // The latest few stay for a while.
    let mut kept = Vec::new();
    let look_at_kept = |kept: &mut Vec<Message>| kept.drain(..).try_for_each(|one| look(&one));
    while let Some(message) = next(worker, &receiver, || match worker.control.is_stopping() {
        true => look_at_kept(&mut kept),
        false => Ok(()),
    })? {
        worker.control.step(worker.part.slot)?;
        if is_stuck() {
            break;
        }
        let Some(mut message) = message else { continue };
        worker.control.message()?;
        let copied = worker.rng.bool();
        if copied {
            // Copied on the device, and given back before the copy is done.
            let Message {
                id,
                own_id,
                hands,
                own,
                shared,
                view,
                more,
            } = message;
            let copies: Result<_, cuda_ipc::Error> = stream.scope(|| {
                Ok((
                    own.to_device(device)?,
                    shared.to_device(device)?,
                    view.to_device(device)?,
                    more.iter()
                        .map(|one| one.to_device(device))
                        .collect::<Result<_, _>>()?,
                ))
            });
            drop((own, shared, view, more));
            let Some((own, shared, view, more)) = unless_of_a_death(copies)? else {
                continue;
            };
            let (shared, view) = (shared.freeze(), view.freeze());
            message = Message {
                id,
                own_id,
                hands,
                own,
                shared,
                view,
                more,
            };
        }
        // Looking waits for the device; what was copied is looked at when its memory may be in use again.
        if !copied {
            look(&message)?;
        }
        if copied || worker.rng.u8(..4) == 0 {
            kept.push(message);
        }
        if kept.len() > 5 || worker.control.is_stopping() {
            look_at_kept(&mut kept)?;
        }
    }
    Ok(())
}

fn look(message: &Message) -> Result<()> {
    let half = message.shared.numel() / 2;
    let more = message.more.iter().enumerate().map(|(at, one)| {
        let id = more_id(message.id, at);
        (one.to_vec(), id, 0, "a device tensor of a group")
    });
    let looks = [
        (
            message.own.to_vec(),
            message.own_id,
            0,
            "an exclusive device tensor",
        ),
        (
            message.shared.to_vec(),
            message.id,
            0,
            "a shared device tensor",
        ),
        (
            message.view.to_vec(),
            message.id,
            half,
            "a view of a shared device tensor",
        ),
    ];
    for (elements, id, start, what) in looks.into_iter().chain(more) {
        let Some(elements) = unless_of_a_death(elements)? else {
            continue;
        };
        let checked = check(id, start, &elements, what);
        if is_of_the_living(message) {
            checked?;
        }
    }
    Ok(())
}
