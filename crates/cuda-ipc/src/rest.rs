//! When all streams of a device are at rest: memory is given back and closed then, since the driver waits for all of them.

use std::time::{Duration, Instant};

use parking_lot::{RwLock, RwLockWriteGuard};

use crate::awaits::Awaits;
use crate::device::Device;
use crate::numbers;
use crate::stream::Stream;

/// Of devices, by ordinal: held, exclusively, to give memory back, and shared to make a stream wait for another process.
static GIVING_BACK: [RwLock<()>; 64] = [const { RwLock::new(()) }; 64];

/// For how long streams are kept from waiting for other processes, at most, so that they come to rest.
const HELD: Duration = Duration::from_secs(5);
/// For how long if meanwhile nothing of what they wait for comes.
const STANDSTILL: Duration = Duration::from_millis(300);

/// That of a device.
pub(crate) fn giving_back(device: Device) -> &'static RwLock<()> {
    &GIVING_BACK[device.ordinal() as usize % GIVING_BACK.len()]
}

fn all_of(device: Device) -> Vec<std::sync::Arc<Awaits>> {
    let mut all = numbers::all();
    all.retain(|one| one.device == device);
    all
}

/// No stream of a device is made to wait for another process as long as this is held; none if that cannot be had until then.
fn hold(device: Device, until: Option<Instant>) -> Option<RwLockWriteGuard<'static, ()>> {
    let giving_back = giving_back(device);
    match until {
        Some(until) => giving_back.try_write_until(until),
        None => Some(giving_back.write()),
    }
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
    let _giving_back = giving_back(device).write();
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
