//! A ring: slots made once, that travel from producers to consumers by their index alone.
//!
//! Slots are free, loaned, on their way, or borrowed; a counted line per slot says so, and the leases of
//! [`shm_core`] say who has it, so a dead process's slots come back. Any free slot is loaned, none is waited for in
//! turn. What the receiver needs first (slot, number, valid extents, time) lies in the one cache line that is handed
//! over, so a hand-off costs the same for a kilobyte and a gigabyte.

use std::sync::Arc;
use std::time::Duration;

use mp_queue::channel::{CONSUMERS, Channel, NOT_FULL, PRODUCERS};
use mp_queue::{Deadline, ErrorKind as QueueErrorKind, WaitPolicy};
use serde::{Deserialize, Serialize};
use shm_core::arena::Arena;
use shm_core::clock::now_ns;
use shm_core::object::{Array, ObjectKind};
use shm_core::slots::Slots;

use crate::error::{Error, Result};
use crate::ring_end::RingEnd;
use crate::slot::{Borrowed, Slot};
use crate::spec::{Layout, TensorSpec};

/// How many processes are on each side of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Topology {
    /// One producer and one consumer, the fastest.
    OneToOne,
    /// Any number on both sides; each slot goes to one consumer.
    #[default]
    Replicas,
}

/// The part of a ring that both sides have.
#[derive(Clone, Debug)]
struct Side {
    // The slots before the channel: their lines lie in the channel's object, which they keep as well.
    slots: Slots,
    channel: Channel,
    specs: Arc<Vec<TensorSpec>>,
    layout: Arc<Layout>,
}

/// Makes a ring of `slots` slots in the current arena, each holding these tensors.
///
/// ```
/// use pipeline::{TensorSpec, Topology, ring};
///
/// let (mut producer, mut consumer) = ring(2, &[TensorSpec::of::<f32>([4])], Topology::OneToOne)?;
/// let mut slot = producer.loan()?;
/// slot.tensor_mut::<f32>(0)?.copy_from_slice(&[1.0, 2.0, 3.0, 4.0]);
/// slot.set_sequence(7);
/// producer.publish(slot)?;
/// drop(producer); // the last producer: the consumer's loop ends
///
/// while let Some(slot) = consumer.borrow()? {
///     assert_eq!((slot.sequence(), slot.tensor::<f32>(0)?), (7, &[1.0, 2.0, 3.0, 4.0][..]));
/// } // dropped here: the slot is free again
/// # Ok::<(), pipeline::Error>(())
/// ```
///
/// # Errors
/// No slots, too many tensors, a shape beyond all addresses; `OutOfRoom` and the like for the memory.
#[track_caller]
pub fn ring(
    slots: u32,
    tensors: &[TensorSpec],
    topology: Topology,
) -> Result<(Producer, Consumer)> {
    ring_in(&Arena::current()?, slots, tensors, topology)
}

/// As [`ring`], in a given arena.
///
/// # Errors
/// As [`ring`].
#[track_caller]
pub fn ring_in(
    arena: &Arena,
    slots: u32,
    tensors: &[TensorSpec],
    topology: Topology,
) -> Result<(Producer, Consumer)> {
    let layout = Layout::of(tensors)?;
    if slots == 0 {
        return Err(Error::invalid(
            "a ring of 0 slots was asked for; nothing could ever be loaned, so ask for at least 1",
        ));
    }
    // Each message holds a slot, so as many cells as slots are never full.
    let messages = match topology {
        Topology::OneToOne => Array::Lane { capacity: slots },
        Topology::Replicas => Array::Cells { capacity: slots },
    };
    let channel = Channel::create(
        arena,
        ObjectKind::Ring,
        [messages, Array::Slots { count: slots }],
    )?;
    let slots = Slots::create(channel.object(), 1, layout.bytes)?;
    let producers = RingEnd::of(&channel, PRODUCERS)?;
    let consumers = RingEnd::of(&channel, CONSUMERS)?;
    let side = Side {
        slots,
        channel,
        specs: Arc::new(tensors.to_vec()),
        layout: Arc::new(layout),
    };
    let producer = Producer {
        end: producers,
        side: side.clone(),
        next: 0,
        timed: false,
    };
    let consumer = Consumer {
        end: consumers,
        side,
        seen_orphans: 0,
        timed: false,
    };
    Ok((producer, consumer))
}

