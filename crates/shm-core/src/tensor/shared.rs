//! `SharedTensor`: elements that any number of processes read and nobody writes, and views of them.

use crate::error::Result;
use crate::message;
use crate::storage::Storage;
use crate::tensor::dtype::Dtype;
use crate::tensor::element::Element;
use crate::tensor::exclusive::Tensor;
use crate::tensor::geometry::Geometry;
use crate::tensor::placed::{Placed, check_dtype};
use crate::tensor::shape::Shape;
use crate::tensor::strided::Strided;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::ops::{Deref, RangeBounds};

/// A tensor that any number of processes can read, and none can write; from [`Tensor::freeze`].
///
/// A clone, and each view, holds the same storage; so does the process that a clone is sent to. The storage goes back to
/// the arena with the last of them. What it offers for reading is in [`Strided`]; the views below move no element.
///
/// ```
/// use shm_core::Tensor;
///
/// let image = Tensor::arange(0, 12, 1)?.into_reshaped([3, 4])?.freeze();
/// let corner = image.narrow(0, 1, 2)?.narrow(1, 2, 2)?;
/// assert_eq!(corner.to_vec(), [6, 7, 10, 11]);
/// assert!(corner.same_storage(&image));
/// # Ok::<(), shm_core::Error>(())
/// ```
pub struct SharedTensor<T>(Strided<T>);

impl<T: Element> SharedTensor<T> {
    /// `strided` is shared.
    pub(crate) fn new(strided: Strided<T>) -> Self {
        debug_assert!(
            !strided.placed().is_exclusive(),
            "a SharedTensor was made of an exclusive storage"
        );
        SharedTensor(strided)
    }

