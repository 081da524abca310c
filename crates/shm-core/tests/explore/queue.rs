//! The world of a queue: producers, consumers, reapers and somebody who closes it, over the real
//! [`Cells`] and [`Event`].

use shm_core::cells::{CellArray, Cells, Claim, Owner, Take, Wake};
use shm_core::event::{Event, Registered};
use shm_core::word::{CellState, decode};

use crate::engine::{Process, State, World};
use crate::memory::{self, Explored, Log, Machine, PROCESSES, Steps, WORDS};

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

    fn cells(&self) -> Cells<&Self> {
        Cells(self)
    }

    fn event(&self, at: usize) -> Event<'_, Steps> {
        Event::new(&self.words[at], &self.words[at + 1])
    }

    fn wake(&self, at: usize) -> impl Fn(u32) -> u32 {
        move |how_many| memory::wake(&self.words[at], how_many)
    }

    fn event_of(&self, what: What) -> usize {
        match what {
            What::NotFull { .. } | What::Claimed { .. } | What::NoMore => NOT_FULL,
            What::NotEmpty { .. } | What::Taken { .. } | What::Drained => NOT_EMPTY,
        }
    }

    /// What a producer does after message `n`.
    fn next_message(&self, process: usize, n: u8) -> Act {
        if n + 1 < self.config.producers[process] {
            Act::Claim {
                n: n + 1,
                ticket: None,
            }
        } else {
            Act::Done
        }
    }

    fn wait_or_poll(&self, what: What, ticket: Option<u64>) -> Act {
        match (ticket, what) {
            (Some(ticket), _) => Act::Sleep { what, ticket },
            (None, _) if self.config.park => Act::Register(what),
            (None, What::NotFull { n }) => Act::Claim { n, ticket: None },
            (None, What::NotEmpty { seen }) => Act::Take { seen, ticket: None },
            _ => unreachable!("nobody waits for what it has"),
        }
    }

    /// What comes after waiting, or at once without it.
    fn go_on(&self, what: What) -> Act {
        match what {
            What::NotFull { n } => Act::Claim { n, ticket: None },
            What::Claimed { n, pos }
                if self.config.quiet_payload || self.is(Variant::PublishBeforeWrite) =>
            {
                Act::Publish { n, pos }
            }
            What::Claimed { n, pos } => Act::Write { n, pos },
            What::NoMore => Act::Done,
            What::NotEmpty { seen } => Act::Take { seen, ticket: None },
            What::Taken { seen, taken } if self.is(Variant::ReleaseBeforeRead) => {
                Act::Release { seen, taken }
            }
            What::Taken { seen, taken } if self.config.quiet_payload => {
                self.after_reading(seen, taken)
            }
            What::Taken { seen, taken } => Act::Read { seen, taken },
            What::Drained => Act::Drained,
        }
    }

    fn after_reading(&self, seen: u64, taken: Taken) -> Act {
        if self.config.hand_backs > 0 {
            Act::Decide { seen, taken }
        } else {
            Act::Release { seen, taken }
        }
    }

    fn leave_waiters(&self, what: What, ticket: Option<u64>) -> Act {
        match ticket {
            Some(ticket) => Act::Unregister { what, ticket },
            None => self.go_on(what),
        }
    }

    fn claim(&self, me: Owner, n: u8, ticket: Option<u64>) -> Result<Act, String> {
        Ok(match self.cells().claim(me) {
            Claim::At(pos) => self.leave_waiters(What::Claimed { n, pos }, ticket),
            Claim::Full | Claim::Pending(_) => self.wait_or_poll(What::NotFull { n }, ticket),
            Claim::Closed => self.leave_waiters(What::NoMore, ticket),
            Claim::Damaged => return Err("a claim found the queue damaged".into()),
        })
    }

    fn take(&self, me: Owner, mut seen: u64, ticket: Option<u64>) -> Result<Act, String> {
        let taken = self.cells().take(me, &mut seen);
        Ok(match taken {
            Take::At { pos, handed_back } => {
                let taken = Taken {
                    pos,
                    handed_back,
                    value: 0,
                };
                self.leave_waiters(What::Taken { seen, taken }, ticket)
            }
            Take::Pending(owner)
                if self.is(Variant::DrainedWhileTaking)
                    && self.role(owner.row.into()) == Role::Consumer =>
            {
                self.leave_waiters(What::Drained, ticket)
            }
            Take::Empty | Take::Pending(_) => self.wait_or_poll(What::NotEmpty { seen }, ticket),
            Take::Drained => self.leave_waiters(What::Drained, ticket),
            Take::Damaged => return Err("a take found the queue damaged".into()),
        })
    }

    fn register(&self, what: What) -> Act {
        let at = self.event_of(what);
        let registered = self.event(at).register();
        let mut ticket = registered.to_bits();
        if self.is(Variant::RegisterBeforeSeq) {
            use shm_core::sync::Atomic32;
            let seq = self.words[at].load(std::sync::atomic::Ordering::SeqCst);
            ticket = ticket >> 32 << 32 | u64::from(seq);
        }
        let ticket = Some(ticket);
        match what {
            What::NotFull { n } => Act::Claim { n, ticket },
            What::NotEmpty { seen } => Act::Take { seen, ticket },
            _ => unreachable!("nobody waits for what it has"),
        }
    }

    fn unregister(&self, what: What, ticket: u64) -> Act {
        let at = self.event_of(what);
        if self.is(Variant::UnregisterBlindly) {
            use shm_core::sync::Atomic32;
            self.words[at + 1].fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
        } else {
            self.event(at).unregister(Registered::from_bits(ticket));
        }
        self.go_on(what)
    }

    fn reaped(&self, row: u8, epoch: u8) -> Act {
        if self.config.park && !self.is(Variant::SilentReaper) {
            Act::RouseNotEmpty { row, epoch }
        } else {
            Act::Reaped { row, epoch }
        }
    }

    fn is_alive(&self, state: &State<Local, Ghost>, process: usize) -> bool {
        !matches!(state.processes[process].local.act, Act::Dead { .. })
    }

    fn all(&self, state: &State<Local, Ghost>, role: Role, check: impl Fn(Act) -> bool) -> bool {
        (0..state.count)
            .filter(|process| self.role(*process) == role)
            .all(|process| check(state.processes[process].local.act))
    }

    /// Gives idle reapers the next dead row.
    fn assign(&self, state: &mut State<Local, Ghost>) {
        let row = state.ghost.dead.trailing_zeros() as usize;
        if row >= state.count {
            return;
        }
        let epoch = state.processes[row].local.epoch;
        for reaper in 0..state.count {
            let local = &mut state.processes[reaper].local;
            if local.act == Act::Watch {
                let row = row as u8;
                local.act = Act::Reap { row, epoch };
            }
        }
    }

    /// A reaper is through with a row; the first one gives it free.
    fn give_free(&self, row: usize, epoch: u8, state: &mut State<Local, Ghost>) {
        let dead = state.processes[row].local;
        let Act::Dead { n } = dead.act else { return };
        if dead.epoch != epoch || state.ghost.dead & 1 << row == 0 {
            return;
        }
        state.ghost.dead &= !(1 << row);
        if state.ghost.reuses == 0 {
            return;
        }
        let act = match self.role(row) {
            Role::Producer if n < self.config.producers[row] => Act::Claim { n, ticket: None },
            Role::Consumer => Act::Take {
                seen: u64::MAX,
                ticket: None,
            },
            _ => return,
        };
        state.ghost.reuses -= 1;
        let epoch = if self.is(Variant::SameEpoch) {
            epoch
        } else {
            epoch + 1
        };
        state.set(row, Local { epoch, act });
    }

    /// A message was taken: notes what it is and that it comes in order.
    fn note_taken(&self, taken: &mut Taken, state: &mut State<Local, Ghost>) -> Result<(), String> {
        let cells = self.config.capacity as usize;
        let at = CELLS + cells + (taken.pos as usize % cells) * PAYLOAD;
        let payload = &state.machine.words[at..at + PAYLOAD];
        if payload[0] == 0 || payload.iter().any(|word| *word != payload[0]) {
            return Err(format!("the payload is torn: {payload:x?}"));
        }
        taken.value = payload[0];
        let (producer, n) = ((taken.value - 1) as usize / 8, (taken.value - 1) as u8 % 8);
        if !taken.handed_back {
            let last = &mut state.ghost.last[producer];
            if n < *last {
                return Err(format!("message {n} of producer {producer} after {last}"));
            }
            *last = n + 1;
        }
        Ok(())
    }

    /// A message left the queue for good.
    fn note_consumed(value: u64, ghost: &mut Ghost) -> Result<(), String> {
        let bit = 1 << (value - 1);
        if ghost.consumed & bit != 0 {
            return Err(format!("message {value:x} was delivered twice"));
        }
        ghost.consumed |= bit;
        Ok(())
    }

    fn check_drained(&self, state: &State<Local, Ghost>) -> Result<(), String> {
        if self.is(Variant::DrainedWhileTaking) {
            return Ok(());
        }
        let cells = CELLS..CELLS + self.config.capacity as usize;
        for word in &state.machine.words[cells] {
            if !matches!(
                decode(*word),
                CellState::Free { .. } | CellState::Closed { .. }
            ) {
                return Err(format!("drained, with {:?}", decode(*word)));
            }
        }
        Ok(())
    }
}

