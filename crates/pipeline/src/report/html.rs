//! The run as one page: figures first, then the table, then the plots. Nothing on it comes from elsewhere.

use std::fmt::Write;

use super::plot::{Marks, Plot, escape};
use super::read::Run;
use super::series::{self, Curve};
use super::summary::{Quantiles, StepSummary, Summary};
use super::text::{quantile, rate};
use crate::replaced::times;

const STYLE: &str = include_str!("page.css");

/// The page.
pub(super) fn page(run: &Run, summary: &Summary) -> String {
    let title = match run.steps.as_slice() {
        [] => "A run without steps".to_owned(),
        steps => {
            let names: Vec<_> = steps.iter().map(|step| step.name.as_str()).collect();
            names.join(" → ")
        }
    };
    let title = escape(&title);
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\"><title>{title}</title>\
         <style>{STYLE}</style></head><body><main><h1>{title}</h1>"
    );
    // Why a run failed is what is looked for first.
    if let Some(cause) = cause(run, summary) {
        let ended = summary.termination.reason.replace('_', " ");
        let _ = write!(
            html,
            "<p class=\"cause\"><b>{}</b>{}</p>",
            escape(&ended),
            escape(cause)
        );
    }
    let _ = write!(
        html,
        "<p class=\"verdict\">{}</p>",
        escape(&summary.bottleneck)
    );
    figures(summary, &mut html);
    steps(summary, &mut html);
    counts(summary, &mut html);
    plots(run, &mut html);
    about(run, summary, &mut html);
    html.push_str("</main></body></html>\n");
    html
}

/// Why a run did not come to its end.
fn cause<'a>(run: &Run, summary: &'a Summary) -> Option<&'a str> {
    let detail = summary.termination.detail.as_deref();
    detail.filter(|_| !run.is_success())
}

fn figures(summary: &Summary, html: &mut String) {
    let ended = summary.termination.reason.replace('_', " ");
    let figures = [
        ("inputs finished", summary.items.completed.to_string()),
        ("throughput", rate(summary.throughput)),
        ("latency p50", quantile(summary.latency, |of| of.p50)),
        ("latency p99", quantile(summary.latency, |of| of.p99)),
        ("time", format!("{:.2} s", summary.seconds)),
        ("ended", ended),
    ];
    html.push_str("<dl class=\"figures\">");
    for (name, value) in figures {
        let _ = write!(
            html,
            "<div><dt>{name}</dt><dd>{}</dd></div>",
            escape(&value)
        );
    }
    html.push_str("</dl>");
}

/// A part of the time that items spend in a step.
struct Part {
    name: &'static str,
    what: &'static str,
    of: fn(&StepSummary) -> Option<Quantiles>,
    /// With p90 or without.
    columns: u8,
}

const BUSY: &str = "the part of the run in which its processes worked on items (service)";

fn parts(copies: bool, holds: bool) -> impl Iterator<Item = Part> {
    let part = |name, columns, of, what| Part {
        name,
        what,
        of,
        columns,
    };
    // With one more part there is no room for p90.
    let wide = if copies || holds { 2 } else { 3 };
    let all: [(Part, bool); 6] = [
        (
            part(
                "queueing",
                wide,
                |step| Some(step.queueing),
                "from an item's being offered to the step until one of its processes took it",
            ),
            true,
        ),
        (
            part(
                "slot wait",
                2,
                StepSummary::slot_waits,
                "how long the process that had it waited for a free slot for what it makes of it",
            ),
            true,
        ),
        (
            part(
                "service",
                wide,
                |step| Some(step.service),
                "from the stage's being called with it to its answer, without the wait for slots",
            ),
            true,
        ),
        (
            part(
                "copy",
                2,
                |step| Some(step.copy),
                "how long a copy between devices went on after that",
            ),
            copies,
        ),
        (
            part(
                "held",
                2,
                |step| Some(step.held),
                "how long the stage kept it after that, until what was made of it went on: as a batch waits for its other items",
            ),
            holds,
        ),
        (
            part(
                "hand-off",
                2,
                |step| Some(step.hand_off),
                "from its being taken from the queue to the stage's being called",
            ),
            true,
        ),
    ];
    all.into_iter()
        .filter_map(|(part, is_there)| is_there.then_some(part))
}

