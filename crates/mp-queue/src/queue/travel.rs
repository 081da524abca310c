//! How a queue and its halves travel: their ends and the object they lie in, checked on arrival.

use std::marker::PhantomData;
use std::sync::atomic::AtomicU64;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use shm_core::message::{refuse, refuse_because};
use shm_core::object::{End, Object, ObjectKind};

use super::{Queue, Receiver, Sender};
use crate::channel::{CONSUMERS, Channel, PRODUCERS};

/// The channel in an object that arrived, whose end is known to belong to it or not.
pub(crate) fn checked<E: serde::de::Error>(belongs: bool, object: Object) -> Result<Channel, E> {
    object.expect(ObjectKind::Queue).map_err(refuse)?;
    if !belongs {
        return Err(refuse_because(format!(
            "the end of a queue arrived with another one, {object}"
        )));
    }
    Ok(Channel::over(object))
}

impl<T> Serialize for Sender<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (&self.end, &self.channel.object).serialize(serializer)
    }
}

impl<'de, T> Deserialize<'de> for Sender<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (end, object) = <(End, Object)>::deserialize(deserializer)?;
        let channel = checked(end.is_of(&object, PRODUCERS), object)?;
        Ok(Self {
            end,
            channel,
            message: PhantomData,
        })
    }
}

impl<T> Serialize for Receiver<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (&self.end, &self.channel.object).serialize(serializer)
    }
}

impl<'de, T> Deserialize<'de> for Receiver<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (end, object) = <(End, Object)>::deserialize(deserializer)?;
        let channel = checked(end.is_of(&object, CONSUMERS), object)?;
        Ok(Self {
            end,
            channel,
            seen_orphans: AtomicU64::new(0),
            message: PhantomData,
        })
    }
}

impl<T> Serialize for Queue<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (
            &self.sender.end,
            &self.receiver.end,
            &self.sender.channel.object,
        )
            .serialize(serializer)
    }
}

impl<'de, T> Deserialize<'de> for Queue<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (producers, consumers, object) = <(End, End, Object)>::deserialize(deserializer)?;
        let channel = checked::<D::Error>(producers.is_of(&object, PRODUCERS), object)?;
        let other = checked(
            consumers.is_of(&channel.object, CONSUMERS),
            channel.object.clone(),
        )?;
        Ok(Self {
            sender: Sender {
                end: producers,
                channel,
                message: PhantomData,
            },
            receiver: Receiver {
                end: consumers,
                channel: other,
                seen_orphans: AtomicU64::new(0),
                message: PhantomData,
            },
        })
    }
}
