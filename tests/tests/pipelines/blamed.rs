//! The item that a stage failed at is told, and none where it failed between two of them.

use std::time::{Duration, Instant};

use integration_tests::allow_leaks;
use serde::{Deserialize, Serialize};
use tensormp::pipeline::{
    Client, Context, Flow, Input, Output, Pipeline, Stage, StageError, Step, TensorSpec,
};

use crate::flow::client;
use crate::scenes::load;
use crate::stages::*;

/// Where it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Fails {
    AtItem,
    WithAPanic,
    Woken,
    AtItsEnd,
}

struct Failing {
    fails: Fails,
    inputs: u64,
}

impl Stage for Failing {
    type Params = Fails;
    type Result = ();

    fn output_spec(_: &Fails) -> Vec<TensorSpec> {
        Vec::new()
    }

    fn new(fails: Fails, _: &Context) -> Result<Self, StageError> {
        Ok(Self { fails, inputs: 0 })
    }

    fn process(&mut self, input: Option<Input>, _: &mut Output) -> Result<Flow, StageError> {
        self.inputs += 1;
        match (input.map(|input| input.sequence()), self.fails) {
            (Some(4), Fails::AtItem) => mishap("err")?,
            (Some(4), Fails::WithAPanic) => mishap("panic")?,
            _ => {}
        }
        Ok(Flow::Continue)
    }

    fn wake_at(&self) -> Option<Instant> {
        (self.fails == Fails::Woken && self.inputs > 2).then(Instant::now)
    }

    fn woken(&mut self, _: &mut Output) -> Result<Flow, StageError> {
        mishap("err")?;
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<(), StageError> {
        match self.fails {
            Fails::AtItsEnd => mishap("err"),
            _ => Ok(()),
        }
    }
}

pub(crate) fn the_item_that_a_stage_fails_at_is_told() {
    allow_leaks(16);
    for (fails, told, item) in [
        (Fails::AtItem, "this one is bad", Some(4)),
        (Fails::WithAPanic, "this one is worse", Some(4)),
        (Fails::Woken, "this one is bad", None),
        (Fails::AtItsEnd, "this one is bad", None),
    ] {
        // Who waits to be woken needs a moment without inputs, and gets them until one comes.
        let client = match fails {
            Fails::Woken => Client::new(0_u64..).poisson(Duration::from_millis(2)),
            _ => client(9),
        };
        let pipeline = Pipeline::new()
            .client(client)
            .step(load())
            .step(Step::of::<Failing>("failing", fails));
        let text = pipeline.run().unwrap_err().to_string();
        assert!(text.contains(told), "{fails:?}: {text}");
        let blamed = "was being worked on";
        match item {
            Some(item) => {
                let start = format!("item {item} {blamed}: ");
                assert!(text.starts_with(&start), "{fails:?}: {text}");
            }
            None => assert!(!text.contains(blamed), "{fails:?}: {text}"),
        }
    }
}
