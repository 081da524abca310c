//! The crate graph points down: each crate may use those below it, and nothing that is built for users may use what is for
//! contributors: `xtask`, `tests` and the emulated driver, which tests may.

use serde_json::Value;

use super::Problem;
use crate::Result;
use crate::workspace::cargo;

/// Each library and what it may use, from the bottom up, as docs/src/architecture.md draws it.
const LAYERS: [(&str, &[&str]); 6] = [
    ("shm-core", &[]),
    ("spawn", &["shm-core"]),
    ("mp-queue", &["shm-core", "spawn"]),
    ("cuda-ipc", &["shm-core"]),
    ("pipeline", &["shm-core", "spawn", "mp-queue", "cuda-ipc"]),
    (
        "tensormp",
        &["shm-core", "spawn", "mp-queue", "cuda-ipc", "pipeline"],
    ),
];

/// Members that may use anything, and that nothing may use.
const BESIDE: [&str; 3] = ["xtask", "integration-tests", "cuda-emulator"];

/// Of those, who may be used, and by whom: the emulated driver by tests and by `xtask`, the harness by its tests.
fn may_use_beside(edge: &Edge) -> bool {
    match edge.to.as_str() {
        "cuda-emulator" => edge.dev || BESIDE.contains(&edge.from.as_str()),
        "integration-tests" => edge.dev && edge.from == "cuda-emulator",
        _ => false,
    }
}

/// Uses that a feature has to switch on.
const OPTIONAL: [(&str, &str); 2] = [("pipeline", "cuda-ipc"), ("tensormp", "cuda-ipc")];

/// One crate of the workspace uses another; tests and build scripts count.
#[derive(Debug)]
struct Edge {
    from: String,
    to: String,
    optional: bool,
    /// Only tests do.
    dev: bool,
}

pub(crate) fn check() -> Result<Vec<Problem>> {
    let output = cargo([
        "metadata",
        "--no-deps",
        "--offline",
        "--format-version",
        "1",
    ])
    .output()?;
    if !output.status.success() {
        return Err(format!(
            "cargo metadata failed: {}",
            String::from_utf8_lossy(&output.stderr)
        )
        .into());
    }
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let (names, edges) = read(&metadata);
    Ok(problems(&names, &edges))
}

fn read(metadata: &Value) -> (Vec<String>, Vec<Edge>) {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (mut names, mut edges) = (Vec::new(), Vec::new());
    for package in list(&metadata["packages"]) {
        let from = text(&package["name"]);
        for dependency in list(&package["dependencies"]) {
            // Only members have a path.
            if dependency["path"].is_string() {
                let optional = dependency["optional"].as_bool().unwrap_or(false);
                edges.push(Edge {
                    from: from.clone(),
                    to: text(&dependency["name"]),
                    optional,
                    dev: dependency["kind"] == "dev",
                });
            }
        }
        names.push(from);
    }
    (names, edges)
}

fn problems(names: &[String], edges: &[Edge]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for name in names {
        if !BESIDE.contains(&name.as_str()) && !LAYERS.iter().any(|(layer, _)| layer == name) {
            problems.push(format!(
                "{name}: not in the crate graph; give it its place in xtask/src/tidy/graph.rs and in docs/src/architecture.md"
            ));
        }
    }
    for edge in edges {
        let Edge {
            from, to, optional, ..
        } = edge;
        if BESIDE.contains(&to.as_str()) {
            if may_use_beside(edge) {
                continue;
            }
            problems.push(format!("{from}: uses {to}, which is for contributors only"));
        } else if let Some((_, below)) = LAYERS.iter().find(|(layer, _)| layer == from) {
            if !below.contains(&to.as_str()) {
                problems.push(format!(
                    "{from}: uses {to}, but may only use what is below it: {below:?}"
                ));
            } else if OPTIONAL.contains(&(from.as_str(), to.as_str())) && !optional {
                problems.push(format!(
                    "{from}: uses {to} always, but only its feature `cuda` may"
                ));
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::{Edge, problems, read};

    fn edge(from: &str, to: &str, optional: bool) -> Edge {
        Edge {
            from: from.to_owned(),
            to: to.to_owned(),
            optional,
            dev: false,
        }
    }

    #[test]
    fn an_arrow_that_points_up_is_found() {
        assert_eq!(problems(&[], &[edge("shm-core", "spawn", false)]).len(), 1);
        assert_eq!(
            problems(&[], &[edge("mp-queue", "cuda-ipc", false)]).len(),
            1
        );
        assert_eq!(
            problems(
                &[],
                &[
                    edge("pipeline", "spawn", false),
                    edge("xtask", "pipeline", false)
                ]
            ),
            [""; 0]
        );
    }

    #[test]
    fn device_memory_must_stay_behind_a_feature() {
        assert_eq!(
            problems(&[], &[edge("pipeline", "cuda-ipc", false)]).len(),
            1
        );
        assert_eq!(
            problems(&[], &[edge("pipeline", "cuda-ipc", true)]),
            [""; 0]
        );
    }

    #[test]
    fn nothing_uses_what_is_for_contributors() {
        assert_eq!(
            problems(&[], &[edge("integration-tests", "xtask", false)]).len(),
            1
        );
    }

    #[test]
    fn only_tests_use_the_emulated_driver() {
        let used = edge("cuda-ipc", "cuda-emulator", false);
        assert_eq!(problems(&[], &[used]).len(), 1);
        let tested = Edge {
            dev: true,
            ..edge("cuda-ipc", "cuda-emulator", false)
        };
        assert_eq!(problems(&[], &[tested]), [""; 0]);
        let harness = edge("cuda-emulator", "integration-tests", false);
        assert_eq!(problems(&[], &[harness]).len(), 1);
    }

    #[test]
    fn a_new_crate_needs_a_place() {
        assert_eq!(
            problems(&["surprise".to_owned(), "xtask".to_owned()], &[]).len(),
            1
        );
    }

    #[test]
    fn only_dependencies_with_a_path_are_members() {
        let metadata = serde_json::json!({"packages": [{"name": "a", "dependencies": [
            {"name": "b", "path": "/b", "optional": true}, {"name": "serde", "path": null, "optional": false}
        ]}]});
        let (names, edges) = read(&metadata);
        assert_eq!((names.len(), edges.len(), edges[0].optional), (1, 1, true));
    }
}
