//! What the processes of this world do: calls of the real steps, in the order of `transfer`, `held` and `reap`.

use std::sync::atomic::Ordering::SeqCst;

use shm_core::cells::{Cells, Claim, Owner, Take};
use shm_core::doubt;
use shm_core::lane::Lane;
use shm_core::steps::{self, Counted, EntryRef, Kind};
use shm_core::sync::Atomic64;

use super::dropping::Dropper;
use super::{
    Act, Corpse, GONE, Local, Ref, References, Role, Variant, named, occupied, owner, read_name,
};
use crate::memory::{self, Explored};

impl References {
    fn cells(&self) -> Cells<&Self> {
        Cells(self)
    }

    fn lane(&self) -> Lane<&Self> {
        Lane(self)
    }

    pub(super) fn first(&self, process: usize) -> Act {
        match self.config.users.get(process) {
            Some(Role::Taker) => Act::Take { seen: u64::MAX },
            Some(Role::Opener | Role::Relay) => Act::Open,
            Some(_) if self.config.slots => Act::Make { line: 0 },
            Some(_) => Act::Make {
                line: (process % self.config.lines) as u8,
            },
            None => Act::Idle,
        }
    }

    /// Does one act on the explored memory.
    pub(super) fn perform(&self, process: usize, local: Local) -> Result<Local, String> {
        let role = self.config.users.get(process).copied();
        let act = match local.act {
            Act::Make { .. }
            | Act::Open
            | Act::Share { .. }
            | Act::Return { .. }
            | Act::Drop { .. }
            | Act::Forget { .. } => {
                return self.own(process, local, role);
            }
            Act::Take { .. }
            | Act::Read { .. }
            | Act::Record { .. }
            | Act::Refuse { .. }
            | Act::Release { .. }
            | Act::Arrive { .. } => self.receive(process, local)?,
            Act::Become { .. }
            | Act::Settle { .. }
            | Act::Mend { .. }
            | Act::GiveBack { .. }
            | Act::Bury { .. } => self.reap(process, local.act)?,
            _ => self.send(process, local, role == Some(Role::Sharer))?,
        };
        Ok(Local { act, ..local })
    }

    /// What concerns only one's own entry and the line.
    fn own(&self, process: usize, local: Local, role: Option<Role>) -> Result<Local, String> {
        let me = owner(process, local.epoch);
        let go = |act| Ok(Local { act, ..local });
        match local.act {
            Act::Make { line } => go(match self.make(process, me, line) {
                Some(held) if role == Some(Role::Loaner) => Act::Drop { held },
                Some(held) if role == Some(Role::Sharer) && !self.is(Variant::CountLate) => {
                    Act::Share { held }
                }
                Some(held) => Act::Claim { held },
                None if self.config.slots => Act::Make {
                    line: (line + 1) % self.config.lines as u8,
                },
                None => Act::Make { line },
            }),
            Act::Open => {
                // As `Held::open`.
                let now = Counted::from_word(self.counted(0).load(SeqCst));
                let generation = now.generation;
                let entry = self.entry(process, 0);
                let line = (0, generation);
                if steps::open(&entry, me.epoch, line, self.counts_of(0), || {}).is_err() {
                    return Ok(self.next_round(process, local));
                }
                let held = Ref {
                    line: 0,
                    generation,
                };
                go(match role {
                    Some(Role::Relay) => Act::Claim { held },
                    _ => Act::Drop { held },
                })
            }
            Act::Forget { held } => {
                // As `departure::done`.
                let sharing = role == Some(Role::Sharer);
                self.entry(process, usize::from(sharing)).clear(me.epoch);
                if sharing {
                    go(Act::Drop { held })
                } else {
                    Ok(self.next_round(process, local))
                }
            }
            Act::Share { held } => {
                // As `Held::separate`.
                let reference = (held.line.into(), held.generation);
                let word = self.counted(held.line.into());
                steps::share(&self.entry(process, 1), me.epoch, reference, word)
                    .map_err(|refused| gone(held, refused))?;
                go(Act::Claim { held })
            }
            Act::Return { held } => {
                self.give_back(&self.entry(process, 1), me, held)?;
                go(Act::Drop { held })
            }
            Act::Drop { held } => {
                self.give_back(&self.entry(process, 0), me, held)?;
                Ok(self.next_round(process, local))
            }
            _ => unreachable!("another kind of act"),
        }
    }

