//! The aggregator: puts the segments of a video together again.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tensormp::pipeline::{
    Context, Flow, Input, Output, Parts, Segments, Stage, StageError, TensorSpec,
};

use crate::convolve::FILTERS;

/// Parameters.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct AggregateParams {
    /// Where to write the features of each video, in the order of the requests.
    results: Option<PathBuf>,
}

pub(crate) struct Aggregate {
    params: AggregateParams,
    parts: Parts,
    videos: BTreeMap<u64, Vec<f32>>,
}

impl Stage for Aggregate {
    type Params = AggregateParams;
    /// Videos of which all segments came.
    type Result = usize;

    fn output_spec(_: &AggregateParams) -> Vec<TensorSpec> {
        Vec::new()
    }

    fn needs_segments(_: &AggregateParams) -> Segments {
        Segments::All
    }

    fn new(params: AggregateParams, _: &Context) -> Result<Self, StageError> {
        Ok(Self {
            params,
            parts: Parts::new(),
            videos: BTreeMap::new(),
        })
    }

    fn process(&mut self, input: Option<Input>, _: &mut Output) -> Result<Flow, StageError> {
        let Some(input) = input else {
            return Ok(Flow::End);
        };
        if let Some(parts) = self.parts.push(input)? {
            let mut features = Vec::new();
            for part in &parts {
                features.extend_from_slice(part.tensor::<f32>(0)?);
            }
            self.videos.insert(parts[0].sequence(), features);
        }
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<usize, StageError> {
        if let Some(path) = &self.params.results {
            let lines = self.videos.iter().map(|(number, features)| {
                let clips: Vec<_> = features.chunks_exact(FILTERS).collect();
                serde_json::json!({"request": number, "clips": clips}).to_string() + "\n"
            });
            std::fs::write(path, lines.collect::<String>())
                .map_err(|error| format!("{}: {error}", path.display()))?;
        }
        Ok(self.videos.len())
    }
}
