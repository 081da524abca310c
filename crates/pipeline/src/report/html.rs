//! The run as one page: figures first, then the table, then the plots. Nothing on it comes from elsewhere.

use std::fmt::Write;

use super::plot::{Marks, Plot, escape};
use super::read::Run;
use super::series::{self, Curve};
use super::summary::Summary;
use super::text::{rate, time};

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
        ("latency p50", time(summary.latency.p50 as f64)),
        ("latency p99", time(summary.latency.p99 as f64)),
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

fn steps(summary: &Summary, html: &mut String) {
    html.push_str(
        "<h2>Steps</h2><div class=\"scroll\"><table><thead><tr><th>step</th><th>processes</th><th>items</th>\
         <th title=\"how long items waited for a process of the step\">queueing p50 / p90 / p99</th>\
         <th title=\"how long its processes waited for a free slot for their output\">slot wait p50 / p99</th>\
         <th title=\"how long it worked on an item\">service p50 / p90 / p99</th>\
         <th title=\"from an item's being taken from its queue to the stage's being called, and from an output's being ready \
         to its being handed over\">hand-off p50 / p99</th>",
    );
    // Hardly any run has copies, and the table is wide enough.
    let copies = summary.steps.iter().any(|step| step.copy.p99 > 0);
    if copies {
        html.push_str("<th title=\"the copy of its output to another device\">copy p50</th>");
    }
    html.push_str(
        "<th>items/s</th><th title=\"the part of its processes' time in which they worked\">busy</th></tr></thead><tbody>",
    );
    for step in &summary.steps {
        let t = |ns: u64| time(ns as f64);
        let cells = [
            step.processes.to_string(),
            step.items.to_string(),
            format!(
                "{} / {} / {}",
                t(step.queueing.p50),
                t(step.queueing.p90),
                t(step.queueing.p99)
            ),
            format!("{} / {}", t(step.slot_wait.p50), t(step.slot_wait.p99)),
            format!(
                "{} / {} / {}",
                t(step.service.p50),
                t(step.service.p90),
                t(step.service.p99)
            ),
            format!("{} / {}", t(step.hand_off.p50), t(step.hand_off.p99)),
        ];
        let cells = cells
            .into_iter()
            .chain(copies.then(|| t(step.copy.p50)))
            .chain([rate(step.throughput)]);
        let _ = write!(html, "<tr><th>{}</th>", escape(&step.name));
        for cell in cells {
            let _ = write!(html, "<td>{cell}</td>");
        }
        let percent = step.utilisation * 100.0;
        let _ = write!(
            html,
            "<td><span class=\"bar\"><b style=\"width:{percent:.0}%\"></b></span>{percent:.0} %</td></tr>"
        );
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
    let occupancy = series::occupancy(run);
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
            marks: Marks::Steps(&occupancy),
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
            "{} offered, {} completed, {} dropped, {} failed, {} redelivered",
            items.offered, items.completed, items.dropped, items.failed, items.redelivered
        ),
    );
    for process in &run.processes {
        let device = match process.device {
            -1 => "CPU".to_owned(),
            device => format!("device {device}"),
        };
        let what = format!(
            "pid {}, {} {}, {device}",
            process.pid, process.step, process.replica
        );
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
