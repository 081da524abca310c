//! Times of hops between processes: collected where a message arrives, merged and laid out at the end.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

/// How frames travel from process to process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Transport {
    /// Slots in shared memory; only their numbers travel.
    Ring,
    /// Every tensor is written into a pipe and read out of it again.
    Serialized,
}

impl Transport {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::Serialized => "serialized",
        }
    }
}

/// Many durations, of which the quantiles are wanted. Each is kept to within 1/64 of its length, so the size does not
/// depend on their number, and times from several processes can be added up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Times {
    counts: Vec<u64>,
}

/// Buckets per doubling, as a power of two.
const FINENESS: u32 = 6;

impl Times {
    pub(crate) fn record(&mut self, nanoseconds: u64) {
        let bucket = bucket_of(nanoseconds);
        if self.counts.len() <= bucket {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += 1;
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
    }

    pub(crate) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The duration, in nanoseconds, that the given share of all does not exceed.
    pub(crate) fn quantile(&self, share: f64) -> Option<u64> {
        let wanted = ((self.count() as f64 * share).ceil() as u64).max(1);
        let mut counted = 0;
        let reached = self.counts.iter().position(|count| {
            counted += count;
            counted >= wanted
        });
        reached.map(middle_of)
    }
}

fn bucket_of(nanoseconds: u64) -> usize {
    let doublings = nanoseconds
        .checked_ilog2()
        .unwrap_or(0)
        .saturating_sub(FINENESS);
    ((doublings as usize) << FINENESS) + (nanoseconds >> doublings) as usize
}

fn middle_of(bucket: usize) -> u64 {
    let doublings = (bucket >> FINENESS).saturating_sub(1);
    let lowest = (bucket - (doublings << FINENESS)) as u64;
    (lowest << doublings) + (1 << doublings) / 2
}

/// The times of one hop.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HopTimes {
    /// From published to borrowed.
    pub(crate) hop: Times,
    /// The part of it in which the receiver was asking: without the time that a message lay there because its
    /// receiver was still busy with an earlier one, which says nothing about the transport.
    pub(crate) hand_over: Times,
}

impl HopTimes {
    /// Takes three readings of one clock, in nanoseconds: when the sender published the message, when the receiver
    /// asked for one, and when it had it.
    pub(crate) fn record(&mut self, published: u64, asked: u64, borrowed: u64) {
        self.hop.record(borrowed.saturating_sub(published));
        self.hand_over
            .record(borrowed.saturating_sub(published.max(asked)));
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        self.hop.merge(&other.hop);
        self.hand_over.merge(&other.hand_over);
    }
}

/// What one transport took for the whole job.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) transport: Transport,
    pub(crate) frames: u64,
    pub(crate) seconds: f64,
    /// Each hop's name and times, in the order in which a frame meets them.
    pub(crate) hops: Vec<(&'static str, HopTimes)>,
}

impl Run {
    pub(crate) fn frames_per_second(&self) -> f64 {
        self.frames as f64 / self.seconds.max(1e-9)
    }

    fn times(&self, hop: &str) -> Option<&HopTimes> {
        self.hops
            .iter()
            .find(|(name, _)| *name == hop)
            .map(|(_, times)| times)
    }
}

/// One line of JSON's worth of figures.
#[derive(Debug, Serialize)]
pub(crate) struct Summary {
    frames: u64,
    /// Of the first transport's run.
    seconds: f64,
    fps: f64,
    transports: Vec<TransportSummary>,
}

#[derive(Debug, Serialize)]
struct TransportSummary {
    transport: Transport,
    seconds: f64,
    fps: f64,
    hops: Vec<HopSummary>,
}

#[derive(Debug, Serialize)]
struct HopSummary {
    hop: &'static str,
    count: u64,
    p50_ns: Option<u64>,
    p99_ns: Option<u64>,
    hand_over_p50_ns: Option<u64>,
    hand_over_p99_ns: Option<u64>,
}

impl Summary {
    pub(crate) fn of(runs: &[Run]) -> Self {
        let transports = runs.iter().map(|run| TransportSummary {
            transport: run.transport,
            seconds: run.seconds,
            fps: run.frames_per_second(),
            hops: run
                .hops
                .iter()
                .map(|(hop, times)| HopSummary::of(hop, times))
                .collect(),
        });
        let first = runs.first();
        Self {
            frames: first.map_or(0, |run| run.frames),
            seconds: first.map_or(0.0, |run| run.seconds),
            fps: first.map_or(0.0, Run::frames_per_second),
            transports: transports.collect(),
        }
    }
}

