//! `Semaphore` and `BoundedSemaphore`: so many at a time.

use std::time::Duration;

use shm_core::arena::Arena;
use shm_core::cells::Owner;
#[cfg(feature = "tokio")]
use shm_core::crowd::Grant;
use shm_core::error::ErrorKind as ArenaErrorKind;
use shm_core::object::{Object, ObjectKind};
use shm_core::permits::{Acquired, Left, Permit as Word};

use crate::error::{Error, ErrorKind, Result};
use crate::mutex::unlock;
#[cfg(feature = "tokio")]
use crate::primitive::obtain_async;
use crate::primitive::{make, obtain, thread_tag, travels};
use crate::wait::Deadline;

const EVENT: u64 = 0;
const ACQUIRING: &str = "acquiring a permit";
/// Most permits of a semaphore: each is a word that is looked at.
const MOST: u32 = 65_536;
/// Room for permits where less is asked for.
const ROOM: u32 = 256;

/// Permits that processes take and give back. Clones, also in other processes, name the same semaphore.
///
/// A permit knows who holds it: when that process dies, the permit comes back, and whoever gets it next can ask who left
/// it ([`Permit::abandoned_by`]). That is what differs from Python's semaphore, which forgets whom its count was given
/// to. Where a permit is a thing that is used up rather than a right for a while, [`Permit::forget`] it, and let the maker
/// of the next thing [`add_permits`](Self::add_permits): what Python does with `release()` from elsewhere.
///
/// ```
/// let semaphore = mp_queue::Semaphore::new(2)?;
/// let (one, two) = (semaphore.acquire()?, semaphore.acquire()?);
/// assert!(semaphore.try_acquire().is_err());
/// drop(one);
/// assert_eq!(semaphore.available(), 1);
/// # drop(two);
/// # Ok::<(), mp_queue::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Semaphore {
    object: Object,
}

travels!(Semaphore, ObjectKind::Semaphore, 1, 0);

impl Semaphore {
    /// Makes a semaphore with so many permits in the current arena, and room for 256 or as many.
    ///
    /// # Errors
    /// What making an arena or an allocation in it can answer; `Shape` for more than 65,536 permits.
    #[track_caller]
    pub fn new(permits: u32) -> Result<Self> {
        Self::with_room_in(&Arena::current()?, permits, permits.max(ROOM))
    }

    /// As [`new`](Self::new), in a given arena, with room for `room` permits after more were added.
    ///
    /// # Errors
    /// As [`new`](Self::new); `Shape` for a room of 0, of less than the permits, or of more than 65,536.
    #[track_caller]
    pub fn with_room_in(arena: &Arena, permits: u32, room: u32) -> Result<Self> {
        if room == 0 || room > MOST || permits > room {
            return Err(shm_core::Error::new(
                ArenaErrorKind::Shape,
                format!(
                    "a semaphore of {permits} permits with room for {room} was asked for; the room can be 1 to {MOST}"
                ),
            )
            .into());
        }
        let object = make(arena, ObjectKind::Semaphore, room, 0)?;
        object.permits(0).init(permits as usize);
        Ok(Self { object })
    }

    /// Takes a permit, waiting for one.
    ///
    /// # Errors
    /// `PeerFailed` when a process of the context that this semaphore was handed to failed.
    pub fn acquire(&self) -> Result<Permit> {
        self.acquire_until(Deadline::Never)
    }

    /// Takes a permit if there is one now. While permits move, there may seem to be none.
    ///
    /// # Errors
    /// `Busy`, naming one who has a permit, and as [`acquire`](Self::acquire).
    pub fn try_acquire(&self) -> Result<Permit> {
        self.acquire_until(Deadline::Now)
    }

    /// Takes a permit, waiting so long for one.
    ///
    /// # Errors
    /// `TimedOut`, naming one who has a permit, and as [`acquire`](Self::acquire).
    pub fn acquire_timeout(&self, timeout: Duration) -> Result<Permit> {
        self.acquire_until(Deadline::after(timeout))
    }

    fn acquire_until(&self, deadline: Deadline) -> Result<Permit> {
        let tag = thread_tag();
        let taken = obtain(&self.object, EVENT, deadline, ACQUIRING, || self.take(tag))?;
        Ok(self.permit(tag, taken))
    }

    /// [`acquire`](Self::acquire) as a future, which knows no runtime and takes no thread. Cancel safe: a permit is taken
    /// in the very poll that answers with it.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), without `Deadlock`.
    #[cfg(feature = "tokio")]
    pub async fn acquire_async(&self) -> Result<Permit> {
        // Not the thread's: the task may go on in another one.
        let (event, take) = ((EVENT, Grant::EachOne), || self.take(0));
        let taken = obtain_async(&self.object, event, ACQUIRING, take).await?;
        Ok(self.permit(0, taken))
    }

