//! All bytes of a block, without a geometry: what moves often between owners and is looked at as bytes.
//!
//! A tensor has some 200 bytes, most of them its geometry, and to move what has just been written costs more than to write
//! it. Where the bytes mean what somebody else says, as in the slots of a pipeline, a quarter of that is enough.
//!
//! Why the references are sound: as for `Placed`, of which these are the two cases without a geometry. At most one
//! `ExclusiveBytes` or exclusive `Placed` of a storage exists in all processes, and no shared one beside it: either is made
//! only of the other, of a storage of which this process has the only handle, or of a message that carried it.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{Error, Result};
use crate::held::Held;
use crate::message;
use crate::storage::Storage;
use crate::tensor::dtype::Dtype;
use crate::tensor::exclusive::Tensor;
use crate::tensor::geometry::Geometry;
use crate::tensor::placed::{Placed, check_dtype};
use crate::tensor::shared::SharedTensor;
use crate::tensor::strided::Strided;

/// All bytes of a block that any number of processes read and none writes: a [`SharedTensor<u8>`](SharedTensor) without a
/// shape, in a quarter of its bytes.
///
/// ```
/// use shm_core::{SharedBytes, Tensor};
///
/// let bytes = SharedBytes::try_from(Tensor::from_slice([3], &[1_u8, 2, 3])?.freeze()).unwrap();
/// let mut bytes = bytes.try_thaw().unwrap(); // nobody else holds them
/// bytes.as_mut_slice()[0] = 7;
/// assert_eq!(bytes.freeze().as_slice(), [7, 2, 3]);
/// # Ok::<(), shm_core::Error>(())
/// ```
#[derive(Clone)]
pub struct SharedBytes(Storage);

/// All bytes of a block that nobody else can reach: a [`Tensor<u8>`](Tensor) without a shape.
pub struct ExclusiveBytes(Storage);

impl SharedBytes {
    /// All bytes of a storage, by its block's header.
    ///
    /// # Errors
    /// When its block is not shared.
    #[inline]
    pub(crate) fn over(storage: Storage) -> Result<Self> {
        Placed::check_mode_shared(&storage)?;
        Ok(Self(storage))
    }

    #[inline]
    pub(crate) fn held(&self) -> &Held {
        self.0.held()
    }

    #[inline]
    pub(crate) fn into_held(self) -> Held {
        self.0.into_held()
    }

    /// The bytes.
    #[inline]
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the storage has `len` bytes from there, initialised, and while its block is shared nobody writes them (see
        // the top); it stays so for as long as this handle is there.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), self.0.len()) }
    }

    /// How many bytes there are.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether both are the same block.
    #[must_use]
    pub fn same_storage(&self, other: &Self) -> bool {
        self.0.id() == other.0.id() && self.0.as_ptr() == other.0.as_ptr()
    }

    /// One more reference, counted for all processes at once and not only in this one: for what is about to be sent.
    ///
    /// # Errors
    /// When there is no room for one more lease of this process, or for one more count; after a fork.
    #[inline]
    pub fn to_send(&self) -> Result<Self> {
        self.0.another().map(Self)
    }

    /// To be written again, if nobody else holds the block: no clone, no process, no message.
    ///
    /// # Errors
    /// These bytes, as they were, when there is another holder.
    #[inline]
    pub fn try_thaw(self) -> Result<ExclusiveBytes, Self> {
        if self.0.try_thaw() {
            Ok(ExclusiveBytes(self.0))
        } else {
            Err(self)
        }
    }
}

impl ExclusiveBytes {
    /// So many bytes, all 0, in the [current arena](crate::Arena::current).
    ///
    /// # Errors
    /// What making an arena or an allocation in it can answer.
    #[track_caller]
    pub fn zeros(bytes: usize) -> Result<Self> {
        let placed = Tensor::<u8>::zeros([bytes])?.into_placed();
        Ok(Self(placed.into_parts().0))
    }

    /// The bytes.
    #[inline]
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: as in `as_mut_slice`; it is written only through `&mut self`.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), self.0.len()) }
    }

    /// The bytes, to write.
    #[inline]
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the storage has `len` bytes from there, initialised. Nobody else reaches them (see the top), and this is
        // borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_ptr(), self.0.len()) }
    }

    /// How many bytes there are.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Gives up writing, for all who will ever hold these bytes.
    #[inline]
    #[must_use]
    pub fn freeze(self) -> SharedBytes {
        self.0.freeze();
        SharedBytes(self.0)
    }
}