    fn next_round(&self, process: usize, local: Local) -> Local {
        if self.config.users[process] == Role::Taker {
            let act = self.first(process);
            return Local { act, ..local };
        }
        let round = local.round + 1;
        let act = if round == self.config.rounds {
            Act::Done
        } else {
            self.first(process)
        };
        Local {
            round,
            act,
            ..local
        }
    }

    /// As `Heap::allocate` or `Held::acquire_free`.
    fn make(&self, process: usize, me: Owner, line: u8) -> Option<Ref> {
        let number = line.into();
        let word = self.counted(number);
        let now = Counted::from_word(word.load(SeqCst));
        if now.count != 0 {
            return None;
        }
        let entry = self.entry(process, 0);
        let generation = if self.config.slots {
            let present = |there: Owner| {
                self.row(there.row.into()).load(SeqCst) == occupied(there.epoch as u8)
            };
            let claim = self.claimant(number);
            steps::acquire_free(&entry, me, number, (word, claim), present)
        } else {
            let generation = now.next_generation();
            steps::allocate(&entry, me.epoch, (number, generation), word, || {})
                .then_some(generation)
        };
        generation.map(|generation| Ref { line, generation })
    }

    fn give_back(
        &self,
        entry: &EntryRef<'_, Explored>,
        me: Owner,
        held: Ref,
    ) -> Result<(), String> {
        let Ref { line, generation } = held;
        let words = self.counts_of(line.into());
        let word = words.count;
        if self.is(Variant::SubtractFirst) && steps::subtract_shared(word, generation) {
            entry.clear(me.epoch);
            return Ok(());
        }
        if self.is(Variant::NoDropping) && steps::free(word, generation) {
            entry.clear(me.epoch);
            return Ok(());
        }
        let reference = (line.into(), generation);
        let free = || steps::free(word, generation);
        steps::give_back(entry, me, reference, words, free, self)
            .map_err(|found| format!("{held:?} was given back and is {found:?}"))
    }

    /// As `put_cell` and `put_lane`.
    fn send(&self, process: usize, local: Local, sharing: bool) -> Result<Act, String> {
        let me = owner(process, local.epoch);
        let entry = self.entry(process, usize::from(sharing));
        Ok(match local.act {
            Act::Claim { held } if self.config.lane => {
                let pos = self.lane().tail();
                if self.lane().can_put(pos) {
                    Act::Write { held, pos }
                } else {
                    Act::Claim { held }
                }
            }
            Act::Claim { held } => match self.cells().claim(me) {
                Claim::At(pos) => Act::Write { held, pos },
                Claim::Full | Claim::Pending(_) => Act::Claim { held },
                other => return Err(format!("a claim was answered by {other:?}")),
            },
            Act::Write { held, pos } => {
                self.cells().write(pos, &[named(held); 7]);
                Act::Give { held, pos }
            }
            Act::Give { held, pos } => {
                let kind = if self.config.lane {
                    Kind::GivingLane
                } else {
                    Kind::Giving
                };
                self.ticket(&entry, me.epoch, kind, held, pos);
                // A lane may be closed before the message is out. What has a cell is sure to go.
                if self.config.lane && self.config.regrets > 0 {
                    Act::Decide { held, pos }
                } else {
                    Act::Publish { held, pos }
                }
            }
            Act::Decide { held, pos } => match memory::choose(2) {
                0 => Act::Publish { held, pos },
                _ => Act::TakeBack { held, pos },
            },
            Act::TakeBack { held, .. } => {
                entry.set(Kind::Held);
                if sharing {
                    Act::Return { held }
                } else {
                    Act::Drop { held }
                }
            }
            Act::Publish { held, pos } => {
                if self.config.lane {
                    if !self.lane().publish(pos) {
                        return Err("a lane refused its only producer".into());
                    }
                } else {
                    self.cells().publish(pos);
                }
                if sharing && self.is(Variant::CountLate) {
                    Act::CountLate { held }
                } else {
                    Act::Forget { held }
                }
            }
            Act::CountLate { held } => {
                steps::increment(self.counted(held.line.into()), held.generation)
                    .map_err(|refused| gone(held, refused))?;
                Act::Forget { held }
            }
            _ => unreachable!("these do nothing"),
        })
    }

