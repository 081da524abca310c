//! Making tensors. Each constructor has a twin with `_in` that says in which arena; without it, it is the current one.

use crate::arena::Arena;
use crate::error::{Error, Result};
use crate::tensor::element::{Element, Number};
use crate::tensor::exclusive::Tensor;
use crate::tensor::geometry::Geometry;
use crate::tensor::placed::Placed;
use crate::tensor::shape::{MAX_DIMS, Shape};
use crate::tensor::strided::Strided;

/// All constructors return an error when the shape has more than [`MAX_DIMS`] dimensions or overflows, and when the arena
/// has no room, or there is none and none can be made.
impl<T: Element> Tensor<T> {
    /// Zeros (for [`Bool`](crate::Bool): false).
    ///
    /// ```
    /// let tensor = shm_core::Tensor::<f32>::zeros([2, 3])?;
    /// assert_eq!(tensor.as_slice(), [0.0; 6]);
    /// # Ok::<(), shm_core::Error>(())
    /// ```
    pub fn zeros(shape: impl Into<Shape>) -> Result<Self> {
        Self::zeros_in(&Arena::current()?, shape)
    }

    /// As [`zeros`](Tensor::zeros), in this arena.
    pub fn zeros_in(arena: &Arena, shape: impl Into<Shape>) -> Result<Self> {
        Self::full_in(arena, shape, T::ZERO)
    }

    /// The same value everywhere.
    ///
    /// ```
    /// let tensor = shm_core::Tensor::full([2, 2], 1.5_f64)?;
    /// assert_eq!(tensor.as_slice(), [1.5; 4]);
    /// # Ok::<(), shm_core::Error>(())
    /// ```
    pub fn full(shape: impl Into<Shape>, value: T) -> Result<Self> {
        Self::full_in(&Arena::current()?, shape, value)
    }

    /// As [`full`](Tensor::full), in this arena.
    pub fn full_in(arena: &Arena, shape: impl Into<Shape>, value: T) -> Result<Self> {
        let mut tensor = Self::uninit_in(arena, shape)?;
        tensor.fill(value);
        Ok(tensor)
    }

    /// A copy of `elements`, which are in row-major order.
    ///
    /// # Errors
    /// When there are not as many elements as the shape says.
    ///
    /// ```
    /// let tensor = shm_core::Tensor::from_slice([2, 2], &[1_u8, 2, 3, 4])?;
    /// assert_eq!(tensor.get(&[1, 0])?, 3);
    /// # Ok::<(), shm_core::Error>(())
    /// ```
    pub fn from_slice(shape: impl Into<Shape>, elements: &[T]) -> Result<Self> {
        Self::from_slice_in(&Arena::current()?, shape, elements)
    }

    /// As [`from_slice`](Tensor::from_slice), in this arena.
    pub fn from_slice_in(arena: &Arena, shape: impl Into<Shape>, elements: &[T]) -> Result<Self> {
        let geometry = Geometry::contiguous(T::DTYPE, shape)?;
        if geometry.numel() != elements.len() {
            return Err(Error::shape(format!(
                "a tensor of shape {:?} takes {} elements, and the slice has {}",
                geometry.shape(),
                geometry.numel(),
                elements.len()
            )));
        }
        let mut tensor = allocate(arena, geometry)?;
        tensor.as_mut_slice().copy_from_slice(elements);
        Ok(tensor)
    }

    /// What `f` returns for each position, asked for in row-major order.
    ///
    /// ```
    /// let table = shm_core::Tensor::from_fn([3, 4], |at| (at[0] * 10 + at[1]) as u32)?;
    /// assert_eq!(table.get(&[2, 3])?, 23);
    /// # Ok::<(), shm_core::Error>(())
    /// ```
    pub fn from_fn(shape: impl Into<Shape>, f: impl FnMut(&[usize]) -> T) -> Result<Self> {
        Self::from_fn_in(&Arena::current()?, shape, f)
    }

