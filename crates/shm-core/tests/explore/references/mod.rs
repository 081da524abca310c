//! The world of references: participants make lines, send them through cells or a lane, take, open and drop them, and
//! die at any step; reapers settle what they left and die as well; a dead one's row is given to a successor.
//!
//! Counts, lease entries, tickets and reaping are the real code (`steps`), and so are the cells and the lane. Written
//! once more here is only in which order a put and a get call them, as in `transfer`: claim, payload, tickets, publish,
//! clear; take, read, tickets, release, HELD. Left out are objects within messages (so reapers drop in one wave),
//! chunks, and hints about what is free.

mod acts;
mod dropping;
mod model;
mod promises;

use shm_core::cells::{CellArray, Owner};
use shm_core::steps::{EntryRef, Words};

use crate::memory::{Explored, PROCESSES, Steps, WORDS};

const TAIL: usize = 0;
const HEAD: usize = 1;
const ORPHANS: usize = 2;
/// Word and payload of each cell.
const CELLS: usize = 3;
const CELL: usize = 2;
const MOST_CELLS: usize = 2;
/// Count, claimant and doubt of each line.
const LINES: usize = CELLS + MOST_CELLS * CELL;
const LINE: usize = 3;
const MOST_LINES: usize = 2;
/// Of each user: who is in the row, and who reaps it.
const ROWS: usize = LINES + MOST_LINES * LINE;
const ROW: usize = 2;
/// Of each reaper: whether it is dead; and of each user's row.
const GONE: usize = ROWS + 3 * ROW;
const ENDED: usize = GONE + 2;
/// Four words of each entry.
const ENTRIES: usize = ENDED + 3;
const ENTRY: usize = 4;

/// What is done otherwise, to see that the explorer notices.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Variant {
    /// Nothing.
    Right,
    /// A row's next user has the same epoch.
    SameEpoch,
    /// A reaper mends cells before it settles tickets.
    CellsFirst,
    /// A shared reference is subtracted before its record is cleared.
    SubtractFirst,
    /// One more reference is counted only once it is published.
    CountLate,
    /// The sender's entry stays HELD over the publication.
    NoTicket,
    /// The state that makes a ticket count is written before the ticket.
    TicketLast,
    /// The sole holder's entry stays HELD while the count goes to 0.
    NoDropping,
    /// A reaper takes a failed swap for done.
    SkipFailed,
    /// Any number may make a slot anew at once.
    NoClaimant,
    /// A reaper takes a reference that was going or coming for one that is not counted.
    NoDoubt,
    /// Who takes a message does not touch the doubt of what it names.
    NoTouch,
    /// Who looks whether anybody holds a line looks at the entries alone.
    EntriesAlone,
    /// Who looks does not wait for an entry that is about to go.
    NoWait,
    /// A reaper that comes too late puts itself in the place of one that is at a later occupant of the row.
    LateReaper,
}

/// What a user does.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// Makes a line, sends it, and has it no longer.
    Mover,
    /// Makes a line, sends one more reference to it, and drops its own.
    Sharer,
    /// Makes a line and drops it.
    Loaner,
    /// Takes what comes, and drops it.
    Taker,
    /// Opens whatever line is there, and drops it.
    Opener,
    /// Opens whatever line is there, and sends it.
    Relay,
}

/// A world to explore.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Config {
    pub(crate) users: &'static [Role],
    /// How often each of them does it; takers do it as long as there is something.
    pub(crate) rounds: u8,
    pub(crate) cells: u64,
    /// Messages go through a lane, not through cells.
    pub(crate) lane: bool,
    pub(crate) lines: usize,
    /// Lines are slots, which anyone may make anew, not blocks with one allocator each.
    pub(crate) slots: bool,
    pub(crate) reapers: usize,
    /// Reapers keep each other out, as they do in an arena.
    pub(crate) exclusive: bool,
    pub(crate) kills: u8,
    /// How many times a freed row is given to a successor of the dead.
    pub(crate) reuses: u8,
    /// How many times takers, and senders through a lane, have a message back before it is in or out.
    pub(crate) regrets: u8,
    pub(crate) variant: Variant,
}

impl Config {
    pub(crate) const BASE: Self = Self {
        users: &[Role::Mover, Role::Taker],
        rounds: 1,
        cells: 1,
        lane: false,
        lines: 1,
        slots: false,
        reapers: 1,
        exclusive: true,
        kills: 1,
        reuses: 0,
        regrets: 0,
        variant: Variant::Right,
    };
}

#[derive(Debug)]
pub(crate) struct References {
    config: Config,
    words: [Explored; WORDS],
    payloads: [[Explored; 7]; MOST_CELLS],
    nothing: Explored,
    /// Where each user's entries start; the last is the end.
    entries: Vec<usize>,
}

/// Where a process stands: which user of its row it is, how often it has done its work, and what it does next.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Local {
    epoch: u8,
    round: u8,
    act: Act,
}

/// A reference that a process knows of.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
struct Ref {
    line: u8,
    generation: u64,
}

/// The dead participant that a reaper is at.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
struct Corpse {
    row: u8,
    epoch: u8,
}

