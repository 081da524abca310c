//! Tensors from and to those of the crate [`candle_core`].
//!
//! candle owns the memory of its tensors, as vectors on the heap of one process, and cannot be given another's. So each
//! of these functions copies the elements once, and no more than that; what is handed between processes is our tensor.

use crate::arena::Arena;
use crate::error::{Error, ErrorKind, Result};
use crate::tensor::create;
use crate::tensor::dtype::Dtype;
use crate::tensor::dynamic::DynTensor;
use crate::tensor::element::{Element, bf16, f16};
use crate::tensor::exclusive::Tensor;
use crate::tensor::geometry::Geometry;
use crate::tensor::strided::Strided;
use candle_core::{DType, Device, Storage, WithDType};
use std::borrow::Cow;

impl<T: Element + WithDType> Strided<T> {
    /// A tensor of candle on the CPU, with a copy of the elements. Needs the feature `candle`.
    ///
    /// # Errors
    /// When candle has no memory for it.
    ///
    /// ```
    /// let tensor = shm_core::Tensor::arange(0.0_f32, 6.0, 1.0)?.into_reshaped([2, 3])?;
    /// let other = tensor.to_candle()?;
    /// assert_eq!(other.dims(), [2, 3]);
    /// assert_eq!(other.sum_all().unwrap().to_scalar::<f32>().unwrap(), 15.0);
    /// # Ok::<(), shm_core::Error>(())
    /// ```
    pub fn to_candle(&self) -> Result<candle_core::Tensor> {
        match self.try_as_slice() {
            Ok(slice) => make(self.shape(), slice.into()),
            Err(_) => make(self.shape(), self.to_vec().into()),
        }
    }
}

impl<T: Element + WithDType> Tensor<T> {
    /// A copy of a tensor of candle, contiguous, in the current arena. Needs the feature `candle`.
    ///
    /// A tensor on another device is copied to the CPU first.
    ///
    /// # Errors
    /// When its elements are of another type (both are named), it has more than [`MAX_DIMS`](crate::MAX_DIMS)
    /// dimensions, or the arena has no room.
    ///
    /// ```
    /// use candle_core::Device;
    ///
    /// let other = candle_core::Tensor::new(&[[1_u32, 2], [3, 4]], &Device::Cpu).unwrap();
    /// let tensor = shm_core::Tensor::<u32>::from_candle(&other.t().unwrap())?;
    /// assert_eq!(tensor.as_slice(), [1, 3, 2, 4]);
    /// # Ok::<(), shm_core::Error>(())
    /// ```
    pub fn from_candle(tensor: &candle_core::Tensor) -> Result<Self> {
        Self::from_candle_in(&Arena::current()?, tensor)
    }

    /// As [`from_candle`](Tensor::from_candle), in this arena.
    ///
    /// # Errors
    /// As for [`from_candle`](Tensor::from_candle).
    pub fn from_candle_in(arena: &Arena, tensor: &candle_core::Tensor) -> Result<Self> {
        let found = dtype_of(tensor.dtype())?;
        if found != <T as Element>::DTYPE {
            return Err(Error::dtype(found.name(), <T as Element>::DTYPE.name()));
        }
        let here = tensor
            .to_device(&Device::Cpu) // the same tensor if it is there already
            .map_err(|error| failed("copying a candle tensor to the CPU", error))?;
        let (storage, layout) = here.storage_and_layout();
        let Storage::Cpu(storage) = &*storage else {
            return Err(unsupported("it is not in the CPU's memory".to_owned()));
        };
        let elements = T::cpu_storage_as_slice(storage)
            .map_err(|error| failed("reading a candle tensor", error))?;
        match layout.contiguous_offsets() {
            Some((first, end)) => Self::from_slice_in(arena, layout.dims(), &elements[first..end]),
            None => {
                let strides: Vec<isize> =
                    layout.stride().iter().map(|&step| step as isize).collect();
                let geometry =
                    Geometry::new(found, layout.dims(), &strides, layout.start_offset())?;
                let walk = geometry.indices().map(|index| elements[index]);
                create::from_elements(arena, layout.dims(), walk)
            }
        }
    }
}

fn make<T: WithDType>(shape: &[usize], elements: Cow<'_, [T]>) -> Result<candle_core::Tensor> {
    let made = match elements {
        Cow::Borrowed(slice) => candle_core::Tensor::from_slice(slice, shape, &Device::Cpu),
        Cow::Owned(vector) => candle_core::Tensor::from_vec(vector, shape, &Device::Cpu),
    };
    made.map_err(|error| failed("making a candle tensor", error))
}

/// Runs a body with `$element` as each type that candle and we both know.
macro_rules! both {
    ($dtype:expr, $element:ident => $body:expr, $other:ident => $otherwise:expr) => {
        match $dtype {
            Dtype::U8 => {
                type $element = u8;
                $body
            }
            Dtype::U32 => {
                type $element = u32;
                $body
            }
            Dtype::I16 => {
                type $element = i16;
                $body
            }
            Dtype::I32 => {
                type $element = i32;
                $body
            }
            Dtype::I64 => {
                type $element = i64;
                $body
            }
            Dtype::F16 => {
                type $element = f16;
                $body
            }
            Dtype::Bf16 => {
                type $element = bf16;
                $body
            }
            Dtype::F32 => {
                type $element = f32;
                $body
            }
            Dtype::F64 => {
                type $element = f64;
                $body
            }
            $other => $otherwise,
        }
    };
}

