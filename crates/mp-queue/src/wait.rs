//! Waiting: try, spin for a short while, then sleep on a shared futex.
//!
//! State is in shared memory and a wake is only a hint, so every wait is a loop around an attempt. Spinning pays when
//! the other side answers within microseconds and a core is free for it; it never pays with more participants than
//! cores: there the waiter gives its core away a few times instead, so that the other side can go on without being
//! woken for each message. The time spent spinning follows what spinning has brought so far. A sleep lasts half a
//! second at most: then the waiter looks for itself whether those it waits for are still alive.

use std::cell::Cell;
use std::num::NonZeroUsize;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use shm_core::cells::Owner;
use shm_core::clock::now_ns;
use shm_core::deadlock::{WaitFor, Waiting, long_wait};
use shm_core::event::{Parked, Registered};
use shm_core::object::Object;
use shm_core::patience::Patience;

use crate::counters;
use crate::error::Error;
use crate::holder;

/// Longest sleep between two looks.
pub(crate) const SLICE: Duration = Duration::from_millis(500);
/// Bounds of the time spent spinning: about one wake across cores, and next to nothing.
const SPIN_MOST_NS: u64 = 50_000;
const SPIN_LEAST_NS: u64 = 1_000;
/// How often a waiter without a core to spin on gives its own away before it sleeps.
const YIELDS: u32 = 8;

/// Rounds of spinning without a pause between two looks: what comes within microseconds is seen at once, and not only
/// after a look at the clock or at who may have died.
const BARE_ROUNDS: u32 = 4;

/// From how long a wait on is long, for all waits of this process: it is then told once, as a `tracing` warning that says
/// what is waited for and which process holds it. Ten seconds at first; looked at every half a second at most. A wait for
/// processes (`join`) tells which of them wait for messages that only this process still could send.
pub fn set_long_wait(limit: Duration) {
    shm_core::deadlock::set_long_wait(limit);
}

/// How a wait spends its time before it sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitPolicy {
    /// Spins for a while where that has paid lately and a core is free for it.
    #[default]
    Adaptive,
    /// The same, however many participants and cores there seem to be: for processes that know that they have a core each,
    /// since they are pinned, or since the others sleep.
    Eager,
    /// Never sleeps. For benchmarks, and for processes that have a core each.
    Spin,
    /// Sleeps at once.
    Park,
}

/// Nanoseconds that the next wait of this process spins: grows when spinning is enough, shrinks when not.
static SPIN_NS: AtomicU64 = AtomicU64::new(20_000);

/// Cores this process may run on.
fn cores() -> u64 {
    static CORES: OnceLock<u64> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, NonZeroUsize::get) as u64)
}

pub(crate) fn spin_for(object: &Object, policy: WaitPolicy) -> u64 {
    match policy {
        WaitPolicy::Spin => u64::MAX,
        WaitPolicy::Park => 0,
        WaitPolicy::Adaptive => {
            let fits = cores() > 1 && object.arena().participants() <= cores();
            if fits {
                SPIN_NS.load(Ordering::Relaxed)
            } else {
                0
            }
        }
        WaitPolicy::Eager => SPIN_NS.load(Ordering::Relaxed),
    }
}

/// Until when to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deadline {
    /// Not at all.
    Now,
    /// Until then.
    At(Instant),
    /// As long as it takes.
    Never,
}

impl Deadline {
    /// So long from now; a time too long to add is never.
    #[must_use]
    pub fn after(timeout: Duration) -> Self {
        Instant::now()
            .checked_add(timeout)
            .map_or(Self::Never, Self::At)
    }

    /// Whether there is nothing to wait for.
    #[must_use]
    pub fn is_now(self) -> bool {
        self == Self::Now
    }

    pub(crate) fn left(self) -> Option<Duration> {
        match self {
            Self::Now => Some(Duration::ZERO),
            Self::At(at) => Some(at.saturating_duration_since(Instant::now())),
            Self::Never => None,
        }
    }
}

