//! Pipelines from configurations: RnB's own, ours, and those that could not run.

use serde::{Deserialize, Serialize};
use tensormp::pipeline::{
    Config, Context, Flow, Input, Outgoing, Output, Parts, Registry, Selector, Stage, StageError,
    TensorSpec, Termination,
};

use crate::room::Huge;

/// A stand-in for RnB's loader: from 1 to 15 rows. As the only step it is one for all of them.
struct Loader;

fn clips() -> Vec<TensorSpec> {
    vec![TensorSpec::of::<f32>([15, 6])]
}

impl Stage for Loader {
    type Params = ();
    type Result = ();

    fn output_spec(_: &()) -> Vec<TensorSpec> {
        clips()
    }

    fn new(_: (), _: &Context) -> Result<Self, StageError> {
        Ok(Self)
    }

    fn process(&mut self, input: Option<Input>, output: &mut Output) -> Result<Flow, StageError> {
        let Some(input) = input else {
            return Ok(Flow::End);
        };
        let number: u64 = input
            .payload::<String>()?
            .trim_end_matches(".mp4")
            .trim_end_matches(".avi")
            .parse()?;
        if !output.has_next() {
            return Ok(Flow::Continue);
        }
        let mut slot = output.loan()?;
        slot.tensor_mut::<f32>(0)?.fill(number as f32);
        slot.set_valid(0, 1 + number as usize % 15)?;
        output.publish(slot)?;
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<(), StageError> {
        Ok(())
    }
}

/// A stand-in for RnB's network, which may be the last step.
struct Runner;

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RunnerParams {
    #[serde(default = "first")]
    start_index: u32,
    #[serde(default = "last")]
    end_index: u32,
}

fn first() -> u32 {
    1
}

fn last() -> u32 {
    5
}

impl Stage for Runner {
    type Params = RunnerParams;
    type Result = ();

    fn output_spec(_: &RunnerParams) -> Vec<TensorSpec> {
        clips()
    }

    fn new(params: RunnerParams, context: &Context) -> Result<Self, StageError> {
        assert!(1 <= params.start_index && params.start_index <= params.end_index);
        assert_eq!((params.end_index.max(5), context.device), (5, -1));
        Ok(Self)
    }

    fn process(&mut self, input: Option<Input>, output: &mut Output) -> Result<Flow, StageError> {
        let Some(input) = input else {
            return Ok(Flow::End);
        };
        // As the first step, it is what loads as well.
        let made = [0.0; 6];
        let (tensor, rows) = match input.slots() {
            0 => (&made[..], 1),
            _ => (input.tensor::<f32>(0)?, input.shape(0)?[0]),
        };
        if output.has_next() {
            let mut slot = output.loan()?;
            slot.tensor_mut::<f32>(0)?[..tensor.len()].copy_from_slice(tensor);
            slot.set_valid(0, rows)?;
            output.publish(slot)?;
        }
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<(), StageError> {
        Ok(())
    }
}

/// A stand-in for RnB's aggregator, which is told how many segments there are.
struct Aggregator(u32, Parts);

#[derive(Clone, Serialize, Deserialize)]
struct AggregatorParams {
    aggregate: u32,
}

impl Stage for Aggregator {
    type Params = AggregatorParams;
    type Result = ();

    fn output_spec(_: &AggregatorParams) -> Vec<TensorSpec> {
        Vec::new()
    }

    fn new(params: AggregatorParams, _: &Context) -> Result<Self, StageError> {
        Ok(Self(params.aggregate, Parts::new()))
    }

    fn process(&mut self, input: Option<Input>, _: &mut Output) -> Result<Flow, StageError> {
        if let Some(input) = input {
            assert_eq!(input.part().1, self.0);
            self.1.push(input)?;
        }
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<(), StageError> {
        assert_eq!(self.1.incomplete(), 0);
        Ok(())
    }
}

struct LargeSmall;

impl Selector for LargeSmall {
    fn new(_: usize) -> Self {
        Self
    }

