//! Whether there is room for the slots of all processes, known before anything is made: rather than when the last of them
//! is.

use std::os::fd::AsFd;

use shm_core::Arena;
use shm_core::room::SystemLimits;

use super::{Specs, place, slots};
use crate::device::place_of;
use crate::error::{Error, ErrorKind, Result};
use crate::spec::Layout;
use crate::step::Step;

/// The slots of one queue group in the arena.
struct Share<'a> {
    step: &'a Step,
    group: usize,
    processes: u64,
    slot_bytes: u64,
}

impl Share<'_> {
    fn bytes(&self) -> u64 {
        let slots = self.processes.saturating_mul(slots(self.step).into());
        slots.saturating_mul(self.slot_bytes)
    }

    fn describe(&self) -> String {
        let processes = match self.processes {
            1 => "1 process".to_owned(),
            many => format!("{many} processes"),
        };
        format!(
            "{}: {processes} with {} slots of {} bytes each need {} bytes",
            place(self.step, Some(self.group), "slots"),
            slots(self.step),
            self.slot_bytes,
            self.bytes(),
        )
    }
}

/// Refuses slots that the arena or the memory of this machine has no room for. `specs` are those of [`check`](super::check).
///
/// # Errors
/// `Arena`, naming the group of processes that needs most, and what there is.
pub(crate) fn check_room(steps: &[Step], specs: &Specs, arena: &Arena) -> Result<()> {
    let shares = shares(steps, specs)?;
    let needed = shares.iter().map(Share::bytes).fold(0, u64::saturating_add);
    let Some(largest) = shares.iter().max_by_key(|share| share.bytes()) else {
        return Ok(());
    };
    let stats = arena.stats();
    let more = needed.saturating_sub(stats.cached);
    shm_core::room::ensure(&*SystemLimits::shared(), more, arena.as_fd()).map_err(|error| {
        let text = format!(
            "{}; the run needs {needed} bytes of slots in all, of which the arena has {} at hand",
            largest.describe(),
            stats.cached,
        );
        Error::caused(ErrorKind::Arena(error.kind().clone()), text, error)
    })?;
    let left = stats.capacity.saturating_sub(stats.live);
    if needed > left {
        let text = format!(
            "{}; the run needs {needed} bytes of slots in all, and the arena has {left} of its {} bytes left; ask for fewer \
             or smaller slots, or make an arena of a larger capacity",
            largest.describe(),
            stats.capacity,
        );
        let exhausted = shm_core::ErrorKind::CapacityExhausted {
            asked: needed,
            capacity: stats.capacity,
        };
        return Err(Error::new(ErrorKind::Arena(exhausted), text));
    }
    Ok(())
}

/// What lies on a device takes none of the arena, nor do the outputs of the last step.
fn shares<'a>(steps: &'a [Step], specs: &Specs) -> Result<Vec<Share<'a>>> {
    let mut shares = Vec::new();
    let last = steps.len().saturating_sub(1);
    for (step, of_groups) in steps.iter().zip(specs).take(last) {
        for (number, (group, of_group)) in step.groups.iter().zip(of_groups).enumerate() {
            let layout = Layout::anywhere(of_group)?;
            if layout.tensors.is_empty() {
                continue;
            }
            let mut processes = 0;
            for &device in &group.devices {
                let in_arena = place_of(of_group, device, group.on_cpu)?.is_none();
                processes += u64::from(in_arena);
            }
            if processes > 0 {
                shares.push(Share {
                    step,
                    group: number,
                    processes,
                    slot_bytes: layout.bytes as u64,
                });
            }
        }
    }
    Ok(shares)
}
