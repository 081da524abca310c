//! The race detector's memory of an allocation: who wrote and who read which bytes last.
//!
//! Clocks are those of the calls, not of the work: an operation comes after everything that its stream came after when it
//! was issued. So a missing wait is found whether or not it did harm this time.

use std::fmt::{self, Write};

use super::{Clock, Tables};
use crate::calls::Call;

/// Most ranges that are told apart in one allocation.
const RANGES: usize = 192;
/// Most readers that are remembered of a range.
const READERS: usize = 6;

/// An operation that touched memory, and where it was issued.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Access {
    pub(crate) stream: u16,
    pub(crate) call: u16,
    pub(crate) sequence: u32,
    pub(crate) pid: u32,
    /// The how manieth call of that process.
    pub(crate) serial: u32,
    pub(crate) thread: [u8; 16],
}

impl Access {
    const NONE: Self = Self {
        stream: 0,
        call: 0,
        sequence: 0,
        pid: 0,
        serial: 0,
        thread: [0; 16],
    };
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let thread = self.thread.split(|&byte| byte == 0).next().unwrap_or(&[]);
        write!(
            f,
            "{} (call {} of process {}, thread `{}`, operation {} of stream {})",
            Call(self.call).name(),
            self.serial,
            self.pid,
            String::from_utf8_lossy(thread),
            self.sequence,
            self.stream
        )
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Range {
    start: u64,
    end: u64,
    /// Sequence zero: never written.
    write: Access,
    reads: [Access; READERS],
    readers: u8,
}

#[repr(C)]
pub(crate) struct Shadow {
    count: u32,
    /// Sorted, without overlaps.
    ranges: [Range; RANGES],
}

/// What an access does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Touch {
    Read,
    Write,
}

impl Range {
    fn with_reader(mut self, by: Access, host: &Clock) -> Self {
        let mut kept: Vec<Access> = self.reads[..usize::from(self.readers).min(READERS)]
            .iter()
            .copied()
            // A stream's later read covers its earlier ones; what the host has waited for is before all that comes.
            .filter(|read| {
                read.stream != by.stream && !host.covers(usize::from(read.stream), read.sequence)
            })
            .collect();
        if kept.len() == READERS {
            kept.remove(0);
        }
        kept.push(by);
        self.readers = kept.len() as u8;
        self.reads[..kept.len()].copy_from_slice(&kept);
        self
    }

    fn is_over(&self, host: &Clock) -> bool {
        let over = |it: &Access| host.covers(usize::from(it.stream), it.sequence);
        over(&self.write)
            && self.reads[..usize::from(self.readers).min(READERS)]
                .iter()
                .all(over)
    }
}

impl Shadow {
    pub(super) fn clear(&mut self) {
        self.count = 0;
    }

    fn all(&self) -> &[Range] {
        &self.ranges[..(self.count as usize).min(RANGES)]
    }

    /// The first access to these bytes that has to be ordered before a touch with this clock, and is not.
    fn conflict(
        &self,
        bytes: (u64, u64),
        touch: Touch,
        clock: &Clock,
        concerns: &impl Fn(&Access) -> bool,
    ) -> Option<(Touch, Access)> {
        let unordered = |it: &Access| {
            it.sequence != 0 && concerns(it) && !clock.covers(usize::from(it.stream), it.sequence)
        };
        for range in self
            .all()
            .iter()
            .filter(|it| it.start < bytes.1 && bytes.0 < it.end)
        {
            if unordered(&range.write) {
                return Some((Touch::Write, range.write));
            }
            let reads = &range.reads[..usize::from(range.readers).min(READERS)];
            if touch == Touch::Write
                && let Some(read) = reads.iter().find(|it| unordered(it))
            {
                return Some((Touch::Read, *read));
            }
        }
        None
    }

