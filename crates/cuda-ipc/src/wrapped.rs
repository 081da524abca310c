//! Memory that somebody else made: its owner is dropped when nobody uses it any more.
//!
//! The owner's allocator knows nothing of this crate, so it must not wait for the next allocation here. Who wraps more looks
//! first what is over; for who does nothing, the thread that watches the arena looks twice a second.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use shm_core::tensor::Geometry;
use shm_core::{Dtype, Shape};

use crate::body::Body;
use crate::error::{Error, ErrorKind, Result};
use crate::hub::Hub;
use crate::memory::Memory;
use crate::place::Place;
use crate::rest;
use crate::stream::Stream;
use crate::stuck;

impl Body {
    /// Memory that somebody else made.
    pub(crate) fn wrap(
        dtype: Dtype,
        shape: impl Into<Shape>,
        address: u64,
        owner: Box<dyn Any + Send>,
        stream: &Stream,
    ) -> Result<Self> {
        let geometry = Geometry::contiguous(dtype, shape)?;
        let hub = Hub::get()?;
        if !address.is_multiple_of(dtype.align() as u64) {
            return Err(Error::new(
                ErrorKind::Shape,
                format!(
                    "{dtype} must lie at a multiple of {} bytes, and {address:#x} is none",
                    dtype.align()
                ),
            ));
        }
        let bytes = geometry.packed_bytes() as u64;
        hub.drop_owners(false, false);
        let memory = Memory::wrap(hub, stream.device(), address, bytes.max(1), owner)?;
        let (block, place) = hub.adopt(memory)?;
        let memory = block.memory.clone();
        let made = Self::over(hub, block, place, bytes, geometry, stream);
        made.inspect_err(|_| hub.disown(&memory))
    }
}

impl Hub {
    /// Of what became no tensor after all: its owner goes, as it does where nothing of it was known.
    fn disown(&self, memory: &Arc<Memory>) {
        for pool in self.pools() {
            pool.lock().forget(memory);
        }
        self.drop_owner_of(memory);
    }

    /// Whether some of it is held by nobody any more. Waits for nobody.
    pub(crate) fn has_wrapped_to_drop(&self) -> bool {
        let Some(pools) = self.pools.try_lock() else {
            return false;
        };
        pools.values().any(|pool| {
            pool.try_lock()
                .is_some_and(|pool| pool.has_wrapped_to_drop())
        })
    }

    /// Drops the owners of what nobody uses any more, and on which all work is done: asked without waiting. Who has it open is
    /// asked to close it. An owner gives memory back, for which the driver waits for all streams of the device, so none of
    /// these may wait for another process then; `held`: they are kept from it until they do not. Whether some of it stays
    /// because they do.
    pub(crate) fn drop_owners(&self, all: bool, held: bool) -> bool {
        let mut stays = false;
        for pool in self.pools() {
            let Some(device) = pool.lock().device() else {
                continue;
            };
            let may_go = |memory: &Arc<Memory>| {
                if memory.is_open_elsewhere() {
                    memory.retire(self);
                    return false;
                }
                self.is_done_with(memory)
            };
            let mut is_any = false;
            pool.lock().take_wrapped(all, |memory| {
                is_any |= may_go(memory);
                false
            });
            if !is_any {
                continue;
            }
            let drop_all = || {
                let goes = |memory: &Arc<Memory>| may_go(memory) && memory.begin_to_go();
                let gone = pool.lock().take_wrapped(true, goes);
                rest::dropping(device, || {
                    for memory in &gone {
                        self.drop_owner_of(memory);
                    }
                });
            };
            let dropped = match held {
                true => rest::while_held(device, None, drop_all).ok(),
                false => rest::while_calm(device, Some(Instant::now()), drop_all),
            };
            stays |= dropped.is_none();
        }
        stays
    }

    /// Drops the owner of a memory that is in no pool any more; the number of bytes. Whoever made it may do anything when it goes,
    /// and that is no business of who happens to come by, nor of the next owner.
    pub(crate) fn drop_owner_of(&self, memory: &Arc<Memory>) -> u64 {
        catch_unwind(AssertUnwindSafe(|| self.give_up(memory))).unwrap_or_else(|_| {
            tracing::error!("the owner of wrapped device memory panicked when it was dropped");
            memory.bytes
        })
    }

    fn is_done_with(&self, memory: &Arc<Memory>) -> bool {
        let Ok(station) = self.station() else {
            return false;
        };
        let is_stuck = stuck::all().iter().any(|one| one.device == memory.device);
        let place = Place::Home(memory.clone(), station);
        !is_stuck
            && memory.worked.lock().is_over()
            && place.is_quiet(0, self.driver).unwrap_or(false)
    }
}
