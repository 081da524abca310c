//! Views: other geometries over the same elements. Each is computed from the geometry alone and moves no byte.
//!
//! They all end in `Geometry::new`, so what they return is checked like what comes from outside. That a view of a checked
//! tensor lies in the same storage follows from each of them naming only elements that were there before; where there are
//! none, the offset stays, since an offset past the end would be refused for no reason.

use crate::error::{Error, Result};
use crate::tensor::geometry::{Geometry, contiguous_strides};
use crate::tensor::shape::{MAX_DIMS, Shape};
use std::ops::{Bound, RangeBounds};

impl Geometry {
    /// Every `step`-th element of `range` in dimension `dim`.
    pub fn slice(&self, dim: usize, range: impl RangeBounds<usize>, step: usize) -> Result<Self> {
        let length = self.length("slice", dim)?;
        let start = match range.start_bound() {
            Bound::Included(&start) => Some(start),
            Bound::Excluded(&before) => before.checked_add(1),
            Bound::Unbounded => Some(0),
        };
        let end = match range.end_bound() {
            Bound::Included(&last) => last.checked_add(1),
            Bound::Excluded(&end) => Some(end),
            Bound::Unbounded => Some(length),
        };
        let (Some(start), Some(end)) = (start, end) else {
            return Err(self.no_view(format!(
                "slice dimension {dim} up to the largest number there is"
            )));
        };
        if start > end || end > length || step == 0 {
            return Err(self.no_view(format!(
                "slice dimension {dim} from {start} to {end} in steps of {step} (needed: from <= to <= {length}, step >= 1)"
            )));
        }
        let mut shape = self.dims();
        let mut strides = self.steps();
        shape[dim] = (end - start).div_ceil(step);
        if shape[dim] > 1 {
            // The second element is there, so its index fits.
            strides[dim] *= step as isize;
        }
        self.with(&shape[..self.ndim()], &strides[..self.ndim()], dim, start)
    }

    /// `length` elements from `start` in dimension `dim`.
    pub fn narrow(&self, dim: usize, start: usize, length: usize) -> Result<Self> {
        match start.checked_add(length) {
            Some(end) => self.slice(dim, start..end, 1),
            None => Err(self.no_view(format!(
                "narrow dimension {dim} to {length} elements from {start}"
            ))),
        }
    }

    /// The elements at `index` in dimension `dim`, which goes.
    pub fn select(&self, dim: usize, index: usize) -> Result<Self> {
        let length = self.length("select from", dim)?;
        if index >= length {
            return Err(self.no_view(format!(
                "select {index} from dimension {dim} of length {length}"
            )));
        }
        let (mut shape, mut strides) = (self.dims(), self.steps());
        shape.copy_within(dim + 1.., dim);
        strides.copy_within(dim + 1.., dim);
        let ndim = self.ndim() - 1;
        self.with(&shape[..ndim], &strides[..ndim], dim, index)
    }

    /// Dimensions `a` and `b` change places.
    pub fn transpose(&self, a: usize, b: usize) -> Result<Self> {
        self.length("transpose", a)?;
        self.length("transpose", b)?;
        let (mut shape, mut strides) = (self.dims(), self.steps());
        shape.swap(a, b);
        strides.swap(a, b);
        Geometry::new(
            self.dtype(),
            &shape[..self.ndim()],
            &strides[..self.ndim()],
            self.offset(),
        )
    }

    /// Dimension `order[i]` becomes dimension `i`.
    pub fn permute(&self, order: &[usize]) -> Result<Self> {
        let mut seen = [false; MAX_DIMS];
        let once = order
            .iter()
            .all(|&dim| dim < self.ndim() && !std::mem::replace(&mut seen[dim], true));
        if order.len() != self.ndim() || !once {
            return Err(self.no_view(format!(
                "permute its dimensions to {order:?} (needed: each of 0 to {} once)",
                self.ndim().saturating_sub(1)
            )));
        }
        let (mut shape, mut strides) = ([0; MAX_DIMS], [0; MAX_DIMS]);
        for (to, &from) in order.iter().enumerate() {
            shape[to] = self.shape()[from];
            strides[to] = self.strides()[from];
        }
        Geometry::new(
            self.dtype(),
            &shape[..self.ndim()],
            &strides[..self.ndim()],
            self.offset(),
        )
    }

