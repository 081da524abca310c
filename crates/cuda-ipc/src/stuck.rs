//! Devices on which a stream of this process waits for a process that died before its work was done, and what that costs.
//!
//! The driver waits for all streams of a device when memory is given back or closed, so on such a device nothing is, until
//! this process ends. That is all it costs: the streams that do not wait for the dead go on, and memory that they used is
//! used again, so what is held does not grow beyond what was needed at once.

use parking_lot::Mutex;
use shm_core::Arena;
use shm_core::word::Owner;

use crate::device::Device;
use crate::hub::Hub;
use crate::ledger;

/// A device on which a stream waits for ever.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) device: Device,
    /// Who died, in words.
    pub(crate) who: String,
    /// Allocations of others that stay mapped here, though nobody is told any more.
    pub(crate) imports: u64,
}

static KNOWN: Mutex<Vec<Known>> = Mutex::new(Vec::new());

/// A stream of the device waits for that process, which is dead.
pub(crate) fn note(device: Device, writer: Owner, arena: &Arena) {
    let who = ledger::name_of(arena, writer);
    ledger::set_stuck(arena, device, writer);
    let mut known = KNOWN.lock();
    if known.iter().all(|one| one.device != device) {
        known.push(Known {
            device,
            who,
            imports: 0,
        });
    }
}

/// An allocation of another process stays mapped because of that.
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

/// Whether a stream of the device waits for ever.
pub(crate) fn is_known(device: Device) -> bool {
    KNOWN.lock().iter().any(|known| known.device == device)
}

/// The arena of this process.
pub(crate) fn arena() -> Option<&'static Arena> {
    Hub::if_any().map(|hub| &hub.arena)
}
