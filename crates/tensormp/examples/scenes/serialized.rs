//! The transport to compare with: the same job, with every tensor serialized into a pipe and out of it again.
//!
//! A message is a small header (which frame, when it was published, dtype and shape of each tensor) and the tensors'
//! bytes, as when an array is pickled into a multiprocessing pipe. It is kept as quick as it can be: large tensors are
//! written from where they are and read to where they are used, without the copy in between that pickle would make.
//!
//! Several senders may share a pipe as long as their messages are at most [`ATOMIC`] bytes long: those are written at
//! once, and the system does not mix them up. Features are that small.

use std::io::{BufReader, ErrorKind, Read, Write};

use crate::detect::{Cut, Detector};
use crate::error::{Error, Result};
use crate::features::{BLOCKS, GRID, HISTOGRAM, features};
use crate::hops::HopTimes;
use crate::source::Source;
use crate::video::Format;

/// What a pipe takes as a whole (`PIPE_BUF` on Linux).
const ATOMIC: usize = 4096;
const LONGEST_HEADER: usize = 1024;
const LARGEST_TENSOR: u64 = 1 << 32;

/// A tensor to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing<'a> {
    pub(crate) shape: &'a [usize],
    pub(crate) values: Values<'a>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Values<'a> {
    U8(&'a [u8]),
    F32(&'a [f32]),
}

/// A tensor that arrived.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Incoming {
    dtype: u8,
    shape: Vec<u64>,
    bytes: Vec<u8>,
}

const U8: u8 = 0;
const F32: u8 = 1;

/// The sending end of a pipe.
pub(crate) struct Sender<W, C> {
    name: String,
    out: W,
    clock: C,
    message: Vec<u8>,
}

impl<W: Write, C: Fn() -> u64> Sender<W, C> {
    /// `clock` reads nanoseconds of a clock that the receiver shares. `name` is what errors call the pipe.
    pub(crate) fn new(name: impl Into<String>, out: W, clock: C) -> Self {
        Self {
            name: name.into(),
            out,
            clock,
            message: Vec::new(),
        }
    }

    /// Sends one frame's tensors.
    pub(crate) fn send(&mut self, frame: u64, tensors: &[Outgoing<'_>]) -> Result<()> {
        let published = (self.clock)();
        let message = &mut self.message;
        message.clear();
        message.extend_from_slice(&[0; 4]);
        message.extend_from_slice(&frame.to_le_bytes());
        message.extend_from_slice(&published.to_le_bytes());
        for tensor in tensors {
            let dtype = match tensor.values {
                Values::U8(_) => U8,
                Values::F32(_) => F32,
            };
            message.extend_from_slice(&[dtype, tensor.shape.len() as u8]);
            for &length in tensor.shape {
                message.extend_from_slice(&(length as u64).to_le_bytes());
            }
        }
        let header = (message.len() - 4) as u32;
        message[..4].copy_from_slice(&header.to_le_bytes());

        let failed = |error: std::io::Error| {
            Error::transport(
                &*self.name,
                format!("sending frame {frame} failed: {error}"),
            )
        };
        for tensor in tensors {
            match tensor.values {
                Values::F32(values) => {
                    message.extend(values.iter().flat_map(|value| value.to_le_bytes()))
                }
                Values::U8(values) if message.len() + values.len() <= ATOMIC => {
                    message.extend_from_slice(values)
                }
                Values::U8(values) => {
                    self.out.write_all(message).map_err(failed)?;
                    message.clear();
                    self.out.write_all(values).map_err(failed)?;
                }
            }
        }
        self.out.write_all(message).map_err(failed)
    }
}

/// The receiving end of a pipe.
pub(crate) struct Receiver<R, C> {
    name: String,
    input: BufReader<R>,
    clock: C,
    tensors: Vec<Incoming>,
    times: HopTimes,
}

impl<R: Read, C: Fn() -> u64> Receiver<R, C> {
    pub(crate) fn new(name: impl Into<String>, input: R, clock: C) -> Self {
        Self {
            name: name.into(),
            // One reading takes in a small message; larger tensors pass the buffer by.
            input: BufReader::with_capacity(ATOMIC, input),
            clock,
            tensors: Vec::new(),
            times: HopTimes::default(),
        }
    }

    /// Waits for the next frame's tensors and notes how long they took. Returns the frame's number and the tensors,
    /// or nothing when all senders have closed the pipe.
    pub(crate) fn receive(&mut self) -> Result<Option<(u64, &[Incoming])>> {
        let asked = (self.clock)();
        let mut length = [0; 4];
        if !self.fill_or_end(&mut length)? {
            return Ok(None);
        }
        let length = u32::from_le_bytes(length) as usize;
        if !(16..=LONGEST_HEADER).contains(&length) {
            return Err(self.broken(format!("a message header of {length} bytes")));
        }
        let mut header = [0; LONGEST_HEADER];
        let header = &mut header[..length];
        self.fill(header)?;
        let mut header = Fields(header);
        let (frame, published) = (header.number(), header.number());
        let (Some(frame), Some(published)) = (frame, published) else {
            return Err(self.broken("a message header without a frame number".to_owned()));
        };

        let mut count = 0;
        while !header.0.is_empty() {
            if self.tensors.len() == count {
                self.tensors.push(Incoming::default());
            }
            let mut tensor = std::mem::take(&mut self.tensors[count]);
            let Some(bytes) = header.describe(&mut tensor) else {
                return Err(self.broken(format!(
                    "frame {frame} with a damaged description of tensor {count}"
                )));
            };
            tensor.bytes.resize(bytes, 0);
            self.fill(&mut tensor.bytes)?;
            self.tensors[count] = tensor;
            count += 1;
        }
        let borrowed = (self.clock)();
        self.times.record(published, asked, borrowed);
        Ok(Some((frame, &self.tensors[..count])))
    }

    /// The times of all messages so far.
    pub(crate) fn into_times(self) -> HopTimes {
        self.times
    }

    fn fill(&mut self, buffer: &mut [u8]) -> Result<()> {
        if buffer.is_empty() || self.fill_or_end(buffer)? {
            return Ok(());
        }
        Err(self.broken("a message that is cut short".to_owned()))
    }

    /// Fills the buffer. False: the pipe had ended before the first byte.
    fn fill_or_end(&mut self, buffer: &mut [u8]) -> Result<bool> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.input.read(&mut buffer[filled..]) {
                Ok(0) if filled == 0 => return Ok(false),
                Ok(0) => return Err(self.broken("a message that is cut short".to_owned())),
                Ok(count) => filled += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    return Err(Error::transport(
                        &*self.name,
                        format!("receiving failed: {error}"),
                    ));
                }
            }
        }
        Ok(true)
    }

    fn broken(&self, what: String) -> Error {
        Error::transport(&*self.name, format!("received {what}"))
    }
}

