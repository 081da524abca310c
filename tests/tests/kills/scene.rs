//! The scene of all kills: two producers and two consumers, each a context of its own, so that a death stops none of
//! the others. They write receipts, and whoever is told of a death goes on.

use std::cell::Cell;
use std::collections::BTreeSet;

use integration_tests::{Pen, Receipts, Writer, allow_leaks};
use mp_queue::ErrorKind;
use pipeline::{Consumer, Producer, TensorSpec, Topology, ring};
use serde::{Deserialize, Serialize};
use tensormp::prelude::*;
use tensormp::{mp_queue, pipeline};

/// What the messages go through.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Way {
    Queue,
    Ring,
}

/// One of the four.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Role {
    Producer(usize),
    Consumer(usize),
}

#[derive(Debug, Serialize, Deserialize)]
struct Message {
    producer: u64,
    number: u64,
    own: Tensor<u64>,
    shared: SharedTensor<u64>,
    /// Makes every other message too long for a cell.
    ballast: String,
}

#[derive(Serialize, Deserialize)]
enum To {
    Queue(Sender<Message>),
    Ring(Producer),
}

#[derive(Serialize, Deserialize)]
enum From {
    Queue(Receiver<Message>),
    Ring(Consumer),
}

/// Why a message did not come or go.
enum Not {
    /// A peer has failed, says this text.
    Now(String),
    Ever,
}

fn queue_says(error: &mp_queue::Error) -> tensormp::Result<Not> {
    match error.kind() {
        ErrorKind::PeerFailed(_) => Ok(Not::Now(error.to_string())),
        ErrorKind::Closed | ErrorKind::Empty => Ok(Not::Ever),
        _ => Err(error.to_string().into()),
    }
}

fn ring_says(error: &pipeline::Error) -> tensormp::Result<Not> {
    match error.kind() {
        pipeline::ErrorKind::Queue(ErrorKind::PeerFailed(_)) => Ok(Not::Now(error.to_string())),
        pipeline::ErrorKind::Queue(ErrorKind::Closed | ErrorKind::Empty) => Ok(Not::Ever),
        _ => Err(error.to_string().into()),
    }
}

impl Way {
    fn make(self) -> tensormp::Result<(To, From)> {
        Ok(match self {
            Way::Queue => {
                let (to, from) = Queue::bounded(4)?.split();
                (To::Queue(to), From::Queue(from))
            }
            Way::Ring => {
                let specs = [TensorSpec::of::<u64>(8)];
                let (to, from) = ring(4, &specs, Topology::Replicas)?;
                (To::Ring(to), From::Ring(from))
            }
        })
    }
}

impl To {
    fn another(&self) -> tensormp::Result<To> {
        Ok(match self {
            To::Queue(sender) => To::Queue(sender.clone()),
            To::Ring(producer) => To::Ring(producer.try_clone()?),
        })
    }

    fn close(&self) {
        match self {
            To::Queue(sender) => sender.close(),
            To::Ring(producer) => producer.close(),
        }
    }

    fn send(&mut self, producer: u64, number: u64) -> tensormp::Result<Option<Not>> {
        match self {
            To::Queue(sender) => {
                let message = Message {
                    producer,
                    number,
                    own: Tensor::full(3, number)?,
                    shared: Tensor::full(2, number)?.freeze(),
                    ballast: "long ".repeat(20 * (number as usize % 2)),
                };
                let Err(error) = sender.put(message) else {
                    return Ok(None);
                };
                let (error, message) = error.into_parts();
                check(&message.ok_or("the value did not come back")?);
                queue_says(&error).map(Some)
            }
            To::Ring(ring) => {
                let mut send = || {
                    let mut slot = ring.loan()?;
                    slot.tensor_mut::<u64>(0)?.fill(number);
                    slot.set_sequence(number);
                    slot.set_tag(producer);
                    ring.publish(slot)
                };
                send().err().map(|error| ring_says(&error)).transpose()
            }
        }
    }
}

fn check(message: &Message) -> (u64, u64) {
    assert_eq!(message.own.as_slice(), [message.number; 3]);
    assert_eq!(message.shared.as_slice(), [message.number; 2]);
    (message.producer, message.number)
}

impl From {
    fn another(&self) -> tensormp::Result<From> {
        Ok(match self {
            From::Queue(receiver) => From::Queue(receiver.clone()),
            From::Ring(consumer) => From::Ring(consumer.try_clone()?),
        })
    }

