//! `AliasedTensor`: elements that any number of processes read and write at the same time.

use crate::arena::Arena;
use crate::error::{Error, Result};
use crate::line::Mode;
use crate::message;
use crate::tensor::atomic::{Addend, AtomicElement, Integer, Word};
use crate::tensor::dtype::Dtype;
use crate::tensor::element::Element;
use crate::tensor::exclusive::Tensor;
use crate::tensor::geometry::Geometry;
use crate::tensor::racy::{Racy, bits_of, bits_to, update};
use crate::tensor::shape::Shape;
use crate::tensor::shared::SharedTensor;
use crate::tensor::strided::Strided;
use crate::tensor::view::view_methods;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::marker::PhantomData;

/// A tensor that any number of processes read and write at the same time, without locks; from [`Tensor::alias`].
///
/// It is what Hogwild training needs: workers that update common parameters and do not mind that an update is lost now
/// and then. A clone, and each view, holds the same storage; so does the process that a clone is sent to.
///
/// # What another writer can do to what you read
/// Each access is one relaxed atomic access of the element's size. So a value that is read is always one that somebody
/// wrote, never half of one and half of another, except for [`Complex128`](crate::Complex128), of which the real and the
/// imaginary part are read and written apart. Nothing is said about the order in which writes to different elements
/// become visible, nor about how many elements of a bulk copy are new. Who needs a state that fits together sends a
/// message, or waits at a barrier: what was written before is seen after it.
///
/// A [`load`](AliasedTensor::load), a sum and a [`store`](AliasedTensor::store) lose what others stored in between;
/// [`fetch_add`](AliasedTensor::fetch_add) and [`fetch_update`](AliasedTensor::fetch_update) lose nothing and cost more.
///
/// ```
/// use shm_core::Tensor;
///
/// let weights = Tensor::<f32>::zeros([2, 3])?.alias();
/// let row = weights.select(0, 1)?; // another holder of the same memory
/// weights.store(&[1, 2], 0.5)?;
/// assert_eq!(row.load(&[2])?, 0.5);
/// drop(row);
/// let weights = weights.try_unalias().unwrap(); // nobody else has it any more
/// assert_eq!(weights.as_slice(), [0.0, 0.0, 0.0, 0.0, 0.0, 0.5]);
/// # Ok::<(), shm_core::Error>(())
/// ```
pub struct AliasedTensor<T> {
    racy: Racy,
    element: PhantomData<T>,
}

impl<T: Element> AliasedTensor<T> {
    fn new(racy: Racy) -> Self {
        AliasedTensor {
            racy,
            element: PhantomData,
        }
    }

    /// What [`Tensor::alias`] does.
    pub(super) fn over(tensor: Tensor<T>) -> Self {
        Self::new(Racy::alias(tensor.into_placed()))
    }

