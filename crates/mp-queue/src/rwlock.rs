//! `RwLock`: many read, or one writes.

use std::time::Duration;

use shm_core::arena::Arena;
use shm_core::cells::Owner;
use shm_core::error::ErrorKind as ArenaErrorKind;
use shm_core::object::{Object, ObjectKind};
use shm_core::permits::{Acquired, Left};
use shm_core::readers::{Read, Readers};
use shm_core::sync::Shared;

use crate::error::{LockError, Result};
use crate::primitive::{make, obtain, thread_tag, travels};
use crate::wait::Deadline;

#[cfg(feature = "tokio")]
mod later;

/// The event of those who want to read, or to be the next to write.
const FREE: u64 = 0;
/// The event of the one that is next to write and waits for readers.
const DRAINED: u64 = 1;
const READING: &str = "locking for reading";
const WRITING: &str = "locking for writing";
/// Readers at once where nothing else is asked for: with the writer's, eight lines of words.
const READERS: u32 = 63;

/// A reader's word, and what the writer that died last left.
type Begun = (usize, Option<Left>);

/// A lock that many may read under, or one may write under, between processes. Clones, also in other processes, name the
/// same lock.
///
/// Who waits to write keeps new readers out, so it gets its turn; who has the lock for reading and asks for it once more
/// may therefore wait for ever. A writer that dies or panics poisons the lock; a dead reader is simply gone. Python has no
/// such lock; the interface is std's.
///
/// ```
/// let lock = mp_queue::RwLock::new()?;
/// {
///     let (_one, _two) = (lock.read()?, lock.read()?);
///     assert!(lock.try_write().is_err());
/// }
/// let _guard = lock.write()?;
/// # Ok::<(), mp_queue::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct RwLock {
    object: Object,
}

travels!(RwLock, ObjectKind::RwLock, 2, 0);

impl RwLock {
    /// Makes a lock, unlocked, in the current arena, with room for 63 readers at once; a further one waits.
    ///
    /// # Errors
    /// What making an arena or an allocation in it can answer.
    #[track_caller]
    pub fn new() -> Result<Self> {
        Self::with_readers_in(&Arena::current()?, READERS)
    }

    /// As [`new`](Self::new), in a given arena and with room for so many readers at once.
    ///
    /// # Errors
    /// As [`new`](Self::new); `Shape` for no readers or more than 65,535.
    #[track_caller]
    pub fn with_readers_in(arena: &Arena, readers: u32) -> Result<Self> {
        if readers == 0 || readers > 0xffff {
            return Err(shm_core::Error::new(
                ArenaErrorKind::Shape,
                format!("a lock for {readers} readers was asked for; it can have 1 to 65535"),
            )
            .into());
        }
        let object = make(arena, ObjectKind::RwLock, readers + 1, 0)?;
        Ok(Self { object })
    }

    /// Waits until nobody writes or is about to, and locks for reading.
    ///
    /// # Errors
    /// `Poisoned`, with the guard; `PeerFailed` when a process of the context that this lock was handed to failed.
    pub fn read(&self) -> Result<ReadGuard, LockError<ReadGuard>> {
        self.read_until(Deadline::Never)
    }

    /// Locks for reading if that is possible now.
    ///
    /// # Errors
    /// `Busy`, naming who writes, and as [`read`](Self::read).
    pub fn try_read(&self) -> Result<ReadGuard, LockError<ReadGuard>> {
        self.read_until(Deadline::Now)
    }

    /// As [`read`](Self::read), waiting so long.
    ///
    /// # Errors
    /// `TimedOut`, naming who writes, and as [`read`](Self::read).
    pub fn read_timeout(&self, timeout: Duration) -> Result<ReadGuard, LockError<ReadGuard>> {
        self.read_until(Deadline::after(timeout))
    }

    fn read_until(&self, deadline: Deadline) -> Result<ReadGuard, LockError<ReadGuard>> {
        let tag = thread_tag();
        let begin = || self.begin_reading(tag);
        let began = obtain(&self.object, FREE, deadline, READING, begin)?;
        self.reading(tag, began)
    }

    fn begin_reading(&self, tag: u32) -> Result<Begun, Option<Owner>> {
        let object = &self.object;
        match Readers(object.permits(0)).read(object.arena().me(), tag) {
            Read::At(index, left) => Ok((index, left)),
            Read::Busy(owner) => Err(owner),
            Read::SteppedBack(owner) => {
                // A writer may have seen us and gone to sleep.
                notify(object, DRAINED);
                Err(owner)
            }
        }
    }

    fn reading(&self, tag: u32, (index, left): Begun) -> Result<ReadGuard, LockError<ReadGuard>> {
        shm_core::failpoint!("rwlock.reading");
        let object = self.object.clone();
        let guard = ReadGuard { object, index, tag };
        match left {
            None => Ok(guard),
            Some(Left { pid, .. }) => Err(LockError::poisoned(pid, &self.object, guard)),
        }
    }

