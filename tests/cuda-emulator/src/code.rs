//! The driver's codes, and a refusal: a code with the reason that the emulator knows and a driver would not tell.

use std::borrow::Cow;
use std::ffi::CStr;

/// The codes that the emulator answers, as in `cuda.h`.
macro_rules! codes {
    ($($name:ident = $value:literal, $c_name:literal, $text:literal;)*) => {
        $(pub(crate) const $name: i32 = $value;)*

        /// The name of a code, as `cuGetErrorName` gives it.
        pub(crate) fn name(code: i32) -> Option<&'static CStr> {
            match code { $($value => Some($c_name),)* _ => None }
        }

        /// What a code means, as `cuGetErrorString` gives it.
        pub(crate) fn text(code: i32) -> Option<&'static CStr> {
            match code { $($value => Some($text),)* _ => None }
        }
    };
}

codes! {
    SUCCESS = 0, c"CUDA_SUCCESS", c"no error";
    INVALID_VALUE = 1, c"CUDA_ERROR_INVALID_VALUE", c"invalid argument";
    OUT_OF_MEMORY = 2, c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory";
    NOT_INITIALIZED = 3, c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error";
    NO_DEVICE = 100, c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected";
    INVALID_DEVICE = 101, c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal";
    INVALID_CONTEXT = 201, c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context";
    ALREADY_MAPPED = 208, c"CUDA_ERROR_ALREADY_MAPPED", c"already mapped";
    PEER_UNSUPPORTED = 217, c"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", c"peer access is not supported between these two devices";
    OPERATING_SYSTEM = 304, c"CUDA_ERROR_OPERATING_SYSTEM", c"OS call failed or operation not supported on this OS";
    INVALID_HANDLE = 400, c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle";
    NOT_FOUND = 500, c"CUDA_ERROR_NOT_FOUND", c"named symbol not found";
    NOT_READY = 600, c"CUDA_ERROR_NOT_READY", c"device not ready";
    ILLEGAL_ADDRESS = 700, c"CUDA_ERROR_ILLEGAL_ADDRESS", c"an illegal memory access was encountered";
    PEER_ALREADY = 704, c"CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", c"peer access is already enabled";
    PEER_NOT_ENABLED = 705, c"CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", c"peer access has not been enabled";
    HOST_ALREADY_REGISTERED = 712, c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", c"part or all of the requested memory range is already mapped";
    HOST_NOT_REGISTERED = 713, c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", c"pointer does not correspond to a registered memory region";
    NOT_SUPPORTED = 801, c"CUDA_ERROR_NOT_SUPPORTED", c"operation not supported";
    UNKNOWN = 999, c"CUDA_ERROR_UNKNOWN", c"unknown error";
}

/// A call that is refused: the code that the caller gets, and why, for the report.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) code: i32,
    pub(crate) why: Cow<'static, str>,
}

/// What a call answers.
pub(crate) type Answer<T = ()> = Result<T, Refusal>;

/// A refusal as an error.
pub(crate) fn refuse<T>(code: i32, why: impl Into<Cow<'static, str>>) -> Answer<T> {
    let why = why.into();
    Err(Refusal { code, why })
}

/// An argument that no driver takes.
pub(crate) fn invalid<T>(why: impl Into<Cow<'static, str>>) -> Answer<T> {
    refuse(INVALID_VALUE, why)
}