    /// The tensor for oneself again, if nobody else holds its storage: no clone, no view, no process, no message.
    ///
    /// # Errors
    /// This tensor, as it was, when there is another holder, or when it is a view that names elements twice
    /// ([`expand`](AliasedTensor::expand)).
    ///
    /// ```
    /// let counts = shm_core::Tensor::<u32>::zeros(4)?.alias();
    /// let second = counts.clone();
    /// let counts = counts.try_unalias().unwrap_err(); // `second` may write it
    /// drop(second);
    /// counts.try_unalias().unwrap().as_mut_slice()[0] = 1;
    /// # Ok::<(), shm_core::Error>(())
    /// ```
    #[expect(
        clippy::result_large_err,
        reason = "the holder itself comes back, which is no error to be passed far"
    )]
    pub fn try_unalias(self) -> Result<Tensor<T>, AliasedTensor<T>> {
        let placed = self.racy.try_placed(Mode::Exclusive).map_err(Self::new)?;
        Ok(Tensor::new(Strided::of(placed)))
    }

    /// The tensor to read only, if nobody else holds its storage: no clone, no view, no process, no message.
    ///
    /// # Errors
    /// This tensor, as it was, when there is another holder, who might go on writing.
    ///
    /// ```
    /// let weights = shm_core::Tensor::<f32>::full(4, 0.1)?.alias();
    /// let weights = weights.try_freeze().unwrap();
    /// assert_eq!(weights.as_slice(), [0.1; 4]);
    /// # Ok::<(), shm_core::Error>(())
    /// ```
    #[expect(
        clippy::result_large_err,
        reason = "the holder itself comes back, which is no error to be passed far"
    )]
    pub fn try_freeze(self) -> Result<SharedTensor<T>, AliasedTensor<T>> {
        let placed = self.racy.try_placed(Mode::Shared).map_err(Self::new)?;
        Ok(SharedTensor::new(Strided::of(placed)))
    }

    /// The lengths of the dimensions, outermost first; empty for a scalar.
    pub fn shape(&self) -> &[usize] {
        self.racy.geometry().shape()
    }

    /// How many elements lie between neighbours in each dimension.
    pub fn strides(&self) -> &[isize] {
        self.racy.geometry().strides()
    }

    /// Index of the first element in the storage, in elements; not zero for some views.
    pub fn offset(&self) -> usize {
        self.racy.geometry().offset()
    }

    /// How many dimensions there are; 0 for a scalar.
    pub fn ndim(&self) -> usize {
        self.racy.geometry().ndim()
    }

    /// How many elements there are: the product of the shape, 1 for a scalar.
    pub fn numel(&self) -> usize {
        self.racy.geometry().numel()
    }

    /// The same as [`numel`](AliasedTensor::numel).
    pub fn len(&self) -> usize {
        self.numel()
    }

    /// Whether there is no element, as one of the lengths is 0.
    pub fn is_empty(&self) -> bool {
        self.numel() == 0
    }

    /// The element type, as known at run time.
    pub fn dtype(&self) -> Dtype {
        T::DTYPE
    }

    /// Whether the elements lie in row-major order without gaps.
    pub fn is_contiguous(&self) -> bool {
        self.racy.geometry().is_contiguous()
    }

    /// Whether both lie in one block, as views of one tensor do, also after they were sent together.
    pub fn same_storage<U: Element>(&self, other: &AliasedTensor<U>) -> bool {
        let (ours, theirs) = (self.racy.storage(), other.racy.storage());
        ours.id() == theirs.id() && ours.as_ptr() == theirs.as_ptr()
    }

    /// The element at a position, one index for each dimension.
    ///
    /// # Errors
    /// When the position has another number of dimensions than the tensor, or is out of range.
    pub fn load(&self, position: &[usize]) -> Result<T> {
        Ok(self.racy.load(self.racy.index_of(position)?))
    }

    /// Writes the element at a position.
    ///
    /// # Errors
    /// As for [`load`](AliasedTensor::load).
    pub fn store(&self, position: &[usize], value: T) -> Result<()> {
        self.racy.store(self.racy.index_of(position)?, value);
        Ok(())
    }

    /// Copies the elements out, in row-major order, each as it is at some moment meanwhile.
    ///
    /// One atomic access for each element, which the compiler does not merge into wide ones as it does in a plain copy:
    /// for bytes that is many times as slow, for 8-byte elements hardly.
    ///
    /// # Errors
    /// When the slice has another length than the tensor has elements.
    ///
    /// ```
    /// let weights = shm_core::Tensor::arange(0.0, 4.0, 1.0)?.alias();
    /// let mut local = [0.0; 2];
    /// weights.slice(0, 1.., 2)?.copy_to_slice(&mut local)?;
    /// assert_eq!(local, [1.0, 3.0]);
    /// # Ok::<(), shm_core::Error>(())
    /// ```
    pub fn copy_to_slice(&self, to: &mut [T]) -> Result<()> {
        self.expect_length("copied to", to.len())?;
        let mut to = to.iter_mut();
        self.racy.each(|index| {
            if let Some(to) = to.next() {
                *to = self.racy.load(index);
            }
        });
        Ok(())
    }

    /// Overwrites the elements, in row-major order. Others see each of them change at some moment meanwhile.
    ///
    /// Costs as much as [`copy_to_slice`](AliasedTensor::copy_to_slice).
    ///
    /// # Errors
    /// When the slice has another length than the tensor has elements.
    pub fn copy_from_slice(&self, from: &[T]) -> Result<()> {
        self.expect_length("copied from", from.len())?;
        let mut from = from.iter();
        self.racy.each(|index| {
            if let Some(&value) = from.next() {
                self.racy.store(index, value);
            }
        });
        Ok(())
    }

    /// The elements in row-major order, copied out of the arena, each as it is at some moment meanwhile.
    pub fn to_vec(&self) -> Vec<T> {
        let mut elements = Vec::with_capacity(self.numel());
        self.racy.each(|index| elements.push(self.racy.load(index)));
        elements
    }

    /// A copy of the elements, contiguous and exclusive, in a block of `arena`, each as it is at some moment meanwhile.
    ///
    /// # Errors
    /// When the arena has no room for it.
    pub fn copy_into(&self, arena: &Arena) -> Result<Tensor<T>> {
        self.racy.copy_into(arena)
    }

    /// Writes the same value to all elements.
    pub fn fill(&self, value: T) {
        self.racy.each(|index| self.racy.store(index, value));
    }

    /// Makes each element what `f` returns for it and its operand, in row-major order: the step of Hogwild.
    ///
    /// Each element is loaded, computed and stored, so what others store in between is lost; that is what makes it
    /// cheap.
    ///
    /// # Errors
    /// When the slice has another length than the tensor has elements.
    ///
    /// ```
    /// let weights = shm_core::Tensor::<f32>::full(3, 1.0)?.alias();
    /// let gradient = [0.5, 0.0, -0.5];
    /// weights.apply(&gradient, |weight, slope| weight - 0.1 * slope)?;
    /// assert_eq!(weights.to_vec(), [0.95, 1.0, 1.05]);
    /// # Ok::<(), shm_core::Error>(())
    /// ```
    pub fn apply(&self, operands: &[T], mut f: impl FnMut(T, T) -> T) -> Result<()> {
        self.expect_length("changed by", operands.len())?;
        let mut operands = operands.iter();
        self.racy.each(|index| {
            if let Some(&operand) = operands.next() {
                self.racy.store(index, f(self.racy.load(index), operand));
            }
        });
        Ok(())
    }

    /// All elements, in row-major order, to read without atomics.
    ///
    /// # Errors
    /// When the tensor is not [contiguous](AliasedTensor::is_contiguous).
    ///
    /// # Safety
    /// From this call until the last use of the slice, nobody writes any of its elements: no thread of this process and
    /// no other process, through no holder of the storage, whether by [`store`](AliasedTensor::store) or otherwise. And
    /// what others wrote before is finished in the sense of the language: a message, a barrier or a lock lies between
    /// their writes and this call.
    ///
    /// ```
    /// let weights = shm_core::Tensor::<f32>::full(3, 1.0)?.alias();
    /// // SAFETY: no clone was made, so nobody else can write.
    /// let sum: f32 = unsafe { weights.as_slice() }?.iter().sum();
    /// assert_eq!(sum, 3.0);
    /// # Ok::<(), shm_core::Error>(())
    /// ```
    pub unsafe fn as_slice(&self) -> Result<&[T]> {
        // SAFETY: the caller keeps the same contract.
        unsafe { self.racy.slice() }
    }

    /// All elements, in row-major order, to write without atomics.
    ///
    /// # Errors
    /// When the tensor is not [contiguous](AliasedTensor::is_contiguous).
    ///
    /// # Safety
    /// From this call until the last use of the slice, nobody else reads or writes any of its elements: no thread of
    /// this process and no other process, through no holder of the storage. A message, a barrier or a lock lies between
    /// what others did before and this call, and between the last use of the slice and what they do after it.
    pub unsafe fn as_mut_slice(&mut self) -> Result<&mut [T]> {
        // SAFETY: the caller keeps the same contract.
        unsafe { self.racy.slice_mut() }
    }

    view_methods!();

    fn view(&self, geometry: impl FnOnce(&Geometry) -> Result<Geometry>) -> Result<Self> {
        let geometry = geometry(self.racy.geometry())?;
        self.racy.view(geometry).map(Self::new)
    }

    #[cfg(feature = "dlpack")]
    pub(crate) fn parts(&self) -> (&crate::storage::Storage, &Geometry) {
        (self.racy.storage(), self.racy.geometry())
    }

    fn expect_length(&self, what: &str, length: usize) -> Result<()> {
        if length == self.numel() {
            return Ok(());
        }
        Err(Error::shape(format!(
            "an aliased tensor of shape {:?} was to be {what} a slice of {length} elements; it takes exactly {}",
            self.shape(),
            self.numel()
        )))
    }
}

