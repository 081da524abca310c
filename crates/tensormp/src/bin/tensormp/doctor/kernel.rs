//! What the kernel, or the sandbox around this process, lets tensormp do.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicU32;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use rustix::thread::{ClockId, futex};
use shm_core::participant::liveness::Identity;
use shm_core::participant::lock::RowLocks;
use shm_core::segment::ForkPage;

use super::Line;
use super::Status::{self, Good, Note, Problem};

/// The oldest kernel that has all that is needed.
const OLDEST: (u32, u32) = (5, 4);

pub(super) fn check() -> Vec<Line> {
    vec![
        version(),
        proc(),
        seals(),
        no_exec_seal(),
        pidfd(),
        shared_futex(),
        futex_waitv(),
        lock(),
        wipe_on_fork(),
        dont_dump(),
        populate(),
    ]
}

fn version() -> Line {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy();
    let status = match parsed(&release) {
        Some(version) if version < OLDEST => Problem,
        Some(_) => Good,
        None => Note,
    };
    Line::new(
        "version",
        status,
        format!("Linux {release}"),
        "5.4 or newer is needed; what newer kernels add is tried below.",
    )
    .change("boot a newer kernel; a container has that of its host")
}

/// The first two numbers of a release like "6.18.44-generic".
fn parsed(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn proc() -> Line {
    let (status, found) = match Identity::of_self() {
        Err(error) => (Problem, error.to_string()),
        Ok(_) => {
            let own = getpid().as_raw_pid().to_string();
            match fs::read_link("/proc/self").is_ok_and(|link| link.as_os_str() == own.as_str()) {
                true => (
                    Good,
                    "mounted, and shows the pids of this process's namespace".into(),
                ),
                false => (Note, "mounted, but shows another pid namespace".into()),
            }
        }
    };
    Line::new(
        "/proc",
        status,
        found,
        "It tells a process from a later one with the same pid, so that the dead are known from the living.",
    )
    .change("mount proc, in the pid namespace of the programs")
}

fn memfd(flags: MemfdFlags) -> rustix::io::Result<OwnedFd> {
    memfd_create("tensormp-doctor", MemfdFlags::CLOEXEC | flags)
}

/// Good if `tried` succeeded, else `otherwise`; with the system's answer.
fn outcome(tried: rustix::io::Result<()>, otherwise: Status) -> (Status, String) {
    match tried {
        Ok(()) => (Good, "available".into()),
        Err(errno) => (
            otherwise,
            format!("refused: {}", std::io::Error::from(errno)),
        ),
    }
}

fn seals() -> Line {
    let tried = memfd(MemfdFlags::ALLOW_SEALING).and_then(|file| {
        ftruncate(&file, 4096)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
    });
    let (status, found) = outcome(tried, Problem);
    Line::new(
        "memfd and its seals",
        status,
        found,
        "An arena without a name is such a file, whose size nobody can change under those who have it mapped.",
    )
    .change("allow memfd_create and fcntl in the sandbox (seccomp profile) of the programs")
}

fn no_exec_seal() -> Line {
    let (status, mut found) = match memfd(MemfdFlags::NOEXEC_SEAL) {
        Ok(_) => (Good, "available".to_owned()),
        Err(_) => (Note, "not available".to_owned()),
    };
    if let Ok(setting) = fs::read_to_string("/proc/sys/vm/memfd_noexec") {
        found = format!("{found}; vm.memfd_noexec is {}", setting.trim());
    }
    Line::new(
        "MFD_NOEXEC_SEAL",
        status,
        found,
        "With it, nobody can run an arena's memory as a program. Without it, an arena works the same.",
    )
    .change("Linux 6.3 or newer has it")
}

fn pidfd() -> Line {
    let tried = pidfd_open(getpid(), PidfdFlags::empty()).map(drop);
    let (status, found) = outcome(tried, Problem);
    Line::new(
        "pidfd",
        status,
        found,
        "By it the end of a process is noticed at once, children or not, and nobody else is taken for it.",
    )
    .change("allow pidfd_open in the sandbox (seccomp profile) of the programs")
}

fn shared_futex() -> Line {
    // Without the flag PRIVATE it is one between processes.
    let tried = futex::wake(&AtomicU32::new(0), futex::Flags::empty(), 1).map(drop);
    let (status, found) = outcome(tried, Problem);
    Line::new(
        "futex between processes",
        status,
        found,
        "Processes that wait for a queue or an event sleep on one.",
    )
    .change("allow futex in the sandbox (seccomp profile) of the programs")
}

fn futex_waitv() -> Line {
    // It refuses an empty list, if it is there at all.
    let answer = futex::waitv(&[], futex::WaitvFlags::empty(), None, ClockId::Monotonic);
    let found = match answer {
        Ok(_) | Err(Errno::INVAL) => (Good, "available".to_owned()),
        Err(errno) => outcome(Err(errno), Note),
    };
    Line::new(
        "futex_waitv (futex2)",
        found.0,
        found.1,
        "One thread sleeps on it for all futures that wait (feature `tokio`). Without it that thread looks at each of them, \
         from every 50 µs to every 10 ms.",
    )
    .change("Linux 5.16 or newer has it; older sandboxes forbid it")
}

fn lock() -> Line {
    let tried = memfd(MemfdFlags::empty())
        .map_err(|errno| std::io::Error::from(errno).to_string())
        .and_then(|file| {
            let locks = RowLocks::open(file.as_fd(), 0).map_err(|error| error.to_string())?;
            locks.try_lock(0).map_err(|error| error.to_string())
        });
    let (status, found) = match tried {
        Ok(_) => (Good, "available".to_owned()),
        Err(answer) => (Note, answer),
    };
    Line::new(
        "OFD locks",
        status,
        found,
        "They show across containers who is alive, and guard the names of named arenas.",
    )
    .change("allow fcntl in the sandbox, and mount /proc")
}

fn wipe_on_fork() -> Line {
    let (status, found) = match ForkPage::new() {
        Ok(_) => (Good, "available".to_owned()),
        Err(error) => (Problem, error.to_string()),
    };
    Line::new(
        "MADV_WIPEONFORK",
        status,
        found,
        "By it a bare fork of a participant is noticed and refused instead of corrupting what both share.",
    )
    .change("allow madvise in the sandbox (seccomp profile) of the programs")
}

/// Tries advice on a private page.
fn advice(advice: memmap2::Advice) -> std::io::Result<()> {
    memmap2::MmapMut::map_anon(4096)?.advise(advice)
}

fn dont_dump() -> Line {
    let (status, found) = match advice(memmap2::Advice::DontDump) {
        Ok(()) => (Good, "available".to_owned()),
        Err(error) => (Problem, format!("refused: {error}")),
    };
    Line::new(
        "MADV_DONTDUMP",
        status,
        found,
        "It keeps an arena out of core dumps, which would read, and so fill, all of its reserved space.",
    )
    .change("allow madvise in the sandbox (seccomp profile) of the programs")
}

fn populate() -> Line {
    let (status, found) = match advice(memmap2::Advice::PopulateWrite) {
        Ok(()) => (Good, "available".to_owned()),
        Err(error) => (Note, format!("refused: {error}")),
    };
    Line::new(
        "MADV_POPULATE_WRITE",
        status,
        found,
        "It maps memory before the first touch. This version of tensormp does not need it.",
    )
    .change("Linux 5.14 or newer has it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared_by_their_numbers() {
        assert_eq!(parsed("6.18.44-fc-v857"), Some((6, 18)));
        assert_eq!(parsed("5.4.0"), Some((5, 4)));
        assert_eq!(parsed("5.15-rc1"), Some((5, 15)));
        assert_eq!(parsed("strange"), None);
        assert!(parsed("4.19.1") < Some(OLDEST) && parsed("5.10.1") >= Some(OLDEST));
    }
}
