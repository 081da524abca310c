//! Parts of a tensor of bytes, as tensors of their own types: what a slot that holds several tensors is made of.

use std::fmt;
use std::ops::Deref;

use shm_core::tensor::Geometry;
use shm_core::{Element, Shape};

use crate::body::Body;
use crate::error::{Error, ErrorKind, Result};
use crate::shared::SharedDeviceTensor;
use crate::stream::Stream;
use crate::tensor::DeviceTensor;
use crate::token::Token;

/// Part of a [`DeviceTensor`] of bytes, to write, as a tensor of its own type; from [`DeviceTensor::part_mut`].
///
/// It reads as the tensor that it dereferences to. It cannot be sent: the whole is.
pub struct PartMut<'a, T: Element> {
    whole: &'a mut DeviceTensor<u8>,
    part: DeviceTensor<T>,
}

impl DeviceTensor<u8> {
    /// The elements of type `T` that lie from byte `start` on, in row-major order, to write.
    ///
    /// ```no_run
    /// # use cuda_ipc::DeviceTensor;
    /// let mut slot = DeviceTensor::<u8>::zeros([1024])?;
    /// slot.part_mut::<f32>(512, [2, 2])?.copy_from_slice(&[1.0, 2.0, 3.0, 4.0])?;
    /// # Ok::<(), cuda_ipc::Error>(())
    /// ```
    ///
    /// # Errors
    /// When `start` is no multiple of the element's size, or they do not all lie within the tensor.
    pub fn part_mut<T: Element>(
        &mut self,
        start: usize,
        shape: impl Into<Shape>,
    ) -> Result<PartMut<'_, T>> {
        let geometry = within::<T>(&self.body, start, shape)?;
        let part = DeviceTensor::over(Body {
            using: self.body.using.clone(),
            token: Token::Lent.into(),
            geometry,
            stream: self.body.stream.clone(),
        });
        Ok(PartMut { whole: self, part })
    }
}

impl SharedDeviceTensor<u8> {
    /// The elements of type `T` that lie from byte `start` on, in row-major order; a view, as others are.
    ///
    /// # Errors
    /// When `start` is no multiple of the element's size, or they do not all lie within the tensor.
    pub fn part<T: Element>(
        &self,
        start: usize,
        shape: impl Into<Shape>,
    ) -> Result<SharedDeviceTensor<T>> {
        let geometry = within::<T>(&self.body, start, shape)?;
        self.body.share(geometry).map(SharedDeviceTensor::over)
    }
}

/// How elements of `T` lie from byte `start` of a tensor of bytes on.
fn within<T: Element>(body: &Body, start: usize, shape: impl Into<Shape>) -> Result<Geometry> {
    let part = Geometry::contiguous(T::DTYPE, shape)?;
    let whole = &body.geometry;
    let fits = whole.is_contiguous()
        && start
            .checked_add(part.packed_bytes())
            .is_some_and(|end| end <= whole.packed_bytes());
    // Fits, where the part does.
    let first = whole.offset().wrapping_add(start);
    if !fits || !first.is_multiple_of(T::DTYPE.size()) {
        return Err(Error::new(
            ErrorKind::Shape,
            format!(
                "{} of shape {:?} was to lie from byte {start} on in a device tensor of {} bytes; it has to fit, and to begin at a multiple of {}",
                T::DTYPE,
                part.shape(),
                whole.packed_bytes(),
                T::DTYPE.size()
            ),
        ));
    }
    let offset = first / T::DTYPE.size();
    Ok(Geometry::new(
        T::DTYPE,
        part.shape(),
        part.strides(),
        offset,
    )?)
}

impl<T: Element> PartMut<'_, T> {
    /// As [`DeviceTensor::copy_from_slice`].
    ///
    /// # Errors
    /// As there.
    pub fn copy_from_slice(&mut self, from: &[T]) -> Result<()> {
        self.part.copy_from_slice(from)
    }

    /// As [`DeviceTensor::copy_from`].
    ///
    /// # Errors
    /// As there.
    pub fn copy_from(&mut self, from: &DeviceTensor<T>) -> Result<()> {
        self.part.copy_from(from)
    }

    /// As [`DeviceTensor::copy_from_shared`].
    ///
    /// # Errors
    /// As there.
    pub fn copy_from_shared(&mut self, from: &SharedDeviceTensor<T>) -> Result<()> {
        self.part.copy_from_shared(from)
    }

    /// As [`DeviceTensor::clear`].
    ///
    /// # Errors
    /// As there.
    pub fn clear(&mut self) -> Result<()> {
        self.part.clear()
    }

    /// As [`DeviceTensor::write_in`].
    ///
    /// # Errors
    /// As there.
    pub fn write_in(&mut self, stream: &Stream) -> Result<u64> {
        self.part.write_in(stream)
    }
}

impl<T: Element> Deref for PartMut<'_, T> {
    type Target = DeviceTensor<T>;

    fn deref(&self) -> &DeviceTensor<T> {
        &self.part
    }
}

impl<T: Element> Drop for PartMut<'_, T> {
    fn drop(&mut self) {
        // Written in another stream: the whole goes on behind that.
        if let Err(error) = self.whole.body.stream.wait_for(&self.part.body.stream) {
            tracing::warn!(%error, "a part was written in a stream that the whole cannot wait for");
        }
    }
}

impl<T: Element> fmt::Debug for PartMut<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PartMut").field(&self.part).finish()
    }
}