/// What is left of a message header.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn number(&mut self) -> Option<u64> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*number))
    }

    /// Reads one tensor's dtype and shape, and returns how many bytes it has.
    fn describe(&mut self, tensor: &mut Incoming) -> Option<usize> {
        let (&[dtype, dimensions], rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        tensor.dtype = dtype;
        tensor.shape.clear();
        let mut bytes: u64 = match dtype {
            U8 => 1,
            F32 => 4,
            _ => return None,
        };
        for _ in 0..dimensions {
            let length = self.number()?;
            tensor.shape.push(length);
            bytes = bytes
                .checked_mul(length)
                .filter(|&bytes| bytes <= LARGEST_TENSOR)?;
        }
        usize::try_from(bytes).ok()
    }
}

impl Incoming {
    fn u8s(&self) -> Option<&[u8]> {
        (self.dtype == U8).then_some(&self.bytes)
    }

    fn f32s<const N: usize>(&self) -> Option<[f32; N]> {
        let (values, rest) = self.bytes.as_chunks::<4>();
        if self.dtype != F32 || values.len() != N || !rest.is_empty() {
            return None;
        }
        Some(std::array::from_fn(|index| {
            f32::from_le_bytes(values[index])
        }))
    }
}

/// The process that decodes: sends each frame's planes to the next worker in turn. Returns the number of frames.
pub(crate) fn decode<W: Write, C: Fn() -> u64>(
    source: &mut Source,
    format: &Format,
    workers: &mut [Sender<W, C>],
) -> Result<u64> {
    let mut luma = vec![0; format.luma_len()];
    let mut chroma = vec![0; format.chroma_len()];
    let mut frames = 0;
    while let Some(frame) = source.read(&mut luma, &mut chroma)? {
        let turn = frame as usize % workers.len();
        let planes = [
            Outgoing {
                shape: &[format.height, format.width],
                values: Values::U8(&luma),
            },
            Outgoing {
                shape: &[2, format.chroma_height, format.chroma_width],
                values: Values::U8(&chroma),
            },
        ];
        workers[turn].send(frame, &planes)?;
        frames += 1;
    }
    Ok(frames)
}

