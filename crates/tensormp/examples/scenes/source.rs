//! Where frames come from: a file, standard input, or the built-in clip.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::clip::Clip;
use crate::error::{Error, Place, Result};
use crate::video::{Format, Header, Video};

/// What the user asked for. It says enough to be opened in another process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Input {
    Clip {
        width: usize,
        height: usize,
        seed: u64,
    },
    File(PathBuf),
    Stdin,
}

impl Input {
    /// Finds out the format, which the sizes of all buffers follow from. Of standard input it reads the header and
    /// nothing else; whoever calls [`Input::open`] with that header, in this process or in one that inherits the
    /// descriptor, goes on from there.
    pub(crate) fn probe(&self) -> Result<Header> {
        match self {
            Self::Clip { width, height, .. } => Ok(Header {
                format: Format::yuv420(*width, *height),
                bytes: 0,
            }),
            Self::File(path) => Header::read(&mut open(path)?, &self.name()),
            Self::Stdin => Header::read(&mut unbuffered_stdin()?, &self.name()),
        }
    }

    /// Gets ready to read frames.
    pub(crate) fn open(&self, header: &Header) -> Result<Source> {
        let name = self.name();
        let reader: Box<dyn Read + Send> = match self {
            Self::Clip {
                width,
                height,
                seed,
            } => return Ok(Source::Clip(Clip::new(*width, *height, *seed))),
            Self::File(path) => {
                let mut file = open(path)?;
                if Header::read(&mut file, &name)? != *header {
                    return Err(Error::input(
                        Place::named(name),
                        "it was replaced while it was read",
                    ));
                }
                Box::new(file)
            }
            Self::Stdin => Box::new(unbuffered_stdin()?),
        };
        Ok(Source::Video(Video::after(header, reader, &name)))
    }

    /// What errors and headings call it.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Clip { .. } => "built-in clip".to_owned(),
            Self::File(path) => path.display().to_string(),
            Self::Stdin => "standard input".to_owned(),
        }
    }
}

fn open(path: &PathBuf) -> Result<File> {
    let refused = |problem: String| Error::input(Place::named(path.display().to_string()), problem);
    let failed = |error: io::Error| refused(format!("cannot be opened: {error}"));
    // Asked before opening: a named pipe would make `open` wait for its writer.
    let kind = std::fs::metadata(path).map_err(failed)?;
    if kind.is_dir() {
        return Err(refused("it is a directory; give a .y4m file".to_owned()));
    }
    if !kind.is_file() {
        // Two processes open it, one after the other, which a pipe does not survive.
        return Err(refused(
            "it is no regular file; read it through standard input: `-` and `< FILE`".to_owned(),
        ));
    }
    File::open(path).map_err(failed)
}

/// Standard input without the buffer of [`io::stdin`], which would read ahead.
fn unbuffered_stdin() -> Result<File> {
    let descriptor = rustix::io::dup(rustix::stdio::stdin());
    let descriptor = descriptor.map_err(|error| {
        Error::input(
            Place::named("standard input"),
            format!("cannot be read: {error}"),
        )
    })?;
    Ok(File::from(descriptor))
}

/// An opened input.
pub(crate) enum Source {
    Clip(Clip),
    Video(Video<Box<dyn Read + Send>>),
}

impl Source {
    /// Reads the next frame into `luma` ([`Format::luma_len`] bytes) and `chroma` ([`Format::chroma_len`] bytes: Cb,
    /// then Cr). Returns its number, or nothing at the end.
    pub(crate) fn read(&mut self, luma: &mut [u8], chroma: &mut [u8]) -> Result<Option<u64>> {
        match self {
            Self::Clip(clip) => Ok(clip.read(luma, chroma)),
            Self::Video(video) => video.read(luma, chroma),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_regular_file_is_refused_at_once() {
        let refusal = |path: &str| {
            let error = Input::File(path.into()).probe().unwrap_err();
            assert_eq!(error.exit_code(), 2);
            error.to_string()
        };
        assert!(refusal("/no/such/file.y4m").starts_with("/no/such/file.y4m: cannot be opened: "));
        assert!(refusal("/").starts_with("/: it is a directory"));
        assert!(refusal("/dev/null").starts_with("/dev/null: it is no regular file"));
    }
}
