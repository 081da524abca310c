//! The executable as a place for functions: its identity, its text segment, and offsets into it.
//!
//! Parent and child run the same file at different addresses. A function is therefore named by its distance from
//! [`anchor`], and that distance is believed only between images that are the same file of the same build, and only if
//! it leads into executable pages of that file. The calls here decide that; turning the address into a function is
//! left to `trampoline`.

use std::fs;
use std::io::Read;
use std::ops::Range;
use std::os::unix::ffi::OsStringExt;
use std::sync::OnceLock;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::hello::VERSION;

/// The path by which a process finds its own executable, also when the file was deleted or replaced meanwhile.
pub(crate) const SELF: &str = "/proc/self/exe";

/// Which file of which build an image is. Two processes with equal builds have their functions at equal offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Build {
    device: u64,
    inode: u64,
    size: u64,
    modified_seconds: i64,
    modified_nanos: u64,
    /// Bytes of executable mappings of the file: follows from the program headers, so from the link.
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
        let stat = rustix::fs::stat(SELF)
            .map_err(|errno| format!("cannot look at {SELF}: {errno} (is /proc there?)"))?;
        let maps = read_maps().map_err(|error| format!("cannot read /proc/self/maps: {error}"))?;
        let text = text_of(&maps, anchor_address(), stat.st_ino, || {
            fs::read_link(SELF)
                .map(|path| path.into_os_string().into_vec())
                .unwrap_or_default()
        })?;
        Ok(Image {
            build: Build {
                device: stat.st_dev,
                inode: stat.st_ino,
                size: stat.st_size as u64,
                modified_seconds: stat.st_mtime,
                modified_nanos: stat.st_mtime_nsec,
                text: text.iter().map(|range| range.len() as u64).sum(),
                constant: fnv(
                    concat!(env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION")),
                    VERSION.into(),
                ),
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

impl std::fmt::Display for Build {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
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

/// In large steps: the kernel makes the text anew for each read.
fn read_maps() -> std::io::Result<Vec<u8>> {
    let mut file = fs::File::open("/proc/self/maps")?;
    let mut text = vec![0; 32 << 10];
    let mut length = 0;
    loop {
        match file.read(&mut text[length..])? {
            0 => break,
            more => length += more,
        }
        if text.len() - length < 4 << 10 {
            text.resize(2 * text.len(), 0);
        }
    }
    text.truncate(length);
    Ok(text)
}

/// The executable mappings of the file that the anchor lies in, which must be the executable itself.
fn text_of(
    maps: &[u8],
    anchor: usize,
    inode: u64,
    path: impl Fn() -> Vec<u8>,
) -> Result<Vec<Range<usize>>, String> {
    let lines: Vec<Mapping<'_>> = maps
        .split(|&byte| byte == b'\n')
        .filter_map(Mapping::parse)
        .filter(|mapping| mapping.executable)
        .collect();
    let Some(home) = lines.iter().find(|mapping| mapping.range.contains(&anchor)) else {
        return Err(
            "the code of this crate lies in no executable mapping of /proc/self/maps".to_owned(),
        );
    };
    // Some file systems show another inode in maps than stat does; then the path decides.
    if home.inode == 0 || (home.inode != inode && home.path != path()) {
        return Err(format!(
            "this crate is linked into {}, not into the executable {}: a re-executed child finds functions by their \
             place in the executable, so link it statically",
            String::from_utf8_lossy(if home.path.is_empty() {
                b"anonymous memory"
            } else {
                home.path
            }),
            String::from_utf8_lossy(&path()),
        ));
    }
    Ok(lines
        .iter()
        .filter(|mapping| mapping.file() == home.file())
        .map(|mapping| mapping.range.clone())
        .collect())
}

/// A line of /proc/self/maps.
struct Mapping<'a> {
    range: Range<usize>,
    executable: bool,
    device: &'a [u8],
    inode: u64,
    path: &'a [u8],
}

impl<'a> Mapping<'a> {
    /// `55d0-55d8 r-xp 0000 08:01 1234    /path with spaces`
    fn parse(line: &'a [u8]) -> Option<Mapping<'a>> {
        let mut fields = line.splitn(6, |&byte| byte == b' ');
        let mut field = || fields.next();
        let (start, end) = std::str::from_utf8(field()?).ok()?.split_once('-')?;
        let permissions = field()?;
        let _offset = field()?;
        let device = field()?;
        let inode = std::str::from_utf8(field()?).ok()?.parse().ok()?;
        let path = field().unwrap_or_default().trim_ascii_start();
        Some(Mapping {
            range: usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?,
            executable: permissions.get(2) == Some(&b'x'),
            device,
            inode,
            path,
        })
    }

    fn file(&self) -> (&'a [u8], u64, &'a [u8]) {
        (self.device, self.inode, self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &[u8] = b"\
5000-6000 r--p 00000000 fe:01 77                         /bin/tool box
6000-8000 r-xp 00001000 fe:01 77                         /bin/tool box
8000-9000 rw-p 00003000 fe:01 77                         /bin/tool box
a000-b000 r-xp 00000000 fe:01 78                         /lib/libother.so
c000-d000 r-xp 00000000 00:00 0                          [vdso]
";

    const CODE: Range<usize> = 0x6000..0x8000;

    #[test]
    fn the_text_is_what_the_executable_maps_as_code() {
        assert_eq!(
            text_of(MAPS, 0x6010, 77, || b"/bin/tool box".to_vec()).unwrap(),
            [CODE]
        );
    }

    #[test]
    fn code_in_a_shared_library_is_refused_by_name() {
        let error = text_of(MAPS, 0xa010, 77, || b"/bin/tool box".to_vec()).unwrap_err();
        assert!(error.contains("/lib/libother.so"), "{error}");
    }

    #[test]
    fn a_file_system_with_other_inodes_in_maps_is_known_by_path() {
        assert_eq!(
            text_of(MAPS, 0x6010, 5, || b"/bin/tool box".to_vec()).unwrap(),
            [CODE]
        );
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
