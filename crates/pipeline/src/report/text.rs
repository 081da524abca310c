//! The summary as text, for a terminal.

use std::fmt;

use super::summary::Summary;

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

/// Rows of cells, the first row the headings: the first column to the left, the others to the right.
pub(super) fn table(f: &mut fmt::Formatter<'_>, rows: &[Vec<String>]) -> fmt::Result {
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
        if index == 0 {
            let rule: usize = widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1);
            writeln!(f, "{}", "─".repeat(rule))?;
        }
    }
    Ok(())
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows = vec![
            [
                "step",
                "processes",
                "items",
                "queueing",
                "p99",
                "slot wait",
                "p99",
                "service",
                "p99",
                "copy",
                "hand-off",
                "p99",
                "items/s",
                "busy",
            ]
            .map(str::to_owned)
            .to_vec(),
        ];
        for step in &self.steps {
            rows.push(vec![
                step.name.clone(),
                step.processes.to_string(),
                step.items.to_string(),
                time(step.queueing.p50 as f64),
                time(step.queueing.p99 as f64),
                time(step.slot_wait.p50 as f64),
                time(step.slot_wait.p99 as f64),
                time(step.service.p50 as f64),
                time(step.service.p99 as f64),
                time(step.copy.p50 as f64),
                time(step.hand_off.p50 as f64),
                time(step.hand_off.p99 as f64),
                rate(step.throughput),
                format!("{:.0} %", step.utilisation * 100.0),
            ]);
        }
        table(f, &rows)?;
        let items = self.items;
        writeln!(
            f,
            "\n{} items in {:.2} s: {}; from offered to done p50 {}, p90 {}, p99 {}",
            items.completed,
            self.seconds,
            rate(self.throughput),
            time(self.latency.p50 as f64),
            time(self.latency.p90 as f64),
            time(self.latency.p99 as f64),
        )?;
        let others = [
            (items.dropped, "dropped"),
            (items.failed, "failed"),
            (items.redelivered, "redelivered"),
        ];
        for (count, what) in others.into_iter().filter(|(count, _)| *count > 0) {
            writeln!(f, "{count} items {what}")?;
        }
        match &self.termination.detail {
            Some(detail) => writeln!(f, "ended: {} ({detail})", self.termination.reason)?,
            None => writeln!(f, "ended: {}", self.termination.reason)?,
        }
        writeln!(f, "{}", self.bottleneck)
    }
}
