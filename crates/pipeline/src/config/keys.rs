//! The keys of a table of a configuration, each asked for by its name.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::nearest::instead_of;

/// What is told of a value, without all of it where that is long.
fn in_short(told: &str) -> String {
    const MOST: usize = 300;
    match told.char_indices().nth(MOST) {
        Some((end, _)) => format!("{} …", &told[..end]),
        None => told.to_owned(),
    }
}

/// The keys of a table, taken out one after the other.
pub(super) struct Keys<'a> {
    at: &'a str,
    pub(super) rest: Map<String, Value>,
}

impl<'a> Keys<'a> {
    pub(super) fn of(value: &Value, at: &'a str) -> Result<Self> {
        match value.as_object() {
            Some(map) => Ok(Self {
                at,
                rest: map.clone(),
            }),
            None => Err(Error::invalid(format!(
                "{at}: a table of keys was expected"
            ))),
        }
    }

    /// The value of a key, by its own name or RnB's, where that is not empty.
    pub(super) fn take<T: DeserializeOwned>(&mut self, key: &str, rnb: &str) -> Result<Option<T>> {
        let in_rnbs_words = match rnb {
            "" => None,
            rnb => self.rest.remove(rnb),
        };
        let (name, value) = match (self.rest.remove(key), in_rnbs_words) {
            (None, None) => return Ok(None),
            (Some(value), None) => (key, value),
            (None, Some(value)) => (rnb, value),
            (Some(_), Some(_)) => {
                return Err(Error::invalid(format!(
                    "{}, {key}: {rnb} says the same; leave one out",
                    self.at
                )));
            }
        };
        serde_json::from_value(value).map(Some).map_err(|error| {
            let told = in_short(&error.to_string());
            Error::invalid(format!("{}, {name}: {told}", self.at))
        })
    }

    pub(super) fn need<T: DeserializeOwned>(&mut self, key: &str, rnb: &str) -> Result<T> {
        if let Some(value) = self.take(key, rnb)? {
            return Ok(value);
        }
        let instead = [key, rnb].map(|name| instead_of(name, self.rest.keys()));
        let instead = instead.into_iter().find(|told| !told.is_empty());
        Err(Error::invalid(format!(
            "{}, {key}: it is missing{}",
            self.at,
            instead.unwrap_or_default()
        )))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::Keys;

    #[test]
    fn a_key_without_a_name_is_no_other_key_in_rnbs_words() {
        let table = json!({"": 3, "count": 4, "old": 5});
        let mut keys = Keys::of(&table, "here").unwrap();
        assert_eq!(keys.take::<u64>("seed", "").unwrap(), None);
        assert_eq!(keys.take("count", "").unwrap(), Some(4));
        assert_eq!(keys.take("new", "old").unwrap(), Some(5));
        assert_eq!(keys.rest.keys().collect::<Vec<_>>(), [""]);
    }
}
