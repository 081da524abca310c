//! Calls of whatever `libcuda.so` is loaded, by name and without `unsafe`, for tests of the emulator itself.

use std::ffi::CString;

use crate::ipc::Handle;
use crate::vmm::{Access, Properties};

/// A code that is not 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub i32);

/// What a call answers.
type Outcome<T = ()> = Result<T, Code>;

/// The 64 bytes that stand for memory or an event in another process.
pub type HandleBytes = [u8; 64];

/// The loaded driver, which checks each device address itself.
///
/// Asynchronous copies use the host's memory after the call has returned when it is pinned; tests keep it and wait.
#[derive(Clone, Copy, Debug)]
pub struct Driver(());

fn outcome(code: i32) -> Outcome {
    match code {
        0 => Ok(()),
        code => Err(Code(code)),
    }
}

/// The address of a symbol of the loaded driver.
fn symbol(name: &str) -> Option<*const ()> {
    // The emulated driver is loaded already; without it, this is the system's.
    let open = |name: &std::ffi::CStr| {
        // SAFETY: the name is a string; a driver's library may be loaded at any time.
        unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) }
    };
    let mut library = open(c"libcuda.so");
    if library.is_null() {
        library = open(c"libcuda.so.1");
    }
    let name = CString::new(name).ok()?;
    if library.is_null() {
        return None;
    }
    // SAFETY: the handle is the loader's, and the library is never unloaded.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    (!found.is_null()).then_some(found.cast_const().cast())
}

/// One call. Every argument goes as a machine word, which is how C passes integers and pointers on 64-bit Linux.
fn call(name: &str, arguments: &[u64]) -> Outcome {
    type F0 = extern "C" fn() -> i32;
    type F1 = extern "C" fn(u64) -> i32;
    type F2 = extern "C" fn(u64, u64) -> i32;
    type F3 = extern "C" fn(u64, u64, u64) -> i32;
    type F4 = extern "C" fn(u64, u64, u64, u64) -> i32;
    type F5 = extern "C" fn(u64, u64, u64, u64, u64) -> i32;
    type F6 = extern "C" fn(u64, u64, u64, u64, u64, u64) -> i32;
    macro_rules! with {
        ($type:ty, $at:expr $(, $argument:expr)*) => {{
            // SAFETY: a symbol of the driver is a function, and the methods below pass as many words as it takes.
            let function = unsafe { std::mem::transmute::<*const (), $type>($at) };
            function($($argument),*)
        }};
    }
    let at = symbol(name).unwrap_or_else(|| panic!("the loaded driver has no {name}"));
    outcome(match *arguments {
        [] => with!(F0, at),
        [a] => with!(F1, at, a),
        [a, b] => with!(F2, at, a, b),
        [a, b, c] => with!(F3, at, a, b, c),
        [a, b, c, d] => with!(F4, at, a, b, c, d),
        [a, b, c, d, e] => with!(F5, at, a, b, c, d, e),
        [a, b, c, d, e, f] => with!(F6, at, a, b, c, d, e, f),
        _ => panic!("{name} with {} arguments", arguments.len()),
    })
}

fn out<T>(value: &mut T) -> u64 {
    std::ptr::from_mut(value).expose_provenance() as u64
}

fn bytes_at(bytes: &[u8]) -> u64 {
    bytes.as_ptr().expose_provenance() as u64
}

