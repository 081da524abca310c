//! Messages through cells and lanes: the steps in which references change hands.
//!
//! Order is everything here (`docs/src/protocols.md`): a kill between any two steps leaves either the message or
//! the lease as the owner of each reference, and the reaper can tell which. While a cell is CLAIMED the lease owns
//! it, from READY until the release the cell does.

mod drain;

use crate::cells::{Claim, Owner, Take};
use crate::error::{Error, ErrorKind, Result};
use crate::held::{self, Held};
use crate::layout::{LINE, counted};
use crate::lease::{Kind, Ticket};
use crate::line;
use crate::message::{Arrived, Entry, FEW, Incoming, Outgoing, Pin, What, parse_into};
use crate::object::{Array, Object};

/// What a put came to. The message is still the caller's unless it is `Done`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Put {
    /// The message is in, at this position.
    Done(u64),
    /// There is no room.
    Full,
    /// The next cell is in the hands of this participant; as good as full.
    Pending(Owner),
    /// The queue takes no more messages.
    Closed,
}

/// What a get came to.
#[derive(Debug)]
#[must_use]
#[expect(
    clippy::large_enum_variant,
    reason = "a message is handed on at once; a box would cost an allocation each"
)]
pub enum Get {
    /// A message, and its position.
    Message(Incoming, u64),
    /// There is none.
    Empty,
    /// The next one is in the hands of this participant; as good as empty.
    Pending(Owner),
    /// Closed, and nothing is left.
    Drained,
}

/// What a get into a message of the caller's came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Found {
    /// A message, which is there now; its position.
    Message(u64),
    /// There is none.
    Empty,
    /// The next one is in the hands of this participant; as good as empty.
    Pending(Owner),
    /// Closed, and nothing is left.
    Drained,
}

impl Found {
    /// The same with the message, if there is one.
    pub(crate) fn with(self, message: Incoming) -> Get {
        match self {
            Self::Message(pos) => Get::Message(message, pos),
            Self::Empty => Get::Empty,
            Self::Pending(owner) => Get::Pending(owner),
            Self::Drained => Get::Drained,
        }
    }
}

#[cold]
pub(crate) fn damaged() -> Error {
    Error::new(
        ErrorKind::Layout,
        "the cells of a queue contradict each other; a participant wrote where it must not",
    )
}

/// What a message refers to, as it says.
type Named = smallvec::SmallVec<[Entry; FEW]>;

/// Lease entries for a message's references, made ready before anything is claimed.
struct Departure {
    /// Per pin: the entry that will say GIVING, and whether the pin's own reference moves.
    leases: smallvec::SmallVec<[(u32, bool); FEW]>,
}

impl Departure {
    #[inline]
    fn prepare(object: &Object, message: &Outgoing) -> Result<Self> {
        let arena = object.arena();
        let pins = &message.pins[..];
        arena.check_not_forked("sending a message")?;
        if message.is_spent() {
            // Its references are the first one's: a second would name what nobody counts.
            return Err(Error::new(
                ErrorKind::Stale,
                "a message was to be put a second time; `duplicate` it before the first",
            ));
        }
        // Entries are numbers in one participant's table, and lines mean something in one arena only.
        if pins.iter().any(|pin| !pin.held.arena().is(arena)) {
            return Err(Error::new(
                ErrorKind::ForeignArena,
                "the message was encoded for another arena than the object it is put into; encode it with the object's own arena",
            ));
        }
        // It would hold itself: with the last handle to it gone, nobody could take that message out any more.
        let itself = (object.held.line, What::Object);
        if pins.iter().any(|pin| (pin.held.line, pin.what) == itself) {
            return Err(Error::new(
                ErrorKind::Cycle,
                format!(
                    "the message holds {object} itself, into which it was to be put, and would keep it for ever; send it through another one"
                ),
            ));
        }
        let mut leases = smallvec::SmallVec::new();
        for pin in pins {
            let moves = pin.held.is_locally_unique();
            let lease = if moves {
                Ok(pin.held.lease)
            } else {
                arena.leases().reserve(arena.segment())
            };
            match lease {
                Ok(lease) => leases.push((lease, moves)),
                Err(error) => {
                    Self { leases }.cancel(object);
                    return Err(error);
                }
            }
        }
        Ok(Self { leases })
    }

