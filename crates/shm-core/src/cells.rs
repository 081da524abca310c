//! A bounded queue of cells for many producers and many consumers, any of which may be killed between two instructions.
//!
//! A cell is one control word ([`word`]) and 56 bytes of payload in one cache line.
//! The claim on a cell carries the claimer's [`Owner`], so whatever a process was doing when it
//! died, any survivor can finish it ([`Cells::reap`]). `tail` and `head` are hints that anyone may
//! advance; the cell's own word decides.
//!
//! ```text
//!            claim               publish              take               release
//!  FREE(p) ─────────> CLAIMED ───────────> READY(p) ────────> TAKING ───────────> FREE(p + capacity)
//!                        │                     ▲                 │
//!                        └─ reap               └─────────────────┘ hand_back, reap (sets R)
//!                           ──> FREE(p + capacity)
//!  FREE(p) ──> CLOSED(p)   by a consumer that finds the closed flag set
//! ```
//!
//! This file moves words. Waiting, waking and the leases of a message are the caller's; comments say whom each step notifies.
//!
//! **Orderings.** Every change of a word is a sequentially consistent read-modify-write. Its release
//! half hands the payload to the next acquire load of that word. Its place in the total order is
//! what waiting rests on: a waiter registers, fences, and then looks at the words; whoever changed
//! a word looks for waiters afterwards; so one of the two sees the other ([`event`](crate::event)).

use core::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

mod array;
mod idle;
mod outcome;

pub use array::{CLOSED_FLAG, Cell, CellArray, PAYLOAD_WORDS};
pub(crate) use array::{init, len, read, read_into, write};
pub use outcome::{Claim, Reaped, Take, Wake};

use crate::sync::{Atomic64, Memory};
pub use crate::word::Owner;
use crate::word::{self, CellState, HANDED_BACK, Ring};

/// Retries after which the memory must be damaged: each means that somebody else moved a word or a hint forward, which a
/// healthy queue cannot do this often between two of our loads.
const MANY_RETRIES: u32 = 1 << 20;

/// The queue over some array of cells.
#[derive(Copy, Clone, Debug)]
pub struct Cells<A: CellArray>(pub A);

impl<A: CellArray> Cells<A> {
    #[inline(always)]
    fn ring(&self) -> Ring {
        Ring {
            capacity: self.0.capacity(),
        }
    }

    /// Makes an empty queue of zeroed memory that nobody else sees yet.
    pub fn init(&self) {
        init(&self.0);
    }

    /// Claims the next free cell.
    ///
    /// Owes nothing to anybody yet; a process that dies now leaves a CLAIMED cell.
    #[inline]
    pub fn claim(&self, me: Owner) -> Claim {
        if self.is_closed() {
            return Claim::Closed;
        }
        A::M::retry_loop();
        for _ in 0..MANY_RETRIES {
            // Acquire pairs with `advance`: a tail of t comes with the claims of all below t.
            let tail = self.0.tail().load(Acquire);
            let (index, lap) = self.ring().split(tail);
            let cell = self.0.word(index);
            let seen = cell.load(Acquire);
            if seen == word::free(tail) {
                // Acquire pairs with the release of the message before: its reader is done with
                // the payload that we are about to overwrite.
                let claimed = word::claimed(me, lap);
                if cell
                    .compare_exchange(seen, claimed, SeqCst, Relaxed)
                    .is_ok()
                {
                    return Claim::At(tail);
                }
            } else if let Some(answer) = self.cannot_claim(tail, lap, seen) {
                return answer;
            }
            A::M::retry();
        }
        Claim::Damaged
    }

    /// Why the cell of `tail` is not free for it; `None`: it may be, look again.
    fn cannot_claim(&self, tail: u64, lap: u64, seen: u64) -> Option<Claim> {
        let hint = self.0.tail();
        let ahead = match word::decode(seen) {
            CellState::Closed { .. } => return Some(Claim::Closed),
            CellState::Ready { pos, .. } if pos < tail => return Some(Claim::Full),
            // The tail passes a position only once the cell has left it behind.
            CellState::Free { pos } if pos < tail => return Some(Claim::Damaged),
            CellState::Ready { .. } | CellState::Free { .. } => 0,
            CellState::Claimed { owner, lap: bits }
            | CellState::Taking {
                owner, lap: bits, ..
            } => {
                let ahead = self.ring().laps_ahead(bits, lap);
                // The bits of the lap decide only for a tail that is still the one we loaded.
                if ahead < 0 && hint.load(Acquire) == tail {
                    return Some(if ahead == -1 {
                        Claim::Pending(owner)
                    } else {
                        Claim::Damaged
                    });
                }
                ahead
            }
            CellState::Damaged => return Some(Claim::Damaged),
        };
        if ahead >= 0 {
            self.advance(hint, tail);
        }
        None
    }

