//! The few things that are done with addresses: copies, words, C's out-pointers, futexes, calls back.
//!
//! Addresses of device memory have been checked against the board; those of host memory are the caller's, by the driver
//! API's contract: what a program passes to a driver must be valid for as long as the operation takes.

use std::ffi::{CStr, c_char, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::code::{Answer, invalid};

/// Where a C caller wants an answer.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    pub(crate) fn set(self, value: T) -> Answer {
        match self.optional(value) {
            true => Ok(()),
            false => invalid("the pointer for the answer is null"),
        }
    }

    /// Leaves a null pointer alone; whether there was another.
    pub(crate) fn optional(self, value: T) -> bool {
        if self.0.is_null() {
            return false;
        }
        // SAFETY: such a pointer only comes from a C caller, who answers for room for a `T` when it is not null.
        unsafe { self.0.write_unaligned(value) };
        true
    }

    /// The pointer as another type's, for answers whose type depends on an argument.
    pub(crate) fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }
}

/// What a C caller passes by address.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// The value at that index.
    pub(crate) fn get(self, index: usize) -> Answer<T> {
        if self.0.is_null() {
            return invalid("a pointer to arguments is null");
        }
        let at = self.0.wrapping_add(index);
        // SAFETY: such a pointer only comes from a C caller, who answers for as many `T` as the call's count says.
        Ok(unsafe { at.read_unaligned() })
    }
}

/// A C caller's string.
pub(crate) fn text(at: *const c_char) -> Answer<String> {
    if at.is_null() {
        return invalid("the string is null");
    }
    // SAFETY: a C caller answers for a string that ends.
    let text = unsafe { CStr::from_ptr(at) };
    Ok(text.to_string_lossy().into_owned())
}

/// Writes bytes to where a C caller has room for `room` of them.
pub(crate) fn put_bytes(to: *mut c_char, room: i32, bytes: &[u8]) -> Answer {
    let room = usize::try_from(room).unwrap_or(0);
    if to.is_null() || room < bytes.len() {
        return invalid("there is no room for the answer");
    }
    // SAFETY: the caller answers for `room` bytes, and there are fewer.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), bytes.len()) };
    Ok(())
}

/// The host's bytes at an address, as they are now.
pub(crate) fn snapshot(from: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    copy(bytes.as_mut_ptr() as usize, from, len);
    bytes
}

/// Copies as a device does: without regard for who else reads or writes there.
pub(crate) fn copy(to: usize, from: usize, len: usize) {
    let to = ptr::with_exposed_provenance_mut::<u8>(to);
    let from = ptr::with_exposed_provenance::<u8>(from);
    // SAFETY: device addresses were checked against their allocations, and the mapping of all device memory stays; host
    // addresses are the caller's, who answers for them until the operation is finished.
    unsafe { ptr::copy(from, to, len) };
}

/// Fills with a pattern of 1 or 4 bytes.
pub(crate) fn fill(to: usize, pattern: &[u8], len: usize) {
    match pattern {
        [byte] => {
            let to = ptr::with_exposed_provenance_mut::<u8>(to);
            // SAFETY: as in `copy`.
            unsafe { ptr::write_bytes(to, *byte, len) };
        }
        _ => {
            let bytes: Vec<u8> = pattern.iter().copied().cycle().take(len).collect();
            copy(to, bytes.as_ptr() as usize, len);
        }
    }
}

/// Stores a word of 4 or 8 bytes, at a multiple of its size.
pub(crate) fn store_word(to: usize, value: u64, wide: bool) {
    if wide {
        let word = ptr::with_exposed_provenance::<AtomicU64>(to);
        // SAFETY: checked as in `copy`, and aligned; other processes use such words as atomics.
        unsafe { &*word }.store(value, Ordering::Release);
    } else {
        let word = ptr::with_exposed_provenance::<AtomicU32>(to);
        // SAFETY: as above.
        unsafe { &*word }.store(value as u32, Ordering::Release);
    }
}

