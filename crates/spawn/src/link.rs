//! All that this crate needs from the arena: parcels of arguments, letterboxes, and the news that others wait for.
//!
//! Nothing else in this crate names a type of `shm-core`, so what the two agree on can be read here.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;

use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use shm_core::Arena;
use shm_core::cells::Owner;
pub use shm_core::deadlock::Deadlock;
use shm_core::deadlock::{Servant, WaitFor, Waiting, long_wait};
pub(crate) use shm_core::descriptor::apart;
pub(crate) use shm_core::failpoint;
use shm_core::failure::PeerFailure;
use shm_core::letterbox::Letterbox;
use shm_core::message::{self, EncodeError, Outgoing};
use shm_core::object::Object;
pub(crate) use shm_core::patience::Patience;
pub(crate) use shm_core::say;

use crate::error::{BoxError, Worker};
use crate::hello::Handle;

/// Participants that an arena has room for beside the one that starts the others.
pub(crate) const PROCESSES_MAX: usize = Arena::PARTICIPANTS_MAX - 1;

/// Makes sure that this process has an arena, so that its children can share it.
pub(crate) fn prepare() -> Result<(), BoxError> {
    Arena::current()?;
    Ok(())
}

/// Whether this process has an arena.
pub(crate) fn has_arena() -> bool {
    Arena::has_current()
}

/// The arena's file, for a child.
pub(crate) fn arena() -> Result<impl AsFd, BoxError> {
    Ok(Arena::current()?)
}

/// Makes the arena behind the descriptor this process's own. It is joined when something of it is needed first; `joined`
/// hears of that.
#[inline]
pub(crate) fn expect(descriptor: OwnedFd, joined: fn(Member)) -> Result<(), BoxError> {
    let _ = JOINED.set(joined);
    Arena::expect_current(descriptor, |arena| {
        let me = arena.me();
        if let Some(joined) = JOINED.get() {
            joined(Member {
                row: me.row,
                epoch: me.epoch,
            });
        }
    })?;
    Ok(())
}

static JOINED: OnceLock<fn(Member)> = OnceLock::new();

/// A child as a participant of the arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) row: u16,
    pub(crate) epoch: u16,
}

impl Member {
    fn owner(self) -> Owner {
        Owner {
            row: self.row,
            epoch: self.epoch,
        }
    }
}

/// This process in its arena.
pub(crate) fn me() -> Result<Member, BoxError> {
    let me = Arena::current()?.me();
    Ok(Member {
        row: me.row,
        epoch: me.epoch,
    })
}

/// Notes what this process works on, if it can have an arena.
pub(crate) fn set_task(task: &str) {
    if let Ok(arena) = Arena::current() {
        arena.recorder().set_task(task);
    }
}

/// Notes that this process belongs to context `context` of that one.
pub(crate) fn note_context(supervisor: Member, context: u32) {
    if let Ok(arena) = Arena::current() {
        arena.note_supervisor(supervisor.owner(), context);
    }
}

/// Notes that the function of this process has returned, and its parent was told: what it still holds it does not die with.
pub(crate) fn note_return() {
    Arena::note_return();
}

/// Says that the current thread does none of the user's work: what it does ends no wait.
#[inline]
pub(crate) fn serve() -> impl Sized {
    Servant::enter()
}

/// A context of this process whose processes are being stopped: a wait for them is no deadlock.
#[derive(Debug)]
pub(crate) struct Stopping(());

static STOPPING: Mutex<u64> = Mutex::new(0);

impl Stopping {
    pub(crate) fn begin() -> Stopping {
        Stopping::count(1);
        Stopping(())
    }

    fn count(by: i64) {
        // Under the lock, so that the last count written is the last one.
        let mut stopping = STOPPING.lock();
        *stopping = stopping.saturating_add_signed(by);
        if let Ok(arena) = Arena::current() {
            arena.note_stopping(*stopping);
        }
    }
}

impl Drop for Stopping {
    fn drop(&mut self) {
        Stopping::count(-1);
    }
}

/// A wait for the processes of a context that may turn out to be one without an end.
#[derive(Debug)]
pub(crate) struct Joining {
    waiting: Option<Waiting>,
    /// The context's number in this process.
    context: u32,
    /// That it lasts was told.
    told: bool,
}

impl Joining {
    pub(crate) fn begin() -> Joining {
        let waiting = Arena::current().ok().as_ref().map(Waiting::begin);
        Joining {
            waiting,
            context: 0,
            told: false,
        }
    }

    /// What this thread is about to sleep for.
    pub(crate) fn on(&mut self, context: u32, running: usize) {
        self.context = context;
        if let Some(waiting) = &mut self.waiting {
            waiting.on(WaitFor::Processes {
                context,
                running: u32::try_from(running).unwrap_or(u32::MAX),
            });
        }
    }

    /// A look around, after a sleep that nobody ended.
    pub(crate) fn look(&mut self) -> Option<Deadlock> {
        let waiting = self.waiting.as_mut()?;
        // Where a thread of this process does something else, such as a runtime's, nobody can know that it is a deadlock.
        if !self.told && waiting.elapsed() >= long_wait() {
            let waits = waiting.on_our_senders(self.context);
            self.told = !waits.is_empty();
            for wait in waits {
                say!(warn, %wait, "still joining; if this process sends nothing more, drop its senders before");
            }
        }
        waiting.look()
    }
}

/// Gives back what a process held that was waited for. One that ended before it told its row is found by looking.
pub(crate) fn bury(member: Option<Member>) {
    if let Ok(arena) = Arena::current() {
        match member {
            Some(member) => arena.bury(member.owner()),
            None => arena.bury_the_dead(),
        }
    }
}

