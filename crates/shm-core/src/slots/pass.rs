//! Handing slots over: the hot path of a ring.
//!
//! The same steps as for other messages ([`transfer`](crate::transfer)), in the same order, for a message that is one
//! reference: nothing is allocated, no message is built, and what can be made ready before is. Between the sender's first
//! store and the receiver's return only the cell's own line moves from one processor to the other; a slot's line is touched
//! when it is loaned and when it is given back.

use super::{Borrow, Loan, Share, Slots, State};
use crate::cells::{Cells, Claim, PAYLOAD_WORDS, Take, Wake};
use crate::error::{Error, ErrorKind, Result};
use crate::lane::Lane;
use crate::lease::{Kind, Ticket};
use crate::line::GENERATION_MASK;
use crate::message::{self, FORM_SLOT};
use crate::object::{Array, ArrayRef, End, LaneEnd};
use crate::transfer::{Put, damaged, ticket};

/// The array of a ring's object that slots travel through.
const MESSAGES: usize = 0;

/// Words that travel with a slot, inside the cell that names it.
pub const META_WORDS: usize = PAYLOAD_WORDS - 2;

/// A place for a slot that is about to be borrowed: what borrowing needs, taken before the wait for it, and filled where it
/// is. (What has just been written word by word cannot be moved at once without the processor stalling.)
#[derive(Debug)]
pub struct Seat(Borrow);

impl Seat {
    /// The slot that was taken into this seat.
    ///
    /// # Panics
    /// When none was.
    #[inline]
    #[must_use]
    pub fn into_borrow(self) -> Borrow {
        assert!(
            matches!(self.0.share.state, State::Counting | State::Arrived),
            "no slot was taken into this seat"
        );
        self.0
    }
}

/// What borrowing came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Taken {
    /// A slot is in the seat; the position of the message that named it.
    Slot(u64),
    /// There is none now.
    NotNow,
    /// Closed, and nothing is left.
    Drained,
}

/// What a payload says: the slot it names, its generation and the words beside it.
type Named = (u32, u64, [u64; META_WORDS]);

impl Slots {
    /// Makes ready to borrow.
    ///
    /// # Errors
    /// `LeasesFull`, `AfterFork`.
    #[inline]
    pub fn seat(&self) -> Result<Seat> {
        let arena = self.object().arena();
        arena.check_not_forked("borrowing a slot")?;
        let lease = arena.leases().reserve(arena.segment())?;
        let share = Share {
            slots: self.clone(),
            generation: 0,
            lease,
            slot: 0,
            position: 0,
            state: State::Vacant,
        };
        Ok(Seat(Borrow {
            share,
            meta: [0; META_WORDS],
        }))
    }

    /// Hands a slot of these over through the cells of their object, with these words beside it. On `Done` the loan is
    /// spent: dropping it does nothing.
    ///
    /// # Errors
    /// `Stale` for a spent loan; `WrongMode` for an end that is not the producers' of these slots' cells; `Layout` when
    /// the cells contradict each other.
    #[inline]
    pub fn put(&self, end: &End, loan: &mut Loan, meta: &[u64; META_WORDS]) -> Result<Put> {
        end.check(self.object(), 0)?;
        self.put_through(loan, meta)
    }

    /// As [`put`](Self::put), through the lane of their object.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    #[inline]
    pub fn put_lane_end(
        &self,
        end: &mut LaneEnd,
        loan: &mut Loan,
        meta: &[u64; META_WORDS],
    ) -> Result<Put> {
        end.check(self.object(), 0)?;
        self.put_through(loan, meta)
    }

    #[inline]
    fn put_through(&self, loan: &mut Loan, meta: &[u64; META_WORDS]) -> Result<Put> {
        if loan.share.state != State::Counting {
            return Err(Error::new(
                ErrorKind::Stale,
                "a slot was to be handed over a second time",
            ));
        }
        if !loan.share.slots.same(self) {
            return Err(Error::new(
                ErrorKind::WrongMode,
                "a slot was to be handed over through another ring than its own",
            ));
        }
        let line = self.line(loan.share.slot);
        let [a, b, c, d, e] = *meta;
        let named = u64::from(FORM_SLOT) | (line << 8);
        let payload = [named, loan.share.generation, a, b, c, d, e];
        match self.object().array(MESSAGES) {
            Array::Lane { .. } => {
                Ok(self.put_lane(&Lane(self.object().messages(MESSAGES)), loan, &payload))
            }
            Array::Cells { .. } => {
                self.put_cell(&Cells(self.object().messages(MESSAGES)), loan, &payload)
            }
            Array::None | Array::Slots { .. } | Array::Permits { .. } => Err(damaged()),
        }
    }

