//! One event for all tensors of a message that are on one stream.
//!
//! Tensors that go together are said to be written together: when all of a message is written, the stream records one event,
//! and each block says *joint*: that event, which is no block's own. It is not recorded again as long as any block says so;
//! the origin, whose event it is, looks at its blocks now and then and frees what none speaks of. A process that is not the
//! origin takes an event of one of the blocks for this, and says there that it is *lent*, so that nobody takes it for the
//! block's own any more.

use std::collections::HashSet;
use std::sync::Arc;

use shm_core::message::{Companion, while_reading, while_writing};
use smallvec::{SmallVec, smallvec};

use crate::error::Result;
use crate::event::Event;
use crate::hub::Hub;
use crate::layout::block;
use crate::mark::{EventId, Mark};
use crate::place::Place;
use crate::stream::Stream;
use crate::using::Use;

/// A tensor on its way.
#[derive(Debug)]
struct Leaving {
    using: Arc<Use>,
    stream: Stream,
    shared: bool,
}

/// The tensors of the message that this thread writes.
#[derive(Debug, Default)]
struct Company(SmallVec<[Leaving; 1]>);

impl Companion for Company {
    fn finish(&mut self) -> shm_core::Result<()> {
        Ok(publish(std::mem::take(&mut self.0))?)
    }
}

/// The tensor is sent: *ready* is recorded behind its work when all of the message is written, or at once outside of one.
pub(crate) fn leave(using: &Arc<Use>, stream: &Stream, shared: bool) -> Result<()> {
    let leaving = || Leaving {
        using: using.clone(),
        stream: stream.clone(),
        shared,
    };
    match while_writing(|company: &mut Company| company.0.push(leaving())) {
        Some(()) => Ok(()),
        None => publish(smallvec![leaving()]),
    }
}

/// Which events can stand for tensors of one message: by whose they are.
fn station_of(place: &Place) -> usize {
    match place {
        Place::Home(..) => 0,
        Place::Away(import) => Arc::as_ptr(&import.visited).addr(),
    }
}

fn publish(mut all: SmallVec<[Leaving; 1]>) -> Result<()> {
    let key = |leaving: &Leaving| Arc::as_ptr(&leaving.using).addr();
    if all.len() > 1 {
        // Views of one tensor are said to be written once.
        let mut seen = HashSet::new();
        all.retain(|leaving| seen.insert(key(leaving)));
    }
    // Locked in one order everywhere: other threads may send some of the same.
    let mut shared: SmallVec<[_; 1]> = all.iter().filter(|leaving| leaving.shared).collect();
    shared.sort_unstable_by_key(|leaving| key(leaving));
    let mut said: SmallVec<[_; 1]> = shared
        .iter()
        .map(|leaving| (key(leaving), leaving.using.published()))
        .collect();
    let mut groups: SmallVec<[SmallVec<[&Leaving; 1]>; 1]> = SmallVec::new();
    for leaving in &all {
        if leaving.shared {
            let at = said.binary_search_by_key(&key(leaving), |(key, _)| *key);
            if at.is_ok_and(|at| *said[at].1) {
                leaving.using.place.say_for_the_dead(leaving.using.index)?;
                continue;
            }
            leaving.using.gather_shared(&leaving.stream)?;
        } else {
            leaving.using.gather(&leaving.stream)?;
        }
        let station = |of: &Leaving| station_of(&of.using.place);
        let group = groups.iter_mut().find(|group| {
            station(group[0]) == station(leaving) && group[0].stream.same(&leaving.stream)
        });
        match group {
            Some(group) => group.push(leaving),
            None => groups.push(smallvec![leaving]),
        }
    }
    for group in groups {
        publish_group(group)?;
    }
    said.iter_mut()
        .for_each(|(_, published)| **published = true);
    all.iter()
        .filter(|leaving| !leaving.shared)
        .for_each(|leaving| leaving.using.was_handed());
    Ok(())
}

/// How many events to say that they are done the holders of a tensor get.
const fn readers(shared: bool) -> usize {
    if shared { usize::MAX } else { 1 }
}

/// *Ready* of tensors that are on one stream and of one origin.
fn publish_group(mut group: SmallVec<[&Leaving; 1]>) -> Result<()> {
    let first = group[0];
    // What would never be written is not sent.
    first.stream.check()?;
    let event = match (&first.using.place, group.len()) {
        (_, 1) => None,
        (place, _) if place.is_orphaned() => None,
        (Place::Home(memory, station), _) => {
            Hub::get()?.event_for(station, memory.device, Some(first.stream.number()))?
        }
        (Place::Away(_), _) => group
            .iter()
            .find_map(|leaving| leaving.using.place.lend(leaving.using.index)),
    };
    let Some(id) = event else {
        return group.into_iter().try_for_each(publish_alone);
    };
    let said = say_jointly(&mut group, id);
    if let Place::Home(_, station) = &first.using.place {
        station.set_aside(id, Some(first.stream.number()));
    }
    // One that has no room beside its own event says for itself.
    said.and_then(|()| group.into_iter().try_for_each(publish_alone))
}

/// *Ready* of one tensor, with an event of its own.
fn publish_alone(leaving: &Leaving) -> Result<()> {
    let (place, index) = (&leaving.using.place, leaving.using.index);
    place.bind(index, readers(leaving.shared))?;
    place.publish(index, &leaving.stream)
}

