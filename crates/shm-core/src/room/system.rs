//! The limits of this machine: memory cgroups, what the kernel calls available, and the size of the file system behind a named file.
//!
//! Asking must stay cheap, since each new piece of the arena asks: the cgroup files' paths are found once and kept until the process is moved, unlimited
//! levels cost one short read, and the long statistics are only read when the short answer would be "no".

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rustix::buffer::spare_capacity;
use rustix::fs::{Mode, OFlags, fstatfs, open};
use rustix::io::{Errno, read};

use super::cgroup::{self, Level};
use super::{Limit, Limits};
use crate::error::{Bytes, Error, Result};

const TMPFS: u64 = 0x0102_1994;
const HUGETLBFS: u64 = 0x9584_58f6;
const RAMFS: u64 = 0x8584_58f6;

const CGROUP_HINT: &str = "raise that limit (docker: --memory, Kubernetes: resources.limits.memory, systemd: MemoryMax), or keep fewer tensors alive at a time";
const HUGE_HINT: &str =
    "set more of them apart (`sysctl vm.nr_hugepages`), or keep fewer tensors alive at a time";
const MACHINE_HINT: &str =
    "end other programs, use a machine with more memory, or keep fewer tensors alive at a time";
const FILE_HINT: &str = "enlarge that file system (docker: --shm-size), choose another directory, or use the strategy file_descriptor, which needs none";

/// The limits as the system states them.
#[derive(Debug)]
pub struct SystemLimits {
    filesystem: PathBuf,
    membership: PathBuf,
    meminfo: PathBuf,
    known: Mutex<Known>,
}

/// The cgroups as they were when /proc/self/cgroup had this text.
#[derive(Debug, Default)]
struct Known {
    membership: Vec<u8>,
    levels: Arc<[Level]>,
}

impl SystemLimits {
    /// This process's own, shared by all that ask.
    #[must_use]
    pub fn shared() -> Arc<Self> {
        static SHARED: OnceLock<Arc<SystemLimits>> = OnceLock::new();
        Arc::clone(SHARED.get_or_init(|| Arc::new(Self::below(Path::new("/")))))
    }

    /// The limits that the files below `filesystem` state: `/`, or a made-up tree in tests.
    fn below(filesystem: &Path) -> Self {
        Self {
            filesystem: filesystem.to_owned(),
            membership: filesystem.join("proc/self/cgroup"),
            meminfo: filesystem.join("proc/meminfo"),
            known: Mutex::default(),
        }
    }

    /// This process's cgroups, looked up again when it was moved.
    fn levels(&self) -> Result<Arc<[Level]>> {
        let mut text = Vec::with_capacity(1024);
        read_whole(&self.membership, &mut text)?;
        let mut known = self.known.lock();
        if known.membership != text {
            let mut mountinfo = Vec::with_capacity(16 << 10);
            read_whole(&self.filesystem.join("proc/self/mountinfo"), &mut mountinfo)?;
            known.levels = cgroup::levels(&self.filesystem, &text, &mountinfo).into();
            known.membership = text;
        }
        Ok(Arc::clone(&known.levels))
    }

