//! Devices, by what they are called in every process.

use std::fmt;
use std::sync::OnceLock;

use crate::driver::{Description, Driver, check_not_forked, driver};
use crate::error::{Error, ErrorKind, Result};
use crate::path::Probe;

/// What a device is called in every process, whatever CUDA_VISIBLE_DEVICES says there: the name that travels.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Uuid(pub [u8; 16]);

/// As `nvidia-smi -L` writes it.
impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU")?;
        for (index, byte) in self.0.iter().enumerate() {
            if [0, 4, 6, 8, 10].contains(&index) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Uuid {
    pub(crate) fn from_words(words: [u64; 2]) -> Self {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&words[0].to_le_bytes());
        bytes[8..].copy_from_slice(&words[1].to_le_bytes());
        Self(bytes)
    }

    pub(crate) fn to_words(self) -> [u64; 2] {
        let half = |at: usize| {
            let mut eight = [0; 8];
            eight.copy_from_slice(&self.0[at..at + 8]);
            u64::from_le_bytes(eight)
        };
        [half(0), half(8)]
    }

    /// One of 64 bits, to say in a word of which devices something is true, or of others that have the same.
    pub(crate) fn bit(self) -> u64 {
        let [a, b] = self.to_words();
        let mixed = (a ^ b.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        1 << (mixed >> 58)
    }
}

/// A device that this process sees.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Device {
    ordinal: u32,
}

/// What is known of a device, and which ways to other processes it has.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// The device.
    pub device: Device,
    /// Its number in this process; another process may number it differently.
    pub ordinal: u32,
    /// What it is called in every process.
    pub uuid: Uuid,
    /// Its name.
    pub name: String,
    /// Bytes of memory.
    pub memory: u64,
    /// Whether its memory can be shown to others by handle; `Err` says why not.
    pub handles: Result<(), &'static str>,
    /// Whether its memory can be shown to others by file descriptor; `Err` says why not.
    pub descriptors: Result<(), &'static str>,
    /// Whether its events can be shown to others; `Err` says why not.
    pub events: Result<(), &'static str>,
}

/// What the driver says of the devices, asked once.
fn descriptions() -> Result<&'static [Description]> {
    static SEEN: OnceLock<Vec<Description>> = OnceLock::new();
    if let Some(seen) = SEEN.get() {
        check_not_forked()?;
        return Ok(seen);
    }
    let driver = driver()?;
    let count = driver.device_count()?;
    if count == 0 {
        return Err(no_device("this process sees no device"));
    }
    let described: Result<Vec<_>> = (0..count).map(|device| driver.describe(device)).collect();
    let described = described?;
    Ok(SEEN.get_or_init(|| described))
}

fn no_device(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::NoSuchDevice, why)
}

/// The devices that this process sees, at least one.
///
/// # Errors
/// Why there is none.
pub fn devices() -> Result<Vec<DeviceInfo>> {
    let described = descriptions()?;
    Ok((0..described.len() as u32)
        .map(|ordinal| Device { ordinal }.info())
        .collect())
}

impl Device {
    /// One that nobody has looked for.
    #[cfg(test)]
    pub(crate) const fn of_ordinal(ordinal: u32) -> Self {
        Self { ordinal }
    }

    /// The device of this number in this process.
    ///
    /// # Errors
    /// When there is none of that number, or none at all.
    pub fn new(ordinal: u32) -> Result<Self> {
        let described = descriptions()?;
        if (ordinal as usize) < described.len() {
            return Ok(Self { ordinal });
        }
        Err(no_device(format!(
            "there is no device {ordinal}: this process sees {}, numbered from 0",
            described.len()
        )))
    }

    /// The device that is called so in every process.
    ///
    /// # Errors
    /// When this process does not see it.
    pub fn by_uuid(uuid: Uuid) -> Result<Self> {
        let described = descriptions()?;
        if crate::sabotage::is("device") {
            return Ok(Self { ordinal: 0 });
        }
        let found = described.iter().position(|seen| seen.uuid == uuid.0);
        found
            .map(|ordinal| Self {
                ordinal: ordinal as u32,
            })
            .ok_or_else(|| {
                let seen: Vec<_> = described
                    .iter()
                    .map(|seen| Uuid(seen.uuid).to_string())
                    .collect();
                no_device(format!(
                    "this process does not see the device {uuid}; it sees {}. Give it that device too (CUDA_VISIBLE_DEVICES, the container's devices), or send \
                     the tensor through the host",
                    seen.join(", ")
                ))
            })
    }

    /// Its number in this process.
    #[must_use]
    pub fn ordinal(self) -> u32 {
        self.ordinal
    }

    /// What it is called in every process.
    #[must_use]
    pub fn uuid(self) -> Uuid {
        Uuid(self.description().uuid)
    }

    /// What is known of it.
    #[must_use]
    pub fn info(self) -> DeviceInfo {
        let seen = self.description();
        DeviceInfo {
            device: self,
            ordinal: self.ordinal,
            uuid: Uuid(seen.uuid),
            name: seen.name.clone(),
            memory: seen.memory,
            handles: seen.handles,
            descriptors: seen.descriptors,
            events: seen.events,
        }
    }

    /// Tries which ways its memory can go to other processes, once in this process. Makes a context on the device, which
    /// takes memory there.
    ///
    /// # Errors
    /// When the driver cannot be used.
    pub fn probe(self) -> Result<Probe> {
        crate::path::probe(driver()?, self)
    }

    /// Tries whether memory of the arena can be registered for the device, with a little of it.
    ///
    /// # Errors
    /// When the driver or the arena cannot be used; the answer itself is the inner one: why not, in words.
    pub fn try_pinning(self) -> Result<Result<(), String>> {
        let tensor = shm_core::Tensor::<u8>::zeros([4096])?;
        let pinned = crate::PinnedTensor::new(tensor, self)?;
        let outcome = pinned.outcome().map_err(str::to_owned);
        drop(pinned);
        crate::regions::collect();
        Ok(outcome)
    }

    pub(crate) fn description(self) -> &'static Description {
        match descriptions()
            .ok()
            .and_then(|seen| seen.get(self.ordinal as usize))
        {
            Some(seen) => seen,
            // In a fork only: a `Device` is made of what was seen.
            None => &FORKED,
        }
    }
}

static FORKED: Description = Description {
    name: String::new(),
    uuid: [0; 16],
    memory: 0,
    handles: Err("this process was forked"),
    descriptors: Err("this process was forked"),
    events: Err("this process was forked"),
};

/// The driver, for who has a device.
pub(crate) fn of_device() -> Result<&'static dyn Driver> {
    driver()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_survives_its_words_and_is_written_as_nvidia_does() {
        let uuid = Uuid([
            0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0, 1, 2, 3, 4, 5, 6, 7,
        ]);
        assert_eq!(Uuid::from_words(uuid.to_words()), uuid);
        assert_eq!(uuid.to_string(), "GPU-01234567-89ab-cdef-0001-020304050607");
    }
}
