//! Two runs side by side.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::summary::{Quantiles, Summary};
use super::text::{NONE, rate, table, time};

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

/// `B ÷ A`, and nothing where one of them is not known or there is nothing to divide by.
fn factor(a: Option<f64>, b: Option<f64>) -> String {
    match (a, b) {
        (Some(a), Some(b)) if a > 0.0 => format!("{:.2} ×", b / a),
        _ => NONE.to_owned(),
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { a, b } = self;
        let mut rows = vec![["", "A", "B", "B ÷ A"].map(str::to_owned).to_vec()];
        let mut row = |name: String, a: Option<f64>, b: Option<f64>, show: fn(f64) -> String| {
            let shown = |value: Option<f64>| value.map_or_else(|| NONE.to_owned(), show);
            rows.push(vec![name, shown(a), shown(b), factor(a, b)]);
        };
        let (of_a, of_b) = (Some(a.throughput), Some(b.throughput));
        row("throughput".into(), of_a, of_b, rate);
        type Which = fn(Quantiles) -> u64;
        let parts: [(&str, Which); 3] = [
            ("latency p50", |of| of.p50),
            ("latency p90", |of| of.p90),
            ("latency p99", |of| of.p99),
        ];
        for (name, which) in parts {
            let of = |of: Quantiles| (of.count > 0).then(|| which(of) as f64);
            row(name.into(), of(a.latency), of(b.latency), time);
        }
        for of_a in &a.steps {
            let Some(of_b) = b.steps.iter().find(|step| step.name == of_a.name) else {
                continue;
            };
            let has_slots = of_a.has_slots || of_b.has_slots;
            let holds = of_a.held.p99.max(of_b.held.p99) > 0;
            for (part, of, is_there) in [
                ("queueing", (of_a.queueing, of_b.queueing), true),
                ("slot wait", (of_a.slot_wait, of_b.slot_wait), has_slots),
                ("service", (of_a.service, of_b.service), true),
                ("held", (of_a.held, of_b.held), holds),
                ("hand-off", (of_a.hand_off, of_b.hand_off), true),
            ] {
                if !is_there {
                    continue;
                }
                let name = format!("{}: {part} p50", of_a.name);
                let p50 = |of: Quantiles| (of.count > 0).then_some(of.p50 as f64);
                row(name, p50(of.0), p50(of.1), time);
            }
            let percent = |part: f64| format!("{:.0} %", part * 100.0);
            let name = format!("{}: busy", of_a.name);
            row(
                name,
                Some(of_a.utilisation),
                Some(of_b.utilisation),
                percent,
            );
        }
        table(f, &rows, 1)?;
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
