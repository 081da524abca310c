//! Knobs: how the emulated driver behaves, from environment variables, so that children can be given others.

use std::env;
use std::time::Duration;

/// The variables. The library reads all but the first three when it is started.
pub(crate) const LIBRARY: &str = "CUDA_EMULATOR_LIBRARY";
pub(crate) const OFF: &str = "CUDA_EMULATOR_OFF";
pub(crate) const BOARD: &str = "CUDA_EMULATOR_BOARD";
pub(crate) const MISSING: &str = "CUDA_EMULATOR_MISSING";
pub(crate) const VERSION: &str = "CUDA_EMULATOR_VERSION";
pub(crate) const DEVICES: &str = "CUDA_EMULATOR_DEVICES";
pub(crate) const DELAY: &str = "CUDA_EMULATOR_DELAY_US";
pub(crate) const WITHOUT: &str = "CUDA_EMULATOR_WITHOUT";
pub(crate) const MEMORY: &str = "CUDA_EMULATOR_MEMORY_MIB";
pub(crate) const RACES: &str = "CUDA_EMULATOR_RACES";
pub(crate) const FAIL: &str = "CUDA_EMULATOR_FAIL";
pub(crate) const SLOW: &str = "CUDA_EMULATOR_SLOW";
pub(crate) const DEAD_EVENTS: &str = "CUDA_EMULATOR_DEAD_EVENTS";
pub(crate) const HANDLES: &str = "CUDA_EMULATOR_STREAM_HANDLES";
pub(crate) const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// What the emulated machine can lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Feature {
    /// Handles of memory (`cuIpcGetMemHandle`), as on WSL2 or Tegra.
    LegacyIpc,
    /// Handles of events.
    IpcEvents,
    /// Virtual memory management (`cuMemCreate`).
    Vmm,
    /// Its export as descriptors.
    PosixDescriptors,
    /// Pools (`cuMemAllocAsync`).
    Pools,
    /// Words that streams write and wait for.
    MemoryOperations,
    /// Access from one device to the other.
    Peers,
    /// Registering the host's memory.
    HostRegister,
}

const FEATURES: [(Feature, &str); 8] = [
    (Feature::LegacyIpc, "legacy-ipc"),
    (Feature::IpcEvents, "ipc-events"),
    (Feature::Vmm, "vmm"),
    (Feature::PosixDescriptors, "posix-fd"),
    (Feature::Pools, "pools"),
    (Feature::MemoryOperations, "memory-operations"),
    (Feature::Peers, "peers"),
    (Feature::HostRegister, "host-register"),
];

impl Feature {
    pub(crate) fn word(self) -> &'static str {
        FEATURES
            .iter()
            .find(|(feature, _)| *feature == self)
            .map_or("", |(_, word)| word)
    }
}

/// In place of a name: any call, counted with all others of the process.
pub(crate) const ANY: &str = "*";

/// A call that is made to fail.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) call: String,
    pub(crate) code: i32,
    /// Which of the process's calls of that name, or of all, from 1; none: each.
    pub(crate) nth: Option<u64>,
    /// And each after that.
    pub(crate) on: bool,
}

impl Failure {
    /// Whether it is to be the how manieth.
    pub(crate) fn is_it(&self, nth: u64) -> bool {
        self.nth
            .is_none_or(|wanted| wanted == nth || self.on && wanted < nth)
    }
}

/// The knobs as this process found them.
#[derive(Debug)]
pub(crate) struct Knobs {
    pub(crate) version: i32,
    pub(crate) devices: Vec<usize>,
    pub(crate) delay: Duration,
    pub(crate) memory: u64,
    pub(crate) races: bool,
    /// Whether events that a dead process left unfinished happen, though its work is not done.
    pub(crate) dead_events_happen: bool,
    /// Whether a stream gets the handle of one that was destroyed.
    pub(crate) handles_again: bool,
    pub(crate) failures: Vec<Failure>,
    /// How long calls of these names take to begin.
    slow: Vec<(String, Duration)>,
    without: Vec<Feature>,
}

