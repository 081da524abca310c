//! What handles [`reach`] while a message is written: the table and the pins that they add to.

use smallvec::SmallVec;

use super::aside::{Aside, Companion};
use super::parse::{INLINE, What};
use super::pins::{Pin, Pins};
use super::reach::{self, Guard, Reach, Scope};
use crate::arena::Arena;
use crate::error::{Error, Result};
use crate::tensor::{GEOMETRY_BYTES, Geometry};

thread_local! {
    /// What the message that this thread writes collects.
    static WRITING: Reach<Writing> = const { Reach::nowhere() };
}

/// A message is being written.
pub(super) struct Writing;

impl Scope for Writing {
    type For<'a> = EncodeScope;
}

/// What the handles of a message have added.
pub(super) struct EncodeScope {
    /// Which arena the message is for: [`identity`], since whoever writes it has the arena meanwhile.
    arena: usize,
    pub(super) table: SmallVec<[u8; INLINE]>,
    pub(super) pins: Pins,
    /// Boxed: there is hardly ever anything.
    pub(super) aside: Option<Box<Aside<dyn Companion>>>,
}

impl EncodeScope {
    #[inline]
    pub(super) fn new(arena: &Arena) -> Self {
        Self {
            arena: identity(arena),
            table: SmallVec::new(),
            pins: Pins::default(),
            aside: None,
        }
    }

    /// Whether nothing was added.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.pins.is_empty() && self.aside.is_none()
    }

    /// Why the message cannot be written, if somebody said so.
    #[inline]
    pub(super) fn take_error(&mut self) -> Option<Error> {
        self.aside.as_mut().and_then(|aside| aside.error.take())
    }

    /// Everything was written: what others do once for all handles is done.
    #[inline]
    pub(super) fn finish(&mut self) -> Result<()> {
        match &mut self.aside {
            Some(aside) => aside.finish(),
            None => Ok(()),
        }
    }

    /// Whether the message is for this participation in an arena.
    #[inline]
    pub(super) fn is_for(&self, arena: &Arena) -> bool {
        self.arena == identity(arena)
    }

    /// Adds a handle, and answers its number in the message.
    #[inline]
    pub(super) fn add(&mut self, pin: Pin, geometry: Option<&Geometry>) -> u32 {
        let mut entry = [0; HEAD + GEOMETRY_BYTES];
        let (head, extra) = entry.split_at_mut(HEAD);
        head.copy_from_slice(&self::head(pin.what, pin.held.line, pin.held.generation));
        let len = geometry.map_or(0, |geometry| geometry.encode_to(extra));
        // Below 256.
        head[HEAD - 1] = len as u8;
        self.table.extend_from_slice(&entry[..HEAD + len]);
        self.pins.0.push(pin);
        self.pins.0.len() as u32 - 1
    }
}

/// A number that no other participation of this process in an arena has while this one lasts.
#[inline]
fn identity(arena: &Arena) -> usize {
    std::sync::Arc::as_ptr(&arena.0).addr()
}

/// Bytes of an entry before what else it says, whose length is the last of them.
const HEAD: usize = 12;

/// The front of an entry.
#[inline]
pub(super) fn head(what: What, line: u64, generation: u64) -> [u8; HEAD] {
    let ([a, b, c, d, e, ..], [v, w, x, y, z, ..]) = (line.to_le_bytes(), generation.to_le_bytes());
    [what.code(), a, b, c, d, e, v, w, x, y, z, 0]
}

/// The scope of the message that this thread writes, if it writes one.
#[inline]
pub(super) fn with_scope<R>(act: impl FnOnce(&mut EncodeScope) -> R) -> Option<R> {
    reach::with_scope(&WRITING, act)
}

/// Tells whoever writes the message why it cannot be: serde's errors keep no text.
#[cold]
pub(super) fn fail(error: Error) {
    with_scope(|scope| scope.aside.get_or_insert_default().error = Some(error));
}

/// The thread writes this message as long as the guard lives.
#[inline]
pub(super) fn enter(scope: &mut EncodeScope) -> Guard<'_, Writing> {
    Guard::enter(&WRITING, scope)
}

/// As if nothing was being written, for as long as the guard lives.
pub(super) fn outside() -> Guard<'static, Writing> {
    Guard::outside(&WRITING)
}
