//! Plots as SVG: axes with round numbers, lines, steps and stacked areas. Colours come from the page's style sheet, and so
//! do the margins that the texts outside the axes stand in.
//!
//! A plot is as wide as its place, and only what is drawn between the axes is stretched to that: texts are as large on a
//! telephone as anywhere. So ordinates are pixels, and abscissas parts of the width.

use std::fmt::Write;

use super::series::Curve;

/// What curves have for the whole width.
const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 280.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 42.0;
/// Between two lanes, and how low one may be.
const GAP: f64 = 14.0;
const LANE_LEAST: f64 = 56.0;
/// Colours that the style sheet has.
const COLOURS: usize = 8;

/// What is drawn between the axes.
pub(super) enum Marks<'a> {
    /// A line per curve.
    Lines(&'a [Curve]),
    /// As lines, but each value stays until the next.
    Steps(&'a [Curve]),
    /// Curves with the same abscissas, one on top of the other.
    Stack(&'a [Curve]),
    /// As steps, but each curve for itself, one below the other, from 0 to what it can be at most: curves that often have
    /// the same few values would hide each other.
    Lanes(&'a [Curve], &'a [f64]),
}

/// A plot with both axes from 0.
pub(super) struct Plot<'a> {
    pub(super) title: &'a str,
    pub(super) x: &'a str,
    pub(super) y: &'a str,
    /// How far the abscissa goes at least.
    pub(super) x_to: f64,
    pub(super) marks: Marks<'a>,
}

impl Plot<'_> {
    /// The figure: a heading, the legend where there are several curves, and the SVG. A sentence where there is nothing.
    pub(super) fn figure(&self) -> String {
        let curves = self.curves();
        let mut html = format!("<figure><figcaption>{}</figcaption>", escape(self.title));
        if curves.iter().all(|curve| curve.points.is_empty()) {
            html.push_str("<p class=\"none\">Nothing was recorded for this.</p></figure>");
            return html;
        }
        // One curve is what the title says, unless it is one of several that there could be.
        let is_title = |curve: &Curve| self.title.eq_ignore_ascii_case(&curve.name);
        let is_lane = matches!(self.marks, Marks::Lanes(..));
        if curves.len() > 1
            || is_lane
            || matches!(self.marks, Marks::Steps([one]) if !is_title(one))
        {
            html.push_str("<ul class=\"legend\">");
            for (index, curve) in curves.iter().enumerate() {
                let _ = write!(
                    html,
                    "<li><i class=\"c{}\"></i>{}</li>",
                    index % COLOURS,
                    escape(&curve.name)
                );
            }
            html.push_str("</ul>");
        }
        html.push_str(&self.svg());
        html.push_str("</figure>");
        html
    }

    fn curves(&self) -> &[Curve] {
        match self.marks {
            Marks::Lines(curves)
            | Marks::Steps(curves)
            | Marks::Stack(curves)
            | Marks::Lanes(curves, _) => curves,
        }
    }

    fn svg(&self) -> String {
        let curves = self.curves();
        let points = || curves.iter().flat_map(|curve| &curve.points);
        let x_most = points().map(|point| point.0).fold(self.x_to, f64::max);
        let y_most = match self.marks {
            Marks::Stack(curves) => stacked(curves)
                .last()
                .into_iter()
                .flatten()
                .map(|point| point.1)
                .fold(0.0, f64::max),
            _ => points().map(|point| point.1).fold(0.0, f64::max),
        };
        let (x_ticks, x_end) = ticks(x_most, 6);
        let scales = match self.marks {
            Marks::Lanes(_, most) => lanes(x_end, most),
            _ => {
                let (y_ticks, y_end) = ticks(y_most, 5);
                let (top, foot) = (TOP, HEIGHT - BOTTOM);
                let scale = Scale {
                    x_end,
                    y_end,
                    top,
                    foot,
                };
                vec![(scale, y_ticks)]
            }
        };
        let foot = scales.last().map_or(TOP, |(scale, _)| scale.foot);
        let mut svg = format!(
            "<svg class=\"plot\" height=\"{}\" role=\"img\" aria-label=\"{}\">",
            foot + BOTTOM,
            escape(self.title)
        );
        for (scale, y_ticks) in &scales {
            for &tick in y_ticks {
                let y = scale.y(tick);
                let _ = write!(
                    svg,
                    "<line class=\"grid\" x1=\"0\" x2=\"100%\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
                     <text x=\"-6\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                    y + 4.0,
                    number(tick)
                );
            }
        }
        let Some((scale, _)) = scales.first() else {
            return svg + "</svg>";
        };
        for (index, &tick) in x_ticks.iter().enumerate() {
            // Where there is no room for all.
            let class = if index % 2 == 1 { " class=\"odd\"" } else { "" };
            let _ = write!(
                svg,
                "<text{class} x=\"{:.2}%\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                tick / scale.x_end * 100.0,
                foot + 16.0,
                number(tick)
            );
        }
        let _ = write!(
            svg,
            "<line class=\"axis\" x1=\"0\" x2=\"100%\" y1=\"{foot}\" y2=\"{foot}\"/>\
             <text class=\"label\" x=\"50%\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
             <text class=\"label\" transform=\"translate(-48 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>\
             <svg viewBox=\"0 0 {WIDTH} {foot}\" width=\"100%\" height=\"{foot}\" preserveAspectRatio=\"none\">",
            foot + BOTTOM - 6.0,
            escape(self.x),
            (TOP + foot) / 2.0,
            escape(self.y),
        );
        let scales: Vec<_> = scales.iter().map(|(scale, _)| scale).collect();
        self.draw(&scales, &mut svg);
        svg.push_str("</svg></svg>");
        svg
    }

    /// A scale for each lane, or one for all.
    fn draw(&self, scales: &[&Scale], svg: &mut String) {
        let Some(&scale) = scales.first() else { return };
        match self.marks {
            Marks::Lines(curves) => {
                for (index, curve) in curves.iter().enumerate() {
                    line(scale, index, &curve.name, &curve.points, svg);
                }
            }
            Marks::Steps(curves) => {
                for (index, curve) in curves.iter().enumerate() {
                    line(scale, index, &curve.name, &stepped(curve), svg);
                }
            }
            Marks::Lanes(curves, _) => {
                for (index, (curve, scale)) in curves.iter().zip(scales).enumerate() {
                    line(scale, index, &curve.name, &stepped(curve), svg);
                }
            }
            Marks::Stack(curves) => {
                let tops = stacked(curves);
                for (index, top) in tops.iter().enumerate() {
                    let below: Vec<_> = match index.checked_sub(1) {
                        Some(below) => tops[below].iter().rev().copied().collect(),
                        None => top.iter().rev().map(|&(x, _)| (x, 0.0)).collect(),
                    };
                    let outline: Vec<_> = top.iter().copied().chain(below).collect();
                    let _ = write!(
                        svg,
                        "<polygon class=\"f{}\" points=\"{}\"><title>{}</title></polygon>",
                        index % COLOURS,
                        scale.points(&outline),
                        escape(&curves[index].name)
                    );
                }
            }
        }
    }
}

