//! Where the executable's own code lies in memory, as the dynamic loader knows it.
//!
//! The other way to know would be /proc/self/maps, which takes a tenth of the whole start of a process to read.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ops::Range;

use libc::{PF_X, PT_LOAD, dl_iterate_phdr, dl_phdr_info, size_t};

/// The address ranges of the executable's code; shared libraries do not count.
pub(crate) fn executable_code() -> Vec<Range<usize>> {
    let mut code: Vec<Range<usize>> = Vec::new();
    let data: *mut Vec<Range<usize>> = &mut code;
    // SAFETY: `take_first` has the signature that is asked for, and takes the pointer for what it is here; it is not
    // kept beyond the call.
    unsafe { dl_iterate_phdr(Some(take_first), data.cast()) };
    code
}

/// Called by the loader for each object; the first is the program itself, and the only one that is looked at.
unsafe extern "C" fn take_first(info: *mut dl_phdr_info, _: size_t, data: *mut c_void) -> c_int {
    // SAFETY: the loader passes a description that is valid during the call.
    let info = unsafe { &*info };
    // SAFETY: `executable_code` passes its vector, which nobody else uses meanwhile.
    let code = unsafe { &mut *data.cast::<Vec<Range<usize>>>() };
    if info.dlpi_phdr.is_null() {
        return 1;
    }
    // SAFETY: the description says that this many program headers are there, in a part of the program that stays
    // mapped and is never written.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    code.extend(
        headers
            .iter()
            .filter(|header| header.p_type == PT_LOAD && header.p_flags & PF_X != 0)
            .map(|header| {
                let start = info.dlpi_addr.wrapping_add(header.p_vaddr) as usize;
                start..start.saturating_add(header.p_memsz as usize)
            }),
    );
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_executable_has_code_and_a_library_is_not_part_of_it() {
        let code = executable_code();
        let holds = |address: usize| code.iter().any(|range| range.contains(&address));
        assert!(holds(executable_code as fn() -> Vec<Range<usize>> as usize));
        assert!(!holds(&code as *const _ as usize));
        let in_a_library = dl_iterate_phdr as *const () as usize;
        assert_eq!(
            holds(in_a_library),
            cfg!(target_feature = "crt-static"),
            "the C library is linked in only where it is static"
        );
    }
}
