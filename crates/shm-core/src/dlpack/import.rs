//! Taking tensors in: what another library describes is checked, and copied into the arena.

use std::ffi::c_void;

use super::sys::{self, DLTensor};
use super::{ManagedTensor, dtype_of, unsupported};
use crate::arena::Arena;
use crate::error::Result;
use crate::tensor::{DynTensor, Geometry, MAX_DIMS};

impl DynTensor {
    /// A copy, contiguous and exclusive, of a tensor that another library of this process handed out. Needs the feature
    /// `dlpack`.
    ///
    /// Its memory is not the arena's, so other processes could not reach it; hence one copy. Dropping `tensor` afterwards
    /// gives the original back.
    ///
    /// # Errors
    /// When it is not in the CPU's memory, is of an element type that there is none of here, has more than
    /// [`MAX_DIMS`] dimensions or lengths and strides that do not fit the address space, or the arena has no room.
    pub fn from_dlpack(tensor: &ManagedTensor) -> Result<DynTensor> {
        Self::from_dlpack_in(&Arena::current()?, tensor)
    }

    /// As [`from_dlpack`](DynTensor::from_dlpack), in this arena.
    ///
    /// # Errors
    /// As for [`from_dlpack`](DynTensor::from_dlpack).
    pub fn from_dlpack_in(arena: &Arena, tensor: &ManagedTensor) -> Result<DynTensor> {
        let tensor = &tensor.get().dl_tensor;
        let geometry = geometry_of(tensor)?;
        let mut copy = DynTensor::uninit_in(arena, geometry.dtype(), geometry.shape())?;
        if geometry.numel() == 0 {
            return Ok(copy);
        }
        if tensor.data.is_null() {
            return Err(unsupported("its data pointer is null".to_owned()));
        }
        let size = geometry.dtype().size();
        // Where index 0 of the geometry would be. Only addresses of elements are read, and those are in the memory.
        let base = tensor
            .data
            .cast::<u8>()
            .wrapping_add(tensor.byte_offset as usize)
            .wrapping_sub(geometry.offset() * size);
        let bytes = copy.as_bytes_mut()?;
        if geometry.is_contiguous() {
            let from = base.wrapping_add(geometry.byte_span().start);
            // SAFETY: the maker says that the elements lie here, packed; `bytes` is a block of our own of that length.
            unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
            return Ok(copy);
        }
        for (to, index) in bytes.chunks_exact_mut(size).zip(geometry.indices()) {
            let from = base.wrapping_add(index * size);
            // SAFETY: the maker says that this element lies here; `to` is of its size and our own.
            unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), size) };
        }
        Ok(copy)
    }
}

/// How the elements lie, with an index of 0 for the lowest, since a geometry has no negative ones.
fn geometry_of(tensor: &DLTensor) -> Result<Geometry> {
    if tensor.device.device_type != sys::CPU {
        return Err(unsupported(format!(
            "it is in the memory of a device of type {}; copy it to the CPU (type {}) first",
            tensor.device.device_type,
            sys::CPU
        )));
    }
    let dtype = dtype_of(tensor.dtype)?;
    let ndim = usize::try_from(tensor.ndim)
        .ok()
        .filter(|&ndim| ndim <= MAX_DIMS)
        .ok_or_else(|| {
            unsupported(format!(
                "it has {} dimensions; a tensor has 0 to {MAX_DIMS}",
                tensor.ndim
            ))
        })?;
    let lengths = numbers(tensor.shape, ndim, tensor)
        .ok_or_else(|| unsupported(format!("it has {ndim} dimensions and no shape")))?;
    let mut shape = [0; MAX_DIMS];
    for (to, &from) in shape.iter_mut().zip(lengths) {
        *to = usize::try_from(from)
            .map_err(|_| unsupported(format!("the shape {lengths:?} has a negative length")))?;
    }
    let shape = &shape[..ndim];
    let Some(steps) = numbers(tensor.strides, ndim, tensor) else {
        return Geometry::contiguous(dtype, shape);
    };
    let mut strides = [0; MAX_DIMS];
    let mut lowest = 0_i64;
    for (dim, &step) in steps.iter().enumerate() {
        strides[dim] = step as isize; // both have 64 bits
        let way = step.saturating_mul(lengths[dim].max(1) - 1);
        lowest = lowest.saturating_add(way.min(0));
    }
    // What saturated is out of the address space, which the geometry finds.
    let first = usize::try_from(lowest.unsigned_abs()).unwrap_or(usize::MAX);
    Geometry::new(dtype, shape, &strides[..ndim], first)
}

/// The lengths or strides of a tensor; `None` when the pointer is null although there are some.
fn numbers(first: *mut i64, ndim: usize, _owner: &DLTensor) -> Option<&[i64]> {
    if ndim == 0 {
        return Some(&[]);
    }
    let first = std::ptr::NonNull::new(first)?;
    // SAFETY: the maker of the tensor, who owns it as long as it is borrowed here, says that there are `ndim` numbers,
    // at most 8, that nobody changes.
    Some(unsafe { std::slice::from_raw_parts(first.as_ptr(), ndim) })
}

const _: () = assert!(size_of::<*mut c_void>() == 8, "a 64-bit machine");
