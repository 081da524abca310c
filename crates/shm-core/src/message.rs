//! Stand-in for the wire: a thread-local table of tensors, so that the serde impls can be tried.

use crate::storage::Storage;
use crate::tensor::Geometry;
use serde::{Deserialize, Deserializer, Serializer};
use std::cell::RefCell;

type Entry = (Storage, Vec<u8>);

thread_local! {
    static TABLE: RefCell<Option<Vec<Option<Entry>>>> = const { RefCell::new(None) };
}

const OUTSIDE: &str =
    "a tensor can be serialized only as part of a message: its bytes stay in the arena";

pub(crate) fn serialize_tensor<S: Serializer>(
    storage: &Storage,
    geometry: &Geometry,
    _exclusive: bool,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let index = TABLE.with_borrow_mut(|table| {
        let table = table.as_mut()?;
        let mut bytes = Vec::new();
        geometry.encode(&mut bytes);
        table.push(Some((storage.clone(), bytes)));
        u32::try_from(table.len() - 1).ok()
    });
    match index {
        Some(index) => serializer.serialize_u32(index),
        None => Err(serde::ser::Error::custom(OUTSIDE)),
    }
}

pub(crate) fn deserialize_tensor<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<(Storage, Geometry), D::Error> {
    let index = u32::deserialize(deserializer)? as usize;
    let entry = TABLE.with_borrow_mut(|table| table.as_mut()?.get_mut(index)?.take());
    let (storage, bytes) = entry.ok_or_else(|| serde::de::Error::custom(OUTSIDE))?;
    let (geometry, _) = Geometry::decode(&bytes).map_err(serde::de::Error::custom)?;
    Ok((storage, geometry))
}

#[cfg(test)]
pub(crate) fn send<T: serde::Serialize, R: serde::de::DeserializeOwned>(
    value: T,
) -> Result<R, postcard::Error> {
    TABLE.set(Some(Vec::new()));
    let bytes = postcard::to_stdvec(&value);
    drop(value);
    let back = bytes.and_then(|bytes| postcard::from_bytes(&bytes));
    TABLE.set(None);
    back
}
