//! The arena: one shared file, mapped whole by each process of a group, in which everything lies.

use core::fmt;
use core::sync::atomic::Ordering;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use crate::cells::Owner;
use crate::error::{Error, ErrorKind, Result};
use crate::heap::{self, Heap};
use crate::layout::header;
use crate::lease::Leases;
use crate::participant::liveness::{Identity, Verdict};
use crate::participant::lock::RowLocks;
use crate::participant::record::{self, Record, Recorder};
use crate::participant::table::{self, Row, rows};
use crate::reap;
use crate::room::SystemLimits;
use crate::segment::{PageSize, Segment};
use crate::strategy::{self, Strategy, file_system};
use crate::watcher::{Gate, Watching};
use builder::check_header;

mod attach;
mod builder;
mod life;

pub use builder::Builder;
pub(crate) use builder::{check_header_words, this_boot};

/// A handle to an arena that this process takes part in. Clones are cheap and name the same arena.
///
/// ```
/// use shm_core::arena::Arena;
///
/// let arena = Arena::builder().capacity(1 << 30).create()?;
/// assert_eq!(arena.stats().participants, 1);
/// # Ok::<(), shm_core::error::Error>(())
/// ```
pub struct Arena(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    segment: Segment,
    me: Owner,
    id: [u64; 2],
    leases: Leases,
    heap: Heap,
    locks: RowLocks,
    watcher: Watching,
    /// What else the watcher does at each look.
    pub(crate) looks: Mutex<Vec<fn()>>,
    pub(crate) gate: Arc<Gate>,
    pages: PageSize,
    strategy: Strategy,
    /// Whether the file has to be removed by the last to leave.
    named: bool,
    /// One thread of this process reaps at a time; across processes the row's reaper word decides.
    reaping: Mutex<()>,
    /// Held by a thread that looks into a count in doubt.
    pub(crate) looking: Mutex<()>,
}

static CURRENT: RwLock<Option<Arena>> = RwLock::new(None);

/// The arena that this process joins when it first needs one. Locked after `CURRENT` only.
static EXPECTED: Mutex<Option<Expected>> = Mutex::new(None);

struct Expected {
    descriptor: OwnedFd,
    joined: fn(&Arena),
}

/// Whether there is an arena that is still to be joined.
fn is_expected() -> bool {
    EXPECTED.lock().is_some()
}

fn too_late() -> Error {
    Error::new(
        ErrorKind::TooLate,
        "this process has its arena already: it was made when the first tensor or queue was; in a spawned process, call `init()` before anything else in `main`",
    )
}

/// Numbers about an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Bytes of address space reserved.
    pub capacity: u64,
    /// Bytes for which memory was taken, control structures aside.
    pub committed: u64,
    /// Bytes of blocks that somebody holds.
    pub live: u64,
    /// Bytes that were taken and hold neither a block nor leases: kept for the next allocation.
    pub cached: u64,
    /// Blocks that somebody holds: tensors, messages, queues.
    pub blocks: u64,
    /// Participants that are alive.
    pub participants: u64,
}

/// This process's arena, if it has one already.
pub(crate) fn current_if_any() -> Option<Arena> {
    let current = CURRENT.read().clone();
    // One that is to be joined is this process's arena already.
    current.or_else(|| is_expected().then(Arena::current)?.ok())
}

/// Does what must come before this process has an arena; else answers the one it has.
pub(crate) fn before_current(act: impl FnOnce()) -> Result<(), Arena> {
    if is_expected()
        && let Ok(arena) = Arena::current()
    {
        return Err(arena);
    }
    let current = CURRENT.write();
    match &*current {
        Some(arena) => Err(arena.clone()),
        None => {
            act();
            Ok(())
        }
    }
}

impl Arena {
    /// Processes that can take part in an arena at the same time.
    pub const PARTICIPANTS_MAX: usize = crate::layout::ROWS as usize;

    /// Starts to make an arena with other than default properties.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// The arena of this process: the one it was given when it was spawned, or one made at the first call.
    ///
    /// # Errors
    /// As [`Builder::create`], or [`join`](Self::join) for one that it was given.
    pub fn current() -> Result<Self> {
        if let Some(arena) = &*CURRENT.read() {
            return Ok(arena.clone());
        }
        let mut current = CURRENT.write();
        if let Some(arena) = &*current {
            return Ok(arena.clone());
        }
        let expected = EXPECTED.lock().take();
        let (arena, joined) = match expected {
            Some(expected) => {
                let joined = expected.joined;
                // For another try: a full table, for one, has room again when somebody leaves.
                let copy =
                    rustix::io::fcntl_dupfd_cloexec(&expected.descriptor, 3).map_err(|errno| {
                        Error::system(
                            "fcntl",
                            errno,
                            "copying the descriptor of the arena to join",
                        )
                    });
                match copy.and_then(Self::join) {
                    Ok(arena) => (arena, Some(joined)),
                    Err(error) => {
                        *EXPECTED.lock() = Some(expected);
                        return Err(error);
                    }
                }
            }
            None => (Self::builder().create()?, None),
        };
        *current = Some(arena.clone());
        drop(current);
        if let Some(joined) = joined {
            joined(&arena);
        }
        Ok(arena)
    }

