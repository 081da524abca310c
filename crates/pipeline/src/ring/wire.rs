//! How the sides of a ring are sent: with an end that is shared, or one that moves.

use serde::{Deserializer, Serializer};
use shm_core::message::{refuse, refuse_because};

use super::*;

fn serialize<S: Serializer>(
    end: &RingEnd,
    side: &Side,
    timed: bool,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    (end, &side.slots, &*side.specs, timed).serialize(serializer)
}

fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
    index: u64,
) -> Result<(RingEnd, Side, bool), D::Error> {
    type Parts = (RingEnd, Slots, Vec<TensorSpec>, bool);
    let (end, slots, specs, timed) = Parts::deserialize(deserializer)?;
    let layout = Layout::of(&specs).map_err(|error| refuse_because(error.to_string()))?;
    let object = slots.object().clone();
    object.expect(ObjectKind::Ring).map_err(refuse)?;
    let side = Side {
        slots,
        channel: Channel::over(object),
        specs: Arc::new(specs),
        layout: Arc::new(layout),
    };
    if side.layout.bytes > side.slots.slot_bytes() || !end.is_of(&side.channel, index) {
        return Err(refuse_because(
            "the parts of a ring that arrived do not belong together",
        ));
    }
    Ok((end, side, timed))
}

impl Serialize for Producer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serialize(&self.end, &self.side, self.timed, serializer)
    }
}

impl<'de> Deserialize<'de> for Producer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (end, side, timed) = deserialize(deserializer, PRODUCERS)?;
        Ok(Self {
            end,
            side,
            next: 0,
            timed,
        })
    }
}

impl Serialize for Consumer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serialize(&self.end, &self.side, self.timed, serializer)
    }
}

impl<'de> Deserialize<'de> for Consumer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (end, side, timed) = deserialize(deserializer, CONSUMERS)?;
        Ok(Self {
            end,
            side,
            seen_orphans: 0,
            timed,
        })
    }
}
