//! What a driver of devices must be able to do, and finding the one that is there.
//!
//! [`Driver`] is the seam to a vendor: everything above works on it alone, so another vendor's devices need one more
//! implementation of it and nothing else (`docs/src/device-backend.md`). Addresses of devices are plain numbers here;
//! nothing on the host is reached through one.

mod cuda;
mod handle;

use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

pub use handle::{RawEvent, RawStream};

use crate::error::{Error, ErrorKind, Result, hint, name_of};

/// Why no CUDA device can be used in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// There is no driver library to load.
    #[error(
        "the driver library (libcuda.so) is not on this system or not on the loader's path; install NVIDIA's driver, or add its folder to LD_LIBRARY_PATH"
    )]
    NoDriver,
    /// The driver is there, but answers an error. 100 is "no device".
    #[error("the driver answers {code} ({}) to {call}{}", name_of(*code), hint(*code))]
    Refused {
        /// The driver call.
        call: &'static str,
        /// The driver's code, as in `cuda.h`.
        code: i32,
    },
    /// The library is there and lacks a call that every driver since CUDA 11.1 has.
    #[error(
        "the driver library lacks {call}; it is older than CUDA 11.1, or not what it seems: update NVIDIA's driver"
    )]
    TooOld {
        /// The driver call.
        call: &'static str,
    },
}

/// What a device says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Its name, as "NVIDIA H200".
    pub name: String,
    /// What it is called in every process, whatever CUDA_VISIBLE_DEVICES says there.
    pub uuid: [u8; 16],
    /// Bytes of memory.
    pub memory: u64,
    /// Whether memory can be shown to others by a handle of 64 bytes; `Err` says why not.
    pub handles: Result<(), &'static str>,
    /// Whether memory can be shown to others by a file descriptor.
    pub descriptors: Result<(), &'static str>,
    /// Whether events can be shown to others.
    pub events: Result<(), &'static str>,
}

/// How memory is reached by another process: 64 bytes that mean something to the driver.
pub type HandleBytes = [u8; 64];

/// Memory behind a file descriptor: where it is mapped here, and what keeps it.
#[derive(Debug)]
pub struct Mapping {
    /// Its address on the device, in this process.
    pub address: u64,
    /// Bytes that are mapped.
    pub bytes: u64,
    pub(crate) handle: u64,
}

/// What the layers above ask of a vendor's driver.
///
/// `device` is an ordinal of this process. Each call may be made on any thread, whatever context is current there, and
/// leaves that as it was. A wrong device address is an error of the driver, never of this process's memory: addresses are
/// numbers that only the device follows. Handles of streams and events are minted by the driver and not copied, so none is
/// used after it was destroyed.
pub trait Driver: fmt::Debug + Send + Sync {
    /// What it is called in messages.
    fn name(&self) -> &'static str;
    /// The version of the driver, as 12040 for 12.4.
    fn version(&self) -> Result<i32>;
    /// How many devices this process sees.
    fn device_count(&self) -> Result<u32>;
    /// What a device says of itself; also which ways to other processes it knows.
    fn describe(&self, device: u32) -> Result<Description>;

    /// New memory that can be shown by [`export`](Self::export).
    fn allocate(&self, device: u32, bytes: u64) -> Result<u64>;
    /// Gives memory back. Everything that was started on it is over.
    fn free(&self, device: u32, address: u64) -> Result<()>;
    /// Base and size of the allocation that an address lies in.
    fn range_of(&self, device: u32, address: u64) -> Result<(u64, u64)>;
    /// Whether the driver says that memory made elsewhere can be exported; `None` when it does not tell.
    fn is_exportable(&self, device: u32, address: u64) -> Result<Option<bool>>;
    /// The device that memory made elsewhere lies on; `None` when the driver does not tell.
    fn device_of(&self, device: u32, address: u64) -> Result<Option<u32>>;
    /// Copies bytes to the device, after what `stream` has to do, and returns when the source can be reused.
    fn write(&self, stream: &RawStream, to: u64, from: &[u8]) -> Result<()>;
    /// Copies bytes from the device, after what `stream` has to do, and returns when they are there.
    fn read(&self, stream: &RawStream, to: &mut [u8], from: u64) -> Result<()>;
    /// Copies bytes on the device, in the order of `stream`.
    fn copy(&self, stream: &RawStream, to: u64, from: u64, bytes: u64) -> Result<()>;
    /// Copies bytes between two devices, in the order of `stream`.
    fn copy_between(
        &self,
        stream: &RawStream,
        to: (u32, u64),
        from: (u32, u64),
        bytes: u64,
    ) -> Result<()>;
    /// Sets bytes, in the order of `stream`.
    fn fill(&self, stream: &RawStream, to: u64, value: u8, bytes: u64) -> Result<()>;

    /// A new stream, which the driver orders with no other by itself.
    fn new_stream(&self, device: u32) -> Result<RawStream>;
    /// Destroys a stream; what is in it still runs.
    fn drop_stream(&self, stream: RawStream) -> Result<()>;
    /// Waits until everything in a stream is done. The calling thread sleeps.
    fn synchronize(&self, stream: &RawStream) -> Result<()>;
    /// Whether the driver orders a stream with others of its device by itself: asked without waiting. Where it cannot tell,
    /// it is so.
    fn is_blocking(&self, stream: &RawStream) -> Result<bool>;
    /// What tells a stream from all others that this process has or had, also from one that had its handle before; none where the
    /// driver does not tell.
    fn stream_id(&self, stream: &RawStream) -> Result<Option<u64>>;
    /// Whether everything in a stream is done: asked without waiting.
    fn is_idle(&self, stream: &RawStream) -> Result<bool>;