    /// The next message, which `seen` is told of while it is held.
    fn take(&mut self, wait: bool, seen: impl FnOnce(u64, u64)) -> tensormp::Result<Option<Not>> {
        match self {
            From::Queue(receiver) => {
                let got = if wait {
                    receiver.get()
                } else {
                    receiver.try_get()
                };
                match got {
                    Ok(message) => {
                        let (producer, number) = check(&message);
                        seen(producer, number);
                        Ok(None)
                    }
                    Err(error) => queue_says(&error).map(Some),
                }
            }
            From::Ring(ring) => {
                let got = if wait {
                    ring.borrow()
                } else {
                    ring.try_borrow()
                };
                match got {
                    Ok(Some(slot)) => {
                        assert_eq!(slot.tensor::<u64>(0)?, [slot.sequence(); 8]);
                        seen(slot.tag(), slot.sequence());
                        Ok(None)
                    }
                    Ok(None) => Ok(Some(Not::Ever)),
                    Err(error) => ring_says(&error).map(Some),
                }
            }
        }
    }
}

/// What each of the four is told.
#[derive(Clone, Serialize, Deserialize)]
struct Part {
    number: usize,
    count: u64,
    /// The failpoint at which it is to die, if it is to.
    armed: Option<String>,
    receipts: Writer,
    /// Set once no producer is left.
    done: Event,
}

impl Part {
    fn begin(&self) -> Pen {
        let pen = self.receipts.open();
        arm(self.armed.as_deref());
        pen
    }
}

/// Arms a failpoint in this process, where they are compiled in.
pub(crate) fn arm(text: Option<&str>) {
    #[cfg(debug_assertions)]
    tensormp::shm_core::failpoint::arm(text);
    #[cfg(not(debug_assertions))]
    assert!(text.is_none(), "this build has no failpoints");
}

/// What a survivor was told of its peers.
type Told = BTreeSet<String>;

fn produce(_rank: usize, (part, mut to): (Part, To)) -> tensormp::Result<Told> {
    let mut pen = part.begin();
    let mut told = Told::new();
    for number in 0..part.count {
        while let Some(not) = to.send(part.number as u64, number)? {
            match not {
                Not::Now(text) => told.insert(text),
                Not::Ever => return Err("the consumers are gone, but one should be left".into()),
            };
            std::thread::yield_now();
        }
        pen.sent(part.number as u64, number);
    }
    Ok(told)
}

fn consume(_rank: usize, (part, mut from): (Part, From)) -> tensormp::Result<Told> {
    let mut pen = part.begin();
    let mut told = Told::new();
    loop {
        // Before the look: nothing can come after it then.
        let done = part.done.is_set();
        match from.take(true, |producer, number| {
            pen.taken(producer, number, part.number as u64)
        })? {
            None => {}
            Some(Not::Ever) => return Ok(told),
            Some(Not::Now(text)) => {
                told.insert(text);
                if done {
                    return Ok(told);
                }
                std::thread::yield_now();
            }
        }
    }
}

thread_local! {
    /// Kills so far in this test: each may leave one count too high.
    static KILLS: Cell<u64> = const { Cell::new(0) };
}

/// Compares the counts in the arena with their holders. `killed` of this round have left what they left.
pub(crate) fn audit(killed: u64) {
    let kills = KILLS.get() + killed;
    KILLS.set(kills);
    allow_leaks(kills as usize);
    let arena = Arena::current().unwrap();
    arena.bury_the_dead();
    let audit = arena.audit();
    assert!(audit.missing.is_empty(), "counts too low: {audit:?}");
    let leaked: u64 = audit
        .leaked
        .iter()
        .map(|line| line.count - line.holders)
        .sum();
    assert!(
        leaked <= kills,
        "{leaked} counts too high after {kills} kills: {audit:?}"
    );
}

/// Whether the process was killed; it must have done its part otherwise.
fn settle(context: &mut SpawnContext<Told>, victims: &[Role], role: Role, pids: &[u32]) -> bool {
    match context.join() {
        Ok(told) => {
            for text in &told[0] {
                assert!(
                    pids.iter().any(|pid| text.contains(&format!("pid {pid}"))),
                    "told of a stranger: {text}"
                );
                assert!(
                    text.contains("SIGKILL") || text.contains("died while"),
                    "{text}"
                );
            }
            false
        }
        Err(error) => {
            assert!(victims.contains(&role), "{role:?} failed: {error}");
            let text = error.to_string();
            assert!(
                text.contains("process \"") && text.contains("SIGKILL"),
                "{text}"
            );
            true
        }
    }
}

