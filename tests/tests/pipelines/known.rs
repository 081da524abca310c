//! What can be known to be wrong before it does harm: values that cannot work, types that are others, directories of others.

use serde_json::Value;
use tensormp::pipeline::stages::{Batcher, BatcherParams};
use tensormp::pipeline::{
    Client, Config, Context, Delivery, ErrorKind, Flow, Input, Output, Pipeline, Stage, StageError,
    Step, TensorSpec, Termination,
};

use crate::config::{TOML, registry};
use crate::flow::{client, see};
use crate::scenes::load;
use crate::stages::*;

pub(crate) fn what_can_be_known_not_to_work_is_refused() {
    let batch = |params: BatcherParams| {
        let steps = [load(), Step::of::<Batcher>("batch", params), see()];
        let start = Pipeline::new().client(client(1));
        steps.into_iter().fold(start, Pipeline::step)
    };
    let four = || BatcherParams {
        batch: 4,
        ..BatcherParams::default()
    };
    let divided = Pipeline::new()
        .client(client(1))
        .step(load().segments(13).slots(20))
        .step(see());
    let every = Pipeline::new()
        .client(client(1))
        .step(load())
        .step(see().delivery(Delivery::Every));
    let named = |name: &str| {
        let start = Pipeline::new().client(client(1)).step(load());
        start.step(Step::of::<See>(name, SeeParams::default()))
    };
    for (pipeline, told) in [
        (
            batch(BatcherParams {
                deadline_ms: Some(-5.0),
                ..four()
            }),
            &["step \"batch\"", "deadline_ms: -5.0"][..],
        ),
        (
            batch(BatcherParams {
                max_rows: Some(0),
                ..four()
            }),
            &["step \"batch\"", "max_rows", "no room for one input"],
        ),
        (
            divided,
            &[
                "step \"load\", segments",
                "at most 12 rows",
                "always be empty",
            ],
        ),
        (every, &["step \"see\", delivery", "last step"]),
        (
            named("two\nlines"),
            &[
                "step \"two\\nlines\", name",
                "a line break or another control",
            ],
        ),
        (named(""), &["step \"\", name: it is empty"]),
    ] {
        let error = pipeline.check().unwrap_err().to_string();
        for part in told {
            assert!(error.contains(part), "{part:?} in {error}");
        }
    }
    for (params, rows) in [(four(), ROWS), (four(), 4 * ROWS)] {
        let max_rows = Some(rows);
        batch(BatcherParams { max_rows, ..params }).check().unwrap();
    }
    let text = TOML.replace("restart = 1\n", "");
    let checked = Config::from_toml(&text).unwrap().pipeline(registry);
    let error = checked.map(drop).unwrap_err().to_string();
    assert!(error.contains("step \"load\", unfinished") && error.contains("add restart"));
}

/// Reads a byte where there is more.
struct Byte;

impl Stage for Byte {
    type Params = ();
    type Result = u8;

    fn output_spec(_: &()) -> Vec<TensorSpec> {
        Vec::new()
    }

    fn new(_: (), _: &Context) -> Result<Self, StageError> {
        Ok(Self)
    }

    fn process(&mut self, input: Option<Input>, _: &mut Output) -> Result<Flow, StageError> {
        let Some(input) = input else {
            return Ok(Flow::End);
        };
        input.payload::<u8>()?;
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<u8, StageError> {
        Ok(7)
    }
}

pub(crate) fn a_payload_or_a_result_of_another_type_is_refused() {
    let report = Pipeline::new()
        .client(Client::new(["text"]))
        .step(Step::of::<Byte>("byte", ()))
        .start()
        .unwrap()
        .wait();
    assert_eq!(report.termination(), Termination::Failed);
    let told = report.error().unwrap().to_string();
    assert!(
        told.contains("another type than u8: of its 5 bytes 4 are left over"),
        "{told}"
    );

    let report = Pipeline::new()
        .client(Client::new([3_u8]))
        .step(Step::of::<Byte>("byte", ()))
        .run()
        .unwrap();
    assert_eq!(report.results::<Byte>("byte").unwrap(), [7]);
    // Nothing reads as nothing, and a byte as a number.
    for error in [
        report.results::<Add>("byte").map(drop).unwrap_err(),
        report.results::<Numbers>("byte").map(drop).unwrap_err(),
    ] {
        assert_eq!(*error.kind(), ErrorKind::Result);
        assert!(error.to_string().contains("is of type u8, not "), "{error}");
    }
}

pub(crate) fn a_directory_with_a_run_is_left_as_it_is_and_no_two_runs_share_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run");
    let pipeline = |count| {
        let start = Pipeline::new().client(Client::new(0_u64..).count(count));
        start.step(load()).step(see()).run_dir(&path)
    };
    let offered = || {
        let text = std::fs::read_to_string(path.join("run.json")).unwrap();
        let run: Value = serde_json::from_str(&text).unwrap();
        run["items"]["offered"].as_u64().unwrap()
    };
    // One that goes on until it is told to end.
    let first = pipeline(u64::MAX).start().unwrap();
    for other in [pipeline(2), pipeline(2).overwrite()] {
        let told = other.start().map(drop).unwrap_err().to_string();
        assert!(told.contains("another run writes into it") || told.contains("a run already"));
    }
    first.stopper().terminate();
    let items = first.wait().items();
    assert_eq!(offered(), items.offered);

    let told = pipeline(2).start().map(drop).unwrap_err();
    assert_eq!(*told.kind(), ErrorKind::Invalid);
    assert!(
        told.to_string().contains("there is a run already"),
        "{told}"
    );
    assert_eq!(offered(), items.offered);

    pipeline(2).overwrite().run().unwrap();
    assert_eq!(offered(), 2);
}