    /// Makes the arena behind `descriptor` the one that [`current`](Self::current) answers, and joins it when that is
    /// asked for first: a process that needs none saves the time. `joined` is called then, once.
    ///
    /// # Errors
    /// `TooLate` when there is one already.
    #[inline]
    pub fn expect_current(descriptor: OwnedFd, joined: fn(&Self)) -> Result<()> {
        let current = CURRENT.write();
        let mut expected = EXPECTED.lock();
        if current.is_some() || expected.is_some() {
            return Err(too_late());
        }
        *expected = Some(Expected { descriptor, joined });
        Ok(())
    }

    /// Whether this process has its arena, so that [`current`](Self::current) would neither make nor join one.
    #[must_use]
    pub fn has_current() -> bool {
        CURRENT.read().is_some()
    }

    /// Makes `arena` the one that [`current`](Self::current) answers.
    ///
    /// # Errors
    /// `TooLate` when there is one already.
    pub fn install_current(arena: Self) -> Result<()> {
        let mut current = CURRENT.write();
        if current.is_some() || is_expected() {
            return Err(too_late());
        }
        *current = Some(arena);
        Ok(())
    }

    /// Joins the arena whose file `descriptor` is, as it comes from another participant.
    ///
    /// # Errors
    /// `NotAnArena`, `WrongVersion`, `Size`, `Layout` for a file that is not one of ours or not of this version;
    /// `ParticipantsFull`; `OutOfRoom` when the address space does not hold it.
    pub fn join(descriptor: OwnedFd) -> Result<Self> {
        let (strategy, backing) = strategy::adopt(descriptor)?;
        let segment = Segment::open_any(backing, SystemLimits::shared())?;
        check_header(&segment, "the received descriptor")?;
        Self::enter(segment, strategy)
    }

    /// Takes a row and makes this process a participant.
    fn enter(segment: Segment, strategy: Strategy) -> Result<Self> {
        let who = Identity::of_self()?;
        // Lock bytes lie behind the file's end: nothing else looks there.
        let locks = RowLocks::open(segment.as_fd(), segment.capacity())?;
        let me = table::join(&segment, who, &locks)?;
        let id = [header::ID_LOW, header::ID_HIGH]
            .map(|field| segment.word(field).load(Ordering::Relaxed));
        let named = strategy
            .get()
            .is_ok_and(|strategy| strategy.outlives_processes());
        let inner = Inner {
            strategy,
            named,
            me,
            id,
            leases: Leases::new(me),
            heap: Heap::new(&segment, me),
            pages: segment
                .use_huge_pages(segment.word(header::HUGE_PAGES).load(Ordering::Relaxed) == 1),
            locks,
            watcher: Watching::default(),
            looks: Mutex::default(),
            gate: Arc::default(),
            reaping: Mutex::new(()),
            looking: Mutex::new(()),
            segment,
        };
        let arena = Self(Arc::new(inner));
        arena.entered();
        Ok(arena)
    }

    /// The strategy by which its file was made.
    #[must_use]
    pub fn strategy(&self) -> &Strategy {
        &self.0.strategy
    }

    /// Where its file is, for an arena that has a name, until it is removed.
    #[must_use]
    pub fn path(&self) -> Option<std::path::PathBuf> {
        self.0
            .named
            .then(|| file_system::name_now(self.as_fd()))
            .flatten()
    }

    /// This process's row and epoch.
    #[must_use]
    #[inline]
    pub fn me(&self) -> Owner {
        self.0.me
    }

