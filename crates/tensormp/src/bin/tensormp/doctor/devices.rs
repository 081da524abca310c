//! CUDA devices.

use super::Line;
use super::Status::{Good, Note};

pub(super) fn check() -> Vec<Line> {
    let (status, found) = match cuda_ipc::device_count() {
        Ok(count) => (Good, format!("{count} devices")),
        Err(reason) => (Note, reason.to_string()),
    };
    vec![
        Line::new(
            "CUDA",
            status,
            found,
            "Tensors in CPU memory need none. Device memory between processes is not part of this version.",
        )
        .change("install NVIDIA's driver, and give the container its devices"),
    ]
}
