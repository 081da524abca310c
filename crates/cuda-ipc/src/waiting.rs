//! What a stream waits for, one by one, and by whose records they are.

use std::collections::{HashMap, hash_map};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use shm_core::Arena;
use shm_core::word::Owner;
use smallvec::SmallVec;

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

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) awaited: Awaited,
    /// How many records the stream had when it came to wait.
    pub(crate) since: u64,
}

/// Whose records they are, up to which; looked at for each message, which the events are not.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) record: Record,
    /// Where the ledger says so.
    pub(crate) place: Option<u64>,
}

#[derive(Debug, Default)]
pub(crate) struct List {
    /// By the event: the latest of its records that is waited for, which comes after all before.
    pub(crate) events: HashMap<usize, Entry>,
    /// Each once.
    pub(crate) sources: SmallVec<[Source; 4]>,
    /// For whom the stream waits, once it is lost.
    pub(crate) dead: Option<Owner>,
}

impl List {
    /// The stream of that number is about to wait for it, behind so many records of its own.
    pub(crate) fn put(&mut self, number: u8, since: u64, one: Awaited) -> Result<()> {
        let record = &one.record;
        let known = self.sources.iter_mut();
        match known.into_iter().find(|known| known.record.by == record.by) {
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
                let place = match number {
                    NO_NUMBER => None,
                    number => ledger::list(&one.arena, number, &wait)?,
                };
                self.sources.push(Source {
                    record: record.clone(),
                    place,
                });
            }
        }
        match self.events.entry(Arc::as_ptr(&one.event).addr()) {
            hash_map::Entry::Occupied(mut known) => {
                let known = known.get_mut();
                // Of an event that was recorded anew the stream may still wait for the record before.
                known.since = known.since.min(since);
                // By way of another stream, it may be, that came to wait for an early record: the later one is behind that.
                if known.awaited.serial < one.serial {
                    known.awaited = one;
                }
            }
            hash_map::Entry::Vacant(place) => {
                let awaited = one;
                place.insert(Entry { awaited, since });
            }
        }
        Ok(())
    }

    /// Nothing is waited for now, and will be again, perhaps, of the same.
    pub(crate) fn pause(&mut self) {
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
