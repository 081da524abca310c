//! Two runs side by side.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::summary::Summary;
use super::text::{rate, table, time};

/// Two runs held against each other: what the second has of the first, as a factor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Comparison {
    /// The first run.
    pub a: Summary,
    /// The second run.
    pub b: Summary,
}

impl Comparison {
    /// Compares two runs.
    #[must_use]
    pub fn of(a: Summary, b: Summary) -> Self {
        Self { a, b }
    }
}

/// `B ÷ A`, and nothing where there is nothing to divide by.
fn factor(a: f64, b: f64) -> String {
    if a > 0.0 {
        format!("{:.2} ×", b / a)
    } else {
        "–".to_owned()
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { a, b } = self;
        let mut rows = vec![["", "A", "B", "B ÷ A"].map(str::to_owned).to_vec()];
        let mut row = |name: String, a: f64, b: f64, show: fn(f64) -> String| {
            rows.push(vec![name, show(a), show(b), factor(a, b)]);
        };
        row("throughput".into(), a.throughput, b.throughput, rate);
        for (name, of) in [
            ("latency p50", (a.latency.p50, b.latency.p50)),
            ("latency p90", (a.latency.p90, b.latency.p90)),
            ("latency p99", (a.latency.p99, b.latency.p99)),
        ] {
            row(name.into(), of.0 as f64, of.1 as f64, time);
        }
        for of_a in &a.steps {
            let Some(of_b) = b.steps.iter().find(|step| step.name == of_a.name) else {
                continue;
            };
            for (part, of) in [
                ("queueing", (of_a.queueing, of_b.queueing)),
                ("slot wait", (of_a.slot_wait, of_b.slot_wait)),
                ("service", (of_a.service, of_b.service)),
                ("hand-off", (of_a.hand_off, of_b.hand_off)),
            ] {
                let name = format!("{}: {part} p50", of_a.name);
                row(name, of.0.p50 as f64, of.1.p50 as f64, time);
            }
            let percent = |part: f64| format!("{:.0} %", part * 100.0);
            let name = format!("{}: busy", of_a.name);
            row(name, of_a.utilisation, of_b.utilisation, percent);
        }
        table(f, &rows)?;
        for (which, run, other) in [("A", a, b), ("B", b, a)] {
            let only: Vec<_> = run
                .steps
                .iter()
                .filter(|step| other.steps.iter().all(|other| other.name != step.name))
                .map(|step| step.name.as_str())
                .collect();
            if !only.is_empty() {
                writeln!(f, "only in {which}: {}", only.join(", "))?;
            }
        }
        writeln!(f, "A: {}\nB: {}", a.bottleneck, b.bottleneck)
    }
}
