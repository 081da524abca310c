//! What a tensor is to its readers, exclusive or shared.

use crate::arena::Arena;
use crate::error::Result;
use crate::tensor::create;
use crate::tensor::dtype::Dtype;
use crate::tensor::element::Element;
use crate::tensor::exclusive::Tensor;
use crate::tensor::placed::Placed;
use crate::tensor::walk::Elements;
use std::fmt;
use std::marker::PhantomData;

/// Elements with a shape, to read; [`Tensor`] and [`SharedTensor`](crate::SharedTensor) both are one, as a `Vec` is a slice.
///
/// A function that only reads takes a `&Strided<T>` and works for both:
///
/// ```
/// use shm_core::{Strided, Tensor};
///
/// fn mean(tensor: &Strided<f32>) -> f32 {
///     tensor.iter().sum::<f32>() / tensor.numel() as f32
/// }
///
/// let tensor = Tensor::from_slice([2, 2], &[1.0, 2.0, 3.0, 6.0])?;
/// assert_eq!(mean(&tensor), 3.0);
/// assert_eq!(mean(&tensor.freeze()), 3.0);
/// # Ok::<(), shm_core::Error>(())
/// ```
// Reached only by reference, through the `Deref` of the tensor types. It must never be `Clone` (a clone of what a `Tensor`
// holds would be a second way to its elements), and `Tensor` must never have a `DerefMut` to it (two could be swapped).
pub struct Strided<T> {
    placed: Placed,
    element: PhantomData<T>,
}

impl<T: Element> Strided<T> {
    /// # Errors
    /// When the elements are not of type `T`.
    #[inline]
    pub(crate) fn new(placed: Placed) -> Result<Self> {
        placed.expect::<T>()?;
        Ok(Strided {
            placed,
            element: PhantomData,
        })
    }

    /// Elements that are known to be of type `T`.
    pub(super) fn of(placed: Placed) -> Self {
        debug_assert!(placed.expect::<T>().is_ok(), "elements of another type");
        Strided {
            placed,
            element: PhantomData,
        }
    }

    /// The lengths of the dimensions, outermost first; empty for a scalar.
    pub fn shape(&self) -> &[usize] {
        self.placed.geometry().shape()
    }

    /// How many elements lie between neighbours in each dimension.
    ///
    /// ```
    /// let mut tensor = shm_core::Tensor::<u8>::zeros([2, 3])?;
    /// assert_eq!(tensor.strides(), [3, 1]);
    /// tensor.transpose(0, 1)?;
    /// assert_eq!((tensor.shape(), tensor.strides()), (&[3, 2][..], &[1, 3][..]));
    /// # Ok::<(), shm_core::Error>(())
    /// ```
    pub fn strides(&self) -> &[isize] {
        self.placed.geometry().strides()
    }

    /// Index of the first element in the storage, in elements; not zero for some views.
    pub fn offset(&self) -> usize {
        self.placed.geometry().offset()
    }

    /// How many dimensions there are; 0 for a scalar.
    pub fn ndim(&self) -> usize {
        self.placed.geometry().ndim()
    }

    /// How many elements there are: the product of the shape, 1 for a scalar.
    pub fn numel(&self) -> usize {
        self.placed.geometry().numel()
    }

    /// The same as [`numel`](Strided::numel).
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

    /// Whether the elements lie in row-major order without gaps, so that [`as_slice`](Strided::as_slice) works.
    ///
    /// As in torch, the stride of a dimension of length 1 does not matter.
    pub fn is_contiguous(&self) -> bool {
        self.placed.geometry().is_contiguous()
    }

    /// All elements, in row-major order.
    ///
    /// # Panics
    /// When the tensor is not [contiguous](Strided::is_contiguous), as some views are not. Tensors are when they are made,
    /// and stay so in queues. [`try_as_slice`](Strided::try_as_slice) returns an error instead, and [`iter`](Strided::iter)
    /// always works.
    ///
    /// ```
    /// let tensor = shm_core::Tensor::<i32>::full([2, 2], 7)?;
    /// assert_eq!(tensor.as_slice(), [7; 4]);
    /// # Ok::<(), shm_core::Error>(())
    /// ```
    #[track_caller]
    pub fn as_slice(&self) -> &[T] {
        match self.try_as_slice() {
            Ok(slice) => slice,
            Err(error) => panic!("{error}"),
        }
    }

