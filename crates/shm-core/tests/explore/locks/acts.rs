//! What the processes of the world of locks do: calls of the real algorithms, and what follows them.

use std::sync::atomic::Ordering::SeqCst;

use shm_core::cells::Owner;
use shm_core::event::Registered;
use shm_core::permits::{Acquired, Permits};
use shm_core::readers::{Read, Readers};
use shm_core::rounds::{Arrived, Round};
use shm_core::sync::Atomic64;

use super::{Act, BROKEN, EVENTS, FIRST, Got, Local, Locks, PID, Variant, Want};
use crate::memory::{self, Steps};

impl Locks {
    fn attempt(&self, me: Owner, want: Want) -> Result<Result<Got, ()>, String> {
        let readers = Readers(self.permits());
        Ok(match want {
            Want::Permit => match self.permits().acquire(me, 0, 0) {
                Acquired::At { index, left } => Ok(Got::Permit(index, left)),
                Acquired::Busy(_) => Err(()),
            },
            Want::Reading if self.is(Variant::ReaderDoesNotLook) => {
                let words = Permits::<Steps>(&self.words[FIRST + 1..]);
                match (readers.writer(), words.acquire(me, 0, 0)) {
                    (None, Acquired::At { index, .. }) => Ok(Got::Reading(index + 1)),
                    _ => Err(()),
                }
            }
            Want::Reading => match readers.read(me, 0) {
                Read::At(index, _) => Ok(Got::Reading(index)),
                Read::Busy(_) | Read::SteppedBack(_) => Err(()),
            },
            Want::Claim => match readers.claim(me, 0) {
                Acquired::At { left, .. } => Ok(Got::Claim(left)),
                Acquired::Busy(_) => Err(()),
            },
            Want::Drained(left) => match readers.drained(me, 0) {
                Ok(true) => Ok(Got::Writing(left)),
                Ok(false) => return Err("a claim was somebody else's".into()),
                Err(_) => Err(()),
            },
            Want::Arrival => {
                if self.words[BROKEN].load(SeqCst) != 0 {
                    return Ok(Ok(Got::Broken));
                }
                match self.rounds().arrive(self.parties().into()) {
                    Arrived::Last => Ok(Got::Last),
                    Arrived::In(round) => Ok(Got::Arrival(round as u8)),
                }
            }
            Want::Passage(round) => match self.rounds().stand(round.into()) {
                Round::Over | Round::Reset => Ok(Got::Passage),
                Round::Open if self.words[BROKEN].load(SeqCst) != 0 => Ok(Got::Broken),
                Round::Open => Err(()),
            },
        })
    }

    /// The event that tells of what is wanted.
    fn event_of(want: Want) -> usize {
        usize::from(matches!(want, Want::Drained(_)))
    }

    fn after(&self, want: Want, got: Got) -> Act {
        match (want, got) {
            (_, Got::Claim(left)) => Act::Try(Want::Drained(left), None),
            (_, Got::Arrival(round)) => Act::Try(Want::Passage(round), None),
            (Want::Passage(round), Got::Broken) => Act::Withdraw(round),
            (_, Got::Broken) => Act::Broken,
            (_, Got::Last) => Act::Tell(got, 0),
            _ => Act::Release(got),
        }
    }

    pub(super) fn perform(&self, process: usize, local: Local) -> Result<Local, String> {
        let me = Owner {
            row: process as u16,
            epoch: local.epoch.into(),
        };
        let readers = Readers(self.permits());
        let next_round = || Local {
            round: local.round + 1,
            act: if local.round + 1 < self.config.rounds {
                self.first_act(process)
            } else {
                Act::Done
            },
            ..local
        };
        let act = match local.act {
            Act::Try(want, ticket) => match (self.attempt(me, want)?, ticket) {
                (Ok(got), None) => self.after(want, got),
                (Err(()), None) if want == Want::Reading => Act::StepBack(None),
                (Err(()), Some(ticket)) if want == Want::Reading => Act::StepBack(Some(ticket)),
                (got, Some(ticket)) if got.is_ok() => Act::Leave(want, ticket, got),
                (_, Some(ticket)) => Act::Sleep(want, ticket),
                (Err(()), None) => Act::Register(want),
            },
            Act::StepBack(ticket) => {
                if !self.is(Variant::SilentStepBack) {
                    self.event(1).notify_all(self.wake(1));
                }
                match ticket {
                    Some(ticket) => Act::Sleep(Want::Reading, ticket),
                    None => Act::Register(Want::Reading),
                }
            }
            Act::Register(want) => {
                let registered = self.event(Self::event_of(want)).register();
                Act::Try(want, Some(registered.to_bits()))
            }
            Act::Sleep(want, ticket) => {
                let word = &self.words[EVENTS[Self::event_of(want)]];
                memory::sleep_on(word, Registered::from_bits(ticket).seq);
                Act::Leave(want, ticket, Err(()))
            }
            Act::Leave(want, ticket, got) => {
                self.event(Self::event_of(want))
                    .unregister(Registered::from_bits(ticket));
                match got {
                    Ok(got) => self.after(want, got),
                    Err(()) => Act::Try(want, None),
                }
            }
            Act::Release(got) => {
                let given = match got {
                    // What the one before left is passed on until somebody clears it; here the next holder does.
                    Got::Permit(index, _) => self.permits().release(index, me, 0, None),
                    Got::Reading(index) => readers.stop_reading(index, me, 0),
                    Got::Writing(_) => readers.stop_writing(me, 0, None),
                    Got::Passage => return Ok(next_round()),
                    _ => unreachable!("nothing is held"),
                };
                if !given {
                    return Err(format!("{got:?} was not its holder's"));
                }
                if self.is(Variant::SilentRelease) {
                    return Ok(next_round());
                }
                Act::Tell(got, usize::from(matches!(got, Got::Reading(_))))
            }
            Act::Tell(got, event) => match (got, event) {
                (Got::Permit(..), _) => {
                    self.event(0).notify_one(self.wake(0));
                    return Ok(next_round());
                }
                (Got::Reading(_), 1) => {
                    self.event(1).notify_all(self.wake(1));
                    Act::Tell(got, 0)
                }
                (Got::Reading(_), _) => {
                    if readers.writer().is_none() {
                        self.event(0).notify_all(self.wake(0));
                    }
                    return Ok(next_round());
                }
                _ => {
                    self.event(0).notify_all(self.wake(0));
                    return Ok(next_round());
                }
            },
            Act::Withdraw(round) => match self.rounds().withdraw(round.into()) {
                Round::Open => Act::Broken,
                Round::Over | Round::Reset => return Ok(next_round()),
            },
            Act::Reap { row, epoch } => {
                let dead = Owner {
                    row: row.into(),
                    epoch: epoch.into(),
                };
                if self.parties() == 0 {
                    readers.reap(dead, PID);
                } else if !self.is(Variant::NotBroken) {
                    self.words[BROKEN].store(1, SeqCst);
                }
                if self.is(Variant::SilentReaper) {
                    Act::Reaped { row, epoch }
                } else {
                    Act::Rouse {
                        row,
                        epoch,
                        event: 0,
                    }
                }
            }
            Act::Rouse { row, epoch, event } => {
                self.event(event).rouse(self.wake(event));
                match event {
                    0 => Act::Rouse {
                        row,
                        epoch,
                        event: 1,
                    },
                    _ => Act::Reaped { row, epoch },
                }
            }
            Act::Reaped { .. } | Act::Watch | Act::Done | Act::Broken | Act::Dead => {
                unreachable!("these do nothing")
            }
        };
        Ok(Local { act, ..local })
    }
}
