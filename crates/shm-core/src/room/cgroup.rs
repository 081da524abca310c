//! Where this process's memory cgroups are: its own and every ancestor that can be seen, in version 1 or version 2 of the interface.
//!
//! A process is charged at each level up to the root, so each level's limit counts. Inside a container the path in /proc/self/cgroup often names a place
//! that the container cannot see; the mount point is then the container's own cgroup, and the only one to ask.

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    One,
    Two,
}

/// One memory cgroup that this process is charged to, by the files that tell about it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Level {
    pub(super) version: Version,
    pub(super) limit: PathBuf,
    pub(super) usage: PathBuf,
    pub(super) stat: PathBuf,
    /// Version 1 only: the limit on memory and swap together, and its usage.
    pub(super) with_swap: Option<(PathBuf, PathBuf)>,
}

impl Level {
    fn at(version: Version, directory: &Path) -> Self {
        let file = |name| directory.join(name);
        match version {
            Version::One => Self {
                version,
                limit: file("memory.limit_in_bytes"),
                usage: file("memory.usage_in_bytes"),
                stat: file("memory.stat"),
                with_swap: Some((
                    file("memory.memsw.limit_in_bytes"),
                    file("memory.memsw.usage_in_bytes"),
                )),
            },
            Version::Two => Self {
                version,
                limit: file("memory.max"),
                usage: file("memory.current"),
                stat: file("memory.stat"),
                with_swap: None,
            },
        }
    }
}

/// A mounted cgroup hierarchy that may hold the memory controller: what of it is mounted, and where.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    version: Version,
    root: PathBuf,
    point: PathBuf,
}

/// The levels that the process described by the texts of /proc/self/cgroup and /proc/self/mountinfo is charged to, its own first.
///
/// `filesystem` is put before all paths: `/`, or a made-up tree in tests.
pub(super) fn levels(filesystem: &Path, membership: &[u8], mountinfo: &[u8]) -> Vec<Level> {
    let Some((version, path)) = memory_cgroup(membership) else {
        return Vec::new();
    };
    // One hierarchy can be mounted several times; the mount that shows most of our path is the one that shows our own cgroup.
    let visible = |mount: &Mount| inside(&path, &mount.root);
    let mounts: Vec<_> = mounts(mountinfo)
        .into_iter()
        .filter(|mount| mount.version == version)
        .collect();
    let best = mounts
        .iter()
        .filter(|mount| visible(mount).is_some())
        .max_by_key(|mount| visible(mount).map_or(0, |rest| rest.components().count()))
        .or(mounts.first());
    let Some(mount) = best else {
        return Vec::new();
    };
    let point = under(filesystem, &mount.point);
    let rest = visible(mount).unwrap_or(Path::new(""));
    // "a/b" has the ancestors "a/b", "a" and "", and "" is the mount point itself.
    rest.ancestors()
        .map(|part| Level::at(version, &point.join(part)))
        .collect()
}

/// `path`, an absolute one, as it is found below `filesystem`.
pub(super) fn under(filesystem: &Path, path: &Path) -> PathBuf {
    filesystem.join(path.strip_prefix("/").unwrap_or(path))
}

/// The part of `path` below `root`, unless it leads out of what is mounted.
fn inside<'a>(path: &'a Path, root: &Path) -> Option<&'a Path> {
    // A cgroup namespace shows what lies outside it as "/../…".
    let plain = path
        .components()
        .all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    path.strip_prefix(root).ok().filter(|_| plain)
}

