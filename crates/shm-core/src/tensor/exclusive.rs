//! `Tensor`: elements that exactly one process, and in it one owner, can reach.

use crate::error::Result;
use crate::message;
use crate::tensor::aliased::AliasedTensor;
use crate::tensor::element::Element;
use crate::tensor::geometry::Geometry;
use crate::tensor::placed::{Placed, check_dtype};
use crate::tensor::shape::Shape;
use crate::tensor::shared::SharedTensor;
use crate::tensor::strided::Strided;
use crate::tensor::walk::ElementsMut;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::ops::Deref;

/// A tensor with one owner among all processes, who may read and write it.
///
/// It is a `Vec` that other processes can be given: moving it into a queue moves it into the process that receives it, and
/// not a byte of its elements. To let several read it, [`freeze`](Tensor::freeze) it. What it offers for reading is in
/// [`Strided`]. Dropping it gives its block back to the arena, whichever process allocated it.
///
/// It is contiguous when it is made, and until it is [transposed](Tensor::transpose) or [permuted](Tensor::permute).
///
/// ```
/// use shm_core::Tensor;
///
/// let mut tensor = Tensor::<f32>::zeros([2, 3])?;
/// tensor.as_mut_slice()[4] = 1.0;
/// assert_eq!(tensor.get(&[1, 1])?, 1.0);
/// # Ok::<(), shm_core::Error>(())
/// ```
///
/// There is no second owner, so it cannot be cloned; [`copy_into`](Strided::copy_into) copies the elements.
///
/// ```compile_fail,E0599
/// let tensor = shm_core::Tensor::<f32>::zeros([2, 3]).unwrap();
/// let second = tensor.clone();
/// ```
pub struct Tensor<T>(Strided<T>);

impl<T: Element> Tensor<T> {
    /// `strided` is exclusive; the constructors and the wire see to that.
    pub(crate) fn new(strided: Strided<T>) -> Self {
        debug_assert!(
            strided.placed().is_exclusive(),
            "a Tensor was made of a shared storage"
        );
        Tensor(strided)
    }

