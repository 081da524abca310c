//! Device tensors between the two processes: attaching to memory, what a hand-over costs each host, how soon the other
//! device's stream may read, copies of what was received, and many small ones.
//!
//! Side A makes the tensors; each travels to side B by one lane and back by another, so that a batch leaves everything as it
//! was. Needs a GPU. On the emulated driver nothing is timed: `--emulated` counts the driver's calls instead.

use cuda_ipc::{Device, DeviceTensor, Stream};
use mp_queue::{LaneReceiver, LaneSender, WaitPolicy, pair_in};
use shm_core::Arena;
use shm_core::letterbox::Letterbox;

use super::memory::Idle;
use super::subject::{Connection, End, Link, Side, Subject};
use super::{arena, clock, payload};
use crate::Result;

const MIB: usize = 1 << 20;
/// What is handed over where the size plays no part.
const HANDED: usize = MIB;
/// What is copied.
const COPIED: usize = 256 * MIB;
/// How many small tensors travel in a message, and how small.
const MANY: usize = 1000;
const SMALL: usize = 4096;
/// Set where calls are counted: then nothing is verified, which would be calls, too.
pub(crate) const COUNTING: &str = "TENSORMP_BENCH_COUNTING";

/// What is measured.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// The first tensor of an allocation of so many bytes is received.
    Attach(usize),
    /// A tensor of memory that is known is sent.
    Put,
    /// And received.
    Get,
    /// From the call that writes a tensor in A to the end of a copy of it in B.
    Latency,
    /// A received tensor is copied on its device.
    CopyReceived,
    /// The same of one's own: the floor.
    CopyOwn,
    /// Small tensors, a thousand to a message.
    Small,
}

/// What is measured against a cache line between the two processes.
pub(crate) const HANDOVERS: [Act; 6] = [
    Act::Attach(64 * MIB),
    Act::Attach(1 << 30),
    Act::Put,
    Act::Get,
    Act::Latency,
    Act::Small,
];

/// The messages: when something began, and what is handed over.
type Parcel = (u64, Vec<DeviceTensor<u8>>);
/// Both lanes of a side, and those by which it says that a message is there.
type Lanes = (
    LaneSender<Parcel>,
    LaneReceiver<Parcel>,
    LaneSender<u64>,
    LaneReceiver<u64>,
);

#[derive(Copy, Clone, Debug)]
pub(crate) struct Cuda(pub(crate) Act);

impl Subject for Cuda {
    fn name(&self) -> String {
        match self.0 {
            Act::Attach(bytes) if bytes < 1 << 30 => format!("device attach {}MB", bytes / MIB),
            Act::Attach(bytes) => format!("device attach {}GiB", bytes >> 30),
            Act::Put => "device put".to_owned(),
            Act::Get => "device get".to_owned(),
            Act::Latency => "device to device".to_owned(),
            Act::CopyReceived => "device copy received 256MiB".to_owned(),
            Act::CopyOwn => "device copy own 256MiB".to_owned(),
            Act::Small => "device get 4KiB, of 1000".to_owned(),
        }
    }

