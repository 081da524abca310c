//! A geometry placed in a storage: the one file that turns offsets into references to elements.
//!
//! Why the references are sound. A `Placed` is *exclusive* or *shared*, and the block's header says the same (its mode):
//!
//! - At most one exclusive `Placed` of a storage exists, in all processes together. It comes from a block just allocated,
//!   from a message that carried it (the wire takes each table entry once, and the sender's was gone before the message
//!   was published), or from thawing the only holder of a shared one. It can be moved but neither cloned nor split, and no
//!   shared one exists beside it, as only consuming it makes the first shared one. So `&mut Placed` means: no other
//!   reference to an element exists anywhere, and `&mut [T]` may. While a message is being written the wire holds a second
//!   handle of the *storage* (to see whether the sender's is gone), but it never touches the elements.
//! - Of shared ones there may be any number, and none of them gives anything but `&[T]`.
//! - An exclusive geometry never names an element twice, so walking over it to write is no different from a slice.
//!
//! Elements are of a type that is valid for all bit patterns ([`Element`]), and the storage hands out only memory that has
//! been written or zeroed by the system, so reading is sound whatever is there.

use crate::arena::Arena;
use crate::error::{Error, Result};
use crate::line::Mode;
use crate::storage::Storage;
use crate::tensor::dtype::Dtype;
use crate::tensor::element::Element;
use crate::tensor::geometry::Geometry;

/// Elements in a storage: what all tensor types hold.
///
/// Invariants, beyond those at the top of this file:
/// - `geometry` has passed `check` against `storage`, whose address and length never change;
/// - an exclusive geometry does not overlap itself.
///
/// Not `Clone`, on purpose.
#[derive(Debug)]
pub(crate) struct Placed {
    storage: Storage,
    geometry: Geometry,
    exclusive: bool,
}

impl Placed {
    /// A fresh block of the arena with room for `geometry`, exclusive; the elements are whatever was there.
    // Inlined, like what follows on it: a tensor has 200 bytes, and to move them from caller to caller cost a third of
    // an allocation.
    #[inline(always)]
    pub(crate) fn allocate(arena: &Arena, geometry: Geometry) -> Result<Placed> {
        debug_assert!(geometry.offset() == 0 && geometry.has_packed_strides());
        let storage = Storage::allocate(arena, geometry.packed_bytes(), Mode::Exclusive)?;
        debug_assert!(check_place(&storage, &geometry).is_ok());
        // The invariants hold without a closer look: packed elements from the storage's start take as many bytes as it
        // was made with, name none twice, and blocks lie at multiples of a line. The block was made just now, in this
        // mode, and nobody else has its handle.
        Ok(Placed {
            storage,
            geometry,
            exclusive: true,
        })
    }

    /// Whether these are such that [`exclusive`](Self::exclusive) may be called. Apart from it, since a result with a
    /// `Placed` in it would be moved once more.
    ///
    /// # Errors
    /// When the storage is in another mode, or the geometry does not fit it or overlaps itself.
    #[inline]
    pub(crate) fn check_exclusive(storage: &Storage, geometry: &Geometry) -> Result<()> {
        check_mode(storage, Mode::Exclusive)?;
        check_place(storage, geometry)?;
        check_overlap(geometry)
    }

    /// The exclusive holder of a storage.
    ///
    /// # Safety
    /// Both have passed `check_exclusive`. No other `Placed` of this storage exists in any process, nor will one be made but
    /// from this.
    #[inline]
    pub(crate) unsafe fn exclusive(storage: Storage, geometry: &Geometry) -> Placed {
        Placed {
            storage,
            geometry: *geometry,
            exclusive: true,
        }
    }

    /// Whether a storage is one that is only read.
    ///
    /// # Errors
    /// When it is in another mode.
    #[inline]
    pub(crate) fn check_mode_shared(storage: &Storage) -> Result<()> {
        check_mode(storage, Mode::Shared)
    }

    /// Whether these are such that [`shared`](Self::shared) may be called.
    ///
    /// # Errors
    /// When the storage is in another mode, or the geometry does not fit it.
    #[inline]
    pub(crate) fn check_shared(storage: &Storage, geometry: &Geometry) -> Result<()> {
        check_mode(storage, Mode::Shared)?;
        check_place(storage, geometry)
    }

