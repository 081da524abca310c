//! cudarc: device tensors where it wants slices, and its slices as device tensors.
//!
//! A view of a tensor implements cudarc's [`DeviceSlice`] and [`DevicePtr`], so it goes where they are asked for: copies,
//! cuBLAS, one's own launches. When the view goes, the tensor's stream waits for what cudarc's stream did with it.
//!
//! cudarc's own memory comes from a memory pool wherever the device has any, and memory of a pool has no handle for other
//! processes: no driver gives one. So a [`CudaSlice`] is wrapped only where cudarc allocated it otherwise, and copied on the
//! device in all other cases.

use std::fmt;
use std::sync::Arc;

use cudarc::driver::{
    CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DeviceRepr, DeviceSlice, SyncOnDrop, sys,
};
use shm_core::tensor::Geometry;
use shm_core::{Element, Shape};

use crate::body::Body;
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::shared::SharedDeviceTensor;
use crate::stream::Stream;
use crate::tensor::DeviceTensor;
use crate::used::{self, Theirs, Used};

/// A device tensor as cudarc reads it; contiguous. Holds the tensor for as long as it lives.
pub struct CudarcView<'t, T> {
    body: &'t Body,
    address: u64,
    stream: Arc<CudaStream>,
    used: Used,
    element: std::marker::PhantomData<&'t T>,
}

/// A device tensor as cudarc reads and writes it; contiguous. Holds the tensor for as long as it lives.
pub struct CudarcViewMut<'t, T>(CudarcView<'t, T>);

/// The device that a stream of cudarc belongs to.
pub(crate) fn device_of(stream: &CudaStream) -> Result<Device> {
    let ordinal = u32::try_from(stream.context().ordinal())
        .map_err(|_| Error::new(ErrorKind::NoSuchDevice, "a device of an absurd number"))?;
    Device::new(ordinal)
}

impl<'t, T: Element> CudarcView<'t, T> {
    fn new(body: &'t Body, stream: &Arc<CudaStream>) -> Result<Self> {
        if !body.geometry.is_contiguous() {
            return Err(Error::new(
                ErrorKind::Shape,
                "the elements of the device tensor do not follow one another, as cudarc needs them",
            ));
        }
        body.using.place.check_alive(false)?;
        if device_of(stream)? != body.device() {
            return Err(Error::new(
                ErrorKind::WrongDevice,
                format!(
                    "a stream of cudarc on device {} was given for a tensor on device {}",
                    stream.context().ordinal(),
                    body.device().ordinal()
                ),
            ));
        }
        // Of what is lost nobody could be told later.
        body.stream
            .check()
            .map_err(|error| body.using.place.explain(error))?;
        let used = Used::new(&Theirs::of(stream)?)?;
        body.using.works_on(&body.stream);
        Ok(Self {
            body,
            address: body.address()?,
            stream: stream.clone(),
            used,
            element: std::marker::PhantomData,
        })
    }

    /// `writes`: or may have before, so that each use comes after those in other streams.
    fn lend<'a>(
        &'a self,
        stream: &'a CudaStream,
        writes: bool,
    ) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
        let used = Theirs::of(stream).and_then(|theirs| {
            let waited = self.is_waited_for_by(&theirs, writes);
            if let Err(error) = waited {
                // cudarc has no other way to be told.
                tracing::error!(%error, "a stream of cudarc could not be made to wait for a device tensor");
            }
            self.used.in_stream(&theirs)
        });
        let after = match used {
            Ok(used) => used.record_on_drop(stream),
            Err(error) => {
                tracing::warn!(%error, "a thread waits for a stream of cudarc, since no event can be made");
                used::wait_on_drop(stream)
            }
        };
        (self.address, after)
    }
}

impl<T> CudarcView<'_, T> {
    /// What is put into a stream of cudarc from now on waits for the tensor's, and for what was done with the view in others if
    /// this one `writes`, or they may have.
    fn is_waited_for_by(&self, theirs: &Theirs<'_>, writes: bool) -> Result<()> {
        let all = self.used.all();
        let mut others = all.filter(|used| used.comes_before(theirs, writes));
        match &theirs.ours {
            Some(ours) => {
                ours.wait_for(&self.body.stream)?;
                others.try_for_each(|used| used.is_waited_for_by(ours))
            }
            // Of this thread, which waits itself.
            None => {
                others.try_for_each(|used| used.is_waited_for_by(&self.body.stream))?;
                self.body.stream.synchronize()
            }
        }
    }
}

impl<T> Drop for CudarcView<'_, T> {
    fn drop(&mut self) {
        if crate::driver::check_not_forked().is_err() {
            return;
        }
        let stream = &self.body.stream;
        for used in self.used.all() {
            if let Err(error) = used.is_waited_for_by(stream) {
                tracing::error!(%error, "a device tensor could not be made to wait for a stream of cudarc");
            }
        }
    }
}

impl<T: Element> DeviceSlice<T> for CudarcView<'_, T> {
    fn len(&self) -> usize {
        self.body.geometry.numel()
    }

    fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }
}

impl<T: Element> DevicePtr<T> for CudarcView<'_, T> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
        self.lend(stream, false)
    }
}

impl<T: Element> DeviceSlice<T> for CudarcViewMut<'_, T> {
    fn len(&self) -> usize {
        self.0.body.geometry.numel()
    }

    fn stream(&self) -> &Arc<CudaStream> {
        &self.0.stream
    }
}

