//! Workers of tests that run under the standard harness, which has a `main` of its own.
//!
//! A test binary can be asked for one test by name. So a worker of a test is the test binary, asked for that very test;
//! the first line of the test is the worker's `init`, and the rest of the test does not happen in it. The harness prints
//! before it comes to the test, so such a worker gets its stdout only then.

use std::backtrace::Backtrace;
use std::cell::{Cell, RefCell};
use std::sync::OnceLock;
use std::thread;

use crate::entry;

/// For threads that run no test, such as those that a test has started.
static ARGUMENTS: OnceLock<Vec<String>> = OnceLock::new();

thread_local! {
    /// Of the test that this thread runs, or ran last.
    static OWN: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    /// A test of this thread has said that it spawns, or this thread is no test's.
    static KNOWN: Cell<bool> = const { Cell::new(false) };
    /// `init` was called on this thread, which is not that of `main`.
    static ASTRAY: Cell<bool> = const { Cell::new(false) };
}

/// The arguments by which this executable reaches `init` again; none where `main` calls it.
pub(crate) fn arguments() -> Vec<String> {
    let own = OWN.with_borrow(Vec::clone);
    match own.is_empty() {
        true => ARGUMENTS.get().cloned().unwrap_or_default(),
        false => own,
    }
}

/// Whether workers reach `init` by way of a test.
pub(crate) fn leads_through_a_test() -> bool {
    ARGUMENTS.get().is_some()
}

/// In a worker: its own workers are reached as it was.
#[inline]
pub(crate) fn reach_by(arguments: &[String]) {
    if !arguments.is_empty() {
        let _ = ARGUMENTS.set(arguments.to_vec());
    }
}

/// What [`init_in_test!`](crate::init_in_test) calls, with the name of the type of a function inside the test.
#[doc(hidden)]
pub fn init_in(inside: &str) {
    // A worker does not return from here.
    entry::enter(&[]);
    KNOWN.set(true);
    if let Some(test) = test_of(inside) {
        let arguments = [
            "--exact",
            &running(test),
            "--include-ignored",
            "--nocapture",
            "--test-threads=1",
        ];
        let arguments = arguments.map(str::to_owned);
        reach_by(&arguments);
        OWN.set(arguments.into());
    }
}

/// Which test the current thread runs: `test`, by where the macro stands, or the one that calls the function that it
/// stands in. The harness calls the thread as it calls the test; one that ran tests on the main thread could not be asked.
fn running(test: String) -> String {
    let thread = thread::current();
    match thread.name() {
        Some(name) if name != "main" && name != test && is_below_the_harness() => name.to_owned(),
        _ => test,
    }
}

/// `init` was called on the current thread, which is not that of `main`.
pub(crate) fn note_init() {
    ASTRAY.set(true);
}

/// Whether that has happened.
pub(crate) fn has_called_init() -> bool {
    ASTRAY.get()
}

/// The current thread is that of a worker's function.
#[inline]
pub(crate) fn is_no_test() {
    KNOWN.set(true);
}

/// Whether the current thread runs a test that has not said that it spawns. Where another test has, its workers would
/// come to `init` by way of that one, and not any more when the test is run alone.
pub(crate) fn is_forgotten() -> bool {
    if ARGUMENTS.get().is_none() || KNOWN.get() {
        return false;
    }
    // The harness names the threads of tests. One that has no name is none of them; nor is the main thread, unless tests
    // run one at a time, and then this cannot be told.
    let is_named = thread::current().name().is_some_and(|name| name != "main");
    // Once for each thread: to look takes milliseconds.
    KNOWN.set(true);
    let forgotten = is_named && is_below_the_harness();
    KNOWN.set(!forgotten);
    forgotten
}

fn is_below_the_harness() -> bool {
    Backtrace::force_capture()
        .to_string()
        .contains("test::run_test")
}

/// The name of a test as the harness knows it: the path of its function without the crate.
fn test_of(inside: &str) -> Option<String> {
    let path = inside.strip_suffix("::here")?;
    // An async test is a function whose body is a closure.
    let path = path.trim_end_matches("::{{closure}}");
    path.split_once("::").map(|(_, test)| test.to_owned())
}

/// The first line of a `#[test]` that spawns: lets the test binary be its own worker, under the standard harness.
///
/// ```no_run
/// fn double(_rank: usize, x: u32) -> Result<u32, String> {
///     Ok(2 * x)
/// }
///
/// #[test]
/// fn a_worker_doubles() {
///     spawn::init_in_test!();
///     assert_eq!(spawn::spawn(double, 21, 1).unwrap().join().unwrap(), [42]);
/// }
/// # fn main() {}
/// ```
///
/// A worker is the test binary, run again for this very test; the rest of the test does not happen in it. It must be
/// the first line: what comes before it happens in the workers too. It belongs into the test itself; a function that the
/// test calls may have it as long as that is called on the test's own thread. With `harness = false` and a `main`,
/// [`init`](crate::init) is all that is needed.
#[macro_export]
macro_rules! init_in_test {
    () => {{
        fn here() {}
        $crate::__init_in(::std::any::type_name_of_val(&here));
    }};
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_is_known_by_its_path_without_the_crate() {
        assert_eq!(
            test_of("app::tests::works::here").as_deref(),
            Some("tests::works")
        );
        assert_eq!(
            test_of("workers::works::{{closure}}::here").as_deref(),
            Some("works")
        );
        assert_eq!(test_of("strange"), None);
    }
}
