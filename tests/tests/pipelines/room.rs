//! Slots for which there is no room, which is known before anything starts.

use tensormp::Arena;
use tensormp::pipeline::{
    Config, Context, ErrorKind, Flow, Input, Output, Pipeline, Stage, StageError, TensorSpec,
};
use tensormp::shm_core::ErrorKind as ArenaErrorKind;

use crate::config::registry;
use crate::flow::{client, see};
use crate::scenes::load;

pub(crate) fn slots_for_which_there_is_no_room_are_refused_at_once() {
    // 80 TiB.
    let config = Config::from_toml(
        r#"
        iterator = "models.r2p1d.model.R2P1DVideoPathIterator"
        client = { count = 1 }
        pipeline = [
            { stage = "huge", slots = 10000 },
            { stage = "models.r2p1d.model.R2P1DAggregator", aggregate = 1 },
        ]
        "#,
    )
    .unwrap();
    let error = config
        .pipeline(registry)
        .unwrap()
        .start()
        .unwrap_err()
        .to_string();
    for part in [
        "step \"huge\", slots",
        "1 process with 10000 slots of 8589934592 bytes",
        "85899345920000 bytes of slots",
    ] {
        assert!(error.contains(part), "{part:?} is missing in: {error}");
    }
}

/// The memory of the machine would do, and the arena does not: it can't be made larger any more.
pub(crate) fn slots_for_which_the_arena_is_too_small_are_refused_at_once() {
    let arena = Arena::builder().capacity(CAPACITY).create().unwrap();
    Arena::install_current(arena).unwrap();
    let pipeline = || {
        Pipeline::new()
            .client(client(1))
            .step(load().slots(2_000))
            .step(see())
    };
    for refused in [pipeline().check(), pipeline().start().map(drop)] {
        let error = refused.unwrap_err();
        assert!(
            matches!(
                error.kind(),
                ErrorKind::Arena(ArenaErrorKind::CapacityExhausted { asked, capacity: CAPACITY })
                    if *asked > CAPACITY
            ),
            "{error:?}"
        );
        assert!(
            error.to_string().contains("step \"load\", slots"),
            "{error}"
        );
    }
}

/// Bytes of that arena.
const CAPACITY: u64 = 64 << 20;

/// A stage whose slots are larger than most memories.
pub(crate) struct Huge;

impl Stage for Huge {
    type Params = ();
    type Result = ();

    fn output_spec(_: &()) -> Vec<TensorSpec> {
        vec![TensorSpec::of::<u64>([1 << 30])]
    }

    fn new(_: (), _: &Context) -> Result<Self, StageError> {
        Ok(Self)
    }

    fn process(&mut self, _: Option<Input>, _: &mut Output) -> Result<Flow, StageError> {
        Ok(Flow::End)
    }

    fn finish(self, _: &mut Output) -> Result<(), StageError> {
        Ok(())
    }
}
