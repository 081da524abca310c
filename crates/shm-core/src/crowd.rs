//! Many waiters of one process behind one place among an event's waiters: how futures wait.
//!
//! A thread that waits is counted, sleeps on `seq` and is woken by the system. Futures have no thread each: one thread of
//! their process, the *ear*, sleeps on `seq` for all of them and is counted once. What the ear hears it grants to as many
//! of the crowd as `seq` went up by, the longest asleep first; whoever was granted a try makes one, and goes to sleep
//! again if there was nothing.
//!
//! ```text
//! wait    try → join (the first one registers) → fence → try again → asleep
//! ear     seq has changed: register anew → fence → grant as many tries as it went up by
//! leave   with an answer: grant one more, since a wake can stand for several publications
//!         given up, with a grant not used: that goes to the next, or out to the event again
//!         the last one unregisters
//! ```
//!
//! Registering anew comes before granting: whoever published before and found nobody counted is seen by the granted try,
//! and whoever publishes afterwards finds the crowd counted. A grant that is not used holds nobody up for ever: the ear
//! grants another try from time to time ([`nudge`](Crowd::nudge)).

use core::sync::atomic::Ordering::SeqCst;
use std::collections::{BTreeMap, BTreeSet};

use crate::event::{Event, Registered};
use crate::sync::Memory;

/// Those of one process that wait for one event, and how each is told to try: `W`, a waker. Everything here happens
/// under a lock of the process; wakers are called outside of it.
#[derive(Debug)]
pub struct Crowd<W> {
    /// The one place among the event's waiters that all of them share; `None` while there is nobody.
    registered: Option<Registered>,
    /// In the order in which they came.
    asleep: BTreeMap<u64, W>,
    /// Those that were told to try and have not tried yet.
    granted: BTreeSet<u64>,
    next: u64,
}

impl<W> Default for Crowd<W> {
    fn default() -> Self {
        Self {
            registered: None,
            asleep: BTreeMap::new(),
            granted: BTreeSet::new(),
            next: 0,
        }
    }
}

/// What is left to do for who left, outside of the lock.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "somebody may have to be told"]
pub struct Left<W> {
    /// To be told to try.
    pub next: Option<W>,
    /// The event is to be notified once more: a wake came here, and nobody is left who could use it.
    pub pass_on: bool,
    /// The waker of the one that left, to be dropped.
    pub spent: Option<W>,
}

/// How many tries to grant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Grant {
    /// As many as there were notifications: each of them can be used by one.
    EachOne,
    /// One for everybody: what was notified is for all.
    Everybody,
}