/// The writing side of a ring.
#[derive(Debug)]
pub struct Producer {
    end: RingEnd,
    side: Side,
    /// Where the next search for a free slot begins.
    next: u32,
    /// Whether slots are stamped with the time of their publication.
    timed: bool,
}

impl Producer {
    /// A free slot to write, waiting for one.
    ///
    /// # Errors
    /// `Closed` when no consumer is left; `PeerFailed` when a process of the context this ring was handed to failed and
    /// no slot is free.
    pub fn loan(&mut self) -> Result<Slot> {
        self.loan_until(Deadline::Never)
    }

    /// A free slot if there is one now.
    ///
    /// # Errors
    /// `Full`, and as [`loan`](Self::loan).
    pub fn try_loan(&mut self) -> Result<Slot> {
        self.loan_until(Deadline::Now)
    }

    /// A free slot, waiting so long for one.
    ///
    /// # Errors
    /// `TimedOut`, and as [`loan`](Self::loan).
    pub fn loan_timeout(&mut self, timeout: Duration) -> Result<Slot> {
        self.loan_until(Deadline::after(timeout))
    }

    fn loan_until(&mut self, deadline: Deadline) -> Result<Slot> {
        let Side {
            slots,
            channel,
            layout,
            ..
        } = &self.side;
        let next = &mut self.next;
        let mut attempt = |slow: bool| -> Option<Result<_>> {
            if channel.object().end_count(CONSUMERS) == 0 {
                let why = channel.why_gone(CONSUMERS, "taking a slot", deadline);
                return Some(Err(why.into()));
            }
            match slots.try_loan(*next) {
                Ok(Some(loan)) => {
                    *next = loan.slot() + 1;
                    Some(Ok(loan))
                }
                Ok(None) => {
                    let failure = slow.then(|| channel.object().failure()).flatten()?;
                    Some(Err(mp_queue::Error::peer_failed(
                        failure,
                        "waiting for a free slot",
                    )
                    .into()))
                }
                Err(error) => Some(Err(error.into())),
            }
        };
        let loan = match attempt(deadline.is_now()) {
            Some(answer) => answer?,
            None if deadline.is_now() => {
                return Err(mp_queue::Error::new(
                    QueueErrorKind::Full,
                    "no slot of the ring is free now",
                )
                .into());
            }
            None => channel
                .wait(NOT_FULL, deadline, attempt)
                .unwrap_or_else(|| {
                    Err(mp_queue::Error::new(
                        QueueErrorKind::TimedOut,
                        format!(
                            "none of the ring's {} slots became free before the deadline",
                            slots.count()
                        ),
                    )
                    .into())
                })?,
        };
        Ok(Slot::new(loan, Arc::clone(layout)))
    }

    /// Hands a slot over to a consumer. Only its index travels.
    ///
    /// # Errors
    /// `Closed` when the ring was closed or no consumer is left; the slot is free again then.
    pub fn publish(&mut self, mut slot: Slot) -> Result<()> {
        if !slot.loan.slots().same(&self.side.slots) {
            return Err(Error::invalid(
                "a slot of one ring was to be published in another; copy it into a slot of that one",
            ));
        }
        let mut meta = slot.meta;
        if self.timed {
            meta.published_ns = now_ns();
        }
        let (meta, loan) = (meta.to_words(), &mut slot.loan);
        let Side { slots, channel, .. } = &self.side;
        // There are as many cells as slots: a full ring is one whose last taker is about to leave its cell.
        match &mut self.end {
            RingEnd::Shared(end) => {
                channel.put_with(Deadline::Never, || slots.put(end, loan, &meta))?;
            }
            RingEnd::Lone(end) => {
                channel.put_with(Deadline::Never, || slots.put_lane_end(end, loan, &meta))?;
            }
        }
        Ok(())
    }

