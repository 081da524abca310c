//! Streams and events.

use std::ffi::c_void;
use std::ptr;

use super::Cuda;
use super::memory::raw;
use crate::driver::{RawEvent, RawStream};
use crate::error::{Result, check};

/// The flag of a stream that is not ordered with the legacy default stream.
const NON_BLOCKING: u32 = 1;
/// Event flags: no time stamps, and for other processes too.
const DISABLE_TIMING: u32 = 2;
const INTERPROCESS: u32 = 4;
/// What an event that has not happened answers.
const NOT_READY: i32 = 600;

impl Cuda {
    pub(super) fn stream_create(&self, device: u32) -> Result<RawStream> {
        let _entered = self.enter(device)?;
        let create = self.symbols.stream_create()?;
        let mut stream = ptr::null_mut();
        // A blocking one would wait for what whoever else uses the device puts into the legacy default stream, and that for
        // what this one waits for: a process that was killed would hold up all of them, and nobody would know.
        // SAFETY: it writes a pointer to where one is.
        check("cuStreamCreate", unsafe {
            create(&raw mut stream, NON_BLOCKING)
        })?;
        Ok(RawStream {
            device,
            raw: stream.addr(),
            owned: true,
        })
    }

    pub(super) fn stream_destroy(&self, stream: RawStream) -> Result<()> {
        if !stream.owned {
            return Ok(());
        }
        let _entered = self.enter(stream.device)?;
        let destroy = self.symbols.stream_destroy()?;
        // SAFETY: the stream is ours, and its one handle ends here.
        check("cuStreamDestroy_v2", unsafe { destroy(raw(&stream)) })
    }

    pub(super) fn stream_is_blocking(&self, stream: &RawStream) -> Result<bool> {
        // The default stream itself.
        if stream.raw == 0 {
            return Ok(true);
        }
        let _entered = self.enter(stream.device)?;
        let Ok(get) = self.symbols.stream_flags() else {
            return Ok(true);
        };
        let mut flags = 0;
        // SAFETY: the stream lives, as its handle does, and a number is written to where one is.
        check("cuStreamGetFlags", unsafe {
            get(raw(stream), &raw mut flags)
        })?;
        Ok(flags & NON_BLOCKING == 0)
    }

    pub(super) fn stream_number(&self, stream: &RawStream) -> Result<Option<u64>> {
        let _entered = self.enter(stream.device)?;
        let Ok(get) = self.symbols.stream_id() else {
            return Ok(None);
        };
        let mut id = 0;
        // SAFETY: the stream lives, as its handle does, and a number is written to where one is.
        check("cuStreamGetId", unsafe { get(raw(stream), &raw mut id) })?;
        Ok(Some(id))
    }

    pub(super) fn stream_synchronize(&self, stream: &RawStream) -> Result<()> {
        let _entered = self.enter(stream.device)?;
        let synchronize = self.symbols.stream_synchronize()?;
        // SAFETY: the stream lives, as its handle does.
        check("cuStreamSynchronize", unsafe { synchronize(raw(stream)) })
    }

    pub(super) fn stream_query(&self, stream: &RawStream) -> Result<bool> {
        let _entered = self.enter(stream.device)?;
        let query = self.symbols.stream_query()?;
        // SAFETY: the stream lives, as its handle does.
        match unsafe { query(raw(stream)) } {
            NOT_READY => Ok(false),
            code => check("cuStreamQuery", code).map(|()| true),
        }
    }

    pub(super) fn stream_wait(&self, stream: &RawStream, event: &RawEvent) -> Result<()> {
        let _entered = self.enter(stream.device)?;
        let wait = self.symbols.stream_wait()?;
        // SAFETY: both live, as their handles do.
        check("cuStreamWaitEvent", unsafe {
            wait(raw(stream), event_of(event), 0)
        })
    }

    pub(super) fn event_create(&self, device: u32, shared: bool) -> Result<RawEvent> {
        let _entered = self.enter(device)?;
        let create = self.symbols.event_create()?;
        let flags = DISABLE_TIMING | if shared { INTERPROCESS } else { 0 };
        let mut event = ptr::null_mut();
        // SAFETY: it writes a pointer to where one is.
        check("cuEventCreate", unsafe { create(&raw mut event, flags) })?;
        Ok(RawEvent {
            device,
            raw: event.addr(),
        })
    }

    pub(super) fn event_destroy(&self, event: RawEvent) -> Result<()> {
        let _entered = self.enter(event.device)?;
        let destroy = self.symbols.event_destroy()?;
        // SAFETY: the event is ours, made or imported, and its one handle ends here.
        check("cuEventDestroy_v2", unsafe { destroy(event_of(&event)) })
    }

    pub(super) fn event_record(&self, event: &RawEvent, stream: &RawStream) -> Result<()> {
        let _entered = self.enter(stream.device)?;
        let record = self.symbols.event_record()?;
        // SAFETY: both live, as their handles do.
        check("cuEventRecord", unsafe {
            record(event_of(event), raw(stream))
        })
    }

    pub(super) fn event_query(&self, event: &RawEvent) -> Result<bool> {
        let _entered = self.enter(event.device)?;
        let query = self.symbols.event_query()?;
        // SAFETY: the event lives, as its handle does.
        match unsafe { query(event_of(event)) } {
            NOT_READY => Ok(false),
            code => check("cuEventQuery", code).map(|()| true),
        }
    }
}

pub(super) fn event_of(event: &RawEvent) -> *mut c_void {
    ptr::without_provenance_mut(event.raw)
}
