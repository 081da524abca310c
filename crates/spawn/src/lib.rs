//! Run a function in other processes, supervise them, and bring their results and errors home.
//!
//! ```no_run
//! fn area(rank: usize, sides: (u64, u64)) -> Result<u64, std::io::Error> {
//!     println!("process {} is rank {rank}", std::process::id());
//!     Ok(sides.0 * sides.1)
//! }
//!
//! fn main() -> spawn::Result<()> {
//!     spawn::init(); // first: a worker is this executable run again, and never returns from here
//!     let mut workers = spawn::spawn(area, (3, 4), 2)?;
//!     assert_eq!(workers.join()?, [12, 12]);
//!     Ok(())
//! }
//! ```
//!
//! # What you get
//!
//! - Any function item, generic instance, or closure that captures nothing. Nothing is registered anywhere. Arguments
//!   and results are what serde can carry; the arena's tensors and queues inside them travel as handles, without their
//!   bytes.
//! - Errors as data ([`ErrorKind`]): a process that returned an error, panicked, exited, was killed by a signal, or
//!   never came up, each with its rank, pid and name. `exit(0)` before the function returned is an error too.
//! - Supervision from the start, not only in `join`: at the first failure (by time) the others get SIGTERM, a grace
//!   period, SIGKILL, and waits on queues that the processes were handed end with the failure.
//! - No orphan: a child dies with its parent, also when that is killed by SIGKILL. No zombie, no leaked descriptor.
//! - Different functions under one supervision: [`Group`].
//! - For crates that keep processes waiting for work: a name for a function that fits into a message ([`Function`]).
//!
//! # What a worker is
//!
//! The same executable, run again, which finds its function by its place in the executable's code. Both sides check
//! that they are the same build before that place is trusted; the executable may be deleted or replaced meanwhile. A
//! worker has:
//!
//! - no command line of its own (pass what it needs as arguments), the parent's environment and working directory,
//!   its stdout and stderr;
//! - /dev/null as stdin, unless it is given the parent's ([`Stdin::Inherit`]); a process group of its own, unless it
//!   is, so that Ctrl-C in a terminal reaches the program and not its workers;
//! - the function on a thread of its own, named like the process, with a stack of 8 MiB; the main thread watches the
//!   parent.
//!
//! # Tests
//!
//! The standard test harness has its own `main`, so there is no first line of it to put [`init`] into. Tests that
//! spawn live in a file of `tests/` with a `main` of their own, and `libtest-mimic` prints and filters like the
//! standard harness:
//!
//! ```toml
//! [dev-dependencies]
//! libtest-mimic = "0.8"
//!
//! [[test]]
//! name = "workers"   # tests/workers.rs
//! harness = false
//! ```
//!
//! ```no_run
//! use libtest_mimic::{Arguments, Trial};
//!
//! fn double(_rank: usize, x: u32) -> Result<u32, String> {
//!     Ok(2 * x)
//! }
//!
//! fn a_worker_doubles() {
//!     assert_eq!(spawn::spawn(double, 21, 1).unwrap().join().unwrap(), [42]);
//! }
//!
//! fn main() {
//!     spawn::init();
//!     let tests = vec![Trial::test("a_worker_doubles", || Ok(a_worker_doubles()))];
//!     libtest_mimic::run(&Arguments::from_args(), tests).exit();
//! }
//! ```
//!
//! # What it does not do
//!
//! - It never forks without exec: that breaks threads and CUDA. It runs nothing on other machines.
//! - It does not restart a process and keeps none waiting for work: that is a pool's job.
//! - Processes that a worker starts by other means than this crate are not supervised; they survive it.
//! - A function in a shared library cannot be spawned: its place in the executable does not exist. That is an error.
//! - What a closure captures is checked by size, so a captured value that has none passes. A type without size that
//!   stands for a right (a token that only its owner can make) is then made anew in the worker: keep such tokens out of
//!   spawned closures.
//! - A function that an error names as the reason may not be the first that failed when two fail within microseconds:
//!   the order is that of the times at which the functions returned or panicked. An error that passes on a peer's
//!   failure never comes before that failure.
//! - Signals to the program are not handed on: a SIGTERM that ends it ends its workers (by SIGKILL), one that it
//!   handles is its own business.
//! - It needs Linux 5.4 or newer with /proc mounted.

#![deny(unsafe_code)]

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("this crate supports 64-bit Linux only: it is built on pidfds, memfds and /proc");

mod builder;
mod context;
mod control;
mod death;
mod entry;
mod error;
mod frame;
mod function;
mod group;
mod hello;
mod image;
mod launch;
mod link;
mod member;
mod outcome;
mod panic;
mod process;
mod run;
mod story;
mod supervisor;
mod text;
mod time;
mod trampoline;
mod worker;

pub use builder::{Builder, builder, spawn};
pub use context::{SpawnContext, Stopper};
pub use entry::init;
pub use error::{Deadlock, Error, ErrorKind, Exit, Result, Worker};
pub use function::{Failure, Function, attempt};
pub use group::Group;
pub use outcome::Outcome;
pub use process::{Process, Stdin};
