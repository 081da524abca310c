//! The ear: one thread of this process that sleeps on the events of all its pending futures, and wakes those that may go
//! on. One for 127 events, however many futures wait for each.
//!
//! Where the system lets nobody sleep on several words (`futex_waitv`), there is one ear for all, which looks at them:
//! every 50 µs after something happened, less and less often until it is every 10 ms.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, LazyLock};
use std::task::Waker;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use shm_core::arena::Arena;
use shm_core::crowd::{Crowd, Grant, Left};
use shm_core::deadlock::Servant;
use shm_core::exit;
use shm_core::object::Object;
use shm_core::vigil::{self, Bell, MOST_EVENTS, Place};

use super::no_ear;
use crate::error::Result;

/// Longest sleep while somebody waits: then one of each crowd looks for itself, as every waiting thread does.
const SLICE: Duration = Duration::from_millis(500);
/// How long an event is slept on that somebody is about to stop waiting for: who waits again meanwhile finds it so.
const LINGER: Duration = Duration::from_millis(20);
/// Between two looks at what comes without a notification, and for how long after the last one that asked for them.
const SOON: Duration = Duration::from_millis(20);
/// Longest sleep while nobody waits.
const IDLE: Duration = Duration::from_secs(3600);
/// Bounds of the time between two looks where the system cannot sleep on several events.
const BLIND_LEAST: Duration = Duration::from_micros(50);
const BLIND_MOST: Duration = Duration::from_millis(10);

static EARS: LazyLock<Mutex<Ears>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct Ears {
    /// By the key of the event.
    groups: HashMap<usize, Group>,
    threads: Vec<Thread>,
}

struct Thread {
    bell: Arc<Bell>,
    groups: usize,
}

/// Everybody of this process who waits for one event.
struct Group {
    object: Object,
    event: u64,
    ear: usize,
    crowd: Crowd<Waker>,
    grant: Grant,
    /// What the ear sleeps on, while it does.
    slept_on: Option<u32>,
    /// Somebody looks at what comes without a notification, until then.
    soon: Option<Instant>,
}

/// Joins those who wait for this event, or goes back to its place.
pub(super) fn join(
    object: &Object,
    event: u64,
    grant: Grant,
    place: Option<u64>,
    waker: &Waker,
) -> Result<u64> {
    let waker = waker.clone();
    let (place, spent) = {
        let Ears { groups, threads } = &mut *EARS.lock();
        let group = match groups.entry(object.event(event).key()) {
            Entry::Occupied(found) => found.into_mut(),
            Entry::Vacant(vacant) => {
                let ear = with_room(threads)?;
                threads[ear].groups += 1;
                vacant.insert(Group {
                    object: object.clone(),
                    event,
                    ear,
                    crowd: Crowd::default(),
                    grant,
                    slept_on: None,
                    soon: None,
                })
            }
        };
        if grant == Grant::Everybody {
            group.grant = grant;
        }
        let joined = group.crowd.join(object.event(event), place, waker);
        if group.slept_on.is_none() {
            threads[group.ear].bell.ring();
        }
        joined
    };
    // A waker can run anything when it is dropped.
    drop(spent);
    Ok(place)
}

/// Leaves with an answer.
pub(super) fn leave(object: &Object, event: u64, place: u64) {
    let left = {
        let mut ears = EARS.lock();
        let Some(group) = ears.groups.get_mut(&object.event(event).key()) else {
            return;
        };
        group.crowd.leave(object.event(event), place)
    };
    follow_up(object, event, left);
}

/// Leaves without an answer.
pub(super) fn give_up(object: &Object, event: u64, place: u64) {
    let left = {
        let Ears { groups, threads } = &mut *EARS.lock();
        let Some(group) = groups.get_mut(&object.event(event).key()) else {
            return;
        };
        let left = group.crowd.give_up(object.event(event), place);
        if group.crowd.is_empty() {
            // So that it holds the object no longer.
            threads[group.ear].bell.ring();
        }
        left
    };
    follow_up(object, event, left);
}

fn follow_up(object: &Object, event: u64, left: Left<Waker>) {
    if let Some(next) = left.next {
        wake(next);
    }
    if left.pass_on {
        pass_on(object, event);
    }
}

fn pass_on(object: &Object, event: u64) {
    let event = object.event(event);
    event.notify_one(|count| event.wake(count));
}

/// What a future of this event waits for comes without a notification: it is to look every few milliseconds.
pub(super) fn look_soon(object: &Object, event: u64) {
    let Ears { groups, threads } = &mut *EARS.lock();
    if let Some(group) = groups.get_mut(&object.event(event).key()) {
        let before = group.soon.replace(Instant::now() + 2 * SOON);
        if before.is_none() {
            threads[group.ear].bell.ring();
        }
    }
}