impl<W> Crowd<W> {
    /// Whether nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.registered.is_none()
    }

    /// Whether somebody was told to try and has not tried yet.
    #[must_use]
    pub fn has_granted(&self) -> bool {
        !self.granted.is_empty()
    }

    /// The value of `seq` that the crowd would sleep on.
    #[must_use]
    pub fn seq(&self) -> Option<u32> {
        self.registered.map(|registered| registered.seq)
    }

    /// Joins, or having tried in vain goes back to its old place, which is answered, with the waker that was there. Then
    /// try (once more), and wait to be told only if that fails.
    pub fn join<M: Memory>(
        &mut self,
        event: Event<'_, M>,
        place: Option<u64>,
        waker: W,
    ) -> (u64, Option<W>) {
        if self.registered.is_none() {
            self.registered = Some(event.register());
        }
        let place = place.unwrap_or_else(|| {
            self.next += 1;
            self.next
        });
        self.granted.remove(&place);
        let spent = self.asleep.insert(place, waker);
        // As in `Event::register`, for those who find the crowd registered: either whoever publishes sees the count, or
        // the try that follows sees what was published.
        M::fence(SeqCst);
        (place, spent)
    }

    /// Leaves with an answer. The next one is to try as well: there may be more.
    pub fn leave<M: Memory>(&mut self, event: Event<'_, M>, place: u64) -> Left<W> {
        self.granted.remove(&place);
        let spent = self.asleep.remove(&place);
        let next = self.nudge();
        self.unregister_if_empty(event);
        Left {
            next,
            pass_on: false,
            spent,
        }
    }

    /// Gives up. A grant that was not used goes to the next, or out.
    pub fn give_up<M: Memory>(&mut self, event: Event<'_, M>, place: u64) -> Left<W> {
        let spent = self.asleep.remove(&place);
        // Another one that was told and has not tried yet will see whatever this one would have seen.
        let unused = self.granted.remove(&place) && self.granted.is_empty();
        let next = if unused { self.nudge() } else { None };
        self.unregister_if_empty(event);
        Left {
            pass_on: unused && next.is_none(),
            next,
            spent,
        }
    }

    /// Grants tries if the event was notified since this was last asked. `slept_on` is the value that the ear slept on
    /// since then: a wake that it took there is owed to somebody even if all that the crowd knew of it is newer.
    pub fn hear<M: Memory>(
        &mut self,
        event: Event<'_, M>,
        slept_on: Option<u32>,
        grant: Grant,
        told: &mut Vec<W>,
    ) {
        let Some(registered) = self.registered else {
            return;
        };
        let seq = event.seq();
        let steps = seq.wrapping_sub(registered.seq);
        let woken = slept_on.is_some_and(|slept_on| slept_on != seq);
        if steps == 0 && !woken {
            return;
        }
        // Also if a heal has taken us out of the count, which is then as if we had never been in it.
        event.unregister(registered);
        self.registered = Some(event.register());
        let many = match grant {
            Grant::EachOne => steps.max(1) as usize,
            Grant::Everybody => usize::MAX,
        };
        self.tell(many, told);
    }

    /// Grants a try to the one that has slept longest.
    pub fn nudge(&mut self) -> Option<W> {
        let (place, waker) = self.asleep.pop_first()?;
        self.granted.insert(place);
        Some(waker)
    }

    /// Grants a try to so many.
    pub fn tell(&mut self, many: usize, told: &mut Vec<W>) {
        told.extend(core::iter::from_fn(|| self.nudge()).take(many));
    }

    fn unregister_if_empty<M: Memory>(&mut self, event: Event<'_, M>) {
        if self.asleep.is_empty()
            && self.granted.is_empty()
            && let Some(registered) = self.registered.take()
        {
            event.unregister(registered);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::sync::Shared;

    struct Words {
        seq: AtomicU32,
        waiters: AtomicU32,
    }

    impl Words {
        const fn new() -> Self {
            Self {
                seq: AtomicU32::new(0),
                waiters: AtomicU32::new(0),
            }
        }

        fn event(&self) -> Event<'_, Shared> {
            Event::new(&self.seq, &self.waiters)
        }

        fn counted(&self) -> u32 {
            self.waiters.load(Ordering::SeqCst) & 0xffff
        }

        /// A notification that one sleeper takes.
        fn notify(&self) {
            self.event().notify_one(|_| 1);
        }

        fn hear(&self, crowd: &mut Crowd<char>, grant: Grant) -> String {
            let mut told = Vec::new();
            crowd.hear(self.event(), None, grant, &mut told);
            told.into_iter().collect()
        }
    }

    #[test]
    fn a_thousand_waiters_are_counted_once() {
        let (words, mut crowd) = (Words::new(), Crowd::default());
        let places: Vec<u64> = (0..1000)
            .map(|_| crowd.join(words.event(), None, 'x').0)
            .collect();
        assert_eq!(words.counted(), 1);
        for place in places {
            let left = crowd.give_up(words.event(), place);
            assert_eq!((left.next, left.pass_on), (None, false));
        }
        assert_eq!(words.counted(), 0);
        assert!(crowd.is_empty());
    }

    #[test]
    fn as_many_are_told_as_were_notified_and_the_longest_asleep_first() {
        let (words, mut crowd) = (Words::new(), Crowd::default());
        let places = ['a', 'b', 'c', 'd'].map(|name| crowd.join(words.event(), None, name).0);
        words.notify();
        words.notify();
        assert_eq!(words.hear(&mut crowd, Grant::EachOne), "ab");
        assert_eq!(words.hear(&mut crowd, Grant::EachOne), "");
        // Tried in vain: back in its old place.
        let _ = crowd.join(words.event(), Some(places[0]), 'a');
        words.notify();
        assert_eq!(words.hear(&mut crowd, Grant::EachOne), "a");
        words.notify();
        assert_eq!(words.hear(&mut crowd, Grant::Everybody), "cd");
    }

    #[test]
    fn who_leaves_with_an_answer_lets_the_next_one_try() {
        let (words, mut crowd) = (Words::new(), Crowd::default());
        let places = ['a', 'b', 'c'].map(|name| crowd.join(words.event(), None, name).0);
        words.notify();
        assert_eq!(words.hear(&mut crowd, Grant::EachOne), "a");
        for (place, next) in places.into_iter().zip([Some('b'), Some('c'), None]) {
            assert_eq!(crowd.leave(words.event(), place).next, next);
        }
        assert_eq!(words.counted(), 0);
    }

    #[test]
    fn a_grant_that_is_not_used_is_passed_on() {
        let (words, mut crowd) = (Words::new(), Crowd::default());
        let [a, b] = ['a', 'b'].map(|name| crowd.join(words.event(), None, name).0);
        words.notify();
        assert_eq!(words.hear(&mut crowd, Grant::EachOne), "a");
        let left = crowd.give_up(words.event(), a);
        assert_eq!((left.next, left.pass_on), (Some('b'), false));
        // Nobody is left here: somebody elsewhere is owed it.
        let left = crowd.give_up(words.event(), b);
        assert_eq!((left.next, left.pass_on), (None, true));
        assert_eq!(words.counted(), 0);
        // One that was not told owes nothing.
        let (c, _) = crowd.join(words.event(), None, 'c');
        let left = crowd.give_up(words.event(), c);
        assert_eq!((left.pass_on, left.spent), (false, Some('c')));
    }

    #[test]
    fn a_heal_that_took_the_crowd_out_of_the_count_is_noticed() {
        let (words, mut crowd) = (Words::new(), Crowd::default());
        let _ = crowd.join(words.event(), None, 'a');
        // Nobody was asleep: the ear was about to.
        words.event().notify_one(|_| 0);
        assert_eq!(words.counted(), 0);
        assert_eq!(words.hear(&mut crowd, Grant::EachOne), "a");
        assert_eq!(words.counted(), 1);
    }

    #[test]
    fn a_wake_that_the_ear_took_for_an_older_crowd_is_owed_to_this_one() {
        let (words, mut crowd) = (Words::new(), Crowd::default());
        let (old, _) = crowd.join(words.event(), None, 'a');
        let slept_on = crowd.seq();
        let elsewhere = words.event().register();
        assert!(!crowd.give_up(words.event(), old).pass_on);
        words.notify();
        let _ = crowd.join(words.event(), None, 'b');
        let mut told = Vec::new();
        crowd.hear(words.event(), slept_on, Grant::EachOne, &mut told);
        assert_eq!(told, ['b']);
        words.event().unregister(elsewhere);
    }
}
