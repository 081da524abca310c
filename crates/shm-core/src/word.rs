//! The control word of a cell: what state the cell is in, for which position, or in whose hands.
//!
//! | bits | FREE, READY, CLOSED | CLAIMED, TAKING |
//! |---|---|---|
//! | 0–2 | state | state |
//! | 3 | R: handed back (READY) | R (TAKING) |
//! | 4–19 | position, 60 bits | row of the owner |
//! | 20–35 | | epoch of the owner |
//! | 36–63 | | low 28 bits of the lap |
//!
//! A word that is swapped by compare-and-swap carries either the whole position or the whole owner,
//! so a value seen once does not come back while a late swap could still hit it. The lap is the
//! position divided by the capacity; whoever needs the position of an owned cell rebuilds it from
//! the `tail` hint (`Ring::position_of`).

/// Who holds something: a participant's row, and which of the row's users it was.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Hash)]
pub struct Owner {
    /// The row in the arena's table of participants.
    pub row: u16,
    /// Grows each time the row is given to someone new.
    pub epoch: u16,
}

const FREE: u64 = 0;
const CLAIMED: u64 = 1;
const READY: u64 = 2;
const TAKING: u64 = 3;
const CLOSED: u64 = 4;
const STATE: u64 = 0b111;
/// The R flag: the message was handed back and may be out of order.
pub(crate) const HANDED_BACK: u64 = 0b1000;

const POSITION_SHIFT: u32 = 4;
const ROW_SHIFT: u32 = 4;
const EPOCH_SHIFT: u32 = 20;
const LAP_SHIFT: u32 = 36;
const LAP_MASK: u64 = (1 << 28) - 1;
const POSITION_MASK: u64 = (1 << 60) - 1;

/// What a control word says.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum CellState {
    /// Free for exactly this position.
    Free {
        /// The position that may be claimed.
        pos: u64,
    },
    /// A producer is writing.
    Claimed {
        /// The producer.
        owner: Owner,
        /// Low 28 bits of the position's lap.
        lap: u64,
    },
    /// Holds a message.
    Ready {
        /// The message's position.
        pos: u64,
        /// A consumer (or its reaper) gave it back.
        handed_back: bool,
    },
    /// A consumer is copying the message out.
    Taking {
        /// The consumer.
        owner: Owner,
        /// Low 28 bits of the position's lap.
        lap: u64,
        /// The message had been given back before.
        handed_back: bool,
    },
    /// No message comes at this position or after it.
    Closed {
        /// The first position that will never hold a message.
        pos: u64,
    },
    /// None of these: something wrote over the word.
    Damaged,
}

/// Reads a control word.
#[inline]
pub fn decode(word: u64) -> CellState {
    let pos = word >> POSITION_SHIFT;
    let handed_back = word & HANDED_BACK != 0;
    let owner = Owner {
        row: (word >> ROW_SHIFT) as u16,
        epoch: (word >> EPOCH_SHIFT) as u16,
    };
    let lap = word >> LAP_SHIFT;
    match (word & STATE, handed_back) {
        (FREE, false) => CellState::Free { pos },
        (CLAIMED, false) => CellState::Claimed { owner, lap },
        (READY, _) => CellState::Ready { pos, handed_back },
        (TAKING, _) => CellState::Taking {
            owner,
            lap,
            handed_back,
        },
        (CLOSED, false) => CellState::Closed { pos },
        _ => CellState::Damaged,
    }
}

#[inline(always)]
pub(crate) const fn free(pos: u64) -> u64 {
    pos << POSITION_SHIFT | FREE
}

#[inline(always)]
pub(crate) const fn ready(pos: u64) -> u64 {
    pos << POSITION_SHIFT | READY
}

#[inline(always)]
pub(crate) const fn closed(pos: u64) -> u64 {
    pos << POSITION_SHIFT | CLOSED
}

#[inline(always)]
pub(crate) const fn claimed(owner: Owner, lap: u64) -> u64 {
    owned(owner, lap) | CLAIMED
}

#[inline(always)]
pub(crate) const fn taking(owner: Owner, lap: u64, handed_back: bool) -> u64 {
    owned(owner, lap) | (if handed_back { HANDED_BACK } else { 0 }) | TAKING
}

#[inline(always)]
const fn owned(owner: Owner, lap: u64) -> u64 {
    (lap & LAP_MASK) << LAP_SHIFT
        | (owner.epoch as u64) << EPOCH_SHIFT
        | (owner.row as u64) << ROW_SHIFT
}

/// The owner and lap of a CLAIMED or TAKING word, with whether it is TAKING and its R flag.
pub(crate) fn holder(word: u64) -> Option<(Owner, u64)> {
    match decode(word) {
        CellState::Claimed { owner, lap } | CellState::Taking { owner, lap, .. } => {
            Some((owner, lap))
        }
        _ => None,
    }
}

