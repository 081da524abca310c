//! When all streams of a device are at rest: memory is given back and closed then, since the driver waits for all of them.

use std::cell::Cell;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use shm_core::patience::Patience;

use crate::awaits::Awaits;
use crate::device::Device;
use crate::numbers;
use crate::stream::Stream;

/// Of a device.
struct Gate {
    /// Held, exclusively, to give memory back, and shared to make a stream wait for another process.
    giving_back: RwLock<()>,
    dropping: Mutex<Dropping>,
}

/// Owners of wrapped memory that are being dropped, which may take any time.
struct Dropping {
    /// By so many threads.
    count: usize,
    /// How long they are waited for, by all together.
    wait: Option<Patience>,
}

/// By ordinal.
static GATES: [Gate; 64] = [const {
    Gate {
        giving_back: RwLock::new(()),
        dropping: Mutex::new(Dropping {
            count: 0,
            wait: None,
        }),
    }
}; 64];

thread_local! {
    /// Whether this thread drops owners: what these do waits for no gate, which may be this thread's.
    static IS_DROPPING: Cell<bool> = const { Cell::new(false) };
}

/// For how long streams are kept from waiting for other processes, at most, so that they come to rest.
const HELD: Duration = Duration::from_secs(5);
/// For how long if meanwhile nothing of what they wait for comes.
const STANDSTILL: Duration = Duration::from_millis(300);

/// Whoever waits at a gate looks as often whether an owner is dropped there.
const LOOK: Duration = Duration::from_millis(50);

fn gate(device: Device) -> &'static Gate {
    &GATES[device.ordinal() as usize % GATES.len()]
}

/// Waits at a gate, `until` then; and for an owner that is dropped behind it, [`HELD`] at most.
fn wait_at<G>(
    gate: &'static Gate,
    until: Option<Instant>,
    try_until: impl Fn(&'static RwLock<()>, Instant) -> Option<G>,
) -> Option<G> {
    loop {
        let now = Instant::now();
        let next = now + LOOK;
        let next = until.map_or(next, |until| until.min(next));
        if let Some(guard) = try_until(&gate.giving_back, next) {
            return Some(guard);
        }
        let now = Instant::now();
        let mut dropping = gate.dropping.lock();
        let is_late = dropping.wait.as_mut().is_some_and(|wait| wait.is_over(now));
        drop(dropping);
        if is_late || until.is_some_and(|until| now >= until) {
            return None;
        }
    }
}

/// As long as it is held, nothing is given back for which the driver waits for all streams of a device: to make one wait for
/// another process. None for an owner that is being dropped, and for others once that has taken too long.
pub(crate) fn pass(device: Device) -> Option<RwLockReadGuard<'static, ()>> {
    if IS_DROPPING.get() {
        return None;
    }
    let gate = gate(device);
    let at_once = gate.giving_back.try_read();
    at_once.or_else(|| wait_at(gate, None, |lock, until| lock.try_read_until(until)))
}

/// Drops owners of wrapped memory of a device, of which no stream waits for another process now, in what was given to
/// [`while_calm`] or [`while_held`]: their allocator gives memory back, it may be, for which the driver waits for all streams.
/// They may do anything else as well, for as long as they like, so what waits at the gate meanwhile goes on after a while.
pub(crate) fn dropping<R>(device: Device, act: impl FnOnce() -> R) -> R {
    struct Over(&'static Gate);
    impl Drop for Over {
        fn drop(&mut self) {
            IS_DROPPING.set(false);
            let mut dropping = self.0.dropping.lock();
            dropping.count -= 1;
            if dropping.count == 0 {
                dropping.wait = None;
            }
        }
    }
    let gate = gate(device);
    let mut dropping = gate.dropping.lock();
    dropping.count += 1;
    dropping.wait.get_or_insert_with(|| Patience::new(HELD));
    drop(dropping);
    IS_DROPPING.set(true);
    let _over = Over(gate);
    act()
}

fn all_of(device: Device) -> Vec<std::sync::Arc<Awaits>> {
    let mut all = numbers::all();
    all.retain(|one| one.device == device);
    all
}

/// No stream of a device is made to wait for another process as long as this is held; none if that cannot be had until then,
/// or a thread that drops an owner asks.
fn hold(device: Device, until: Option<Instant>) -> Option<RwLockWriteGuard<'static, ()>> {
    if IS_DROPPING.get() {
        return None;
    }
    wait_at(gate(device), until, |lock, until| {
        lock.try_write_until(until)
    })
}