    fn each_cgroup(&self, needed: u64, see: &mut dyn FnMut(Limit<'_>)) -> Result<()> {
        for level in self.levels()?.iter() {
            let plain = (&level.limit, &level.usage);
            let with_swap = level
                .with_swap
                .as_ref()
                .map(|(limit, usage)| (limit, usage));
            for (limit_file, usage_file) in [Some(plain), with_swap].into_iter().flatten() {
                // The kernel keeps the limit with swap at or above the one without, so where that is none, both are.
                let Some(limit) = read_amount(limit_file)? else {
                    break;
                };
                let Some(usage) = read_amount(usage_file)? else {
                    continue;
                };
                let reserve = reserve_of(limit);
                let mut free = limit.saturating_sub(usage);
                if free < needed.saturating_add(reserve) {
                    let mut stat = Vec::with_capacity(8 << 10);
                    read_whole(&level.stat, &mut stat)?;
                    let reclaimable = cgroup::reclaimable(level.version, &stat);
                    free = limit
                        .saturating_add(reclaimable)
                        .saturating_sub(usage)
                        .min(limit);
                }
                let name = format_args!(
                    "the memory limit of {} in {}",
                    Bytes(limit),
                    limit_file.display()
                );
                see(Limit {
                    name: &name,
                    free,
                    reserve,
                    hint: CGROUP_HINT,
                });
            }
        }
        Ok(())
    }

    /// A hugetlbfs without a limit of its own takes from the pages that the machine has set apart.
    fn huge_pages(&self, page: u64, see: &mut dyn FnMut(Limit<'_>)) -> Result<()> {
        let pool = format!("sys/kernel/mm/hugepages/hugepages-{}kB", page / 1024);
        let Some(pages) = read_amount(&self.filesystem.join(pool).join("free_hugepages"))? else {
            return Ok(());
        };
        let name = format_args!("the machine's huge pages of {}", Bytes(page));
        // The kernel itself refuses exactly at this limit.
        see(Limit {
            name: &name,
            free: pages.saturating_mul(page),
            reserve: 0,
            hint: HUGE_HINT,
        });
        Ok(())
    }

    fn machine(&self, see: &mut dyn FnMut(Limit<'_>)) -> Result<()> {
        // MemTotal and MemAvailable are in the first three lines.
        let mut head = [0; 256];
        let Some(text) = read_head(&self.meminfo, &mut head)? else {
            return Ok(());
        };
        // Before Linux 3.14 there is no MemAvailable, and in a sandbox perhaps no meminfo.
        let Some(available) = kilobytes(text, "MemAvailable:") else {
            return Ok(());
        };
        let total = kilobytes(text, "MemTotal:").unwrap_or(available);
        let name = format_args!("the machine's memory of {} (MemAvailable)", Bytes(total));
        see(Limit {
            name: &name,
            free: available,
            reserve: reserve_of(total),
            hint: MACHINE_HINT,
        });
        Ok(())
    }
}

impl Limits for SystemLimits {
    fn each(
        &self,
        needed: u64,
        file: BorrowedFd<'_>,
        see: &mut dyn FnMut(Limit<'_>),
    ) -> Result<()> {
        let volume = fstatfs(file).map_err(|errno| {
            Error::system(
                "fstatfs",
                errno,
                "asking how much room the arena's file system has",
            )
        })?;
        // A memfd's file system has no size; a hugetlbfs without a limit states 0 or all ones.
        if volume.f_blocks != 0 && volume.f_blocks != u64::MAX {
            let unit = u64::try_from(volume.f_bsize).unwrap_or(0);
            let free = volume.f_bavail.saturating_mul(unit);
            let name = Volume {
                file,
                size: volume.f_blocks.saturating_mul(unit),
            };
            // The kernel itself refuses exactly at this limit, so nothing needs to be kept.
            see(Limit {
                name: &name,
                free,
                reserve: 0,
                hint: FILE_HINT,
            });
        }
        if volume.f_type as u64 == HUGETLBFS {
            self.huge_pages(u64::try_from(volume.f_bsize).unwrap_or(0), see)?;
        }
        // Only what lives in ordinary memory is charged to cgroups; huge pages are set apart, and a disk's pages can be written out.
        if matches!(volume.f_type as u64, TMPFS | RAMFS) {
            self.each_cgroup(needed, see)?;
            self.machine(see)?;
        }
        Ok(())
    }
}

/// The file system behind a file, by the file's name, which is only looked up when it is printed.
struct Volume<'a> {
    file: BorrowedFd<'a>,
    size: u64,
}

impl fmt::Display for Volume<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let link = format!("/proc/self/fd/{}", self.file.as_fd().as_raw_fd());
        let size = Bytes(self.size);
        match std::fs::read_link(link) {
            Ok(path) => write!(f, "the file system of {size} that holds {}", path.display()),
            Err(_) => write!(f, "the file system of {size} that holds the arena"),
        }
    }
}

/// What is kept free below a limit of `total`: a 64th, between 4 and 256 MiB. Programs need a little memory to go on, and counters lag behind by some pages
/// per CPU.
fn reserve_of(total: u64) -> u64 {
    (total / 64).clamp(4 << 20, 256 << 20)
}

/// The number in a line of /proc/meminfo, in bytes.
fn kilobytes(text: &[u8], key: &str) -> Option<u64> {
    let mut lines = std::str::from_utf8(text).ok()?.lines();
    let line = lines.find_map(|line| line.strip_prefix(key))?;
    line.trim()
        .strip_suffix("kB")?
        .trim()
        .parse::<u64>()
        .ok()?
        .checked_mul(1024)
}

fn read_amount(path: &Path) -> Result<Option<u64>> {
    let mut text = [0; 32];
    Ok(read_head(path, &mut text)?.and_then(cgroup::amount))
}

/// The first bytes of a file, in one read; `None` if there is no such file, or a sandbox hides it.
fn read_head<'a>(path: &Path, buffer: &'a mut [u8]) -> Result<Option<&'a [u8]>> {
    let answer = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .and_then(|file| rustix::io::retry_on_intr(|| read(&file, &mut *buffer)));
    match answer {
        Ok(len) => Ok(Some(&buffer[..len])),
        Err(errno) => absent(errno, path).map(|()| None),
    }
}