    /// All elements, in row-major order, if they lie so.
    ///
    /// # Errors
    /// When the tensor is not [contiguous](Strided::is_contiguous).
    pub fn try_as_slice(&self) -> Result<&[T]> {
        self.placed.slice()
    }

    /// The element at a position, one index for each dimension.
    ///
    /// # Errors
    /// When the position has another number of dimensions than the tensor, or is out of range.
    ///
    /// ```
    /// let tensor = shm_core::Tensor::from_slice([2, 3], &[1, 2, 3, 4, 5, 6])?;
    /// assert_eq!(tensor.get(&[1, 0])?, 4);
    /// assert!(tensor.get(&[2, 0]).is_err());
    /// # Ok::<(), shm_core::Error>(())
    /// ```
    pub fn get(&self, position: &[usize]) -> Result<T> {
        self.placed.get(position)
    }

    /// The elements in row-major order, by value; works for all strides.
    pub fn iter(&self) -> Elements<'_, T> {
        Elements::new(self)
    }

    /// The elements in row-major order, copied out of the arena.
    pub fn to_vec(&self) -> Vec<T> {
        match self.try_as_slice() {
            Ok(slice) => slice.to_vec(),
            Err(_) => self.iter().collect(),
        }
    }

    /// A copy of the elements, contiguous and exclusive, in a block of `arena`.
    ///
    /// It is the way from one arena into another, and from a tensor that others hold to one of your own.
    ///
    /// # Errors
    /// When the arena has no room for it.
    ///
    /// ```
    /// use shm_core::{Arena, Tensor};
    ///
    /// let shared = Tensor::<u8>::full([2], 1)?.freeze();
    /// let mut own = shared.copy_into(&Arena::current()?)?;
    /// own.fill(2);
    /// assert_eq!((shared.to_vec(), own.to_vec()), (vec![1, 1], vec![2, 2]));
    /// # Ok::<(), shm_core::Error>(())
    /// ```
    pub fn copy_into(&self, arena: &Arena) -> Result<Tensor<T>> {
        create::from_elements(arena, self.shape(), self.iter())
    }

    /// Whether both lie in one block, as views of one tensor do, also after they were sent together.
    pub fn same_storage<U: Element>(&self, other: &Strided<U>) -> bool {
        let (ours, theirs) = (self.placed.storage(), other.placed.storage());
        // The address tells blocks of two arenas apart, which may have equal offsets and generations.
        ours.id() == theirs.id() && ours.as_ptr() == theirs.as_ptr()
    }

    pub(crate) fn placed(&self) -> &Placed {
        &self.placed
    }

    pub(crate) fn placed_mut(&mut self) -> &mut Placed {
        &mut self.placed
    }

    pub(crate) fn into_placed(self) -> Placed {
        self.placed
    }

    /// The same elements, held otherwise.
    pub(crate) fn map(self, hold: impl FnOnce(Placed) -> Placed) -> Self {
        Strided {
            placed: hold(self.placed),
            element: PhantomData,
        }
    }

    /// The same elements, held once more.
    pub(crate) fn map_ref(&self, hold: impl FnOnce(&Placed) -> Placed) -> Self {
        Strided {
            placed: hold(&self.placed),
            element: PhantomData,
        }
    }

    /// The same elements, held otherwise if that is possible.
    #[expect(
        clippy::result_large_err,
        reason = "the holder itself comes back, which is no error to be passed far"
    )]
    pub(crate) fn try_map(
        self,
        hold: impl FnOnce(Placed) -> Result<Placed, Placed>,
    ) -> Result<Self, Self> {
        let strided = |placed| Strided {
            placed,
            element: PhantomData,
        };
        hold(self.placed).map(strided).map_err(strided)
    }

    /// Writes `name`, the shape and the first few elements.
    pub(crate) fn fmt_named(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        write!(f, "{name}<{}>{:?} ", T::DTYPE, self.shape())?;
        let mut list = f.debug_list();
        list.entries(self.iter().take(SHOWN));
        if self.numel() > SHOWN {
            list.finish_non_exhaustive()
        } else {
            list.finish()
        }
    }
}

impl<T: Element> fmt::Debug for Strided<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_named("Strided", f)
    }
}