    /// Writes the payload of a cell that the caller has claimed.
    #[inline]
    pub fn write(&self, pos: u64, payload: &[u64; PAYLOAD_WORDS]) {
        write(&self.0, pos, payload);
    }

    /// Reads the payload of a cell that the caller has claimed or taken.
    #[inline]
    pub fn read(&self, pos: u64) -> [u64; PAYLOAD_WORDS] {
        read(&self.0, pos)
    }

    /// Makes the message of a claimed cell ready.
    ///
    /// Owes *not empty* one notification; then, to pass on, *not full* one if it has waiters and
    /// [`next_is_free`](Self::next_is_free).
    #[inline]
    pub fn publish(&self, pos: u64) {
        // Release pairs with the loads of `take`: the payload comes with the word. Nobody but its
        // owner changes a claimed cell while that one lives, so nothing needs to be compared.
        self.0
            .word(self.ring().index(pos))
            .swap(word::ready(pos), SeqCst);
        self.advance(self.0.tail(), pos);
        // While the consumers are busy with this message and do not look at the next cell yet.
        let next = self.ring().index(self.ring().after(pos));
        A::M::fetch_for_writing(self.0.word(next));
    }

    /// Takes the next message, handed-back ones first.
    ///
    /// `seen_orphans` is the consumer's own memory of the orphan epoch and starts at any value that
    /// the epoch does not have, say `u64::MAX`. A process that dies now leaves a TAKING cell.
    #[inline]
    pub fn take(&self, me: Owner, seen_orphans: &mut u64) -> Take {
        // Acquire pairs with the growth in `reap` and `hand_back`: the epoch comes with the words
        // that were handed back before it. Without this look a message below `head` is never seen.
        let orphans = self.0.orphan_epoch().load(Acquire);
        if orphans != *seen_orphans {
            if let Some(taken) = self.take_orphan(me) {
                return taken;
            }
            // Loaded before the scan, so what is handed back behind the scan's back counts as new.
            *seen_orphans = orphans;
        }
        A::M::retry_loop();
        for _ in 0..MANY_RETRIES {
            let head = self.0.head().load(Acquire);
            let (index, lap) = self.ring().split(head);
            // Acquire pairs with `publish`.
            let seen = self.0.word(index).load(Acquire);
            if seen == word::ready(head) {
                if let Some(taken) = self.try_take(me, index, lap, seen) {
                    return taken;
                }
            } else if let Some(answer) = self.cannot_take(me, head, seen) {
                return answer;
            }
            A::M::retry();
        }
        Take::Damaged
    }

    /// A quick look at whether there is a message, to repeat while there is not. [`take`](Self::take) knows more cases.
    #[inline(always)]
    pub fn glance(&self) -> bool {
        let head = self.0.head().load(Acquire);
        self.0.word(self.ring().index(head)).load(Relaxed) == word::ready(head)
    }

    /// Swaps a READY word for TAKING.
    #[inline(always)]
    fn try_take(&self, me: Owner, index: u64, lap: u64, seen: u64) -> Option<Take> {
        let handed_back = seen & HANDED_BACK != 0;
        let CellState::Ready { pos, .. } = word::decode(seen) else {
            return None;
        };
        self.0
            .word(index)
            .compare_exchange(seen, word::taking(me, lap, handed_back), SeqCst, Relaxed)
            .ok()
            .map(|_| Take::At { pos, handed_back })
    }

    /// Looks at every cell for a message that was handed back.
    #[cold]
    fn take_orphan(&self, me: Owner) -> Option<Take> {
        (0..self.0.capacity()).find_map(|index| {
            let seen = self.0.word(index).load(Acquire);
            match word::decode(seen) {
                CellState::Ready {
                    pos,
                    handed_back: true,
                } if self.ring().index(pos) == index => {
                    self.try_take(me, index, self.ring().split(pos).1, seen)
                }
                _ => None,
            }
        })
    }

