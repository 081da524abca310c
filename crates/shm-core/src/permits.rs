//! Permits: words of which each says who holds it, so that what a dead process held can be given back.
//!
//! To acquire is one compare-and-swap of a word from FREE to HELD by me, and to release is one back: there is no moment
//! in between at which a kill could leave a permit taken by nobody. A mutex is one such word, a semaphore several, a
//! lock for readers and a writer is [`readers`](crate::readers). Counting alone would not do: a count does not say
//! whose part of it died.
//!
//! | bits | FREE | HELD, CLAIMED | NONE |
//! |---|---|---|---|
//! | 0–1 | state | state | state |
//! | 2 | L: its last holder died holding it | L (CLAIMED: was set before) | |
//! | 4–35 | with L: pid of who died | row 16, epoch 16 of the holder | |
//! | 36–63 | with L: the dead one's tag | the holder's tag | |
//!
//! ```text
//!           acquire(me)                    forget
//!   FREE ─────────────> HELD(me, tag) ─────────────> NONE ──── add ───> FREE
//!    ^ ^                   │  │
//!    │ └── release ────────┘  │
//!    └──── reap of me: FREE with L, my pid and my tag
//! ```
//!
//! **Orderings.** Every change is a sequentially consistent read-modify-write: its release half hands what the holder
//! wrote to the next one's acquire; its place in the total order is what waiting rests on ([`event`](crate::event)).
//! Whoever makes a word FREE owes the event of the waiters one notification; a reaper owes it everybody.

use core::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

use crate::cells::Owner;
use crate::sync::{Atomic64, Memory};

const FREE: u64 = 0;
const HELD: u64 = 1;
const CLAIMED: u64 = 2;
const NONE: u64 = 3;
const STATE: u64 = 0b11;
const LEFT: u64 = 0b100;
const ROW_SHIFT: u32 = 4;
const EPOCH_SHIFT: u32 = 20;
const TAG_SHIFT: u32 = 36;

/// Largest tag: 28 bits, enough for a thread id.
pub const TAG_MAX: u32 = (1 << 28) - 1;

/// What a holder that died left with its permit.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Hash)]
pub struct Left {
    /// Its process id.
    pub pid: u32,
    /// The tag it held the permit with.
    pub tag: u32,
}

/// What a word says.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Permit {
    /// Nobody has it.
    Free(Option<Left>),
    /// Somebody has it.
    Held {
        /// The participant.
        owner: Owner,
        /// What it noted with it: the thread, or a count.
        tag: u32,
    },
    /// Somebody is about to have it and keeps others from it (a writer that waits for readers).
    Claimed {
        /// The participant.
        owner: Owner,
        /// Its tag.
        tag: u32,
    },
    /// There is no permit here.
    None,
}

/// Reads a word. Every word is one of them.
#[must_use]
pub fn decode(word: u64) -> Permit {
    let tag = (word >> TAG_SHIFT) as u32;
    let owner = Owner {
        row: (word >> ROW_SHIFT) as u16,
        epoch: (word >> EPOCH_SHIFT) as u16,
    };
    match word & STATE {
        FREE => Permit::Free((word & LEFT != 0).then_some(Left {
            pid: (word >> ROW_SHIFT) as u32,
            tag,
        })),
        HELD => Permit::Held { owner, tag },
        CLAIMED => Permit::Claimed { owner, tag },
        _ => Permit::None,
    }
}

const fn free(left: Option<Left>) -> u64 {
    match left {
        None => FREE,
        Some(Left { pid, tag }) => {
            FREE | LEFT | (pid as u64) << ROW_SHIFT | ((tag & TAG_MAX) as u64) << TAG_SHIFT
        }
    }
}

const fn owned(state: u64, owner: Owner, tag: u32) -> u64 {
    state
        | (owner.row as u64) << ROW_SHIFT
        | (owner.epoch as u64) << EPOCH_SHIFT
        | ((tag & TAG_MAX) as u64) << TAG_SHIFT
}

/// A word of each state, for the fingerprint of what words look like.
pub(crate) const fn one_of_each(owner: Owner, pid: u32, tag: u32) -> [u64; 5] {
    [
        free(None),
        free(Some(Left { pid, tag })),
        owned(HELD, owner, tag),
        owned(CLAIMED, owner, tag) | LEFT,
        NONE,
    ]
}

