//! Regions of the arena that are registered with the driver, so that devices read them by themselves.
//!
//! A region is the block of a large tensor, or what there is of the chunk that small ones share, and is registered once,
//! however many tensors are pinned in it. A chunk that has grown since gets another region behind the first. One that is
//! not needed any more stays registered for the next tensor, as far as [`IDLE`] goes, and until [`collect`](crate::collect).
//! While it is registered its pages stay what they are: nobody in any process gives them back. The driver waits for the
//! device when one is unregistered, so none is while a stream there waits for another process.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Instant;

use parking_lot::Mutex;
use shm_core::pin::Pin;
use shm_core::{Element, Tensor};

use crate::device::Device;
use crate::driver::{Driver, driver};
use crate::error::{Error, ErrorKind, Result};
use crate::rest;
use crate::stats::Pinned;

/// Bytes of regions that are registered and not needed, at most.
const IDLE: usize = 256 << 20;

static REGIONS: Mutex<Regions> = Mutex::new(Regions {
    by_start: BTreeMap::new(),
    refused: 0,
    why: None,
});

#[derive(Debug)]
struct Regions {
    by_start: BTreeMap<usize, Region>,
    /// Tensors that could not be pinned.
    refused: u64,
    why: Option<String>,
}

#[derive(Debug)]
struct Region {
    end: usize,
    device: Device,
    /// How many tensors need it.
    tensors: usize,
    pin: Pin,
}

/// Sees to it that the region of a tensor is registered, whose elements lie in `range`; where it begins.
///
/// # Errors
/// What the driver answered; `StillHeld` when too many processes have it pinned, or the tensor lies in two regions.
pub(crate) fn register<T: Element>(
    driver: &dyn Driver,
    device: Device,
    tensor: &Tensor<T>,
    range: Range<usize>,
) -> Result<usize> {
    let mut regions = REGIONS.lock();
    let known = regions.by_start.range_mut(..=range.start).next_back();
    if let Some((&start, region)) = known
        && range.end <= region.end
    {
        region.tensors += 1;
        return Ok(start);
    }
    let added = regions.add(driver, device, tensor, range);
    if let Err(error) = &added {
        regions.refused += 1;
        regions.why = Some(error.to_string());
    }
    added
}

/// A tensor needs a region no longer. It can be used as any other also where its region, or another one, cannot be
/// unregistered.
pub(crate) fn let_go(driver: &dyn Driver, start: usize) {
    let mut regions = REGIONS.lock();
    if let Some(region) = regions.by_start.get_mut(&start) {
        region.tensors -= 1;
    }
    told(regions.give_back(driver, IDLE));
}

fn told(given_back: Result<()>) {
    if let Err(error) = given_back {
        tracing::warn!(%error, "memory of the host stays registered");
    }
}

/// Unregisters what is not needed.
pub(crate) fn collect() {
    let mut regions = REGIONS.lock();
    if regions.by_start.is_empty() {
        return;
    }
    told(driver().and_then(|driver| regions.give_back(driver, 0)));
}

/// What there is.
pub(crate) fn stats() -> Pinned {
    let regions = REGIONS.lock();
    Pinned {
        regions: regions.by_start.len() as u64,
        bytes: regions
            .by_start
            .iter()
            .map(|(start, region)| (region.end - start) as u64)
            .sum(),
        refused: regions.refused,
        why: regions.why.clone(),
    }
}

impl Regions {
    fn add<T: Element>(
        &mut self,
        driver: &dyn Driver,
        device: Device,
        tensor: &Tensor<T>,
        range: Range<usize>,
    ) -> Result<usize> {
        let refuse = |why: &str| Error::new(ErrorKind::StillHeld, why);
        let pin = Pin::around(tensor).ok_or_else(|| {
            refuse("six processes have the memory around the tensor pinned, which is as many as there can be")
        })?;
        let base = pin
            .address()
            .ok_or_else(|| refuse("the tensor lies beyond its arena"))?
            .as_ptr();
        let end = base.addr() + pin.bytes();
        // Those that lie here and are not needed may be too short, or in the way of a longer one.
        let of_here = self.by_start.range(base.addr()..end);
        let idle: Vec<_> = of_here
            .filter(|(_, region)| region.tensors == 0)
            .map(|(start, _)| *start)
            .collect();
        for start in idle {
            self.unregister(driver, start)?;
        }
        // Behind what is in use and was registered when the chunk had less.
        let before = self.by_start.range(..end).next_back();
        let start = before.map_or(base.addr(), |(_, region)| region.end.max(base.addr()));
        if start > range.start || end < range.end {
            return Err(refuse(
                "the tensor lies across the end of a region that is registered, and in use or to be unregistered when no stream waits for another process",
            ));
        }
        let at = base.with_addr(start);
        // SAFETY: the pages are memory of the arena's mapping, which stays as long as the process; they are committed, and
        // the pin keeps everybody from giving them back before they are unregistered.
        unsafe { driver.pin(device.ordinal(), at, end - start) }?;
        let region = Region {
            end,
            device,
            tensors: 1,
            pin,
        };
        self.by_start.insert(start, region);
        Ok(start)
    }

    /// Unregisters what is not needed, above so many bytes.
    fn give_back(&mut self, driver: &dyn Driver, keep: usize) -> Result<()> {
        let mut kept = 0;
        let mut over = Vec::new();
        for (&start, region) in self
            .by_start
            .iter()
            .filter(|(_, region)| region.tensors == 0)
        {
            kept += region.end - start;
            if kept > keep {
                over.push(start);
            }
        }
        over.into_iter()
            .try_for_each(|start| self.unregister(driver, start))
    }

    /// Unregisters a region, if no stream of its device waits for another process now.
    fn unregister(&mut self, driver: &dyn Driver, start: usize) -> Result<()> {
        let Some(region) = self.by_start.get(&start) else {
            return Ok(());
        };
        let (device, address) = (region.device, std::ptr::without_provenance_mut(start));
        let unpin = || driver.unpin(device.ordinal(), address);
        let Some(outcome) = rest::while_calm(device, Some(Instant::now()), unpin) else {
            return Ok(());
        };
        let region = self.by_start.remove(&start);
        if outcome.is_err() {
            // Perhaps the device still reads it: its pages stay.
            std::mem::forget(region.map(|region| region.pin));
        }
        outcome
    }
}
