//! Walking over the elements of a tensor in row-major order, whatever its strides.

use crate::tensor::element::Element;
use crate::tensor::exclusive::Tensor;
use crate::tensor::geometry::Geometry;
use crate::tensor::placed::Placed;
use crate::tensor::shape::MAX_DIMS;
use crate::tensor::shared::SharedTensor;
use crate::tensor::strided::Strided;
use std::fmt;
use std::iter::FusedIterator;
use std::marker::PhantomData;

/// The index in the storage of each element, in row-major order.
#[derive(Clone, Debug)]
pub(crate) struct Indices<'a> {
    geometry: &'a Geometry,
    position: [usize; MAX_DIMS],
    /// Index of the element at `position`; meaningless when none is left.
    at: isize,
    left: usize,
}

impl<'a> Indices<'a> {
    pub(crate) fn new(geometry: &'a Geometry) -> Self {
        Indices {
            geometry,
            position: [0; MAX_DIMS],
            at: geometry.offset() as isize,
            left: geometry.numel(),
        }
    }

    /// Moves on by one position. Every index on the way is that of an element, so none overflows.
    fn step(&mut self) {
        let dims = self.geometry.shape().iter().zip(self.geometry.strides());
        for (position, (&length, &stride)) in self.position.iter_mut().zip(dims).rev() {
            if *position + 1 < length {
                *position += 1;
                self.at += stride;
                return;
            }
            self.at -= stride * *position as isize;
            *position = 0;
        }
    }
}

impl Iterator for Indices<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        self.left = self.left.checked_sub(1)?;
        let index = self.at as usize;
        if self.left > 0 {
            self.step();
        }
        Some(index)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Indices<'_> {}
impl FusedIterator for Indices<'_> {}

/// The elements of a tensor in row-major order, by value; made by [`Strided::iter`].
pub struct Elements<'a, T>(Way<'a, T>);

enum Way<'a, T> {
    Packed(std::slice::Iter<'a, T>),
    Strided(&'a Placed, Indices<'a>),
}

impl<'a, T: Element> Elements<'a, T> {
    pub(crate) fn new(tensor: &'a Strided<T>) -> Self {
        Elements(match tensor.try_as_slice() {
            Ok(slice) => Way::Packed(slice.iter()),
            Err(_) => Way::Strided(tensor.placed(), tensor.placed().geometry().indices()),
        })
    }
}

impl<T: Element> Iterator for Elements<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        match &mut self.0 {
            Way::Packed(slice) => slice.next().copied(),
            Way::Strided(placed, indices) => {
                let index = indices.next()?;
                // SAFETY: the index comes from the geometry of `placed`, which cannot change while it is borrowed, and
                // `T` is its element type, as `placed` is that of a `Strided<T>`.
                Some(unsafe { placed.read(index) })
            }
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match &self.0 {
            Way::Packed(slice) => slice.size_hint(),
            Way::Strided(_, indices) => indices.size_hint(),
        }
    }

    fn fold<B, F: FnMut(B, T) -> B>(self, init: B, f: F) -> B {
        match self.0 {
            Way::Packed(slice) => slice.copied().fold(init, f),
            Way::Strided(placed, indices) => indices
                .map(|index| {
                    // SAFETY: as in `next`.
                    unsafe { placed.read(index) }
                })
                .fold(init, f),
        }
    }
}

impl<T: Element> ExactSizeIterator for Elements<'_, T> {}
impl<T: Element> FusedIterator for Elements<'_, T> {}

impl<T> Clone for Elements<'_, T> {
    fn clone(&self) -> Self {
        Elements(match &self.0 {
            Way::Packed(slice) => Way::Packed(slice.clone()),
            Way::Strided(placed, indices) => Way::Strided(placed, indices.clone()),
        })
    }
}

impl<T: Element> fmt::Debug for Elements<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Elements")
            .field("left", &self.len())
            .finish_non_exhaustive()
    }
}

/// By value, as [`Strided::iter`] has it.
impl<'a, T: Element> IntoIterator for &'a Strided<T> {
    type Item = T;
    type IntoIter = Elements<'a, T>;

    fn into_iter(self) -> Elements<'a, T> {
        self.iter()
    }
}

/// By value, as [`Strided::iter`] has it.
///
/// ```
/// let tensor = shm_core::Tensor::arange(0, 4, 1)?;
/// let mut sum = 0;
/// for element in &tensor {
///     sum += element;
/// }
/// assert_eq!(sum, 6);
/// # Ok::<(), shm_core::Error>(())
/// ```
impl<'a, T: Element> IntoIterator for &'a Tensor<T> {
    type Item = T;
    type IntoIter = Elements<'a, T>;

    fn into_iter(self) -> Elements<'a, T> {
        self.iter()
    }
}

/// By value, as [`Strided::iter`] has it.
impl<'a, T: Element> IntoIterator for &'a SharedTensor<T> {
    type Item = T;
    type IntoIter = Elements<'a, T>;

    fn into_iter(self) -> Elements<'a, T> {
        self.iter()
    }
}

/// The elements of a tensor in row-major order, to write; made by [`Tensor::iter_mut`].
pub struct ElementsMut<'a, T> {
    /// Borrowed mutably for `'a`, though the type does not say so: `elements` does.
    placed: &'a Placed,
    indices: Indices<'a>,
    elements: PhantomData<&'a mut [T]>,
}

impl<'a, T: Element> ElementsMut<'a, T> {
    /// The elements of `placed` are of type `T`, and it is exclusive, as those of a `Tensor<T>` are.
    pub(super) fn new(placed: &'a mut Placed) -> Self {
        debug_assert!(placed.is_exclusive() && placed.expect::<T>().is_ok());
        let placed = &*placed;
        ElementsMut {
            placed,
            indices: placed.geometry().indices(),
            elements: PhantomData,
        }
    }
}

impl<'a, T: Element> Iterator for ElementsMut<'a, T> {
    type Item = &'a mut T;

    fn next(&mut self) -> Option<&'a mut T> {
        let index = self.indices.next()?;
        // SAFETY: the index comes from the geometry of `placed`, whose elements are of type `T`.
        let element = unsafe { self.placed.element::<T>(index) };
        // SAFETY: aligned, in bounds and initialised (see `placed`). The one `Placed` of the storage was borrowed
        // mutably for `'a`, so nobody else reaches the element; and an exclusive geometry names no element twice, so
        // the walk hands out each of them once.
        Some(unsafe { &mut *element })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.indices.size_hint()
    }
}

impl<T: Element> ExactSizeIterator for ElementsMut<'_, T> {}
impl<T: Element> FusedIterator for ElementsMut<'_, T> {}

impl<T> fmt::Debug for ElementsMut<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ElementsMut")
            .field("left", &self.indices.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_element_is_written_once_in_order_whatever_the_strides() {
        let mut tensor = Tensor::from_slice([2, 3], &[1, 2, 3, 4, 5, 6]).unwrap();
        tensor.transpose(0, 1).unwrap();
        let mut elements = tensor.iter_mut();
        assert_eq!(elements.len(), 6);
        let first = elements.next().unwrap();
        let second = elements.next().unwrap();
        std::mem::swap(first, second); // two at once
        for element in &mut tensor {
            *element *= 10;
        }
        assert_eq!(tensor.to_vec(), [40, 10, 20, 50, 30, 60]);
        assert_eq!((&tensor).into_iter().sum::<i32>(), 210);
        let shared = tensor.freeze();
        assert!((&shared).into_iter().eq(shared.iter()));
    }
}
