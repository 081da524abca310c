//! What the participants and reapers of the world of one line do, step by step.

use std::sync::atomic::Ordering::SeqCst;

use shm_core::cells::{Cells, Claim, Take, is_claimed_by, is_taken_by};
use shm_core::sync::Atomic64;

use super::{
    Act, CELL, CLAIMANT, Kind, LINE, Leases, Local, NEVER, Role, Variant, entry, kind_of, line,
};

impl Leases {
    fn next_round(&self, me: usize, local: Local) -> Local {
        let round = local.round + 1;
        let act = if round == self.config.rounds {
            Act::Done
        } else {
            self.first(me)
        };
        Local { round, act }
    }

    pub(super) fn first(&self, me: usize) -> Act {
        match self.config.users.get(me) {
            Some(Role::Taker) => Act::TakeCell { seen: u64::MAX },
            Some(_) => Act::Look,
            None => Act::Idle,
        }
    }

    pub(super) fn perform(&self, me: usize, local: Local) -> Result<Local, String> {
        let go = |act| Ok(Local { act, ..local });
        let role = self.config.users.get(me).copied();
        match local.act {
            Act::Look => {
                if self.word(LINE).load(SeqCst) & 0xff != 0 {
                    return go(Act::Look);
                }
                if role != Some(Role::Loaner) {
                    return go(Act::Fill);
                }
                self.record(me, 0, NEVER, entry(Kind::Alloc, 0));
                go(Act::Claim)
            }
            Act::Claim => {
                let mine = me as u64 + 1;
                let claim = self.word(CLAIMANT);
                if self.is(Variant::NoClaimant) {
                    return go(Act::Fill);
                }
                let Err(seen) = claim.compare_exchange(0, mine, SeqCst, SeqCst) else {
                    return go(Act::Fill);
                };
                let gone = seen != mine && self.row(seen as usize - 1).load(SeqCst) == 0;
                if gone && claim.compare_exchange(seen, mine, SeqCst, SeqCst).is_ok() {
                    return go(Act::Fill);
                }
                go(Act::GiveUp)
            }
            Act::Fill => {
                let seen = self.word(LINE).load(SeqCst);
                if seen & 0xff != 0 {
                    return go(Act::GiveUp);
                }
                let generation = (seen >> 8) + 1;
                self.record(me, 0, generation, entry(Kind::Alloc, 0));
                go(Act::Count { generation })
            }
            Act::Count { generation } => {
                if !self.swap_line(line(generation - 1, 0), line(generation, 1)) {
                    return go(Act::GiveUp);
                }
                if self.is(Variant::UnclaimFirst) {
                    self.word(CLAIMANT).store(0, SeqCst);
                }
                go(Act::Hold { generation })
            }
            Act::Hold { generation } => {
                self.state(me, 0).store(entry(Kind::Held, 0), SeqCst);
                if role == Some(Role::Loaner)
                    && !self.is(Variant::NoClaimant)
                    && !self.is(Variant::UnclaimFirst)
                {
                    go(Act::Unclaim { generation })
                } else {
                    go(self.after_hold(role, generation))
                }
            }
            Act::Unclaim { generation } => {
                self.word(CLAIMANT).store(0, SeqCst);
                go(self.after_hold(role, generation))
            }
            Act::GiveUp => {
                self.state(me, 0).store(entry(Kind::Free, 0), SeqCst);
                // Only one's own claim; a variant without claims has none.
                let mine = me as u64 + 1;
                let _ = self
                    .word(CLAIMANT)
                    .compare_exchange(mine, 0, SeqCst, SeqCst);
                go(Act::Look)
            }
            Act::ClaimCell { generation } => match Cells(self).claim(self.owner(me)) {
                Claim::At(pos) => go(Act::Write { generation, pos }),
                Claim::Full | Claim::Pending(_) => go(Act::ClaimCell { generation }),
                other => Err(format!("a claim was answered by {other:?}")),
            },
            Act::Write { generation, pos } => {
                self.payload[0].store(generation, SeqCst);
                go(Act::Give { generation, pos })
            }
            Act::Give { generation, pos } => {
                if role == Some(Role::Sharer) {
                    if !self.is(Variant::CountLate) {
                        self.one_more(generation)?;
                    }
                    self.record(me, 1, generation, entry(Kind::Giving, pos));
                } else if !self.is(Variant::NoTicket) {
                    self.state(me, 0).store(entry(Kind::Giving, pos), SeqCst);
                }
                go(Act::Publish { generation, pos })
            }
            Act::Publish { generation, pos } => {
                Cells(self).publish(pos);
                if role == Some(Role::Sharer) && self.is(Variant::CountLate) {
                    go(Act::CountLate { generation })
                } else {
                    go(Act::Forget { generation })
                }
            }
            Act::CountLate { generation } => {
                self.one_more(generation)?;
                go(Act::Forget { generation })
            }
            Act::Forget { generation } => {
                let sharing = role == Some(Role::Sharer);
                self.state(me, usize::from(sharing))
                    .store(entry(Kind::Free, 0), SeqCst);
                if sharing {
                    go(Act::Drop { generation })
                } else {
                    Ok(self.next_round(me, local))
                }
            }
            Act::TakeCell { mut seen } => match Cells(self).take(self.owner(me), &mut seen) {
                Take::At { pos, .. } => go(Act::Read { seen, pos }),
                Take::Empty | Take::Pending(_) => go(Act::TakeCell { seen }),
                other => Err(format!("a take was answered by {other:?}")),
            },
            Act::Read { seen, pos } => {
                let generation = self.payload[0].load(SeqCst);
                let word = self.word(LINE).load(SeqCst);
                if word >> 8 != generation || word & 0xff == 0 {
                    return Err("a message names what is gone".into());
                }
                go(Act::Record {
                    seen,
                    pos,
                    generation,
                })
            }
            Act::Record {
                pos, generation, ..
            } => {
                self.record(me, 0, generation, entry(Kind::Recv, pos));
                go(Act::Release { pos, generation })
            }
            Act::Release { pos, generation } => {
                let _ = Cells(self).release(pos);
                go(Act::Arrive { generation })
            }
            Act::Arrive { generation } => {
                self.state(me, 0).store(entry(Kind::Held, 0), SeqCst);
                go(Act::Drop { generation })
            }
            Act::Drop { generation } => {
                self.drop_own(me, generation)?;
                Ok(self.next_round(me, local))
            }
            Act::Settle { row, entry } => {
                self.settle_entry(row.into(), entry.into());
                go(match entry {
                    0 => Act::Settle { row, entry: 1 },
                    _ if self.is(Variant::CellsFirst) => Act::GiveBack { row, entry: 0 },
                    _ => Act::Mend { row },
                })
            }
            Act::Mend { row } => {
                if Cells(self).reap(self.owner(row.into())).damaged > 0 {
                    return Err("a reap found the cell damaged".into());
                }
                go(if self.is(Variant::CellsFirst) {
                    Act::Settle { row, entry: 0 }
                } else {
                    Act::GiveBack { row, entry: 0 }
                })
            }
            Act::GiveBack { row, entry } => {
                self.give_back(row.into(), entry.into())?;
                go(match entry {
                    0 => Act::GiveBack { row, entry: 1 },
                    _ => Act::Free { row },
                })
            }
            Act::Free { row } => {
                self.row(row.into()).store(0, SeqCst);
                go(Act::Idle)
            }
            Act::Idle | Act::Done | Act::Dead => unreachable!("these do nothing"),
        }
    }

