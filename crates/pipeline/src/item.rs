//! What travels between two steps: an item, with the slots it is in and what it was made of.
//!
//! An item is a small message; its tensors stay where they were written. For the account of a run each item carries
//! *weight* of the inputs it descends from: an input comes with [`FULL`] weight, what is made of it shares that out, and
//! what ends gives its own back. The input is done when all of it is back, whatever the order in which that is heard.

use crate::error::Result;
use mp_queue::{Queue, Receiver};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use shm_core::{Arena, message};

use crate::board::Place;
use crate::device::Memory;

/// A value that holds tensors, on its way beside a slot: in a queue of its own, since it is read only when its type is
/// known, and may have to wait for that in a dead process's ledger.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Attached(Receiver<()>);

impl Attached {
    pub(crate) fn new<P: Serialize + DeserializeOwned>(value: P) -> Result<Self> {
        let (to, from) = Queue::<P>::bounded(1)?.split();
        to.put(value).map_err(|failed| failed.into_parts().0)?;
        let untyped = message::encode(from.arena(), from.clone()).map_err(|failed| failed.error)?;
        Ok(Self(untyped.decode()?))
    }

    /// The value, for whoever comes first.
    pub(crate) fn take<P: Serialize + DeserializeOwned>(&self) -> Result<P> {
        let arena: &Arena = self.0.arena();
        let typed = message::encode(arena, self.0.clone()).map_err(|failed| failed.error)?;
        Ok(typed.decode::<Receiver<P>>()?.try_get()?)
    }
}

/// The weight of an input of the run.
pub(crate) const FULL: u128 = 1 << 120;

/// A share of one input of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Member {
    /// The input's number.
    pub(crate) root: u64,
    pub(crate) weight: u128,
}

/// Which part of one tensor of a slot belongs to an item.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct View {
    /// The first element.
    pub(crate) start: usize,
    /// What is valid from there on, row-major.
    pub(crate) shape: Vec<usize>,
}

/// The slot of what was copied out of one.
pub(crate) const NO_SLOT: u32 = u32::MAX;

/// A slot that an item is in.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Share {
    /// The process whose slot it is.
    pub(crate) rank: u32,
    pub(crate) slot: u32,
    /// Which of the memories that the slot had (see [`Board::turn`](crate::board::Board::turn)).
    pub(crate) turn: u16,
    pub(crate) memory: Memory,
    /// One a tensor; none where all of each is valid.
    pub(crate) views: Vec<View>,
}

impl Share {
    /// Whether only a part of the slot belongs to the item, so that it may have several.
    pub(crate) fn is_part(&self) -> bool {
        !self.views.is_empty()
    }

    /// Whether it is in a slot of the arena: what was copied out of one is not, and what lies on a device is not looked at.
    pub(crate) fn is_in_a_slot(&self) -> bool {
        self.slot != NO_SLOT && self.memory.host().is_some()
    }

    pub(crate) fn place(&self) -> Place {
        Place {
            rank: self.rank,
            slot: self.slot,
            turn: self.turn,
        }
    }
}

impl Place {
    /// A slot there, on its way.
    pub(crate) fn share(self, memory: Memory, views: Vec<View>) -> Share {
        Share {
            rank: self.rank,
            slot: self.slot,
            turn: self.turn,
            memory,
            views,
        }
    }
}

/// The first of the numbers of items that no input has: further outputs, and what was made of several.
pub(crate) const FIRST_NEW: u64 = 1 << 52;

