//! Which way memory is to go to others: what was tried on the device, what others found not to work, or what was forced.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use rustix::io::Errno;

use crate::device::Device;
use crate::driver::Driver;
use crate::error::{Error, ErrorKind, Result};
use crate::hub::Hub;
use crate::later::{What, leave};
use crate::layout::{Path, station};
use crate::options::options;
use crate::pool::CHUNK;
use crate::rest::while_idle;

/// Which ways a device's memory can go to other processes, as was tried.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Probe {
    /// By handle; `Err` says why not.
    pub handle: Result<(), String>,
    /// By file descriptor; `Err` says why not.
    pub descriptor: Result<(), String>,
    /// Whether events can be shared; where they cannot, senders wait for the device.
    pub events: Result<(), String>,
}

impl Probe {
    /// The path that is taken, and why: the one that was asked for, or else the best.
    ///
    /// # Errors
    /// Why the one that was asked for does not work.
    pub fn choose(&self, asked: Option<Path>) -> Result<(Path, String), String> {
        let Some(path) = asked else {
            return Ok(self.best());
        };
        let works = match path {
            Path::Handle => &self.handle,
            Path::Descriptor => &self.descriptor,
            Path::Host => &Ok(()),
        };
        let (best, why) = self.best();
        match works {
            Ok(()) => Ok((
                path,
                format!("it was asked for; without that {best:?}, since {why}"),
            )),
            Err(why) => Err(format!(
                "the path {path:?} was asked for, and cannot be had: {why}"
            )),
        }
    }

    /// The best one, and why.
    #[must_use]
    pub fn best(&self) -> (Path, String) {
        match (&self.handle, &self.descriptor) {
            (Ok(()), _) => (Path::Handle, "handles work".to_owned()),
            (Err(why), Ok(())) => (
                Path::Descriptor,
                format!("descriptors work, handles do not: {why}"),
            ),
            (Err(why), Err(second)) => (
                Path::Host,
                format!("neither handles work ({why}) nor descriptors ({second})"),
            ),
        }
    }
}

/// What a trial answers that failed in a way which may be another one the next time: so often it is tried.
pub(crate) const TRIALS: u32 = 8;

/// What the driver says where a device, or this process, cannot do it at all: `INVALID_VALUE`, `INVALID_DEVICE`,
/// `PEER_ACCESS_UNSUPPORTED`, `NOT_PERMITTED` and `NOT_SUPPORTED`.
const LASTING: [i32; 5] = [1, 101, 217, 800, 801];

/// How a device was tried, and how often.
#[derive(Debug)]
struct Tried {
    probe: Probe,
    times: u32,
}

/// Tries what a device can do for other processes, with a little memory, once a process; again if what went wrong may have
/// passed.
///
/// # Errors
/// When the driver cannot be used at all.
pub(crate) fn probe(driver: &'static dyn Driver, device: Device) -> Result<Probe> {
    static TRIED: Mutex<Option<HashMap<u32, Tried>>> = Mutex::new(None);
    let mut tried = TRIED.lock();
    let tried = tried.get_or_insert_default();
    let ordinal = device.ordinal();
    let known = tried.get(&ordinal);
    if let Some(known) = known.filter(|known| known.times == TRIALS) {
        return Ok(known.probe.clone());
    }
    let times = known.map_or(0, |known| known.times);
    let made = match (try_it(driver, device), known) {
        (Ok((probe, true)), _) => Tried {
            probe,
            times: TRIALS,
        },
        // What a driver answers where this process has no room for a file says nothing of the next time.
        (Ok((probe, false)), _) => Tried {
            probe,
            times: times + u32::from(has_room_for_a_file()),
        },
        // A full device has no room for another trial, and what there is can be given out without one.
        (Err(error), Some(known)) if *error.kind() != ErrorKind::AfterFork => Tried {
            probe: known.probe.clone(),
            times: times + 1,
        },
        (Err(error), _) => return Err(error),
    };
    let probe = made.probe.clone();
    tried.insert(ordinal, made);
    Ok(probe)
}

