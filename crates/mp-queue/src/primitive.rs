//! What locks, semaphores and their like have in common: an object with permits, a way to wait for one, and how they
//! travel.

use std::cell::Cell;

use rustix::thread::gettid;
use shm_core::arena::Arena;
use shm_core::cells::Owner;
#[cfg(feature = "tokio")]
use shm_core::crowd::Grant;
use shm_core::failure::PeerFailure;
use shm_core::message::{refuse, refuse_because};
use shm_core::object::{Array, Object, ObjectKind};

use crate::error::{Error, ErrorKind, Result};
use crate::holder;
#[cfg(feature = "tokio")]
use crate::later::{Look, until};
use crate::wait::{Deadline, WaitPolicy, wait};

/// The tag by which a thread of this process is known in a permit.
pub(crate) fn thread_tag() -> u32 {
    thread_local! {
        static TAG: u32 = gettid().as_raw_nonzero().get().unsigned_abs();
    }
    // On a thread that is ending, which cannot hold anything for long.
    TAG.try_with(|tag| *tag).unwrap_or(0)
}

/// Makes an object of `kind` with so many permits' words and other words.
#[track_caller]
pub(crate) fn make(arena: &Arena, kind: ObjectKind, permits: u32, words: u64) -> Result<Object> {
    let array = match permits {
        0 => Array::None,
        count => Array::Permits { count },
    };
    Ok(Object::create(arena, kind, [array, Array::None], words)?)
}

/// An object that arrived, if it is of `kind` and has what such a one has.
pub(crate) fn checked<E: serde::de::Error>(
    object: Object,
    kind: ObjectKind,
    permits: u32,
    words: u64,
) -> Result<Object, E> {
    object.expect(kind).map_err(refuse)?;
    if object.permits(0).0.len() < permits as usize || object.word_count() < words {
        return Err(refuse_because("a primitive arrived without its words"));
    }
    Ok(object)
}

/// Repeats `attempt` until it gets something, woken by event `event`; it says who has what it did not get.
pub(crate) fn obtain<R>(
    object: &Object,
    event: u64,
    deadline: Deadline,
    doing: &str,
    mut attempt: impl FnMut() -> Result<R, Option<Owner>>,
) -> Result<R> {
    object.arena().check_not_forked(doing)?;
    let holder = Cell::new(None);
    let mut look = |slow: bool| match attempt() {
        Ok(got) => Some(Ok(got)),
        Err(owner) => {
            holder.set(owner);
            let failure = slow.then(|| object.failure()).flatten()?;
            Some(once_more(object, failure, doing, &mut attempt))
        }
    };
    if let Some(answer) = look(deadline.is_now()) {
        return answer;
    }
    let in_vain = |kind, when| {
        let clause = holder::clause(object.arena(), holder.get());
        Err(Error::new(
            kind,
            format!("{doing}: {object} was not free {when}{clause}"),
        ))
    };
    if deadline.is_now() {
        return in_vain(ErrorKind::Busy, "now");
    }
    let policy = WaitPolicy::Adaptive;
    wait(object, event, policy, deadline, &holder, || true, look)
        .unwrap_or_else(|| in_vain(ErrorKind::TimedOut, "before the deadline"))
}

/// What the process that failed may have held itself, had once more when it is buried: that it is free, and what its holder
/// left, says more than that somebody failed.
fn once_more<R>(
    object: &Object,
    failure: PeerFailure,
    doing: &str,
    attempt: &mut impl FnMut() -> Result<R, Option<Owner>>,
) -> Result<R> {
    object.arena().bury_the_dead();
    attempt().map_err(|_| Error::peer_failed(failure, doing))
}

/// [`obtain`] as a future. Of several that wait, as many are told of a notification as `grant` says.
#[cfg(feature = "tokio")]
pub(crate) async fn obtain_async<R>(
    object: &Object,
    (event, grant): (u64, Grant),
    doing: &str,
    mut attempt: impl FnMut() -> Result<R, Option<Owner>>,
) -> Result<R> {
    let look = |slow: bool| match attempt() {
        Ok(got) => Look::Ready(Ok(got)),
        Err(owner) => match slow.then(|| object.failure()).flatten() {
            Some(failure) => Look::Ready(once_more(object, failure, doing, &mut attempt)),
            None => Look::NotYet(owner),
        },
    };
    until(object, event, grant, doing, look).await
}

/// Serialize and Deserialize of a primitive that is nothing but its object.
macro_rules! travels {
    ($name:ident, $kind:expr, $permits:expr, $words:expr) => {
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                self.object.serialize(serializer)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let object = shm_core::object::Object::deserialize(deserializer)?;
                let object = $crate::primitive::checked(object, $kind, $permits, $words)?;
                Ok(Self { object })
            }
        }
    };
}
pub(crate) use travels;
