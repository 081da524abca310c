//! The suite `queue`: four producers and four consumers on one queue, and two lanes with a process at each end.
//!
//! Everyone writes receipts, and at the end each message is accounted for (`account`). In a third of the rounds only
//! producers are killed, in a third only consumers: what a death may cost the other side is nothing then.

use std::collections::{HashMap, VecDeque};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use mp_queue::{ErrorKind, LaneReceiver, LaneSender, Queue, Receiver, Sender, pair_in};
use serde::{Deserialize, Serialize};
use shm_core::letterbox::Letterbox;
use shm_core::{Arena, SharedTensor, Tensor};

use super::account::{self, Life};
use super::crew::End;
use super::pattern::{check, fill};
use super::receipts::{Receipt, Receipts};
use super::suite::{Scene, Suite, Worker};
use crate::Result;

const PRODUCERS: usize = 4;
const CONSUMERS: usize = 4;
const LANES: usize = 2;
const CREW: usize = PRODUCERS + CONSUMERS + 2 * LANES;
const ROOM: usize = 8;
const QUEUE: &str = "queue";

/// Steps at which a taker has no message of its own: the next one is still in its cell, the last one has its receipt.
const HOLDS_NONE: [&str; 3] = ["get.taken", "get.recorded", "lane.get.recorded"];

#[derive(Debug, Serialize, Deserialize)]
struct Message {
    sender: u64,
    number: u64,
    own: Tensor<u64>,
    shared: SharedTensor<u64>,
    /// Makes every other message too long for a cell.
    ballast: String,
}

/// One end of a lane, as it is given to a process.
#[derive(Debug, Serialize, Deserialize)]
enum LaneEnd {
    To(LaneSender<Message>),
    From(LaneReceiver<Message>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Producer,
    Consumer,
    LaneSender(usize),
    LaneReceiver(usize),
}

fn role(slot: usize) -> Role {
    match slot {
        ..PRODUCERS => Role::Producer,
        _ if slot < PRODUCERS + CONSUMERS => Role::Consumer,
        _ => {
            let at = slot - PRODUCERS - CONSUMERS;
            match at % 2 {
                0 => Role::LaneSender(at / 2),
                _ => Role::LaneReceiver(at / 2),
            }
        }
    }
}

impl Role {
    fn sends(self) -> bool {
        matches!(self, Role::Producer | Role::LaneSender(_))
    }
}

/// The suite.
#[derive(Debug)]
pub(crate) struct Queues;

/// Whom a round kills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victims {
    All,
    Senders,
    Takers,
}

struct Hall {
    arena: Arena,
    queue: Queue<Message>,
    victims: Victims,
    /// Ends whose other end somebody has already, by lane: those to send with, those to receive with.
    waiting: [[VecDeque<LaneEnd>; 2]; LANES],
    /// In which an end travels to the process of that life.
    letters: HashMap<u64, Letterbox>,
    lives: Vec<Life>,
    is_ending: bool,
}

impl Suite for Queues {
    fn name(&self) -> &'static str {
        "queue"
    }

    fn crew(&self) -> usize {
        CREW
    }

    fn labels(&self) -> &'static [&'static str] {
        &["get.", "put.", "lane.", "line.", "block.", "reap."]
    }

    fn open(&self, arena: &Arena, mut rng: fastrand::Rng) -> Result<Box<dyn Scene>> {
        let queue = Queue::bounded_in(arena, ROOM)?;
        arena.publish(QUEUE, &queue)?;
        let victims = [Victims::All, Victims::Senders, Victims::Takers][rng.usize(..3)];
        Ok(Box::new(Hall {
            arena: arena.clone(),
            queue,
            victims,
            waiting: Default::default(),
            letters: HashMap::new(),
            lives: Vec::new(),
            is_ending: false,
        }))
    }

    fn work(&self, worker: Worker) -> Result<()> {
        match role(worker.part.slot) {
            Role::Producer => {
                let queue: Queue<Message> = worker.arena.open(QUEUE)?;
                let (sender, _) = queue.split();
                produce(&worker, &sender)
            }
            Role::Consumer => {
                let queue: Queue<Message> = worker.arena.open(QUEUE)?;
                let (_, receiver) = queue.split();
                consume(&worker, &receiver)
            }
            Role::LaneSender(_) | Role::LaneReceiver(_) => at_lane(&worker),
        }
    }
}

impl Scene for Hall {
    fn spares(&self, slot: usize) -> bool {
        match self.victims {
            Victims::All => false,
            Victims::Senders => !role(slot).sends(),
            Victims::Takers => role(slot).sends(),
        }
    }

    fn start(&mut self, slot: usize, life: u64) -> Result<Vec<u64>> {
        let (lane, side) = match role(slot) {
            Role::Producer | Role::Consumer => return Ok(Vec::new()),
            Role::LaneSender(lane) => (lane, 0),
            Role::LaneReceiver(lane) => (lane, 1),
        };
        let end = match self.waiting[lane][side].pop_front() {
            Some(end) => end,
            None => {
                let (to, from) = pair_in(&self.arena, ROOM)?;
                let (mine, other) = match side {
                    0 => (LaneEnd::To(to), LaneEnd::From(from)),
                    _ => (LaneEnd::From(from), LaneEnd::To(to)),
                };
                self.waiting[lane][1 - side].push_back(other);
                mine
            }
        };
        let letterbox = Letterbox::create(&self.arena, 1)?;
        letterbox.send(end).map_err(|failed| failed.error)?;
        let handle = letterbox.handle().to_vec();
        self.letters.insert(life, letterbox);
        Ok(handle)
    }

