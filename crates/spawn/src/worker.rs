//! The function's side of a child: read the arguments, run, put the result into its letterbox, tell the parent.

use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::control;
use crate::frame::{Frame, clip};
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

/// What a trampoline needs to know.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) hello: &'a Hello,
    pub(crate) control: BorrowedFd<'a>,
}

impl Call<'_> {
    /// Tells the parent why the function is not run, and gives the exit code for that.
    pub(crate) fn refuse(&self, reason: String) -> i32 {
        self.say(&Frame::Refused {
            reason: clip(reason),
        });
        REFUSED
    }

    /// A parent that is gone needs no news, and the watcher ends this process then.
    fn say(&self, frame: &Frame) {
        if let Err(errno) = control::tell(self.control, frame) {
            tracing::debug!(%errno, "the parent could not be told");
        }
    }
}

/// Runs `f` and tells the parent how it went. Gives the exit code of the process.
pub(crate) fn run<F, A, R>(call: &Call<'_>, f: F) -> i32
where
    F: Fn(usize, A) -> R,
    A: Serialize + DeserializeOwned,
    R: Outcome,
{
    let arguments = match catch_unwind(AssertUnwindSafe(|| arguments::<A>(call.hello))) {
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
    call.say(&frame);
    code
}

fn arguments<A: DeserializeOwned>(hello: &Hello) -> Result<A, String> {
    let mailbox = Mailbox::open(hello.arguments)
        .map_err(|error| format!("its arguments were not found: {error}"))?;
    match mailbox.take() {
        Ok(Some(arguments)) => Ok(arguments),
        Ok(None) => Err("its arguments were not in their letterbox".to_owned()),
        Err(error) => Err(format!(
            "its arguments of type `{}` could not be read: {error}",
            std::any::type_name::<A>()
        )),
    }
}

/// What to say, and the exit code, once the function has returned. Runs the user's `Serialize` and `Display`.
fn finish<R: Outcome>(hello: &Hello, outcome: R) -> (Frame, i32) {
    let at = monotonic_nanos();
    // A loop that ended early for a reason its function never saw must not pass for success.
    let outcome = outcome
        .into_result()
        .and_then(|value| link::take_unreported().map_or(Ok(value), |error| Err(error.into())));
    match outcome {
        Ok(value) => match Mailbox::open(hello.outcome).and_then(|mailbox| mailbox.put(value)) {
            Ok(()) => (Frame::Returned, SUCCESS),
            Err(error) => (
                Frame::ResultLost {
                    at,
                    reason: clip(error.to_string()),
                },
                RAISED,
            ),
        },
        Err(error) => {
            let told = tell(error.as_ref());
            (
                Frame::Raised {
                    at,
                    follows: told.follows,
                    chain: told.chain,
                    backtrace: told.backtrace,
                },
                RAISED,
            )
        }
    }
}
