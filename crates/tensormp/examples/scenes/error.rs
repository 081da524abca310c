//! What can go wrong, said so that the reader knows where to look.
//!
//! Errors are plain text and numbers and can be serialized, so that the process which meets one can hand it to the
//! process which prints it.

use serde::{Deserialize, Serialize};

/// The example's error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub(crate) enum Error {
    /// The input cannot be used: missing, truncated, no YUV4MPEG2, not supported.
    #[error("{place}: {problem}")]
    Input { place: Place, problem: String },
    /// An option that cannot be honoured.
    #[error("{0}")]
    Options(String),
    /// What arrived from another process is not what was sent.
    #[error("{hop}: {problem}")]
    Transport { hop: String, problem: String },
    /// A process failed, or could not be started.
    #[error("{0}")]
    Process(String),
    /// The results could not be written.
    #[error("writing the results: {problem}")]
    Output { problem: String, broken_pipe: bool },
}

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn input(place: Place, problem: impl Into<String>) -> Self {
        Self::Input {
            place,
            problem: problem.into(),
        }
    }

    pub(crate) fn transport(hop: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Transport {
            hop: hop.into(),
            problem: problem.into(),
        }
    }

    pub(crate) fn output(error: &std::io::Error) -> Self {
        Self::Output {
            problem: error.to_string(),
            broken_pipe: error.kind() == std::io::ErrorKind::BrokenPipe,
        }
    }

    /// The exit code of a program that ends with this error: 2 where the caller gave something unusable, as for
    /// wrong options; 0 where the reader of the results had enough; 1 for the rest.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Input { .. } | Self::Options(_) => 2,
            Self::Output {
                broken_pipe: true, ..
            } => 0,
            Self::Transport { .. } | Self::Process(_) | Self::Output { .. } => 1,
        }
    }
}

/// Errors of the library that this example cannot do anything about.
macro_rules! of_the_library {
    ($($error:ty),*) => {
        $(impl From<$error> for Error {
            fn from(error: $error) -> Self {
                Self::Process(error.to_string())
            }
        })*
    };
}

of_the_library!(
    tensormp::mp_queue::Error,
    tensormp::spawn_api::Error,
    tensormp::pipeline::Error
);

/// Where in the input: its name and, as far as they are known, the frame (from 0) and the byte (from 0).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    pub(crate) name: String,
    pub(crate) frame: Option<u64>,
    pub(crate) byte: Option<u64>,
}

impl Place {
    pub(crate) fn named(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            frame: None,
            byte: None,
        }
    }

    pub(crate) fn at_byte(name: impl Into<String>, byte: u64) -> Self {
        Self {
            byte: Some(byte),
            ..Self::named(name)
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)?;
        if let Some(frame) = self.frame {
            write!(f, ", frame {frame}")?;
        }
        if let Some(byte) = self.byte {
            write!(f, ", byte {byte}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_error_names_its_place_and_exits_with_2() {
        let place = Place {
            frame: Some(3),
            ..Place::at_byte("a.y4m", 70)
        };
        let error = Error::input(place, "cut short");
        assert_eq!(error.to_string(), "a.y4m, frame 3, byte 70: cut short");
        assert_eq!(error.exit_code(), 2);
    }

    #[test]
    fn a_reader_that_had_enough_is_no_failure() {
        let error = Error::output(&std::io::ErrorKind::BrokenPipe.into());
        assert_eq!(error.exit_code(), 0);
    }
}