    /// Marks every reference as given with the message at the ticket; in between, extra counts are added.
    #[inline]
    fn give(&self, object: &Object, pins: &[Pin], kind: Kind, ticket: Ticket) -> Result<()> {
        let arena = object.arena();
        let segment = arena.segment();
        for (index, (pin, &(lease, moves))) in pins.iter().zip(&self.leases).enumerate() {
            if !moves {
                // Before publication, and before the entry that counts it.
                let word = segment.word(pin.held.line * LINE + counted::WORD);
                if let Err(error) = line::increment(word, pin.held.generation) {
                    self.take_back(object, &pins[..index]);
                    return Err(error);
                }
            }
            arena.leases().record_ticket(
                segment,
                lease,
                (kind, pin.held.line, pin.held.generation),
                ticket,
            );
        }
        Ok(())
    }

    /// Undoes [`give`](Self::give) for these first pins: the cell is still ours.
    fn take_back(&self, object: &Object, pins: &[Pin]) {
        let arena = object.arena();
        for (pin, &(lease, moves)) in pins.iter().zip(&self.leases) {
            if moves {
                arena.leases().set(arena.segment(), lease, Kind::Held);
            } else {
                arena.leases().clear(arena.segment(), lease);
                // We hold the pin as well, so this is never the last reference.
                held::subtract_shared(arena, pin.held.line, pin.held.generation);
            }
        }
    }

    /// Puts back the entries that were reserved and not used.
    fn cancel(self, object: &Object) {
        for (lease, moves) in self.leases {
            if !moves {
                object.arena().leases().put_back(lease);
            }
        }
    }

    /// The message owns everything now: the entries become FREE, and moved handles are forgotten.
    #[inline]
    fn done(self, object: &Object, message: &mut Outgoing) {
        if self.leases.is_empty() {
            return;
        }
        let leases = object.arena().leases();
        for &(lease, _) in &self.leases {
            leases.clear(object.arena().segment(), lease);
        }
        message.spend();
        for (pin, (lease, moves)) in message.pins.0.drain(..).zip(self.leases) {
            if moves {
                pin.held.disarm();
            } else {
                leases.put_back(lease);
            }
        }
    }
}

impl Object {
    /// Puts a message into array `index`, if there is room. On `Done` the message is empty afterwards.
    ///
    /// A lane must not be put into by two threads or processes at once: only who has its end calls this.
    #[inline]
    pub(crate) fn try_put(&self, index: usize, message: &mut Outgoing) -> Result<Put> {
        match self.array(index) {
            Array::Lane { .. } => self.put_lane(index, message),
            _ => self.put_cell(index, message),
        }
    }

    #[inline]
    fn put_cell(&self, index: usize, message: &mut Outgoing) -> Result<Put> {
        let cells = self.cells(index)?;
        let departure = Departure::prepare(self, message)?;
        let pos = match cells.claim(self.arena().me()) {
            Claim::At(pos) => pos,
            other => {
                departure.cancel(self);
                return match other {
                    Claim::Full => Ok(Put::Full),
                    Claim::Pending(owner) => Ok(Put::Pending(owner)),
                    Claim::Closed => Ok(Put::Closed),
                    Claim::At(_) | Claim::Damaged => Err(damaged()),
                };
            }
        };
        crate::failpoint!("put.claimed");
        cells.write(pos, &message.payload);
        crate::failpoint!("put.written");
        let ticket = Ticket {
            cell: cell_offset(&cells.0, pos),
            position: pos,
        };
        if let Err(error) = departure.give(self, &message.pins, Kind::Giving, ticket) {
            cells.abandon(pos);
            departure.cancel(self);
            // Producers may wait for this cell, consumers for this position.
            self.notify_all();
            return Err(error);
        }
        crate::failpoint!("put.giving");
        cells.publish(pos);
        crate::failpoint!("put.published");
        departure.done(self, message);
        Ok(Put::Done(pos))
    }

