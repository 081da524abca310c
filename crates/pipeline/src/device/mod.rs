//! Devices: where a process works, where its slots lie, and what it takes to read slots of others there.

mod anywhere;
mod memory;
#[cfg(feature = "cuda")]
mod views;

pub(crate) use memory::{Copying, Memory, Store, Writable, make_slots};

#[cfg(feature = "cuda")]
use std::time::Duration;

use crate::board::Board;
use crate::error::{Error, Result, StageError};
use crate::spec::{Device, TensorSpec};
use crate::step::QueueGroup;

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

/// In a run whose processes may be killed and replaced no stream waits for another process: the thread looks, so that a
/// death costs an item and not everything behind it in the stream. What the user chose before stays.
#[cfg(feature = "cuda")]
pub(crate) fn expect_deaths() {
    let gate = cuda_ipc::Gate::Host(Duration::from_secs(30));
    if cuda_ipc::Options::new().gate(gate).install().is_err() {
        tracing::debug!("how receivers wait for writers was chosen before");
    }
}

/// There are no streams.
#[cfg(not(feature = "cuda"))]
pub(crate) fn expect_deaths() {}

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

/// Waits until nobody holds memory of this process on a device, or nobody is left who could read it: it may go with the
/// process.
#[cfg(feature = "cuda")]
pub(crate) fn outlive_readers(board: &Board, later: &[u32]) {
    let mut pause = Duration::from_micros(100);
    while cuda_ipc::stats().live > 0 && !later.iter().all(|&rank| board.is_done(rank)) {
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(10));
    }
}

/// There is no such memory.
#[cfg(not(feature = "cuda"))]
pub(crate) fn outlive_readers(_board: &Board, _later: &[u32]) {}

/// On which device the slots of a process lie that was given `device`; `None` is the arena.
///
/// # Errors
/// When the tensors are to lie in different places: a slot is one piece of memory.
pub(crate) fn place_of(specs: &[TensorSpec], device: i32, on_cpu: bool) -> Result<Option<u32>> {
    let place = |spec: &TensorSpec| match spec.device() {
        _ if on_cpu => None,
        Device::Cpu => None,
        Device::Own => u32::try_from(device).ok(),
        Device::Cuda(device) => Some(device),
    };
    let Some((first, others)) = specs.split_first() else {
        return Ok(None);
    };
    if let Some(other) = others.iter().find(|other| place(other) != place(first)) {
        let at = |place: Option<u32>| match place {
            None => "in shared memory".to_owned(),
            Some(device) => format!("on CUDA device {device}"),
        };
        return Err(Error::invalid(format!(
            "tensors of one slot were to lie {} ({first}) and {} ({other}); a slot is one piece of memory: put all of it in one place",
            at(place(first)),
            at(place(other))
        )));
    }
    Ok(place(first))
}

/// Fails where the slots of a group were to lie on a device that there is not.
pub(crate) fn check_places(
    group: &QueueGroup,
    specs: &[TensorSpec],
    devices: &dyn Fn() -> Result<usize, String>,
) -> Result<()> {
    for &device in &group.devices {
        let Some(place) = place_of(specs, device, group.on_cpu)? else {
            continue;
        };
        let problem = match devices() {
            Ok(count) if (place as usize) < count => continue,
            Ok(count) => format!("this machine has {count} CUDA devices"),
            Err(reason) => reason,
        };
        return Err(Error::invalid(format!(
            "slots were to lie on CUDA device {place}, which does not exist here: {problem}; use Device::Cpu, or Device::Own and give the process a device or the CPU"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_lie_where_their_tensors_say_and_on_the_cpu_where_all_is() {
        let spec = |device| TensorSpec::of::<f32>([2]).on(device);
        for (device, given, on_cpu, wanted) in [
            (Device::Cpu, 1, false, None),
            (Device::Own, 1, false, Some(1)),
            (Device::Own, -1, false, None),
            (Device::Cuda(0), 1, false, Some(0)),
            (Device::Cuda(0), -1, true, None),
        ] {
            let specs = [spec(device), spec(device)];
            assert_eq!(place_of(&specs, given, on_cpu).unwrap(), wanted);
        }
        let mixed = [spec(Device::Cpu), spec(Device::Own)];
        assert!(place_of(&mixed, -1, false).unwrap().is_none());
        let error = place_of(&mixed, 0, false).unwrap_err();
        assert!(error.to_string().contains("one place"), "{error}");
        assert!(place_of(&[], 0, false).unwrap().is_none());
    }
}