impl World for Queue {
    type Local = Local;
    type Ghost = Ghost;

    fn start(&self) -> State<Local, Ghost> {
        let config = &self.config;
        let count = config.producers.len() + config.consumers + config.reapers;
        let mut state = State {
            machine: Machine::ZEROED,
            processes: [Process {
                local: Local {
                    epoch: 0,
                    act: Act::Done,
                },
                log: Log::EMPTY,
            }; PROCESSES],
            count: count + usize::from(config.close),
            ghost: Ghost {
                published: 0,
                consumed: 0,
                last: [0; 4],
                dead: 0,
                reuses: config.reuses,
                hand_backs: config.hand_backs,
                taken: [0; PROCESSES],
            },
            kills_left: config.kills,
        };
        for process in 0..state.count {
            let act = self.first_act(self.role(process));
            state.set(process, Local { epoch: 0, act });
        }
        memory::set_up(&mut state.machine, || self.cells().init());
        state
    }

    fn is_enabled(&self, _: usize, local: Local, _: &Ghost) -> bool {
        !matches!(
            local.act,
            Act::Watch | Act::Done | Act::Drained | Act::Dead { .. }
        )
    }

    fn act(&self, process: usize, Local { epoch, act }: Local) -> Result<Local, String> {
        let me = Owner {
            row: process as u16,
            epoch: epoch.into(),
        };
        let cells = self.cells();
        let pass_on = !self.is(Variant::NoPassingOn);
        let next = match act {
            Act::Claim { n, ticket } => self.claim(me, n, ticket)?,
            Act::Write { n, pos } => {
                cells.write(pos, &[message(process, n) + 1; 7]);
                if self.is(Variant::PublishBeforeWrite) {
                    self.next_message(process, n)
                } else {
                    Act::Publish { n, pos }
                }
            }
            Act::Publish { n, pos } => {
                if self.config.quiet_payload {
                    cells.write(pos, &[message(process, n) + 1; 7]);
                }
                cells.publish(pos);
                if self.is(Variant::PublishBeforeWrite) {
                    Act::Write { n, pos }
                } else if self.config.park {
                    Act::NotifyNotEmpty { n, pos }
                } else {
                    self.next_message(process, n)
                }
            }
            Act::NotifyNotEmpty { n, pos } => {
                self.event(NOT_EMPTY).notify_one(self.wake(NOT_EMPTY));
                if pass_on {
                    Act::PassOnNotFull { n, pos }
                } else {
                    self.next_message(process, n)
                }
            }
            Act::PassOnNotFull { n, pos } => {
                let event = self.event(NOT_FULL);
                if event.anyone_waiting() && cells.next_is_free(pos) {
                    event.notify_one(self.wake(NOT_FULL));
                }
                self.next_message(process, n)
            }
            Act::Take { seen, ticket } => self.take(me, seen, ticket)?,
            Act::Read { seen, taken } => {
                let read = cells.read(taken.pos);
                if read[..PAYLOAD].iter().any(|word| *word != taken.value) {
                    return Err(format!("{:x} was read as {read:x?}", taken.value));
                }
                if self.is(Variant::ReleaseBeforeRead) {
                    Act::Take { seen, ticket: None }
                } else {
                    self.after_reading(seen, taken)
                }
            }
            Act::Decide { seen, taken } => match memory::choose(2) {
                0 => Act::Release { seen, taken },
                _ => Act::HandBack { seen, taken },
            },
            Act::HandBack { seen, taken } => {
                cells.hand_back(taken.pos);
                if self.config.park {
                    Act::NotifyHandedBack { seen }
                } else {
                    Act::Take { seen, ticket: None }
                }
            }
            Act::NotifyHandedBack { seen } => {
                self.event(NOT_EMPTY).notify_all(self.wake(NOT_EMPTY));
                Act::Take { seen, ticket: None }
            }
            Act::Release { seen, taken } => {
                let wake = cells.release(taken.pos) == Wake::All
                    && !self.is(Variant::ReleaseWakesOneAfterClose);
                if self.is(Variant::ReleaseBeforeRead) {
                    Act::Read { seen, taken }
                } else if self.config.park {
                    let pos = taken.pos;
                    Act::NotifyNotFull { seen, pos, wake }
                } else {
                    Act::Take { seen, ticket: None }
                }
            }
            Act::NotifyNotFull { seen, pos, wake } => {
                let event = self.event(NOT_FULL);
                if wake {
                    event.notify_all(self.wake(NOT_FULL));
                    Act::NotifyAllNotEmpty { seen }
                } else {
                    event.notify_one(self.wake(NOT_FULL));
                    if pass_on {
                        Act::PassOnNotEmpty { seen, pos }
                    } else {
                        Act::Take { seen, ticket: None }
                    }
                }
            }
            Act::PassOnNotEmpty { seen, pos } => {
                let event = self.event(NOT_EMPTY);
                if event.anyone_waiting() && cells.next_is_ready(pos) {
                    event.notify_one(self.wake(NOT_EMPTY));
                }
                Act::Take { seen, ticket: None }
            }
            Act::NotifyAllNotEmpty { seen } => {
                self.event(NOT_EMPTY).notify_all(self.wake(NOT_EMPTY));
                Act::Take { seen, ticket: None }
            }
            Act::Register(what) => self.register(what),
            Act::Sleep { what, ticket } => {
                let seq = Registered::from_bits(ticket).seq;
                memory::sleep_on(&self.words[self.event_of(what)], seq);
                Act::Unregister { what, ticket }
            }
            Act::Unregister { what, ticket } => self.unregister(what, ticket),
            Act::Reap { row, epoch } => {
                let dead = Owner {
                    row: row.into(),
                    epoch: epoch.into(),
                };
                if cells.reap(dead).damaged > 0 {
                    return Err("a reap found the queue damaged".into());
                }
                self.reaped(row, epoch)
            }
            Act::RouseNotEmpty { row, epoch } => {
                self.event(NOT_EMPTY).rouse(self.wake(NOT_EMPTY));
                Act::RouseNotFull { row, epoch }
            }
            Act::RouseNotFull { row, epoch } => {
                self.event(NOT_FULL).rouse(self.wake(NOT_FULL));
                Act::Reaped { row, epoch }
            }
            Act::Close => {
                cells.close();
                if self.config.park && !self.is(Variant::SilentClose) {
                    Act::CloseNotEmpty
                } else {
                    Act::Done
                }
            }
            Act::CloseNotEmpty => {
                self.event(NOT_EMPTY).notify_all(self.wake(NOT_EMPTY));
                Act::CloseNotFull
            }
            Act::CloseNotFull => {
                self.event(NOT_FULL).notify_all(self.wake(NOT_FULL));
                Act::Done
            }
            Act::Watch | Act::Reaped { .. } | Act::Drained | Act::Done | Act::Dead { .. } => {
                unreachable!("these do nothing")
            }
        };
        Ok(Local { epoch, act: next })
    }

