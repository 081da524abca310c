//! The executable as a place for functions: its identity, its text segment, and offsets into it.
//!
//! Parent and child run the same file at different addresses. A function is therefore named by its distance from
//! [`anchor`], and that distance is believed only between images that are the same file of the same build, and only if
//! it leads into executable pages of that file. The calls here decide that; turning the address into a function is
//! left to `trampoline`.

use std::ops::Range;
use std::sync::OnceLock;

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::hello::VERSION;
use crate::text::{LINK, executable_code, link_hash, started_by_loader};

/// The path by which a process finds its own executable, also when the file was deleted or replaced meanwhile.
pub(crate) const SELF: &str = "/proc/self/exe";

/// Which file of which build an image is. Two processes with equal builds have their functions at equal offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Build {
    /// What the linker wrote into the program as a hash of it.
    link: [u8; LINK],
    /// 1 if it did; else the file stands for the build.
    linked: u32,
    device: u64,
    inode: u64,
    size: u64,
    modified_seconds: i64,
    modified_nanos: u64,
    /// Bytes of code: follows from the program headers, so from the link.
    text: u64,
    /// What this crate was compiled as.
    constant: u64,
}

/// This process's executable.
#[derive(Debug)]
pub(crate) struct Image {
    build: Build,
    text: Vec<Range<usize>>,
}

/// The point that offsets are measured from: a function of the same image as every trampoline.
#[inline(never)]
fn anchor() {}

fn anchor_address() -> usize {
    anchor as fn() as usize
}

/// This process's image; read once, since it cannot change.
pub(crate) fn image() -> Result<&'static Image, String> {
    static IMAGE: OnceLock<Result<Image, String>> = OnceLock::new();
    IMAGE
        .get_or_init(Image::read)
        .as_ref()
        .map_err(Clone::clone)
}

impl Image {
    fn read() -> Result<Image, String> {
        if started_by_loader() {
            return Err(format!(
                "this program was started by the dynamic loader (as in `ld.so program`), so it is the loader that \
                 {SELF} leads to and that would be run again: start the program itself"
            ));
        }
        let text = executable_code();
        if !text.iter().any(|range| range.contains(&anchor_address())) {
            return Err(
                "this crate is linked into a shared library, not into the executable: a re-executed child finds \
                 functions by their place in the executable, so link it statically"
                    .to_owned(),
            );
        }
        let file = match link_hash() {
            Some(link) => Build {
                link,
                linked: 1,
                ..Build::none()
            },
            // A look at the file takes a hundredth of the start of a process.
            None => Build::of_file()?,
        };
        Ok(Image {
            build: Build {
                text: text.iter().map(|range| range.len() as u64).sum(),
                constant: fnv(
                    concat!(env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION")),
                    VERSION.into(),
                ),
                ..file
            },
            text,
        })
    }

    /// Which build this is.
    pub(crate) fn build(&self) -> Build {
        self.build
    }

    /// The distance of a function of this image from the anchor; `None` if it is a function of something else (a
    /// shared library).
    pub(crate) fn offset_of(&self, address: usize) -> Option<u64> {
        self.contains(address)
            .then(|| address.wrapping_sub(anchor_address()) as u64)
    }

    /// The address at such a distance; `None` if that is no executable page of this image.
    pub(crate) fn address_of(&self, offset: u64) -> Option<usize> {
        let address = anchor_address().wrapping_add(offset as usize);
        self.contains(address).then_some(address)
    }

    fn contains(&self, address: usize) -> bool {
        self.text.iter().any(|range| range.contains(&address))
    }
}

impl Build {
    /// The build of no image, for a child that is not asked whether it is the same.
    pub(crate) fn none() -> Build {
        Build::new_zeroed()
    }

    /// That of this process's executable, as far as its file says.
    fn of_file() -> Result<Build, String> {
        let stat = rustix::fs::stat(SELF)
            .map_err(|errno| format!("cannot look at {SELF}: {errno} (is /proc mounted?)"))?;
        Ok(Build {
            device: stat.st_dev,
            inode: stat.st_ino,
            size: stat.st_size as u64,
            modified_seconds: stat.st_mtime,
            modified_nanos: stat.st_mtime_nsec,
            ..Build::none()
        })
    }
}

impl std::fmt::Display for Build {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.linked == 1 {
            self.link
                .iter()
                .try_for_each(|byte| write!(f, "{byte:02x}"))?;
            return write!(
                f,
                ", {} bytes of text, crate {:016x}",
                self.text, self.constant
            );
        }
        write!(
            f,
            "file {:x}:{} of {} bytes, changed at {}.{:09}, {} bytes of text, crate {:016x}",
            self.device,
            self.inode,
            self.size,
            self.modified_seconds,
            self.modified_nanos,
            self.text,
            self.constant
        )
    }
}

/// FNV-1a: names become numbers that are compared, never looked up, so a small hash that needs no state will do.
pub(crate) const fn fnv(text: &str, seed: u64) -> u64 {
    let bytes = text.as_bytes();
    let mut hash = 0xcbf2_9ce4_8422_2325 ^ seed;
    let mut index = 0;
    while index < bytes.len() {
        hash = (hash ^ bytes[index] as u64).wrapping_mul(0x0000_0100_0000_01b3);
        index += 1;
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_is_known_by_what_was_linked_or_by_its_file() {
        let file = Build::of_file().unwrap();
        assert!(file.to_string().starts_with("file "), "{file}");
        let linked = Build {
            link: [0xab; LINK],
            linked: 1,
            ..Build::none()
        };
        assert!(linked.to_string().starts_with("abab"), "{linked}");
        let build = image().unwrap().build();
        assert_ne!(build, Build { text: 0, ..build });
        let known = (build.link, build.inode);
        let expected = link_hash().map_or(([0; LINK], file.inode), |link| (link, 0));
        assert_eq!(known, expected);
    }

    #[test]
    fn only_code_of_this_image_has_an_offset() {
        let image = image().unwrap();
        let here = anchor_address();
        assert_eq!(image.address_of(image.offset_of(here).unwrap()), Some(here));
        let data = &image as *const _ as usize;
        assert_eq!(image.offset_of(data), None);
        assert_eq!(image.address_of(data.wrapping_sub(here) as u64), None);
    }
}
