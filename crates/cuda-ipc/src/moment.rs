//! `Moment`: a point in the work of a stream, to be asked whether it is over.

use crate::driver::RawEvent;
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
        crate::driver::check_not_forked()?;
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

impl Drop for Moment {
    fn drop(&mut self) {
        if let Some(event) = self.event.take() {
            self.stream.give_spare(event);
        }
    }
}
