//! The function's side of a child: read the arguments, run, put the result into its letterbox, tell the parent.

use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

use rustix::io::Errno;
use rustix::net::sockopt;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::control;
use crate::entry;
use crate::error::BoxError;
use crate::frame::{Frame, PLAIN, clip};
use crate::hello::Hello;
use crate::link::{self, Mailbox};
use crate::outcome::{Outcome, tell};
use crate::panic;
use crate::time::monotonic_nanos;

/// The exit code of a child whose function returned a value.
const SUCCESS: i32 = 0;
/// Of one whose function returned an error.
const RAISED: i32 = 1;
/// Of one whose function panicked: what a Rust program exits with then.
const PANICKED: i32 = 101;
/// Of one that did not run its function: the "software error" of sysexits.
pub(crate) const REFUSED: i32 = 70;

/// Of one that could not tell its parent how its function ended: the "input/output error" of sysexits.
pub(crate) const UNHEARD: i32 = 74;

/// What a trampoline needs to know.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) hello: &'a Hello,
    /// The arguments, if they came with the greeting.
    pub(crate) plain: &'a [u8],
    pub(crate) control: BorrowedFd<'a>,
}

impl Call<'_> {
    /// Tells the parent why the function is not run, and gives the exit code for that.
    pub(crate) fn refuse(&self, reason: String) -> i32 {
        self.say_last(&Frame::Refused {
            reason: clip(reason),
        });
        REFUSED
    }

    /// A parent that is gone needs no news, and the watcher ends this process then. Whether it was told: the function
    /// may have closed the socket, and something else may be there in its place.
    fn say_last(&self, frame: &Frame) -> bool {
        if entry::is_bare_fork() {
            // It came back from the function, too, and its word is not the worker's.
            return false;
        }
        let ours = sockopt::socket_peercred(self.control)
            .is_ok_and(|peer| peer.pid.as_raw_nonzero().get().unsigned_abs() == self.hello.parent);
        let told = match frame {
            _ if !ours => Err(Errno::BADF),
            // The end of the process follows, and tells of it: to wake the parent twice costs both.
            Frame::Returned { .. } => control::tell(self.control, frame),
            _ => control::tell_last(self.control, frame),
        };
        if let Err(errno) = told {
            link::say!(debug, %errno, "the parent could not be told");
        }
        told.is_ok()
    }
}

/// Runs `f` and tells the parent how it went. Gives the exit code of the process.
pub(crate) fn run<F, A, R>(call: &Call<'_>, f: F) -> i32
where
    F: Fn(usize, A) -> R,
    A: Serialize + DeserializeOwned,
    R: Outcome,
{
    let arguments = match catch_unwind(AssertUnwindSafe(|| arguments::<A>(call))) {
        Ok(Ok(arguments)) => arguments,
        Ok(Err(reason)) => return call.refuse(reason),
        Err(payload) => {
            return call.refuse(format!(
                "reading its arguments panicked: {}",
                panic::caught(payload).message
            ));
        }
    };
    let rank = call.hello.rank as usize;
    // What the caught code touched is not looked at again: the process ends.
    let (frame, code) =
        match catch_unwind(AssertUnwindSafe(|| finish(call.hello, f(rank, arguments)))) {
            Ok(ended) => ended,
            Err(payload) => {
                let panic::Noted {
                    at,
                    message,
                    location,
                    backtrace,
                    ..
                } = panic::caught(payload);
                (
                    Frame::Panicked {
                        at,
                        message,
                        location,
                        backtrace,
                    },
                    PANICKED,
                )
            }
        };
    if !call.say_last(&frame) {
        return UNHEARD;
    }
    if code == SUCCESS {
        link::note_return();
    }
    code
}

#[inline]
fn arguments<A: DeserializeOwned>(call: &Call<'_>) -> Result<A, String> {
    let unreadable = |error| {
        format!(
            "its arguments of type `{}` could not be read: {error}",
            std::any::type_name::<A>()
        )
    };
    if call.hello.inline == 1 {
        return link::read_plain(call.plain).map_err(unreadable);
    }
    let mailbox = Mailbox::open(call.hello.arguments)
        .map_err(|error| format!("its arguments were not found: {error}"))?;
    match mailbox.take() {
        Ok(Some(arguments)) => Ok(arguments),
        Ok(None) => Err("its arguments were not in their letterbox".to_owned()),
        Err(error) => Err(unreadable(error)),
    }
}

/// What to say, and the exit code, once the function has returned. Runs the user's `Serialize` and `Display`.
#[inline]
fn finish<R: Outcome>(hello: &Hello, outcome: R) -> (Frame, i32) {
    // A loop that ended early for a reason its function never saw must not pass for success.
    let outcome = outcome
        .into_result()
        .and_then(|value| link::take_unreported().map_or(Ok(value), |error| Err(error.into())));
    match outcome {
        Ok(value) => match post(hello, value) {
            Ok(plain) => (Frame::Returned { plain }, SUCCESS),
            Err(error) => (
                Frame::ResultLost {
                    at: monotonic_nanos(),
                    reason: clip(error.to_string()),
                },
                RAISED,
            ),
        },
        Err(error) => {
            let at = monotonic_nanos();
            let told = tell(error.as_ref());
            (
                Frame::Raised {
                    at,
                    follows: told.follows,
                    chain: told.chain,
                    backtrace: told.backtrace,
                    typed: told.typed,
                },
                RAISED,
            )
        }
    }
}

/// Brings a value on its way: gives it as bytes if it is small and nothing of the arena is in it, else puts it into its
/// letterbox.
#[inline]
fn post<T: Serialize>(hello: &Hello, value: T) -> Result<Option<Vec<u8>>, BoxError> {
    match link::plain(&value).filter(|bytes| bytes.len() <= PLAIN) {
        Some(bytes) => Ok(Some(bytes)),
        None => {
            // It is read when this process has ended.
            link::outliving(|| Mailbox::open(hello.outcome)?.put(value))?;
            Ok(None)
        }
    }
}
