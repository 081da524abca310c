//! What a panic said, kept where it can be read after the process is gone.
//!
//! The payload that `catch_unwind` gives has no location, and with `panic = "abort"` there is no payload at all. So a
//! hook notes both: in the thread, for the report that is sent home, and, for a process that does not live to send one,
//! in the flight recorder of the arena and in a word to the parent. That word has a second use: unwinding drops what
//! the function held, which may make peers fail before this process has said what happened; the parent then knows to
//! wait for it.

use std::any::Any;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::cell::{Cell, RefCell};
use std::os::fd::BorrowedFd;
use std::panic::PanicHookInfo;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::control;
use crate::entry;
use crate::frame::{Frame, Panicking, clip};
use crate::link;
use crate::time::monotonic_nanos;

/// A panic of this thread.
#[derive(Debug)]
pub(crate) struct Noted {
    /// When it happened; unwinding may take long.
    pub(crate) at: u64,
    pub(crate) message: String,
    pub(crate) location: Option<String>,
    pub(crate) backtrace: Option<String>,
    /// The parent knows of it.
    told: bool,
}

/// What a panic said, and where.
type Said = (String, Option<String>);

thread_local! {
    static LAST: RefCell<Option<Noted>> = const { RefCell::new(None) };
    /// What the panic before the last one said.
    static BEFORE: RefCell<Option<Said>> = const { RefCell::new(None) };
    static IN_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// What the language says when a panic may not go on and the process ends: the panic before it is the reason.
const NO_WAY_OUT: &str = "panic in a function that cannot unwind";

/// The same of one that comes while another unwinds: that other one, two before, is the reason.
const NO_WAY_BACK: &str = "panic in a destructor during cleanup";

/// How many panics are told to the parent as they happen. A function that catches panics all the time must not keep
/// the parent busy with them.
const WORDS: u32 = 16;

/// Puts our hook in front of the one that is there, which still prints to stderr.
#[inline]
pub(crate) fn install_hook() {
    let previous = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        // A bare fork of this process has this hook, too, and its panics are not this process's.
        let control = entry::control();
        let told = control.and_then(|control| note(info, control));
        // One of the program may end the process, and then this is its panic that did.
        previous(info);
        if let Some((at, control)) = told.zip(control) {
            let _ = control::tell(control, &Frame::HooksRan { at });
        }
    }));
}

/// The calling thread is the one that runs the function.
#[inline]
pub(crate) fn enter_function() {
    IN_FUNCTION.set(true);
}

/// Gives the time that it was told with, if it was.
fn note(info: &PanicHookInfo<'_>, control: BorrowedFd<'_>) -> Option<u64> {
    static TOLD: AtomicU32 = AtomicU32::new(0);

    let at = monotonic_nanos();
    let mut message = clip(message_of(info.payload()));
    let mut location = info.location().map(ToString::to_string);
    let last = LAST
        .try_with(|last| {
            let last = last.try_borrow().ok()?;
            let last = last.as_ref()?;
            Some((last.message.clone(), last.location.clone()))
        })
        .ok()
        .flatten();
    let before = BEFORE
        .try_with(|before| before.try_borrow_mut().ok()?.take())
        .ok()
        .flatten();
    let is_final = cfg!(panic = "abort") || matches!(message.as_str(), NO_WAY_OUT | NO_WAY_BACK);
    match (message.as_str(), before, &last) {
        (NO_WAY_BACK, Some((first, place)), Some((second, _))) => {
            message = clip(format!("{first} (and then, {message}: {second})"));
            location = place;
        }
        (NO_WAY_BACK | NO_WAY_OUT, _, Some((first, place))) => {
            message = clip(format!("{first} ({message})"));
            location.clone_from(place);
        }
        _ => {}
    }
    link::note_panic(&match &location {
        Some(location) => format!("{location}: {message}"),
        None => message.clone(),
    });
    let in_function = IN_FUNCTION.try_with(Cell::get).unwrap_or(false);
    let telling = TOLD.fetch_add(1, Ordering::Relaxed) < WORDS || is_final;
    let tell = |backtrace| {
        let word = Frame::Panicking(Panicking {
            at,
            in_function,
            is_final,
            message: message.clone(),
            location: location.clone(),
            backtrace,
        });
        // If it cannot be told now, the report after unwinding tells it.
        let _ = control::tell(control, &word);
    };
    if telling {
        tell(None);
    }
    // As everywhere, RUST_BACKTRACE decides whether one is taken.
    let backtrace = Backtrace::capture();
    let backtrace =
        (backtrace.status() == BacktraceStatus::Captured).then(|| clip(backtrace.to_string()));
    // With `panic = "abort"` there will be no report.
    if telling && backtrace.is_some() {
        tell(backtrace.clone());
    }
    let noted = Noted {
        at,
        message,
        location,
        backtrace,
        told: telling,
    };
    let _ = BEFORE.try_with(|before| before.try_borrow_mut().map(|mut before| *before = last));
    // A panic inside a destructor of thread-locals has no place to be noted any more; the recorder has it.
    let _ = LAST.try_with(|last| last.try_borrow_mut().map(|mut last| *last = Some(noted)));
    telling.then_some(at)
}

/// The panic whose payload was caught in this thread.
pub(crate) fn caught(payload: Box<dyn Any + Send>) -> Noted {
    let noted = LAST
        .with(|last| last.borrow_mut().take())
        .unwrap_or_else(|| Noted {
            // The program replaced our hook with its own: the payload still has the message.
            at: monotonic_nanos(),
            message: clip(message_of(payload.as_ref())),
            location: None,
            backtrace: None,
            told: false,
        });
    // A payload may panic when it is dropped; there is nobody left to catch that.
    std::mem::forget(payload);
    noted
}

/// The process goes on after a panic that was caught: it must not be taken for the reason when the process ends later.
pub(crate) fn is_over(noted: &Noted) {
    link::note_panic("");
    if noted.told
        && let Some(control) = entry::control()
    {
        let _ = control::tell(control, &Frame::Caught);
    }
}

fn message_of(payload: &(dyn Any + Send)) -> String {
    if let Some(text) = payload.downcast_ref::<&'static str>() {
        (*text).to_owned()
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text.clone()
    } else {
        "(the panic carries a value that is not text)".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_found_in_both_shapes_that_panics_carry() {
        assert_eq!(message_of(&"static"), "static");
        assert_eq!(message_of(&"made".to_owned()), "made");
        assert!(message_of(&7_u32).contains("not text"));
    }
}
