//! How fast the next step gives slots back, and how long a process may therefore sleep that waits for one.
//!
//! Where all slots are in use, the next step is the slower one and has as many items before it as there are slots. To be
//! woken for each slot would cost *its* time, of which there is none to spare, and a wake is dear: on a virtual machine it
//! may take as long as a short item. So who waits sleeps by itself until about half of its slots have come back, and only
//! then asks to be woken.

use std::time::Duration;

/// What a sleep takes longer than it should, about: the kernel's timer slack.
const SLACK_NS: u64 = 60_000;
/// Shorter sleeps are not worth it.
const LEAST_NS: u64 = 40_000;
/// The pace may change meanwhile.
const MOST_NS: u64 = 5_000_000;

/// How often a process sleeps before it asks to be woken, and how long after the first time.
pub(crate) const NAPS: u32 = 16;
pub(crate) const AGAIN: Duration = Duration::from_micros(40);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Nanoseconds from slot to slot, between the last two waits and between the two before; 0 while it is not known. The
    /// smaller counts: a pause makes one of them long, and to sleep too long would starve the next step.
    each: [u64; 2],
    /// When the last wait was over.
    waited: u64,
    /// Slots that were taken since.
    taken: u64,
}

impl Pace {
    /// A slot was taken.
    pub(crate) fn count(&mut self) {
        self.taken += 1;
    }

    /// A wait for a slot is over.
    pub(crate) fn note(&mut self, now: u64) {
        if self.waited != 0 {
            let each = now.saturating_sub(self.waited) / self.taken.max(1);
            self.each = [each, self.each[0]];
        }
        (self.waited, self.taken) = (now, 0);
    }

    /// How long to sleep where all of so many slots are in use.
    pub(crate) fn nap(&self, slots: usize) -> Option<Duration> {
        let each = self.each[0].min(self.each[1]);
        let half = each.saturating_mul(slots as u64 / 2);
        let nap = half.checked_sub(SLACK_NS)?.min(MOST_NS);
        (nap >= LEAST_NS).then(|| Duration::from_nanos(nap))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_sleeps_until_half_of_its_slots_are_back_unless_that_is_soon() {
        let mut pace = Pace::default();
        let mut now = 1_000_000;
        let mut wait = |pace: &mut Pace, ns, taken| {
            (0..taken).for_each(|_| pace.count());
            now += ns;
            pace.note(now);
        };
        wait(&mut pace, 0, 1);
        wait(&mut pace, 200_000, 1);
        assert_eq!(pace.nap(4), None, "once says nothing");
        wait(&mut pace, 200_000, 1);
        assert_eq!(pace.nap(4), Some(Duration::from_nanos(340_000)));
        assert_eq!(pace.nap(1), None, "its one slot is wanted at once");
        assert_eq!(pace.nap(1000), Some(Duration::from_nanos(MOST_NS)));
        wait(&mut pace, 900_000_000, 4);
        let nap = pace.nap(4);
        assert_eq!(nap, Some(Duration::from_nanos(340_000)), "a pause");
        wait(&mut pace, 400_000, 4);
        let nap = pace.nap(4);
        assert_eq!(nap, Some(Duration::from_nanos(140_000)), "four at a time");
        wait(&mut pace, 10_000, 1);
        assert_eq!(pace.nap(8), None, "items are short");
    }
}
