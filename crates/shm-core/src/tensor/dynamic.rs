//! `DynTensor`: a tensor whose element type is known at run time only.

use crate::arena::Arena;
use crate::error::{Error, Result};
use crate::line::Mode;
use crate::message;
use crate::tensor::dtype::Dtype;
use crate::tensor::element::Element;
use crate::tensor::exclusive::Tensor;
use crate::tensor::geometry::Geometry;
use crate::tensor::placed::Placed;
use crate::tensor::shape::Shape;
use crate::tensor::shared::SharedTensor;
use crate::tensor::strided::Strided;
use crate::tensor::view::view_methods;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;

/// A [`Tensor`] or a [`SharedTensor`] of some element type.
///
/// ```
/// use shm_core::{Dtype, DynTensor, Tensor};
///
/// let tensor = DynTensor::from(Tensor::<f32>::full([2, 2], 0.5)?);
/// assert_eq!(tensor.dtype(), Dtype::F32);
/// let error = tensor.as_slice::<f64>().unwrap_err();
/// assert!(error.to_string().contains("f64") && error.to_string().contains("f32"));
/// let tensor: Tensor<f32> = tensor.downcast()?;
/// assert_eq!(tensor.as_slice(), [0.5; 4]);
/// # Ok::<(), shm_core::Error>(())
/// ```
pub struct DynTensor(Placed);

impl DynTensor {
    /// Zeros of an element type; exclusive, in the current arena.
    ///
    /// # Errors
    /// As for [`Tensor::zeros`].
    pub fn zeros(dtype: Dtype, shape: impl Into<Shape>) -> Result<Self> {
        Self::zeros_in(&Arena::current()?, dtype, shape)
    }

    /// As [`zeros`](DynTensor::zeros), in this arena.
    ///
    /// # Errors
    /// As for [`Tensor::zeros`].
    pub fn zeros_in(arena: &Arena, dtype: Dtype, shape: impl Into<Shape>) -> Result<Self> {
        let mut tensor = Self::uninit_in(arena, dtype, shape)?;
        tensor.as_bytes_mut()?.fill(0); // all bits zero is zero for each element type
        Ok(tensor)
    }

    /// A tensor to be overwritten, in this arena: its elements are unspecified, as those of [`Tensor::uninit`].
    ///
    /// # Errors
    /// As for [`Tensor::zeros`].
    pub fn uninit_in(arena: &Arena, dtype: Dtype, shape: impl Into<Shape>) -> Result<Self> {
        Placed::allocate(arena, Geometry::contiguous(dtype, shape)?).map(DynTensor)
    }

    /// The element type.
    pub fn dtype(&self) -> Dtype {
        self.0.geometry().dtype()
    }

    /// The lengths of the dimensions, outermost first; empty for a scalar.
    pub fn shape(&self) -> &[usize] {
        self.0.geometry().shape()
    }

    /// How many elements lie between neighbours in each dimension.
    pub fn strides(&self) -> &[isize] {
        self.0.geometry().strides()
    }

    /// How many dimensions there are; 0 for a scalar.
    pub fn ndim(&self) -> usize {
        self.0.geometry().ndim()
    }

    /// How many elements there are: the product of the shape, 1 for a scalar.
    pub fn numel(&self) -> usize {
        self.0.geometry().numel()
    }

    /// Whether the elements lie in row-major order without gaps.
    pub fn is_contiguous(&self) -> bool {
        self.0.geometry().is_contiguous()
    }

    /// Whether this holds a [`Tensor`] (else it is a [`SharedTensor`]).
    pub fn is_exclusive(&self) -> bool {
        self.0.is_exclusive()
    }

