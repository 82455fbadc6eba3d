//! Renders the timeline of requests per worker, drawn by the script of the page.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::outcome::PoolRole;
use crate::report::{RequestSpans, SpanPhase, WorkerSpan};

/// Appends the timeline of requests to the page, if the report kept any.
///
/// The script receives, per worker, one list per request: its number, its start in microseconds,
/// and pairs of a phase and its duration in microseconds.
pub(super) fn timeline(out: &mut String, spans: &RequestSpans) {
    if spans.kept().is_empty() {
        return;
    }
    let mut workers: BTreeMap<(PoolRole, u32), Vec<&WorkerSpan>> = BTreeMap::new();
    for span in spans.kept() {
        let place = (span.pool, span.worker);
        workers.entry(place).or_default().push(span);
    }
    out.push_str("<section><h2>Requests</h2><figure class=\"requests\">");
    out.push_str("<figcaption>Phases of each request</figcaption><p class=\"none\">");
    let _ = match spans.one_of() {
        1 => write!(out, "All {} requests. ", spans.seen()),
        n => write!(
            out,
            "One in {n} of the {} requests, sampled evenly by number: the chart has fewer rows \
             than all requests would need. ",
            spans.seen()
        ),
    };
    out.push_str(
        "Zoom with the buttons, with Ctrl and the mouse wheel, or by dragging over a range; each \
         bar is a request.</p>",
    );
    out.push_str("<div class=\"bar\"><label>Worker <select></select></label>");
    for (what, label) in [
        ("in", "Zoom in"),
        ("out", "Zoom out"),
        ("left", "Earlier"),
        ("right", "Later"),
        ("all", "All"),
    ] {
        let _ = write!(
            out,
            "<button type=\"button\" data-do=\"{what}\">{label}</button>"
        );
    }
    out.push_str("</div><div class=\"rows\"><canvas role=\"img\" aria-label=\"Requests of the worker over time\"></canvas></div><ul class=\"legend\">");
    for (name, phase) in SpanPhase::NAMES {
        let _ = write!(out, "<li class=\"c{}\">{name}</li>", colour(phase));
    }
    out.push_str("</ul><noscript><p>This chart needs JavaScript.</p></noscript>");
    out.push_str("<script type=\"application/json\">[");
    for (at, ((pool, worker), list)) in workers.iter_mut().enumerate() {
        list.sort_by_key(|span| (start(span), span.number));
        let comma = if at > 0 { "," } else { "" };
        let _ = write!(out, "{comma}[\"{} {worker}\"", pool.label());
        list.iter().for_each(|span| request(out, span));
        out.push(']');
    }
    out.push_str("]</script></figure></section>");
}

fn start(span: &WorkerSpan) -> u64 {
    span.phases.first().map_or(0, |(at, _)| at.nanos() / 1000)
}

fn request(out: &mut String, span: &WorkerSpan) {
    let _ = write!(out, ",[{},{}", span.number, start(span));
    let ends = span.phases.iter().skip(1).map(|(at, _)| *at);
    let ends = ends.chain([span.end]);
    let mut from = start(span);
    for ((_, phase), end) in span.phases.iter().zip(ends) {
        let end = end.nanos() / 1000;
        // Phases of zero length are not drawn.
        if end > from {
            let _ = write!(out, ",{},{}", colour(*phase), end - from);
            from = end;
        }
    }
    out.push(']');
}

fn colour(phase: SpanPhase) -> u8 {
    match phase {
        SpanPhase::Decode => 0,
        SpanPhase::Prefill => 1,
        SpanPhase::Queue => 8,
        SpanPhase::Transfer => 3,
        SpanPhase::Preempted => 4,
    }
}
