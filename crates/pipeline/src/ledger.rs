//! The ledger: what a process has begun, kept where it survives the process.
//!
//! A process that may be replaced notes each item before it works on it, in one of a few places with room for one item
//! each, and takes it out when it is done. What is left there after its death goes to the one that takes its place, or
//! is reported.

use std::sync::Arc;

use mp_queue::Queue;
use parking_lot::Mutex;

use crate::item::Item;

/// The places of one process.
#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    places: Arc<Vec<Queue<Item>>>,
    free: Arc<Mutex<Vec<usize>>>,
}

/// An item that is in the ledger. Dropping it takes the item out.
#[derive(Debug)]
pub(crate) struct Receipt {
    ledger: Ledger,
    place: Option<usize>,
}

impl Ledger {
    pub(crate) fn new(places: Vec<Queue<Item>>) -> Self {
        let free = (0..places.len()).rev().collect();
        Self {
            places: Arc::new(places),
            free: Arc::new(Mutex::new(free)),
        }
    }

    /// Whether there is none: the process is not replaced.
    pub(crate) fn is_none(&self) -> bool {
        self.places.is_empty()
    }

    /// Notes an item. `None` where there is no place left but the one for [changes](Receipt::change): a stage keeps more items
    /// than can be looked after.
    pub(crate) fn note(&self, item: &Item) -> Option<Receipt> {
        self.note_if(item, |free| free > 1)
    }

    fn note_if(&self, item: &Item, is_enough: impl Fn(usize) -> bool) -> Option<Receipt> {
        let place = {
            let mut free = self.free.lock();
            if !is_enough(free.len()) {
                return None;
            }
            free.pop()?
        };
        if self.places[place].try_put(item.clone()).is_err() {
            self.free.lock().push(place);
            return None;
        }
        Some(Receipt {
            ledger: self.clone(),
            place: Some(place),
        })
    }
}

impl Receipt {
    /// Notes another item in place of this one, which is what it is now. Killed in between, both are there.
    pub(crate) fn change(&mut self, item: &Item) {
        if let Some(changed) = self.ledger.note_if(item, |free| free > 0) {
            *self = changed;
        } else if let Some(place) = self.place {
            // Others change theirs just now.
            let _ = self.ledger.places[place].try_get();
            let _ = self.ledger.places[place].try_put(item.clone());
        }
    }

    /// Takes the item out. It may have been the last that kept slots of others.
    pub(crate) fn take_out(mut self) -> Option<Item> {
        self.close()
    }

    fn close(&mut self) -> Option<Item> {
        let place = self.place.take()?;
        let item = self.ledger.places[place].try_get().ok();
        self.ledger.free.lock().push(place);
        item
    }

    /// Leaves the item there for whoever comes after.
    pub(crate) fn leave(mut self) {
        self.place = None;
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        drop(self.close());
    }
}
