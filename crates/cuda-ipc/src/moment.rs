//! `Moment`: a point in the work of a stream, to be asked whether it is over.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::awaits::Awaits;
use crate::driver::{Driver, RawEvent, check_not_forked};
use crate::error::{Error, ErrorKind, Result};
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

/// The point behind what is in a stream that somebody else made, for when no tensor is on it any more: that one may destroy it
/// then, so this has no handle of it.
#[derive(Debug)]
pub(crate) struct Past {
    driver: &'static dyn Driver,
    /// None where there is none to be had.
    event: Option<RawEvent>,
    awaits: Arc<Awaits>,
    /// Without an event: whether it was waited for.
    was_waited_for: bool,
}

impl Past {
    /// Waits for the stream where there is no event.
    fn of(stream: &Stream) -> Self {
        let mut past = Self {
            driver: stream.driver(),
            event: None,
            awaits: stream.awaits().clone(),
            was_waited_for: false,
        };
        if let Err(error) = past.record(stream) {
            tracing::warn!(%error, "a thread waits for a stream, since no event can be made");
            past.was_waited_for = stream.synchronize().is_ok();
        }
        past
    }

    fn record(&mut self, stream: &Stream) -> Result<()> {
        let event = self.driver.new_event(stream.device().ordinal(), false)?;
        let recorded = stream.raw().and_then(|raw| self.driver.record(&event, raw));
        match recorded {
            Ok(()) => self.event = Some(event),
            Err(_) => self.driver.drop_event(event)?,
        }
        recorded
    }

    fn has_passed(&self) -> Result<bool> {
        match &self.event {
            Some(event) => self.driver.has_happened(event),
            None => Ok(self.was_waited_for),
        }
    }

    /// Whether it will never come to its end, as far as anybody can tell.
    fn is_stuck(&self) -> bool {
        let may_come = self.event.is_some() && self.awaits.check().is_ok();
        !may_come && !self.has_passed().unwrap_or(false)
    }
}

impl Drop for Past {
    fn drop(&mut self) {
        if check_not_forked().is_ok()
            && let Some(Err(error)) = self.event.take().map(|event| self.driver.drop_event(event))
        {
            tracing::warn!(%error, "an event could not be destroyed");
        }
    }
}

#[cold]
fn unknown() -> Error {
    Error::new(
        ErrorKind::WriterGone,
        "work in a stream that somebody else made could not be waited for, and no event tells when it is done",
    )
}

/// What a stream has done so far, for who comes after it.
#[derive(Debug)]
pub(crate) enum After {
    /// Of this crate, or one that is never destroyed: what is in it when somebody comes.
    Stream(Stream),
    Past(Past),
}

impl After {
    /// Of each of these; where there is no event, it is waited for.
    pub(crate) fn all_of(streams: &[Stream]) -> SmallVec<[Self; 2]> {
        streams.iter().map(Self::of).collect()
    }

    fn of(stream: &Stream) -> Self {
        match stream.is_lent() && stream.as_raw() != 0 {
            true => Self::Past(Past::of(stream)),
            false => Self::Stream(stream.clone()),
        }
    }

    fn awaits(&self) -> &Arc<Awaits> {
        match self {
            Self::Stream(stream) => stream.awaits(),
            Self::Past(past) => &past.awaits,
        }
    }

    /// Whether both are of one stream.
    pub(crate) fn is_of_that_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(self.awaits(), other.awaits())
    }

    /// What is put into `stream` from now on comes after it.
    pub(crate) fn is_waited_for_by(&self, stream: &Stream) -> Result<()> {
        match self {
            Self::Stream(known) => stream.wait_for(known),
            Self::Past(past) => {
                // What is done is done, whatever has become of the stream since.
                if past.has_passed()? {
                    return Ok(());
                }
                match &past.event {
                    Some(event) => stream.wait_for_recorded(event, &past.awaits),
                    None => past.awaits.check().and_then(|()| Err(unknown())),
                }
            }
        }
    }

    /// Whether it will never come to its end.
    pub(crate) fn is_stuck(&self) -> bool {
        match self {
            Self::Stream(known) => known.is_stuck(),
            Self::Past(past) => past.is_stuck(),
        }
    }
}

/// Streams that have worked on a memory, and once it was asked for, the points behind that work.
#[derive(Debug, Default)]
pub(crate) struct Work(Vec<(After, Option<Moment>)>);

/// Streams that are remembered before those are looked for that are done.
const REMEMBERED: usize = 8;

impl Work {
    /// These have, up to now.
    pub(crate) fn note(&mut self, all: SmallVec<[After; 2]>) {
        for after in all {
            let mut known = self.0.iter_mut();
            match known.find(|(known, _)| known.is_of_that_of(&after)) {
                Some(known) => *known = (after, None),
                None => self.0.push((after, None)),
            }
        }
        if self.0.len() > REMEMBERED {
            self.is_over();
        }
    }

    /// Whether all of it is done; asked without waiting.
    pub(crate) fn is_over(&mut self) -> bool {
        self.0.retain_mut(|(after, moment)| {
            let stream = match after {
                // An answer other than yes or no is of a device of no use any more: what is there stays.
                After::Past(past) => return !past.has_passed().unwrap_or(false),
                After::Stream(stream) => stream,
            };
            if moment.is_none() {
                *moment = stream.moment().ok();
            }
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
