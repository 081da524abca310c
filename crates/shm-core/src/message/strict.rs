//! A serializer around postcard's that refuses fields which are left out.
//!
//! Postcard writes no names, so a field that `skip_serializing_if` leaves out moves all that follows to its place, and
//! may be read as something else without an error. Everything else passes through, and what a `Serialize` says of its own
//! when it refuses is kept.

use std::cell::RefCell;
use std::fmt;

use serde::ser::{
    Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

use super::scope;
use crate::error::{Error, ErrorKind};

/// A value that is to be serialized strictly, all the way down.
pub(super) struct Whole<'a, T: ?Sized>(pub(super) &'a T);

impl<T: Serialize + ?Sized> Serialize for Whole<'_, T> {
    #[inline]
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let written = self.0.serialize(Strict(serializer));
        written.map_err(|Said(error)| error)
    }
}

thread_local! {
    /// What a `Serialize` of this thread said last when it refused.
    static WORDS: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Why postcard could not write it.
#[cold]
pub(super) fn unwritable(type_name: &str, cause: postcard::Error) -> Error {
    // Postcard only says that somebody refused.
    if cause == postcard::Error::SerdeSerCustom
        && let Ok(Some(words)) = WORDS.try_with(RefCell::take)
    {
        return Error::new(
            ErrorKind::Encode,
            format!("{type_name} could not be written: {words}"),
        );
    }
    Error::new(
        ErrorKind::Encode,
        format!(
            "{type_name} could not be written: {cause}; messages are postcard, which has no `flatten`, no untagged enums and needs the length of a sequence beforehand"
        ),
    )
    .because(cause)
}

/// A serializer's error. Postcard's keeps no text, so that of a `Serialize` which refuses is kept here.
#[derive(Debug)]
#[repr(transparent)]
pub(super) struct Said<E>(E);

impl<E: fmt::Display> fmt::Display for Said<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<E: std::error::Error> std::error::Error for Said<E> {}

impl<E: serde::ser::Error> serde::ser::Error for Said<E> {
    #[cold]
    fn custom<T: fmt::Display>(told: T) -> Self {
        let text = told.to_string();
        let error = E::custom(&text);
        // Where the thread's own values are being dropped, nobody keeps it.
        let _ = WORDS.try_with(|words| words.replace(Some(text)));
        Self(error)
    }
}

/// A serializer, or one of its parts, whose fields must all be written.
pub(super) struct Strict<S>(S);

/// The error for a field that is left out. Postcard's own keeps no text, so the scope gets it.
fn left_out<E: serde::ser::Error>(field: &str) -> E {
    let error = Error::new(
        ErrorKind::Encode,
        format!(
            "the field `{field}` is left out by `skip_serializing_if`; messages carry no field names, so what follows would be read as that field: \
             send the field always"
        ),
    );
    let text = error.to_string();
    scope::fail(error);
    E::custom(text)
}

macro_rules! pass_on {
    ($($name:ident: $value:ty,)*) => {$(
        #[inline]
        fn $name(self, value: $value) -> Result<S::Ok, Said<S::Error>> {
            self.0.$name(value).map_err(Said)
        }
    )*};
}

impl<S: Serializer> Serializer for Strict<S> {
    type Ok = S::Ok;
    type Error = Said<S::Error>;
    type SerializeSeq = Strict<S::SerializeSeq>;
    type SerializeTuple = Strict<S::SerializeTuple>;
    type SerializeTupleStruct = Strict<S::SerializeTupleStruct>;
    type SerializeTupleVariant = Strict<S::SerializeTupleVariant>;
    type SerializeMap = Strict<S::SerializeMap>;
    type SerializeStruct = Strict<S::SerializeStruct>;
    type SerializeStructVariant = Strict<S::SerializeStructVariant>;

    pass_on! {
        serialize_bool: bool,
        serialize_i8: i8,
        serialize_i16: i16,
        serialize_i32: i32,
        serialize_i64: i64,
        serialize_i128: i128,
        serialize_u8: u8,
        serialize_u16: u16,
        serialize_u32: u32,
        serialize_u64: u64,
        serialize_u128: u128,
        serialize_f32: f32,
        serialize_f64: f64,
        serialize_char: char,
        serialize_str: &str,
        serialize_bytes: &[u8],
        serialize_unit_struct: &'static str,
    }

    #[inline]
    fn serialize_none(self) -> Result<S::Ok, Said<S::Error>> {
        self.0.serialize_none().map_err(Said)
    }

    #[inline]
    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<S::Ok, Said<S::Error>> {
        self.0.serialize_some(&Whole(value)).map_err(Said)
    }

    #[inline]
    fn serialize_unit(self) -> Result<S::Ok, Said<S::Error>> {
        self.0.serialize_unit().map_err(Said)
    }

    #[inline]
    fn serialize_unit_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
    ) -> Result<S::Ok, Said<S::Error>> {
        self.0
            .serialize_unit_variant(name, index, variant)
            .map_err(Said)
    }

    #[inline]
    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Result<S::Ok, Said<S::Error>> {
        self.0
            .serialize_newtype_struct(name, &Whole(value))
            .map_err(Said)
    }

    #[inline]
    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<S::Ok, Said<S::Error>> {
        self.0
            .serialize_newtype_variant(name, index, variant, &Whole(value))
            .map_err(Said)
    }

    #[inline]
    fn serialize_seq(self, len: Option<usize>) -> Result<Self::SerializeSeq, Said<S::Error>> {
        self.0.serialize_seq(len).map(Strict).map_err(Said)
    }

    #[inline]
    fn serialize_tuple(self, len: usize) -> Result<Self::SerializeTuple, Said<S::Error>> {
        self.0.serialize_tuple(len).map(Strict).map_err(Said)
    }

    #[inline]
    fn serialize_tuple_struct(
        self,
        name: &'static str,
        len: usize,
    ) -> Result<Self::SerializeTupleStruct, Said<S::Error>> {
        self.0
            .serialize_tuple_struct(name, len)
            .map(Strict)
            .map_err(Said)
    }

    #[inline]
    fn serialize_tuple_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<Self::SerializeTupleVariant, Said<S::Error>> {
        self.0
            .serialize_tuple_variant(name, index, variant, len)
            .map(Strict)
            .map_err(Said)
    }

    #[inline]
    fn serialize_map(self, len: Option<usize>) -> Result<Self::SerializeMap, Said<S::Error>> {
        self.0.serialize_map(len).map(Strict).map_err(Said)
    }

    #[inline]
    fn serialize_struct(
        self,
        name: &'static str,
        len: usize,
    ) -> Result<Self::SerializeStruct, Said<S::Error>> {
        self.0.serialize_struct(name, len).map(Strict).map_err(Said)
    }

    #[inline]
    fn serialize_struct_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<Self::SerializeStructVariant, Said<S::Error>> {
        self.0
            .serialize_struct_variant(name, index, variant, len)
            .map(Strict)
            .map_err(Said)
    }

    #[inline]
    fn collect_str<T: std::fmt::Display + ?Sized>(
        self,
        value: &T,
    ) -> Result<S::Ok, Said<S::Error>> {
        self.0.collect_str(value).map_err(Said)
    }

    #[inline]
    fn is_human_readable(&self) -> bool {
        self.0.is_human_readable()
    }
}

