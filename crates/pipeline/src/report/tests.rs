//! Reports of runs whose figures are known.

use std::fs;

use serde_json::Value;

use super::*;

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn a_summary_says_where_the_time_went_and_what_limits_the_run() {
    let directory = directory();
    sample::write(directory.path(), 400);
    let summary = Summary::of(&Run::open(directory.path()).unwrap());
    let [load, infer] = summary.steps.as_slice() else {
        panic!("{summary:?}")
    };
    assert_eq!((load.items, infer.items, infer.processes), (400, 400, 2));
    assert_eq!(infer.service.p50, 4_000_000);
    assert_eq!(load.hand_off.p99, 1000);
    assert!(infer.utilisation > 0.99 && load.utilisation > 0.45 && load.utilisation < 0.55);
    // Two processes of 4 ms each: 500 a second, and the last of 400 waits for about 400 ms.
    assert!(
        (summary.throughput - 499.0).abs() < 2.0,
        "{}",
        summary.throughput
    );
    assert!(infer.queueing.p99 > 390_000_000 && infer.queueing.p50 > 190_000_000);
    assert!(
        summary.bottleneck.contains("\"infer\" limits the run"),
        "{}",
        summary.bottleneck
    );
    let text = summary.to_string();
    for part in [
        "queueing",
        "infer",
        "4.00 ms",
        "400 items in",
        "ended: target_reached",
    ] {
        assert!(text.contains(part), "{part:?} is missing in\n{text}");
    }
}

#[test]
fn a_run_says_itself_what_was_finished_and_time_cards_only_where_it_could_not() {
    let directory = directory();
    sample::write(directory.path(), 50);
    let mut run = Run::open(directory.path()).unwrap();
    // All was done in each step, but dropped on its way in part.
    (run.items.completed, run.items.dropped) = (0, 50);
    let items = Summary::of(&run).items;
    assert_eq!((items.offered, items.completed, items.dropped), (50, 0, 50));
    // Its program was killed.
    run.items = Default::default();
    run.cards
        .retain(|card| card.step == "load" || card.item < 20);
    let items = Summary::of(&run).items;
    assert_eq!(
        (items.offered, items.completed, items.unfinished),
        (50, 20, 30)
    );
}

#[test]
fn quantiles_are_values_that_occurred() {
    let quantiles = Quantiles::of(1..=100);
    assert_eq!((quantiles.p50, quantiles.p90, quantiles.p99), (50, 90, 99));
    assert_eq!(Quantiles::of([7]).p99, 7);
    assert_eq!(Quantiles::of([]), Quantiles::default());
}

#[test]
fn a_report_is_four_files_and_no_half_ones() {
    let directory = directory();
    sample::write(directory.path(), 50);
    let written = write(directory.path()).unwrap();
    let names: Vec<_> = written
        .iter()
        .map(|path| path.file_name().unwrap().to_owned())
        .collect();
    assert_eq!(
        names,
        ["summary.txt", "summary.json", "trace.json", "report.html"]
    );
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 3 + 4);
    let summary: Summary =
        serde_json::from_str(&fs::read_to_string(directory.path().join("summary.json")).unwrap())
            .unwrap();
    assert_eq!(summary.items.completed, 50);
}

