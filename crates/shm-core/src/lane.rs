//! A bounded queue with one producer and one consumer, over the same cells.
//!
//! With one process on each side nobody competes for a cell, so there is no claim to record: the
//! word goes FREE(p) → READY(p) → FREE(p + capacity), and what a side had not finished when it
//! died is simply not there. Each side keeps its position itself; `tail` and `head` are words that
//! only one side writes, for a successor to go on from.
//!
//! The orderings are those of [`cells`](crate::cells).

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use crate::cells::{CLOSED_FLAG, Cell, CellArray, PAYLOAD_WORDS, init, len};
use crate::sync::{Atomic64, Memory};
use crate::word::{self, CellState, Ring};

/// The lane over some array of cells. Its `orphan_epoch` is not used.
#[derive(Copy, Clone, Debug)]
pub struct Lane<A: CellArray>(pub A);

impl<A: CellArray> Lane<A> {
    #[inline(always)]
    fn ring(&self) -> Ring {
        Ring {
            capacity: self.0.capacity(),
        }
    }

    #[inline(always)]
    fn word(&self, pos: u64) -> &<A::M as Memory>::U64 {
        self.0.word(self.ring().index(pos))
    }

    /// Makes an empty lane of zeroed memory that nobody else sees yet.
    pub fn init(&self) {
        init(&self.0);
    }

    /// A position, and the cell that it falls on.
    #[inline(always)]
    fn at(&self, pos: u64) -> At<'_, A> {
        let index = self.ring().index(pos);
        let cell = self.0.cell(index);
        At {
            lane: self,
            pos,
            index,
            cell,
        }
    }

    /// Producer: its next position, if that is free to write. `None`: full or closed.
    #[inline]
    pub fn next_free(&self) -> Option<u64> {
        self.free_one().map(|at| at.pos)
    }

    /// As [`next_free`](Self::next_free), with its cell.
    #[inline(always)]
    pub(crate) fn free_one(&self) -> Option<At<'_, A>> {
        let at = self.at(self.0.tail().load(Acquire));
        if at.can_put() {
            return Some(at);
        }
        Some(self.at(self.tail())).filter(At::can_put)
    }

    /// Producer: whether its next position, `pos`, is free to write. `false`: full or closed.
    #[inline]
    pub fn can_put(&self, pos: u64) -> bool {
        self.at(pos).can_put()
    }

    /// Producer: writes the payload of a position that can be put.
    #[inline]
    pub fn write(&self, pos: u64, payload: &[u64; PAYLOAD_WORDS]) {
        self.at(pos).cell.write(payload);
    }

    /// Producer: makes the message ready and goes on to `pos + 1`. `false`: the lane was closed
    /// before, nothing was published, and what the message carries is still the producer's.
    ///
    /// Owes *not empty* a notification.
    #[inline]
    #[must_use = "a message is published only if this says so"]
    pub fn publish(&self, pos: u64) -> bool {
        self.at(pos).publish()
    }

    /// Consumer: its next position, if its message is there.
    #[inline]
    pub fn next_ready(&self) -> Option<u64> {
        self.ready_one().map(|at| at.pos)
    }

    /// As [`next_ready`](Self::next_ready), with its cell.
    #[inline(always)]
    pub(crate) fn ready_one(&self) -> Option<At<'_, A>> {
        let at = self.at(self.0.head().load(Acquire));
        if at.is_ready() {
            return Some(at);
        }
        Some(self.at(self.head())).filter(At::is_ready)
    }

    /// Consumer: whether the message of its next position, `pos`, is there.
    #[inline]
    pub fn is_ready(&self, pos: u64) -> bool {
        self.at(pos).is_ready()
    }

    /// Consumer: a quick look at whether its next message is there, to repeat while it is not.
    #[inline(always)]
    pub fn glance(&self) -> bool {
        self.is_ready(self.0.head().load(Relaxed))
    }

    /// Consumer: reads the payload of a message that is ready.
    #[inline]
    pub fn read(&self, pos: u64) -> [u64; PAYLOAD_WORDS] {
        self.at(pos).cell.read()
    }

    /// Consumer: frees the cell of a message that was ready and goes on to `pos + 1`.
    ///
    /// Owes *not full* a notification.
    #[inline]
    pub fn release(&self, pos: u64) {
        self.at(pos).release();
    }

    /// Consumer: frees the cell of a message that was read before, unless that was done already. For a message that names
    /// something which only becomes free later: its cell can be freed at leisure, as long as the message is not taken
    /// again meanwhile. Whether this call freed it.
    ///
    /// No producer waits for such a cell, only for what the message named; so nobody is owed a notification.
    #[inline]
    pub fn release_once(&self, pos: u64) -> bool {
        let ring = self.ring();
        // Release pairs with `can_put`, as in `release`. Compared, because two threads of the consumer may come here, and
        // what is READY at a later position is the producer's.
        let freed = self
            .word(pos)
            .compare_exchange(
                word::ready(pos),
                word::free(ring.next_lap(pos)),
                SeqCst,
                Relaxed,
            )
            .is_ok();
        if freed {
            self.0.head().store(ring.after(pos), Release);
        }
        freed
    }

    /// Stops the lane from accepting messages. Owes both events a notification.
    pub fn close(&self) {
        self.0.closed().fetch_or(CLOSED_FLAG, SeqCst);
    }

    /// Whether [`close`](Self::close) was called.
    #[inline(always)]
    pub fn is_closed(&self) -> bool {
        self.0.closed().load(SeqCst) & CLOSED_FLAG != 0
    }

    /// Consumer: whether the lane is closed and no message comes at `pos`, its next position.
    ///
    /// Settles it with a producer that is about to publish: either its message is ready and this is
    /// `false`, or its publication fails.
    pub fn is_drained(&self, pos: u64) -> bool {
        if !self.is_closed() {
            return false;
        }
        let free = word::free(pos);
        match self
            .word(pos)
            .compare_exchange(free, word::closed(pos), SeqCst, Acquire)
        {
            Ok(_) => true,
            Err(seen) => seen == word::closed(pos),
        }
    }

    /// The position that the producer goes on from, or its successor after it died.
    pub fn tail(&self) -> u64 {
        let tail = self.0.tail().load(Acquire);
        // It may have died between its publication and its own count.
        match word::decode(self.word(tail).load(Acquire)) {
            CellState::Ready { pos, .. } if pos == tail => self.ring().after(tail),
            CellState::Free { pos } if pos > tail => self.ring().after(tail),
            _ => tail,
        }
    }

    /// The position that the consumer goes on from, or its successor after it died.
    pub fn head(&self) -> u64 {
        let head = self.0.head().load(Acquire);
        match word::decode(self.word(head).load(Acquire)) {
            CellState::Free { pos } | CellState::Ready { pos, .. } | CellState::Closed { pos }
                if pos > head =>
            {
                self.ring().after(head)
            }
            _ => head,
        }
    }

    /// About how many messages there are.
    pub fn len(&self) -> u64 {
        len(&self.0)
    }

    /// Whether [`len`](Self::len) is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A position of a lane with its cell: what is done with one is done without finding it again.