/// A part whose elements have no names.
macro_rules! unnamed {
    ($part:ident, $element:ident) => {
        impl<S: $part> $part for Strict<S> {
            type Ok = S::Ok;
            type Error = Said<S::Error>;

            #[inline]
            fn $element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Said<S::Error>> {
                self.0.$element(&Whole(value)).map_err(Said)
            }

            #[inline]
            fn end(self) -> Result<S::Ok, Said<S::Error>> {
                self.0.end().map_err(Said)
            }
        }
    };
}

unnamed!(SerializeSeq, serialize_element);
unnamed!(SerializeTuple, serialize_element);
unnamed!(SerializeTupleStruct, serialize_field);
unnamed!(SerializeTupleVariant, serialize_field);

/// A part whose elements have names, which are not written.
macro_rules! named {
    ($part:ident) => {
        impl<S: $part> $part for Strict<S> {
            type Ok = S::Ok;
            type Error = Said<S::Error>;

            #[inline]
            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                key: &'static str,
                value: &T,
            ) -> Result<(), Said<S::Error>> {
                self.0.serialize_field(key, &Whole(value)).map_err(Said)
            }

            #[cold]
            fn skip_field(&mut self, key: &'static str) -> Result<(), Said<S::Error>> {
                Err(Said(left_out(key)))
            }

            #[inline]
            fn end(self) -> Result<S::Ok, Said<S::Error>> {
                self.0.end().map_err(Said)
            }
        }
    };
}

named!(SerializeStruct);
named!(SerializeStructVariant);

impl<S: SerializeMap> SerializeMap for Strict<S> {
    type Ok = S::Ok;
    type Error = Said<S::Error>;

    #[inline]
    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Said<S::Error>> {
        self.0.serialize_key(&Whole(key)).map_err(Said)
    }

    #[inline]
    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Said<S::Error>> {
        self.0.serialize_value(&Whole(value)).map_err(Said)
    }

    #[inline]
    fn end(self) -> Result<S::Ok, Said<S::Error>> {
        self.0.end().map_err(Said)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Arena;
    use crate::message::{encode, plain};

    /// Refuses some values, in words of its own.
    struct Even(u32);

    impl Serialize for Even {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            match self.0 % 2 {
                0 => serializer.serialize_u32(self.0),
                _ => Err(serde::ser::Error::custom(format!("{} is odd", self.0))),
            }
        }
    }

    /// Does not say how long it is.
    struct Endless;

    impl Serialize for Endless {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.collect_seq((0..3).filter(|_| true))
        }
    }

    #[test]
    fn what_a_serialize_says_when_it_refuses_is_told() {
        let arena = Arena::builder().create().unwrap();
        let error = encode(&arena, vec![Some(Even(2)), Some(Even(7))])
            .unwrap_err()
            .error;
        assert_eq!(error.kind(), &ErrorKind::Encode);
        let text = error.to_string();
        assert!(text.ends_with("could not be written: 7 is odd"), "{text}");
        assert!(text.contains("Vec<") && text.contains("Even>>"), "{text}");
        // What one said before is not told of another, which postcard itself cannot write.
        assert!(plain(&Even(9)).is_none());
        let error = encode(&arena, Endless).unwrap_err().to_string();
        assert!(
            error.contains("the length of a sequence") && !error.contains("odd"),
            "{error}"
        );
        encode(&arena, Even(4)).unwrap();
    }
}