    fn after_hold(&self, role: Option<Role>, generation: u64) -> Act {
        match role {
            Some(Role::Loaner) => Act::Drop { generation },
            _ => Act::ClaimCell { generation },
        }
    }

    fn one_more(&self, generation: u64) -> Result<(), String> {
        loop {
            let seen = self.word(LINE).load(SeqCst);
            if seen >> 8 != generation || seen & 0xff == 0 {
                return Err("what a participant holds is gone under its hands".into());
            }
            if self.swap_line(seen, seen + 1) {
                return Ok(());
            }
        }
    }

    fn drop_own(&self, me: usize, generation: u64) -> Result<(), String> {
        let seen = self.word(LINE).load(SeqCst);
        if seen >> 8 != generation || seen & 0xff == 0 {
            return Err("what a participant holds is gone under its hands".into());
        }
        if seen == line(generation, 1) {
            self.state(me, 0).store(entry(Kind::Dropping, 0), SeqCst);
            if !self.swap_line(seen, line(generation, 0)) {
                return Err("the sole holder was not alone".into());
            }
            self.state(me, 0).store(entry(Kind::Free, 0), SeqCst);
            return Ok(());
        }
        if self.is(Variant::SubtractFirst) {
            self.subtract(generation)?;
            self.state(me, 0).store(entry(Kind::Free, 0), SeqCst);
            return Ok(());
        }
        self.state(me, 0).store(entry(Kind::Free, 0), SeqCst);
        self.subtract(generation)
    }

    fn settle_entry(&self, row: usize, at: usize) {
        let state = self.state(row, at);
        loop {
            let seen = state.load(SeqCst);
            let dead = self.owner(row);
            let pos = seen >> 8;
            let counts = match kind_of(seen) {
                Kind::Free | Kind::Held | Kind::Dropping => return,
                Kind::Alloc => {
                    let loaner = self.config.users[row] == Role::Loaner;
                    let ours = !loaner
                        || self.is(Variant::NoClaimant)
                        || self.word(CLAIMANT).load(SeqCst) == row as u64 + 1;
                    let word = self.word(LINE).load(SeqCst);
                    let generation = self.generation(row, at).load(SeqCst);
                    ours && word & 0xff > 0 && word >> 8 == generation
                }
                Kind::Giving => is_claimed_by(self.word(CELL).load(SeqCst), dead, pos, 1),
                Kind::Recv => !is_taken_by(self.word(CELL).load(SeqCst), dead, pos, 1),
            };
            let to = if counts { Kind::Held } else { Kind::Free };
            if state
                .compare_exchange(seen, entry(to, 0), SeqCst, SeqCst)
                .is_ok()
            {
                return;
            }
        }
    }

    fn give_back(&self, row: usize, at: usize) -> Result<(), String> {
        let state = self.state(row, at);
        loop {
            let seen = state.load(SeqCst);
            let kind = kind_of(seen);
            if !matches!(kind, Kind::Held | Kind::Dropping) {
                return Ok(());
            }
            let generation = self.generation(row, at).load(SeqCst);
            let word = self.word(LINE).load(SeqCst);
            let clear = || {
                state
                    .compare_exchange(seen, entry(Kind::Free, 0), SeqCst, SeqCst)
                    .is_ok()
            };
            match (kind, word & 0xff) {
                // A failed swap means that another reaper was here: read again, never skip.
                (_, count) if word >> 8 != generation || count == 0 => {
                    let cleared = clear();
                    if cleared || self.is(Variant::SkipAfterFailure) {
                        return Ok(());
                    }
                }
                (Kind::Held, 1) => {
                    let dropping = entry(Kind::Dropping, 0);
                    let _ = state.compare_exchange(seen, dropping, SeqCst, SeqCst);
                }
                (Kind::Dropping, 1) => {
                    self.swap_line(line(generation, 1), line(generation, 0));
                }
                _ => {
                    if clear() {
                        return self.subtract(generation);
                    }
                }
            }
        }
    }
}