    #[inline(always)]
    fn put_lane(
        &self,
        lane: &Lane<ArrayRef<'_>>,
        loan: &mut Loan,
        payload: &[u64; PAYLOAD_WORDS],
    ) -> Put {
        if lane.is_closed() {
            return Put::Closed;
        }
        let Some(at) = lane.free_one() else {
            return Put::Full;
        };
        at.cell.write(payload);
        crate::failpoint!("lane.put.written");
        loan.share.state = State::Gone;
        loan.share.record(Kind::GivingLane, at.ticket());
        crate::failpoint!("lane.put.giving");
        if !at.publish() {
            loan.share.hold();
            return Put::Closed;
        }
        crate::failpoint!("lane.put.published");
        loan.share.spend();
        Put::Done(at.pos)
    }

    #[inline(always)]
    fn put_cell(
        &self,
        cells: &Cells<ArrayRef<'_>>,
        loan: &mut Loan,
        payload: &[u64; PAYLOAD_WORDS],
    ) -> Result<Put> {
        let pos = match cells.claim(self.object().arena().me()) {
            Claim::At(pos) => pos,
            Claim::Full => return Ok(Put::Full),
            Claim::Pending(owner) => return Ok(Put::Pending(owner)),
            Claim::Closed => return Ok(Put::Closed),
            Claim::Damaged => return Err(damaged()),
        };
        crate::failpoint!("put.claimed");
        cells.write(pos, payload);
        crate::failpoint!("put.written");
        loan.share.state = State::Gone;
        loan.share.record(Kind::Giving, ticket(&cells.0, pos));
        crate::failpoint!("put.giving");
        cells.publish(pos);
        crate::failpoint!("put.published");
        loan.share.spend();
        Ok(Put::Done(pos))
    }

    /// Borrows the next slot from the cells of its object. `seen_orphans` is the consumer's own, 0 at first.
    ///
    /// The seat is one of these slots' own, and empty; it stays so unless the answer is `Slot`.
    ///
    /// # Errors
    /// `Decode` for a message that names no slot of these: it is gone. `WrongMode` for an end that is not the consumers'
    /// of these slots' cells. `Layout` when the cells contradict each other.
    #[inline]
    pub fn take(&self, end: &End, seat: &mut Seat, seen_orphans: &mut u64) -> Result<Taken> {
        end.check(self.object(), 1)?;
        self.take_through(seat, seen_orphans)
    }

    /// As [`take`](Self::take), from the lane of its object.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    #[inline]
    pub fn take_lane_end(&self, end: &mut LaneEnd, seat: &mut Seat) -> Result<Taken> {
        end.check(self.object(), 1)?;
        // Now, while there is nothing else to do: when the slot came, this would have been on its way to the user.
        end.settle();
        let taken = self.take_through(seat, &mut 0)?;
        if let Taken::Slot(pos) = taken {
            end.postpone_release(pos);
        }
        Ok(taken)
    }

    #[inline]
    fn take_through(&self, seat: &mut Seat, seen_orphans: &mut u64) -> Result<Taken> {
        if !seat.0.share.slots.same(self) {
            return Err(Error::new(
                ErrorKind::WrongMode,
                "a slot was to be borrowed into a seat of another ring",
            ));
        }
        if seat.0.share.state != State::Vacant {
            return Err(Error::new(
                ErrorKind::Stale,
                "a slot was to be borrowed into a seat that is taken",
            ));
        }
        match self.object().array(MESSAGES) {
            Array::Lane { .. } => self.take_lane(&Lane(self.object().messages(MESSAGES)), seat),
            Array::Cells { .. } => {
                self.take_cell(&Cells(self.object().messages(MESSAGES)), seat, seen_orphans)
            }
            Array::None | Array::Slots { .. } | Array::Permits { .. } => Err(damaged()),
        }
    }

