//! Which blocks of this process's memory are free: given out, remembered, and taken back when nobody holds them any more.
//!
//! A block that was given out stands for a *token*, a small block of the arena that travels in its place. When nobody holds
//! the token, the block is free again, whoever dropped it, and however: that is the lease. Small tensors share an
//! allocation; large ones have one each. Both are kept and given out again, so that in a steady state the driver is asked
//! for no memory, and no handle is made or opened.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use shm_core::trace::Trace;

use crate::device::Device;
use crate::memory::Memory;

/// The least that a block has: what CUDA aligns allocations to, and more than most scalars need.
const LEAST: u64 = 512;
/// What allocations are multiples of: the driver shares such pieces whole.
pub(crate) const CHUNK: u64 = 2 << 20;
/// Blocks above this have an allocation of their own.
const SMALL: u64 = 1 << 20;
/// Blocks that are looked at before another allocation is made.
const GLANCES: usize = 32;
/// Blocks that are looked at each time.
const FEW: usize = 4;

/// How large the blocks are in which so many bytes go, and how many of them an allocation has.
pub(crate) const fn class_of(bytes: u64) -> (u64, u32) {
    if bytes <= SMALL {
        let stride = if bytes <= LEAST {
            LEAST
        } else {
            bytes.next_power_of_two()
        };
        (stride, (CHUNK / stride) as u32)
    } else {
        (bytes.next_multiple_of(CHUNK), 1)
    }
}

/// A block of a memory.
#[derive(Clone, Debug)]
pub(crate) struct BlockRef {
    pub(crate) memory: Arc<Memory>,
    pub(crate) index: u32,
}

#[derive(Debug)]
struct Live {
    block: BlockRef,
    token: Trace,
}

impl Live {
    fn is_over(&self) -> bool {
        crate::sabotage::is("lease") || self.token.references() == 0
    }
}

/// The blocks of one size.
#[derive(Debug, Default)]
struct Class {
    free: Vec<BlockRef>,
    live: VecDeque<Live>,
    /// All live ones are looked at when there are so many.
    look_at: usize,
    /// So many were taken by threads that look whether their last users are done.
    in_hand: usize,
}

impl Class {
    /// Moves what is over from the live to the free, among the first `most`.
    fn sweep(&mut self, most: usize) {
        for _ in 0..most.min(self.live.len()) {
            let Some(live) = self.live.pop_front() else {
                return;
            };
            if live.is_over() {
                if !live.block.memory.is_wrapped() {
                    self.free.push(live.block);
                }
            } else {
                self.live.push_back(live);
            }
        }
    }
}

/// Whether nobody but the two tables has a memory: it is not about to be lent either.
fn is_idle(memory: &Arc<Memory>) -> bool {
    Arc::strong_count(memory) == 2
}

/// The blocks of one device.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    classes: HashMap<u64, Class>,
    /// All allocations, those that others made among them.
    memories: Vec<Arc<Memory>>,
    /// Those that others made are looked through when there are so many.
    look_at: usize,
    /// On which a stream has work that waits for a process that has died: nobody gets them any more.
    stuck: Vec<BlockRef>,
}

impl Pool {
    /// A block of that size that nobody holds, [in hand](Self::in_hand) from now on; or else whether there is one in any hands,
    /// which may come back.
    pub(crate) fn take(&mut self, stride: u64) -> Result<BlockRef, bool> {
        let class = self.classes.entry(stride).or_default();
        // A few in any case: what was used last is used again first, with its events and its place in caches.
        class.sweep(if class.free.is_empty() { GLANCES } else { FEW });
        if class.free.is_empty() && class.live.len() >= class.look_at.max(GLANCES) {
            class.sweep(usize::MAX);
            class.look_at = class.live.len() * 2;
        }
        let taken = class.free.pop();
        class.in_hand += usize::from(taken.is_some());
        taken.ok_or(class.in_hand > 0)
    }

    /// How many blocks of that size are in the hands of those who [look](crate::looking::Looking) for one.
    pub(crate) fn in_hand(&mut self, stride: u64) -> &mut usize {
        &mut self.classes.entry(stride).or_default().in_hand
    }

    /// Another allocation, with all its blocks free.
    pub(crate) fn add(&mut self, memory: &Arc<Memory>) {
        let class = self.classes.entry(memory.stride).or_default();
        class
            .free
            .extend((0..memory.count).rev().map(|index| BlockRef {
                memory: memory.clone(),
                index,
            }));
        self.memories.push(memory.clone());
    }

    /// An allocation whose blocks are all given out by the caller: one that somebody else made, or one for slots.
    pub(crate) fn add_lent(&mut self, memory: &Arc<Memory>) {
        self.memories.push(memory.clone());
    }

    /// One of these goes before any of it was given out.
    pub(crate) fn forget(&mut self, memory: &Arc<Memory>) {
        self.memories.retain(|known| !Arc::ptr_eq(known, memory));
    }

    /// A block was given out, for a token.
    pub(crate) fn lend(&mut self, block: BlockRef, token: Trace) {
        let class = self.classes.entry(block.memory.stride).or_default();
        class.live.push_back(Live { block, token });
    }

    /// A block that was taken and not given out.
    pub(crate) fn put_back(&mut self, block: BlockRef) {
        if block.memory.is_wrapped() {
            return;
        }
        let class = self.classes.entry(block.memory.stride).or_default();
        class.free.push(block);
    }

    /// A block that was taken and is of no use any more.
    pub(crate) fn set_stuck(&mut self, block: BlockRef) {
        self.stuck.push(block);
    }

    /// How many blocks are of no use any more.
    pub(crate) fn stuck(&self) -> u64 {
        self.stuck.len() as u64
    }