/// What a process noted about itself before it ended.
#[derive(Debug, Default)]
pub(crate) struct Record {
    pub(crate) task: Option<String>,
    pub(crate) panic: Option<String>,
}

/// Reads the flight recorder of a process that has ended. Somebody else may have buried it already.
pub(crate) fn record_of(member: Member) -> Record {
    match Arena::current()
        .ok()
        .and_then(|arena| arena.last_record_of(member.owner()))
    {
        Some(record) => Record {
            task: Some(record.task).filter(|task| !task.is_empty()),
            panic: record.panic,
        },
        None => Record::default(),
    }
}

/// Writes this process's name into its flight recorder.
pub(crate) fn note_name(name: &str) {
    if let Ok(arena) = Arena::current() {
        arena.recorder().set_name(name);
    }
}

/// Writes a panic of this process into its flight recorder, if it has one: nothing joins an arena to say that it fails.
pub(crate) fn note_panic(text: &str) {
    if Arena::has_current()
        && let Ok(arena) = Arena::current()
    {
        arena.recorder().set_panic(text);
    }
}

/// Something that processes of a context share: a queue, an event, a ring.
#[derive(Clone, Debug)]
pub(crate) struct Shared(Object);

impl Shared {
    /// From now on this process records what becomes of the others that use it.
    pub(crate) fn adopt(&self) {
        self.0.begin_anew();
        self.0.set_supervisor(self.0.arena().me());
    }

    /// Ends the waits of all who wait here for a process that failed.
    pub(crate) fn record_failure(&self, worker: &Worker, cause: &str) {
        self.0.record_failure(&PeerFailure {
            rank: rank_of(worker),
            pid: worker.pid,
            name: worker.name.clone(),
            cause: cause.to_owned(),
        });
    }

    /// Notes that a process left in peace.
    pub(crate) fn record_departure(&self, worker: &Worker) {
        self.0.record_departure(rank_of(worker), worker.pid);
    }
}

fn rank_of(worker: &Worker) -> u32 {
    u32::try_from(worker.rank).unwrap_or(u32::MAX)
}

/// An error that ended a loop in this process, and that its function could not return.
#[inline]
pub(crate) fn take_unreported() -> Option<String> {
    shm_core::failure::take_unreported()
}

/// Whether an error only passes on that another process has failed or has left.
pub(crate) fn follows_from_a_peer(error: &(dyn std::error::Error + 'static)) -> bool {
    if error.is::<PeerFailure>() {
        return true;
    }
    let kind = error
        .downcast_ref::<shm_core::Error>()
        .map(shm_core::Error::kind);
    matches!(
        kind,
        Some(shm_core::ErrorKind::PeerFailed | shm_core::ErrorKind::Closed)
    )
}

/// A value that was encoded and has left this process's hands.
#[derive(Debug)]
pub(crate) struct Parcel(Outgoing);

impl Parcel {
    pub(crate) fn pack<A: Serialize>(value: A) -> Result<Parcel, BoxError> {
        message::encode(&Arena::current()?, value)
            .map(Parcel)
            .map_err(reason)
    }

    /// Its bytes, if they are few and nothing of the arena is in them.
    #[inline]
    pub(crate) fn plain(&self, longest: usize) -> Option<Vec<u8>> {
        self.0.plain(longest)
    }

    /// A copy with references of its own; an error if it holds something that only one process may have.
    pub(crate) fn duplicate(&self) -> Result<Parcel, BoxError> {
        Ok(Parcel(self.0.duplicate()?))
    }

    /// The queues and the like inside.
    pub(crate) fn shared(&self) -> Vec<Shared> {
        self.0.objects().into_iter().map(Shared).collect()
    }
}

/// A place in the arena for one value on its way between a parent and a child.
#[derive(Debug)]
pub(crate) struct Mailbox(Letterbox);

impl Mailbox {
    pub(crate) fn create() -> Result<Mailbox, BoxError> {
        Ok(Mailbox(Letterbox::create(&Arena::current()?, 1)?))
    }

    pub(crate) fn open(handle: Handle) -> Result<Mailbox, BoxError> {
        Ok(Mailbox(Letterbox::open(&Arena::current()?, handle)?))
    }

    pub(crate) fn handle(&self) -> Handle {
        self.0.handle()
    }

    pub(crate) fn post(&self, parcel: Parcel) -> Result<(), BoxError> {
        Ok(self.0.send_encoded(parcel.0)?)
    }

    pub(crate) fn put<T: Serialize>(&self, value: T) -> Result<(), BoxError> {
        self.0.send(value).map_err(reason)
    }

    pub(crate) fn take<T: DeserializeOwned>(&self) -> Result<Option<T>, BoxError> {
        Ok(self.0.try_recv()?)
    }
}

/// What is written in `act` is read when this process has ended.
pub(crate) fn outliving<R>(act: impl FnOnce() -> R) -> R {
    message::outliving(act)
}

/// The bytes of a value in which nothing of the arena is; `None` if it takes a letterbox, or has none.
pub(crate) fn plain<T: Serialize>(value: &T) -> Option<Vec<u8>> {
    message::plain(value)
}

/// The value in bytes that [`Parcel::plain`] gave.
#[inline]
pub(crate) fn read_plain<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, BoxError> {
    Ok(message::read_plain(bytes)?)
}

/// The value that comes back with the error is dropped: its owner could do nothing else with it.
fn reason<T>(failed: EncodeError<T>) -> BoxError {
    failed.error.into()
}
