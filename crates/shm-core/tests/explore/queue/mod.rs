//! The world of a queue: producers, consumers, reapers and somebody who closes it, over the real
//! cells and events.

mod acts;
mod model;

use shm_core::cells::CellArray;

use crate::memory::{Explored, PROCESSES, Steps, WORDS};

/// Payload words that are really stored, enough to see a torn payload.
const PAYLOAD: usize = 2;
const TAIL: usize = 0;
const HEAD: usize = 1;
const ORPHANS: usize = 2;
const CLOSED: usize = 3;
/// `seq` and `waiters` of the two events.
const NOT_EMPTY: usize = 4;
const NOT_FULL: usize = 6;
const CELLS: usize = 8;

/// What is left out of the protocol, to see that the explorer notices.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Variant {
    /// Nothing.
    Right,
    /// A row's next user has the same epoch.
    SameEpoch,
    /// Handing a message back does not grow the orphan epoch.
    NoOrphanEpoch,
    /// *Drained* is said while another consumer is still taking.
    DrainedWhileTaking,
    /// A reaper wakes nobody.
    SilentReaper,
    /// Nobody passes a wake on.
    NoPassingOn,
    /// `seq` is loaded after the count has grown.
    RegisterBeforeSeq,
    /// A waiter takes itself out of whatever count there is.
    UnregisterBlindly,
    /// A release in a closed queue wakes as in an open one.
    ReleaseWakesOneAfterClose,
    /// Closing wakes nobody.
    SilentClose,
    /// Consumers free a cell before they have read it.
    ReleaseBeforeRead,
    /// Producers publish before they have written.
    PublishBeforeWrite,
}

/// A world to explore.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Config {
    pub(crate) capacity: u64,
    /// Messages of each producer.
    pub(crate) producers: &'static [u8],
    pub(crate) consumers: usize,
    pub(crate) reapers: usize,
    pub(crate) kills: u8,
    /// How many times a freed row is given to a successor of the dead.
    pub(crate) reuses: u8,
    /// How many times a consumer changes its mind.
    pub(crate) hand_backs: u8,
    pub(crate) close: bool,
    /// Waiting processes sleep; otherwise they poll.
    pub(crate) park: bool,
    /// Messages after which a consumer leaves; 0: never.
    pub(crate) takes: u8,
    /// To write and read a payload is no step: a smaller world for what is about words only.
    pub(crate) quiet_payload: bool,
    pub(crate) variant: Variant,
}

impl Config {
    pub(crate) const BASE: Self = Self {
        capacity: 2,
        producers: &[1],
        consumers: 1,
        reapers: 1,
        kills: 1,
        reuses: 0,
        hand_backs: 0,
        close: false,
        park: false,
        takes: 0,
        quiet_payload: false,
        variant: Variant::Right,
    };
}

#[derive(Debug)]
pub(crate) struct Queue {
    config: Config,
    words: [Explored; WORDS],
    payloads: Vec<[Explored; 7]>,
}

/// Where a process stands: which user of its row it is, and what it does next.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Local {
    epoch: u8,
    act: Act,
}

