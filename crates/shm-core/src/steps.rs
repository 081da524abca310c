//! The steps by which counts and lease entries change, over any memory.
//!
//! The same text runs on the arena and under the models of the tests, which stop and kill it between any two of its
//! operations. What each is for is in `docs/src/protocols.md`; the invariant they all
//! keep is *count ≥ records that count*: the count grows before a record is made, and a record goes before the count
//! shrinks. Where lines lie, what objects hold and whom to notify is left to the callers.

mod anew;

use core::sync::atomic::Ordering;

use crate::cells::{self, Owner};
use crate::doubt::{self, Looker};
use crate::lane;
pub use crate::lease::{Entry, EntryRef, Kind};
pub use crate::line::{COUNT_MAX, Counted, Words};
use crate::sync::Atomic64;
pub use anew::{acquire_free, claimant};

/// Why there is not one more reference.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// The line is another one by now, or nobody's.
    Stale(Counted),
    /// The count is at its limit.
    Overflow,
}

/// Adds one reference to a line that somebody holds.
///
/// Relaxed suffices, as in `Arc`: the reference that is there keeps the thing alive, and whoever receives the new one
/// does so through a publication that synchronizes.
///
/// # Errors
/// [`Refused`]; the count is as it was.
#[inline]
pub fn increment<W: Atomic64>(word: &W, generation: u64) -> Result<(), Refused> {
    let mut seen = word.load(Ordering::Relaxed);
    loop {
        let now = Counted::from_word(seen);
        if now.generation != generation || now.count == 0 {
            return Err(Refused::Stale(now));
        }
        if now.count == COUNT_MAX {
            return Err(Refused::Overflow);
        }
        let more = Counted::new(generation, now.count + 1).to_word();
        match word.compare_exchange(seen, more, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return Ok(()),
            Err(other) => seen = other,
        }
    }
}

/// Subtracts one from a count above 1. `false` if the count has become 1: the caller is the sole holder.
#[inline]
pub fn subtract_shared<W: Atomic64>(word: &W, generation: u64) -> bool {
    let mut seen = word.load(Ordering::Relaxed);
    loop {
        let now = Counted::from_word(seen);
        if now.generation != generation || now.count == 0 {
            return true;
        }
        if now.count == 1 {
            return false;
        }
        let less = Counted::new(generation, now.count - 1).to_word();
        // Release: pairs with the acquire of the last holder, which may free the thing.
        match word.compare_exchange(seen, less, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return true,
            Err(other) => seen = other,
        }
    }
}

/// Takes a count of 1 to 0, which makes the line free. `false` if it was not that any more.
#[inline]
pub fn free<W: Atomic64>(word: &W, generation: u64) -> bool {
    let last = Counted::new(generation, 1).to_word();
    let free = Counted::new(generation, 0).to_word();
    // Release: whoever makes it anew (acquire) does so after all uses. SeqCst: whoever waits for it registers and then
    // looks; we change it and then look for who waits.
    word.compare_exchange(last, free, Ordering::SeqCst, Ordering::Relaxed)
        .is_ok()
}

