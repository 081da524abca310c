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
//! - Two ways to start a process, [`StartMethod`]: this executable run again, or a copy that a [`forkserver`] makes of
//!   itself, which is faster and may have things ready.
//! - Different functions under one supervision: [`Group`]. One function in one process: [`spawn_one`].
//! - Waiting as you like: [`join`](SpawnContext::join), with a limit, not at all, for any of them, in an async function
//!   of any runtime ([`join_async`](SpawnContext::join_async)); or not waiting: [`detach`](SpawnContext::detach).
//! - A say in what a process gets and how it runs: [`Process`].
//! - For crates that keep processes waiting for work: a name for a function that fits into a message ([`Function`]).
//!
//! # What a worker is
//!
//! The same executable, run again (or a copy of a process that is), which finds its function by its place in the executable's code. Both sides check
//! that they are the same build before that place is trusted; the executable may be deleted or replaced meanwhile. A
//! worker has:
//!
//! - no command line of its own (pass what it needs as arguments); the parent's environment, working directory, stdout
//!   and stderr, unless [`Process`] says otherwise;
//! - from [`init`] on no signal blocked, and SIGINT, SIGQUIT, SIGTERM and SIGCHLD not ignored, whatever the parent does;
//! - /dev/null as stdin, unless it is given the parent's ([`Stdin::Inherit`]); a process group of its own, unless it
//!   is, so that Ctrl-C in a terminal reaches the program and not its workers;
//! - the function on a thread of its own, named like the process, with a stack of 8 MiB; the main thread watches the
//!   parent.
//!
//! # Tests
//!
//! Under the standard harness the first line of each test that spawns is [`init_in_test!`]: the worker is the test
//! binary, run again for that very test.
//!
//! ```no_run
//! fn double(_rank: usize, x: u32) -> Result<u32, String> {
//!     Ok(2 * x)
//! }
//!
//! #[test]
//! fn a_worker_doubles() {
//!     spawn::init_in_test!();
//!     assert_eq!(spawn::spawn(double, 21, 1).unwrap().join().unwrap(), [42]);
//! }
//! # fn main() {}
//! ```
//!
//! Many such tests start faster in a file with a `main` of its own (`harness = false`, with `libtest-mimic`, which
//! prints and filters like the standard harness), whose first line is [`init`].
//!
//! # A worker that is another executable
//!
//! A program that cannot be its own worker names one: see [`worker_main!`] and [`Process::executable`].
//!
//! # What it does not do
//!
//! - It never forks your program: that breaks threads and CUDA. It runs nothing on other machines.
//! - It does not restart a process and keeps none waiting for work: that is a pool's job.
//! - Processes that a worker starts by other means than this crate are not supervised; they survive it.
//! - A function in a shared library cannot be spawned: its place in the executable does not exist. That is an error.
//! - What a closure captures is checked by size, so a captured value that has none passes. A type without size that
//!   stands for a right (a token that only its owner can make) is then made anew in the worker: keep such tokens out of
//!   spawned closures.
//! - A function that an error names as the reason may not be the first that failed when two fail within microseconds:
//!   the order is that of the times at which the functions returned or panicked. An error that passes on a peer's
//!   failure never comes before that failure.
//! - Signals to the program are not handed on unless it keeps a [`Signals`]: a SIGTERM that ends it ends its workers (by
//!   SIGKILL), one that it handles is its own business.
//! - It needs Linux 5.4 or newer with /proc mounted.

#![deny(unsafe_code)]

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("this crate supports 64-bit Linux only: it is built on pidfds, memfds and /proc");

mod asynchronous;
mod builder;
mod condition;
mod context;
mod control;
mod death;
mod desk;
mod door;
mod entry;
mod error;
mod failure;
mod fork;
pub mod forkserver;
mod frame;
mod function;
mod group;
mod hello;
mod image;
mod launch;
mod link;
mod member;
mod method;
mod one;
mod outcome;
mod panic;
mod process;
mod program;
mod rights;
mod run;
mod server;
mod setup;
mod signals;
mod start;
mod starter;
mod story;
mod supervisor;
mod tail;
mod task;
mod testing;
mod text;
mod time;
mod trampoline;
mod typed;
mod vfork;
mod watched;
mod worker;

pub use builder::{Builder, builder, spawn};
pub use context::{ProcessState, SpawnContext, Stopper};
pub use door::Door;
pub use entry::{init, init_with};
pub use error::{Deadlock, Error, ErrorKind, Exit, Result, Worker};
pub use function::{Failure, Function, attempt};
pub use group::Group;
pub use method::StartMethod;
pub use one::{OneProcess, spawn_one};
pub use outcome::Outcome;
pub use process::{Output, Process, Stdin};
pub use signals::Signals;
pub use story::Phase;
pub use task::set_task;
#[doc(hidden)]
pub use testing::init_in as __init_in;
pub use typed::{Carried, Typed};
