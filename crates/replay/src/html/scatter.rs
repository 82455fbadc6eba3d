//! Draws scatter charts as SVG, with numbered points.

use std::fmt::Write as _;

use super::axis::{CHART_HEIGHT, CHART_WIDTH, ChartAxes, ChartAxis};
use super::escape_html;

/// Distance in chart units below which points share one number label.
const LABEL_DISTANCE: f64 = 26.0;

/// Point of a scatter chart.
#[derive(Debug, Clone)]
pub struct ScatterPoint {
    /// Horizontal value of the point in a scatter chart.
    pub x: f64,
    /// Vertical value of the point in a scatter chart.
    pub y: f64,
    /// Description of the chart's point, shown in its tooltip.
    pub name: String,
    /// Number of the table row that describes the point; `None` draws a small point without a
    /// number.
    pub number: Option<usize>,
}

/// Scatter chart with numbered points, one for each row of a table on the page.
#[derive(Debug)]
pub struct ScatterChart<'a> {
    /// Title above the scatter chart.
    pub title: &'a str,
    /// Label of the scatter chart's horizontal axis.
    pub x: &'a str,
    /// Label of the scatter chart's vertical axis.
    pub y: &'a str,
    /// Points of the scatter chart.
    pub points: Vec<ScatterPoint>,
    /// Number of the table row of the best point, if there is one.
    pub best: Option<usize>,
    /// Line through the points of the scatter chart that no other point beats in both values (the
    /// Pareto front).
    pub front: Vec<(f64, f64)>,
}

impl ScatterChart<'_> {
    /// Appends the chart to `out` as an HTML figure.
    pub fn draw_scatter_chart(&self, out: &mut String) {
        let title = escape_html(self.title);
        if self.points.is_empty() {
            let _ = write!(
                out,
                "<figure><figcaption>{title}</figcaption><p class=\"none\">no data</p></figure>"
            );
            return;
        }
        let unit = if self.y.contains('%') { "%" } else { "" };
        let axes = ChartAxes {
            x: ChartAxis::axis_around_values(self.points.iter().map(|point| point.x), ""),
            y: ChartAxis::axis_around_values(self.points.iter().map(|point| point.y), unit),
        };
        let (x, y) = (escape_html(self.x), escape_html(self.y));
        let _ = write!(
            out,
            "<figure><figcaption>{title} <small>↑ {y}</small></figcaption>\
             <svg viewBox=\"0 0 {CHART_WIDTH} {CHART_HEIGHT}\" role=\"img\" \
             aria-label=\"{title}: {y} against {x}\">"
        );
        axes.draw_chart_axes(out);
        let front = self
            .front
            .iter()
            .map(|(x, y)| format!("{:.1} {:.1}", axes.x_position(*x), axes.y_position(*y)));
        let front: Vec<String> = front.collect();
        if front.len() > 1 {
            let _ = write!(out, "<path class=\"front\" d=\"M{}\"/>", front.join("L"));
        }
        for point in &self.points {
            let (class, radius) = match point.number {
                Some(number) if Some(number) == self.best => ("point best", 9),
                Some(_) => ("point", 8),
                None => ("", 4),
            };
            let _ = write!(
                out,
                "<circle class=\"{class}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"{radius}\"><title>{}</title></circle>",
                axes.x_position(point.x),
                axes.y_position(point.y),
                escape_html(&point.name),
            );
        }
        self.draw_numbers(out, &axes);
        let _ = write!(out, "</svg><p class=\"axis\">{x} →</p></figure>");
    }

    /// Draws the row numbers of the points; points close to one another share a label.
    fn draw_numbers(&self, out: &mut String, axes: &ChartAxes) {
        let mut labels: Vec<(f64, f64, Vec<String>)> = Vec::new();
        for point in &self.points {
            let Some(number) = point.number else { continue };
            let (x, y) = (axes.x_position(point.x), axes.y_position(point.y));
            let near = |(other_x, other_y, _): &&mut (f64, f64, Vec<String>)| {
                (*other_x - x).hypot(*other_y - y) < LABEL_DISTANCE
            };
            match labels.iter_mut().find(near) {
                Some((_, _, numbers)) => numbers.push(number.to_string()),
                None => labels.push((x, y, vec![number.to_string()])),
            }
        }
        for (x, y, numbers) in labels {
            let (shift, anchor) = match x > CHART_WIDTH - 80.0 {
                true => (-12.0, "end"),
                false => (12.0, "start"),
            };
            // At the top there is no room above a point.
            let lift = if y < 24.0 { 20.0 } else { -8.0 };
            let _ = write!(
                out,
                "<text class=\"number\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>",
                x + shift,
                y + lift,
                numbers.join(", ")
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_points_share_one_label() {
        let point = |x, y, number| ScatterPoint { x, y, name: "a <b>".to_owned(), number };
        let points =
            vec![point(1.0, 1.0, Some(1)), point(1.02, 1.0, Some(2)), point(9.0, 9.0, None)];
        let (best, front) = (Some(1), vec![(1.0, 1.0), (9.0, 9.0)]);
        let chart = ScatterChart { title: "t", x: "cost", y: "% good", points, best, front };
        let mut page = String::new();
        chart.draw_scatter_chart(&mut page);
        assert_eq!(page.matches("class=\"number\"").count(), 1, "{page}");
        assert!(page.contains(">1, 2</text>") && page.contains("class=\"point best\""), "{page}");
        assert!(page.contains("a &lt;b&gt;") && page.contains("cost →"), "{page}");
        assert!(page.contains(">10 %</text>"), "{page}");
    }
}
