//! Configurations: a pipeline from a file, in TOML or in JSON, RnB's own included.

mod keys;
mod strays;

use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::client::Client;
use crate::error::{Error, ErrorKind, Result};
use crate::nearest::did_you_mean;
use crate::pipeline::Pipeline;
use crate::registry::{Registry, maker};
use crate::step::{QueueGroup, Step, Unfinished};
use keys::Keys;
pub(crate) use strays::meant;
use strays::{GROUP_KEYS, warnings};

/// A configuration, read and not yet understood, so that it can still be changed.
///
/// ```
/// use pipeline::{Config, Registry};
///
/// fn registry() -> Registry {
///     Registry::new().iterator("numbers", |_| Ok(0_u32..))
/// }
///
/// let config = Config::from_toml(
///     r#"
///     iterator = "numbers"
///     client = { count = 100 }
///
///     [[pipeline]]
///     stage = "Aggregator"
///     devices = [-1, -1]
///     "#,
/// )?;
/// config.pipeline(registry)?.check()?;
/// # Ok::<(), pipeline::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    value: Value,
    on_cpu: bool,
}

/// Keys of a configuration, and what each is called in RnB's.
const TOP: [(&str, &str); 5] = [
    ("pipeline", "pipeline"),
    ("iterator", "video_path_iterator"),
    ("iterator_params", "iterator_params"),
    ("client", "client"),
    ("timeout_ms", "timeout_ms"),
];

/// Keys of a client.
const CLIENT_KEYS: &[&str] = &[
    "mean_interval_ms",
    "count",
    "queue_size",
    "backpressure",
    "seed",
];

