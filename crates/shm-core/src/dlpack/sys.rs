//! The structs of the DLPack ABI, version 1, as C sees them; their names and fields are those of the specification.

use std::ffi::c_void;

/// The major version that these structs are of. Another one may lay out everything behind the deleter otherwise.
pub const MAJOR: u32 = 1;
/// The minor version up to which the codes here are known.
pub const MINOR: u32 = 1;
/// In the flags: the consumer must not write to the elements.
pub const READ_ONLY: u64 = 1;
/// The device type of memory that the CPU reaches as its own.
pub const CPU: i32 = 1;

/// Which version of the ABI a managed tensor is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct DLPackVersion {
    /// Changes with the layout.
    pub major: u32,
    /// Changes with the codes that there are.
    pub minor: u32,
}

/// Where the elements are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct DLDevice {
    /// 1 is the CPU.
    pub device_type: i32,
    /// 0 for the CPU.
    pub device_id: i32,
}

/// What an element is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct DLDataType {
    /// 0 signed integer, 1 unsigned integer, 2 float, 4 bfloat, 5 complex, 6 bool.
    pub code: u8,
    /// Bits of an element.
    pub bits: u8,
    /// Elements of a vector; 1 for plain ones.
    pub lanes: u16,
}

/// A tensor in memory that it does not own.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DLTensor {
    /// Where the memory begins; null when there is no element.
    pub data: *mut c_void,
    /// Whose memory it is.
    pub device: DLDevice,
    /// How many dimensions there are.
    pub ndim: i32,
    /// What an element is.
    pub dtype: DLDataType,
    /// The lengths, `ndim` of them.
    pub shape: *mut i64,
    /// Elements between neighbours, `ndim` of them; null (before version 1.2) when they are packed in row-major order.
    pub strides: *mut i64,
    /// Bytes from `data` to the first element.
    pub byte_offset: u64,
}

/// A tensor with what is needed to give it back.
#[derive(Debug)]
#[repr(C)]
pub struct DLManagedTensorVersioned {
    /// Of which version the rest is.
    pub version: DLPackVersion,
    /// The producer's own.
    pub manager_ctx: *mut c_void,
    /// Called once with this struct when the consumer is done; frees the struct too. May be null.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned)>,
    /// Bit 0: read only. Bit 1: a copy that nobody else has.
    pub flags: u64,
    /// The tensor.
    pub dl_tensor: DLTensor,
}
