//! The word of a barrier: how many have arrived in which round.
//!
//! Arriving, and starting the next round with the last arrival, are one swap of one word, so a kill leaves nothing half
//! done. An arrival does not name its process: if one dies the barrier is broken, as Python has it, until it is reset.
//! Whether it is broken is kept beside this word by those who bury the dead (the object's *bereaved* mark).
//!
//! Bits 0–30 arrivals, bit 31 whether the round before ended by a reset, bits 32–63 the round.

use core::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::sync::{Atomic64, Memory};

const ARRIVED: u64 = 0x7fff_ffff;
const RESET: u64 = 0x8000_0000;

/// A barrier's word.
#[derive(Debug)]
pub struct Rounds<'a, M: Memory>(pub &'a M::U64);

/// How an arrival ended.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[must_use]
pub enum Arrived {
    /// The caller was the last of its round. Owes everybody a notification.
    Last,
    /// Others are missing in this round.
    In(u32),
}

/// How a round stands.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Round {
    /// Not all have arrived.
    Open,
    /// All have.
    Over,
    /// It was reset.
    Reset,
}

impl<M: Memory> Rounds<'_, M> {
    /// One more has arrived, of `n`.
    pub fn arrive(&self, n: u32) -> Arrived {
        M::retry_loop();
        loop {
            let seen = self.0.load(SeqCst);
            let (round, arrived) = (seen >> 32, seen & ARRIVED);
            let last = arrived + 1 >= u64::from(n);
            let next = if last {
                u64::from((round as u32).wrapping_add(1)) << 32
            } else {
                seen + 1
            };
            // Its release half hands over what was done before the barrier, to the loads of `stand`.
            if self.0.compare_exchange(seen, next, SeqCst, Relaxed).is_ok() {
                return if last {
                    Arrived::Last
                } else {
                    Arrived::In(round as u32)
                };
            }
            M::retry();
        }
    }

    /// How `round` stands, for one who has arrived in it.
    pub fn stand(&self, round: u32) -> Round {
        let seen = self.0.load(SeqCst);
        match ((seen >> 32) as u32).wrapping_sub(round) {
            0 => Round::Open,
            1 if seen & RESET != 0 => Round::Reset,
            _ => Round::Over,
        }
    }

    /// Takes one arrival out of this round; otherwise says how the round ended.
    pub fn withdraw(&self, round: u32) -> Round {
        M::retry_loop();
        loop {
            let seen = self.0.load(SeqCst);
            if (seen >> 32) as u32 != round || seen & ARRIVED == 0 {
                return self.stand(round);
            }
            if self
                .0
                .compare_exchange(seen, seen - 1, SeqCst, Relaxed)
                .is_ok()
            {
                return Round::Open;
            }
            M::retry();
        }
    }

    /// Starts the next round with nobody in it. Owes everybody a notification.
    pub fn reset(&self) {
        M::retry_loop();
        loop {
            let seen = self.0.load(SeqCst);
            let round = ((seen >> 32) as u32).wrapping_add(1);
            let next = u64::from(round) << 32 | RESET;
            if self.0.compare_exchange(seen, next, SeqCst, Relaxed).is_ok() {
                return;
            }
            M::retry();
        }
    }

    /// How many have arrived and wait.
    pub fn waiting(&self) -> u32 {
        (self.0.load(SeqCst) & ARRIVED) as u32
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicU64;

    use super::*;
    use crate::sync::Shared;

    #[test]
    fn a_round_ends_with_its_last_arrival_or_a_reset() {
        let word = AtomicU64::new(u64::from(u32::MAX) << 32);
        let rounds = Rounds::<Shared>(&word);
        assert_eq!(rounds.arrive(3), Arrived::In(u32::MAX));
        assert_eq!(rounds.arrive(3), Arrived::In(u32::MAX));
        assert_eq!(rounds.withdraw(u32::MAX), Round::Open);
        assert_eq!(rounds.arrive(3), Arrived::In(u32::MAX));
        assert_eq!(rounds.arrive(3), Arrived::Last);
        assert_eq!(rounds.stand(u32::MAX), Round::Over);
        assert_eq!(rounds.withdraw(u32::MAX), Round::Over);
        assert_eq!(rounds.arrive(2), Arrived::In(0));
        rounds.reset();
        assert_eq!(rounds.stand(0), Round::Reset);
        assert_eq!((rounds.waiting(), rounds.stand(1)), (0, Round::Open));
        assert_eq!(rounds.arrive(1), Arrived::Last);
        assert_eq!(
            rounds.stand(1),
            Round::Over,
            "a reset is told for one round only"
        );
    }
}