    fn settle(
        &self,
        process: usize,
        before: Local,
        state: &mut State<Local, Ghost>,
    ) -> Result<(), String> {
        let mut act = state.processes[process].local.act;
        match &mut act {
            Act::Read { taken, .. }
            | Act::Decide { taken, .. }
            | Act::Unregister {
                what: What::Taken { taken, .. },
                ..
            }
            | Act::Release { taken, .. }
                if matches!(before.act, Act::Take { .. }) =>
            {
                self.note_taken(taken, state)?;
            }
            Act::Drained
            | Act::Unregister {
                what: What::Drained,
                ..
            } if matches!(before.act, Act::Take { .. }) => self.check_drained(state)?,
            Act::Reaped { row, epoch } => {
                self.give_free((*row).into(), *epoch, state);
                act = Act::Watch;
            }
            Act::HandBack { .. } => {
                if state.ghost.hand_backs == 0 {
                    let Act::Decide { seen, taken } = before.act else {
                        unreachable!("only a decision hands back");
                    };
                    act = Act::Release { seen, taken };
                } else {
                    state.ghost.hand_backs -= 1;
                }
            }
            _ => {}
        }
        state.processes[process].local.act = act;
        match before.act {
            Act::Publish { n, .. } => state.ghost.published |= 1 << message(process, n),
            Act::Release { taken, .. } => {
                if self.config.takes > 0 {
                    state.ghost.taken[process] += 1;
                }
                Self::note_consumed(taken.value, &mut state.ghost)?;
            }
            _ => {}
        }
        if self.config.takes > 0
            && state.ghost.taken[process] == self.config.takes
            && matches!(act, Act::Take { .. })
        {
            state.processes[process].local.act = Act::Done;
        }
        self.assign(state);
        Ok(())
    }