    fn ticket(&self, entry: &EntryRef<'_, Explored>, epoch: u16, kind: Kind, held: Ref, pos: u64) {
        let reference = (kind, u64::from(held.line), held.generation);
        let cell = pos % self.config.cells;
        if self.is(Variant::NoTicket) && matches!(kind, Kind::Giving | Kind::GivingLane) {
            return;
        }
        if self.is(Variant::TicketLast) {
            entry.record(epoch, kind, held.line.into(), held.generation);
            entry.ticket_cell.store(cell, SeqCst);
            entry.ticket_position.store(pos, SeqCst);
            return;
        }
        entry.record_ticket(epoch, reference, (cell, pos));
    }

    /// As `get_cell` and `get_lane`.
    fn receive(&self, process: usize, local: Local) -> Result<Act, String> {
        let me = owner(process, local.epoch);
        let entry = self.entry(process, 0);
        let lane = self.config.lane;
        Ok(match local.act {
            Act::Take { seen } if lane => {
                let pos = self.lane().head();
                if self.lane().is_ready(pos) {
                    Act::Read { seen, pos }
                } else {
                    Act::Take { seen }
                }
            }
            Act::Take { mut seen } => match self.cells().take(me, &mut seen) {
                Take::At { pos, .. } => Act::Read { seen, pos },
                Take::Empty | Take::Pending(_) => Act::Take { seen },
                other => return Err(format!("a take was answered by {other:?}")),
            },
            Act::Read { seen, pos } => {
                let held = read_name(self.cells().read(pos)[0]);
                // As the parser looks whether the message names what is there.
                let now = Counted::from_word(self.counted(held.line.into()).load(SeqCst));
                if now.generation != held.generation || now.count == 0 {
                    return Err(format!("a message names {held:?}, which is {now:?}"));
                }
                if !self.is(Variant::NoTouch) {
                    doubt::touch(self.doubt(held.line.into()));
                }
                Act::Record { seen, held, pos }
            }
            Act::Record { seen, held, pos } => {
                let kind = if lane { Kind::RecvLane } else { Kind::Recv };
                self.ticket(&entry, me.epoch, kind, held, pos);
                if self.config.regrets > 0 && memory::choose(2) == 1 {
                    Act::Refuse { seen, held, pos }
                } else {
                    Act::Release { seen, held, pos }
                }
            }
            Act::Refuse { seen, pos, .. } => {
                entry.clear(me.epoch);
                if !lane {
                    self.cells().hand_back(pos);
                }
                Act::Take { seen }
            }
            Act::Release { held, pos, .. } => {
                if lane {
                    self.lane().release(pos);
                } else {
                    let _ = self.cells().release(pos);
                }
                Act::Arrive { held }
            }
            Act::Arrive { held } => {
                entry.set(Kind::Held);
                Act::Drop { held }
            }
            _ => unreachable!("another kind of act"),
        })
    }