/// The memory cgroup in the text of /proc/self/cgroup: lines of `number:controllers:path`, where version 2 is number 0 without controllers.
fn memory_cgroup(membership: &[u8]) -> Option<(Version, PathBuf)> {
    let mut unified = None;
    for line in membership.split(|&byte| byte == b'\n') {
        let mut fields = line.splitn(3, |&byte| byte == b':');
        let (Some(number), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let path = PathBuf::from(OsStr::from_bytes(path));
        if controllers
            .split(|&byte| byte == b',')
            .any(|name| name == b"memory")
        {
            // The controller lives in one hierarchy only; where version 1 has it, version 2 knows no memory.
            return Some((Version::One, path));
        }
        if number == b"0" && controllers.is_empty() {
            unified = Some((Version::Two, path));
        }
    }
    unified
}

/// The cgroup mounts in the text of /proc/self/mountinfo: `id parent major:minor root point options [tags…] - type source superoptions`.
fn mounts(mountinfo: &[u8]) -> Vec<Mount> {
    let mount = |line: &[u8]| {
        let mut fields = line.split(|&byte| byte == b' ');
        let root = unescaped(fields.nth(3)?);
        let point = unescaped(fields.next()?);
        fields.find(|field| *field == b"-")?;
        let kind = fields.next()?;
        let options = fields.nth(1)?;
        let version = match kind {
            b"cgroup2" => Version::Two,
            b"cgroup"
                if options
                    .split(|&byte| byte == b',')
                    .any(|name| name == b"memory") =>
            {
                Version::One
            }
            _ => return None,
        };
        Some(Mount {
            version,
            root,
            point,
        })
    };
    mountinfo
        .split(|&byte| byte == b'\n')
        .filter_map(mount)
        .collect()
}

/// A path of mountinfo, in which space, tab, newline and backslash are written as three octal digits.
fn unescaped(field: &[u8]) -> PathBuf {
    let mut path = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        let escaped = match tail {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] if byte == b'\\' => {
                Some((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'))
            }
            _ => None,
        };
        path.push(escaped.unwrap_or(byte));
        if escaped.is_some() {
            rest = &tail[3..];
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(path))
}

/// A limit or usage as a cgroup file states it; `None` for "max" and for the largest number, which version 1 uses for "no limit".
pub(super) fn amount(text: &[u8]) -> Option<u64> {
    let number: u64 = std::str::from_utf8(text).ok()?.trim().parse().ok()?;
    (number < 1 << 62).then_some(number)
}

/// Bytes of file cache in the text of memory.stat that the kernel can drop when the cgroup needs memory: what is neither dirty nor being written.
///
/// The arena's own pages are not among them: memory files count as anonymous memory there.
pub(super) fn reclaimable(version: Version, stat: &[u8]) -> u64 {
    let field = |name: &str| {
        stat.split(|&byte| byte == b'\n')
            .filter_map(|line| std::str::from_utf8(line).ok()?.split_once(' '))
            .find(|(key, _)| *key == name)
            .and_then(|(_, value)| value.trim().parse::<u64>().ok())
            .unwrap_or(0)
    };
    // In version 1 the plain names leave out the cgroups below, which its usage includes.
    let [inactive, active, dirty, writeback] = match version {
        Version::One => [
            "total_inactive_file",
            "total_active_file",
            "total_dirty",
            "total_writeback",
        ],
        Version::Two => [
            "inactive_file",
            "active_file",
            "file_dirty",
            "file_writeback",
        ],
    }
    .map(field);
    inactive
        .saturating_add(active)
        .saturating_sub(dirty.saturating_add(writeback))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const V1_MOUNT: &[u8] =
        b"35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n";
    const V2_MOUNT: &[u8] =
        b"24 18 0:22 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";

    fn limits(membership: &[u8], mountinfo: &[u8]) -> Vec<String> {
        levels(Path::new("/"), membership, mountinfo)
            .iter()
            .map(|level| level.limit.display().to_string())
            .collect()
    }

    #[test]
    fn every_ancestor_of_a_version_1_cgroup_counts() {
        assert_eq!(
            limits(
                b"9:name=systemd:/\n4:cpu,memory:/a/b\n0::/elsewhere\n",
                V1_MOUNT
            ),
            [
                "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/a/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes"
            ]
        );
    }

    #[test]
    fn every_ancestor_of_a_version_2_cgroup_counts() {
        assert_eq!(
            limits(b"0::/user.slice/odd:name\n", V2_MOUNT),
            [
                "/sys/fs/cgroup/user.slice/odd:name/memory.max",
                "/sys/fs/cgroup/user.slice/memory.max",
                "/sys/fs/cgroup/memory.max"
            ]
        );
    }

    #[test]
    fn a_container_that_sees_only_its_own_part_starts_there() {
        // Mounted without a cgroup namespace: the mount's root is the container's cgroup.
        let mountinfo =
            b"35 31 0:32 /docker/12ab /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        assert_eq!(
            limits(b"4:memory:/docker/12ab/job\n", mountinfo),
            [
                "/sys/fs/cgroup/memory/job/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes"
            ]
        );
    }

    #[test]
    fn a_cgroup_path_that_cannot_be_seen_falls_back_to_the_mount_point() {
        let mountinfo =
            b"35 31 0:32 /docker/12ab /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        assert_eq!(
            limits(b"4:memory:/other\n", mountinfo),
            ["/sys/fs/cgroup/memory/memory.limit_in_bytes"]
        );
        assert_eq!(
            limits(b"0::/../neighbour\n", V2_MOUNT),
            ["/sys/fs/cgroup/memory.max"]
        );
    }

    #[test]
    fn of_several_mounts_the_one_that_shows_our_own_cgroup_is_used() {
        let mountinfo = [
            b"1 0 0:1 /a/b /narrow rw - cgroup2 none rw\n".as_slice(),
            b"2 0 0:1 / /wide\\040place rw - cgroup2 none rw\n",
            b"3 0 0:1 /z /foreign rw - cgroup2 none rw\n",
        ]
        .concat();
        assert_eq!(
            limits(b"0::/a\n", &mountinfo),
            ["/wide place/a/memory.max", "/wide place/memory.max"]
        );
    }

    #[test]
    fn without_cgroups_there_are_no_levels() {
        assert_eq!(levels(Path::new("/"), b"", V1_MOUNT), []);
        assert_eq!(levels(Path::new("/"), b"0::/\n", b""), []);
        assert_eq!(levels(Path::new("/"), b"garbage\n:::\n", b"- - -\n"), []);
    }

    #[test]
    fn no_limit_is_read_as_no_limit() {
        assert_eq!(amount(b"max\n"), None);
        assert_eq!(amount(b"9223372036854771712\n"), None);
        assert_eq!(amount(b"18446744073709551615\n"), None);
        assert_eq!(amount(b""), None);
        assert_eq!(amount(b"67108864\n"), Some(64 << 20));
        assert_eq!(amount(b"0\n"), Some(0));
    }

    #[test]
    fn only_clean_file_cache_is_reclaimable() {
        let one = b"inactive_file 1\ntotal_inactive_file 1000\ntotal_active_file 500\ntotal_dirty 100\ntotal_writeback 50\ntotal_shmem 9\n";
        assert_eq!(reclaimable(Version::One, one), 1350);
        assert_eq!(
            reclaimable(
                Version::Two,
                b"inactive_file 7\nactive_file 5\nfile_dirty 2\n"
            ),
            10
        );
        assert_eq!(
            reclaimable(Version::Two, b"inactive_file 7\nfile_dirty 20\n"),
            0
        );
        assert_eq!(reclaimable(Version::Two, b"inactive_file seven\n\xff\n"), 0);
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parsers_panic(
            membership in proptest::collection::vec(any::<u8>(), 0..200),
            mountinfo in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let _ = levels(Path::new("/"), &membership, &mountinfo);
            let _ = amount(&membership);
            let _ = reclaimable(Version::One, &mountinfo);
        }

        #[test]
        fn levels_never_leave_the_mount_point(path in "(/(\\.\\.|\\.|[a-c]{1,2})){0,5}", root in "(/[a-c]{1,2}){0,3}") {
            let root = if root.is_empty() { "/".into() } else { root };
            let mountinfo = format!("1 0 0:1 {root} /point rw - cgroup2 none rw\n");
            let levels = levels(Path::new("/"), format!("0::{path}\n").as_bytes(), mountinfo.as_bytes());
            prop_assert!(!levels.is_empty());
            for level in levels {
                prop_assert!(level.limit.starts_with("/point"));
                prop_assert!(!level.limit.components().any(|part| part == Component::ParentDir));
            }
        }

        #[test]
        fn escaped_mount_points_come_back_as_they_were(name in "[ -~\t\n]{0,20}") {
            let escaped: String = name
                .chars()
                .map(|c| if " \t\n\\".contains(c) { format!("\\{:03o}", c as u32) } else { c.to_string() })
                .collect();
            prop_assert_eq!(unescaped(escaped.as_bytes()), PathBuf::from(name));
        }
    }
}