/// Repeats `attempt` until it answers something, woken by event `event` of `object`. `None`: the deadline is over.
///
/// `attempt` is told whether the wait has become slow, for looks that are too dear to take at every turn. `glance` is a
/// look so cheap that spinning does little else: whether an attempt is worth it. In `holder` the attempt says who has what
/// is waited for.
///
/// A wait without a deadline that nobody can end any more answers `Deadlock`.
pub(crate) fn wait<R, E: From<Error>>(
    object: &Object,
    event: u64,
    policy: WaitPolicy,
    deadline: Deadline,
    holder: &Cell<Option<Owner>>,
    glance: impl Fn() -> bool,
    mut attempt: impl FnMut(bool) -> Option<Result<R, E>>,
) -> Option<Result<R, E>> {
    let limit = spin_for(object, policy);
    if limit > 0 {
        counters::note(object, counters::SPINS);
        // The first look at the clock comes after the first round: what is about to come need not wait for it.
        let mut start = None;
        let mut rounds = 0_u32;
        loop {
            spin(rounds, &glance);
            rounds = rounds.saturating_add(1);
            if let Some(answer) = attempt(false) {
                if matches!(policy, WaitPolicy::Adaptive | WaitPolicy::Eager) {
                    let spin = SPIN_NS.load(Ordering::Relaxed);
                    SPIN_NS.store((spin + spin / 8 + 1).min(SPIN_MOST_NS), Ordering::Relaxed);
                }
                return Some(answer);
            }
            let now = now_ns();
            if now - *start.get_or_insert(now) >= limit {
                break;
            }
            if policy == WaitPolicy::Spin {
                if let Some(answer) = attempt(true) {
                    return Some(answer);
                }
                if deadline.left() == Some(Duration::ZERO) {
                    return None;
                }
            }
        }
        let spin = SPIN_NS.load(Ordering::Relaxed);
        SPIN_NS.store((spin / 2).max(SPIN_LEAST_NS), Ordering::Relaxed);
    }
    if limit == 0 && policy == WaitPolicy::Adaptive {
        for _ in 0..YIELDS {
            if let Some(answer) = attempt(false) {
                return Some(answer);
            }
            std::thread::yield_now();
        }
    }
    park(object, event, deadline, holder, attempt)
}

/// Glances until there is something to see, for one or two microseconds. Later rounds leave more of a shared core to others.
#[inline]
fn spin(rounds: u32, glance: &impl Fn() -> bool) {
    let (glances, pause) = if rounds < BARE_ROUNDS {
        (1024, false)
    } else {
        (32, true)
    };
    for _ in 0..glances {
        if pause {
            std::hint::spin_loop();
        }
        if glance() {
            return;
        }
    }
}

fn park<R, E: From<Error>>(
    object: &Object,
    index: u64,
    deadline: Deadline,
    holder: &Cell<Option<Owner>>,
    mut attempt: impl FnMut(bool) -> Option<Result<R, E>>,
) -> Option<Result<R, E>> {
    object.arena().watch();
    let mut long = LongWait::new(object);
    // Who waits with a deadline goes on by itself, so there is nothing to notice.
    let mut for_ever = (deadline == Deadline::Never).then(|| Waiting::begin(object.arena()));
    let event = object.event(index);
    loop {
        let registered = event.register();
        // Once more after registering: whoever changed the state before did not see us, but we see the change.
        if let Some(answer) = attempt(true) {
            event.unregister(registered);
            object.arena().recorder().done_waiting();
            return Some(answer);
        }
        let left = deadline.left();
        if left == Some(Duration::ZERO) {
            event.unregister(registered);
            object.arena().recorder().done_waiting();
            return attempt(true);
        }
        object.arena().recorder().waiting_for(object);
        counters::note(object, counters::PARKS);
        if let Some(waiting) = &mut for_ever {
            waiting.on(WaitFor::Change {
                object,
                event: index,
                seq: registered.seq,
            });
        }
        let slice = long.slice();
        let parked = event.park(registered.seq, left.map_or(slice, |left| left.min(slice)));
        event.unregister(registered);
        if parked == Parked::TimedOut {
            object.arena().watch();
            object.arena().bury_the_dead();
            if let Some(deadlock) = for_ever.as_mut().and_then(Waiting::look) {
                object.arena().recorder().done_waiting();
                return Some(Err(Error::deadlock(deadlock).into()));
            }
            long.tell(holder.get());
        }
    }
}

