//! Which way memory is to go to others: what the device can, what others found not to work, or what was forced.

use std::sync::atomic::Ordering;

use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::hub::Hub;
use crate::layout::{Path, station};
use crate::options::options;

/// The path for new memory of a device.
pub(crate) fn choose(hub: &Hub, device: Device) -> Result<Path> {
    let seen = device.description();
    let refused = hub
        .station()?
        .object
        .word(station::REFUSED)
        .load(Ordering::Acquire);
    if let Some(forced) = options().path {
        let works = match forced {
            Path::Handle => seen.handles,
            Path::Descriptor => seen.descriptors,
            Path::Host => Ok(()),
        };
        return works.map(|()| forced).map_err(|why| {
            Error::new(
                ErrorKind::NoPath,
                format!(
                    "the path {forced:?} was asked for, and device {} cannot: {why}",
                    device.ordinal()
                ),
            )
        });
    }
    let works = |path: Path, able: Result<(), &'static str>| {
        able.is_ok() && refused & (1 << (path.code() - 1)) == 0
    };
    Ok(if works(Path::Handle, seen.handles) {
        Path::Handle
    } else if works(Path::Descriptor, seen.descriptors) {
        Path::Descriptor
    } else {
        Path::Host
    })
}