    /// Takes back all that nobody holds any more.
    pub(crate) fn sweep(&mut self) {
        for class in self.classes.values_mut() {
            class.sweep(usize::MAX);
        }
    }

    /// The tokens of blocks that are still held, and how large their blocks are.
    pub(crate) fn held(&self) -> Vec<(Trace, u64)> {
        self.classes
            .values()
            .flat_map(|class| &class.live)
            .filter(|live| !live.is_over())
            .map(|live| (live.token.clone(), live.block.memory.stride))
            .collect()
    }

    /// Whether a block is still held.
    pub(crate) fn is_any_held(&self) -> bool {
        let mut live = self.classes.values().flat_map(|class| &class.live);
        live.any(|live| !live.is_over())
    }

    /// The blocks that nobody uses.
    pub(crate) fn free_blocks(&self) -> impl Iterator<Item = &BlockRef> {
        self.classes.values().flat_map(|class| &class.free)
    }

    /// Takes out the allocations of which no block is used and that `may_go`.
    pub(crate) fn take_unused(
        &mut self,
        mut may_go: impl FnMut(&Arc<Memory>) -> bool,
    ) -> Vec<Arc<Memory>> {
        let mut free: HashMap<*const Memory, u32> = HashMap::new();
        for block in self.classes.values().flat_map(|class| &class.free) {
            *free.entry(Arc::as_ptr(&block.memory)).or_default() += 1;
        }
        let live: std::collections::HashSet<*const Memory> = self
            .classes
            .values()
            .flat_map(|class| &class.live)
            .map(|live| Arc::as_ptr(&live.block.memory))
            .collect();
        let mut gone = Vec::new();
        self.memories.retain(|memory| {
            let key = Arc::as_ptr(memory);
            let unused = if memory.is_wrapped() {
                !live.contains(&key) && is_idle(memory)
            } else {
                free.get(&key) == Some(&memory.count)
            };
            let goes = unused && may_go(memory);
            if goes {
                gone.push(memory.clone());
            }
            !goes
        });
        for class in self.classes.values_mut() {
            class
                .free
                .retain(|block| !gone.iter().any(|memory| Arc::ptr_eq(memory, &block.memory)));
        }
        gone
    }

    /// Takes out the allocations that others made, which nobody holds and that `may_go`. Unless it is to look at `all`, it does
    /// so when there are a fourth more than it left.
    pub(crate) fn take_wrapped(
        &mut self,
        all: bool,
        mut may_go: impl FnMut(&Arc<Memory>) -> bool,
    ) -> Vec<Arc<Memory>> {
        let wrapped = |memory: &&Arc<Memory>| memory.is_wrapped();
        let count = self.memories.iter().filter(wrapped).count();
        if count == 0 || (!all && count < self.look_at) {
            return Vec::new();
        }
        let strides = self.memories.iter().filter(wrapped);
        let strides: HashSet<_> = strides.map(|memory| memory.stride).collect();
        let mut live = HashSet::new();
        for stride in strides {
            let class = self.classes.entry(stride).or_default();
            class.sweep(usize::MAX);
            live.extend(
                class
                    .live
                    .iter()
                    .map(|live| Arc::as_ptr(&live.block.memory)),
            );
        }
        let gone = self
            .memories
            .extract_if(.., |memory| {
                let lent = live.contains(&Arc::as_ptr(memory)) || !is_idle(memory);
                memory.is_wrapped() && !lent && may_go(memory)
            })
            .collect::<Vec<_>>();
        let left = count - gone.len();
        self.look_at = left + left / 4;
        gone
    }

    /// Whether nobody holds one of the allocations that others made any more, as far as tokens say.
    pub(crate) fn has_wrapped_to_drop(&self) -> bool {
        let wrapped: Vec<_> = self
            .memories
            .iter()
            .filter(|memory| memory.is_wrapped())
            .collect();
        if wrapped.is_empty() {
            return false;
        }
        let held: HashSet<_> = self
            .classes
            .values()
            .flat_map(|class| &class.live)
            .filter(|live| live.block.memory.is_wrapped() && !live.is_over())
            .map(|live| Arc::as_ptr(&live.block.memory))
            .collect();
        wrapped
            .iter()
            .any(|memory| !held.contains(&Arc::as_ptr(memory)))
    }

    /// How many allocations others made.
    pub(crate) fn wrapped(&self) -> u64 {
        let wrapped = self.memories.iter().filter(|memory| memory.is_wrapped());
        wrapped.count() as u64
    }

    /// The device that the blocks are on, if there are any.
    pub(crate) fn device(&self) -> Option<Device> {
        self.memories.first().map(|memory| memory.device)
    }

    /// How many allocations there are, and their bytes.
    pub(crate) fn size(&self) -> (u64, u64) {
        let own = self.memories.iter().filter(|memory| !memory.is_wrapped());
        own.fold((0, 0), |(count, bytes), memory| {
            (count + 1, bytes + memory.bytes)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_tensors_share_an_allocation_and_large_ones_are_multiples_of_2_mib() {
        assert_eq!(class_of(0), (512, 4096));
        assert_eq!(class_of(512), (512, 4096));
        assert_eq!(class_of(513), (1024, 2048));
        assert_eq!(class_of(1 << 20), (1 << 20, 2));
        assert_eq!(class_of((1 << 20) + 1), (2 << 20, 1));
        assert_eq!(class_of((2 << 20) + 1), (4 << 20, 1));
        for bytes in [1, 100, 4_097, 1 << 20, 12_345_678] {
            let (stride, count) = class_of(bytes);
            assert!(stride >= bytes && (stride * u64::from(count)).is_multiple_of(CHUNK));
        }
    }
}