/// Loads a word of 4 or 8 bytes, at a multiple of its size.
pub(crate) fn load_word(from: usize, wide: bool) -> u64 {
    if wide {
        let word = ptr::with_exposed_provenance::<AtomicU64>(from);
        // SAFETY: as in `store_word`.
        return unsafe { &*word }.load(Ordering::Acquire);
    }
    let word = ptr::with_exposed_provenance::<AtomicU32>(from);
    // SAFETY: as in `store_word`.
    u64::from(unsafe { &*word }.load(Ordering::Acquire))
}

/// A function of the host that a stream calls.
pub(crate) type HostFunction = extern "C" fn(*mut c_void);

/// Sleeps while the word has that value, at most so long.
pub(crate) fn futex_wait(word: &AtomicU32, value: u32, limit: Duration) {
    let limit = libc::timespec {
        tv_sec: limit.as_secs().cast_signed(),
        tv_nsec: i64::from(limit.subsec_nanos()),
    };
    // SAFETY: the word is alive during the call; waiting changes nothing.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            value,
            &raw const limit,
        )
    };
}

/// Wakes all who sleep on the word, in all processes.
pub(crate) fn futex_wake(word: &AtomicU32) {
    // SAFETY: the word is alive during the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

/// Keeps the program's signals away from this thread.
pub(crate) fn block_signals() {
    let mut set = std::mem::MaybeUninit::uninit();
    // SAFETY: `set` is room for one.
    unsafe { libc::sigfillset(set.as_mut_ptr()) };
    // SAFETY: `set` has been filled; only this thread's mask changes.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut()) };
}

impl<T> Out<T> {
    /// The pointer that C code passes in a list of them.
    pub(crate) fn at(address: usize) -> Self {
        Self(ptr::with_exposed_provenance_mut(address))
    }
}

/// A descriptor that C code passes as a pointer-sized number.
pub(crate) fn descriptor(number: usize) -> Answer<std::os::fd::BorrowedFd<'static>> {
    let Ok(number) = i32::try_from(number) else {
        return invalid("the number is no descriptor");
    };
    // SAFETY: the call has no effect on memory.
    if unsafe { libc::fcntl(number, libc::F_GETFD) } < 0 {
        return invalid(format!("descriptor {number} is not open"));
    }
    // SAFETY: it is open, and the caller keeps it open during the call that passes it.
    Ok(unsafe { std::os::fd::BorrowedFd::borrow_raw(number) })
}

/// The address of a symbol of this library.
pub(crate) fn own_symbol(name: &str) -> Option<usize> {
    let mut own = std::mem::MaybeUninit::<libc::Dl_info>::uninit();
    let here = own_symbol as *const c_void;
    // SAFETY: `own` is room for the answer, and any address may be asked for.
    if unsafe { libc::dladdr(here, own.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: the call has filled it.
    let own = unsafe { own.assume_init() };
    let flags = libc::RTLD_NOW | libc::RTLD_NOLOAD;
    // SAFETY: the name is the loader's own; a library that is there is only counted.
    let library = unsafe { libc::dlopen(own.dli_fname, flags) };
    let name = std::ffi::CString::new(name).ok()?;
    if library.is_null() {
        return None;
    }
    // SAFETY: the handle is one of the loader's, and is never closed.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    (!found.is_null()).then(|| found.expose_provenance())
}

/// Runs a function in a bare fork of this process: what it answers, as the child's exit code.
pub(crate) fn in_a_fork(body: fn() -> u8) -> Option<u8> {
    // SAFETY: the child calls the function, which takes no lock that another thread may hold, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = i32::from(body());
        // SAFETY: ends the child at once, without what a program does at its end.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: `status` is room for the answer; the child is this process's own.
    let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
    (ended == child && libc::WIFEXITED(status)).then(|| libc::WEXITSTATUS(status) as u8)
}
