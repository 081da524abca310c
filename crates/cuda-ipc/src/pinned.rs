//! Tensors of the arena that a device reads by itself: copies from them need no staging, and no thread waits.
//!
//! The region of the arena that a tensor lies in is registered with the driver once in this process ([`regions`](crate::regions)
//! has how, and for how long). The tensor is held until the copies that read it are over.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use shm_core::{Element, Tensor};

use crate::awaits::Awaits;
use crate::bytes::bytes_of;
use crate::device::of_device;
use crate::driver::{Driver, RawEvent, check_not_forked};
use crate::error::{Error, ErrorKind, Result};
use crate::regions;
use crate::tensor::DeviceTensor;

/// An event behind copies, and what the stream waits for in which it was recorded last, and which waits for those before.
type Reading = (RawEvent, Option<Arc<Awaits>>);

/// A tensor of the arena that is registered with the driver, if that could be had; see [`outcome`](Self::outcome).
///
/// ```no_run
/// # use cuda_ipc::{Device, DeviceTensor, PinnedTensor};
/// let mut input = PinnedTensor::new(shm_core::Tensor::<f32>::zeros([1024])?, Device::new(0)?)?;
/// let mut there = DeviceTensor::<f32>::zeros([1024])?;
/// input.as_mut_slice()?.fill(1.0); // waits for earlier copies, if there are any
/// input.copy_to(&mut there)?; // comes back at once
/// # Ok::<(), cuda_ipc::Error>(())
/// ```
pub struct PinnedTensor<T: Element> {
    tensor: Option<Tensor<T>>,
    driver: &'static dyn Driver,
    /// The region that it lies in, if that is registered.
    region: Option<usize>,
    outcome: Result<(), String>,
    /// Behind the copies that read the tensor; by device.
    reading: Mutex<BTreeMap<u32, Reading>>,
    /// A copy was begun of which no event tells, and whose stream could not be waited for.
    is_read_for_ever: AtomicBool,
}

impl<T: Element> PinnedTensor<T> {
    /// Registers the memory of a contiguous tensor, if that can be done. Where it cannot, copies work all the same, and wait.
    ///
    /// # Errors
    /// When there is no driver, or the tensor's elements do not follow one another.
    pub fn new(tensor: Tensor<T>, device: crate::Device) -> Result<Self> {
        let driver = of_device()?;
        let bytes = bytes_of(tensor.try_as_slice()?);
        let range = bytes.as_ptr_range();
        let registered = if bytes.is_empty() {
            Ok(None)
        } else {
            let range = range.start.addr()..range.end.addr();
            regions::register(driver, device, &tensor, range).map(Some)
        };
        let (region, outcome) = match registered {
            Ok(region) => (region, Ok(())),
            Err(error) => (None, Err(error.to_string())),
        };
        Ok(Self {
            tensor: Some(tensor),
            driver,
            region,
            outcome,
            reading: Mutex::default(),
            is_read_for_ever: AtomicBool::new(false),
        })
    }

    /// Whether the memory is registered (or there is none to register), and if not, why.
    ///
    /// # Errors
    /// What the driver answered, in words.
    pub fn outcome(&self) -> Result<(), &str> {
        self.outcome.as_ref().map(drop).map_err(String::as_str)
    }

    fn tensor(&self) -> Result<&Tensor<T>> {
        self.tensor
            .as_ref()
            .ok_or_else(|| Error::new(ErrorKind::StillHeld, "the tensor is gone"))
    }

    /// The elements.
    ///
    /// # Errors
    /// None in practice: the tensor is contiguous.
    pub fn as_slice(&self) -> Result<&[T]> {
        Ok(self.tensor()?.try_as_slice()?)
    }

