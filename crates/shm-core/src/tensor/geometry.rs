//! How a tensor's elements lie in its storage: element type, shape, strides and offset, all in elements.
//!
//! A `Geometry` is checked when it is made, so whoever holds one may compute with it without overflow. What it cannot
//! know is the storage; [`Geometry::check`] is where the two meet, and every tensor has passed it.

use crate::error::{Error, Result};
use crate::tensor::dtype::Dtype;
use crate::tensor::shape::{MAX_DIMS, Shape};
use crate::tensor::walk::Indices;
use std::fmt;
use std::ops::Range;

/// The largest number of bytes one object may span in Rust, and hence a tensor.
const MAX_BYTES: usize = isize::MAX as usize;

/// Shape, strides and offset of a tensor, inline.
///
/// Invariants, kept by `new` (the only place that fills the fields):
/// - `ndim <= MAX_DIMS`, and the unused rest of `shape` and `strides` is zero (so that `==` compares what counts);
/// - the product of all `max(length, 1)`, in bytes, is at most `isize::MAX`;
/// - for each dimension longer than 1, `(length - 1) * stride` does not overflow, and neither do the index of the lowest
///   and of the highest element, which are at least 0 and, in bytes, end at most at `isize::MAX`.
///
/// So the index of any element, and any partial sum of it that is itself the index of an element, fits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    dtype: Dtype,
    ndim: u8,
    /// Whether the strides are those of elements that follow one another in row-major order, to the letter.
    packed: bool,
    shape: [usize; MAX_DIMS],
    /// Elements from one element to the next in each dimension; zero and negative ones are possible. Without meaning
    /// where the length is at most 1.
    strides: [isize; MAX_DIMS],
    /// Index of the first element, the one at `[0, 0, …]`, in the storage.
    offset: usize,
}

impl Geometry {
    /// One byte.
    pub(crate) const SCALAR: Self = Self {
        dtype: Dtype::U8,
        ndim: 0,
        packed: true,
        shape: [0; MAX_DIMS],
        strides: [0; MAX_DIMS],
        offset: 0,
    };

    /// A geometry of these lengths and strides, if it can be computed with.
    ///
    /// # Errors
    /// When there are too many dimensions, the size overflows, or an element would lie before the storage.
    #[inline]
    pub fn new(dtype: Dtype, dims: &[usize], strides: &[isize], offset: usize) -> Result<Self> {
        if dims.len() != strides.len() {
            return Err(Error::shape(format!(
                "a shape of {} dimensions came with {} strides; there must be one for each",
                dims.len(),
                strides.len()
            )));
        }
        if dims.len() > MAX_DIMS {
            Shape::from(dims).dims()?;
        }
        let mut geometry = Geometry {
            dtype,
            ndim: dims.len() as u8,
            packed: false,
            shape: [0; MAX_DIMS],
            strides: [0; MAX_DIMS],
            offset,
        };
        for (to, from) in geometry.shape.iter_mut().zip(dims) {
            *to = *from;
        }
        for (to, from) in geometry.strides.iter_mut().zip(strides) {
            *to = *from;
        }
        if !geometry.fits_in_memory() {
            return Err(too_large(dtype, dims));
        }
        geometry.packed = contiguous_strides(dims) == Some(geometry.strides);
        let reach = geometry
            .try_reach()
            .filter(|reach| *reach.start() >= 0)
            .map(|reach| *reach.end() as usize);
        let end = reach.and_then(|last| last.checked_add(1)?.checked_mul(dtype.size()));
        if end.is_none_or(|end| end > MAX_BYTES) {
            return Err(Error::shape(format!(
                "the strides {strides:?} and the offset {offset} take the shape {dims:?} of {dtype} out of the address \
                 space; the first element must not lie before 0, nor the last beyond {MAX_BYTES} bytes"
            )));
        }
        Ok(geometry)
    }

    /// A geometry whose elements follow one another in row-major order from the start of the storage.
    #[inline]
    pub fn contiguous(dtype: Dtype, shape: impl Into<Shape>) -> Result<Self> {
        let shape = shape.into();
        Self::packed(dtype, shape.dims()?)
    }

    /// As [`contiguous`](Self::contiguous), for at most [`MAX_DIMS`] lengths.
    #[inline]
    pub(super) fn packed(dtype: Dtype, dims: &[usize]) -> Result<Self> {
        let mut geometry = Self::SCALAR;
        let mut lengths = dims.iter().copied();
        match geometry.pack(dtype, dims.len(), || lengths.next()) {
            Some(()) => Ok(geometry),
            None => Err(too_large(dtype, dims)),
        }
    }

