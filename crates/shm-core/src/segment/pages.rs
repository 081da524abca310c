//! The pages that an arena's file consists of: small ones, or huge ones where the system has them and was asked.
//!
//! A file on a hugetlbfs consists of huge pages and of nothing else. On a tmpfs, and for a memfd, the system may use them
//! (transparent huge pages) where its settings allow it for shared memory; they don't by default.

use std::fmt;
use std::fs::read_to_string;
use std::sync::atomic::Ordering;

use memmap2::Advice;
use rustix::fs::{fstat, fstatfs, major, minor};

use super::Segment;
use crate::error::{Bytes, Error, Result};
use crate::strategy::Backing;

const HUGETLBFS: u64 = 0x9584_58f6;
const TMPFS: u64 = 0x0102_1994;
const TRANSPARENT: &str = "/sys/kernel/mm/transparent_hugepage";
/// The size of the transparent huge pages that are used for shared memory, and a part of the names of their settings.
const PMD: (u64, &str) = (2 << 20, "hugepages-2048kB");

/// Whether an arena should consist of huge pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum HugePages {
    /// Whatever the file has by itself.
    #[default]
    Unasked,
    /// Where the system allows it; [`Arena::page_size`](crate::Arena::page_size) tells what became of it.
    IfPossible,
    /// Or there is no arena.
    Required,
}

/// What an arena's memory consists of.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PageSize {
    /// Bytes in a page. For transparent huge pages the size that the system uses where it can.
    pub bytes: u64,
    /// Whether these are huge pages.
    pub huge: bool,
    /// Why they are not, where they were asked for.
    pub why_not: Option<String>,
}

impl fmt::Display for PageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pages of {}", Bytes(self.bytes))?;
        match &self.why_not {
            Some(reason) => write!(f, " and not huge ones: {reason}"),
            None => Ok(()),
        }
    }
}

fn small() -> u64 {
    rustix::param::page_size() as u64
}

/// What a file consists of. Only files on a hugetlbfs have other than the system's pages.
pub(super) fn of_file(backing: &Backing) -> u64 {
    let page = fstatfs(backing).ok().and_then(|volume| {
        (volume.f_type as u64 == HUGETLBFS).then(|| u64::try_from(volume.f_bsize).ok())?
    });
    page.filter(|page| page.is_power_of_two())
        .map_or_else(small, |page| page.max(small()))
}

impl Segment {
    /// Bytes in what memory is taken and given back by.
    pub(crate) fn page(&self) -> u64 {
        self.page
    }

    /// Asks the system for huge pages, if `asked`, and says what there is.
    pub(crate) fn use_huge_pages(&self, asked: bool) -> PageSize {
        if self.page > small() {
            return PageSize {
                bytes: self.page,
                huge: true,
                why_not: None,
            };
        }
        let why_not = if asked {
            self.advise_huge().err()
        } else {
            None
        };
        let huge = asked && why_not.is_none();
        PageSize {
            bytes: if huge { PMD.0 } else { small() },
            huge,
            why_not,
        }
    }

