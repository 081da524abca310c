//! Where named arenas are looked for.

use std::fs;
use std::path::PathBuf;

use shm_core::strategy::file_system::DEFAULT_DIRECTORY;

use crate::output::complain;

/// The directories to look in, and whether all that were asked for can be read.
///
/// Without a choice these are /dev/shm and what hugetlbfs is mounted, as far as they are there and may be read: arenas
/// in other directories are found as long as a process has them open.
pub(crate) fn to_search(chosen: &[PathBuf]) -> (Vec<PathBuf>, bool) {
    if chosen.is_empty() {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let mut directories = vec![PathBuf::from(DEFAULT_DIRECTORY)];
        directories.extend(hugetlbfs(&mounts));
        directories.retain(|directory| fs::read_dir(directory).is_ok());
        return (directories, true);
    }
    let mut readable = Vec::new();
    for directory in chosen {
        match fs::read_dir(directory) {
            Ok(_) => readable.push(directory.clone()),
            Err(error) => complain(format_args!(
                "{} cannot be read: {error}",
                directory.display()
            )),
        }
    }
    let all = readable.len() == chosen.len();
    (readable, all)
}

/// The mount points of hugetlbfs in the text of /proc/self/mounts: `device point type options 0 0`.
pub(crate) fn hugetlbfs(mounts: &str) -> Vec<PathBuf> {
    mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let point = fields.next()?;
            // Space, tab, newline and backslash are written as three octal digits.
            let point = [
                ("\\040", " "),
                ("\\011", "\t"),
                ("\\012", "\n"),
                ("\\134", "\\"),
            ]
            .iter()
            .fold(point.to_owned(), |point, (code, text)| {
                point.replace(code, text)
            });
            (fields.next()? == "hugetlbfs").then(|| point.into())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_of_huge_pages_are_found() {
        let mounts = "tmpfs /dev/shm tmpfs rw 0 0\nhugetlbfs /dev/hugepages hugetlbfs rw 0 0\nx /a\\040b hugetlbfs rw 0 0\n\nbroken\n";
        assert_eq!(
            hugetlbfs(mounts),
            [PathBuf::from("/dev/hugepages"), PathBuf::from("/a b")]
        );
    }
}
