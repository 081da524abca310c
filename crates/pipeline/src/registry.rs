//! The registry: what the names in a configuration mean.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;
use spawn::{Group, Process};

use crate::client::Client;
use crate::config::meant;
use crate::error::{Error, Result, StageError};
use crate::fields::fields_of;
use crate::nearest::{did_you_mean, instead_of};
use crate::process::{MakeSelector, Outcome, Work, run_stage};
use crate::selector::Selector;
use crate::spec::TensorSpec;
use crate::stage::{Segments, Stage};
use crate::stages::{Aggregator, Batcher};
use crate::step::Maker;

/// A stage that is known by its name; its parameters come as JSON.
trait Entry: Send + Sync {
    /// Whether the parameters can be read; and which of them the stage did not read.
    fn check(&self, params: &Value) -> Result<Vec<String>>;
    /// The parameters that the stage reads, as far as its type tells.
    fn params(&self) -> &'static [&'static str];
    /// Whether its type names this parameter, rather than taking any.
    fn names(&self, params: &Value, key: &str) -> bool;
    fn output_spec(&self, params: &Value, input: &[TensorSpec]) -> Result<Vec<TensorSpec>>;
    fn input_spec(&self, params: &Value) -> Result<Option<Vec<TensorSpec>>>;
    fn needs_next(&self, params: &Value) -> Result<bool>;
    fn needs_segments(&self, params: &Value) -> Result<Segments>;
    fn keeps(&self, params: &Value) -> Result<usize>;
    fn run(&self, work: Work<Value>, selector: &MakeSelector<'_>) -> Result<Outcome, StageError>;
}

struct Of<S>(PhantomData<fn(S)>);

/// Parameters of `S` out of a configuration. A stage without any may say so with `()`, which JSON has no map for.
fn params_of<S: Stage>(params: &Value) -> Result<S::Params> {
    read_params::<S>(params).map(|(params, _)| params)
}

/// The same, and the keys that `S::Params` did not look at.
fn read_params<S: Stage>(params: &Value) -> Result<(S::Params, Vec<String>)> {
    let mut unread = Vec::new();
    let read = serde_ignored::deserialize(params.clone(), |path| unread.push(path.to_string()));
    let error = match read {
        Ok(read) => return Ok((read, unread)),
        Err(error) => error,
    };
    // A stage that has no parameters says so with `()`, or takes none for `None`.
    let given: Vec<_> = params.as_object().into_iter().flatten().collect();
    if (given.is_empty() || size_of::<S::Params>() == 0)
        && let Ok(none) = serde_json::from_value(Value::Null)
    {
        let unread = given.into_iter().map(|(key, _)| key.clone());
        return Ok((none, unread.collect()));
    }
    Err(Error::invalid(told::<S>(params, &error)))
}

/// What is wrong with parameters, with the key where it is known.
fn told<S: Stage>(params: &Value, error: &serde_json::Error) -> String {
    let text = error.to_string();
    let unknown = text.strip_prefix("unknown field `");
    if let Some((key, _)) = unknown.and_then(|rest| rest.split_once('`'))
        && params.get(key).is_some()
    {
        let near = meant(key, fields_of::<S::Params>());
        return format!("{key}: {text}{near}");
    }
    let keys = params.as_object().into_iter().flatten().map(|(key, _)| key);
    // The error does not say which: it is the one without which it is another.
    for key in keys {
        let mut without = params.clone();
        without.as_object_mut().and_then(|map| map.remove(key));
        let is_it = match serde_json::from_value::<S::Params>(without) {
            Ok(_) => true,
            Err(other) => other.to_string() == format!("missing field `{key}`"),
        };
        if is_it {
            return format!("{key}: {text}");
        }
    }
    let missing = text.strip_prefix("missing field `");
    match missing.and_then(|rest| rest.strip_suffix('`')) {
        Some(key) => {
            let given = params.as_object().into_iter().flatten();
            let instead = instead_of(key, given.map(|(key, _)| key));
            format!("{key}: it is missing{instead}")
        }
        None if text.starts_with("invalid type: map") => format!(
            "{text}; in a configuration parameters have names: let the stage's Params be a struct with named fields, or () for \
             none"
        ),
        None => text,
    }
}

impl<S: Stage> Entry for Of<S> {
    fn check(&self, params: &Value) -> Result<Vec<String>> {
        read_params::<S>(params).map(|(_, unread)| unread)
    }

