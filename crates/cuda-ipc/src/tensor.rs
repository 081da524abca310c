//! `DeviceTensor`: elements on a device that exactly one process, and in it one owner, can reach.

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use shm_core::message::refuse_because;
use shm_core::tensor::Geometry;
use shm_core::{Dtype, Element, Shape, Strided};

use crate::body::Body;
use crate::error::{Error, ErrorKind, Result};
use crate::shared::SharedDeviceTensor;
use crate::stream::Stream;
use crate::travel;

/// A tensor on a device with one owner among all processes, who may read and write it.
///
/// Moving it into a queue moves it into the process that receives it, and not a byte of its elements: what travels is a
/// handle, and an event behind whatever was put into its stream so far. The receiver's stream waits for that event, and
/// no thread does. When the last owner drops it, its process of origin uses the memory again, after an event behind that
/// owner's work.
///
/// ```no_run
/// use cuda_ipc::DeviceTensor;
///
/// let mut tensor = DeviceTensor::from_slice([2, 2], &[1.0_f32, 2.0, 3.0, 4.0])?;
/// tensor.reshape([4])?;
/// assert_eq!(tensor.to_vec()?, [1.0, 2.0, 3.0, 4.0]);
/// # Ok::<(), cuda_ipc::Error>(())
/// ```
pub struct DeviceTensor<T> {
    pub(crate) body: Body,
    element: PhantomData<T>,
}

impl<T: Element> DeviceTensor<T> {
    pub(crate) fn over(body: Body) -> Self {
        Self {
            body,
            element: PhantomData,
        }
    }

    /// A tensor with these elements, in row-major order, on the current stream.
    ///
    /// # Errors
    /// When the shape has another number of elements, there is no device, or it has no room.
    pub fn from_slice(shape: impl Into<Shape>, elements: &[T]) -> Result<Self> {
        Self::from_slice_on(&Stream::current()?, shape, elements)
    }

    /// As [`from_slice`](Self::from_slice), on a stream, and so on its device.
    ///
    /// # Errors
    /// As there.
    pub fn from_slice_on(stream: &Stream, shape: impl Into<Shape>, elements: &[T]) -> Result<Self> {
        let shape = shape.into();
        let numel = Geometry::contiguous(T::DTYPE, shape)?.numel();
        if numel != elements.len() {
            return Err(Error::new(
                ErrorKind::Shape,
                format!(
                    "a device tensor of {numel} elements was to be made of {}",
                    elements.len()
                ),
            ));
        }
        let body = Body::new(T::DTYPE, shape, stream)?;
        body.write(elements)?;
        Ok(Self::over(body))
    }

    /// A copy of a tensor of the arena, on the current stream.
    ///
    /// # Errors
    /// When there is no device, or it has no room.
    pub fn from_host(host: &Strided<T>) -> Result<Self> {
        Self::from_host_on(&Stream::current()?, host)
    }

    /// As [`from_host`](Self::from_host), on a stream, and so on its device.
    ///
    /// # Errors
    /// As there.
    pub fn from_host_on(stream: &Stream, host: &Strided<T>) -> Result<Self> {
        match host.try_as_slice() {
            Ok(elements) => Self::from_slice_on(stream, host.shape(), elements),
            Err(_) => Self::from_slice_on(stream, host.shape(), &host.to_vec()),
        }
    }

    /// A tensor of zeros, on the current stream.
    ///
    /// # Errors
    /// When there is no device, or it has no room.
    pub fn zeros(shape: impl Into<Shape>) -> Result<Self> {
        Self::zeros_on(&Stream::current()?, shape)
    }

    /// As [`zeros`](Self::zeros), on a stream, and so on its device.
    ///
    /// # Errors
    /// As there.
    pub fn zeros_on(stream: &Stream, shape: impl Into<Shape>) -> Result<Self> {
        let body = Body::new(T::DTYPE, shape, stream)?;
        body.fill_bytes(0)?;
        Ok(Self::over(body))
    }

