//! `GET /dashboard/requests`: the sequences in the engines and their phases, such as waiting or
//! running.

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Response};
use serde_json::{Map, Value, json};

use crate::admin;
use crate::app::{App, AppState};
use crate::error::ok_json_response;
use vllm_sim_engine::driver::{LiveSequenceSnapshot, SequencePhase};

/// Maximum number of sequences that `GET /dashboard/requests` lists, newest first.
const MAX_LISTED_REQUESTS: usize = 200;

/// Handles `GET /dashboard/requests`: returns the number of sequences in each phase by
/// data-parallel rank, and the newest sequences.
///
/// A request of several choices has one sequence per choice. With a key of operators the list needs
/// the key; the counts do not.
pub(crate) async fn list_sequences(State(app): AppState, headers: HeaderMap) -> Response<Body> {
    let most = match admin::check_admin_key(&app, &headers) {
        Ok(()) => MAX_LISTED_REQUESTS,
        Err(_) => 0,
    };
    app.records.trace.start_or_extend_trace_recording(app.service.rank_engines());
    let (first, _) = app.settings.parallel.local_ranks;
    let (mut ranks, mut newest, mut total) = (Vec::new(), Vec::new(), 0);
    for (engine, rank) in app.service.rank_engines().iter().zip(first..) {
        let seen = engine.snapshot_sequences(most);
        total += seen.phases.iter().sum::<usize>();
        let phases = SequencePhase::ALL_PHASES.iter().zip(seen.phases);
        let phases = phases.map(|(phase, count)| (phase.phase_name().to_owned(), count.into()));
        ranks.push(json!({"rank": rank, "phases": phases.collect::<Map<_, _>>()}));
        newest.extend(seen.newest.into_iter().map(|sequence| (rank, sequence)));
    }
    newest.sort_by_key(|(_, sequence)| sequence.age);
    newest.truncate(most);
    let requests = newest.iter();
    let requests = requests.map(|(rank, sequence)| sequence_json(&app, *rank, sequence));
    let requests: Vec<Value> = requests.collect();
    let left_out = total.saturating_sub(requests.len());
    ok_json_response(&json!({"ranks": ranks, "requests": requests, "left_out": left_out}))
}

/// Returns the JSON of one sequence in an engine.
///
/// `model` is the LoRA adapter, if any. `computed_tokens` is `null` if the engine does not count
/// them.
fn sequence_json(app: &App, rank: u32, sequence: &LiveSequenceSnapshot) -> Value {
    let model = app.service.models.displayed_model_name();
    json!({
        "id": *sequence.id,
        "rank": rank,
        "model": **sequence.lora.as_ref().unwrap_or(model),
        "phase": sequence.phase.phase_name(),
        "prompt_tokens": sequence.prompt,
        "cached_tokens": sequence.cached,
        "external_tokens": sequence.external,
        "computed_tokens": sequence.computed,
        "output_tokens": sequence.output,
        "max_tokens": sequence.max_tokens,
        "age_seconds": sequence.age.as_millis() as f64 / 1e3,
    })
}