    /// What a word other than READY at `head` means; `None`: look again.
    fn cannot_take(&self, me: Owner, head: u64, seen: u64) -> Option<Take> {
        let hint = self.0.head();
        let (index, lap) = self.ring().split(head);
        let still = || hint.load(Acquire) == head;
        match word::decode(seen) {
            CellState::Ready { pos, .. } if pos <= head => {
                // Handed back at or below the head.
                if self.ring().index(pos) != index {
                    return Some(Take::Damaged);
                }
                return self.try_take(me, index, self.ring().split(pos).1, seen);
            }
            CellState::Free { pos } if pos == head => {
                // SeqCst pairs with `close`: a consumer that registered before the flag was set is
                // woken, one that registers later sees the flag here.
                if !self.is_closed() {
                    return Some(Take::Empty);
                }
                // From now on no producer passes this position. A failed swap: one was faster.
                self.0
                    .word(index)
                    .compare_exchange(seen, word::closed(head), SeqCst, Relaxed)
                    .ok()?;
                return self.last_look(me);
            }
            CellState::Closed { pos } if pos == head => return self.last_look(me),
            CellState::Free { pos } | CellState::Closed { pos } if pos < head => {
                return still().then_some(Take::Damaged);
            }
            CellState::Claimed { owner, lap: bits } => {
                let ahead = self.ring().laps_ahead(bits, lap);
                if ahead <= 0 {
                    // The bits of the lap decide only for a head that is still the one we loaded.
                    return still().then_some(if ahead == 0 {
                        Take::Pending(owner)
                    } else {
                        Take::Damaged
                    });
                }
            }
            CellState::Taking { lap: bits, .. } => {
                let ahead = self.ring().laps_ahead(bits, lap);
                if ahead < 0 {
                    // A message of the lap before is still being copied out, so nothing can have
                    // been claimed at the head.
                    return still().then_some(if ahead == -1 {
                        Take::Empty
                    } else {
                        Take::Damaged
                    });
                }
            }
            CellState::Damaged => return Some(Take::Damaged),
            CellState::Ready { .. } | CellState::Free { .. } | CellState::Closed { .. } => {}
        }
        self.advance(hint, head);
        None
    }

    /// What is left in a queue whose `head` cell is CLOSED; `None`: look again.
    ///
    /// Nothing is claimed any more, so a cell that is seen FREE stays so and one pass is enough.
    /// Whatever a consumer still holds may come back: the queue is drained only without it.
    fn last_look(&self, me: Owner) -> Option<Take> {
        let mut held_by = None;
        for index in 0..self.0.capacity() {
            let seen = self.0.word(index).load(Acquire);
            match word::decode(seen) {
                CellState::Ready { pos, .. } => {
                    let (own_index, lap) = self.ring().split(pos);
                    if own_index != index {
                        return Some(Take::Damaged);
                    }
                    return self.try_take(me, index, lap, seen);
                }
                CellState::Claimed { owner, .. } | CellState::Taking { owner, .. } => {
                    held_by = Some(owner);
                }
                CellState::Free { .. } | CellState::Closed { .. } => {}
                CellState::Damaged => return Some(Take::Damaged),
            }
        }
        Some(held_by.map_or(Take::Drained, Take::Pending))
    }

    /// Frees the cell of a message that the caller has taken.
    ///
    /// From here on the message is the caller's alone: if it dies now, the message is lost.
    /// Owes *not full* one notification; then, to pass on, *not empty* one if it has waiters and
    /// [`next_is_ready`](Self::next_is_ready). On [`Wake::All`] it owes both events everybody.
    #[inline]
    pub fn release(&self, pos: u64) -> Wake {
        let ring = self.ring();
        // Release pairs with the load in `claim`: our reads of the payload come before the next
        // writes of it.
        self.0
            .word(ring.index(pos))
            .swap(word::free(ring.next_lap(pos)), SeqCst);
        self.advance(self.0.head(), pos);
        // If the flag is set only after this load, then the closer's wake comes after the swap
        // above, and whoever it wakes sees the freed cell.
        if self.is_closed() {
            Wake::All
        } else {
            Wake::One
        }
    }

    /// Gives a message that the caller has taken back to the queue.
    ///
    /// Owes everybody on *not empty* a notification.
    pub fn hand_back(&self, pos: u64) {
        self.0
            .word(self.ring().index(pos))
            .swap(word::ready(pos) | HANDED_BACK, SeqCst);
        // After the word, so that a consumer that knows this epoch has had its chance to see it.
        self.0.orphan_epoch().fetch_add(1, SeqCst);
    }

    /// Finishes what a dead participant was doing in this queue.
    ///
    /// Any survivor may call it, several at once, and again after a reaper died. `dead` must be
    /// dead for certain, its leases' tickets resolved, and its row not given to anyone before this
    /// is done. Owes everybody on both events a notification, whatever it returns and even if
    /// nobody is counted as waiting: the dead may have taken a wake with it.
    pub fn reap(&self, dead: Owner) -> Reaped {
        let mut reaped = Reaped::default();
        for index in 0..self.0.capacity() {
            self.reap_cell(index, dead, &mut reaped);
        }
        // Always: an earlier reaper may have died between its last cell and this line.
        self.0.orphan_epoch().fetch_add(1, SeqCst);
        reaped
    }

