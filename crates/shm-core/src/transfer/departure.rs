//! The references of a message on their way out: each has a lease entry of its own before a cell is claimed, which says
//! GIVING while the message is written, and is cleared once the message owns them.

use crate::error::{Error, ErrorKind, Result};
use crate::lease::{Kind, Ticket};
use crate::message::{Outgoing, Pin, What};
use crate::object::Object;

/// Whether a message can be put at all.
#[inline]
pub(super) fn check(object: &Object, message: &Outgoing) -> Result<()> {
    object.arena().check_not_forked("sending a message")?;
    if message.is_spent() {
        // Its references are the first one's: a second would name what nobody counts.
        return Err(spent());
    }
    Ok(())
}

/// Makes each reference of a message one that is nobody else's, so that it can be given. What is counted for that is counted
/// before a cell is claimed: behind the claim the receiver looks at the cell again and again, and takes its line away from
/// whoever has yet to write it.
pub(super) fn prepare(object: &Object, message: &mut Outgoing) -> Result<()> {
    check(object, message)?;
    let pins = &mut message.pins;
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
    pins.0.iter_mut().try_for_each(|pin| pin.held.separate())
}

/// Marks every reference as given with the message at the ticket.
#[inline]
pub(super) fn give(object: &Object, pins: &[Pin], kind: Kind, ticket: Ticket) {
    let (leases, segment) = (object.arena().leases(), object.arena().segment());
    for Pin { held, .. } in pins {
        let reference = (kind, held.line, held.generation);
        leases.record_ticket(segment, held.lease, reference, ticket);
    }
}

/// Undoes [`give`]: the cell was not published.
pub(super) fn take_back(object: &Object, pins: &[Pin]) {
    let (leases, segment) = (object.arena().leases(), object.arena().segment());
    for pin in pins {
        leases.set(segment, pin.held.lease, Kind::Held);
    }
}

/// The message owns everything now: the entries become FREE, and the handles are forgotten.
#[inline]
pub(super) fn done(object: &Object, message: &mut Outgoing) {
    if message.pins.is_empty() {
        return;
    }
    let (leases, segment) = (object.arena().leases(), object.arena().segment());
    for pin in message.pins.iter() {
        leases.clear(segment, pin.held.lease);
    }
    message.spend();
    for pin in &mut message.pins.0 {
        pin.held.disarm();
    }
    message.pins.0.clear();
}

#[cold]
fn spent() -> Error {
    Error::new(
        ErrorKind::Stale,
        "a message was to be put a second time; `duplicate` it before the first",
    )
}
