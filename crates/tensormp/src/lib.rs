//! Multiprocessing for tensors: processes hand tensors to each other without moving a byte.
//!
//! ```
//! use tensormp::prelude::*;
//!
//! fn sum(_rank: usize, work: Receiver<Tensor<f32>>) -> tensormp::Result<f64> {
//!     let mut total = 0.0;
//!     for tensor in &work {
//!         total += tensor.as_slice().iter().map(|&x| x as f64).sum::<f64>(); // read where it was written
//!     } // dropped here: the block goes back, whoever allocated it
//!     Ok(total)
//! }
//!
//! fn main() -> tensormp::Result<()> {
//!     tensormp::init(); // first: a worker is this program run again, and never returns from here
//!     let (sender, receiver) = Queue::bounded(8)?.split();
//!     let mut workers = spawn(sum, receiver, 2)?;
//!     for i in 0..10 {
//!         sender.put(Tensor::full([256, 256], i as f32)?)?; // a handle travels, not 256 KiB
//!     }
//!     drop(sender); // the last sender is gone: the workers' loops end
//!     assert_eq!(workers.join()?.iter().sum::<f64>(), 256.0 * 256.0 * 45.0);
//!     Ok(())
//! }
//! ```
//!
//! A message is any serde value that postcard can carry: derive `serde::Serialize` and `serde::Deserialize` for types of
//! your own. A worker is this program run again without its arguments, which is why `init` comes before anything that
//! looks at them.
//!
//! This is the facade over the crates of the family:
//!
//! | crate | what it gives |
//! |---|---|
//! | `shm_core` | the arena, tensors in it, the processes that take part |
//! | `spawn` | functions run in other processes, supervised, their errors brought home |
//! | `mp_queue` | queues, lanes, locks, semaphores, events, barriers, [pools](mp_queue::pool) |
//! | `pipeline` | stages of replicated processes, reports of their runs, rings: [`pipeline::Pipeline`] |
//! | `cuda_ipc` | tensors on CUDA devices, handed over like others; with the feature `cuda` |
//!
//! It runs on Linux, on 64-bit machines. It does not reach other machines, and restarts what failed only in pools and in pipeline steps that say so.
#![forbid(unsafe_code)]

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("tensormp needs 64-bit Linux: memfd, futexes between processes, and pidfds");

mod error;

/// The crate `spawn`, whose function of the same name is [`spawn`](spawn()).
pub use ::spawn as spawn_api;
pub use ::spawn::{
    Group, Process, SpawnContext, StartMethod, Stdin, forkserver, init, init_in_test, set_task,
    spawn,
};
#[cfg(feature = "cuda")]
pub use cuda_ipc::{self, Device, DeviceTensor, DynDeviceTensor, SharedDeviceTensor};
pub use error::{Error, Result};
pub use mp_queue::{
    self, Barrier, BoundedSemaphore, Condvar, Event, JoinableQueue, LaneReceiver, LaneSender,
    Mutex, Pool, PutError, Queue, RLock, Receiver, RwLock, Semaphore, Sender, SimpleQueue, pair,
};
pub use pipeline;
#[cfg(feature = "dlpack")]
pub use shm_core::dlpack;
#[cfg(feature = "safetensors")]
pub use shm_core::safetensors;
pub use shm_core::{
    self, AliasedTensor, Arena, Bool, Complex64, Complex128, Dtype, DynTensor, Element, HugePages,
    PageSize, Shape, SharedTensor, Strategy, Tensor, all_sharing_strategies, bf16, f16,
    set_sharing_strategy, sharing_strategy,
};

/// What most programs need: `use tensormp::prelude::*;`
///
/// Not the locks that std has by the same names: `use tensormp::Mutex;` says which one is meant.
pub mod prelude {
    pub use crate::{
        AliasedTensor, Arena, Barrier, Bool, Dtype, DynTensor, Element, Event, Group,
        JoinableQueue, LaneReceiver, LaneSender, Pool, Process, Queue, Receiver, Semaphore, Sender,
        Shape, SharedTensor, SpawnContext, Stdin, Tensor, bf16, f16, pair, spawn,
    };
    #[cfg(feature = "cuda")]
    pub use crate::{Device, DeviceTensor, DynDeviceTensor, SharedDeviceTensor};
}
