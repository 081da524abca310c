//! A thread that looks for a block whose last users are done, and has those in hand whose users are not.
//!
//! Where a device is full, such a block is waited for, by any number of threads at once. One that has blocks in hand keeps
//! them from the others, so the pool counts what is in hands: whoever finds nothing goes on looking as long as there is some,
//! and each puts all back now and then.

use parking_lot::Mutex;

use crate::pool::{BlockRef, Pool};

/// Of one pool, and one size of blocks.
#[derive(Debug)]
pub(crate) struct Looking<'a> {
    pool: &'a Mutex<Pool>,
    stride: u64,
    /// Those whose last users were not done.
    busy: Vec<BlockRef>,
    /// How many it has in hand, the busy ones among them.
    count: usize,
}

impl<'a> Looking<'a> {
    pub(crate) const fn new(pool: &'a Mutex<Pool>, stride: u64) -> Self {
        Self {
            pool,
            stride,
            busy: Vec::new(),
            count: 0,
        }
    }

    /// One more that nobody holds; or else whether there is one in any hands, which may come back.
    pub(crate) fn take(&mut self) -> Result<BlockRef, bool> {
        let taken = self.pool.lock().take(self.stride);
        self.count += usize::from(taken.is_ok());
        taken
    }

    /// What was taken goes out of this thread's hands by another way than back.
    pub(crate) fn has_given(&mut self) {
        self.count -= 1;
        *self.pool.lock().in_hand(self.stride) -= 1;
    }

    /// It is not free yet.
    pub(crate) fn leaves(&mut self, block: BlockRef) {
        self.busy.push(block);
    }

    /// One of those that were not free.
    pub(crate) fn take_busy(&mut self) -> Option<BlockRef> {
        self.busy.pop()
    }

    /// All of these go back, for whoever looks next.
    pub(crate) fn put_back(&mut self) {
        let count = self.busy.len();
        self.give_back(count);
    }

    /// All that were busy go back, and it has so many fewer in hand.
    fn give_back(&mut self, count: usize) {
        let mut pool = self.pool.lock();
        self.count -= count;
        *pool.in_hand(self.stride) -= count;
        self.busy.drain(..).for_each(|block| pool.put_back(block));
    }
}

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        self.give_back(self.count);
    }
}
