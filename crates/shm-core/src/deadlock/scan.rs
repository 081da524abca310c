//! What the rows, the leases and the events say at one moment.

use core::sync::atomic::Ordering;
use std::collections::{BTreeMap, HashMap};

use super::{CHANGE, Deadlock, PROCESSES, Wait, entry_words, told};
use crate::arena::Arena;
use crate::cells::Owner;
use crate::clock::now_ns;
use crate::heap;
use crate::held::Held;
use crate::layout::{LINE, row};
use crate::lease::{self, Kind};
use crate::line::Counted;
use crate::object::{Object, ObjectKind};
use crate::participant::liveness;
use crate::participant::table::{Life, Row, rows};
use crate::reap;

/// A wait as a row has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Noted {
    pub(super) state: u64,
    pub(super) subject: u64,
    pub(super) detail: u64,
    pub(super) since: u64,
}

impl Noted {
    pub(super) fn kind(self) -> u64 {
        self.state & 0xf
    }
}

/// A participant that may be stuck: all its working threads wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stuck {
    pub(super) owner: Owner,
    pub(super) pid: u32,
    pub(super) waits: Vec<Noted>,
}

/// All waits of a group of participants that only wait for each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Snapshot(pub(super) Vec<Stuck>);

/// Everything there is to know for the decision.
pub(super) struct Scene {
    /// Participants whose working threads all wait, without deadline.
    pub(super) waiting: BTreeMap<u16, Stuck>,
    /// Who holds each object that somebody waits on; `None` where a reference is in nobody's hands.
    pub(super) holders: HashMap<u64, Option<Vec<Owner>>>,
    /// The participants of each context, by supervisor and number.
    pub(super) children: HashMap<(Owner, u16), Vec<Owner>>,
}

/// Who supervises a child, the context's number, and which occupant of the row is meant.
pub(super) fn context_word(supervisor: Owner, context: u32, child: Owner) -> u64 {
    u64::from(supervisor.row + 1)
        | u64::from(supervisor.epoch) << 16
        | u64::from(context as u16) << 32
        | u64::from(child.epoch) << 48
}

fn context_of(row: &Row<'_>, child: Owner) -> Option<(Owner, u16)> {
    let word = row.word(row::CONTEXT).load(Ordering::Acquire);
    let supervisor = Owner {
        row: (word as u16).checked_sub(1)?,
        epoch: (word >> 16) as u16,
    };
    ((word >> 48) as u16 == child.epoch).then_some((supervisor, (word >> 32) as u16))
}

/// Looks at all participants. `None` when `me` itself does not wait with all it has: then nothing needs to be known.
pub(super) fn scene(arena: &Arena, me: Owner) -> Option<Scene> {
    let segment = arena.segment();
    let mut scene = Scene {
        waiting: BTreeMap::new(),
        holders: HashMap::new(),
        children: HashMap::new(),
    };
    let mut present = Vec::new();
    for row in rows(segment) {
        let Some((owner, state)) = row.occupant() else {
            continue;
        };
        present.push(owner);
        if state.life != Life::Alive {
            continue;
        }
        if let Some(context) = context_of(&row, owner) {
            scene.children.entry(context).or_default().push(owner);
        }
        if let Some(waits) = waits_of_all_threads(&row, state.pid)
            && waits.iter().all(|wait| is_undisturbed(arena, *wait))
        {
            let pid = state.pid;
            scene.waiting.insert(owner.row, Stuck { owner, pid, waits });
        }
    }
    scene.waiting.get(&me.row)?;
    count_holders(arena, &present, &mut scene);
    Some(scene)
}

/// The waits of a participant, if all its threads but those that serve the library are in one.
fn waits_of_all_threads(row: &Row<'_>, pid: u32) -> Option<Vec<Noted>> {
    if row.word(row::STOPPING).load(Ordering::Acquire) != 0 || !reap::is_of_our_namespace(*row) {
        return None;
    }
    let waits = noted(row);
    if waits.is_empty() {
        return None;
    }
    let servants = row.word(row::SERVANTS).load(Ordering::Relaxed);
    let threads = liveness::threads_of(pid)?;
    (threads == servants + waits.len() as u64).then_some(waits)
}

fn noted(row: &Row<'_>) -> Vec<Noted> {
    (0..row::WAIT_ENTRIES)
        .filter_map(|entry| {
            let [state, subject, detail, since] = entry_words(row, entry);
            let before = state.load(Ordering::Acquire);
            let noted = Noted {
                state: before,
                subject: subject.load(Ordering::Acquire),
                detail: detail.load(Ordering::Acquire),
                since: since.load(Ordering::Relaxed),
            };
            // The words belong together if the version is still the same.
            let whole = matches!(noted.kind(), CHANGE | PROCESSES)
                && state.load(Ordering::Acquire) == before;
            whole.then_some(noted)
        })
        .collect()
}

