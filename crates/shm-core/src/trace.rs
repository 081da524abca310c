//! Traces: knowing of a block without holding it.
//!
//! Whoever gave something away may have to know when the last holder is done with it: the memory of a device that a block
//! stands for, say. A trace names the block and its generation, and counts for nothing.

use core::sync::atomic::Ordering;

use crate::arena::Arena;
use crate::cells::Owner;
use crate::error::Result;
use crate::heap;
use crate::held::{self, Held};
use crate::layout::{LINE, counted};
use crate::lease::{self, Kind};
use crate::line::Counted;
use crate::object::Object;
use crate::participant::table::rows;
use crate::storage::Storage;
use crate::tensor::{DynTensor, Element, Strided};

/// Names a block or object of an arena, and keeps nobody from freeing it.
///
/// ```
/// use shm_core::{Tensor, trace::Trace};
///
/// let tensor = Tensor::<u8>::zeros(16)?;
/// let trace = Trace::of(&tensor);
/// assert_eq!(trace.references(), 1);
/// drop(tensor);
/// assert_eq!(trace.references(), 0);
/// # Ok::<(), shm_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Trace {
    arena: Arena,
    line: u64,
    generation: u64,
}

impl Trace {
    /// Of the block of a tensor.
    #[must_use]
    pub fn of<T: Element>(tensor: &Strided<T>) -> Self {
        Self::of_storage(tensor.placed().storage())
    }

    /// Of the block of a tensor whose element type is known at run time.
    #[must_use]
    pub fn of_dyn(tensor: &DynTensor) -> Self {
        Self::of_storage(tensor.placed().storage())
    }

    fn of_storage(storage: &Storage) -> Self {
        let (line, generation) = storage.id();
        Self {
            arena: storage.arena().clone(),
            line,
            generation,
        }
    }

    /// Line and generation: no other block or object of the arena ever has both.
    #[must_use]
    pub fn id(&self) -> [u64; 2] {
        [self.line, self.generation]
    }

    /// Of an object.
    #[must_use]
    pub fn of_object(object: &Object) -> Self {
        let [line, generation] = object.handle();
        Self {
            arena: object.arena().clone(),
            line,
            generation,
        }
    }

    /// How many processes and messages hold it; 0 once it was freed, whatever is in its place now.
    #[must_use]
    pub fn references(&self) -> u64 {
        // Its chunk may be somebody else's by now: only where lines of blocks are is one read as such.
        if heap::locate(self.arena.segment(), self.line).is_none() {
            return 0;
        }
        // Acquire: pairs with the release of whoever let go, so that what it wrote before is seen by who sees 0.
        let word = self
            .arena
            .segment()
            .word(self.line * LINE + counted::WORD)
            .load(Ordering::Acquire);
        let now = Counted::from_word(word);
        if now.generation == self.generation {
            now.count
        } else {
            0
        }
    }

    /// One more reference, of this process: for who has no handle at hand, and yet has to see to it that the block stays.
    /// Somebody must hold it meanwhile.
    ///
    /// # Errors
    /// `Stale` when nobody holds it any more; when there is no room for one more reference.
    ///
    /// ```
    /// use shm_core::{Tensor, trace::Trace};
    ///
    /// let tensor = Tensor::<u8>::zeros(16)?;
    /// let trace = Trace::of(&tensor);
    /// let hold = trace.hold()?;
    /// drop(tensor);
    /// assert_eq!(trace.references(), 1);
    /// drop(hold);
    /// assert!(trace.hold().is_err());
    /// # Ok::<(), shm_core::Error>(())
    /// ```
    pub fn hold(&self) -> Result<Hold> {
        // What was a block's line may be anybody's bytes by now, in which nothing is touched.
        if heap::locate(self.arena.segment(), self.line).is_none() {
            return Err(held::stale(self.line, self.generation));
        }
        Held::open(&self.arena, self.line, self.generation).map(Hold)
    }

    /// Which participants hold it, by their leases; messages on their way hold some, too, and are not listed.
    #[must_use]
    pub fn holders(&self) -> Vec<Owner> {
        let segment = self.arena.segment();
        let present = rows(segment).filter_map(|row| row.occupant());
        let holds = |owner: &Owner| {
            lease::entries_of(segment, *owner).any(|entry| {
                let seen = entry.load();
                seen.kind != Kind::Free
                    && seen.epoch == owner.epoch
                    && seen.line == self.line
                    && entry.generation.load(Ordering::Relaxed) == self.generation
            })
        };
        present.map(|(owner, _)| owner).filter(holds).collect()
    }
}

/// A reference to a block or object that says nothing of what is in it; from [`Trace::hold`].
#[derive(Debug)]
#[must_use = "the block stays only as long as it is held"]
pub struct Hold(#[expect(dead_code, reason = "held until it is dropped")] Held);