    /// The elements, to write, when the copies that read them are over.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn as_mut_slice(&mut self) -> Result<&mut [T]> {
        self.wait()?;
        match &mut self.tensor {
            Some(tensor) => Ok(tensor.try_as_mut_slice()?),
            None => Err(Error::new(ErrorKind::StillHeld, "the tensor is gone")),
        }
    }

    /// Overwrites a device tensor with the elements, in the order of its stream. Comes back at once if the memory is
    /// registered, and when the elements are copied if not.
    ///
    /// # Errors
    /// When it has another number of elements, they do not follow one another, or what the driver answers.
    pub fn copy_to(&self, to: &mut DeviceTensor<T>) -> Result<()> {
        let from = self.as_slice()?;
        if self.region.is_none() {
            return to.copy_from_slice(from);
        }
        if from.len() != to.numel() || !to.is_contiguous() {
            return Err(Error::new(
                ErrorKind::Shape,
                format!(
                    "a pinned tensor of {} elements was to be copied to a device tensor of {} that is {}contiguous",
                    from.len(),
                    to.numel(),
                    if to.is_contiguous() { "" } else { "not " }
                ),
            ));
        }
        let stream = to.stream().clone();
        let address = to.write_in(&stream)?;
        let mut reading = self.reading.lock();
        let device = stream.device().ordinal();
        let (event, latest) = match reading.entry(device) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => place.insert((self.driver.new_event(device, false)?, None)),
        };
        // Copies of one device through different streams: the event is behind all of them. Of one that is over it is of no
        // interest what became of its stream since.
        if let Some(other) = latest
            .as_ref()
            .filter(|latest| !Arc::ptr_eq(latest, stream.awaits()))
            && !self.driver.has_happened(event)?
        {
            stream.wait_for_recorded(event, other)?;
        }
        *latest = Some(stream.awaits().clone());
        // SAFETY: the tensor is held and not written before the event recorded next has happened, see `wait`; if recording
        // fails, the stream is waited for; if that fails too, the tensor is held and not written any more.
        unsafe {
            self.driver
                .write_later(stream.raw()?, address, bytes_of(from))
        }?;
        if let Err(error) = self.driver.record(event, stream.raw()?) {
            let done = stream.synchronize();
            self.is_read_for_ever
                .fetch_or(done.is_err(), Ordering::AcqRel);
            return done.and(Err(error));
        }
        Ok(())
    }

    /// Waits until the copies that read the tensor are over.
    ///
    /// # Errors
    /// `WriterGone` when a copy waits for a process that has died, and never comes to its end; what the driver answers.
    pub fn wait(&self) -> Result<()> {
        check_not_forked()?;
        if self.is_read_for_ever.load(Ordering::Acquire) {
            return Err(Error::new(
                ErrorKind::WriterGone,
                "a copy of a pinned tensor was begun whose end could neither be noted nor waited for, behind a process that has died or on a device that has \
                 failed; a device may read the tensor as long as this process lives",
            ));
        }
        for (event, latest) in self.reading.lock().values() {
            let mut pause = std::time::Duration::from_micros(20);
            while !self.driver.has_happened(event)? {
                latest.as_ref().map_or(Ok(()), |latest| latest.check())?;
                std::thread::sleep(pause);
                pause = (pause * 2).min(std::time::Duration::from_millis(1));
            }
        }
        Ok(())
    }

    /// The tensor back, when the copies that read it are over.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn into_inner(mut self) -> Result<Tensor<T>> {
        self.release()?;
        self.tensor
            .take()
            .ok_or_else(|| Error::new(ErrorKind::StillHeld, "the tensor is gone"))
    }

    fn release(&mut self) -> Result<()> {
        self.wait()?;
        for (event, _) in std::mem::take(self.reading.get_mut()).into_values() {
            if let Err(error) = self.driver.drop_event(event) {
                tracing::warn!(%error, "an event could not be destroyed");
            }
        }
        if let Some(region) = self.region.take() {
            regions::let_go(self.driver, region);
        }
        Ok(())
    }
}

impl<T: Element> Drop for PinnedTensor<T> {
    fn drop(&mut self) {
        if check_not_forked().is_err() {
            return;
        }
        if let Err(error) = self.release() {
            tracing::warn!(%error, "a pinned tensor is kept, since a device may still read it");
            // Not to be used by anybody else.
            std::mem::forget(self.tensor.take());
        }
    }
}

impl<T: Element> fmt::Debug for PinnedTensor<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedTensor")
            .field("tensor", &self.tensor)
            .field("outcome", &self.outcome)
            .finish_non_exhaustive()
    }
}
