//! What cudarc's streams do with a view of a tensor: an event behind it, for each of them.
//!
//! cudarc has two ways to be told that a use is over: it records an event, but only in a context that tracks events and has
//! made a stream, which is not so by default; or the thread waits for the stream. A thread that waited could do so for ever,
//! behind a process that was killed. So the event is recorded by way of a context of this crate, which stands for the same
//! context of the driver and does track events, whatever the program told its own.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError, SyncOnDrop};
use parking_lot::Mutex;

use crate::awaits::Borrowed;
use crate::company::Company;
use crate::device::Device;
use crate::driver::RawEvent;
use crate::error::{Error, ErrorKind, Result};
use crate::interop::device_of;
use crate::lent::PER_THREAD;
use crate::stream::Stream;

/// A stream of cudarc for as long as it is borrowed, looked up once.
pub(crate) struct Theirs<'a> {
    cudarc: &'a CudaStream,
    pub(crate) device: Device,
    /// None where it is that of this thread, which is another one in each.
    pub(crate) ours: Option<Stream>,
}

impl<'a> Theirs<'a> {
    pub(crate) fn of(cudarc: &'a CudaStream) -> Result<Self> {
        let device = device_of(cudarc)?;
        let ours = match cudarc.cu_stream().addr() {
            PER_THREAD => None,
            // SAFETY: it is used only as long as the stream is borrowed.
            raw => Some(unsafe { Stream::from_raw(device, raw) }?),
        };
        Ok(Self {
            cudarc,
            device,
            ours,
        })
    }

    /// As the driver calls it.
    fn name(&self) -> Borrowed {
        Borrowed {
            raw: self.cudarc.cu_stream().addr(),
            id: self.ours.as_ref().and_then(Stream::id),
        }
    }

    /// With which other streams it is ordered by the driver: that of a thread takes part as well.
    fn company(&self) -> Arc<Company> {
        let ours = self.ours.as_ref().map(Stream::company);
        ours.unwrap_or_else(|| Company::of_blocking(self.device))
    }
}

/// An event behind what was done with a view in one stream of cudarc, and those of other streams.
pub(crate) struct Used {
    /// The device of the stream, which may be another one than the tensor's.
    device: Device,
    stream: Borrowed,
    event: CudaEvent,
    /// The stream, in a context that records; none where it is of a context that is no device's primary one.
    through: Option<Arc<CudaStream>>,
    /// With which other streams it is ordered by the driver.
    company: Arc<Company>,
    next: OnceLock<Box<Self>>,
}

impl Used {
    pub(crate) fn new(theirs: &Theirs<'_>) -> Result<Self> {
        let (stream, device) = (theirs.cudarc, theirs.device);
        let recording = recording(device)?;
        let is_same = *recording.context == **stream.context();
        let through = is_same.then(|| {
            // SAFETY: it is a stream of that context, and is used while the program's own is borrowed.
            unsafe { recording.context.wrap_borrowed_stream(stream.cu_stream()) }
        });
        let context = match is_same {
            true => &recording.context,
            false => stream.context(),
        };
        Ok(Self {
            device,
            stream: theirs.name(),
            event: context.new_event(None).map_err(told)?,
            through,
            company: theirs.company(),
            next: OnceLock::new(),
        })
    }