    /// Waits until nobody reads or writes, and locks for writing.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn write(&self) -> Result<WriteGuard, LockError<WriteGuard>> {
        self.write_until(Deadline::Never)
    }

    /// Locks for writing if nobody reads or writes now.
    ///
    /// # Errors
    /// `Busy`, naming who does, and as [`write`](Self::write).
    pub fn try_write(&self) -> Result<WriteGuard, LockError<WriteGuard>> {
        self.write_until(Deadline::Now)
    }

    /// As [`write`](Self::write), waiting so long.
    ///
    /// # Errors
    /// `TimedOut`, naming one of those who do, and as [`write`](Self::write).
    pub fn write_timeout(&self, timeout: Duration) -> Result<WriteGuard, LockError<WriteGuard>> {
        self.write_until(Deadline::after(timeout))
    }

    fn write_until(&self, deadline: Deadline) -> Result<WriteGuard, LockError<WriteGuard>> {
        let tag = thread_tag();
        let object = &self.object;
        let left = obtain(object, FREE, deadline, WRITING, || self.claim(tag))?;
        let claim = self.claimed(tag, left);
        obtain(object, DRAINED, deadline, WRITING, || claim.is_drained())?;
        claim.writing()
    }

    fn claim(&self, tag: u32) -> Result<Option<Left>, Option<Owner>> {
        let object = &self.object;
        match Readers::<Shared>(object.permits(0)).claim(object.arena().me(), tag) {
            Acquired::At { left, .. } => Ok(left),
            Acquired::Busy(owner) => Err(owner),
        }
    }

    fn claimed(&self, tag: u32, left: Option<Left>) -> Claim<'_> {
        shm_core::failpoint!("rwlock.claimed");
        Claim {
            object: &self.object,
            tag,
            left,
            open: true,
        }
    }

    /// Makes a poisoned lock that nobody writes under an ordinary one.
    pub fn clear_poison(&self) {
        self.object.permits(0).clear(0);
    }
}

/// Keeps others from writing and new readers from reading, until it is a lock or is given up.
struct Claim<'a> {
    object: &'a Object,
    tag: u32,
    left: Option<Left>,
    open: bool,
}

impl Claim<'_> {
    fn lock(&self) -> Readers<'_, Shared> {
        Readers(self.object.permits(0))
    }

    /// Whether nobody reads any more: then it is a lock.
    fn is_drained(&self) -> Result<(), Option<Owner>> {
        let drained = self.lock().drained(self.object.arena().me(), self.tag);
        drained.map(drop).map_err(Some)
    }

    /// The lock that it is once it was found drained.
    fn writing(mut self) -> Result<WriteGuard, LockError<WriteGuard>> {
        shm_core::failpoint!("rwlock.writing");
        self.open = false;
        let guard = WriteGuard {
            object: self.object.clone(),
            tag: self.tag,
            left: self.left,
            panicking: std::thread::panicking(),
        };
        match self.left {
            None => Ok(guard),
            Some(Left { pid, .. }) => Err(LockError::poisoned(pid, self.object, guard)),
        }
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if self.open && !self.object.arena().is_forked() {
            self.lock()
                .give_up(self.object.arena().me(), self.tag, self.left);
            notify(self.object, FREE);
        }
    }
}

/// Wakes all that wait for `event`: some of them may be readers, who go on together.
fn notify(object: &Object, event: u64) {
    let event = object.event(event);
    event.notify_all(|count| event.wake(count));
}

/// A [`RwLock`] locked for reading; dropping it unlocks.
#[derive(Debug)]
#[must_use = "a lock is let go when its guard is dropped"]
pub struct ReadGuard {
    object: Object,
    index: usize,
    tag: u32,
}

impl Drop for ReadGuard {
    fn drop(&mut self) {
        let object = &self.object;
        if object.arena().is_forked() {
            return;
        }
        let lock = Readers::<Shared>(object.permits(0));
        lock.stop_reading(self.index, object.arena().me(), self.tag);
        notify(object, DRAINED);
        // Those who wait for a reader's word; while somebody is about to write there is none for them anyway.
        if lock.writer().is_none() {
            notify(object, FREE);
        }
    }
}

/// A [`RwLock`] locked for writing; dropping it unlocks.
#[derive(Debug)]
#[must_use = "a lock is let go when its guard is dropped"]
pub struct WriteGuard {
    object: Object,
    tag: u32,
    left: Option<Left>,
    panicking: bool,
}

impl WriteGuard {
    /// As [`MutexGuard::clear_poison`](crate::MutexGuard::clear_poison).
    pub fn clear_poison(&mut self) {
        self.left = None;
    }
}

impl Drop for WriteGuard {
    fn drop(&mut self) {
        let object = &self.object;
        if object.arena().is_forked() {
            return;
        }
        let tag = self.tag;
        let left = self.left.or_else(|| {
            let panicked = !self.panicking && std::thread::panicking();
            let pid = std::process::id();
            panicked.then_some(Left { pid, tag })
        });
        Readers::<Shared>(object.permits(0)).stop_writing(object.arena().me(), tag, left);
        notify(object, FREE);
    }
}
