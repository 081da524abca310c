//! Plots as SVG: axes with round numbers, lines, steps and stacked areas. Colours come from the page's style sheet.

use std::fmt::Write;

use super::series::Curve;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 42.0;
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
        if curves.len() > 1 || matches!(self.marks, Marks::Steps([one]) if !is_title(one)) {
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
            Marks::Lines(curves) | Marks::Steps(curves) | Marks::Stack(curves) => curves,
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
        let (y_ticks, y_end) = ticks(y_most, 5);
        let scale = Scale { x_end, y_end };
        let mut svg = format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">",
            escape(self.title)
        );
        for &tick in &y_ticks {
            let y = scale.y(tick);
            let _ = write!(
                svg,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                y + 4.0,
                number(tick)
            );
        }
        let foot = HEIGHT - BOTTOM;
        for &tick in &x_ticks {
            let x = scale.x(tick);
            let _ = write!(
                svg,
                "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                foot + 16.0,
                number(tick)
            );
        }
        let _ = write!(
            svg,
            "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{foot}\" y2=\"{foot}\"/>\
             <text class=\"label\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
             <text class=\"label\" transform=\"translate(14 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            WIDTH - RIGHT,
            (LEFT + WIDTH - RIGHT) / 2.0,
            HEIGHT - 6.0,
            escape(self.x),
            (TOP + foot) / 2.0,
            escape(self.y),
        );
        self.draw(&scale, &mut svg);
        svg.push_str("</svg>");
        svg
    }

    fn draw(&self, scale: &Scale, svg: &mut String) {
        match self.marks {
            Marks::Lines(curves) => {
                for (index, curve) in curves.iter().enumerate() {
                    line(scale, index, &curve.name, &curve.points, svg);
                }
            }
            Marks::Steps(curves) => {
                for (index, curve) in curves.iter().enumerate() {
                    let mut points = Vec::with_capacity(2 * curve.points.len());
                    for &(x, y) in &curve.points {
                        if let Some(&(_, before)) = points.last() {
                            points.push((x, before));
                        }
                        points.push((x, y));
                    }
                    line(scale, index, &curve.name, &points, svg);
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
}

impl Scale {
    fn x(&self, x: f64) -> f64 {
        LEFT + x / self.x_end * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, y: f64) -> f64 {
        let foot = HEIGHT - BOTTOM;
        foot - y / self.y_end * (foot - TOP)
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
