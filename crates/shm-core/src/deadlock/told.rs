//! A wait that can never end, in words: what it is for, how that stands, and what would have ended it.

use core::sync::atomic::Ordering;
use std::fmt::Write as _;

use super::PROCESSES;
use super::scan::{Noted, object_of};
use crate::arena::Arena;
use crate::cells::Owner;
use crate::failure::Named;
use crate::lease::{self, Kind};
use crate::object::{Object, ObjectKind};
use crate::participant::table::rows;
use crate::rounds::Rounds;
use crate::sync::Shared;

/// What would end waits for messages and room.
const ENDS: &str = "Drop or close what is not needed any more (the last sender ends its receivers' loops, the last receiver \
                    their senders')";
const ARRIVALS: &str = "A barrier opens when as many have arrived as it was made for: start so many, make it for fewer, or \
                        `reset` it";
const SIGNALS: &str =
    "Whoever is to set or notify what others wait for must not wait for them first";
const LOCKS: &str = "Let go of a guard, or a permit, before waiting for what needs it";

/// How many holders are named.
const MOST_NAMES: usize = 4;

/// What a participant waits for.
pub(super) fn describe(arena: &Arena, wait: Noted) -> String {
    if wait.kind() == PROCESSES {
        return match wait.detail {
            1 => "a process that it joins".to_owned(),
            n => format!("{n} processes that it joins"),
        };
    }
    let Some(object) = object_of(arena, wait.subject) else {
        return "something that is gone".to_owned();
    };
    let event = wait.detail >> 32;
    let mut text = object.awaited(event);
    let side = match (object.kind(), event) {
        (ObjectKind::Queue, 0) => Some((0, "sender")),
        (ObjectKind::Queue, _) => Some((1, "receiver")),
        _ => None,
    };
    if let Some((end, what)) = side {
        let _ = write!(text, ", whose {what}s {}", object.holders(end));
    }
    if let Some((waiting, of)) = arrivals(&object) {
        let _ = write!(text, ", at which {waiting} of its {of} have arrived");
    }
    text
}

/// What would have ended the wait.
pub(super) fn advice(arena: &Arena, wait: Noted) -> &'static str {
    if wait.kind() == PROCESSES {
        return "";
    }
    match object_of(arena, wait.subject).map(|object| object.kind()) {
        Some(ObjectKind::Queue | ObjectKind::Ring | ObjectKind::Letterbox) => ENDS,
        Some(ObjectKind::Barrier) => ARRIVALS,
        Some(ObjectKind::Event | ObjectKind::Condvar) => SIGNALS,
        Some(ObjectKind::Mutex | ObjectKind::RwLock | ObjectKind::Semaphore) => LOCKS,
        _ => "",
    }
}

/// How many have arrived at a barrier, and for how many it is: its two words.
fn arrivals(object: &Object) -> Option<(u32, u64)> {
    let is_barrier = object.kind() == ObjectKind::Barrier && object.word_count() >= 2;
    is_barrier.then(|| {
        let rounds = Rounds::<Shared>(object.word(0));
        // Relaxed: it was written when the barrier was made.
        (rounds.waiting(), object.word(1).load(Ordering::Relaxed))
    })
}

impl Object {
    /// Who holds side `index` (0: producers, 1: consumers), in words: `process "eat.0" (pid 4711) holds`.
    #[must_use]
    pub fn holders(&self, index: u64) -> String {
        holders(self.arena(), self, index)
    }
}

/// Who holds side `end` of the object.
pub(super) fn holders_of(arena: &Arena, object: &Object, end: u64) -> Vec<Owner> {
    let line = object.end_line(end);
    let segment = arena.segment();
    let has_it = |owner: &Owner| {
        lease::entries_of(segment, *owner).any(|entry| {
            let seen = entry.load();
            seen.epoch == owner.epoch && seen.kind == Kind::Held && seen.line == line
        })
    };
    let present = rows(segment).filter_map(|row| row.occupant());
    present.map(|(owner, _)| owner).filter(has_it).collect()
}

fn holders(arena: &Arena, object: &Object, end: u64) -> String {
    let names: Vec<String> = holders_of(arena, object, end)
        .into_iter()
        .map(|owner| match arena.record_of(owner) {
            _ if owner == arena.me() => "this process".to_owned(),
            Some(record) => Named(&record.name, record.pid).to_string(),
            None => "a process that is gone".to_owned(),
        })
        .collect();
    match names.as_slice() {
        [] => "nobody holds".to_owned(),
        [one] => format!("{one} holds"),
        many if many.len() > MOST_NAMES => format!("{} processes hold", many.len()),
        [first @ .., last] => format!("{} and {last} hold", first.join(", ")),
    }
}
