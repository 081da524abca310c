//! Queues, lanes, locks, semaphores, events, barriers and pools between processes, in shared memory, that no death can
//! wedge.
//!
//! Everything here lies in a [`shm_core`] arena, can be cloned and sent to other processes, and waits by trying,
//! spinning for microseconds and then sleeping on a shared futex. A message is any serde value that postcard can carry;
//! tensors in it travel as handles, so what a tensor takes does not grow with its size. A process that is killed at any
//! instruction leaves nothing behind that others would wait for: its claims carry its name, and whoever notices its death mends them.
//!
//! ```
//! use mp_queue::Queue;
//!
//! let (sender, receiver) = Queue::bounded(4)?.split();
//! sender.put("hello".to_string())?;
//! drop(sender); // the last sender: the receiver's loop ends
//! let all: Vec<String> = receiver.iter().collect();
//! assert_eq!(all, ["hello"]);
//! # Ok::<(), mp_queue::Error>(())
//! ```
//!
//! What it does not do: start processes other than a [`Pool`]'s workers (the `spawn` crate does), order messages of different producers, or keep
//! messages when the last holder of a queue is gone.
#![deny(unsafe_code)]

mod barrier;
pub mod channel;
mod condvar;
mod counters;
mod error;
mod event;
mod holder;
mod joinable;
mod lane;
#[cfg(feature = "tokio")]
mod later;
mod lull;
mod mutex;
pub mod pool;
mod primitive;
mod queue;
mod rlock;
mod rwlock;
mod semaphore;
mod simple;
mod wait;

pub use barrier::Barrier;
pub use condvar::Condvar;
pub use counters::Stats;
pub use error::{Error, ErrorKind, LockError, PutError, Result};
pub use event::Event;
pub use joinable::JoinableQueue;
pub use lane::{LaneIter, LaneReceiver, LaneSender, pair, pair_in};
pub use mutex::{Mutex, MutexGuard};
pub use pool::Pool;
pub use queue::{Iter, Queue, Receiver, Sender};
pub use rlock::{RLock, RLockGuard};
pub use rwlock::{ReadGuard, RwLock, WriteGuard};
pub use semaphore::{BoundedSemaphore, Permit, Semaphore};
pub use simple::SimpleQueue;
pub use wait::{Deadline, WaitPolicy, set_long_wait};
