//! What an iterator that panics said, and where.
//!
//! It runs in the program that starts the pipeline, on a thread of the pipeline's. A panic has its place only in the program's
//! hook, so one that notes it on such a thread is put in front of the hook that is there, which does what it did.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use crate::error::{Error, ErrorKind, Result};

thread_local! {
    /// On a thread whose panics are noted: where the last one was, once there was one.
    static PLACE: RefCell<Option<Option<String>>> = const { RefCell::new(None) };
}

fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            // Not where the thread is at its end already.
            let _ = PLACE.try_with(|place| {
                if let Ok(mut place) = place.try_borrow_mut()
                    && let Some(place) = &mut *place
                {
                    *place = info.location().map(ToString::to_string);
                }
            });
            previous(info);
        }));
    });
    PLACE.set(Some(None));
}

/// Calls what calls the iterator, on a thread of its own.
///
/// # Errors
/// `Process` for a panic, with what it said and where.
pub(crate) fn tells(feed: impl FnOnce() -> Result<()>) -> Result<()> {
    watch();
    // Nothing of what it leaves half done is looked at again.
    catch_unwind(AssertUnwindSafe(feed)).unwrap_or_else(|panic| {
        let place = PLACE.take().flatten();
        let place = place.map_or_else(String::new, |place| format!(", at {place}"));
        let said = panic.downcast_ref::<&str>().copied();
        let said = said.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let said = said.map_or_else(String::new, |said| format!(": {said}"));
        Err(Error::new(
            ErrorKind::Process,
            format!("the iterator that makes the inputs panicked{said}{place}"),
        ))
    })
}
