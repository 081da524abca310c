//! The same job in as many processes, with every tensor serialized through pipes.

use std::fs::{File, OpenOptions};
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tensormp::{Barrier, Group, Process, SpawnContext, Stdin};

use crate::detect::Cut;
use crate::error::{Error, Result};
use crate::hops::{HopTimes, Run, Transport};
use crate::serialized::{self, Receiver, Sender};
use crate::source::Input;
use crate::video::{Format, Header};
use crate::{TO_DETECT, TO_FEATURES, monotonic};

/// A pipe whose ends a child opens for itself.
struct Pipe {
    name: &'static str,
    ends: (PipeReader, PipeWriter),
}

/// Where a child finds an end of a pipe, while this process has it open.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PipeEnd {
    name: String,
    path: PathBuf,
}

impl Pipe {
    fn new(name: &'static str) -> Result<Self> {
        let ends =
            io::pipe().map_err(|error| Error::transport(name, format!("no pipe: {error}")))?;
        Ok(Self { name, ends })
    }

    fn end(&self, end: &impl AsFd) -> PipeEnd {
        let number = end.as_fd().as_raw_fd();
        let path = format!("/proc/{}/fd/{number}", std::process::id()).into();
        PipeEnd {
            name: self.name.to_owned(),
            path,
        }
    }
}

impl PipeEnd {
    fn open(&self, options: &OpenOptions) -> Result<File> {
        options
            .open(&self.path)
            .map_err(|error| Error::transport(&*self.name, format!("cannot be opened: {error}")))
    }

    fn receiver(&self) -> Result<Receiver<File, fn() -> u64>> {
        let file = self.open(OpenOptions::new().read(true))?;
        Ok(Receiver::new(&*self.name, file, monotonic))
    }

    fn sender(&self) -> Result<Sender<File, fn() -> u64>> {
        let file = self.open(OpenOptions::new().write(true))?;
        Ok(Sender::new(&*self.name, file, monotonic))
    }
}

/// What a process brings home.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Part {
    Decoded(Result<u64>),
    Extracted(HopTimes),
    Detected(u64, HopTimes),
}

/// Processes that run, and when they started.
pub(crate) struct Running {
    context: SpawnContext<Part>,
    started: u64,
}

impl Running {
    pub(crate) fn stopper(&self) -> tensormp::spawn_api::Stopper {
        self.context.stopper()
    }
}

/// Starts the processes. Each cut goes into `found` when it is certain.
pub(crate) fn start(
    input: &Input,
    header: &Header,
    workers: usize,
    found: tensormp::Sender<Cut>,
) -> Result<Running> {
    let format = header.format;
    let to_detect = Pipe::new(TO_DETECT)?;
    let to_workers = (0..workers)
        .map(|_| Pipe::new(TO_FEATURES))
        .collect::<Result<Vec<_>>>()?;
    let processes =
        u32::try_from(workers + 3).map_err(|_| Error::Options(format!("{workers} workers")))?;
    // This process is one of those who wait: it closes its ends once all others have opened theirs.
    let opened = Barrier::new(processes)?;

    let mut group = Group::new();
    let stdin = match input {
        Input::Stdin => Stdin::Inherit,
        Input::File(_) | Input::Clip { .. } => Stdin::Null,
    };
    let outs: Vec<_> = to_workers
        .iter()
        .map(|pipe| pipe.end(&pipe.ends.1))
        .collect();
    let decode = Process::named("decode").stdin(stdin);
    group.add(
        decode,
        decode_frames,
        (input.clone(), *header, outs, opened.clone()),
    )?;
    for pipe in &to_workers {
        let ends = (pipe.end(&pipe.ends.0), to_detect.end(&to_detect.ends.1));
        group.add(
            "features",
            extract,
            (format, ends.0, ends.1, opened.clone()),
        )?;
    }
    let end = to_detect.end(&to_detect.ends.0);
    group.add("detect", detect, (format, end, found, opened.clone()))?;
    let mut context = group.start()?;
    if let Err(error) = opened.wait() {
        // The context tells better what became of its process.
        context.join()?;
        return Err(error.into());
    }
    Ok(Running {
        context,
        started: monotonic(),
    })
}

/// Waits for the end and gathers the figures.
pub(crate) fn finish(mut running: Running) -> Result<Run> {
    let parts = running.context.join()?.to_vec();
    let seconds = (monotonic() - running.started) as f64 / 1e9;
    let mut to_features = HopTimes::default();
    let mut to_detect = HopTimes::default();
    let mut frames = 0;
    for part in parts {
        match part {
            Part::Decoded(outcome) => drop(outcome?),
            Part::Extracted(times) => to_features.merge(&times),
            Part::Detected(seen, times) => {
                frames = seen;
                to_detect.merge(&times);
            }
        }
    }
    Ok(Run {
        transport: Transport::Serialized,
        frames,
        seconds,
        hops: vec![(TO_FEATURES, to_features), (TO_DETECT, to_detect)],
    })
}

fn decode_frames(
    _rank: usize,
    (input, header, outs, opened): (Input, Header, Vec<PipeEnd>, Barrier),
) -> tensormp::Result<Part> {
    let mut source = input.open(&header).map_err(boxed)?;
    let mut senders = outs
        .iter()
        .map(PipeEnd::sender)
        .collect::<Result<Vec<_>>>()
        .map_err(boxed)?;
    opened.wait()?;
    let decoded = serialized::decode(&mut source, &header.format, &mut senders);
    match decoded {
        // What is wrong with the input is no failure of the process: frames before that place count.
        Ok(_) | Err(Error::Input { .. }) => Ok(Part::Decoded(decoded)),
        Err(error) => Err(boxed(error)),
    }
}

fn extract(
    _rank: usize,
    (format, planes, out, opened): (Format, PipeEnd, PipeEnd, Barrier),
) -> tensormp::Result<Part> {
    let planes = planes.receiver().map_err(boxed)?;
    let out = out.sender().map_err(boxed)?;
    opened.wait()?;
    serialized::extract(&format, planes, out)
        .map(Part::Extracted)
        .map_err(boxed)
}

fn detect(
    _rank: usize,
    (format, features, found, opened): (Format, PipeEnd, tensormp::Sender<Cut>, Barrier),
) -> tensormp::Result<Part> {
    let features = features.receiver().map_err(boxed)?;
    opened.wait()?;
    let put = |cut| {
        found
            .put(cut)
            .map_err(|error| Error::transport("cuts", error.to_string()))
    };
    let (frames, times) = serialized::detect(&format, features, put).map_err(boxed)?;
    Ok(Part::Detected(frames, times))
}

fn boxed(error: Error) -> tensormp::Error {
    tensormp::Error::Other(Box::new(error))
}