    fn params(&self) -> &'static [&'static str] {
        fields_of::<S::Params>()
    }

    fn names(&self, params: &Value, key: &str) -> bool {
        // What names its fields read this one, and what does not (`#[serde(flatten)]`, a map) minds what is said for one that
        // it names, but not for another.
        let minds = |key: &str| {
            let mut params = params.clone();
            params[key] = serde_json::json!({"": [null]});
            serde_json::from_value::<S::Params>(params).is_err()
        };
        !self.params().is_empty() || (minds(key) && !minds("\u{1}"))
    }

    fn output_spec(&self, params: &Value, input: &[TensorSpec]) -> Result<Vec<TensorSpec>> {
        let params = params_of::<S>(params)?;
        S::output_spec_for(&params, input).map_err(|error| Error::invalid(error.to_string()))
    }

    fn input_spec(&self, params: &Value) -> Result<Option<Vec<TensorSpec>>> {
        Ok(S::input_spec(&params_of::<S>(params)?))
    }

    fn needs_next(&self, params: &Value) -> Result<bool> {
        Ok(S::needs_next(&params_of::<S>(params)?))
    }

    fn needs_segments(&self, params: &Value) -> Result<Segments> {
        Ok(S::needs_segments(&params_of::<S>(params)?))
    }

    fn keeps(&self, params: &Value) -> Result<usize> {
        Ok(S::keeps(&params_of::<S>(params)?))
    }

    fn run(&self, work: Work<Value>, selector: &MakeSelector<'_>) -> Result<Outcome, StageError> {
        let params = params_of::<S>(&work.params)?;
        let (work, _) = work.with(params);
        run_stage::<S>(work, selector)
    }
}

type MakeClient = Box<dyn Fn(&Value) -> Result<Client> + Send + Sync>;
type NewSelector = fn(usize) -> Box<dyn Selector>;

/// What the names of stages, selectors and iterators in a configuration mean. A program has one function that makes it,
/// for `main` (feature `command`) and [`Config`](crate::Config); each process of a pipeline calls it, too.
///
/// `batcher.Batcher`, `Batcher` and `Aggregator` are there already: [`stages`](crate::stages).
pub struct Registry {
    stages: BTreeMap<String, Arc<dyn Entry>>,
    selectors: BTreeMap<String, NewSelector>,
    iterators: BTreeMap<String, MakeClient>,
}

impl Default for Registry {
    fn default() -> Self {
        Self::new()
    }
}

impl Registry {
    /// A registry with what every pipeline has.
    #[must_use]
    pub fn new() -> Self {
        Self {
            stages: BTreeMap::new(),
            selectors: BTreeMap::new(),
            iterators: BTreeMap::new(),
        }
        .stage::<Batcher>("batcher.Batcher")
        .stage::<Batcher>("Batcher")
        .stage::<Aggregator>("Aggregator")
    }

    /// A stage (RnB's `model`). Its parameters are read from the keys of its step and queue group that mean nothing else;
    /// `#[serde(deny_unknown_fields)]` on them finds misspelt ones before the run.
    #[must_use]
    pub fn stage<S: Stage>(mut self, name: impl Into<String>) -> Self {
        self.stages
            .insert(name.into(), Arc::new(Of::<S>(PhantomData)));
        self
    }

    /// A selector (RnB's `queue_selector`).
    #[must_use]
    pub fn selector<C: Selector>(mut self, name: impl Into<String>) -> Self {
        self.selectors
            .insert(name.into(), |queues| Box::new(C::new(queues)));
        self
    }

    /// An iterator over inputs (RnB's `video_path_iterator`), which may have parameters: `null`, or the key
    /// `iterator_params`. It runs in the process that starts the pipeline; let it go round for ever (`cycle`) where the
    /// client is to count.
    #[must_use]
    pub fn iterator<I>(
        mut self,
        name: impl Into<String>,
        make: impl Fn(&Value) -> Result<I, StageError> + Send + Sync + 'static,
    ) -> Self
    where
        I: Iterator + Send + 'static,
        I::Item: Serialize,
    {
        let make = move |params: &Value| {
            let inputs = make(params).map_err(|error| Error::invalid(error.to_string()))?;
            Ok(Client::new(inputs))
        };
        self.iterators.insert(name.into(), Box::new(make));
        self
    }

    /// The client of an iterator; an error begins with the key that is wrong.
    pub(crate) fn make_client(&self, name: &str, params: &Value) -> Result<Client> {
        let make = self.iterators.get(name).ok_or_else(|| {
            Error::invalid(format!(
                "iterator: there is no iterator {name:?} in the registry; it has {:?}{}",
                self.iterators.keys().collect::<Vec<_>>(),
                did_you_mean(name, self.iterators.keys())
            ))
        })?;
        // What an iterator without parameters refuses is not in them.
        let key = match params {
            Value::Null => "iterator",
            _ => "iterator_params",
        };
        make(params).map_err(|error| Error::invalid(format!("{key}: {error}")))
    }