    fn ended(&mut self, slot: usize, life: u64, end: &End) {
        self.letters.remove(&life);
        let role = role(slot);
        self.lives.push(Life {
            life,
            killed: matches!(end, End::Killed | End::AtLabel(_)),
            held_none: matches!(end, End::AtLabel(label) if HOLDS_NONE.contains(label)),
            sends: role.sends(),
            in_lane: !matches!(role, Role::Producer | Role::Consumer),
        });
    }

    fn wind_down(&mut self, running: &[usize]) -> Result<()> {
        if !self.is_ending {
            self.is_ending = true;
            self.waiting = Default::default();
        }
        // The producers stop by themselves; the consumers take what is left.
        if !running.iter().any(|&slot| role(slot) == Role::Producer) {
            self.queue.close();
        }
        Ok(())
    }

    fn check(mut self: Box<Self>, arena: &Arena, receipts: &Receipts) -> Result<Vec<String>> {
        self.waiting = Default::default();
        self.queue.close();
        let mut all = receipts.read()?;
        // What a consumer left when it died last.
        loop {
            match self.queue.try_get() {
                Ok(message) => {
                    let sender = message.sender;
                    all.push(taken(&message, account::NOBODY)?);
                    debug_assert!(sender > 0);
                }
                Err(error) if error.is_closed() => break,
                Err(error) => return Err(error.into()),
            }
        }
        arena.unpublish(QUEUE)?;
        Ok(account::settle(&self.lives, &all))
    }
}

fn message(worker: &Worker, number: u64) -> Result<Message> {
    let sender = worker.part.life;
    let id = (sender << 32) | number;
    let mut own = Tensor::uninit_in(&worker.arena, 3 + number as usize % 40)?;
    fill(id, own.as_mut_slice());
    let mut shared = Tensor::uninit_in(&worker.arena, 20)?;
    fill(!id, shared.as_mut_slice());
    Ok(Message {
        sender,
        number,
        own,
        shared: shared.freeze(),
        ballast: "long ".repeat(20 * (number as usize % 2)),
    })
}

/// Checks a message, and what to note of it.
fn taken(message: &Message, by: u64) -> Result<Receipt> {
    let id = (message.sender << 32) | message.number;
    check(id, 0, message.own.as_slice(), "a tensor")?;
    check(!id, 0, message.shared.as_slice(), "a shared tensor")?;
    Ok(Receipt {
        taken: true,
        sender: message.sender,
        number: message.number,
        by,
    })
}

fn sent(worker: &Worker, number: u64) -> Result<()> {
    worker.control.step(worker.part.slot)?;
    worker.pen.write(Receipt {
        taken: false,
        sender: worker.part.life,
        number,
        by: worker.part.life,
    })
}

fn received(worker: &Worker, message: &Message) -> Result<()> {
    worker.control.step(worker.part.slot)?;
    worker.control.message()?;
    worker.pen.write(taken(message, worker.part.life)?)
}

/// Half of the processes wait as threads, half as futures.
fn by_future(worker: &Worker) -> bool {
    worker.part.life % 2 == 1
}

/// Unparks the thread that waits for a future.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a future that waits for nothing but queues.
fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

fn produce(worker: &Worker, sender: &Sender<Message>) -> Result<()> {
    worker.arena.recorder().set_task("producing");
    for number in 0.. {
        if worker.control.is_stopping() {
            break;
        }
        let message = message(worker, number)?;
        match by_future(worker) {
            true => block_on(sender.put_async(message))?,
            false => sender.put(message)?,
        }
        sent(worker, number)?;
    }
    Ok(())
}

fn consume(worker: &Worker, receiver: &Receiver<Message>) -> Result<()> {
    worker.arena.recorder().set_task("consuming");
    loop {
        let got = match by_future(worker) {
            true => block_on(receiver.get_async()),
            false => receiver.get(),
        };
        match got {
            Ok(message) => received(worker, &message)?,
            Err(error) if error.is_closed() => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Whether the other end of the lane is gone, which is in order.
fn is_over(error: &mp_queue::Error) -> bool {
    error.is_closed() || matches!(error.kind(), ErrorKind::PeerFailed(_))
}

fn at_lane(worker: &Worker) -> Result<()> {
    let [a, b] = *worker.part.words else {
        return Err("a process at a lane needs the handle of a letterbox".into());
    };
    let letterbox = Letterbox::open(&worker.arena, [a, b])?;
    let end = letterbox.try_recv()?.ok_or("the letterbox is empty")?;
    match end {
        LaneEnd::To(mut to) => {
            worker.arena.recorder().set_task("sending");
            for number in 0.. {
                if worker.control.is_stopping() {
                    break;
                }
                let message = message(worker, number)?;
                let put = match by_future(worker) {
                    true => block_on(to.put_async(message)),
                    false => to.put(message),
                };
                match put {
                    Ok(()) => sent(worker, number)?,
                    Err(failed) if is_over(failed.error()) => break,
                    Err(failed) => return Err(failed.into_parts().0.into()),
                }
            }
        }
        LaneEnd::From(mut from) => {
            worker.arena.recorder().set_task("receiving");
            loop {
                let got = match by_future(worker) {
                    true => block_on(from.get_async()),
                    false => from.get(),
                };
                match got {
                    Ok(message) => received(worker, &message)?,
                    Err(error) if is_over(&error) => break,
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }
    Ok(())
}
