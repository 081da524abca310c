//! Counts that may be too high, because a participant was killed while it changed one.
//!
//! The lease entry of the dead one says so: LEAVING or ENTERING, and nobody can tell on which side of the change it died. So
//! the reference is left counted, and the line is *in doubt* from then on. Whoever lets go of such a line (the dead one's
//! reaper first) looks whether anybody is left that holds it. If nobody is, whatever is still counted is nobody's, and the
//! one who looks takes it over and gives it back.
//!
//! That nobody holds a line is seen although others work meanwhile. A reference is in an entry or in a cell, and the two
//! ways to get one that was not there before the look leave a trace: who takes a message *touches* the doubt of each line
//! it names before the cell is freed, and so does who opens a line by its handle. So: cells, then entries, then cells once
//! more, and then a swap that fails if anybody touched it. A reference that stayed where it was is seen by one of the
//! first two; one that went from an entry into a cell by the third; one that was taken out of a cell has left its trace,
//! unless that began before, and then its cell still shows it or its entry does.
//!
//! Not for slots: who takes one doesn't look at its line, and it is never held twice, so no change of it leaves a doubt.

use core::sync::atomic::Ordering;

use crate::cells::Owner;
use crate::lease::{EntryRef, Kind};
use crate::line::Counted;
use crate::steps::{Words, claimant};
use crate::sync::Atomic64;

/// The count may be too high, and nobody looks into it.
pub(crate) const DOUBTFUL: u64 = 1;
/// Nobody held it, and who looked is about to take over what is counted.
pub(crate) const TAKEN: u64 = 1 << 63;

/// The word while this participant looks.
pub(crate) const fn looking(who: Owner) -> u64 {
    claimant(who) << 1
}

/// The count may be too high.
pub(crate) fn raise<W: Atomic64>(doubt: &W) {
    // Any other word says so already.
    let _ = doubt.compare_exchange(0, DOUBTFUL, Ordering::SeqCst, Ordering::SeqCst);
}

/// Tells who looks whether anybody holds the line that somebody does.
///
/// The load is of the line that the caller looks at anyway. It comes after the caller has seen the message in its cell; who
/// looks stored its word and then saw that cell without the message (both sequentially consistent, and a message comes into
/// a cell by a later store), so the caller sees that word.
#[inline]
pub fn touch<W: Atomic64>(doubt: &W) {
    let seen = doubt.load(Ordering::SeqCst);
    if seen > DOUBTFUL {
        tell(doubt, seen);
    }
}

#[cold]
fn tell<W: Atomic64>(doubt: &W, mut seen: u64) {
    while seen > DOUBTFUL && seen & TAKEN == 0 {
        match doubt.compare_exchange(seen, DOUBTFUL, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => return,
            Err(other) => seen = other,
        }
    }
}

/// What a look needs of the arena.
pub trait Looker {
    /// Whether an entry that is neither FREE nor LOOKING, or a message in a cell, names the line; by the passes of the
    /// [module](self). It waits for a living participant's entry that says something for a moment only.
    fn is_named(&self, line: u64, generation: u64) -> bool;

    /// Keeps other threads of this process out, which would take our word in the line for theirs.
    fn alone<R>(&self, act: impl FnOnce() -> R) -> R {
        act()
    }
}

/// A HELD entry of a dead participant that was killed when it had just taken the reference over: the line says so no
/// longer. Comes before any of its entries is looked into.
pub fn settle<'a, W: Atomic64 + 'a>(
    entry: &EntryRef<'_, W>,
    dead: Owner,
    doubt: impl FnOnce(u64) -> Option<&'a W>,
) {
    let seen = entry.load();
    if seen.kind == Kind::Held
        && seen.epoch == dead.epoch
        && let Some(doubt) = doubt(seen.line)
    {
        let taken = TAKEN | looking(dead);
        let _ = doubt.compare_exchange(taken, DOUBTFUL, Ordering::SeqCst, Ordering::SeqCst);
    }
}

/// Looks whether anybody holds the line that a LOOKING entry of `who` names. If nobody does and yet it is counted, the entry
/// is HELD afterwards, for one of those counts, and the answer is `true`.
///
/// `who` is the entry's participant. Of its threads (or, if it is dead, of its reapers) one looks at a time; of several
/// participants the one that began last goes on.
#[cold]
pub fn look<W: Atomic64>(
    entry: &EntryRef<'_, W>,
    who: Owner,
    (line, generation): (u64, u64),
    words: Words<'_, W>,
    looker: &impl Looker,
) -> bool {
    let Words { count, doubt } = words;
    let is_gone = || {
        let now = Counted::from_word(count.load(Ordering::SeqCst));
        now.generation != generation || now.count == 0
    };
    if is_gone() {
        // The line is somebody else's, or will be, and so is its doubt.
        return false;
    }
    let mine = looking(who);
    let mut seen = doubt.load(Ordering::SeqCst);
    while seen != TAKEN | mine {
        // Another has taken it over. It gives it back, or its reaper does, and then looks again.
        if seen & TAKEN != 0 {
            return false;
        }
        match doubt.compare_exchange(seen, mine, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => {
                crate::failpoint!("doubt.looking");
                // In this order: who was the last to hold it has counted down before it was seen no more.
                if looker.is_named(line, generation) || is_gone() {
                    let _ =
                        doubt.compare_exchange(mine, DOUBTFUL, Ordering::SeqCst, Ordering::SeqCst);
                    return false;
                }
                // From here on nobody can get hold of it but by an entry of `who`.
                let taken = TAKEN | mine;
                if doubt
                    .compare_exchange(mine, taken, Ordering::SeqCst, Ordering::SeqCst)
                    .is_err()
                {
                    return false;
                }
                crate::failpoint!("doubt.taken");
                seen = taken;
            }
            Err(other) => seen = other,
        }
    }
    // Taken over, by us or by one of us that was killed right then.
    let looking = entry.load();
    let held = entry.change(looking, looking.with(Kind::Held));
    crate::failpoint!("doubt.held");
    doubt.store(DOUBTFUL, Ordering::SeqCst);
    held
}