/// Tries it now; and whether another trial would say the same.
fn try_it(driver: &'static dyn Driver, device: Device) -> Result<(Probe, bool)> {
    let ordinal = device.ordinal();
    let seen = device.description();
    let mut trial = Trial { is_final: true };
    let handle = match seen.handles {
        Err(why) => Err(why.to_owned()),
        Ok(()) => {
            let address = driver.allocate(ordinal, CHUNK)?;
            let exported = driver.export(ordinal, address);
            give_back(driver, device, What::Own(address))?;
            trial.told(exported)?
        }
    };
    let descriptor = match seen.descriptors {
        Err(why) => Err(why.to_owned()),
        Ok(()) => match driver.map_new(ordinal, CHUNK) {
            Err(error) => trial.told::<()>(Err(error))?,
            Ok(mapping) => {
                let exported = driver.descriptor_of(&mapping);
                give_back(driver, device, What::Mapped(mapping))?;
                trial.told(exported)?
            }
        },
    };
    let events = match seen.events {
        Err(why) => Err(why.to_owned()),
        Ok(()) => match driver.new_event(ordinal, true) {
            Err(error) => trial.told::<()>(Err(error))?,
            Ok(event) => {
                let exported = driver.export_event(&event);
                driver.drop_event(event)?;
                trial.told(exported)?
            }
        },
    };
    let probe = Probe {
        handle,
        descriptor,
        events,
    };
    Ok((probe, trial.is_final))
}

/// What the driver answers to one that goes on.
struct Trial {
    /// Another one would say the same.
    is_final: bool,
}

impl Trial {
    /// What the driver answered, as words where it says that it cannot; any other trouble is trouble.
    fn told<T>(&mut self, answer: Result<T>) -> Result<Result<(), String>> {
        let Err(error) = answer else {
            return Ok(Ok(()));
        };
        if error.code().is_none() {
            return Err(error);
        }
        self.is_final &= !is_passing(&error);
        Ok(Err(error.to_string()))
    }
}

/// Whether what the driver said may be another thing the next time.
pub(crate) fn is_passing(error: &Error) -> bool {
    error.code().is_some_and(|code| !LASTING.contains(&code))
}

/// Whether this process can have one more file open.
pub(crate) fn has_room_for_a_file() -> bool {
    let opened = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC);
    !matches!(opened, Err(Errno::MFILE | Errno::NFILE))
}

/// Gives the memory of a trial back: at once, or later where a stream of this process waits for another one already.
fn give_back(driver: &'static dyn Driver, device: Device, what: What) -> Result<()> {
    let mut what = Some(what);
    let go = || what.take().map_or(Ok(()), |what| what.go(driver, device));
    if let Some(gone) = while_idle(device, go) {
        return gone;
    }
    what.into_iter()
        .for_each(|what| leave(driver, device, what, None));
    Ok(())
}

/// The path for new memory of a device.
pub(crate) fn choose(hub: &Hub, device: Device) -> Result<Path> {
    let asked = options().path()?;
    let refused = hub
        .station()?
        .object
        .word(station::REFUSED)
        .load(Ordering::Acquire);
    let probe = probe(hub.driver, device)?;
    if let Some(asked) = asked {
        return probe.choose(Some(asked)).map(|_| asked).map_err(|why| {
            Error::new(
                ErrorKind::NoPath,
                format!("device {}: {why}", device.ordinal()),
            )
        });
    }
    let works = |path: Path, able: &Result<(), String>| {
        able.is_ok() && refused & (1 << (path.code() - 1)) == 0
    };
    Ok(if works(Path::Handle, &probe.handle) {
        Path::Handle
    } else if works(Path::Descriptor, &probe.descriptor) {
        Path::Descriptor
    } else {
        Path::Host
    })
}
