//! Devices on which a stream of this process waits for a process that died before its work was done, and what that costs.
//!
//! The driver waits for all streams of a device when memory is given back or closed, so on such a device nothing is, until
//! this process ends. That is all it costs: the streams that do not wait for the dead go on, and memory that they used is
//! used again, so what is held does not grow beyond what was needed at once.

use parking_lot::Mutex;
use shm_core::Arena;
use shm_core::word::Owner;

use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::stream::Stream;

/// A device on which a stream waits for ever.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(crate) device: Device,
    writer: Owner,
    pid: Option<u32>,
    /// Allocations of others that stay open here.
    pub(crate) imports: u64,
}

static KNOWN: Mutex<Vec<Known>> = Mutex::new(Vec::new());

/// A stream of the device waits for that process, which is dead.
pub(crate) fn note(device: Device, writer: Owner, arena: &Arena) {
    // As long as nobody has buried it, its row says who it was.
    let pid = arena.record_of(writer).map(|record| record.pid);
    let mut known = KNOWN.lock();
    if known.iter().all(|one| one.device != device) {
        known.push(Known {
            device,
            writer,
            pid,
            imports: 0,
        });
    }
}

/// An allocation of another process stays open because of that.
pub(crate) fn note_import(device: Device) {
    let mut known = KNOWN.lock();
    if let Some(one) = known.iter_mut().find(|one| one.device == device) {
        one.imports += 1;
    }
}

/// What is known of all such devices.
pub(crate) fn all() -> Vec<Known> {
    KNOWN.lock().clone()
}

/// For whom a stream of the device waits.
pub(crate) fn writer_of(device: Device) -> Owner {
    let known = KNOWN.lock();
    let one = known.iter().find(|one| one.device == device);
    one.map_or(Owner { row: 0, epoch: 0 }, |one| one.writer)
}

impl Known {
    /// Who died, in words.
    pub(crate) fn who(&self) -> String {
        match self.pid {
            Some(pid) => format!("process {pid} (participant {})", self.writer.row),
            None => format!("participant {}", self.writer.row),
        }
    }
}

/// Before a call that waits for all that this process has on a device, as giving memory back and closing it do: no stream
/// there waits for a process that has died. The thread would never come back.
///
/// # Errors
/// `WriterGone`: memory stays as it is then, until this process ends.
pub(crate) fn gate_device(device: Device) -> Result<()> {
    for stream in Stream::all()
        .iter()
        .filter(|stream| stream.device() == device)
    {
        // One that is stuck is seen below.
        let _ = stream.gate();
    }
    let known = all().into_iter().find(|one| one.device == device);
    match known {
        None => Ok(()),
        Some(known) => Err(Error::new(
            ErrorKind::WriterGone,
            format!(
                "a stream of device {} waits for {}, which has died before its work was done, and the driver would wait for that stream; end this process to get \
                 its memory back",
                device.ordinal(),
                known.who()
            ),
        )),
    }
}