    fn take(&self, tag: u32) -> Result<(usize, Option<Left>), Option<Owner>> {
        let object = &self.object;
        match object.permits(0).acquire(object.arena().me(), tag, 0) {
            Acquired::At { index, left } => Ok((index, left)),
            Acquired::Busy(owner) => Err(owner),
        }
    }

    fn permit(&self, tag: u32, (index, left): (usize, Option<Left>)) -> Permit {
        shm_core::failpoint!("semaphore.acquired");
        Permit {
            object: self.object.clone(),
            index,
            tag,
            left,
        }
    }

    /// How many permits there are to take now.
    #[must_use]
    pub fn available(&self) -> usize {
        let free = |permit: &Word| matches!(permit, Word::Free(_));
        self.object.permits(0).iter().filter(free).count()
    }

    /// Makes so many more permits.
    ///
    /// # Errors
    /// `Full` where there is no room for all of them; the message says how many were made.
    pub fn add_permits(&self, permits: u32) -> Result<()> {
        self.object.arena().check_not_forked("adding permits")?;
        let event = self.object.event(EVENT);
        for made in 0..permits {
            if !self.object.permits(0).add() {
                let room = self.object.permits(0).0.len();
                return Err(Error::new(
                    ErrorKind::Full,
                    format!(
                        "adding {permits} permits: {} has room for {room}, so only {made} were added; make it with more room",
                        self.object
                    ),
                ));
            }
            event.notify_one(|count| event.wake(count));
        }
        Ok(())
    }
}

/// A permit of a [`Semaphore`] in hand; dropping it gives it back.
#[derive(Debug)]
#[must_use = "a permit is given back when it is dropped"]
pub struct Permit {
    object: Object,
    index: usize,
    tag: u32,
    left: Option<Left>,
}

impl Permit {
    /// The process that had this permit before, if it died with it: what the permit is for may be half done.
    #[must_use]
    pub fn abandoned_by(&self) -> Option<u32> {
        self.left.map(|left| left.pid)
    }

    /// Uses the permit up: it does not come back, neither now nor when this process dies.
    pub fn forget(self) {
        let object = &self.object;
        if !object.arena().is_forked() {
            let me = object.arena().me();
            object.permits(0).forget(self.index, me, self.tag);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let object = &self.object;
        let me = object.arena().me();
        // After `forget` the word is nobody's.
        let mine = Word::Held {
            owner: me,
            tag: self.tag,
        };
        if !object.arena().is_forked() && object.permits(0).get(self.index) == mine {
            // A panic says nothing about what a number of permits is for.
            unlock(object, self.index, self.tag, None, true);
        }
    }
}

/// A [`Semaphore`] that never has more permits than it began with, as Python's. With guards that give each permit back
/// once there is no other way to get too many than to add some, and this one cannot.
///
/// ```
/// let semaphore = mp_queue::BoundedSemaphore::new(1)?;
/// let permit = semaphore.acquire()?;
/// drop(permit);
/// assert_eq!(semaphore.available(), 1);
/// # Ok::<(), mp_queue::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct BoundedSemaphore {
    object: Object,
}

travels!(BoundedSemaphore, ObjectKind::Semaphore, 1, 0);

impl BoundedSemaphore {
    /// Makes a semaphore with so many permits, at least one, in the current arena.
    ///
    /// # Errors
    /// As [`Semaphore::new`].
    #[track_caller]
    pub fn new(permits: u32) -> Result<Self> {
        Self::new_in(&Arena::current()?, permits)
    }

    /// As [`new`](Self::new), in a given arena.
    ///
    /// # Errors
    /// As [`Semaphore::new`].
    #[track_caller]
    pub fn new_in(arena: &Arena, permits: u32) -> Result<Self> {
        let Semaphore { object } = Semaphore::with_room_in(arena, permits, permits)?;
        Ok(Self { object })
    }

    fn semaphore(&self) -> Semaphore {
        Semaphore {
            object: self.object.clone(),
        }
    }

    /// As [`Semaphore::acquire`].
    ///
    /// # Errors
    /// As there.
    pub fn acquire(&self) -> Result<Permit> {
        self.semaphore().acquire()
    }

    /// As [`Semaphore::try_acquire`].
    ///
    /// # Errors
    /// As there.
    pub fn try_acquire(&self) -> Result<Permit> {
        self.semaphore().try_acquire()
    }

    /// As [`Semaphore::acquire_timeout`].
    ///
    /// # Errors
    /// As there.
    pub fn acquire_timeout(&self, timeout: Duration) -> Result<Permit> {
        self.semaphore().acquire_timeout(timeout)
    }

    /// As [`Semaphore::acquire_async`].
    ///
    /// # Errors
    /// As there.
    #[cfg(feature = "tokio")]
    pub async fn acquire_async(&self) -> Result<Permit> {
        self.semaphore().acquire_async().await
    }

    /// As [`Semaphore::available`].
    #[must_use]
    pub fn available(&self) -> usize {
        self.semaphore().available()
    }
}