/// The arithmetic of positions in a ring of some capacity.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Ring {
    pub(crate) capacity: u64,
}

impl Ring {
    /// The cell of a position, and its lap.
    #[inline(always)]
    pub(crate) const fn split(self, pos: u64) -> (u64, u64) {
        // A predictable branch is cheaper than a 64-bit division on each put and take.
        if self.capacity & self.capacity.wrapping_sub(1) == 0 {
            (
                pos & self.capacity.wrapping_sub(1),
                pos >> (self.capacity.trailing_zeros() & 63),
            )
        } else {
            (pos % self.capacity, pos / self.capacity)
        }
    }

    /// The cell of a position.
    #[inline(always)]
    pub(crate) const fn index(self, pos: u64) -> u64 {
        self.split(pos).0
    }

    /// The next position of the same cell.
    #[inline(always)]
    pub(crate) const fn next_lap(self, pos: u64) -> u64 {
        pos.wrapping_add(self.capacity) & POSITION_MASK
    }

    /// The position after this one.
    #[inline(always)]
    pub(crate) const fn after(self, pos: u64) -> u64 {
        pos.wrapping_add(1) & POSITION_MASK
    }

    /// The position of an owned cell, from its lap's low bits and a `tail` that was loaded after
    /// the word.
    ///
    /// A cell that is CLAIMED or TAKING at p implies tail in [p, p + capacity]: the claimer had
    /// loaded a tail of p, and no tail passes p + capacity before that position is claimed in this
    /// very cell. Of that window at most two positions fall on the cell, one lap apart. `None`
    /// means that the word has changed since (or is damaged).
    pub(crate) fn position_of(self, index: u64, lap: u64, tail: u64) -> Option<u64> {
        let (tail_index, tail_lap) = self.split(tail);
        let newest = if index <= tail_index {
            Some(tail_lap)
        } else {
            tail_lap.checked_sub(1)
        }?;
        let oldest = if index == tail_index {
            newest.checked_sub(1)
        } else {
            None
        };
        [Some(newest), oldest]
            .into_iter()
            .flatten()
            .find(|candidate| candidate & LAP_MASK == lap)
            .and_then(|lap| lap.checked_mul(self.capacity)?.checked_add(index))
    }

    /// How a lap known by its low bits lies to a full one near it: the difference, wrapping.
    #[inline]
    pub(crate) const fn laps_ahead(self, lap_bits: u64, of: u64) -> i64 {
        // Sign-extends the 28-bit difference.
        ((lap_bits.wrapping_sub(of) << LAP_SHIFT) as i64) >> LAP_SHIFT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: Owner = Owner {
        row: 4095,
        epoch: 65535,
    };

    #[test]
    fn words_say_what_they_were_made_of() {
        let pos = POSITION_MASK;
        assert_eq!(decode(free(pos)), CellState::Free { pos });
        assert_eq!(decode(closed(pos)), CellState::Closed { pos });
        for handed_back in [false, true] {
            let flag = if handed_back { HANDED_BACK } else { 0 };
            assert_eq!(
                decode(ready(pos) | flag),
                CellState::Ready { pos, handed_back }
            );
            assert_eq!(
                decode(taking(OWNER, LAP_MASK + 5, handed_back)),
                CellState::Taking {
                    owner: OWNER,
                    lap: 4,
                    handed_back
                }
            );
        }
        assert_eq!(
            decode(claimed(OWNER, 7)),
            CellState::Claimed {
                owner: OWNER,
                lap: 7
            }
        );
        assert_eq!(decode(u64::MAX), CellState::Damaged);
    }

    #[test]
    fn the_position_of_an_owned_cell_is_found_for_every_tail_it_allows() {
        for capacity in [1, 2, 3, 4, 7] {
            let ring = Ring { capacity };
            // Around the wrap of the 28 lap bits too.
            for base in [0, (LAP_MASK + 1) * capacity - 3 * capacity] {
                for pos in base..base + 5 * capacity {
                    let (index, lap) = ring.split(pos);
                    assert_eq!((index, lap), (pos % capacity, pos / capacity));
                    for tail in pos..=pos + capacity {
                        assert_eq!(
                            ring.position_of(index, lap & LAP_MASK, tail),
                            Some(pos),
                            "capacity {capacity}, position {pos}, tail {tail}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn laps_compare_across_the_wrap_of_their_bits() {
        let ring = Ring { capacity: 2 };
        assert_eq!(ring.laps_ahead(0, LAP_MASK), 1);
        assert_eq!(ring.laps_ahead(LAP_MASK, LAP_MASK + 1), -1);
        assert_eq!(ring.laps_ahead(5, 5), 0);
    }
}