    #[inline(always)]
    fn take_lane(&self, lane: &Lane<ArrayRef<'_>>, seat: &mut Seat) -> Result<Taken> {
        let Some(at) = lane.ready_one() else {
            let drained = lane.is_closed() && lane.is_drained(lane.head());
            return Ok(if drained {
                Taken::Drained
            } else {
                Taken::NotNow
            });
        };
        let Some((slot, generation, meta)) = self.named(&at.cell.read()) else {
            return Err(self.refuse(&at.cell.read(), || at.release()));
        };
        let Borrow { share, meta: place } = &mut seat.0;
        (share.slot, share.generation, share.position) = (slot, generation, at.pos);
        *place = meta;
        // The entry counts once the cell is free. Until then the message owns the reference, and the cell keeps it: freeing
        // it takes the line from the producer, which costs as much as the hand-over, so it comes later (`LaneEnd::settle`),
        // or when the slot is given back.
        share.record(Kind::RecvLane, at.ticket());
        share.state = State::Arrived;
        crate::failpoint!("lane.get.recorded");
        crate::failpoint!("slot.borrowed");
        Ok(Taken::Slot(at.pos))
    }

    #[inline(always)]
    fn take_cell(
        &self,
        cells: &Cells<ArrayRef<'_>>,
        seat: &mut Seat,
        seen_orphans: &mut u64,
    ) -> Result<Taken> {
        let pos = match cells.take(self.object().arena().me(), seen_orphans) {
            Take::At { pos, .. } => pos,
            Take::Empty | Take::Pending(_) => return Ok(Taken::NotNow),
            Take::Drained => return Ok(Taken::Drained),
            Take::Damaged => return Err(damaged()),
        };
        crate::failpoint!("get.taken");
        let Some((slot, generation, meta)) = self.named(&cells.read(pos)) else {
            return Err(self.refuse(&cells.read(pos), || {
                let _ = cells.release(pos);
            }));
        };
        let Borrow { share, meta: place } = &mut seat.0;
        (share.slot, share.generation, share.state) = (slot, generation, State::Gone);
        *place = meta;
        share.record(Kind::Recv, ticket(&cells.0, pos));
        crate::failpoint!("get.recorded");
        let wake = cells.release(pos);
        crate::failpoint!("get.released");
        share.hold();
        if wake == Wake::All {
            self.object().notify_all();
        }
        crate::failpoint!("slot.borrowed");
        Ok(Taken::Slot(pos))
    }

    /// Throws a message away that names no slot of these, `release` being what frees its cell. It may be a whole one, which
    /// somebody put there by the ring's end: what it refers to goes back.
    #[cold]
    fn refuse(&self, payload: &[u64; PAYLOAD_WORDS], release: impl FnOnce()) -> Error {
        let parsed = message::parse(self.object().arena(), payload);
        release();
        self.object().release_named(parsed);
        // The caller gets no slot, so it will wake nobody for the cell that became free.
        self.object().notify_all();
        malformed()
    }

    /// What a payload says, if it names a slot of these. Whether the slot is really given in that generation shows when it
    /// is given back: looking now would fetch the slot's line, which costs as much as all the rest.
    #[inline(always)]
    fn named(&self, payload: &[u64; PAYLOAD_WORDS]) -> Option<Named> {
        let [named, generation, meta @ ..] = *payload;
        let slot = (named >> 8).checked_sub(self.line(0))?;
        let fits = named as u8 == FORM_SLOT
            && slot < u64::from(self.count())
            && generation <= GENERATION_MASK;
        fits.then_some((slot as u32, generation, meta))
    }
}

impl Share {
    /// Writes the entry for a reference that is on its way through the cell at `pos`.
    #[inline]
    fn record(&self, kind: Kind, ticket: Ticket) {
        let arena = self.slots.object().arena();
        let reference = (kind, self.slots.line(self.slot), self.generation);
        arena
            .leases()
            .record_ticket(arena.segment(), self.lease, reference, ticket);
    }

    /// The reference is this process's.
    #[inline]
    fn hold(&mut self) {
        let arena = self.slots.object().arena();
        let line = self.slots.line(self.slot);
        arena
            .leases()
            .mark(arena.segment(), self.lease, Kind::Held, line);
        self.state = State::Counting;
    }

    /// The message owns the reference: the entry becomes FREE.
    #[inline]
    fn spend(&mut self) {
        let arena = self.slots.object().arena();
        arena.leases().clear(arena.segment(), self.lease);
        arena.leases().put_back(self.lease);
        self.state = State::Gone;
    }
}

#[cold]
fn malformed() -> Error {
    Error::new(
        ErrorKind::Decode,
        "a ring's message names no slot of that ring; a participant wrote where it must not",
    )
}