    /// A tensor of elements that are whatever was there before, on the current stream: to be written first.
    ///
    /// # Errors
    /// When there is no device, or it has no room.
    pub fn uninit(shape: impl Into<Shape>) -> Result<Self> {
        Body::new(T::DTYPE, shape, &Stream::current()?).map(Self::over)
    }

    /// A fixed set of tensors of zeros that go round between processes, on the current stream: one allocation, with the
    /// events that it takes to send them made beforehand. Whoever receives one opens the allocation and the events once; from
    /// then on a hand-over opens, makes and closes nothing. Put them into a queue, take one to write, send it on, and send it
    /// back when it was read.
    ///
    /// # Errors
    /// When there is no device, or it has no room; `Shape` for none or more than a million.
    pub fn slots(count: usize, shape: impl Into<Shape>) -> Result<Vec<Self>> {
        let stream = Stream::current()?;
        let number = u32::try_from(count)
            .ok()
            .filter(|count| (1..=1 << 20).contains(count))
            .ok_or_else(|| {
                Error::new(
                    ErrorKind::Shape,
                    format!("{count} slots were asked for; there can be 1 to 1048576"),
                )
            })?;
        let bodies = Body::slots(T::DTYPE, shape, number, &stream)?;
        bodies
            .into_iter()
            .map(|body| body.fill_bytes(0).map(|()| Self::over(body)))
            .collect()
    }

    /// Memory that somebody else made as a tensor, without a copy: `address` is where its elements lie, in row-major order,
    /// on the device of `stream`, in whose order they were written. `owner` is dropped when nobody in any process uses the
    /// tensor any more: when the next piece is wrapped, with [`collect`](crate::collect), or else within about half a second, on
    /// a thread of this crate. It is not dropped while a stream of the device waits for another process, since whoever gives
    /// memory back waits for all streams; they are held off after a second.
    ///
    /// # Errors
    /// `NotExportable` when the driver has no handle for such memory, as for cudarc's `CudaSlice`, which is of a memory pool:
    /// [`copied_from_raw`](Self::copied_from_raw) then. `Shape` when the allocation is shorter; `WrongDevice` when it is of another
    /// device than `stream`.
    ///
    /// # Safety
    /// Until `owner` is dropped, the memory stays allocated and nobody else writes it, nor reads it in another order than
    /// that of `stream`.
    pub unsafe fn wrap_raw(
        stream: &Stream,
        shape: impl Into<Shape>,
        address: u64,
        owner: impl Any + Send,
    ) -> Result<Self> {
        Body::wrap(T::DTYPE, shape, address, Box::new(owner), stream).map(Self::over)
    }

    /// A copy of elements that somebody else has on the device of `stream`, made in its order: for memory that cannot be
    /// shown to other processes.
    ///
    /// # Errors
    /// When the device has no room, or what the driver answers.
    ///
    /// # Safety
    /// As many elements as the shape has lie at `address`, and are neither freed nor written before the copy is over.
    pub unsafe fn copied_from_raw(
        stream: &Stream,
        shape: impl Into<Shape>,
        address: u64,
    ) -> Result<Self> {
        let body = Body::new(T::DTYPE, shape, stream)?;
        let bytes = body.geometry.packed_bytes() as u64;
        let to = body.enter(stream)?;
        stream.driver().copy(stream.raw()?, to, address, bytes)?;
        Ok(Self::over(body))
    }

    /// Overwrites the elements, in row-major order, after everything in the tensor's stream.
    ///
    /// # Errors
    /// When the slice has another length, the elements do not follow one another, the memory's origin has ended, or what
    /// the driver answers.
    pub fn copy_from_slice(&mut self, from: &[T]) -> Result<()> {
        self.body.write(from)
    }

    /// Overwrites the elements with those of another tensor, of this device or another one, in the order of this tensor's
    /// stream, which waits for the other's. No thread waits.
    ///
    /// # Errors
    /// When the shapes differ, one of the two is not contiguous, an origin has ended, or what the driver answers.
    pub fn copy_from(&mut self, from: &DeviceTensor<T>) -> Result<()> {
        self.body.copy_from(&from.body)
    }

