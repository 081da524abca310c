//! The tally: time cards in shared memory, one array of words for each process, so that what a process has recorded
//! outlives it however it ends.
//!
//! One process writes at the head, whoever supervises the run reads up to there and says how far it got. A card that does not
//! fit its place (several parents, several inputs) or finds all places taken goes through a queue, at once.

use std::sync::atomic::{Ordering, fence};

use serde::{Deserialize, Serialize};
use shm_core::{AliasedTensor, Tensor};

use crate::error::Result;
use crate::item::Member;
use crate::time_card::{Entry, Outcome, TimeCard};

/// Cards that there is room for.
const PLACES: u64 = 2048;
/// Words of a card.
const WORDS: usize = 16;
/// How many cards were ever written, and read, and how many inputs a first step made: each in a line of its own.
const HEAD: usize = 0;
const TAIL: usize = 8;
const OFFERED: usize = 16;
const FIRST: usize = 24;

/// The words of one process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Tally(AliasedTensor<u64>);

/// Where a card lies.
fn place(number: u64) -> usize {
    FIRST + (number % PLACES) as usize * WORDS
}

impl Tally {
    pub(crate) fn new() -> Result<Self> {
        let words = FIRST + PLACES as usize * WORDS;
        Ok(Self(Tensor::<u64>::zeros([words])?.alias()))
    }

    fn get(&self, at: usize) -> u64 {
        self.0.load(&[at]).unwrap_or(0)
    }

    fn set(&self, at: usize, value: u64) {
        let _ = self.0.store(&[at], value);
    }

    /// Counts an input that a first step made.
    pub(crate) fn offer(&self) {
        // Only its process writes it.
        self.set(OFFERED, self.get(OFFERED) + 1);
    }

    /// How many inputs a first step has made.
    pub(crate) fn offered(&self) -> u64 {
        self.get(OFFERED)
    }

    /// Writes a card. `false` when it does not fit, or there is no room now. One thread at a time.
    pub(crate) fn write(&self, entry: &Entry) -> bool {
        let Some(words) = to_words(entry) else {
            return false;
        };
        let head = self.get(HEAD);
        let tail = self.get(TAIL);
        // The places up to the tail were read before it was written.
        fence(Ordering::Acquire);
        if head.wrapping_sub(tail) >= PLACES {
            return false;
        }
        let at = place(head);
        for (index, word) in words.into_iter().enumerate() {
            self.set(at + index, word);
        }
        // A card is there once it is counted; a process that is killed before has not written it.
        fence(Ordering::Release);
        self.set(HEAD, head + 1);
        true
    }

    /// Reads what was written since `read`, which is the reader's own and 0 at first; step, rank and device of the cards
    /// are not in them.
    pub(crate) fn read(&self, read: &mut u64) -> Vec<Entry> {
        let head = self.get(HEAD);
        fence(Ordering::Acquire);
        // More than there is room for is not what a process writes: what it says is not believed then.
        let new = head.wrapping_sub(*read);
        if new == 0 || new > PLACES {
            return Vec::new();
        }
        let entries = (*read..head).map(|number| {
            let at = place(number);
            from_words(std::array::from_fn(|index| self.get(at + index)))
        });
        let entries = entries.collect();
        *read = head;
        fence(Ordering::Release);
        self.set(TAIL, head);
        entries
    }
}

fn to_words(Entry { card, ended }: &Entry) -> Option<[u64; WORDS]> {
    let (&member, has_member) = match &ended[..] {
        [] => (&Member { root: 0, weight: 0 }, 0),
        [one] => (one, 1),
        _ => return None,
    };
    let (parent, has_parent) = match card.parents[..] {
        [] => (0, 0),
        [one] => (one, 1),
        _ => return None,
    };
    let outcome = match card.outcome {
        Outcome::Ok => 0,
        Outcome::Dropped => 1,
        Outcome::Failed => 2,
        Outcome::Redelivered => 3,
        Outcome::Incomplete => 4,
    };
    Some([
        card.item,
        u64::from(card.part) | outcome << 32 | has_member << 40 | has_parent << 41,
        parent,
        card.enqueued,
        card.dequeued,
        card.slot_acquired,
        card.slot_wait,
        card.started,
        card.finished,
        card.copy_done,
        card.published,
        card.released,
        member.root,
        member.weight as u64,
        (member.weight >> 64) as u64,
        0,
    ])
}

fn from_words(words: [u64; WORDS]) -> Entry {
    let [
        item,
        flags,
        parent,
        enqueued,
        dequeued,
        slot_acquired,
        slot_wait,
        started,
        finished,
        copy_done,
        published,
        released,
        root,
        low,
        high,
        _,
    ] = words;
    let outcome = match flags >> 32 & 0xff {
        1 => Outcome::Dropped,
        2 => Outcome::Failed,
        3 => Outcome::Redelivered,
        4 => Outcome::Incomplete,
        _ => Outcome::Ok,
    };
    let weight = u128::from(low) | u128::from(high) << 64;
    let (has_member, has_parent) = (flags >> 40 & 1 != 0, flags >> 41 & 1 != 0);
    Entry {
        card: TimeCard {
            item,
            part: flags as u32,
            parents: has_parent.then_some(parent).into_iter().collect(),
            enqueued,
            dequeued,
            slot_acquired,
            slot_wait,
            started,
            finished,
            copy_done,
            published,
            released,
            outcome,
            ..TimeCard::default()
        },
        ended: has_member
            .then_some(Member { root, weight })
            .into_iter()
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item::FULL;

    fn entry(item: u64) -> Entry {
        Entry {
            card: TimeCard {
                item,
                part: 3,
                parents: vec![7],
                enqueued: 1,
                dequeued: 2,
                slot_acquired: 3,
                slot_wait: 4,
                started: 5,
                finished: 6,
                copy_done: 7,
                published: 8,
                released: u64::MAX,
                outcome: Outcome::Dropped,
                ..TimeCard::default()
            },
            ended: vec![Member {
                root: item,
                weight: FULL / 3,
            }],
        }
    }

    #[test]
    fn a_card_is_read_as_it_was_written_and_once() {
        let tally = Tally::new().unwrap();
        let mut read = 0;
        assert!(tally.read(&mut read).is_empty());
        assert!(tally.write(&entry(1)));
        let bare = Entry {
            card: TimeCard::default(),
            ended: Vec::new(),
        };
        assert!(tally.write(&bare));
        let cards = format!("{:?}", tally.read(&mut read));
        assert_eq!(cards, format!("{:?}", [entry(1), bare]));
        assert!(tally.read(&mut read).is_empty());
    }

    #[test]
    fn what_does_not_fit_is_not_written_and_no_card_is_written_over_one_that_was_not_read() {
        let tally = Tally::new().unwrap();
        let mut wide = entry(1);
        wide.card.parents.push(8);
        assert!(!tally.write(&wide));
        let mut wide = entry(1);
        wide.ended.push(Member { root: 2, weight: 1 });
        assert!(!tally.write(&wide));
        let mut read = 0;
        for round in 0..3 {
            for item in 0..PLACES {
                assert!(tally.write(&entry(round * PLACES + item)));
            }
            assert!(!tally.write(&entry(0)));
            let cards = tally.read(&mut read);
            assert_eq!(cards.len() as u64, PLACES);
            assert_eq!(cards[5].card.item, round * PLACES + 5);
        }
        // A head that no process writes.
        tally.set(HEAD, u64::MAX);
        assert!(tally.read(&mut read).is_empty());
    }
}
