//! Turns a command's source into its help: the `//!` comment that the file opens with.
//!
//! So the help cannot say something else than the file, and a command without a comment has no help, which a test notices.

/// The whole opening comment.
pub(crate) fn whole(source: &str) -> String {
    let lines = source.lines().map_while(|line| line.strip_prefix("//!"));
    lines
        .map(|line| line.strip_prefix(' ').unwrap_or(line))
        .collect::<Vec<_>>()
        .join("\n")
}

/// The first sentence of the opening comment, without its full stop, as clap lists commands.
pub(crate) fn first_sentence(source: &str) -> String {
    let text = whole(source);
    let paragraph = text
        .split("\n\n")
        .next()
        .unwrap_or_default()
        .replace('\n', " ");
    let sentence = paragraph.split(". ").next().unwrap_or_default();
    sentence.trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::{first_sentence, whole};

    const SOURCE: &str =
        "//! Does a thing\n//! well. And more.\n//!\n//! Details.\n\nuse std::fs;\n//! not this\n";

    #[test]
    fn the_help_is_the_opening_comment_and_ends_with_it() {
        assert_eq!(whole(SOURCE), "Does a thing\nwell. And more.\n\nDetails.");
    }

    #[test]
    fn the_short_help_is_one_sentence() {
        assert_eq!(first_sentence(SOURCE), "Does a thing well");
    }
}
