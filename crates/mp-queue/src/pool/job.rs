//! One task as its worker sees it, and the functions that a request names: each decodes the arguments that belong to its
//! types, calls, and encodes the outcome.

use std::any::{Any, type_name};

use serde::Serialize;
use serde::de::DeserializeOwned;
use shm_core::arena::Arena;
use shm_core::clock::now_ns;
use shm_core::message::{self, Incoming, Outgoing};
use spawn::{Failure, Function, Outcome, attempt};

use super::link::{Form, Told};
use crate::error::Result;

/// What a function that a request names is called with.
pub(crate) struct Job {
    pub(super) arena: Arena,
    /// The worker's own state, as its initializer made it.
    pub(super) state: Box<dyn Any>,
    pub(super) task: u64,
    /// When the task was begun, on the clock of [`now_ns`].
    pub(super) since: u64,
    /// The arguments, until they are read.
    pub(super) message: Option<Box<Incoming>>,
    /// The reply.
    pub(super) reply: Option<Outgoing>,
}

/// Names the call of `f` with one argument.
pub(super) fn one<F, A, R>(f: F) -> Result<Function<Job>>
where
    F: Fn(A) -> R + Copy + Send + 'static,
    A: DeserializeOwned + 'static,
    R: Outcome,
{
    named(move |job| run(job, move |_, args| attempt(|| f(args))))
}

/// Names the call of `f` with the worker's state and one argument.
pub(super) fn one_with<S, F, A, R>(f: F) -> Result<Function<Job>>
where
    S: 'static,
    F: Fn(&mut S, A) -> R + Copy + Send + 'static,
    A: DeserializeOwned + 'static,
    R: Outcome,
{
    named(move |job| run(job, move |state, args| with_state(state, f, args)))
}

/// Names the calls of `f` with each of several arguments, one after the other.
pub(super) fn many<F, A, R>(f: F) -> Result<Function<Job>>
where
    F: Fn(A) -> R + Copy + Send + 'static,
    A: DeserializeOwned + 'static,
    R: Outcome,
{
    named(move |job| {
        run(job, move |_, all: Vec<A>| {
            Ok(all
                .into_iter()
                .map(|args| attempt(|| f(args)))
                .collect::<Vec<_>>())
        });
    })
}

/// [`many`], with the worker's state.
pub(super) fn many_with<S, F, A, R>(f: F) -> Result<Function<Job>>
where
    S: 'static,
    F: Fn(&mut S, A) -> R + Copy + Send + 'static,
    A: DeserializeOwned + 'static,
    R: Outcome,
{
    named(move |job| {
        run(job, move |state, all: Vec<A>| {
            let each = all.into_iter().map(|args| with_state(state, f, args));
            Ok(each.collect::<Vec<_>>())
        });
    })
}

fn named(f: impl Fn(&mut Job) + Copy + Send + 'static) -> Result<Function<Job>> {
    Function::of(f).map_err(super::start_failed)
}

fn with_state<S, F, A, R>(state: &mut dyn Any, f: F, args: A) -> Result<R::Value, Failure>
where
    S: 'static,
    F: Fn(&mut S, A) -> R,
    R: Outcome,
{
    match state.downcast_mut::<S>() {
        Some(state) => attempt(|| f(state, args)),
        // The types of pool and worker are one; only a message that something else wrote gets here.
        None => Err(raised(format!(
            "the worker has no state of type {}",
            type_name::<S>()
        ))),
    }
}

fn raised(text: String) -> Failure {
    Failure::Raised {
        chain: vec![text],
        backtrace: None,
        typed: None,
    }
}

/// Reads the arguments, calls, and makes the reply.
fn run<A, V>(job: &mut Job, call: impl FnOnce(&mut dyn Any, A) -> Result<V, Failure>)
where
    A: DeserializeOwned + 'static,
    V: Serialize,
{
    let Some(message) = job.message.take() else {
        return;
    };
    // Reading runs the user's `Deserialize`, writing the user's `Serialize`: both may panic.
    let mut args = None;
    let read = attempt(|| {
        args = Some(message.decode::<A>()?);
        Ok::<_, shm_core::Error>(())
    });
    let outcome = match (read, args) {
        (Ok(()), Some(args)) => call(job.state.as_mut(), args),
        (Err(failure), _) => Err(failure),
        (Ok(()), None) => return,
    };
    let told = Told {
        task: job.task,
        nanos: now_ns().saturating_sub(job.since),
        form: Form::Answer,
    };
    let mut written = None;
    let wrote = attempt(|| {
        written =
            Some(message::encode(&job.arena, (told, outcome)).map_err(|failed| failed.error)?);
        Ok::<_, shm_core::Error>(())
    });
    job.reply = match wrote {
        Ok(()) => written,
        Err(failure) => refusal(
            job,
            format!(
                "its result of type {} could not be sent: {}",
                type_name::<V>(),
                said(&failure)
            ),
        ),
    };
}

/// A reply that says why there is no other.
pub(super) fn refusal(job: &Job, reason: String) -> Option<Outgoing> {
    let told = Told {
        task: job.task,
        nanos: 0,
        form: Form::Refused,
    };
    message::encode(&job.arena, (told, reason)).ok()
}

fn said(failure: &Failure) -> String {
    match failure {
        Failure::Raised { chain, .. } => chain.join(": "),
        Failure::Panicked { message, .. } => format!("it panicked: {message}"),
    }
}
