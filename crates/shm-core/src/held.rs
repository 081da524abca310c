//! A reference that this process holds: one lease entry, shared by any number of local handles.
//!
//! Cloning and dropping a handle touches a process-local count only. When the last local handle goes, the
//! process gives its one reference back, by the steps of the protocol (`docs/src/protocols.md`, "drop").

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering, fence};

use crate::arena::Arena;
use crate::error::{Error, ErrorKind, Result};
use crate::heap;
use crate::layout::{LINE, counted};
use crate::line::{self, Counted, Mode, Tag};
use crate::object;
use crate::prefetch::prefetch;
use crate::segment::Segment;
use crate::steps::{self, Words};

/// One reference of this process to a counted line.
pub(crate) struct Held {
    arena: Arena,
    pub(crate) lease: u32,
    pub(crate) line: u64,
    pub(crate) generation: u64,
    armed: bool,
}

impl Held {
    /// Allocates a block of at least `bytes` bytes.
    pub(crate) fn allocate(arena: &Arena, bytes: u64, mode: Mode) -> Result<Self> {
        Self::allocate_at(arena, bytes, mode).map(|(held, _)| held)
    }

    /// As [`allocate`](Self::allocate), with the offset of the block's first byte.
    pub(crate) fn allocate_at(arena: &Arena, bytes: u64, mode: Mode) -> Result<(Self, u64)> {
        arena.check_not_forked("allocating a block")?;
        let leases = arena.leases();
        let lease = leases.reserve(arena.segment())?;
        let allocate = || {
            arena
                .heap()
                .allocate(arena.segment(), leases, lease, bytes, mode)
        };
        match allocate().or_else(|error| after_asking_others(arena, error, allocate)) {
            Ok(block) => {
                if block.should_watch {
                    // To notice it while this process does something else, also those who join later.
                    arena.watch();
                }
                let held = Self::adopt(arena, lease, block.line, block.generation);
                Ok((held, block.data))
            }
            Err(error) => {
                leases.put_back(lease);
                Err(error.while_doing(format_args!(
                    "allocating {} of shared memory",
                    crate::error::Bytes(bytes)
                )))
            }
        }
    }

    /// Makes the reference behind this handle one of its own, which no other handle shares.
    ///
    /// # Errors
    /// When there is no room for one more entry, or one more count; the handle is as it was.
    pub(crate) fn separate(&mut self) -> Result<()> {
        if self.is_locally_unique() {
            return Ok(());
        }
        let leases = self.arena.leases();
        let lease = self.count_one_more()?;
        leases.local(lease).store(1, Ordering::Relaxed);
        let shared = std::mem::replace(&mut self.lease, lease);
        let was_counted = std::mem::replace(&mut self.armed, true);
        // As when a handle is dropped.
        if was_counted && leases.local(shared).fetch_sub(1, Ordering::Release) == 1 {
            fence(Ordering::Acquire);
            give_back(&self.arena, shared, self.line, self.generation);
        }
        Ok(())
    }

    /// A handle with a reference of its own, which no other handle shares.
    ///
    /// # Errors
    /// When there is no room for one more entry, or one more count; after a fork.
    #[inline(always)]
    pub(crate) fn another(&self) -> Result<Self> {
        self.arena.check_not_forked("counting one more reference")?;
        let lease = self.count_one_more()?;
        Ok(Self::adopt(&self.arena, lease, self.line, self.generation))
    }

    /// Counts one more reference to what this handle holds, in an entry of its own.
    #[inline]
    fn count_one_more(&self) -> Result<u32> {
        let (segment, leases) = (self.arena.segment(), self.arena.leases());
        let lease = leases.reserve(segment)?;
        let entry = leases.entry(segment, lease);
        let word = segment.word(self.line * LINE + counted::WORD);
        let me = self.arena.me();
        match steps::share(&entry, me.epoch, (self.line, self.generation), word) {
            Ok(()) => Ok(lease),
            Err(refused) => {
                leases.put_back(lease);
                Err(line::refused(self.generation)(refused))
            }
        }
    }

    /// Wraps a lease entry that counts from now on as HELD by one local handle.
    #[inline(always)]
    pub(crate) fn adopt(arena: &Arena, lease: u32, line: u64, generation: u64) -> Self {
        arena.leases().local(lease).store(1, Ordering::Relaxed);
        Self {
            arena: arena.clone(),
            lease,
            line,
            generation,
            armed: true,
        }
    }

    /// Takes one more reference to a line that somebody else is known to hold, as by a handle that was sent.
    pub(crate) fn open(arena: &Arena, line: u64, generation: u64) -> Result<Self> {
        arena.check_not_forked("opening a handle")?;
        let lease = arena.leases().reserve(arena.segment())?;
        let entry = arena.leases().entry(arena.segment(), lease);
        let words = words(arena.segment(), line);
        let opened = steps::open(&entry, arena.me().epoch, (line, generation), words, || {
            fence(Ordering::SeqCst);
        });
        match opened.map_err(line::refused(generation)) {
            Ok(()) => Ok(Self::adopt(arena, lease, line, generation)),
            Err(error) => {
                arena.leases().put_back(lease);
                Err(error)
            }
        }
    }

