//! `Moment`: a point in the work of a stream, to be asked whether it is over.

use crate::driver::{RawEvent, check_not_forked};
use crate::error::Result;
use crate::stream::Stream;

/// A point in the work of a [`Stream`]: whether everything that was put in before is done can be asked, without waiting.
/// From [`Stream::moment`].
#[derive(Debug)]
pub struct Moment {
    stream: Stream,
    /// `None` once it has gone back.
    event: Option<RawEvent>,
}

impl Stream {
    /// The point behind everything that was put into the stream so far. Its event is used again when the moment is dropped.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn moment(&self) -> Result<Moment> {
        check_not_forked()?;
        let event = match self.take_spare() {
            Some(event) => event,
            None => self.driver().new_event(self.device().ordinal(), false)?,
        };
        let moment = Moment {
            stream: self.clone(),
            event: Some(event),
        };
        if let Some(event) = &moment.event {
            self.driver().record(event, self.raw()?)?;
        }
        Ok(moment)
    }
}

impl Moment {
    /// Whether everything before it is done.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn has_passed(&self) -> Result<bool> {
        match &self.event {
            Some(event) => self.stream.driver().has_happened(event),
            None => Ok(true),
        }
    }
}

/// Streams that have worked on a memory, and once it was asked for, the points behind that work.
#[derive(Debug, Default)]
pub(crate) struct Work(Vec<(Stream, Option<Moment>)>);

/// Streams that are remembered before those are looked for that are done.
const REMEMBERED: usize = 8;

impl Work {
    /// These have, up to now.
    pub(crate) fn note(&mut self, streams: &[Stream]) {
        for stream in streams {
            // Of a stream of somebody else's now: it may be destroyed when no tensor is on it any more.
            let moment = stream.is_lent().then(|| stream.moment().ok()).flatten();
            match self.0.iter_mut().find(|(known, _)| known.same(stream)) {
                Some((_, known)) => *known = moment,
                None => self.0.push((stream.clone(), moment)),
            }
        }
        if self.0.len() > REMEMBERED {
            self.is_over();
        }
    }

    /// Whether all of it is done; asked without waiting.
    pub(crate) fn is_over(&mut self) -> bool {
        self.0.retain_mut(|(stream, moment)| {
            if moment.is_none() {
                *moment = stream.moment().ok();
            }
            // An answer other than yes or no is of a device of no use any more: what is there stays.
            match &moment {
                Some(moment) => !moment.has_passed().unwrap_or(false),
                // There is no event to be had: when the stream is seen with nothing to do at all.
                None => !stream.is_idle(),
            }
        });
        self.0.is_empty()
    }
}

impl Drop for Moment {
    fn drop(&mut self) {
        if let Some(event) = self.event.take()
            && check_not_forked().is_ok()
        {
            self.stream.give_spare(event);
        }
    }
}
