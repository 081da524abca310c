//! What a message has besides its handles while it is written or read: why it cannot be, and what crates above keep from
//! one handle to the next. Hardly ever anything, so that it costs a message without it nothing.

use std::any::Any;

use smallvec::SmallVec;

use super::{decode, scope};
use crate::arena::Arena;
use crate::error::{Error, Result};

/// What a crate above keeps of a message while this thread writes it, from one handle to the next; see [`while_writing`].
pub trait Companion: Any {
    /// Everything of the message was written, and nothing of it was sent or dropped yet: what is to be done once for all
    /// handles is done now. Not called when the message could not be written.
    ///
    /// # Errors
    /// Whatever they are, the message is not sent then, and its value comes back to whoever sends it.
    fn finish(&mut self) -> Result<()>;
}

/// Besides the handles of a message that is written (`C` is [`Companion`]) or read ([`Any`]).
pub(super) struct Aside<C: ?Sized> {
    pub(super) error: Option<Error>,
    companions: SmallVec<[Box<C>; 1]>,
}

impl<C: ?Sized> Default for Aside<C> {
    fn default() -> Self {
        Self {
            error: None,
            companions: SmallVec::new(),
        }
    }
}

impl<C: ?Sized> Aside<C> {
    /// The companion that is the one sought, which is made where there is none.
    fn found_or_made(
        &mut self,
        is_it: impl Fn(&C) -> bool,
        make: impl FnOnce() -> Box<C>,
    ) -> &mut C {
        let companions = &mut self.companions;
        let found = companions.iter().position(|one| is_it(one));
        let at = found.unwrap_or_else(|| {
            companions.push(make());
            companions.len() - 1
        });
        &mut companions[at]
    }

    /// The error, if there is one.
    #[cold]
    pub(super) fn into_error(self) -> Option<Error> {
        self.error
    }
}

impl Aside<dyn Companion> {
    /// Everything of the message was written.
    #[cold]
    pub(super) fn finish(&mut self) -> Result<()> {
        self.companions.iter_mut().try_for_each(|one| one.finish())
    }
}

/// Acts on what the message that this thread writes keeps of this type; the first time it is made. `None` outside of a
/// message. `act` must not write handles.
///
/// For the `Serialize` of handles in crates above, which do something once for all of them in a message.
pub fn while_writing<C: Companion + Default, R>(act: impl FnOnce(&mut C) -> R) -> Option<R> {
    scope::with_scope(|scope| {
        let aside = scope.aside.get_or_insert_default();
        let is_it = |one: &dyn Companion| (one as &dyn Any).is::<C>();
        let one: &mut dyn Any = aside.found_or_made(is_it, || Box::new(C::default()));
        one.downcast_mut().map(act)
    })
    .flatten()
}

/// Whether the message that this thread writes is for another arena than this one, or another participation in it: handles of
/// this one cannot go into it. `None` outside of a message.
#[must_use]
pub fn is_for_another(arena: &Arena) -> Option<bool> {
    scope::with_scope(|scope| !scope.is_for(arena))
}

/// Acts on what the message that this thread reads keeps of this type; the first time it is made. `None` outside of a
/// message. `act` must not read handles.
///
/// For the `Deserialize` of handles in crates above, as [`while_writing`].
pub fn while_reading<C: Any + Default, R>(act: impl FnOnce(&mut C) -> R) -> Option<R> {
    decode::with_scope(|scope| {
        let aside = scope.aside.get_or_insert_default();
        let one = aside.found_or_made(<dyn Any>::is::<C>, || Box::new(C::default()));
        one.downcast_mut().map(act)
    })
    .flatten()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::{Companion, while_reading, while_writing};
    use crate::arena::Arena;
    use crate::error::{Error, ErrorKind, Result};
    use crate::message::encode;
    use crate::tensor::Tensor;

    thread_local! {
        static FINISHED: Cell<usize> = const { Cell::new(0) };
    }

    #[derive(Default)]
    struct Count(usize);

    impl Companion for Count {
        fn finish(&mut self) -> Result<()> {
            FINISHED.set(self.0);
            match self.0 {
                13 => Err(Error::new(ErrorKind::Device, "thirteen of them")),
                _ => Ok(()),
            }
        }
    }

    /// Counts how many of it are in a message.
    struct Counted(Tensor<u8>);

    impl Serialize for Counted {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            while_writing(|count: &mut Count| count.0 += 1);
            self.0.serialize(serializer)
        }
    }

    impl<'de> Deserialize<'de> for Counted {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let tensor = Tensor::<u8>::deserialize(deserializer)?;
            let seen = while_reading(|seen: &mut usize| std::mem::replace(seen, *seen + 1));
            assert_eq!(seen, Some(tensor.as_slice()[0].into()));
            Ok(Self(tensor))
        }
    }

    fn some(count: u8) -> Vec<Counted> {
        let one = |value| Tensor::from_slice([1], &[value]).map(Counted);
        (0..count).map(one).collect::<Result<_>>().unwrap()
    }

    #[test]
    fn what_a_message_keeps_goes_with_it_and_is_finished_once() {
        let arena = Arena::current().unwrap();
        for count in [3, 5] {
            let message = encode(&arena, some(count)).unwrap();
            assert_eq!(FINISHED.replace(0), usize::from(count));
            let back: Vec<Counted> = message.decode().unwrap();
            assert_eq!(back.len(), usize::from(count));
        }
        assert_eq!(while_writing(|count: &mut Count| count.0), None);
        assert_eq!(while_reading(|seen: &mut usize| *seen), None);
    }

    #[test]
    fn what_cannot_be_finished_is_not_sent_and_comes_back() {
        let arena = Arena::current().unwrap();
        let failed = encode(&arena, some(13)).unwrap_err();
        assert_eq!(*failed.error.kind(), ErrorKind::Device);
        assert_eq!(failed.value.unwrap().len(), 13);
        // One that cannot be written is not finished.
        FINISHED.set(0);
        assert!(crate::message::plain(&some(2)).is_none());
        assert_eq!(FINISHED.get(), 0);
    }
}
