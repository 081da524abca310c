//! Each Rust block of the README and the book is compiled and run, and equals the file it quotes.
//!
//! The running is done by doctests of the `tests` member (docs/src/contributing.md says how); this checks that none escapes.

use super::Problem;
use super::markdown::{Block, blocks};
use super::tree::{File, Tree};

/// The file whose doctests hold the pages.
const DOCTESTS: &str = "tests/src/lib.rs";

/// What may follow `rust,`. Attributes that skip compiling or running are not among them.
const ATTRIBUTES: [&str; 3] = ["standalone_crate", "should_panic", "compile_fail"];

/// The README and the pages of the book.
pub(crate) fn pages(tree: &Tree) -> impl Iterator<Item = &File> {
    tree.with_ending(".md")
        .filter(|file| file.path == "README.md" || file.path.starts_with("docs/src/"))
}

pub(crate) fn check(tree: &Tree) -> Vec<Problem> {
    let doctests = tree.file(DOCTESTS).map_or("", |file| file.text.as_str());
    let mut problems = Vec::new();
    for page in pages(tree) {
        let blocks = blocks(&page.text);
        for block in &blocks {
            let found = if block.language().is_empty() {
                Some("a block without a language, which rustdoc takes for Rust; say `text`, `console`, `toml` …".to_owned())
            } else if block.language() == "rust" {
                attributes(block).or_else(|| quoted(tree, block))
            } else {
                None
            };
            problems.extend(found.map(|found| format!("{}:{}: {found}", page.path, block.line)));
        }
        let has_rust = blocks.iter().any(|block| block.language() == "rust");
        if has_rust && !doctests.contains(&format!("include_str!(\"../../{}\")", page.path)) {
            problems.push(format!(
                "{}: holds Rust that no test runs; include the page in {DOCTESTS}",
                page.path
            ));
        }
    }
    problems
}

fn attributes(block: &Block) -> Option<String> {
    let unknown = block
        .info
        .split(',')
        .skip(1)
        .find(|word| !ATTRIBUTES.contains(&word.trim()))?;
    Some(format!(
        "`{}`: only {} may follow `rust`, since each block is compiled and run",
        unknown.trim(),
        ATTRIBUTES.join(", ")
    ))
}

fn quoted(tree: &Tree, block: &Block) -> Option<String> {
    let path = block.file.as_ref()?;
    let Some(file) = tree.file(path) else {
        return Some(format!("quotes {path}, which does not exist"));
    };
    let lines = file
        .text
        .lines()
        .skip_while(|line| line.starts_with("//!") || line.is_empty());
    let same = lines.eq(block.text.lines());
    (!same).then(|| format!("differs from {path}, which it quotes"))
}

#[cfg(test)]
mod tests {
    use super::{DOCTESTS, Tree, check};

    const LIB: &str = "#[doc = include_str!(\"../../README.md\")]\n";

    fn found(readme: &str) -> usize {
        check(&Tree::of(&[
            ("README.md", readme),
            (DOCTESTS, LIB),
            ("a.rs", "//! A.\n\nfn main() {}\n"),
        ]))
        .len()
    }

    #[test]
    fn a_page_whose_rust_no_test_runs_is_found() {
        assert_eq!(
            check(&Tree::of(&[
                ("docs/src/a.md", "```rust\n```\n"),
                (DOCTESTS, LIB)
            ]))
            .len(),
            1
        );
        assert_eq!(found("```rust\n```\n"), 0);
    }

    #[test]
    fn a_block_that_would_not_be_run_is_found() {
        assert_eq!(found("```rust,ignore\n```\n"), 1);
        assert_eq!(found("```rust,no_run\n```\n"), 1);
        assert_eq!(found("```rust,standalone_crate\n```\n"), 0);
        assert_eq!(found("```\n```\n"), 1);
    }

    #[test]
    fn a_block_that_differs_from_the_file_it_quotes_is_found() {
        assert_eq!(
            found("<!-- file: a.rs -->\n```rust\nfn main() {}\n```\n"),
            0
        );
        assert_eq!(
            found("<!-- file: a.rs -->\n```rust\nfn main() { }\n```\n"),
            1
        );
        assert_eq!(
            found("<!-- file: b.rs -->\n```rust\nfn main() {}\n```\n"),
            1
        );
    }
}