fn line(scale: &Scale, index: usize, name: &str, points: &[(f64, f64)], svg: &mut String) {
    let _ = write!(
        svg,
        "<polyline class=\"l{}\" points=\"{}\"><title>{}</title></polyline>",
        index % COLOURS,
        scale.points(points),
        escape(name)
    );
}

/// The points of a curve whose values stay until the next.
fn stepped(curve: &Curve) -> Vec<(f64, f64)> {
    let mut points: Vec<(f64, f64)> = Vec::with_capacity(2 * curve.points.len());
    for &(x, y) in &curve.points {
        if let Some(&(_, before)) = points.last() {
            points.push((x, before));
        }
        points.push((x, y));
    }
    points
}

/// Scales one below the other, each from 0 to what its curve can be at most, with the ticks of both.
fn lanes(x_end: f64, most: &[f64]) -> Vec<(Scale, Vec<f64>)> {
    let count = most.len().max(1) as f64;
    let height = ((HEIGHT - TOP - BOTTOM - GAP * (count - 1.0)) / count).max(LANE_LEAST);
    let of_lane = |(index, &most): (usize, &f64)| {
        let top = TOP + index as f64 * (height + GAP);
        let y_end = most.max(1.0);
        let scale = Scale {
            x_end,
            y_end,
            top,
            foot: top + height,
        };
        (scale, vec![0.0, y_end])
    };
    most.iter().enumerate().map(of_lane).collect()
}

