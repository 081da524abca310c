//! A slot that a process reads, until it lets go of it.

use std::sync::Arc;

use shm_core::{Element, elements_of};

use crate::board::Place;
use crate::device::{Copying, Store};
use crate::error::{Error, Result};
use crate::home::Home;
use crate::item::{NO_SLOT, Share, View};
use crate::spec::Layout;

/// A slot that this process reads.
#[derive(Debug)]
pub(crate) struct Reading {
    home: Arc<Home>,
    pub(crate) layout: Arc<Layout>,
    /// `None` once it has been passed on.
    held: Option<Held>,
    pub(crate) copying: Copying,
}

/// The slot itself.
#[derive(Debug)]
struct Held {
    place: Place,
    store: Store,
    views: Vec<View>,
}

impl Reading {
    pub(crate) fn begin(home: &Arc<Home>, share: Share) -> Result<Self> {
        let place = share.place();
        let Share {
            rank,
            slot,
            memory,
            views,
            ..
        } = share;
        let known = home.upstream.get(rank).ok_or_else(|| {
            Error::invalid(format!(
                "a slot of process {rank} arrived, which no step before this one has"
            ))
        })?;
        let layout = Arc::clone(&known.layout);
        let store = memory.open()?;
        let all_within = || {
            let mut pairs = views.iter().zip(&layout.tensors);
            views.len() == layout.tensors.len()
                && pairs.all(|(view, place)| {
                    numel(&view.shape)
                        .and_then(|numel| numel.checked_add(view.start))
                        .is_some_and(|end| end <= place.numel)
                })
        };
        if store.len() < layout.bytes || !(views.is_empty() || all_within()) {
            return Err(Error::invalid(format!(
                "slot {slot} of process {rank} arrived with tensors that are not its own"
            )));
        }
        home.hold(place, !views.is_empty());
        let mut reading = Self {
            home: Arc::clone(home),
            layout,
            held: Some(Held {
                place,
                store,
                views,
            }),
            copying: Copying::default(),
        };
        let held = reading.held()?;
        let brought = held
            .store
            .brought_to(home.device, &reading.layout, &held.views)?;
        if let Some((store, copying)) = brought {
            reading.replace(store);
            reading.copying = copying;
        }
        Ok(reading)
    }

    fn held(&self) -> Result<&Held> {
        self.held
            .as_ref()
            .ok_or_else(|| Error::invalid("a slot was read after it had been passed on"))
    }

    pub(crate) fn tensor<T: Element>(&self, index: usize) -> Result<&[T]> {
        self.layout.place::<T>(index)?;
        Ok(elements_of(self.bytes(index)?)?)
    }

    pub(crate) fn bytes(&self, index: usize) -> Result<&[u8]> {
        let (store, range) = self.valid(index)?;
        // In bounds: checked when it arrived.
        Ok(store.bytes()?.get(range).unwrap_or(&[]))
    }

    /// Where the valid elements of a tensor lie.
    pub(crate) fn valid(&self, index: usize) -> Result<(&Store, std::ops::Range<usize>)> {
        let range = self.layout.at(index)?.bytes_of(self.view(index)?);
        Ok((&self.held()?.store, range))
    }

    pub(crate) fn view(&self, index: usize) -> Result<&View> {
        self.layout.at(index)?;
        // As many as there are tensors: checked when it arrived.
        let own = self.held()?.views.get(index);
        Ok(own.unwrap_or(&self.layout.whole[index]))
    }

    /// Whether it is read where it was written, and keeps that from its writer.
    pub(crate) fn is_in_a_slot(&self) -> bool {
        let held = self.held.as_ref();
        held.is_some_and(|held| held.place.slot != NO_SLOT)
    }

    /// One more reference to what is read, to travel.
    pub(crate) fn share(&self) -> Result<Share> {
        let Held {
            place,
            store,
            views,
        } = self.held()?;
        Ok(Share {
            rank: place.rank,
            slot: place.slot,
            turn: place.turn,
            memory: store.send()?,
            views: views.clone(),
        })
    }

    /// Copies what is read into memory of its own, and lets go of the slot.
    pub(crate) fn detach(&mut self) -> Result<()> {
        if self.is_in_a_slot() {
            let held = self.held()?;
            let copy = held.store.detached(&self.layout, &held.views)?;
            self.replace(copy);
        }
        Ok(())
    }

    /// From now on a copy is read, and the slot given back.
    fn replace(&mut self, store: Store) {
        let Some(held) = &mut self.held else { return };
        let copied = Held {
            place: Place {
                slot: NO_SLOT,
                ..held.place
            },
            store,
            views: held.views.clone(),
        };
        // What is replaced is let go of as if it were dropped.
        drop(Self {
            home: Arc::clone(&self.home),
            layout: Arc::clone(&self.layout),
            held: self.held.replace(copied),
            copying: Copying::default(),
        });
    }

    /// The slot itself, to be passed on to the next step.
    pub(crate) fn pass_on(mut self) -> Result<Option<Share>> {
        let Some(held) = self.held.take() else {
            return Ok(None);
        };
        let Held {
            place,
            store,
            views,
        } = held;
        let memory = match store.into_memory() {
            Ok(memory) => memory,
            Err(failed) => {
                let (error, store) = *failed;
                // It is let go of as what was not to be passed on.
                self.held = Some(Held {
                    place,
                    store,
                    views,
                });
                return Err(error);
            }
        };
        self.home.let_go(place, !views.is_empty());
        Ok(Some(Share {
            rank: place.rank,
            slot: place.slot,
            turn: place.turn,
            memory,
            views,
        }))
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let Some(Held {
            place,
            store,
            views,
        }) = self.held.take()
        else {
            return;
        };
        self.home.let_go(place, !views.is_empty());
        shm_core::failpoint!("input.unread");
        drop(store);
        // After the reference is gone: whoever is woken finds the slot free.
        if let Some(known) = self.home.upstream.get(place.rank) {
            known.freed.set();
        }
    }
}

pub(crate) fn numel(shape: &[usize]) -> Option<usize> {
    shape
        .iter()
        .try_fold(1_usize, |all, &dim| all.checked_mul(dim))
}