    #[inline]
    fn put_lane(&self, index: usize, message: &mut Outgoing) -> Result<Put> {
        let lane = self.lane(index)?;
        let pos = lane.tail();
        if lane.is_closed() {
            return Ok(Put::Closed);
        }
        if !lane.can_put(pos) {
            return Ok(Put::Full);
        }
        let departure = Departure::prepare(self, message)?;
        lane.write(pos, &message.payload);
        crate::failpoint!("lane.put.written");
        let ticket = Ticket {
            cell: cell_offset(&lane.0, pos),
            position: pos,
        };
        if let Err(error) = departure.give(self, &message.pins, Kind::GivingLane, ticket) {
            departure.cancel(self);
            return Err(error);
        }
        crate::failpoint!("lane.put.giving");
        if !lane.publish(pos) {
            departure.take_back(self, &message.pins);
            departure.cancel(self);
            return Ok(Put::Closed);
        }
        crate::failpoint!("lane.put.published");
        departure.done(self, message);
        Ok(Put::Done(pos))
    }

    /// Takes the next message out of array `index`. `seen_orphans` is the consumer's own, 0 at first.
    ///
    /// A lane must not be taken from by two threads or processes at once: only who has its end calls this.
    pub(crate) fn try_get(&self, index: usize, seen_orphans: &mut u64) -> Result<Get> {
        let mut message = Incoming::default();
        let found = self.try_get_into(index, seen_orphans, &mut message)?;
        Ok(found.with(message))
    }

    /// As [`try_get`](Self::try_get), into `message`, which is emptied first and stays empty unless there is one.
    #[inline]
    pub(crate) fn try_get_into(
        &self,
        index: usize,
        seen_orphans: &mut u64,
        message: &mut Incoming,
    ) -> Result<Found> {
        self.arena().check_not_forked("receiving a message")?;
        if !message.entries.0.is_empty() {
            *message = Incoming::default();
        }
        message.body.clear();
        let found = match self.array(index) {
            Array::Lane { .. } => self.get_lane(index, message),
            _ => self.get_cell(index, seen_orphans, message),
        };
        if !matches!(found, Ok(Found::Message(_))) {
            message.body.clear();
        }
        found
    }

    #[inline]
    fn get_cell(
        &self,
        index: usize,
        seen_orphans: &mut u64,
        message: &mut Incoming,
    ) -> Result<Found> {
        let cells = self.cells(index)?;
        let pos = match cells.take(self.arena().me(), seen_orphans) {
            Take::At { pos, .. } => pos,
            Take::Empty => return Ok(Found::Empty),
            Take::Pending(owner) => return Ok(Found::Pending(owner)),
            Take::Drained => return Ok(Found::Drained),
            Take::Damaged => return Err(damaged()),
        };
        crate::failpoint!("get.taken");
        let mut named = Named::new();
        let parsed = parse_into(
            self.arena(),
            &cells.read(pos),
            &mut named,
            &mut message.body,
        );
        if let Err(error) = parsed {
            let _ = cells.release(pos);
            // The caller gets no message, so it will wake nobody for the cell that became free.
            self.notify_all();
            return Err(error);
        }
        let ticket = Ticket {
            cell: cell_offset(&cells.0, pos),
            position: pos,
        };
        let leases = match self.receive(&named, Kind::Recv, ticket) {
            Ok(leases) => leases,
            Err(error) => {
                cells.hand_back(pos);
                self.notify_all();
                return Err(error);
            }
        };
        crate::failpoint!("get.recorded");
        if let Err(error) = self.count_task() {
            for lease in leases {
                self.arena().leases().clear(self.arena().segment(), lease);
                self.arena().leases().put_back(lease);
            }
            cells.hand_back(pos);
            self.notify_all();
            return Err(error);
        }
        let wake = cells.release(pos);
        crate::failpoint!("get.released");
        if wake == crate::cells::Wake::All {
            self.notify_all();
        }
        self.arrive(named, leases, message);
        Ok(Found::Message(pos))
    }

