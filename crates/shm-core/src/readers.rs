//! A lock that many may read under or one may write under, any of which may be killed between two instructions.
//!
//! Word 0 is the writer's permit, each further word a reader's ([`permits`](crate::permits)). A reader takes a word and
//! then looks at the writer's; a writer claims its word and then looks at the readers'. Both are sequentially consistent,
//! so of two that come at once at least one sees the other, and a reader that sees a writer steps back. A writer that
//! waits keeps new readers out, so it is not starved.
//!
//! Notifications are owed on two events: *free* (those who want to read or to claim) and *drained* (the writer that has
//! the claim and waits for readers).

use core::sync::atomic::Ordering::SeqCst;

use crate::cells::Owner;
use crate::permits::{Acquired, Left, Permit, Permits};
use crate::sync::Memory;

const WRITER: usize = 0;

/// The lock over some words, at least two.
#[derive(Debug)]
pub struct Readers<'a, M: Memory>(pub Permits<'a, M>);

/// How an attempt to read ended.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[must_use]
pub enum Read {
    /// The caller may read; the word it holds, and what the last writer left if it died writing.
    At(usize, Option<Left>),
    /// Somebody writes or waits to, or there are as many readers as words.
    Busy(Option<Owner>),
    /// As *busy*; for a moment the caller was counted as a reader, so it owes *drained* a notification.
    SteppedBack(Option<Owner>),
}

impl<M: Memory> Readers<'_, M> {
    /// Takes a reader's word, unless somebody writes or waits to.
    pub fn read(&self, me: Owner, tag: u32) -> Read {
        if let Some(writer) = self.writer() {
            return Read::Busy(Some(writer));
        }
        let readers = Permits::<M>(&self.0.0[WRITER + 1..]);
        let index = match readers.acquire(me, tag, me.row.into()) {
            Acquired::At { index, .. } => index + WRITER + 1,
            Acquired::Busy(owner) => return Read::Busy(owner),
        };
        // Pairs with the look of the writer that has just claimed: one of the two sees the other.
        M::order_after_publication();
        match self.0.get(WRITER) {
            Permit::Held { owner, .. } | Permit::Claimed { owner, .. } => {
                self.0.release(index, me, tag, None);
                Read::SteppedBack(Some(owner))
            }
            Permit::Free(left) => Read::At(index, left),
            Permit::None => Read::At(index, None),
        }
    }

    /// Gives a reader's word back. Owes *drained* a notification, and *free* one if [`writer`](Self::writer) is nobody.
    pub fn stop_reading(&self, index: usize, me: Owner, tag: u32) -> bool {
        // A reader changed nothing, so there is nothing to be told if it dies.
        index > WRITER && self.0.release(index, me, tag, None)
    }

    /// Claims the writer's word, which keeps new readers out. Then [`drained`](Self::drained) is to be waited for.
    pub fn claim(&self, me: Owner, tag: u32) -> Acquired {
        self.0.claim(WRITER, me, tag)
    }

    /// For who has the claim: whether no reader is left, so that the caller may write from now on; or one that reads.
    ///
    /// # Errors
    /// A reader.
    pub fn drained(&self, me: Owner, tag: u32) -> Result<bool, Owner> {
        M::order_after_publication();
        for permit in self.0.iter().skip(WRITER + 1) {
            if let Permit::Held { owner, .. } = permit {
                return Err(owner);
            }
        }
        Ok(self.0.confirm(WRITER, me, tag))
    }

    /// Gives the claim up. Owes *free* everybody.
    pub fn give_up(&self, me: Owner, tag: u32, left: Option<Left>) -> bool {
        self.0.give_up(WRITER, me, tag, left)
    }

    /// Ends writing. Owes *free* everybody.
    pub fn stop_writing(&self, me: Owner, tag: u32, left: Option<Left>) -> bool {
        self.0.release(WRITER, me, tag, left)
    }

    /// Who writes, or waits to.
    pub fn writer(&self) -> Option<Owner> {
        match self.0.get(WRITER) {
            Permit::Held { owner, .. } | Permit::Claimed { owner, .. } => Some(owner),
            Permit::Free(_) | Permit::None => None,
        }
    }

    /// Gives back what a dead participant held, as [`Permits::reap`]; a dead reader leaves no word of it. Owes everybody
    /// on both events a notification.
    pub fn reap(&self, dead: Owner, pid: u32) -> u32 {
        let given_back = self.0.reap(dead, pid);
        M::fence(SeqCst);
        given_back
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicU64;

    use super::*;
    use crate::sync::Shared;

    #[test]
    fn readers_share_and_a_writer_is_alone() {
        let words = [const { AtomicU64::new(0) }; 3];
        let lock = Readers::<Shared>(Permits(&words));
        let [one, two] = [1, 2].map(|row| Owner { row, epoch: 1 });
        let Read::At(first, None) = lock.read(one, 0) else {
            panic!("nobody writes")
        };
        let Read::At(second, None) = lock.read(two, 0) else {
            panic!("readers share")
        };
        assert!(
            matches!(lock.read(one, 0), Read::Busy(Some(_))),
            "no word is left"
        );
        assert!(matches!(lock.claim(two, 5), Acquired::At { .. }));
        assert!(lock.stop_reading(second, two, 0));
        assert_eq!(lock.read(two, 0), Read::Busy(Some(two)), "a writer waits");
        assert_eq!(lock.drained(two, 5), Err(one));
        assert!(lock.stop_reading(first, one, 0));
        assert_eq!(lock.drained(two, 5), Ok(true));
        assert_eq!(lock.claim(one, 0), Acquired::Busy(Some(two)));
        lock.reap(two, 42);
        let left = Some(Left { pid: 42, tag: 5 });
        assert!(matches!(lock.read(one, 0), Read::At(_, found) if found == left));
    }

    #[test]
    fn who_dies_waiting_to_write_passes_on_what_the_one_before_left() {
        let words = [const { AtomicU64::new(0) }; 2];
        let lock = Readers::<Shared>(Permits(&words));
        let [one, two] = [1, 2].map(|row| Owner { row, epoch: 1 });
        assert!(matches!(
            lock.claim(one, 0),
            Acquired::At { left: None, .. }
        ));
        lock.reap(one, 1);
        assert!(
            matches!(lock.claim(one, 0), Acquired::At { left: None, .. }),
            "it wrote nothing"
        );
        assert_eq!(lock.drained(one, 0), Ok(true));
        lock.reap(one, 1);
        assert!(matches!(
            lock.claim(two, 0),
            Acquired::At { left: Some(_), .. }
        ));
        lock.reap(two, 2);
        assert!(matches!(
            lock.claim(one, 0),
            Acquired::At { left: Some(_), .. }
        ));
        assert!(lock.give_up(one, 0, None) && lock.writer().is_none());
    }
}
