//! Messages through cells and lanes: the steps in which references change hands.
//!
//! Order is everything here (`docs/src/protocols.md`): a kill between any two steps leaves either the message or
//! the lease as the owner of each reference, and the reaper can tell which. While a cell is CLAIMED the lease owns
//! it, from READY until the release the cell does.

mod departure;
mod drain;

use crate::cells::{Cells, Claim, Owner, Take, Wake, read_into};
use crate::error::{Error, ErrorKind, Result};
use crate::held::Held;
use crate::intake::Intake;
use crate::lane::At;
use crate::layout::LINE;
use crate::lease::{Kind, Ticket};
use crate::message::{Arrived, Entries, Entry, FEW, Incoming, Outgoing, parse_into};
use crate::object::{Array, ArrayRef, Object};

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

/// What a message refers to, as it says, and the lease entries of these. Filled in its place: to move what has just been
/// written word by word takes longer than to write it.
#[derive(Default)]
struct Arrival {
    named: smallvec::SmallVec<[Entry; FEW]>,
    leases: smallvec::SmallVec<[u32; FEW]>,
}

/// Why a message that refers to something cannot be taken out of its cell.
enum Refused {
    /// It says nonsense: it is to go.
    Garbage(Error),
    /// There is no room to record what it refers to: it stays.
    NoRoom(Error),
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
        if !message.pins.is_empty() {
            return self.put_cell_with_handles(&cells, message);
        }
        departure::check(self, message)?;
        let pos = match claim(&cells, self.arena().me())? {
            Ok(pos) => pos,
            Err(not_now) => return Ok(not_now),
        };
        crate::failpoint!("put.claimed");
        cells.write(pos, &message.payload);
        crate::failpoint!("put.written");
        crate::failpoint!("put.giving");
        cells.publish(pos);
        crate::failpoint!("put.published");
        Ok(Put::Done(pos))
    }

    /// The rest of [`put_cell`](Self::put_cell), for a message that refers to something.
    fn put_cell_with_handles(
        &self,
        cells: &Cells<ArrayRef<'_>>,
        message: &mut Outgoing,
    ) -> Result<Put> {
        departure::prepare(self, message)?;
        let pos = match claim(cells, self.arena().me())? {
            Ok(pos) => pos,
            Err(not_now) => return Ok(not_now),
        };
        crate::failpoint!("put.claimed");
        cells.write(pos, &message.payload);
        crate::failpoint!("put.written");
        let ticket = ticket(&cells.0, pos);
        departure::give(self, &message.pins, Kind::Giving, ticket);
        crate::failpoint!("put.giving");
        cells.publish(pos);
        crate::failpoint!("put.published");
        departure::done(self, message);
        Ok(Put::Done(pos))
    }

    #[inline]
    fn put_lane(&self, index: usize, message: &mut Outgoing) -> Result<Put> {
        let lane = self.lane(index)?;
        if lane.is_closed() {
            return Ok(Put::Closed);
        }
        let Some(at) = lane.free_one() else {
            return Ok(Put::Full);
        };
        if !message.pins.is_empty() {
            return self.put_lane_with_handles(&at, message);
        }
        departure::check(self, message)?;
        at.cell.write(&message.payload);
        crate::failpoint!("lane.put.written");
        crate::failpoint!("lane.put.giving");
        if !at.publish() {
            return Ok(Put::Closed);
        }
        crate::failpoint!("lane.put.published");
        Ok(Put::Done(at.pos))
    }

    /// The rest of [`put_lane`](Self::put_lane), for a message that refers to something.
    fn put_lane_with_handles(
        &self,
        at: &At<'_, ArrayRef<'_>>,
        message: &mut Outgoing,
    ) -> Result<Put> {
        departure::prepare(self, message)?;
        at.cell.write(&message.payload);
        crate::failpoint!("lane.put.written");
        let ticket = at.ticket();
        departure::give(self, &message.pins, Kind::GivingLane, ticket);
        crate::failpoint!("lane.put.giving");
        if !at.publish() {
            departure::take_back(self, &message.pins);
            return Ok(Put::Closed);
        }
        crate::failpoint!("lane.put.published");
        departure::done(self, message);
        Ok(Put::Done(at.pos))
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
        message.clear();
        match self.array(index) {
            Array::Lane { .. } => self.get_lane(index, message),
            _ => self.get_cell(index, seen_orphans, message),
        }
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
        read_into(&cells.0, pos, message.bytes.near());
        let Some(body) = message.bytes.bare() else {
            return self.get_cell_with_handles(&cells, pos, message);
        };
        crate::failpoint!("get.recorded");
        if let Err(error) = self.count_task() {
            cells.hand_back(pos);
            self.notify_all();
            return Err(error);
        }
        let _intake = self.intake(&cells, pos);
        self.release_cell(&cells, pos);
        message.bytes.set_bare(body);
        Ok(Found::Message(pos))
    }

    /// Notes that the message at `pos` is about to be nowhere but here, until what this answers is dropped.
    #[inline]
    fn intake(&self, cells: &Cells<ArrayRef<'_>>, pos: u64) -> Intake<'_> {
        let (index, lap) = cells.0.ring().split(pos);
        Intake::begin(self.arena(), cells.0.first / LINE + index, lap)
    }

    #[inline]
    fn release_cell(&self, cells: &Cells<ArrayRef<'_>>, pos: u64) {
        let wake = cells.release(pos);
        crate::failpoint!("get.released");
        if wake == Wake::All {
            self.notify_all();
        }
    }

    /// The rest of [`get_cell`](Self::get_cell), for a message that refers to something.
    fn get_cell_with_handles(
        &self,
        cells: &Cells<ArrayRef<'_>>,
        pos: u64,
        message: &mut Incoming,
    ) -> Result<Found> {
        let mut arrival = Arrival::default();
        if let Err(refused) = self.admit(ticket(&cells.0, pos), Kind::Recv, message, &mut arrival) {
            let error = match refused {
                Refused::Garbage(error) => {
                    let _ = cells.release(pos);
                    error
                }
                Refused::NoRoom(error) => {
                    cells.hand_back(pos);
                    error
                }
            };
            // The caller gets no message, so it will wake nobody for the cell that changed.
            self.notify_all();
            return Err(error);
        }
        crate::failpoint!("get.recorded");
        if let Err(error) = self.count_task() {
            message.clear();
            self.leave(&arrival);
            cells.hand_back(pos);
            self.notify_all();
            return Err(error);
        }
        let _intake = self.intake(cells, pos);
        self.release_cell(cells, pos);
        self.arrive(&arrival, message);
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
        let Some(at) = lane.ready_one() else {
            let drained = lane.is_closed() && lane.is_drained(lane.head());
            return Ok(if drained {
                Found::Drained
            } else {
                Found::Empty
            });
        };
        at.cell.read_into(message.bytes.near());
        let Some(body) = message.bytes.bare() else {
            return self.get_lane_with_handles(&at, message);
        };
        crate::failpoint!("lane.get.recorded");
        at.release();
        crate::failpoint!("lane.get.released");
        message.bytes.set_bare(body);
        Ok(Found::Message(at.pos))
    }

    /// The rest of [`get_lane`](Self::get_lane), for a message that refers to something.
    fn get_lane_with_handles(
        &self,
        at: &At<'_, ArrayRef<'_>>,
        message: &mut Incoming,
    ) -> Result<Found> {
        let mut arrival = Arrival::default();
        match self.admit(at.ticket(), Kind::RecvLane, message, &mut arrival) {
            Ok(()) => {}
            Err(Refused::Garbage(error)) => {
                at.release();
                self.notify_all();
                return Err(error);
            }
            Err(Refused::NoRoom(error)) => return Err(error),
        }
        crate::failpoint!("lane.get.recorded");
        at.release();
        crate::failpoint!("lane.get.released");
        self.arrive(&arrival, message);
        Ok(Found::Message(at.pos))
    }

    /// Takes apart a message that refers to something, came from the ticket's cell and is in `message`, and records that its
    /// references come in. `message` is empty if they cannot.
    fn admit(
        &self,
        ticket: Ticket,
        kind: Kind,
        message: &mut Incoming,
        arrival: &mut Arrival,
    ) -> Result<(), Refused> {
        let named = &mut arrival.named;
        if let Err(error) = parse_into(self.arena(), named, &mut message.bytes) {
            message.clear();
            return Err(Refused::Garbage(error));
        }
        if let Err(error) = self.receive(arrival, kind, ticket) {
            message.clear();
            self.leave(arrival);
            return Err(Refused::NoRoom(error));
        }
        Ok(())
    }

    /// Records that the references of a message come in with the ticket's cell; they count once it is released.
    #[inline]
    fn receive(&self, arrival: &mut Arrival, kind: Kind, ticket: Ticket) -> Result<()> {
        let arena = self.arena();
        for entry in &arrival.named {
            let lease = arena.leases().reserve(arena.segment())?;
            arena.leases().record_ticket(
                arena.segment(),
                lease,
                (kind, entry.line, entry.generation),
                ticket,
            );
            arrival.leases.push(lease);
        }
        Ok(())
    }

    /// The references stay where they are: what [`receive`](Self::receive) has recorded does not count.
    #[cold]
    fn leave(&self, arrival: &Arrival) {
        let arena = self.arena();
        for &lease in &arrival.leases {
            arena.leases().clear(arena.segment(), lease);
            arena.leases().put_back(lease);
        }
    }

    /// The cell is released: the references are ours.
    #[inline]
    fn arrive(&self, arrival: &Arrival, message: &mut Incoming) {
        let arena = self.arena();
        let entries = message.entries.insert(Entries::default());
        // Room first: what is pushed would be moved once more.
        entries.0.resize_with(arrival.named.len(), || None);
        let places = entries.0.iter_mut();
        for ((entry, &lease), place) in arrival.named.iter().zip(&arrival.leases).zip(places) {
            arena
                .leases()
                .mark(arena.segment(), lease, Kind::Held, entry.line);
            let held = Held::adopt(arena, lease, entry.line, entry.generation);
            *place = Some(Arrived {
                held,
                what: entry.what,
                extra: entry.extra,
                place: entry.place,
            });
        }
    }
}

/// Claims the next free cell, or says why there is none.
#[inline]
fn claim(cells: &Cells<ArrayRef<'_>>, me: Owner) -> Result<std::result::Result<u64, Put>> {
    Ok(match cells.claim(me) {
        Claim::At(pos) => Ok(pos),
        Claim::Full => Err(Put::Full),
        Claim::Pending(owner) => Err(Put::Pending(owner)),
        Claim::Closed => Err(Put::Closed),
        Claim::Damaged => return Err(damaged()),
    })
}

/// What names the message at `pos` in a lease.
#[inline]
pub(crate) fn ticket(array: &ArrayRef<'_>, pos: u64) -> Ticket {
    Ticket {
        cell: array.offset(pos),
        position: pos,
    }
}
