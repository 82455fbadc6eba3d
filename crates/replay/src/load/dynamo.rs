//! Reads Dynamo's request traces (`dynamo.request.trace.v1`), one record per finished request.
//!
//! Records with an `agent_context` become sessions whose turns follow one another after the
//! recorded pause; others are single requests. Source: Dynamo's documentation of request replay
//! tracing, 1.6.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::lines::Lines;
use super::loaded::{LoadedSessions, SessionOrder, millis, nanos};
use super::mooncake::runs;
use super::row::Row;
use crate::workload::{Prompt, Session, Turn, WorkloadError};

const SCHEMA: &str = "dynamo.request.trace.v1";

pub(super) fn fits(row: &Map<String, Value>) -> bool {
    let schema = |row: &Map<String, Value>| {
        let schema = row.get("schema").and_then(Value::as_str);
        schema == Some(SCHEMA)
    };
    schema(row)
        || row
            .get("event")
            .and_then(Value::as_object)
            .is_some_and(schema)
}

struct TracedRequest {
    session: Option<Arc<str>>,
    received_ms: f64,
    ended_ms: f64,
    turn: Turn,
}

/// Reads all records of Dynamo's request traces, whose block sizes must be equal.
pub(super) fn open(paths: &[PathBuf]) -> Result<LoadedSessions, WorkloadError> {
    let mut records = Vec::new();
    let mut block = None;
    for path in paths {
        let mut lines = Lines::open(path)?;
        while lines.step()? {
            let value: Value = serde_json::from_str(lines.line())
                .map_err(|error| lines.bad(format!("is not JSON: {error}")))?;
            let place = || lines.place();
            let row = Row::new(&value, &place)?;
            // Some sinks wrap the record in `event`.
            let row = match row.has("schema") {
                true => row,
                false => row.object("event")?.ok_or_else(|| row.missing("schema"))?,
            };
            let schema = row.text("schema")?.unwrap_or_default();
            if schema != SCHEMA {
                return Err(row.bad(format!("schema is {schema:?}, must be {SCHEMA:?}")));
            }
            if row.text("event_type")? != Some("request_end") {
                continue;
            }
            let record = record(&row, &mut block)?;
            let mixed = records.first().is_some_and(|first: &TracedRequest| {
                first.session.is_some() != record.session.is_some()
            });
            if mixed {
                let problem = "agent_context must be in every record or in none";
                return Err(row.bad(problem));
            }
            records.push(record);
        }
    }
    Ok(LoadedSessions::new(
        sessions(records),
        SessionOrder::ByStart,
    ))
}

fn record(row: &Row<'_>, block: &mut Option<u32>) -> Result<TracedRequest, WorkloadError> {
    let request = row
        .object("request")?
        .ok_or_else(|| row.missing("request"))?;
    let replay = request.object("replay")?;
    let replay = replay.ok_or_else(|| row.missing("request.replay"))?;
    let size = replay.needed_tokens(&["trace_block_size"], 1)?;
    let known = *block.get_or_insert(size);
    if known != size {
        return Err(row.bad(format!(
            "trace_block_size is {size}, must be {known} as in the records before"
        )));
    }
    let input = replay.needed_tokens(&["input_length"], 1)?;
    let ids = replay.ids("input_sequence_hashes")?;
    let ids = ids.ok_or_else(|| row.missing("input_sequence_hashes"))?;
    let expected = input.div_ceil(size) as usize;
    if ids.len() != expected {
        return Err(row.bad(format!(
            "input_sequence_hashes has {} entries, must have {expected} for {input} tokens",
            ids.len()
        )));
    }
    let prompt = Prompt::Whole(runs(&replay, &ids, Some(input), size, u64::MAX)?);
    let mut turn = Turn::new(prompt, request.needed_tokens(&["output_tokens"], 0)?);
    turn.request_id = request.text("request_id")?.map(Arc::from);
    let received_ms = request.positive_millis(&["request_received_ms"])?;
    let received_ms = received_ms.ok_or_else(|| row.missing("request_received_ms"))?;
    let ended_ms = match request.positive_millis(&["total_time_ms"])? {
        Some(took) => received_ms + took,
        None => row
            .positive_millis(&["event_time_unix_ms"])?
            .unwrap_or(received_ms),
    };
    let session = match row.object("agent_context")? {
        None => None,
        Some(context) => {
            let id = context.text("session_id")?;
            Some(
                id.ok_or_else(|| row.missing("agent_context.session_id"))?
                    .into(),
            )
        }
    };
    Ok(TracedRequest {
        session,
        received_ms,
        ended_ms,
        turn,
    })
}

fn sessions(mut records: Vec<TracedRequest>) -> Vec<(f64, Session)> {
    records.sort_by(|a, b| a.received_ms.total_cmp(&b.received_ms));
    let mut sessions: Vec<(f64, Session)> = Vec::new();
    let mut known: HashMap<Arc<str>, (usize, f64)> = HashMap::new();
    for mut record in records {
        if let Some((at, ended_ms)) = record.session.as_ref().and_then(|id| known.get_mut(id)) {
            record.turn.delay_ns = nanos((record.received_ms - *ended_ms).max(0.0));
            *ended_ms = record.ended_ms;
            sessions[*at].1.turns.push(record.turn);
            continue;
        }
        if let Some(id) = &record.session {
            known.insert(Arc::clone(id), (sessions.len(), record.ended_ms));
        }
        let session = Session {
            id: record.session,
            start: millis(0.0),
            turns: vec![record.turn],
            after: Vec::new(),
            play: None,
        };
        sessions.push((record.received_ms, session));
    }
    sessions
}
