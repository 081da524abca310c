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
mod interrupt;
mod options;
mod order;
mod pipes;
mod report;
mod serialized;
mod source;
mod stages;
mod video;

use std::io;
use std::process::ExitCode;

use clap::Parser;
use tensormp::Queue;

use crate::detect::Cut;
use crate::error::{Error, Result};
use crate::hops::{Run, Transport};
use crate::options::Options;
use crate::report::Report;
use crate::source::Input;
use crate::video::Header;

/// The hops of a frame, by name.
const TO_FEATURES: &str = "decode → features";
const TO_DETECT: &str = "features → detect";
/// Cuts on their way to be printed.
const CUTS: usize = 16;

fn main() -> ExitCode {
    tensormp::init();
    let options = Options::parse();
    match interrupt::watch().and_then(|()| run(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) if interrupt::came() => {
            eprintln!("scenes: interrupted; all processes have been stopped");
            ExitCode::from(interrupt::EXIT_CODE)
        }
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
        return generate(&input, &input.probe()?);
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
        runs.push(through(transport, options, &header, on_cut)?);
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

/// The whole job in its processes. Cuts are handed to `on_cut` as they are found.
fn through(
    transport: Transport,
    options: &Options,
    header: &Header,
    mut on_cut: impl FnMut(Cut) -> Result<()>,
) -> Result<Run> {
    let (found, cuts) = Queue::bounded(CUTS)?.split();
    let input = options.input();
    let mut print_all = || cuts.iter().try_for_each(&mut on_cut);
    match transport {
        Transport::Ring => {
            let running = stages::start(&input, header, options.workers, options.slots, found)?;
            let stopper = running.stopper();
            let _guard = interrupt::Guard::over(move || stopper.terminate());
            // On an error (nobody reads the results any more) dropping `running` stops the processes.
            print_all()?;
            stages::finish(running)
        }
        Transport::Serialized => {
            let running = pipes::start(&input, header, options.workers, found)?;
            let stopper = running.stopper();
            let _guard = interrupt::Guard::over(move || stopper.terminate());
            print_all()?;
            pipes::finish(running)
        }
    }
}

/// Nanoseconds of a clock that all processes of a machine share.
fn monotonic() -> u64 {
    tensormp::shm_core::clock::now_ns()
}