/// Methods that pass numbers and give nothing or one number back.
macro_rules! methods {
    ($($(#[$meta:meta])* $symbol:literal $name:ident($($argument:ident: $type:ty),*) $(-> $answer:ty)?;)*) => {$(
        methods!(@one $(#[$meta])* $symbol $name($($argument: $type),*) $(-> $answer)?);
    )*};
    (@one $(#[$meta:meta])* $symbol:literal $name:ident($($argument:ident: $type:ty),*)) => {
        $(#[$meta])*
        ///
        /// # Errors
        /// The driver's code.
        pub fn $name(self $(, $argument: $type)*) -> Outcome {
            call($symbol, &[$($argument as u64),*])
        }
    };
    (@one $(#[$meta:meta])* $symbol:literal $name:ident($($argument:ident: $type:ty),*) -> $answer:ty) => {
        $(#[$meta])*
        ///
        /// # Errors
        /// The driver's code.
        pub fn $name(self $(, $argument: $type)*) -> Outcome<$answer> {
            let mut answer: $answer = 0;
            call($symbol, &[out(&mut answer) $(, $argument as u64)*])?;
            Ok(answer)
        }
    };
}

impl Driver {
    /// The driver that is loaded.
    #[must_use]
    pub fn loaded() -> Self {
        Self(())
    }

    /// Whether it has that symbol.
    #[must_use]
    pub fn has(self, name: &str) -> bool {
        symbol(name).is_some()
    }

    /// What `cuInit` and a call after it answer in a bare fork of this process.
    #[must_use]
    pub fn codes_in_a_fork(self) -> Option<(i32, i32)> {
        let first =
            crate::raw::in_a_fork(|| Self(()).init(0).err().map_or(0, |code| code.0 as u8))?;
        let second =
            crate::raw::in_a_fork(|| Self(()).device_count().err().map_or(0, |code| code.0 as u8))?;
        Some((i32::from(first), i32::from(second)))
    }

    /// Starts it and makes the device's primary context current.
    ///
    /// # Errors
    /// The driver's code.
    pub fn start(self, device: i32) -> Outcome {
        self.init(0)?;
        let context = self.retain(device)?;
        self.set_current(context)
    }

    methods! {
        /// `cuInit`.
        "cuInit" init(flags: u32);
        /// `cuDriverGetVersion`.
        "cuDriverGetVersion" version() -> i32;
        /// `cuDeviceGetCount`.
        "cuDeviceGetCount" device_count() -> i32;
        /// `cuDeviceGetAttribute`.
        "cuDeviceGetAttribute" attribute(attribute: i32, device: i32) -> i32;
        /// `cuDeviceCanAccessPeer`.
        "cuDeviceCanAccessPeer" can_access_peer(device: i32, peer: i32) -> i32;
        /// `cuDevicePrimaryCtxRetain`.
        "cuDevicePrimaryCtxRetain" retain(device: i32) -> usize;
        /// `cuDevicePrimaryCtxRelease_v2`.
        "cuDevicePrimaryCtxRelease_v2" release(device: i32);
        /// `cuCtxSetCurrent`.
        "cuCtxSetCurrent" set_current(context: usize);
        /// `cuCtxPushCurrent_v2`.
        "cuCtxPushCurrent_v2" push_current(context: usize);
        /// `cuCtxPopCurrent_v2`.
        "cuCtxPopCurrent_v2" pop_current() -> usize;
        /// `cuCtxGetDevice`.
        "cuCtxGetDevice" current_device() -> i32;
        /// `cuCtxSynchronize`.
        "cuCtxSynchronize" synchronize();
        /// `cuCtxEnablePeerAccess`.
        "cuCtxEnablePeerAccess" enable_peer(context: usize, flags: u32);
        /// `cuMemAlloc_v2`.
        "cuMemAlloc_v2" alloc(size: usize) -> u64;
        /// `cuMemFree_v2`.
        "cuMemFree_v2" free(at: u64);
        /// `cuMemAllocAsync`.
        "cuMemAllocAsync" alloc_async(size: usize, stream: usize) -> u64;
        /// `cuMemFreeAsync`.
        "cuMemFreeAsync" free_async(at: u64, stream: usize);
        /// `cuMemcpyDtoDAsync_v2`.
        "cuMemcpyDtoDAsync_v2" copy_async(to: u64, from: u64, len: usize, stream: usize);
        /// `cuMemsetD8Async`.
        "cuMemsetD8Async" fill_async(to: u64, value: u8, count: usize, stream: usize);
        /// `cuMemsetD32Async`.
        "cuMemsetD32Async" fill_words_async(to: u64, value: u32, count: usize, stream: usize);
        /// `cuStreamCreate`.
        "cuStreamCreate" stream(flags: u32) -> usize;
        /// `cuStreamDestroy_v2`.
        "cuStreamDestroy_v2" destroy_stream(stream: usize);
        /// `cuStreamSynchronize`.
        "cuStreamSynchronize" synchronize_stream(stream: usize);
        /// `cuStreamQuery`.
        "cuStreamQuery" query_stream(stream: usize);
        /// `cuStreamWaitEvent`.
        "cuStreamWaitEvent" wait(stream: usize, event: usize, flags: u32);
        /// `cuStreamWriteValue64_v2`.
        "cuStreamWriteValue64_v2" write_value(stream: usize, at: u64, value: u64, flags: u32);
        /// `cuStreamWaitValue64_v2`.
        "cuStreamWaitValue64_v2" wait_value(stream: usize, at: u64, value: u64, flags: u32);
        /// `cuEventCreate`.
        "cuEventCreate" event(flags: u32) -> usize;
        /// `cuEventDestroy_v2`.
        "cuEventDestroy_v2" destroy_event(event: usize);
        /// `cuEventRecord`.
        "cuEventRecord" record(event: usize, stream: usize);
        /// `cuEventQuery`.
        "cuEventQuery" query_event(event: usize);
        /// `cuEventSynchronize`.
        "cuEventSynchronize" synchronize_event(event: usize);
        /// `cuIpcCloseMemHandle`.
        "cuIpcCloseMemHandle" close_memory(at: u64);
        /// `cuMemRelease`.
        "cuMemRelease" release_virtual(handle: u64);
        /// `cuMemAddressReserve`.
        "cuMemAddressReserve" reserve(size: usize, alignment: usize, fixed: u64, flags: u64) -> u64;
        /// `cuMemAddressFree`.
        "cuMemAddressFree" free_addresses(at: u64, size: usize);
        /// `cuMemMap`.
        "cuMemMap" map(at: u64, size: usize, offset: usize, handle: u64, flags: u64);
        /// `cuMemUnmap`.
        "cuMemUnmap" unmap(at: u64, size: usize);
        /// `cuMemExportToShareableHandle`.
        "cuMemExportToShareableHandle" export_descriptor(handle: u64, kind: u32, flags: u64) -> i32;
        /// `cuMemImportFromShareableHandle`.
        "cuMemImportFromShareableHandle" import_descriptor(descriptor: i32, kind: u32) -> u64;
        /// `cuMemHostRegister_v2`.
        "cuMemHostRegister_v2" register(at: usize, len: usize, flags: u32);
        /// `cuMemHostUnregister`.
        "cuMemHostUnregister" unregister(at: usize);
        /// `cuMemHostAlloc`.
        "cuMemHostAlloc" host_alloc(len: usize, flags: u32) -> usize;
        /// `cuMemFreeHost`.
        "cuMemFreeHost" host_free(at: usize);
    }

    /// `cuDeviceGetUuid_v2`.
    ///
    /// # Errors
    /// The driver's code.
    pub fn uuid(self, device: i32) -> Outcome<[u8; 16]> {
        let mut uuid = [0; 16];
        call("cuDeviceGetUuid_v2", &[out(&mut uuid), device as u64])?;
        Ok(uuid)
    }

    /// `cuPointerGetAttribute`, of attributes of up to 8 bytes.
    ///
    /// # Errors
    /// The driver's code.
    pub fn pointer_attribute(self, attribute: i32, at: u64) -> Outcome<u64> {
        let mut value = 0_u64;
        call(
            "cuPointerGetAttribute",
            &[out(&mut value), attribute as u64, at],
        )?;
        Ok(value)
    }

    /// `cuMemGetAddressRange_v2`: where the allocation begins, and its size.
    ///
    /// # Errors
    /// The driver's code.
    pub fn range(self, at: u64) -> Outcome<(u64, usize)> {
        let mut range = (0_u64, 0_usize);
        call(
            "cuMemGetAddressRange_v2",
            &[out(&mut range.0), out(&mut range.1), at],
        )?;
        Ok(range)
    }

    /// `cuMemcpyHtoD_v2`.
    ///
    /// # Errors
    /// The driver's code.
    pub fn upload(self, to: u64, from: &[u8]) -> Outcome {
        call("cuMemcpyHtoD_v2", &[to, bytes_at(from), from.len() as u64])
    }

    /// `cuMemcpyDtoH_v2`.
    ///
    /// # Errors
    /// The driver's code.
    pub fn download(self, from: u64, len: usize) -> Outcome<Vec<u8>> {
        let mut bytes = vec![0; len];
        let to = bytes.as_mut_ptr().expose_provenance() as u64;
        call("cuMemcpyDtoH_v2", &[to, from, len as u64])?;
        Ok(bytes)
    }

    /// `cuMemcpyHtoDAsync_v2`, from pageable memory, which is read before the call returns, or from pinned memory.
    ///
    /// # Errors
    /// The driver's code.
    pub fn upload_async(self, to: u64, from: &[u8], stream: usize) -> Outcome {
        call(
            "cuMemcpyHtoDAsync_v2",
            &[to, bytes_at(from), from.len() as u64, stream as u64],
        )
    }

    /// `cuMemcpyDtoHAsync_v2`, into pageable memory, for which the call waits.
    ///
    /// # Errors
    /// The driver's code.
    pub fn download_async(self, from: u64, len: usize, stream: usize) -> Outcome<Vec<u8>> {
        let mut bytes = vec![0; len];
        let to = bytes.as_mut_ptr().expose_provenance() as u64;
        call(
            "cuMemcpyDtoHAsync_v2",
            &[to, from, len as u64, stream as u64],
        )?;
        Ok(bytes)
    }

    /// `cuIpcGetMemHandle`.
    ///
    /// # Errors
    /// The driver's code.
    pub fn export_memory(self, at: u64) -> Outcome<HandleBytes> {
        let mut handle = [0; 64];
        call("cuIpcGetMemHandle", &[out(&mut handle), at])?;
        Ok(handle)
    }

    /// `cuIpcGetEventHandle`.
    ///
    /// # Errors
    /// The driver's code.
    pub fn export_event(self, event: usize) -> Outcome<HandleBytes> {
        let mut handle = [0; 64];
        call("cuIpcGetEventHandle", &[out(&mut handle), event as u64])?;
        Ok(handle)
    }

    /// `cuStreamGetFlags`.
    ///
    /// # Errors
    /// The driver's code.
    pub fn stream_flags(self, stream: usize) -> Outcome<u32> {
        let mut flags = 0_u32;
        call("cuStreamGetFlags", &[stream as u64, out(&mut flags)])?;
        Ok(flags)
    }

    /// `cuIpcOpenMemHandle_v2`.
    ///
    /// # Errors
    /// The driver's code.
    pub fn open_memory(self, handle: HandleBytes, flags: u32) -> Outcome<u64> {
        type Open = extern "C" fn(*mut u64, Handle, u32) -> i32;
        let at = symbol("cuIpcOpenMemHandle_v2").ok_or(Code(500))?;
        // SAFETY: that is the function's type in `cuda.h`.
        let open = unsafe { std::mem::transmute::<*const (), Open>(at) };
        let mut address = 0;
        outcome(open(&raw mut address, Handle(handle), flags))?;
        Ok(address)
    }

    /// `cuIpcOpenEventHandle`.
    ///
    /// # Errors
    /// The driver's code.
    pub fn open_event(self, handle: HandleBytes) -> Outcome<usize> {
        type Open = extern "C" fn(*mut usize, Handle) -> i32;
        let at = symbol("cuIpcOpenEventHandle").ok_or(Code(500))?;
        // SAFETY: that is the function's type in `cuda.h`.
        let open = unsafe { std::mem::transmute::<*const (), Open>(at) };
        let mut event = 0;
        outcome(open(&raw mut event, Handle(handle)))?;
        Ok(event)
    }

    /// `cuMemCreate`, of memory on a device; `exportable` as a descriptor.
    ///
    /// # Errors
    /// The driver's code.
    pub fn create_virtual(self, size: usize, device: i32, exportable: bool) -> Outcome<u64> {
        let wanted = Properties::of(device, exportable);
        let mut handle = 0_u64;
        let at = std::ptr::from_ref(&wanted).expose_provenance() as u64;
        call("cuMemCreate", &[out(&mut handle), size as u64, at, 0])?;
        Ok(handle)
    }

    /// `cuMemSetAccess`, for one device.
    ///
    /// # Errors
    /// The driver's code.
    pub fn grant(self, at: u64, size: usize, device: i32) -> Outcome {
        let access = Access::of(device);
        let access = std::ptr::from_ref(&access).expose_provenance() as u64;
        call("cuMemSetAccess", &[at, size as u64, access, 1])
    }
}
