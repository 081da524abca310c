//! The moment before a receiver looks for a message that is probably not there yet.
//!
//! To look at a cell takes its line from the producer, who then has to fetch it again before it can write: a hand-over
//! waits for two transfers of the line instead of one. So a receiver that had to wait for its last messages does not look
//! for the next one at once. The producer asks for the line when it has published the message before, and if nobody looks
//! meanwhile it still has it when it writes.
//!
//! How long the moment is, each end learns from its first looks. A message that was not there makes it longer, one that was
//! there makes it shorter by a quarter of that, so that about one look in five comes too early and the others come just behind
//! the message: what is early costs a transfer, what is late only what it is late. What comes much later than a moment may
//! last, or was there before it, takes it away.

use std::hint::black_box;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// How many multiplications, each of which waits for the one before (three or four cycles, about a nanosecond), the moment
/// may last.
const LONGEST: u16 = 160;
/// Parts of a multiplication that the moment is counted in.
const PARTS: u16 = 32;
/// By how many parts a message that was there makes the moment shorter,
const SHORTER: u16 = 1;
/// one that was not, longer,
const LONGER: u16 = 4;
/// and one that was not after [`ROW`] others that were not.
const MUCH_LONGER: u16 = 160;
const ROW: u16 = 8;
/// So many multiplications more before the look that follows one that was too early: by that the other side has lost time.
const ONCE_MORE: u32 = 10;
/// After how many messages in a row that were there the moment shrinks faster and faster.
const CHANCE: u16 = 64;
/// How many messages in a row must have come soon after the first look for a moment to begin.
const BEGIN: u16 = 4;
/// How many messages that came much later end it, each less half of one that was there.
const PATIENCE: u16 = 8;
/// Glances, a nanosecond or two each, within which a message came soon.
const SOON: u32 = 256;

/// When a message was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// At the first look.
    AtOnce = 1,
    /// Soon after it.
    Soon,
    /// Later.
    Later,
}

impl Seen {
    #[inline]
    fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::AtOnce),
            2 => Some(Self::Soon),
            3 => Some(Self::Later),
            _ => None,
        }
    }
}

/// What an end knows of the messages that it waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Known {
    /// Parts of a multiplication; 0 for no moment.
    moment: u16,
    /// Messages in a row that were there at the first look.
    hits: u16,
    /// Messages in a row that came soon after it.
    misses: u16,
    /// Twice the messages that came much later, less those that were there.
    later: u16,
}

impl Known {
    #[inline]
    fn from_bits(bits: u64) -> Self {
        let part = |index: u32| (bits >> (16 * index)) as u16;
        Self {
            moment: part(0),
            hits: part(1),
            misses: part(2),
            later: part(3),
        }
    }

    #[inline]
    fn to_bits(self) -> u64 {
        let part = |value: u16, index: u32| u64::from(value) << (16 * index);
        part(self.moment, 0) | part(self.hits, 1) | part(self.misses, 2) | part(self.later, 3)
    }

    /// How many multiplications to wait before the next look.
    #[inline]
    fn steps(self) -> u32 {
        let once_more = if self.misses == 1 { ONCE_MORE } else { 0 };
        match self.moment {
            0 => 0,
            moment => u32::from(moment / PARTS) + once_more,
        }
    }

    #[inline]
    fn after(mut self, seen: Seen) -> Self {
        match seen {
            Seen::AtOnce => {
                self.misses = 0;
                self.hits = self.hits.saturating_add(1);
                self.later = self.later.saturating_sub(1);
                let faster = self.hits.saturating_sub(CHANCE).max(1);
                self.moment = self.moment.saturating_sub(SHORTER.saturating_mul(faster));
            }
            Seen::Soon => {
                self.hits = 0;
                self.misses = self.misses.saturating_add(1);
                if self.moment > 0 || self.misses >= BEGIN {
                    let longer = if self.misses > ROW {
                        MUCH_LONGER
                    } else {
                        LONGER
                    };
                    self.moment = (self.moment + longer).min(LONGEST * PARTS);
                }
            }
            Seen::Later => {
                (self.hits, self.misses) = (0, 0);
                self.later += 2;
                if self.later >= 2 * PATIENCE {
                    self = Self::default();
                }
            }
        }
        self
    }
}

/// How long the next moment is. Threads that share the end at worst guess for each other.
#[derive(Debug, Default)]
pub(crate) struct Lull {
    known: AtomicU64,
    /// When the last message was seen (0: not known). It is learnt from only before the next one: then there is time.
    seen: AtomicU8,
}

/// Each end learns for itself.
impl Clone for Lull {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Lull {
    /// Sits the moment out, where there is one and the end may spin. How many multiplications that was.
    #[inline]
    pub(crate) fn sit_out(&self, may_spin: impl FnOnce() -> bool) -> u32 {
        // Relaxed, here and below: nothing else is told by these.
        let mut known = Known::from_bits(self.known.load(Ordering::Relaxed));
        if let Some(seen) = Seen::from_code(self.seen.load(Ordering::Relaxed)) {
            self.seen.store(0, Ordering::Relaxed);
            known = known.after(seen);
            self.known.store(known.to_bits(), Ordering::Relaxed);
        }
        let steps = known.steps();
        if steps == 0 || !may_spin() {
            return 0;
        }
        multiply(steps);
        steps
    }