    /// All elements, in row-major order.
    ///
    /// # Errors
    /// When they are of another type (both are named), or not contiguous.
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        self.0.slice()
    }

    /// All elements, in row-major order, to write.
    ///
    /// # Errors
    /// When they are of another type (both are named), shared, or not contiguous.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T]> {
        self.0.slice_mut()
    }

    /// The bytes of all elements, in row-major order and the machine's byte order.
    ///
    /// # Errors
    /// When they are not contiguous.
    pub fn as_bytes(&self) -> Result<&[u8]> {
        self.0.bytes()
    }

    /// The bytes of all elements, to write: whatever they become, the elements are valid.
    ///
    /// # Errors
    /// When the tensor is shared or not contiguous.
    pub fn as_bytes_mut(&mut self) -> Result<&mut [u8]> {
        self.0.bytes_mut()
    }

    /// The exclusive tensor of element type `T` that this is.
    ///
    /// # Errors
    /// When the elements are of another type (both are named), or the tensor is shared. The tensor is dropped then; ask
    /// [`dtype`](DynTensor::dtype) and [`is_exclusive`](DynTensor::is_exclusive) first to keep it.
    pub fn downcast<T: Element>(self) -> Result<Tensor<T>> {
        let strided = Strided::new(self.0)?;
        if !strided.placed().is_exclusive() {
            return Err(Error::mode(
                "a shared tensor was asked for as an exclusive one; use downcast_shared(), and try_thaw() or copy_into()"
                    .to_string(),
            ));
        }
        Ok(Tensor::new(strided))
    }

    /// The shared tensor of element type `T` that this is; an exclusive one is frozen.
    ///
    /// # Errors
    /// When the elements are of another type (both are named). The tensor is dropped then.
    pub fn downcast_shared<T: Element>(self) -> Result<SharedTensor<T>> {
        Strided::new(self.0.freeze()).map(SharedTensor::new)
    }

    /// Gives up writing; see [`Tensor::freeze`].
    pub fn freeze(self) -> DynTensor {
        DynTensor(self.0.freeze())
    }

    /// One more holder of a shared tensor; see [`SharedTensor`].
    ///
    /// # Errors
    /// When this is exclusive.
    pub fn try_clone(&self) -> Result<DynTensor> {
        self.0.share(*self.0.geometry()).map(DynTensor)
    }

    /// Whether both lie in one block, as views of one tensor do, also after they were sent together.
    pub fn same_storage(&self, other: &DynTensor) -> bool {
        let (ours, theirs) = (self.0.storage(), other.0.storage());
        ours.id() == theirs.id() && ours.as_ptr() == theirs.as_ptr()
    }

    /// The bytes of all elements in row-major order; borrowed if they lie so, else a copy.
    ///
    /// ```
    /// let tensor = shm_core::Tensor::from_slice([2, 2], &[1_u8, 2, 3, 4])?;
    /// let tensor = shm_core::DynTensor::from(tensor.freeze());
    /// assert_eq!(*tensor.to_bytes(), [1, 2, 3, 4]);
    /// assert_eq!(*tensor.transpose(0, 1)?.to_bytes(), [1, 3, 2, 4]);
    /// # Ok::<(), shm_core::Error>(())
    /// ```
    pub fn to_bytes(&self) -> Cow<'_, [u8]> {
        if let Ok(bytes) = self.as_bytes() {
            return Cow::Borrowed(bytes);
        }
        let geometry = self.0.geometry();
        let (size, start) = (geometry.dtype().size(), geometry.byte_span().start);
        let span = self.0.span_bytes();
        let mut bytes = Vec::with_capacity(geometry.packed_bytes());
        for index in geometry.indices() {
            let at = index * size - start;
            bytes.extend_from_slice(&span[at..at + size]);
        }
        Cow::Owned(bytes)
    }

    /// What `f` makes of the elements, which are of type `T`.
    ///
    /// # Errors
    /// When they are of another type.
    #[cfg(feature = "candle")]
    pub(super) fn with_elements<T: Element, R>(
        &self,
        f: impl FnOnce(&[usize], Cow<'_, [T]>) -> R,
    ) -> Result<R> {
        self.0.expect::<T>()?;
        let geometry = self.0.geometry();
        let elements = match self.0.slice() {
            Ok(slice) => Cow::Borrowed(slice),
            Err(_) => {
                let (span, first) = (self.0.span()?, geometry.byte_span().start / size_of::<T>());
                geometry
                    .indices()
                    .map(|index| span[index - first])
                    .collect()
            }
        };
        Ok(f(geometry.shape(), elements))
    }

    /// The storage of a shared tensor as elements of any type.
    #[cfg(feature = "safetensors")]
    pub(crate) fn reinterpreted(&self, geometry: Geometry) -> Result<DynTensor> {
        self.0.share(geometry).map(DynTensor)
    }

    fn view(&self, geometry: impl FnOnce(&Geometry) -> Result<Geometry>) -> Result<Self> {
        self.0.share(geometry(self.0.geometry())?).map(DynTensor)
    }

    pub(crate) fn placed(&self) -> &Placed {
        &self.0
    }
}

/// Views of a shared tensor, which share its storage. An exclusive one has none, as its elements have one owner: each of
/// these is an error then that says so; [`freeze`](DynTensor::freeze) it first, or
/// [`downcast`](DynTensor::downcast) it to change its own shape.
///
/// ```
/// use shm_core::{DynTensor, Tensor};
///
/// let image = DynTensor::from(Tensor::arange(0, 12, 1)?.into_reshaped([3, 4])?).freeze();
/// let column = image.select(1, 2)?;
/// assert_eq!(column.downcast_shared::<i32>()?.to_vec(), [2, 6, 10]);
/// # Ok::<(), shm_core::Error>(())
/// ```
impl DynTensor {
    view_methods!();
}

