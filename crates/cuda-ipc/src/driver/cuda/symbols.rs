//! The calls of the driver library, looked up by name once, one by one: an older driver lacks some.
//!
//! Called through our own types and not cudarc's functions for two reasons. Those return a closed enum, and a number that
//! it does not have (a newer driver's) would be undefined behaviour; here a result is an `i32`. And they panic where a
//! library or symbol is missing; here that is an error.

use std::ffi::{c_char, c_int, c_uint, c_void};

use cudarc::driver::sys;

use crate::driver::Unavailable;
use crate::error::{Error, ErrorKind, Result};

/// A handle that goes by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Bytes64(pub(super) [u8; 64]);

/// `CUmemAllocationProp`, the part that is used; checked against cudarc's below.
pub(super) use sys::{CUmemAccessDesc, CUmemAllocationProp};

macro_rules! symbols {
    ($($field:ident $name:literal ($($argument:ty),*);)*) => {
        /// The calls that the library has.
        #[derive(Debug)]
        pub(super) struct Symbols {
            $($field: Option<unsafe extern "C" fn($($argument),*) -> c_int>,)*
        }

        impl Symbols {
            /// Looks all of them up. The library has been loaded before, or can be.
            pub(super) fn load() -> Result<Self, Unavailable> {
                // SAFETY: loading runs the library's initialisers, which NVIDIA's driver and the emulator allow at any
                // time; the outcome is forgotten, or the library is kept for good.
                let present = unsafe { sys::is_culib_present() };
                if !present {
                    return Err(Unavailable::NoDriver);
                }
                // SAFETY: as above; it is there, so this does not panic.
                let library = unsafe { sys::culib() };
                Ok(Self {
                    // SAFETY: the symbol of this name has this type, says cuda.h; the library is never unloaded, so the
                    // pointer stays good.
                    $($field: unsafe { library.get($name) }.ok().map(|symbol| *symbol),)*
                })
            }

            $(
                /// The call, if this driver has it.
                pub(super) fn $field(&self) -> Result<unsafe extern "C" fn($($argument),*) -> c_int> {
                    self.$field.ok_or_else(|| missing(text($name)))
                }
            )*
        }
    };
}

const fn text(name: &'static [u8]) -> &'static str {
    let (name, _) = name.split_at(name.len() - 1);
    match std::str::from_utf8(name) {
        Ok(name) => name,
        Err(_) => "?",
    }
}

#[cold]
fn missing(call: &'static str) -> Error {
    Error::new(
        ErrorKind::MissingCall { call },
        format!("the driver library has no {call}: it is too old for this; update NVIDIA's driver"),
    )
}

/// Fails with the first call that is not there.
macro_rules! all_of {
    ($symbols:ident: $($field:ident $name:literal),*) => {{
        $(
            if $symbols.$field.is_none() {
                return Err(concat!("the driver library lacks ", $name));
            }
        )*
        Ok(())
    }};
}

/// What each way to other processes takes, of what a driver may lack.
impl Symbols {
    pub(super) fn for_handles(&self) -> Result<(), &'static str> {
        all_of!(self: ipc_export "cuIpcGetMemHandle", ipc_open "cuIpcOpenMemHandle_v2", ipc_close "cuIpcCloseMemHandle",
            mem_range "cuMemGetAddressRange_v2")
    }

    pub(super) fn for_descriptors(&self) -> Result<(), &'static str> {
        all_of!(self: granularity "cuMemGetAllocationGranularity", mem_create "cuMemCreate", mem_release "cuMemRelease",
            reserve "cuMemAddressReserve", unreserve "cuMemAddressFree", map "cuMemMap", unmap "cuMemUnmap",
            set_access "cuMemSetAccess", export_descriptor "cuMemExportToShareableHandle",
            import_descriptor "cuMemImportFromShareableHandle")
    }

    pub(super) fn for_events(&self) -> Result<(), &'static str> {
        all_of!(self: ipc_export_event "cuIpcGetEventHandle", ipc_open_event "cuIpcOpenEventHandle")
    }
}

type Context = *mut c_void;
type Stream = *mut c_void;
type Event = *mut c_void;

