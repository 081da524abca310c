//! Memory of the host that the driver was told of: registered, or allocated by it. Copies from and to it are asynchronous.

use std::fs;

use crate::code::{self, Answer, invalid, refuse};
use crate::knobs::Feature;
use crate::process::{Local, Process};

/// Flag of a registration: the device only reads.
const READ_ONLY: u32 = 8;
const KNOWN: u32 = 1 | 2 | 4 | READ_ONLY;

/// A range of the host's memory that stays where it is.
#[derive(Debug)]
pub(crate) struct Pinned {
    pub(crate) len: usize,
    /// The memory itself, when the driver allocated it.
    pub(crate) own: Option<Box<[u128]>>,
}

impl Local {
    /// Whether all of these bytes are in one pinned range.
    pub(crate) fn pinned_around(&self, at: usize, len: usize) -> bool {
        let range = self.pinned.range(..=at).next_back();
        range.is_some_and(|(&start, pinned)| at - start + len <= pinned.len)
    }

    fn collides(&self, at: usize, len: usize) -> bool {
        let before = self.pinned.range(..at.saturating_add(len)).next_back();
        before.is_some_and(|(&start, pinned)| start + pinned.len > at)
    }
}

impl Process {
    pub(crate) fn register(&self, at: usize, len: usize, flags: u32) -> Answer {
        self.current()?;
        if !self.knobs.has(Feature::HostRegister) {
            return refuse(
                code::NOT_SUPPORTED,
                "this system cannot register memory of the host",
            );
        }
        if at == 0 || len == 0 || flags & !KNOWN != 0 {
            return invalid(format!("{len} bytes at {at:#x} with flags {flags:#x}"));
        }
        let writable = access(at, len);
        match writable {
            None => {
                return invalid(format!(
                    "not all of the {len} bytes at {at:#x} are memory of this process"
                ));
            }
            Some(false) if flags & READ_ONLY == 0 => {
                return invalid(
                    "the memory can only be read, and the flag that says so (8) is not set",
                );
            }
            Some(_) => {}
        }
        let mut local = self.local();
        if local.collides(at, len) {
            return refuse(
                code::HOST_ALREADY_REGISTERED,
                format!("a part of the {len} bytes at {at:#x} is registered"),
            );
        }
        local.pinned.insert(at, Pinned { len, own: None });
        Ok(())
    }

    pub(crate) fn unregister(&'static self, at: usize) -> Answer {
        self.unpin(at, false)
    }

    pub(crate) fn allocate_host(&self, len: usize) -> Answer<usize> {
        self.current()?;
        if len == 0 {
            return invalid("no bytes are wanted");
        }
        let own = vec![0_u128; len.div_ceil(16)].into_boxed_slice();
        let at = own.as_ptr().expose_provenance();
        self.local().pinned.insert(
            at,
            Pinned {
                len,
                own: Some(own),
            },
        );
        Ok(at)
    }

    pub(crate) fn free_host(&'static self, at: usize) -> Answer {
        self.unpin(at, true)
    }

    fn unpin(&'static self, at: usize, own: bool) -> Answer {
        let device = self.current()?;
        match self.local().pinned.get(&at) {
            Some(pinned) if pinned.own.is_some() == own => {}
            Some(_) => {
                return invalid(
                    "memory that was registered is unregistered, what was allocated is freed",
                );
            }
            None if own => return invalid(format!("nothing was allocated at {at:#x}")),
            None => {
                return refuse(
                    code::HOST_NOT_REGISTERED,
                    format!("nothing is registered at {at:#x}"),
                );
            }
        }
        self.synchronize(device);
        self.local().pinned.remove(&at);
        Ok(())
    }

    /// The address by which a device uses pinned memory: the same, as everywhere with unified addressing.
    pub(crate) fn device_address(&self, at: usize) -> Answer<u64> {
        self.current()?;
        match self.local().pinned_around(at, 1) {
            true => Ok(at as u64),
            false => invalid(format!("{at:#x} is not registered")),
        }
    }
}

/// Whether the bytes are mapped, all of them, and whether they can be written.
fn access(at: usize, len: usize) -> Option<bool> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let end = at.checked_add(len)?;
    let mut reached = at;
    let mut writable = true;
    for line in maps.lines() {
        let (range, rest) = line.split_once(' ')?;
        let (from, to) = range.split_once('-')?;
        let from = usize::from_str_radix(from, 16).ok()?;
        let to = usize::from_str_radix(to, 16).ok()?;
        if from <= reached && reached < to {
            if !rest.starts_with('r') {
                return None;
            }
            writable &= rest.starts_with("rw");
            reached = to;
            if reached >= end {
                return Some(writable);
            }
        }
    }
    None
}
