//! What is told by `tracing` in the middle of other work.
//!
//! A subscriber is the program's own code and may panic. Told by [`say!`](crate::say!), that ends neither the thread that
//! supervises all processes of a program nor leaves half done what was being done when there was something to tell.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// An event of `tracing`: the level, as its macro is called, and what that takes. A panic of the subscriber is told by
/// the program's panic hook, and nothing else comes of it.
#[macro_export]
#[doc(hidden)]
macro_rules! say {
    ($level:ident, $($what:tt)+) => {
        $crate::say::aside(|| ::tracing::$level!($($what)+))
    };
}

/// Runs the program's code, whose panic goes no further.
#[doc(hidden)]
pub fn aside(code: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(code)) {
        // It may panic when it is dropped.
        std::mem::forget(payload);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_that_panics_when_it_is_dropped_goes_no_further_either() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("dropped");
            }
        }
        aside(|| std::panic::panic_any(Bomb));
    }
}
