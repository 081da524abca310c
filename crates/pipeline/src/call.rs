//! A call of the stage, and what is let go of meanwhile: on the thread that makes it, and on others of the program.
//!
//! A stage that is called may yet say that it failed, or panic; what it has let go of by then is unfinished. Its threads do
//! its work too, so that holds on whatever thread it was, also when one lets go of what it has because a panic drops the
//! stage. All of it is kept here until it is known how the call ends. Between two calls nothing is kept.

use std::sync::atomic::{AtomicU8, Ordering};

use parking_lot::Mutex;

/// Nobody is called.
const NONE: u8 = 0;
/// The stage is called.
const IS: u8 = 1;
/// And items were let go of.
const LETS_GO: u8 = 2;

/// The call that goes on, if one does, with what was let go of since it began. One thread calls.
#[derive(Debug)]
pub(crate) struct Call<T> {
    /// Goes from `IS` to `LETS_GO` only while the list is locked.
    state: AtomicU8,
    let_go: Mutex<Vec<T>>,
}

impl<T> Default for Call<T> {
    fn default() -> Self {
        Self {
            state: AtomicU8::new(NONE),
            let_go: Mutex::default(),
        }
    }
}

impl<T> Call<T> {
    pub(crate) fn begin(&self) {
        // What a thread got from this call it got behind this store.
        self.state.store(IS, Ordering::Relaxed);
    }

    /// What was let go of since it began.
    pub(crate) fn end(&self) -> Vec<T> {
        match self.state.swap(NONE, Ordering::Relaxed) {
            // Who has set that holds the lock until it is in the list, and whoever comes later sees that the call is over.
            LETS_GO => std::mem::take(&mut *self.let_go.lock()),
            _ => Vec::new(),
        }
    }

    /// Keeps what was let go of until the call ends. Gives it back where there is no call.
    pub(crate) fn keep(&self, item: T) -> Option<T> {
        if self.state.load(Ordering::Relaxed) == NONE {
            return Some(item);
        }
        let mut let_go = self.let_go.lock();
        let begun = |state| (state != NONE).then_some(LETS_GO);
        // One word: whether it comes before the end of the call or after it, both sides agree.
        match self
            .state
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, begun)
        {
            Ok(_) => {
                let_go.push(item);
                None
            }
            Err(_) => Some(item),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_let_go_of_is_kept_as_long_as_the_call_goes_on() {
        let call = Call::default();
        assert_eq!(call.keep(1), Some(1));
        call.begin();
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(call.keep(2), None));
        });
        assert_eq!(call.keep(3), None);
        assert_eq!(call.end(), [2, 3]);
        assert_eq!(call.keep(4), Some(4));
        call.begin();
        assert!(call.end().is_empty());
    }

    #[test]
    fn nothing_is_lost_or_kept_for_longer_though_a_call_ends_meanwhile() {
        let call = Call::default();
        let items = 20_000;
        let (at_once, kept) = std::thread::scope(|scope| {
            let other = scope.spawn(|| (0..items).filter_map(|item| call.keep(item)).count());
            let mut kept = 0;
            while !other.is_finished() {
                call.begin();
                std::hint::spin_loop();
                kept += call.end().len();
            }
            (other.join().unwrap(), kept)
        });
        assert_eq!(at_once + kept, items);
        assert!(call.let_go.lock().is_empty());
    }
}
