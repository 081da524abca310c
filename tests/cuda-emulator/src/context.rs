//! Contexts: one for each device, its primary one, and which of them a thread has made current.

use std::sync::Arc;

use crate::board::{self, Kind};
use crate::code::{self, Answer, refuse};
use crate::process::{CURRENT, Process};
use crate::space::Use;
use crate::stream::Stream;

/// The primary context of a device.
#[derive(Default)]
pub(crate) struct Context {
    pub(crate) retained: u32,
    pub(crate) default_stream: Option<Arc<Stream>>,
    /// Devices whose memory it was allowed to use.
    pub(crate) peers: [bool; board::DEVICES],
}

/// A context's handle.
pub(crate) fn handle(device: usize) -> usize {
    0x0c00_0000_0000_0000 | ((device + 1) << 4)
}

/// The device of a context's handle.
pub(crate) fn device_of(context: usize) -> Answer<usize> {
    match (0..board::DEVICES).find(|&device| handle(device) == context) {
        Some(device) => Ok(device),
        None => refuse(code::INVALID_CONTEXT, format!("{context:#x} is no context")),
    }
}

impl Process {
    /// The device of the thread's current context.
    pub(crate) fn current(&self) -> Answer<usize> {
        let device = self.current_even_if_broken()?;
        self.check_device(device)?;
        Ok(device)
    }

    pub(crate) fn current_even_if_broken(&self) -> Answer<usize> {
        let Some(context) = CURRENT.with_borrow(|stack| stack.last().copied()) else {
            return refuse(code::INVALID_CONTEXT, "this thread has no current context");
        };
        if context == 0 {
            return refuse(code::INVALID_CONTEXT, "this thread has no current context");
        }
        let device = device_of(context)?;
        if self.local().contexts[device].retained == 0 {
            return refuse(
                code::INVALID_CONTEXT,
                format!("the context of device {device} was destroyed"),
            );
        }
        Ok(device)
    }

    /// The same without a look at whether the context is still there.
    pub(crate) fn thread_device(&self) -> Option<usize> {
        let context = CURRENT.with_borrow(|stack| stack.last().copied())?;
        device_of(context).ok()
    }

    pub(crate) fn retain(&self, device: usize) {
        self.local().contexts[device].retained += 1;
    }

    pub(crate) fn release(&'static self, device: usize) -> Answer {
        let left = {
            let mut local = self.local();
            let context = &mut local.contexts[device];
            if context.retained == 0 {
                return refuse(
                    code::INVALID_CONTEXT,
                    format!("device {device}'s context is not retained"),
                );
            }
            context.retained -= 1;
            context.retained
        };
        if left == 0 {
            self.reset(device);
        }
        Ok(())
    }

    /// Destroys what belongs to a device's context. What is still there then was forgotten.
    pub(crate) fn reset(&'static self, device: usize) {
        for line in self.belongings(Some(device)) {
            self.report(
                Kind::Leak,
                &format!("{line} when the context was destroyed"),
            );
        }
        self.synchronize(device);
        let mut local = self.local();
        for stream in local.streams_of(device) {
            stream.close();
        }
        local.streams.retain(|_, stream| stream.device != device);
        local.contexts[device] = Context {
            retained: local.contexts[device].retained,
            ..Context::default()
        };
        let events: Vec<usize> = local
            .events
            .iter()
            .filter(|(_, it)| it.device == device)
            .map(|(&at, _)| at)
            .collect();
        for event in events {
            let event = local.events.remove(&event);
            event.into_iter().for_each(|event| event.close(self));
        }
        let of_device =
            |range: &crate::space::Range| range.target.is_some_and(|it| it.device == device);
        let ranges: Vec<u64> = local
            .space
            .all()
            .filter(|(_, it)| of_device(it))
            .map(|(at, _)| at)
            .collect();
        for at in ranges {
            match local.space.at(at).map(|range| range.what) {
                Some(Use::Own { .. }) => {
                    let target = local.space.remove(at).and_then(|range| range.target);
                    target
                        .into_iter()
                        .for_each(|target| crate::memory::release(self, target));
                }
                Some(Use::Import { .. }) => crate::ipc::close(self, &mut local, at),
                // Virtual memory belongs to the process.
                Some(Use::Reserved { .. }) | None => {}
            }
        }
        drop(local);
        self.mend_device(device);
    }

    /// What this process has and would have to give back, a line each; of one device or of all.
    pub(crate) fn belongings(&self, device: Option<usize>) -> Vec<String> {
        let is_there = |it: usize| device.is_none_or(|device| device == it);
        let local = self.local();
        let mut lines = Vec::new();
        for (at, range) in local.space.all() {
            let Some(target) = range.target.filter(|target| is_there(target.device)) else {
                if device.is_none() && range.target.is_none() {
                    lines.push(format!(
                        "a reservation of {} bytes at {at:#x} was there",
                        range.len
                    ));
                }
                continue;
            };
            let what = match range.what {
                Use::Own { .. } => "memory",
                Use::Import { .. } => "another process's memory",
                Use::Reserved { .. } if device.is_none() => "a mapping",
                Use::Reserved { .. } => continue,
            };
            lines.push(format!(
                "{what} of {} bytes of device {} at {at:#x} was there",
                target.size, target.device
            ));
        }
        for event in local.events.values().filter(|event| is_there(event.device)) {
            let what = if event.imported {
                "another process's event"
            } else {
                "an event"
            };
            lines.push(format!("{what} of device {} was there", event.device));
        }
        for stream in local
            .streams
            .values()
            .filter(|stream| is_there(stream.device))
        {
            lines.push(format!("a stream of device {} was there", stream.device));
        }
        if device.is_none() {
            for (at, pinned) in &local.pinned {
                lines.push(format!(
                    "{} bytes of the host at {at:#x} were registered",
                    pinned.len
                ));
            }
            for _ in local.virtuals.values() {
                lines.push("a handle of virtual memory was there".to_owned());
            }
        }
        lines
    }
}