/// An ear that has room for one more event.
fn with_room(threads: &mut Vec<Thread>) -> Result<usize> {
    let blind = !vigil::hears_events();
    let has_room = |thread: &Thread| blind || thread.groups < MOST_EVENTS;
    if let Some(found) = threads.iter().position(has_room) {
        return Ok(found);
    }
    let bell = Arc::new(Bell::default());
    let (number, own) = (threads.len(), Arc::clone(&bell));
    let started = std::thread::Builder::new()
        .name("tensormp-ear".into())
        .stack_size(256 << 10)
        .spawn(move || listen(number, &own));
    match started {
        Ok(_) => {
            if number == 0 {
                exit::register(let_go);
            }
            threads.push(Thread { bell, groups: 0 });
            Ok(number)
        }
        // Late is better than never: those beyond what an ear can sleep on are looked at in between.
        Err(error) => threads
            .iter()
            .position(|_| true)
            .ok_or_else(|| no_ear(&error)),
    }
}

/// What an ear does next.
struct Night {
    /// Who may go on.
    told: Vec<Waker>,
    on: Vec<(Place, u32)>,
    /// What nobody waits for any more; a wake that came there meanwhile is somebody else's.
    stale: Vec<(Object, u64, bool)>,
    rung: u32,
    longest: Duration,
}

/// The life of ear `number`: with its process.
fn listen(number: usize, bell: &Bell) {
    let mut servant = Some(Servant::enter());
    let mut blind = BLIND_LEAST;
    let mut last_round = Instant::now();
    loop {
        let round = last_round.elapsed() >= SLICE;
        let night = look_around(number, bell, round);
        if round {
            bury_the_dead(&night.on);
            last_round = Instant::now();
        }
        // A waker may do anything, also what others wait for: while there is one, this thread does not merely serve.
        if night.on.is_empty() {
            servant.get_or_insert_with(Servant::enter);
        } else {
            servant = None;
        }
        let something = !night.told.is_empty();
        night.told.into_iter().for_each(wake);
        for (object, event, owed) in night.stale {
            if owed {
                pass_on(&object, event);
            }
        }
        let deaf = !vigil::hears_events() || night.on.len() > MOST_EVENTS;
        let mut longest = night.longest;
        if deaf && !night.on.is_empty() {
            blind = if something {
                BLIND_LEAST
            } else {
                (blind * 2).min(BLIND_MOST)
            };
            longest = longest.min(blind);
        }
        vigil::sleep(&night.on, bell, night.rung, longest);
    }
}

/// Finds out who may go on, and what to sleep on.
fn look_around(number: usize, bell: &Bell, for_all: bool) -> Night {
    let mut ears = EARS.lock();
    // Before looking: what changes afterwards rings again.
    let mut night = Night {
        told: Vec::new(),
        on: Vec::new(),
        stale: Vec::new(),
        rung: bell.rung(),
        longest: IDLE,
    };
    let now = Instant::now();
    let Ears { groups, threads } = &mut *ears;
    let gone = groups.extract_if(|_, group| group.ear == number && group.crowd.is_empty());
    for (_, group) in gone {
        threads[number].groups -= 1;
        let seq = group.object.event(group.event).seq();
        let owed = group.slept_on.is_some_and(|slept_on| slept_on != seq);
        night.stale.push((group.object, group.event, owed));
    }
    for group in groups.values_mut().filter(|group| group.ear == number) {
        let Group { object, crowd, .. } = group;
        let event = object.event(group.event);
        crowd.hear(event, group.slept_on, group.grant, &mut night.told);
        night.longest = night.longest.min(SLICE);
        group.soon = group.soon.filter(|until| *until > now);
        if group.soon.is_some() {
            crowd.tell(usize::MAX, &mut night.told);
            night.longest = night.longest.min(SOON);
        } else if for_all {
            // One is enough: if there is something, it lets the next one look.
            crowd.tell(1, &mut night.told);
        }
        if crowd.has_granted() {
            night.longest = night.longest.min(LINGER);
        }
        group.slept_on = crowd.seq();
        if let Some(seq) = group.slept_on {
            night.on.push((object.event_place(group.event), seq));
        }
    }
    night
}

/// Once for each arena.
fn bury_the_dead(on: &[(Place, u32)]) {
    let mut arenas: Vec<&Arena> = Vec::new();
    for (place, _) in on {
        if !arenas.iter().any(|arena| arena.same(place.arena())) {
            arenas.push(place.arena());
        }
    }
    for arena in arenas {
        arena.bury_the_dead();
    }
}

/// This process exits: what nobody waits for any more is not to look as if the process had died with it in hand.
fn let_go() {
    let gone: Vec<Group> = match EARS.try_lock_for(Duration::from_secs(1)) {
        Some(mut ears) => {
            let groups = &mut ears.groups;
            let gone = groups.extract_if(|_, group| group.crowd.is_empty());
            gone.map(|(_, group)| group).collect()
        }
        None => return,
    };
    drop(gone);
}

/// Wakes a future, outside of every lock. It is the user's code, and may panic.
fn wake(waker: Waker) {
    if catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
        tracing::error!("the waker of a future panicked");
    }
}
