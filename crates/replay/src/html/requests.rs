//! Renders the timeline of requests per worker, drawn by the script of the page.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::outcome::PoolRole;
use crate::report::{RequestPhase, RequestWorkerSpan, SampledRequestSpans};

/// Appends a timeline of sampled requests to the page; appends nothing if the report has none.
///
/// The script receives, per worker, one list per request: its number, its start in microseconds,
/// and pairs of a phase and its duration in microseconds.
pub(super) fn draw_request_timeline(out: &mut String, spans: &SampledRequestSpans) {
    if spans.kept.is_empty() {
        return;
    }
    let mut workers: BTreeMap<(PoolRole, u32), Vec<&RequestWorkerSpan>> = BTreeMap::new();
    for span in &spans.kept {
        let place = (span.pool, span.worker);
        workers.entry(place).or_default().push(span);
    }
    out.push_str("<section><h2>Requests</h2><figure class=\"requests\">");
    out.push_str("<figcaption>Phases of each request</figcaption><p class=\"none\">");
    let _ = match spans.one_of {
        1 => write!(out, "All {} requests. ", spans.seen),
        n => write!(
            out,
            "One in {n} of the {} requests, sampled evenly by number: the chart has fewer rows \
             than all requests would need. ",
            spans.seen
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
        let _ = write!(out, "<button type=\"button\" data-do=\"{what}\">{label}</button>");
    }
    out.push_str("</div><div class=\"rows\"><canvas role=\"img\" aria-label=\"Requests of the worker over time\"></canvas></div><ul class=\"legend\">");
    for (name, phase) in RequestPhase::NAMED_REQUEST_PHASES {
        let _ = write!(out, "<li class=\"c{}\">{name}</li>", phase_colour(phase));
    }
    out.push_str("</ul><noscript><p>This chart needs JavaScript.</p></noscript>");
    out.push_str("<script type=\"application/json\">[");
    for (at, ((pool, worker), list)) in workers.iter_mut().enumerate() {
        list.sort_by_key(|span| (span_start_nanos(span), span.number));
        let comma = if at > 0 { "," } else { "" };
        let _ = write!(out, "{comma}[\"{} {worker}\"", pool.pool_role_page_label());
        list.iter().for_each(|span| draw_request_span(out, span));
        out.push(']');
    }
    out.push_str("]</script></figure></section>");
}

fn span_start_nanos(span: &RequestWorkerSpan) -> u64 {
    span.phases.first().map_or(0, |(at, _)| at.as_nanos() / 1000)
}

fn draw_request_span(out: &mut String, span: &RequestWorkerSpan) {
    let _ = write!(out, ",[{},{}", span.number, span_start_nanos(span));
    let ends = span.phases.iter().skip(1).map(|(at, _)| *at);
    let ends = ends.chain([span.end]);
    let mut from = span_start_nanos(span);
    for ((_, phase), end) in span.phases.iter().zip(ends) {
        let end = end.as_nanos() / 1000;
        // Phases of zero length are not drawn.
        if end > from {
            let _ = write!(out, ",{},{}", phase_colour(*phase), end - from);
            from = end;
        }
    }
    out.push(']');
}

fn phase_colour(phase: RequestPhase) -> u8 {
    match phase {
        RequestPhase::Decode => 0,
        RequestPhase::Prefill => 1,
        RequestPhase::Queue => 8,
        RequestPhase::Transfer => 3,
        RequestPhase::Preempted => 4,
    }
}
