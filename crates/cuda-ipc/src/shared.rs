//! `SharedDeviceTensor`: elements on a device that any number of processes read.

use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeBounds;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use shm_core::tensor::Geometry;
use shm_core::{Element, Shape};

use crate::body::Body;
use crate::error::Result;
use crate::stream::Stream;
use crate::tensor::{DeviceTensor, describe, expect};
use crate::travel;

/// A tensor on a device that any number of processes read, and nobody writes; from [`DeviceTensor::freeze`].
///
/// Sending a clone gives the receiver one more share in the same memory. A received one can be sent on: it is still the
/// origin's memory, and the origin keeps it until the last holder is done, wherever that is.
pub struct SharedDeviceTensor<T> {
    pub(crate) body: Body,
    element: PhantomData<T>,
}

impl<T: Element> SharedDeviceTensor<T> {
    pub(crate) fn over(body: Body) -> Self {
        Self {
            body,
            element: PhantomData,
        }
    }

    /// Where the first element lies on the device, for kernels and copies that read it and are put into `stream` next. The
    /// stream waits for the tensor's own; the memory is not used otherwise before what is in `stream` when the tensor goes
    /// is done. Elements lie as [`strides`](Self::strides) says.
    ///
    /// # Errors
    /// When it is a stream of another device, or the memory's origin has ended.
    pub fn read_in(&self, stream: &Stream) -> Result<u64> {
        self.body.enter(stream)
    }

    /// The tensor for oneself again, if nobody else holds it: no clone, no view, no process, no message. Its stream waits
    /// for whoever read it.
    ///
    /// # Errors
    /// This tensor, as it was, when there is another holder, such as the process that this one is a bare fork of.
    #[expect(
        clippy::result_large_err,
        reason = "the tensor itself comes back, which is no error to be passed far"
    )]
    pub fn try_thaw(self) -> Result<DeviceTensor<T>, Self> {
        if crate::driver::check_not_forked().is_err() {
            return Err(self);
        }
        self.body
            .try_thaw()
            .map(DeviceTensor::over)
            .map_err(Self::over)
    }

    /// Whether both lie in one block, as views of one tensor do, also after they were sent.
    #[must_use]
    pub fn same_storage<U: Element>(&self, other: &SharedDeviceTensor<U>) -> bool {
        let block = |of: &Body| (of.using.place.object().handle(), of.using.index);
        block(&self.body) == block(&other.body)
    }

    fn view(&self, geometry: impl FnOnce(&Geometry) -> shm_core::Result<Geometry>) -> Result<Self> {
        let geometry = geometry(&self.body.geometry)?;
        self.body.share(geometry).map(Self::over)
    }

    /// `length` elements from `start` in dimension `dim`.
    ///
    /// # Errors
    /// When there is no such dimension, or it is shorter.
    pub fn narrow(&self, dim: usize, start: usize, length: usize) -> Result<Self> {
        self.view(|geometry| geometry.narrow(dim, start, length))
    }

    /// Every `step`-th element of a range in dimension `dim`; as `[start:end:step]` in Python, from the left.
    ///
    /// # Errors
    /// When there is no such dimension, the range does not lie in it, or `step` is 0.
    pub fn slice(&self, dim: usize, range: impl RangeBounds<usize>, step: usize) -> Result<Self> {
        self.view(|geometry| geometry.slice(dim, range, step))
    }

    /// The part at `index` in dimension `dim`, with one dimension less.
    ///
    /// # Errors
    /// When there is no such dimension or index.
    pub fn select(&self, dim: usize, index: usize) -> Result<Self> {
        self.view(|geometry| geometry.select(dim, index))
    }

    /// With dimensions `a` and `b` in each other's place.
    ///
    /// # Errors
    /// When there is no such dimension.
    pub fn transpose(&self, a: usize, b: usize) -> Result<Self> {
        self.view(|geometry| geometry.transpose(a, b))
    }

    /// The same elements in the same order in another shape; never a copy.
    ///
    /// # Errors
    /// When the shape has another number of elements, or no strides could express it.
    pub fn reshape(&self, shape: impl Into<Shape>) -> Result<Self> {
        self.view(|geometry| geometry.reshape(shape))
    }

    crate::accessors::what_it_holds!();
    crate::accessors::what_it_is!();
}

/// The same memory; counted in this process alone.
impl<T: Element> Clone for SharedDeviceTensor<T> {
    fn clone(&self) -> Self {
        match self.body.share(self.body.geometry) {
            Ok(body) => Self::over(body),
            Err(_) => unreachable!("a shared device tensor has a shared token"),
        }
    }
}

impl<T: Element> Serialize for SharedDeviceTensor<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        travel::serialize(&self.body, serializer)
    }
}

impl<'de, T: Element> Deserialize<'de> for SharedDeviceTensor<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let body = travel::shared(deserializer)?;
        expect::<T, D::Error>(body.geometry.dtype())?;
        Ok(Self::over(body))
    }
}

impl<T: Element> fmt::Debug for SharedDeviceTensor<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe(f, "SharedDeviceTensor", &self.body)
    }
}