    /// As [`copy_from`](Self::copy_from), from a shared tensor.
    ///
    /// # Errors
    /// As there.
    pub fn copy_from_shared(&mut self, from: &SharedDeviceTensor<T>) -> Result<()> {
        self.body.copy_from(&from.body)
    }

    /// Overwrites the elements with zeros, in the order of the tensor's stream.
    ///
    /// # Errors
    /// When the elements do not follow one another, the memory's origin has ended, or what the driver answers.
    pub fn clear(&mut self) -> Result<()> {
        if !self.is_contiguous() {
            return Err(Error::new(
                ErrorKind::Shape,
                "the elements of the device tensor do not follow one another, after a transposition; clear it before",
            ));
        }
        crate::driver::check_not_forked()?;
        self.body.using.place.check_alive(false)?;
        self.body.fill_bytes(0)
    }

    /// Where the first element lies on the device, for kernels and copies that read it and are put into `stream` next. The
    /// stream waits for the tensor's own; the tensor is not written, and its memory not used otherwise, before what is in
    /// `stream` then is done. Elements lie as [`strides`](Self::strides) says.
    ///
    /// # Errors
    /// When it is a stream of another device, or the memory's origin has ended.
    pub fn read_in(&self, stream: &Stream) -> Result<u64> {
        self.body.enter(stream)
    }

    /// As [`read_in`](Self::read_in), for work that writes; from now on the tensor is in the order of `stream`.
    ///
    /// # Errors
    /// As there.
    pub fn write_in(&mut self, stream: &Stream) -> Result<u64> {
        let address = self.body.enter_to_write(stream)?;
        self.body.stream = stream.clone();
        Ok(address)
    }

    /// Gives up writing, so that any number of processes can read.
    #[must_use]
    pub fn freeze(self) -> SharedDeviceTensor<T> {
        SharedDeviceTensor::over(self.body.freeze())
    }

    /// The same elements in the same order in another shape, from now on. Never copies.
    ///
    /// # Errors
    /// When the shape has another number of elements, or the tensor is transposed so that it would need a copy.
    pub fn reshape(&mut self, shape: impl Into<Shape>) -> Result<()> {
        self.body.geometry = self.body.geometry.reshape(shape)?;
        Ok(())
    }

    /// With dimensions `a` and `b` in each other's place, from now on.
    ///
    /// # Errors
    /// When there is no such dimension.
    pub fn transpose(&mut self, a: usize, b: usize) -> Result<()> {
        self.body.geometry = self.body.geometry.transpose(a, b)?;
        Ok(())
    }

    /// Only `length` elements from `start` in dimension `dim`, from now on.
    ///
    /// # Errors
    /// When there is no such dimension, or it is shorter.
    pub fn narrow(&mut self, dim: usize, start: usize, length: usize) -> Result<()> {
        self.body.geometry = self.body.geometry.narrow(dim, start, length)?;
        Ok(())
    }

    crate::accessors::what_it_holds!();
    crate::accessors::what_it_is!();
}

impl<T: Element> Serialize for DeviceTensor<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        travel::serialize(&self.body, serializer)
    }
}

impl<'de, T: Element> Deserialize<'de> for DeviceTensor<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let body = travel::exclusive(deserializer)?;
        expect::<T, D::Error>(body.geometry.dtype())?;
        Ok(Self::over(body))
    }
}

/// Fails unless what arrived has elements of `T`.
pub(crate) fn expect<T: Element, E: serde::de::Error>(found: Dtype) -> Result<(), E> {
    if found == T::DTYPE {
        return Ok(());
    }
    Err(refuse_because(format!(
        "a device tensor of {found} arrived where one of {} was to be received",
        T::DTYPE
    )))
}

impl<T: Element> fmt::Debug for DeviceTensor<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe(f, "DeviceTensor", &self.body)
    }
}

pub(crate) fn describe(f: &mut fmt::Formatter<'_>, name: &str, body: &Body) -> fmt::Result {
    f.debug_struct(name)
        .field("dtype", &body.geometry.dtype())
        .field("shape", &body.geometry.shape())
        .field("device", &body.device().ordinal())
        .field("path", &body.path())
        .finish_non_exhaustive()
}
