//! What a caller may name as a shape: an array, a slice, a vector, a single length, or nothing for a scalar.

use crate::error::{Error, Result};
use std::fmt;

/// The most dimensions a tensor can have.
pub const MAX_DIMS: usize = 8;

/// The lengths of a tensor's dimensions, outermost first, as a caller asked for them.
///
/// Functions that need a shape take `impl Into<Shape>`, so `[480, 640]`, `&lengths[..]`, a `Vec<usize>` and plain `640`
/// all do; `()` and `[]` are the shape of a scalar.
///
/// ```
/// use shm_core::Tensor;
///
/// assert_eq!(Tensor::<f32>::zeros([2, 3])?.shape(), [2, 3]);
/// assert_eq!(Tensor::<f32>::zeros(vec![2, 3])?.shape(), [2, 3]);
/// assert_eq!(Tensor::<f32>::zeros(6)?.shape(), [6]);
/// assert_eq!(Tensor::<f32>::zeros(())?.numel(), 1);
/// # Ok::<(), shm_core::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct Shape {
    lengths: [usize; MAX_DIMS],
    /// How many dimensions were asked for. A conversion cannot fail, so this may exceed `MAX_DIMS`; `dims` tells.
    asked: usize,
}

impl Shape {
    /// The lengths, outermost first.
    ///
    /// # Errors
    /// When there are more than [`MAX_DIMS`].
    #[inline]
    pub fn dims(&self) -> Result<&[usize]> {
        self.lengths.get(..self.asked).ok_or_else(|| {
            Error::shape(format!(
                "a shape of {} dimensions was asked for, beginning with {:?}; a tensor has at most {MAX_DIMS}: merge some",
                self.asked, self.lengths
            ))
        })
    }
}

impl From<&[usize]> for Shape {
    #[inline]
    fn from(dims: &[usize]) -> Self {
        let mut lengths = [0; MAX_DIMS];
        for (to, from) in lengths.iter_mut().zip(dims) {
            *to = *from;
        }
        Shape {
            lengths,
            asked: dims.len(),
        }
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    #[inline]
    fn from(dims: [usize; N]) -> Self {
        Shape::from(dims.as_slice())
    }
}

impl<const N: usize> From<&[usize; N]> for Shape {
    #[inline]
    fn from(dims: &[usize; N]) -> Self {
        Shape::from(dims.as_slice())
    }
}

impl From<Vec<usize>> for Shape {
    #[inline]
    fn from(dims: Vec<usize>) -> Self {
        Shape::from(dims.as_slice())
    }
}

impl From<&Vec<usize>> for Shape {
    #[inline]
    fn from(dims: &Vec<usize>) -> Self {
        Shape::from(dims.as_slice())
    }
}

impl From<usize> for Shape {
    #[inline]
    fn from(length: usize) -> Self {
        Shape::from([length])
    }
}

impl From<()> for Shape {
    #[inline]
    fn from((): ()) -> Self {
        Shape::from([])
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.lengths.iter().take(self.asked))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dims(shape: impl Into<Shape>) -> Vec<usize> {
        shape.into().dims().unwrap().to_vec()
    }

    #[test]
    fn whatever_looks_like_a_shape_is_one() {
        assert_eq!(dims([2, 3]), [2, 3]);
        let (array, vector) = (&[2, 3], &vec![2, 3]);
        assert_eq!(dims(array), [2, 3]);
        assert_eq!(dims(&[2, 3][..]), [2, 3]);
        assert_eq!(dims(vec![2, 3]), [2, 3]);
        assert_eq!(dims(vector), [2, 3]);
        assert_eq!(dims(7), [7]);
        assert!(dims(()).is_empty());
        assert!(dims([]).is_empty());
        assert_eq!(dims([1; MAX_DIMS]), [1; MAX_DIMS]);
    }

    #[test]
    fn a_ninth_dimension_is_an_error_that_says_the_limit() {
        let error = Shape::from([1; MAX_DIMS + 1])
            .dims()
            .unwrap_err()
            .to_string();
        assert!(error.contains('9') && error.contains('8'), "{error}");
    }
}