    /// What [`packed`](Self::packed) answers, in the place of a [`SCALAR`](Self::SCALAR): to move a geometry takes longer
    /// than to fill one. `next` answers the lengths, outermost first. After `None` there is nothing of use in it.
    #[inline]
    pub(super) fn pack(
        &mut self,
        dtype: Dtype,
        ndim: usize,
        mut next: impl FnMut() -> Option<usize>,
    ) -> Option<()> {
        let lengths = self.shape.get_mut(..ndim)?;
        for length in &mut *lengths {
            *length = next()?;
        }
        // Each stride is a part of this product, and the last element is the one before it: if it fits, all does.
        let mut count = 1_usize;
        for (length, stride) in lengths.iter().zip(&mut self.strides).rev() {
            *stride = isize::try_from(count).ok()?;
            count = count.checked_mul((*length).max(1))?;
        }
        (self.dtype, self.ndim) = (dtype, ndim as u8);
        let bytes = count.checked_mul(dtype.size())?;
        (bytes <= MAX_BYTES).then_some(())
    }

    /// The element type.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// How many dimensions there are.
    pub fn ndim(&self) -> usize {
        usize::from(self.ndim)
    }

    /// The lengths of the dimensions, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape[..self.ndim()]
    }

    /// Elements from one element to the next, in each dimension.
    pub fn strides(&self) -> &[isize] {
        &self.strides[..self.ndim()]
    }

    /// Index of the first element in the storage.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// How many elements there are; 1 for a scalar.
    pub fn numel(&self) -> usize {
        self.shape().iter().product() // fits: see the invariants
    }

    /// How many bytes the elements take when they lie one after another.
    pub fn packed_bytes(&self) -> usize {
        self.numel() * self.dtype.size() // fits: see the invariants
    }

    /// Whether the elements follow one another in row-major order, without gaps, so that they are a slice.
    pub fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        self.numel() == 0
            || self
                .shape()
                .iter()
                .zip(self.strides())
                .rev()
                .all(|(&length, &stride)| {
                    let fits = length == 1 || stride == expected;
                    expected *= length as isize; // fits: a part of the product of the invariants
                    fits
                })
    }

    /// Whether the strides are to the letter those that `contiguous` computes (dimensions of length 1 included).
    #[inline]
    pub fn has_packed_strides(&self) -> bool {
        self.packed
    }

    /// Whether two positions may be the same element.
    ///
    /// Exact for every view this crate makes; for other strides it may say `true` where a closer look would find none
    /// shared. It never says `false` where one is, so a `false` allows `&mut`.
    #[inline]
    pub fn may_overlap(&self) -> bool {
        // Packed elements, which most tensors are, lie one behind the other.
        if self.numel() <= 1 || self.has_packed_strides() {
            return false;
        }
        let mut steps = [(0, 0); MAX_DIMS];
        for (step, (&length, stride)) in steps
            .iter_mut()
            .zip(self.shape().iter().zip(self.strides()))
        {
            *step = (stride.unsigned_abs(), length - 1);
        }
        steps.sort_unstable();
        // From the smallest stride up: if each is larger than all that the smaller ones reach together, positions are
        // the digits of a number in mixed radix, and no two of them are equal.
        let mut reached = 0;
        steps
            .into_iter()
            .filter(|&(_, times)| times > 0)
            .any(|(stride, times)| {
                let overlaps = stride <= reached;
                reached += times * stride; // fits: at most the highest less the lowest index
                overlaps
            })
    }

    /// Where the elements lie in the storage, in bytes. Empty, at the offset, when there are none.
    pub fn byte_span(&self) -> Range<usize> {
        let size = self.dtype.size();
        match self.try_reach() {
            Some(reach) if self.numel() > 0 => {
                *reach.start() as usize * size..(*reach.end() as usize + 1) * size // fit: see the invariants
            }
            _ => self.offset * size..self.offset * size,
        }
    }

    /// Checks that each element lies in a storage of `bytes` bytes that begins at a multiple of `align`.
    ///
    /// # Errors
    /// When one does not, or would not be aligned.
    pub fn check(&self, bytes: usize, align: usize) -> Result<()> {
        if self.packed && self.offset == 0 {
            // As most are: nothing of what follows has to be computed.
            let fits = self.packed_bytes() <= bytes;
            if fits && align & (self.dtype.align() - 1) == 0 && align != 0 {
                return Ok(());
            }
        }
        let span = self.byte_span();
        if span.end > bytes {
            return Err(Error::shape(format!(
                "a tensor of {} with shape {:?}, strides {:?} and offset {} takes the bytes {} to {} of a storage of only \
                 {bytes}; the handle does not belong to this storage",
                self.dtype,
                self.shape(),
                self.strides(),
                self.offset,
                span.start,
                span.end
            )));
        }
        if align == 0 || !align.is_multiple_of(self.dtype.align()) {
            return Err(Error::shape(format!(
                "{} must lie at a multiple of {} bytes, and the storage begins at a multiple of {align} only",
                self.dtype,
                self.dtype.align()
            )));
        }
        Ok(())
    }

    /// The index in the storage of the element at `position`.
    ///
    /// # Errors
    /// When the position has another number of dimensions, or is out of range in one of them.
    #[inline]
    pub fn index_of(&self, position: &[usize]) -> Result<usize> {
        // Words that processes tell each other lie in one dimension, and are looked at all the time.
        match *position {
            [at] if self.ndim == 1 && at < self.shape[0] => {
                Ok((self.offset as isize + at as isize * self.strides[0]) as usize)
            }
            _ => self.index_within(position),
        }
    }

    fn index_within(&self, position: &[usize]) -> Result<usize> {
        let mut pairs = position.iter().zip(self.shape());
        let inside = position.len() == self.ndim() && pairs.all(|(at, length)| at < length);
        if !inside {
            return Err(Error::shape(format!(
                "there is no element {position:?} in a tensor of shape {:?}",
                self.shape()
            )));
        }
        let steps = position.iter().zip(self.strides()).map(|(&at, &stride)| {
            // A stride means nothing where the length is 1; the position is 0 there, and so is the product.
            at as isize * stride
        });
        Ok((self.offset as isize + steps.sum::<isize>()) as usize)
    }

    /// The same elements in a storage that begins `byte` bytes later, for a copy of the [`byte_span`](Self::byte_span).
    ///
    /// # Errors
    /// When an element would lie before it.
    pub fn starting_at(&self, byte: usize) -> Result<Self> {
        let offset = self.offset.saturating_sub(byte / self.dtype.size());
        Self::new(self.dtype, self.shape(), self.strides(), offset)
    }

    /// Calls `f` with the index in the storage of each element, in row-major order.
    pub fn each_index(&self, f: impl FnMut(usize)) {
        self.indices().for_each(f);
    }

    /// The index in the storage of each element, in row-major order.
    pub(crate) fn indices(&self) -> Indices<'_> {
        Indices::new(self)
    }

    /// Whether the size in bytes fits, lengths of zero counted as one (so that each partial product fits, too).
    fn fits_in_memory(&self) -> bool {
        let count = self
            .shape()
            .iter()
            .try_fold(1_usize, |count, &length| count.checked_mul(length.max(1)));
        count
            .and_then(|count| count.checked_mul(self.dtype.size()))
            .is_some_and(|bytes| bytes <= MAX_BYTES)
    }

    /// The lowest and the highest index, if they can be computed; lengths of zero counted as one.
    fn try_reach(&self) -> Option<std::ops::RangeInclusive<isize>> {
        let first = isize::try_from(self.offset).ok()?;
        let (mut lowest, mut highest) = (first, first);
        for (&length, &stride) in self
            .shape()
            .iter()
            .zip(self.strides())
            .filter(|(length, _)| **length > 1)
        {
            let way = isize::try_from(length - 1).ok()?.checked_mul(stride)?;
            if way < 0 {
                lowest = lowest.checked_add(way)?;
            } else {
                highest = highest.checked_add(way)?;
            }
        }
        Some(lowest..=highest)
    }
}

