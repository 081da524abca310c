//! Whether there is room for tensors, and who limits it.

use std::fs;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::statvfs;
use shm_core::room::{Limits, SystemLimits};
use shm_core::strategy::file_system::DEFAULT_DIRECTORY;
use shm_core::{Arena, Result, Tensor};

use super::Line;
use super::Status::{self, Good, Note, Problem};
use crate::directories::hugetlbfs;
use crate::output::Size;

/// Less than this is worth a note: a dozen frames of video, or one small model.
const LITTLE: u64 = 256 << 20;

pub(super) fn check() -> Vec<Line> {
    let arena = Arena::builder().strategy("file_descriptor").create();
    let room = room(arena.as_ref().ok());
    let mut lines = vec![an_arena(arena), a_named_arena(), shared_memory()];
    lines.extend(room);
    lines.extend([overcommit(), huge_pages(), transparent_huge_pages()]);
    lines
}

/// What any program does first.
fn an_arena(arena: Result<Arena>) -> Line {
    let tried = arena.and_then(|arena| {
        let tensor = Tensor::<u8>::zeros_in(&arena, 4096)?;
        drop(tensor);
        Ok(arena.stats().capacity)
    });
    let (status, found) = match tried {
        Ok(capacity) => (
            Good,
            format!("made, with {} of address space", Size(capacity)),
        ),
        Err(error) => (Problem, error.to_string()),
    };
    let line = Line::new(
        "an arena without a name",
        status,
        found,
        "Programs make one at their first tensor or queue.",
    );
    match status {
        Good => line,
        _ => line.change("see the other lines that are notes or problems"),
    }
}

fn a_named_arena() -> Line {
    let made = Arena::builder()
        .strategy("file_system")
        .capacity(64 << 20)
        .create();
    let (status, found) = match made {
        Ok(_) => (
            Good,
            format!("made in {DEFAULT_DIRECTORY}, and removed again"),
        ),
        Err(error) => (Note, error.to_string()),
    };
    Line::new(
        "a named arena",
        status,
        found,
        "Needed by programs that meet by name, and with TENSORMP_STRATEGY=file_system.",
    )
    .change("mount a tmpfs on /dev/shm that this user may write to, or make named arenas in another directory")
}

fn shared_memory() -> Line {
    let line = |status, found: String| {
        Line::new(
            DEFAULT_DIRECTORY,
            status,
            found,
            "It bounds named arenas in it. Arenas without a name are not bound by it.",
        )
        .change("docker: --shm-size; Kubernetes: an emptyDir with medium Memory; else: mount -o remount,size=… /dev/shm")
    };
    match statvfs(DEFAULT_DIRECTORY) {
        Ok(volume) => {
            let size = volume.f_blocks.saturating_mul(volume.f_frsize);
            let free = volume.f_bavail.saturating_mul(volume.f_frsize);
            // A tmpfs without a limit states 0.
            let unlimited = volume.f_blocks == 0;
            line(
                Status::note_unless(unlimited || free >= LITTLE),
                match unlimited {
                    true => "no limit of its own".to_owned(),
                    false => format!("{} free of {}", Size(free), Size(size)),
                },
            )
        }
        Err(errno) => line(Note, format!("not there: {}", std::io::Error::from(errno))),
    }
}

/// Every limit on memory, the tightest first.
fn room(arena: Option<&Arena>) -> Vec<Line> {
    const MEANS: &str = "Checked before memory is taken: what does not fit is an error that names this limit, not a kill.";
    // Asked for a memory file, which is charged as an arena is.
    let Some(arena) = arena else {
        return Vec::new();
    };
    let mut limits = Vec::new();
    let outcome = SystemLimits::shared().each(u64::MAX, arena.as_fd(), &mut |limit| {
        let free = limit.free.saturating_sub(limit.reserve);
        limits.push((free, limit.name.to_string(), limit.hint.to_owned()));
    });
    if let Err(error) = outcome {
        return vec![Line::new(
            "room for tensors",
            Note,
            error.to_string(),
            MEANS,
        )];
    }
    if limits.is_empty() {
        let found = "no limit can be seen";
        return vec![
            Line::new("room for tensors", Note, found, MEANS)
                .change("show /proc/meminfo and the cgroup files to the programs"),
        ];
    }
    limits.sort();
    let names = [
        "room for tensors (the tightest limit)",
        "room for tensors (a further limit)",
    ];
    let groups = membership(&fs::read_to_string("/proc/self/cgroup").unwrap_or_default());
    let mut lines: Vec<_> = limits
        .into_iter()
        .enumerate()
        .map(|(index, (free, name, hint))| {
            Line::new(
                names[index.min(1)],
                Status::note_unless(free >= LITTLE),
                format!("{} left by {name}", Size(free)),
                MEANS,
            )
            .change(hint)
        })
        .collect();
    lines.push(Line::new(
        "memory cgroup",
        Good,
        groups,
        "A container's or service's memory limit counts, and that of each group around it; without limits there, the machine's memory is the limit.",
    ));
    lines
}

