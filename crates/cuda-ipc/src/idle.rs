//! An event to be had: one that was never used, or that nobody needs any more.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use crate::device::Device;
use crate::error::Result;
use crate::event::Station;
use crate::hub::Hub;
use crate::layout::{block, record};
use crate::mark::{EventId, Mark};
use crate::place::Place;

impl Hub {
    /// An event for a block on `device`, or to be recorded next in a stream, which has that number, if there may be one more.
    pub(crate) fn event_for(
        &self,
        station: &Station,
        device: Device,
        stream: Option<u8>,
    ) -> Result<Option<EventId>> {
        self.reclaim_joint(station, false);
        let event = station.bind(device, stream)?;
        if event.is_some() || !station.may_look_for_idle() {
            return Ok(event);
        }
        let found = self.take_idle_events()
            | self.reclaim_joint(station, true)
            | station.replace_lost(crate::numbers::is_known_lost);
        if !found {
            station.found_none_idle();
            return Ok(None);
        }
        station.bind(device, stream)
    }

    /// Sees to events that were recorded for several tensors each, and that no block speaks of any more; whether there were
    /// any. Whoever was made to wait for one holds a block that speaks of it, or has sent that on, and waits still.
    fn reclaim_joint(&self, station: &Station, at_once: bool) -> bool {
        let joint = station.take_joint(at_once);
        if joint.is_empty() {
            return false;
        }
        let memories: Vec<_> = self.memories.lock().values().cloned().collect();
        let mut spoken_of = HashSet::new();
        for memory in memories {
            let ready = |index| record(&memory.object, index, block::READY).load(Ordering::Acquire);
            for index in 0..memory.count {
                if let Mark::Joint(id, _) = Mark::from_word(ready(index))
                    && !crate::sabotage::is("joint")
                {
                    spoken_of.insert(id);
                }
            }
        }
        let (in_use, over): (Vec<_>, Vec<_>) = joint
            .into_iter()
            .partition(|joint| spoken_of.contains(&joint.id));
        let found = !over.is_empty();
        station.put_joint(in_use, over);
        found
    }

    /// Takes events from blocks that nobody uses, for one that is about to be sent; whether there were any.
    pub(crate) fn take_idle_events(&self) -> bool {
        let Ok(station) = self.station() else {
            return false;
        };
        let mut found = false;
        for pool in self.pools() {
            for block in pool.lock().free_blocks() {
                let place = Place::Home(block.memory.clone(), station.clone());
                if place.is_quiet(block.index, self.driver).unwrap_or(false) {
                    found |= place.unbind(block.index);
                }
            }
        }
        found
    }
}
