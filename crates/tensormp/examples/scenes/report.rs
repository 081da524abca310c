//! Prints what was found: for people, or as lines of JSON.

use std::io::Write;

use crate::detect::Cut;
use crate::error::{Error, Result};
use crate::hops::{Run, Summary, table};

/// Writes results as they come. Each line is flushed, so a reader of a live video sees a cut when it is found.
pub(crate) struct Report<W> {
    out: W,
    json: bool,
}

impl<W: Write> Report<W> {
    pub(crate) fn new(out: W, json: bool) -> Self {
        Self { out, json }
    }

    /// What is about to happen; nothing in JSON.
    pub(crate) fn heading(&mut self, text: &str) -> Result<()> {
        if self.json {
            return Ok(());
        }
        self.line(text)
    }

    pub(crate) fn cut(&mut self, cut: &Cut) -> Result<()> {
        if self.json {
            return self.json_line(cut);
        }
        let Cut { frame, time, score } = cut;
        self.line(&format!(
            "cut at frame {frame:>6}  {time:>9.3} s  score {score:.2}"
        ))
    }

    /// The closing table or object.
    pub(crate) fn close(&mut self, cuts: usize, runs: &[Run]) -> Result<()> {
        if self.json {
            return self.json_line(&Summary::of(runs));
        }
        let frames = runs.first().map_or(0, |run| run.frames);
        self.line(&format!("cuts: {cuts}, frames: {frames}\n"))?;
        self.line(table(runs).trim_end())
    }

    fn json_line(&mut self, value: &impl serde::Serialize) -> Result<()> {
        let text = serde_json::to_string(value).map_err(|error| Error::output(&error.into()))?;
        self.line(&text)
    }

    fn line(&mut self, text: &str) -> Result<()> {
        let written = writeln!(self.out, "{text}").and_then(|()| self.out.flush());
        written.map_err(|error| Error::output(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CUT: Cut = Cut {
        frame: 30,
        time: 1.2,
        score: 0.5,
    };

    fn printed(json: bool) -> String {
        let mut out = Vec::new();
        let mut report = Report::new(&mut out, json);
        report.heading("heading").unwrap();
        report.cut(&CUT).unwrap();
        report.close(1, &[]).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn json_is_one_object_a_line_and_nothing_else() {
        let text = printed(true);
        let lines: Vec<serde_json::Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(
            lines[0],
            serde_json::json!({"frame": 30, "time": 1.2, "score": 0.5})
        );
        assert!(lines[1]["frames"].is_u64());
    }

    #[test]
    fn people_get_a_heading_and_a_count() {
        let text = printed(false);
        assert!(
            text.starts_with(
                "heading\ncut at frame     30      1.200 s  score 0.50\ncuts: 1, frames: 0\n"
            ),
            "{text}"
        );
    }
}
