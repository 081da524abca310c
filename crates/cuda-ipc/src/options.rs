//! What a process can choose before it uses the first device tensor.

use std::sync::OnceLock;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::layout::Path;

/// How the receiver of a tensor waits for its writer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Gate {
    /// The receiver's stream waits, and no thread does. If the writer's process is killed after it recorded its event and
    /// before its work was done, the stream may never go on: what is on it is an error then, and no thread waits for it.
    Stream,
    /// The receiving thread looks until the event has happened, at most for so long, and whether the writer lives. For
    /// peers that may die at any moment: no stream ever waits for them.
    Host(Duration),
}

/// What a process can choose before it uses the first device tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    path: Option<Path>,
    /// What the environment asks for that is no path.
    unknown: Option<String>,
    events: u16,
    gate: Gate,
}

impl Default for Options {
    fn default() -> Self {
        let asked = std::env::var_os(VARIABLE).unwrap_or_default();
        let asked = asked.to_string_lossy();
        let path = match &*asked {
            "handle" => Some(Path::Handle),
            "descriptor" => Some(Path::Descriptor),
            "host" => Some(Path::Host),
            _ => None,
        };
        let is_known = path.is_some() || matches!(&*asked, "" | "auto");
        Self {
            path,
            unknown: (!is_known).then(|| asked.into_owned()),
            events: 2_048,
            gate: Gate::Stream,
        }
    }
}

/// The path that is asked for by the environment.
const VARIABLE: &str = "TENSORMP_CUDA_PATH";

fn unknown_path(name: &str) -> Error {
    Error::new(
        ErrorKind::NoPath,
        format!("{VARIABLE} is `{name}`; it can be handle, descriptor, host or auto"),
    )
}

static CHOSEN: OnceLock<Options> = OnceLock::new();

impl Options {
    /// As the environment variable `TENSORMP_CUDA_PATH` says, or as this crate finds best.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sends tensors that this process makes by this path only. An error where it does not work.
    #[must_use]
    pub fn path(mut self, path: Path) -> Self {
        self.path = Some(path);
        self.unknown = None;
        self
    }

    /// The path that tensors of this process are to take, if one was asked for.
    #[must_use]
    pub fn asked_path(&self) -> Option<Path> {
        self.path
    }

    /// As [`asked_path`](Self::asked_path), where what is asked for is a path at all.
    ///
    /// # Errors
    /// `NoPath` when the environment variable `TENSORMP_CUDA_PATH` is none of those that there are, and no
    /// [`path`](Self::path) was chosen instead.
    pub fn check_path(&self) -> Result<Option<Path>> {
        match &self.unknown {
            None => Ok(self.path),
            Some(name) => Err(unknown_path(name)),
        }
    }

    /// At most so many events for other processes, at most 4,096. Where none is left, senders wait for the device.
    #[must_use]
    pub fn events(mut self, most: u16) -> Self {
        self.events = most.min(4_096);
        self
    }

    /// How this process waits for writers of what it receives.
    #[must_use]
    pub fn gate(mut self, gate: Gate) -> Self {
        self.gate = gate;
        self
    }

    /// Makes these the options of this process.
    ///
    /// # Errors
    /// When a device tensor has been used before.
    pub fn install(self) -> Result<()> {
        CHOSEN.set(self).map_err(|_| {
            Error::new(
                ErrorKind::StillHeld,
                "the options for device tensors were chosen already, or a device tensor was used before: install them first thing in the process",
            )
        })
    }
}

/// The options of this process, from now on what they are.
pub(crate) fn options() -> &'static Chosen {
    static VIEW: OnceLock<Chosen> = OnceLock::new();
    VIEW.get_or_init(|| {
        let options = CHOSEN.get_or_init(Options::default);
        Chosen {
            path: options.path,
            unknown: options.unknown.clone(),
            events: options.events,
            gate: options.gate,
        }
    })
}

/// Options that do not change any more.
#[derive(Debug)]
pub(crate) struct Chosen {
    path: Option<Path>,
    unknown: Option<String>,
    pub(crate) events: u16,
    pub(crate) gate: Gate,
}

impl Chosen {
    /// The path that was asked for.
    pub(crate) fn path(&self) -> Result<Option<Path>> {
        match &self.unknown {
            None => Ok(self.path),
            Some(name) => Err(unknown_path(name)),
        }
    }
}