/// A worker: turns planes into features. Returns the times of the hop from the decoder.
pub(crate) fn extract<R: Read, W: Write, C: Fn() -> u64>(
    format: &Format,
    mut planes: Receiver<R, C>,
    mut out: Sender<W, C>,
) -> Result<HopTimes> {
    let mut histogram = [0.0; HISTOGRAM];
    let mut blocks = [0.0; BLOCKS];
    while let Some((frame, tensors)) = planes.receive()? {
        let fitting = match tensors {
            [luma, chroma] => luma.u8s().zip(chroma.u8s()),
            _ => None,
        };
        let fitting = fitting.filter(|(luma, chroma)| {
            (luma.len(), chroma.len()) == (format.luma_len(), format.chroma_len())
        });
        let Some((luma, chroma)) = fitting else {
            return Err(planes.broken(format!("frame {frame}, whose planes do not fit the video")));
        };
        features(format, luma, chroma, &mut histogram, &mut blocks);
        let features = [
            Outgoing {
                shape: &[HISTOGRAM],
                values: Values::F32(&histogram),
            },
            Outgoing {
                shape: &[3, GRID.1, GRID.0],
                values: Values::F32(&blocks),
            },
        ];
        out.send(frame, &features)?;
    }
    Ok(planes.into_times())
}