/// How an attempt to acquire ended.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[must_use]
pub enum Acquired {
    /// The caller holds the permit of this word.
    At {
        /// Which word.
        index: usize,
        /// What the holder before left, if it died holding the permit.
        left: Option<Left>,
    },
    /// None is free; somebody who holds one.
    Busy(Option<Owner>),
}

/// Permits in some words; zeroed words are free ones.
#[derive(Debug)]
pub struct Permits<'a, M: Memory>(pub &'a [M::U64]);

impl<M: Memory> Copy for Permits<'_, M> {}
impl<M: Memory> Clone for Permits<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: Memory> Permits<'_, M> {
    /// Takes a free permit, looking from word `start` on, and notes `tag` with it.
    ///
    /// *Busy* means that each word was seen taken, one after the other. Whoever then registers as a waiter and looks again
    /// is woken for whatever becomes free behind its back.
    #[inline]
    pub fn acquire(&self, me: Owner, tag: u32, start: usize) -> Acquired {
        let mut holder = None;
        let words = self.0.len();
        for step in 0..words {
            let index = (start + step) % words;
            match self.acquire_at(index, me, tag) {
                Acquired::Busy(owner) => holder = holder.or(owner),
                acquired => return acquired,
            }
        }
        Acquired::Busy(holder)
    }

    /// Takes the permit of one word.
    #[inline]
    pub fn acquire_at(&self, index: usize, me: Owner, tag: u32) -> Acquired {
        self.take(index, owned(HELD, me, tag))
    }

    /// Keeps others from the permit of one word; [`confirm`](Self::confirm) makes it held.
    #[inline]
    pub(crate) fn claim(&self, index: usize, me: Owner, tag: u32) -> Acquired {
        self.take(index, owned(CLAIMED, me, tag))
    }

    fn take(&self, index: usize, mine: u64) -> Acquired {
        let word = &self.0[index];
        // Acquire, also where the swap below fails: nothing is taken from a word that is not ours.
        let mut seen = word.load(Acquire);
        loop {
            match decode(seen) {
                Permit::Free(left) => {
                    // A claim is not yet a holding: who dies with it passes on what it found.
                    let flag = if mine & STATE == CLAIMED {
                        seen & LEFT
                    } else {
                        0
                    };
                    match word.compare_exchange(seen, mine | flag, SeqCst, Acquire) {
                        Ok(_) => return Acquired::At { index, left },
                        Err(other) => seen = other,
                    }
                }
                Permit::Held { owner, .. } | Permit::Claimed { owner, .. } => {
                    return Acquired::Busy(Some(owner));
                }
                Permit::None => return Acquired::Busy(None),
            }
        }
    }

    /// Makes a claim a holding. `false`: the word does not say that the caller has the claim.
    #[inline]
    pub(crate) fn confirm(&self, index: usize, me: Owner, tag: u32) -> bool {
        let word = &self.0[index];
        let seen = word.load(Relaxed);
        seen & !LEFT == owned(CLAIMED, me, tag)
            && word
                .compare_exchange(seen, owned(HELD, me, tag), SeqCst, Relaxed)
                .is_ok()
    }

    /// Gives a claim up, with what was found when it was taken.
    #[inline]
    pub(crate) fn give_up(&self, index: usize, me: Owner, tag: u32, left: Option<Left>) -> bool {
        let word = &self.0[index];
        let seen = word.load(Relaxed);
        seen & !LEFT == owned(CLAIMED, me, tag)
            && word
                .compare_exchange(seen, free(left), SeqCst, Relaxed)
                .is_ok()
    }

    /// Gives a permit back; `left` is what the next holder is to be told. `false`: the word does not say that the caller
    /// holds it, and stays.
    ///
    /// Owes the waiters one notification.
    #[inline]
    pub fn release(&self, index: usize, me: Owner, tag: u32, left: Option<Left>) -> bool {
        // Nobody but its holder changes the word while that one lives; compared, so that a mistake hits nobody else.
        self.0[index]
            .compare_exchange(owned(HELD, me, tag), free(left), SeqCst, Relaxed)
            .is_ok()
    }

    /// Makes a held permit vanish. `false` as in [`release`](Self::release).
    #[inline]
    pub fn forget(&self, index: usize, me: Owner, tag: u32) -> bool {
        self.0[index]
            .compare_exchange(owned(HELD, me, tag), NONE, SeqCst, Relaxed)
            .is_ok()
    }

    /// Makes one more permit, where a word has none. `false`: there are as many as words.
    ///
    /// Owes the waiters one notification.
    pub fn add(&self) -> bool {
        self.0.iter().any(|word| {
            word.load(Relaxed) & STATE == NONE
                && word.compare_exchange(NONE, FREE, SeqCst, Relaxed).is_ok()
        })
    }

    /// Says of the words from `permits` on that there is no permit in them. Before anyone else sees them.
    pub fn init(&self, permits: usize) {
        for word in self.0.iter().skip(permits) {
            word.store(NONE, Relaxed);
        }
    }

    /// What a word says.
    #[inline]
    pub fn get(&self, index: usize) -> Permit {
        // SeqCst: also the second half of a Dekker pair, after the caller's own swap.
        decode(self.0[index].load(SeqCst))
    }

    /// What each word says, one after the other.
    pub fn iter(&self) -> impl Iterator<Item = Permit> + '_ {
        (0..self.0.len()).map(|index| self.get(index))
    }

    /// Forgets what a dead holder left with a free permit, and tells it.
    pub fn clear(&self, index: usize) -> Option<Left> {
        let word = &self.0[index];
        let seen = word.load(Acquire);
        let Permit::Free(Some(left)) = decode(seen) else {
            return None;
        };
        word.compare_exchange(seen, FREE, SeqCst, Relaxed)
            .ok()
            .map(|_| left)
    }

    /// Gives back what a dead participant held, each permit with the dead one's pid and tag. How many they were.
    ///
    /// Any survivor may call it, several at once, and again after a reaper died; `dead` must be dead for certain and its
    /// row not given to anyone before this is done. Owes everybody who waits a notification, whatever it answers and even
    /// if nobody is counted: the dead may have taken a wake with it.
    pub fn reap(&self, dead: Owner, pid: u32) -> u32 {
        let mut given_back = 0;
        for word in self.0 {
            let seen = word.load(Acquire);
            let back = match decode(seen) {
                Permit::Held { owner, tag } if owner == dead => free(Some(Left { pid, tag })),
                // It had not begun anything, but may have found that somebody before had.
                Permit::Claimed { owner, tag } if owner == dead => {
                    free((seen & LEFT != 0).then_some(Left { pid, tag }))
                }
                _ => continue,
            };
            // Against the exact word, epoch included: a failure means that another reaper was here.
            if word.compare_exchange(seen, back, SeqCst, Relaxed).is_ok() {
                given_back += 1;
            }
        }
        given_back
    }

    // ------------------------------------------------------------------------------------------ tallies
    // Words used the other way round: each belongs to a participant, and its tag counts.

    /// Adds one to the caller's own count, taking a word for it at first; then it answers what a dead participant had
    /// counted in that word.
    ///
    /// # Errors
    /// Who has a word, when all are others' (or the count is at its limit).
    pub fn count_up(&self, me: Owner) -> Result<Option<Left>, Option<Owner>> {
        if self.change_count(me, |tag| (tag < TAG_MAX).then_some(tag + 1)) {
            return Ok(None);
        }
        match self.acquire(me, 1, me.row.into()) {
            Acquired::At { left, .. } => Ok(left),
            Acquired::Busy(owner) => Err(owner),
        }
    }

    /// As [`reap`](Self::reap) for counts, of which so many are known to be nothing after all.
    pub fn reap_counts(&self, dead: Owner, pid: u32, mut void: u32) {
        for word in self.0 {
            let seen = word.load(Acquire);
            let Permit::Held { owner, tag } = decode(seen) else {
                continue;
            };
            if owner != dead {
                continue;
            }
            let less = void.min(tag);
            let tag = tag - less;
            let left = (tag > 0).then_some(Left { pid, tag });
            if word
                .compare_exchange(seen, free(left), SeqCst, Relaxed)
                .is_ok()
            {
                void -= less;
            }
        }
    }

    /// Takes one off the caller's own count. `false`: it is 0.
    ///
    /// Owes those who wait for all counts to be 0 a notification.
    pub fn count_down(&self, me: Owner) -> bool {
        self.change_count(me, |tag| tag.checked_sub(1))
    }

    fn change_count(&self, me: Owner, change: impl Fn(u32) -> Option<u32>) -> bool {
        let words = self.0.len();
        for step in 0..words {
            let word = &self.0[(usize::from(me.row) + step) % words];
            let mut seen = word.load(Acquire);
            while let Permit::Held { owner, tag } = decode(seen)
                && owner == me
                && let Some(count) = change(tag)
            {
                match word.compare_exchange(seen, owned(HELD, me, count), SeqCst, Acquire) {
                    Ok(_) => return true,
                    Err(other) => seen = other,
                }
            }
        }
        false
    }

    /// The sum of the counts of those who live.
    pub fn count(&self) -> u64 {
        self.iter()
            .map(|permit| match permit {
                Permit::Held { tag, .. } => u64::from(tag),
                _ => 0,
            })
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicU64;

    use super::*;
    use crate::sync::Shared;

    const ME: Owner = Owner { row: 3, epoch: 7 };
    const OTHER: Owner = Owner { row: 4, epoch: 7 };

    fn words<const N: usize>() -> [AtomicU64; N] {
        [const { AtomicU64::new(0) }; N]
    }

    fn index(acquired: Acquired) -> Option<usize> {
        match acquired {
            Acquired::At { index, .. } => Some(index),
            Acquired::Busy(_) => None,
        }
    }

    #[test]
    fn every_word_is_a_permit_and_reads_as_it_was_written() {
        for owner in [
            ME,
            Owner {
                row: 0xffff,
                epoch: 0xffff,
            },
        ] {
            for tag in [0, 1, TAG_MAX] {
                assert_eq!(decode(owned(HELD, owner, tag)), Permit::Held { owner, tag });
                let left = Some(Left { pid: u32::MAX, tag });
                assert_eq!(decode(free(left)), Permit::Free(left));
            }
        }
        assert_eq!(decode(0), Permit::Free(None));
    }

    #[test]
    fn there_are_as_many_permits_as_were_made() {
        let words = words::<4>();
        let permits = Permits::<Shared>(&words);
        permits.init(2);
        let taken = [0, 1, 2].map(|start| index(permits.acquire(ME, 9, start)));
        assert_eq!(taken, [Some(0), Some(1), None]);
        assert_eq!(permits.acquire(OTHER, 0, 0), Acquired::Busy(Some(ME)));
        assert!(permits.add() && permits.add() && !permits.add());
        assert_eq!(index(permits.acquire(OTHER, 0, 0)), Some(2));
        assert!(!permits.release(2, ME, 0, None), "it is another's");
        assert!(!permits.release(0, ME, 8, None), "it is another thread's");
        assert!(permits.release(0, ME, 9, None));
        assert!(permits.forget(1, ME, 9) && permits.add() && !permits.add());
    }

    #[test]
    fn what_a_dead_one_held_comes_back_with_its_name_once() {
        let words = words::<3>();
        let permits = Permits::<Shared>(&words);
        assert_eq!(index(permits.acquire(ME, 5, 0)), Some(0));
        assert_eq!(index(permits.acquire(OTHER, 6, 0)), Some(1));
        assert_eq!(
            permits.reap(Owner { epoch: 6, ..ME }, 1),
            0,
            "an earlier user of the row"
        );
        assert_eq!(permits.reap(ME, 77), 1);
        assert_eq!(permits.reap(ME, 77), 0);
        let left = Some(Left { pid: 77, tag: 5 });
        assert_eq!(
            permits.acquire(OTHER, 0, 0),
            Acquired::At { index: 0, left }
        );
        assert!(permits.release(0, OTHER, 0, left));
        assert_eq!(permits.clear(0), left);
        assert_eq!(
            permits.acquire(OTHER, 0, 0),
            Acquired::At {
                index: 0,
                left: None
            }
        );
    }

    #[test]
    fn counts_are_each_participants_own_and_stay_when_it_dies() {
        let words = words::<2>();
        let tallies = Permits::<Shared>(&words);
        assert!(!tallies.count_down(ME), "nothing was counted");
        for who in [ME, ME, ME, OTHER] {
            assert_eq!(tallies.count_up(who), Ok(None));
        }
        let third = Owner { row: 9, epoch: 1 };
        assert!(tallies.count_up(third).is_err(), "both words are taken");
        assert!(tallies.count_down(ME));
        assert_eq!(tallies.count(), 3);
        tallies.reap_counts(ME, 5, 1);
        assert_eq!(tallies.count(), 1);
        let left = Some(Left { pid: 5, tag: 1 });
        assert!(tallies.iter().any(|permit| permit == Permit::Free(left)));
        assert_eq!(
            tallies.count_up(third),
            Ok(left),
            "told to whoever takes the word over"
        );
    }
}