pub(crate) struct At<'a, A: CellArray> {
    pub(crate) lane: &'a Lane<A>,
    pub(crate) pos: u64,
    /// Which cell that is.
    pub(crate) index: u64,
    pub(crate) cell: Cell<'a, A::M>,
}

impl<A: CellArray> At<'_, A> {
    /// Whether it is free to write.
    #[inline(always)]
    fn can_put(&self) -> bool {
        // Acquire pairs with `release`: the consumer is done with the payload.
        self.cell.word.load(Acquire) == word::free(self.pos)
    }

    /// Whether its message is there.
    #[inline(always)]
    fn is_ready(&self) -> bool {
        // Acquire pairs with `publish`.
        self.cell.word.load(Acquire) == word::ready(self.pos)
    }

    /// See [`Lane::publish`].
    #[inline(always)]
    #[must_use = "a message is published only if this says so"]
    pub(crate) fn publish(&self) -> bool {
        let pos = self.pos;
        // Release pairs with `is_ready`. Compared, because the consumer may close a free cell.
        let published = self
            .cell
            .word
            .compare_exchange(word::free(pos), word::ready(pos), SeqCst, Relaxed)
            .is_ok();
        if published {
            let next = self.lane.ring().after(pos);
            self.lane.0.tail().store(next, Release);
            // While the consumer is busy with this message and does not look at the next cell yet.
            A::M::fetch_for_writing(self.lane.word(next));
        }
        published
    }

    /// See [`Lane::release`].
    #[inline(always)]
    pub(crate) fn release(&self) {
        let ring = self.lane.ring();
        // Release pairs with `can_put`: our reads of the payload come before the next writes.
        self.cell
            .word
            .swap(word::free(ring.next_lap(self.pos)), SeqCst);
        self.lane.0.head().store(ring.after(self.pos), Release);
    }
}

/// Whether a lane's word says that the message of this position was never published: what it
/// carries is still the producer's (for the ticket of a lease).
#[inline]
pub fn lane_is_free(word: u64, pos: u64) -> bool {
    word == word::free(pos) || word == word::closed(pos)
}