/// As [`wait`], asleep, for who is given that long to say something, in time in which it had its turns.
pub(crate) fn wait_patiently<R, E: From<Error>>(
    object: &Object,
    index: u64,
    whole: Duration,
    mut attempt: impl FnMut(bool) -> Option<Result<R, E>>,
) -> Option<Result<R, E>> {
    let mut patience = Patience::new(whole);
    loop {
        let answer = wait(
            object,
            index,
            WaitPolicy::Park,
            Deadline::At(patience.next()),
            &Cell::new(None),
            || true,
            &mut attempt,
        );
        if answer.is_some() || patience.is_over(Instant::now()) {
            return answer;
        }
    }
}

/// Sleeps until somebody notifies event `event` of `object` after `registered`, or the deadline is over (`false`). For
/// what has no state of its own to look at; `attempt` may end the wait with an answer.
///
/// # Errors
/// The answer; `Deadlock` where there is no deadline and nobody can notify any more.
pub(crate) fn wait_signal<E: From<Error>>(
    object: &Object,
    index: u64,
    registered: Registered,
    deadline: Deadline,
    mut attempt: impl FnMut() -> Option<E>,
) -> Result<bool, E> {
    object.arena().watch();
    let mut long = LongWait::new(object);
    let mut for_ever = (deadline == Deadline::Never).then(|| Waiting::begin(object.arena()));
    let event = object.event(index);
    let end = loop {
        if let Some(answer) = attempt() {
            break Err(answer);
        }
        let left = deadline.left();
        if left == Some(Duration::ZERO) {
            break Ok(false);
        }
        object.arena().recorder().waiting_for(object);
        if let Some(waiting) = &mut for_ever {
            waiting.on(WaitFor::Change {
                object,
                event: index,
                seq: registered.seq,
            });
        }
        let slice = long.slice();
        let parked = event.park(registered.seq, left.map_or(slice, |left| left.min(slice)));
        if parked == Parked::Woken {
            break Ok(true);
        }
        object.arena().watch();
        object.arena().bury_the_dead();
        if let Some(deadlock) = for_ever.as_mut().and_then(Waiting::look) {
            break Err(Error::deadlock(deadlock).into());
        }
        long.tell(None);
    };
    event.unregister(registered);
    object.arena().recorder().done_waiting();
    end
}

/// How long a wait has lasted, and whether it was told.
pub(crate) struct LongWait<'a> {
    object: &'a Object,
    since: Instant,
    told: bool,
}

impl<'a> LongWait<'a> {
    pub(crate) fn new(object: &'a Object) -> Self {
        let since = Instant::now();
        Self {
            object,
            since,
            told: false,
        }
    }

    /// How long to sleep before the next look.
    fn slice(&self) -> Duration {
        if self.told {
            SLICE
        } else {
            SLICE.min(long_wait())
        }
    }

    pub(crate) fn tell(&mut self, holder: Option<Owner>) {
        let waited = self.since.elapsed();
        if self.told || waited < long_wait() {
            return;
        }
        self.told = true;
        let object = self.object;
        match holder {
            Some(owner) => tracing::warn!(
                %object,
                seconds = waited.as_secs_f64(),
                holder = %holder::describe(object.arena(), owner),
                "still waiting for what another holds"
            ),
            None => tracing::warn!(
                %object,
                seconds = waited.as_secs_f64(),
                senders = object.holders(0),
                receivers = object.holders(1),
                "still waiting"
            ),
        }
    }
}