/// Does something in which the driver waits for all streams of a device, if none of them waits for another process now, or
/// will before it is done. Waits for nobody else, and for other threads that do such a thing `until` then.
pub(crate) fn while_calm<R>(
    device: Device,
    until: Option<Instant>,
    act: impl FnOnce() -> R,
) -> Option<R> {
    let _giving_back = hold(device, until)?;
    all_of(device).iter().all(|one| one.is_calm()).then(act)
}

/// As [`while_calm`], if they have nothing else to do either.
pub(crate) fn while_idle<R>(device: Device, act: impl FnOnce() -> R) -> Option<R> {
    let _giving_back = hold(device, None)?;
    let is_calm = || all_of(device).iter().all(|one| one.is_calm());
    let is_idle = |stream: &Stream| stream.device() != device || stream.is_idle();
    (is_calm() && Stream::all().iter().all(is_idle)).then(act)
}

/// Why streams did not come to rest though they were held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Restless {
    /// What they wait for comes along, and there is much of it.
    Busy,
    /// Nothing of it came for a while, or never will.
    Still,
}

/// As [`while_calm`], where streams always have something to wait for: no more of it comes meanwhile. Gives up when nothing
/// of it happens for a while, and `until` is over.
pub(crate) fn while_held<R>(
    device: Device,
    until: Option<Instant>,
    act: impl FnOnce() -> R,
) -> Result<R, Restless> {
    let _giving_back = hold(device, until).ok_or(Restless::Busy)?;
    let begun = Instant::now();
    let mut latest = (usize::MAX, begun);
    loop {
        let all = all_of(device);
        // All of them, so that each forgets what has happened.
        let restless = all.iter().filter(|one| !one.is_calm()).count();
        if restless == 0 {
            return Ok(act());
        }
        let left = all.iter().map(|one| one.count()).sum();
        if left < latest.0 {
            latest = (left, Instant::now());
        }
        let is_lost = all.iter().any(|one| one.is_lost());
        if is_lost || latest.1.elapsed() > STANDSTILL {
            return Err(Restless::Still);
        }
        if begun.elapsed() > HELD || until.is_some_and(|until| Instant::now() >= until) {
            return Err(Restless::Busy);
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// When streams are held from waiting for others, where they do not come to rest otherwise.
#[derive(Debug)]
pub(crate) struct Holding {
    at: Instant,
    interval: Duration,
}

impl Holding {
    /// A moment of rest is waited for so long before it is made.
    const PATIENCE: Duration = Duration::from_secs(1);
    /// Where making one was of no use, it is tried again ever later, and at last after that time.
    const LONGEST: Duration = Duration::from_secs(8);

    pub(crate) fn new() -> Self {
        Self {
            at: Instant::now() + Self::PATIENCE,
            interval: Self::PATIENCE,
        }
    }

    /// Whether it is time.
    pub(crate) fn is_due(&self) -> bool {
        Instant::now() >= self.at
    }

    /// It was tried; `of_use`: what was waited for came along.
    pub(crate) fn was_tried(&mut self, of_use: bool) {
        self.interval = match of_use {
            true => Self::PATIENCE,
            false => (self.interval * 2).min(Self::LONGEST),
        };
        self.at = Instant::now() + self.interval;
    }
}

/// Whether a stream of a device waits for another process that lives. What has happened meanwhile is forgotten: nobody else
/// may have looked.
pub(crate) fn is_waiting(device: Device) -> bool {
    let of_device = all_of(device);
    let waits = |one: &std::sync::Arc<Awaits>| !one.is_empty() && !one.is_calm();
    !of_device.iter().any(|one| one.is_lost()) && of_device.iter().any(waits)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What waits at the gate does so for all owners together, as long as one is being dropped.
    #[test]
    fn owners_that_hang_are_waited_for_together() {
        let device = Device::of_ordinal(63);
        let gate = gate(device);
        let giving_back = gate.giving_back.write();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let (begun, begins) = std::sync::mpsc::channel();
            scope.spawn(move || dropping(device, || (begun.send(()), ended.recv())));
            begins.recv().unwrap();
            // The first waits for as long as is said.
            assert!(pass(device).is_none());
            // Another owner hangs as well, and whoever comes now has waited enough.
            let (begun, begins) = std::sync::mpsc::channel();
            let (end_second, ended) = std::sync::mpsc::channel::<()>();
            scope.spawn(move || dropping(device, || (begun.send(()), ended.recv())));
            begins.recv().unwrap();
            let looked = Instant::now();
            assert!(pass(device).is_none());
            assert!(looked.elapsed() < HELD, "{:?}", looked.elapsed());
            drop((end, end_second));
        });
        drop(giving_back);
        assert!(pass(device).is_some());
        assert!(gate.dropping.lock().wait.is_none());
    }
}