    /// One of the holders of a storage that is only read.
    ///
    /// # Safety
    /// Both have passed `check_shared`. No exclusive `Placed` of this storage exists in any process.
    #[inline]
    pub(crate) unsafe fn shared(storage: Storage, geometry: &Geometry) -> Placed {
        Placed {
            storage,
            geometry: *geometry,
            exclusive: false,
        }
    }

    /// Whether another geometry over the same storage keeps the invariants.
    #[inline]
    fn check(&self, geometry: &Geometry) -> Result<()> {
        check_place(&self.storage, geometry)?;
        if self.exclusive {
            check_overlap(geometry)?;
        }
        Ok(())
    }

    pub(crate) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    pub(crate) fn storage(&self) -> &Storage {
        &self.storage
    }

    pub(crate) fn is_exclusive(&self) -> bool {
        self.exclusive
    }

    /// Sees the same storage through another geometry from now on.
    pub(crate) fn set_geometry(&mut self, geometry: Geometry) -> Result<()> {
        self.check(&geometry)?;
        self.geometry = geometry;
        Ok(())
    }

    /// One more holder of the same storage, seen through `geometry`.
    ///
    /// # Errors
    /// When this one is exclusive, or the geometry does not fit.
    pub(crate) fn share(&self, geometry: Geometry) -> Result<Placed> {
        if self.exclusive {
            return Err(Error::mode(
                "an exclusive tensor was to be held a second time; freeze() it first, or copy it"
                    .to_string(),
            ));
        }
        self.check(&geometry)?;
        Ok(Placed {
            storage: self.storage.clone(),
            geometry,
            exclusive: false,
        })
    }

    /// One more holder that sees the same.
    ///
    /// # Safety
    /// This one is shared.
    pub(crate) unsafe fn clone_shared(&self) -> Placed {
        debug_assert!(!self.exclusive, "an exclusive storage was to be held twice");
        Placed {
            storage: self.storage.clone(),
            geometry: self.geometry,
            exclusive: false,
        }
    }

    /// Gives up writing, for all who will ever hold this storage.
    pub(crate) fn freeze(mut self) -> Placed {
        if self.exclusive {
            self.storage.freeze();
            self.exclusive = false;
        }
        self
    }

