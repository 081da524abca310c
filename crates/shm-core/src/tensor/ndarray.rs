//! Views of tensors as arrays of the crate [`ndarray`], without copying, and tensors made of arrays.
//!
//! A view is made of a slice over the span of the elements, and ndarray itself checks that shape and strides stay in it;
//! so there is nothing here that could be unsound. ndarray takes no negative strides at that door: such a dimension is
//! handed over backwards, and turned round afterwards.

use crate::arena::Arena;
use crate::error::{Error, Result};
use crate::tensor::create;
use crate::tensor::element::Element;
use crate::tensor::exclusive::Tensor;
use crate::tensor::geometry::Geometry;
use crate::tensor::strided::Strided;
use ::ndarray::{
    ArrayRef, ArrayViewD, ArrayViewMutD, Axis, Dimension, IxDyn, ShapeBuilder, StrideShape,
};

impl<T: Element> Strided<T> {
    /// The same elements as a view of the crate `ndarray`; nothing is copied. Needs the feature `ndarray`.
    ///
    /// Works for all shapes and strides. For elements of another kind than ndarray's own numbers (f16, complex) the
    /// view is there, but arithmetic may not be.
    ///
    /// ```
    /// let tensor = shm_core::Tensor::arange(0.0, 6.0, 1.0)?.into_reshaped([2, 3])?.freeze();
    /// let array = tensor.as_ndarray();
    /// assert_eq!(array.sum(), 15.0);
    /// assert_eq!(array[[1, 2]], 5.0);
    /// assert_eq!(array.as_ptr(), tensor.as_slice().as_ptr());
    /// # Ok::<(), shm_core::Error>(())
    /// ```
    pub fn as_ndarray(&self) -> ArrayViewD<'_, T> {
        let (shape, backwards) = parts(*self.placed().geometry());
        let span = self.placed().span();
        let view = span
            .and_then(|span| ArrayViewD::from_shape(shape, span).map_err(|error| refused(&error)));
        let mut view = match view {
            Ok(view) => view,
            Err(error) => unreachable!("{error}"),
        };
        backwards.for_each(|axis| view.invert_axis(Axis(axis)));
        view
    }
}

impl<T: Element> Tensor<T> {
    /// The same elements as a view of the crate `ndarray` to write to; nothing is copied. Needs the feature `ndarray`.
    ///
    /// ```
    /// let mut tensor = shm_core::Tensor::<f32>::zeros([2, 2])?;
    /// tensor.as_ndarray_mut().row_mut(1).fill(3.0);
    /// # trait Rows { fn row_mut(&mut self, row: usize) -> ndarray::ArrayViewMutD<'_, f32>; }
    /// # impl Rows for ndarray::ArrayViewMutD<'_, f32> {
    /// #     fn row_mut(&mut self, row: usize) -> ndarray::ArrayViewMutD<'_, f32> { self.index_axis_mut(ndarray::Axis(0), row) }
    /// # }
    /// assert_eq!(tensor.as_slice(), [0.0, 0.0, 3.0, 3.0]);
    /// # Ok::<(), shm_core::Error>(())
    /// ```
    pub fn as_ndarray_mut(&mut self) -> ArrayViewMutD<'_, T> {
        let (shape, backwards) = parts(*self.placed().geometry());
        let span = self.placed_mut().span_mut();
        let view = span.and_then(|span| {
            ArrayViewMutD::from_shape(shape, span).map_err(|error| refused(&error))
        });
        let mut view = match view {
            Ok(view) => view,
            Err(error) => unreachable!("{error}"),
        };
        backwards.for_each(|axis| view.invert_axis(Axis(axis)));
        view
    }

    /// A copy of an array of the crate `ndarray`, in row-major order. Needs the feature `ndarray`.
    ///
    /// An array has its elements on this process's heap, so one copy into the arena is needed. To avoid it, make the
    /// tensor first and compute into its [view](Tensor::as_ndarray_mut).
    ///
    /// # Errors
    /// When it has more than [`MAX_DIMS`](crate::MAX_DIMS) dimensions, or the arena has no room.
    ///
    /// ```
    /// let array = ndarray::array![[1, 2], [3, 4]];
    /// let tensor = shm_core::Tensor::from_ndarray(&array.t())?;
    /// assert_eq!(tensor.as_slice(), [1, 3, 2, 4]);
    /// # Ok::<(), shm_core::Error>(())
    /// ```
    pub fn from_ndarray<D: Dimension>(array: &ArrayRef<T, D>) -> Result<Self> {
        Self::from_ndarray_in(&Arena::current()?, array)
    }

    /// As [`from_ndarray`](Tensor::from_ndarray), in this arena.
    ///
    /// # Errors
    /// As for [`from_ndarray`](Tensor::from_ndarray).
    pub fn from_ndarray_in<D: Dimension>(arena: &Arena, array: &ArrayRef<T, D>) -> Result<Self> {
        match array.as_slice() {
            Some(slice) => Self::from_slice_in(arena, array.shape(), slice),
            None => create::from_elements(arena, array.shape(), array.iter().copied()),
        }
    }
}