/// Works where the tensor is all of its block in one dimension; else it comes back.
impl TryFrom<SharedTensor<u8>> for SharedBytes {
    type Error = SharedTensor<u8>;

    fn try_from(tensor: SharedTensor<u8>) -> Result<Self, SharedTensor<u8>> {
        tensor.into_whole().map(Self)
    }
}

/// In one dimension.
impl TryFrom<SharedBytes> for SharedTensor<u8> {
    type Error = Error;

    fn try_from(bytes: SharedBytes) -> Result<Self> {
        SharedTensor::whole(bytes.0)
    }
}

impl fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedBytes({} bytes)", self.len())
    }
}

impl fmt::Debug for ExclusiveBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ExclusiveBytes({} bytes)", self.len())
    }
}

/// Works only as part of a message, as a `SharedTensor<u8>` does, and arrives as either.
impl Serialize for SharedBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let geometry = Geometry::packed(Dtype::U8, &[self.len()]);
        let geometry = geometry.map_err(message::refuse_to_write)?;
        message::serialize_tensor(&self.0, &geometry, false, serializer)
    }
}

/// Works only as part of a message, of a shared tensor of bytes that is all of its block.
impl<'de> Deserialize<'de> for SharedBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        message::deserialize_tensor(deserializer, |storage, geometry| {
            check_dtype(Dtype::U8, geometry.dtype())
                .and_then(|()| Placed::check_shared(&storage, geometry))
                .map_err(message::refuse)?;
            // SAFETY: checked just now; as in the `Deserialize` of `SharedTensor`.
            let placed = unsafe { Placed::shared(storage, geometry) };
            let tensor = SharedTensor::<u8>::new(Strided::of(placed));
            Self::try_from(tensor).map_err(|tensor| {
                message::refuse_because(format!(
                    "a part of a block arrived, of shape {:?}, where all of it was expected",
                    tensor.shape()
                ))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn bytes() -> SharedBytes {
        let tensor = Tensor::from_slice([3], &[1_u8, 2, 3]).unwrap().freeze();
        SharedBytes::try_from(tensor).unwrap()
    }

    #[test]
    fn bytes_are_thawed_by_their_only_holder() {
        let bytes = bytes();
        let (clone, sent) = (bytes.clone(), bytes.to_send().unwrap());
        assert!(sent.same_storage(&bytes) && clone.same_storage(&bytes));
        let bytes = bytes.try_thaw().unwrap_err();
        drop(clone);
        let bytes = bytes.try_thaw().unwrap_err();
        drop(bytes);
        let mut bytes = sent.try_thaw().unwrap();
        bytes.as_mut_slice()[1] = 9;
        assert_eq!(bytes.as_slice(), [1, 9, 3]);
        let tensor = SharedTensor::try_from(bytes.freeze()).unwrap();
        assert_eq!(tensor.as_slice(), [1, 9, 3]);
    }

    #[test]
    fn they_travel_as_a_tensor_does_and_arrive_as_either() {
        let kept = bytes();
        let tensor: SharedTensor<u8> = message::send(kept.clone()).unwrap();
        assert_eq!(
            (tensor.shape(), tensor.as_slice()),
            (&[3][..], kept.as_slice())
        );
        let back: SharedBytes = message::send(tensor).unwrap();
        assert!(back.same_storage(&kept));
        let part = SharedTensor::try_from(kept)
            .unwrap()
            .narrow(0, 1, 2)
            .unwrap();
        let error = message::send::<_, SharedBytes>(part).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Decode);
        assert!(error.to_string().contains("[2]"), "{error}");
    }

    #[test]
    fn a_part_of_a_tensor_is_not_all_of_its_block() {
        let part = SharedTensor::try_from(bytes())
            .unwrap()
            .narrow(0, 0, 2)
            .unwrap();
        assert_eq!(SharedBytes::try_from(part).unwrap_err().to_vec(), [1, 2]);
        let square = Tensor::<u8>::zeros([2, 2]).unwrap().freeze();
        assert!(SharedBytes::try_from(square).is_err());
        assert!(ExclusiveBytes::zeros(0).unwrap().is_empty());
    }
}
