//! The arrangements of steps, groups and queues that RnB ships, in the form of its files.

use serde_json::{Value, json};

/// A configuration as RnB writes them.
fn rnb(steps: Value) -> Value {
    json!({"video_path_iterator": "models.r2p1d.model.R2P1DVideoPathIterator", "pipeline": steps})
}

fn step(stage: &str, groups: Value, more: Value) -> Value {
    let mut step =
        json!({"model": format!("models.r2p1d.model.R2P1D{stage}"), "queue_groups": groups});
    let map = step.as_object_mut().unwrap();
    map.extend(more.as_object().cloned().unwrap_or_default());
    step
}

fn runner(groups: Value, mut more: Value) -> Value {
    more["start_index"] = 1.into();
    more["end_index"] = 5.into();
    step("Runner", groups, more)
}

/// The arrangements that RnB ships, by the names of its files.
pub(crate) fn shipped() -> Vec<(&'static str, Value)> {
    let all = json!([0, 1, 2, 3, 4, 5, 6, 7]);
    let one = |gpu: u32| json!({"gpus": [gpu], "in_queue": gpu, "out_queues": [gpu]});
    let each: Vec<Value> = (0..8).map(one).collect();
    let four =
        |gpu: u32| json!({"gpus": [2 * gpu, 2 * gpu + 1], "in_queue": gpu, "out_queues": [gpu]});
    let pairs: Vec<Value> = (0..4).map(four).collect();
    let only = |groups: &[Value], key: &str| -> Value {
        let keep = |group: &Value| {
            let mut group = group.clone();
            group.as_object_mut().unwrap().remove(key);
            group
        };
        groups.iter().map(keep).collect()
    };
    let of_all = |more: Value| {
        let mut group = json!({"gpus": all});
        group
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().cloned().unwrap());
        json!([group])
    };
    let simple = |gpus: Value| {
        rnb(json!([
            step(
                "Loader",
                json!([{"gpus": gpus, "out_queues": [0]}]),
                json!({})
            ),
            runner(json!([{"gpus": gpus, "in_queue": 0}]), json!({})),
        ]))
    };
    let spread = |groups: &[Value]| {
        rnb(json!([
            step("Loader", only(groups, "in_queue"), json!({})),
            runner(only(groups, "out_queues"), json!({})),
        ]))
    };
    vec![
        ("r2p1d-whole", simple(json!([0]))),
        (
            "r2p1d-nopipeline",
            rnb(json!([step(
                "SingleStep",
                json!([{"gpus": [0, 1]}]),
                json!({})
            )])),
        ),
        ("r2p1d-aggressive-global", simple(all.clone())),
        ("r2p1d-aggressive", spread(&each)),
        ("r2p1d-aggressive-four-groups", spread(&pairs)),
        (
            "baseline",
            rnb(json!([
                step(
                    "Loader",
                    of_all(json!({"out_queues": [0]})),
                    json!({"num_shared_tensors": 20})
                ),
                runner(of_all(json!({"in_queue": 0})), json!({})),
            ])),
        ),
        (
            "r2p1d-segment",
            rnb(json!([
                step(
                    "Loader",
                    json!([{"gpus": [0], "out_queues": [0]}]),
                    json!({"num_shared_tensors": 100, "num_segments": 3})
                ),
                runner(
                    json!([{"gpus": [1, 2, 3, 4, 5, 6, 7], "in_queue": 0, "out_queues": [0]}]),
                    json!({"num_shared_tensors": 2}),
                ),
                step(
                    "Aggregator",
                    json!([{"gpus": [-1], "in_queue": 0}]),
                    json!({"aggregate": 3})
                ),
            ])),
        ),
        (
            "rnb",
            rnb(json!([
                step(
                    "Loader",
                    of_all(json!({"out_queues": [0, 1], "queue_selector": "models.r2p1d.model.LargeSmallSelector"})),
                    json!({"num_shared_tensors": 20}),
                ),
                {
                    "model": "batcher.Batcher",
                    "queue_groups": [
                        {"gpus": [0], "in_queue": 0, "out_queues": [0], "batch": 3},
                        {"gpus": [1], "in_queue": 1, "out_queues": [0]},
                    ],
                    "num_shared_tensors": 50,
                },
                runner(of_all(json!({"in_queue": 0})), json!({})),
            ])),
        ),
    ]
}

/// Arrangements in the forms that its files had before: the bare list of steps, the devices in the step; with the number of
/// processes that each has.
pub(crate) fn older() -> Vec<(&'static str, Value, usize)> {
    let model = |name: &str, gpus: Value| json!({"model": format!("models.r2p1d.model.R2P1D{name}"), "gpus": gpus});
    let layers = |name: &str, gpus: Value, first: u32, last: u32| {
        let mut step = model(name, gpus);
        step["start_index"] = first.into();
        step["end_index"] = last.into();
        step
    };
    let runner = "LayerRunner";
    let fusion = ["JsFusionLoader", "ResNetRunner", "MCModelRunner"]
        .map(|name| json!({"model": format!("models.jsfusion.model.{name}"), "gpus": [0]}));
    vec![
        (
            "whole",
            json!([
                model("Loader", json!([0])),
                layers("Runner", json!([0]), 1, 5)
            ]),
            2,
        ),
        (
            "general",
            json!([
                model("Loader", json!([0, 1])),
                layers(runner, json!([2, 3]), 1, 2),
                layers(runner, json!([4]), 3, 4),
                layers(runner, json!([5]), 5, 5),
            ]),
            6,
        ),
        (
            "split",
            json!([
                model("Layer12Runner", json!([0])),
                model("Layer345Runner", json!([1, 1]))
            ]),
            3,
        ),
        (
            "split2",
            json!([
                layers(runner, json!([0]), 1, 2),
                layers(runner, json!([1]), 3, 4),
                layers(runner, json!([2]), 5, 5),
            ]),
            3,
        ),
        ("nopipeline", json!([layers("", json!([0, 1]), 1, 5)]), 2),
        (
            "jsfusion-whole",
            json!({
                "video_path_iterator": "models.jsfusion.model.JsFusionVideoPathIterator",
                "pipeline": fusion,
            }),
            3,
        ),
    ]
}
