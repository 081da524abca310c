//! The shared layout cannot change without its page: the fingerprints of its sources stand in docs/src/wire.md.

use super::Problem;
use super::tree::Tree;

/// The sources that say what lies where in shared memory.
const SOURCES: [&str; 1] = ["crates/shm-core/src/layout.rs"];

const PAGE: &str = "docs/src/wire.md";

pub(crate) fn check(tree: &Tree) -> Vec<Problem> {
    let page = tree.file(PAGE).map_or("", |page| page.text.as_str());
    let mut problems = Vec::new();
    for path in SOURCES {
        let now = tree
            .file(path)
            .map_or_else(|| "absent".to_owned(), |file| fingerprint(&file.text));
        let row = format!("| `{path}` | `{now}` |");
        if !page.lines().any(|line| line == row) {
            problems.push(format!(
                "{PAGE}: {path} has changed; describe the change there, raise the layout version if an older process would misread it, then put this row into the table:\n    {row}"
            ));
        }
    }
    for line in page.lines().filter(|line| line.starts_with("| `crates/")) {
        if !SOURCES.iter().any(|path| line.contains(path)) {
            problems.push(format!("{PAGE}: a fingerprint of a file that xtask/src/tidy/layout.rs does not list: {line}"));
        }
    }
    problems
}

/// FNV-1a over the code: comment lines, blank lines, indentation and everything from the unit tests on do not count.
fn fingerprint(text: &str) -> String {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    let code = text
        .lines()
        .map(str::trim)
        .take_while(|line| *line != "#[cfg(test)]");
    for line in code.filter(|line| !line.is_empty() && !line.starts_with("//")) {
        for byte in line.bytes().chain([b'\n']) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::{PAGE, SOURCES, Tree, check, fingerprint};

    #[test]
    fn only_code_changes_the_fingerprint() {
        let first = fingerprint("//! Layout.\nstruct A {\n    x: u64,\n}\n");
        assert_eq!(
            first,
            fingerprint(
                "struct A {\n\n  // A comment.\n  x: u64,\n}\n#[cfg(test)]\nmod tests {}\n"
            )
        );
        assert_ne!(first, fingerprint("struct A {\n    x: u32,\n}\n"));
    }

    #[test]
    fn a_layout_that_changed_without_its_page_is_found_and_the_new_row_given() {
        let text = "struct A;\n";
        let row = |hash: &str| format!("| `{}` | `{hash}` |\n", SOURCES[0]);
        let good = row(&fingerprint(text));
        assert_eq!(
            check(&Tree::of(&[(SOURCES[0], text), (PAGE, &good)])),
            [""; 0]
        );
        let found = check(&Tree::of(&[(SOURCES[0], "struct B;\n"), (PAGE, &good)]));
        assert!(found[0].contains(&fingerprint("struct B;\n")), "{found:?}");
    }

    #[test]
    fn a_row_of_an_unknown_file_is_found() {
        let page = format!(
            "| `{}` | `absent` |\n| `crates/other.rs` | `absent` |\n",
            SOURCES[0]
        );
        assert_eq!(check(&Tree::of(&[(PAGE, &page)])).len(), 1);
    }
}
