//! [`StartMethod`]: how a process comes into being.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, ErrorKind};

/// How a process is started. A process behaves the same either way; what differs is what it costs and what it finds
/// already done.
///
/// ```
/// use spawn::StartMethod;
///
/// assert_eq!("forkserver".parse::<StartMethod>()?, StartMethod::Forkserver);
/// // Known from elsewhere, and not here: a copy of a process that has threads.
/// assert!("fork".parse::<StartMethod>().unwrap_err().to_string().contains("threads"));
/// # Ok::<(), spawn::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StartMethod {
    /// This executable is run again. Nothing is shared with this process but what is handed over.
    #[default]
    Spawn,
    /// A server, which is this executable run again once, makes a copy of itself for each process: faster, and what
    /// [`preload`](crate::forkserver::preload) did in the server need not be done again. See
    /// [`forkserver`](crate::forkserver).
    Forkserver,
}

impl StartMethod {
    /// All methods, the default first.
    pub const ALL: [StartMethod; 2] = [StartMethod::Spawn, StartMethod::Forkserver];
}

impl fmt::Display for StartMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StartMethod::Spawn => "spawn",
            StartMethod::Forkserver => "forkserver",
        })
    }
}

impl FromStr for StartMethod {
    type Err = Error;

    /// The method of that name: "spawn" or "forkserver".
    fn from_str(name: &str) -> Result<StartMethod, Error> {
        match name {
            "spawn" => Ok(StartMethod::Spawn),
            "forkserver" => Ok(StartMethod::Forkserver),
            "fork" => Err(Error::new(
                ErrorKind::Usage,
                "there is no start method \"fork\": a copy of a process that has threads, or that uses CUDA, finds \
                 locks taken by threads that it does not have, and stops at the first of them. \"forkserver\" starts \
                 as fast, from a process that has no threads",
            )),
            _ => Err(Error::new(
                ErrorKind::Usage,
                format!(
                    "there is no start method {name:?}: there are \"spawn\" and \"forkserver\""
                ),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_method_is_found_by_the_name_that_it_prints() {
        for method in StartMethod::ALL {
            assert_eq!(method.to_string().parse::<StartMethod>().unwrap(), method);
        }
        let error = "thread".parse::<StartMethod>().unwrap_err().to_string();
        assert!(error.contains("\"spawn\" and \"forkserver\""), "{error}");
    }

    #[test]
    fn asking_for_fork_gives_the_reason_why_not() {
        let error = "fork".parse::<StartMethod>().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Usage));
        assert!(
            error.to_string().contains("finds locks taken by threads"),
            "{error}"
        );
    }
}
