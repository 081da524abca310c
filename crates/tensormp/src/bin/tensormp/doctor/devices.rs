//! CUDA devices, and which ways their memory has to other processes.

use cuda_ipc::{Device, DeviceInfo};

use super::Line;
use super::Status::{Good, Note, Problem};

pub(super) fn check() -> Vec<Line> {
    match cuda_ipc::devices() {
        Ok(devices) => devices.iter().flat_map(of).collect(),
        Err(reason) => vec![
            Line::new(
                "CUDA",
                Note,
                reason.to_string(),
                "Tensors in CPU memory need none.",
            )
            .change("install NVIDIA's driver, and give the container its devices"),
        ],
    }
}

fn of(info: &DeviceInfo) -> Vec<Line> {
    let mut lines = vec![Line::new(
        "CUDA device",
        Good,
        format!(
            "{}: {}, {} MiB, {}",
            info.ordinal,
            info.name,
            info.memory >> 20,
            info.uuid
        ),
        "Tensors on it travel by its UUID, whatever number it has in another process.",
    )];
    lines.extend(paths(info.device));
    lines
}

/// What was tried on the device: as the first tensor there would.
fn paths(device: Device) -> Vec<Line> {
    let probe = match device.probe() {
        Ok(probe) => probe,
        Err(error) => {
            return vec![Line::new(
                "its memory",
                Note,
                error.to_string(),
                "Nothing can be made on the device now.",
            )];
        }
    };
    let asked = cuda_ipc::Options::new().check_path();
    let chosen = asked
        .map_err(|error| error.to_string())
        .and_then(|asked| probe.choose(asked));
    let (path, found) = match chosen {
        Ok((path, why)) => (Some(path), format!("{path:?}: {why}")),
        Err(why) => (None, why),
    };
    let (status, means) = match path {
        None => (
            Problem,
            "No tensor can be made on it in a process with this TENSORMP_CUDA_PATH.",
        ),
        Some(cuda_ipc::Path::Host) => (
            Note,
            "Tensors on it are copied through memory of the host, twice for each hand-over.",
        ),
        Some(_) => (
            Good,
            "Tensors on it are handed to other processes without a copy.",
        ),
    };
    let mut lines = vec![Line::new("its memory", status, found, means)];
    if path.is_none() {
        let last = lines.remove(0);
        lines.push(last.change("unset TENSORMP_CUDA_PATH, or set it to `auto`"));
    }
    lines.push(match device.try_pinning() {
        Ok(Ok(())) => Line::new(
            "host memory",
            Good,
            "can be registered for it",
            "Pinned tensors are copied to it without staging, and no thread waits.",
        ),
        Ok(Err(why)) => Line::new(
            "host memory",
            Note,
            why,
            "Pinned tensors are copied to it all the same, and the thread waits.",
        ),
        Err(error) => Line::new(
            "host memory",
            Note,
            error.to_string(),
            "It could not be tried.",
        ),
    });
    lines.push(match probe.events {
        Ok(()) => Line::new(
            "its events",
            Good,
            "can be shared",
            "Who receives a tensor on it waits in the device's order, and no thread waits.",
        ),
        Err(why) => Line::new(
            "its events",
            Note,
            why,
            "Who sends a tensor on it waits until the device has written it.",
        ),
    });
    lines
}