    /// As [`from_fn`](Tensor::from_fn), in this arena.
    pub fn from_fn_in(
        arena: &Arena,
        shape: impl Into<Shape>,
        mut f: impl FnMut(&[usize]) -> T,
    ) -> Result<Self> {
        let geometry = Geometry::contiguous(T::DTYPE, shape)?;
        let mut tensor = allocate(arena, geometry)?;
        let mut position = [0; MAX_DIMS];
        let position = &mut position[..geometry.ndim()];
        for element in tensor.as_mut_slice() {
            *element = f(position);
            // Counts up like an odometer.
            for (at, &length) in position.iter_mut().zip(geometry.shape()).rev() {
                *at += 1;
                if *at < length {
                    break;
                }
                *at = 0;
            }
        }
        Ok(tensor)
    }

    /// A tensor to be overwritten: its elements are unspecified, often what a former tensor left there.
    ///
    /// This is not Rust's uninitialised memory: each element is some valid value and may be read. It saves the writing of
    /// zeros where every element is written anyway.
    ///
    /// ```
    /// let mut frame = shm_core::Tensor::<u8>::uninit([480, 640])?;
    /// frame.as_mut_slice().fill(128);
    /// # Ok::<(), shm_core::Error>(())
    /// ```
    pub fn uninit(shape: impl Into<Shape>) -> Result<Self> {
        Self::uninit_in(&Arena::current()?, shape)
    }

    /// As [`uninit`](Tensor::uninit), in this arena.
    #[inline]
    pub fn uninit_in(arena: &Arena, shape: impl Into<Shape>) -> Result<Self> {
        allocate(arena, Geometry::contiguous(T::DTYPE, shape)?)
    }
}

impl<T: Number> Tensor<T> {
    /// One dimension that counts from `start` in steps of `step`, up to but without `end`, as in torch.
    ///
    /// Floats are computed as `start + i * step` in `f64` and rounded once; a step below the precision of `T` gives some
    /// values more than once.
    ///
    /// # Errors
    /// When `step` is zero or leads away from `end`, or a value is not finite.
    ///
    /// ```
    /// use shm_core::Tensor;
    ///
    /// assert_eq!(Tensor::arange(0, 10, 3)?.as_slice(), [0, 3, 6, 9]);
    /// assert_eq!(Tensor::arange(1.0, 0.0, -0.25)?.as_slice(), [1.0, 0.75, 0.5, 0.25]);
    /// # Ok::<(), shm_core::Error>(())
    /// ```
    pub fn arange(start: T, end: T, step: T) -> Result<Self> {
        Self::arange_in(&Arena::current()?, start, end, step)
    }

    /// As [`arange`](Tensor::arange), in this arena.
    pub fn arange_in(arena: &Arena, start: T, end: T, step: T) -> Result<Self> {
        let count = T::count(start, end, step)?;
        from_elements(
            arena,
            count,
            (0..count).map(|index| T::nth(start, step, index)),
        )
    }
}

/// A contiguous tensor of as many of `elements` as the shape takes.
pub(crate) fn from_elements<T: Element>(
    arena: &Arena,
    shape: impl Into<Shape>,
    elements: impl Iterator<Item = T>,
) -> Result<Tensor<T>> {
    let mut tensor = Tensor::uninit_in(arena, shape)?;
    for (to, element) in tensor.as_mut_slice().iter_mut().zip(elements) {
        *to = element;
    }
    Ok(tensor)
}

