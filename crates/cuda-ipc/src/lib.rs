//! Tensors on CUDA devices that processes hand to one another without copies.
//!
//! ```no_run
//! use cuda_ipc::DeviceTensor;
//!
//! // Here: made on the device's default stream, and moved into a queue, a pool or the arguments of a process.
//! let tensor = DeviceTensor::from_slice([2, 3], &[0.0_f32, 1.0, 2.0, 3.0, 4.0, 5.0])?;
//! // There: received on the current stream, which waits for whoever wrote it. No thread waits for a device.
//! let received: DeviceTensor<f32> = tensor;
//! assert_eq!(received.to_vec()?[4], 4.0);
//! # Ok::<(), cuda_ipc::Error>(())
//! ```
//!
//! - [`DeviceTensor`] has one owner among all processes; [`SharedDeviceTensor`] any number of readers;
//!   [`DynDeviceTensor`] is either, with its element type known at run time. They are sent like tensors of the arena,
//!   through anything that takes messages.
//! - The memory lives until the last holder is done, whoever drops what, and also when a process is killed: what travels
//!   is a small block of the arena, and its holders are the tensor's. [`close`] waits for them and names them.
//! - Everything on a device is in the order of a [`Stream`]. Each send carries an event behind the work so far; the
//!   receiver's stream waits for it, and the next user of the memory for the event behind the last holder's work.
//! - Devices travel by UUID. A received tensor can be sent on. One that comes back to its origin is the original.
//!
//! The driver library is loaded at run time, so everything builds and runs on machines without it: [`devices`] says what
//! there is, or why there is nothing. `docs/src/cuda.md` has the design, and who may die where.
//!
//! What it does not do: run kernels, reach other machines, or free memory that somebody uses.

mod accessors;
mod asking;
mod awaits;
mod body;
mod bytes;
mod closing;
mod company;
mod copying;
mod current;
mod device;
mod doubt;
pub mod driver;
mod dynamic;
mod error;
mod event;
mod exit;
mod hub;
mod idle;
mod import;
mod in_the_way;
#[cfg(feature = "cudarc")]
mod interop;
mod joint;
mod kept;
mod later;
mod layout;
mod ledger;
mod lent;
mod looking;
mod mark;
mod memory;
#[cfg(test)]
mod model;
mod moment;
mod numbers;
mod options;
mod orphan;
mod part;
mod path;
mod pinned;
mod place;
mod pool;
mod quiet;
mod regions;
mod request;
mod rest;
mod sabotage;
mod sealed;
mod service;
mod shared;
mod silence;
mod socket;
mod staging;
mod stats;
mod stream;
mod stuck;
mod tensor;
mod token;
mod travel;
#[cfg(feature = "cudarc")]
mod used;
mod using;
mod visited;
mod waiting;
mod wrapped;

pub use closing::{close, collect, stats};
pub use device::{Device, DeviceInfo, Uuid, devices};
pub use driver::{Unavailable, device_count, is_available};
pub use dynamic::DynDeviceTensor;
pub use error::{Error, ErrorKind, Result};
#[cfg(feature = "cudarc")]
pub use interop::{CudarcView, CudarcViewMut};
pub use layout::Path;
pub use moment::Moment;
pub use options::{Gate, Options};
pub use part::PartMut;
pub use path::Probe;
pub use pinned::PinnedTensor;
pub use sealed::Sealed;
pub use shared::SharedDeviceTensor;
pub use stats::{Peer, Pinned, Stats, Stuck};
pub use stream::Stream;
pub use tensor::DeviceTensor;