    /// Without dimension `dim` if its length is 1; else unchanged.
    pub fn squeeze(&self, dim: usize) -> Result<Self> {
        match self.length("squeeze", dim)? {
            1 => self.select(dim, 0),
            _ => Ok(*self),
        }
    }

    /// With a dimension of length 1 before dimension `dim`, or last.
    pub fn unsqueeze(&self, dim: usize) -> Result<Self> {
        let ndim = self.ndim();
        if dim > ndim || ndim == MAX_DIMS {
            return Err(self.no_view(format!(
                "add a dimension at {dim} (needed: at most {ndim}, and at most {MAX_DIMS} dimensions in all)"
            )));
        }
        let (mut shape, mut strides) = (self.dims(), self.steps());
        shape.copy_within(dim..ndim, dim + 1);
        strides.copy_within(dim..ndim, dim + 1);
        shape[dim] = 1;
        // Any stride would do; this one keeps packed elements packed.
        strides[dim] = match (self.shape().get(dim), self.strides().get(dim)) {
            (Some(&length), Some(&stride)) => stride.saturating_mul(length.max(1) as isize),
            _ => 1,
        };
        Geometry::new(
            self.dtype(),
            &shape[..=ndim],
            &strides[..=ndim],
            self.offset(),
        )
    }

    /// Dimensions of length 1, and new outer ones, repeat to fill `shape`, with stride 0.
    pub fn expand(&self, shape: impl Into<Shape>) -> Result<Self> {
        let shape = shape.into();
        let dims = shape.dims()?;
        let bad = || {
            self.no_view(format!(
                "expand it to {dims:?} (needed: the same lengths from the right, or 1 where they differ)"
            ))
        };
        let new = dims.len().checked_sub(self.ndim()).ok_or_else(bad)?;
        let mut strides = [0; MAX_DIMS];
        for (to, (&length, &stride)) in self.shape().iter().zip(self.strides()).enumerate() {
            strides[new + to] = match dims[new + to] {
                wanted if wanted == length => stride,
                _ if length == 1 => 0,
                _ => return Err(bad()),
            };
        }
        Geometry::new(self.dtype(), dims, &strides[..dims.len()], self.offset())
    }

    /// The same elements in the same order in another shape, if that needs no copy.
    pub fn reshape(&self, shape: impl Into<Shape>) -> Result<Self> {
        let shape = shape.into();
        let dims = shape.dims()?;
        let count = dims
            .iter()
            .try_fold(1_usize, |count, &length| count.checked_mul(length));
        // Zero-length dimensions may come after an overflow; then the product is no number of elements either way.
        if count != Some(self.numel()) {
            return Err(self.no_view(format!(
                "see its {} elements as {dims:?}, which has another number of them",
                self.numel()
            )));
        }
        let strides = if self.numel() == 0 {
            contiguous_strides(dims)
        } else {
            self.reshaped_strides(dims)
        };
        let strides = strides.ok_or_else(|| {
            self.no_view(format!(
                "see it as {dims:?} without moving elements; make it contiguous first"
            ))
        })?;
        Geometry::new(self.dtype(), dims, &strides[..dims.len()], self.offset())
    }

    /// The strides that let `dims`, of as many elements (at least one), name the same elements in the same order.
    ///
    /// Neighbouring dimensions that could be one form a *run*: a length and a stride. A new shape works if it cuts each
    /// run into dimensions, so that no new dimension crosses from one run into the next.
    fn reshaped_strides(&self, dims: &[usize]) -> Option<[isize; MAX_DIMS]> {
        let mut runs = [(1_usize, 1_isize); MAX_DIMS];
        let mut count = 0;
        for (&length, &stride) in self
            .shape()
            .iter()
            .zip(self.strides())
            .filter(|(length, _)| **length != 1)
        {
            let joins = count > 0 && stride.checked_mul(length as isize) == Some(runs[count - 1].1);
            if joins {
                runs[count - 1] = (runs[count - 1].0 * length, stride);
            } else {
                runs[count] = (length, stride);
                count += 1;
            }
        }
        let mut runs = runs[..count].iter().rev();
        let (mut left, mut step) = runs.next().copied().unwrap_or((1, 1));
        let mut strides = [0; MAX_DIMS];
        for (to, &length) in dims.iter().enumerate().rev() {
            if length != 1 && left == 1 {
                (left, step) = runs.next().copied()?;
            }
            if left % length != 0 {
                return None;
            }
            strides[to] = step;
            left /= length;
            // Saturates at most past the outermost dimension of a run, where the stride means nothing.
            step = step.saturating_mul(length as isize);
        }
        Some(strides)
    }

