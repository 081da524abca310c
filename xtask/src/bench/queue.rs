//! A value that is put into a queue in one process and got from it in the other, and back through a second one.
//!
//! The bytes of a tensor stay where they are: a handle travels, and with it the tensor's ownership.

use mp_queue::{LaneReceiver, LaneSender, PutError, Queue, Receiver, Sender, WaitPolicy, pair_in};
use serde::Serialize;
use serde::de::DeserializeOwned;
use shm_core::{Arena, Tensor};

use super::floor::ROUND_TRIPS;
use super::payload::Size;
use super::ring::ASLEEP_NS;
use super::subject::{Connection, End, Link, Side, Subject};
use super::{arena, clock, payload};
use crate::Result;

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A queue for any number of processes, with one on each side.
    Queue,
    /// A lane for two.
    Pair,
}

#[derive(Copy, Clone, Debug)]
pub(crate) struct Queued {
    pub(crate) kind: Kind,
    /// Whether the receiver sleeps until something comes.
    pub(crate) parked: bool,
    /// No size: two words, as many as a handle has.
    pub(crate) size: Option<Size>,
}

/// What travels beside the stamp.
trait Load: Serialize + DeserializeOwned + 'static {
    fn make(arena: &Arena, size: Option<Size>) -> Result<Self>;
    fn mark(&mut self, number: u64);
    fn check(&self, number: u64) -> Result<()>;
}

impl Load for Tensor<u8> {
    fn make(arena: &Arena, size: Option<Size>) -> Result<Self> {
        let bytes = size.ok_or("a tensor has a size")?.bytes;
        Ok(Tensor::zeros_in(arena, bytes)?)
    }

    fn mark(&mut self, number: u64) {
        payload::mark(self.as_mut_slice(), number);
    }

    fn check(&self, number: u64) -> Result<()> {
        payload::check(self.as_slice(), number)
    }
}

impl Load for u64 {
    fn make(_: &Arena, _: Option<Size>) -> Result<Self> {
        Ok(0)
    }

    fn mark(&mut self, number: u64) {
        *self = number;
    }

    fn check(&self, number: u64) -> Result<()> {
        if *self == number {
            return Ok(());
        }
        Err(format!("{self} arrived where {number} was sent").into())
    }
}

/// A message: when it was put (where that is measured), and what it carries.
type Parcel<L> = (u64, L);

/// As small as a user would make it; only one message is ever in it.
const CAPACITY: usize = 8;

impl Queued {
    fn connect_with<L: Load>(&self) -> Result<Connection> {
        let arena = Arena::builder().create()?;
        let load = L::make(&arena, self.size)?;
        match self.kind {
            Kind::Queue => {
                let (to_b, from_a) = Queue::<Parcel<L>>::bounded_in(&arena, CAPACITY)?.split();
                let (to_a, from_b) = Queue::<Parcel<L>>::bounded_in(&arena, CAPACITY)?.split();
                arena::connect(arena, (to_b, from_b, load), (to_a, from_a))
            }
            Kind::Pair => {
                let (to_b, from_a) = pair_in::<Parcel<L>>(&arena, CAPACITY)?;
                let (to_a, from_b) = pair_in::<Parcel<L>>(&arena, CAPACITY)?;
                arena::connect(arena, (to_b, from_b, load), (to_a, from_a))
            }
        }
    }

    fn open_with<L: Load>(&self, side: Side, link: Link) -> Result<Box<dyn End>> {
        match self.kind {
            Kind::Queue => self.end::<L, (Sender<Parcel<L>>, Receiver<Parcel<L>>)>(side, link),
            Kind::Pair => {
                self.end::<L, (LaneSender<Parcel<L>>, LaneReceiver<Parcel<L>>)>(side, link)
            }
        }
    }

    fn end<L: Load, E: Ends<L>>(&self, side: Side, link: Link) -> Result<Box<dyn End>> {
        let policy = if self.parked {
            WaitPolicy::Park
        } else {
            WaitPolicy::Spin
        };
        let (ends, load) = match side {
            Side::A => {
                let (to, from, load) = arena::open::<(E::To, E::From, L)>(link)?;
                (E::new(to, from, policy), Some(load))
            }
            Side::B => {
                let (to, from) = arena::open::<(E::To, E::From)>(link)?;
                (E::new(to, from, policy), None)
            }
        };
        Ok(Box::new(QueueEnd {
            ends,
            load,
            parked: self.parked,
            number: 0,
        }))
    }
}

impl Subject for Queued {
    fn name(&self) -> String {
        let kind = match self.kind {
            Kind::Queue => "1:1",
            Kind::Pair => "pair",
        };
        let waiting = if self.parked { "parked" } else { "busy" };
        let size = self.size.map_or("handle", |size| size.name);
        format!("{kind} {waiting} {size}")
    }

