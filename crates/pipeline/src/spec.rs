//! What tensors a slot holds, and where in the slot they lie.

use std::fmt;

use serde::{Deserialize, Serialize};
use shm_core::{Dtype, Element, Shape};

use crate::error::{Error, ErrorKind, Result};
use crate::item::View;

/// Tensors a slot can hold.
pub const TENSORS_MAX: usize = 16;
/// Dimensions that a specification tells to be exact or a maximum.
const DIMS_MAX: usize = 32;

/// Each tensor starts on a cache line of its own.
const ALIGN: usize = 64;

/// Where the tensors of a slot lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Device {
    /// In the arena, where any process reads them.
    #[default]
    Cpu,
    /// In the memory of the CUDA device that the process was given; in the arena where that is the CPU (-1).
    Own,
    /// In the memory of this CUDA device.
    Cuda(u32),
}

/// One tensor of a slot: element type, device, and its dimensions, each exact or a maximum. What is valid of those with a
/// maximum travels with each slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorSpec {
    dtype: u8,
    device: Device,
    shape: Vec<usize>,
    /// A bit for each dimension that is a maximum.
    maxima: u32,
    /// Why this can be no tensor, told when a ring is made of it.
    problem: Option<String>,
}

impl TensorSpec {
    /// A tensor of `T` with this shape. The first dimension is a maximum, as the batch in RnB; the others are exact unless
    /// [`up_to`](Self::up_to) says otherwise.
    ///
    /// ```
    /// use pipeline::TensorSpec;
    ///
    /// let clips = TensorSpec::of::<f32>([15, 3, 8, 112, 112]).up_to(2);
    /// assert_eq!(clips.to_string(), "f32[≤15, 3, ≤8, 112, 112]");
    /// ```
    #[must_use]
    pub fn of<T: Element>(shape: impl Into<Shape>) -> Self {
        let shape = shape.into();
        let (shape, problem) = match shape.dims() {
            Ok(dims) => (dims.to_vec(), None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        Self {
            dtype: T::DTYPE.code(),
            device: Device::Cpu,
            maxima: u32::from(!shape.is_empty()),
            shape,
            problem,
        }
    }

    /// The same with dimension `dim` a maximum.
    #[must_use]
    pub fn up_to(mut self, dim: usize) -> Self {
        if dim < self.shape.len().min(DIMS_MAX) {
            self.maxima |= 1 << dim;
        } else {
            self.problem.get_or_insert_with(|| {
                format!(
                    "dimension {dim} of a tensor of shape {:?} was to be a maximum; it has no such dimension",
                    self.shape
                )
            });
        }
        self
    }

    /// The same with all dimensions exact.
    #[must_use]
    pub fn exact(mut self) -> Self {
        self.maxima = 0;
        self
    }

    /// The same on another device.
    #[must_use]
    pub fn on(mut self, device: Device) -> Self {
        self.device = device;
        self
    }

    /// The same with up to `rows` in the first dimension.
    #[must_use]
    pub fn with_rows(mut self, rows: usize) -> Self {
        if let Some(first) = self.shape.first_mut() {
            *first = rows;
            self.maxima |= 1;
        }
        self
    }

    /// The element type.
    ///
    /// # Errors
    /// When the description came from a newer version that knows more element types.
    pub fn dtype(&self) -> Result<Dtype> {
        Ok(Dtype::from_code(self.dtype)?)
    }

    /// The shape, with the maximum where a dimension is one.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Whether dimension `dim` is a maximum.
    #[must_use]
    pub fn is_maximum(&self, dim: usize) -> bool {
        dim < DIMS_MAX && self.maxima & (1 << dim) != 0
    }

    /// Where it is to lie.
    #[must_use]
    pub fn device(&self) -> Device {
        self.device
    }

    /// Why a stage that wants `wanted` cannot take this, if it cannot.
    #[must_use]
    pub fn misfit(&self, wanted: &Self) -> Option<String> {
        let fits = self.dtype == wanted.dtype
            && self.shape.len() == wanted.shape.len()
            && (0..self.shape.len()).all(|dim| {
                let (has, wants) = (self.shape[dim], wanted.shape[dim]);
                if wanted.is_maximum(dim) {
                    has <= wants
                } else {
                    has == wants && !self.is_maximum(dim)
                }
            });
        (!fits).then(|| format!("{self} does not fit {wanted}"))
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

impl fmt::Display for TensorSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.dtype().map_or("?", |dtype| dtype.name()))?;
        f.write_str("[")?;
        for (dim, length) in self.shape.iter().enumerate() {
            let comma = if dim > 0 { ", " } else { "" };
            let at_most = if self.is_maximum(dim) { "≤" } else { "" };
            write!(f, "{comma}{at_most}{length}")?;
        }
        f.write_str("]")
    }
}

/// Where the tensors of a slot lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) tensors: Vec<Place>,
    pub(crate) specs: Vec<TensorSpec>,
    /// All of each tensor.
    pub(crate) whole: Vec<View>,
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

impl Place {
    /// The bytes of the slot in which part of the tensor lies.
    pub(crate) fn bytes_of(&self, view: &View) -> std::ops::Range<usize> {
        let size = self.dtype.size();
        let start = self.offset + view.start * size;
        start..start + crate::reading::numel(&view.shape).unwrap_or(0) * size
    }
}

impl Layout {
    /// For a slot in shared memory.
    pub(crate) fn of(specs: &[TensorSpec]) -> Result<Self> {
        if let Some(spec) = specs.iter().find(|spec| spec.device != Device::Cpu) {
            return Err(Error::invalid(format!(
                "a ring with {spec} on a CUDA device was asked for; the slots of a ring lie in shared memory (Device::Cpu). Those of a pipeline's steps can lie on \
                 devices"
            )));
        }
        Self::anywhere(specs)
    }