/// Whether a lane's word says that the message of this position is there: what it carries is not
/// yet the consumer's (for the ticket of a lease).
#[inline]
pub fn lane_is_ready(word: u64, pos: u64) -> bool {
    word == word::ready(pos)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cells::heap::HeapCells;

    fn with_each_capacity(check: impl Fn(Lane<&HeapCells>, u64)) {
        for capacity in [1, 2, 3, 4] {
            let heap = HeapCells::zeroed(capacity);
            let lane = Lane(&heap);
            lane.init();
            check(lane, capacity);
        }
    }

    fn put(lane: &Lane<&HeapCells>, pos: u64) {
        assert!(lane.can_put(pos));
        lane.write(pos, &[pos; PAYLOAD_WORDS]);
        assert!(lane.publish(pos));
    }

    #[test]
    fn messages_come_out_in_order_for_many_laps() {
        with_each_capacity(|lane, capacity| {
            for lap in 0..10 {
                let positions = lap * capacity..(lap + 1) * capacity;
                for pos in positions.clone() {
                    assert!(!lane.is_ready(pos));
                    put(&lane, pos);
                }
                assert!(!lane.can_put(positions.end));
                assert_eq!(lane.len(), capacity);
                for pos in positions {
                    assert!(lane.is_ready(pos));
                    assert_eq!(lane.read(pos), [pos; PAYLOAD_WORDS]);
                    lane.release(pos);
                }
                assert!(lane.is_empty());
            }
        });
    }

    #[test]
    fn a_successor_goes_on_where_the_dead_side_stopped() {
        with_each_capacity(|lane, capacity| {
            for pos in 0..3 * capacity {
                assert_eq!(lane.tail(), pos);
                let before = lane.0.tail().load(SeqCst);
                put(&lane, pos);
                // As if killed between the word and its count.
                lane.0.tail().store(before, SeqCst);
                assert_eq!(lane.tail(), pos + 1);

                assert_eq!(lane.head(), pos);
                let before = lane.0.head().load(SeqCst);
                lane.release(pos);
                lane.0.head().store(before, SeqCst);
                assert_eq!((lane.tail(), lane.head()), (pos + 1, pos + 1));
                put(&lane, pos + 1);
                assert_eq!(lane.head(), pos + 1);
                // As if nothing of the next message had happened.
                (&lane.0)
                    .word((pos + 1) % capacity)
                    .store(word::free(pos + 1), SeqCst);
                lane.0.tail().store(pos + 1, SeqCst);
                lane.0.head().store(pos + 1, SeqCst);
            }
        });
    }

    #[test]
    fn the_next_position_is_found_where_a_dead_side_left_its_count_behind() {
        with_each_capacity(|lane, capacity| {
            for pos in 0..3 * capacity {
                assert_eq!((lane.next_free(), lane.next_ready()), (Some(pos), None));
                assert!(!lane.glance());
                put(&lane, pos);
                lane.0.tail().store(pos, SeqCst);
                let next = (capacity > 1).then_some(pos + 1);
                assert_eq!((lane.next_free(), lane.next_ready()), (next, Some(pos)));
                assert!(lane.glance());
                lane.0.tail().store(pos + 1, SeqCst);
                assert!(lane.release_once(pos) && !lane.release_once(pos));
                lane.0.head().store(pos, SeqCst);
                assert_eq!((lane.next_free(), lane.next_ready()), (Some(pos + 1), None));
                lane.0.head().store(pos + 1, SeqCst);
            }
        });
    }

    #[test]
    fn closing_settles_whether_the_last_message_was_sent() {
        with_each_capacity(|lane, _| {
            put(&lane, 0);
            lane.close();
            assert!(!lane.is_drained(0));
            assert!(lane.is_ready(0));
            lane.release(0);
            assert!(lane.is_drained(1));
            assert!(!lane.can_put(1));
            assert!(!lane.publish(1));
            assert!(lane.is_drained(1));
            assert_eq!((lane.tail(), lane.head()), (1, 1));
            let word = lane.word(1).load(SeqCst);
            assert!(lane_is_free(word, 1) && !lane_is_ready(word, 1));
        });
    }

    #[test]
    fn two_threads_pass_everything() {
        const MESSAGES: u64 = 20_000;
        for capacity in [1, 3, 4] {
            let heap = HeapCells::zeroed(capacity);
            let lane = Lane(&heap);
            lane.init();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for pos in 0..MESSAGES {
                        while !lane.can_put(pos) {
                            std::thread::yield_now();
                        }
                        put(&lane, pos);
                    }
                    lane.close();
                });
                let mut pos = 0;
                while !lane.is_drained(pos) {
                    if lane.is_ready(pos) {
                        assert_eq!(lane.read(pos), [pos; PAYLOAD_WORDS]);
                        lane.release(pos);
                        pos += 1;
                    } else {
                        std::thread::yield_now();
                    }
                }
                assert_eq!(pos, MESSAGES);
            });
        }
    }
}
