//! What tensors a slot holds, and where in the slot they lie.

use serde::{Deserialize, Serialize};
use shm_core::{Dtype, Element, Shape};

use crate::error::{Error, Result};

/// Tensors a slot can hold.
pub const TENSORS_MAX: usize = 16;

/// Each tensor starts on a cache line of its own.
const ALIGN: usize = 64;

/// One tensor of a slot: element type and shape. The first dimension is a maximum; how much of it is valid travels with
/// each slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorSpec {
    dtype: u8,
    shape: Vec<usize>,
    /// Why this can be no tensor, told when a ring is made of it.
    problem: Option<String>,
}

impl TensorSpec {
    /// A tensor of `T` with this shape.
    #[must_use]
    pub fn of<T: Element>(shape: impl Into<Shape>) -> Self {
        let shape = shape.into();
        let (shape, problem) = match shape.dims() {
            Ok(dims) => (dims.to_vec(), None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        Self {
            dtype: T::DTYPE.code(),
            shape,
            problem,
        }
    }

    /// The element type.
    ///
    /// # Errors
    /// When the description came from a newer version that knows more element types.
    pub fn dtype(&self) -> Result<Dtype> {
        Ok(Dtype::from_code(self.dtype)?)
    }

    /// The shape; the first dimension is a maximum.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Elements, and elements per index of the first dimension.
    fn numel(&self) -> Result<(usize, usize)> {
        let too_large = || {
            Error::invalid(format!(
                "a tensor of shape {:?} has more elements than there are addresses",
                self.shape
            ))
        };
        let product = |dims: &[usize]| {
            dims.iter()
                .try_fold(1_usize, |all, &dim| all.checked_mul(dim))
                .ok_or_else(too_large)
        };
        Ok((
            product(&self.shape)?,
            product(self.shape.get(1..).unwrap_or(&[]))?,
        ))
    }
}

/// Where the tensors of a slot lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) tensors: Vec<Place>,
    pub(crate) bytes: usize,
}

/// Where one tensor of a slot lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) dtype: Dtype,
    pub(crate) offset: usize,
    pub(crate) numel: usize,
    /// Elements per index of the first dimension; the whole tensor where it has none.
    pub(crate) row: usize,
    /// The first dimension; 1 where there is none.
    pub(crate) rows: usize,
}

impl Layout {
    pub(crate) fn of(specs: &[TensorSpec]) -> Result<Self> {
        if specs.len() > TENSORS_MAX {
            return Err(Error::invalid(format!(
                "a slot of {} tensors was asked for; it can hold {TENSORS_MAX}",
                specs.len()
            )));
        }
        let mut bytes = 0_usize;
        let mut tensors = Vec::with_capacity(specs.len());
        for spec in specs {
            if let Some(problem) = &spec.problem {
                return Err(Error::invalid(problem.clone()));
            }
            let dtype = spec.dtype()?;
            let (numel, row) = spec.numel()?;
            let rows = spec.shape.first().copied().unwrap_or(1);
            tensors.push(Place {
                dtype,
                offset: bytes,
                numel,
                row,
                rows,
            });
            bytes = numel
                .checked_mul(dtype.size())
                .and_then(|size| bytes.checked_add(size))
                .and_then(|end| end.checked_next_multiple_of(ALIGN))
                .ok_or_else(|| {
                    Error::invalid("the tensors of a slot have more bytes than there are addresses")
                })?;
        }
        Ok(Self { tensors, bytes })
    }

    /// The place of tensor `index`, whose elements must be `T`.
    pub(crate) fn place<T: Element>(&self, index: usize) -> Result<Place> {
        let place = *self.tensors.get(index).ok_or_else(|| {
            Error::invalid(format!(
                "tensor {index} of a slot that has {}",
                self.tensors.len()
            ))
        })?;
        if place.dtype != T::DTYPE {
            return Err(shm_core::Error::dtype(place.dtype.name(), T::DTYPE.name()).into());
        }
        Ok(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_lie_apart_and_aligned() {
        let specs = [
            TensorSpec::of::<u8>([3, 5]),
            TensorSpec::of::<f32>(()),
            TensorSpec::of::<f64>([0, 7]),
        ];
        let layout = Layout::of(&specs).expect("fits");
        assert_eq!(
            layout
                .tensors
                .iter()
                .map(|place| place.offset)
                .collect::<Vec<_>>(),
            [0, 64, 128]
        );
        assert_eq!(
            layout
                .tensors
                .iter()
                .map(|place| (place.rows, place.row))
                .collect::<Vec<_>>(),
            [(3, 5), (1, 1), (0, 7)]
        );
        assert_eq!(layout.bytes, 128);
    }

    #[test]
    fn a_shape_beyond_all_addresses_is_an_error() {
        let huge = TensorSpec::of::<f64>([usize::MAX, 2]);
        assert!(Layout::of(&[huge]).is_err());
        let twice = [
            TensorSpec::of::<u8>(usize::MAX / 2),
            TensorSpec::of::<u8>(usize::MAX / 2 + 64),
        ];
        assert!(Layout::of(&twice).is_err());
    }
}