    fn reap_cell(&self, index: u64, dead: Owner, reaped: &mut Reaped) {
        let ring = self.ring();
        let cell = self.0.word(index);
        A::M::retry_loop();
        for _ in 0..MANY_RETRIES {
            let seen = cell.load(Acquire);
            let Some((owner, lap)) = word::holder(seen) else {
                return;
            };
            if owner != dead {
                return;
            }
            // Loaded after the word; see `position_of` for why that finds the position.
            let tail = self.0.tail().load(Acquire);
            if let Some(pos) = ring.position_of(index, lap, tail) {
                let (new, count) = match word::decode(seen) {
                    CellState::Claimed { .. } => {
                        (word::free(ring.next_lap(pos)), &mut reaped.voided)
                    }
                    _ => (word::ready(pos) | HANDED_BACK, &mut reaped.handed_back),
                };
                // Against the exact word, epoch included: a failure means another reaper was here.
                if cell.compare_exchange(seen, new, SeqCst, Relaxed).is_ok() {
                    *count += 1;
                    return;
                }
            }
            A::M::retry();
        }
        reaped.damaged += 1;
    }

    /// Stops the queue from accepting messages; what it holds can still be taken.
    ///
    /// Owes everybody on both events a notification.
    pub fn close(&self) {
        self.0.closed().fetch_or(CLOSED_FLAG, SeqCst);
    }

    /// Whether [`close`](Self::close) was called.
    #[inline(always)]
    pub fn is_closed(&self) -> bool {
        self.0.closed().load(SeqCst) & CLOSED_FLAG != 0
    }

    /// Whether every cell was seen without a message, claim or taking, one after the other.
    pub fn is_clear(&self) -> bool {
        (0..self.0.capacity()).all(|index| {
            // SeqCst: what a consumer counted before it freed the cell is seen after this.
            let seen = self.0.word(index).load(SeqCst);
            matches!(
                word::decode(seen),
                CellState::Free { .. } | CellState::Closed { .. }
            )
        })
    }

    /// Whether the queue is closed and nothing is left in it or can come back to it.
    pub fn is_drained(&self) -> bool {
        if !self.is_closed() {
            return false;
        }
        // Closes the cell that the next claim would get, as a consumer at the head would.
        let tail = self.0.tail().load(Acquire);
        let cell = self.0.word(self.ring().index(tail));
        // A failed swap: somebody claimed or closed it, and the scan sees either.
        let _ = cell.compare_exchange(word::free(tail), word::closed(tail), SeqCst, Relaxed);
        let state = |index| word::decode(self.0.word(index).load(Acquire));
        // In two passes: only once a CLOSED cell was seen is a cell that is seen free free for good.
        let mut cells = 0..self.0.capacity();
        cells.any(|index| matches!(state(index), CellState::Closed { .. }))
            && (0..self.0.capacity()).all(|index| {
                matches!(
                    state(index),
                    CellState::Free { .. } | CellState::Closed { .. }
                )
            })
    }

    /// About how many messages there are, those being written and taken included.
    pub fn len(&self) -> u64 {
        len(&self.0)
    }

    /// Whether [`len`](Self::len) is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the message after this one is ready: after taking `pos`, another consumer's to have.
    #[inline]
    pub fn next_is_ready(&self, pos: u64) -> bool {
        let next = self.ring().after(pos);
        let seen = self.0.word(self.ring().index(next)).load(Acquire);
        seen & !HANDED_BACK == word::ready(next)
    }

    /// Whether the cell after this one is free: after publishing `pos`, another producer's to have.
    #[inline]
    pub fn next_is_free(&self, pos: u64) -> bool {
        let next = self.ring().after(pos);
        self.0.word(self.ring().index(next)).load(Acquire) == word::free(next)
    }

    /// Moves a hint past `pos`, if it stands there.
    #[inline(always)]
    fn advance(&self, hint: &<A::M as Memory>::U64, pos: u64) {
        // Release pairs with the acquire loads of the hint, which then see this cell's word as we
        // saw it. A failure means that somebody else has moved it.
        let _ = hint.compare_exchange(pos, self.ring().after(pos), SeqCst, Relaxed);
    }
}

/// Whether a control word is this owner's claim of this position (for the ticket of a lease).
#[inline]
pub fn is_claimed_by(word: u64, me: Owner, pos: u64, capacity: u64) -> bool {
    word == word::claimed(me, Ring { capacity }.split(pos).1)
}

/// Whether a control word is this owner's taking of this position (for the ticket of a lease).
#[inline]
pub fn is_taken_by(word: u64, me: Owner, pos: u64, capacity: u64) -> bool {
    word & !HANDED_BACK == word::taking(me, Ring { capacity }.split(pos).1, false)
}

#[cfg(test)]
pub(crate) mod heap;
#[cfg(test)]
mod tests;
