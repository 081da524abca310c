//! Finding the arenas of this user: named ones in directories, and whatever its processes have open or mapped.
//!
//! A memfd has no name to find it by, but the processes that hold it show it in /proc, and /proc also opens it. A
//! process that closed its descriptor still has the mapping; that alone says that the arena is there, and only a
//! privileged process gets at it.
//!
//! Whoever takes part in an arena has it for writing. A look like this one has it for reading, for a moment: another that
//! is made at the same time does not take it for a holder.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, SealFlags, Stat, fcntl_get_seals, lstat, makedev, stat};
use rustix::io::Errno;

use super::{Inspection, look};
use crate::error::{Error, ErrorKind, Result};
use crate::strategy::file_system::{open_looked_at, prefix, sweep::ours_in};
use crate::strategy::{FileDescriptor, FileSystem, SharingStrategy, vetted_size};

/// How /proc shows the memfd of an arena.
const MEMFD: &str = "/memfd:tensormp";

/// What /proc appends to the name of a file that has none any more; memfds never had one.
const DELETED: &str = " (deleted)";

/// An arena, or a file that looks like one from outside.
#[derive(Debug)]
#[non_exhaustive]
pub struct Seen {
    /// The name of the strategy by which it was made.
    pub strategy: &'static str,
    /// Its file; `None` for a memfd, and for a file whose name is gone.
    pub path: Option<PathBuf>,
    /// The processes of this user that have it open or mapped for writing, as far as /proc shows them, by pid.
    pub holders: Vec<u32>,
    /// What is in it, or why that can't be told: it is somebody else's, of another version, or no arena at all.
    pub contents: Result<Inspection>,
}

/// Device and inode: which file it is.
type Key = (u64, u64);

/// The arenas of this user: the named ones in `directories`, and those that its processes have open or mapped, named or
/// not. Those with a path come first, by path; the others by their first holder.
///
/// Files in the directories that have an arena's name but are none are among the answers, with the reason as their
/// contents. Other files are passed over.
///
/// # Errors
/// When a directory can't be read.
///
/// ```
/// use shm_core::{Arena, inspect};
///
/// let arena = Arena::builder().capacity(1 << 30).create()?; // a memfd, without a name
/// let here = std::process::id();
/// let seen = inspect::find::<&str>(&[])?;
/// assert!(seen.iter().any(|seen| seen.path.is_none() && seen.holders == [here]));
/// # Ok::<(), shm_core::Error>(())
/// ```
pub fn find<P: AsRef<Path>>(directories: &[P]) -> Result<Vec<Seen>> {
    let mut all = BTreeMap::new();
    for directory in directories {
        for path in ours_in(directory.as_ref())? {
            if let Some((key, seen)) = named(path) {
                all.entry(key).or_insert(seen);
            }
        }
    }
    for pid in processes() {
        opened_by(pid, &mut all);
        mapped_by(pid, &mut all);
    }
    let mut all: Vec<_> = all.into_values().collect();
    all.sort_by(|a, b| {
        let order = |seen: &Seen| (seen.path.is_none(), seen.path.clone(), seen.holders.clone());
        order(a).cmp(&order(b))
    });
    Ok(all)
}

/// What has an arena's name in a directory; `None` if it went away meanwhile.
fn named(path: PathBuf) -> Option<(Key, Seen)> {
    // Not followed: a link is none of our files, whatever it points to.
    let key = key_of(&lstat(&path).ok()?);
    let opened = open_looked_at(&path, OFlags::NOFOLLOW, reading());
    if opened
        .as_ref()
        .is_err_and(|error| *error.kind() == ErrorKind::NotFound)
    {
        return None;
    }
    let contents = opened.and_then(|(file, stat)| inside(&file, &stat, &path));
    let seen = Seen {
        strategy: FileSystem::new().name(),
        path: Some(path),
        holders: Vec::new(),
        contents,
    };
    Some((key, seen))
}

/// What is in a file that was found at `place`.
fn inside(file: &OwnedFd, stat: &Stat, place: &Path) -> Result<Inspection> {
    vetted_size(file)
        .map_err(|error| error.while_doing(format_args!("looking at {}", place.display())))?;
    look(file, stat, place)
}

/// Looks at the descriptors of a process. Nothing is found where they may not be seen.
fn opened_by(pid: u32, all: &mut BTreeMap<Key, Seen>) {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd"));
    for entry in descriptors.into_iter().flatten().flatten() {
        let link = entry.path();
        let Ok(target) = fs::read_link(&link) else {
            continue;
        };
        if !looks_like_ours(target.as_os_str().as_bytes()) || !is_for_writing(&link) {
            continue;
        }
        let Ok(stat) = stat(&link) else { continue };
        if let Some(known) = all.get_mut(&key_of(&stat)) {
            add(&mut known.holders, pid);
            continue;
        }
        let opened = open_looked_at(&link, OFlags::empty(), reading());
        // Whatever the descriptor has become meanwhile, what was opened is what was looked at.
        let Ok((file, stat)) = opened else { continue };
        let sealed = fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
        let strategy: &dyn SharingStrategy = match sealed {
            true => &FileDescriptor,
            false => &FileSystem::new(),
        };
        let named = !sealed && stat.st_nlink > 0;
        let place = match named {
            true => target.clone(),
            false => link,
        };
        let contents = inside(&file, &stat, &place);
        let seen = Seen {
            strategy: strategy.name(),
            path: named.then_some(target),
            holders: vec![pid],
            contents,
        };
        all.insert(key_of(&stat), seen);
    }
}

