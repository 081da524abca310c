//! Where the executable's own code and data lie in memory, as the dynamic loader knows it.
//!
//! The other way to know would be /proc/self/maps, which takes a tenth of the whole start of a process to read.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ops::Range;

use libc::{PF_R, PF_X, PT_LOAD, dl_iterate_phdr, dl_phdr_info, size_t};

/// The address ranges of the executable's code; shared libraries do not count.
pub(crate) fn executable_code() -> Vec<Range<usize>> {
    ranges_with(PF_X)
}

/// The address ranges of all that is readable of the executable itself; shared libraries do not count.
pub(crate) fn executable_memory() -> Vec<Range<usize>> {
    ranges_with(PF_R)
}

/// What is looked for, and what was found.
struct Search {
    flag: u32,
    ranges: Vec<Range<usize>>,
}

fn ranges_with(flag: u32) -> Vec<Range<usize>> {
    let mut search = Search {
        flag,
        ranges: Vec::new(),
    };
    let data: *mut Search = &mut search;
    // SAFETY: `take_first` has the signature that is asked for, and takes the pointer for what it is here; it is not
    // kept beyond the call.
    unsafe { dl_iterate_phdr(Some(take_first), data.cast()) };
    search.ranges
}

/// Called by the loader for each object; the first is the program itself, and the only one that is looked at.
unsafe extern "C" fn take_first(info: *mut dl_phdr_info, _: size_t, data: *mut c_void) -> c_int {
    // SAFETY: the loader passes a description that is valid during the call.
    let info = unsafe { &*info };
    // SAFETY: `ranges_with` passes its search, which nobody else uses meanwhile.
    let search = unsafe { &mut *data.cast::<Search>() };
    if info.dlpi_phdr.is_null() {
        return 1;
    }
    // SAFETY: the description says that this many program headers are there, in a part of the program that stays
    // mapped and is never written.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let flag = search.flag;
    search.ranges.extend(
        headers
            .iter()
            .filter(|header| header.p_type == PT_LOAD && header.p_flags & flag != 0)
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