    /// Whether both handles name the same arena.
    #[must_use]
    pub fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.id == other.0.id
    }

    /// Numbers about the arena. Looks at every block, so it takes time in proportion to their number.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let usage = heap::usage(self.segment());
        Stats {
            capacity: self.segment().capacity(),
            committed: usage.committed,
            live: usage.live,
            cached: usage
                .committed
                .saturating_sub(usage.live.saturating_add(usage.leases)),
            blocks: usage.blocks,
            participants: self.participants(),
        }
    }

    /// Gives the memory of what is unused back to the system: this process's free blocks, as far as whole chunks of 2
    /// MiB hold nothing else, and what dead participants left. Returns how many bytes that were. Allocations do this
    /// by themselves when a limit is reached.
    pub fn trim(&self) -> u64 {
        if self.is_forked() {
            return 0;
        }
        self.heap().trim(self.segment())
    }

    /// What the arena's memory consists of in this process, and why it is not huge pages if those were asked for
    /// ([`Builder::huge_pages`]).
    #[must_use]
    pub fn page_size(&self) -> &PageSize {
        &self.0.pages
    }

    /// Participants that are alive.
    #[must_use]
    pub fn participants(&self) -> u64 {
        self.segment().word(header::ALIVE).load(Ordering::Relaxed)
    }

    /// Writes this process's flight recorder.
    #[must_use]
    pub fn recorder(&self) -> Recorder<'_> {
        Recorder { arena: self }
    }

    /// What the flight recorder of a participant says, while it is alive or not yet buried.
    #[must_use]
    pub fn record_of(&self, owner: Owner) -> Option<Record> {
        record::read(self, owner)
    }

    /// What the flight recorder of a participant said last, also once it has left or was buried, as long as nobody else has
    /// taken its place in the arena. It says no process id then.
    #[must_use]
    pub fn last_record_of(&self, owner: Owner) -> Option<Record> {
        record::read_last(self, owner)
    }

    /// Whether this participant is still in its row.
    #[must_use]
    pub fn is_present(&self, owner: Owner) -> bool {
        Row::get(self.segment(), owner.row)
            .and_then(|row| row.occupant())
            .is_some_and(|(occupant, _)| occupant == owner)
    }

    /// The participants of this process id.
    #[must_use]
    pub fn participant_of_pid(&self, pid: u32) -> Option<Owner> {
        rows(self.segment())
            .filter_map(|row| row.occupant())
            .find(|(_, state)| state.pid == pid)
            .map(|(owner, _)| owner)
    }

    /// Reaps a participant that is known to be dead, because its process was waited for. What it held goes back,
    /// and whoever waits for it hears of it. Nothing happens when somebody else has done so, or when there is any doubt
    /// after all: the process that was waited for may have started the participant in a pid namespace that we don't see.
    pub fn bury(&self, dead: Owner) {
        if self.is_forked() || dead == self.me() {
            return;
        }
        let verdict = Row::get(self.segment(), dead.row).and_then(|row| reap::verdict(self, row));
        match verdict {
            Some((owner, _, Verdict::Dead)) if owner == dead => self.bury_for_certain(dead),
            Some((owner, _, verdict)) if owner == dead => {
                crate::say!(
                    warn,
                    ?dead,
                    ?verdict,
                    "a participant that may be alive was to be buried"
                );
            }
            _ => {}
        }
    }

    /// Reaps a participant whatever its process does.
    pub(crate) fn bury_for_certain(&self, dead: Owner) {
        let _reaping = self.0.reaping.lock();
        reap::reap(self, dead);
    }

    /// Looks at all participants once and reaps the dead. Waits do this now and then; the watcher does at once.
    pub fn bury_the_dead(&self) {
        if self.is_forked() {
            return;
        }
        for row in rows(self.segment()) {
            if let Some((owner, _, verdict)) = reap::verdict(self, row)
                && verdict == Verdict::Dead
            {
                self.bury_for_certain(owner);
            }
        }
    }

    /// As [`bury_the_dead`](Self::bury_the_dead), but takes whoever has the pid of a participant for that participant, so
    /// that it costs little among many. One whose pid was given to another process is left to a closer look: that of
    /// whoever waits, lacks memory or watches.
    pub(crate) fn bury_the_missing(&self) {
        for row in rows(self.segment()) {
            if !reap::somebody_has_its_pid(row)
                && let Some((owner, _, verdict)) = reap::verdict(self, row)
                && verdict == Verdict::Dead
            {
                self.bury_for_certain(owner);
            }
        }
    }

    /// Starts the thread that notices deaths at once, and that others lack memory, if it does not run yet.
    pub fn watch(&self) {
        self.0.watcher.begin(self);
    }

    /// From now on the watching thread calls this at each of its looks, twice a second, while this process takes part in the
    /// arena: for what others ask of a process that does nothing. It must not wait for anything, and not hold on to the arena.
    pub fn at_each_look(&self, act: fn()) {
        self.0.looks.lock().push(act);
        self.watch();
    }

    /// Whether this process is a bare fork of the one that joined.
    #[must_use]
    #[inline]
    pub fn is_forked(&self) -> bool {
        self.0.segment.is_forked()
    }

    /// Whether both are this process's one participation in an arena: references move between those only.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Fails in a process that was made by a bare fork, which is no participant.
    ///
    /// # Errors
    /// `AfterFork`, naming what was being done.
    #[inline]
    pub fn check_not_forked(&self, doing: &str) -> Result<()> {
        if self.is_forked() {
            return Err(Error::after_fork(doing));
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn segment(&self) -> &Segment {
        &self.0.segment
    }

    #[inline]
    pub(crate) fn leases(&self) -> &Leases {
        &self.0.leases
    }

    pub(crate) fn heap(&self) -> &Heap {
        &self.0.heap
    }

    pub(crate) fn locks(&self) -> &RowLocks {
        &self.0.locks
    }
}

// A panic between two steps is no worse than a kill there, which every structure in the arena survives; the locks of
// this process do not poison.
impl std::panic::UnwindSafe for Arena {}
impl std::panic::RefUnwindSafe for Arena {}

impl AsFd for Arena {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.segment.as_fd()
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena")
            .field(
                "id",
                &format_args!("{:016x}{:016x}", self.0.id[1], self.0.id[0]),
            )
            .field("me", &self.0.me)
            .field("stats", &self.stats())
            .finish()
    }
}