    /// Becomes exclusive if nobody else, in any process or message, holds this storage.
    #[expect(
        clippy::result_large_err,
        reason = "the holder itself comes back, which is no error to be passed far"
    )]
    pub(crate) fn try_thaw(mut self) -> Result<Placed, Placed> {
        // The storage answers for all holders: a count of one for all processes and messages, and one handle in this
        // process, which is ours and is not cloned meanwhile, as `self` is here by value.
        if !self.exclusive {
            if self.geometry.may_overlap() || !self.storage.try_thaw() {
                return Err(self);
            }
            self.exclusive = true;
        }
        Ok(self)
    }

    /// Takes an exclusive one apart, for its storage to be held in another way.
    pub(super) fn into_parts(self) -> (Storage, Geometry) {
        debug_assert!(self.exclusive, "a shared storage was to be taken over");
        (self.storage, self.geometry)
    }

    /// Gives up a shared one for its storage, whose reference goes elsewhere.
    pub(super) fn into_shared_storage(self) -> Storage {
        debug_assert!(
            !self.exclusive,
            "an exclusive storage was to be given away as shared"
        );
        self.storage
    }

    /// The exclusive or the first shared holder of a storage that was aliased, if nobody else, in any process or
    /// message, holds it; else its parts again.
    #[expect(
        clippy::result_large_err,
        reason = "the holder itself comes back, which is no error to be passed far"
    )]
    pub(super) fn reclaim(
        storage: Storage,
        geometry: Geometry,
        mode: Mode,
    ) -> Result<Placed, (Storage, Geometry)> {
        let exclusive = mode == Mode::Exclusive;
        // As in `try_thaw`: ours is the only handle, and it is here by value.
        if (exclusive && geometry.may_overlap()) || !storage.try_thaw() {
            return Err((storage, geometry));
        }
        if !exclusive {
            storage.freeze();
        }
        Ok(Placed {
            storage,
            geometry,
            exclusive,
        })
    }

    /// An error that names both types unless the elements are of type `T`.
    pub(crate) fn expect<T: Element>(&self) -> Result<()> {
        check_dtype(T::DTYPE, self.geometry.dtype())
    }

    /// The elements, if they are of type `T` and lie in order without gaps.
    pub(crate) fn slice<T: Element>(&self) -> Result<&[T]> {
        self.expect::<T>()?;
        self.expect_contiguous()?;
        let first = self.first::<T>();
        // SAFETY: the geometry is contiguous and has passed `check`, so `numel` elements of `T` lie from `first` within the
        // storage, aligned, at most isize::MAX bytes. They are initialised and valid (see the top). While `self` is borrowed
        // nobody writes them: an exclusive `Placed` is written only through `&mut self`, a shared one by nobody.
        Ok(unsafe { std::slice::from_raw_parts(first, self.geometry.numel()) })
    }

    /// The elements to write, if this is exclusive, and as for `slice`.
    pub(crate) fn slice_mut<T: Element>(&mut self) -> Result<&mut [T]> {
        self.expect::<T>()?;
        self.expect_exclusive()?;
        self.expect_contiguous()?;
        let first = self.first::<T>();
        // SAFETY: bounds, alignment and validity as in `slice`. This is the only `Placed` of the storage (see the top) and
        // it is borrowed mutably, so no other reference to the elements exists for as long as this one.
        Ok(unsafe { std::slice::from_raw_parts_mut(first, self.geometry.numel()) })
    }

    /// The elements as bytes, whatever their type, if they lie in order without gaps.
    pub(crate) fn bytes(&self) -> Result<&[u8]> {
        self.expect_contiguous()?;
        let first = self.first_byte();
        // SAFETY: as in `slice`; elements have no padding, so each of their bytes is initialised.
        Ok(unsafe { std::slice::from_raw_parts(first, self.geometry.packed_bytes()) })
    }

    /// The bytes of the elements to write, if this is exclusive, and as for `bytes`.
    pub(crate) fn bytes_mut(&mut self) -> Result<&mut [u8]> {
        self.expect_exclusive()?;
        self.expect_contiguous()?;
        let first = self.first_byte();
        // SAFETY: as in `slice_mut` and `bytes`; whatever bytes are written, the elements are valid.
        Ok(unsafe { std::slice::from_raw_parts_mut(first, self.geometry.packed_bytes()) })
    }

    /// The part of the storage from the lowest to the highest element, what lies between them included.
    #[cfg(any(feature = "candle", feature = "ndarray"))]
    pub(crate) fn span<T: Element>(&self) -> Result<&[T]> {
        self.expect::<T>()?;
        let count = self.geometry.byte_span().len() / size_of::<T>();
        let first = self.first::<T>();
        // SAFETY: the span lies in the storage by `check`, and all of the storage is initialised and follows the rules
        // at the top, not only the elements. Else as in `slice`.
        Ok(unsafe { std::slice::from_raw_parts(first, count) })
    }

    /// As `span`, to write, if this is exclusive.
    #[cfg(feature = "ndarray")]
    pub(crate) fn span_mut<T: Element>(&mut self) -> Result<&mut [T]> {
        self.expect::<T>()?;
        self.expect_exclusive()?;
        let count = self.geometry.byte_span().len() / size_of::<T>();
        let first = self.first::<T>();
        // SAFETY: bounds as in `span`, exclusive as in `slice_mut`: nobody else reaches any part of the storage.
        Ok(unsafe { std::slice::from_raw_parts_mut(first, count) })
    }

    /// The bytes of `span`, whatever the type.
    pub(crate) fn span_bytes(&self) -> &[u8] {
        let first = self.first_byte();
        // SAFETY: as in `span`.
        unsafe { std::slice::from_raw_parts(first, self.geometry.byte_span().len()) }
    }

    /// Where the element at `index` in the storage lies.
    ///
    /// # Safety
    /// `index` is one of `self.geometry().indices()` (which `index_of` also returns), and the dtype is that of `T`.
    pub(super) unsafe fn element<T: Element>(&self, index: usize) -> *mut T {
        // SAFETY: the caller names an element, and all of them lie within the storage by `check`.
        unsafe { self.storage.as_ptr().cast::<T>().add(index) }
    }

    /// The element at `index` in the storage.
    ///
    /// # Safety
    /// As for `element`.
    pub(crate) unsafe fn read<T: Element>(&self, index: usize) -> T {
        // SAFETY: the caller keeps the same contract.
        let at = unsafe { self.element::<T>(index) };
        // SAFETY: aligned and initialised (see the top); nobody writes while `self` is borrowed, as in `slice`.
        unsafe { at.read() }
    }

    /// Writes the element at `position`.
    pub(crate) fn set<T: Element>(&mut self, position: &[usize], value: T) -> Result<()> {
        self.expect::<T>()?;
        self.expect_exclusive()?;
        let index = self.geometry.index_of(position)?;
        // SAFETY: `index_of` returns the index of an element, of type `T` as just checked; this is exclusive.
        unsafe { self.write(index, value) };
        Ok(())
    }

    /// The element at `position`.
    pub(crate) fn get<T: Element>(&self, position: &[usize]) -> Result<T> {
        self.expect::<T>()?;
        let index = self.geometry.index_of(position)?;
        // SAFETY: `index_of` returns the index of an element, of type `T` as just checked.
        Ok(unsafe { self.read(index) })
    }

    /// Writes the same value to each element.
    pub(crate) fn fill<T: Element>(&mut self, value: T) -> Result<()> {
        if self.geometry.is_contiguous() {
            self.slice_mut::<T>()?.fill(value);
            return Ok(());
        }
        self.expect::<T>()?;
        self.expect_exclusive()?;
        let geometry = self.geometry;
        for index in geometry.indices() {
            // SAFETY: an index of this geometry, of type `T` and exclusive as just checked.
            unsafe { self.write(index, value) };
        }
        Ok(())
    }

    /// Writes the element at `index` in the storage.
    ///
    /// # Safety
    /// As for `element`, and this is exclusive.
    unsafe fn write<T: Element>(&mut self, index: usize, value: T) {
        // SAFETY: the caller keeps the same contract.
        let at = unsafe { self.element::<T>(index) };
        // SAFETY: aligned and in bounds; as the only `Placed` of the storage is borrowed mutably, nobody else looks.
        unsafe { at.write(value) }
    }

    /// Where the first element of a contiguous geometry lies.
    fn first<T: Element>(&self) -> *mut T {
        self.first_byte().cast()
    }

    fn first_byte(&self) -> *mut u8 {
        let start = self.geometry.byte_span().start;
        // SAFETY: `check` made sure that the span, which begins here, lies within the storage.
        unsafe { self.storage.as_ptr().add(start) }
    }

    fn expect_exclusive(&self) -> Result<()> {
        if self.exclusive {
            return Ok(());
        }
        Err(Error::mode(
            "a shared tensor was to be written, but others may read it; try_thaw() it (for a sole holder), or copy it"
                .to_string(),
        ))
    }

    fn expect_contiguous(&self) -> Result<()> {
        if self.geometry.is_contiguous() {
            return Ok(());
        }
        Err(Error::shape(format!(
            "a tensor of shape {:?} and strides {:?} is not one slice of elements; use iter() or get(), or make it contiguous",
            self.geometry.shape(),
            self.geometry.strides()
        )))
    }
}

