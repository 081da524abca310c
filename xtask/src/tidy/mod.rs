//! Check what the compiler does not: layers, unsafe code, the shared layout, sizes, unfinished work, snippets.
//!
//! It reads the tree and prints all it finds, each with its place and what to do. The checks: the crate graph points down;
//! `unsafe` only in the files that may hold it, with its SAFETY comments; the fingerprint of the shared layout is the one in
//! docs/src/wire.md; no file of more than 500 lines; each source file opens with a `//!` comment; no words that mark
//! unfinished work; members, pages and dependencies are complete; each Rust block of README and book is in a doctest, and
//! each `cargo` command quoted there exists.

mod commands;
mod files;
mod graph;
mod layout;
mod markdown;
mod members;
mod snippets;
mod source;
mod tree;
mod unsafety;

pub(crate) use tree::folders;

use crate::Result;
use crate::workspace::root;
use tree::Tree;

/// Something to put right, with its place in front.
type Problem = String;

pub(crate) fn run() -> Result<()> {
    let tree = Tree::read(&root())?;
    let mut problems = Vec::new();
    problems.extend(graph::check()?);
    problems.extend(files::check(&tree));
    let unsafety = unsafety::check(&tree);
    problems.extend(unsafety.problems);
    problems.extend(layout::check(&tree));
    problems.extend(members::check(&tree));
    problems.extend(snippets::check(&tree));
    problems.extend(commands::check(&tree));
    if problems.is_empty() {
        println!(
            "tidy: {} files; {} unsafe blocks and impls in {} files, {} SAFETY comments",
            tree.files.len(),
            unsafety.count,
            unsafety.files,
            unsafety.comments
        );
        return Ok(());
    }
    for problem in &problems {
        println!("{problem}");
    }
    Err(format!("tidy found {} problems", problems.len()).into())
}