    /// How many slots the ring has.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.side.slots.count()
    }

    /// What tensors a slot has.
    #[must_use]
    pub fn specs(&self) -> &[TensorSpec] {
        &self.side.specs
    }

    /// Slots that are in use now, by anyone.
    #[must_use]
    pub fn in_use(&self) -> u32 {
        self.side.slots.in_use()
    }

    /// Touches all pages of all slots, so that this process has no page fault later.
    pub fn touch(&self) {
        self.side.slots.touch();
    }

    /// Whether no consumer is left, though no process has failed: nobody wants any more.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        let object = self.side.channel.object();
        object.end_count(CONSUMERS) == 0 && object.failure().is_none()
    }

    /// Publishes no more; consumers get what is on its way and then the end.
    pub fn close(&self) {
        self.side.channel.close();
    }

    /// One more producer of the same ring.
    ///
    /// # Errors
    /// For a ring made for one producer.
    pub fn try_clone(&self) -> Result<Self> {
        Ok(Self {
            end: self.end.try_clone()?,
            side: self.side.clone(),
            next: 0,
            timed: self.timed,
        })
    }

    /// The same side with another way to wait; the default is adaptive.
    #[must_use]
    pub fn with_policy(mut self, policy: WaitPolicy) -> Self {
        self.side.channel.set_policy(policy);
        self
    }

    /// The same side, whose slots from now on say when they were published ([`Borrowed::published_ns`]). Off at first: a
    /// look at the clock costs a good part of a hand-over. It moves with the side to another process.
    #[must_use]
    pub fn timed(mut self, timed: bool) -> Self {
        self.timed = timed;
        self
    }
}

/// The reading side of a ring.
#[derive(Debug)]
pub struct Consumer {
    end: RingEnd,
    side: Side,
    seen_orphans: u64,
    /// Whether borrowed slots say when that was.
    timed: bool,
}

impl Consumer {
    /// The next slot, waiting for one. `None` is the end: no producer is left and nothing is on its way.
    ///
    /// # Errors
    /// `PeerFailed` when a process of the context this ring was handed to failed and nothing is on its way.
    pub fn borrow(&mut self) -> Result<Option<Borrowed>> {
        self.borrow_until(Deadline::Never)
    }

    /// The next slot if one is there now.
    ///
    /// # Errors
    /// `Empty`, and as [`borrow`](Self::borrow).
    pub fn try_borrow(&mut self) -> Result<Option<Borrowed>> {
        self.borrow_until(Deadline::Now)
    }

    /// The next slot, waiting so long for one.
    ///
    /// # Errors
    /// `TimedOut`, and as [`borrow`](Self::borrow).
    pub fn borrow_timeout(&mut self, timeout: Duration) -> Result<Option<Borrowed>> {
        self.borrow_until(Deadline::after(timeout))
    }

    fn borrow_until(&mut self, deadline: Deadline) -> Result<Option<Borrowed>> {
        let asked_ns = self.now_if_timed();
        let Side {
            slots,
            channel,
            layout,
            ..
        } = &self.side;
        // Before the wait, like all else that need not come after it.
        let layout = Arc::clone(layout);
        let mut seat = slots.seat()?;
        let seen = &mut self.seen_orphans;
        let taken = match &mut self.end {
            RingEnd::Shared(end) => {
                channel.get_with(deadline, || Ok(slots.take(end, &mut seat, seen)?.into()))
            }
            RingEnd::Lone(end) => {
                // Before the wait, since it takes the line of that cell from the producer.
                end.settle();
                channel.get_with(deadline, || Ok(slots.take_lane_end(end, &mut seat)?.into()))
            }
        };
        match taken {
            Ok(()) => Ok(Some(Borrowed {
                borrow: seat.into_borrow(),
                layout,
                asked_ns,
                borrowed_ns: self.now_if_timed(),
            })),
            Err(error) if error.is_closed() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    #[inline]
    fn now_if_timed(&self) -> u64 {
        if self.timed { now_ns() } else { 0 }
    }

    /// How many slots the ring has.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.side.slots.count()
    }

    /// What tensors a slot has.
    #[must_use]
    pub fn specs(&self) -> &[TensorSpec] {
        &self.side.specs
    }

    /// Touches all pages of all slots, so that this process has no page fault later.
    pub fn touch(&self) {
        self.side.slots.touch();
    }

    /// One more consumer of the same ring; each slot goes to one.
    ///
    /// # Errors
    /// For a ring made for one consumer.
    pub fn try_clone(&self) -> Result<Self> {
        Ok(Self {
            end: self.end.try_clone()?,
            side: self.side.clone(),
            seen_orphans: 0,
            timed: self.timed,
        })
    }

    /// The same side with another way to wait; the default is adaptive.
    #[must_use]
    pub fn with_policy(mut self, policy: WaitPolicy) -> Self {
        self.side.channel.set_policy(policy);
        self
    }

    /// The same side, whose slots from now on say when they were asked for and borrowed ([`Borrowed::asked_ns`],
    /// [`Borrowed::borrowed_ns`]). Off at first: a look at the clock costs a good part of a hand-over. It moves with the side
    /// to another process.
    #[must_use]
    pub fn timed(mut self, timed: bool) -> Self {
        self.timed = timed;
        self
    }
}

mod wire;
