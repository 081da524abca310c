//! A geometry placed in a storage that many write at once: the counterpart of `placed` for aliased tensors, and the one
//! file that reaches their elements.
//!
//! Why this is sound. The block's header says *aliased*, and while it does, no `Placed` of the storage exists, hence no
//! `&[T]` and no `&mut [T]` but those that the holder of an aliased tensor makes by `unsafe` and answers for. All else
//! goes through a slice of atomics over the storage. Two views of one storage have elements of one size, as they all
//! descend from one `Tensor<T>` (the wire keeps the element type of each handle), so atomics of different sizes never
//! meet. The mode changes only when a sole holder, in all processes and messages, gives it back.

use crate::arena::Arena;
use crate::error::{Error, Result};
use crate::line::Mode;
use crate::storage::Storage;
use crate::tensor::atomic::{AtomicElement, Word, cast, join, split};
use crate::tensor::create;
use crate::tensor::element::Element;
use crate::tensor::exclusive::Tensor;
use crate::tensor::geometry::Geometry;
use crate::tensor::placed::{self, Placed};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

/// Elements in a storage that any holder may write.
///
/// Invariants, beyond those at the top of this file: `geometry` has passed `check` against `storage`, and its dtype is
/// that of the `T` with which the methods are called.
#[derive(Clone, Debug)]
pub(super) struct Racy {
    storage: Storage,
    geometry: Geometry,
}

impl Racy {
    /// One of the holders of a storage that is aliased.
    ///
    /// # Errors
    /// When the storage is in another mode, or the geometry does not fit it or is of another element type.
    pub(super) fn new<T: Element>(storage: Storage, geometry: Geometry) -> Result<Racy> {
        placed::check_mode(&storage, Mode::Aliased)?;
        placed::check_dtype(T::DTYPE, geometry.dtype())?;
        placed::check_place(&storage, &geometry)?;
        Ok(Racy { storage, geometry })
    }

    /// Lets others in: what was exclusive is aliased from now on.
    pub(super) fn alias(placed: Placed) -> Racy {
        let (storage, geometry) = placed.into_parts();
        storage.set_mode(Mode::Aliased);
        Racy { storage, geometry }
    }

