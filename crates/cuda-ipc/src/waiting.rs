//! What streams that wait for one another wait for, one by one, and by whose records they are.

use std::collections::{HashMap, hash_map};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use shm_core::Arena;
use shm_core::word::Owner;
use smallvec::SmallVec;

use crate::awaits::Awaits;
use crate::doubt::{Doubt, Record};
use crate::error::Result;
use crate::event::Event;
use crate::ledger::{self, Said};
use crate::mark::NO_NUMBER;

/// What a stream waits for.
#[derive(Clone, Debug)]
pub(crate) struct Awaited {
    pub(crate) event: Arc<Event>,
    pub(crate) record: Record,
    pub(crate) arena: Arena,
    /// Of this wait, and no other, also where other streams have it by way of this one. Grows: of one event, the later record has
    /// the greater.
    pub(crate) serial: u64,
    pub(crate) doubt: Doubt,
}

impl Awaited {
    pub(crate) fn new(event: &Arc<Event>, record: Record, arena: &Arena) -> Self {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        Self {
            event: event.clone(),
            record,
            arena: arena.clone(),
            serial: SERIAL.fetch_add(1, Ordering::Relaxed),
            doubt: Doubt::default(),
        }
    }

    /// Whether it has happened: as its recorder says, or the event, as long as nobody has recorded that anew.
    pub(crate) fn has_happened(&self) -> Result<bool> {
        Ok(self.record.said() == Said::Over
            || self.event.driver().has_happened(self.event.raw()?)?)
    }
}

/// Which stream of those that wait for one another, and what marks call it.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) stream: Weak<Awaits>,
    pub(crate) number: u8,
}

impl Member {
    pub(crate) fn is(&self, stream: &Weak<Awaits>) -> bool {
        Weak::ptr_eq(&self.stream, stream)
    }

    fn key(&self) -> usize {
        Weak::as_ptr(&self.stream).addr()
    }
}

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) awaited: Awaited,
    /// The stream that was made to wait for it.
    pub(crate) told: Member,
    /// Of each stream: how many records it had then.
    since: SmallVec<[(u8, u64); 1]>,
}

impl Entry {
    /// A stream had so many records when it came to wait, or one for which it waits.
    fn begins(&mut self, number: u8, since: u64) {
        match self.since.iter_mut().find(|known| known.0 == number) {
            // Of an event that was recorded anew the stream may still wait for the record before.
            Some(known) => known.1 = known.1.min(since),
            None => self.since.push((number, since)),
        }
    }
}

/// Whose records they are, up to which, and for which stream; looked at for each message, which the events are not.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) record: Record,
    pub(crate) of: Member,
    /// Where the ledger says so.
    place: Option<u64>,
}

#[derive(Debug, Default)]
pub(crate) struct List {
    /// By the event, and the stream that was made to wait: the latest of its records that is waited for, which comes after
    /// all before.
    pub(crate) events: HashMap<(usize, usize), Entry>,
    /// Each once.
    pub(crate) sources: SmallVec<[Source; 4]>,
    /// For whom the streams wait, once they are lost.
    pub(crate) dead: Option<Owner>,
}

impl List {
    /// One of these streams is about to wait for it, and so the others may have to.
    pub(crate) fn put(
        &mut self,
        members: &[Member],
        told: &Weak<Awaits>,
        one: Awaited,
    ) -> Result<()> {
        let mut since: SmallVec<[(u8, u64); 1]> = SmallVec::new();
        let mut teller = None;
        for member in members {
            let count = ledger::recorded(member.number);
            self.note(member, count, &one)?;
            since.push((member.number, count));
            if member.is(told) {
                teller = Some(member.clone());
            }
        }
        let Some(told) = teller else {
            return Ok(());
        };
        match self
            .events
            .entry((Arc::as_ptr(&one.event).addr(), told.key()))
        {
            hash_map::Entry::Occupied(mut known) => {
                let known = known.get_mut();
                since
                    .into_iter()
                    .for_each(|(number, since)| known.begins(number, since));
                // By way of another stream, it may be, that came to wait for an early record: the later one is behind that.
                if known.awaited.serial < one.serial {
                    known.awaited = one;
                }
            }
            hash_map::Entry::Vacant(place) => {
                let awaited = one;
                place.insert(Entry {
                    awaited,
                    told,
                    since,
                });
            }
        }
        Ok(())
    }

    /// A stream comes to wait, behind so many records of its own.
    fn note(&mut self, member: &Member, since: u64, one: &Awaited) -> Result<()> {
        let record = &one.record;
        let mut known = self.sources.iter_mut();
        match known.find(|known| known.record.by == record.by && known.of.is(&member.stream)) {
            Some(known) if known.record.upto >= record.upto => {}
            Some(known) => {
                let begun = (known.record.upto == 0).then_some(since);
                known.record.upto = record.upto;
                let place = known.place.into_iter();
                place.for_each(|place| ledger::raise(place, record.upto, begun));
            }
            None => {
                let wait = ledger::Wait {
                    by: record.by,
                    upto: record.upto,
                    since,
                    book: record.book.as_ref(),
                };
                // One without a number records nothing before such a wait is over.
                let place = match member.number {
                    NO_NUMBER => None,
                    number => ledger::list(&one.arena, number, &wait)?,
                };
                self.sources.push(Source {
                    record: record.clone(),
                    of: member.clone(),
                    place,
                });
            }
        }
        Ok(())
    }

    /// One more stream waits for all that these wait for.
    pub(crate) fn join(&mut self, member: &Member) -> Result<()> {
        let count = ledger::recorded(member.number);
        let all: Vec<_> = self
            .events
            .values()
            .map(|entry| entry.awaited.clone())
            .collect();
        self.events
            .values_mut()
            .for_each(|entry| entry.begins(member.number, count));
        all.iter().try_for_each(|one| self.note(member, count, one))
    }

    /// A stream of that number is none of these any more.
    pub(crate) fn leave(&mut self, member: &Member) {
        for entry in self.events.values_mut() {
            entry.since.retain(|known| known.0 != member.number);
        }
        self.sources.retain(|source| {
            let stays = !source.of.is(&member.stream);
            if !stays {
                source.place.into_iter().for_each(ledger::unlist);
            }
            stays
        });
    }

    /// Since which of its records a stream waits for what is left.
    pub(crate) fn since(&self, number: u8) -> u64 {
        let all = self.events.values().flat_map(|entry| &entry.since);
        let since = all.filter(|known| known.0 == number).map(|known| known.1);
        since.min().unwrap_or(0)
    }

    /// Forgets what is over.
    pub(crate) fn remove(&mut self, is_over: impl Fn(&Entry) -> bool) {
        // It may be awaited anew, by that name.
        self.events.retain(|_, entry| !is_over(entry));
        if self.events.is_empty() {
            self.pause();
        }
    }

    /// Nothing is waited for now, and will be again, perhaps, of the same.
    fn pause(&mut self) {
        for source in &mut self.sources {
            source.record.upto = 0;
            source.place.into_iter().for_each(ledger::pause);
        }
    }

    /// Forgets those sources of which nothing is waited for any more and which are `unwanted`.
    pub(crate) fn tidy(&mut self, unwanted: impl Fn(&Source) -> bool) {
        let events = &self.events;
        let is_over = |source: &mut Source| {
            let mut all = events.values();
            unwanted(source) && all.all(|entry| entry.awaited.record.by != source.record.by)
        };
        let mut is_kept = |source: &mut Source| {
            let over = is_over(source);
            if over {
                source.place.into_iter().for_each(ledger::unlist);
            }
            !over
        };
        self.sources.retain(&mut is_kept);
    }
}
