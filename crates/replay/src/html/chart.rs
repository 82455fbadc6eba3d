//! Draws line charts as SVG.

use std::fmt::Write as _;

use super::axis::{CHART_HEIGHT, CHART_WIDTH, ChartAxes, ChartAxis};
use super::blocks::MIN_MS_SHOWN_AS_SECONDS;
use super::escape_html;
use crate::report::{WorkerSampleTrack, WorkerTimelinePoint};

const MAX_CHART_POINTS: usize = 480;

/// Ratio of the medians of two distributions above which the chart of the distributions has a
/// logarithmic axis.
const LOG_AXIS_RATIO: f64 = 20.0;

/// Largest percentage in a chart up to which the chart's percentage axis may end below 100.
const LOW_PERCENTAGE: f64 = 40.0;

/// Line of a chart, with its name in the legend.
#[derive(Debug)]
pub struct ChartLine {
    name: String,
    points: Vec<(f64, f64)>,
    colour: usize,
}

impl ChartLine {
    /// Creates a line of a chart; `colour_index` is an index into the palette of eight colours.
    pub fn new(name: &str, points: Vec<(f64, f64)>, colour_index: usize) -> Self {
        Self { name: name.to_owned(), points, colour: colour_index % 8 }
    }

    /// Draws the line in a chart; horizontal values are multiplied by `scale`.
    fn draw(&self, out: &mut String, axes: &ChartAxes, scale: f64) {
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
                five_significant_digits(point.0 * scale),
                five_significant_digits(point.1)
            );
        }
        out.push_str("\" d=\"");
        for (i, point) in self.points.iter().enumerate() {
            let verb = if i == 0 { 'M' } else { 'L' };
            let _ = write!(
                out,
                "{verb}{:.1} {:.1}",
                axes.x_position(point.0 * scale),
                axes.y_position(point.1)
            );
        }
        out.push_str("\"/>");
    }
}

/// Line chart with axes and a legend.
#[derive(Debug)]
pub struct LineChart<'a> {
    /// Title above the line chart.
    pub title: &'a str,
    /// Unit of the line chart's horizontal axis.
    pub x: &'a str,
    /// Label of the line chart's vertical axis; the axis of a label that begins with `%` ends at
    /// 100, or for low percentages over time at the largest one.
    pub y: &'a str,
    /// Lines of the chart, each with an entry in the legend.
    pub lines: Vec<ChartLine>,
    /// Whether the chart's crosshair follows the vertical rather than the horizontal position of
    /// the mouse, as in charts of distributions.
    pub follows_y: bool,
}

impl<'a> LineChart<'a> {
    /// Creates a chart of values over time in seconds.
    pub fn over_time(title: &'a str, y: &'a str, lines: Vec<ChartLine>) -> Self {
        Self { title, x: "s", y, lines, follows_y: false }
    }

    /// Creates a chart of latency distributions: percentages over milliseconds.
    pub fn of_latencies(title: &'a str, y: &'a str, lines: Vec<ChartLine>) -> Self {
        Self { title, x: "ms", y, lines, follows_y: true }
    }

    /// Appends the chart to `out` as an HTML figure.
    pub fn draw_line_chart(&self, out: &mut String) {
        let all = || self.lines.iter().flat_map(|line| &line.points);
        if all().next().is_none() {
            let _ = write!(
                out,
                "<figure><figcaption>{}</figcaption><p class=\"none\">no data</p></figure>",
                escape_html(self.title)
            );
            return;
        }
        let (axes, unit, scale) = self.axes();
        let (title, y) = (escape_html(self.title), escape_html(self.y));
        let _ = write!(
            out,
            "<figure><figcaption>{title} <small>{y}</small></figcaption>\
             <svg viewBox=\"0 0 {CHART_WIDTH} {CHART_HEIGHT}\" role=\"img\" tabindex=\"0\" \
             aria-label=\"{title}, {y}; arrow keys read values\" data-x=\"{}\" data-by=\"{}\" {}>",
            escape_html(unit),
            if self.follows_y { "y" } else { "x" },
            axes.chart_script_attributes(),
        );
        axes.draw_chart_axes(out);
        for line in &self.lines {
            line.draw(out, &axes, scale);
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

    /// Returns the axes of the chart, the unit of the horizontal axis, and the factor that converts
    /// horizontal values to that unit.
    fn axes(&self) -> (ChartAxes, &str, f64) {
        let all = || self.lines.iter().flat_map(|line| &line.points);
        let most = |of: fn(&(f64, f64)) -> f64| all().map(of).fold(0.0, f64::max);
        let (unit, scale) = match self.x {
            "ms" if most(|p| p.0) > MIN_MS_SHOWN_AS_SECONDS => ("s", 1e-3),
            unit => (unit, 1.0),
        };
        let most_x = most(|p| p.0) * scale;
        let percent = if self.y.starts_with('%') { "%" } else { "" };
        let ends_at_100 = percent == "%" && (self.follows_y || most(|p| p.1) > LOW_PERCENTAGE);
        let y = ChartAxis::axis_from_zero(if ends_at_100 { 100.0 } else { most(|p| p.1) }, percent);
        let least = all().map(|p| p.0 * scale).filter(|x| *x > 0.0).fold(f64::INFINITY, f64::min);
        let x = match self.spans_magnitudes() && least < most_x {
            true => ChartAxis::logarithmic_axis((least, most_x), unit),
            false => ChartAxis::axis_from_zero(most_x, unit),
        };
        (ChartAxes { x, y }, unit, scale)
    }

    /// Returns whether the medians of the distributions are too far apart for a linear axis.
    fn spans_magnitudes(&self) -> bool {
        let medians =
            self.lines.iter().filter_map(|line| Some(line.points.get(line.points.len() / 2)?.0));
        let (least, most) = medians.fold((f64::INFINITY, 0.0_f64), |(least, most), median| {
            (least.min(median), most.max(median))
        });
        self.follows_y && least > 0.0 && most > LOG_AXIS_RATIO * least
    }
}

/// Returns the points of a distribution, from its evenly spaced quantiles: each quantile with the
/// percentage of values up to it.
pub fn distribution_points(quantiles: &[f64]) -> Vec<(f64, f64)> {
    let last = quantiles.len().saturating_sub(1).max(1) as f64;
    let points = quantiles.iter().enumerate();
    points.map(|(i, value)| (*value, i as f64 * 100.0 / last)).collect()
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

/// Sums (or averages) one gauge over the tracks of all workers, at evenly spaced times.
pub(super) fn combine_worker_gauges(
    tracks: &[WorkerSampleTrack],
    of: fn(&WorkerTimelinePoint) -> f64,
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
