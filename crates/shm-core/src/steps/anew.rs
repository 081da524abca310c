//! An end or a slot made anew by whoever comes first.

use core::sync::atomic::Ordering;

use crate::cells::Owner;
use crate::lease::{EntryRef, Kind};
use crate::line::Counted;
use crate::sync::Atomic64;

/// The word by which a line names its claimant.
#[inline]
pub const fn claimant(owner: Owner) -> u64 {
    (owner.row as u64 + 1) | ((owner.epoch as u64) << 16)
}

/// Puts a participant into a line's claim, if nobody who is still there is in it.
fn become_claimant<W: Atomic64>(claim: &W, me: Owner, is_present: impl Fn(Owner) -> bool) -> bool {
    let mut seen = 0;
    loop {
        match claim.compare_exchange(seen, claimant(me), Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return true,
            Err(other) => {
                let there = Owner {
                    row: (other as u16).wrapping_sub(1),
                    epoch: (other >> 16) as u16,
                };
                if other != 0 && is_present(there) {
                    return false;
                }
                seen = other;
            }
        }
    }
}

/// Makes an end or a slot anew for whoever comes first: (g, 0) → (g + 1, 1), and answers the new generation. `None` if
/// it is not free, or somebody is making it anew at this moment; the entry is FREE then.
///
/// Several participants may try at once, so the generation in an entry would not tell whose line it has become when
/// one of them is killed. Hence the line's claimant, who alone may make it anew.
#[inline]
pub fn acquire_free<W: Atomic64>(
    entry: &EntryRef<'_, W>,
    me: Owner,
    line: u64,
    (word, claim): (&W, &W),
    is_present: impl Fn(Owner) -> bool,
) -> Option<u64> {
    // Recorded before the claim, so that no claim is without a record; the generation is one that no line has.
    entry.record(me.epoch, Kind::Alloc, line, u64::MAX);
    crate::failpoint!("line.acquire.recorded");
    if !become_claimant(claim, me, is_present) {
        entry.clear(me.epoch);
        return None;
    }
    crate::failpoint!("line.acquire.claimed");
    // Acquire: pairs with the release of whoever dropped it; its accesses are over.
    let seen = word.load(Ordering::Acquire);
    let free = Counted::from_word(seen);
    let generation = free.next_generation();
    entry.record(me.epoch, Kind::Alloc, line, generation);
    let held = Counted::new(generation, 1).to_word();
    let won = free.count == 0
        && word
            .compare_exchange(seen, held, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok();
    crate::failpoint!("line.acquire.counted");
    if won {
        entry.set(Kind::Held);
    } else {
        entry.clear(me.epoch);
    }
    // Release, and last: while the line names us, our entry may be judged by it.
    claim.store(0, Ordering::Release);
    won.then_some(generation)
}