impl HopSummary {
    fn of(hop: &'static str, times: &HopTimes) -> Self {
        Self {
            hop,
            count: times.hop.count(),
            p50_ns: times.hop.quantile(0.5),
            p99_ns: times.hop.quantile(0.99),
            hand_over_p50_ns: times.hand_over.quantile(0.5),
            hand_over_p99_ns: times.hand_over.quantile(0.99),
        }
    }
}

/// The closing table: for each hop the transports one below the other, with their ratio, and the frames per second.
pub(crate) fn table(runs: &[Run]) -> String {
    let mut rows = vec![
        [
            "hop",
            "transport",
            "count",
            "p50",
            "p99",
            "hand-over p50",
            "p99",
        ]
        .map(str::to_owned),
    ];
    let mut hops: Vec<&str> = Vec::new();
    for (name, _) in runs.iter().flat_map(|run| &run.hops) {
        if !hops.contains(name) {
            hops.push(name);
        }
    }
    for hop in hops {
        let times: Vec<_> = runs
            .iter()
            .filter_map(|run| Some((run.transport, run.times(hop)?)))
            .collect();
        for (index, (transport, times)) in times.iter().enumerate() {
            let [a, b, c, d] = quantiles(times).map(|time| time.map_or("–".to_owned(), duration));
            let hop = if index == 0 { hop } else { "" };
            rows.push([
                hop.to_owned(),
                transport.name().to_owned(),
                times.hop.count().to_string(),
                a,
                b,
                c,
                d,
            ]);
        }
        if let [(_, one), (_, two)] = times[..] {
            let (one, two) = (quantiles(one), quantiles(two));
            let [a, b, c, d] = std::array::from_fn(|index| ratio(one[index], two[index]));
            rows.push([String::new(), "ratio".to_owned(), String::new(), a, b, c, d]);
        }
    }

    let mut text = String::new();
    if rows.len() > 1 {
        text.push_str("Time of a hop, from published to borrowed; hand-over is the part in which the receiver was asking.\n\n");
        text.push_str(&aligned(&rows));
        text.push('\n');
    }
    for run in runs {
        let (name, speed) = (run.transport.name(), run.frames_per_second());
        // Writing into a string cannot fail.
        let _ = writeln!(
            text,
            "{name:<10}  {speed:>9.1} frames per second ({} in {:.3} s)",
            run.frames, run.seconds
        );
    }
    if let [one, two] = runs {
        let factor = one.frames_per_second() / two.frames_per_second().max(1e-9);
        let _ = writeln!(text, "{:<10}  {:>9}", "ratio", format!("{factor:.2}×"));
    }
    text
}

fn quantiles(times: &HopTimes) -> [Option<u64>; 4] {
    [
        times.hop.quantile(0.5),
        times.hop.quantile(0.99),
        times.hand_over.quantile(0.5),
        times.hand_over.quantile(0.99),
    ]
}