impl<T: Element> DevicePtr<T> for CudarcViewMut<'_, T> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
        self.0.lend(stream, true)
    }
}

impl<T: Element> DevicePtrMut<T> for CudarcViewMut<'_, T> {
    fn device_ptr_mut<'a>(
        &'a mut self,
        stream: &'a CudaStream,
    ) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
        self.0.lend(stream, true)
    }
}

impl<T> fmt::Debug for CudarcView<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        crate::tensor::describe(f, "CudarcView", self.body)
    }
}

impl<T> fmt::Debug for CudarcViewMut<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        crate::tensor::describe(f, "CudarcViewMut", self.0.body)
    }
}

impl<T: Element> SharedDeviceTensor<T> {
    /// The tensor as cudarc reads it.
    ///
    /// # Errors
    /// When its elements do not follow one another, the stream is of another device, or the memory's origin has ended.
    pub fn for_cudarc(&self, stream: &Arc<CudaStream>) -> Result<CudarcView<'_, T>> {
        CudarcView::new(&self.body, stream)
    }
}

impl<T: Element> DeviceTensor<T> {
    /// The tensor as cudarc reads it.
    ///
    /// # Errors
    /// As for [`SharedDeviceTensor::for_cudarc`].
    pub fn for_cudarc(&self, stream: &Arc<CudaStream>) -> Result<CudarcView<'_, T>> {
        CudarcView::new(&self.body, stream)
    }

    /// The tensor as cudarc reads and writes it.
    ///
    /// # Errors
    /// As for [`SharedDeviceTensor::for_cudarc`].
    pub fn for_cudarc_mut(&mut self, stream: &Arc<CudaStream>) -> Result<CudarcViewMut<'_, T>> {
        let view = CudarcView::new(&self.body, stream)?;
        self.body.using.is_written_in(&self.body.stream)?;
        Ok(CudarcViewMut(view))
    }

    /// A slice of cudarc as a tensor, without a copy; on the default stream of its device, which waits for the slice's.
    ///
    /// # Errors
    /// The slice, and `NotExportable` when its memory is of a pool, which is where cudarc allocates wherever it can:
    /// [`copy_cudarc`](Self::copy_cudarc) then. Allocate with `cudarc::driver::result::malloc_sync` and use
    /// [`wrap_raw`](Self::wrap_raw) to avoid the copy.
    #[expect(clippy::result_large_err, reason = "the slice comes back")]
    pub fn wrap_cudarc(
        mut slice: CudaSlice<T>,
        shape: impl Into<Shape>,
    ) -> Result<Self, (Error, CudaSlice<T>)>
    where
        T: DeviceRepr + Send,
    {
        let theirs = slice.stream().clone();
        // The tensor can be written: the slice's stream waits for those in which others wrote and read it, and ours for that.
        let (address, after) = slice.device_ptr_mut(&theirs);
        drop(after);
        let kept = Arc::new(slice);
        let made = (|| {
            let shape = shape.into();
            expect_len::<T>(shape, kept.len())?;
            let stream = following(&theirs)?;
            // SAFETY: the slice is the tensor's from now on, and is freed when nobody uses the tensor any more.
            unsafe { Self::wrap_raw(&stream, shape, address, kept.clone()) }
        })();
        match made {
            Ok(tensor) => Ok(tensor),
            Err(error) => match Arc::try_unwrap(kept) {
                Ok(slice) => Err((error, slice)),
                // Nothing else has it after an error: what was to own it is gone.
                Err(_) => unreachable!("the slice is held by a tensor that was not made"),
            },
        }
    }

    /// A copy of a slice of cudarc, made on the device; on the default stream of its device.
    ///
    /// # Errors
    /// When the shape has another number of elements, or what the driver answers.
    pub fn copy_cudarc(slice: &CudaSlice<T>, shape: impl Into<Shape>) -> Result<Self>
    where
        T: DeviceRepr,
    {
        let shape = shape.into();
        expect_len::<T>(shape, slice.len())?;
        // First: the slice's stream waits for those in which others wrote it, and ours for that.
        let (address, after) = slice.device_ptr(slice.stream());
        let stream = following(slice.stream())?;
        // SAFETY: as many elements lie there, and the slice is borrowed; its stream waits for the copy below.
        let copy = unsafe { Self::copied_from_raw(&stream, shape, address) }?;
        // SAFETY: it is used in this call only, for which the slice, and so its stream, is borrowed.
        let theirs =
            unsafe { Stream::from_raw(stream.device(), slice.stream().cu_stream().addr()) }?;
        theirs.wait_for(&stream)?;
        drop(after);
        Ok(copy)
    }
}

/// The default stream of a cudarc stream's device, which waits for what is in that stream.
fn following(theirs: &CudaStream) -> Result<Stream> {
    let device = device_of(theirs)?;
    let stream = Stream::of(device)?;
    // SAFETY: it is used in this call only, for which the stream is borrowed.
    let theirs = unsafe { Stream::from_raw(device, theirs.cu_stream().addr()) }?;
    stream.wait_for(&theirs)?;
    Ok(stream)
}

fn expect_len<T: Element>(shape: Shape, found: usize) -> Result<()> {
    let wanted = Geometry::contiguous(T::DTYPE, shape)?.numel();
    if wanted == found {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Shape,
        format!("a slice of {found} elements was to be a tensor of {wanted}"),
    ))
}
