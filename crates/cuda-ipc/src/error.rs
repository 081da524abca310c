//! The one error of this crate: which case it is, and the whole story in one message.

use std::fmt;

use crate::driver::Unavailable;

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

type Source = Box<dyn std::error::Error + Send + Sync + 'static>;

/// Why something about a device, or a tensor on one, could not be done.
///
/// `Display` tells what was tried, with which numbers, what the driver answered and what to do; [`Error::kind`] tells
/// programs which case it is.
#[derive(thiserror::Error)]
#[error("{context}")]
pub struct Error {
    kind: ErrorKind,
    context: String,
    #[source]
    source: Option<Source>,
}

/// The cases of [`Error`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No device can be used in this process.
    Unavailable(Unavailable),
    /// The driver answered an error to a call.
    Driver {
        /// The call, by its name in `cuda.h`.
        call: &'static str,
        /// The number it answered.
        code: i32,
    },
    /// The driver is too old to have this call.
    MissingCall {
        /// The call, by its name in `cuda.h`.
        call: &'static str,
    },
    /// The device has no room for what was asked, also after unused memory was given back.
    OutOfMemory {
        /// Bytes that were asked for.
        asked: u64,
    },
    /// This process was forked from one that used the driver, which then cannot be used.
    AfterFork,
    /// This process sees no such device.
    NoSuchDevice,
    /// A tensor, stream or memory belongs to another device than the operation needs.
    WrongDevice,
    /// The process whose memory it was has ended, and its memory with it.
    OriginGone {
        /// Its process id, as far as known.
        pid: Option<u32>,
    },
    /// A process that was to finish its work on the tensor has ended before.
    WriterGone,
    /// The memory cannot be shown to other processes.
    NotExportable,
    /// None of the paths between two processes works, or the one that was forced.
    NoPath,
    /// Something did not happen in the time that was given.
    TimedOut,
    /// Somebody else holds it.
    StillHeld,
    /// The shape, element type or length does not fit.
    Shape,
    /// What arrived does not add up.
    Malformed,
    /// An error of the arena.
    Arena(Box<shm_core::ErrorKind>),
    /// A system call failed.
    System,
}

/// `main` prints errors by `Debug`, so this is the message and its causes, not the fields.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        shm_core::error::tell(self, f)
    }
}

impl Error {
    /// An error of this kind; the context is the whole message.
    #[must_use]
    pub fn new(kind: ErrorKind, context: impl Into<String>) -> Self {
        Self {
            kind,
            context: context.into(),
            source: None,
        }
    }

