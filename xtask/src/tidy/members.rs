//! The repository is complete: its house files, what each member of the workspace has, the book's summary, and the page
//! that says why each dependency is there.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::Problem;
use super::tree::Tree;

/// Files that a reader expects at the root.
const HOUSE: [&str; 9] = [
    ".ci/run",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Cargo.lock",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "docs/book.toml",
    "docs/src/SUMMARY.md",
];

const DEPENDENCIES: &str = "docs/src/dependencies.md";

pub(crate) fn check(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for path in HOUSE.iter().filter(|path| !tree.exists(path)) {
        problems.push(format!("{path}: missing"));
    }
    let executable = |mode: u32| mode & 0o111 != 0;
    if fs::metadata(tree.root.join(".ci/run"))
        .is_ok_and(|data| !executable(data.permissions().mode()))
    {
        problems.push(".ci/run: not executable".to_owned());
    }
    for member in tree.members() {
        manifest(tree, member, &mut problems);
    }
    summary(tree, &mut problems);
    dependencies(tree, &mut problems);
    problems
}

fn manifest(tree: &Tree, member: &str, problems: &mut Vec<Problem>) {
    let path = format!("{member}/Cargo.toml");
    let text = tree.file(&path).map_or("", |file| file.text.as_str());
    let folder = member.rsplit('/').next().unwrap_or(member);
    if member.starts_with("crates/") && !text.contains(&format!("name = \"{folder}\"\n")) {
        problems.push(format!(
            "{path}: the package must be named as its folder, {folder}"
        ));
    }
    if !text.contains("description = \"") {
        problems.push(format!("{path}: no description"));
    }
    if !text.contains("[lints]\nworkspace = true\n") {
        problems.push(format!(
            "{path}: does not take the workspace's lints (`[lints]`, `workspace = true`)"
        ));
    }
    if !["lib", "main"]
        .iter()
        .any(|name| tree.file(&format!("{member}/src/{name}.rs")).is_some())
    {
        problems.push(format!("{member}: has no src/lib.rs or src/main.rs"));
    }
    for (number, line) in dependency_lines(text) {
        let inherited = line.contains(".workspace = true") || line.contains("workspace = true");
        if !inherited {
            problems.push(format!("{path}:{number}: dependencies are named once, in the root Cargo.toml: `NAME.workspace = true`"));
        }
    }
}

/// The lines of all sections whose name ends with `dependencies`, with their numbers from 1.
fn dependency_lines(text: &str) -> Vec<(usize, &str)> {
    let mut inside = false;
    let mut lines = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.starts_with('[') {
            inside = line.trim_end_matches(']').ends_with("dependencies");
        } else if inside && !line.trim().is_empty() && !line.starts_with('#') {
            lines.push((number + 1, line));
        }
    }
    lines
}

fn summary(tree: &Tree, problems: &mut Vec<Problem>) {
    let Some(summary) = tree.file("docs/src/SUMMARY.md") else {
        return;
    };
    let linked: Vec<&str> = summary
        .text
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
        .collect();
    for page in &linked {
        if tree.file(&format!("docs/src/{page}")).is_none() {
            problems.push(format!(
                "{}: links {page}, which does not exist",
                summary.path
            ));
        }
    }
    for page in tree
        .with_ending(".md")
        .filter_map(|file| file.path.strip_prefix("docs/src/"))
    {
        if page != "SUMMARY.md" && !linked.contains(&page) {
            problems.push(format!("docs/src/{page}: not in the summary"));
        }
    }
}

fn dependencies(tree: &Tree, problems: &mut Vec<Problem>) {
    let page = tree
        .file(DEPENDENCIES)
        .map_or("", |page| page.text.as_str());
    let manifest = tree
        .file("Cargo.toml")
        .map_or("", |file| file.text.as_str());
    let lines = dependency_lines(manifest);
    let names: Vec<&str> = lines
        .iter()
        .filter_map(|(_, line)| line.split([' ', '.', '=']).next())
        .collect();
    for name in &names {
        if !page.contains(&format!("`{name}`")) {
            problems.push(format!("{DEPENDENCIES}: says nothing about `{name}`: its job, and why it rather than another"));
        }
    }
    for row in page.lines().filter_map(|line| line.strip_prefix("| `")) {
        let name = row.split('`').next().unwrap_or_default();
        if !names.contains(&name) {
            problems.push(format!(
                "{DEPENDENCIES}: `{name}` is not a dependency of the workspace"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Tree, dependencies, dependency_lines, manifest, summary};

    fn problems(check: impl Fn(&Tree, &mut Vec<String>), files: &[(&str, &str)]) -> usize {
        let mut problems = Vec::new();
        check(&Tree::of(files), &mut problems);
        problems.len()
    }

    #[test]
    fn a_member_without_lints_description_or_root_is_found() {
        let check = |tree: &Tree, problems: &mut Vec<String>| manifest(tree, "crates/a", problems);
        let good = "[package]\nname = \"a\"\ndescription = \"A\"\n[lints]\nworkspace = true\n[dependencies]\nb.workspace = true\n";
        assert_eq!(
            problems(
                check,
                &[("crates/a/Cargo.toml", good), ("crates/a/src/lib.rs", "")]
            ),
            0
        );
        assert_eq!(problems(check, &[("crates/a/Cargo.toml", "")]), 4);
        let own = format!("{good}c = \"1\"\n");
        assert_eq!(
            problems(
                check,
                &[("crates/a/Cargo.toml", &own), ("crates/a/src/lib.rs", "")]
            ),
            1
        );
    }

    #[test]
    fn every_kind_of_dependency_is_read() {
        let text = "[dependencies]\na = \"1\"\n\n[features]\nx = []\n[target.'cfg(unix)'.dev-dependencies]\nb.workspace = true\n";
        assert_eq!(
            dependency_lines(text),
            [(2, "a = \"1\""), (7, "b.workspace = true")]
        );
    }

    #[test]
    fn a_page_that_nobody_finds_and_a_link_to_nothing_are_found() {
        let book = [
            ("docs/src/SUMMARY.md", "- [A](a.md)\n- [B](b.md)\n"),
            ("docs/src/a.md", ""),
            ("docs/src/c.md", ""),
        ];
        assert_eq!(problems(summary, &book), 2);
    }

    #[test]
    fn a_dependency_without_a_reason_and_a_reason_without_a_dependency_are_found() {
        let manifest = (
            "Cargo.toml",
            "[workspace.dependencies]\na = \"1\"\nb.path = \"b\"\n",
        );
        assert_eq!(
            problems(
                dependencies,
                &[
                    manifest,
                    ("docs/src/dependencies.md", "| `a` | x |\n| `c` | y |\n")
                ]
            ),
            2
        );
    }
}
