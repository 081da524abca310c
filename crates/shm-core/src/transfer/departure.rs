//! The references of a message on their way out: what is made ready before a cell is claimed, written while it is, and
//! cleared once the message owns them.

use crate::error::{Error, ErrorKind, Result};
use crate::held;
use crate::layout::{LINE, counted};
use crate::lease::{Kind, Ticket};
use crate::line;
use crate::message::{FEW, Outgoing, Pin, What};
use crate::object::Object;

/// Lease entries for a message's references, made ready before anything is claimed. Filled in its place: to move what has
/// just been written word by word takes longer than to write it.
#[derive(Default)]
pub(super) struct Departure {
    /// Per pin: the entry that will say GIVING, and whether the pin's own reference moves.
    leases: smallvec::SmallVec<[(u32, bool); FEW]>,
}

impl Departure {
    /// Whether the message can be put at all.
    #[inline]
    pub(super) fn check(object: &Object, message: &Outgoing) -> Result<()> {
        object.arena().check_not_forked("sending a message")?;
        if message.is_spent() {
            // Its references are the first one's: a second would name what nobody counts.
            return Err(spent());
        }
        Ok(())
    }

    /// Makes the entries ready; none are if this fails.
    pub(super) fn prepare(&mut self, object: &Object, message: &Outgoing) -> Result<()> {
        Self::check(object, message)?;
        let pins = &message.pins;
        let arena = object.arena();
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
        for pin in pins.iter() {
            let moves = pin.held.is_locally_unique();
            let lease = if moves {
                Ok(pin.held.lease)
            } else {
                arena.leases().reserve(arena.segment())
            };
            match lease {
                Ok(lease) => self.leases.push((lease, moves)),
                Err(error) => {
                    self.cancel(object);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Marks every reference as given with the message at the ticket; in between, extra counts are added.
    #[inline]
    pub(super) fn give(
        &self,
        object: &Object,
        pins: &[Pin],
        kind: Kind,
        ticket: Ticket,
    ) -> Result<()> {
        if pins.is_empty() {
            return Ok(());
        }
        self.give_each(object, pins, kind, ticket)
    }

    fn give_each(&self, object: &Object, pins: &[Pin], kind: Kind, ticket: Ticket) -> Result<()> {
        let arena = object.arena();
        let segment = arena.segment();
        for (index, (pin, &(lease, moves))) in pins.iter().zip(&self.leases).enumerate() {
            if !moves {
                // Before publication, and before the entry that counts it.
                let (line, generation) = (pin.held.line, pin.held.generation);
                arena
                    .leases()
                    .record(segment, lease, Kind::Entering, line, generation);
                crate::failpoint!("block.share.entering");
                let word = segment.word(pin.held.line * LINE + counted::WORD);
                if let Err(error) = line::increment(word, generation) {
                    arena.leases().clear(segment, lease);
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
    pub(super) fn take_back(&self, object: &Object, pins: &[Pin]) {
        let arena = object.arena();
        for (pin, &(lease, moves)) in pins.iter().zip(&self.leases) {
            if moves {
                arena.leases().set(arena.segment(), lease, Kind::Held);
            } else {
                arena.leases().set(arena.segment(), lease, Kind::Leaving);
                // We hold the pin as well, so this is never the last reference.
                held::subtract_shared(arena, pin.held.line, pin.held.generation);
                arena.leases().clear(arena.segment(), lease);
            }
        }
    }

    /// Puts back the entries that were reserved and not used.
    pub(super) fn cancel(&self, object: &Object) {
        for &(lease, moves) in &self.leases {
            if !moves {
                object.arena().leases().put_back(lease);
            }
        }
    }

    /// The message owns everything now: the entries become FREE, and moved handles are forgotten.
    #[inline]
    pub(super) fn done(&self, object: &Object, message: &mut Outgoing) {
        if !self.leases.is_empty() {
            self.forget(object, message);
        }
    }

    fn forget(&self, object: &Object, message: &mut Outgoing) {
        let leases = object.arena().leases();
        for &(lease, _) in &self.leases {
            leases.clear(object.arena().segment(), lease);
        }
        message.spend();
        for (pin, &(lease, moves)) in message.pins.0.iter_mut().zip(&self.leases) {
            if moves {
                pin.held.disarm();
            } else {
                leases.put_back(lease);
            }
        }
        message.pins.0.clear();
    }
}

#[cold]
fn spent() -> Error {
    Error::new(
        ErrorKind::Stale,
        "a message was to be put a second time; `duplicate` it before the first",
    )
}
