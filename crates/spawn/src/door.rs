//! The named door: functions that are found by name, for programs whose workers are another executable.
//!
//! A worker usually is the executable of its parent, and a function's place in it says which one is meant. A program
//! that cannot be its own worker (a host that loads Rust as a library, a small launcher before a large worker) names an
//! executable instead, and that executable names the functions that it has. Both link the crate in which the functions
//! live; names and types are compared as for any other function.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::outcome::Outcome;
use crate::trampoline::{self, Trampoline};

/// A function that other programs may run in this executable; made by [`worker_main!`](crate::worker_main).
#[derive(Clone, Copy, Debug)]
pub struct Door {
    name: &'static str,
    trampoline: Trampoline,
}

impl Door {
    /// The door to `f`. Its name is the path of its type, so a closure has none that another program could know.
    pub fn new<F, A, R>(f: F) -> Door
    where
        F: Fn(usize, A) -> R + Copy + Send + 'static,
        A: Serialize + DeserializeOwned,
        R: Outcome,
    {
        let _ = f;
        Door {
            name: std::any::type_name::<F>(),
            trampoline: trampoline::of::<F, A, R>(),
        }
    }
}

/// The function of a name.
pub(crate) fn find(doors: &[Door], name: &str) -> Result<Trampoline, String> {
    doors
        .iter()
        .find(|door| door.name == name)
        .map(|door| door.trampoline)
        .ok_or_else(|| {
            let known: Vec<&str> = doors.iter().map(|door| door.name).collect();
            format!(
                "this executable has no function `{name}`; it has {}: add it to `worker_main!`, and build both from \
                 the same sources",
                match known.as_slice() {
                    [] => "none".to_owned(),
                    _ => format!("`{}`", known.join("`, `")),
                }
            )
        })
}

/// The `main` of an executable that is nothing but the worker of other programs.
///
/// ```no_run
/// # mod app {
/// # pub fn decode(_rank: usize, path: String) -> Result<u64, String> { Ok(path.len() as u64) }
/// # pub fn resize<T>(_rank: usize, _: ()) {}
/// # }
/// // src/bin/worker.rs; the functions are in the library that the other program links too
/// use app::{decode, resize};
///
/// spawn::worker_main! { decode, resize::<f32> }
/// ```
///
/// ```no_run
/// # mod app { pub fn decode(_rank: usize, path: String) -> Result<u64, String> { Ok(path.len() as u64) } }
/// # fn host() -> spawn::Result<()> {
/// // the other program, which needs no `init`
/// let mut workers = spawn::builder()
///     .executable("target/release/worker")
///     .spawn(app::decode, "clip.mp4".to_string(), 2)?;
/// workers.join()?;
/// # Ok(())
/// # }
/// # fn main() {}
/// ```
///
/// A program that has a `main` of its own and is a worker of others besides calls [`init_with`](crate::init_with) with
/// [`Door`]s instead.
#[macro_export]
macro_rules! worker_main {
    ($($function:expr),+ $(,)?) => {
        fn main() -> ::std::process::ExitCode {
            $crate::init_with(&[$($crate::Door::new($function)),+]);
            ::std::eprintln!(
                "this program is a worker: other programs start it, and it does nothing by itself"
            );
            ::std::process::ExitCode::from(64)
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn twice(_rank: usize, x: u32) -> Result<u32, String> {
        Ok(2 * x)
    }

    fn same<T>(_rank: usize, _: ()) {}

    #[test]
    fn a_function_is_found_by_its_name_and_another_is_named() {
        let doors = [Door::new(twice), Door::new(same::<u8>)];
        assert!(find(&doors, doors[1].name).is_ok());
        let missing = Door::new(same::<u16>).name;
        let reason = find(&doors, missing).unwrap_err();
        assert!(
            reason.contains("same<u16>") && reason.contains("twice"),
            "{reason}"
        );
        assert!(find(&[], "x").unwrap_err().contains("it has none"));
    }
}
