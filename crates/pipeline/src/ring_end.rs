//! The end of a ring that a side has: one that replicas share, or the one there is of a lane.

use mp_queue::channel::Channel;
use serde::{Deserialize, Serialize};
use shm_core::object::{Array, End, LaneEnd};

use crate::error::{Error, Result};

/// One side of a ring: shared among replicas, or the one of a lane.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum RingEnd {
    Shared(End),
    Lone(LaneEnd),
}

impl RingEnd {
    pub(crate) fn of(channel: &Channel, index: u64) -> Result<Self> {
        Ok(match channel.object().array(0) {
            Array::Lane { .. } => Self::Lone(channel.object().lane_end(index)?),
            _ => Self::Shared(channel.object().end(index)?),
        })
    }

    /// One more share, where it can be shared.
    pub(crate) fn try_clone(&self) -> Result<Self> {
        match self {
            Self::Shared(end) => Ok(Self::Shared(end.clone())),
            Self::Lone(_) => Err(Error::invalid(
                "a ring made for one producer and one consumer was to be shared by several; make it with Topology::Replicas",
            )),
        }
    }

    pub(crate) fn is_of(&self, channel: &Channel, index: u64) -> bool {
        match self {
            Self::Shared(end) => end.is_of(channel.object(), index),
            Self::Lone(end) => end.is_of(channel.object(), index),
        }
    }
}
