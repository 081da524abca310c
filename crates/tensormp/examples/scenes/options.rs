//! The command line.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

use crate::hops::Transport;
use crate::source::Input;

/// Seed of the built-in clip.
const SEED: u64 = 1;

/// Finds the hard cuts of a video with four processes, and copies no frame between them.
#[derive(Debug, Parser)]
#[command(name = "scenes", version)]
pub(crate) struct Options {
    /// A YUV4MPEG2 file, or - for standard input; without it, a built-in clip is generated
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,

    /// Replicas of the process that computes features
    #[arg(long, value_name = "N", default_value = "2", value_parser = workers)]
    pub(crate) workers: usize,

    /// Slots in each ring, that is, frames that can be on their way at a time; more lets them wait longer
    #[arg(long, value_name = "N", default_value = "2", value_parser = slots)]
    pub(crate) slots: usize,

    /// Print one JSON object per cut, and a last one with the summary
    #[arg(long)]
    pub(crate) json: bool,

    /// How tensors travel: in slots of shared memory, serialized through pipes, or the job once each way
    #[arg(long, value_enum, default_value_t = Choice::Both)]
    transport: Choice,

    /// Size of the built-in clip
    #[arg(long, value_name = "WxH", default_value = "320x180", value_parser = size, conflicts_with = "file")]
    size: (usize, usize),

    /// Write the built-in clip to standard output, as YUV4MPEG2, and do nothing else
    #[arg(long, conflicts_with = "file")]
    pub(crate) generate: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Choice {
    Ring,
    Serialized,
    Both,
}

impl Options {
    pub(crate) fn input(&self) -> Input {
        match &self.file {
            None => Input::Clip {
                width: self.size.0,
                height: self.size.1,
                seed: SEED,
            },
            Some(path) if path.as_os_str() == "-" => Input::Stdin,
            Some(path) => Input::File(path.clone()),
        }
    }

    /// The transports to run, and what to tell the user if these are not all that were asked for.
    pub(crate) fn transports(&self) -> (Vec<Transport>, Option<&'static str>) {
        let note = "standard input can be read only once, so there is no comparison with the serialized transport; \
                    give a file for that, or --transport serialized";
        match self.transport {
            Choice::Ring => (vec![Transport::Ring], None),
            Choice::Serialized => (vec![Transport::Serialized], None),
            Choice::Both if self.input() == Input::Stdin => (vec![Transport::Ring], Some(note)),
            Choice::Both => (vec![Transport::Ring, Transport::Serialized], None),
        }
    }
}

fn workers(text: &str) -> Result<usize, String> {
    match number(text)? {
        0 => Err("without a worker nobody computes features: give at least 1".to_owned()),
        count @ 1..=64 => Ok(count),
        count => Err(format!(
            "{count} workers are more than the 64 this example starts"
        )),
    }
}

fn slots(text: &str) -> Result<usize, String> {
    match number(text)? {
        0 => Err("a ring without slots holds no frame: give at least 2".to_owned()),
        1 => Err(
            "with a single slot no frame can be written while another is read: give at least 2"
                .to_owned(),
        ),
        count @ 2..=4096 => Ok(count),
        count => Err(format!(
            "{count} slots are more than the 4096 this example allows"
        )),
    }
}

fn size(text: &str) -> Result<(usize, usize), String> {
    let parts = text
        .split_once(['x', '×'])
        .ok_or("a size is WIDTHxHEIGHT, such as 320x180")?;
    let (width, height) = (number(parts.0)?, number(parts.1)?);
    if width == 0 || height == 0 {
        return Err(format!("frames of {width}×{height} have no pixels"));
    }
    if width < 32 || height < 18 {
        return Err(format!(
            "frames of {width}×{height} are too small to show the clip: give at least 32×18"
        ));
    }
    if width > 16384 || height > 16384 {
        return Err(format!(
            "frames of {width}×{height} are too large: the limit is 16384×16384"
        ));
    }
    Ok((width, height))
}

fn number(text: &str) -> Result<usize, String> {
    text.parse()
        .map_err(|_| format!("\"{text}\" is no whole number"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parsed(arguments: &[&str]) -> Result<Options, String> {
        let arguments = std::iter::once(&"scenes").chain(arguments);
        Options::try_parse_from(arguments).map_err(|error| {
            assert_eq!(error.exit_code(), 2);
            error.to_string()
        })
    }

    #[test]
    fn the_command_line_is_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn the_built_in_clip_and_both_transports_are_the_default() {
        let options = parsed(&[]).unwrap();
        let clip = Input::Clip {
            width: 320,
            height: 180,
            seed: SEED,
        };
        assert_eq!(
            (options.input(), options.workers, options.slots),
            (clip, 2, 2)
        );
        assert_eq!(
            options.transports(),
            (vec![Transport::Ring, Transport::Serialized], None)
        );
        let large = parsed(&["--size", "1280x720"]).unwrap().input();
        assert!(matches!(
            large,
            Input::Clip {
                width: 1280,
                height: 720,
                ..
            }
        ));
    }

    #[test]
    fn standard_input_is_read_once() {
        let options = parsed(&["-", "--json"]).unwrap();
        assert_eq!(options.input(), Input::Stdin);
        let (transports, note) = options.transports();
        assert_eq!(transports, [Transport::Ring]);
        assert!(note.is_some());
    }

    #[test]
    fn impossible_numbers_are_refused_with_the_reason() {
        for (arguments, reason) in [
            (["--slots", "0"], "holds no frame"),
            (["--slots", "1"], "a single slot"),
            (["--slots", "two"], "no whole number"),
            (["--workers", "0"], "nobody computes features"),
            (["--workers", "65"], "64"),
            (["--size", "0x9"], "no pixels"),
            (["--size", "31x18"], "too small"),
            (["--size", "320"], "WIDTHxHEIGHT"),
            (["--size", "99999x99"], "too large"),
        ] {
            let refusal = parsed(&arguments).expect_err(reason);
            assert!(refusal.contains(reason), "{refusal}");
        }
        assert!(parsed(&["a.y4m", "--size", "32x18"]).is_err());
        assert_eq!(
            parsed(&["--slots", "2", "--workers", "1"]).unwrap().slots,
            2
        );
    }
}
