//! Which strategy the arena of this process is made by: set by the program, by the environment, or the default.

use std::fmt;
use std::sync::Arc;

use parking_lot::RwLock;

use super::{FileDescriptor, FileSystem, SharingStrategy, all, by_name};
use crate::arena;
use crate::error::{Error, ErrorKind, Result};

/// The environment variable that chooses where the program does not.
const VARIABLE: &str = "TENSORMP_STRATEGY";

/// A choice of strategy: one that exists, or a name that is looked up when it is used.
///
/// ```
/// use shm_core::strategy::{FileSystem, Strategy};
///
/// assert_eq!(Strategy::from("file_system"), Strategy::from(FileSystem::new()));
/// ```
#[derive(Clone, Debug)]
pub struct Strategy(Choice);

#[derive(Clone, Debug)]
enum Choice {
    Known(&'static dyn SharingStrategy),
    Made(Arc<dyn SharingStrategy>),
    Named(String),
}

impl Strategy {
    /// The strategy's name.
    #[must_use]
    pub fn name(&self) -> &str {
        match &self.0 {
            Choice::Known(strategy) => strategy.name(),
            Choice::Made(strategy) => strategy.name(),
            Choice::Named(name) => name,
        }
    }

    /// The strategy itself.
    ///
    /// # Errors
    /// `Unsupported`, naming those that exist, for a name that none has.
    pub fn get(&self) -> Result<&dyn SharingStrategy> {
        match &self.0 {
            Choice::Known(strategy) => Ok(*strategy),
            Choice::Made(strategy) => Ok(&**strategy),
            Choice::Named(name) => by_name(name).map(|strategy| strategy as &dyn SharingStrategy),
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Strategies are the same if their names are; where an arena's file lies is no part of it.
impl PartialEq for Strategy {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Strategy {}

impl PartialEq<str> for Strategy {
    fn eq(&self, other: &str) -> bool {
        self.name() == other
    }
}

impl PartialEq<&str> for Strategy {
    fn eq(&self, other: &&str) -> bool {
        self.name() == *other
    }
}

impl From<&str> for Strategy {
    fn from(name: &str) -> Self {
        Self(Choice::Named(name.to_owned()))
    }
}

impl From<String> for Strategy {
    fn from(name: String) -> Self {
        Self(Choice::Named(name))
    }
}

impl From<&'static dyn SharingStrategy> for Strategy {
    fn from(strategy: &'static dyn SharingStrategy) -> Self {
        Self(Choice::Known(strategy))
    }
}

impl From<Arc<dyn SharingStrategy>> for Strategy {
    fn from(strategy: Arc<dyn SharingStrategy>) -> Self {
        Self(Choice::Made(strategy))
    }
}

impl From<FileDescriptor> for Strategy {
    fn from(_: FileDescriptor) -> Self {
        Self(Choice::Known(&FileDescriptor))
    }
}

impl From<FileSystem> for Strategy {
    fn from(strategy: FileSystem) -> Self {
        Self(Choice::Made(Arc::new(strategy)))
    }
}

static CHOSEN: RwLock<Option<Strategy>> = RwLock::new(None);

/// Every strategy of this build, the default one first.
///
/// ```
/// let names: Vec<_> = shm_core::all_sharing_strategies().iter().map(|s| s.to_string()).collect();
/// assert_eq!(names, ["file_descriptor", "file_system"]);
/// ```
#[must_use]
pub fn all_sharing_strategies() -> Vec<Strategy> {
    all().iter().map(|&strategy| strategy.into()).collect()
}

/// The strategy of this process's arena: of the one there is, else the one by which it will be made.
///
/// # Errors
/// `Unsupported` when `TENSORMP_STRATEGY` names none that exists.
pub fn sharing_strategy() -> Result<Strategy> {
    match arena::current_if_any() {
        Some(arena) => Ok(arena.strategy().clone()),
        None => default_strategy(),
    }
}

/// Chooses the strategy by which this process's arena will be made. It wins over `TENSORMP_STRATEGY`.
///
/// ```
/// shm_core::set_sharing_strategy("file_descriptor")?;
/// assert_eq!(shm_core::sharing_strategy()?, "file_descriptor");
/// # Ok::<(), shm_core::Error>(())
/// ```
///
/// # Errors
/// `Unsupported`, naming those that exist, for an unknown name; `TooLate` when the arena exists, because its file is
/// what it is: nothing is copied behind your back.
pub fn set_sharing_strategy(strategy: impl Into<Strategy>) -> Result<()> {
    let strategy = strategy.into();
    strategy.get()?;
    let wanted = strategy.to_string();
    match arena::before_current(|| *CHOSEN.write() = Some(strategy)) {
        Ok(()) => Ok(()),
        Err(arena) => Err(Error::new(
            ErrorKind::TooLate,
            format!(
                "the sharing strategy can't become {wanted}: this process's arena was made by {} already, at its first tensor, queue or process; set the \
                 strategy before that, or make a second arena with `Arena::builder().strategy(…)`",
                arena.strategy()
            ),
        )),
    }
}

/// The strategy of an arena for which none is asked.
pub(crate) fn default_strategy() -> Result<Strategy> {
    if let Some(chosen) = &*CHOSEN.read() {
        return Ok(chosen.clone());
    }
    from_environment(
        std::env::var_os(VARIABLE)
            .as_deref()
            .map(|name| name.to_string_lossy()),
    )
}

fn from_environment(name: Option<std::borrow::Cow<'_, str>>) -> Result<Strategy> {
    match name.as_deref() {
        None | Some("") => Ok(FileDescriptor.into()),
        Some(name) => by_name(name).map(Strategy::from).map_err(|error| {
            error.while_doing(format_args!("reading the environment variable {VARIABLE}"))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_names_those_that_exist() {
        let by_call = set_sharing_strategy("file_descripter").unwrap_err();
        let by_environment = from_environment(Some("shm".into())).unwrap_err();
        for error in [by_call, by_environment] {
            assert_eq!(error.kind(), &ErrorKind::Unsupported);
            for strategy in all() {
                assert!(error.to_string().contains(strategy.name()), "{error}");
            }
        }
    }

    #[test]
    fn the_environment_chooses_and_an_empty_variable_does_not() {
        for strategy in all_sharing_strategies() {
            let chosen = from_environment(Some(strategy.name().to_owned().into())).unwrap();
            assert_eq!(chosen, strategy);
        }
        for unset in [None, Some("".into())] {
            assert_eq!(from_environment(unset).unwrap(), "file_descriptor");
        }
    }
}