    fn batch(&self) -> usize {
        100
    }

    fn connect(&self) -> Result<Connection> {
        match self.size {
            Some(_) => self.connect_with::<Tensor<u8>>(),
            None => self.connect_with::<u64>(),
        }
    }

    fn open(&self, side: Side, link: Link) -> Result<Box<dyn End>> {
        match self.size {
            Some(_) => self.open_with::<Tensor<u8>>(side, link),
            None => self.open_with::<u64>(side, link),
        }
    }
}

/// Putting and getting, by either kind.
trait Ends<L>: 'static {
    type To: DeserializeOwned;
    type From: DeserializeOwned;
    fn new(to: Self::To, from: Self::From, policy: WaitPolicy) -> Self;
    fn put(&mut self, parcel: Parcel<L>) -> std::result::Result<(), PutError<Parcel<L>>>;
    fn get(&mut self) -> mp_queue::Result<Parcel<L>>;
}

macro_rules! ends {
    ($to:ident, $from:ident) => {
        impl<L: Load> Ends<L> for ($to<Parcel<L>>, $from<Parcel<L>>) {
            type To = $to<Parcel<L>>;
            type From = $from<Parcel<L>>;

            fn new(to: Self::To, from: Self::From, policy: WaitPolicy) -> Self {
                (to.with_policy(policy), from.with_policy(policy))
            }

            // Handed through, so that a message is not moved by what measures it.
            #[inline(always)]
            fn put(&mut self, parcel: Parcel<L>) -> std::result::Result<(), PutError<Parcel<L>>> {
                self.0.put(parcel)
            }

            #[inline(always)]
            fn get(&mut self) -> mp_queue::Result<Parcel<L>> {
                self.1.get()
            }
        }
    };
}

ends!(Sender, Receiver);
ends!(LaneSender, LaneReceiver);

/// A has the load between two batches; B never has.
struct QueueEnd<L, E> {
    ends: E,
    load: Option<L>,
    parked: bool,
    number: u64,
}

impl<L: Load, E: Ends<L>> QueueEnd<L, E> {
    #[inline(always)]
    fn put(&mut self, parcel: Parcel<L>) -> Result<()> {
        match self.ends.put(parcel) {
            Ok(()) => Ok(()),
            Err(failed) => Err(failed.to_string().into()),
        }
    }

    /// The side that has the load: marks it, sends it round, takes the time, and verifies that it came back as B left it.
    fn send_round(&mut self, mut load: L) -> Result<(L, u64)> {
        load.mark(self.number);
        self.put((0, load))?;
        // The first round trip is B's to verify, and says that it is there.
        let mut parcel = self.ends.get()?;
        parcel.1.check(self.number + 1)?;
        let start = clock::now();
        for _ in 0..ROUND_TRIPS {
            self.put(parcel)?;
            parcel = self.ends.get()?;
        }
        let took = clock::now() - start;
        parcel.1.check(self.number + 1)?;
        Ok((parcel.1, took / (2 * ROUND_TRIPS)))
    }

    fn send_back(&mut self) -> Result<()> {
        let (_, mut load) = self.ends.get()?;
        load.check(self.number)?;
        load.mark(self.number + 1);
        self.put((0, load))?;
        for _ in 0..ROUND_TRIPS {
            let parcel = self.ends.get()?;
            self.put(parcel)?;
        }
        Ok(())
    }

    /// The load to the other side, which sleeps.
    fn wake(&mut self, mut load: L) -> Result<()> {
        load.mark(self.number);
        clock::settle();
        self.put((clock::now(), load))
    }

    /// The load from the other side; says how long it took if this side slept.
    fn sleep(&mut self) -> Result<(L, Option<u64>)> {
        let asked = clock::now();
        let (put, load) = self.ends.get()?;
        let now = clock::now();
        load.check(self.number)?;
        Ok((load, (put > asked + ASLEEP_NS).then(|| now - put)))
    }
}

impl<L: Load, E: Ends<L>> End for QueueEnd<L, E> {
    fn run(&mut self, samples: usize) -> Result<Vec<u64>> {
        let mut taken = Vec::with_capacity(samples);
        for _ in 0..samples {
            self.number += 2;
            match (self.load.take(), self.parked) {
                (Some(load), false) => {
                    let (load, took) = self.send_round(load)?;
                    self.load = Some(load);
                    taken.push(took);
                }
                (None, false) => self.send_back()?,
                (Some(load), true) => {
                    self.wake(load)?;
                    let (load, took) = self.sleep()?;
                    self.load = Some(load);
                    taken.extend(took);
                }
                (None, true) => {
                    let (load, took) = self.sleep()?;
                    taken.extend(took);
                    self.wake(load)?;
                }
            }
        }
        Ok(taken)
    }
}
