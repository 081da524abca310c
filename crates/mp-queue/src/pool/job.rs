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
    /// The worker leaves before its pool does: what it replies outlives it.
    pub(super) retires: bool,
    /// The worker's own state, as its initializer made it.
    pub(super) state: Box<dyn Any>,
    pub(super) task: u64,
    /// When the task was begun, on the clock of [`now_ns`], if it is timed.
    pub(super) since: Option<u64>,
    /// How long it took, if it was timed and is over.
    pub(super) nanos: u64,
    // Both in their places from one task to the next: moving a message costs more than writing or reading most.
    /// The arguments, until they are read.
    pub(super) message: Incoming,
    /// The reply, if there is one.
    pub(super) reply: Outgoing,
    pub(super) is_replied: bool,
}

impl Job {
    /// Makes the reply.
    pub(super) fn reply<T: Serialize>(&mut self, form: Form, rest: T) {
        let _ = self.try_reply(form, rest, type_name::<T>);
    }

    /// The same; `name` is what errors call the rest.
    fn try_reply<T: Serialize>(
        &mut self,
        form: Form,
        rest: T,
        name: fn() -> &'static str,
    ) -> shm_core::Result<()> {
        let told = Told {
            task: self.task,
            nanos: self.nanos,
            form,
        };
        let (reply, arena) = (&mut self.reply, &self.arena);
        let encode = || reply.encode_as(arena, (told, rest), name);
        let made = match self.retires {
            true => message::outliving(encode),
            false => encode(),
        };
        made.map_err(|failed| failed.error)?;
        self.is_replied = true;
        Ok(())
    }
}

/// Names the call of `f` with one argument.
pub(super) fn one<F, A, R>(f: F) -> Result<Function<Job>>
where
    F: Fn(A) -> R + Copy + Send + 'static,
    A: DeserializeOwned + 'static,
    R: Outcome,
{
    captures_nothing::<F>();
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
    captures_nothing::<F>();
    named(move |job| run(job, move |state, args| with_state(state, f, args)))
}

/// Names the calls of `f` with each of several arguments, one after the other.
pub(super) fn many<F, A, R>(f: F) -> Result<Function<Job>>
where
    F: Fn(A) -> R + Copy + Send + 'static,
    A: DeserializeOwned + 'static,
    R: Outcome,
{
    captures_nothing::<F>();
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
    captures_nothing::<F>();
    named(move |job| {
        run(job, move |state, all: Vec<A>| {
            let each = all.into_iter().map(|args| with_state(state, f, args));
            Ok(each.collect::<Vec<_>>())
        });
    })
}

/// Refuses other functions when a call of them is compiled, and says what to do instead.
fn captures_nothing<F>() {
    const {
        assert!(
            size_of::<F>() == 0,
            "a pool's task is a function item or a closure that captures nothing: a worker does not have what was captured, \
             nor what a function pointer points to. Pass the values as arguments instead (a tuple, if there are several)"
        );
    }
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
    // Reading runs the user's `Deserialize`, writing the user's `Serialize`: both may panic.
    let mut args = None;
    let read = attempt(|| {
        args = Some(job.message.take::<A>()?);
        Ok::<_, shm_core::Error>(())
    });
    let outcome = match (read, args) {
        (Ok(()), Some(args)) => call(job.state.as_mut(), args),
        (Err(failure), _) => {
            // What was not read of it is not kept until the next one comes.
            job.message = Incoming::default();
            Err(unread(failure, type_name::<A>()))
        }
        (Ok(()), None) => return,
    };
    if let Some(since) = job.since {
        job.nanos = now_ns().saturating_sub(since).max(1);
    }
    if let Err(failure) = attempt(|| job.try_reply(Form::Answer, outcome, type_name::<V>)) {
        let text = format!(
            "its result of type {} could not be sent: {}",
            type_name::<V>(),
            said(&failure)
        );
        job.reply(Form::Refused, text);
    }
}

/// What the user reads where a task was not even begun.
fn unread(mut failure: Failure, type_name: &str) -> Failure {
    let text = format!("it did not run: its arguments of type {type_name} could not be read");
    match &mut failure {
        Failure::Raised { chain, .. } => chain.insert(0, text),
        Failure::Panicked { message, .. } => *message = format!("{text}: {message}"),
    }
    failure
}

fn said(failure: &Failure) -> String {
    match failure {
        Failure::Raised { chain, .. } => chain.join(": "),
        Failure::Panicked { message, .. } => format!("it panicked: {message}"),
    }
}