/// What one atomic can do in a single step, so that nothing others do to the element is lost.
impl<T: AtomicElement> AliasedTensor<T> {
    /// Writes the element at a position; returns what was there.
    ///
    /// # Errors
    /// As for [`load`](AliasedTensor::load).
    pub fn swap(&self, position: &[usize], value: T) -> Result<T> {
        let word = self.word(position)?;
        Ok(bits_to(word.exchange(bits_of(value))))
    }

    /// Writes the element at a position if it has the bits of `current`; says whether it had, and what was there.
    ///
    /// Bits are compared, not numbers: two NaNs may be equal, and `0.0` is not `-0.0`.
    ///
    /// # Errors
    /// The outer one is as for [`load`](AliasedTensor::load); the inner one holds the element that was not `current`.
    ///
    /// ```
    /// let flag = shm_core::Tensor::<u8>::zeros(())?.alias();
    /// assert_eq!(flag.compare_exchange(&[], 0, 7)?, Ok(0));
    /// assert_eq!(flag.compare_exchange(&[], 0, 9)?, Err(7));
    /// # Ok::<(), shm_core::Error>(())
    /// ```
    pub fn compare_exchange(
        &self,
        position: &[usize],
        current: T,
        value: T,
    ) -> Result<std::result::Result<T, T>> {
        let outcome = self
            .word(position)?
            .replace(bits_of(current), bits_of(value));
        Ok(outcome.map(bits_to).map_err(bits_to))
    }