    /// The length of dimension `dim`, or an error that says what was tried on it.
    fn length(&self, what: &str, dim: usize) -> Result<usize> {
        self.shape().get(dim).copied().ok_or_else(|| {
            self.no_view(format!(
                "{what} dimension {dim}; there are {}, counted from 0",
                self.ndim()
            ))
        })
    }

    /// This geometry with another shape and strides, beginning at `start` in dimension `dim`.
    fn with(&self, shape: &[usize], strides: &[isize], dim: usize, start: usize) -> Result<Self> {
        let mut offset = self.offset();
        if shape.iter().all(|&length| length > 0) {
            // The element at `start` is there, so its index fits.
            offset = (offset as isize + self.strides()[dim] * start as isize) as usize;
        }
        Geometry::new(self.dtype(), shape, strides, offset)
    }

    fn dims(&self) -> [usize; MAX_DIMS] {
        let mut dims = [0; MAX_DIMS];
        dims[..self.ndim()].copy_from_slice(self.shape());
        dims
    }

    fn steps(&self) -> [isize; MAX_DIMS] {
        let mut steps = [0; MAX_DIMS];
        steps[..self.ndim()].copy_from_slice(self.strides());
        steps
    }

    fn no_view(&self, what: String) -> Error {
        Error::shape(format!(
            "a tensor of shape {:?} and strides {:?} cannot do this: {what}",
            self.shape(),
            self.strides()
        ))
    }
}

