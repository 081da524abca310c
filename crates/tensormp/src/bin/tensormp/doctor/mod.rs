//! `tensormp doctor`: what this machine offers, what that means, and how to change it.
//!
//! What can be tried is tried, rather than guessed from a version: sandboxes forbid what kernels have. Each check is a
//! function that answers one or several lines; a problem is only what stops tensormp from working at all.

use serde_json::json;

use crate::output::{Out, Stopped};

mod devices;
mod kernel;
mod limits;
mod memory;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// As it should be.
    Good,
    /// It works, but with less than it could, or it may surprise.
    Note,
    /// It does not work.
    Problem,
}

impl Status {
    fn word(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Note => "note",
            Self::Problem => "problem",
        }
    }

    /// A note unless all is well.
    fn note_unless(well: bool) -> Self {
        if well { Self::Good } else { Self::Note }
    }
}

/// One line of the report.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) check: &'static str,
    pub(crate) status: Status,
    /// What was found, with its numbers.
    pub(crate) found: String,
    /// What that means for programs that use tensormp.
    pub(crate) means: &'static str,
    /// How to change it, if there is something to change.
    pub(crate) change: Option<String>,
}

impl Line {
    fn new(
        check: &'static str,
        status: Status,
        found: impl Into<String>,
        means: &'static str,
    ) -> Self {
        Self {
            check,
            status,
            found: found.into(),
            means,
            change: None,
        }
    }

    fn change(mut self, how: impl Into<String>) -> Self {
        self.change = Some(how.into());
        self
    }
}

/// A part of the machine, and its checks.
type Area = (&'static str, fn() -> Vec<Line>);

/// Answers whether tensormp can work here. Of what is as it should be, only `verbose` says what it means and how to change
/// it.
pub(crate) fn run(verbose: bool, out: &mut Out) -> Result<bool, Stopped> {
    let areas: [Area; 4] = [
        ("kernel", kernel::check),
        ("limits", limits::check),
        ("memory", memory::check),
        ("devices", devices::check),
    ];
    let (mut notes, mut problems) = (0, 0);
    for (area, check) in areas {
        out.line(format_args!("{area}"))?;
        for line in check() {
            match line.status {
                Status::Good => {}
                Status::Note => notes += 1,
                Status::Problem => problems += 1,
            }
            tell(out, area, &line, verbose)?;
        }
    }
    out.line(match (problems, notes) {
        (0, 0) => "tensormp works here".to_owned(),
        (0, notes) => format!("tensormp works here; notes: {notes}"),
        (problems, notes) => {
            format!("tensormp does not work here; problems: {problems}, notes: {notes}")
        }
    })?;
    Ok(problems == 0)
}

fn tell(out: &mut Out, area: &str, line: &Line, verbose: bool) -> Result<(), Stopped> {
    out.object(&json!({
        "area": area,
        "check": line.check,
        "status": line.status.word(),
        "found": line.found,
        "means": line.means,
        "change": line.change,
    }))?;
    out.line(format_args!(
        "  {:<8} {}: {}",
        line.status.word(),
        line.check,
        crate::output::plain(&line.found)
    ))?;
    if line.status == Status::Good && !verbose {
        return Ok(());
    }
    out.line(format_args!("           {}", line.means))?;
    match &line.change {
        Some(change) => out.line(format_args!("           To change it: {change}.")),
        None => Ok(()),
    }
}
