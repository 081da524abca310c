//! Finds the hard cuts of a video: *decode* reads frames, *features* looks at every pixel, *detect* compares.
//!
//! ```text
//! cargo run --release --example scenes                        # a built-in clip
//! cargo run --release --example scenes -- FILE.y4m --json
//! ffmpeg -i x.mp4 -pix_fmt yuv420p -f yuv4mpegpipe - | cargo run --release --example scenes -- -
//! ```

#![forbid(unsafe_code)]

mod clip;
mod detect;
mod error;
mod features;
mod hops;
mod options;
mod order;
mod report;
mod serialized;
mod source;
mod video;

use std::io;
use std::process::ExitCode;
use std::thread;
use std::time::Instant;

use clap::Parser;

use crate::detect::{Cut, Detector};
use crate::error::{Error, Result};
use crate::features::{BLOCKS, HISTOGRAM, features};
use crate::hops::{HopTimes, Run, Transport};
use crate::options::Options;
use crate::report::Report;
use crate::serialized::{Receiver, Sender};
use crate::source::Input;
use crate::video::Header;

/// The hops of a frame, by name.
const TO_FEATURES: &str = "decode → features";
const TO_DETECT: &str = "features → detect";

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let code = error.exit_code();
            if code != 0 {
                eprintln!("scenes: {error}");
            }
            ExitCode::from(code)
        }
    }
}

fn run(options: &Options) -> Result<()> {
    let input = options.input();
    if options.generate {
        return generate(&input, &options.input().probe()?);
    }
    let header = input.probe()?;
    let (transports, note) = options.transports();
    if let Some(note) = note {
        eprintln!("scenes: {note}");
    }
    let mut report = Report::new(io::stdout().lock(), options.json);
    let format = header.format;
    let (name, workers, slots) = (input.name(), options.workers, options.slots);
    report.heading(&format!(
        "{name}, {}×{}; features workers: {workers}, slots: {slots}",
        format.width, format.height
    ))?;
    if let Input::Clip { .. } = input {
        report.heading(&format!("its cuts are at frames {:?}", clip::CUTS))?;
    }

    let mut found: Vec<Cut> = Vec::new();
    let mut runs = Vec::new();
    for transport in transports {
        let mut cuts = Vec::new();
        let first = runs.is_empty();
        let on_cut = |cut: Cut| {
            cuts.push(cut);
            if first { report.cut(&cut) } else { Ok(()) }
        };
        runs.push(match transport {
            Transport::Ring => in_line(&input, &header, on_cut)?,
            Transport::Serialized => through_pipes(&input, &header, options.workers, on_cut)?,
        });
        if first {
            found = cuts;
        } else if cuts != found {
            let problem = format!("the transports disagree: {found:?} and {cuts:?}");
            return Err(Error::transport(transport.name(), problem));
        }
    }
    report.close(found.len(), &runs)
}

fn generate(input: &Input, header: &Header) -> Result<()> {
    let source::Source::Clip(clip) = input.open(header)? else {
        return Err(Error::Options(
            "only the built-in clip can be generated".to_owned(),
        ));
    };
    clip::to_y4m(clip, io::stdout().lock()).map_err(|error| match error {
        y4m::Error::IoError(error) => Error::output(&error),
        error => Error::output(&io::Error::other(error)),
    })
}

/// The whole job in this thread.
fn in_line(
    input: &Input,
    header: &Header,
    mut on_cut: impl FnMut(Cut) -> Result<()>,
) -> Result<Run> {
    let start = Instant::now();
    let format = header.format;
    let mut source = input.open(header)?;
    let mut detector = Detector::new(format);
    let mut luma = vec![0; format.luma_len()];
    let mut chroma = vec![0; format.chroma_len()];
    let mut histogram = [0.0; HISTOGRAM];
    let mut blocks = [0.0; BLOCKS];
    while let Some(frame) = source.read(&mut luma, &mut chroma)? {
        features(&format, &luma, &chroma, &mut histogram, &mut blocks);
        for cut in detector.push(frame, &histogram, &blocks)? {
            on_cut(cut)?;
        }
    }
    let (frames, cuts) = detector.finish()?;
    for cut in cuts {
        on_cut(cut)?;
    }
    Ok(Run {
        transport: Transport::Ring,
        frames,
        seconds: start.elapsed().as_secs_f64(),
        hops: Vec::new(),
    })
}

/// The whole job with everything serialized through pipes.
fn through_pipes(
    input: &Input,
    header: &Header,
    workers: usize,
    on_cut: impl FnMut(Cut) -> Result<()>,
) -> Result<Run> {
    let start = Instant::now();
    let format = header.format;
    let pipe = |name: &str| {
        let ends =
            io::pipe().map_err(|error| Error::transport(name, format!("no pipe: {error}")))?;
        Ok((Receiver::new(name, ends.0, monotonic), ends.1))
    };
    let (features, features_out) = pipe(TO_DETECT)?;
    thread::scope(|scope| {
        let mut senders = Vec::new();
        let mut extracting = Vec::new();
        for _ in 0..workers {
            let (planes, planes_out) = pipe(TO_FEATURES)?;
            senders.push(Sender::new(TO_FEATURES, planes_out, monotonic));
            let out = features_out.try_clone();
            let out =
                out.map_err(|error| Error::transport(TO_DETECT, format!("no pipe: {error}")))?;
            let out = Sender::new(TO_DETECT, out, monotonic);
            extracting.push(scope.spawn(move || serialized::extract(&format, planes, out)));
        }
        drop(features_out);
        let decoding = scope.spawn(move || {
            let mut source = input.open(header)?;
            serialized::decode(&mut source, &format, &mut senders)
        });
        let detected = serialized::detect(&format, features, on_cut);

        let panicked = || Error::transport("thread", "panicked");
        let decoded = decoding.join().unwrap_or_else(|_| Err(panicked()));
        let extracted = extracting
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|_| Err(panicked())));
        let extracted: Result<Vec<HopTimes>> = extracted.collect();
        // Who loses its neighbour fails as well: an error that is not about the transport is the cause.
        let errors = [
            decoded.as_ref().err(),
            extracted.as_ref().err(),
            detected.as_ref().err(),
        ];
        let cause = |error: &&Error| !matches!(error, Error::Transport { .. });
        if let Some(error) = errors.into_iter().flatten().find(cause) {
            return Err(error.clone());
        }
        decoded?;
        let mut to_features = HopTimes::default();
        for times in extracted? {
            to_features.merge(&times);
        }
        let (frames, to_detect) = detected?;
        Ok(Run {
            transport: Transport::Serialized,
            frames,
            seconds: start.elapsed().as_secs_f64(),
            hops: vec![(TO_FEATURES, to_features), (TO_DETECT, to_detect)],
        })
    })
}

/// Nanoseconds of a clock that all processes of a machine share.
fn monotonic() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