    /// Becomes exclusive, or frozen, if nobody else, in any process or message, holds this storage.
    #[expect(
        clippy::result_large_err,
        reason = "the holder itself comes back, which is no error to be passed far"
    )]
    pub(super) fn try_placed(self, mode: Mode) -> Result<Placed, Racy> {
        let Racy { storage, geometry } = self;
        Placed::reclaim(storage, geometry, mode)
            .map_err(|(storage, geometry)| Racy { storage, geometry })
    }

    pub(super) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    pub(super) fn storage(&self) -> &Storage {
        &self.storage
    }

    /// One more holder of the same storage, seen through another geometry.
    pub(super) fn view(&self, geometry: Geometry) -> Result<Racy> {
        placed::check_place(&self.storage, &geometry)?;
        Ok(Racy {
            storage: self.storage.clone(),
            geometry,
        })
    }

    /// The whole storage as atomics.
    #[inline]
    fn words<A: Word>(&self) -> &[A] {
        let count = self.storage.len() / size_of::<A>();
        let first = self.storage.as_ptr().cast::<A>();
        // SAFETY: `count` words lie in the storage, which begins at a multiple of 64 bytes and lives while `self` does;
        // its bytes are initialised, and every bit pattern is a valid integer. Atomics may be shared with whoever
        // writes them, and others touch these elements by atomics of the same size only, or by `unsafe` that answers
        // for it (see the top).
        unsafe { std::slice::from_raw_parts(first, count) }
    }

    /// The atomic of the element at an index of the storage.
    #[inline]
    pub(super) fn word<T: AtomicElement>(&self, index: usize) -> &T::Word {
        &self.words::<T::Word>()[index]
    }

    /// The index in the storage of the element at a position.
    #[inline]
    pub(super) fn index_of(&self, position: &[usize]) -> Result<usize> {
        self.geometry.index_of(position)
    }

    /// The element at an index of the storage.
    #[inline]
    pub(super) fn load<T: Element>(&self, index: usize) -> T {
        // The match is over a constant; one arm is left of it.
        match size_of::<T>() {
            1 => cast(self.words::<AtomicU8>()[index].get()),
            2 => cast(self.words::<AtomicU16>()[index].get()),
            4 => cast(self.words::<AtomicU32>()[index].get()),
            8 => cast(self.words::<AtomicU64>()[index].get()),
            _ => {
                let words = self.words::<AtomicU64>();
                join([words[2 * index].get(), words[2 * index + 1].get()])
            }
        }
    }

    /// Writes the element at an index of the storage.
    #[inline]
    pub(super) fn store<T: Element>(&self, index: usize, value: T) {
        match size_of::<T>() {
            1 => self.words::<AtomicU8>()[index].put(cast(value)),
            2 => self.words::<AtomicU16>()[index].put(cast(value)),
            4 => self.words::<AtomicU32>()[index].put(cast(value)),
            8 => self.words::<AtomicU64>()[index].put(cast(value)),
            _ => {
                let words = self.words::<AtomicU64>();
                let [first, second] = split(value);
                words[2 * index].put(first);
                words[2 * index + 1].put(second);
            }
        }
    }

    /// Calls `f` with the index of each element, in row-major order.
    pub(super) fn each(&self, f: impl FnMut(usize)) {
        if self.geometry.is_contiguous() {
            let first = self.geometry.offset();
            (first..first + self.geometry.numel()).for_each(f);
        } else {
            self.geometry.indices().for_each(f);
        }
    }

    /// A copy of the elements, each as it was at some moment, in a block of its own.
    pub(super) fn copy_into<T: Element>(&self, arena: &Arena) -> Result<Tensor<T>> {
        let indices = self.geometry.indices();
        create::from_elements(
            arena,
            self.geometry.shape(),
            indices.map(|index| self.load(index)),
        )
    }

    /// The elements as a slice.
    ///
    /// # Errors
    /// When they are not contiguous.
    ///
    /// # Safety
    /// As for [`AliasedTensor::as_slice`](crate::AliasedTensor::as_slice).
    pub(super) unsafe fn slice<T: Element>(&self) -> Result<&[T]> {
        let first = self.first::<T>()?;
        // SAFETY: contiguous and checked, so `numel` elements lie from `first` within the storage, aligned and
        // initialised; the caller sees to it that nobody writes them meanwhile.
        Ok(unsafe { std::slice::from_raw_parts(first, self.geometry.numel()) })
    }

    /// The elements as a slice to write.
    ///
    /// # Errors
    /// When they are not contiguous.
    ///
    /// # Safety
    /// As for [`AliasedTensor::as_mut_slice`](crate::AliasedTensor::as_mut_slice).
    pub(super) unsafe fn slice_mut<T: Element>(&mut self) -> Result<&mut [T]> {
        let first = self.first::<T>()?;
        // SAFETY: bounds as in `slice`; the caller sees to it that nobody else touches the elements meanwhile. Being
        // contiguous, the geometry names no element twice.
        Ok(unsafe { std::slice::from_raw_parts_mut(first, self.geometry.numel()) })
    }

    fn first<T: Element>(&self) -> Result<*mut T> {
        if !self.geometry.is_contiguous() {
            return Err(Error::shape(format!(
                "an aliased tensor of shape {:?} and strides {:?} is not one slice of elements; use load() and store(), or \
                 copy_to_slice() and copy_from_slice()",
                self.geometry.shape(),
                self.geometry.strides()
            )));
        }
        let start = self.geometry.byte_span().start;
        // SAFETY: `check_place` made sure that the span, which begins here, lies within the storage.
        let first = unsafe { self.storage.as_ptr().add(start) };
        Ok(first.cast())
    }
}

/// Changes an element until nobody came between; returns what was there before.
pub(super) fn update<T: AtomicElement>(word: &T::Word, mut f: impl FnMut(T) -> T) -> T {
    let mut old = word.get();
    loop {
        let value: T = bits_to(old);
        match word.replace(old, bits_of(f(value))) {
            Ok(_) => return value,
            Err(other) => old = other,
        }
    }
}

/// An element as the integer of its atomic.
pub(super) fn bits_of<T: AtomicElement>(value: T) -> <T::Word as Word>::Bits {
    cast(value)
}

/// The element that such an integer is.
pub(super) fn bits_to<T: AtomicElement>(bits: <T::Word as Word>::Bits) -> T {
    cast(bits)
}
