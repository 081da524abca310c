//! An end that moves when it is sent, where only one process may have it.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::object::End;

/// Sends an [`End`] as an exclusive tensor is sent: the message is published only if no other handle to it is left, and
/// only a type that expects a moved end reads it.
#[derive(Debug)]
pub struct Moved<E>(pub E);

impl Serialize for Moved<&End> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize_exclusive(serializer)
    }
}

impl<'de> Deserialize<'de> for Moved<End> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        End::deserialize_exclusive(deserializer).map(Self)
    }
}