    fn select(&mut self, output: &Outgoing<'_>) -> usize {
        usize::from(output.rows() > 5)
    }
}

pub(crate) fn registry() -> Registry {
    let model = "models.r2p1d.model.R2P1D";
    Registry::new()
        .iterator(format!("{model}VideoPathIterator"), |_| {
            Ok((0_u64..).map(|number| format!("{number}.mp4")))
        })
        .stage::<Loader>(format!("{model}Loader"))
        .stage::<Runner>(format!("{model}Runner"))
        .stage::<Loader>(format!("{model}SingleStep"))
        .stage::<Aggregator>(format!("{model}Aggregator"))
        .stage::<Runner>(format!("{model}LayerRunner"))
        .stage::<Runner>(format!("{model}Layer12Runner"))
        .stage::<Runner>(model)
        .stage::<Huge>("huge")
        .stage::<Runner>(format!("{model}Layer345Runner"))
        .iterator("models.jsfusion.model.JsFusionVideoPathIterator", |_| {
            Ok((0_u64..).map(|number| format!("{number}.avi")))
        })
        .stage::<Loader>("models.jsfusion.model.JsFusionLoader")
        .stage::<Runner>("models.jsfusion.model.ResNetRunner")
        .stage::<Runner>("models.jsfusion.model.MCModelRunner")
        .selector::<LargeSmall>("models.r2p1d.model.LargeSmallSelector")
}

pub(crate) fn configurations_as_rnb_ships_them_run_to_their_target() {
    for (name, config) in crate::rnb::shipped() {
        let mut config = Config::from_json(&config.to_string()).unwrap();
        // A program that has no devices says so, and runs it all the same when it is told to.
        let error = config
            .pipeline(registry)
            .unwrap()
            .check()
            .unwrap_err()
            .to_string();
        assert!(error.contains("--device cpu"), "{name}: {error}");
        config = config.on_cpu().set("client.count", "30").unwrap();
        let report = config.pipeline(registry).unwrap().run();
        let report = report.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(report.termination(), Termination::TargetReached, "{name}");
        assert_eq!(
            (report.items().completed, report.items().failed),
            (30, 0),
            "{name}"
        );
    }
}

pub(crate) fn older_configurations_of_rnb_are_read_as_well() {
    for (name, config, processes) in crate::rnb::older() {
        let mut config = Config::from_json(&config.to_string()).unwrap().on_cpu();
        // The bare list of steps says nothing of inputs.
        if config.value().get("video_path_iterator").is_none() {
            let iterator = "models.r2p1d.model.R2P1DVideoPathIterator";
            config = config.set("iterator", iterator).unwrap();
        }
        config = config.set("client.count", "10").unwrap();
        let report = config.pipeline(registry).unwrap().run();
        let report = report.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(report.termination(), Termination::TargetReached, "{name}");
        assert_eq!(report.items().completed, 10, "{name}");
        assert_eq!(report.processes().len(), processes, "{name}");
    }
}

pub(crate) const TOML: &str = r#"
iterator = "models.r2p1d.model.R2P1DVideoPathIterator"

[client]
mean_interval_ms = 0.1
count = 20
queue_size = 7
backpressure = "block"
seed = 1

[[pipeline]]
name = "load"
stage = "models.r2p1d.model.R2P1DLoader"
replicas = 2
slots = 3
segments = 3
delivery = "one"
restart = 1
unfinished = "redeliver"
limit_ms = 10000

[[pipeline]]
name = "join"
stage = "models.r2p1d.model.R2P1DAggregator"
aggregate = 3
ordered = true
"#;

pub(crate) fn a_configuration_in_toml_runs_and_can_be_changed() {
    let config = Config::from_toml(TOML).unwrap();
    let report = config.pipeline(registry).unwrap().run().unwrap();
    assert_eq!(
        (report.items().completed, report.processes().len()),
        (20, 3)
    );
    let config = config
        .set("load.replicas", "1")
        .and_then(|config| config.set("client.count", "5"))
        .and_then(|config| config.set("pipeline.1.ordered", "false"))
        .unwrap();
    assert_eq!(config.value()["pipeline"][0]["replicas"], 1);
    let report = config.pipeline(registry).unwrap().run().unwrap();
    assert_eq!((report.items().completed, report.processes().len()), (5, 2));
    for nowhere in ["pipeline.7.slots", "pipeline.x", "load.slots.more"] {
        assert!(config.clone().set(nowhere, "1").is_err(), "{nowhere}");
    }
}

pub(crate) fn what_cannot_run_is_told_with_step_group_and_key() {
    for (key, value, told) in [
        (
            "client.queue_size",
            "0",
            &["client, queue_size", "0 items"][..],
        ),
        (
            "load.slots",
            "4294967295",
            &["step \"load\", slots", "a queue holds 16777216"],
        ),
        (
            "load.stage",
            "Batchr",
            &[
                "step \"load\", stage",
                "there is no \"Batchr\"",
                "did you mean \"Batcher\"?",
            ],
        ),
        ("load.slots", "0", &["step \"load\", slots", "at least 1"]),
        (
            "load.slots",
            "2",
            &[
                "step \"load\", segments",
                "3 segments",
                "2 slots",
                "raise slots to 3",
            ],
        ),
        (
            "load.slots",
            "\"many\"",
            &["step \"load\", slots", "invalid type"],
        ),
        ("load.segments", "0", &["step \"load\", segments"]),
        (
            "load.delivery",
            "all",
            &["step \"load\", delivery", "unknown variant `all`"],
        ),
        (
            "load.unfinished",
            "maybe",
            &["step \"load\", unfinished", "redeliver"],
        ),
        (
            "load.out_queues",
            "[1]",
            &["step \"join\", in_queue", "queue 0"],
        ),
        (
            "load.out_queues",
            "[0, 1]",
            &["step \"load\", out_queues", "queue 1"],
        ),
        (
            "load.queue_selector",
            "mine",
            &["step \"load\", queue_selector", "\"mine\""],
        ),
        (
            "load.queue_selector",
            "by_siz",
            &["round_robin", "did you mean \"by_size\"?"],
        ),
        ("load.devices", "[-1, 3]", &["step \"load\", replicas"]),
        (
            "load.replicas",
            "0",
            &["step \"load\", replicas", "at least 1"],
        ),
        ("load.replicas", "5000", &["\"load\", replicas", "4094"]),
        ("load.name", "join", &["step \"join\", name"]),
        ("load.batch", "3", &["batch: neither a key"]),
        (
            "join.out_queues",
            "[0]",
            &["step \"join\", out_queues", "last"],
        ),
        ("join.slots", "3", &["step \"join\", slots", "last"]),
        ("join.segments", "2", &["step \"join\", segments", "last"]),
        (
            "join.aggregate",
            "three",
            &["step \"join\", aggregate: invalid type", "u32"],
        ),
        ("join.restart", "1", &["step \"join\", restart"]),
        ("join.replicas", "2", &["step \"join\", ordered"]),
        ("iterator", "Other", &["iterator", "\"Other\""]),
        (
            "client.counts",
            "3",
            &["client, counts", "did you mean \"count\"?"],
        ),
        ("load.slot", "3", &["slot: ", "did you mean \"slots\"?"]),
        ("pipeline.1.replica", "2", &["replica: neither a key"]),
        // What a stage's type says that it reads is known, whether or not it refuses the rest.
        (
            "join.agregate",
            "3",
            &["step \"join\", agregate", "did you mean \"aggregate\"?"],
        ),
        ("client.count", "0", &["client, count: 0", "at least 1"]),
        (
            "client.mean_interval_ms",
            "-1",
            &["client, mean_interval_ms"],
        ),
        ("colour", "red", &["the configuration, colour"]),
        ("pipeline", "[]", &["without steps"]),
    ] {
        let config = Config::from_toml(TOML).unwrap().set(key, value).unwrap();
        let error = config
            .pipeline(registry)
            .and_then(|pipeline| pipeline.check());
        let error = error.expect_err(key).to_string();
        for part in told {
            assert!(error.contains(part), "{key} = {value}: {part:?} in {error}");
        }
    }
    // Where it is written in RnB's words, they are what is to be changed.
    let in_rnbs_words = TOML
        .replace("stage = ", "model = ")
        .replace("slots = 3", "num_shared_tensors = 2")
        .replace("segments = 3", "num_segments = 3");
    let config = Config::from_toml(&in_rnbs_words).unwrap();
    let checked = config
        .pipeline(registry)
        .and_then(|pipeline| pipeline.check());
    let error = checked.unwrap_err().to_string();
    for part in [
        "step \"load\", num_segments",
        "raise num_shared_tensors to 3",
    ] {
        assert!(error.contains(part), "{part:?} in {error}");
    }
    let of_runner =
        |keys: &str| format!("[[pipeline]]\nstage = \"models.r2p1d.model.R2P1DRunner\"\n{keys}");
    for (text, told) in [
        ("pipeline = 3", "the configuration, pipeline"),
        ("a = = b", "TOML"),
        ("", "missing"),
        (
            "[[pipline]]\nstage = \"huge\"",
            "pipeline: it is missing; there is \"pipline\": did you mean \"pipeline\"?",
        ),
        (
            "[[pipeline]]\nstag = \"huge\"",
            "step 0, stage: it is missing; there is \"stag\": did you mean \"stage\"?",
        ),
        ("[[pipeline]]\nslots = # ?", "column 9: slots has no value"),
        (
            &of_runner("queue_groups = [{ devices = [] }, { stard_index = 1 }]"),
            "queue group 1, stard_index: ",
        ),
        (&of_runner("stard_index = 1"), "mean \"start_index\"?"),
    ] {
        let error = Config::from_toml(text).and_then(|config| config.pipeline(registry).map(drop));
        let error = error.unwrap_err().to_string();
        assert!(error.contains(told), "{text}: {error}");
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("steps.conf");
    std::fs::write(&file, "pipeline = []").unwrap();
    let error = Config::read(&file).unwrap_err().to_string();
    assert!(
        error.contains("steps.conf: ") && error.contains("read as JSON"),
        "{error}"
    );
    assert!(
        Config::read("/no/such/file.json")
            .unwrap_err()
            .to_string()
            .contains("/no/such/file.json")
    );
}