    fn kill(&self, process: usize, state: &mut State<Local, Ghost>) -> bool {
        let Process { local, log } = state.processes[process];
        let mid_act = log.len() > 0;
        let mut n = 0;
        match local.act {
            Act::Done | Act::Drained | Act::Dead { .. } => return false,
            Act::Watch
            | Act::Reap { .. }
            | Act::RouseNotEmpty { .. }
            | Act::RouseNotFull { .. } => {
                let others = (0..state.count).filter(|other| {
                    *other != process
                        && self.role(*other) == Role::Reaper
                        && self.is_alive(state, *other)
                });
                if others.count() == 0 {
                    return false;
                }
            }
            Act::Claim { n: next, .. }
            | Act::Register(What::NotFull { n: next })
            | Act::Sleep {
                what: What::NotFull { n: next },
                ..
            }
            | Act::Unregister {
                what: What::NotFull { n: next },
                ..
            } => n = next,
            Act::Write { n: last, .. }
            | Act::Publish { n: last, .. }
            | Act::NotifyNotEmpty { n: last, .. }
            | Act::PassOnNotFull { n: last, .. }
            | Act::Unregister {
                what: What::Claimed { n: last, .. },
                ..
            } => {
                n = last + 1;
                // The first step of a publication is the publication.
                if mid_act && matches!(local.act, Act::Publish { .. }) {
                    state.ghost.published |= 1 << message(process, last);
                }
            }
            // The first step of a release is the release: the message is lost with its consumer.
            Act::Release { taken, .. } if mid_act => {
                state.ghost.consumed |= 1 << (taken.value - 1);
            }
            _ => {}
        }
        state.set(
            process,
            Local {
                act: Act::Dead { n },
                ..local
            },
        );
        if self.role(process) != Role::Reaper {
            state.ghost.dead |= 1 << process;
            self.assign(state);
        }
        true
    }

    fn is_final(&self, state: &State<Local, Ghost>) -> Result<bool, String> {
        let gone = |act| matches!(act, Act::Done | Act::Dead { .. });
        let dead = |act| matches!(act, Act::Dead { .. });
        if state.ghost.dead != 0
            || !self.all(state, Role::Reaper, |act| act == Act::Watch || dead(act))
        {
            return Ok(false);
        }
        if self.all(state, Role::Consumer, gone)
            && !self.all(state, Role::Consumer, |act| !dead(act))
        {
            // Nobody is left to take what there is.
            return Ok(true);
        }
        if !self.all(state, Role::Producer, gone) || !self.all(state, Role::Closer, gone) {
            return Ok(false);
        }
        let complete = state.ghost.published == state.ghost.consumed;
        if state.machine.words[CLOSED] == 0 {
            return Ok(complete);
        }
        if !self.all(state, Role::Consumer, |act| {
            act == Act::Drained || dead(act)
        }) {
            return Ok(false);
        }
        if !complete {
            return Err(format!(
                "drained, but of {:x} only {:x} was consumed",
                state.ghost.published, state.ghost.consumed
            ));
        }
        Ok(true)
    }
}
