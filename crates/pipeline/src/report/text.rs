//! The summary as text, for a terminal.

use std::fmt;

use super::replacement::Replacement;
use super::summary::{Quantiles, StepSummary, Summary};
use crate::replaced::Replacements;

/// So many replacements are told one by one.
const REPLACEMENTS_TOLD: usize = 100;

/// A duration in the unit that fits.
pub(super) fn time(ns: f64) -> String {
    let (value, unit) = match ns.abs() {
        ns if ns < 1e3 => return format!("{ns:.0} ns"),
        abs if abs < 1e6 => (ns / 1e3, "µs"),
        abs if abs < 1e9 => (ns / 1e6, "ms"),
        _ => (ns / 1e9, "s"),
    };
    let digits = match value.abs() {
        value if value < 9.995 => 2,
        value if value < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {unit}")
}

/// A number a second.
pub(super) fn rate(per_second: f64) -> String {
    match per_second {
        rate if rate >= 100.0 => format!("{rate:.0} /s"),
        rate if rate >= 10.0 => format!("{rate:.1} /s"),
        rate => format!("{rate:.2} /s"),
    }
}

/// What stands where there can be no figure.
pub(super) const NONE: &str = "–";

/// One of the figures of a distribution, where that is of anything.
pub(super) fn quantile(of: Quantiles, which: fn(Quantiles) -> u64) -> String {
    match of.count {
        0 => NONE.to_owned(),
        _ => time(which(of) as f64),
    }
}

/// So many of what one of is called that.
pub(super) fn plural(count: u64, one: &str) -> String {
    match count {
        1 => format!("1 {one}"),
        _ => format!("{count} {one}s"),
    }
}

/// Rows of cells, the first `heads` rows the headings: the first column to the left, the others to the right.
pub(super) fn table(f: &mut fmt::Formatter<'_>, rows: &[Vec<String>], heads: usize) -> fmt::Result {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            rows.iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        })
        .collect();
    for (index, row) in rows.iter().enumerate() {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let pad = " ".repeat(widths[column] - cell.chars().count());
            if column == 0 {
                line.push_str(&format!("{cell}{pad}"));
            } else {
                line.push_str(&format!("  {pad}{cell}"));
            }
        }
        writeln!(f, "{}", line.trim_end())?;
        if index + 1 == heads {
            let rule: usize = widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1);
            writeln!(f, "{}", "─".repeat(rule))?;
        }
    }
    Ok(())
}

/// The lines of replaced processes: summed up by place and cause, then one by one; `all_are` says where those are of which
/// there are too many.
pub(crate) fn replaced(summed: &[Replacements], each: &[Replacement], all_are: &str) -> String {
    let summed = summed.iter().map(|some| format!("{some}\n"));
    let told = each.iter().take(REPLACEMENTS_TOLD);
    let told = told.map(|one| format!("  {one}\n"));
    let more = each.len().checked_sub(REPLACEMENTS_TOLD + 1);
    let more = more.map(|more| {
        let more = plural(more as u64 + 1, "more replacement");
        format!("  {more}, {all_are}\n")
    });
    summed.chain(told).chain(more).collect()
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Hardly any run has copies or batches, and the table is wide enough.
        let copies = self.steps.iter().any(|step| step.copy.p99 > 0);
        let holds = self.steps.iter().any(|step| step.held.p99 > 0);
        type Of = fn(&StepSummary) -> Option<Quantiles>;
        let parts: [(&str, Of, bool); 6] = [
            ("queueing", |step| Some(step.queueing), true),
            ("slot wait", StepSummary::slot_waits, true),
            ("service", |step| Some(step.service), true),
            ("copy", |step| Some(step.copy), copies),
            ("held", |step| Some(step.held), holds),
            ("hand-off", |step| Some(step.hand_off), true),
        ];
        let parts: Vec<_> = parts.into_iter().filter(|part| part.2).collect();
        let mut over = vec![""; 3];
        let mut names = vec!["step", "processes", "items"];
        for (part, ..) in &parts {
            over.extend([*part, ""]);
            names.extend(["p50", "p99"]);
        }
        over.extend(["", ""]);
        names.extend(["items/s", "busy"]);
        let owned = |row: Vec<&str>| row.into_iter().map(str::to_owned).collect::<Vec<_>>();
        let mut rows = vec![owned(over), owned(names)];
        for step in &self.steps {
            let mut row = vec![
                step.name.clone(),
                step.processes.to_string(),
                step.items.to_string(),
            ];
            for (_, of, _) in &parts {
                let of = of(step).unwrap_or_default();
                row.push(quantile(of, |of| of.p50));
                row.push(quantile(of, |of| of.p99));
            }
            row.push(rate(step.throughput));
            row.push(format!("{:.0} %", step.utilisation * 100.0));
            rows.push(row);
        }
        table(f, &rows, 2)?;
        writeln!(f)?;
        table(f, &self.counts(), 1)?;
        let (items, latency) = (self.items, self.latency);
        writeln!(
            f,
            "\n{} in {:.2} s: {}; from offered to done p50 {}, p90 {}, p99 {}",
            plural(items.completed, "item"),
            self.seconds,
            rate(self.throughput),
            quantile(latency, |of| of.p50),
            quantile(latency, |of| of.p90),
            quantile(latency, |of| of.p99),
        )?;
        let others = [
            (items.dropped, "dropped"),
            (items.failed, "failed"),
            (items.unfinished, "unfinished"),
            (items.redelivered, "redelivered"),
            (items.late, "late"),
        ];
        for (count, what) in others.into_iter().filter(|(count, _)| *count > 0) {
            writeln!(f, "{} {what}", plural(count, "item"))?;
        }
        let all_are = "all of them in summary.json";
        f.write_str(&replaced(&self.replaced, &self.replacements, all_are))?;
        match &self.termination.detail {
            Some(detail) => writeln!(f, "ended: {} ({detail})", self.termination.reason)?,
            None => writeln!(f, "ended: {}", self.termination.reason)?,
        }
        writeln!(f, "{}", self.bottleneck)
    }
}