/// All of a file; nothing if there is no such file, or a sandbox hides it.
fn read_whole(path: &Path, text: &mut Vec<u8>) -> Result<()> {
    let answer = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).and_then(|file| {
        loop {
            text.reserve(1024);
            match read(&file, spare_capacity(text)) {
                Ok(0) => return Ok(()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    });
    answer.or_else(|errno| absent(errno, path))
}

/// A limit that can't be read is taken for one that isn't there (cgroups go away, sandboxes hide them), except where we could read it with a descriptor free.
fn absent(errno: Errno, path: &Path) -> Result<()> {
    match errno {
        Errno::MFILE | Errno::NFILE => Err(Error::system(
            "open",
            errno,
            format!("reading the limit in {}", path.display()),
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::room::ensure;
    use std::fs;
    use tempfile::TempDir;

    const MIB: u64 = 1 << 20;

    /// A made-up file system with the files that limits are read from.
    struct Tree(TempDir);

    impl Tree {
        fn new(membership: &str, mountinfo: &str, available_kb: u64) -> Self {
            let tree = Self(tempfile::tempdir().unwrap());
            tree.write("proc/self/cgroup", membership);
            tree.write("proc/self/mountinfo", mountinfo);
            tree.write(
                "proc/meminfo",
                &format!("MemTotal:       24683652 kB\nMemFree:  1 kB\nMemAvailable:   {available_kb} kB\n"),
            );
            tree
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn v1(&self, cgroup: &str, limit: u64, usage: u64, cache: u64) {
            let dir = format!("sys/fs/cgroup/memory/{cgroup}");
            self.write(
                &format!("{dir}/memory.limit_in_bytes"),
                &format!("{limit}\n"),
            );
            self.write(
                &format!("{dir}/memory.usage_in_bytes"),
                &format!("{usage}\n"),
            );
            self.write(
                &format!("{dir}/memory.stat"),
                &format!("total_inactive_file {cache}\n"),
            );
        }

        fn v2(&self, cgroup: &str, limit: &str, usage: u64, cache: u64) {
            let dir = format!("sys/fs/cgroup/{cgroup}");
            self.write(&format!("{dir}/memory.max"), &format!("{limit}\n"));
            self.write(&format!("{dir}/memory.current"), &format!("{usage}\n"));
            self.write(
                &format!("{dir}/memory.stat"),
                &format!("active_file {cache}\n"),
            );
        }

        fn limits(&self) -> SystemLimits {
            SystemLimits::below(self.0.path())
        }
    }

    const V1: &str = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
    const V2: &str = "24 18 0:22 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
    const NO_LIMIT: u64 = 9_223_372_036_854_771_712;

    fn memfd() -> std::os::fd::OwnedFd {
        rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap()
    }

    /// The limit that refuses `asked`, and what it leaves.
    fn refusal(limits: &SystemLimits, asked: u64) -> Option<(String, u64)> {
        let error = ensure(limits, asked, memfd().as_fd()).err()?;
        let ErrorKind::OutOfRoom(shortage) = error.kind() else {
            panic!("{error}")
        };
        assert_eq!(shortage.asked, asked);
        Some((shortage.limit.clone(), shortage.free))
    }

    #[test]
    fn a_version_1_limit_minus_usage_plus_cache_minus_reserve_is_what_may_be_taken() {
        let tree = Tree::new("4:memory:/job\n", V1, 1 << 30);
        tree.v1("job", 64 * MIB, 40 * MIB, 10 * MIB);
        tree.v1("", NO_LIMIT, 900 * MIB, 0);
        let limits = tree.limits();
        assert_eq!(refusal(&limits, 30 * MIB), None);
        let (limit, free) = refusal(&limits, 30 * MIB + 1).unwrap();
        assert_eq!(free, 30 * MIB);
        assert!(
            limit.ends_with("sys/fs/cgroup/memory/job/memory.limit_in_bytes"),
            "{limit}"
        );
    }

    #[test]
    fn an_ancestors_limit_counts_as_much_as_our_own() {
        let tree = Tree::new("0::/slice/job\n", V2, 1 << 30);
        tree.v2("slice/job", "max", 10 * MIB, 0);
        tree.v2("slice", "134217728", 100 * MIB, 0);
        let limits = tree.limits();
        assert_eq!(refusal(&limits, 24 * MIB), None);
        let (limit, free) = refusal(&limits, 25 * MIB).unwrap();
        assert_eq!(free, 24 * MIB);
        assert!(limit.ends_with("sys/fs/cgroup/slice/memory.max"), "{limit}");
    }

    #[test]
    fn the_limit_on_memory_and_swap_together_counts() {
        let tree = Tree::new("4:memory:/job\n", V1, 1 << 30);
        tree.v1("job", 640 * MIB, 40 * MIB, 0);
        tree.write(
            "sys/fs/cgroup/memory/job/memory.memsw.limit_in_bytes",
            "671088640\n",
        );
        tree.write(
            "sys/fs/cgroup/memory/job/memory.memsw.usage_in_bytes",
            "629145600\n",
        );
        let (limit, free) = refusal(&tree.limits(), 100 * MIB).unwrap();
        assert_eq!(free, 30 * MIB);
        assert!(limit.ends_with("memory.memsw.limit_in_bytes"), "{limit}");
    }

    #[test]
    fn available_memory_is_a_limit_too() {
        let tree = Tree::new("", "", 300 << 10);
        let (limit, free) = refusal(&tree.limits(), 60 * MIB).unwrap();
        assert_eq!(free, 44 * MIB);
        assert!(limit.contains("MemAvailable"), "{limit}");
    }

    #[test]
    fn a_process_moved_to_another_cgroup_is_measured_there() {
        let tree = Tree::new("0::/wide\n", V2, 1 << 30);
        tree.v2("wide", "max", 0, 0);
        tree.v2("tight", "67108864", 0, 0);
        let limits = tree.limits();
        assert_eq!(refusal(&limits, 100 * MIB), None);
        tree.write("proc/self/cgroup", "0::/tight\n");
        assert_eq!(refusal(&limits, 100 * MIB).unwrap().1, 60 * MIB);
    }

    #[test]
    fn a_limit_raised_or_lowered_while_running_is_seen() {
        let tree = Tree::new("0::/job\n", V2, 1 << 30);
        tree.v2("job", "67108864", 0, 0);
        let limits = tree.limits();
        assert!(refusal(&limits, 100 * MIB).is_some());
        tree.v2("job", "max", 0, 0);
        assert_eq!(refusal(&limits, 100 * MIB), None);
        tree.v2("job", "0", 10, 0);
        assert_eq!(refusal(&limits, 1).unwrap().1, 0);
    }

    #[test]
    fn a_system_that_states_no_limits_has_none() {
        let empty = Tree(tempfile::tempdir().unwrap());
        assert_eq!(refusal(&empty.limits(), 1 << 60), None);
        let torn = Tree::new("0::/job\n", V2, 1 << 30);
        torn.write("sys/fs/cgroup/job/memory.max", "\n");
        assert_eq!(refusal(&torn.limits(), 1 << 30), None);
    }

    #[test]
    fn a_named_files_own_file_system_is_a_limit_and_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let file = fs::File::create(directory.path().join("arena")).unwrap();
        let error = ensure(&*SystemLimits::shared(), 1 << 60, file.as_fd()).unwrap_err();
        let ErrorKind::OutOfRoom(shortage) = error.kind() else {
            panic!("{error}")
        };
        assert!(
            shortage.limit.contains(directory.path().to_str().unwrap()),
            "{error}"
        );
    }

    #[test]
    fn this_machine_has_room_for_a_page_and_not_for_an_exabyte() {
        let limits = SystemLimits::shared();
        assert_eq!(refusal(&limits, 4096), None);
        assert!(refusal(&limits, 1 << 60).is_some());
    }
}
