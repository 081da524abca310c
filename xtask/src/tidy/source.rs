//! Just enough of Rust's grammar to tell code from comments and strings.
//!
//! `code` blanks out comments and the insides of literals, `comments` everything else; both keep lines and columns, so a
//! place found in either is a place in the file.

/// What a character of a source file belongs to.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Part {
    Code,
    Comment,
    Literal,
}

/// The source with comments and the insides of literals blanked out.
pub(crate) fn code(source: &str) -> String {
    keep(source, Part::Code)
}

/// The source with all but comments blanked out.
pub(crate) fn comments(source: &str) -> String {
    keep(source, Part::Comment)
}

/// The places (line, from 1) of a word that stands alone.
pub(crate) fn lines_with_word(text: &str, word: &str) -> Vec<usize> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let mut lines = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for (at, _) in line.match_indices(word) {
            let before = line[..at].chars().next_back().is_some_and(is_part);
            let after = line[at + word.len()..].chars().next().is_some_and(is_part);
            if !before && !after {
                lines.push(number + 1);
            }
        }
    }
    lines
}

fn keep(source: &str, wanted: Part) -> String {
    let chars: Vec<char> = source.chars().collect();
    let parts = parts(&chars);
    let kept = chars
        .iter()
        .zip(parts)
        .map(|(&c, part)| if c == '\n' || part == wanted { c } else { ' ' });
    kept.collect()
}

fn parts(chars: &[char]) -> Vec<Part> {
    let mut parts = Vec::with_capacity(chars.len());
    let mut at = 0;
    while at < chars.len() {
        let (part, end) = match (chars[at], chars.get(at + 1)) {
            ('/', Some('/')) => (Part::Comment, find(chars, at, |rest| rest[0] == '\n')),
            ('/', Some('*')) => (Part::Comment, end_of_block_comment(chars, at)),
            ('"', _) => (Part::Literal, end_of_quoted(chars, at, '"')),
            ('\'', _) if is_char_literal(chars, at) => {
                (Part::Literal, end_of_quoted(chars, at, '\''))
            }
            ('r', Some('"' | '#')) if starts_raw_string(chars, at) => {
                (Part::Literal, end_of_raw_string(chars, at))
            }
            _ => (Part::Code, at + 1),
        };
        parts.resize(end.min(chars.len()), part);
        at = end;
    }
    parts
}

/// The first place at or after `at` whose rest satisfies the condition, or the end.
fn find(chars: &[char], at: usize, is_it: impl Fn(&[char]) -> bool) -> usize {
    (at..chars.len())
        .find(|&place| is_it(&chars[place..]))
        .unwrap_or(chars.len())
}

fn end_of_block_comment(chars: &[char], at: usize) -> usize {
    let mut depth = 0_usize;
    let mut place = at;
    while place < chars.len() {
        match (chars[place], chars.get(place + 1)) {
            ('/', Some('*')) => (depth, place) = (depth + 1, place + 2),
            ('*', Some('/')) => {
                (depth, place) = (depth - 1, place + 2);
                if depth == 0 {
                    return place;
                }
            }
            _ => place += 1,
        }
    }
    chars.len()
}

fn end_of_quoted(chars: &[char], at: usize, quote: char) -> usize {
    let mut place = at + 1;
    while place < chars.len() && chars[place] != quote {
        place += if chars[place] == '\\' { 2 } else { 1 };
    }
    (place + 1).min(chars.len())
}

/// A lifetime has no closing quote after its first character; a literal has, or starts with a backslash.
fn is_char_literal(chars: &[char], at: usize) -> bool {
    chars.get(at + 1) == Some(&'\\') || chars.get(at + 2) == Some(&'\'')
}

fn starts_raw_string(chars: &[char], at: usize) -> bool {
    // `r` may end an identifier, or follow the b or c of a byte or C string.
    let before = at.checked_sub(1).map(|before| chars[before]);
    let alone = before.is_none_or(|c| !c.is_alphanumeric() && c != '_');
    let prefixed = matches!(before, Some('b' | 'c'));
    let quote = find(chars, at + 1, |rest| rest[0] != '#');
    (alone || prefixed) && chars.get(quote) == Some(&'"')
}

fn end_of_raw_string(chars: &[char], at: usize) -> usize {
    let quote = find(chars, at + 1, |rest| rest[0] == '"');
    let hashes = quote - at - 1;
    let closes = |rest: &[char]| {
        rest[0] == '"' && rest.len() > hashes && rest[1..=hashes].iter().all(|&c| c == '#')
    };
    find(chars, quote + 1, closes) + 1 + hashes
}

#[cfg(test)]
mod tests {
    use super::{code, comments, lines_with_word};

    #[test]
    fn comments_and_strings_are_not_code() {
        let source = "a(); // b()\n/* c /* d */ e */ f(\"g \\\" h\");";
        let code = code(source);
        assert_eq!(
            code.split_whitespace().collect::<Vec<_>>(),
            ["a();", "f(", ");"]
        );
        assert_eq!(code.len(), source.len());
    }

    #[test]
    fn raw_strings_end_at_their_own_quote() {
        assert_eq!(code("x(r#\"a \" b\"#, y)").replace(' ', ""), "x(,y)");
        assert_eq!(code("x(br\"a\", bar)").replace(' ', ""), "x(b,bar)");
    }

    #[test]
    fn a_lifetime_does_not_open_a_literal() {
        assert_eq!(
            code("fn f<'a>(x: &'a u8) { '\"'; '\\''; g() }").replace(' ', ""),
            "fnf<'a>(x:&'au8){;;g()}"
        );
    }

    #[test]
    fn comments_keep_their_lines() {
        assert_eq!(
            comments("a\nb // c\n").lines().nth(1).map(str::trim),
            Some("// c")
        );
    }

    #[test]
    fn a_word_is_found_only_where_it_stands_alone() {
        assert_eq!(
            lines_with_word("unsafe {\nunsafe_code\n#[unsafe(x)] my_unsafe", "unsafe"),
            [1, 3]
        );
    }
}