    /// Counts a task in hand, in a queue that counts them: before its cell is free, so that the queue is never seen
    /// without both.
    #[inline]
    fn count_task(&self) -> Result<()> {
        let Array::Permits { count } = self.array(1) else {
            return Ok(());
        };
        match self.permits(1).count_up(self.arena().me()) {
            Ok(None) => {}
            Ok(Some(left)) => self.count_lost(left.tag),
            Err(_) => {
                return Err(Error::new(
                    ErrorKind::CountOverflow,
                    format!(
                        "more than {count} processes take tasks from one queue; it has room to count those of {count}"
                    ),
                ));
            }
        }
        crate::failpoint!("task.counted");
        Ok(())
    }

    #[inline]
    fn get_lane(&self, index: usize, message: &mut Incoming) -> Result<Found> {
        let lane = self.lane(index)?;
        let pos = lane.head();
        if !lane.is_ready(pos) {
            let drained = lane.is_closed() && lane.is_drained(pos);
            return Ok(if drained {
                Found::Drained
            } else {
                Found::Empty
            });
        }
        let mut named = Named::new();
        let parsed = parse_into(self.arena(), &lane.read(pos), &mut named, &mut message.body);
        if let Err(error) = parsed {
            lane.release(pos);
            self.notify_all();
            return Err(error);
        }
        let ticket = Ticket {
            cell: cell_offset(&lane.0, pos),
            position: pos,
        };
        let leases = self.receive(&named, Kind::RecvLane, ticket)?;
        crate::failpoint!("lane.get.recorded");
        lane.release(pos);
        crate::failpoint!("lane.get.released");
        self.arrive(named, leases, message);
        Ok(Found::Message(pos))
    }

    /// Records that the references of a message come in with the ticket's cell; they count once it is released.
    #[inline]
    fn receive(
        &self,
        named: &[Entry],
        kind: Kind,
        ticket: Ticket,
    ) -> Result<smallvec::SmallVec<[u32; FEW]>> {
        let arena = self.arena();
        let mut leases = smallvec::SmallVec::<[u32; FEW]>::new();
        for entry in named {
            match arena.leases().reserve(arena.segment()) {
                Ok(lease) => {
                    arena.leases().record_ticket(
                        arena.segment(),
                        lease,
                        (kind, entry.line, entry.generation),
                        ticket,
                    );
                    leases.push(lease);
                }
                Err(error) => {
                    for lease in leases {
                        arena.leases().clear(arena.segment(), lease);
                        arena.leases().put_back(lease);
                    }
                    return Err(error);
                }
            }
        }
        Ok(leases)
    }

    /// The cell is released: the references are ours.
    #[inline]
    fn arrive(&self, named: Named, leases: smallvec::SmallVec<[u32; FEW]>, message: &mut Incoming) {
        if named.is_empty() {
            return;
        }
        let arena = self.arena();
        for (entry, lease) in named.into_iter().zip(leases) {
            arena.leases().set(arena.segment(), lease, Kind::Held);
            let held = Held::adopt(arena, lease, entry.line, entry.generation);
            message.entries.0.push(Some(Arrived {
                held,
                what: entry.what,
                extra: entry.extra,
            }));
        }
    }
}

/// Offset of the word of the cell at `pos`: what a ticket names.
#[inline]
pub(crate) fn cell_offset(array: &crate::object::ArrayRef<'_>, pos: u64) -> u64 {
    array.first + array.index(pos) * LINE
}
