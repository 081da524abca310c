//! What the RnB pipeline does, as far as a CPU goes: clips of 8 frames are sampled from videos, a network looks at them, and
//! what it says of all clips of a video is put together.
//!
//! ```text
//! cargo run --release --example video_clips -- run crates/tensormp/examples/video_clips/whole.toml --count 20
//! cargo run --release --example video_clips -- run crates/tensormp/examples/video_clips/segments.toml --count 20 --out /tmp/clips
//! ```
//!
//! Without a file (`--set iterator_params.path=FILE.y4m`) the videos are generated. Whatever the configuration, the same
//! features come out: `--set aggregate.results=FILE` writes them.

#![forbid(unsafe_code)]

mod aggregate;
mod convolve;
mod load;
mod video;

use std::path::PathBuf;
use std::process::ExitCode;

use serde::{Deserialize, Serialize};
use tensormp::pipeline::{self, Registry};

use crate::aggregate::Aggregate;
use crate::convolve::Convolve;
use crate::load::Load;

/// Frames of a clip, and its colours.
const FRAMES: usize = 8;
const COLOURS: usize = 3;

/// A request: which video, and which clips of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Request {
    /// A video in a file, or a generated one.
    path: Option<PathBuf>,
    /// Counts requests; the clips are sampled by it.
    number: u64,
}

fn registry() -> Registry {
    Registry::new()
        .iterator("Videos", |params| {
            let path = params.get("path").and_then(|path| path.as_str());
            let path = path.map(PathBuf::from);
            Ok((0..).map(move |number| Request {
                path: path.clone(),
                number,
            }))
        })
        .stage::<Load>("Load")
        .stage::<Convolve>("Convolve")
        .stage::<Aggregate>("Aggregate")
}

fn main() -> ExitCode {
    pipeline::main(registry)
}
