//! The fenced code blocks of a Markdown file.

/// One block.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// Of its opening fence, from 1.
    pub(crate) line: usize,
    /// What follows the opening fence: `rust,standalone_crate`.
    pub(crate) info: String,
    pub(crate) text: String,
    /// The path in a `<!-- file: PATH -->` line directly above.
    pub(crate) file: Option<String>,
}

impl Block {
    /// The first word of the info: `rust`, `console`, …; empty if there is none.
    pub(crate) fn language(&self) -> &str {
        self.info.split([',', ' ']).next().unwrap_or_default()
    }
}

/// All blocks. One that is not closed ends with the file, as in Markdown.
pub(crate) fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut lines = text.lines().enumerate();
    let mut above = "";
    while let Some((number, line)) = lines.next() {
        let fence = line.trim_start();
        let length = fence.chars().take_while(|&c| c == '`').count();
        if length >= 3 {
            let closing = |line: &str| {
                let line = line.trim();
                line.len() >= length && line.chars().all(|c| c == '`')
            };
            let inside = lines
                .by_ref()
                .map(|(_, line)| line)
                .take_while(|line| !closing(line));
            let text = inside.map(|line| format!("{line}\n")).collect();
            let file = above
                .strip_prefix("<!-- file: ")
                .and_then(|rest| rest.strip_suffix(" -->"));
            blocks.push(Block {
                line: number + 1,
                info: fence[length..].trim().to_owned(),
                text,
                file: file.map(str::to_owned),
            });
        }
        above = line;
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::blocks;

    #[test]
    fn blocks_are_found_with_their_place_and_language() {
        let found = blocks("a\n```rust,should_panic\nf();\n```\n\n```\n$ b\n```\n");
        assert_eq!(found.len(), 2);
        assert_eq!(
            (found[0].line, found[0].language(), found[0].text.as_str()),
            (2, "rust", "f();\n")
        );
        assert_eq!(found[1].language(), "");
    }

    #[test]
    fn a_longer_fence_holds_shorter_ones() {
        let found = blocks("````text\n```rust\nf();\n```\n````\n");
        assert_eq!((found.len(), found[0].language()), (1, "text"));
    }

    #[test]
    fn the_file_that_a_block_must_equal_is_read_from_the_line_above() {
        let found = blocks("<!-- file: a/b.rs -->\n```rust\n```\n\n```rust\n```\n");
        assert_eq!(
            (found[0].file.as_deref(), found[1].file.as_deref()),
            (Some("a/b.rs"), None)
        );
    }
}
