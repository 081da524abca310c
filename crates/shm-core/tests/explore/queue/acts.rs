//! What the processes of the queue's world do: calls of the real algorithms, and what follows them.

use std::sync::atomic::Ordering::SeqCst;

use shm_core::cells::{Cells, Claim, Owner, Take, Wake};
use shm_core::event::{Event, Registered};
use shm_core::sync::Atomic32;

use super::{Act, Local, NOT_EMPTY, NOT_FULL, PAYLOAD, Queue, Role, Taken, Variant, What, message};
use crate::memory::{self, Steps};

impl Queue {
    /// Does one act on the explored memory.
    pub(super) fn perform(
        &self,
        process: usize,
        Local { epoch, act }: Local,
    ) -> Result<Local, String> {
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

    pub(super) fn cells(&self) -> Cells<&Self> {
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
            let seq = self.words[at].load(SeqCst);
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
            self.words[at + 1].fetch_sub(1, SeqCst);
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
}
