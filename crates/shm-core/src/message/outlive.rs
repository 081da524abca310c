//! Messages that are read when their writer has ended.

use std::cell::Cell;

thread_local! {
    static OUTLIVING: Cell<bool> = const { Cell::new(false) };
}

/// What this thread writes in `act` outlives this process: it may be read when this process has ended, as the result of a
/// process is. Handles of crates above then put into the message what would end with the process.
pub fn outliving<R>(act: impl FnOnce() -> R) -> R {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            OUTLIVING.set(self.0);
        }
    }
    let _before = Before(OUTLIVING.replace(true));
    act()
}

/// Whether the message that this thread writes outlives this process; see [`outliving`].
#[must_use]
pub fn is_outliving() -> bool {
    OUTLIVING.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_written_inside_outlives_its_writer_also_after_a_panic() {
        assert!(!is_outliving());
        assert!(outliving(|| outliving(is_outliving) && is_outliving()));
        assert!(!is_outliving());
        let panicked = std::panic::catch_unwind(|| outliving(|| panic!("on purpose")));
        assert!(panicked.is_err() && !is_outliving());
    }
}
