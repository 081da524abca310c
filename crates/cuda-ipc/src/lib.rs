//! CUDA devices for the processes of a program.
//!
//! So far this crate answers one question: can this process use a CUDA device, and if not, why not? Device tensors that
//! travel between processes are not here yet. The driver library is loaded at run time, so everything builds and runs
//! on machines without it.
//!
//! ```
//! match cuda_ipc::device_count() {
//!     Ok(count) => println!("{count} CUDA devices"),
//!     Err(reason) => println!("no CUDA here: {reason}"),
//! }
//! ```

mod driver;

pub use driver::{Unavailable, device_count, is_available};
