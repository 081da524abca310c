//! Memory that is not needed any more, to be given back or closed when all streams of its device are at rest.
//!
//! The driver waits for all that this process has on a device when memory there is given back or closed. A thread that drops
//! or receives a tensor must not wait for that, and one that holds a lock even less. So what is of no use is left here, or in
//! the table of what is open, as are owners of wrapped memory; and a thread that there is only as long as there is something to do closes it at a moment when
//! nothing is waited for, as do `collect` and `close`. Where no such moment comes, since streams always wait for other
//! processes, these waits are held off after a second, for as long as what they wait for comes along, and five seconds at
//! most.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use shm_core::object::Object;

use crate::device::Device;
use crate::driver::{Driver, Mapping};
use crate::error::Result;
use crate::hub::Hub;
use crate::import::Import;
use crate::layout::Path;
use crate::rest::{self, Holding, Restless};
use crate::stuck;
use crate::visited::Visited;

/// What is to go.
#[derive(Debug)]
pub(crate) enum What {
    /// An allocation of this process, at that address.
    Own(u64),
    /// An allocation of another process, opened there.
    Opened(u64),
    /// Either, as a mapping.
    Mapped(Mapping),
}

#[derive(Debug)]
struct Left {
    device: Device,
    what: What,
    driver: &'static dyn Driver,
    /// Of another process's: it is not given back there as long as this is held.
    object: Option<Object>,
}

static LEFT: Mutex<Vec<Left>> = Mutex::new(Vec::new());

/// Whether a thread closes memory.
static CLOSING: AtomicBool = AtomicBool::new(false);

/// What is being closed or given back now, and is in no table any more.
static IN_HAND: Mutex<Vec<InHand>> = Mutex::new(Vec::new());

/// Where something is being closed or given back, and whether it is another process's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct InHand {
    device: Device,
    is_theirs: bool,
}

impl InHand {
    fn put_down(self) {
        let mut all = IN_HAND.lock();
        if let Some(place) = all.iter().position(|one| *one == self) {
            all.swap_remove(place);
        }
    }
}

/// What was to be closed, and could not be. A driver leaves open what becomes of memory that is given back while somebody has
/// it open, so its origin keeps it for as long as this process lives.
static STILL_OPEN: Mutex<Vec<Object>> = Mutex::new(Vec::new());

/// What cannot be closed after that time is looked at again later.
const SHIFT: Duration = Duration::from_secs(20);

impl What {
    /// Gives it back; all work on the device is over, or waited for.
    pub(crate) fn go(self, driver: &dyn Driver, device: Device) -> Result<()> {
        match self {
            Self::Own(address) => driver.free(device.ordinal(), address),
            Self::Opened(base) => driver.close(device.ordinal(), base),
            Self::Mapped(mapping) => driver.unmap(device.ordinal(), mapping),
        }
    }
}

/// Gives something back when the device is at rest.
pub(crate) fn leave(
    driver: &'static dyn Driver,
    device: Device,
    what: What,
    object: Option<Object>,
) {
    LEFT.lock().push(Left {
        device,
        what,
        driver,
        object,
    });
    kick();
}

/// The memory of another process, opened by its handle, could not be closed.
pub(crate) fn keep_open(object: Object) {
    STILL_OPEN.lock().push(object);
}

/// How much of other processes' memory is still open that is in no table any more.
pub(crate) fn opened() -> u64 {
    let is_theirs = |left: &&Left| left.object.is_some();
    let left = LEFT.lock();
    // Under the first lock: what goes from there to here is always in one of them.
    let in_hand = IN_HAND.lock();
    let in_hand = in_hand.iter().filter(|one| one.is_theirs).count();
    let still_open = STILL_OPEN.lock().len();
    (left.iter().filter(is_theirs).count() + in_hand + still_open) as u64
}

/// The devices of what was left, and of what another thread is about to close, until when they are not at rest.
pub(crate) fn devices() -> HashSet<Device> {
    let left = LEFT.lock();
    let in_hand = IN_HAND.lock();
    let in_hand = in_hand.iter().map(|one| one.device);
    left.iter().map(|left| left.device).chain(in_hand).collect()
}

/// Gives back what was left of a device. All that this process has there is at rest.
pub(crate) fn clear(device: Device) {
    let in_hand = |left: &Left| InHand {
        device,
        is_theirs: left.object.is_some(),
    };
    let gone: Vec<_> = {
        let mut left = LEFT.lock();
        let gone: Vec<_> = left.extract_if(.., |one| one.device == device).collect();
        IN_HAND.lock().extend(gone.iter().map(in_hand));
        gone
    };
    for left in gone {
        let in_hand = in_hand(&left);
        let is_by_handle = matches!(left.what, What::Opened(_));
        if let Err(error) = left.what.go(left.driver, device) {
            tracing::warn!(%error, "memory of a device could not be given back");
            left.object
                .filter(|_| is_by_handle)
                .into_iter()
                .for_each(keep_open);
        }
        in_hand.put_down();
    }
}

/// Looks whether there is something to do; called by the thread that watches the arena.
pub(crate) fn look(hub: &Hub) {
    if hub.has_wrapped_to_drop() || hub.may_have_to_close() {
        kick();
    }
}

