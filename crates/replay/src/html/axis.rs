//! Axes of the charts: round ticks, linear or logarithmic.

use std::fmt::Write as _;

use super::format_short_number;

pub(super) const CHART_WIDTH: f64 = 640.0;
pub(super) const CHART_HEIGHT: f64 = 260.0;
const LEFT_MARGIN: f64 = 74.0;
const RIGHT_MARGIN: f64 = 14.0;
const TOP_MARGIN: f64 = 10.0;
const BOTTOM_MARGIN: f64 = 38.0;

/// Axis of a chart, with round ticks; the first and the last tick are the ends of the axis.
#[derive(Debug)]
pub(super) struct ChartAxis {
    ticks: Vec<f64>,
    is_log: bool,
    /// Unit of the axis, shown at the last tick.
    unit: String,
}

impl ChartAxis {
    /// Creates an axis from 0 to at least `max_value`.
    pub(super) fn axis_from_zero(max_value: f64, unit: &str) -> Self {
        Self::linear((0.0, max_value), unit)
    }

    /// Creates an axis around the values, which starts at 0 unless all values are far from 0.
    pub(super) fn axis_around_values(
        values: impl Iterator<Item = f64> + Clone,
        unit: &str,
    ) -> Self {
        let most = values.clone().fold(0.0, f64::max);
        let least = values.fold(f64::INFINITY, f64::min);
        let is_far = least.is_finite() && least > 0.6 * most;
        // One value alone would have no range.
        let low = if is_far { least.min(most * 0.95) } else { 0.0 };
        Self::linear((low, most), unit)
    }

    fn linear((low, most): (f64, f64), unit: &str) -> Self {
        let ticks = match most.is_finite() && most > low {
            true => {
                let step = tick_step(most - low);
                let first = (low / step + 1e-9).floor();
                let count = (most / step - first - 1e-9).ceil().max(1.0) as usize;
                (0..=count).map(|i| (first + i as f64) * step).collect()
            }
            false => vec![0.0, 1.0],
        };
        Self { ticks, is_log: false, unit: unit.to_owned() }
    }

    /// Creates a logarithmic axis whose ticks are powers of ten around positive values.
    pub(super) fn logarithmic_axis((least, most): (f64, f64), unit: &str) -> Self {
        let low = least.log10().floor() as i32;
        let high = (most.log10().ceil() as i32).max(low + 1);
        let ticks = (low..=high).map(|power| 10f64.powi(power)).collect();
        Self { ticks, is_log: true, unit: unit.to_owned() }
    }

    fn ends(&self) -> (f64, f64) {
        let first = self.ticks.first().copied().unwrap_or(0.0);
        (first, self.ticks.last().copied().unwrap_or(1.0))
    }

    /// Returns the position of a value between the ends of the axis, from 0 to 1.
    fn share(&self, value: f64) -> f64 {
        let (low, high) = self.ends();
        match self.is_log {
            true => (value.max(low) / low).ln() / (high / low).ln(),
            false => (value - low) / (high - low),
        }
    }

    /// Returns the ends of a chart's axis and whether the axis is linear or logarithmic, for the
    /// page's script.
    fn script_data(&self) -> String {
        let (low, high) = self.ends();
        format!("{low} {high} {}", if self.is_log { "log" } else { "linear" })
    }

    fn label(&self, tick: usize) -> String {
        let number = format_short_number(self.ticks[tick]);
        match tick + 1 == self.ticks.len() && !self.unit.is_empty() {
            true => format!("{number} {}", self.unit),
            false => number,
        }
    }
}

/// Horizontal and vertical axis of a chart.
#[derive(Debug)]
pub(super) struct ChartAxes {
    pub(super) x: ChartAxis,
    pub(super) y: ChartAxis,
}

impl ChartAxes {
    pub(super) fn x_position(&self, value: f64) -> f64 {
        LEFT_MARGIN + self.x.share(value) * (CHART_WIDTH - LEFT_MARGIN - RIGHT_MARGIN)
    }

    pub(super) fn y_position(&self, value: f64) -> f64 {
        let height = CHART_HEIGHT - TOP_MARGIN - BOTTOM_MARGIN;
        CHART_HEIGHT - BOTTOM_MARGIN - self.y.share(value) * height
    }

    /// Returns the HTML attributes of a chart from which the page's script computes values at mouse
    /// positions.
    pub(super) fn chart_script_attributes(&self) -> String {
        format!(
            "data-box=\"{LEFT_MARGIN} {TOP_MARGIN} {} {}\" data-xs=\"{}\" data-ys=\"{}\"",
            CHART_WIDTH - RIGHT_MARGIN,
            CHART_HEIGHT - BOTTOM_MARGIN,
            self.x.script_data(),
            self.y.script_data(),
        )
    }

    /// Draws the grid lines and the numbers of both axes of a chart.
    pub(super) fn draw_chart_axes(&self, out: &mut String) {
        let right = CHART_WIDTH - RIGHT_MARGIN;
        for (i, tick) in self.y.ticks.iter().enumerate() {
            let at = self.y_position(*tick);
            let _ = write!(
                out,
                "<line class=\"grid\" x1=\"{LEFT_MARGIN}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT_MARGIN - 6.0,
                at + 6.0,
                self.y.label(i)
            );
        }
        let last = self.x.ticks.len() - 1;
        for (i, tick) in self.x.ticks.iter().enumerate() {
            let (anchor, shift) = match i == last {
                true => ("end", RIGHT_MARGIN - 2.0),
                false => ("middle", 0.0),
            };
            let _ = write!(
                out,
                "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"{anchor}\">{}</text>",
                self.x_position(*tick) + shift,
                CHART_HEIGHT - BOTTOM_MARGIN + 24.0,
                self.x.label(i)
            );
        }
    }
}

/// Returns a round step that divides a range into about five parts.
fn tick_step(range: f64) -> f64 {
    let rough = range / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let nice = [1.0, 2.0, 2.5, 5.0, 10.0];
    nice.iter().find(|n| *n * power >= rough * 0.999).unwrap_or(&10.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axis_end_covers_largest_value() {
        for most in [1e-4, 0.37, 1.0, 9.99, 100.0, 12_345.0] {
            let axis = ChartAxis::axis_from_zero(most, "");
            assert!((3..=11).contains(&axis.ticks.len()), "{most}: {axis:?}");
            assert!(axis.ends().1 >= most * 0.999_999, "{most}: {axis:?}");
        }
        assert_eq!(ChartAxis::axis_from_zero(0.0, "").ticks, [0.0, 1.0]);
    }

    #[test]
    fn axis_around_close_values_starts_above_zero() {
        let labels = |values: &[f64]| {
            let axis = ChartAxis::axis_around_values(values.iter().copied(), "%");
            (0..axis.ticks.len()).map(|tick| axis.label(tick)).collect::<Vec<_>>()
        };
        assert_eq!(labels(&[99.1, 100.0]), ["95", "96", "97", "98", "99", "100 %"]);
        assert_eq!(labels(&[2.0, 8.0]), ["0", "2", "4", "6", "8 %"]);
        assert_eq!(labels(&[]), ["0", "1 %"]);
    }

    #[test]
    fn logarithmic_axis_has_powers_of_ten() {
        let axis = ChartAxis::logarithmic_axis((80.0, 12_000.0), "ms");
        assert_eq!(axis.ticks, [10.0, 100.0, 1e3, 1e4, 1e5]);
        assert!((axis.share(1e3) - 0.5).abs() < 1e-12);
        assert_eq!(axis.share(0.0), 0.0);
    }
}
