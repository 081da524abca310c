//! Each `cargo` command that README, book and guide quote exists: packages, examples, binaries and tests are looked up, and
//! the arguments of `cargo xtask` go through its own parser.

use clap::Parser;

use super::markdown::blocks;
use super::tree::Tree;
use super::{Problem, snippets};
use crate::Cli;

/// Cargo's own commands that may be quoted.
const CARGO: [&str; 10] = [
    "add", "bench", "build", "check", "clippy", "doc", "fmt", "install", "run", "test",
];

pub(crate) fn check(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for page in snippets::pages(tree).chain(tree.file("CONTRIBUTING.md")) {
        for block in blocks(&page.text)
            .iter()
            .filter(|block| ["console", "sh"].contains(&block.language()))
        {
            // In `console`, lines without a dollar sign are output.
            let sign = if block.language() == "console" {
                "$ "
            } else {
                ""
            };
            for line in block
                .text
                .lines()
                .filter_map(|line| line.strip_prefix(sign))
            {
                let commands = line
                    .split(['|', ';', '&'])
                    .map(|part| part.split_whitespace().collect::<Vec<_>>());
                for words in commands.filter(|words| words.first() == Some(&"cargo")) {
                    if let Err(why) = exists(tree, &words[1..]) {
                        problems.push(format!(
                            "{}:{}: `{}`: {why}",
                            page.path,
                            block.line,
                            words.join(" ")
                        ));
                    }
                }
            }
        }
    }
    if !tree
        .file("README.md")
        .is_some_and(|readme| says_how_to_test(&readme.text))
    {
        let command = crate::workspace::TEST_COMMAND.join(" ");
        problems.push(format!("README.md: no `console` block with `$ {command}`, which ci runs as the README's test command"));
    }
    problems
}

fn says_how_to_test(readme: &str) -> bool {
    let line = format!("$ {}", crate::workspace::TEST_COMMAND.join(" "));
    blocks(readme).iter().any(|block| {
        block
            .text
            .lines()
            .any(|said| said.split(" #").next().map(str::trim_end) == Some(line.as_str()))
    })
}

fn exists(tree: &Tree, words: &[&str]) -> Result<(), String> {
    let comment = words
        .iter()
        .position(|word| word.starts_with('#'))
        .unwrap_or(words.len());
    let words = &words[..comment];
    match words {
        ["xtask", rest @ ..] => match Cli::try_parse_from([&["xtask"], rest].concat()) {
            Err(error) if error.use_stderr() => Err(error
                .to_string()
                .lines()
                .next()
                .unwrap_or_default()
                .to_owned()),
            _ => Ok(()),
        },
        [command, rest @ ..] if CARGO.contains(command) => {
            let own = rest.split(|word| *word == "--").next().unwrap_or_default();
            own.windows(2)
                .try_for_each(|pair| named(tree, pair[0], pair[1]))
        }
        _ => Err("not a command of cargo that we know".to_owned()),
    }
}

/// Looks up what follows `--example` and the like.
fn named(tree: &Tree, option: &str, name: &str) -> Result<(), String> {
    let in_folder = |folder: &str| {
        tree.members().any(|member| {
            let is_file = tree.file(&format!("{member}/{folder}/{name}.rs")).is_some();
            is_file
                || tree
                    .file(&format!("{member}/{folder}/{name}/main.rs"))
                    .is_some()
        })
    };
    let is_package = || {
        tree.with_ending("/Cargo.toml")
            .any(|file| file.text.contains(&format!("name = \"{name}\"\n")))
    };
    let found = match option {
        "-p" | "--package" => is_package(),
        "--example" => in_folder("examples"),
        "--test" => in_folder("tests"),
        "--bin" => in_folder("src/bin") || is_package(),
        _ => true,
    };
    if found {
        Ok(())
    } else {
        Err(format!("there is no {name} for {option}"))
    }
}

#[cfg(test)]
mod tests {
    use super::{Tree, check};

    fn found(commands: &str) -> usize {
        let readme = format!("```console\n$ cargo test --workspace\n{commands}\n```\n");
        let files = [
            ("README.md", readme.as_str()),
            ("crates/a/Cargo.toml", "name = \"a\"\n"),
            ("crates/a/examples/first.rs", "//! A.\n"),
        ];
        check(&Tree::of(&files)).len()
    }

    #[test]
    fn commands_that_exist_pass() {
        assert_eq!(
            found(
                "$ cargo run --release --example first -- --json\n$ cargo test -p a # one\n$ cargo xtask ci"
            ),
            0
        );
        assert_eq!(
            found("$ cat x | cargo run --example first -- - | head\noutput cargo nonsense"),
            0
        );
    }

    #[test]
    fn commands_that_do_not_exist_are_found() {
        assert_eq!(found("$ cargo run --example second"), 1);
        assert_eq!(found("$ cargo test -p b"), 1);
        assert_eq!(found("$ cargo xtask dance\n$ cargo xtask ci --quickly"), 2);
        assert_eq!(found("$ cargo dance"), 1);
    }

    #[test]
    fn a_readme_must_say_how_to_test() {
        assert_eq!(
            check(&Tree::of(&[(
                "README.md",
                "```console\n$ cargo test\n```\n"
            )]))
            .len(),
            1
        );
    }
}