/// There may be something to do.
pub(crate) fn kick() {
    if CLOSING.swap(true, Ordering::AcqRel) {
        return;
    }
    // Dropped with the closure, also where no thread comes of it.
    let over = Over;
    let work = move || {
        let _over = over;
        if let Some(hub) = Hub::if_any() {
            work(hub);
        }
    };
    let thread = std::thread::Builder::new().name("device-close".to_owned());
    if let Err(error) = thread.spawn(work) {
        tracing::warn!(%error, "memory of other processes is closed with `collect` only");
    }
}

/// The end of a thread that closes memory, however it ends.
#[derive(Debug)]
struct Over;

impl Drop for Over {
    fn drop(&mut self) {
        CLOSING.store(false, Ordering::Release);
    }
}

fn work(hub: &'static Hub) {
    let mut owners_stay = hub.drop_owners(true, false);
    hub.leave_stations();
    let begun = Instant::now();
    let mut pause = Duration::from_micros(100);
    let mut holding = Holding::new();
    loop {
        let devices = hub.devices_to_close();
        if devices.is_empty() && !owners_stay || begun.elapsed() > SHIFT {
            // Those among it whose last memory was closed.
            hub.leave_stations();
            return;
        }
        let is_late = holding.is_due();
        let mut of_use = true;
        for device in devices {
            let close = || hub.close_there(device, false);
            if !is_late {
                rest::while_idle(device, close);
            } else if rest::while_held(device, None, close) == Err(Restless::Still) {
                of_use = false;
            }
        }
        if owners_stay {
            owners_stay = hub.drop_owners(true, is_late);
            of_use &= !owners_stay;
        }
        if is_late {
            holding.was_tried(of_use);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

impl Hub {
    /// Whether it is of no use: nobody here has a tensor there, and its origin wants it back or is gone.
    fn is_to_close(&self, import: &Arc<Import>) -> bool {
        Arc::strong_count(import) == 1
            && (import.is_retired() || !self.arena.is_present(import.origin))
    }

    /// Devices on which something is to be closed or given back, and can be before this process ends.
    fn devices_to_close(&self) -> HashSet<Device> {
        self.let_go_of_mappings();
        let mut devices = devices();
        let imports = self.imports.lock();
        let to_close = imports.values().filter(|import| self.is_to_close(import));
        devices.extend(to_close.map(|import| import.device));
        drop(imports);
        devices.retain(|device| !stuck::is_known(*device));
        devices
    }

    /// Whether it is of no use: its process has ended, and nothing of that is open here.
    fn is_to_leave(&self, station: &Arc<Visited>) -> bool {
        Arc::strong_count(station) == 1 && !self.arena.is_present(station.origin)
    }

    /// Closes the events of processes that have ended.
    pub(crate) fn leave_stations(&self) {
        let mut visited = self.visited.lock();
        let gone: Vec<_> = visited
            .extract_if(|_, station| self.is_to_leave(station))
            .collect();
        // Who receives does not wait for that.
        drop(visited);
        drop(gone);
    }

    /// As [`devices_to_close`](Self::devices_to_close), stations among it, asked without waiting for anybody.
    fn may_have_to_close(&self) -> bool {
        let visited = self.visited.try_lock();
        if visited.is_some_and(|all| all.values().any(|one| self.is_to_leave(one))) {
            return true;
        }
        let is_free = |device| !stuck::is_known(device);
        let left = LEFT.try_lock();
        if left.is_some_and(|left| left.iter().any(|left| is_free(left.device))) {
            return true;
        }
        let can_go = |import: &Arc<Import>| {
            self.is_to_close(import) && (is_free(import.device) || import.path == Path::Descriptor)
        };
        let imports = self.imports.try_lock();
        imports.is_some_and(|imports| imports.values().any(can_go))
    }

    /// Closes what is of no use of other processes' memory on a device, or all that is not used; whether none of it is left.
    /// All that this process has there is at rest.
    pub(crate) fn close_there(&self, device: Device, all: bool) -> bool {
        let mut is_late = false;
        let in_hand = InHand {
            device,
            is_theirs: true,
        };
        let gone: Vec<_> = {
            let mut imports = self.imports.lock();
            let is_quiet = |_: &[u64; 2], import: &mut Arc<Import>| {
                let unused = import.device == device
                    && (self.is_to_close(import) || all && Arc::strong_count(import) == 1);
                let quiet = unused && import.is_quiet();
                is_late |= unused && !quiet;
                quiet
            };
            let gone: Vec<_> = imports.extract_if(is_quiet).collect();
            IN_HAND.lock().extend(gone.iter().map(|_| in_hand));
            gone
        };
        for (_, import) in gone {
            // Nobody else had it under the lock.
            if let Some(import) = Arc::into_inner(import) {
                import.close();
            }
            in_hand.put_down();
        }
        clear(device);
        !is_late
    }

    /// Memory that was mapped from a descriptor stays with whoever maps it, so its origin need not wait for a process that
    /// cannot unmap it, since a device of it stands still.
    fn let_go_of_mappings(&self) {
        let gone: Vec<_> = {
            let mut imports = self.imports.lock();
            let is_of_no_use = |_: &[u64; 2], import: &mut Arc<Import>| {
                self.is_to_close(import)
                    && import.path == Path::Descriptor
                    && stuck::is_known(import.device)
            };
            imports.extract_if(is_of_no_use).collect()
        };
        for (_, import) in gone {
            stuck::note_import(import.device);
            if let Some(import) = Arc::into_inner(import) {
                // The mapping stays.
                let _ = import.give_up();
            }
        }
    }
}