/// The process that detects: hands each cut to `found`. Returns the number of frames and the times of the hop from
/// the workers.
pub(crate) fn detect<R: Read, C: Fn() -> u64>(
    format: &Format,
    mut features: Receiver<R, C>,
    mut found: impl FnMut(Cut) -> Result<()>,
) -> Result<(u64, HopTimes)> {
    let mut detector = Detector::new(*format);
    while let Some((frame, tensors)) = features.receive()? {
        let fitting = match tensors {
            [histogram, blocks] => histogram.f32s::<HISTOGRAM>().zip(blocks.f32s::<BLOCKS>()),
            _ => None,
        };
        let Some((histogram, blocks)) = fitting else {
            return Err(features.broken(format!("frame {frame}, whose tensors are no features")));
        };
        for cut in detector.push(frame, &histogram, &blocks)? {
            found(cut)?;
        }
    }
    let (frames, cuts) = detector.finish()?;
    for cut in cuts {
        found(cut)?;
    }
    Ok((frames, features.into_times()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clip::{CUTS, Clip, FRAMES};
    use std::cell::Cell;

    fn message(frame: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        let planes = [
            Outgoing {
                shape: &[2, 3],
                values: Values::U8(&[1, 2, 3, 4, 5, 6]),
            },
            Outgoing {
                shape: &[2],
                values: Values::F32(&[0.5, -1.0]),
            },
        ];
        Sender::new("test", &mut bytes, || 100)
            .send(frame, &planes)
            .unwrap();
        bytes
    }

    #[test]
    fn what_is_sent_arrives_with_its_shape_and_its_time() {
        let stream = [message(7), message(8)].concat();
        let now = Cell::new(90);
        let clock = || {
            now.set(now.get() + 30);
            now.get()
        };
        let mut receiver = Receiver::new("test", stream.as_slice(), clock);
        let (frame, tensors) = receiver.receive().unwrap().expect("a message");
        assert_eq!(frame, 7);
        assert_eq!(
            (&tensors[0].shape[..], tensors[0].u8s()),
            (&[2, 3][..], Some(&[1, 2, 3, 4, 5, 6][..]))
        );
        assert_eq!(
            (&tensors[1].shape[..], tensors[1].f32s()),
            (&[2][..], Some([0.5, -1.0]))
        );
        assert_eq!(receiver.receive().unwrap().expect("a message").0, 8);
        assert!(receiver.receive().unwrap().is_none());
        // Asked at 120 and 180, borrowed at 150 and 210; published at 100.
        let times = receiver.into_times();
        assert_eq!(
            (times.hop.quantile(0.5), times.hand_over.quantile(1.0)),
            (Some(50), Some(30))
        );
    }

    #[test]
    fn large_tensors_arrive_whole() {
        let plane: Vec<u8> = (0..100_000).map(|index| (index % 251) as u8).collect();
        let tensor = Outgoing {
            shape: &[100, 1000],
            values: Values::U8(&plane),
        };
        let mut stream = Vec::new();
        Sender::new("test", &mut stream, || 0)
            .send(0, &[tensor, tensor])
            .unwrap();
        let mut receiver = Receiver::new("test", stream.as_slice(), || 0);
        let (_, tensors) = receiver.receive().unwrap().expect("a message");
        assert!(
            tensors
                .iter()
                .all(|tensor| tensor.u8s() == Some(&plane[..]))
        );
    }

    #[test]
    fn a_message_cut_short_or_damaged_is_an_error() {
        let whole = message(7);
        for length in 1..whole.len() {
            let mut receiver = Receiver::new("decode → features", &whole[..length], || 0);
            let error = receiver.receive().unwrap_err();
            assert_eq!(
                error.to_string(),
                "decode → features: received a message that is cut short"
            );
            assert_eq!(error.exit_code(), 1);
        }
        for (at, value) in [(0, 3), (3, 255), (20, 9), (21, 255), (29, 255)] {
            let mut damaged = whole.clone();
            damaged[at] = value;
            let mut receiver = Receiver::new("test", damaged.as_slice(), || 0);
            assert!(receiver.receive().is_err(), "byte {at}");
        }
    }

    #[test]
    fn the_job_through_pipes_finds_the_known_cuts() {
        let clip = Clip::new(160, 90, 1);
        let format = clip.format();
        let clock = || 0;
        let (features_in, features_out) = std::io::pipe().unwrap();
        let cuts = std::thread::scope(|scope| {
            let mut workers = Vec::new();
            for _ in 0..2 {
                let (planes_in, planes_out) = std::io::pipe().unwrap();
                workers.push(Sender::new("planes", planes_out, clock));
                let planes = Receiver::new("planes", planes_in, clock);
                let features = Sender::new("features", features_out.try_clone().unwrap(), clock);
                scope.spawn(move || extract(&format, planes, features).unwrap());
            }
            drop(features_out);
            scope.spawn(move || decode(&mut Source::Clip(clip), &format, &mut workers).unwrap());
            let mut cuts = Vec::new();
            let features = Receiver::new("features", features_in, clock);
            let (frames, times) = detect(&format, features, |cut| {
                cuts.push(cut.frame);
                Ok(())
            })
            .unwrap();
            assert_eq!((frames, times.hop.count()), (FRAMES, FRAMES));
            cuts
        });
        assert_eq!(cuts, CUTS);
    }
}
