//! Where the executable's own code and data lie in memory, as the dynamic loader knows it.
//!
//! The other way to know would be /proc/self/maps, which takes a tenth of the whole start of a process to read.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ops::Range;

use libc::{
    Elf64_Phdr, PF_R, PF_X, PT_INTERP, PT_LOAD, PT_NOTE, dl_iterate_phdr, dl_phdr_info, size_t,
};

/// The address ranges of the executable's code; shared libraries do not count.
pub(crate) fn executable_code() -> Vec<Range<usize>> {
    ranges_with(|header| header.p_type == PT_LOAD && header.p_flags & PF_X != 0)
}

/// The address ranges of all that is readable of the executable itself; shared libraries do not count.
pub(crate) fn executable_memory() -> Vec<Range<usize>> {
    ranges_with(|header| header.p_type == PT_LOAD && header.p_flags & PF_R != 0)
}

/// Whether the dynamic loader was run as a program, and was told to run this one.
pub(crate) fn started_by_loader() -> bool {
    // SAFETY: the call reads what the kernel told this process when it started, and cannot fail: what is unknown is 0.
    let loader = unsafe { libc::getauxval(libc::AT_BASE) };
    // The kernel loaded none, although this program asks for one.
    loader == 0 && !ranges_with(|header| header.p_type == PT_INTERP).is_empty()
}

/// How many bytes the hash has that linkers write: that of SHA-1.
pub(crate) const LINK: usize = 20;

/// The kind of a note that holds such a hash (`NT_GNU_BUILD_ID`).
const BUILD_ID: u32 = 3;

/// The hash of the executable that the linker wrote into it; `None` where it did not, or wrote something shorter, which
/// may be anything that somebody thought of.
pub(crate) fn link_hash() -> Option<[u8; LINK]> {
    let mut search = Search {
        wanted: |header| header.p_type == PT_NOTE && header.p_flags & PF_R != 0,
        ranges: Vec::new(),
    };
    search.run();
    let readable = executable_memory();
    search.ranges.into_iter().find_map(|range| {
        if !readable
            .iter()
            .any(|memory| memory.start <= range.start && range.end <= memory.end)
        {
            return None;
        }
        // SAFETY: the loader says that notes are here, in a part of the executable that it mapped for reading; notes
        // are never written, and the executable stays mapped.
        let notes = unsafe {
            std::slice::from_raw_parts(
                std::ptr::with_exposed_provenance::<u8>(range.start),
                range.len(),
            )
        };
        hash_in(notes)
    })
}

/// The hash in a sequence of notes: each has the lengths of its name and its content, its kind, and then both, filled up
/// to whole words.
fn hash_in(mut notes: &[u8]) -> Option<[u8; LINK]> {
    loop {
        let (head, rest) = notes.split_first_chunk::<12>()?;
        let word =
            |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let name = rest.get(..word(0) as usize)?;
        let rest = rest.get((word(0) as usize).next_multiple_of(4)..)?;
        let content = rest.get(..word(4) as usize)?;
        if name == b"GNU\0" && word(8) == BUILD_ID {
            return content.try_into().ok();
        }
        notes = rest.get((word(4) as usize).next_multiple_of(4)..)?;
    }
}

/// What is looked for, and what was found.
struct Search {
    wanted: fn(&Elf64_Phdr) -> bool,
    ranges: Vec<Range<usize>>,
}

impl Search {
    fn run(&mut self) {
        let data: *mut Search = self;
        // SAFETY: `take_first` has the signature that is asked for, and takes the pointer for what it is here; it is
        // not kept beyond the call.
        unsafe { dl_iterate_phdr(Some(take_first), data.cast()) };
    }
}

fn ranges_with(wanted: fn(&Elf64_Phdr) -> bool) -> Vec<Range<usize>> {
    let mut search = Search {
        wanted,
        ranges: Vec::new(),
    };
    search.run();
    search.ranges
}

/// Called by the loader for each object; the first is the program itself, and the only one that is looked at.
unsafe extern "C" fn take_first(info: *mut dl_phdr_info, _: size_t, data: *mut c_void) -> c_int {
    // SAFETY: the loader passes a description that is valid during the call.
    let info = unsafe { &*info };
    // SAFETY: `Search::run` passes its search, which nobody else uses meanwhile.
    let search = unsafe { &mut *data.cast::<Search>() };
    if info.dlpi_phdr.is_null() {
        return 1;
    }
    // SAFETY: the description says that this many program headers are there, in a part of the program that stays
    // mapped and is never written.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let wanted = search.wanted;
    search.ranges.extend(
        headers
            .iter()
            .filter(|header| wanted(header))
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
    fn a_hash_is_found_among_other_notes_and_noise_has_none() {
        let note = |name: &[u8], kind: u32, content: &[u8]| {
            let mut bytes = Vec::new();
            for word in [name.len() as u32, content.len() as u32, kind] {
                bytes.extend(word.to_ne_bytes());
            }
            for part in [name, content] {
                bytes.extend(part);
                bytes.resize(bytes.len().next_multiple_of(4), 0);
            }
            bytes
        };
        let hash = [7; LINK];
        let other = note(b"GNU\0", 1, &[0; 15]);
        let good = note(b"GNU\0", BUILD_ID, &hash);
        assert_eq!(hash_in(&[other.clone(), good.clone()].concat()), Some(hash));
        assert_eq!(hash_in(&other), None);
        assert_eq!(hash_in(&note(b"GNU\0", BUILD_ID, &[7; 8])), None);
        assert_eq!(hash_in(&note(b"Go\0\0", BUILD_ID, &hash)), None);
        for length in 0..good.len() {
            assert_eq!(hash_in(&good[..length]), None);
        }
        assert_eq!(hash_in(&[0xff; 64]), None);
    }

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