    /// All elements, in row-major order, to write.
    ///
    /// # Panics
    /// When the tensor is not [contiguous](Strided::is_contiguous), after a transposition;
    /// [`try_as_mut_slice`](Tensor::try_as_mut_slice) returns an error instead.
    #[track_caller]
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        match self.try_as_mut_slice() {
            Ok(slice) => slice,
            Err(error) => panic!("{error}"),
        }
    }

    /// All elements, in row-major order, to write, if they lie so.
    ///
    /// # Errors
    /// When the tensor is not [contiguous](Strided::is_contiguous).
    pub fn try_as_mut_slice(&mut self) -> Result<&mut [T]> {
        self.0.placed_mut().slice_mut()
    }

    /// Writes the element at a position, one index for each dimension.
    ///
    /// # Errors
    /// When the position has another number of dimensions than the tensor, or is out of range.
    pub fn set(&mut self, position: &[usize], value: T) -> Result<()> {
        self.0.placed_mut().set(position, value)
    }

    /// Writes the same value to all elements.
    pub fn fill(&mut self, value: T) {
        let filled = self.0.placed_mut().fill(value);
        // Filling fails for another element type or a shared storage only, and a `Tensor<T>` has neither.
        debug_assert!(filled.is_ok(), "{filled:?}");
    }

    /// The elements in row-major order, to write; works for all strides.
    ///
    /// ```
    /// let mut tensor = shm_core::Tensor::from_slice([2, 2], &[1, 2, 3, 4])?;
    /// tensor.transpose(0, 1)?;
    /// for (number, element) in tensor.iter_mut().enumerate() {
    ///     *element += 10 * number as i32;
    /// }
    /// assert_eq!(tensor.to_vec(), [1, 13, 22, 34]);
    /// # Ok::<(), shm_core::Error>(())
    /// ```
    pub fn iter_mut(&mut self) -> ElementsMut<'_, T> {
        ElementsMut::new(self.0.placed_mut())
    }

    /// Gives up writing, so that any number of processes can read.
    ///
    /// ```
    /// let shared = shm_core::Tensor::<u8>::full([3], 9)?.freeze();
    /// let second = shared.clone(); // the same elements
    /// assert_eq!(second.as_slice(), [9; 3]);
    /// # Ok::<(), shm_core::Error>(())
    /// ```
    pub fn freeze(self) -> SharedTensor<T> {
        SharedTensor::new(self.0.map(Placed::freeze))
    }

    /// Gives up being the only one, so that any number of processes can read and write at the same time.
    ///
    /// ```
    /// let counts = shm_core::Tensor::<u32>::zeros(3)?.alias();
    /// let second = counts.clone(); // the same elements
    /// second.fetch_add(&[1], 5)?;
    /// assert_eq!(counts.to_vec(), [0, 5, 0]);
    /// # Ok::<(), shm_core::Error>(())
    /// ```
    pub fn alias(self) -> AliasedTensor<T> {
        AliasedTensor::over(self)
    }

    /// The same elements in the same order in another shape, from now on. Never copies.
    ///
    /// # Errors
    /// When the shape has another number of elements, or the tensor is transposed so that it would need a copy; then the
    /// tensor is as before.
    ///
    /// ```
    /// let mut tensor = shm_core::Tensor::arange(0, 6, 1)?;
    /// tensor.reshape([2, 3])?;
    /// assert_eq!(tensor.get(&[1, 2])?, 5);
    /// assert!(tensor.reshape([4]).is_err());
    /// # Ok::<(), shm_core::Error>(())
    /// ```
    pub fn reshape(&mut self, shape: impl Into<Shape>) -> Result<()> {
        self.change(|geometry| geometry.reshape(shape))
    }

    /// As [`reshape`](Tensor::reshape), for a chain of calls.
    ///
    /// # Errors
    /// As for [`reshape`](Tensor::reshape), but the tensor is dropped.
    ///
    /// ```
    /// let tensor = shm_core::Tensor::arange(0, 6, 1)?.into_reshaped([2, 3])?;
    /// assert_eq!(tensor.shape(), [2, 3]);
    /// # Ok::<(), shm_core::Error>(())
    /// ```
    pub fn into_reshaped(mut self, shape: impl Into<Shape>) -> Result<Self> {
        self.reshape(shape)?;
        Ok(self)
    }

    /// Dimensions `a` and `b` change places, from now on. Never copies; most often the tensor is not contiguous then.
    ///
    /// # Errors
    /// When there is no such dimension.
    pub fn transpose(&mut self, a: usize, b: usize) -> Result<()> {
        self.change(|geometry| geometry.transpose(a, b))
    }

    /// Dimension `order[i]` becomes dimension `i`, from now on. Never copies.
    ///
    /// # Errors
    /// When `order` does not name each dimension once.
    pub fn permute(&mut self, order: &[usize]) -> Result<()> {
        self.change(|geometry| geometry.permute(order))
    }

    /// Loses dimension `dim`, from now on, if its length is 1; else nothing changes, as in torch.
    ///
    /// # Errors
    /// When there is no such dimension.
    pub fn squeeze(&mut self, dim: usize) -> Result<()> {
        self.change(|geometry| geometry.squeeze(dim))
    }

    /// Gets a dimension of length 1 before dimension `dim`, or after the last, from now on.
    ///
    /// # Errors
    /// When `dim` is beyond that, or there are [`MAX_DIMS`](crate::MAX_DIMS) already.
    ///
    /// ```
    /// let mut image = shm_core::Tensor::<u8>::zeros([3, 480, 640])?;
    /// image.unsqueeze(0)?; // a batch of one
    /// assert_eq!(image.shape(), [1, 3, 480, 640]);
    /// # Ok::<(), shm_core::Error>(())
    /// ```
    pub fn unsqueeze(&mut self, dim: usize) -> Result<()> {
        self.change(|geometry| geometry.unsqueeze(dim))
    }

    /// Keeps only `length` elements from `start` in dimension `dim`, from now on. The others stay in the block, which is
    /// held as a whole, but cannot be reached any more.
    ///
    /// # Errors
    /// When there is no such dimension, or it is shorter; then the tensor is as before.
    ///
    /// ```
    /// let mut batch = shm_core::Tensor::arange(0, 32, 1)?.into_reshaped([8, 4])?;
    /// batch.narrow(0, 0, 5)?; // the last batch is not full
    /// assert_eq!((batch.shape(), batch.is_contiguous()), (&[5, 4][..], true));
    /// # Ok::<(), shm_core::Error>(())
    /// ```
    pub fn narrow(&mut self, dim: usize, start: usize, length: usize) -> Result<()> {
        self.change(|geometry| geometry.narrow(dim, start, length))
    }

    /// Moves the elements into row-major order, if they are not, in a new block of the same arena.
    ///
    /// # Errors
    /// When the arena has no room for the copy; then the tensor is as before.
    ///
    /// ```
    /// let mut tensor = shm_core::Tensor::from_slice([2, 2], &[1, 2, 3, 4])?;
    /// tensor.transpose(0, 1)?;
    /// tensor.make_contiguous()?;
    /// assert_eq!(tensor.as_slice(), [1, 3, 2, 4]);
    /// # Ok::<(), shm_core::Error>(())
    /// ```
    pub fn make_contiguous(&mut self) -> Result<()> {
        if !self.is_contiguous() {
            let copy = self.copy_into(self.0.placed().storage().arena())?;
            *self = copy;
        }
        Ok(())
    }

    fn change(&mut self, change: impl FnOnce(&Geometry) -> Result<Geometry>) -> Result<()> {
        let geometry = change(self.0.placed().geometry())?;
        self.0.placed_mut().set_geometry(geometry)
    }

    #[cfg(feature = "ndarray")]
    pub(super) fn placed_mut(&mut self) -> &mut Placed {
        self.0.placed_mut()
    }

    pub(crate) fn into_placed(self) -> Placed {
        self.0.into_placed()
    }
}

