//! The board's lock: robust, so that a killed holder does not stop the others.

use std::cell::UnsafeCell;
use std::io;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};

use super::Board;
use super::tables::Tables;

/// A mutex that processes share.
#[repr(C)]
pub(super) struct RawLock(UnsafeCell<libc::pthread_mutex_t>);

fn check(answer: i32) -> io::Result<()> {
    match answer {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

impl RawLock {
    /// Makes zeros a lock. Called once, by who makes the board, before anyone else can find it.
    pub(super) fn init(&self) -> io::Result<()> {
        let mut attr = MaybeUninit::uninit();
        let attr = attr.as_mut_ptr();
        // SAFETY: `attr` is room for one.
        check(unsafe { libc::pthread_mutexattr_init(attr) })?;
        // SAFETY: `attr` has been initialised.
        check(unsafe { libc::pthread_mutexattr_setpshared(attr, libc::PTHREAD_PROCESS_SHARED) })?;
        // SAFETY: as above.
        check(unsafe { libc::pthread_mutexattr_setrobust(attr, libc::PTHREAD_MUTEX_ROBUST) })?;
        // SAFETY: nobody else knows this memory yet; `attr` has been initialised.
        check(unsafe { libc::pthread_mutex_init(self.0.get(), attr) })
    }

    fn lock(&self) {
        // SAFETY: the mutex was initialised before the board's magic number was stored, and is never destroyed.
        let answer = unsafe { libc::pthread_mutex_lock(self.0.get()) };
        if answer == libc::EOWNERDEAD {
            // SAFETY: this thread holds the mutex.
            unsafe { libc::pthread_mutex_consistent(self.0.get()) };
        }
    }

    fn unlock(&self) {
        // SAFETY: only a guard calls this, on the thread that locked.
        unsafe { libc::pthread_mutex_unlock(self.0.get()) };
    }
}

/// The tables, while they are this thread's alone.
pub(crate) struct Guard {
    board: &'static Board,
    /// A guard stays on its thread, as the mutex wants.
    _thread: std::marker::PhantomData<*const ()>,
}

impl Board {
    pub(crate) fn lock(&'static self) -> Guard {
        self.lock.lock();
        Guard {
            board: self,
            _thread: std::marker::PhantomData,
        }
    }
}

impl Deref for Guard {
    type Target = Tables;

    fn deref(&self) -> &Tables {
        // SAFETY: who holds the lock is alone with the tables; any bytes are valid ones.
        unsafe { &*self.board.tables.get() }
    }
}

impl DerefMut for Guard {
    fn deref_mut(&mut self) -> &mut Tables {
        // SAFETY: as above, and the guard is borrowed exclusively.
        unsafe { &mut *self.board.tables.get() }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.board.lock.unlock();
    }
}

// SAFETY: the lock is made for threads and processes, and the tables are only reached through it; the rest is atomics.
unsafe impl Sync for Board {}
