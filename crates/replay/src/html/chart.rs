//! Draws line charts as SVG.

use std::fmt::Write as _;

use super::{escape_html, format_short_number};
use crate::report::{TimelinePoint, WorkerTrack};

const CHART_WIDTH: f64 = 640.0;
const CHART_HEIGHT: f64 = 260.0;
const LEFT_MARGIN: f64 = 62.0;
const RIGHT_MARGIN: f64 = 14.0;
const TOP_MARGIN: f64 = 10.0;
const BOTTOM_MARGIN: f64 = 38.0;
const MAX_CHART_POINTS: usize = 480;

/// Line of a chart, with its name in the legend.
#[derive(Debug)]
pub struct ChartLine {
    name: String,
    points: Vec<(f64, f64)>,
    colour: usize,
}

impl ChartLine {
    /// Creates a line of a chart; `colour` is an index into the palette of eight colours.
    pub fn new(name: &str, points: Vec<(f64, f64)>, colour: usize) -> Self {
        Self { name: name.to_owned(), points, colour: colour % 8 }
    }

    fn draw(&self, out: &mut String, x: impl Fn(f64) -> f64, y: impl Fn(f64) -> f64) {
        let _ = write!(
            out,
            "<path class=\"c{}\" data-name=\"{}\" data-points=\"",
            self.colour,
            escape_html(&self.name)
        );
        for (i, point) in self.points.iter().enumerate() {
            let comma = if i == 0 { "" } else { " " };
            let _ = write!(
                out,
                "{comma}{},{}",
                five_significant_digits(point.0),
                five_significant_digits(point.1)
            );
        }
        out.push_str("\" d=\"");
        for (i, point) in self.points.iter().enumerate() {
            let verb = if i == 0 { 'M' } else { 'L' };
            let _ = write!(out, "{verb}{:.1} {:.1}", x(point.0), y(point.1));
        }
        out.push_str("\"/>");
    }
}

/// Line chart with axes and a legend.
#[derive(Debug)]
pub struct Chart<'a> {
    /// Title above the chart.
    pub title: &'a str,
    /// Unit of the chart's horizontal axis.
    pub x: &'a str,
    /// Label of the chart's vertical axis.
    pub y: &'a str,
    /// Lower and upper end of the vertical axis; `None` scales the axis from 0 to the largest value.
    pub y_range: Option<(f64, f64)>,
    /// Lines of the chart, each with an entry in the legend.
    pub lines: Vec<ChartLine>,
    /// Whether the cursor follows the pointer vertically, for charts of distributions.
    pub follows_y: bool,
}

impl Chart<'_> {
    /// Appends the chart to `out` as an HTML figure.
    pub fn draw(&self, out: &mut String) {
        let all = || self.lines.iter().flat_map(|line| &line.points);
        if all().next().is_none() {
            let _ = write!(
                out,
                "<figure><figcaption>{}</figcaption><p class=\"none\">no data</p></figure>",
                escape_html(self.title)
            );
            return;
        }
        let most = |of: fn(&(f64, f64)) -> f64| all().map(of).fold(0.0, f64::max);
        let x_ticks = axis_ticks(most(|p| p.0));
        let y_ticks = match self.y_range {
            Some((low, high)) => (0..=4).map(|i| low + (high - low) * f64::from(i) / 4.0).collect(),
            None => axis_ticks(most(|p| p.1)),
        };
        let (x_max, y_max) = (axis_end(&x_ticks), axis_end(&y_ticks));
        let x =
            |value: f64| LEFT_MARGIN + value / x_max * (CHART_WIDTH - LEFT_MARGIN - RIGHT_MARGIN);
        let y = |value: f64| {
            CHART_HEIGHT
                - BOTTOM_MARGIN
                - value / y_max * (CHART_HEIGHT - TOP_MARGIN - BOTTOM_MARGIN)
        };
        let _ = write!(
            out,
            "<figure><figcaption>{} <small>{}</small></figcaption>\
             <svg viewBox=\"0 0 {CHART_WIDTH} {CHART_HEIGHT}\" role=\"img\" aria-label=\"{}\" \
             data-x=\"{}\" data-y=\"{}\" data-by=\"{}\" data-box=\"{LEFT_MARGIN} {TOP_MARGIN} {} {} {x_max} {y_max}\">",
            escape_html(self.title),
            escape_html(self.y),
            escape_html(self.title),
            escape_html(self.x),
            escape_html(self.y),
            if self.follows_y { "y" } else { "x" },
            CHART_WIDTH - RIGHT_MARGIN,
            CHART_HEIGHT - BOTTOM_MARGIN,
        );
        draw_y_ticks(out, &y_ticks, y);
        self.draw_x_ticks(out, &x_ticks, x);
        for line in &self.lines {
            line.draw(out, x, y);
        }
        out.push_str("<line class=\"cursor\" hidden=\"\"/></svg>");
        if self.lines.len() > 1 {
            out.push_str("<ul class=\"legend\">");
            for line in &self.lines {
                let name = escape_html(&line.name);
                let _ = write!(out, "<li class=\"c{}\">{name}</li>", line.colour);
            }
            out.push_str("</ul>");
        }
        out.push_str("</figure>");
    }

    /// Draws the numbers below the x axis, with their unit behind the last.
    fn draw_x_ticks(&self, out: &mut String, ticks: &[f64], x: impl Fn(f64) -> f64) {
        for (i, tick) in ticks.iter().enumerate() {
            let unit = if i + 1 == ticks.len() { self.x } else { "" };
            let anchor = if i + 1 == ticks.len() { "end" } else { "middle" };
            let _ = write!(
                out,
                "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"{anchor}\">{} {unit}</text>",
                if anchor == "end" { x(*tick) + RIGHT_MARGIN - 2.0 } else { x(*tick) },
                CHART_HEIGHT - BOTTOM_MARGIN + 24.0,
                format_short_number(*tick)
            );
        }
    }
}

