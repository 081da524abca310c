//! Giving chunks back: one's own unused ones, those of a dead participant, and orphans that nobody uses any more.

use super::cache::give_back_inherited;
use super::locate::locate;
use super::run::{adopt_tails, orphan_run};
use super::slab::{retire_slab, slab_is_unused};
use super::{Inner, free_block};
use crate::cells::Owner;
use crate::chunk::{Chunks, State, Use};
use crate::layout::{LINE, header};
use crate::segment::Segment;

/// Chunks of free runs that a process keeps for itself, at most: 512 MiB, or an eighth of a small arena.
const CACHED: u64 = 256;

impl Inner {
    /// Gives own chunks without live blocks back. Returns how many.
    pub(super) fn retire_unused(&mut self, segment: &Segment, me: Owner) -> u64 {
        let chunks = Chunks::new(segment);
        self.collect_all(segment);
        let mut given_back = 0;
        for chunk in self.owned.clone() {
            // A device may still be reading or writing there.
            if chunks.is_pinned(chunk) {
                continue;
            }
            match chunks.state(chunk) {
                State::Owned(owner, Use::Run(count))
                    if owner == me && free_block(segment, Chunks::run_line(chunk)).is_some() =>
                {
                    self.disown(&chunks, chunk);
                    chunks.retire_run(chunk, u64::from(count), me);
                    given_back += u64::from(count);
                }
                State::Owned(owner, Use::Slab(class))
                    if owner == me && slab_is_unused(segment, chunk, class) =>
                {
                    self.disown(&chunks, chunk);
                    let slot = &mut self.filling[class as usize];
                    *slot = slot.filter(|&filling| filling != chunk);
                    retire_slab(segment, chunk, class, State::Owned(me, Use::Slab(class)));
                    given_back += 1;
                }
                _ => {}
            }
        }
        // Hints into chunks that are gone would be looked at in vain (or find a stranger's block).
        for list in &mut self.free {
            list.retain(|&line| {
                locate(segment, line).is_some_and(|span| matches!(chunks.state(span.chunk), State::Owned(owner, _) if owner == me))
            });
        }
        for (&count, heads) in &mut self.runs {
            heads.retain(|&head| chunks.state(head) == State::Owned(me, Use::Run(count)));
        }
        given_back
    }
}

impl Inner {
    /// Chunks in free runs that this process keeps.
    pub(super) fn kept_chunks(&self) -> u64 {
        let chunks_of = |(&count, heads): (&u32, &Vec<u64>)| u64::from(count) * heads.len() as u64;
        self.runs.iter().map(chunks_of).sum()
    }

    /// Gives free runs back to all while more than [`CACHED`] chunks of them are kept, the longest first. Their memory
    /// stays committed: whoever claims the chunks next has it without paying.
    pub(super) fn share_runs(&mut self, segment: &Segment, me: Owner) {
        let chunks = Chunks::new(segment);
        let most = CACHED.min(crate::layout::chunk_count(segment.capacity()) / 8);
        let mut shared = false;
        while self.kept_chunks() > most {
            let Some(mut longest) = self.runs.last_entry() else {
                break;
            };
            let count = *longest.key();
            let Some(head) = longest.get_mut().pop() else {
                longest.remove();
                continue;
            };
            let unused = chunks.state(head) == State::Owned(me, Use::Run(count))
                && free_block(segment, Chunks::run_line(head)).is_some()
                && !chunks.is_pinned(head);
            if unused {
                self.disown(&chunks, head);
                chunks.retire_run(head, u64::from(count), me);
                shared = true;
            }
        }
        if shared {
            // Nobody's memory counts against the cache limit, too.
            give_back_inherited(segment, me);
        }
    }
}

/// Gives the chunks of a dead participant back, or leaves them to be adopted while others use their blocks.
pub(crate) fn bury_chunks(segment: &Segment, dead: Owner) {
    let chunks = Chunks::new(segment);
    let mut leases = Vec::new();
    for chunk in 0..chunks.high() {
        let State::Owned(owner, used) = chunks.state(chunk) else {
            continue;
        };
        if owner != dead {
            continue;
        }
        let from = State::Owned(dead, used);
        match used {
            Use::Nothing | Use::Tail(_) => {
                // A tail whose head is a formatted run goes with its head.
                let headed = matches!(used, Use::Tail(distance) if chunk.checked_sub(u64::from(distance)).is_some_and(|head| {
                    matches!(chunks.state(head), State::Owned(owner, Use::Run(count)) if owner == dead && count > distance)
                        || matches!(chunks.state(head), State::Orphan(Use::Run(count)) if count > distance)
                }));
                if !headed {
                    chunks.change(chunk, from, State::Free);
                }
            }
            Use::Slab(class) => {
                if slab_is_unused(segment, chunk, class) {
                    retire_slab(segment, chunk, class, from);
                } else {
                    chunks.change(chunk, from, State::Orphan(used));
                }
            }
            Use::Run(count) => {
                if free_block(segment, Chunks::run_line(chunk)).is_some() {
                    adopt_tails(&chunks, dead, chunk, count);
                    chunks.retire_run(chunk, u64::from(count), dead);
                } else {
                    orphan_run(&chunks, dead, chunk, count);
                    // Its last holder may have let go of it before it could see the orphan.
                    if is_unused(&chunks, chunk, used) {
                        free_orphan(&chunks, dead, chunk, used);
                    }
                }
            }
            Use::Leases => leases.push(chunk),
        }
    }
    // Last: until here an interrupted burial can be taken up again from the entries.
    for chunk in leases {
        chunks.change(chunk, State::Owned(dead, Use::Leases), State::Free);
    }
    // Whoever was at it before us may have been killed before saying so, the dead one included.
    chunks.tell(header::FREED);
    chunks.tell(header::ORPHANED);
}