impl<'a, T: Element> IntoIterator for &'a mut Tensor<T> {
    type Item = &'a mut T;
    type IntoIter = ElementsMut<'a, T>;

    fn into_iter(self) -> ElementsMut<'a, T> {
        self.iter_mut()
    }
}

impl<T> Deref for Tensor<T> {
    type Target = Strided<T>;

    fn deref(&self) -> &Strided<T> {
        &self.0
    }
}

impl<T: Element> fmt::Debug for Tensor<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_named("Tensor", f)
    }
}

/// Works only as part of a message, which carries a handle; elsewhere it is an error that says so.
impl<T: Element> Serialize for Tensor<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        message::serialize_tensor(
            self.0.placed().storage(),
            self.0.placed().geometry(),
            true,
            serializer,
        )
    }
}

/// Works only as part of a message; the block must be exclusive and hold elements of `T`.
impl<'de, T: Element> Deserialize<'de> for Tensor<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        message::deserialize_tensor(deserializer, |storage, geometry| {
            check_dtype(T::DTYPE, geometry.dtype())
                .and_then(|()| Placed::check_exclusive(&storage, geometry))
                .map_err(message::refuse)?;
            // SAFETY: checked just now; the wire hands out each entry of a message once, and a message that holds an exclusive storage was
            // published only when its sender's handle was gone; so this process has the only one.
            Ok(Tensor(Strided::of(unsafe {
                Placed::exclusive(storage, geometry)
            })))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::line::Mode;
    use crate::storage::Storage;
    use crate::tensor::Dtype;
    use crate::{Arena, Result};

    fn matrix() -> Tensor<i32> {
        Tensor::from_slice([2, 3], &[1, 2, 3, 4, 5, 6]).unwrap()
    }

    #[test]
    fn a_tensor_can_be_moved_to_and_lent_to_threads() {
        fn sendable<T: Send + Sync + 'static>() {}
        sendable::<Tensor<f32>>();
        sendable::<crate::Elements<'static, f32>>();
    }

    #[test]
    fn elements_are_read_and_written_by_position_and_as_a_slice() {
        let mut tensor = matrix();
        tensor.set(&[1, 1], 50).unwrap();
        tensor.as_mut_slice()[0] = 10;
        assert_eq!(tensor.to_vec(), [10, 2, 3, 4, 50, 6]);
        assert_eq!(tensor.get(&[1, 1]).unwrap(), 50);
        for position in [&[2, 0][..], &[0, 3], &[0], &[0, 0, 0], &[]] {
            let text = tensor.get(position).unwrap_err().to_string();
            assert!(
                text.contains(&format!("{position:?}")) && text.contains("[2, 3]"),
                "{text}"
            );
            assert!(tensor.set(position, 0).is_err());
        }
    }

    #[test]
    fn a_transposed_tensor_is_read_and_written_where_its_elements_are() {
        let mut tensor = matrix();
        tensor.transpose(0, 1).unwrap();
        assert!(!tensor.is_contiguous());
        assert_eq!(tensor.to_vec(), [1, 4, 2, 5, 3, 6]);
        assert_eq!(tensor.iter().len(), 6);
        tensor.set(&[2, 0], 30).unwrap();
        tensor.permute(&[1, 0]).unwrap();
        assert_eq!(tensor.as_slice(), [1, 2, 30, 4, 5, 6]);
        tensor.transpose(0, 1).unwrap();
        tensor.fill(7);
        assert_eq!(tensor.to_vec(), [7; 6]);
        tensor.make_contiguous().unwrap();
        assert_eq!(
            (tensor.shape(), tensor.as_slice()),
            (&[3, 2][..], &[7; 6][..])
        );
    }

    #[test]
    fn a_slice_of_a_transposed_tensor_is_an_error_or_a_documented_panic() {
        let mut tensor = matrix();
        tensor.transpose(0, 1).unwrap();
        assert_eq!(tensor.try_as_slice().unwrap_err().kind(), &ErrorKind::Shape);
        assert!(tensor.try_as_mut_slice().is_err());
        let caught = std::panic::catch_unwind(|| tensor.as_slice().len());
        let text = *caught.unwrap_err().downcast::<String>().unwrap();
        assert!(
            text.contains("[1, 3]") && text.contains("contiguous"),
            "{text}"
        );
    }

    #[test]
    fn a_tensor_that_keeps_a_part_of_itself_is_still_exclusive() {
        let mut tensor = matrix();
        tensor.narrow(1, 1, 2).unwrap();
        assert!(tensor.narrow(0, 1, 2).is_err() && !tensor.is_contiguous());
        tensor.fill(0);
        tensor.unsqueeze(0).unwrap();
        assert_eq!(
            (tensor.shape(), tensor.to_vec()),
            (&[1, 2, 2][..], vec![0; 4])
        );
        tensor.squeeze(0).unwrap();
        let tensor: Tensor<i32> = message::send(tensor).unwrap();
        assert_eq!((tensor.shape(), tensor.offset()), (&[2, 2][..], 1));
        assert!(tensor.freeze().try_thaw().is_ok());
    }

    #[test]
    fn a_failed_change_of_shape_changes_nothing() {
        let mut tensor = matrix();
        assert!(tensor.reshape([4]).is_err());
        assert!(tensor.transpose(0, 2).is_err());
        assert!(tensor.permute(&[0]).is_err());
        assert_eq!(
            (tensor.shape(), tensor.to_vec()),
            (&[2, 3][..], vec![1, 2, 3, 4, 5, 6])
        );
        assert_eq!(tensor.into_reshaped([3, 2, 1]).unwrap().shape(), [3, 2, 1]);
    }

    #[test]
    fn a_copy_has_its_own_storage() {
        let tensor = matrix();
        let mut copy = tensor.copy_into(&Arena::current().unwrap()).unwrap();
        copy.fill(0);
        assert!(!copy.same_storage(&tensor));
        assert_eq!(tensor.as_slice(), [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn debug_shows_shape_and_a_few_elements() {
        assert_eq!(
            format!("{:?}", matrix()),
            "Tensor<i32>[2, 3] [1, 2, 3, 4, 5, 6]"
        );
        let text = format!("{:?}", Tensor::<u8>::zeros(1000).unwrap());
        assert_eq!(text, "Tensor<u8>[1000] [0, 0, 0, 0, 0, 0, 0, 0, ..]");
    }

    /// What a message that lies could say of a block of 24 bytes.
    fn exclusive(mode: Mode, geometry: Result<Geometry>) -> Result<Tensor<i32>> {
        let storage = Storage::allocate(&Arena::current()?, 24, mode)?;
        let geometry = geometry?;
        Placed::check_exclusive(&storage, &geometry)?;
        // SAFETY: checked just now, and the block was allocated just now.
        let placed = unsafe { Placed::exclusive(storage, &geometry) };
        Strided::new(placed).map(Tensor::new)
    }

    #[test]
    fn a_handle_that_does_not_fit_its_storage_is_refused() {
        let geometry = |shape: &[usize], strides: &[isize], offset| {
            Geometry::new(Dtype::I32, shape, strides, offset)
        };
        assert!(exclusive(Mode::Exclusive, geometry(&[2, 3], &[3, 1], 0)).is_ok());
        assert!(exclusive(Mode::Exclusive, geometry(&[2, 3], &[3, 1], 1)).is_err());
        assert!(exclusive(Mode::Exclusive, geometry(&[7], &[1], 0)).is_err());
        assert!(exclusive(Mode::Exclusive, geometry(&[2], &[6], 0)).is_err());
        let twice = exclusive(Mode::Exclusive, geometry(&[2, 3], &[0, 1], 0)).unwrap_err();
        assert!(twice.to_string().contains("more than once"), "{twice}");
        for mode in [Mode::Shared, Mode::Aliased, Mode::Object, Mode::Message] {
            let error = exclusive(mode, geometry(&[2, 3], &[3, 1], 0)).unwrap_err();
            assert_eq!(error.kind(), &ErrorKind::WrongMode);
        }
        let floats = exclusive(Mode::Exclusive, Geometry::contiguous(Dtype::F32, 6)).unwrap_err();
        assert!(matches!(floats.kind(), ErrorKind::Dtype { .. }));
        assert!(
            floats.to_string().contains("i32") && floats.to_string().contains("f32"),
            "{floats}"
        );
    }

    #[test]
    fn a_tensor_outside_a_message_cannot_be_serialized() {
        assert!(postcard::to_stdvec(&matrix()).is_err());
        assert!(postcard::from_bytes::<Tensor<i32>>(&[0]).is_err());
    }

    #[test]
    fn a_tensor_travels_in_a_message_without_moving() {
        let mut tensor = matrix();
        tensor.transpose(0, 1).unwrap();
        let place = tensor.placed().storage().id();
        let (name, mut tensor): (String, Tensor<i32>) = message::send(("matrix", tensor)).unwrap();
        assert_eq!(
            (name.as_str(), tensor.placed().storage().id()),
            ("matrix", place)
        );
        assert_eq!(tensor.to_vec(), [1, 4, 2, 5, 3, 6]);
        tensor.set(&[0, 0], 9).unwrap();
        assert!(
            message::send::<_, Tensor<u32>>(tensor).is_err(),
            "of another type"
        );
        assert!(
            message::send::<_, SharedTensor<i32>>(matrix()).is_err(),
            "not shared"
        );
        assert!(
            message::send::<_, Tensor<i32>>(matrix().freeze()).is_err(),
            "not exclusive"
        );
    }
}
