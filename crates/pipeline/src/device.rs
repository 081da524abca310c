//! The device of a process: the one that its tensors on devices are made on, unless its stage says otherwise.

use crate::error::StageError;

/// Runs a process's work with the default stream of its device as the current one. -1 is the CPU.
#[cfg(feature = "cuda")]
pub(crate) fn on_device<R>(device: i32, work: impl FnOnce() -> R) -> Result<R, StageError> {
    match u32::try_from(device) {
        Ok(ordinal) => {
            let device = cuda_ipc::Device::new(ordinal)?;
            Ok(cuda_ipc::Stream::of(device)?.scope(work))
        }
        Err(_) => Ok(work()),
    }
}

/// Runs a process's work. Devices are refused before it comes to this.
#[cfg(not(feature = "cuda"))]
pub(crate) fn on_device<R>(_device: i32, work: impl FnOnce() -> R) -> Result<R, StageError> {
    Ok(work())
}

/// How many CUDA devices this process can use, or why none.
pub(crate) fn cuda_devices() -> Result<usize, String> {
    #[cfg(feature = "cuda")]
    {
        cuda_ipc::device_count().map_err(|reason| reason.to_string())
    }
    #[cfg(not(feature = "cuda"))]
    {
        Err("this program was built without the feature `cuda`".to_owned())
    }
}