impl Config {
    /// Reads a file: TOML where its name ends so, JSON otherwise.
    ///
    /// # Errors
    /// `File` when it cannot be read, `Invalid` when it is neither.
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path).map_err(|error| {
            Error::caused(
                ErrorKind::File,
                format!("the configuration {} could not be read", path.display()),
                error,
            )
        })?;
        let is_called = |end: &str| path.extension().is_some_and(|found| found == end);
        let (config, read_as) = match is_called("toml") {
            true => (Self::from_toml(&text), ""),
            false if is_called("json") => (Self::from_json(&text), ""),
            false => (
                Self::from_json(&text),
                " (read as JSON, since its name does not end in .toml)",
            ),
        };
        config.map_err(|error| Error::invalid(format!("{}: {error}{read_as}", path.display())))
    }

    /// A configuration in TOML.
    ///
    /// # Errors
    /// `Invalid` when it is none.
    pub fn from_toml(text: &str) -> Result<Self> {
        toml::from_str(text)
            .map_err(|error| Error::invalid(toml_told(text, &error)))
            .map(Self::of)
    }

    /// A configuration in JSON.
    ///
    /// # Errors
    /// `Invalid` when it is none.
    pub fn from_json(text: &str) -> Result<Self> {
        serde_json::from_str(text)
            .map_err(|error| Error::invalid(format!("this is no configuration in JSON: {error}")))
            .map(Self::of)
    }

    fn of(value: Value) -> Self {
        // RnB's first configurations are the bare list of steps.
        let value = match value {
            Value::Array(steps) => json!({ "pipeline": steps }),
            other => other,
        };
        Self {
            value,
            on_cpu: false,
        }
    }

    /// Puts every process on the CPU, so that a configuration for eight GPUs runs anywhere.
    #[must_use]
    pub fn on_cpu(mut self) -> Self {
        self.on_cpu = true;
        self
    }

    /// Changes one value: `key` is a path of keys and indices with dots between them, and may begin with the name of a step
    /// (`load.slots`, `pipeline.0.queue_groups.1.batch`, `client.count`); `value` is JSON, or else a text.
    ///
    /// # Errors
    /// `Invalid` when the path leads nowhere.
    pub fn set(mut self, key: &str, value: &str) -> Result<Self> {
        let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
        let mut parts: Vec<&str> = key.split('.').collect();
        let steps = self.value.get("pipeline").map(names).unwrap_or_default();
        let nowhere = |part: &str| {
            Error::invalid(format!(
                "{key}: there is no {part:?} to set; a path begins with a key of the configuration or the name of a step ({})",
                steps.join(", ")
            ))
        };
        let last = parts.pop().unwrap_or_default();
        let mut place = &mut self.value;
        for (depth, part) in parts.into_iter().enumerate() {
            if depth == 0 && place.get(part).is_none() {
                if let Some(index) = steps.iter().position(|name| name == part) {
                    place = &mut place["pipeline"][index];
                    continue;
                }
                let known = TOP.iter().flat_map(|(key, rnb)| [*key, *rnb]);
                let known: Vec<&str> = known.chain(steps.iter().map(String::as_str)).collect();
                if !known.contains(&part) {
                    let near = did_you_mean(part, known);
                    return Err(Error::invalid(format!("{}{near}", nowhere(part))));
                }
            }
            place = match (place, part.parse::<usize>()) {
                (Value::Array(list), Ok(index)) => {
                    list.get_mut(index).ok_or_else(|| nowhere(part))?
                }
                (Value::Object(map), _) => {
                    map.entry(part).or_insert_with(|| Value::Object(Map::new()))
                }
                _ => return Err(nowhere(part)),
            };
        }
        match (place, last.parse::<usize>()) {
            (Value::Array(list), Ok(index)) if index < list.len() => list[index] = value,
            (Value::Object(map), _) => {
                map.insert(last.to_owned(), value);
            }
            _ => return Err(nowhere(last)),
        }
        Ok(self)
    }

    /// The configuration as it is now.
    #[must_use]
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// The pipeline that it describes, with the stages, selectors and iterators of a registry. `registry` is a function
    /// item, which the processes of the pipeline call as well.
    ///
    /// # Errors
    /// `Invalid`, naming step, queue group and key.
    pub fn pipeline<F>(&self, registry: F) -> Result<Pipeline>
    where
        F: Fn() -> Registry + Copy + Send + Sync + 'static,
    {
        const {
            assert!(
                size_of::<F>() == 0,
                "the registry is a function item, or a closure that captures nothing: each process of the pipeline calls it, \
                 and does not have what was captured"
            );
        }
        let known = registry();
        let mut top = Keys::of(&self.value, "the configuration")?;
        let steps: Vec<Value> = top.need("pipeline", "pipeline")?;
        let mut pipeline = Pipeline::new();
        for (index, name) in names(&Value::from(steps.clone())).into_iter().enumerate() {
            let step = self.step((index, &steps[index]), name, registry, &known)?;
            pipeline = pipeline.step(step);
        }
        let iterator: Option<String> = top.take("iterator", "video_path_iterator")?;
        let params = top.take("iterator_params", "")?.unwrap_or(Value::Null);
        let client: Option<Value> = top.take("client", "")?;
        if let Some(timeout) = top.take::<f64>("timeout_ms", "")? {
            pipeline = pipeline.timeout(limit("the configuration, timeout_ms", timeout)?);
        }
        if let Some(odd) = top.rest.keys().next() {
            return Err(Error::invalid(format!(
                "the configuration, {odd}: there is no such key; there are {}{}",
                TOP.map(|(key, _)| key).join(", "),
                did_you_mean(odd, TOP.iter().flat_map(|(key, rnb)| [key, rnb]))
            )));
        }
        if iterator.is_some() || client.is_some() {
            let inputs = match iterator {
                Some(name) => known
                    .make_client(&name, &params)
                    .map_err(|error| Error::invalid(format!("the configuration, {error}")))?,
                None => Client::new(std::iter::repeat(())),
            };
            pipeline = pipeline.client(configure(inputs, client.unwrap_or_else(|| json!({})))?);
        }
        pipeline.config = Some(self.value.clone());
        Ok(pipeline)
    }

    fn step<F>(
        &self,
        (index, value): (usize, &Value),
        name: String,
        provider: F,
        known: &Registry,
    ) -> Result<Step>
    where
        F: Fn() -> Registry + Copy + Send + Sync + 'static,
    {
        // The name of one that says neither its own nor its stage's was made up.
        let at = match ["name", "stage", "model"].map(|key| value.get(key)) {
            [None, None, None] => format!("step {index}"),
            _ => format!("step {name:?}"),
        };
        let mut keys = Keys::of(value, &at)?;
        let _: Option<String> = keys.take("name", "")?;
        // RnB's stages are given all that is there, and take what they know.
        let lenient = value.get("model").is_some();
        let stage: String = keys.need("stage", "model")?;
        let mut step = Step::new(name);
        step.in_rnbs_words = lenient;
        step.slots = keys.take("slots", "num_shared_tensors")?;
        step.segments = keys.take("segments", "num_segments")?.unwrap_or(1);
        step.delivery = keys.take("delivery", "")?.unwrap_or_default();
        step.backpressure = keys.take("backpressure", "")?.unwrap_or_default();
        step.queue_size = keys.take("queue_size", "")?;
        step.ordered = keys.take("ordered", "")?.unwrap_or(false);
        let restart: Option<u32> = keys.take("restart", "")?;
        step.restarts = restart.unwrap_or(0);
        let unfinished = keys.take::<String>("unfinished", "")?;
        step.unfinished = match (unfinished.as_deref(), restart) {
            (None, _) | (Some("redeliver"), Some(_)) => Unfinished::Redeliver,
            (Some("report"), Some(_)) => Unfinished::Report,
            (Some(other), _) => {
                let problem = match other {
                    "redeliver" | "report" => "it is of processes that are replaced; add restart",
                    _ => "it is \"redeliver\" or \"report\"",
                };
                let told = format!("{at}, unfinished: {other:?} was read; {problem}");
                return Err(Error::invalid(told));
            }
        };
        if let Some(ms) = keys.take::<f64>("limit_ms", "")? {
            step.limit = Some(limit(&format!("{at}, limit_ms"), ms)?);
        }
        let groups: Option<Vec<Value>> = keys.take("queue_groups", "")?;
        // A step with one group may do without the list, and errors do not name what it does not.
        let are_listed = groups.is_some();
        let groups = match groups {
            Some(groups) => groups,
            None => {
                let taken = GROUP_KEYS
                    .iter()
                    .filter_map(|key| keys.rest.remove_entry(*key));
                vec![Value::Object(taken.collect())]
            }
        };
        for (number, group) in groups.iter().enumerate() {
            let step_at = &at;
            let at = match are_listed {
                true => format!("{at}, queue group {number}"),
                false => at.clone(),
            };
            let mut own = Keys::of(group, &at)?;
            let devices: Option<Vec<i32>> = own.take("devices", "gpus")?;
            let replicas: Option<usize> = own.take("replicas", "")?;
            let mut devices = match (devices, replicas) {
                (Some(_), Some(_)) => {
                    return Err(Error::invalid(format!(
                        "{at}, replicas: devices are named as well; name one twice for two processes"
                    )));
                }
                (devices, _) => devices,
            };
            if let Some(devices) = devices.as_mut().filter(|_| self.on_cpu) {
                devices.fill(-1);
            }
            let in_queue: Option<u32> = own.take("in_queue", "")?;
            let out_queues: Option<Vec<u32>> = own.take("out_queues", "")?;
            let selector: Option<String> = own.take("queue_selector", "")?;
            // What is left is the stage's: the group's own before the step's.
            let mut params = keys.rest.clone();
            params.extend(own.rest.clone());
            let made = maker(provider, known, &stage, Value::Object(params), lenient)
                .map_err(|error| Error::invalid(format!("{at}, {error}")))?;
            let place = |key: &str| match own.rest.contains_key(key) {
                true => at.as_str(),
                false => step_at.as_str(),
            };
            for odd in warnings(&made.unnamed, made.params, place) {
                // What stands in the step is told once, however many groups there are.
                if !step.odd.contains(&odd) {
                    step.odd.push(odd);
                }
            }
            let group = QueueGroup::made_by(made.maker);
            let mut group = match devices {
                Some(devices) => group.devices(devices),
                None => group.replicas(replicas.unwrap_or(1)),
            };
            group.on_cpu = self.on_cpu;
            group.in_queue = in_queue;
            group.out_queues = out_queues;
            if let Some(selector) = selector {
                group.selector = selector;
            }
            step = step.group(group);
        }
        step.groups_are_listed = are_listed;
        Ok(step)
    }
}

