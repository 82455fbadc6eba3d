//! Draws heat maps of the workers over time.

use std::fmt::Write as _;

use super::worker_track_name;
use crate::report::{WorkerSampleTrack, WorkerTimelinePoint};

const CELLS_PER_ROW: usize = 96;
const MAX_WORKER_ROWS: usize = 64;

/// Title of a heat map, function that reads its gauge, and whether the colour scale ends at 1.
type HeatMetric = (&'static str, fn(&WorkerTimelinePoint) -> f64, bool);

pub(super) fn draw_heat_maps(out: &mut String, tracks: &[WorkerSampleTrack]) {
    if tracks.len() < 2 || tracks.iter().all(|track| track.points.len() < 2) {
        return;
    }
    out.push_str("<section><h2>Workers</h2><div class=\"charts\">");
    let kinds: [HeatMetric; 3] = [
        ("Running requests", |p| p.running, false),
        ("Waiting requests", |p| p.waiting, false),
        ("KV cache in use", |p| p.kv_usage, true),
    ];
    for kind in kinds {
        draw_heat_map(out, tracks, kind);
    }
    out.push_str("</div></section>");
}

fn draw_heat_map(out: &mut String, tracks: &[WorkerSampleTrack], (title, of, share): HeatMetric) {
    let last = tracks.iter().filter_map(|track| track.points.last());
    let last = last.map(|point| point.at).fold(0.0, f64::max);
    let rows: Vec<Vec<Option<f64>>> = tracks
        .iter()
        .take(MAX_WORKER_ROWS)
        .map(|track| average_into_cells(track, of, last))
        .collect();
    let all = rows.iter().flatten().flatten();
    let most = if share { 1.0 } else { all.fold(0.0, |a: f64, b| a.max(*b)) };
    let left = 104.0;
    let height = (260.0 / rows.len() as f64).clamp(6.0, 24.0);
    let width = (640.0 - left) / CELLS_PER_ROW as f64;
    let total = height * rows.len() as f64 + 26.0;
    let shown = |value: f64| match share {
        true => format!("{} %", super::format_short_number(value * 100.0)),
        false => super::format_short_number(value),
    };
    let _ = write!(
        out,
        "<figure><figcaption>{title} <small>0 to {}</small></figcaption>\
         <svg class=\"heat\" viewBox=\"0 0 640 {total:.0}\" role=\"img\" aria-label=\"{title}\">",
        shown(most)
    );
    let labelled = (20.0 / height).ceil() as usize;
    for (r, (row, track)) in rows.iter().zip(tracks).enumerate() {
        let y = r as f64 * height;
        if r % labelled.max(1) == 0 {
            let at = y + height / 2.0 + 6.0;
            let _ = write!(
                out,
                "<text x=\"{}\" y=\"{at:.1}\" text-anchor=\"end\">{}</text>",
                left - 5.0,
                worker_track_name(track)
            );
        }
        let place = RowRectangle { left, y, width, height };
        draw_worker_row(out, row, &place, |value, from| {
            (
                shade_index(value, most),
                format!(
                    "{}, from {} s: {}",
                    worker_track_name(track),
                    super::format_short_number(last * from),
                    shown(value)
                ),
            )
        });
    }
    let _ = write!(
        out,
        "<text x=\"{left}\" y=\"{:.0}\">0</text>\
         <text x=\"640\" y=\"{:.0}\" text-anchor=\"end\">{} s</text></svg>",
        total - 5.0,
        total - 5.0,
        super::format_short_number(last)
    );
    if tracks.len() > MAX_WORKER_ROWS {
        let _ = write!(
            out,
            "<p class=\"none\">the first {MAX_WORKER_ROWS} of {} workers</p>",
            tracks.len()
        );
    }
    out.push_str("</figure>");
}

struct RowRectangle {
    left: f64,
    y: f64,
    width: f64,
    height: f64,
}

/// Draws the cells of one worker's row in a heat map.
///
/// `describe` maps a gauge value and the start of its cell (as a fraction of the run) to shade and
/// tooltip.
fn draw_worker_row(
    out: &mut String,
    row: &[Option<f64>],
    place: &RowRectangle,
    describe: impl Fn(f64, f64) -> (u32, String),
) {
    let mut c = 0;
    while c < CELLS_PER_ROW {
        let Some(value) = row[c] else {
            c += 1;
            continue;
        };
        // Adjacent cells of one shade form one rectangle.
        let (shade, words) = describe(value, c as f64 / CELLS_PER_ROW as f64);
        let same = |v: &Option<f64>| v.is_some_and(|v| describe(v, 0.0).0 == shade);
        let run = row[c..].iter().take_while(|v| same(v)).count().max(1);
        let _ = write!(
            out,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" \
             fill-opacity=\"{:.2}\" data-tip=\"{words}\"/>",
            place.left + c as f64 * place.width,
            place.y,
            place.width * run as f64 + 0.3,
            place.height - 1.0,
            f64::from(shade) / 20.0,
        );
        c += run;
    }
}

fn shade_index(value: f64, most: f64) -> u32 {
    if most <= 0.0 {
        return 0;
    }
    (value / most * 20.0).round().clamp(0.0, 20.0) as u32
}

/// Averages a gauge of one worker over even time intervals; an interval without samples repeats the
/// previous mean.
fn average_into_cells(
    track: &WorkerSampleTrack,
    of: fn(&WorkerTimelinePoint) -> f64,
    last: f64,
) -> Vec<Option<f64>> {
    let mut sums = vec![(0.0, 0u32); CELLS_PER_ROW];
    for point in &track.points {
        let cell = (point.at / last.max(1e-12) * CELLS_PER_ROW as f64) as usize;
        let (sum, n) = &mut sums[cell.min(CELLS_PER_ROW - 1)];
        *sum += of(point);
        *n += 1;
    }
    let first = sums.iter().position(|(_, n)| *n > 0).unwrap_or(CELLS_PER_ROW);
    let end = sums.iter().rposition(|(_, n)| *n > 0).map_or(0, |i| i + 1);
    let mut before = None;
    let cells = sums.iter().enumerate().map(|(i, (sum, n))| {
        if i < first || i >= end {
            return None;
        }
        if *n > 0 {
            before = Some(sum / f64::from(*n));
        }
        before
    });
    cells.collect()
}