symbols! {
    init b"cuInit\0" (c_uint);
    driver_version b"cuDriverGetVersion\0" (*mut c_int);
    device_get b"cuDeviceGet\0" (*mut c_int, c_int);
    device_count b"cuDeviceGetCount\0" (*mut c_int);
    device_name b"cuDeviceGetName\0" (*mut c_char, c_int, c_int);
    device_uuid b"cuDeviceGetUuid_v2\0" (*mut [u8; 16], c_int);
    device_attribute b"cuDeviceGetAttribute\0" (*mut c_int, c_int, c_int);
    device_memory b"cuDeviceTotalMem_v2\0" (*mut usize, c_int);
    primary_retain b"cuDevicePrimaryCtxRetain\0" (*mut Context, c_int);
    context_get b"cuCtxGetCurrent\0" (*mut Context);
    context_set b"cuCtxSetCurrent\0" (Context);
    mem_alloc b"cuMemAlloc_v2\0" (*mut u64, usize);
    mem_free b"cuMemFree_v2\0" (u64);
    mem_range b"cuMemGetAddressRange_v2\0" (*mut u64, *mut usize, u64);
    pointer_attribute b"cuPointerGetAttribute\0" (*mut c_void, c_int, u64);
    copy_to_device b"cuMemcpyHtoDAsync_v2\0" (u64, *const c_void, usize, Stream);
    copy_to_host b"cuMemcpyDtoHAsync_v2\0" (*mut c_void, u64, usize, Stream);
    copy_on_device b"cuMemcpyDtoDAsync_v2\0" (u64, u64, usize, Stream);
    copy_to_peer b"cuMemcpyPeerAsync\0" (u64, Context, u64, Context, usize, Stream);
    set_bytes b"cuMemsetD8Async\0" (u64, u8, usize, Stream);
    stream_create b"cuStreamCreate\0" (*mut Stream, c_uint);
    stream_destroy b"cuStreamDestroy_v2\0" (Stream);
    stream_flags b"cuStreamGetFlags\0" (Stream, *mut c_uint);
    stream_id b"cuStreamGetId\0" (Stream, *mut u64);
    stream_synchronize b"cuStreamSynchronize\0" (Stream);
    stream_query b"cuStreamQuery\0" (Stream);
    stream_wait b"cuStreamWaitEvent\0" (Stream, Event, c_uint);
    event_create b"cuEventCreate\0" (*mut Event, c_uint);
    event_destroy b"cuEventDestroy_v2\0" (Event);
    event_record b"cuEventRecord\0" (Event, Stream);
    event_query b"cuEventQuery\0" (Event);
    ipc_export b"cuIpcGetMemHandle\0" (*mut Bytes64, u64);
    ipc_open b"cuIpcOpenMemHandle_v2\0" (*mut u64, Bytes64, c_uint);
    ipc_close b"cuIpcCloseMemHandle\0" (u64);
    ipc_export_event b"cuIpcGetEventHandle\0" (*mut Bytes64, Event);
    ipc_open_event b"cuIpcOpenEventHandle\0" (*mut Event, Bytes64);
    granularity b"cuMemGetAllocationGranularity\0" (*mut usize, *const CUmemAllocationProp, c_int);
    mem_create b"cuMemCreate\0" (*mut u64, usize, *const CUmemAllocationProp, u64);
    mem_release b"cuMemRelease\0" (u64);
    reserve b"cuMemAddressReserve\0" (*mut u64, usize, usize, u64, u64);
    unreserve b"cuMemAddressFree\0" (u64, usize);
    map b"cuMemMap\0" (u64, usize, usize, u64, u64);
    unmap b"cuMemUnmap\0" (u64, usize);
    set_access b"cuMemSetAccess\0" (u64, usize, *const CUmemAccessDesc, usize);
    export_descriptor b"cuMemExportToShareableHandle\0" (*mut c_void, u64, c_int, u64);
    import_descriptor b"cuMemImportFromShareableHandle\0" (*mut u64, *mut c_void, c_int);
    host_register b"cuMemHostRegister_v2\0" (*mut c_void, usize, c_uint);
    host_unregister b"cuMemHostUnregister\0" (*mut c_void);
}
