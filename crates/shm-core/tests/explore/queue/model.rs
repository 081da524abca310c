//! What the model of the queue's world knows: what was sent and received, who is dead, and what must
//! hold when all is done.

use shm_core::word::{CellState, decode};

use super::{
    Act, CELLS, CLOSED, Ghost, Local, PAYLOAD, Queue, Role, Taken, Variant, What, message,
};
use crate::engine::{Process, State, World};
use crate::memory::{self, Log, Machine, PROCESSES};

impl Queue {
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

    fn act(&self, process: usize, local: Local) -> Result<Local, String> {
        self.perform(process, local)
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
