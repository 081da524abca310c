//! Streams that somebody else made: a program's own, a framework's, and CUDA's legacy default stream.
//!
//! The driver orders some of them by itself (see [`Company`](crate::company::Company)), and who made one will destroy it.

use crate::device::{Device, of_device};
use crate::driver::RawStream;
use crate::error::{Error, ErrorKind, Result};
use crate::stream::Stream;

/// CUDA's handles of its default streams: the legacy one, and that of a thread.
const LEGACY: usize = 1;
pub(crate) const PER_THREAD: usize = 2;

fn per_thread() -> Error {
    Error::new(
        ErrorKind::WrongDevice,
        "the handle 2 (CU_STREAM_PER_THREAD) is another stream in each thread, and tensors go from one thread to another; use a stream that was made, as \
         by cuStreamCreate",
    )
}

impl Stream {
    /// A stream that somebody else made, as cudarc or a library in C.
    ///
    /// One that is blocking (made without `CU_STREAM_NON_BLOCKING`) may wait for all others of its device that are, without
    /// being told. So what one of them waits for, all of them are taken to wait for: they are lost together behind a process
    /// that was killed.
    ///
    /// # Safety
    /// `raw` is a `CUstream` of that device, and is not destroyed before everything that uses it is gone: this handle, its
    /// clones, the tensors on it, and of a shared tensor that was on it, or read in it, also all clones and views.
    ///
    /// # Errors
    /// When there is no driver, or it does not know the stream. `WrongDevice` for `CU_STREAM_PER_THREAD` (2), which is another
    /// stream in each thread.
    pub unsafe fn from_raw(device: Device, raw: usize) -> Result<Self> {
        let driver = of_device()?;
        let raw = match raw {
            PER_THREAD => return Err(per_thread()),
            // Two names of one stream.
            LEGACY => 0,
            raw => raw,
        };
        // SAFETY: the caller keeps the same contract.
        let borrowed = unsafe { RawStream::borrowed(device.ordinal(), raw) };
        Self::over(driver, device, borrowed, Some(raw))
    }

    /// CUDA's own default stream of a device, the legacy one (0): for tensors that are used by calls and kernels which are
    /// started without a stream. The streams of this crate are not ordered with it; a tensor that is on it, or whose address
    /// was given for it by [`read_in`](crate::DeviceTensor::read_in) or [`write_in`](crate::DeviceTensor::write_in), is.
    ///
    /// ```no_run
    /// # use cuda_ipc::{Device, DeviceTensor, Stream};
    /// # fn kernel(address: u64) {}
    /// # let tensor = DeviceTensor::<f32>::zeros([4])?;
    /// let legacy = Stream::legacy(Device::new(0)?)?;
    /// kernel(tensor.read_in(&legacy)?); // started in stream 0: behind all that was done with the tensor
    /// # Ok::<(), cuda_ipc::Error>(())
    /// ```
    ///
    /// # Errors
    /// When there is no driver.
    pub fn legacy(device: Device) -> Result<Self> {
        // SAFETY: it is a stream of each device, and is there as long as the process.
        unsafe { Self::from_raw(device, 0) }
    }
}