fn configure(mut client: Client, value: Value) -> Result<Client> {
    let at = "client";
    let mut keys = Keys::of(&value, at)?;
    if let Some(mean) = keys.take::<f64>("mean_interval_ms", "")? {
        client = client.poisson(milliseconds("client, mean_interval_ms", mean)?);
    }
    client.count = keys.take("count", "")?;
    if client.count == Some(0) {
        return Err(Error::invalid(
            "client, count: 0 inputs were asked for; say at least 1, or leave it out to run until there are no more",
        ));
    }
    client.queue_size = keys.take("queue_size", "")?;
    client.policy = keys.take("backpressure", "")?.unwrap_or_default();
    if let Some(seed) = keys.take("seed", "")? {
        client = client.seed(seed);
    }
    match keys.rest.keys().next() {
        None => Ok(client),
        Some(odd) => Err(Error::invalid(format!(
            "client, {odd}: there is no such key; there are {}{}",
            CLIENT_KEYS.join(", "),
            did_you_mean(odd, CLIENT_KEYS)
        ))),
    }
}

/// What is wrong with a text that is no TOML.
fn toml_told(text: &str, error: &toml::de::Error) -> String {
    let told = error.to_string().trim_end().to_owned();
    let before = error.span().and_then(|span| text.get(..span.start));
    let line = before.and_then(|before| {
        let number = before.matches('\n').count();
        text.lines().nth(number)
    });
    // The parser takes the end of the line for a text without quotes.
    let key = line.and_then(|line| line.split('#').next()?.trim().strip_suffix('='));
    match key.map(str::trim) {
        Some(key) if !key.contains('=') => {
            let place = told.lines().next().unwrap_or_default();
            format!("{place}: {key} has no value; a number stands as it is, a text in quotes")
        }
        _ => told,
    }
}

