//! Workers of tests that run under the standard harness, which has a `main` of its own.
//!
//! A test binary can be asked for one test by name. So a worker of a test is the test binary, asked for that very test;
//! the first line of the test is the worker's `init`, and the rest of the test does not happen in it. The harness prints
//! before it comes to the test, so such a worker gets its stdout only then.

use std::sync::OnceLock;

use crate::entry;

static ARGUMENTS: OnceLock<Vec<String>> = OnceLock::new();

/// The arguments by which this executable reaches `init` again; none where `main` calls it.
pub(crate) fn arguments() -> &'static [String] {
    ARGUMENTS.get().map_or(&[], Vec::as_slice)
}

/// In a worker: its own workers are reached as it was.
pub(crate) fn reach_by(arguments: &[String]) {
    if !arguments.is_empty() {
        let _ = ARGUMENTS.set(arguments.to_vec());
    }
}

/// What [`init_in_test!`](crate::init_in_test) calls, with the name of the type of a function inside the test.
#[doc(hidden)]
pub fn init_in(inside: &str) {
    // The first test that comes here stands for all: each leads to `init`.
    if ARGUMENTS.get().is_none()
        && let Some(test) = test_of(inside)
    {
        reach_by(&[
            "--exact".to_owned(),
            test,
            "--include-ignored".to_owned(),
            "--nocapture".to_owned(),
            "--test-threads=1".to_owned(),
        ]);
    }
    entry::enter(&[]);
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
/// the first line: what comes before it happens in the workers too. With `harness = false` and a `main`,
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