/// *Ready* of those that have room for it, with one event; the others are left.
fn say_jointly(group: &mut SmallVec<[&Leaving; 1]>, id: EventId) -> Result<()> {
    let first = group[0];
    let Some(event) = first.using.place.event_if_any(id)? else {
        // It went with its origin just now: each says for itself that it is done.
        return Ok(());
    };
    let by = first.using.place.record(&first.stream, &event)?;
    shm_core::failpoint!("device.joint.recorded");
    let mut left = SmallVec::new();
    for leaving in group.drain(..) {
        let (place, index) = (&leaving.using.place, leaving.using.index);
        if place.has_room(index) {
            place.say_joint(index, Mark::Joint(id, by));
            place.bind_to(index, block::RELEASES.take(readers(leaving.shared)))?;
        } else {
            left.push(leaving);
        }
    }
    *group = left;
    Ok(())
}

impl Place {
    /// The event with which to say that a block was written: its own, or one of those for who is done, while nobody else
    /// has the block.
    pub(crate) fn own_event(&self, index: u32) -> Option<EventId> {
        let ready = self.mark(index, block::READY);
        if let Some(id) = ready.own() {
            return Some(id);
        }
        let found = block::RELEASES
            .into_iter()
            .find_map(|word| match self.mark(index, word) {
                Mark::Bound(id) => Some((word, id)),
                _ => None,
            });
        let free = || self.free_word(index);
        if let Some(word) = found.map(|(word, _)| word).or_else(free) {
            // As in `say_joint`.
            let lent = matches!(ready, Mark::Lent(_));
            if lent {
                self.set(index, block::READY, Mark::None);
            }
            self.set(index, word, if lent { ready } else { Mark::None });
        }
        found.map(|(_, id)| id)
    }

    /// What there is in *ready* of an event, and has to stay with the block when another one says that.
    fn aside(&self, index: u32) -> Option<Mark> {
        match self.mark(index, block::READY) {
            lent @ Mark::Lent(_) => Some(lent),
            ready => ready.own().map(Mark::Bound),
        }
    }

    /// A word for who is done that says nothing.
    fn free_word(&self, index: u32) -> Option<u64> {
        let is_free = |word: &u64| self.mark(index, *word) == Mark::None;
        block::RELEASES.into_iter().find(is_free)
    }

    /// Whether the event that says *ready* of a block can be put aside, so that another one says it.
    fn has_room(&self, index: u32) -> bool {
        matches!(self, Self::Home(..))
            || self.aside(index).is_none()
            || self.free_word(index).is_some()
    }

    /// Says *ready* of a block with an event that is not its own, which is put aside.
    fn say_joint(&self, index: u32, joint: Mark) {
        let aside = self.aside(index);
        // First: were this process killed between the two, an event would be lost, and none be in two places.
        self.set(index, block::READY, joint);
        match (self, aside) {
            (Self::Home(_, station), Some(Mark::Lent(id))) => station.set_aside(id, None),
            (Self::Home(_, station), Some(mark)) => {
                mark.own().into_iter().for_each(|id| station.give_back(id));
            }
            (Self::Away(_), Some(mark)) => {
                if let Some(word) = self.free_word(index) {
                    self.set(index, word, mark);
                }
            }
            (_, None) => {}
        }
    }

    /// An event of a block, which is not its own from now on.
    fn lend(&self, index: u32) -> Option<EventId> {
        block::RELEASES
            .into_iter()
            .find_map(|word| match self.mark(index, word) {
                Mark::Bound(id) => {
                    self.set(index, word, Mark::Lent(id));
                    Some(id)
                }
                _ => None,
            })
    }

    /// An event that may never happen, and that somebody may wait for, goes back to its origin: nobody records it again before
    /// that one has looked at it. Another process calls it, of a block that it is alone with. Nobody reads *ready* as that.
    pub(crate) fn pass_to_origin(&self, index: u32, word: u64, id: EventId) {
        self.set(index, word, Mark::Lent(id));
    }

    /// The origin gives up a block on which a stream of its own has work that is lost, for as long as it lives. What the block
    /// has of events is of use elsewhere, but for those that speak of the work of others.
    pub(crate) fn give_up(&self, index: u32) {
        let Self::Home(_, station) = self else {
            return;
        };
        let me = self.me();
        for word in std::iter::once(block::READY).chain(block::RELEASES) {
            let mark = self.mark(index, word);
            self.take_lent(index, word, mark);
            let left = match mark {
                Mark::Bound(_) => Mark::None,
                Mark::Recorded(_, by) | Mark::Joint(_, by) if by.who == me => Mark::Kept(me, None),
                _ => continue,
            };
            self.set(index, word, left);
            mark.own().into_iter().for_each(|id| station.give_back(id));
        }
    }

    /// The origin takes an event away that was lent.
    pub(crate) fn take_lent(&self, index: u32, word: u64, mark: Mark) {
        if let (Self::Home(_, station), Mark::Lent(id)) = (self, mark) {
            self.set(index, word, Mark::None);
            station.set_aside(id, None);
        }
    }
}

/// What the message that this thread reads has waited for: streams, by their numbers, and events.
#[derive(Debug, Default)]
struct Waited(Vec<(usize, Arc<Event>)>);

/// Waits for an event that stands for several tensors, unless the stream was made to for another one of the same message:
/// it is not recorded again as long as one of them is on its way.
pub(crate) fn once(
    stream: &Stream,
    event: &Arc<Event>,
    wait: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let raw = stream.as_raw();
    let is_it = |one: &(usize, Arc<Event>)| one.0 == raw && Arc::ptr_eq(&one.1, event);
    if while_reading(|waited: &mut Waited| waited.0.iter().any(is_it)) == Some(true) {
        return Ok(());
    }
    wait()?;
    while_reading(|waited: &mut Waited| waited.0.push((raw, event.clone())));
    Ok(())
}