/// Shape and strides as ndarray takes them, and the dimensions that are to be turned round afterwards.
fn parts(geometry: Geometry) -> (StrideShape<IxDyn>, impl Iterator<Item = usize>) {
    // A dimension of at most one element is never stepped along, and no dimension is where there is no element; then the
    // stride may be any number, and 0 stays within every span.
    let stepped = |length| length > 1 && geometry.numel() > 0;
    let strides = geometry.strides().iter().zip(geometry.shape());
    let steps: Vec<usize> = strides
        .map(|(stride, &length)| {
            if stepped(length) {
                stride.unsigned_abs()
            } else {
                0
            }
        })
        .collect();
    let shape = IxDyn(geometry.shape()).strides(IxDyn(&steps));
    let backwards = (0..geometry.ndim())
        .filter(move |&dim| geometry.shape()[dim] > 1 && geometry.strides()[dim] < 0);
    (shape, backwards)
}

fn refused(error: &::ndarray::ShapeError) -> Error {
    Error::shape(format!("ndarray refuses a checked geometry: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::Mode;
    use crate::storage::Storage;
    use crate::tensor::placed::Placed;
    use crate::tensor::{Dtype, SharedTensor, f16};
    use ::ndarray::{Array, ArrayD};
    use proptest::prelude::*;

    fn cube() -> SharedTensor<i64> {
        let tensor = Tensor::arange(0, 24, 1).unwrap();
        tensor.into_reshaped([2, 3, 4]).unwrap().freeze()
    }

    #[test]
    fn a_view_is_the_same_memory() {
        let tensor = cube();
        let array = tensor.as_ndarray();
        assert_eq!(array.as_ptr(), tensor.as_slice().as_ptr());
        assert_eq!(
            (array.shape(), array.strides()),
            (tensor.shape(), tensor.strides())
        );
        assert_eq!(array.as_slice(), Some(tensor.as_slice()));
    }

    #[test]
    fn what_is_written_through_a_view_is_in_the_tensor() {
        let mut tensor = Tensor::<f32>::zeros([3, 2]).unwrap();
        tensor.transpose(0, 1).unwrap();
        tensor.as_ndarray_mut()[[1, 2]] = 5.0;
        let mut view = tensor.as_ndarray_mut();
        view += 1.0;
        assert_eq!(tensor.to_vec(), [1.0, 1.0, 1.0, 1.0, 1.0, 6.0]);
    }

    #[test]
    fn scalars_nothing_and_repeated_elements_are_arrays_too() {
        let scalar = Tensor::full((), 7_u8).unwrap();
        assert_eq!(scalar.as_ndarray()[[]], 7);
        let mut nothing = Tensor::<f16>::zeros([2, 0, 3]).unwrap();
        assert_eq!(nothing.as_ndarray_mut().shape(), [2, 0, 3]);
        assert_eq!(
            nothing.freeze().transpose(0, 1).unwrap().as_ndarray().len(),
            0
        );
        let repeated = cube().select(0, 0).unwrap().expand([5, 3, 4]).unwrap();
        assert_eq!(repeated.as_ndarray()[[4, 2, 3]], 11);
        let back = Tensor::from_ndarray(&repeated.as_ndarray()).unwrap();
        assert_eq!(back.to_vec(), repeated.to_vec());
    }

    #[test]
    fn a_dimension_that_runs_backwards_is_seen_backwards() {
        let arena = Arena::current().unwrap();
        let storage = Storage::allocate(&arena, 6, Mode::Exclusive).unwrap();
        let geometry = Geometry::new(Dtype::U8, &[2, 3], &[3, -1], 2).unwrap();
        Placed::check_exclusive(&storage, &geometry).unwrap();
        // SAFETY: checked just now, and the block was allocated just now.
        let placed = unsafe { Placed::exclusive(storage, &geometry) };
        let mut tensor = Tensor::<u8>::new(Strided::of(placed));
        tensor
            .as_ndarray_mut()
            .iter_mut()
            .zip(0..)
            .for_each(|(element, number)| *element = number);
        assert_eq!(tensor.to_vec(), [0, 1, 2, 3, 4, 5]);
        assert_eq!(
            tensor.as_ndarray().iter().copied().collect::<Vec<_>>(),
            tensor.to_vec()
        );
        assert_eq!(tensor.placed().span::<u8>().unwrap(), [2, 1, 0, 5, 4, 3]);
    }

    #[test]
    fn an_array_of_nine_dimensions_is_an_error() {
        let array = ArrayD::<u8>::zeros(vec![1; 9]);
        let error = Tensor::from_ndarray(&array).unwrap_err();
        assert!(error.to_string().contains('9'), "{error}");
    }

    proptest! {
        #[test]
        fn tensors_and_arrays_agree_under_the_same_views(
            shape in prop::collection::vec(0..4_usize, 3),
            order in Just(vec![0, 1, 2]).prop_shuffle(),
            (start, step) in (0..2_usize, 1..3_usize),
        ) {
            let length: usize = shape.iter().product();
            let array = Array::from_iter(0..length as u32).into_shape_with_order(shape.clone()).unwrap();
            let tensor = Tensor::from_ndarray(&array).unwrap().freeze();
            prop_assert_eq!(tensor.as_ndarray(), array.view());
            let turned = tensor.permute(&order).unwrap();
            prop_assert_eq!(turned.as_ndarray(), array.view().permuted_axes(order.clone()));
            let back = Tensor::from_ndarray(&turned.as_ndarray()).unwrap();
            prop_assert_eq!(back.to_vec(), turned.to_vec());
            if start <= turned.shape()[1] {
                let sliced = turned.slice(1, start.., step).unwrap();
                let mut view = turned.as_ndarray();
                view.slice_axis_inplace(Axis(1), ::ndarray::Slice::new(start as isize, None, step as isize));
                prop_assert_eq!(sliced.as_ndarray(), view);
            }
        }
    }
}
