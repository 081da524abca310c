//! Waits as futures: many at once, cancelled, and beside processes that die.

use std::future::Future;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use tokio::runtime::{Builder, Runtime};

mod many;
mod peers;
mod primitives;
mod tasks;

fn main() -> ExitCode {
    let suites = [many::TESTS, peers::TESTS, primitives::TESTS, tasks::TESTS];
    integration_tests::main(&suites.concat())
}

/// A runtime on this thread alone.
fn single() -> Runtime {
    Builder::new_current_thread().enable_time().build().unwrap()
}

/// A runtime with so many threads.
fn threaded(threads: usize) -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_time()
        .build()
        .unwrap()
}

/// Threads of this process.
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// Remembers that it was called.
#[derive(Default)]
struct Flag(AtomicBool);

impl Flag {
    fn is_raised(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Polls once; the flag says when to poll again.
fn poll_once<F: Future + Unpin>(future: &mut F) -> (Poll<F::Output>, Arc<Flag>) {
    let flag = Arc::new(Flag::default());
    let waker = Waker::from(Arc::clone(&flag));
    let answer = std::pin::Pin::new(future).poll(&mut Context::from_waker(&waker));
    (answer, flag)
}