    /// A new event; one that is `shared` can be exported.
    fn new_event(&self, device: u32, shared: bool) -> Result<RawEvent>;
    /// Destroys an event, one that was imported too.
    fn drop_event(&self, event: RawEvent) -> Result<()>;
    /// The event happens when everything that is in the stream now is done.
    fn record(&self, event: &RawEvent, stream: &RawStream) -> Result<()>;
    /// What is put into the stream from now on waits for the event as it was last recorded.
    fn wait(&self, stream: &RawStream, event: &RawEvent) -> Result<()>;
    /// Whether the event has happened.
    fn has_happened(&self, event: &RawEvent) -> Result<bool>;

    /// 64 bytes by which another process opens the allocation that starts at `base`.
    fn export(&self, device: u32, base: u64) -> Result<HandleBytes>;
    /// Opens memory of another process.
    fn import(&self, device: u32, handle: &HandleBytes) -> Result<u64>;
    /// Closes memory that was opened.
    fn close(&self, device: u32, base: u64) -> Result<()>;
    /// 64 bytes by which another process opens an event that is shared.
    fn export_event(&self, event: &RawEvent) -> Result<HandleBytes>;
    /// Opens an event of another process.
    fn import_event(&self, device: u32, handle: &HandleBytes) -> Result<RawEvent>;

    /// New memory that can be shown by a descriptor, mapped here; `bytes` may grow.
    fn map_new(&self, device: u32, bytes: u64) -> Result<Mapping>;
    /// A descriptor by which another process maps the same memory.
    fn descriptor_of(&self, mapping: &Mapping) -> Result<OwnedFd>;
    /// Maps memory of another process; the descriptor is needed no longer afterwards.
    fn map(&self, device: u32, descriptor: BorrowedFd<'_>, bytes: u64) -> Result<Mapping>;
    /// Takes a mapping away. The memory stays for as long as anybody maps it.
    fn unmap(&self, device: u32, mapping: Mapping) -> Result<()>;

    /// Copies bytes to the device, in the order of `stream`, and returns at once.
    ///
    /// # Safety
    /// The source is pinned, and neither written nor freed before the stream has come to the copy's end.
    unsafe fn write_later(&self, stream: &RawStream, to: u64, from: &[u8]) -> Result<()>;
    /// Makes memory of this process known to the device, so that copies from and to it need no staging and no waiting.
    ///
    /// # Safety
    /// The range is mapped, and stays so until [`unpin`](Self::unpin).
    unsafe fn pin(&self, device: u32, start: *mut u8, bytes: usize) -> Result<()>;
    /// The opposite of [`pin`](Self::pin).
    fn unpin(&self, device: u32, start: *mut u8) -> Result<()>;
}

/// The process that started the driver; a fork of it must not use it.
static STARTED_BY: AtomicU32 = AtomicU32::new(0);

/// The driver of this process, started at first use.
///
/// # Errors
/// Why there is none; `AfterFork` in a process that was forked from one that had started it.
pub(crate) fn driver() -> Result<&'static dyn Driver> {
    static FOUND: OnceLock<Result<Box<dyn Driver>, Unavailable>> = OnceLock::new();
    check_not_forked()?;
    let found = FOUND.get_or_init(|| {
        STARTED_BY.store(std::process::id(), Ordering::Relaxed);
        cuda::Cuda::start().map(|cuda| Box::new(cuda) as Box<dyn Driver>)
    });
    match found {
        Ok(driver) => Ok(&**driver),
        Err(why) => Err((*why).into()),
    }
}

/// Fails in a process that was forked from one that had started the driver.
pub(crate) fn check_not_forked() -> Result<()> {
    let starter = STARTED_BY.load(Ordering::Relaxed);
    if starter == 0 || starter == std::process::id() {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::AfterFork,
        format!(
            "process {} was forked from process {starter}, which had started the device's driver; a driver cannot be used after a fork. Start processes \
             with `spawn`, which executes them anew",
            std::process::id()
        ),
    ))
}

/// How many CUDA devices this process can use; at least 1.
///
/// # Errors
/// Why there is none.
pub fn device_count() -> Result<usize, Unavailable> {
    let refused = |error: Error| match error.kind() {
        ErrorKind::Unavailable(why) => *why,
        ErrorKind::Driver { call, code } => Unavailable::Refused { call, code: *code },
        ErrorKind::MissingCall { call } => Unavailable::TooOld { call },
        _ => Unavailable::Refused {
            call: "cuInit",
            code: 3,
        },
    };
    let count = driver().and_then(Driver::device_count).map_err(refused)?;
    match count {
        0 => Err(Unavailable::Refused {
            call: "cuDeviceGetCount",
            code: 100,
        }),
        count => Ok(count as usize),
    }
}

/// Whether this process can use a CUDA device.
#[must_use]
pub fn is_available() -> bool {
    device_count().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asking_never_panics_and_says_why_there_is_none() {
        match device_count() {
            Ok(count) => assert!(count > 0 && is_available()),
            Err(reason) => {
                assert!(!is_available());
                assert!(reason.to_string().len() > 20, "{reason}");
            }
        }
    }

    #[test]
    fn a_refusal_names_call_code_and_what_to_do() {
        let error = Unavailable::Refused {
            call: "cuInit",
            code: 100,
        };
        let text = error.to_string();
        assert!(
            text.contains("100") && text.contains("cuInit") && text.contains("nvidia-smi"),
            "{text}"
        );
    }
}