/// Steps at which a consumer has no message of its own: the next one is still in its cell, the last one has its receipt.
const HOLDS_NONE: [&str; 3] = ["get.taken", "get.recorded", "slot.released"];

/// Who is to die where: at a failpoint, or (without one) by the hand of `meanwhile`.
pub(crate) type Victims<'a> = &'a [(Role, Option<String>)];

/// Plays the scene with `count` messages of each producer. `meanwhile` gets the pids of producers and consumers. Gives
/// how many were killed.
pub(crate) fn play(
    way: Way,
    count: u64,
    victims: Victims<'_>,
    meanwhile: impl FnOnce(&[u32], &Receipts),
) -> usize {
    let receipts = Receipts::new();
    let done = Event::new().unwrap();
    let (to, mut from) = way.make().unwrap();
    let part = |role: Role| {
        let victim = victims.iter().find(|(victim, _)| *victim == role);
        let (Role::Producer(number) | Role::Consumer(number)) = role;
        Part {
            number,
            count,
            armed: victim.and_then(|(_, armed)| armed.clone()),
            receipts: receipts.writer(),
            done: done.clone(),
        }
    };
    let mut consumers = [0, 1].map(|number| {
        let part = part(Role::Consumer(number));
        spawn(consume, (part, from.another().unwrap()), 1).unwrap()
    });
    let mut producers = [0, 1].map(|number| {
        let part = part(Role::Producer(number));
        spawn(produce, (part, to.another().unwrap()), 1).unwrap()
    });
    let contexts = producers.iter().chain(&consumers);
    let pids: Vec<u32> = contexts.flat_map(SpawnContext::pids).collect();
    meanwhile(&pids, &receipts);

    let roles: Vec<Role> = victims.iter().map(|(role, _)| *role).collect();
    let mut killed = Vec::new();
    for (number, context) in producers.iter_mut().enumerate() {
        let role = Role::Producer(number);
        killed.extend(settle(context, &roles, role, &pids).then_some(role));
    }
    done.set();
    to.close();
    for (number, context) in consumers.iter_mut().enumerate() {
        let role = Role::Consumer(number);
        killed.extend(settle(context, &roles, role, &pids).then_some(role));
    }
    drop((producers, consumers));
    Arena::current().unwrap().bury_the_dead();

    // What nobody took is still here.
    let mut pen = receipts.writer().open();
    while from
        .take(false, |producer, number| pen.taken(producer, number, 9))
        .unwrap()
        .is_none()
    {}
    if let To::Ring(ring) = &to {
        assert_eq!(ring.in_use(), 0, "slots did not come back");
    }
    let account = receipts.read();
    let taken = account.taken_once();
    let mut known = account.sent.clone();
    for producer in 0..2 {
        let sent = known.iter().filter(|message| message.0 == producer).count() as u64;
        if killed.contains(&Role::Producer(producer as usize)) {
            // It may have died between the put and its receipt.
            known.insert((producer, sent));
        } else {
            assert_eq!(sent, count, "producer {producer} gave up");
        }
    }
    let strange: Vec<_> = taken.difference(&known).collect();
    assert!(strange.is_empty(), "taken, but never sent: {strange:?}");
    let lost = account.sent.difference(&taken).count();
    let dead_consumers = killed
        .iter()
        .filter(|role| matches!(role, Role::Consumer(_)));
    let may_lose = dead_consumers.clone().filter(|role| {
        let victim = victims.iter().find(|(victim, _)| victim == *role);
        !victim
            .and_then(|(_, armed)| armed.as_deref())
            .is_some_and(|armed| HOLDS_NONE.iter().any(|label| armed.starts_with(label)))
    });
    let may_lose = may_lose.count();
    assert!(
        lost <= may_lose,
        "{lost} messages lost, killed: {killed:?} at {victims:?}"
    );
    if dead_consumers.count() == 0 {
        assert!(account.in_order(), "{account:?}");
    }
    drop((to, from, done));
    audit(killed.len() as u64);
    killed.len()
}