    /// A view of a thing that somebody else keeps alive meanwhile: it counts nowhere.
    pub(crate) fn uncounted(arena: &Arena, line: u64, generation: u64) -> Self {
        Self {
            arena: arena.clone(),
            lease: u32::MAX,
            line,
            generation,
            armed: false,
        }
    }

    /// Makes the line of an end or slot anew, held once: (g, 0) → (g + 1, 1). `None` if it is not free, or somebody
    /// is making it anew at this moment.
    ///
    /// Several participants may try at once: see [`steps::acquire_free`].
    pub(crate) fn acquire_free(arena: &Arena, line: u64) -> Result<Option<Self>> {
        arena.check_not_forked("opening an end or taking a slot")?;
        let segment = arena.segment();
        let word = segment.word(line * LINE + counted::WORD);
        if Counted::from_word(word.load(Ordering::Relaxed)).count != 0 {
            return Ok(None);
        }
        let leases = arena.leases();
        let lease = leases.reserve(segment)?;
        let entry = leases.entry(segment, lease);
        let claim = segment.word(line * LINE + counted::CLAIMANT);
        let present = |owner| arena.is_present(owner);
        match steps::acquire_free(&entry, arena.me(), line, (word, claim), present) {
            Some(generation) => Ok(Some(Self::adopt(arena, lease, line, generation))),
            None => {
                leases.put_back(lease);
                Ok(None)
            }
        }
    }

    #[inline]
    pub(crate) fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Whether no other handle in this process shares the reference.
    pub(crate) fn is_locally_unique(&self) -> bool {
        // Acquire: pairs with the release in `drop`, so what other handles did is over.
        self.armed
            && self
                .arena
                .leases()
                .local(self.lease)
                .load(Ordering::Acquire)
                == 1
    }

    /// Whether this process holds the only reference there is, through this one handle.
    pub(crate) fn is_sole(&self) -> bool {
        // In this order: while this is the only handle here, nobody here can send another reference, and what was
        // sent before shows in the count. The other way round a reference sent in between would be missed.
        self.is_locally_unique() && {
            // Acquire: pairs with the release of those who let go elsewhere; their accesses are over.
            let word = self
                .arena
                .segment()
                .word(self.line * LINE + counted::WORD)
                .load(Ordering::Acquire);
            Counted::from_word(word) == Counted::new(self.generation, 1)
        }
    }

    /// Handles in this process, and what the line says: what an error tells.
    #[cold]
    pub(crate) fn counts(&self) -> (u32, Counted) {
        let word = self
            .arena
            .segment()
            .word(self.line * LINE + counted::WORD)
            .load(Ordering::Acquire);
        let local = match self.armed {
            true => self
                .arena
                .leases()
                .local(self.lease)
                .load(Ordering::Acquire),
            false => 0,
        };
        (local, Counted::from_word(word))
    }

    /// Gives the reference back even while this thread empties an object. Called on the only handle, and not on the
    /// last reference.
    pub(crate) fn give_back_at_once(mut self) {
        if std::mem::take(&mut self.armed) {
            self.arena
                .leases()
                .local(self.lease)
                .store(0, Ordering::Relaxed);
            give_back_now(&self.arena, self.lease, self.line, self.generation);
        }
    }

    /// Forgets the reference without giving it back: a message owns it now. The entry is FREE already.
    pub(crate) fn disarm(&mut self) {
        self.armed = false;
        self.arena
            .leases()
            .local(self.lease)
            .store(0, Ordering::Relaxed);
        self.arena.leases().put_back(self.lease);
    }
}

/// Tries again what failed for lack of memory: once the dead are buried, and each time another process has given back
/// what it kept. Answers the last error.
#[cold]
fn after_asking_others<T>(
    arena: &Arena,
    mut error: Error,
    mut again: impl FnMut() -> Result<T>,
) -> Result<T> {
    let for_room = |error: &Error| match error.kind() {
        ErrorKind::OutOfRoom(_) => true,
        // More than all there is: nobody can help.
        ErrorKind::CapacityExhausted { asked, capacity } => asked <= capacity,
        _ => false,
    };
    if !for_room(&error) || arena.participants() < 2 {
        return Err(error);
    }
    arena.bury_the_dead();
    let mut request = heap::Request::send(arena);
    loop {
        match again() {
            Err(another) if for_room(&another) => error = another,
            outcome => return outcome,
        }
        if !request.as_mut().is_some_and(heap::Request::wait) {
            return Err(error);
        }
    }
}

