//! Tensors handed to other libraries of this process, and taken from them, by the [DLPack] ABI; for the CPU.
//!
//! What is exported is not copied: the consumer reads, or writes, the arena, and the block is held until it calls the
//! deleter, on whichever thread. What is imported lies in memory that other processes cannot reach, so it is copied into
//! the arena, once.
//!
//! A [`Bool`](crate::Bool) is handed out as the byte that it is; libraries that know 0 and 1 only need it written so.
//!
//! Python libraries that know version 1 of DLPack take a pointer to a [`sys::DLManagedTensorVersioned`] in a capsule
//! named `dltensor_versioned`.
//!
//! ```
//! use shm_core::{DynTensor, Tensor};
//!
//! let tensor = Tensor::arange(0, 6, 1)?.into_reshaped([2, 3])?.freeze();
//! let exported = tensor.transpose(0, 1)?.to_dlpack(); // hand `exported.into_raw()` to the other library …
//! assert!(exported.is_read_only());
//! let copy = DynTensor::from_dlpack(&exported)?; // … or take what one hands out
//! assert_eq!(copy.as_slice::<i32>()?, [0, 3, 1, 4, 2, 5]);
//! # Ok::<(), shm_core::Error>(())
//! ```
//!
//! [DLPack]: https://dmlc.github.io/dlpack/latest/

mod export;
mod import;
pub mod sys;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ptr::NonNull;

use crate::error::{Error, ErrorKind, Result};
use crate::tensor::Dtype;
use sys::DLManagedTensorVersioned;

/// A managed tensor of DLPack that this side owns: dropping it gives it back to whoever made it.
pub struct ManagedTensor(NonNull<DLManagedTensorVersioned>);

impl ManagedTensor {
    /// Takes over a managed tensor that another library handed out.
    ///
    /// # Errors
    /// When the pointer is null, or the tensor is of another major version of DLPack; it is given back then.
    ///
    /// # Safety
    /// Unless null, the pointer is to a managed tensor as DLPack specifies it, which the caller owns. Until it is given
    /// back nobody changes the struct, its shape or its strides, and nobody writes to the elements while they are
    /// imported.
    pub unsafe fn from_raw(tensor: *mut DLManagedTensorVersioned) -> Result<Self> {
        let Some(tensor) = NonNull::new(tensor) else {
            return Err(unsupported("the pointer is null".to_owned()));
        };
        let managed = ManagedTensor(tensor);
        let version = managed.get().version;
        if version.major != sys::MAJOR {
            return Err(unsupported(format!(
                "it is of version {}.{}, and this crate knows version {}",
                version.major,
                version.minor,
                sys::MAJOR
            )));
        }
        Ok(managed)
    }

    /// Hands it over to another library, which has to call the deleter when it is done.
    #[must_use = "what is not handed on is never freed"]
    pub fn into_raw(self) -> *mut DLManagedTensorVersioned {
        std::mem::ManuallyDrop::new(self).0.as_ptr()
    }

    /// The struct, still owned by this.
    pub fn as_ptr(&self) -> *mut DLManagedTensorVersioned {
        self.0.as_ptr()
    }

    /// Whether its maker forbids to write to the elements.
    pub fn is_read_only(&self) -> bool {
        self.get().flags & sys::READ_ONLY != 0
    }

    fn get(&self) -> &DLManagedTensorVersioned {
        // SAFETY: by the contract of `from_raw`, or by `export`, the struct is valid and unchanged until it is given
        // back, which happens when `self` is dropped.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for ManagedTensor {
    fn drop(&mut self) {
        if let Some(deleter) = self.get().deleter {
            // SAFETY: this owns the tensor, and is gone afterwards, so the deleter is called once, with its own struct.
            unsafe { deleter(self.0.as_ptr()) };
        }
    }
}

impl fmt::Debug for ManagedTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ManagedTensor").field(self.get()).finish()
    }
}

/// An element type as DLPack writes it.
fn code_of(dtype: Dtype) -> sys::DLDataType {
    let code = match dtype {
        Dtype::I8 | Dtype::I16 | Dtype::I32 | Dtype::I64 => 0,
        Dtype::U8 | Dtype::U16 | Dtype::U32 | Dtype::U64 => 1,
        Dtype::F16 | Dtype::F32 | Dtype::F64 => 2,
        Dtype::Bf16 => 4,
        Dtype::Complex64 | Dtype::Complex128 => 5,
        Dtype::Bool => 6,
    };
    sys::DLDataType {
        code,
        bits: dtype.size() as u8 * 8, // at most 128
        lanes: 1,
    }
}

fn dtype_of(code: sys::DLDataType) -> Result<Dtype> {
    Dtype::ALL
        .into_iter()
        .find(|&dtype| code_of(dtype) == code)
        .ok_or_else(|| {
            unsupported(format!(
                "its elements are of code {} with {} bits in {} lanes, which no element type here is",
                code.code, code.bits, code.lanes
            ))
        })
}

fn unsupported(why: String) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!("a DLPack tensor cannot be taken over: {why}"),
    )
}
