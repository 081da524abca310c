//! The keys that a type of parameters reads, as far as it tells: what serde derives for a struct names its fields before
//! it reads any.

use serde::de::value::Error;
use serde::de::{DeserializeOwned, Deserializer, Error as _, Visitor};
use serde::forward_to_deserialize_any;

/// The fields of a struct; nothing for what is none, or reads any key (`#[serde(flatten)]`).
pub(crate) fn fields_of<T: DeserializeOwned>() -> &'static [&'static str] {
    let mut fields: &'static [&'static str] = &[];
    let _ = T::deserialize(Asked(&mut fields));
    fields
}

/// Answers nothing, and keeps what it was asked for.
struct Asked<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for Asked<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(Error::custom("nothing is there"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        *self.0 = fields;
        self.deserialize_any(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::fields_of;

    #[derive(Deserialize)]
    #[expect(dead_code, reason = "it is never made")]
    struct Plain {
        size: u32,
        #[serde(rename = "kind", default)]
        of: String,
    }

    #[derive(Deserialize)]
    #[expect(dead_code, reason = "it is never made")]
    struct Wrapped(Option<Plain>);

    #[test]
    fn a_structs_fields_are_known_and_what_is_none_has_none() {
        assert_eq!(fields_of::<Plain>(), ["size", "kind"]);
        assert_eq!(fields_of::<Wrapped>(), ["size", "kind"]);
        assert!(fields_of::<()>().is_empty());
        assert!(fields_of::<BTreeMap<String, u32>>().is_empty());
        assert!(fields_of::<serde_json::Value>().is_empty());
    }
}