/// Frees orphaned chunks that nobody uses any more. Returns whether there were any.
pub(super) fn sweep_orphans(segment: &Segment, me: Owner) -> bool {
    let chunks = Chunks::new(segment);
    let mut found = false;
    for chunk in 0..chunks.high() {
        if let State::Orphan(used) = chunks.state(chunk)
            && is_unused(&chunks, chunk, used)
        {
            found |= free_orphan(&chunks, me, chunk, used);
        }
    }
    found
}

/// Frees the run whose block is at `line` if its owner has died: the block was its only one, and its last holder is whoever
/// calls. Nobody adopts a run, as slabs are, so it would stay until somebody meets a limit.
pub(crate) fn free_orphaned_run(segment: &Segment, me: Owner, line: u64) {
    let chunks = Chunks::new(segment);
    if let Some(head) = chunks.run_of_line(line * LINE)
        && let State::Orphan(used @ Use::Run(_)) = chunks.state(head)
        && is_unused(&chunks, head, used)
        && free_orphan(&chunks, me, head, used)
    {
        // Nobody's memory counts against the cache limit, too.
        give_back_inherited(segment, me);
    }
}

fn is_unused(chunks: &Chunks<'_>, chunk: u64, used: Use) -> bool {
    match used {
        Use::Slab(class) => slab_is_unused(chunks.segment, chunk, class),
        Use::Run(_) => free_block(chunks.segment, Chunks::run_line(chunk)).is_some(),
        Use::Nothing | Use::Tail(_) | Use::Leases => false,
    }
}

/// Frees an orphaned chunk that was seen unused. `false` if it is not that any more.
///
/// Looked at once more when it is ours: since the first look (this process may have been stopped in between) somebody may
/// have adopted it, made blocks in it, and died, which left it an orphan as before.
fn free_orphan(chunks: &Chunks<'_>, me: Owner, chunk: u64, used: Use) -> bool {
    let (orphan, ours) = (State::Orphan(used), State::Owned(me, used));
    if !chunks.change(chunk, orphan, ours) {
        return false;
    }
    if !is_unused(chunks, chunk, used) {
        chunks.change(chunk, ours, orphan);
        return false;
    }
    match used {
        Use::Run(count) => {
            adopt_tails(chunks, me, chunk, count);
            chunks.retire_run(chunk, u64::from(count), me);
        }
        Use::Slab(class) => retire_slab(chunks.segment, chunk, class, ours),
        Use::Nothing | Use::Tail(_) | Use::Leases => {}
    }
    true
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::arena::Arena;
    use crate::heap::locate;
    use crate::held::Held;
    use crate::line::Mode;

    #[test]
    fn an_orphan_that_was_used_again_since_it_was_seen_unused_is_not_freed() {
        let root = Arena::builder().capacity(128 << 20).create().unwrap();
        for bytes in [100, 5 << 20] {
            let other = Arena::join(root.as_fd().try_clone_to_owned().unwrap()).unwrap();
            let theirs = Held::allocate(&other, bytes, Mode::Message).unwrap();
            let kept = Held::open(&root, theirs.line, theirs.generation).unwrap();
            let dead = other.me();
            other.end_watcher();
            std::mem::forget((theirs, other));
            root.bury_for_certain(dead);
            let chunks = Chunks::new(root.segment());
            let chunk = locate(root.segment(), kept.line).unwrap().chunk;
            let State::Orphan(used) = chunks.state(chunk) else {
                panic!("{:?}", chunks.state(chunk));
            };
            // As if it had been seen without the block.
            assert!(!free_orphan(&chunks, root.me(), chunk, used));
            assert_eq!(chunks.state(chunk), State::Orphan(used));
            assert!(!sweep_orphans(root.segment(), root.me()));
            drop(kept);
            // A slab may be adopted; a run is gone with its block.
            let is_slab = matches!(used, Use::Slab(_));
            assert_eq!(sweep_orphans(root.segment(), root.me()), is_slab);
            assert_eq!(chunks.state(chunk), State::Free);
        }
        assert!(root.audit().leaked.is_empty());
    }

    #[test]
    fn memory_of_large_blocks_that_outlive_their_maker_is_used_again() {
        let root = Arena::builder().capacity(1 << 30).create().unwrap();
        let mut committed = Vec::new();
        for _ in 0..20 {
            let other = Arena::join(root.as_fd().try_clone_to_owned().unwrap()).unwrap();
            let theirs = Held::allocate(&other, 5 << 20, Mode::Message).unwrap();
            let kept = Held::open(&root, theirs.line, theirs.generation).unwrap();
            let dead = other.me();
            other.end_watcher();
            std::mem::forget((theirs, other));
            root.bury_for_certain(dead);
            drop(kept);
            committed.push(root.stats().committed);
        }
        assert_eq!(committed.first(), committed.last(), "{committed:?}");
        assert!(root.audit().leaked.is_empty());
    }
}
