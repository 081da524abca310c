//! What holds for each file: its size, its opening comment, no unfinished work.

use super::tree::{File, Tree};
use super::{Problem, source};

/// A file that outgrows this usually holds two concepts.
const MAX_LINES: usize = 500;

/// Files that may be longer, and why.
const LONG: [(&str, &str); 0] = [];

/// Words that mark unfinished work, in code and in comments. Cut in two, so that this file does not hold them.
const UNFINISHED: [&str; 5] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("HA", "CK"),
    concat!("WI", "P"),
];

/// Macros that are for a moment's debugging, or for later.
const MACROS: [&str; 3] = ["dbg", "todo", "unimplemented"];

pub(crate) fn check(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in &tree.files {
        size(file, &mut problems);
        words(file, &mut problems);
        if file.path.ends_with(".rs") {
            opening(file, &mut problems);
        }
    }
    for (path, _) in LONG {
        if tree
            .file(path)
            .is_none_or(|file| file.text.lines().count() <= MAX_LINES)
        {
            problems.push(format!("{path}: listed as long in xtask/src/tidy/files.rs, but it is not; take it off the list"));
        }
    }
    problems
}

fn size(file: &File, problems: &mut Vec<Problem>) {
    let lines = file.text.lines().count();
    if file.path.ends_with(".rs")
        && lines > MAX_LINES
        && !LONG.iter().any(|(path, _)| *path == file.path)
    {
        problems.push(format!(
            "{}: {lines} lines, more than {MAX_LINES}; it usually holds two concepts: split it, or list it with a reason in xtask/src/tidy/files.rs",
            file.path
        ));
    }
}

fn words(file: &File, problems: &mut Vec<Problem>) {
    for word in UNFINISHED {
        for line in source::lines_with_word(&file.text, word) {
            problems.push(format!("{}:{line}: `{word}` marks unfinished work: finish it, or say what is not done and why", file.path));
        }
    }
    if file.path.ends_with(".rs") {
        let code = source::code(&file.text);
        for name in MACROS {
            let call = format!("{name}!");
            for (number, _) in code
                .lines()
                .enumerate()
                .filter(|(_, line)| line.contains(&call))
            {
                problems.push(format!(
                    "{}:{}: `{call}` must not stay",
                    file.path,
                    number + 1
                ));
            }
        }
    }
}

fn opening(file: &File, problems: &mut Vec<Problem>) {
    // An inner attribute may come first.
    let first = file
        .text
        .lines()
        .find(|line| !line.trim().is_empty() && !line.starts_with("#!["));
    if !first.is_some_and(|line| line.starts_with("//!")) {
        problems.push(format!("{}: does not open with a `//!` comment that says what it is and what it leaves to others", file.path));
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_LINES, Tree, UNFINISHED, check};

    #[test]
    fn a_file_that_outgrew_its_concept_is_found() {
        let text = format!("//! Long.\n{}", "fn f() {}\n".repeat(MAX_LINES));
        assert_eq!(check(&Tree::of(&[("a.rs", &text)])).len(), 1);
        assert_eq!(check(&Tree::of(&[("a.md", &text)])), [""; 0]);
    }

    #[test]
    fn unfinished_work_is_found_in_comments_and_pages() {
        let text = format!(
            "//! A.\n// {}: later\nfn f() {{ todo!() }}\n",
            UNFINISHED[0]
        );
        assert_eq!(check(&Tree::of(&[("a.rs", &text)])).len(), 2);
        assert_eq!(check(&Tree::of(&[("a.md", UNFINISHED[1])])).len(), 1);
    }

    #[test]
    fn a_macro_named_in_a_comment_is_no_call() {
        assert_eq!(
            check(&Tree::of(&[("a.rs", "//! No `todo!` here.\n")])),
            [""; 0]
        );
    }

    #[test]
    fn a_file_without_an_opening_comment_is_found() {
        assert_eq!(check(&Tree::of(&[("a.rs", "use std::fs;\n")])).len(), 1);
        assert_eq!(
            check(&Tree::of(&[("a.rs", "#![cfg(unix)]\n//! A.\n")])),
            [""; 0]
        );
    }
}