/// Makes a block anew for the owner of its chunk: ALLOC, (g, 0) → (`generation`, 1), HELD. `prepare` comes before the
/// block counts. `false` if it is not free; the entry is FREE then.
#[inline]
pub fn allocate<W: Atomic64>(
    entry: &EntryRef<'_, W>,
    epoch: u16,
    (line, generation): (u64, u64),
    word: &W,
    prepare: impl FnOnce(),
) -> bool {
    entry.record(epoch, Kind::Alloc, line, generation);
    crate::failpoint!("block.alloc.recorded");
    let free = word.load(Ordering::Relaxed);
    if Counted::from_word(free).count == 0 {
        prepare();
        let held = Counted::new(generation, 1).to_word();
        // Acquire: pairs with the release of whoever dropped the block; its accesses are over.
        if word
            .compare_exchange(free, held, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
        {
            crate::failpoint!("block.alloc.counted");
            entry.set(Kind::Held);
            return true;
        }
    }
    entry.clear(epoch);
    false
}

/// Gives back the reference that an own entry records, which is FREE afterwards. `free_last` takes a count of 1 to 0 and
/// says whether it did; `looker` is asked only where a kill may have left the count too high ([`doubt`]).
///
/// # Errors
/// What the line is instead, when there was no such reference.
#[inline]
pub fn give_back<W: Atomic64>(
    entry: &EntryRef<'_, W>,
    me: Owner,
    (line, generation): (u64, u64),
    words: Words<'_, W>,
    mut free_last: impl FnMut() -> bool,
    looker: &impl Looker,
) -> Result<(), Counted> {
    let word = words.count;
    let state = |kind| Entry {
        kind,
        epoch: me.epoch,
        line,
    };
    loop {
        // Acquire: pairs with the release of the other holders that let go.
        let now = Counted::from_word(word.load(Ordering::Acquire));
        if now.generation != generation || now.count == 0 {
            entry.clear(me.epoch);
            return Err(now);
        }
        if now.count == 1 {
            entry.store(state(Kind::Dropping));
            crate::failpoint!("block.drop.recorded");
            let freed = free_last();
            crate::failpoint!("block.drop.uncounted");
            if freed {
                entry.clear(me.epoch);
                return Ok(());
            }
            // Somebody opened it by its handle meanwhile.
            entry.store(state(Kind::Held));
        } else {
            // From here to the end a kill leaves it open whether the count is too high; its reaper looks into it.
            entry.store(state(Kind::Leaving));
            crate::failpoint!("block.drop.leaving");
            if subtract_shared(word, generation) {
                crate::failpoint!("block.drop.left");
                // After the subtraction: whoever has doubts and sees LEAVING waits until we have looked here, or are gone.
                if words.doubt.load(Ordering::SeqCst) == 0 {
                    entry.clear(me.epoch);
                    return Ok(());
                }
                let is_ours = looker.alone(|| {
                    entry.store(state(Kind::Looking));
                    doubt::look(entry, me, (line, generation), words, looker)
                });
                if !is_ours {
                    entry.clear(me.epoch);
                    return Ok(());
                }
            } else {
                entry.store(state(Kind::Held));
            }
        }
    }
}

/// One more reference to a line that somebody else holds: ENTERING, the count, HELD; FREE after an error.
///
/// # Errors
/// [`Refused`].
#[inline]
pub fn open<W: Atomic64>(
    entry: &EntryRef<'_, W>,
    epoch: u16,
    (line, generation): (u64, u64),
    words: Words<'_, W>,
    fence: impl FnOnce(),
) -> Result<(), Refused> {
    entry.record(epoch, Kind::Entering, line, generation);
    // Either who looks into a doubt sees the entry, or we see that it looks.
    fence();
    doubt::touch(words.doubt);
    crate::failpoint!("block.open.entering");
    if let Err(refused) = increment(words.count, generation) {
        entry.clear(epoch);
        return Err(refused);
    }
    crate::failpoint!("block.open.counted");
    entry.set(Kind::Held);
    Ok(())
}

/// One more reference to a line that the caller holds, in an entry of its own: ENTERING, the count, HELD; FREE after an
/// error.
///
/// Whoever looks into a doubt sees the reference that the caller has already, so nothing is touched.
///
/// # Errors
/// [`Refused`].
#[inline]
pub fn share<W: Atomic64>(
    entry: &EntryRef<'_, W>,
    epoch: u16,
    (line, generation): (u64, u64),
    word: &W,
) -> Result<(), Refused> {
    entry.record(epoch, Kind::Entering, line, generation);
    crate::failpoint!("block.share.entering");
    if let Err(refused) = increment(word, generation) {
        entry.clear(epoch);
        return Err(refused);
    }
    crate::failpoint!("block.share.counted");
    entry.set(Kind::Held);
    Ok(())
}

/// Gives back a reference that no entry records. A kill in between leaks it.
#[inline]
pub fn release_unrecorded<W: Atomic64>(
    word: &W,
    generation: u64,
    mut free_last: impl FnMut() -> bool,
) {
    while !subtract_shared(word, generation) && !free_last() {}
}

/// Whether a reference with a ticket counts as its dead participant's, by the word of the ticket's cell.
#[must_use]
pub fn ticket_counts(kind: Kind, word: u64, dead: Owner, position: u64, capacity: u64) -> bool {
    match kind {
        Kind::Giving => cells::is_claimed_by(word, dead, position, capacity),
        Kind::Recv => !cells::is_taken_by(word, dead, position, capacity),
        Kind::GivingLane => lane::lane_is_free(word, position),
        Kind::RecvLane => !lane::lane_is_ready(word, position),
        Kind::Free
        | Kind::Alloc
        | Kind::Held
        | Kind::Dropping
        | Kind::Leaving
        | Kind::Entering
        | Kind::Looking => false,
    }
}

/// Whether a dead participant was done making the entry's line anew; `claim` for a line in an object.
///
/// A block is made anew only by the owner of its chunk, so the generation alone tells. An end or a slot is made anew
/// by whoever comes first: there the line must still name the dead one as its claimant, who alone may change it then.
pub fn alloc_counts<W: Atomic64>(
    entry: &EntryRef<'_, W>,
    dead: Owner,
    word: &W,
    claim: Option<&W>,
) -> bool {
    if claim.is_some_and(|claim| claim.load(Ordering::Acquire) != claimant(dead)) {
        return false;
    }
    let now = Counted::from_word(word.load(Ordering::Acquire));
    now.generation == entry.generation.load(Ordering::Relaxed) && now.count > 0
}

/// Phase 1 of reaping, for one entry: a reference on its way becomes HELD if it `counts`, or nothing.
pub fn settle<W: Atomic64>(
    entry: &EntryRef<'_, W>,
    dead: Owner,
    mut counts: impl FnMut(Entry) -> bool,
) {
    loop {
        let seen = entry.load();
        let is_settled = matches!(seen.kind, Kind::Free | Kind::Held | Kind::Dropping);
        if seen.epoch != dead.epoch || is_settled || seen.kind.is_in_doubt() {
            return;
        }
        let settled = match (counts(seen), seen.kind) {
            (true, _) => Kind::Held,
            (false, Kind::Alloc) => Kind::Free,
            // Somebody with a doubt may have passed it by for ours.
            (false, _) => Kind::Looking,
        };
        // A failed swap means that another reaper was here (and died): look again.
        if entry.change(seen, seen.with(settled)) {
            return;
        }
    }
}

/// What a line number in an entry means to a reaper at this moment.
#[derive(Debug)]
pub enum Named<'a, W> {
    /// Nothing (any more).
    Nothing,
    /// A line whose turn comes in another wave.
    NotNow,
    /// A line.
    Line {
        /// Its count.
        words: Words<'a, W>,
        /// The second word's value.
        meta: u64,
    },
}

