//! What handles reach while a message is written: the table and the pins that it gets, by thread-local storage.

use std::cell::RefCell;

use super::encode::Pins;
use crate::arena::Arena;
use crate::error::Error;

thread_local! {
    pub(super) static ENCODING: RefCell<Option<EncodeScope>> = const { RefCell::new(None) };
}

/// What the `Serialize` of handles adds to. It stays in its place from message to message: moving it costs more than
/// writing most messages.
#[derive(Default)]
pub(super) struct EncodeScope {
    /// Whether a message is being written.
    active: bool,
    /// Which arena it is for: [`identity`], since whoever writes it has the arena meanwhile.
    pub(super) arena: usize,
    pub(super) table: Vec<u8>,
    pub(super) pins: Pins,
    /// Boxed: the scope moves where one message is written while another is, an error hardly ever comes.
    pub(super) error: Option<Box<Error>>,
}

/// The scope of the message that this thread writes, if it writes one.
pub(super) fn in_scope(slot: &mut Option<EncodeScope>) -> Option<&mut EncodeScope> {
    slot.as_mut().filter(|scope| scope.active)
}

/// A number that no other participation of this process in an arena has while this one lasts.
#[inline]
pub(super) fn identity(arena: &Arena) -> usize {
    std::sync::Arc::as_ptr(&arena.0).addr()
}

/// What a scope has collected.
#[derive(Default)]
pub(super) struct Collected {
    pub(super) table: Vec<u8>,
    pub(super) pins: Pins,
    pub(super) error: Option<Box<Error>>,
}

/// Opens the scope for as long as it lives, or closes it, and puts the one before back, also when serde code panics.
pub(super) struct EncodeGuard {
    outer: Option<Box<EncodeScope>>,
    over: bool,
}

impl EncodeGuard {
    #[inline]
    pub(super) fn enter(arena: &Arena, table: Vec<u8>) -> Self {
        ENCODING.with_borrow_mut(|slot| {
            let scope = slot.get_or_insert_with(EncodeScope::default);
            let outer = scope.active.then(|| Box::new(std::mem::take(scope)));
            scope.active = true;
            scope.arena = identity(arena);
            scope.table = table;
            Self { outer, over: false }
        })
    }

    /// As if nothing was being written, for as long as it lives.
    pub(super) fn outside() -> Self {
        ENCODING.with_borrow_mut(|slot| Self {
            outer: in_scope(slot).map(|scope| Box::new(std::mem::take(scope))),
            over: false,
        })
    }

    /// Closes the scope.
    #[inline]
    pub(super) fn leave(mut self) -> Collected {
        self.end()
    }

    #[inline]
    fn end(&mut self) -> Collected {
        self.over = true;
        ENCODING.with_borrow_mut(|slot| {
            let Some(scope) = slot else {
                return Collected::default();
            };
            let collected = Collected {
                table: std::mem::take(&mut scope.table),
                pins: if scope.pins.is_empty() {
                    Pins::default()
                } else {
                    std::mem::take(&mut scope.pins)
                },
                error: scope.error.take(),
            };
            scope.active = false;
            if let Some(outer) = self.outer.take() {
                *scope = *outer;
            }
            collected
        })
    }
}

impl Drop for EncodeGuard {
    #[inline]
    fn drop(&mut self) {
        if !self.over {
            drop(self.end());
        }
    }
}
