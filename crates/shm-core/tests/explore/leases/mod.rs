//! The world of one counted line: participants make it anew, hand it on through a real cell, drop it and die; reapers
//! settle what they left, and die as well.
//!
//! The steps are those of `held`, `transfer` and `reap`, written once more on the explored memory; the cell is the real
//! one. It is one line and one message at a time, so that a double free has nowhere to hide.

mod model;
mod steps;

use std::sync::atomic::Ordering::SeqCst;

use shm_core::cells::{CellArray, Owner, PAYLOAD_WORDS};
use shm_core::sync::Atomic64;

use crate::memory::{Explored, Steps, WORDS};

const LINE: usize = 0;
const CLAIMANT: usize = 1;
const TAIL: usize = 2;
const HEAD: usize = 3;
const ORPHANS: usize = 4;
const CELL: usize = 5;
const PAYLOAD: usize = 6;
/// Of each user: its row, and the state word and generation of its two entries.
const USERS: usize = 8;
const USER: usize = 5;

/// A generation that the line never has.
const NEVER: u64 = 999;

/// What is done otherwise, to see that the explorer notices.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Variant {
    /// Nothing.
    Right,
    /// The generation alone tells whose the line has become.
    NoClaimant,
    /// The claim is given up before the entry says HELD.
    UnclaimFirst,
    /// Cells are mended before tickets are settled.
    CellsFirst,
    /// The sender's entry stays HELD over the publication.
    NoTicket,
    /// A further reference is counted only when it is published.
    CountLate,
    /// A reaper takes a failed swap for done.
    SkipAfterFailure,
    /// A shared reference is subtracted before its record is cleared.
    SubtractFirst,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// Makes the line anew, against others, and drops it.
    Loaner,
    /// Makes the line anew, alone, and sends it away.
    Mover,
    /// The same, and keeps a reference of its own, which it drops later.
    Sharer,
    /// Takes it and drops it.
    Taker,
}

/// A world to explore.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Config {
    pub(crate) users: &'static [Role],
    /// How often each of them does it.
    pub(crate) rounds: u8,
    pub(crate) reapers: usize,
    pub(crate) kills: u8,
    /// All idle reapers go for a dead row at once, not only one.
    pub(crate) together: bool,
    pub(crate) variant: Variant,
}

#[derive(Debug)]
pub(crate) struct Leases {
    config: Config,
    words: [Explored; WORDS],
    payload: [Explored; PAYLOAD_WORDS],
    never_closed: Explored,
}

#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Local {
    round: u8,
    act: Act,
}

#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
enum Act {
    // Making it anew.
    Look,
    Claim,
    Fill,
    Count {
        generation: u64,
    },
    Hold {
        generation: u64,
    },
    Unclaim {
        generation: u64,
    },
    GiveUp,
    // Sending.
    ClaimCell {
        generation: u64,
    },
    Write {
        generation: u64,
        pos: u64,
    },
    Give {
        generation: u64,
        pos: u64,
    },
    Publish {
        generation: u64,
        pos: u64,
    },
    CountLate {
        generation: u64,
    },
    Forget {
        generation: u64,
    },
    // Receiving.
    TakeCell {
        seen: u64,
    },
    Read {
        seen: u64,
        pos: u64,
    },
    Record {
        seen: u64,
        pos: u64,
        generation: u64,
    },
    Release {
        pos: u64,
        generation: u64,
    },
    Arrive {
        generation: u64,
    },
    /// Whoever is here uses what the line stands for.
    Drop {
        generation: u64,
    },
    // A reaper, with the dead one's row and the entry it is at.
    Idle,
    Settle {
        row: u8,
        entry: u8,
    },
    Mend {
        row: u8,
    },
    GiveBack {
        row: u8,
        entry: u8,
    },
    Free {
        row: u8,
    },
    Done,
    Dead,
}

/// Rows of the dead that are not free yet, as bits; and who is at which.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Ghost {
    dead: u8,
    leaks: u8,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[repr(u64)]
enum Kind {
    Free = 0,
    Alloc = 1,
    Held = 2,
    Giving = 3,
    Recv = 4,
    Dropping = 5,
}

/// State word of an entry: the kind, and the ticket's position.
fn entry(kind: Kind, pos: u64) -> u64 {
    kind as u64 | pos << 8
}

fn kind_of(entry: u64) -> Kind {
    match entry & 0xff {
        1 => Kind::Alloc,
        2 => Kind::Held,
        3 => Kind::Giving,
        4 => Kind::Recv,
        5 => Kind::Dropping,
        _ => Kind::Free,
    }
}

fn line(generation: u64, count: u64) -> u64 {
    generation << 8 | count
}

impl CellArray for &Leases {
    type M = Steps;

    fn capacity(&self) -> u64 {
        1
    }
    fn word(&self, _: u64) -> &Explored {
        &self.words[CELL]
    }
    fn payload(&self, _: u64) -> &[Explored; PAYLOAD_WORDS] {
        &self.payload
    }
    fn tail(&self) -> &Explored {
        &self.words[TAIL]
    }
    fn head(&self) -> &Explored {
        &self.words[HEAD]
    }
    fn orphan_epoch(&self) -> &Explored {
        &self.words[ORPHANS]
    }
    fn closed(&self) -> &Explored {
        &self.never_closed
    }
}

impl Leases {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            config,
            words: std::array::from_fn(Explored::Word),
            payload: std::array::from_fn(|word| match word {
                0 => Explored::Word(PAYLOAD),
                _ => Explored::Nothing,
            }),
            never_closed: Explored::Nothing,
        }
    }

    fn is(&self, variant: Variant) -> bool {
        self.config.variant == variant
    }

    fn owner(&self, user: usize) -> Owner {
        Owner {
            row: user as u16,
            epoch: 1,
        }
    }

    fn word(&self, at: usize) -> &Explored {
        &self.words[at]
    }

    fn row(&self, user: usize) -> &Explored {
        self.word(USERS + user * USER)
    }

    fn state(&self, user: usize, entry: usize) -> &Explored {
        self.word(USERS + user * USER + 1 + entry * 2)
    }

    fn generation(&self, user: usize, entry: usize) -> &Explored {
        self.word(USERS + user * USER + 2 + entry * 2)
    }

    fn swap_line(&self, from: u64, to: u64) -> bool {
        self.word(LINE)
            .compare_exchange(from, to, SeqCst, SeqCst)
            .is_ok()
    }

    fn record(&self, user: usize, at: usize, generation: u64, state: u64) {
        self.generation(user, at).store(generation, SeqCst);
        self.state(user, at).store(state, SeqCst);
    }

    /// One less, by somebody who has no record of it any more.
    fn subtract(&self, generation: u64) -> Result<(), String> {
        loop {
            let seen = self.word(LINE).load(SeqCst);
            if seen >> 8 != generation || seen & 0xff == 0 {
                return Err("a reference was given back twice".into());
            }
            if self.swap_line(seen, seen - 1) {
                return Ok(());
            }
        }
    }
}