#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
enum Act {
    Make {
        line: u8,
    },
    Open,
    // Sending.
    Share {
        held: Ref,
    },
    Claim {
        held: Ref,
    },
    Write {
        held: Ref,
        pos: u64,
    },
    Give {
        held: Ref,
        pos: u64,
    },
    Decide {
        held: Ref,
        pos: u64,
    },
    TakeBack {
        held: Ref,
        pos: u64,
    },
    Return {
        held: Ref,
    },
    Publish {
        held: Ref,
        pos: u64,
    },
    CountLate {
        held: Ref,
    },
    Forget {
        held: Ref,
    },
    // Receiving.
    Take {
        seen: u64,
    },
    Read {
        seen: u64,
        pos: u64,
    },
    Record {
        seen: u64,
        held: Ref,
        pos: u64,
    },
    Refuse {
        seen: u64,
        held: Ref,
        pos: u64,
    },
    Release {
        seen: u64,
        held: Ref,
        pos: u64,
    },
    Arrive {
        held: Ref,
    },
    /// Whoever is here uses what the line stands for.
    Drop {
        held: Ref,
    },
    // A reaper.
    Idle,
    Become {
        dead: Corpse,
    },
    Settle {
        dead: Corpse,
        entry: u8,
    },
    Mend {
        dead: Corpse,
    },
    GiveBack {
        dead: Corpse,
        entry: u8,
    },
    Bury {
        dead: Corpse,
    },
    Buried {
        dead: Corpse,
        won: bool,
    },
    Done,
    Dead,
}

/// What the model knows.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Ghost {
    /// Bit per row: dead and not yet given free.
    dead: u8,
    reuses: u8,
    regrets: u8,
    killed: u8,
}

impl CellArray for &References {
    type M = Steps;

    fn capacity(&self) -> u64 {
        self.config.cells
    }
    fn word(&self, index: u64) -> &Explored {
        &self.words[CELLS + index as usize * CELL]
    }
    fn payload(&self, index: u64) -> &[Explored; 7] {
        &self.payloads[index as usize]
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
        &self.nothing
    }
}

impl References {
    pub(crate) fn new(config: Config) -> Self {
        let mut entries = vec![ENTRIES];
        for role in config.users {
            let own = if *role == Role::Sharer { 2 } else { 1 };
            entries.push(entries[entries.len() - 1] + own * ENTRY);
        }
        assert!(entries[config.users.len()] <= WORDS, "too many entries");
        assert!(config.users.len() + config.reapers <= PROCESSES && config.reapers <= 2);
        Self {
            config,
            words: std::array::from_fn(Explored::Word),
            payloads: std::array::from_fn(|cell| {
                std::array::from_fn(|word| match word {
                    0 => Explored::Word(CELLS + cell * CELL + 1),
                    _ => Explored::Nothing,
                })
            }),
            nothing: Explored::Nothing,
            entries,
        }
    }

    fn is(&self, variant: Variant) -> bool {
        self.config.variant == variant
    }

    fn users(&self) -> usize {
        self.config.users.len()
    }

    fn entries_of(&self, row: usize) -> usize {
        (self.entries[row + 1] - self.entries[row]) / ENTRY
    }

    fn entry(&self, row: usize, index: usize) -> EntryRef<'_, Explored> {
        let at = self.entries[row] + index * ENTRY;
        EntryRef {
            state: &self.words[at],
            generation: &self.words[at + 1],
            ticket_cell: &self.words[at + 2],
            ticket_position: &self.words[at + 3],
        }
    }

    fn counted(&self, line: u64) -> &Explored {
        &self.words[LINES + line as usize * LINE]
    }

    fn claimant(&self, line: u64) -> &Explored {
        if self.is(Variant::NoClaimant) {
            return &self.nothing;
        }
        &self.words[LINES + line as usize * LINE + 1]
    }

    fn doubt(&self, line: u64) -> &Explored {
        &self.words[LINES + line as usize * LINE + 2]
    }

    fn counts_of(&self, line: u64) -> Words<'_, Explored> {
        Words {
            count: self.counted(line),
            doubt: self.doubt(line),
        }
    }

    fn row(&self, row: usize) -> &Explored {
        &self.words[ROWS + row * ROW]
    }

    fn reaper_of(&self, row: usize) -> &Explored {
        &self.words[ROWS + row * ROW + 1]
    }
}

impl Corpse {
    fn owner(self) -> Owner {
        owner(self.row.into(), self.epoch)
    }
}

fn owner(row: usize, epoch: u8) -> Owner {
    Owner {
        row: row as u16,
        epoch: epoch.into(),
    }
}

/// A row's word while somebody is in it.
fn occupied(epoch: u8) -> u64 {
    u64::from(epoch) << 1 | 1
}

/// What a message's payload says.
fn named(held: Ref) -> u64 {
    held.generation << 4 | u64::from(held.line)
}

fn read_name(payload: u64) -> Ref {
    Ref {
        line: (payload & 0xf) as u8,
        generation: payload >> 4,
    }
}