    /// There was a message at the first look.
    #[inline]
    pub(crate) fn found(&self) {
        self.seen.store(Seen::AtOnce as u8, Ordering::Relaxed);
    }

    /// There was none; it came after so many glances, or was not glanced for that long.
    #[inline]
    pub(crate) fn found_after(&self, glances: u32) {
        let seen = if glances <= SOON {
            Seen::Soon
        } else {
            Seen::Later
        };
        self.seen.store(seen as u8, Ordering::Relaxed);
    }
}

/// Spends time without touching memory that others see, in finer steps than a pause of the processor, which takes 3 to 50 ns.
fn multiply(steps: u32) {
    let mut product = black_box(1_u64);
    for _ in 0..steps {
        product = black_box(product).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    black_box(product);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An end whose messages come so many multiplications after it begins to wait, one after the other: how many it waited
    /// before each first look, and how many looks came too early.
    fn waits(lull: &Lull, arrivals: impl IntoIterator<Item = u32>) -> (Vec<u32>, usize) {
        let mut early = 0;
        let waited = arrivals
            .into_iter()
            .map(|arrival| {
                let steps = lull.sit_out(|| true);
                if steps >= arrival {
                    lull.found();
                } else {
                    early += 1;
                    lull.found_after(arrival - steps);
                }
                steps
            })
            .collect();
        (waited, early)
    }

    /// Numbers without a pattern below `below`, the same in each run.
    fn scattered(below: u32, count: usize) -> impl Iterator<Item = u32> {
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        std::iter::repeat_with(move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % u64::from(below)) as u32
        })
        .take(count)
    }

    fn always(arrival: u32, count: usize) -> impl Iterator<Item = u32> {
        std::iter::repeat_n(arrival, count)
    }

    #[test]
    fn the_look_comes_just_behind_messages_that_always_take_the_same_time() {
        let lull = Lull::default();
        // Later ones after earlier ones, too: what is learnt can be unlearnt.
        for arrival in [40, 130, 150, 70, 131] {
            waits(&lull, always(arrival, 500));
            let (waited, early) = waits(&lull, always(arrival, 1000));
            let mean = waited.iter().sum::<u32>() / 1000;
            assert!(
                (arrival - 1..arrival + 4).contains(&mean),
                "{mean} multiplications for messages that come after {arrival}"
            );
            assert!(early < 250, "{early} of 1000 looks came too early");
        }
    }

    #[test]
    fn messages_that_vary_a_little_are_mostly_there_at_the_first_look() {
        let lull = Lull::default();
        let arrivals = || scattered(20, 2000).map(|more| 100 + more);
        waits(&lull, arrivals());
        let (waited, early) = waits(&lull, arrivals());
        assert!(
            (200..600).contains(&early),
            "{early} of 2000 looks came too early"
        );
        assert!(waited.iter().all(|steps| (100..150).contains(steps)));
    }

    #[test]
    fn messages_at_random_end_the_moment() {
        let lull = Lull::default();
        waits(&lull, always(100, 500));
        assert!(lull.sit_out(|| true) > 0);
        waits(&lull, scattered(4000, 200).map(|more| 200 + more));
        let (waited, _) = waits(&lull, scattered(4000, 10_000).map(|more| 200 + more));
        let waited = waited.iter().filter(|&&steps| steps > 0).count();
        assert!(waited < 100, "{waited} of 10,000 looks were put off");
    }

    #[test]
    fn a_single_late_message_changes_nothing() {
        let lull = Lull::default();
        waits(&lull, always(100, 500));
        for _ in 0..100 {
            waits(&lull, [50_000]);
            let (waited, early) = waits(&lull, always(100, 16));
            assert!(waited.iter().all(|steps| (99..125).contains(steps)));
            assert!(early < 8);
        }
    }

    #[test]
    fn messages_that_are_there_cost_no_moment() {
        let lull = Lull::default();
        let (waited, _) = waits(&lull, always(0, 1000));
        assert_eq!(waited, [0; 1000]);

        // Of an end that has waited before, the moment is soon gone.
        waits(&lull, always(150, 500));
        waits(&lull, always(0, 250));
        let (waited, _) = waits(&lull, always(0, 1000));
        assert_eq!(waited, [0; 1000]);
    }

    #[test]
    fn no_moment_is_longer_than_the_longest() {
        let lull = Lull::default();
        for _ in 0..100_000 {
            let steps = lull.sit_out(|| true);
            assert!(steps <= u32::from(LONGEST) + ONCE_MORE);
            lull.found_after(SOON);
        }
        assert_eq!(lull.sit_out(|| true), u32::from(LONGEST));
    }

    #[test]
    fn an_end_that_may_not_spin_does_not_wait() {
        let lull = Lull::default();
        waits(&lull, always(100, 500));
        assert_eq!(lull.sit_out(|| false), 0);
        assert!(lull.sit_out(|| true) > 0);
        assert_eq!(lull.clone().sit_out(|| true), 0);
    }

    #[test]
    fn what_is_known_survives_its_bits() {
        let known = Known {
            moment: LONGEST * PARTS,
            hits: u16::MAX,
            misses: 3,
            later: 15,
        };
        assert_eq!(Known::from_bits(known.to_bits()), known);
    }
}
