//! Shows figures: a table, JSON lines, or both in files that are kept.

use std::fmt::Write;
use std::fs;

use super::harness::Figures;
use crate::Result;
use crate::workspace::root;

/// One object on one line.
pub(crate) fn json(figures: &Figures) -> Result<String> {
    Ok(serde_json::to_string(figures)?)
}

pub(crate) fn table(all: &[Figures]) -> String {
    let mut table = String::new();
    let head = [
        "suite",
        "case",
        "metric",
        "n",
        "p50",
        "p99",
        "p99.9",
        "/ floor",
        "floor/floor",
        "floor",
    ];
    let rows = all.iter().map(|figures| {
        let times = [figures.p50, figures.p99, figures.p999].map(grouped);
        let [p50, p99, p999] = times;
        [
            figures.suite.to_owned(),
            figures.case.clone(),
            figures.metric.to_owned(),
            figures.n.to_string(),
            p50,
            p99,
            p999,
            format!("{:.2}", figures.floor_ratio),
            format!("{:.2}", figures.floor_self_ratio),
            figures.floor.clone(),
        ]
    });
    let rows: Vec<[String; 10]> = std::iter::once(head.map(str::to_owned))
        .chain(rows)
        .collect();
    let widths: [usize; 10] =
        std::array::from_fn(|column| rows.iter().map(|row| row[column].len()).max().unwrap_or(0));
    for row in rows {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(widths).enumerate() {
            // Names to the left, numbers to the right. Writing to a string does not fail.
            let _ = match column {
                0..=2 | 9 => write!(line, "{cell:<width$}  "),
                _ => write!(line, "{cell:>width$}  "),
            };
        }
        table.push_str(line.trim_end());
        table.push('\n');
    }
    table
}

/// `12,042,240`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// Keeps a run in docs/runs.
pub(crate) fn save(name: &str, all: &[Figures], table: &str, notes: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.starts_with('.') || !name.chars().all(plain) {
        return Err(
            format!("`{name}` is no name for a run: letters, digits, `-`, `_` and `.`").into(),
        );
    }
    let folder = root().join("docs/runs");
    fs::create_dir_all(&folder)?;
    let lines = all
        .iter()
        .map(|figures| json(figures).map(|line| line + "\n"))
        .collect::<Result<String>>()?;
    fs::write(folder.join(format!("{name}.jsonl")), lines)?;
    let page = format!("# {name}\n\n{notes}\nTimes in nanoseconds.\n\n```text\n{table}```\n");
    fs::write(folder.join(format!("{name}.md")), page)?;
    eprintln!("kept as docs/runs/{name}.jsonl and docs/runs/{name}.md");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Figures, grouped, json, save, table};

    fn figures() -> Figures {
        Figures {
            suite: "floor",
            case: "cache line".to_owned(),
            metric: "one_way_ns",
            n: 3,
            p50: 1,
            p99: 12_345,
            p999: 3,
            floor_ratio: 1.25,
            floor: "cache line".to_owned(),
            floor_self_ratio: 1.0,
        }
    }

    #[test]
    fn a_line_begins_with_the_promised_keys_in_their_order() {
        let start = r#"{"suite":"floor","case":"cache line","metric":"one_way_ns","n":3,"p50":1,"p99":12345,"p999":3,"floor_ratio":1.25"#;
        assert!(json(&figures()).unwrap().starts_with(start));
    }

    #[test]
    fn the_columns_of_the_table_line_up() {
        let table = table(&[
            figures(),
            Figures {
                case: "x".to_owned(),
                p50: 1_000_000,
                ..figures()
            },
        ]);
        let ends: Vec<_> = table
            .lines()
            .skip(1)
            .filter_map(|line| line.find("1.25"))
            .collect();
        assert!(ends.len() == 2 && ends[0] == ends[1], "{table}");
    }

    #[test]
    fn thousands_are_kept_apart() {
        assert_eq!(
            [0, 999, 1_000, 12_042_240].map(grouped),
            ["0", "999", "1,000", "12,042,240"]
        );
    }

    #[test]
    fn the_name_of_a_run_is_not_a_path() {
        for name in ["", "../x", "a/b", ".hidden"] {
            assert!(save(name, &[], "", "").is_err(), "{name}");
        }
    }
}
