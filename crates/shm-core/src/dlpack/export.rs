//! Handing tensors out: the struct, its shape and strides, and a holder of the storage, in one box that the deleter frees.

use std::ffi::c_void;
use std::ptr::NonNull;

use super::sys::{self, DLDevice, DLManagedTensorVersioned, DLPackVersion, DLTensor};
use super::{ManagedTensor, code_of};
use crate::storage::Storage;
use crate::tensor::{AliasedTensor, DynTensor, Element, Geometry, MAX_DIMS, SharedTensor, Tensor};

/// What an exported tensor needs until it is given back. `H` holds the storage, and so the memory.
struct Export<H> {
    managed: DLManagedTensorVersioned,
    shape: [i64; MAX_DIMS],
    strides: [i64; MAX_DIMS],
    _holder: H,
}

impl<T: Element> Tensor<T> {
    /// Hands the tensor to another library of this process, which may write to it. Needs the feature `dlpack`.
    ///
    /// Nothing is copied; the block is held until the library gives the tensor back.
    pub fn into_dlpack(self) -> ManagedTensor {
        DynTensor::from(self).into_dlpack()
    }
}

impl<T: Element> SharedTensor<T> {
    /// Hands the tensor to another library of this process, to read. Needs the feature `dlpack`.
    ///
    /// Nothing is copied; the block is held until the library gives the tensor back. The tensor says that it is read
    /// only; a library that writes all the same changes what others read, which in theirs, as in this process, may have
    /// any effect.
    pub fn to_dlpack(&self) -> ManagedTensor {
        DynTensor::from(self.clone()).into_dlpack()
    }
}

impl DynTensor {
    /// Hands the tensor to another library of this process: to write if it is exclusive, else to read. Needs the
    /// feature `dlpack`. As [`Tensor::into_dlpack`] and [`SharedTensor::to_dlpack`].
    pub fn into_dlpack(self) -> ManagedTensor {
        let flags = if self.is_exclusive() {
            0
        } else {
            sys::READ_ONLY
        };
        let placed = self.placed();
        let (first, geometry) = (
            first(placed.storage(), placed.geometry()),
            *placed.geometry(),
        );
        export(first, &geometry, flags, self)
    }
}

impl<T: Element> AliasedTensor<T> {
    /// Hands the tensor to another library of this process, to read and write. Needs the feature `dlpack`.
    ///
    /// # Safety
    /// The library's accesses are not atomic. While it, or any of its code that has got the pointer, reads the elements
    /// nobody may write them, and while it writes them nobody may touch them: as for
    /// [`as_slice`](AliasedTensor::as_slice) and [`as_mut_slice`](AliasedTensor::as_mut_slice). Hogwild in torch breaks
    /// this knowingly, outside of what Rust promises anything about.
    pub unsafe fn to_dlpack(&self) -> ManagedTensor {
        let holder = self.clone();
        let (storage, geometry) = self.parts();
        export(first(storage, geometry), geometry, 0, holder)
    }
}

/// The address of the element at position 0; null when there is none.
fn first(storage: &Storage, geometry: &Geometry) -> *mut c_void {
    if geometry.numel() == 0 {
        return std::ptr::null_mut();
    }
    let offset = geometry.offset() * geometry.dtype().size();
    // Element 0 is one of those that the geometry's check found to lie in the storage.
    storage.as_ptr().wrapping_add(offset).cast()
}

fn export<H: 'static>(
    data: *mut c_void,
    geometry: &Geometry,
    flags: u64,
    holder: H,
) -> ManagedTensor {
    let (mut shape, mut strides) = ([0; MAX_DIMS], [0; MAX_DIMS]);
    for (to, &from) in shape.iter_mut().zip(geometry.shape()) {
        *to = from as i64; // at most isize::MAX
    }
    for (to, &from) in strides.iter_mut().zip(geometry.strides()) {
        *to = from as i64;
    }
    let export = Box::into_raw(Box::new(Export {
        managed: DLManagedTensorVersioned {
            version: DLPackVersion {
                major: sys::MAJOR,
                minor: sys::MINOR,
            },
            manager_ctx: std::ptr::null_mut(),
            deleter: Some(delete::<H>),
            flags,
            dl_tensor: DLTensor {
                data,
                device: DLDevice {
                    device_type: sys::CPU,
                    device_id: 0,
                },
                ndim: geometry.ndim() as i32,
                dtype: code_of(geometry.dtype()),
                shape: std::ptr::null_mut(),
                strides: std::ptr::null_mut(),
                byte_offset: 0,
            },
        },
        shape,
        strides,
        _holder: holder,
    }));
    // SAFETY: the box was made just now, and nobody else knows of it yet.
    let made = unsafe { &mut *export };
    made.managed.dl_tensor.shape = made.shape.as_mut_ptr();
    made.managed.dl_tensor.strides = made.strides.as_mut_ptr();
    made.managed.manager_ctx = export.cast();
    // SAFETY: the pointer is to a live box, of which this is a field.
    let managed = unsafe { &raw mut (*export).managed };
    // SAFETY: a field of a box is not at null.
    ManagedTensor(unsafe { NonNull::new_unchecked(managed) })
}

/// Gives an exported tensor back: frees the box, and with it the holder.
///
/// # Safety
/// `tensor` is what `export` made with the same `H`, and is not used again.
unsafe extern "C" fn delete<H>(tensor: *mut DLManagedTensorVersioned) {
    // SAFETY: it is live until now, as the deleter is called once.
    let export = unsafe { (*tensor).manager_ctx };
    // SAFETY: `export` put the pointer of its box here, and nobody else frees it.
    drop(unsafe { Box::from_raw(export.cast::<Export<H>>()) });
}