pub(super) fn check_dtype(expected: Dtype, found: Dtype) -> Result<()> {
    if expected == found {
        Ok(())
    } else {
        Err(Error::dtype(found.name(), expected.name()))
    }
}

/// Whether the elements lie in the storage, and are aligned.
#[inline]
pub(super) fn check_place(storage: &Storage, geometry: &Geometry) -> Result<()> {
    // A null pointer has no lowest bit and gets an alignment of 0, which is refused.
    let align = 1_usize
        .checked_shl(storage.as_ptr().addr().trailing_zeros())
        .unwrap_or(0);
    geometry.check(storage.len(), align)
}

#[inline]
fn check_overlap(geometry: &Geometry) -> Result<()> {
    if geometry.may_overlap() {
        return Err(Error::shape(format!(
            "the strides {:?} of shape {:?} name some elements more than once; such a tensor can be shared for reading \
             but not be exclusive",
            geometry.strides(),
            geometry.shape()
        )));
    }
    Ok(())
}

#[inline]
pub(super) fn check_mode(storage: &Storage, wanted: Mode) -> Result<()> {
    let found = storage.mode();
    if found == wanted {
        return Ok(());
    }
    Err(Error::mode(format!(
        "a tensor in mode {wanted:?} was expected, but its block is in mode {found:?}; receive a Tensor where one was sent, a \
         SharedTensor or an AliasedTensor where that was, and a DynTensor for either of the first two"
    )))
}
