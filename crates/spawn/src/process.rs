//! [`Process`]: what one process is called and what it gets from this one.

use std::os::fd::OwnedFd;

use crate::entry;
use crate::error::{Error, ErrorKind, Result};
use crate::trampoline::Target;

/// What a process finds when it reads its stdin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stdin {
    /// Nothing: /dev/null.
    #[default]
    Null,
    /// This process's own stdin: the same open file. What this process has read ahead into a buffer does not travel,
    /// so read nothing from it before. The child stays in this process's group, so that it may read a terminal; Ctrl-C
    /// there reaches it too.
    Inherit,
}

/// A process to be started: its name and what it gets from this one.
///
/// A string is one too: `group.add("decode", decode, input)`.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Process {
    pub(crate) name: Option<String>,
    pub(crate) stdin: Stdin,
}

impl Process {
    /// A process with a name. Errors, `ps`, `top` and debuggers show it (the latter two the first 15 bytes). Without
    /// one it is named after its function. Replicas get their number behind it.
    pub fn named(name: impl Into<String>) -> Process {
        Process {
            name: Some(name.into()),
            ..Process::default()
        }
    }

    /// What it finds as its stdin.
    pub fn stdin(mut self, stdin: Stdin) -> Process {
        self.stdin = stdin;
        self
    }

    /// The stdin to hand over, if it is to get one.
    pub(crate) fn own_stdin(&self) -> Result<Option<OwnedFd>> {
        match self.stdin {
            Stdin::Null => Ok(None),
            Stdin::Inherit => entry::own_stdin().map(Some).map_err(|error| {
                Error::caused(
                    ErrorKind::Launch,
                    "this process's stdin cannot be handed on (is it closed?)",
                    error,
                )
            }),
        }
    }

    /// The name of replica `index` of `n`, in characters that the system takes.
    pub(crate) fn name_of(&self, target: &Target, index: usize, n: usize) -> String {
        let name = match &self.name {
            Some(name) => name
                .chars()
                .filter(|character| !character.is_control())
                .collect(),
            None => short_name(target.name),
        };
        if n > 1 {
            format!("{name}.{index}")
        } else {
            name
        }
    }
}

impl From<&str> for Process {
    fn from(name: &str) -> Process {
        Process::named(name)
    }
}

impl From<String> for Process {
    fn from(name: String) -> Process {
        Process::named(name)
    }
}

/// The last word of a type's path: `app::decode::frames<f32>` is "frames", a closure is named after where it stands.
fn short_name(path: &str) -> String {
    let path = path.split('<').next().unwrap_or(path);
    let mut words = path
        .rsplit("::")
        .filter(|word| !word.starts_with('{') && !word.is_empty());
    words.next().unwrap_or("worker").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_from_the_last_word_of_the_function() {
        assert_eq!(short_name("app::decode::frames<app::Wide>"), "frames");
        assert_eq!(short_name("app::main::{{closure}}"), "main");
        assert_eq!(short_name("{{closure}}"), "worker");
    }
}
