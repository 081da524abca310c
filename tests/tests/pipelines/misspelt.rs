//! Keys of a configuration that go to a stage as parameters and were probably meant to be something else.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use integration_tests::Keeper;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tensormp::pipeline::{Config, Registry};

use crate::scenes::Idle;

/// A stage that takes any parameters, as those of RnB do.
type Any = Idle<AnyParams>;

#[derive(Clone, Serialize, Deserialize)]
struct AnyParams {
    /// It is near to a key of a group, and one of its own.
    #[serde(default)]
    device: u32,
    #[serde(flatten)]
    more: BTreeMap<String, Value>,
}

fn registry() -> Registry {
    let registry = crate::config::registry();
    registry.stage::<Any>("models.Any").stage::<Any>("any")
}

/// What is told when the configuration is started, which it can be.
fn told(config: &Config) -> String {
    let told = Arc::new(Mutex::new(String::new()));
    let running = {
        let _keeper = tracing::subscriber::set_default(Keeper(Arc::clone(&told)));
        config.pipeline(registry).unwrap().start().unwrap()
    };
    running.join().unwrap();
    let told = told.lock().unwrap();
    told.clone()
}

pub(crate) fn a_misspelt_key_that_goes_to_a_stage_is_a_warning_with_what_was_meant() {
    let rnb = json!({
        "video_path_iterator": "models.r2p1d.model.R2P1DVideoPathIterator",
        "pipeline": [
            {
                "model": "models.r2p1d.model.R2P1DLoader",
                "num_shared_tensor": 20,
                "colour": "red",
                "in_queue": 0,
                "queue_groups": [
                    {"gpus": [0], "out_queues": [0], "queue_selectr": "by_size"},
                    {"gpus": [0], "out_queues": [0], "num_segments": 1},
                ],
            },
            {"model": "models.Any", "gpu": [0], "device": 3, "max_clips": 15},
        ],
    });
    let counted = |config: Config| config.on_cpu().set("client.count", "2").unwrap();
    let all = told(&counted(Config::from_json(&rnb.to_string()).unwrap()));
    for odd in [
        "step \"R2P1DLoader\", num_shared_tensor: it is given to the stage as a parameter; did you mean \"num_shared_tensors\"?",
        "step \"R2P1DLoader\", in_queue: it is given to the stage as a parameter; it is a key of a queue group, and stands in a step that lists its groups",
        "step \"R2P1DLoader\", queue group 0, queue_selectr: it is given to the stage as a parameter; did you mean \"queue_selector\"?",
        "step \"R2P1DLoader\", queue group 1, num_segments: it is given to the stage as a parameter; it is a key of a step, and stands in a queue group",
        "step \"Any\", gpu: it is given to the stage as a parameter; did you mean \"gpus\"?",
    ] {
        assert_eq!(all.matches(odd).count(), 1, "{odd} in {all}");
    }
    assert_eq!(all.matches("as a parameter").count(), 5, "{all}");
    for (name, config) in crate::rnb::shipped() {
        let config = counted(Config::from_json(&config.to_string()).unwrap());
        let all = told(&config);
        assert!(!all.contains("as a parameter"), "{name}: {all}");
    }

    // In our own words it is an error, unless the stage takes any parameters.
    let text = |stage: &str, key: &str| {
        format!(
            "iterator = \"models.r2p1d.model.R2P1DVideoPathIterator\"\n[[pipeline]]\nstage = {stage:?}\n\
             queue_groups = [{{ replicas = 1, {key} = 1 }}]"
        )
    };
    let all = told(&counted(
        Config::from_toml(&text("any", "in_queu")).unwrap(),
    ));
    let odd = "step \"any\", queue group 0, in_queu: it is given to the stage as a parameter; did you mean \"in_queue\"?";
    assert!(all.contains(odd), "{all}");
    for (key, meant) in [
        ("in_queu", "did you mean \"in_queue\"?"),
        ("num_segment", "did you mean \"num_segments\"?"),
        (
            "slots",
            "it is a key of a step, and stands in a queue group",
        ),
    ] {
        for stage in [
            "models.r2p1d.model.R2P1DRunner",
            "models.r2p1d.model.R2P1DLoader",
        ] {
            let error = Config::from_toml(&text(stage, key))
                .and_then(|config| config.pipeline(registry).map(drop));
            let error = error.unwrap_err().to_string();
            assert!(error.contains(meant), "{key} of {stage}: {error}");
        }
    }
    for (text, meant) in [
        (
            "[[pipeline]]\nmodl = \"any\"",
            "there is \"modl\": did you mean \"model\"?",
        ),
        (
            "video_path_iteratr = \"any\"\n[[pipeline]]\nstage = \"any\"",
            "did you mean \"video_path_iterator\"?",
        ),
    ] {
        let config = Config::from_toml(text).unwrap();
        let error = config.pipeline(registry).unwrap_err().to_string();
        assert!(error.contains(meant), "{text}: {error}");
    }
}