/// Whether a descriptor was opened for writing: the link to it in /proc has that as its mode (`proc_pid_fd(5)`).
fn is_for_writing(link: &Path) -> bool {
    lstat(link).is_ok_and(|stat| Mode::from_raw_mode(stat.st_mode).contains(Mode::WUSR))
}

/// Looks at the mappings of a process, which stay when a descriptor was closed.
fn mapped_by(pid: u32, all: &mut BTreeMap<Key, Seen>) {
    let Ok(maps) = fs::read(format!("/proc/{pid}/maps")) else {
        return;
    };
    for line in maps.split(|&byte| byte == b'\n') {
        let Some((range, key, name)) = mapping(line).filter(|(_, _, name)| looks_like_ours(name))
        else {
            continue;
        };
        if let Some(known) = all.get_mut(&key) {
            add(&mut known.holders, pid);
        } else if name.starts_with(MEMFD.as_bytes()) {
            let link = PathBuf::from(format!("/proc/{pid}/map_files/{range}"));
            let contents = open_looked_at(&link, OFlags::empty(), reading())
                .map_err(|error| mapped_only(pid, error))
                .and_then(|(file, stat)| inside(&file, &stat, &link));
            let seen = Seen {
                strategy: FileDescriptor.name(),
                path: None,
                holders: vec![pid],
                contents,
            };
            all.insert(key, seen);
        }
    }
}

fn mapped_only(pid: u32, error: Error) -> Error {
    Error::system(
        "open",
        Errno::PERM,
        format!(
            "process {pid} has an arena mapped, but no descriptor of it any more, so that only a process with CAP_SYS_ADMIN can look into it"
        ),
    )
    .because(error)
}

/// Range, file and name of a line of /proc/PID/maps: `from-to perms offset major:minor inode   name`; none of what is
/// mapped for reading only.
fn mapping(line: &[u8]) -> Option<(&str, Key, &[u8])> {
    let mut fields = line.splitn(6, |&byte| byte == b' ');
    let range = std::str::from_utf8(fields.next()?).ok()?;
    if !fields.next()?.contains(&b'w') {
        return None;
    }
    let device = std::str::from_utf8(fields.nth(1)?).ok()?;
    let inode = std::str::from_utf8(fields.next()?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let number = |digits| u32::from_str_radix(digits, 16).ok();
    let device = makedev(number(major)?, number(minor)?);
    let name = fields.next()?.trim_ascii_start();
    Some((range, (device, inode.parse().ok()?), name))
}

/// Whether /proc calls a file as an arena of this user is called.
fn looks_like_ours(target: &[u8]) -> bool {
    if let Some(rest) = target.strip_prefix(MEMFD.as_bytes()) {
        return rest.is_empty() || rest == DELETED.as_bytes();
    }
    let name = Path::new(OsStr::from_bytes(target)).file_name();
    name.is_some_and(|name| {
        let name = name.as_bytes();
        name.strip_prefix(b".")
            .unwrap_or(name)
            .starts_with(prefix().as_bytes())
    })
}

/// For reading, and without a trace of it in the file's times.
fn reading() -> OFlags {
    OFlags::RDONLY | OFlags::NOATIME
}

fn key_of(stat: &Stat) -> Key {
    (stat.st_dev, stat.st_ino)
}

fn add(holders: &mut Vec<u32>, pid: u32) {
    if !holders.contains(&pid) {
        holders.push(pid);
    }
}

fn processes() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids: Vec<u32> = entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    pids.sort_unstable();
    pids
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_maps_is_taken_apart() {
        let line = b"7f0-7f9 rw-s 00000000 00:01 1029   /memfd:tensormp (deleted)";
        let (range, key, name) = mapping(line).unwrap();
        assert_eq!((range, key), ("7f0-7f9", (makedev(0, 1), 1029)));
        assert!(looks_like_ours(name));
        for other in [
            &b""[..],
            b"7f0-7f9 rw-p 00000000 00:00 0 ",
            b"7f0-7f9 rw-p 0 xx:yy 3 /a",
            b"7f0-7f9 r--s 00000000 00:01 1029   /memfd:tensormp (deleted)",
        ] {
            assert!(mapping(other).is_none_or(|(_, _, name)| !looks_like_ours(name)));
        }
    }

    #[test]
    fn only_names_that_we_give_look_like_ours() {
        let ours = format!("/a/b/{}camera", prefix());
        let hidden = format!("/a/.{}12.new (deleted)", prefix());
        for target in [
            "/memfd:tensormp (deleted)",
            "/memfd:tensormp",
            &ours,
            &hidden,
        ] {
            assert!(looks_like_ours(target.as_bytes()), "{target}");
        }
        for target in [
            "/memfd:tensormp2 (deleted)",
            "/a/tensormp",
            "socket:[7]",
            "",
        ] {
            assert!(!looks_like_ours(target.as_bytes()), "{target}");
        }
    }
}