    fn advise_huge(&self) -> std::result::Result<(), String> {
        self.allows_huge()?;
        self.map
            .advise(Advice::HugePage)
            .map_err(|error| format!("madvise(MADV_HUGEPAGE) answered \"{error}\""))?;
        // Relaxed: it decides how memory is taken, not whether.
        self.advised.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// What the settings say about transparent huge pages in this file.
    fn allows_huge(&self) -> std::result::Result<(), String> {
        let volume = fstatfs(&self.backing).map_err(|errno| errno.to_string())?;
        if volume.f_type as u64 != TMPFS {
            return Err(
                "the file system of the arena is neither a hugetlbfs nor a tmpfs".to_owned(),
            );
        }
        let shared = format!("{TRANSPARENT}/shmem_enabled");
        let setting = chosen(&shared).ok_or("the kernel has no transparent huge pages")?;
        if self.backing.path().is_some() && !matches!(setting.as_str(), "force" | "deny") {
            return self.mount_allows_huge();
        }
        let of_size = format!("{TRANSPARENT}/{}/shmem_enabled", PMD.1);
        let of_size = chosen(&of_size).filter(|setting| setting != "inherit");
        let setting = of_size.unwrap_or(setting);
        if matches!(setting.as_str(), "never" | "deny") {
            return Err(format!(
                "{shared} is {setting}; write \"advise\" into it, or use a directory on a hugetlbfs"
            ));
        }
        Ok(())
    }

    /// A tmpfs that is mounted has its own setting.
    fn mount_allows_huge(&self) -> std::result::Result<(), String> {
        let device = fstat(&self.backing)
            .map_err(|errno| errno.to_string())?
            .st_dev;
        let device = format!("{}:{}", major(device), minor(device));
        let mounts = read_to_string("/proc/self/mountinfo").unwrap_or_default();
        match huge_option(&mounts, &device) {
            Some("always" | "within_size" | "advise") => Ok(()),
            _ => Err(
                "its tmpfs is mounted without huge pages; mount it with -o huge=advise, or use a directory on a hugetlbfs"
                    .to_owned(),
            ),
        }
    }

    /// Takes memory through the mapping, where the system was asked for huge pages. What does not work, or not with huge
    /// pages, is left to what comes next.
    pub(super) fn take_huge(&self, offset: u64, len: u64) {
        if self.advised.load(Ordering::Relaxed) {
            let _ = self.populate(offset, len);
        }
    }

    fn populate(&self, offset: u64, len: u64) -> std::io::Result<()> {
        self.map
            .advise_range(Advice::PopulateWrite, offset as usize, len as usize)
    }

    /// Makes a committed range of whole pages this process's own to reach without a page fault.
    ///
    /// # Errors
    /// When the range is not inside the arena.
    pub(crate) fn touch(&self, offset: u64, len: u64) -> Result<()> {
        self.check_pages("touching", offset, len)?;
        // Older than Linux 5.14, or interrupted: by hand.
        if self.populate(offset, len).is_err() {
            for page in (offset..offset + len).step_by(small() as usize) {
                self.word(page).fetch_or(0, Ordering::Relaxed);
            }
        }
        Ok(())
    }
}

/// Refuses what is not what was demanded.
pub(crate) fn demand(found: &PageSize) -> Result<()> {
    match &found.why_not {
        Some(reason) => Err(Error::new(
            crate::error::ErrorKind::Unsupported,
            format!("huge pages were demanded, and there are none: {reason}"),
        )),
        None => Ok(()),
    }
}

/// The word in brackets, in a file that lists all that may be chosen.
fn chosen(path: &str) -> Option<String> {
    in_brackets(&read_to_string(path).ok()?)
}

fn in_brackets(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

/// The option `huge` of the mount of that device, in the text of a mountinfo.
fn huge_option<'a>(mounts: &'a str, device: &str) -> Option<&'a str> {
    let line = mounts
        .lines()
        .find(|line| line.split(' ').nth(2) == Some(device))?;
    let options = line.rsplit(' ').next()?;
    options
        .split(',')
        .find_map(|option| option.strip_prefix("huge="))
}

#[cfg(test)]
mod tests {
    use super::{huge_option, in_brackets};

    #[test]
    fn settings_are_read_as_the_kernel_writes_them() {
        let shared = "always within_size advise [never] deny force\n";
        assert_eq!(in_brackets(shared).as_deref(), Some("never"));
        assert_eq!(in_brackets("none"), None);
        let mounts = "30 24 0:25 / /dev/shm rw - tmpfs tmpfs rw\n\
                      31 24 0:44 / /mnt/huge rw - tmpfs none rw,size=8192k,huge=advise\n";
        assert_eq!(huge_option(mounts, "0:44"), Some("advise"));
        assert_eq!(huge_option(mounts, "0:25"), None);
        assert_eq!(huge_option(mounts, "0:99"), None);
    }
}