/// The views of a tensor type as methods; each of them hands a change of geometry to the type's own `view`.
macro_rules! view_methods {
    () => {
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
        pub fn slice(
            &self,
            dim: usize,
            range: impl std::ops::RangeBounds<usize>,
            step: usize,
        ) -> Result<Self> {
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

        /// With dimension `order[i]` as dimension `i`.
        ///
        /// # Errors
        /// When `order` does not name each dimension once.
        pub fn permute(&self, order: &[usize]) -> Result<Self> {
            self.view(|geometry| geometry.permute(order))
        }

        /// The same elements in the same order in another shape; never a copy.
        ///
        /// # Errors
        /// When the shape has another number of elements, or no strides could express it.
        pub fn reshape(&self, shape: impl Into<Shape>) -> Result<Self> {
            self.view(|geometry| geometry.reshape(shape))
        }

        /// Without dimension `dim` if its length is 1; else the same, as in torch.
        ///
        /// # Errors
        /// When there is no such dimension.
        pub fn squeeze(&self, dim: usize) -> Result<Self> {
            self.view(|geometry| geometry.squeeze(dim))
        }

        /// With a dimension of length 1 before dimension `dim`, or after the last.
        ///
        /// # Errors
        /// When `dim` is beyond that, or there are [`MAX_DIMS`](crate::MAX_DIMS) already.
        pub fn unsqueeze(&self, dim: usize) -> Result<Self> {
            self.view(|geometry| geometry.unsqueeze(dim))
        }

        /// Dimensions of length 1, and new ones on the left, repeat to fill `shape`: each element is then at many
        /// positions, and is there once.
        ///
        /// # Errors
        /// When the lengths, matched from the right, differ where the length is not 1.
        pub fn expand(&self, shape: impl Into<Shape>) -> Result<Self> {
            self.view(|geometry| geometry.expand(shape))
        }
    };
}
pub(super) use view_methods;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::dtype::Dtype;

    fn tensor(shape: impl Into<Shape>) -> Geometry {
        Geometry::contiguous(Dtype::I16, shape).unwrap()
    }

    #[test]
    fn an_empty_part_at_the_very_end_is_a_view_of_nothing() {
        let end = tensor([3, 4])
            .narrow(0, 3, 0)
            .unwrap()
            .narrow(1, 4, 0)
            .unwrap();
        assert_eq!((end.shape(), end.numel()), (&[0, 0][..], 0));
        assert!(end.check(24, 64).is_ok());
    }

    #[test]
    fn ranges_of_all_kinds_slice() {
        let row = tensor(10);
        assert_eq!(row.slice(0, .., 1).unwrap(), row);
        assert_eq!(
            row.slice(0, 2..=4, 1).unwrap(),
            row.narrow(0, 2, 3).unwrap()
        );
        assert_eq!(row.slice(0, ..4, 3).unwrap().shape(), [2]);
        assert_eq!(row.slice(0, 9.., usize::MAX).unwrap().shape(), [1]);
        assert!(row.slice(0, ..=usize::MAX, 1).is_err());
        assert!(
            row.slice(0, (Bound::Excluded(usize::MAX), Bound::Unbounded), 1)
                .is_err()
        );
        assert_eq!(
            row.slice(0, (Bound::Excluded(0), Bound::Unbounded), 1)
                .unwrap()
                .shape(),
            [9]
        );
    }

    #[test]
    fn views_that_cannot_be_say_what_was_tried_and_on_what() {
        let matrix = tensor([3, 4]);
        let flipped = matrix.transpose(0, 1).unwrap();
        for (error, words) in [
            (matrix.narrow(2, 0, 1), &["[3, 4]", "dimension 2"][..]),
            (matrix.narrow(0, 2, 2), &["[3, 4]", "from 2 to 4", "<= 3"]),
            (matrix.narrow(0, usize::MAX, 2), &["[3, 4]", "narrow"]),
            (matrix.slice(1, .., 0), &["steps of 0"]),
            (matrix.select(1, 4), &["4", "length 4"]),
            (matrix.transpose(0, 2), &["transpose dimension 2"]),
            (matrix.permute(&[0, 0]), &["[0, 0]"]),
            (matrix.permute(&[0]), &["[0]"]),
            (matrix.permute(&[0, 1, 2]), &["[0, 1, 2]"]),
            (matrix.unsqueeze(3), &["at 3"]),
            (matrix.squeeze(2), &["squeeze dimension 2"]),
            (matrix.expand([4]), &["[4]"]),
            (matrix.expand([3, 5]), &["[3, 5]"]),
            (matrix.reshape([5]), &["12", "[5]"]),
            (matrix.reshape([usize::MAX, 3]), &["12"]),
            (
                flipped.reshape([12]),
                &["[4, 3]", "[1, 4]", "[12]", "contiguous"],
            ),
            (tensor([1; MAX_DIMS]).unsqueeze(0), &["at most 8"]),
            (tensor(1).expand([usize::MAX]), &["bytes"]),
        ] {
            let error = error.unwrap_err().to_string();
            assert!(
                words.iter().all(|word| error.contains(word)),
                "{error}: {words:?}"
            );
        }
    }

    #[test]
    fn adding_and_removing_a_dimension_of_one_keeps_packed_elements_packed() {
        for dim in 0..=2 {
            let more = tensor([3, 4]).unsqueeze(dim).unwrap();
            assert!(more.has_packed_strides(), "{more:?}");
            assert_eq!(more.squeeze(dim).unwrap(), tensor([3, 4]));
        }
        assert_eq!(tensor([3, 4]).squeeze(0).unwrap(), tensor([3, 4]));
    }

    #[test]
    fn a_packed_tensor_takes_any_shape_and_back() {
        let row = tensor(24);
        for shape in [
            &[24][..],
            &[2, 3, 4],
            &[4, 1, 6],
            &[1, 24, 1],
            &[24, 1, 1, 1],
        ] {
            let shaped = row.reshape(shape).unwrap();
            assert!(shaped.has_packed_strides(), "{shaped:?}");
            assert_eq!(shaped.reshape(24).unwrap(), row);
        }
        assert_eq!(
            tensor(()).reshape([1, 1]).unwrap().reshape(()).unwrap(),
            tensor(())
        );
        assert_eq!(tensor([0, 3]).reshape([5, 0]).unwrap(), tensor([5, 0]));
    }
}
