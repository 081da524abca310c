//! The streams of this process by their numbers: what marks call them.
//!
//! A number is given to another stream when nobody has the one before, and all that was recorded in that has happened; the
//! one that was free for the longest time comes first. The ledger's counts go on, so that what it says of a number is of one
//! stream only.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use parking_lot::Mutex;

use crate::awaits::Awaits;
use crate::company::Company;
use crate::device::Device;
use crate::driver::Driver;
use crate::error::Result;
use crate::ledger;
use crate::mark::NO_NUMBER;
#[cfg(feature = "cudarc")]
use crate::waiting::Awaited;

/// All streams of which something may still come.
pub(crate) static ALL: Mutex<Vec<Arc<Awaits>>> = Mutex::new(Vec::new());

/// What is kept of a stream: of a new one, or one that somebody else made, which may be known by another handle. `is_blocking`
/// says whether the driver orders it with others by itself, asked when it is not known.
pub(crate) fn of(
    driver: &'static dyn Driver,
    device: Device,
    borrowed: Option<usize>,
    is_blocking: impl FnOnce() -> Result<bool>,
) -> Result<Arc<Awaits>> {
    /// The number that was given last, and one.
    static NEXT: AtomicU8 = AtomicU8::new(0);
    let mut all = ALL.lock();
    // The latest: one of the same pointer may be of a stream that was destroyed.
    let known = borrowed.and_then(|raw| known_by(&all, device, raw));
    let blocking = Company::of_blocking(device);
    let company = match &known {
        Some(known) if known.handles.load(Ordering::Acquire) > 0 => known.company.clone(),
        _ if is_blocking()? && !crate::sabotage::is("company") => blocking.clone(),
        _ => Company::alone(device),
    };
    if let Some(known) = known
        && Arc::ptr_eq(&known.company, &blocking) == Arc::ptr_eq(&company, &blocking)
    {
        known.handles.fetch_add(1, Ordering::AcqRel);
        return Ok(known);
    }
    forget(&mut all);
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

fn known_by(all: &[Arc<Awaits>], device: Device, borrowed: usize) -> Option<Arc<Awaits>> {
    let is_it = |one: &&Arc<Awaits>| one.borrowed == Some(borrowed) && one.device == device;
    all.iter().rev().find(is_it).cloned()
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

/// What a stream waits for that somebody else made, by the driver's pointer, if anything is known of it. Nothing is asked of
/// the driver: it may be gone.
#[cfg(feature = "cudarc")]
pub(crate) fn awaited_by(device: Device, borrowed: usize) -> Option<Vec<Awaited>> {
    let known = known_by(&ALL.lock(), device, borrowed);
    known.map(|one| one.all())
}

/// Looks at all streams; called by the thread that watches the arena.
pub(crate) fn look() {
    all().iter().for_each(|one| one.look());
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