    /// For a slot wherever it lies.
    pub(crate) fn anywhere(specs: &[TensorSpec]) -> Result<Self> {
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
        Ok(Self {
            tensors,
            specs: specs.to_vec(),
            whole: specs
                .iter()
                .map(|spec| View {
                    start: 0,
                    shape: spec.shape().to_vec(),
                })
                .collect(),
            bytes,
        })
    }

    /// The bytes of each tensor that are valid; all of it where nothing is said.
    pub(crate) fn valid<'a>(
        &'a self,
        views: &'a [View],
    ) -> impl Iterator<Item = std::ops::Range<usize>> + 'a {
        let views = if views.is_empty() { &self.whole } else { views };
        self.tensors
            .iter()
            .zip(views)
            .map(|(place, view)| place.bytes_of(view))
    }

    /// The place of tensor `index`.
    pub(crate) fn at(&self, index: usize) -> Result<Place> {
        let count = self.tensors.len();
        self.tensors.get(index).copied().ok_or_else(|| {
            Error::invalid(format!(
                "tensor {index} was asked for of a slot that has {count}, counted from 0"
            ))
        })
    }

    /// The place of tensor `index`, whose elements must be `T`.
    pub(crate) fn place<T: Element>(&self, index: usize) -> Result<Place> {
        let place = self.at(index)?;
        if place.dtype != T::DTYPE {
            let (found, wanted) = (place.dtype.name(), T::DTYPE.name());
            let text = format!(
                "tensor {index} of the slot holds {found}, but {wanted} was asked for; ask for {found}, which its output_spec \
                 names"
            );
            let kind = shm_core::Error::dtype(found, wanted).kind().clone();
            return Err(Error::new(ErrorKind::Arena(kind), text));
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
    fn what_does_not_fit_the_next_stage_is_told() {
        let clip = TensorSpec::of::<f32>([15, 3]);
        for (wanted, fits) in [
            (TensorSpec::of::<f32>([15, 3]), true),
            (TensorSpec::of::<f32>([20, 3]), true),
            (TensorSpec::of::<f32>([20, 4]).up_to(1), true),
            (TensorSpec::of::<f32>([10, 3]), false),
            (TensorSpec::of::<f32>([15, 3]).exact(), false),
            (TensorSpec::of::<f32>([15, 4]), false),
            (TensorSpec::of::<u8>([15, 3]), false),
            (TensorSpec::of::<f32>([15]), false),
        ] {
            assert_eq!(clip.misfit(&wanted).is_none(), fits, "{clip} and {wanted}");
        }
    }

    #[test]
    fn what_cannot_be_a_slot_is_refused() {
        for spec in [
            TensorSpec::of::<f32>([2]).up_to(1),
            TensorSpec::of::<f32>([2]).on(Device::Cuda(0)),
        ] {
            assert!(Layout::of(&[spec]).is_err());
        }
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