impl fmt::Debug for Geometry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Geometry")
            .field("dtype", &self.dtype)
            .field("shape", &self.shape())
            .field("strides", &self.strides())
            .field("offset", &self.offset)
            .finish()
    }
}

/// The strides of elements in row-major order without gaps, zeros beyond the last dimension; `None` when they overflow.
#[inline]
pub(crate) fn contiguous_strides(dims: &[usize]) -> Option<[isize; MAX_DIMS]> {
    let mut strides = [0; MAX_DIMS];
    let mut step = 1_isize;
    for (stride, &length) in strides.iter_mut().zip(dims).rev() {
        *stride = step;
        step = step.checked_mul(isize::try_from(length.max(1)).ok()?)?;
    }
    Some(strides)
}

fn too_large(dtype: Dtype, dims: &[usize]) -> Error {
    Error::shape(format!(
        "a tensor of {dtype} with shape {dims:?} would take more than {MAX_BYTES} bytes, which no process can address"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strided(shape: &[usize], strides: &[isize], offset: usize) -> Result<Geometry> {
        Geometry::new(Dtype::F32, shape, strides, offset)
    }

    #[test]
    fn sizes_that_overflow_are_errors() {
        for shape in [
            &[usize::MAX][..],
            &[1 << 32, 1 << 32],
            &[1 << 62, 0],
            &[0, 1 << 40, 1 << 40],
            &[1 << 61],
        ] {
            let error = Geometry::contiguous(Dtype::F32, shape)
                .unwrap_err()
                .to_string();
            assert!(error.contains(&format!("{shape:?}")), "{error}");
        }
        assert!(Geometry::contiguous(Dtype::U8, isize::MAX as usize).is_ok());
        assert!(Geometry::contiguous(Dtype::U16, isize::MAX as usize / 2 + 1).is_err());
    }

    #[test]
    fn the_short_way_to_a_contiguous_geometry_ends_where_the_long_one_does() {
        for shape in [
            &[][..],
            &[0],
            &[7],
            &[3, 0, 5],
            &[1, 4, 1, 2],
            &[2; MAX_DIMS],
        ] {
            let strides = contiguous_strides(shape).unwrap();
            let long = Geometry::new(Dtype::F64, shape, &strides[..shape.len()], 0).unwrap();
            assert_eq!(Geometry::contiguous(Dtype::F64, shape).unwrap(), long);
        }
    }

    #[test]
    fn strides_that_leave_the_address_space_are_errors() {
        assert!(strided(&[2], &[isize::MAX], 0).is_err());
        assert!(strided(&[3], &[isize::MAX], 0).is_err());
        assert!(strided(&[2], &[isize::MIN], 0).is_err());
        assert!(strided(&[2, 2], &[isize::MAX / 8, isize::MAX / 8], usize::MAX).is_err());
        assert!(strided(&[2], &[1], isize::MAX as usize).is_err());
        assert!(strided(&[], &[], usize::MAX).is_err());
        assert!(
            strided(&[2], &[-1], 0).is_err(),
            "an element before the storage"
        );
        assert!(strided(&[2], &[-1], 1).is_ok());
        assert!(strided(&[2], &[1, 1], 0).is_err(), "a stride too many");
        assert!(
            strided(&[1, 0], &[isize::MIN, isize::MAX], 0).is_ok(),
            "they mean nothing for these lengths"
        );
    }

    #[test]
    fn a_storage_too_short_or_misaligned_is_refused() {
        let geometry = strided(&[2, 3], &[10, 2], 5).unwrap(); // elements 5 to 19
        assert_eq!(geometry.byte_span(), 20..80);
        assert!(geometry.check(80, 64).is_ok());
        assert!(geometry.check(80, 4).is_ok());
        let short = geometry.check(79, 64).unwrap_err().to_string();
        assert!(short.contains("79") && short.contains("80"), "{short}");
        assert!(geometry.check(80, 2).is_err());
        assert!(geometry.check(80, 0).is_err());
    }

    #[test]
    fn no_element_needs_no_byte() {
        let empty = Geometry::contiguous(Dtype::F64, [3, 0]).unwrap();
        assert_eq!((empty.numel(), empty.byte_span()), (0, 0..0));
        assert!(empty.check(0, 8).is_ok());
        assert!(empty.is_contiguous() && !empty.may_overlap());
        assert!(
            strided(&[0], &[1], 3).unwrap().check(8, 4).is_err(),
            "the offset must lie in the storage all the same"
        );
    }

    #[test]
    fn a_scalar_is_one_element() {
        let scalar = Geometry::contiguous(Dtype::F64, ()).unwrap();
        assert_eq!(
            (scalar.ndim(), scalar.numel(), scalar.byte_span()),
            (0, 1, 0..8)
        );
        assert_eq!(scalar.index_of(&[]).unwrap(), 0);
        assert!(scalar.index_of(&[0]).is_err());
        assert!(scalar.is_contiguous());
    }

    #[test]
    fn overlaps_are_found() {
        assert!(strided(&[2], &[0], 0).unwrap().may_overlap());
        assert!(strided(&[2, 2], &[1, 1], 0).unwrap().may_overlap());
        assert!(strided(&[3, 2], &[1, 2], 0).unwrap().may_overlap());
        assert!(strided(&[2, 2], &[1, -1], 1).unwrap().may_overlap());
        assert!(!strided(&[2, 2], &[1, 2], 0).unwrap().may_overlap());
        assert!(!strided(&[2, 2], &[-2, 1], 2).unwrap().may_overlap());
        assert!(!strided(&[1, 5], &[0, 1], 0).unwrap().may_overlap());
    }

    #[test]
    fn lengths_of_one_do_not_matter_for_contiguity() {
        assert!(strided(&[1, 3], &[77, 1], 0).unwrap().is_contiguous());
        assert!(!strided(&[2, 3], &[77, 1], 0).unwrap().is_contiguous());
        assert!(!strided(&[3], &[-1], 2).unwrap().is_contiguous());
    }
}
