//! The references of a message on its way out: whether what is exclusive is really gone, and where all is laid.

use core::sync::atomic::Ordering;

use smallvec::SmallVec;

use super::draft::Draft;
use super::parse::{FEW, FORM_SPILLED, What};
use crate::error::{Error, ErrorKind, Result};
use crate::held::{self, Held};
use crate::layout::{LINE, counted};
use crate::line::Mode;
use crate::storage::Storage;

/// Bytes in front of table and body in a block.
pub(super) const SPILL_HEADER: usize = 24;

/// A reference on its way out, still held by this process.
#[derive(Debug)]
pub(crate) struct Pin {
    pub(crate) held: Held,
    pub(crate) what: What,
}

impl Pin {
    /// What the header of its block says now.
    fn mode(&self) -> Option<Mode> {
        let meta = self
            .held
            .arena()
            .segment()
            .word(self.held.line * LINE + counted::META)
            .load(Ordering::Acquire);
        Mode::from_meta(meta)
    }
}

/// The references of a message.
///
/// Dropped in order: ends and slots lie in the block of their object, which may be gone with its last handle.
#[derive(Debug, Default)]
pub(crate) struct Pins(pub(crate) SmallVec<[Pin; FEW]>);

impl Pins {
    pub(crate) fn take(&mut self) -> SmallVec<[Pin; FEW]> {
        std::mem::take(&mut self.0)
    }

    /// Checks that exclusive handles are really gone, and lays the message out.
    #[inline(never)]
    pub(super) fn finish(&mut self, draft: &mut Draft<'_>, spill: Option<Storage>) -> Result<()> {
        let laid_out = self.lay_out(draft, spill);
        if laid_out.is_err() {
            *self = Self::default();
        }
        laid_out
    }

    fn lay_out(&mut self, draft: &mut Draft<'_>, spill: Option<Storage>) -> Result<()> {
        for pin in self.iter().filter(|pin| pin.what.is_exclusive()) {
            // Besides the handle itself: code that still had it while it was serialized may have frozen it since, and
            // sent it elsewhere.
            let is_still = pin.what == What::ExclusiveEnd || pin.mode() == Some(Mode::Exclusive);
            if !is_still || !pin.held.is_sole() {
                return Err(still_held(pin));
            }
        }
        let Err((table, body)) = draft.finish() else {
            return Ok(());
        };
        let Some(spill) = spill else {
            return Err(Error::new(
                ErrorKind::Encode,
                "a message that is too long for a cell has no block",
            ));
        };
        let mut header = [0; SPILL_HEADER];
        header[0..8].copy_from_slice(&(self.len() as u64).to_le_bytes());
        header[8..16].copy_from_slice(&(table.len() as u64).to_le_bytes());
        header[16..24].copy_from_slice(&(body.len() as u64).to_le_bytes());
        let length = header.len() + table.len() + body.len();
        spill.write_bytes(0, &header);
        spill.write_bytes(header.len(), table);
        spill.write_bytes(header.len() + table.len(), body);
        let held = spill.into_held();
        draft.finish_as([
            FORM_SPILLED.into(),
            held.line,
            held.generation,
            length as u64,
            0,
            0,
            0,
        ]);
        let what = What::Spill;
        self.0.insert(0, Pin { held, what });
        Ok(())
    }
}

impl std::ops::Deref for Pins {
    type Target = [Pin];

    #[inline]
    fn deref(&self) -> &[Pin] {
        &self.0
    }
}

impl Drop for Pins {
    #[inline]
    fn drop(&mut self) {
        if !self.0.is_empty() {
            self.0.retain(|pin| !pin.what.is_in_object());
        }
    }
}

#[cold]
fn still_held(pin: &Pin) -> Error {
    let (local, line) = pin.held.counts();
    let who = if line.generation != pin.held.generation || line.count == 0 {
        return held::stale(pin.held.line, pin.held.generation);
    } else if local > 1 {
        format!(
            "that occurs twice in it, or that this process still holds elsewhere (in an Arc, say): it has {local} handles"
        )
    } else if line.count > 1 {
        format!("to which others have {} references", line.count - 1)
    } else {
        "that was frozen or aliased while it was being sent".to_owned()
    };
    Error::new(
        ErrorKind::StillHeld,
        format!(
            "the message holds an exclusive tensor (or lane end) {who}; nothing was sent. Send the tensor itself, or `freeze()` it and send clones"
        ),
    )
}
