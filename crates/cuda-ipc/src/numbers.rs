//! The streams of this process by their numbers: what marks call them.
//!
//! A number is given to another stream when nobody has the one before, and all that was recorded in that has happened; the
//! one that was free for the longest time comes first. The ledger's counts go on, so that what it says of a number is of one
//! stream only.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use parking_lot::Mutex;

use crate::awaits::{Awaits, Borrowed};
use crate::company::Company;
use crate::device::Device;
use crate::driver::{Driver, RawStream};
use crate::error::Result;
use crate::ledger;
use crate::mark::NO_NUMBER;
#[cfg(feature = "cudarc")]
use crate::waiting::Awaited;

/// All streams of which something may still come.
pub(crate) static ALL: Mutex<Vec<Arc<Awaits>>> = Mutex::new(Vec::new());

/// What is kept of a stream that this crate has made.
pub(crate) fn of_new(driver: &'static dyn Driver, device: Device) -> Result<Arc<Awaits>> {
    let mut all = ALL.lock();
    add(&mut all, driver, device, None, Company::alone(device))
}

/// What is kept of a stream that somebody else made, which may be known by another handle; or a stream that is gone may be known
/// by its pointer, and this is a new one.
pub(crate) fn of_borrowed(
    driver: &'static dyn Driver,
    device: Device,
    stream: &RawStream,
) -> Result<Arc<Awaits>> {
    let mut all = ALL.lock();
    let raw = stream.as_raw();
    let known = all.iter().rev().find(|one| is_known_by(one, device, raw));
    let known = known.cloned();
    let again = |known: Arc<Awaits>| {
        known.handles.fetch_add(1, Ordering::AcqRel);
        known
    };
    // Whoever destroys one has let go of its handles.
    if let Some(known) = &known
        && known.handles.load(Ordering::Acquire) > 0
    {
        return Ok(again(known.clone()));
    }
    let id = driver.stream_id(stream)?;
    if let Some(known) = &known
        && id.is_some()
        && known.borrowed.is_some_and(|borrowed| borrowed.id == id)
    {
        return Ok(again(known.clone()));
    }
    let blocking = Company::of_blocking(device);
    let is_blocking = driver.is_blocking(stream)? && !crate::sabotage::is("company");
    let mut company = match is_blocking {
        true => blocking.clone(),
        false => Company::alone(device),
    };
    // The driver does not tell them apart. One that has nothing left to do waits for nobody; another one waits for all that
    // the one before does, perhaps, but says nothing for it: it may have done what that one never will.
    if let Some(known) =
        known.filter(|known| id.is_none() && Arc::ptr_eq(&known.company, &blocking) == is_blocking)
    {
        if known.is_over() {
            return Ok(again(known));
        }
        if !driver.is_idle(stream)? {
            company = known.company.clone();
        }
    }
    let borrowed = Some(Borrowed { raw, id });
    add(&mut all, driver, device, borrowed, company)
}

fn add(
    all: &mut Vec<Arc<Awaits>>,
    driver: &'static dyn Driver,
    device: Device,
    borrowed: Option<Borrowed>,
    company: Arc<Company>,
) -> Result<Arc<Awaits>> {
    /// The number that was given last, and one.
    static NEXT: AtomicU8 = AtomicU8::new(0);
    forget(all);
    let next = NEXT.load(Ordering::Relaxed);
    let is_free = |number: &u8| all.iter().all(|one| one.number != *number);
    let number = (next..NO_NUMBER).chain(0..next).find(is_free);
    let number = number.unwrap_or(NO_NUMBER);
    let made = Awaits::new(driver, device, borrowed, number, company)?;
    if number != NO_NUMBER {
        NEXT.store((number + 1) % NO_NUMBER, Ordering::Relaxed);
    }
    all.push(made.clone());
    Ok(made)
}

fn is_known_by(one: &Awaits, device: Device, raw: usize) -> bool {
    one.device == device && one.borrowed.is_some_and(|borrowed| borrowed.raw == raw)
}

/// Those of which nothing comes any more.
fn forget(all: &mut Vec<Arc<Awaits>>) {
    all.retain(|one| {
        let is_over = one.is_over();
        if is_over {
            one.leave();
        }
        !is_over
    });
}

/// All of them, as they are now.
pub(crate) fn all() -> Vec<Arc<Awaits>> {
    ALL.lock().clone()
}

/// What a stream waits for that somebody else made, if anything is known of it. Nothing is asked of the driver: it may be gone.
#[cfg(feature = "cudarc")]
pub(crate) fn awaited_by(device: Device, borrowed: Borrowed) -> Option<Vec<Awaited>> {
    let all = ALL.lock();
    let is_it = |one: &&Arc<Awaits>| one.device == device && one.borrowed == Some(borrowed);
    let known = all.iter().rev().find(is_it).cloned();
    drop(all);
    known.map(|one| one.all())
}

/// Looks at all streams; called by the thread that watches the arena. `soon`: others can learn of work that is done by the ledger
/// alone.
pub(crate) fn look(soon: bool) {
    // First: each of these was recorded in one of the streams, or in one that was forgotten when all in it had happened.
    let unnumbered = ledger::recorded(NO_NUMBER);
    let all = all();
    all.iter().for_each(|one| one.look(soon));
    let mut without = all.iter().filter(|one| one.number == NO_NUMBER);
    if soon && without.all(|one| one.is_at_rest()) {
        ledger::set_all_done(unnumbered);
    }
    forget(&mut ALL.lock());
}

/// What this process waits for with a stream of that number, if it is known and may never happen.
pub(crate) fn may_be_lost(number: u8) -> bool {
    let all = ALL.lock();
    let known = all.iter().find(|one| one.number == number);
    known.is_some_and(|one| one.is_lost() || !one.is_empty())
}

/// Whether the stream of that number is known to be lost.
pub(crate) fn is_known_lost(number: u8) -> bool {
    let all = ALL.lock();
    all.iter().any(|one| one.number == number && one.is_lost())
}

/// The end of this process in peace: those streams that nobody has are done, if there is time; all of them, if the others are.
/// What is recorded without a number can then be said to be done as well.
pub(crate) fn end(others_are: bool, is_over: &mut dyn FnMut() -> bool) {
    let mut is_done = others_are;
    let unnumbered = ledger::recorded(NO_NUMBER);
    for one in all() {
        is_done &= one.is_left_done(is_over);
    }
    if is_done {
        ledger::set_all_done(unnumbered);
    }
}