    /// With what caused it.
    #[must_use]
    pub fn because(mut self, source: impl Into<Source>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What was going on, before what the message says so far.
    #[must_use]
    pub(crate) fn while_doing(mut self, doing: impl fmt::Display) -> Self {
        self.context = format!("{doing}: {}", self.context);
        self
    }

    /// Which case it is.
    #[must_use]
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// Whether this way between two processes does not work, and another one may.
    pub(crate) fn is_of_the_way(&self) -> bool {
        let no_way = matches!(self.kind, ErrorKind::NoPath | ErrorKind::MissingCall { .. });
        no_way || self.code().is_some()
    }

    /// The number that the driver answered, if it was the driver.
    #[must_use]
    pub fn code(&self) -> Option<i32> {
        match self.kind {
            ErrorKind::Driver { code, .. }
            | ErrorKind::Unavailable(Unavailable::Refused { code, .. }) => Some(code),
            _ => None,
        }
    }
}

impl From<shm_core::Error> for Error {
    fn from(error: shm_core::Error) -> Self {
        let kind = match error.kind() {
            shm_core::ErrorKind::AfterFork => ErrorKind::AfterFork,
            shm_core::ErrorKind::Shape => ErrorKind::Shape,
            other => ErrorKind::Arena(Box::new(other.clone())),
        };
        Self::new(kind, error.to_string()).because(error)
    }
}

/// For messages: what this crate says inside of what is sent.
impl From<Error> for shm_core::Error {
    fn from(error: Error) -> Self {
        let kind = match error.kind() {
            ErrorKind::AfterFork => shm_core::ErrorKind::AfterFork,
            ErrorKind::StillHeld => shm_core::ErrorKind::StillHeld,
            ErrorKind::Shape => shm_core::ErrorKind::Shape,
            ErrorKind::Arena(kind) => (**kind).clone(),
            _ => shm_core::ErrorKind::Device,
        };
        Self::new(kind, error.to_string()).because(error)
    }
}

impl From<Unavailable> for Error {
    fn from(why: Unavailable) -> Self {
        Self::new(ErrorKind::Unavailable(why), format!("no device: {why}"))
    }
}

/// Turns a driver code into an error, or nothing for 0.
pub(crate) fn check(call: &'static str, code: i32) -> Result<()> {
    if code == 0 {
        return Ok(());
    }
    Err(refused(call, code))
}

#[cold]
fn refused(call: &'static str, code: i32) -> Error {
    // Whatever a driver says there.
    if let Err(forked) = crate::driver::check_not_forked() {
        return forked;
    }
    let name = name_of(code);
    let kind = match code {
        2 => ErrorKind::OutOfMemory { asked: 0 },
        _ => ErrorKind::Driver { call, code },
    };
    Error::new(
        kind,
        format!("{call}: the driver answers {code} ({name}){}", hint(code)),
    )
}

/// The name of a driver code, for those that are met here. Not asked of the driver, so that an error can be told when
/// the driver is what does not work.
pub(crate) const fn name_of(code: i32) -> &'static str {
    match code {
        0 => "success",
        1 => "invalid value",
        2 => "out of memory",
        3 => "not initialized",
        4 => "shutting down",
        34 => "stub library",
        46 => "device unavailable",
        100 => "no device",
        101 => "invalid device",
        200 => "invalid image",
        201 => "invalid context",
        205 => "map failed",
        206 => "unmap failed",
        208 => "already mapped",
        211 => "not mapped",
        214 => "uncorrectable ECC error",
        217 => "peer access unsupported",
        219 => "invalid graphics context",
        304 => "operating system",
        400 => "invalid handle",
        401 => "illegal state",
        500 => "not found",
        600 => "not ready",
        700 => "illegal address",
        702 => "launch timeout",
        704 => "peer access already enabled",
        705 => "peer access not enabled",
        709 => "context is destroyed",
        712 => "host memory already registered",
        713 => "host memory not registered",
        719 => "launch failed",
        800 => "not permitted",
        801 => "not supported",
        803 => "system driver mismatch",
        804 => "compatibility not supported on device",
        999 => "unknown",
        _ => "see CUresult in cuda.h",
    }
}

/// What to do about a driver code.
pub(crate) const fn hint(code: i32) -> &'static str {
    match code {
        2 => "; drop tensors that are no longer needed, or call `collect()`",
        3 => {
            "; the driver was started in a process that this one was forked from, or never: start processes with `spawn`"
        }
        100 => {
            ": it sees no device; check `nvidia-smi`, CUDA_VISIBLE_DEVICES, and that the container was given one"
        }
        217 => "; the two devices cannot reach each other's memory: copy through the host",
        304 => {
            "; often a limit of the system or of this process's file descriptors (`ulimit -n`), a container without shared /dev/shm, or one of another ipc namespace"
        }
        700 => {
            "; a kernel or copy used memory that is not there, after which this process can use the device no more: restart it"
        }
        801 => "; this device or system does not do that (WSL2, Tegra and MIG among them)",
        803 | 804 => "; the versions of the driver library and of the kernel module differ",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_an_error_that_names_call_number_and_meaning() {
        for code in [
            -1,
            1,
            2,
            3,
            100,
            201,
            217,
            304,
            400,
            600,
            700,
            801,
            12_345,
            i32::MIN,
            i32::MAX,
        ] {
            let error = check("cuIpcOpenMemHandle_v2", code).unwrap_err();
            let text = error.to_string();
            assert!(text.contains("cuIpcOpenMemHandle_v2"), "{text}");
            assert!(text.contains(&code.to_string()), "{text}");
            assert!(text.contains(name_of(code)), "{text}");
        }
        assert!(check("cuInit", 0).is_ok());
    }
}
