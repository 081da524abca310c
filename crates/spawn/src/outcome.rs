//! What a function may return so that it can come home from another process, and how its error becomes text.

use std::error::Error as StdError;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::BoxError;
use crate::frame::clip;
use crate::link::follows_from_a_peer;
use crate::typed;

/// What a spawned function returns: `()`, or a `Result` of a value that serde can carry and any error.
///
/// Tensors and queues inside the value travel as handles. The error travels as text (its chain of sources, and its
/// backtrace when it prints one), so it needs to be neither serializable nor known to the parent. One that is
/// serializable comes home as itself too, when the function returns `Result<T, Typed<E>>`: see [`Typed`](crate::Typed).
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot come home from another process",
    label = "a spawned function returns `()` or `Result<T, E>`",
    note = "`T` must be `Serialize + DeserializeOwned`, `E` must convert into `Box<dyn Error + Send + Sync>`",
    note = "wrap a plain value: `Ok::<_, std::io::Error>(value)`"
)]
pub trait Outcome: Sized {
    /// What [`join`](crate::SpawnContext::join) gives.
    type Value: Serialize + DeserializeOwned + 'static;

    /// The value, or why there is none.
    ///
    /// # Errors
    ///
    /// What the function returned as its error.
    fn into_result(self) -> Result<Self::Value, Box<dyn StdError + Send + Sync>>;
}

impl Outcome for () {
    type Value = ();

    #[inline]
    fn into_result(self) -> Result<(), BoxError> {
        Ok(())
    }
}

impl<T, E> Outcome for Result<T, E>
where
    T: Serialize + DeserializeOwned + 'static,
    E: Into<Box<dyn StdError + Send + Sync>>,
{
    type Value = T;

    #[inline]
    fn into_result(self) -> Result<T, BoxError> {
        self.map_err(Into::into)
    }
}

/// The longest chain of sources that is told; a chain that refers to itself must end somewhere.
const CHAIN: usize = 32;

/// An error as it travels.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Told {
    /// The error's text, then its sources'.
    pub(crate) chain: Vec<String>,
    /// What its `Debug` prints after "Stack backtrace:", as errors that capture one do.
    pub(crate) backtrace: Option<String>,
    /// It only passes on that another process failed or left.
    pub(crate) follows: bool,
    /// The name of its type and its bytes, if it is [`Typed`](crate::Typed).
    pub(crate) typed: Option<(String, Vec<u8>)>,
}

/// Turns an error into text, so that it needs nothing from this process any more.
pub(crate) fn tell(error: &(dyn StdError + 'static)) -> Told {
    let mut chain = Vec::new();
    let mut follows = false;
    let typed = typed::carried(error);
    let mut next = Some(error);
    while let Some(error) = next {
        if chain.len() == CHAIN {
            chain.push("(and further causes)".to_owned());
            break;
        }
        follows |= follows_from_a_peer(typed::uncovered(error));
        chain.push(clip(error.to_string()));
        next = error.source();
    }
    // A source whose text the error above already ends with says nothing new; many crates format that way.
    let mut index = 1;
    while index < chain.len() {
        if !chain[index].is_empty() && chain[index - 1].ends_with(chain[index].as_str()) {
            chain.remove(index);
        } else {
            index += 1;
        }
    }
    let debug = format!("{:?}", typed::uncovered(error));
    let backtrace = debug
        .split_once("Stack backtrace:\n")
        .map(|(_, frames)| clip(frames.trim_end().to_owned()))
        .filter(|frames| !frames.is_empty());
    Told {
        chain,
        backtrace,
        follows,
        typed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt;

    #[derive(Debug)]
    struct Layer(&'static str, Option<Box<Layer>>);
    impl fmt::Display for Layer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }
    impl StdError for Layer {
        fn source(&self) -> Option<&(dyn StdError + 'static)> {
            self.1.as_deref().map(|layer| layer as _)
        }
    }

    #[test]
    fn the_chain_is_told_from_the_outside_in() {
        let error = Layer("no weights", Some(Box::new(Layer("no file", None))));
        assert_eq!(tell(&error).chain, ["no weights", "no file"]);
    }

    #[test]
    fn a_source_that_the_text_already_repeats_is_told_once() {
        let error = Layer(
            "no weights: no file",
            Some(Box::new(Layer("no file", None))),
        );
        assert_eq!(tell(&error).chain, ["no weights: no file"]);
    }

    #[test]
    fn a_string_is_an_error() {
        let error = Err::<(), _>("nothing to do").into_result().unwrap_err();
        assert_eq!(tell(error.as_ref()).chain, ["nothing to do"]);
    }
}