impl Knobs {
    pub(crate) fn from_environment() -> Self {
        let there = number(DEVICES, 2).min(crate::board::DEVICES as u64) as usize;
        Self {
            version: number(VERSION, 13_000) as i32,
            devices: visible(there, env::var(VISIBLE).ok().as_deref()),
            delay: Duration::from_micros(number(DELAY, 0)),
            memory: number(MEMORY, 16 << 10) << 20,
            races: number(RACES, 1) != 0,
            dead_events_happen: env::var(DEAD_EVENTS).is_ok_and(|value| value == "happen"),
            handles_again: env::var(HANDLES).is_ok_and(|value| value == "again"),
            failures: failures(&env::var(FAIL).unwrap_or_default()),
            slow: slow(&words(SLOW)),
            without: FEATURES
                .iter()
                .filter(|(_, word)| words(WITHOUT).iter().any(|it| it == word))
                .map(|(feature, _)| *feature)
                .collect(),
        }
    }

    /// How long a call takes to begin.
    pub(crate) fn begins_after(&self, call: &str) -> Option<Duration> {
        let slow = self.slow.iter().find(|(name, _)| name == call);
        slow.map(|(_, time)| *time)
    }

    pub(crate) fn has(&self, feature: Feature) -> bool {
        !self.without.contains(&feature)
    }
}

fn number(name: &str, default: u64) -> u64 {
    let value = env::var(name).ok();
    value.and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// The words of a list with commas.
pub(crate) fn words(name: &str) -> Vec<String> {
    let list = env::var(name).unwrap_or_default();
    list.split(',')
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}

/// Which devices a process sees and in what order, as NVIDIA's variable says: a list ends at the first that is not there.
fn visible(there: usize, list: Option<&str>) -> Vec<usize> {
    let Some(list) = list else {
        return (0..there).collect();
    };
    list.split(',')
        .map_while(|word| word.trim().parse().ok())
        .take_while(|&device: &usize| device < there)
        .collect()
}

/// `CALL:CODE`, `CALL:CODE:NTH` or, from that one on, `CALL:CODE:NTH-`, with commas.
fn failures(list: &str) -> Vec<Failure> {
    list.split(',')
        .filter_map(|item| {
            let mut parts = item.split(':');
            let (call, code) = (parts.next()?.to_owned(), parts.next()?.parse().ok()?);
            let nth = parts.next().unwrap_or_default();
            let on = nth.ends_with('-');
            let nth = nth.trim_end_matches('-').parse().ok();
            Some(Failure {
                call,
                code,
                nth,
                on,
            })
        })
        .collect()
}

/// Of each `CALL:MILLISECONDS`.
fn slow(list: &[String]) -> Vec<(String, Duration)> {
    let each = list.iter().filter_map(|item| {
        let (call, time) = item.split_once(':')?;
        Some((call.to_owned(), Duration::from_millis(time.parse().ok()?)))
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_seen_in_the_order_that_is_asked_for() {
        assert_eq!(visible(2, None), [0, 1]);
        assert_eq!(visible(2, Some("1,0")), [1, 0]);
        assert_eq!(visible(2, Some("1,7,0")), [1]);
        assert_eq!(visible(2, Some("")), [0; 0]);
        assert_eq!(visible(1, Some("1")), [0; 0]);
    }

    #[test]
    fn failures_name_call_code_and_which() {
        let list = failures("cuInit:999,cuMemAlloc_v2:2:3,nonsense,*:700:9-");
        assert_eq!(list.len(), 3);
        let hit = |at: usize| {
            (1..=10)
                .filter(|nth| list[at].is_it(*nth))
                .collect::<Vec<_>>()
        };
        assert_eq!((hit(0).len(), hit(1), hit(2)), (10, vec![3], vec![9, 10]));
        assert_eq!((list[0].code, list[0].nth), (999, None));
        assert_eq!(
            (list[1].call.as_str(), list[1].nth),
            ("cuMemAlloc_v2", Some(3))
        );
    }
}
