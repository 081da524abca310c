//! The machine: which two CPUs to use, and the notes that go with a run that is kept.

use std::fmt::{self, Display, Formatter};
use std::fs;
use std::process::Command;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::system::uname;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::Result;
use crate::workspace::root;

/// The CPU of each process.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pins {
    pub(crate) a: usize,
    pub(crate) b: usize,
}

impl FromStr for Pins {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Pins, String> {
        let numbers: Vec<usize> = text
            .split(',')
            .map_while(|number| number.trim().parse().ok())
            .collect();
        match numbers.as_slice() {
            [a, b] if a != b && text.matches(',').count() == 1 => Ok(Pins { a: *a, b: *b }),
            _ => Err("two different CPU numbers, such as 0,1".to_owned()),
        }
    }
}

impl Display for Pins {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.a, self.b)
    }
}

/// The first two allowed CPUs that are not threads of one core; if there are none such, the first two.
pub(crate) fn choose_pins() -> Result<Pins> {
    let allowed = sched_getaffinity(None)?;
    let allowed: Vec<usize> = (0..CpuSet::MAX_CPU)
        .filter(|&cpu| allowed.is_set(cpu))
        .collect();
    let &[a, second, ..] = allowed.as_slice() else {
        return Err(format!(
            "two CPUs are needed, one for each process; this process may use {allowed:?}"
        )
        .into());
    };
    let path = format!("/sys/devices/system/cpu/cpu{a}/topology/thread_siblings_list");
    let siblings = cpus_in(&fs::read_to_string(path).unwrap_or_default());
    let other_core = allowed
        .iter()
        .find(|&&cpu| cpu != a && !siblings.contains(&cpu));
    Ok(Pins {
        a,
        b: other_core.copied().unwrap_or(second),
    })
}

/// Reads a list such as `0-1,4`.
fn cpus_in(list: &str) -> Vec<usize> {
    let ranges = list.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse::<usize>().ok()?..=last.parse().ok()?)
    });
    ranges.flatten().collect()
}

/// Keeps this thread on one CPU.
pub(crate) fn pin_to(cpu: usize) -> Result<()> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(format!(
            "cannot pin to CPU {cpu}: the highest number is {}",
            CpuSet::MAX_CPU - 1
        )
        .into());
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set)
        .map_err(|error| format!("cannot pin to CPU {cpu}: {error}").into())
}

/// Bytes of memory that may be taken; everything where the system doesn't say.
pub(crate) fn room() -> u64 {
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let free = field(&memory, "MemAvailable");
    let number = free.split(' ').next().and_then(|kib| kib.parse().ok());
    number.map_or(u64::MAX, |kib: u64| kib.saturating_mul(1024))
}

/// What one has to know about the machine to read the numbers, as a Markdown list.
pub(crate) fn notes(pins: Pins) -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let virtual_machine = field(&cpuinfo, "flags")
        .split(' ')
        .any(|flag| flag == "hypervisor");
    let kernel = uname();
    let lines = [
        format!("date: {} (UTC)", today()),
        format!(
            "command: `cargo xtask {}`",
            std::env::args().skip(1).collect::<Vec<_>>().join(" ")
        ),
        format!(
            "source: {}",
            commit().unwrap_or_else(|| "not a git checkout".to_owned())
        ),
        format!(
            "processor: {}{}",
            field(&cpuinfo, "model name"),
            if virtual_machine {
                ", virtual machine"
            } else {
                ""
            }
        ),
        format!(
            "CPUs: {}, pinned to {pins}",
            cpuinfo
                .lines()
                .filter(|line| line.starts_with("processor"))
                .count()
        ),
        format!("memory: {}", field(&memory, "MemTotal")),
        format!(
            "kernel: {} {}",
            kernel.release().to_string_lossy(),
            kernel.machine().to_string_lossy()
        ),
    ];
    lines.map(|line| format!("- {line}\n")).concat()
}

/// The first value of that name in `name : value` lines.
fn field<'a>(text: &'a str, name: &str) -> &'a str {
    let mut pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs
        .find(|(found, _)| found.trim() == name)
        .map_or("unknown", |(_, value)| value.trim())
}

fn commit() -> Option<String> {
    let output = Command::new("git")
        .args(["describe", "--always", "--dirty"])
        .current_dir(root())
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.is_empty()).then(|| text.trim().to_owned())
}

/// Year, month and day of a Unix time, by counting in years that begin in March, so that the leap day comes last.
/// The date, as year-month-day (UTC).
pub(crate) fn today() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    date(now.map_or(0, |time| time.as_secs()))
}

fn date(seconds: u64) -> String {
    let days = seconds / 86_400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    format!("{:04}-{month:02}-{day:02}", era * 400 + year + next)
}

#[cfg(test)]
mod tests {
    use super::{Pins, cpus_in, date, field};

    #[test]
    fn pins_are_two_different_cpus() {
        assert_eq!("2,5".parse(), Ok(Pins { a: 2, b: 5 }));
        for wrong in ["", "1", "1,1", "1,2,3", "a,b", "1,b"] {
            assert!(wrong.parse::<Pins>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn siblings_are_read_in_both_ways_that_the_kernel_writes_them() {
        assert_eq!(cpus_in("0-1\n"), [0, 1]);
        assert_eq!(cpus_in("0,4-5\n"), [0, 4, 5]);
        assert_eq!(cpus_in(""), [0_usize; 0]);
    }

    #[test]
    fn dates_are_right_around_leap_days_and_centuries() {
        for (seconds, expected) in [
            (0, "1970-01-01"),
            (951_782_400, "2000-02-29"),
            (951_868_800, "2000-03-01"),
            (1_735_689_599, "2024-12-31"),
        ] {
            assert_eq!(date(seconds), expected);
        }
    }

    #[test]
    fn a_field_that_is_not_there_is_unknown() {
        assert_eq!(field("model name\t: X 1\n", "model name"), "X 1");
        assert_eq!(field("", "model name"), "unknown");
    }
}