/// What a reaper needs of the arena to drop what a dead participant held.
pub trait Reaper<W>: Looker {
    /// What a line number means.
    fn named(&self, line: u64) -> Named<'_, W>;
    /// Takes a count of 1 to 0, and says whether it did.
    fn free_last(&self, line: u64, generation: u64) -> bool;
    /// Repeats what follows a count of 0.
    fn after_free(&self, line: u64, meta: u64);
    /// A reference beside others has gone.
    fn let_go(&self, line: u64);
}

/// Phase 3 of reaping, for one entry: drops what it holds, as the living do, but by compare-and-swap.
///
/// One reaper at a time ([`become_reaper`]): if another had cleared the entry after we read it, a count of 1 would be
/// somebody else's reference, and we would free it.
pub fn drop_entry<W: Atomic64>(entry: &EntryRef<'_, W>, dead: Owner, reaper: &impl Reaper<W>) {
    // A failed swap means that another reaper was here (and died): look again, never skip.
    loop {
        let seen = entry.load();
        let is_ours = matches!(seen.kind, Kind::Held | Kind::Dropping) || seen.kind.is_in_doubt();
        if seen.epoch != dead.epoch || !is_ours {
            return;
        }
        let generation = entry.generation.load(Ordering::Relaxed);
        let free = seen.with(Kind::Free);
        let (words, meta) = match reaper.named(seen.line) {
            Named::NotNow => return,
            Named::Nothing => {
                if entry.change(seen, free) {
                    return;
                }
                continue;
            }
            Named::Line { words, meta } => (words, meta),
        };
        let word = words.count;
        let now = Counted::from_word(word.load(Ordering::Acquire));
        match (seen.kind, now.count) {
            (kind, count) if count == 0 || now.generation != generation => {
                if kind == Kind::Dropping && now.generation == generation {
                    // Dropped, but perhaps nobody was told.
                    reaper.after_free(seen.line, meta);
                }
                if entry.change(seen, free) {
                    return;
                }
            }
            (Kind::Held, 1) => {
                entry.change(seen, seen.with(Kind::Dropping));
            }
            (Kind::Dropping, 1) => {
                reaper.free_last(seen.line, generation);
                crate::failpoint!("reap.freed");
            }
            (Kind::Held | Kind::Dropping, _) => {
                // Only the one whose swap succeeded subtracts.
                let leaving = seen.with(Kind::Leaving);
                if !entry.change(seen, leaving) {
                    continue;
                }
                crate::failpoint!("reap.leaving");
                let is_gone = subtract_shared(word, generation);
                crate::failpoint!("reap.left");
                if !is_gone {
                    entry.change(leaving, seen);
                    continue;
                }
                reaper.let_go(seen.line);
                // Before the look at the doubt: who has one either passes over this entry, or is seen.
                let looking = seen.with(Kind::Looking);
                let nobody_looks =
                    entry.change(leaving, looking) && words.doubt.load(Ordering::SeqCst) == 0;
                if nobody_looks && entry.change(looking, free) {
                    return;
                }
            }
            _ => {
                let looking = seen.with(Kind::Looking);
                if seen.kind != Kind::Looking {
                    doubt::raise(words.doubt);
                    if !entry.change(seen, looking) {
                        continue;
                    }
                } else if words.doubt.load(Ordering::SeqCst) == 0 {
                    if entry.change(seen, free) {
                        return;
                    }
                    continue;
                }
                // If nobody holds it, the entry is HELD now, and the reference is given back as any.
                let line = (seen.line, generation);
                if !doubt::look(entry, dead, line, words, reaper) && entry.change(looking, free) {
                    return;
                }
            }
        }
    }
}

