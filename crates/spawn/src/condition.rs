//! What code that runs in a fork server before its first copy may change of the process, and what is put back then: a
//! copy has it as a program that was run anew would.
//!
//! The server has one thread, so nobody reads the environment or the umask while they are set.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::umask;

use crate::fork;
use crate::signals::Dispositions;

/// The environment, the working directory, the umask, and what is done at signals.
#[derive(Debug)]
pub(crate) struct Condition {
    environment: Vec<(OsString, OsString)>,
    /// `None`: it cannot be entered again.
    directory: Option<OwnedFd>,
    umask: Mode,
    signals: Dispositions,
}

impl Condition {
    /// As they are. To be called by the only thread of the process.
    pub(crate) fn now() -> Condition {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        // It is told by setting it.
        let mask = umask(Mode::empty());
        umask(mask);
        Condition {
            environment: std::env::vars_os().collect(),
            directory: rustix::fs::open(".", flags, Mode::empty()).ok(),
            umask: mask,
            signals: Dispositions::now(),
        }
    }

    /// Makes all of it what it was.
    ///
    /// # Errors
    /// `BUSY` when this process has more than one thread.
    pub(crate) fn put_back(&self) -> Result<(), Errno> {
        self.signals.put_back();
        umask(self.umask);
        if let Some(directory) = &self.directory {
            // Where it is not entered, the order for a process brings the one that it is to have.
            let _ = rustix::process::fchdir(directory);
        }
        let now: Vec<_> = std::env::vars_os().collect();
        for (name, value) in changes(&now, &self.environment) {
            fork::set_environment(name, value)?;
        }
        Ok(())
    }
}

type Variables = [(OsString, OsString)];

/// What has to be set, or removed, to come from one environment to another. Of several variables of a name the first
/// counts.
pub(crate) fn changes<'a>(
    from: &'a Variables,
    to: &'a Variables,
) -> Vec<(&'a OsStr, Option<&'a OsStr>)> {
    if from == to {
        return Vec::new();
    }
    fn first(variables: &Variables) -> HashMap<&OsStr, &OsStr> {
        let backwards = variables.iter().rev();
        // One that begins so cannot be set by a program, only handed to it.
        backwards
            .filter(|(name, _)| !name.as_bytes().starts_with(b"="))
            .map(|(name, value)| (name.as_os_str(), value.as_os_str()))
            .collect()
    }
    let (mut from, to) = (first(from), first(to));
    let mut changes: Vec<_> = to
        .into_iter()
        .filter(|(name, value)| from.remove(name) != Some(value))
        .map(|(name, value)| (name, Some(value)))
        .collect();
    changes.extend(from.into_keys().map(|name| (name, None)));
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_is_changed_to_another_by_what_differs() {
        let variables = |text: &str| -> Vec<(OsString, OsString)> {
            let pairs = text.split_whitespace().map(|pair| pair.rsplit_once('='));
            let pair =
                |pair: Option<(&str, &str)>| pair.map(|(name, value)| (name.into(), value.into()));
            pairs.filter_map(pair).collect()
        };
        let named = |from: &str, to: &str| {
            let (from, to) = (variables(from), variables(to));
            let mut found: Vec<_> = changes(&from, &to)
                .iter()
                .map(|(name, value)| (name.to_owned().to_owned(), value.map(OsStr::to_owned)))
                .collect();
            found.sort();
            found
        };
        assert_eq!(named("A=1 B=2", "B=2 A=1"), []);
        assert_eq!(named("A=1 =C=3", "A=1"), []);
        assert_eq!(
            named("A=1 B=2 C=3 A=9", "A=2 C=3 C=4 D=5"),
            [
                ("A".into(), Some("2".into())),
                ("B".into(), None),
                ("D".into(), Some("5".into())),
            ]
        );
    }
}