/// Which version of cgroups charges this process's memory, in the text of /proc/self/cgroup.
fn membership(text: &str) -> String {
    let fields = |line: &str| -> Option<(String, String, String)> {
        let mut fields = line.splitn(3, ':').map(str::to_owned);
        Some((fields.next()?, fields.next()?, fields.next()?))
    };
    let lines: Vec<_> = text.lines().filter_map(fields).collect();
    let one = lines
        .iter()
        .find(|(_, controllers, _)| controllers.split(',').any(|name| name == "memory"));
    let two = lines
        .iter()
        .find(|(number, controllers, _)| number == "0" && controllers.is_empty());
    match (one, two) {
        (Some((_, _, path)), _) => format!("{path} (version 1)"),
        (None, Some((_, _, path))) => format!("{path} (version 2)"),
        (None, None) => "none".to_owned(),
    }
}

fn setting(path: impl AsRef<Path>) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

fn overcommit() -> Line {
    let mode = setting("/proc/sys/vm/overcommit_memory");
    let (status, found) = match mode.as_deref() {
        Some("0") => (Good, "0 (as far as it seems safe)".to_owned()),
        Some("1") => (Good, "1 (always)".to_owned()),
        Some("2") => (Note, "2 (never)".to_owned()),
        Some(other) => (Note, other.to_owned()),
        None => (Note, "can't be read".to_owned()),
    };
    Line::new(
        "vm.overcommit_memory",
        status,
        found,
        "With 2, memory that arenas take counts against CommitLimit in /proc/meminfo, and may be refused while some is free; that is an error, too.",
    )
    .change("`sysctl vm.overcommit_memory=0`")
}

/// The number in a line of /proc/meminfo.
fn number(meminfo: &str, key: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(key))?;
    line.trim_start_matches(':')
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}

fn huge_pages() -> Line {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let mounts = hugetlbfs(&fs::read_to_string("/proc/self/mounts").unwrap_or_default());
    let mounts: Vec<_> = mounts
        .iter()
        .map(|point| point.display().to_string())
        .collect();
    let count = |key| number(&meminfo, key).unwrap_or(0);
    let found = format!(
        "{} free of {}, {} each; hugetlbfs mounted on: {}",
        count("HugePages_Free"),
        count("HugePages_Total"),
        Size(count("Hugepagesize").saturating_mul(1024)),
        match mounts.is_empty() {
            true => "nothing".to_owned(),
            false => mounts.join(", "),
        }
    );
    Line::new(
        "huge pages (hugetlb pool)",
        Good,
        found,
        "Named arenas can lie in them, with `Arena::builder().directory(…)`; nothing else needs any.",
    )
    .change("`sysctl vm.nr_hugepages=N`, and mount a hugetlbfs that this user may write to")
}

fn transparent_huge_pages() -> Line {
    let path = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    let found = match setting(path).as_deref().map(|text| chosen(text).to_owned()) {
        Some(choice) => choice,
        None => "not available".to_owned(),
    };
    Line::new(
        "transparent huge pages for shared memory",
        Good,
        found,
        "With always, within_size or force, fresh memory of an arena may come in huge pages.",
    )
    .change(format!("write one of those to {path}"))
}

/// The word in brackets.
fn chosen(text: &str) -> &str {
    text.split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'))
        .map_or(text, |(word, _)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cgroup_that_is_charged_is_named_with_its_version() {
        assert_eq!(membership("9:cpu,memory:/a/b\n0::/c\n"), "/a/b (version 1)");
        assert_eq!(membership("9:cpu:/a\n0::/c:d\n"), "/c:d (version 2)");
        assert_eq!(membership("garbage"), "none");
    }

    #[test]
    fn numbers_and_choices_are_read() {
        let text =
            "HugePages_Total:       4\nHugePages_Free:        3\nHugepagesize:       2048 kB\n";
        assert_eq!(number(text, "HugePages_Free"), Some(3));
        assert_eq!(number(text, "Hugepagesize"), Some(2048));
        assert_eq!(number(text, "Nothing"), None);
        assert_eq!(chosen("always within_size [never] deny"), "never");
    }
}