#[test]
fn a_trace_has_a_track_per_process_and_arrows_between_the_steps() {
    let directory = directory();
    sample::write(directory.path(), 20);
    write(directory.path()).unwrap();
    let trace: Value =
        serde_json::from_str(&fs::read_to_string(directory.path().join("trace.json")).unwrap())
            .unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let of = |ph: &str| {
        events
            .iter()
            .filter(|event| event["ph"] == ph)
            .collect::<Vec<_>>()
    };
    let names: Vec<_> = of("M")
        .iter()
        .filter(|event| event["name"] == "process_name")
        .map(|event| event["args"]["name"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(names, ["load 0", "infer 0", "infer 1"]);
    let services = of("X")
        .into_iter()
        .filter(|event| event["cat"] == "service")
        .count();
    assert_eq!(
        (services, of("s").len(), of("f").len(), of("C").len()),
        (40, 20, 20, 20)
    );
    assert!(
        of("X")
            .iter()
            .all(|event| [100, 101, 102].contains(&event["pid"].as_i64().unwrap()))
    );
}

#[test]
fn a_page_has_its_parts_and_needs_nothing_from_elsewhere() {
    let directory = directory();
    sample::write(directory.path(), 200);
    write(directory.path()).unwrap();
    let page = fs::read_to_string(directory.path().join("report.html")).unwrap();
    for part in [
        "<title>load → infer</title>",
        "limits the run",
        "prefers-color-scheme:dark",
        "mean latency by step",
        "<polygon class=\"f1\"",
        "% of the items",
        "Throughput",
        "Slots in use",
        "load→infer (8 slots)",
        "&lt;demo&gt;",
        "<th>infer</th><td>2</td><td>200</td>",
    ] {
        assert!(page.contains(part), "{part:?} is missing");
    }
    for elsewhere in ["http://", "https://", "<script", "@import", "url("] {
        assert!(!page.contains(elsewhere), "{elsewhere:?} is in the page");
    }
    assert_eq!(page.matches("<svg class=\"plot\"").count(), 4);
    // Only curves are stretched to the width of their place: texts are as large however narrow that is.
    let stretched: Vec<_> = page.split("viewBox").skip(1).collect();
    assert_eq!(stretched.len(), 4);
    for part in stretched {
        let (within, _) = part.split_once("</svg>").unwrap();
        assert!(
            within.contains("<poly") && !within.contains("<text"),
            "{within}"
        );
    }
}

#[test]
fn a_steady_rate_is_a_flat_line_whatever_the_number_of_items() {
    for items in [7, 60, 400, 3000] {
        let directory = directory();
        sample::write(directory.path(), items);
        let run = Run::open(directory.path()).unwrap();
        let points = series::throughput(&run);
        // Two processes of 4 ms each, behind one of 1 ms that is the first's to wait for.
        for &(at, rate) in points.iter().skip(1) {
            assert!((rate - 500.0).abs() < 5.0, "{items}: {rate} at {at}");
        }
        assert!(points.len() <= 110, "{items}: {points:?}");
    }
}

#[test]
fn why_a_run_failed_is_the_first_thing_on_its_page() {
    let directory = directory();
    sample::write(directory.path(), 20);
    let run = directory.path().join("run.json");
    let text = fs::read_to_string(&run).unwrap().replace(
        "\"detail\":null,\"reason\":\"target_reached\"",
        "\"detail\":\"process 1 <infer> was killed\",\"reason\":\"failed\"",
    );
    let text = text.replace(
        "\"failed\":0,\"offered\":20,\"redelivered\":0",
        "\"failed\":1,\"offered\":23,\"redelivered\":0,\"late\":4,\"unfinished\":2",
    );
    fs::write(&run, text).unwrap();
    write(directory.path()).unwrap();
    let page = fs::read_to_string(directory.path().join("report.html")).unwrap();
    let cause = page.find("process 1 &lt;infer&gt; was killed").unwrap();
    assert!(cause < page.find("class=\"figures\"").unwrap());
    assert_eq!(page.matches("was killed").count(), 1);
    assert!(
        page.contains("1 failed, 2 unfinished, 0 redelivered, 4 late"),
        "{page}"
    );
    let text = fs::read_to_string(directory.path().join("summary.txt")).unwrap();
    assert!(
        text.contains("1 item failed\n2 items unfinished\n4 items late\n"),
        "{text}"
    );
}

#[test]
fn replaced_processes_are_told_with_their_cause_and_the_counts_add_up() {
    let directory = directory();
    sample::write(directory.path(), 20);
    let path = directory.path().join("run.json");
    let mut run: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    let start = run["clock_start_ns"].as_u64().unwrap();
    let before = |pid: u32, inputs: u64| {
        let cause = format!("process \"infer.0\" (pid {pid}) was killed by <SIGKILL>\nmore");
        let at = start + u64::from(pid) * 1_000_000;
        serde_json::json!({"pid": pid, "at_ns": at, "cause": cause, "inputs": inputs, "redelivered": 1, "items": [pid - 80]})
    };
    run["processes"][1]["name"] = "infer.0".into();
    run["processes"][1]["inputs"] = 7.into();
    let replaced = serde_json::json!([before(90, 3), before(95, 2)]);
    run["processes"][1]["replaced"] = replaced;
    run["processes"][2]["inputs"] = 11.into();
    fs::write(&path, run.to_string()).unwrap();
    let cards = directory.path().join("items.jsonl");
    let mut lines = fs::read_to_string(&cards).unwrap();
    for (outcome, released) in [("redelivered", 1), ("redelivered", 1), ("dropped", 0)] {
        let released = (released > 0).then_some(released);
        let card = serde_json::json!({
            "item": 1, "step": "infer", "rank": 1, "enqueued": 1, "dequeued": 1, "started": 1, "finished": 1,
            "released": released, "outcome": outcome,
        });
        lines.push_str(&format!("{card}\n"));
    }
    fs::write(&cards, lines).unwrap();
    write(directory.path()).unwrap();
    let text = fs::read_to_string(directory.path().join("summary.txt")).unwrap();
    let cells = |line| {
        let cells = str::split(line, "  ").map(str::trim);
        cells.filter(|cell| !cell.is_empty()).collect::<Vec<_>>()
    };
    let rows: Vec<Vec<&str>> = text.lines().map(cells).collect();
    let head = "step  in  = done  + redelivered  + unfinished  out  dropped behind it";
    for row in [
        head,
        "load  20  20  0  0  20  0",
        "infer  23  20  2  1  0  1",
        "process \"infer.0\" was replaced 2 times: it was killed by <SIGKILL>",
    ] {
        assert!(rows.contains(&cells(row)), "{row:?} in\n{text}");
    }
    for line in [
        "  90.0 ms: step \"infer\", rank 1 (process \"infer.0\", pid 90) was killed by <SIGKILL>; item 10 was delivered again\n",
        "  95.0 ms: step \"infer\", rank 1 (process \"infer.0\", pid 95) was killed by <SIGKILL>; item 15 was delivered again\n",
    ] {
        assert!(text.contains(line), "{line:?} in\n{text}");
    }
    let summary = fs::read_to_string(directory.path().join("summary.json")).unwrap();
    let summary: Value = serde_json::from_str(&summary).unwrap();
    let one = serde_json::json!({
        "step": "infer", "process": "infer.0", "rank": 1, "pid": 95, "at_s": 0.095, "cause": "was killed by <SIGKILL>",
        "items": [15], "redelivered": 1, "failed": 0,
    });
    assert_eq!(summary["replacements"][1], one);
    // Who has no slots does not wait for them.
    let of_infer = rows.iter().find(|row| row.first() == Some(&"infer"));
    assert_eq!(of_infer.unwrap()[5..7], ["–", "–"], "{text}");
    let page = fs::read_to_string(directory.path().join("report.html")).unwrap();
    for part in [
        "<th>infer</th><td>infer.0</td><td>2</td><td>was killed by &lt;SIGKILL&gt;</td>",
        "<th>95.0 ms</th><td>infer</td><td>1</td><td>infer.0</td><td>95</td><td>was killed by &lt;SIGKILL&gt;</td>\
         <td>item 15 was delivered again</td>",
        "<th>infer</th><td>23</td><td>20</td><td>2</td><td>1</td><td>0</td><td>1</td>",
        "infer 0, CPU; replaced 2 times",
    ] {
        assert!(page.contains(part), "{part:?} is missing");
    }
    let summary = Summary::of(&Run::open(directory.path()).unwrap());
    let both = Comparison::of(summary.clone(), summary).to_string();
    assert!(
        both.contains("load: slot wait") && !both.contains("infer: slot wait"),
        "{both}"
    );
}

#[test]
fn slots_of_different_rings_are_drawn_one_below_the_other() {
    let curves = ["a", "b", "c"].map(|name| series::Curve {
        name: name.to_owned(),
        points: vec![(0.0, 3.0), (1.0, 0.0), (2.0, 3.0)],
    });
    let plot = plot::Plot {
        title: "Slots in use",
        x: "seconds",
        y: "slots",
        x_to: 2.0,
        marks: plot::Marks::Lanes(&curves, &[3.0, 6.0, 3.0]),
    };
    let svg = plot.figure();
    // The lowest and highest point of each: no two of them share any height.
    let lines = svg.split("<polyline").skip(1);
    let spans: Vec<_> = lines
        .map(|line| {
            let points = line.split('"').nth(3).unwrap().split_whitespace();
            let heights: Vec<f64> = points
                .map(|point| point.split_once(',').unwrap().1.parse().unwrap())
                .collect();
            let most = heights.iter().copied().fold(f64::MIN, f64::max);
            (heights.iter().copied().fold(f64::MAX, f64::min), most)
        })
        .collect();
    assert_eq!(spans.len(), 3, "{svg}");
    let apart = spans.windows(2).all(|pair| pair[0].1 < pair[1].0);
    assert!(apart, "{spans:?}");
    // Three of six slots are half of a lane.
    let height = |(top, foot): (f64, f64)| foot - top;
    let part = height(spans[1]) / height(spans[0]);
    assert!((part - 0.5).abs() < 0.01, "{spans:?}");
}

#[test]
fn a_run_without_items_still_has_a_report() {
    let directory = directory();
    sample::write(directory.path(), 0);
    fs::remove_file(directory.path().join("rings.jsonl")).unwrap();
    write(directory.path()).unwrap();
    let page = fs::read_to_string(directory.path().join("report.html")).unwrap();
    assert_eq!(page.matches("Nothing was recorded for this.").count(), 4);
    assert!(page.contains("No item went through any step."));
}

#[test]
fn what_is_no_run_is_an_error_with_the_place() {
    let directory = directory();
    let error = write(directory.path()).unwrap_err().to_string();
    assert!(
        error.contains("run.json") && error.contains("run --out"),
        "{error}"
    );
    sample::write(directory.path(), 3);
    let cards = directory.path().join("items.jsonl");
    let text = fs::read_to_string(&cards).unwrap();
    fs::write(&cards, text.replacen("\"rank\":1", "\"rank\":\"one\"", 1)).unwrap();
    let error = write(directory.path()).unwrap_err().to_string();
    assert!(error.contains("items.jsonl:2:"), "{error}");
    assert!(!error.contains("at line"), "{error}");
    fs::remove_file(&cards).unwrap();
    let error = write(directory.path()).unwrap_err().to_string();
    assert!(error.contains("items.jsonl is missing"), "{error}");
    let run = directory.path().join("run.json");
    let text = fs::read_to_string(&run).unwrap();
    fs::write(&run, text.replace("\"version\":1", "\"version\":9")).unwrap();
    let error = write(directory.path()).unwrap_err().to_string();
    assert!(error.contains("version 9"), "{error}");
}

#[test]
fn two_runs_are_compared_step_by_step() {
    let (a, b) = (directory(), directory());
    sample::write(a.path(), 100);
    sample::write(b.path(), 200);
    let of = |directory: &tempfile::TempDir| Summary::of(&Run::open(directory.path()).unwrap());
    let mut other = of(&b);
    other.steps[1].name = "classify".into();
    let text = Comparison::of(of(&a), other).to_string();
    for part in [
        "B ÷ A",
        "load: service p50",
        "only in A: infer",
        "only in B: classify",
    ] {
        assert!(text.contains(part), "{part:?} is missing in\n{text}");
    }
}

#[test]
fn slots_of_several_processes_are_added_up_in_the_order_in_which_they_were_looked_at() {
    let directory = directory();
    sample::write(directory.path(), 1);
    let lines = [(30, 1, 2), (10, 0, 3), (20, 1, 1), (40, 0, 0)].map(|(t, rank, in_use)| {
        format!("{{\"t\":{t},\"ring\":\"load→infer\",\"rank\":{rank},\"in_use\":{in_use}}}\n")
    });
    fs::write(directory.path().join("rings.jsonl"), lines.concat()).unwrap();
    let run = Run::open(directory.path()).unwrap();
    let used: Vec<_> = run
        .samples
        .iter()
        .map(|sample| (sample.t, sample.in_use))
        .collect();
    assert_eq!(used, [(10, 3), (20, 4), (30, 5), (40, 2)]);
    // Its curve goes to the end of the run, with what was seen last.
    let (curves, _) = series::occupancy(&run);
    let (end, last) = *curves[0].points.last().unwrap();
    assert_eq!((end, last), (run.duration_ns() as f64 / 1e9, 2.0));
}