/// Each curve with those before it below.
fn stacked(curves: &[Curve]) -> Vec<Vec<(f64, f64)>> {
    let mut tops: Vec<Vec<(f64, f64)>> = Vec::new();
    for curve in curves {
        let top = curve
            .points
            .iter()
            .enumerate()
            .map(|(index, &(x, y))| {
                let below = tops.last().and_then(|top| top.get(index));
                (x, y + below.map_or(0.0, |point| point.1))
            })
            .collect();
        tops.push(top);
    }
    tops
}

struct Scale {
    x_end: f64,
    y_end: f64,
    top: f64,
    foot: f64,
}

impl Scale {
    fn x(&self, x: f64) -> f64 {
        x / self.x_end * WIDTH
    }

    fn y(&self, y: f64) -> f64 {
        self.foot - y / self.y_end * (self.foot - self.top)
    }

    fn points(&self, points: &[(f64, f64)]) -> String {
        let mut text = String::with_capacity(12 * points.len());
        for &(x, y) in points {
            let _ = write!(text, "{:.1},{:.1} ", self.x(x), self.y(y));
        }
        text
    }
}

/// About `wanted` round numbers from 0 to where the axis ends, which is the last of them.
fn ticks(most: f64, wanted: usize) -> (Vec<f64>, f64) {
    if !(most.is_finite() && most > 0.0) {
        return (vec![0.0, 1.0], 1.0);
    }
    let rough = most / wanted as f64;
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|step| *step >= rough * 0.999)
        .unwrap_or(10.0 * power);
    let count = (most / step * 0.999).ceil().max(1.0) as usize;
    let ticks: Vec<f64> = (0..=count).map(|index| index as f64 * step).collect();
    let end = count as f64 * step;
    (ticks, end)
}

/// A tick's number, as short as it can be.
fn number(value: f64) -> String {
    let text = if value.abs() >= 1000.0 || value == 0.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.3}")
    };
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// Text for between the tags and in attributes.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_at_a_round_number_that_covers_everything() {
        for (most, step, end) in [
            (0.97, 0.2, 1.0),
            (7.3, 2.0, 8.0),
            (12.0, 5.0, 15.0),
            (0.0004, 0.0001, 0.0004),
            (123_456.0, 50_000.0, 150_000.0),
        ] {
            let (ticks, found) = ticks(most, 5);
            assert!((ticks[1] - step).abs() < 1e-9 * step, "{most}: {ticks:?}");
            assert!((found - end).abs() < 1e-9 * end, "{most}: {found}");
        }
        assert_eq!(ticks(0.0, 5).1, 1.0);
        assert_eq!(ticks(f64::NAN, 5).1, 1.0);
    }

    #[test]
    fn numbers_are_short_and_names_cannot_leave_their_place() {
        assert_eq!(
            [0.0, 0.25, 2.0, 1500.0].map(number),
            ["0", "0.25", "2", "1500"]
        );
        assert_eq!(escape("<a & \"b\">"), "&lt;a &amp; &quot;b&quot;&gt;");
    }
}