/// The word of a row that names who reaps its dead occupant.
#[must_use]
pub const fn reaper_word(me: Owner, dead: Owner) -> u64 {
    (me.row as u64 + 1) | ((me.epoch as u64) << 16) | ((dead.epoch as u64) << 32)
}

/// Makes `me` the one that reaps `dead`, unless a live one is at it.
///
/// The word says which epoch it is about, so what the reaper of an earlier one left there stands in nobody's way. One
/// that is about a later epoch stays: `dead` is reaped then, and whoever is at its successor must not be joined by
/// another. (Two at once free a reference twice that somebody opens by its handle meanwhile.)
pub fn become_reaper<W: Atomic64>(
    word: &W,
    me: Owner,
    dead: Owner,
    is_alive: impl Fn(Owner) -> bool,
) -> bool {
    let mine = reaper_word(me, dead);
    loop {
        let seen = word.load(Ordering::Acquire);
        let about = (seen >> 32) as u16;
        // The difference, since epochs wrap.
        if seen != 0 && (about.wrapping_sub(dead.epoch) as i16) > 0 {
            return false;
        }
        if seen != 0 && seen != mine && about == dead.epoch {
            let other = Owner {
                row: (seen as u16).wrapping_sub(1),
                epoch: (seen >> 16) as u16,
            };
            if is_alive(other) {
                return false;
            }
        }
        // Threads of one process are kept apart by the arena's own lock, held by our caller.
        if word
            .compare_exchange(seen, mine, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
        {
            return true;
        }
    }
}
