//! Slots of a ring: published in one process, borrowed in the other.
//!
//! Two rings, one for each direction. What is measured is the hand-over alone: slots are loaned and written before, and
//! verified and given back after, as in a program whose processes work between two hand-overs. *cycle* measures all of it.

use pipeline::{Borrowed, Consumer, Producer, Slot, TensorSpec, Topology, WaitPolicy, ring_in};
use shm_core::Arena;

use super::payload::Size;
use super::subject::{Connection, End, Link, Side, Subject};
use super::{arena, clock, payload};
use crate::Result;

/// Slots of each ring.
const SLOTS: u32 = 16;
/// Round trips in a sample: all slots but one, whose round trip comes before the clock is read and says that both are there.
const ROUND_TRIPS: u64 = SLOTS as u64 - 1;
/// Round trips in a sample of *cycle*, as of the floor.
const CYCLES: u64 = super::floor::ROUND_TRIPS;
/// The other side is gone.
const ENDED: &str = "the ring ended in the middle of a batch";
/// A receiver that asked that long before the hand-over sleeps when it comes.
pub(crate) const ASLEEP_NS: u64 = 20_000;

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// Both spin.
    Busy,
    /// Both sleep until they are woken.
    Parked,
    /// Both spin, and loan, write, verify and give back are part of the time.
    Cycle,
}

#[derive(Copy, Clone, Debug)]
pub(crate) struct Ring {
    pub(crate) topology: Topology,
    pub(crate) waiting: Waiting,
    pub(crate) size: Size,
}

impl Subject for Ring {
    fn name(&self) -> String {
        let cells = match self.topology {
            Topology::OneToOne => "",
            Topology::Replicas => "cells ",
        };
        let waiting = match self.waiting {
            Waiting::Busy => "busy",
            Waiting::Parked => "parked",
            Waiting::Cycle => "cycle busy",
        };
        format!("ring {cells}{waiting} {}", self.size.name)
    }

    fn batch(&self) -> usize {
        match self.waiting {
            Waiting::Busy => 400,
            Waiting::Parked => 100,
            Waiting::Cycle => 100,
        }
    }

    fn connect(&self) -> Result<Connection> {
        let arena = Arena::builder().create()?;
        let tensors = [TensorSpec::of::<u8>([self.size.bytes])];
        let (to_b, from_a) = ring_in(&arena, SLOTS, &tensors, self.topology)?;
        let (to_a, from_b) = ring_in(&arena, SLOTS, &tensors, self.topology)?;
        arena::connect(arena, (to_b, from_b), (to_a, from_a))
    }

    fn open(&self, side: Side, link: Link) -> Result<Box<dyn End>> {
        let (producer, consumer) = arena::open::<(Producer, Consumer)>(link)?;
        let policy = match self.waiting {
            Waiting::Busy | Waiting::Cycle => WaitPolicy::Spin,
            Waiting::Parked => WaitPolicy::Park,
        };
        let (producer, consumer) = (producer.with_policy(policy), consumer.with_policy(policy));
        producer.touch();
        consumer.touch();
        Ok(Box::new(RingEnd {
            producer,
            consumer,
            side,
            waiting: self.waiting,
            sent: 0,
            received: 0,
        }))
    }
}

struct RingEnd {
    producer: Producer,
    consumer: Consumer,
    side: Side,
    waiting: Waiting,
    /// Numbers of the last payload in each direction.
    sent: u64,
    received: u64,
}

impl RingEnd {
    /// A slot that holds the next payload.
    fn written(&mut self) -> Result<Slot> {
        let mut slot = self.producer.loan()?;
        self.sent += 1;
        slot.set_sequence(self.sent);
        payload::mark(slot.tensor_mut(0)?, self.sent);
        Ok(slot)
    }

    fn borrow(&mut self) -> Result<Borrowed> {
        Ok(self.consumer.borrow()?.ok_or(ENDED)?)
    }

    fn verify(&mut self, borrowed: &Borrowed) -> Result<()> {
        self.received += 1;
        if borrowed.sequence() != self.received {
            return Err(format!(
                "slot {} arrived where {} was due",
                borrowed.sequence(),
                self.received
            )
            .into());
        }
        payload::check(borrowed.tensor(0)?, self.received)
    }

    /// Round trips of slots that were written before; all are verified after.
    fn hand_over(&mut self) -> Result<Option<u64>> {
        let mut slots = Vec::with_capacity(SLOTS as usize);
        for _ in 0..SLOTS {
            slots.push(self.written()?);
        }
        let mut borrowed = Vec::with_capacity(SLOTS as usize);
        let mut start = 0;
        for (trip, slot) in slots.into_iter().enumerate() {
            if trip == 1 {
                start = clock::now();
            }
            if self.side == Side::A {
                self.producer.publish(slot)?;
                borrowed.push(self.consumer.borrow()?);
            } else {
                let next = self.consumer.borrow()?;
                self.producer.publish(slot)?;
                borrowed.push(next);
            }
        }
        let took = clock::now() - start;
        for slot in borrowed {
            self.verify(&slot.ok_or(ENDED)?)?;
        }
        Ok((self.side == Side::A).then_some(took / (2 * ROUND_TRIPS)))
    }

    /// Round trips with all that belongs to them.
    fn cycle(&mut self) -> Result<Option<u64>> {
        let start = clock::now();
        for _ in 0..CYCLES {
            if self.side == Side::A {
                let slot = self.written()?;
                self.producer.publish(slot)?;
            }
            let borrowed = self.borrow()?;
            self.verify(&borrowed)?;
            drop(borrowed);
            if self.side == Side::B {
                let slot = self.written()?;
                self.producer.publish(slot)?;
            }
        }
        let took = clock::now() - start;
        Ok((self.side == Side::A).then_some(took / (2 * CYCLES)))
    }

    /// One slot to the other side, which sleeps.
    fn wake(&mut self) -> Result<()> {
        let mut slot = self.written()?;
        clock::settle();
        slot.set_tag(clock::now());
        Ok(self.producer.publish(slot)?)
    }

    /// One slot from the other side; says how long it took if this side slept.
    fn sleep(&mut self) -> Result<Option<u64>> {
        let asked = clock::now();
        let borrowed = self.borrow()?;
        let now = clock::now();
        self.verify(&borrowed)?;
        let published = borrowed.tag();
        Ok((published > asked + ASLEEP_NS).then(|| now - published))
    }
}

impl End for RingEnd {
    fn run(&mut self, samples: usize) -> Result<Vec<u64>> {
        let mut taken = Vec::with_capacity(samples);
        for _ in 0..samples {
            match self.waiting {
                Waiting::Busy => taken.extend(self.hand_over()?),
                Waiting::Cycle => taken.extend(self.cycle()?),
                Waiting::Parked => {
                    if self.side == Side::A {
                        self.wake()?;
                    }
                    taken.extend(self.sleep()?);
                    if self.side == Side::B {
                        self.wake()?;
                    }
                }
            }
        }
        Ok(taken)
    }
}
