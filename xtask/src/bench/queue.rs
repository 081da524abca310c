//! A tensor that is put into a queue in one process and got from it in the other, and back through a second one.
//!
//! The bytes stay where they are: a handle travels, and with it the tensor's ownership.

use mp_queue::{LaneReceiver, LaneSender, Queue, Receiver, Sender, WaitPolicy, pair_in};
use shm_core::{Arena, Tensor};

use super::floor::ROUND_TRIPS;
use super::payload::Size;
use super::subject::{Connection, End, Link, Side, Subject};
use super::{arena, clock, payload};
use crate::Result;

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A queue for any number of processes.
    Queue,
    /// A lane for two.
    Pair,
}

#[derive(Copy, Clone, Debug)]
pub(crate) struct Queued {
    pub(crate) kind: Kind,
    pub(crate) size: Size,
}

type Load = Tensor<u8>;

/// As small as a user would make it; only one message is ever in it.
const CAPACITY: usize = 8;

impl Subject for Queued {
    fn name(&self) -> String {
        let kind = match self.kind {
            Kind::Queue => "queue",
            Kind::Pair => "pair",
        };
        format!("{kind} busy {}", self.size.name)
    }

    fn batch(&self) -> usize {
        100
    }

    fn connect(&self) -> Result<Connection> {
        let arena = Arena::builder().create()?;
        let tensor = Load::zeros_in(&arena, self.size.bytes)?;
        match self.kind {
            Kind::Queue => {
                let (to_b, from_a) = Queue::<Load>::bounded_in(&arena, CAPACITY)?.split();
                let (to_a, from_b) = Queue::<Load>::bounded_in(&arena, CAPACITY)?.split();
                arena::connect(arena, (to_b, from_b, tensor), (to_a, from_a))
            }
            Kind::Pair => {
                let (to_b, from_a) = pair_in::<Load>(&arena, CAPACITY)?;
                let (to_a, from_b) = pair_in::<Load>(&arena, CAPACITY)?;
                arena::connect(arena, (to_b, from_b, tensor), (to_a, from_a))
            }
        }
    }

    fn open(&self, side: Side, link: Link) -> Result<Box<dyn End>> {
        let spin = WaitPolicy::Spin;
        Ok(match (self.kind, side) {
            (Kind::Queue, Side::A) => {
                let (to, from, tensor) = arena::open::<(Sender<Load>, Receiver<Load>, Load)>(link)?;
                let ends = (to.with_policy(spin), from.with_policy(spin));
                Box::new(QueueEnd::new(ends, Some(tensor)))
            }
            (Kind::Queue, Side::B) => {
                let (to, from) = arena::open::<(Sender<Load>, Receiver<Load>)>(link)?;
                let ends = (to.with_policy(spin), from.with_policy(spin));
                Box::new(QueueEnd::new(ends, None))
            }
            (Kind::Pair, Side::A) => {
                let (to, from, tensor) =
                    arena::open::<(LaneSender<Load>, LaneReceiver<Load>, Load)>(link)?;
                let ends = (to.with_policy(spin), from.with_policy(spin));
                Box::new(QueueEnd::new(ends, Some(tensor)))
            }
            (Kind::Pair, Side::B) => {
                let (to, from) = arena::open::<(LaneSender<Load>, LaneReceiver<Load>)>(link)?;
                let ends = (to.with_policy(spin), from.with_policy(spin));
                Box::new(QueueEnd::new(ends, None))
            }
        })
    }
}

/// Putting and getting, by either kind.
trait Ends {
    fn put(&mut self, tensor: Load) -> Result<()>;
    fn get(&mut self) -> Result<Load>;
}

impl Ends for (Sender<Load>, Receiver<Load>) {
    fn put(&mut self, tensor: Load) -> Result<()> {
        Ok(self.0.put(tensor).map_err(|failed| failed.to_string())?)
    }

    fn get(&mut self) -> Result<Load> {
        Ok(self.1.get()?)
    }
}

impl Ends for (LaneSender<Load>, LaneReceiver<Load>) {
    fn put(&mut self, tensor: Load) -> Result<()> {
        Ok(self.0.put(tensor).map_err(|failed| failed.to_string())?)
    }

    fn get(&mut self) -> Result<Load> {
        Ok(self.1.get()?)
    }
}

/// A has the tensor between two batches; B never has.
struct QueueEnd<E> {
    ends: E,
    tensor: Option<Load>,
    number: u64,
}

impl<E: Ends> QueueEnd<E> {
    fn new(ends: E, tensor: Option<Load>) -> Self {
        Self {
            ends,
            tensor,
            number: 0,
        }
    }

    /// The side that has the tensor: marks it, sends it round, takes the time, and verifies that it came back as B left it.
    fn send_round(&mut self, mut tensor: Load) -> Result<(Load, u64)> {
        payload::mark(tensor.as_mut_slice(), self.number);
        self.ends.put(tensor)?;
        // The first round trip is B's to verify, and says that it is there.
        tensor = self.ends.get()?;
        payload::check(tensor.as_slice(), self.number + 1)?;
        let start = clock::now();
        for _ in 0..ROUND_TRIPS {
            self.ends.put(tensor)?;
            tensor = self.ends.get()?;
        }
        let took = clock::now() - start;
        payload::check(tensor.as_slice(), self.number + 1)?;
        Ok((tensor, took / (2 * ROUND_TRIPS)))
    }

    fn send_back(&mut self) -> Result<()> {
        let mut tensor = self.ends.get()?;
        payload::check(tensor.as_slice(), self.number)?;
        payload::mark(tensor.as_mut_slice(), self.number + 1);
        self.ends.put(tensor)?;
        for _ in 0..ROUND_TRIPS {
            let tensor = self.ends.get()?;
            self.ends.put(tensor)?;
        }
        Ok(())
    }
}

impl<E: Ends> End for QueueEnd<E> {
    fn run(&mut self, samples: usize) -> Result<Vec<u64>> {
        let mut taken = Vec::with_capacity(samples);
        for _ in 0..samples {
            self.number += 2;
            match self.tensor.take() {
                Some(tensor) => {
                    let (tensor, took) = self.send_round(tensor)?;
                    self.tensor = Some(tensor);
                    taken.push(took);
                }
                None => self.send_back()?,
            }
        }
        Ok(taken)
    }
}
