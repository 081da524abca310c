//! How serde code reaches the message that its thread writes or reads, which lies in a frame further up.
//!
//! A word of the thread says where the message's scope is, so a message without handles costs next to nothing here, and
//! nothing moves.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::thread::LocalKey;

/// What is reached: a type that may borrow for `'a`.
pub(super) trait Scope: 'static {
    /// The scope itself.
    type For<'a>;
}

/// Where a thread's scope is; nowhere while it has none.
pub(super) struct Reach<S: Scope>(Cell<*mut S::For<'static>>);

impl<S: Scope> Reach<S> {
    /// Nowhere.
    pub(super) const fn nowhere() -> Self {
        Self(Cell::new(ptr::null_mut()))
    }
}

/// Whether this thread has a scope there.
#[inline]
pub(super) fn is_open<S: Scope>(reach: &'static LocalKey<Reach<S>>) -> bool {
    reach.with(|reach| !reach.0.get().is_null())
}

/// Acts on the scope that this thread has, if it has one.
#[inline]
pub(super) fn with_scope<S: Scope, R>(
    reach: &'static LocalKey<Reach<S>>,
    act: impl FnOnce(&mut S::For<'_>) -> R,
) -> Option<R> {
    // As long as `act` has it nobody else does, were it to come here again.
    let place = reach.with(|reach| reach.0.replace(ptr::null_mut()));
    // SAFETY: the pointer was made of an exclusive reference that a `Guard` on this thread's stack still has; that guard's
    // maker cannot use the scope meanwhile, and what comes here again finds null. What the scope borrows outlives that
    // guard, and `act` takes any lifetime.
    let scope = unsafe { NonNull::new(place)?.as_mut() };
    let done = act(scope);
    reach.with(|reach| reach.0.set(place));
    Some(done)
}

/// Opens a scope for as long as it lives, or closes it, and puts the one before back, also when serde code panics. Must be
/// dropped, not forgotten.
pub(super) struct Guard<'a, S: Scope> {
    reach: &'static LocalKey<Reach<S>>,
    outer: *mut S::For<'static>,
    scope: PhantomData<&'a mut S>,
}

impl<'a, S: Scope> Guard<'a, S> {
    /// This scope, for as long as the guard lives.
    #[inline]
    pub(super) fn enter(reach: &'static LocalKey<Reach<S>>, scope: &'a mut S::For<'_>) -> Self {
        Self::over(reach, ptr::from_mut(scope).cast())
    }

    /// As if the thread had none, for as long as the guard lives.
    pub(super) fn outside(reach: &'static LocalKey<Reach<S>>) -> Self {
        Self::over(reach, ptr::null_mut())
    }

    #[inline]
    fn over(reach: &'static LocalKey<Reach<S>>, scope: *mut S::For<'static>) -> Self {
        Self {
            reach,
            outer: reach.with(|reach| reach.0.replace(scope)),
            scope: PhantomData,
        }
    }
}

impl<S: Scope> Drop for Guard<'_, S> {
    #[inline]
    fn drop(&mut self) {
        self.reach.with(|reach| reach.0.set(self.outer));
    }
}