    /// It, and those behind it.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |used| used.next.get().map(|next| &**next))
    }

    /// What is put into `stream` from now on waits for the event, and so for what the event's stream waits for. One that was
    /// never recorded is no wait.
    pub(crate) fn is_waited_for_by(&self, stream: &Stream) -> Result<()> {
        let (ordinal, raw) = (self.device.ordinal(), self.event.cu_event().addr());
        // SAFETY: the event is cudarc's, and lives as long as this.
        let event = unsafe { RawEvent::made(ordinal, raw) };
        let awaited = crate::numbers::awaited_by(self.device, self.stream);
        stream.wait_behind(&event, awaited.unwrap_or_else(|| self.company.all()))
    }

    /// Whether it is of that stream, or may be: of one that had its handle, where the driver does not tell them apart.
    fn is_of(&self, theirs: &Theirs<'_>) -> bool {
        self.device == theirs.device && self.stream == theirs.name()
    }

    /// Whether one is put behind this use that is about to use the view as well. Each that `writes` is, but in the same stream.
    /// Where that may be another one, its use is recorded by the same event, and so comes after.
    pub(crate) fn comes_before(&self, theirs: &Theirs<'_>, writes: bool) -> bool {
        match self.is_of(theirs) {
            true => self.stream.id.is_none(),
            false => writes,
        }
    }

    /// That of a stream. One event for all would say nothing of the stream in which it was recorded before.
    pub(crate) fn in_stream(&self, theirs: &Theirs<'_>) -> Result<&Self> {
        let mut used = self;
        while !used.is_of(theirs) {
            used = match used.next.get() {
                Some(next) => next,
                None => {
                    let made = Box::new(Self::new(theirs)?);
                    // Another thread may have been faster.
                    used.next.get_or_init(|| made)
                }
            };
        }
        Ok(used)
    }

    /// The event is recorded behind the use, when that is over.
    pub(crate) fn record_on_drop<'a>(&'a self, stream: &'a CudaStream) -> SyncOnDrop<'a> {
        match &self.through {
            Some(through) => {
                // An error of an earlier use, which would be the answer to this one.
                if let Err(error) = through.context().check_err().map_err(told) {
                    tracing::error!(%error, "a use of a device tensor by cudarc was not recorded");
                }
                SyncOnDrop::Record(Some((&self.event, through)))
            }
            None if stream.context().is_managing_stream_synchronization() => {
                SyncOnDrop::Record(Some((&self.event, stream)))
            }
            None => wait_on_drop(stream),
        }
    }
}

/// The thread waits for the stream when the use is over. Not for one that will never go on: nor will what uses the tensor.
pub(crate) fn wait_on_drop(stream: &CudaStream) -> SyncOnDrop<'_> {
    let raw = stream.cu_stream().addr();
    let theirs = device_of(stream).and_then(|device| {
        // SAFETY: it is used in this call only, for which the stream is borrowed.
        unsafe { Stream::from_raw(device, raw) }
    });
    let calm = theirs.and_then(|theirs| theirs.gate().map(drop));
    match calm {
        Ok(()) => SyncOnDrop::Sync(Some(stream)),
        Err(error) => {
            tracing::error!(%error, "a stream of cudarc that uses a device tensor is not waited for");
            SyncOnDrop::Sync(None)
        }
    }
}

/// A context that records events.
struct Recording {
    context: Arc<CudaContext>,
    /// As long as it has one.
    _stream: Arc<CudaStream>,
}

/// That of a device, made once.
fn recording(device: Device) -> Result<Arc<Recording>> {
    static ALL: Mutex<Option<HashMap<Device, Arc<Recording>>>> = Mutex::new(None);
    let mut all = ALL.lock();
    let all = all.get_or_insert_default();
    if let Some(known) = all.get(&device) {
        return Ok(known.clone());
    }
    let context = CudaContext::new(device.ordinal() as usize).map_err(told)?;
    // The first stream of a context that tracks events waits for all that the device has to do.
    // SAFETY: nothing was made in this context.
    unsafe { context.disable_event_tracking() };
    let stream = context.new_stream().map_err(told)?;
    // SAFETY: as above, besides a stream.
    unsafe { context.enable_event_tracking() };
    let made = Arc::new(Recording {
        context,
        _stream: stream,
    });
    all.insert(device, made.clone());
    Ok(made)
}

fn told(error: DriverError) -> Error {
    match crate::error::check("cuEventCreate", error.0 as i32) {
        Err(error) => error,
        Ok(()) => Error::new(ErrorKind::Malformed, "cudarc reports an error that is none"),
    }
}
