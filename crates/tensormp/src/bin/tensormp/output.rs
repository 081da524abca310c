//! What the command prints: lines for people or JSON objects, to a reader who may go away.

use std::fmt;
use std::io::{self, BufWriter, StdoutLock, Write};

use serde_json::Value;

/// Standard output, in one of its two forms.
#[derive(Debug)]
pub(crate) struct Out {
    json: bool,
    to: BufWriter<StdoutLock<'static>>,
}

/// Why there is no point in going on.
#[derive(Debug)]
pub(crate) enum Stopped {
    /// The other end of the pipe is closed.
    NobodyReads,
    /// The disk is full, say.
    Unwritable(io::Error),
}

impl From<io::Error> for Stopped {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::NobodyReads,
            _ => Self::Unwritable(error),
        }
    }
}

impl Out {
    pub(crate) fn new(json: bool) -> Self {
        Self {
            json,
            to: BufWriter::new(io::stdout().lock()),
        }
    }

    /// Whether objects are wanted rather than lines.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// Prints an object, if objects are wanted.
    pub(crate) fn object(&mut self, object: &Value) -> Result<(), Stopped> {
        if self.json {
            writeln!(self.to, "{object}")?;
            self.to.flush()?;
        }
        Ok(())
    }

    /// Prints a line for people, if those are wanted.
    pub(crate) fn line(&mut self, line: impl fmt::Display) -> Result<(), Stopped> {
        if !self.json {
            writeln!(self.to, "{line}")?;
            self.to.flush()?;
        }
        Ok(())
    }
}

/// Says on standard error what went wrong.
pub(crate) fn complain(what: impl fmt::Display) {
    // If that is closed as well, nobody is left to tell.
    let _ = writeln!(io::stderr(), "tensormp: {what}");
}

/// A text that some process wrote, harmless on a terminal: control characters are shown as escapes.
pub(crate) fn plain(text: &str) -> String {
    text.chars()
        .flat_map(|c| {
            let escaped = c.is_control().then(|| c.escape_unicode());
            let kept = escaped.is_none().then_some(c);
            escaped.into_iter().flatten().chain(kept)
        })
        .collect()
}

/// A number of bytes, short.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size(pub(crate) u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
        if self.0 < 1024 {
            return f.pad(&format!("{} B", self.0));
        }
        let power = ((self.0.ilog2() / 10) as usize).min(UNITS.len());
        let shift = 10 * power;
        // Whole and tenths apart, so that nothing is rounded up to a full unit.
        let tenths = ((u128::from(self.0) * 10) >> shift) % 10;
        f.pad(&format!(
            "{}.{tenths} {}",
            self.0 >> shift,
            UNITS[power - 1]
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_calls_itself_cannot_drive_the_terminal() {
        assert_eq!(plain("dec\u{1b}[2Jode\n"), "dec\\u{1b}[2Jode\\u{a}");
        assert_eq!(plain("Größe 大"), "Größe 大");
    }

    #[test]
    fn sizes_are_short() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            ((1 << 30) - 1, "1023.9 MiB"),
            (64 << 30, "64.0 GiB"),
            (u64::MAX, "16383.9 PiB"),
        ] {
            assert_eq!(Size(bytes).to_string(), text);
        }
        assert_eq!(format!("{:>8}", Size(5)), "     5 B");
    }
}
