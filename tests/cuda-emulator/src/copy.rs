//! Copies and fills, with the host's part in them as the driver's manual has it: what is pageable is staged before a copy
//! to the device returns, a copy into pageable memory waits, and a fill or a copy on the device never does.

use crate::board::Touch;
use crate::calls::Call;
use crate::code::{Answer, invalid};
use crate::process::{Local, Process};
use crate::raw;
use crate::stream::{Issue, Place, Work};

/// One end of a copy, as the caller names it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    Device(u64),
    Host(usize),
    /// Whatever is at the address.
    Any(u64),
}

/// The end as a stream uses it, and whether it is host memory that the driver may use at any time.
struct Found {
    place: Place,
    touch: Option<(crate::space::Target, u64)>,
    pageable: bool,
}

impl Process {
    fn find(&self, local: &Local, end: End, len: usize) -> Answer<Found> {
        let (at, any) = match end {
            End::Host(at) => (at as u64, true),
            End::Device(at) => (at, false),
            End::Any(at) => (at, true),
        };
        let pinned = local.pinned_around(at as usize, len);
        if pinned || (any && local.space.around(at).is_none() && !local.space.was_there(at)) {
            if at == 0 {
                return invalid("the host's address is null");
            }
            let place = Place::Host(at as usize);
            return Ok(Found {
                place,
                touch: None,
                pageable: !pinned,
            });
        }
        if matches!(end, End::Host(_)) {
            return invalid(format!(
                "{at:#x} is a device address where a host address is wanted"
            ));
        }
        let (_, target, offset) = local
            .space
            .bytes(at, len as u64)
            .inspect_err(|refusal| self.note(refusal))?;
        Ok(Found {
            place: Place::Device(target, offset),
            touch: Some((target, offset)),
            pageable: false,
        })
    }

    /// An access to memory that is gone breaks the context for good.
    fn note(&self, refusal: &crate::code::Refusal) {
        if refusal.code == crate::code::ILLEGAL_ADDRESS {
            self.report(crate::board::Kind::UseAfterFree, &refusal.why);
            if let Some(device) = self.thread_device() {
                self.break_device(device, refusal.code);
            }
        }
    }

    /// A copy on a stream; `waits` says whether the call is one of those that return when they are done.
    pub(crate) fn copy(
        &'static self,
        call: Call,
        to: End,
        from: End,
        len: usize,
        stream: usize,
        waits: bool,
    ) -> Answer {
        let current = self.current()?;
        let mut local = self.local();
        let stream = local.stream(self, stream, current)?;
        if len == 0 {
            return Ok(());
        }
        let to = self.find(&local, to, len)?;
        let from = self.find(&local, from, len)?;
        let on_device = to.touch.is_some() && from.touch.is_some();
        let mut waits = waits && !on_device;
        let source = match from.place {
            Place::Host(at) if from.pageable => {
                waits = false;
                Place::Staged(raw::snapshot(at, len))
            }
            place => place,
        };
        waits |= to.pageable;
        let mut issue = Issue::new(
            call,
            Work::Copy {
                to: to.place,
                from: source,
                len,
            },
        );
        for (touch, how) in [(from.touch, Touch::Read), (to.touch, Touch::Write)] {
            let bytes = touch.map(|(target, offset)| (target, (offset, offset + len as u64), how));
            issue.touches.extend(bytes);
        }
        let issued = local.issue(self, &stream, issue, |_, _, _| ());
        drop(local);
        if waits {
            self.wait_for(issued);
            self.check_device(current)?;
        }
        Ok(())
    }

    /// Fills `count` times the pattern's length.
    pub(crate) fn fill(
        &'static self,
        call: Call,
        to: u64,
        pattern: &[u8],
        count: usize,
        stream: usize,
    ) -> Answer {
        let current = self.current()?;
        let mut local = self.local();
        let stream = local.stream(self, stream, current)?;
        let Some(len) = count.checked_mul(pattern.len()) else {
            return invalid("more bytes than there are addresses");
        };
        if len == 0 {
            return Ok(());
        }
        if !to.is_multiple_of(pattern.len() as u64) {
            return invalid(format!("{to:#x} is no multiple of {}", pattern.len()));
        }
        let to = self.find(&local, End::Device(to), len)?;
        let work = Work::Fill {
            to: to.place,
            pattern: pattern.to_vec(),
            len,
        };
        let mut issue = Issue::new(call, work);
        let bytes = to
            .touch
            .map(|(target, offset)| (target, (offset, offset + len as u64), Touch::Write));
        issue.touches.extend(bytes);
        local.issue(self, &stream, issue, |_, _, _| ());
        Ok(())
    }
}