impl Clone for Held {
    fn clone(&self) -> Self {
        if self.armed {
            let before = self
                .arena
                .leases()
                .local(self.lease)
                .fetch_add(1, Ordering::Relaxed);
            // As in `Arc`: so many handles can only be forgotten ones, and one more might wrap the count to 0.
            if before > i32::MAX as u32 {
                std::process::abort();
            }
        }
        Self {
            arena: self.arena.clone(),
            ..*self
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.armed || self.arena.is_forked() {
            return;
        }
        // All that the last one touches.
        let (segment, leases) = (self.arena.segment(), self.arena.leases());
        prefetch(leases.local(self.lease));
        heap::prefetch_block(segment, self.line);
        prefetch(leases.entry(segment, self.lease).state);
        // Release, then acquire by the last: as in `Arc`, all uses of the thing come before its release.
        if self
            .arena
            .leases()
            .local(self.lease)
            .fetch_sub(1, Ordering::Release)
            == 1
        {
            fence(Ordering::Acquire);
            give_back(&self.arena, self.lease, self.line, self.generation);
        }
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.line, self.generation)
    }
}

/// Gives back the reference recorded in the own entry `lease`, and puts the entry back.
pub(crate) fn give_back(arena: &Arena, lease: u32, line: u64, generation: u64) {
    if object::postpone(arena, Some(lease), line, generation) {
        return;
    }
    give_back_now(arena, lease, line, generation);
}

/// As [`give_back`], also from within the emptying of an object.
pub(crate) fn give_back_now(arena: &Arena, lease: u32, line: u64, generation: u64) {
    let segment = arena.segment();
    let leases = arena.leases();
    let entry = leases.entry(segment, lease);
    let free = || free_last(arena, line, generation);
    let block = (line, generation);
    let words = words(segment, line);
    if let Err(found) = steps::give_back(&entry, arena.me(), block, words, free, arena) {
        crate::say!(
            error,
            line,
            generation,
            ?found,
            "a reference was given back twice; a participant wrote where it must not"
        );
    }
    leases.put_back(lease);
}

/// The words of a line that count who holds it.
#[inline]
pub(crate) fn words(segment: &Segment, line: u64) -> Words<'_, AtomicU64> {
    Words {
        count: segment.word(line * LINE + counted::WORD),
        doubt: segment.word(line * LINE + counted::DOUBT),
    }
}

/// Gives back a reference that no entry records. A kill in between leaks it.
pub(crate) fn release_unrecorded(arena: &Arena, line: u64, generation: u64) {
    if object::postpone(arena, None, line, generation) {
        return;
    }
    release_unrecorded_now(arena, line, generation);
}

/// As [`release_unrecorded`], also from within the emptying of an object.
pub(crate) fn release_unrecorded_now(arena: &Arena, line: u64, generation: u64) {
    let word = arena.segment().word(line * LINE + counted::WORD);
    steps::release_unrecorded(word, generation, || free_last(arena, line, generation));
}

/// Subtracts one from a count above 1. `false` if the count has become 1: the caller is the sole holder.
pub(crate) fn subtract_shared(arena: &Arena, line: u64, generation: u64) -> bool {
    let word = arena.segment().word(line * LINE + counted::WORD);
    steps::subtract_shared(word, generation)
}

/// The last reference goes: empties what an object holds, takes the count to 0 and tells whom it concerns.
/// The caller has a DROPPING entry for it. `false` if the caller is not the last one any more.
pub(crate) fn free_last(arena: &Arena, line: u64, generation: u64) -> bool {
    let segment = arena.segment();
    let meta = segment
        .word(line * LINE + counted::META)
        .load(Ordering::Acquire);
    if heap::locate(segment, line).is_some() {
        if is_object(meta) {
            object::empty(arena, line, generation);
        }
        if heap::owner_of_line(segment, line) != Some(arena.me()) {
            heap::hint_before_free(segment, line);
        }
    }
    if !steps::free(segment.word(line * LINE + counted::WORD), generation) {
        return false;
    }
    after_free(arena, line, meta);
    true
}

/// Whether the second word of a line is that of an object's block.
pub(crate) fn is_object(meta: u64) -> bool {
    Tag::from_meta(meta) == Some(Tag::Block) && Mode::from_meta(meta) == Some(Mode::Object)
}

/// What follows a count of 0; repeated by the reaper of whoever died before it was done.
pub(crate) fn after_free(arena: &Arena, line: u64, meta: u64) {
    let segment = arena.segment();
    if let Some(tag @ (Tag::End | Tag::Slot)) = Tag::from_meta(meta) {
        object::notify_changed(arena, Tag::object_of(meta), tag);
    } else if heap::owner_of_line(segment, line) == Some(arena.me()) {
        arena.heap().freed_here(segment, line);
    } else {
        heap::hint_after_free(segment, line);
        heap::free_orphaned_run(segment, arena.me(), line);
    }
}

/// An error for a handle whose line is not what the handle says.
pub(crate) fn stale(line: u64, generation: u64) -> Error {
    Error::new(
        ErrorKind::Stale,
        format!(
            "the handle names generation {generation} of line {line}, which is no longer there: its last holder has dropped it"
        ),
    )
}