/// Columns as wide as their widest entry: text to the left, figures to the right.
fn aligned<const COLUMNS: usize>(rows: &[[String; COLUMNS]]) -> String {
    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: [usize; COLUMNS] = std::array::from_fn(width);
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, (entry, width)) in row.iter().zip(widths).enumerate() {
            let _ = match column {
                0 => write!(line, "{entry:<width$}"),
                1 => write!(line, "  {entry:<width$}"),
                _ => write!(line, "  {entry:>width$}"),
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// A duration with three digits and a unit.
fn duration(nanoseconds: u64) -> String {
    let units = [("ns", 1.0), ("µs", 1e3), ("ms", 1e6), ("s", 1e9)];
    let value = nanoseconds as f64;
    // 999.5 would be shown as "1000" of the smaller unit.
    let fits = |&&(_, size): &&(&str, f64)| value < 999.5 * size;
    let (unit, size) = units.iter().find(fits).copied().unwrap_or(("s", 1e9));
    let value = value / size;
    let digits = match value {
        _ if unit == "ns" => 0,
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {unit}")
}

/// How many times as long the second takes.
fn ratio(one: Option<u64>, two: Option<u64>) -> String {
    let (Some(one), Some(two)) = (one, two) else {
        return "–".to_owned();
    };
    let ratio = two as f64 / one.max(1) as f64;
    let digits = if ratio < 9.95 { 1 } else { 0 };
    format!("{ratio:.digits$}×")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_a_sixtyfourth() {
        let mut times = Times::default();
        for nanoseconds in 1..=100_000 {
            times.record(nanoseconds);
        }
        assert_eq!(times.count(), 100_000);
        for (share, exact) in [
            (0.5, 50_000.0),
            (0.99, 99_000.0),
            (0.001, 100.0),
            (0.0, 1.0),
        ] {
            let found = times.quantile(share).unwrap() as f64;
            assert!(
                (found / exact - 1.0).abs() <= 1.0 / 64.0,
                "{share}: {found}"
            );
        }
        assert_eq!(Times::default().quantile(0.5), None);
    }

    #[test]
    fn every_duration_has_a_bucket_near_it() {
        for power in 0..64 {
            for value in [
                1_u64 << power,
                (1 << power) + (1 << power) / 3,
                u64::MAX >> (63 - power),
            ] {
                let middle = middle_of(bucket_of(value));
                assert!(middle.abs_diff(value) <= value / 64, "{value}: {middle}");
            }
        }
        assert_eq!(middle_of(bucket_of(0)), 0);
    }

    #[test]
    fn times_of_several_processes_add_up() {
        let (mut one, mut two) = (Times::default(), Times::default());
        one.record(10);
        two.record(1_000_000);
        one.merge(&two);
        assert_eq!((one.count(), one.quantile(0.5)), (2, Some(10)));
        assert!(one.quantile(1.0).unwrap() > 990_000);
    }

    #[test]
    fn the_hand_over_begins_when_both_sides_are_there() {
        let mut times = HopTimes::default();
        times.record(10, 30, 35); // lay there for 20
        times.record(50, 40, 55); // was waited for
        assert_eq!(
            (times.hop.quantile(0.5), times.hop.quantile(1.0)),
            (Some(5), Some(25))
        );
        assert_eq!(
            (times.hand_over.quantile(0.5), times.hand_over.quantile(1.0)),
            (Some(5), Some(5))
        );
    }

    #[test]
    fn durations_have_three_digits_and_a_unit() {
        let shown = [
            0,
            950,
            999,
            1000,
            1234,
            9_996,
            45_600,
            99_960,
            123_456,
            999_499,
            999_500,
            12_300_000,
            4_000_000_000,
        ];
        let shown = shown.map(duration);
        let expected = [
            "0 ns", "950 ns", "999 ns", "1.00 µs", "1.23 µs", "10.0 µs", "45.6 µs", "100 µs",
            "123 µs", "999 µs", "1.00 ms", "12.3 ms", "4.00 s",
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn the_table_is_aligned_and_compares_the_transports() {
        let run = |transport, nanoseconds: u64, seconds| {
            let mut times = HopTimes::default();
            times.record(0, 0, nanoseconds);
            Run {
                transport,
                frames: 100,
                seconds,
                hops: vec![("decode → features", times)],
            }
        };
        let text = table(&[
            run(Transport::Ring, 20, 0.5),
            run(Transport::Serialized, 60_000, 1.0),
        ]);
        let expected = "\
hop                transport   count      p50      p99  hand-over p50      p99
decode → features  ring            1    20 ns    20 ns          20 ns    20 ns
                   serialized      1  60.2 µs  60.2 µs        60.2 µs  60.2 µs
                   ratio                3008×    3008×          3008×    3008×

ring            200.0 frames per second (100 in 0.500 s)
serialized      100.0 frames per second (100 in 1.000 s)
ratio           2.00×
";
        assert_eq!(text.split_once("\n\n").unwrap().1, expected, "{text}");
    }

    #[test]
    fn the_summary_names_each_transport_and_hop() {
        let run = Run {
            transport: Transport::Ring,
            frames: 3,
            seconds: 1.5,
            hops: vec![("decode → features", HopTimes::default())],
        };
        let json = serde_json::to_value(Summary::of(&[run])).unwrap();
        assert_eq!(
            (json["frames"].as_u64(), json["fps"].as_f64()),
            (Some(3), Some(2.0))
        );
        assert_eq!(json["transports"][0]["transport"], "ring");
        assert_eq!(json["transports"][0]["hops"][0]["hop"], "decode → features");
        assert!(json.get("frame").is_none());
    }
}