/// A process's next act. `n` counts a producer's messages, `seen` is a consumer's memory of the
/// orphan epoch, `ticket` is a waiter's registration.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
enum Act {
    // A producer.
    Claim {
        n: u8,
        ticket: Option<u64>,
    },
    Write {
        n: u8,
        pos: u64,
    },
    Publish {
        n: u8,
        pos: u64,
    },
    NotifyNotEmpty {
        n: u8,
        pos: u64,
    },
    PassOnNotFull {
        n: u8,
        pos: u64,
    },
    // A consumer.
    Take {
        seen: u64,
        ticket: Option<u64>,
    },
    Read {
        seen: u64,
        taken: Taken,
    },
    Decide {
        seen: u64,
        taken: Taken,
    },
    HandBack {
        seen: u64,
        taken: Taken,
    },
    NotifyHandedBack {
        seen: u64,
    },
    Release {
        seen: u64,
        taken: Taken,
    },
    NotifyNotFull {
        seen: u64,
        pos: u64,
        wake: bool,
    },
    PassOnNotEmpty {
        seen: u64,
        pos: u64,
    },
    NotifyAllNotEmpty {
        seen: u64,
    },
    // Either, waiting.
    Register(What),
    Sleep {
        what: What,
        ticket: u64,
    },
    Unregister {
        what: What,
        ticket: u64,
    },
    // A reaper.
    Watch,
    Reap {
        row: u8,
        epoch: u8,
    },
    RouseNotEmpty {
        row: u8,
        epoch: u8,
    },
    RouseNotFull {
        row: u8,
        epoch: u8,
    },
    Reaped {
        row: u8,
        epoch: u8,
    },
    // Whoever closes.
    Close,
    CloseNotEmpty,
    CloseNotFull,
    // The end.
    Drained,
    Done,
    /// Killed; a producer's successor goes on with message `n`.
    Dead {
        n: u8,
    },
}

/// A message that a consumer has taken.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
struct Taken {
    pos: u64,
    handed_back: bool,
    /// What the cell held at that instant; the model's knowledge, not the process's.
    value: u64,
}

/// What a waiter waits for, or what it has got when it leaves the waiters.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
enum What {
    NotFull { n: u8 },
    Claimed { n: u8, pos: u64 },
    NoMore,
    NotEmpty { seen: u64 },
    Taken { seen: u64, taken: Taken },
    Drained,
}

/// What the model knows.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Ghost {
    /// Bit per message: it was made ready.
    published: u32,
    /// Bit per message: it left the queue for good.
    consumed: u32,
    /// The last number taken in order of each producer.
    last: [u8; 4],
    /// Bit per row: dead and not yet given free.
    dead: u8,
    reuses: u8,
    hand_backs: u8,
    /// Messages that each process consumed.
    taken: [u8; PROCESSES],
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Role {
    Producer,
    Consumer,
    Reaper,
    Closer,
}

/// The bit of a message in the ghost's sets; the message itself is this plus one.
fn message(producer: usize, n: u8) -> u64 {
    producer as u64 * 8 + u64::from(n)
}

impl CellArray for &Queue {
    type M = Steps;

    fn capacity(&self) -> u64 {
        self.config.capacity
    }
    fn word(&self, index: u64) -> &Explored {
        &self.words[CELLS + index as usize]
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
        &self.words[CLOSED]
    }
}

impl Queue {
    pub(crate) fn new(config: Config) -> Self {
        let cells = config.capacity as usize;
        let word = |address| match address {
            ORPHANS if config.variant == Variant::NoOrphanEpoch => Explored::Frozen(address),
            _ => Explored::Word(address),
        };
        Self {
            config,
            words: std::array::from_fn(word),
            payloads: (0..cells)
                .map(|cell| {
                    std::array::from_fn(|word| {
                        let address = CELLS + cells + cell * PAYLOAD + word;
                        match word < PAYLOAD {
                            true if config.quiet_payload => Explored::Quiet(address),
                            true => Explored::Word(address),
                            false => Explored::Nothing,
                        }
                    })
                })
                .collect(),
        }
    }

    fn is(&self, variant: Variant) -> bool {
        self.config.variant == variant
    }

    fn role(&self, process: usize) -> Role {
        let consumers = self.config.producers.len();
        let reapers = consumers + self.config.consumers;
        match process {
            _ if process < consumers => Role::Producer,
            _ if process < reapers => Role::Consumer,
            _ if process < reapers + self.config.reapers => Role::Reaper,
            _ => Role::Closer,
        }
    }

    fn first_act(&self, role: Role) -> Act {
        match role {
            Role::Producer => Act::Claim { n: 0, ticket: None },
            Role::Consumer => Act::Take {
                seen: 0,
                ticket: None,
            },
            Role::Reaper => Act::Watch,
            Role::Closer => Act::Close,
        }
    }
}
