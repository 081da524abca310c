//! Where `unsafe` may be, and that each use has its SAFETY comment.
//!
//! Clippy checks that a comment stands above each block; this checks that only the listed files have any, that the crates
//! above the lowest layer refuse it altogether, and counts.

use super::tree::Tree;
use super::{Problem, source};

/// The files that may hold `unsafe`, and what for. A file that no longer does has to leave the list.
const ALLOWED: [(&str, &str); 1] = [(
    "xtask/src/bench/mapping.rs",
    "maps the words of the floors, which must not depend on what is measured",
)];

/// The roots of the crates that refuse `unsafe`.
const REFUSING: [&str; 4] = [
    "crates/mp-queue/src/lib.rs",
    "crates/pipeline/src/lib.rs",
    "crates/tensormp/src/lib.rs",
    "xtask/src/main.rs",
];

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct Unsafety {
    pub(crate) problems: Vec<Problem>,
    /// Files that hold any.
    pub(crate) files: usize,
    /// Blocks and impls, which need a SAFETY comment; functions and attributes are not counted.
    pub(crate) count: usize,
    pub(crate) comments: usize,
}

pub(crate) fn check(tree: &Tree) -> Unsafety {
    let mut found = with_allowed(tree, &ALLOWED);
    for path in REFUSING {
        let refuses = |text: &str| {
            text.contains("#![deny(unsafe_code)]") || text.contains("#![forbid(unsafe_code)]")
        };
        if !tree.file(path).is_some_and(|file| refuses(&file.text)) {
            found.problems.push(format!(
                "{path}: must say `#![deny(unsafe_code)]` or `#![forbid(unsafe_code)]`"
            ));
        }
    }
    found
}

fn with_allowed(tree: &Tree, allowed: &[(&str, &str)]) -> Unsafety {
    let mut found = Unsafety::default();
    for file in tree.with_ending(".rs") {
        let code = source::code(&file.text);
        let lines = source::lines_with_word(&code, "unsafe");
        let listed = allowed.iter().any(|(path, _)| *path == file.path);
        let Some(first) = lines.first() else {
            if listed {
                found.problems.push(format!(
                    "{}: holds no `unsafe`; take it off the list in xtask/src/tidy/unsafety.rs",
                    file.path
                ));
            }
            continue;
        };
        let count = blocks_and_impls(&code);
        let comments = source::comments(&file.text).matches("SAFETY:").count();
        if !listed {
            found.problems.push(format!(
                "{}:{first}: `unsafe` outside of the files that may hold it; move it down, or list the file with its reason in xtask/src/tidy/unsafety.rs",
                file.path
            ));
        }
        if comments < count {
            found.problems.push(format!(
                "{}: {count} unsafe blocks and impls, but {comments} SAFETY comments",
                file.path
            ));
        }
        found.files += 1;
        found.count += count;
        found.comments += comments;
    }
    for (path, _) in allowed.iter().filter(|(path, _)| tree.file(path).is_none()) {
        found.problems.push(format!(
            "{path}: does not exist; take it off the list in xtask/src/tidy/unsafety.rs"
        ));
    }
    found
}

fn blocks_and_impls(code: &str) -> usize {
    let tokens = code.replace('{', " { ");
    let words: Vec<&str> = tokens.split_whitespace().collect();
    words
        .windows(2)
        .filter(|pair| pair[0].ends_with("unsafe") && matches!(pair[1], "{" | "impl"))
        .count()
}

#[cfg(test)]
mod tests {
    use super::{Tree, blocks_and_impls, with_allowed};

    const ONE: &str = "// SAFETY: because.\nunsafe { f() }\n";

    #[test]
    fn unsafe_in_an_unlisted_file_is_found() {
        let tree = Tree::of(&[("a.rs", ONE)]);
        assert_eq!(with_allowed(&tree, &[]).problems.len(), 1);
        assert_eq!(with_allowed(&tree, &[("a.rs", "maps")]).problems, [""; 0]);
    }

    #[test]
    fn a_block_without_its_proof_is_found() {
        let tree = Tree::of(&[(
            "a.rs",
            "// SAFETY: because.\nlet x = unsafe { f() }; unsafe impl Send for X {}\n",
        )]);
        assert_eq!(with_allowed(&tree, &[("a.rs", "maps")]).problems.len(), 1);
    }

    #[test]
    fn the_list_does_not_grow_stale() {
        let tree = Tree::of(&[("a.rs", "fn f() {}\n")]);
        assert_eq!(
            with_allowed(&tree, &[("a.rs", "maps"), ("b.rs", "is gone")])
                .problems
                .len(),
            2
        );
    }

    #[test]
    fn words_in_comments_strings_and_lint_names_are_not_unsafe_code() {
        let tree = Tree::of(&[(
            "a.rs",
            "//! unsafe\n#![deny(unsafe_code)]\nconst A: &str = \"unsafe {\";\n",
        )]);
        assert_eq!(with_allowed(&tree, &[]).problems, [""; 0]);
    }

    #[test]
    fn functions_are_not_counted_as_blocks() {
        assert_eq!(
            blocks_and_impls(
                "unsafe fn f() { (unsafe{g()}, unsafe { h() }) } unsafe impl A for B {}"
            ),
            3
        );
    }
}
