//! A slot that a process reads, until it lets go of it.

use shm_core::message::Incoming;
use shm_core::{Element, elements_of};

use crate::board::Place;
use crate::device::{Copying, Store};
use crate::error::{Error, Result};
use crate::home::Home;
use crate::item::{NO_SLOT, Share, View};
use crate::spec::Layout;

/// A slot that this process reads. Whoever has it [lets go](Self::let_go) of it, with the home that it began with: an
/// [`Input`](crate::Input) has several of one home, and there is less to count where only that one knows it.
#[derive(Debug)]
pub(crate) struct Reading {
    place: Place,
    /// `None` once it has been passed on or let go of.
    store: Option<Store>,
    views: Vec<View>,
    pub(crate) copying: Copying,
}

impl Reading {
    pub(crate) fn begin(home: &Home, share: Share) -> Result<Self> {
        let place = share.place();
        let Share { memory, views, .. } = share;
        let layout = layout_of(home, place)?;
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
            return Err(not_its_own(place));
        }
        home.hold(place, !views.is_empty());
        let mut reading = Self {
            place,
            store: Some(store),
            views,
            copying: Copying::default(),
        };
        match reading.bring(home) {
            Ok(()) => Ok(reading),
            Err(error) => {
                reading.let_go(home);
                Err(error)
            }
        }
    }

    /// The same of a slot in the arena of which all is valid, as it came.
    #[inline]
    pub(crate) fn of_block(home: &Home, place: Place, message: &mut Incoming) -> Result<Self> {
        let layout = layout_of(home, place)?;
        let (memory, _) = message
            .take_block()
            .ok_or_else(|| not_its_own(place))?
            .map_err(mp_queue::Error::from)?;
        if memory.len() < layout.bytes {
            return Err(not_its_own(place));
        }
        home.hold(place, false);
        Ok(Self {
            place,
            store: Some(Store::Host(memory)),
            views: Vec::new(),
            copying: Copying::default(),
        })
    }

    /// What is on another device than this process works on is copied there.
    fn bring(&mut self, home: &Home) -> Result<()> {
        let layout = layout_of(home, self.place)?;
        let brought = self.store()?.brought_to(home.device, layout, &self.views)?;
        if let Some((store, copying)) = brought {
            self.replace(home, store);
            self.copying = copying;
        }
        Ok(())
    }

    /// What its slot has.
    pub(crate) fn layout<'a>(&self, home: &'a Home) -> Result<&'a Layout> {
        layout_of(home, self.place)
    }

    fn store(&self) -> Result<&Store> {
        self.store
            .as_ref()
            .ok_or_else(|| Error::invalid("a slot was read after it had been passed on"))
    }

    pub(crate) fn tensor<T: Element>(&self, home: &Home, index: usize) -> Result<&[T]> {
        self.layout(home)?.place::<T>(index)?;
        Ok(elements_of(self.bytes(home, index)?)?)
    }

    pub(crate) fn bytes(&self, home: &Home, index: usize) -> Result<&[u8]> {
        let (store, range) = self.valid(home, index)?;
        // In bounds: checked when it arrived.
        Ok(store.bytes()?.get(range).unwrap_or(&[]))
    }

    /// Where the valid elements of a tensor lie.
    pub(crate) fn valid(
        &self,
        home: &Home,
        index: usize,
    ) -> Result<(&Store, std::ops::Range<usize>)> {
        let range = self
            .layout(home)?
            .at(index)?
            .bytes_of(self.view(home, index)?);
        Ok((self.store()?, range))
    }

    pub(crate) fn view<'a>(&'a self, home: &'a Home, index: usize) -> Result<&'a View> {
        let layout = self.layout(home)?;
        layout.at(index)?;
        // As many as there are tensors: checked when it arrived.
        Ok(self.views.get(index).unwrap_or(&layout.whole[index]))
    }

    /// Whether it is read where it was written, and keeps that from its writer.
    pub(crate) fn is_in_a_slot(&self) -> bool {
        self.store.is_some() && self.place.slot != NO_SLOT
    }

    /// One more reference to what is read, to travel.
    pub(crate) fn share(&self) -> Result<Share> {
        let memory = self.store()?.send()?;
        Ok(self.place.share(memory, self.views.clone()))
    }

    /// Copies what is read into memory of its own, and lets go of the slot.
    pub(crate) fn detach(&mut self, home: &Home) -> Result<()> {
        if self.is_in_a_slot() {
            let copy = self.store()?.detached(self.layout(home)?, &self.views)?;
            self.replace(home, copy);
        }
        Ok(())
    }

    /// From now on a copy is read, and the slot given back.
    fn replace(&mut self, home: &Home, copy: Store) {
        let mut replaced = Self {
            place: self.place,
            store: self.store.replace(copy),
            views: self.views.clone(),
            copying: Copying::default(),
        };
        self.place.slot = NO_SLOT;
        replaced.let_go(home);
    }

    /// The slot itself, to be passed on to the next step.
    pub(crate) fn pass_on(&mut self, home: &Home) -> Result<Option<Share>> {
        let Some(store) = self.store.take() else {
            return Ok(None);
        };
        match store.into_memory() {
            Ok(memory) => {
                home.let_go(self.place, !self.views.is_empty());
                let views = std::mem::take(&mut self.views);
                Ok(Some(self.place.share(memory, views)))
            }
            Err(failed) => {
                let (error, store) = *failed;
                // It is let go of as what was not to be passed on.
                self.store = Some(store);
                Err(error)
            }
        }
    }

    /// It is read no more. Does nothing the second time.
    pub(crate) fn let_go(&mut self, home: &Home) {
        let Some(store) = self.store.take() else {
            return;
        };
        home.let_go(self.place, !self.views.is_empty());
        shm_core::failpoint!("input.unread");
        drop(store);
        // After the reference is gone: whoever is woken finds the slot free.
        if let Some(known) = home.upstream.get(self.place.rank) {
            known.freed.set();
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        debug_assert!(
            self.store.is_none() || std::thread::panicking(),
            "a slot is let go of before it is forgotten"
        );
    }
}

#[inline]
fn layout_of(home: &Home, place: Place) -> Result<&Layout> {
    let known = home.upstream.get(place.rank).ok_or_else(|| {
        Error::invalid(format!(
            "a slot of process {} arrived, which no step before this one has",
            place.rank
        ))
    })?;
    Ok(&known.layout)
}

#[cold]
fn not_its_own(place: Place) -> Error {
    Error::invalid(format!(
        "slot {} of process {} arrived with tensors that are not its own",
        place.slot, place.rank
    ))
}

pub(crate) fn numel(shape: &[usize]) -> Option<usize> {
    shape
        .iter()
        .try_fold(1_usize, |all, &dim| all.checked_mul(dim))
}