    /// As `reap`: tickets, cells, what is held, the row.
    fn reap(&self, process: usize, act: Act) -> Result<Act, String> {
        let begin = |dead| {
            if self.is(Variant::CellsFirst) {
                Act::Mend { dead }
            } else {
                Act::Settle { dead, entry: 0 }
            }
        };
        Ok(match act {
            Act::Become { dead } => {
                if self.config.exclusive && !self.become_reaper(process, dead) {
                    Act::Idle
                } else {
                    begin(dead)
                }
            }
            Act::Settle { dead, entry } => {
                self.settle_entry(dead, entry.into())?;
                if usize::from(entry) + 1 < self.entries_of(dead.row.into()) {
                    let entry = entry + 1;
                    Act::Settle { dead, entry }
                } else if self.is(Variant::CellsFirst) {
                    Act::GiveBack { dead, entry: 0 }
                } else {
                    Act::Mend { dead }
                }
            }
            Act::Mend { dead } => {
                if !self.config.lane && self.cells().reap(dead.owner()).damaged > 0 {
                    return Err("a reap found the cells damaged".into());
                }
                if self.is(Variant::CellsFirst) {
                    Act::Settle { dead, entry: 0 }
                } else {
                    Act::GiveBack { dead, entry: 0 }
                }
            }
            Act::GiveBack { dead, entry } => {
                let at = self.entry(dead.row.into(), entry.into());
                if self.is(Variant::SkipFailed) {
                    self.drop_carelessly(&at, dead.owner());
                } else {
                    if self.is(Variant::NoDoubt) && at.load().kind.is_in_doubt() {
                        at.clear(dead.epoch.into());
                    }
                    steps::drop_entry(&at, dead.owner(), &Dropper(self));
                }
                if usize::from(entry) + 1 < self.entries_of(dead.row.into()) {
                    let entry = entry + 1;
                    Act::GiveBack { dead, entry }
                } else {
                    Act::Bury { dead }
                }
            }
            Act::Bury { dead } => {
                let (from, to) = (occupied(dead.epoch), u64::from(dead.epoch) << 1);
                let row = self.row(dead.row.into());
                let won = row.compare_exchange(from, to, SeqCst, SeqCst).is_ok();
                Act::Buried { dead, won }
            }
            _ => unreachable!("another kind of act"),
        })
    }

    /// As the start of `reap`.
    fn become_reaper(&self, process: usize, dead: Corpse) -> bool {
        let there = || self.row(dead.row.into()).load(SeqCst) == occupied(dead.epoch);
        let is_alive = |other: Owner| {
            let reaper = usize::from(other.row) - self.users();
            self.words[GONE + reaper].load(SeqCst) == 0
        };
        let word = self.reaper_of(dead.row.into());
        if self.is(Variant::LateReaper) {
            let mine = steps::reaper_word(owner(process, 0), dead.owner());
            let seen = there().then(|| word.load(SeqCst));
            return seen.is_some_and(|seen| {
                let at_it = seen != 0 && seen != mine && seen >> 32 == u64::from(dead.epoch);
                let there_is = owner((seen as u16).wrapping_sub(1).into(), 0);
                !(at_it && is_alive(there_is))
                    && word.compare_exchange(seen, mine, SeqCst, SeqCst).is_ok()
                    && there()
            });
        }
        there() && steps::become_reaper(word, owner(process, 0), dead.owner(), is_alive) && there()
    }

    fn settle_entry(&self, dead: Corpse, index: usize) -> Result<(), String> {
        let entry = self.entry(dead.row.into(), index);
        let mut damaged = false;
        doubt::settle(&entry, dead.owner(), |line| Some(self.doubt(line)));
        steps::settle(&entry, dead.owner(), |seen| {
            if seen.kind == Kind::Alloc {
                let claim = self.config.slots && !self.is(Variant::NoClaimant);
                let claim = claim.then(|| self.claimant(seen.line));
                return steps::alloc_counts(&entry, dead.owner(), self.counted(seen.line), claim);
            }
            let cell = entry.ticket_cell.load(SeqCst);
            let position = entry.ticket_position.load(SeqCst);
            damaged |= cell != position % self.config.cells && !self.is(Variant::TicketLast);
            let word = &self.words[super::CELLS + cell as usize * super::CELL];
            let word = word.load(SeqCst);
            steps::ticket_counts(seen.kind, word, dead.owner(), position, self.config.cells)
        });
        if damaged && !self.config.exclusive {
            // The ticket of the row's next user was read; then the swap fails.
            return Ok(());
        }
        if damaged {
            return Err("a ticket is torn".into());
        }
        Ok(())
    }
}

fn gone(held: Ref, refused: steps::Refused) -> String {
    format!("{held:?} is gone under its holder's hands: {refused:?}")
}
