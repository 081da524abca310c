//! Device addresses of this process: which mean something, which did, and what is given out next.
//!
//! They lie where the host can neither read nor write, and elsewhere in each process. An address that is given back is
//! given out again as soon as something of the same size is wanted: who remembers memory by its address finds another's.

use std::collections::{BTreeMap, HashMap};
use std::io;

use crate::board::{self, BLOCK};
use crate::code::{self, Answer, invalid, refuse};

/// How much address space a process has for devices.
const LEN: usize = 1 << 38;
/// Where the first process's begins.
const FIRST: usize = 0x1000_0000_0000;
/// How many processes have addresses of their own before they repeat.
const DISTINCT: u64 = 128;

/// Memory that a device address leads to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    /// The allocation's place in the board, and which one it was.
    pub(crate) index: usize,
    pub(crate) generation: u32,
    pub(crate) device: usize,
    /// Where the host side of the emulator finds its first byte.
    pub(crate) data: usize,
    pub(crate) size: u64,
}

/// What a range of addresses is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Use {
    /// Memory of this process.
    Own { pooled: bool },
    /// Another process's, opened so many times.
    Import { opened: u32 },
    /// A reservation, with what is mapped there: the handle's allocation, and whether access was granted.
    Reserved { granted: bool },
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub(crate) len: u64,
    pub(crate) what: Use,
    /// None: a reservation without memory.
    pub(crate) target: Option<Target>,
}

pub(crate) struct Space {
    next: u64,
    end: u64,
    ranges: BTreeMap<u64, Range>,
    /// By length, what was given back and is not in use again.
    free: HashMap<u64, Vec<u64>>,
}

impl Space {
    /// The space of the process that came after so many others.
    pub(crate) fn new(serial: u64) -> io::Result<Self> {
        let wanted = FIRST + (serial % DISTINCT) as usize * LEN;
        let start = board::reserve(wanted, LEN)? as u64;
        Ok(Self {
            next: start.next_multiple_of(BLOCK),
            end: start + LEN as u64,
            ranges: BTreeMap::new(),
            free: HashMap::new(),
        })
    }

    /// Gives an address to a range.
    pub(crate) fn place(&mut self, range: Range) -> Answer<u64> {
        let len = range.len.next_multiple_of(BLOCK);
        let again = self.free.get_mut(&len).and_then(Vec::pop);
        let at = match again {
            Some(at) => at,
            None if len <= self.end - self.next => {
                let at = self.next;
                self.next += len;
                at
            }
            None => {
                return refuse(
                    code::OUT_OF_MEMORY,
                    "this process's device addresses are used up",
                );
            }
        };
        self.ranges.insert(at, range);
        Ok(at)
    }

    /// The range no longer means anything.
    pub(crate) fn remove(&mut self, at: u64) -> Option<Range> {
        let range = self.ranges.remove(&at)?;
        let len = range.len.next_multiple_of(BLOCK);
        self.free.entry(len).or_default().push(at);
        Some(range)
    }

    /// The range that begins exactly there.
    pub(crate) fn at(&mut self, at: u64) -> Option<&mut Range> {
        self.ranges.get_mut(&at)
    }

    /// The range that holds an address: where it begins, and what it is.
    pub(crate) fn around(&self, at: u64) -> Option<(u64, Range)> {
        let (&start, range) = self.ranges.range(..=at).next_back()?;
        (at - start < range.len).then_some((start, *range))
    }

    /// The first range that satisfies a condition.
    pub(crate) fn find(&self, mut is_it: impl FnMut(&Range) -> bool) -> Option<u64> {
        self.ranges
            .iter()
            .find(|(_, range)| is_it(range))
            .map(|(&at, _)| at)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (u64, &Range)> {
        self.ranges.iter().map(|(&at, range)| (at, range))
    }

    /// Whether an address was once a device address of this process.
    pub(crate) fn was_there(&self, at: u64) -> bool {
        let lies_in = |(len, starts): (&u64, &Vec<u64>)| {
            starts.iter().any(|&start| at >= start && at - start < *len)
        };
        self.free.iter().any(lies_in)
    }

    /// Bytes of memory: where the range begins, what it leads to, and the offset into it.
    pub(crate) fn bytes(&self, at: u64, len: u64) -> Answer<(Range, Target, u64)> {
        let Some((start, range)) = self.around(at) else {
            return match self.was_there(at) {
                true => refuse(
                    code::ILLEGAL_ADDRESS,
                    format!("{at:#x} was closed or freed"),
                ),
                false => invalid(format!("{at:#x} is no device address of this process")),
            };
        };
        let offset = at - start;
        let Some(target) = range.target else {
            return refuse(
                code::ILLEGAL_ADDRESS,
                format!("nothing is mapped at {at:#x}"),
            );
        };
        if matches!(range.what, Use::Reserved { granted: false }) {
            return refuse(
                code::ILLEGAL_ADDRESS,
                format!("cuMemSetAccess was not called for {at:#x}"),
            );
        }
        if len > target.size - offset.min(target.size) {
            return invalid(format!(
                "bytes {offset}..{} of {} ({at:#x})",
                offset.saturating_add(len),
                target.size
            ));
        }
        Ok((range, target, offset))
    }
}