/// Draws the horizontal grid lines with their numbers at the left.
fn draw_y_ticks(out: &mut String, ticks: &[f64], y: impl Fn(f64) -> f64) {
    for tick in ticks {
        let (at, right) = (y(*tick), CHART_WIDTH - RIGHT_MARGIN);
        let _ = write!(
            out,
            "<line class=\"grid\" x1=\"{LEFT_MARGIN}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT_MARGIN - 6.0,
            at + 6.0,
            format_short_number(*tick)
        );
    }
}

/// Formats a number with five significant digits, for the page's script.
fn five_significant_digits(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let places = (4 - value.abs().log10().floor() as i32).clamp(0, 6) as usize;
    let text = format!("{value:.places$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

fn axis_end(ticks: &[f64]) -> f64 {
    ticks.last().copied().unwrap_or(1.0)
}

fn axis_ticks(most: f64) -> Vec<f64> {
    if !most.is_finite() || most <= 0.0 {
        return vec![0.0, 1.0];
    }
    let rough = most / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let nice = [1.0, 2.0, 2.5, 5.0, 10.0];
    let step = nice.iter().find(|n| *n * power >= rough * 0.999).unwrap_or(&10.0) * power;
    let count = (most / step - 1e-9).ceil().max(1.0) as usize;
    (0..=count).map(|i| i as f64 * step).collect()
}

/// Sums (or averages) one gauge over the tracks of all workers, at evenly spaced times.
pub(super) fn combine_worker_gauges(
    tracks: &[WorkerTrack],
    of: fn(&TimelinePoint) -> f64,
    mean: bool,
) -> Vec<(f64, f64)> {
    let last = tracks.iter().filter_map(|track| track.points.last());
    let last = last.map(|point| point.at).fold(0.0, f64::max);
    let longest = tracks.iter().map(|track| track.points.len()).max();
    let points = longest.unwrap_or(0).min(MAX_CHART_POINTS);
    let mut places = vec![0usize; tracks.len()];
    let line = (0..points).map(|i| {
        let at = last * i as f64 / (points - 1).max(1) as f64;
        let (mut total, mut seen) = (0.0, 0.0);
        for (track, place) in tracks.iter().zip(&mut places) {
            while track.points.get(*place + 1).is_some_and(|next| next.at <= at) {
                *place += 1;
            }
            // A worker does not exist before its first and after its last point.
            let first = track.points.first().is_some_and(|p| p.at <= at || *place == 0);
            let over = *place + 1 == track.points.len()
                && track.points[*place].at < at - last / points as f64 * 2.0;
            if let Some(point) = track.points.get(*place).filter(|_| first && !over) {
                total += of(point);
                seen += 1.0;
            }
        }
        (at, if mean && seen > 0.0 { total / seen } else { total })
    });
    line.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axis_end_covers_largest_value() {
        for most in [1e-4, 0.37, 1.0, 9.99, 100.0, 12_345.0] {
            let ticks = axis_ticks(most);
            assert!((3..=11).contains(&ticks.len()), "{most}: {ticks:?}");
            assert!(axis_end(&ticks) >= most * 0.999_999, "{most}: {ticks:?}");
        }
        assert_eq!(axis_ticks(0.0), [0.0, 1.0]);
    }
}
