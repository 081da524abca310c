//! Keys that go to a stage as parameters, and were probably meant to be something else: a key of a step or queue group that
//! is misspelt, or stands at the wrong one of both.

use crate::nearest::did_you_mean;

/// Keys of a step, RnB's words last.
const STEP_KEYS: &[&str] = &[
    "stage",
    "name",
    "queue_groups",
    "slots",
    "segments",
    "delivery",
    "backpressure",
    "queue_size",
    "ordered",
    "restart",
    "unfinished",
    "limit_ms",
    "model",
    "num_shared_tensors",
    "num_segments",
];

/// Keys of a queue group, RnB's word last; those of a step with one group may stand in the step.
pub(super) const GROUP_KEYS: &[&str] = &[
    "devices",
    "replicas",
    "in_queue",
    "out_queues",
    "queue_selector",
    "gpus",
];

/// "; …" with what may have been meant by a key that is a parameter of a stage, though the stage names no such: another of
/// its parameters, or a key of a step or queue group.
pub(crate) fn meant(key: &str, params: &[&str]) -> String {
    // Where it stands it was not taken as one.
    if STEP_KEYS.contains(&key) {
        return "; it is a key of a step, and stands in a queue group".to_owned();
    }
    if GROUP_KEYS.contains(&key) {
        return "; it is a key of a queue group, and stands in a step that lists its groups"
            .to_owned();
    }
    let known = params.iter().chain(STEP_KEYS).chain(GROUP_KEYS);
    did_you_mean(key, known)
}

/// The warnings of keys that a stage does not name, each with the place where it stands.
pub(super) fn warnings<'a>(
    unnamed: &'a [String],
    params: &'a [&str],
    at: impl Fn(&str) -> &'a str,
) -> impl Iterator<Item = String> {
    unnamed.iter().filter_map(move |key| {
        let near = meant(key, params);
        let at = at(key);
        (!near.is_empty())
            .then(|| format!("{at}, {key}: it is given to the stage as a parameter{near}"))
    })
}

#[cfg(test)]
mod tests {
    use super::meant;

    #[test]
    fn a_key_is_told_with_what_it_may_have_been_and_where_it_belongs() {
        for (key, told) in [
            ("num_shared_tensor", "did you mean \"num_shared_tensors\"?"),
            ("queue_selectr", "did you mean \"queue_selector\"?"),
            ("gpu", "did you mean \"gpus\"?"),
            ("start_indx", "did you mean \"start_index\"?"),
            (
                "slots",
                "it is a key of a step, and stands in a queue group",
            ),
            ("gpus", "it is a key of a queue group, and stands in a step"),
        ] {
            let meant = meant(key, &["start_index"]);
            assert!(meant.contains(told), "{key}: {meant}");
        }
        for key in ["colour", "max_clips", "batch", "x"] {
            assert_eq!(meant(key, &["start_index"]), "", "{key}");
        }
    }
}
