//! Reads Dynamo's request traces (`dynamo.request.trace.v1`), one record per finished request.
//!
//! Records with an `agent_context` become sessions whose turns follow one another after the
//! recorded pause; others are single requests. Source: Dynamo's documentation of request replay
//! tracing, 1.6.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::lines::for_each_json_row;
use super::loaded::{LoadedSessions, SessionOrder, nanos_from_ms};
use super::mooncake::hash_ids_to_token_runs;
use super::row::JsonRow;
use crate::workload::{ClientSession, SessionTurn, TurnPrompt, WorkloadError};

const DYNAMO_TRACE_SCHEMA: &str = "dynamo.request.trace.v1";

pub(super) fn is_dynamo_request_trace(row: &Map<String, Value>) -> bool {
    let schema = |row: &Map<String, Value>| {
        let schema = row.get("schema").and_then(Value::as_str);
        schema == Some(DYNAMO_TRACE_SCHEMA)
    };
    schema(row) || row.get("event").and_then(Value::as_object).is_some_and(schema)
}

struct TracedRequest {
    session: Option<Arc<str>>,
    received_ms: f64,
    ended_ms: f64,
    turn: SessionTurn,
}

/// Reads all records of Dynamo's request traces, whose block sizes must be equal.
pub(super) fn open_dynamo_traces(paths: &[PathBuf]) -> Result<LoadedSessions, WorkloadError> {
    let mut records = Vec::new();
    let mut block = None;
    for_each_json_row(paths, |row, _| {
        // Some sinks wrap the record in `event`.
        let event = match row.has_field("schema") {
            true => None,
            false => {
                Some(row.object_field("event")?.ok_or_else(|| row.missing_field_error("schema"))?)
            }
        };
        let row = event.as_ref().unwrap_or(row);
        let schema = row.text_field("schema")?.unwrap_or_default();
        if schema != DYNAMO_TRACE_SCHEMA {
            let problem = format!("schema is {schema:?}, must be {DYNAMO_TRACE_SCHEMA:?}");
            return Err(row.row_error(problem));
        }
        if row.text_field("event_type")? != Some("request_end") {
            return Ok(());
        }
        let record = parse_traced_request(row, &mut block)?;
        let mixed = records.first().is_some_and(|first: &TracedRequest| {
            first.session.is_some() != record.session.is_some()
        });
        if mixed {
            return Err(row.row_error("agent_context must be in every record or in none"));
        }
        records.push(record);
        Ok(())
    })?;
    Ok(LoadedSessions::new(build_sessions(records), SessionOrder::ByStart))
}

fn parse_traced_request(
    row: &JsonRow<'_>,
    block: &mut Option<u32>,
) -> Result<TracedRequest, WorkloadError> {
    let request = row.required(JsonRow::object_field, "request")?;
    let replay = request.object_field("replay")?;
    let replay = replay.ok_or_else(|| row.missing_field_error("request.replay"))?;
    let size = replay.required_token_count_field(&["trace_block_size"], 1)?;
    let known = *block.get_or_insert(size);
    if known != size {
        return Err(row.row_error(format!(
            "trace_block_size is {size}, must be {known} as in the records before"
        )));
    }
    let input = replay.required_token_count_field(&["input_length"], 1)?;
    let ids = replay.integer_array_field("input_sequence_hashes")?;
    let ids = ids.ok_or_else(|| row.missing_field_error("input_sequence_hashes"))?;
    let expected = input.div_ceil(size) as usize;
    if ids.len() != expected {
        return Err(row.row_error(format!(
            "input_sequence_hashes has {} entries, must have {expected} for {input} tokens",
            ids.len()
        )));
    }
    let prompt =
        TurnPrompt::Whole(hash_ids_to_token_runs(&replay, &ids, Some(input), size, u64::MAX)?);
    let mut turn =
        SessionTurn::new(prompt, request.required_token_count_field(&["output_tokens"], 0)?);
    turn.request_id = request.text_field("request_id")?.map(Arc::from);
    let received_ms = request.positive_millis_field(&["request_received_ms"])?;
    let received_ms = received_ms.ok_or_else(|| row.missing_field_error("request_received_ms"))?;
    let ended_ms = match request.positive_millis_field(&["total_time_ms"])? {
        Some(took) => received_ms + took,
        None => row.positive_millis_field(&["event_time_unix_ms"])?.unwrap_or(received_ms),
    };
    let session = match row.object_field("agent_context")? {
        None => None,
        Some(context) => {
            let id = context.text_field("session_id")?;
            Some(id.ok_or_else(|| row.missing_field_error("agent_context.session_id"))?.into())
        }
    };
    Ok(TracedRequest { session, received_ms, ended_ms, turn })
}

fn build_sessions(mut records: Vec<TracedRequest>) -> Vec<(f64, ClientSession)> {
    records.sort_by(|a, b| a.received_ms.total_cmp(&b.received_ms));
    let mut sessions: Vec<(f64, ClientSession)> = Vec::new();
    let mut known: HashMap<Arc<str>, (usize, f64)> = HashMap::new();
    for mut record in records {
        if let Some((at, ended_ms)) = record.session.as_ref().and_then(|id| known.get_mut(id)) {
            record.turn.delay_ns = nanos_from_ms((record.received_ms - *ended_ms).max(0.0));
            *ended_ms = record.ended_ms;
            sessions[*at].1.turns.push(record.turn);
            continue;
        }
        if let Some(id) = &record.session {
            known.insert(Arc::clone(id), (sessions.len(), record.ended_ms));
        }
        let session = ClientSession::new(record.session, vec![record.turn]);
        sessions.push((record.received_ms, session));
    }
    sessions
}