#[inline]
fn allocate<T: Element>(arena: &Arena, geometry: Geometry) -> Result<Tensor<T>> {
    Placed::allocate(arena, geometry).map(|placed| Tensor::new(Strided::of(placed)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::tensor::{Bool, Complex64, Complex128, bf16, f16};

    fn all_constructors<T: Element>() {
        let zeros = Tensor::<T>::zeros([2, 3]).unwrap();
        assert_eq!(
            (zeros.shape(), zeros.to_vec()),
            (&[2, 3][..], vec![T::ZERO; 6])
        );
        let ones = Tensor::full([3], T::ONE).unwrap();
        assert_eq!(ones.as_slice(), [T::ONE; 3]);
        let copied = Tensor::from_slice([1, 2], &[T::ZERO, T::ONE]).unwrap();
        assert_eq!(copied.as_slice(), [T::ZERO, T::ONE]);
        let eye =
            Tensor::from_fn([2, 2], |at| if at[0] == at[1] { T::ONE } else { T::ZERO }).unwrap();
        assert_eq!(eye.as_slice(), [T::ONE, T::ZERO, T::ZERO, T::ONE]);
        let unspecified = Tensor::<T>::uninit([4]).unwrap();
        assert_eq!(unspecified.to_vec().len(), 4);
        for tensor in [zeros, ones, copied, eye, unspecified] {
            assert_eq!(tensor.dtype(), T::DTYPE);
            assert!(tensor.as_slice().as_ptr().is_aligned() && tensor.is_contiguous());
        }
        assert_eq!(Tensor::<T>::zeros([0, 4]).unwrap().to_vec(), []);
        assert_eq!(Tensor::full((), T::ONE).unwrap().as_slice(), [T::ONE]);
        assert_eq!(
            Tensor::from_fn([], |_| T::ONE).unwrap().get(&[]).unwrap(),
            T::ONE
        );
        assert_eq!(Tensor::from_fn([3, 0], |_| T::ONE).unwrap().to_vec(), []);
    }

    #[test]
    fn every_element_type_has_every_constructor() {
        all_constructors::<Bool>();
        all_constructors::<u8>();
        all_constructors::<u16>();
        all_constructors::<u32>();
        all_constructors::<u64>();
        all_constructors::<i8>();
        all_constructors::<i16>();
        all_constructors::<i32>();
        all_constructors::<i64>();
        all_constructors::<f16>();
        all_constructors::<bf16>();
        all_constructors::<f32>();
        all_constructors::<f64>();
        all_constructors::<Complex64>();
        all_constructors::<Complex128>();
    }

    #[test]
    fn a_position_is_given_for_each_element_in_order() {
        let mut seen = Vec::new();
        Tensor::<u8>::from_fn([2, 1, 2], |at| {
            seen.push(at.to_vec());
            0
        })
        .unwrap();
        assert_eq!(seen, [[0, 0, 0], [0, 0, 1], [1, 0, 0], [1, 0, 1]]);
    }

    #[test]
    fn counting_works_for_integers_and_floats() {
        assert_eq!(
            Tensor::<u8>::arange(0, 255, 100).unwrap().as_slice(),
            [0, 100, 200]
        );
        assert_eq!(
            Tensor::<i64>::arange(2, -3, -2).unwrap().as_slice(),
            [2, 0, -2]
        );
        assert_eq!(Tensor::<f32>::arange(0.0, 0.3, 0.1).unwrap().numel(), 3);
        let halves =
            Tensor::arange(f16::from_f32(0.0), f16::from_f32(2.0), f16::from_f32(0.5)).unwrap();
        assert_eq!(
            halves.iter().map(f16::to_f32).collect::<Vec<_>>(),
            [0.0, 0.5, 1.0, 1.5]
        );
        assert_eq!(
            Tensor::<bf16>::arange(bf16::ONE, bf16::ONE, bf16::ONE)
                .unwrap()
                .numel(),
            0
        );
        assert!(Tensor::<u8>::arange(0, 1, 0).is_err());
    }

    #[test]
    fn what_cannot_be_made_is_an_error_with_the_numbers() {
        let error = Tensor::from_slice([2, 3], &[1, 2, 3]).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::Shape);
        let text = error.to_string();
        assert!(
            text.contains("[2, 3]") && text.contains('6') && text.contains('3'),
            "{text}"
        );
        assert!(Tensor::<f64>::zeros([1 << 40, 1 << 40]).is_err());
        assert!(Tensor::<u8>::zeros([1; MAX_DIMS + 1]).is_err());
        assert!(
            Tensor::<u8>::uninit(1_usize << 60).is_err(),
            "there is no such memory"
        );
    }
}