    fn remember(&mut self, (start, end): (u64, u64), touch: Touch, by: Access, host: &Clock) {
        // The same bytes as before, as nearly always.
        let same = self
            .all()
            .iter()
            .position(|it| it.start == start && it.end == end);
        if let Some(at) = same {
            let it = &mut self.ranges[at];
            match touch {
                Touch::Read => *it = it.with_reader(by, host),
                Touch::Write => (it.write, it.readers) = (by, 0),
            }
            return;
        }
        let mut ranges: Vec<Range> = Vec::with_capacity(self.all().len() + 3);
        let fresh = Range {
            start,
            end,
            write: Access::NONE,
            reads: [Access::NONE; READERS],
            readers: 0,
        };
        let mut at = start;
        for range in self.all() {
            let (from, to) = (range.start.max(start), range.end.min(end));
            if from >= to {
                ranges.push(*range);
                continue;
            }
            if range.start < start {
                ranges.push(Range {
                    end: start,
                    ..*range
                });
            }
            if touch == Touch::Read {
                if at < from {
                    ranges.push(
                        Range {
                            start: at,
                            end: from,
                            ..fresh
                        }
                        .with_reader(by, host),
                    );
                }
                ranges.push(
                    Range {
                        start: from,
                        end: to,
                        ..*range
                    }
                    .with_reader(by, host),
                );
                at = to;
            }
            if range.end > end {
                ranges.push(Range {
                    start: end,
                    ..*range
                });
            }
        }
        match touch {
            Touch::Read if at < end => {
                ranges.push(Range { start: at, ..fresh }.with_reader(by, host))
            }
            Touch::Read => {}
            Touch::Write => ranges.push(Range { write: by, ..fresh }),
        }
        ranges.sort_unstable_by_key(|it| it.start);
        if ranges.len() > RANGES {
            ranges.retain(|it| !it.is_over(host));
        }
        // What still does not fit is forgotten, which misses races and invents none.
        ranges.truncate(RANGES);
        self.ranges[..ranges.len()].copy_from_slice(&ranges);
        self.count = ranges.len() as u32;
    }
}

impl Tables {
    /// Checks a touch of an allocation's bytes against those before, reports a race, and remembers the touch.
    pub(crate) fn touch(
        &mut self,
        index: usize,
        bytes: (u64, u64),
        touch: Touch,
        by: Access,
        clock: &Clock,
    ) {
        let it = &self.allocations[index];
        if let Some((before, access)) = it.shadow.conflict(bytes, touch, clock, &|_| true)
            && !self.is_of_the_dead(access)
        {
            let it = &self.allocations[index];
            let text = describe(
                &by,
                touch,
                bytes,
                (it.key, it.device, it.pid),
                before,
                &access,
            );
            self.log.add(super::Kind::Race, &text);
        }
        let host = self.host;
        self.allocations[index]
            .shadow
            .remember(bytes, touch, by, &host);
    }

    /// Freeing is a write of everything by the host, without being remembered.
    pub(crate) fn touch_all(&mut self, index: usize, by: Access) {
        self.touch_by_host(index, by, |_| true);
    }

    /// Unmapping is so for what this process itself did.
    pub(crate) fn touch_own(&mut self, index: usize, by: Access) {
        self.touch_by_host(index, by, |access| access.pid == by.pid);
    }

    fn touch_by_host(&mut self, index: usize, by: Access, concerns: impl Fn(&Access) -> bool) {
        let it = &self.allocations[index];
        let bytes = (0, it.size);
        if let Some((before, access)) =
            it.shadow
                .conflict(bytes, Touch::Write, &self.host, &concerns)
            && !self.is_of_the_dead(access)
        {
            let it = &self.allocations[index];
            let text = describe(
                &by,
                Touch::Write,
                bytes,
                (it.key, it.device, it.pid),
                before,
                &access,
            );
            self.log.add(super::Kind::Race, &text);
        }
    }

    /// Whether who made an access is gone: the driver has ended its work, so it collides with nothing.
    fn is_of_the_dead(&self, access: Access) -> bool {
        let person = self
            .processes
            .iter()
            .find(|person| person.pid == access.pid);
        !person.is_some_and(|person| super::is_alive(person.pid, person.start))
    }
}

fn describe(
    by: &Access,
    touch: Touch,
    bytes: (u64, u64),
    (key, device, pid): (u64, u32, u32),
    before: Touch,
    access: &Access,
) -> String {
    let verb = |touch| match touch {
        Touch::Read => "reads",
        Touch::Write => "writes",
    };
    let mut text = String::new();
    let _ = write!(
        text,
        "{by} {} bytes {}..{} of allocation {key} (device {device}, of process {pid}); nothing orders it after {access}, which {} there",
        verb(touch),
        bytes.0,
        bytes.1,
        verb(before)
    );
    text
}