    fn metric(&self) -> &'static str {
        match self.0 {
            Act::Attach(_) => "attach_ns",
            Act::Put | Act::Get | Act::Small => "host_ns",
            Act::Latency => "one_way_ns",
            Act::CopyReceived | Act::CopyOwn => "copy_ns",
        }
    }

    fn batch(&self) -> usize {
        match self.0 {
            Act::Attach(_) => 4,
            Act::Small => 5,
            Act::CopyReceived | Act::CopyOwn => 10,
            Act::Put | Act::Get | Act::Latency => 100,
        }
    }

    fn prepare(&self) -> Result<(), String> {
        if cuda_emulator::is_inherited() && !cfg!(debug_assertions) {
            return Err("the driver is the emulated one, whose times mean nothing".to_owned());
        }
        let devices = cuda_ipc::devices().map_err(|error| error.to_string())?;
        match devices.is_empty() {
            true => Err("there is no device".to_owned()),
            false => Ok(()),
        }
    }

    fn connect(&self) -> Result<Connection> {
        if self.0 == Act::CopyOwn {
            return Ok(Connection::of(Vec::new(), Vec::new()));
        }
        let arena = Arena::builder().create()?;
        let (to_b, from_a) = pair_in::<Parcel>(&arena, 8)?;
        let (to_a, from_b) = pair_in::<Parcel>(&arena, 8)?;
        let (bell_b, heard_a) = pair_in::<u64>(&arena, 8)?;
        let (bell_a, heard_b) = pair_in::<u64>(&arena, 8)?;
        arena::connect(
            arena,
            (to_b, from_b, bell_b, heard_b),
            (to_a, from_a, bell_a, heard_a),
        )
    }

    fn open(&self, side: Side, link: Link) -> Result<Box<dyn End>> {
        if self.0 == Act::CopyOwn {
            // In the arena of the subject that it is compared with, which is opened first.
            return match side {
                Side::A => Ok(Box::new(Idle)),
                Side::B => Ok(Box::new(Copier(None))),
            };
        }
        let ([descriptor], [line, generation]) = (
            <[_; 1]>::try_from(link.descriptors).map_err(|_| "needs the arena's descriptor")?,
            <[u64; 2]>::try_from(link.words).map_err(|_| "needs the handle of a letterbox")?,
        );
        let arena = Arena::join(descriptor)?;
        // Device tensors live in the process's own arena.
        Arena::install_current(arena.clone())?;
        let lanes: Option<Lanes> = Letterbox::open(&arena, [line, generation])?.try_recv()?;
        let (to, from, bell, heard) = lanes.ok_or("nothing was sent to this end")?;
        Ok(Box::new(DeviceEnd {
            act: self.0,
            side,
            to: to.with_policy(WaitPolicy::Spin),
            from: from.with_policy(WaitPolicy::Spin),
            bell: bell.with_policy(WaitPolicy::Spin),
            heard: heard.with_policy(WaitPolicy::Spin),
            stream: Stream::new(Device::new(0)?)?,
            ready: None,
            verifies: std::env::var_os(COUNTING).is_none(),
            number: 0,
        }))
    }
}

struct DeviceEnd {
    act: Act,
    side: Side,
    to: LaneSender<Parcel>,
    from: LaneReceiver<Parcel>,
    bell: LaneSender<u64>,
    heard: LaneReceiver<u64>,
    stream: Stream,
    /// What A sends again and again; what B keeps to copy.
    ready: Option<Vec<DeviceTensor<u8>>>,
    verifies: bool,
    number: u64,
}

impl DeviceEnd {
    fn put(&mut self, parcel: Parcel) -> Result<()> {
        Ok(self.to.put(parcel).map_err(|failed| failed.to_string())?)
    }

    /// A: what is to be sent, with contents of this round.
    fn load(&mut self) -> Result<Vec<DeviceTensor<u8>>> {
        let bytes = match self.act {
            Act::Attach(bytes) => bytes,
            Act::Small => SMALL,
            Act::CopyReceived => COPIED,
            _ => HANDED,
        };
        let count = if self.act == Act::Small { MANY } else { 1 };
        let mut tensors = match self.ready.take() {
            Some(tensors) => tensors,
            None => {
                let make = |_| DeviceTensor::zeros_on(&self.stream, [bytes]);
                (0..count).map(make).collect::<Result<_, _>>()?
            }
        };
        if self.verifies && bytes == HANDED {
            let mut marked = vec![1; bytes];
            payload::mark(&mut marked, self.number);
            tensors[0].copy_from_slice(&marked)?;
        }
        Ok(tensors)
    }

    /// B: looks at what came.
    fn verify(&self, tensors: &[DeviceTensor<u8>]) -> Result<()> {
        match tensors {
            [tensor] if self.verifies && tensor.numel() == HANDED => {
                payload::check(&tensor.to_vec()?, self.number)
            }
            _ => Ok(()),
        }
    }

