//! Values of a configuration that would be taken for something else, or for too much: refused, in few words.

use tensormp::pipeline::Config;

use crate::config::{TOML, registry};

pub(crate) fn values_that_make_no_sense_are_refused_in_few_words() {
    let long = format!("\"{}\"", "x".repeat(5000));
    for (key, value, told) in [
        (
            "load.replicas",
            "9007199254740992",
            &["step \"load\", replicas", "4094"][..],
        ),
        ("load.name", "", &["step \"\", name", "empty"]),
        (
            "load.out_queues",
            "[0, 0]",
            &["step \"load\", out_queues", "[0, 0] names one twice"],
        ),
        (
            "load.limit_ms",
            "0",
            &["step \"load\", limit_ms", "leave it out"],
        ),
        ("timeout_ms", "-0.0", &["timeout_ms", "leave it out"]),
        (
            "load.limit_ms",
            "1e300",
            &["step \"load\", limit_ms: 1e300 milliseconds"],
        ),
        (
            "load.slots",
            &long,
            &["step \"load\", slots: invalid type", "…"],
        ),
    ] {
        let config = Config::from_toml(TOML).unwrap().set(key, value).unwrap();
        let checked = config
            .pipeline(registry)
            .and_then(|pipeline| pipeline.check());
        let error = checked.expect_err(key).to_string();
        for part in told {
            assert!(error.contains(part), "{key} = {value}: {part:?} in {error}");
        }
        assert!(error.len() < 600, "{error}");
    }
}