/// What steps are called: as they say, or by the last word of their stage, with a number where that is not enough.
fn names(steps: &Value) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for step in steps.as_array().into_iter().flatten() {
        let said = |key: &str| step.get(key).and_then(Value::as_str);
        let name = said("name").map(str::to_owned).unwrap_or_else(|| {
            let stage = said("stage").or(said("model")).unwrap_or("step");
            let last = stage.rsplit(['.', ':']).next().unwrap_or(stage);
            let again = names.iter().filter(|name| {
                let base = name.trim_end_matches(|end: char| end.is_ascii_digit());
                **name == last || base.strip_suffix('-') == Some(last)
            });
            match again.count() {
                0 => last.to_owned(),
                before => format!("{last}-{}", before + 1),
            }
        });
        names.push(name);
    }
    names
}

fn milliseconds(at: &str, ms: f64) -> Result<Duration> {
    Duration::try_from_secs_f64(ms / 1e3)
        .map_err(|error| Error::invalid(format!("{at}: {ms:?} milliseconds: {error}")))
}

/// A time that something may take.
fn limit(at: &str, ms: f64) -> Result<Duration> {
    match milliseconds(at, ms)? {
        Duration::ZERO => Err(Error::invalid(format!(
            "{at}: {ms:?} milliseconds are no time to do anything in; leave it out for no limit"
        ))),
        limit => Ok(limit),
    }
}