    /// One round in A; its sample, if it takes one.
    fn begin(&mut self) -> Result<Option<u64>> {
        if self.act == Act::CopyReceived && self.number > 1 {
            return Ok(None);
        }
        let mut tensors = self.load()?;
        // What was uploaded or made is not part of what is measured.
        self.settle()?;
        let began = clock::now();
        if self.act == Act::Latency {
            tensors[0].clear()?;
        }
        self.put((began, tensors))?;
        let took = clock::now() - began;
        // B may look now, without waiting.
        self.bell
            .put(self.number)
            .map_err(|failed| failed.to_string())?;
        if self.act == Act::CopyReceived {
            return Ok(None);
        }
        let (_, tensors) = self.from.get()?;
        match self.act {
            Act::Attach(_) => {
                // Each time another allocation: what nobody has open any more goes back to the device.
                drop(tensors);
                cuda_ipc::collect();
            }
            _ => self.ready = Some(tensors),
        }
        Ok((self.act == Act::Put).then_some(took))
    }

    /// The same in B.
    fn answer(&mut self) -> Result<Option<u64>> {
        if self.act == Act::CopyReceived {
            return self.copy_received().map(Some);
        }
        if self.act != Act::Latency {
            let mut first = self.take_when_ready()?;
            let took = first.0;
            self.verify(&first.1)?;
            if let Act::Attach(_) = self.act {
                // A waits until this process has closed the memory.
                first.1.clear();
                cuda_ipc::collect();
            }
            self.put((0, first.1))?;
            let taken = matches!(self.act, Act::Get | Act::Attach(_) | Act::Small);
            let each = if self.act == Act::Small {
                MANY as u64
            } else {
                1
            };
            return Ok(taken.then_some(took / each));
        }
        let (began, tensors) = self.from.get()?;
        let copy = self
            .stream
            .scope(|| tensors[0].to_device(self.stream.device()))?;
        self.stream.synchronize()?;
        let took = clock::now() - began;
        self.heard.get()?;
        if self.verifies && copy.to_vec()?.iter().any(|&byte| byte != 0) {
            return Err("what was cleared in the other process is not zero here".into());
        }
        self.put((0, tensors))?;
        Ok(Some(took))
    }

    /// The tensors, and how long it took to receive them once they were there.
    fn take_when_ready(&mut self) -> Result<Parcel> {
        self.heard.get()?;
        let began = clock::now();
        let (_, tensors) = self.from.get()?;
        Ok((clock::now() - began, tensors))
    }

    fn copy_received(&mut self) -> Result<u64> {
        if self.ready.is_none() {
            let (_, tensors) = self.take_when_ready()?;
            self.ready = Some(tensors);
        }
        let source = self
            .ready
            .as_ref()
            .and_then(|tensors| tensors.first())
            .ok_or("nothing came")?;
        copy(source, &self.stream)
    }

    fn settle(&self) -> Result<()> {
        match self.verifies {
            true => Ok(self.stream.synchronize()?),
            false => Ok(()),
        }
    }
}

/// How long a copy takes until it is done.
fn copy(source: &DeviceTensor<u8>, stream: &Stream) -> Result<u64> {
    stream.synchronize()?;
    let began = clock::now();
    let copy = stream.scope(|| source.to_device(stream.device()))?;
    stream.synchronize()?;
    let took = clock::now() - began;
    drop(copy);
    Ok(took)
}

impl End for DeviceEnd {
    fn run(&mut self, samples: usize) -> Result<Vec<u64>> {
        let mut taken = Vec::with_capacity(samples);
        for _ in 0..samples {
            self.number += 1;
            let sample = match self.side {
                Side::A => self.begin()?,
                Side::B => self.answer()?,
            };
            taken.extend(sample);
        }
        Ok(taken)
    }
}

/// Copies memory of its own process.
struct Copier(Option<(Stream, DeviceTensor<u8>)>);

impl End for Copier {
    fn run(&mut self, samples: usize) -> Result<Vec<u64>> {
        if self.0.is_none() {
            let stream = Stream::new(Device::new(0)?)?;
            let source = DeviceTensor::zeros_on(&stream, [COPIED])?;
            self.0 = Some((stream, source));
        }
        let (stream, source) = self.0.as_ref().ok_or("made just now")?;
        (0..samples).map(|_| copy(source, stream)).collect()
    }
}
