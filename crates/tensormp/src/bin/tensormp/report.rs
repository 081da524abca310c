//! `report`: a pipeline's run as a table, a trace and a page; or two runs side by side.

use std::path::{Path, PathBuf};

use serde_json::{json, to_value};
use tensormp::pipeline::Error;
use tensormp::pipeline::report::{Comparison, Run, Summary, write};

use crate::output::{Out, Stopped, complain, plain};

/// Renders one run anew, or compares two.
pub(crate) fn run(
    directory: &Path,
    other: Option<&PathBuf>,
    out: &mut Out,
) -> Result<bool, Stopped> {
    let done = match other {
        None => render(directory, out)?,
        Some(other) => compare(directory, other, out)?,
    };
    let Err(error) = done else { return Ok(true) };
    let error = error.to_string();
    out.object(&json!({"error": error}))?;
    complain(plain(&error));
    Ok(false)
}

/// What the crate answers, apart from what printing does.
type Done = Result<Result<(), Error>, Stopped>;

fn summary_of(directory: &Path) -> Result<Summary, Error> {
    Ok(Summary::of(&Run::open(directory)?))
}

fn render(directory: &Path, out: &mut Out) -> Done {
    let (summary, files) =
        match summary_of(directory).and_then(|summary| Ok((summary, write(directory)?))) {
            Ok(rendered) => rendered,
            Err(error) => return Ok(Err(error)),
        };
    let names: Vec<_> = files
        .iter()
        .map(|file| file.display().to_string())
        .collect();
    out.object(&json!({
        "summary": to_value(&summary).unwrap_or_default(),
        "files": names,
    }))?;
    for line in summary.to_string().lines() {
        out.line(plain(line))?;
    }
    out.line("")?;
    for name in names {
        out.line(format_args!("wrote {}", plain(&name)))?;
    }
    Ok(Ok(()))
}

fn compare(a: &Path, b: &Path, out: &mut Out) -> Done {
    let both = summary_of(a).and_then(|a| Ok(Comparison::of(a, summary_of(b)?)));
    let comparison = match both {
        Ok(comparison) => comparison,
        Err(error) => return Ok(Err(error)),
    };
    out.object(&to_value(&comparison).unwrap_or_default())?;
    out.line(format_args!("A: {}", plain(&a.display().to_string())))?;
    out.line(format_args!("B: {}\n", plain(&b.display().to_string())))?;
    for line in comparison.to_string().lines() {
        out.line(plain(line))?;
    }
    Ok(Ok(()))
}