fn steps(summary: &Summary, html: &mut String) {
    // Hardly any run has copies or batches, and the table is wide enough.
    let copies = summary.steps.iter().any(|step| step.copy.p99 > 0);
    let holds = summary.steps.iter().any(|step| step.held.p99 > 0);
    let parts: Vec<_> = parts(copies, holds).collect();
    html.push_str(
        "<h2>Steps</h2><div class=\"scroll\"><table class=\"steps\"><thead><tr><th rowspan=\"2\">step</th>\
         <th rowspan=\"2\">processes</th><th rowspan=\"2\">items</th>",
    );
    for Part {
        name,
        what,
        columns,
        ..
    } in &parts
    {
        let _ = write!(
            html,
            "<th class=\"part\" colspan=\"{columns}\" title=\"{what}\">{name}</th>"
        );
    }
    let _ = write!(
        html,
        "<th rowspan=\"2\">items/s</th><th class=\"busy\" rowspan=\"2\" title=\"{BUSY}\">busy</th></tr><tr>"
    );
    for Part { columns, .. } in &parts {
        let names = ["p50", "p90", "p99"].into_iter();
        let names = names.filter(|name| *columns == 3 || *name != "p90");
        for (index, name) in names.enumerate() {
            let class = if index == 0 { " class=\"first\"" } else { "" };
            let _ = write!(html, "<th{class}>{name}</th>");
        }
    }
    html.push_str("</tr></thead><tbody>");
    for step in &summary.steps {
        let _ = write!(
            html,
            "<tr><th>{}</th><td>{}</td><td>{}</td>",
            escape(&step.name),
            step.processes,
            step.items
        );
        for Part { of, columns, .. } in &parts {
            let of = of(step).unwrap_or_default();
            let p50 = quantile(of, |of| of.p50);
            let _ = write!(html, "<td class=\"first\">{p50}</td>");
            if *columns == 3 {
                let _ = write!(html, "<td>{}</td>", quantile(of, |of| of.p90));
            }
            let _ = write!(html, "<td>{}</td>", quantile(of, |of| of.p99));
        }
        let percent = step.utilisation * 100.0;
        let _ = write!(
            html,
            "<td class=\"first\">{}</td><td class=\"busy\"><span class=\"bar\"><b style=\"width:{percent:.0}%\"></b></span>\
             <span class=\"percent\">{percent:.0} %</span></td></tr>",
            rate(step.throughput)
        );
    }
    html.push_str("</tbody></table></div><details class=\"legend-of\"><summary>What the columns mean</summary><dl>");
    let busy = ("busy", BUSY);
    for (name, what) in parts
        .iter()
        .map(|part| (part.name, part.what))
        .chain([busy])
    {
        let _ = write!(html, "<dt>{name}</dt><dd>{what}</dd>");
    }
    html.push_str("</dl></details>");
}

/// How what came into each step adds up, and which processes were replaced.
fn counts(summary: &Summary, html: &mut String) {
    html.push_str("<h2>Items</h2>");
    rows(&summary.counts(), "counts", html);
    if summary.replaced.is_empty() {
        return;
    }
    html.push_str("<h2>Replaced processes</h2>");
    // Where each had a cause of its own there is nothing to sum up.
    if summary.replaced.len() < summary.replacements.len() {
        summed_up(summary, html);
    }
    let head = [
        "since the start",
        "step",
        "rank",
        "process",
        "pid",
        "cause",
        "what it had",
    ];
    let mut table = vec![head.map(str::to_owned).to_vec()];
    for one in &summary.replacements {
        table.push(vec![
            one.at(),
            one.step.clone(),
            one.rank.to_string(),
            one.process.clone(),
            one.pid.to_string(),
            one.cause.clone(),
            one.outcome(),
        ]);
    }
    rows(&table, "replaced each", html);
}

/// The replaced processes of one place and cause in one row.
fn summed_up(summary: &Summary, html: &mut String) {
    let head = ["step", "process", "times", "cause"];
    let mut table = vec![head.map(str::to_owned).to_vec()];
    for replacements in &summary.replaced {
        table.push(vec![
            replacements.step.clone(),
            replacements.process.clone(),
            replacements.count.to_string(),
            replacements.cause.clone(),
        ]);
    }
    rows(&table, "replaced", html);
}