impl<T: Element> From<Tensor<T>> for DynTensor {
    fn from(tensor: Tensor<T>) -> Self {
        DynTensor(tensor.into_placed())
    }
}

impl<T: Element> From<SharedTensor<T>> for DynTensor {
    fn from(tensor: SharedTensor<T>) -> Self {
        DynTensor(tensor.into_placed())
    }
}

impl fmt::Debug for DynTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DynTensor")
            .field("dtype", &self.dtype())
            .field("shape", &self.shape())
            .field("strides", &self.strides())
            .field("exclusive", &self.is_exclusive())
            .finish()
    }
}

/// Works only as part of a message, which carries a handle; elsewhere it is an error that says so.
impl Serialize for DynTensor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        message::serialize_tensor(
            self.0.storage(),
            self.0.geometry(),
            self.0.is_exclusive(),
            serializer,
        )
    }
}

/// Works only as part of a message; what arrives is exclusive or shared as it was sent.
impl<'de> Deserialize<'de> for DynTensor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        message::deserialize_tensor(deserializer, |storage, geometry| {
            if storage.mode() == Mode::Exclusive {
                Placed::check_exclusive(&storage, geometry).map_err(message::refuse)?;
                // SAFETY: checked just now; else as in `Deserialize for Tensor`.
                Ok(DynTensor(unsafe { Placed::exclusive(storage, geometry) }))
            } else {
                Placed::check_shared(&storage, geometry).map_err(message::refuse)?;
                // SAFETY: checked just now, any mode but shared being refused; else as in `Deserialize for SharedTensor`.
                Ok(DynTensor(unsafe { Placed::shared(storage, geometry) }))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::tensor::{Bool, Complex64, Complex128, bf16, f16};

    fn zero_by_bytes<T: Element>() {
        let tensor = DynTensor::zeros(T::DTYPE, [2, 2]).unwrap();
        assert_eq!(tensor.as_bytes().unwrap(), vec![0; 4 * size_of::<T>()]);
        assert_eq!(tensor.downcast::<T>().unwrap().as_slice(), [T::ZERO; 4]);
        let typed = DynTensor::from(Tensor::<T>::zeros(3).unwrap());
        assert!(
            typed.as_bytes().unwrap().iter().all(|&byte| byte == 0),
            "{}",
            T::DTYPE
        );
    }

    #[test]
    fn the_zero_of_every_element_type_is_all_bits_zero() {
        zero_by_bytes::<Bool>();
        zero_by_bytes::<u8>();
        zero_by_bytes::<u16>();
        zero_by_bytes::<u32>();
        zero_by_bytes::<u64>();
        zero_by_bytes::<i8>();
        zero_by_bytes::<i16>();
        zero_by_bytes::<i32>();
        zero_by_bytes::<i64>();
        zero_by_bytes::<f16>();
        zero_by_bytes::<bf16>();
        zero_by_bytes::<f32>();
        zero_by_bytes::<f64>();
        zero_by_bytes::<Complex64>();
        zero_by_bytes::<Complex128>();
    }

    #[test]
    fn another_element_type_is_an_error_that_names_both() {
        let mut tensor = DynTensor::zeros(Dtype::I64, 2).unwrap();
        let errors = [
            tensor.as_slice::<u64>().unwrap_err(),
            tensor.as_mut_slice::<u64>().unwrap_err(),
            tensor.freeze().downcast_shared::<u64>().unwrap_err(),
            DynTensor::zeros(Dtype::I64, 2)
                .unwrap()
                .downcast::<u64>()
                .unwrap_err(),
        ];
        for error in errors {
            assert!(matches!(error.kind(), ErrorKind::Dtype { .. }));
            assert!(
                error.to_string().contains("i64") && error.to_string().contains("u64"),
                "{error}"
            );
        }
    }

    #[test]
    fn any_bytes_are_valid_elements() {
        let mut flags = DynTensor::zeros(Dtype::Bool, 3).unwrap();
        flags.as_bytes_mut().unwrap().copy_from_slice(&[0, 1, 255]);
        assert_eq!(
            flags.as_slice::<Bool>().unwrap(),
            [Bool::FALSE, Bool::TRUE, Bool::TRUE]
        );
        let mut floats = DynTensor::zeros(Dtype::F32, 1).unwrap();
        floats.as_bytes_mut().unwrap().fill(0xff);
        assert!(floats.as_slice::<f32>().unwrap()[0].is_nan());
    }

    #[test]
    fn a_shared_one_is_cloned_but_not_written_and_an_exclusive_one_the_other_way_round() {
        let mut tensor = DynTensor::from(Tensor::<u8>::full(2, 5).unwrap());
        assert!(tensor.is_exclusive());
        tensor.as_mut_slice::<u8>().unwrap()[0] = 6;
        assert_eq!(
            tensor.try_clone().unwrap_err().kind(),
            &ErrorKind::WrongMode
        );
        let mut tensor = tensor.freeze();
        assert!(!tensor.is_exclusive());
        assert_eq!(
            tensor.as_mut_slice::<u8>().unwrap_err().kind(),
            &ErrorKind::WrongMode
        );
        assert_eq!(
            tensor.as_bytes_mut().unwrap_err().kind(),
            &ErrorKind::WrongMode
        );
        let second = tensor.try_clone().unwrap();
        assert_eq!(
            second.downcast::<u8>().unwrap_err().kind(),
            &ErrorKind::WrongMode
        );
        let shared: SharedTensor<u8> = tensor.downcast_shared().unwrap();
        assert_eq!(shared.as_slice(), [6, 5]);
        assert!(shared.try_thaw().is_ok(), "no holder is left over");
    }

    #[test]
    fn what_is_not_contiguous_has_no_bytes() {
        let mut tensor = Tensor::<u8>::zeros([2, 3]).unwrap();
        tensor.transpose(0, 1).unwrap();
        let tensor = DynTensor::from(tensor);
        assert_eq!(
            (tensor.shape(), tensor.strides()),
            (&[3, 2][..], &[1, 3][..])
        );
        assert!(
            tensor.as_bytes().is_err()
                && tensor.as_slice::<u8>().is_err()
                && !tensor.is_contiguous()
        );
    }

    #[test]
    fn views_of_a_shared_one_are_those_of_its_typed_self() {
        let typed = Tensor::arange(0_u16, 24, 1).unwrap();
        let typed = typed.into_reshaped([2, 3, 4]).unwrap().freeze();
        let tensor = DynTensor::from(typed.clone());
        let pairs = [
            (tensor.narrow(1, 1, 2), typed.narrow(1, 1, 2)),
            (tensor.slice(2, 1.., 2), typed.slice(2, 1.., 2)),
            (tensor.select(0, 1), typed.select(0, 1)),
            (tensor.transpose(0, 2), typed.transpose(0, 2)),
            (tensor.permute(&[2, 0, 1]), typed.permute(&[2, 0, 1])),
            (tensor.reshape([4, 6]), typed.reshape([4, 6])),
            (tensor.unsqueeze(1), typed.unsqueeze(1)),
            (tensor.squeeze(1), typed.squeeze(1)),
            (tensor.expand([2, 2, 3, 4]), typed.expand([2, 2, 3, 4])),
        ];
        for (view, wanted) in pairs {
            let (view, wanted) = (view.unwrap(), wanted.unwrap());
            assert!(view.same_storage(&tensor));
            let wanted_bytes: Vec<u8> = wanted.iter().flat_map(u16::to_ne_bytes).collect();
            assert_eq!(*view.to_bytes(), wanted_bytes);
            let view = view.downcast_shared::<u16>().unwrap();
            assert_eq!(
                (view.shape(), view.strides()),
                (wanted.shape(), wanted.strides())
            );
        }
        assert_eq!(tensor.select(3, 0).unwrap_err().kind(), &ErrorKind::Shape);
    }

    #[test]
    fn an_exclusive_one_has_no_views() {
        let tensor = DynTensor::zeros(Dtype::F32, [2, 2]).unwrap();
        let error = tensor.select(0, 0).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::WrongMode);
        assert!(error.to_string().contains("freeze()"), "{error}");
    }

    #[test]
    fn it_arrives_as_what_was_sent() {
        fn dtype_and_mode(tensor: DynTensor) -> (Dtype, bool) {
            let back: DynTensor = message::send(tensor).unwrap();
            (back.dtype(), back.is_exclusive())
        }
        let tensor = || Tensor::<bf16>::zeros([2]).unwrap();
        assert_eq!(dtype_and_mode(tensor().into()), (Dtype::Bf16, true));
        assert_eq!(
            dtype_and_mode(tensor().freeze().into()),
            (Dtype::Bf16, false)
        );
        let typed: Tensor<bf16> = message::send(DynTensor::from(tensor())).unwrap();
        assert_eq!(typed.numel(), 2);
        assert!(postcard::to_stdvec(&DynTensor::from(tensor())).is_err());
    }
}