    /// Makes the element at a position what `f` returns for it; returns what was there. Nothing is lost: when somebody
    /// else was faster, `f` is asked again.
    ///
    /// # Errors
    /// As for [`load`](AliasedTensor::load).
    ///
    /// ```
    /// let total = shm_core::Tensor::<f64>::zeros(())?.alias();
    /// total.fetch_update(&[], |sum| sum + 2.5)?;
    /// assert_eq!(total.load(&[])?, 2.5);
    /// # Ok::<(), shm_core::Error>(())
    /// ```
    pub fn fetch_update(&self, position: &[usize], f: impl FnMut(T) -> T) -> Result<T> {
        Ok(update(self.word(position)?, f))
    }

    fn word(&self, position: &[usize]) -> Result<&T::Word> {
        Ok(self.racy.word::<T>(self.racy.index_of(position)?))
    }
}

impl<T: Addend> AliasedTensor<T> {
    /// Adds to the element at a position; returns what was there. Integers go around the end of their type if need be;
    /// what others add meanwhile is not lost, also of floats, whose sum depends on the order as ever.
    ///
    /// # Errors
    /// As for [`load`](AliasedTensor::load).
    ///
    /// ```
    /// let counts = shm_core::Tensor::<u8>::full(2, 254)?.alias();
    /// assert_eq!(counts.fetch_add(&[0], 3)?, 254);
    /// assert_eq!(counts.to_vec(), [1, 254]);
    /// let gradients = shm_core::Tensor::<f32>::zeros(2)?.alias();
    /// gradients.fetch_add(&[1], -0.5)?;
    /// assert_eq!(gradients.to_vec(), [0.0, -0.5]);
    /// # Ok::<(), shm_core::Error>(())
    /// ```
    pub fn fetch_add(&self, position: &[usize], value: T) -> Result<T> {
        Ok(T::add_in(self.word(position)?, value))
    }
}

impl<T: Integer> AliasedTensor<T> {
    /// Subtracts from the element at a position, around the end of its type if need be; returns what was there.
    ///
    /// # Errors
    /// As for [`load`](AliasedTensor::load).
    pub fn fetch_sub(&self, position: &[usize], value: T) -> Result<T> {
        Ok(bits_to(self.word(position)?.sub(bits_of(value))))
    }

    /// Makes the element at a position the larger of it and `value`; returns what was there.
    ///
    /// # Errors
    /// As for [`load`](AliasedTensor::load).
    pub fn fetch_max(&self, position: &[usize], value: T) -> Result<T> {
        self.fetch_update(position, |element| element.max(value))
    }

    /// Makes the element at a position the smaller of it and `value`; returns what was there.
    ///
    /// # Errors
    /// As for [`load`](AliasedTensor::load).
    pub fn fetch_min(&self, position: &[usize], value: T) -> Result<T> {
        self.fetch_update(position, |element| element.min(value))
    }
}

impl<T> Clone for AliasedTensor<T> {
    fn clone(&self) -> Self {
        AliasedTensor {
            racy: self.racy.clone(),
            element: PhantomData,
        }
    }
}

impl<T: Element> fmt::Debug for AliasedTensor<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        write!(f, "AliasedTensor<{}>{:?} ", T::DTYPE, self.shape())?;
        let mut list = f.debug_list();
        let shown = self.racy.geometry().indices().take(SHOWN);
        list.entries(shown.map(|index| self.racy.load::<T>(index)));
        if self.numel() > SHOWN {
            list.finish_non_exhaustive()
        } else {
            list.finish()
        }
    }
}

/// Works only as part of a message, which carries a handle; elsewhere it is an error that says so.
impl<T: Element> Serialize for AliasedTensor<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        message::serialize_tensor(self.racy.storage(), self.racy.geometry(), false, serializer)
    }
}

/// Works only as part of a message; the block must be aliased and hold elements of `T`.
impl<'de, T: Element> Deserialize<'de> for AliasedTensor<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        message::deserialize_tensor(deserializer, |storage, geometry| {
            let racy = Racy::new::<T>(storage, *geometry).map_err(message::refuse)?;
            Ok(Self::new(racy))
        })
    }
}

#[cfg(test)]
mod tests;