/// A table of texts, the first row the headings.
fn rows(rows: &[Vec<String>], class: &str, html: &mut String) {
    let _ = write!(html, "<div class=\"scroll\"><table class=\"{class}\">");
    for (index, row) in rows.iter().enumerate() {
        html.push_str(match index {
            0 => "<thead><tr>",
            1 => "<tbody><tr>",
            _ => "<tr>",
        });
        for (column, cell) in row.iter().enumerate() {
            let tag = if index == 0 || column == 0 {
                "th"
            } else {
                "td"
            };
            let _ = write!(html, "<{tag}>{}</{tag}>", escape(cell));
        }
        html.push_str(if index == 0 { "</tr></thead>" } else { "</tr>" });
    }
    html.push_str("</tbody></table></div>");
}

fn plots(run: &Run, html: &mut String) {
    let seconds = run.duration_ns() as f64 / 1e9;
    let one = |name: &str, points| {
        [Curve {
            name: name.to_owned(),
            points,
        }]
    };
    let mut by_step = series::latency_by_step(run);
    let mut distribution = one("latency", series::distribution(run));
    let longest = distribution[0].points.last().map_or(0.0, |point| point.0);
    let unit = if longest >= 10_000.0 {
        for point in by_step.iter_mut().flat_map(|curve| &mut curve.points) {
            point.1 /= 1000.0;
        }
        for point in &mut distribution[0].points {
            point.0 /= 1000.0;
        }
        "seconds"
    } else {
        "milliseconds"
    };
    let throughput = one("throughput", series::throughput(run));
    let (occupancy, slots) = series::occupancy(run);
    html.push_str("<div class=\"plots\">");
    for plot in [
        Plot {
            title: "Where an item's time goes: mean latency by step",
            x: "seconds since the start",
            y: unit,
            x_to: seconds,
            marks: Marks::Stack(&by_step),
        },
        Plot {
            title: "Latency, from offered to done",
            x: unit,
            y: "% of the items",
            x_to: 0.0,
            marks: Marks::Lines(&distribution),
        },
        Plot {
            title: "Throughput",
            x: "seconds since the start",
            y: "items a second",
            x_to: seconds,
            marks: Marks::Steps(&throughput),
        },
        Plot {
            title: "Slots in use",
            x: "seconds since the start",
            y: "slots",
            x_to: seconds,
            marks: Marks::Lanes(&occupancy, &slots),
        },
    ] {
        html.push_str(&plot.figure());
    }
    html.push_str("</div>");
}

fn about(run: &Run, summary: &Summary, html: &mut String) {
    html.push_str("<h2>The run</h2><table class=\"about\">");
    let mut row = |name: &str, value: &str| {
        if !value.is_empty() {
            let _ = write!(html, "<tr><th>{name}</th><td>{}</td></tr>", escape(value));
        }
    };
    let items = summary.items;
    if cause(run, summary).is_none() {
        row("ended", summary.termination.detail.as_deref().unwrap_or(""));
    }
    row(
        "items",
        &format!(
            "{} offered, {} completed, {} dropped, {} failed, {} unfinished, {} redelivered, {} late",
            items.offered,
            items.completed,
            items.dropped,
            items.failed,
            items.unfinished,
            items.redelivered,
            items.late
        ),
    );
    for process in &run.processes {
        let device = match process.device {
            -1 => "CPU".to_owned(),
            device => format!("device {device}"),
        };
        let mut what = format!(
            "pid {}, {} {}, {device}",
            process.pid, process.step, process.replica
        );
        if !process.replaced.is_empty() {
            let count = process.replaced.len() as u64;
            what.push_str(&format!("; replaced {}", times(count)));
        }
        row(&format!("process {}", process.rank), &what);
    }
    row("command", &run.command.join(" "));
    if let Some(machine) = run.machine.as_object() {
        for (name, value) in machine {
            let text = value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned);
            row(&escape(name), &text);
        }
    }
    html.push_str("</table>");
    if !run.config.is_null()
        && let Ok(config) = serde_json::to_string_pretty(&run.config)
    {
        let _ = write!(
            html,
            "<details><summary>The configuration</summary><pre>{}</pre></details>",
            escape(&config)
        );
    }
}
