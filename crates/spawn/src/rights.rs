//! What a thread may do, as far as a process that was started before, or by another thread, would have it otherwise.
//!
//! Rights belong to threads. Some calls change those of all threads of a program (a user's, by the C library), others
//! only their own thread's: `no_new_privs`, capabilities, filters of system calls.

use std::cell::Cell;
use std::collections::HashSet;

use rustix::fs::stat;
use rustix::process::{Gid, Uid, getegid, geteuid, getgid, getgroups, getuid};
use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, CapabilitySets, SecureComputingMode, capabilities,
    capabilities_secure_bits, capability_is_in_ambient_set, capability_is_in_bounding_set,
    no_new_privs, secure_computing_mode,
};

use crate::desk;

/// What a program may give away, and wants its processes not to have then. Two are equal if nothing was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rights {
    users: [Uid; 2],
    groups: [Gid; 2],
    further: Option<Vec<Gid>>,
    capabilities: Option<CapabilitySets>,
    bounding: CapabilitySet,
    ambient: CapabilitySet,
    secure_bits: Option<CapabilitiesSecureBits>,
    no_new: Option<bool>,
    /// How many filters of system calls there are; what they let pass cannot be compared. `None`: the system does not
    /// say.
    filters: Option<u32>,
    /// The directory that it sees as the root of all.
    root: Option<(u64, u64)>,
}

impl Rights {
    /// Those of the calling thread.
    pub(crate) fn now() -> Rights {
        let capabilities = capabilities(None).ok();
        // Only what is both can be there, which for most programs is nothing.
        let raised = capabilities.map_or(CapabilitySet::empty(), |sets| {
            sets.permitted & sets.inheritable
        });
        Rights {
            users: [getuid(), geteuid()],
            groups: [getgid(), getegid()],
            further: getgroups().ok(),
            capabilities,
            bounding: bounding(capabilities),
            ambient: those_in(raised, |one| capability_is_in_ambient_set(one).ok()),
            secure_bits: capabilities_secure_bits().ok(),
            no_new: no_new_privs().ok(),
            filters: match secure_computing_mode() {
                Ok(SecureComputingMode::Filter) => status("thread-self").and_then(|status| {
                    let filters = field(&status, "Seccomp_filters")?;
                    filters.parse().ok()
                }),
                Ok(_) => Some(0),
                Err(_) => None,
            },
            root: stat("/").ok().map(|root| (root.st_dev, root.st_ino)),
        }
    }

    /// What can be read of any thread.
    fn shown(&self) -> Shown {
        let sets = self.capabilities.unwrap_or(CapabilitySets {
            effective: CapabilitySet::empty(),
            permitted: CapabilitySet::empty(),
            inheritable: CapabilitySet::empty(),
        });
        let capabilities = [
            sets.inheritable,
            sets.permitted,
            sets.effective,
            self.bounding,
            self.ambient,
        ];
        Shown {
            users: self.users.map(Uid::as_raw),
            groups: self.groups.map(Gid::as_raw),
            capabilities: capabilities.map(|set| set.bits()),
            no_new: self.no_new,
            filters: self.filters,
        }
    }
}

thread_local! {
    /// What this thread may gain, if that was read and cannot have changed since.
    static BOUNDING: Cell<Option<CapabilitySet>> = const { Cell::new(None) };
}

/// What this thread may gain. That takes a call for each capability, and it takes one of them to change it: one that
/// cannot have that any more is asked once.
fn bounding(capabilities: Option<CapabilitySets>) -> CapabilitySet {
    let known = BOUNDING.try_with(Cell::get).ok().flatten();
    if let Some(known) = known {
        return known;
    }
    let bounding = those_in(CapabilitySet::all(), |one| {
        capability_is_in_bounding_set(one).ok()
    });
    let settled = capabilities.is_some_and(|sets| !sets.permitted.contains(CapabilitySet::SETPCAP));
    if settled || desk::is_supervisor() {
        let _ = BOUNDING.try_with(|known| known.set(Some(bounding)));
    }
    bounding
}

/// Those of a set of which that is true, up to the last that the system knows.
fn those_in(set: CapabilitySet, is_in: impl Fn(CapabilitySet) -> Option<bool>) -> CapabilitySet {
    let mut found = CapabilitySet::empty();
    for one in set.iter() {
        match is_in(one) {
            Some(true) => found |= one,
            Some(false) => {}
            None => break,
        }
    }
    found
}

/// What the system shows of a thread to others.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Shown {
    users: [u32; 2],
    groups: [u32; 2],
    capabilities: [u64; 5],
    no_new: Option<bool>,
    filters: Option<u32>,
}

impl Shown {
    fn read(status: &str) -> Option<Shown> {
        // Real and effective come first.
        let two = |name| -> Option<[u32; 2]> {
            let mut numbers = field(status, name)?.split_whitespace();
            let mut next = || numbers.next()?.parse().ok();
            Some([next()?, next()?])
        };
        let bits = |name| u64::from_str_radix(field(status, name)?, 16).ok();
        let filters = match field(status, "Seccomp")? {
            "2" => field(status, "Seccomp_filters").and_then(|filters| filters.parse().ok()),
            _ => Some(0),
        };
        Some(Shown {
            users: two("Uid")?,
            groups: two("Gid")?,
            capabilities: [
                bits("CapInh")?,
                bits("CapPrm")?,
                bits("CapEff")?,
                bits("CapBnd")?,
                bits("CapAmb")?,
            ],
            no_new: Some(field(status, "NoNewPrivs")? == "1"),
            filters,
        })
    }
}

fn status(of: &str) -> Option<String> {
    std::fs::read_to_string(format!("/proc/{of}/status")).ok()
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| {
        let value = line.strip_prefix(name)?.strip_prefix(':')?;
        Some(value.trim())
    })
}

/// The rights of all threads of this process.
#[derive(Debug)]
pub(crate) struct OfThreads(HashSet<Shown>);

impl OfThreads {
    /// Reads them. `None` where they cannot be read.
    pub(crate) fn now() -> Option<OfThreads> {
        let tasks = std::fs::read_dir("/proc/self/task").ok()?;
        let mut all = HashSet::new();
        for task in tasks.flatten() {
            // One that has ended meanwhile has none.
            let task = task.file_name();
            if let Some(status) = task
                .to_str()
                .and_then(|task| status(&format!("self/task/{task}")))
            {
                all.insert(Shown::read(&status)?);
            }
        }
        Some(OfThreads(all))
    }

    /// Whether a thread has these.
    pub(crate) fn include(&self, rights: &Rights) -> bool {
        self.0.contains(&rights.shown())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rights_of_a_thread_are_read_alike_by_itself_and_by_others() {
        let now = Rights::now();
        assert_eq!(now, Rights::now());
        assert!(OfThreads::now().unwrap().include(&now));
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || {
            rustix::thread::set_no_new_privs(true).unwrap();
            tell.send(Rights::now()).unwrap();
            let _ = ended.recv();
        });
        let others = told.recv().unwrap();
        if now.no_new == Some(false) {
            assert_ne!(others, now);
        }
        assert!(OfThreads::now().unwrap().include(&others));
        drop(end);
        other.join().unwrap();
        assert_eq!(Rights::now(), now);
    }
}