impl DynTensor {
    /// A tensor of candle on the CPU, with a copy of the elements; see [`Strided::to_candle`].
    ///
    /// # Errors
    /// When candle has no such element type, or no memory for it.
    pub fn to_candle(&self) -> Result<candle_core::Tensor> {
        both!(self.dtype(), E => self.with_elements::<E, _>(make)?, other => {
            Err(unsupported(format!("candle has no elements of type {other}")))
        })
    }

    /// A copy of a tensor of candle, contiguous and exclusive, in the current arena; see [`Tensor::from_candle`].
    ///
    /// # Errors
    /// As for [`Tensor::from_candle`], and for elements of the 8-bit, 6-bit and 4-bit floats of candle.
    pub fn from_candle(tensor: &candle_core::Tensor) -> Result<DynTensor> {
        both!(dtype_of(tensor.dtype())?, E => Tensor::<E>::from_candle(tensor).map(DynTensor::from), other => {
            Err(unsupported(format!("candle has no elements of type {other}")))
        })
    }
}

fn dtype_of(dtype: DType) -> Result<Dtype> {
    Ok(match dtype {
        DType::U8 => Dtype::U8,
        DType::U32 => Dtype::U32,
        DType::I16 => Dtype::I16,
        DType::I32 => Dtype::I32,
        DType::I64 => Dtype::I64,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::Bf16,
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
        other => {
            let name = other.as_str();
            return Err(unsupported(format!(
                "its elements are {name}; convert it first"
            )));
        }
    })
}

fn unsupported(why: String) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!("a tensor cannot be handed from or to candle: {why}"),
    )
}

fn failed(tried: &str, error: candle_core::Error) -> Error {
    let told = format!("{tried}: {error}");
    Error::new(ErrorKind::Unsupported, told).because(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there_and_back<T: Element + WithDType>() {
        let one = <T as Element>::ONE;
        let zero = <T as Element>::ZERO;
        let tensor = Tensor::from_slice([2, 3], &[one, zero, zero, one, one, zero]).unwrap();
        let other = tensor.to_candle().unwrap();
        assert_eq!(other.dims(), [2, 3]);
        assert_eq!(
            other.flatten_all().unwrap().to_vec1::<T>().unwrap(),
            tensor.to_vec()
        );
        let turned = Tensor::<T>::from_candle(&other.t().unwrap()).unwrap();
        let tensor = tensor.freeze();
        assert_eq!(turned.to_vec(), tensor.transpose(0, 1).unwrap().to_vec());
        let view = tensor.slice(1, .., 2).unwrap();
        let dynamic = DynTensor::from(view.clone()).to_candle().unwrap();
        assert_eq!(
            dynamic.flatten_all().unwrap().to_vec1::<T>().unwrap(),
            view.to_vec()
        );
        let back = DynTensor::from_candle(&dynamic.narrow(0, 1, 1).unwrap()).unwrap();
        assert_eq!(
            back.as_slice::<T>().unwrap(),
            view.select(0, 1).unwrap().to_vec()
        );
    }

    #[test]
    fn every_element_type_of_both_goes_there_and_back() {
        there_and_back::<u8>();
        there_and_back::<u32>();
        there_and_back::<i16>();
        there_and_back::<i32>();
        there_and_back::<i64>();
        there_and_back::<f16>();
        there_and_back::<bf16>();
        there_and_back::<f32>();
        there_and_back::<f64>();
    }

    #[test]
    fn scalars_repeated_elements_and_nothing_are_tensors_too() {
        let scalar = Tensor::full((), 2.5_f32).unwrap().to_candle().unwrap();
        assert_eq!(scalar.to_scalar::<f32>().unwrap(), 2.5);
        assert_eq!(Tensor::<f32>::from_candle(&scalar).unwrap().ndim(), 0);
        let wide = scalar.broadcast_as((2, 2)).unwrap();
        assert_eq!(
            Tensor::<f32>::from_candle(&wide).unwrap().as_slice(),
            [2.5; 4]
        );
        let nothing = candle_core::Tensor::zeros((0, 3), DType::I64, &Device::Cpu).unwrap();
        assert_eq!(DynTensor::from_candle(&nothing).unwrap().shape(), [0, 3]);
    }

    #[test]
    fn what_one_side_does_not_know_is_an_error_that_names_it() {
        let other = candle_core::Tensor::zeros(2, DType::F8E4M3, &Device::Cpu).unwrap();
        let error = DynTensor::from_candle(&other).unwrap_err().to_string();
        assert!(error.contains("f8e4m3"), "{error}");
        let error = DynTensor::zeros(Dtype::Complex64, 2)
            .unwrap()
            .to_candle()
            .unwrap_err();
        assert!(error.to_string().contains("complex64"), "{error}");
        let other = candle_core::Tensor::zeros(2, DType::F64, &Device::Cpu).unwrap();
        let error = Tensor::<f32>::from_candle(&other).unwrap_err();
        assert!(matches!(
            error.kind(),
            ErrorKind::Dtype {
                found: "f64",
                wanted: "f32"
            }
        ));
    }
}