    /// The tensor to write again, if nobody else holds its storage: no clone, no view, no process, no message.
    ///
    /// A view that was kept while the rest was dropped can be thawed, too, unless it names elements twice
    /// ([`expand`](SharedTensor::expand)).
    ///
    /// # Errors
    /// This tensor, as it was, when there is another holder.
    ///
    /// ```
    /// let shared = shm_core::Tensor::<u8>::zeros([4])?.freeze();
    /// let second = shared.clone();
    /// let shared = shared.try_thaw().unwrap_err(); // `second` reads it
    /// drop(second);
    /// let mut tensor = shared.try_thaw().unwrap();
    /// tensor.fill(1);
    /// # Ok::<(), shm_core::Error>(())
    /// ```
    #[expect(
        clippy::result_large_err,
        reason = "the holder itself comes back, which is no error to be passed far"
    )]
    pub fn try_thaw(self) -> Result<Tensor<T>, SharedTensor<T>> {
        self.0
            .try_map(Placed::try_thaw)
            .map(Tensor::new)
            .map_err(SharedTensor::new)
    }

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
    ///
    /// ```
    /// let row = shm_core::Tensor::arange(0, 10, 1)?.freeze();
    /// assert_eq!(row.slice(0, 1..8, 3)?.to_vec(), [1, 4, 7]);
    /// assert_eq!(row.slice(0, .., 5)?.to_vec(), [0, 5]);
    /// # Ok::<(), shm_core::Error>(())
    /// ```
    pub fn slice(&self, dim: usize, range: impl RangeBounds<usize>, step: usize) -> Result<Self> {
        self.view(|geometry| geometry.slice(dim, range, step))
    }

    /// The part at `index` in dimension `dim`, with one dimension less.
    ///
    /// # Errors
    /// When there is no such dimension or index.
    ///
    /// ```
    /// let image = shm_core::Tensor::from_slice([2, 3], &[1, 2, 3, 4, 5, 6])?.freeze();
    /// assert_eq!(image.select(0, 1)?.as_slice(), [4, 5, 6]);
    /// assert_eq!(image.select(1, 1)?.to_vec(), [2, 5]);
    /// # Ok::<(), shm_core::Error>(())
    /// ```
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
    ///
    /// ```
    /// let planes = shm_core::Tensor::<u8>::zeros([3, 480, 640])?.freeze();
    /// assert_eq!(planes.permute(&[1, 2, 0])?.shape(), [480, 640, 3]);
    /// # Ok::<(), shm_core::Error>(())
    /// ```
    pub fn permute(&self, order: &[usize]) -> Result<Self> {
        self.view(|geometry| geometry.permute(order))
    }

    /// The same elements in the same order in another shape. Unlike torch's `reshape` it never copies (like its `view`).
    ///
    /// # Errors
    /// When the shape has another number of elements, or no strides could express it; then
    /// [`contiguous`](SharedTensor::contiguous) helps.
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

    /// Dimensions of length 1, and new ones on the left, repeat to fill `shape`: each element is then read at many
    /// positions, and is there once.
    ///
    /// # Errors
    /// When the lengths, matched from the right, differ where the length is not 1.
    ///
    /// ```
    /// let row = shm_core::Tensor::from_slice([3], &[1, 2, 3])?.freeze();
    /// let matrix = row.expand([2, 3])?;
    /// assert_eq!(matrix.to_vec(), [1, 2, 3, 1, 2, 3]);
    /// assert_eq!(matrix.strides(), [0, 1]);
    /// # Ok::<(), shm_core::Error>(())
    /// ```
    pub fn expand(&self, shape: impl Into<Shape>) -> Result<Self> {
        self.view(|geometry| geometry.expand(shape))
    }

    /// This tensor if it is [contiguous](Strided::is_contiguous), else a copy of it that is, in the same arena.
    ///
    /// # Errors
    /// When the arena has no room for the copy.
    pub fn contiguous(&self) -> Result<Self> {
        if self.is_contiguous() {
            return Ok(self.clone());
        }
        Ok(self.copy_into(self.0.placed().storage().arena())?.freeze())
    }

    fn view(&self, geometry: impl FnOnce(&Geometry) -> Result<Geometry>) -> Result<Self> {
        let placed = self.0.placed();
        let view = placed.share(geometry(placed.geometry())?)?;
        Strided::new(view).map(SharedTensor)
    }

    /// The storage, if this is all of it in one dimension.
    #[expect(
        clippy::result_large_err,
        reason = "the holder itself comes back, which is no error to be passed far"
    )]
    #[inline]
    pub(crate) fn into_whole(self) -> Result<Storage, Self> {
        let placed = self.0.placed();
        let geometry = placed.geometry();
        let is_whole = geometry.ndim() == 1
            && geometry.offset() == 0
            && geometry.is_contiguous()
            && geometry.packed_bytes() == placed.storage().len();
        if is_whole {
            Ok(self.0.into_placed().into_shared_storage())
        } else {
            Err(self)
        }
    }

    pub(crate) fn into_placed(self) -> Placed {
        self.0.into_placed()
    }
}

impl SharedTensor<u8> {
    /// All bytes of a storage that came in a message.
    ///
    /// # Errors
    /// When its block is not shared.
    #[inline]
    pub(crate) fn whole(storage: Storage) -> Result<Self> {
        let geometry = Geometry::packed(Dtype::U8, &[storage.len()])?;
        Placed::check_shared(&storage, &geometry)?;
        // SAFETY: checked just now; as in `deserialize`: the block's header says that it is shared, and it can be thawed only
        // when nobody holds it, and now we do.
        let placed = unsafe { Placed::shared(storage, &geometry) };
        Ok(SharedTensor::new(Strided::of(placed)))
    }
}

impl<T: Element> Clone for SharedTensor<T> {
    fn clone(&self) -> Self {
        SharedTensor(self.0.map_ref(|placed| {
            // SAFETY: what a `SharedTensor` holds is shared; its constructors see to that.
            unsafe { placed.clone_shared() }
        }))
    }
}

impl<T> Deref for SharedTensor<T> {
    type Target = Strided<T>;

    fn deref(&self) -> &Strided<T> {
        &self.0
    }
}

impl<T: Element> fmt::Debug for SharedTensor<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_named("SharedTensor", f)
    }
}