    fn make_selector(&self, name: &str, queues: usize) -> Option<Box<dyn Selector>> {
        self.selectors.get(name).map(|new| new(queues))
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry")
            .field("stages", &self.stages.keys())
            .field("selectors", &self.selectors.keys())
            .field("iterators", &self.iterators.keys())
            .finish()
    }
}

/// A stage of a registry with its parameters.
struct Named<F> {
    registry: F,
    name: String,
    params: Value,
    entry: Arc<dyn Entry>,
    selectors: Vec<String>,
}

/// A stage with its parameters.
pub(crate) struct Made {
    pub(crate) maker: Arc<dyn Maker>,
    /// The keys among them that its type does not name: it reads any, or does not read these.
    pub(crate) unnamed: Vec<String>,
    /// What its type names, as far as it tells.
    pub(crate) params: &'static [&'static str],
}

/// The stage that a configuration names, with what is left of its step's and group's keys as parameters. A key that the
/// stage does not read is refused, since a misspelt key of a step would be one, unless `lenient`.
pub(crate) fn maker<F>(
    provider: F,
    registry: &Registry,
    name: &str,
    params: Value,
    lenient: bool,
) -> Result<Made>
where
    F: Fn() -> Registry + Copy + Send + Sync + 'static,
{
    let entry = registry.stages.get(name).ok_or_else(|| {
        Error::invalid(format!(
            "stage: there is no {name:?} in the registry; it has {:?}{}",
            registry.stages.keys().collect::<Vec<_>>(),
            did_you_mean(name, registry.stages.keys())
        ))
    })?;
    let unread = entry
        .check(&params)
        .map_err(|error| Error::invalid(format!("{error} (a parameter of stage {name:?})")))?;
    if !unread.is_empty() && lenient {
        tracing::debug!(
            stage = name,
            ?unread,
            "parameters that the stage does not read"
        );
    } else if let Some(key) = unread.first() {
        let params = entry.params();
        let reads = match params {
            [] => String::new(),
            some => format!(" ({})", some.join(", ")),
        };
        return Err(Error::invalid(format!(
            "{key}: neither a key that a step or queue group has here nor a parameter that stage {name:?} reads{reads}{}",
            meant(key, params)
        )));
    }
    let given = params.as_object().into_iter().flatten();
    let unnamed = given.map(|(key, _)| key);
    let unnamed = unnamed.filter(|key| unread.contains(key) || !entry.names(&params, key));
    Ok(Made {
        unnamed: unnamed.cloned().collect(),
        params: entry.params(),
        maker: Arc::new(Named {
            registry: provider,
            name: name.to_owned(),
            params,
            entry: Arc::clone(entry),
            selectors: registry.selectors.keys().cloned().collect(),
        }),
    })
}

impl<F> Maker for Named<F>
where
    F: Fn() -> Registry + Copy + Send + Sync + 'static,
{
    fn stage(&self) -> String {
        self.name.clone()
    }

    fn output_spec(&self, input: &[TensorSpec]) -> Result<Vec<TensorSpec>> {
        self.entry.output_spec(&self.params, input)
    }

    fn input_spec(&self) -> Result<Option<Vec<TensorSpec>>> {
        self.entry.input_spec(&self.params)
    }

    fn needs_next(&self) -> Result<bool> {
        self.entry.needs_next(&self.params)
    }

    fn needs_segments(&self) -> Result<Segments> {
        self.entry.needs_segments(&self.params)
    }

    fn keeps(&self) -> Result<usize> {
        self.entry.keeps(&self.params)
    }

    fn selectors(&self) -> Vec<String> {
        self.selectors.clone()
    }

    fn add(
        &self,
        group: &mut Group<Outcome>,
        process: Process,
        work: Work<()>,
    ) -> spawn::Result<()> {
        let named = (self.name.clone(), self.params.to_string());
        let (work, ()) = work.with(named);
        let provider = self.registry;
        // What it captures is a function without a value, so the child has it as well.
        let run = move |_: usize, work: Work<(String, String)>| run_named(provider, work);
        group.add(process, run, work).map(drop)
    }
}

fn run_named<F: Fn() -> Registry>(
    provider: F,
    work: Work<(String, String)>,
) -> Result<Outcome, StageError> {
    let registry = provider();
    let (work, (name, params)) = work.with(());
    let entry = registry
        .stages
        .get(&name)
        .ok_or("the registry of this process lacks the stage that its parent's had")?;
    let (work, ()) = work.with(serde_json::from_str(&params)?);
    entry.run(work, &|name, queues| registry.make_selector(name, queues))
}