/// The object that a wait is on. Nobody's count changes: the waiter holds it while it waits.
pub(super) fn object_of(arena: &Arena, line: u64) -> Option<Object> {
    let segment = arena.segment();
    // What a row says is checked, not trusted.
    heap::locate(segment, line)?;
    let word = segment.word(line * LINE).load(Ordering::Acquire);
    let generation = Counted::from_word(word).generation;
    Object::over(Held::uncounted(arena, line, generation)).ok()
}

/// Whether nothing has been notified since the waiter's last try, which found nothing.
fn is_undisturbed(arena: &Arena, wait: Noted) -> bool {
    if wait.kind() != CHANGE {
        return true;
    }
    let (seq, event) = (wait.detail as u32, wait.detail >> 32);
    event < 2
        && object_of(arena, wait.subject).is_some_and(|object| object.event(event).seq() == seq)
}

/// Who holds what is waited on: the objects, and their ends.
fn count_holders(arena: &Arena, present: &[Owner], scene: &mut Scene) {
    let segment = arena.segment();
    // Each line of interest, and the object it is about.
    let mut lines: HashMap<u64, u64> = HashMap::new();
    let waits = scene.waiting.values().flat_map(|stuck| &stuck.waits);
    for wait in waits.filter(|wait| wait.kind() == CHANGE) {
        let Some(object) = object_of(arena, wait.subject) else {
            scene.holders.insert(wait.subject, None);
            continue;
        };
        scene.holders.insert(wait.subject, Some(Vec::new()));
        for line in [object.held.line, object.end_line(0), object.end_line(1)] {
            lines.insert(line, wait.subject);
        }
    }
    let mut found: HashMap<u64, u64> = HashMap::new();
    for &owner in present {
        for entry in lease::entries_of(segment, owner) {
            let seen = entry.load();
            let counts = seen.epoch == owner.epoch && seen.kind == Kind::Held;
            let Some(subject) = lines.get(&seen.line).filter(|_| counts) else {
                continue;
            };
            *found.entry(seen.line).or_default() += 1;
            if let Some(Some(holders)) = scene.holders.get_mut(subject)
                && holders.last() != Some(&owner)
            {
                holders.push(owner);
            }
        }
    }
    for (line, subject) in lines {
        let word = segment.word(line * LINE).load(Ordering::Acquire);
        if Counted::from_word(word).count != found.get(&line).copied().unwrap_or(0) {
            // In a message, under a name, or just changing hands: somebody may come to have it.
            scene.holders.insert(subject, None);
        }
    }
}

/// See [`Waiting::on_our_senders`](super::Waiting::on_our_senders).
pub(super) fn on_our_senders(arena: &Arena, context: u32) -> Vec<Wait> {
    let joined = Some((arena.me(), context as u16));
    let now = now_ns();
    let mut found = Vec::new();
    for row in rows(arena.segment()) {
        let Some((owner, state)) = row.occupant() else {
            continue;
        };
        if context_of(&row, owner) != joined {
            continue;
        }
        for wait in noted(&row) {
            let object = (wait.kind() == CHANGE && wait.detail >> 32 == 0)
                .then(|| object_of(arena, wait.subject))
                .flatten()
                .filter(|object| object.kind() == ObjectKind::Queue);
            if object.is_some_and(|object| told::holders_of(arena, &object, 0) == [arena.me()]) {
                found.push(wait.told(arena, (owner, state.pid), now));
            }
        }
    }
    found
}

impl Noted {
    /// This wait of a participant, for people.
    fn told(self, arena: &Arena, (owner, pid): (Owner, u32), now: u64) -> Wait {
        let record = arena.record_of(owner);
        Wait {
            pid,
            name: record.map(|record| record.name).unwrap_or_default(),
            what: told::describe(arena, self),
            for_ns: now.saturating_sub(self.since),
            advice: told::advice(arena, self),
        }
    }
}

impl Snapshot {
    /// The story for people.
    pub(super) fn tell(&self, arena: &Arena) -> Deadlock {
        let now = now_ns();
        let waits = self.0.iter().flat_map(|stuck| {
            let waits = stuck.waits.iter();
            waits.map(move |wait| wait.told(arena, (stuck.owner, stuck.pid), now))
        });
        Deadlock {
            waits: waits.collect(),
        }
    }
}