/// Works only as part of a message, which carries a handle; elsewhere it is an error that says so.
impl<T: Element> Serialize for SharedTensor<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        message::serialize_tensor(
            self.0.placed().storage(),
            self.0.placed().geometry(),
            false,
            serializer,
        )
    }
}

/// Works only as part of a message; the block must be shared and hold elements of `T`.
impl<'de, T: Element> Deserialize<'de> for SharedTensor<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        message::deserialize_tensor(deserializer, |storage, geometry| {
            check_dtype(T::DTYPE, geometry.dtype())
                .and_then(|()| Placed::check_shared(&storage, geometry))
                .map_err(message::refuse)?;
            // SAFETY: checked just now; the block's header says that it is shared, and the one who froze it gave up the only
            // exclusive handle; it can be thawed only when nobody holds it, and now we do.
            let placed = unsafe { Placed::shared(storage, geometry) };
            Ok(SharedTensor::new(Strided::of(placed)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::line::Mode;
    use crate::{Arena, Tensor};

    fn cube() -> SharedTensor<i64> {
        Tensor::arange(0, 24, 1)
            .unwrap()
            .into_reshaped([2, 3, 4])
            .unwrap()
            .freeze()
    }

    #[test]
    fn a_shared_tensor_can_be_read_by_many_threads_at_once() {
        fn shareable<T: Send + Sync + Clone + 'static>() {}
        shareable::<SharedTensor<f32>>();
        let tensor = cube();
        let sums: Vec<i64> = std::thread::scope(|scope| {
            let sum = || scope.spawn(|| tensor.iter().sum());
            [sum(), sum()]
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        assert_eq!(sums, [276, 276]);
    }

    #[test]
    fn each_view_shares_the_storage() {
        let tensor = cube();
        for (view, shape, elements) in [
            (
                tensor.narrow(1, 1, 1),
                &[2, 1, 4][..],
                &[4, 5, 6, 7, 16, 17, 18, 19][..],
            ),
            (
                tensor.slice(2, 1.., 2).and_then(|view| view.select(0, 1)),
                &[3, 2],
                &[13, 15, 17, 19, 21, 23],
            ),
            (
                tensor.select(0, 1).and_then(|view| view.select(0, 2)),
                &[4],
                &[20, 21, 22, 23],
            ),
            (
                tensor.select(0, 0).and_then(|view| view.transpose(0, 1)),
                &[4, 3],
                &[0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11],
            ),
            (
                tensor
                    .permute(&[2, 0, 1])
                    .and_then(|view| view.narrow(0, 3, 1)),
                &[1, 2, 3],
                &[3, 7, 11, 15, 19, 23],
            ),
            (
                tensor.reshape([4, 6]).and_then(|view| view.select(1, 5)),
                &[4],
                &[5, 11, 17, 23],
            ),
            (
                tensor.select(2, 0).and_then(|view| view.unsqueeze(1)),
                &[2, 1, 3],
                &[0, 4, 8, 12, 16, 20],
            ),
            (
                tensor
                    .narrow(0, 1, 1)
                    .and_then(|view| view.squeeze(0)?.select(0, 0)),
                &[4],
                &[12, 13, 14, 15],
            ),
            (
                tensor
                    .select(0, 0)
                    .and_then(|view| view.select(0, 0)?.narrow(0, 2, 1)?.expand([2, 2])),
                &[2, 2],
                &[2; 4],
            ),
        ] {
            let view = view.unwrap();
            assert_eq!((view.shape(), &view.to_vec()[..]), (shape, elements));
            assert!(view.same_storage(&tensor));
            assert_eq!(view.iter().count(), elements.len());
            for (index, &element) in elements.iter().enumerate() {
                let mut rest = index;
                let mut position: Vec<usize> = shape
                    .iter()
                    .rev()
                    .map(|length| (rest % length, rest /= length).0)
                    .collect();
                position.reverse();
                assert_eq!(view.get(&position).unwrap(), element);
            }
        }
    }

    #[test]
    fn a_contiguous_view_is_a_slice_of_the_storage() {
        let tensor = cube();
        let part = tensor.select(0, 1).unwrap();
        assert_eq!(part.as_slice().as_ptr(), tensor.as_slice()[12..].as_ptr());
        assert!(tensor.select(1, 0).unwrap().try_as_slice().is_err());
    }

    #[test]
    fn only_a_sole_holder_can_thaw() {
        let tensor = cube();
        let view = tensor.select(0, 0).unwrap();
        let tensor = tensor.try_thaw().unwrap_err();
        assert_eq!(tensor.as_slice()[23], 23, "it is as it was");
        drop(tensor);
        let mut thawed = view.try_thaw().unwrap();
        thawed.fill(1);
        assert_eq!(thawed.shape(), [3, 4]);
        assert_eq!(thawed.freeze().as_slice(), [1; 12]);
    }

    #[test]
    fn elements_that_repeat_are_never_writable() {
        let row = Tensor::<u8>::zeros([1, 3]).unwrap().freeze();
        let repeated = row.expand([4, 3]).unwrap();
        drop(row);
        let repeated = repeated.try_thaw().unwrap_err();
        assert!(repeated.placed().storage().held().is_locally_unique());
        assert!(repeated.narrow(0, 0, 1).is_ok());
    }

    #[test]
    fn contiguous_copies_only_what_is_not() {
        let tensor = cube();
        assert!(tensor.contiguous().unwrap().same_storage(&tensor));
        let column = tensor.select(2, 1).unwrap();
        let copy = column.contiguous().unwrap();
        assert!(!copy.same_storage(&tensor));
        assert_eq!(copy.as_slice(), column.to_vec());
    }

    #[test]
    fn views_that_do_not_fit_are_errors() {
        let tensor = cube();
        assert_eq!(
            tensor.narrow(0, 1, 2).unwrap_err().kind(),
            &ErrorKind::Shape
        );
        assert!(
            tensor.select(3, 0).is_err()
                && tensor.transpose(0, 3).is_err()
                && tensor.reshape([5, 5]).is_err()
        );
    }

    #[test]
    fn views_of_one_storage_sent_together_stay_views_of_one_storage() {
        let tensor = cube();
        let column = tensor.select(2, 3).unwrap();
        let sent = (tensor.clone(), vec![column, tensor]);
        let (whole, mut rest): (SharedTensor<i64>, Vec<SharedTensor<i64>>) =
            message::send(sent).unwrap();
        assert_eq!(rest[0].to_vec(), [3, 7, 11, 15, 19, 23]);
        assert!(rest.iter().all(|view| view.same_storage(&whole)));
        rest.clear();
        assert!(whole.try_thaw().is_ok());
    }

    #[test]
    fn a_storage_in_another_mode_is_refused() {
        for mode in [Mode::Exclusive, Mode::Aliased, Mode::Object, Mode::Message] {
            let storage = Storage::allocate(&Arena::current().unwrap(), 8, mode).unwrap();
            let geometry = Geometry::contiguous(Dtype::I64, 1).unwrap();
            let refused = Placed::check_shared(&storage, &geometry).unwrap_err();
            assert_eq!(refused.kind(), &ErrorKind::WrongMode);
        }
    }

    #[test]
    fn a_tensor_of_nothing_can_be_shared_viewed_and_thawed() {
        let empty = Tensor::<f32>::zeros([0, 3]).unwrap().freeze();
        assert_eq!(empty.as_slice(), [0.0_f32; 0]);
        assert_eq!(empty.transpose(0, 1).unwrap().shape(), [3, 0]);
        assert_eq!(empty.narrow(1, 3, 0).unwrap().to_vec(), [0.0_f32; 0]);
        assert_eq!(empty.expand([2, 0, 3]).unwrap().numel(), 0);
        let scalar = Tensor::full((), 3_u16).unwrap().freeze();
        assert_eq!(scalar.expand([2]).unwrap().to_vec(), [3, 3]);
        assert!(empty.try_thaw().is_ok() && scalar.try_thaw().is_ok());
    }
}
