//! What this process has to do with a block, from its first handle to its last.
//!
//! All handles of one block in this process share one of these. When the last goes, whatever it had to do with the block
//! on a device becomes a mark or a note, *before* the reference to the token goes: whoever sees that the process no longer
//! holds the token sees the mark.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use shm_core::SharedTensor;
use shm_core::trace::Trace;
use smallvec::SmallVec;

use crate::driver::check_not_forked;
use crate::error::{Error, ErrorKind, Result};
use crate::place::{Late, Place};
use crate::staging::{KeptCopy, Origin};
use crate::stream::Stream;

/// How long readers that have let go may take to be done.
const PATIENCE: Duration = Duration::from_secs(30);

/// This process's use of a block.
#[derive(Debug)]
pub(crate) struct Use {
    pub(crate) place: Place,
    pub(crate) index: u32,
    /// Which turn of the block it is.
    pub(crate) turn: u64,
    token: Trace,
    /// Streams that have work on the block.
    streams: Mutex<SmallVec<[Stream; 2]>>,
    /// Of a block that is only read: whether *ready* was recorded for others, or by others.
    published: Mutex<bool>,
    /// A copy of the storage, as it went to who cannot open it.
    copy: Arc<KeptCopy>,
    /// Of a block that was made of such a copy: which.
    origin: Arc<Origin>,
    /// Of a block with one owner: it was sent, and *ready* stands behind all the work of this process.
    handed: AtomicBool,
}

impl Use {
    /// The use of a block by a handle that is on `stream`; shared with the handles that are there already.
    pub(crate) fn begin(place: Place, index: u32, token: Trace, stream: &Stream) -> Arc<Self> {
        let turn = place.turn(index);
        let fresh = |place: Place| {
            Arc::new(Self {
                place,
                index,
                turn,
                token,
                streams: Mutex::default(),
                published: Mutex::new(false),
                copy: Arc::default(),
                origin: Arc::default(),
                handed: AtomicBool::new(false),
            })
        };
        let uses = match &place {
            Place::Home(memory, _) => &memory.uses,
            Place::Away(import) => &import.uses,
        };
        let mut uses = uses.lock();
        let known = uses.get(&index).and_then(std::sync::Weak::upgrade);
        let using = match known.filter(|known| known.turn == turn) {
            Some(known) => known,
            None => {
                let made = fresh(place.clone());
                uses.insert(index, Arc::downgrade(&made));
                made
            }
        };
        drop(uses);
        using.works_on(stream);
        using
    }

    /// Where the block begins on the device.
    pub(crate) fn address(&self) -> Result<u64> {
        self.place.address_of(self.index)
    }

    /// `stream` has, or is about to get, work on the block.
    pub(crate) fn works_on(&self, stream: &Stream) {
        self.handed.store(false, Ordering::Release);
        let mut streams = self.streams.lock();
        if !streams.iter().any(|known| known.same(stream)) {
            streams.push(stream.clone());
        }
    }

    /// `stream` is about to write the block: it waits for all else that this process has to do with it.
    pub(crate) fn is_written_in(&self, stream: &Stream) -> Result<()> {
        self.works_on(stream);
        self.gather(stream)
    }

    /// Before an exclusive tensor is sent: *ready* behind all the work of this process.
    pub(crate) fn gather(&self, stream: &Stream) -> Result<()> {
        let mut streams = self.streams.lock();
        for other in streams.iter() {
            stream.wait_for(other)?;
        }
        streams.retain(|known| known.same(stream));
        if streams.is_empty() {
            streams.push(stream.clone());
        }
        Ok(())
    }

    /// It was sent, and *ready* stands.
    pub(crate) fn was_handed(&self) {
        self.handed.store(true, Ordering::Release);
    }

    /// Before a shared tensor is sent: *ready* behind what was written, once. What is said while this is held is said by
    /// nobody else; `true`: it was said.
    pub(crate) fn published(&self) -> MutexGuard<'_, bool> {
        self.published.lock()
    }

    /// Of a shared tensor: the writer's work is in `stream`, or `stream` is made to wait for it.
    pub(crate) fn gather_shared(&self, stream: &Stream) -> Result<()> {
        for other in self.streams.lock().iter() {
            stream.wait_for(other)?;
        }
        Ok(())
    }

    /// The copy of the storage that was sent last, if it was kept.
    pub(crate) fn copy(&self) -> &Arc<KeptCopy> {
        &self.copy
    }

    /// Which copy the block was made of, if it was and was not written since.
    pub(crate) fn origin(&self) -> &Arc<Origin> {
        &self.origin
    }

    /// The block has another token.
    pub(crate) fn set_token_of_copy(&self, token: &Arc<SharedTensor<u64>>) {
        if let Some(source) = &mut *self.origin.lock() {
            source.set_token(token);
        }
    }

    /// It arrived shared: whoever wrote it has said so.
    pub(crate) fn was_shared(&self) {
        *self.published.lock() = true;
    }

    /// It is this process's alone again, and will be written: `stream` waits for whoever used it.
    pub(crate) fn thaw(&self, stream: &Stream) -> Result<()> {
        for other in self.streams.lock().iter() {
            stream.wait_for(other)?;
        }
        // What was true of its elements is not any more.
        if !crate::sabotage::is("copy") {
            crate::staging::forget(self);
        }
        drop(self.origin.lock().take());
        let mut published = self.published.lock();
        if *published {
            if !self
                .place
                .settle(self.index, stream, Late::WaitsFor(PATIENCE))?
            {
                return Err(Error::new(
                    ErrorKind::TimedOut,
                    format!(
                        "those who read a device tensor were not done within {PATIENCE:?}, or wait for a process that has died"
                    ),
                ));
            }
            *published = false;
        }
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        let streams = std::mem::take(self.streams.get_mut());
        let handed = *self.handed.get_mut();
        if let Place::Away(import) = &self.place {
            import.used_by(&streams);
        }
        if let Place::Home(memory, _) = &self.place
            && (handed || self.token.references() <= 1)
        {
            // Nobody else's, or sent on with its *ready*: the block's next user waits for these streams.
            memory.used_by(self.index, streams);
            return Ok(());
        }
        if handed || self.place.check_alive(false).is_err() {
            return Ok(());
        }
        let Some((first, others)) = streams.split_first() else {
            return Ok(());
        };
        let said = (|| {
            let mut last = first;
            for other in others {
                if let Err(error) = last.wait_for(other) {
                    if !other.is_known_stuck() {
                        return Err(error);
                    }
                    // What is behind one that is lost never happens, as it should be. If it does after all, the rest is done
                    // as well. Of several that are lost, none speaks for the others.
                    let mut rest = streams.iter().filter(|one| !one.same(other));
                    rest.try_for_each(|one| other.wait_for(one))?;
                    last = other;
                    break;
                }
            }
            let alone = self.token.references() <= 1;
            self.place.release(self.index, last, alone)
        })();
        if said.is_err() {
            // Nobody can be told by an event: it is done before the reference goes. What is behind the dead may begin after
            // all, as long as this process lives.
            let done = streams.iter().try_for_each(Stream::synchronize);
            if done.is_err() && !crate::sabotage::is("kept") {
                crate::kept::keep(&self.place, self.index, &self.token);
            }
            done?;
        }
        said
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        if check_not_forked().is_err() || self.place.object().arena().is_forked() {
            return;
        }
        if let Err(error) = self.end() {
            tracing::warn!(%error, "the last use of a device tensor could not be noted");
        }
        if let Place::Away(import) = &self.place
            && import.is_retired()
        {
            crate::later::kick();
        }
    }
}
