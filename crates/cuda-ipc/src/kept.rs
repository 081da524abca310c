//! Blocks on which this process may have work for as long as it lives.
//!
//! What is in a stream behind somebody dead may begin as long as the process of the stream lives, and no event tells of its
//! end. So a word of the block says that this process *keeps* it. Where all of them say something else, which is not over,
//! the process holds the block's token until one is free: nobody takes a block for free whose token is held. Where there is
//! no room for one more reference to it either, that of the tensor that goes stays instead.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use shm_core::trace::{Hold, Trace};

use crate::driver::check_not_forked;
use crate::place::Place;
use crate::token::Token;

/// What keeps the token's block.
#[derive(Debug)]
#[expect(dead_code, reason = "held until it is dropped")]
enum Held {
    Reference(Hold),
    Token(Token),
    /// The tensor's own token, which is let go of next.
    Expected([u64; 2]),
}

/// A block that has no word yet that says so.
#[derive(Debug)]
struct Kept {
    place: Place,
    index: u32,
    /// Dropped after the word was written, and with the process.
    held: Held,
}

static KEPT: Mutex<Vec<Kept>> = Mutex::new(Vec::new());

/// How many of them wait for their token.
static EXPECTED: AtomicUsize = AtomicUsize::new(0);

/// This process may have work on a block as long as it lives. It holds the block's token meanwhile, and may let go of it then.
pub(crate) fn keep(place: &Place, index: u32, token: &Trace) {
    if place.keep(index) {
        return;
    }
    let held = match token.hold() {
        Ok(hold) => Held::Reference(hold),
        // Its token is gone already, and who writes the block next does not know of this.
        Err(error) if *error.kind() == shm_core::ErrorKind::Stale => {
            return tracing::error!(%error, "a device tensor went before its last use was noted");
        }
        Err(error) => {
            tracing::warn!(%error, "a device tensor that a stream behind a dead process uses is let go of later");
            EXPECTED.fetch_add(1, Ordering::Relaxed);
            Held::Expected(token.id())
        }
    };
    let place = place.clone();
    KEPT.lock().push(Kept { place, index, held });
}

/// The token of a tensor whose last use has been noted, or is [kept](keep).
pub(crate) fn let_go(token: Token) {
    // This thread has kept it just before, if anybody has.
    if EXPECTED.load(Ordering::Relaxed) == 0 || check_not_forked().is_err() {
        // The lock may be held for ever in a fork.
        return;
    }
    let Some(id) = token.id() else { return };
    let mut all = KEPT.lock();
    let expects = |kept: &&mut Kept| matches!(kept.held, Held::Expected(known) if known == id);
    if let Some(kept) = all.iter_mut().find(expects) {
        kept.held = Held::Token(token);
        EXPECTED.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Those for which there is a word by now are held no longer; called by the thread that watches the arena.
pub(crate) fn look() {
    let mut all = KEPT.lock();
    all.retain(|kept| {
        let stays = !kept.place.keep(kept.index);
        if !stays && matches!(kept.held, Held::Expected(_)) {
            EXPECTED.fetch_sub(1, Ordering::Relaxed);
        }
        stays
    });
}

/// How many blocks this process holds so.
pub(crate) fn count() -> u64 {
    KEPT.lock().len() as u64
}