/// An item on its way.
#[derive(Clone, Debug, Default)]
pub(crate) struct Item {
    pub(crate) id: u64,
    /// Which part of the item this is, of how many.
    pub(crate) part: u32,
    pub(crate) parts: u32,
    /// Which copy of it this is, of how many, where each reader got one and somebody restores the order; 0 of 0 is all.
    pub(crate) copy: u32,
    pub(crate) copies: u32,
    /// The items it was made of, where it does not go on under their number.
    pub(crate) parents: Vec<u64>,
    pub(crate) members: Vec<Member>,
    /// When it was put into its queue, CLOCK_MONOTONIC nanoseconds.
    pub(crate) enqueued: u64,
    /// It ended in the step before: a place holder where order is restored.
    pub(crate) gone: bool,
    /// The user's own words.
    pub(crate) sequence: u64,
    pub(crate) tag: u64,
    /// The user's own value, in postcard.
    pub(crate) payload: Vec<u8>,
    /// A value with tensors of its own.
    pub(crate) attached: Option<Box<Attached>>,
    pub(crate) shares: Vec<Share>,
}

/// Which portion of an item something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Portion {
    pub(crate) part: u32,
    pub(crate) parts: u32,
    pub(crate) copy: u32,
    pub(crate) copies: u32,
}

/// All of an item.
pub(crate) const ALL: u64 = 1 << 62;

impl Portion {
    /// From where to where it goes along the first dimension, of [`ALL`].
    pub(crate) fn segment(&self) -> (u64, u64) {
        range(self.part, self.parts)
    }

    /// From where to where it goes among the copies, of [`ALL`].
    pub(crate) fn copies(&self) -> (u64, u64) {
        range(self.copy, self.copies)
    }
}

/// However often something is divided, the end of a part is where the next begins.
fn range(part: u32, parts: u32) -> (u64, u64) {
    let parts = u128::from(parts.max(1));
    let at = |part: u32| (u128::from(part) * u128::from(ALL) / parts).min(u128::from(ALL)) as u64;
    (at(part), at(part.saturating_add(1)))
}

impl Item {
    pub(crate) fn portion(&self) -> Portion {
        Portion {
            part: self.part,
            parts: self.parts,
            copy: self.copy,
            copies: self.copies,
        }
    }

    /// One of `n` copies, the `nth` from 0, of what this is.
    pub(crate) fn copy_for(&self, nth: u32, n: u32) -> Self {
        let mut copy = self.clone();
        if let Some(copies) = self.copies.max(1).checked_mul(n) {
            (copy.copy, copy.copies) = (self.copy * n + nth, copies);
        }
        copy
    }
}

/// The share of the `nth` thing (from 1) that is made of something with this weight left. However many come, more than
/// half of it remains.
pub(crate) fn share_of(weight: &mut u128, nth: u32) -> u128 {
    let divisor = u128::from(nth).saturating_add(1);
    let share = *weight / divisor.saturating_mul(divisor);
    *weight -= share;
    share
}

/// Divides these members among `n`; the first gets what does not divide.
pub(crate) fn divide(members: &[Member], n: u32) -> Vec<Vec<Member>> {
    (0..n.max(1))
        .map(|index| {
            members
                .iter()
                .map(|&Member { root, weight }| {
                    let even = weight / u128::from(n.max(1));
                    let rest = if index == 0 {
                        weight - even * u128::from(n.max(1))
                    } else {
                        0
                    };
                    Member {
                        root,
                        weight: even + rest,
                    }
                })
                .collect()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shared_out_adds_up_however_many_take_a_share() {
        let mut left = FULL;
        let mut out = 0;
        for nth in 1..=10_000 {
            let share = share_of(&mut left, nth);
            assert!(share > 0);
            out += share;
        }
        assert_eq!(out + left, FULL);
        assert!(left > FULL / 3);
        let member = Member {
            root: 7,
            weight: 100,
        };
        let parts = divide(&[member], 7);
        assert_eq!(parts.len(), 7);
        assert_eq!(parts.iter().map(|part| part[0].weight).sum::<u128>(), 100);
    }

    #[test]
    fn fifty_steps_in_a_row_use_up_no_weight() {
        let mut weight = FULL;
        for _ in 0..50 {
            let mut left = weight;
            weight = share_of(&mut left, 1);
        }
        assert!(weight > 0);
    }
}
