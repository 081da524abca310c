//! Errors that come home as themselves: [`Typed`], and how it travels beside the text.

use std::any::type_name;
use std::error::Error as StdError;
use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::BoxError;
use crate::frame::TEXT;

/// An error of a spawned function that the parent gets back as what it was, by [`Error::downcast`](crate::Error::downcast).
///
/// Any error comes home as text. One that serde can carry is itself brought home too when the function returns
/// `Result<T, Typed<E>>`; `?` makes the one from the other.
///
/// ```no_run
/// use serde::{Deserialize, Serialize};
/// use spawn::Typed;
///
/// #[derive(Debug, Serialize, Deserialize)]
/// struct TooLarge {
///     bytes: u64,
/// }
/// impl std::fmt::Display for TooLarge {
///     fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
///         write!(f, "{} bytes are too many", self.bytes)
///     }
/// }
/// impl std::error::Error for TooLarge {}
///
/// fn load(_rank: usize, bytes: u64) -> Result<(), Typed<TooLarge>> {
///     if bytes > 100 { Err(TooLarge { bytes })? }
///     Ok(())
/// }
///
/// fn main() -> spawn::Result<()> {
///     spawn::init();
///     let error = spawn::spawn(load, 200, 1)?.join().unwrap_err();
///     assert_eq!(error.downcast::<TooLarge>().unwrap().bytes, 200);
///     Ok(())
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Typed<E>(pub E);

impl<E: StdError + Serialize + DeserializeOwned> From<E> for Typed<E> {
    fn from(error: E) -> Typed<E> {
        Typed(error)
    }
}

impl<E: StdError + Serialize + DeserializeOwned + Send + Sync + 'static> From<Typed<E>>
    for Box<dyn StdError + Send + Sync>
{
    fn from(Typed(error): Typed<E>) -> BoxError {
        // What cannot be encoded, or is too long for a message, comes home as text only.
        let bytes = postcard::to_stdvec(&error)
            .ok()
            .filter(|bytes| bytes.len() <= TEXT);
        Box::new(Carrier {
            typed: bytes.map(|bytes| (type_name::<E>().to_owned(), bytes)),
            error: Box::new(error),
        })
    }
}

/// An error together with its bytes, in the shape of an error without a type.
#[derive(Debug)]
struct Carrier {
    typed: Option<(String, Vec<u8>)>,
    error: BoxError,
}

impl fmt::Display for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl StdError for Carrier {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.error.source()
    }
}

/// The name of an error's type and its bytes, if it carries them.
pub(crate) fn carried(error: &(dyn StdError + 'static)) -> Option<(String, Vec<u8>)> {
    error.downcast_ref::<Carrier>()?.typed.clone()
}

/// The error itself, as far as the reader looks: `Typed` must not hide that it is a peer's failure.
pub(crate) fn uncovered<'a>(error: &'a (dyn StdError + 'static)) -> &'a (dyn StdError + 'static) {
    match error.downcast_ref::<Carrier>() {
        Some(carrier) => carrier.error.as_ref(),
        None => error,
    }
}

/// An error on its way home: the name of its type, and its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Carried(pub(crate) (String, Vec<u8>));

impl Carried {
    /// The error, if it is of exactly this type.
    #[must_use]
    pub fn open<E: DeserializeOwned>(&self) -> Option<E> {
        open(&self.0)
    }
}

/// The value in the bytes, if they are of this type.
pub(crate) fn open<E: DeserializeOwned>((name, bytes): &(String, Vec<u8>)) -> Option<E> {
    if name != type_name::<E>() {
        return None;
    }
    postcard::from_bytes(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Spilled(Vec<u8>);
    impl fmt::Display for Spilled {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "spilled {} bytes", self.0.len())
        }
    }
    impl StdError for Spilled {}

    #[test]
    fn an_error_is_opened_as_its_own_type_only() {
        let error: BoxError = Typed(Spilled(vec![1, 2])).into();
        assert_eq!(error.to_string(), "spilled 2 bytes");
        let carried = carried(error.as_ref()).unwrap();
        assert_eq!(open::<Spilled>(&carried), Some(Spilled(vec![1, 2])));
        assert_eq!(open::<Vec<u8>>(&carried), None);
    }

    #[test]
    fn one_that_is_too_long_stays_text() {
        let error: BoxError = Typed(Spilled(vec![0; TEXT + 1])).into();
        assert_eq!(carried(error.as_ref()), None);
    }
}
