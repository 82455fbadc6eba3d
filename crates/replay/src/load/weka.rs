//! Reads Weka's agent traces (AgentX, kv-cache-tester): a JSON object per run, with nested
//! sub-agents and with hash ids of prompt blocks.
//!
//! A sub-agent is started by the request listed before it. The first later request of its parent
//! that starts after its end waits for it, unless it was launched in the background.
//!
//! **Source:** aiperf 0.13 `dataset/loader/weka_trace_models.py` and `weka_trace.py` (without the
//! detection of agents in a flat list), guidellm 0.8 `data/deserializers/trace_weka.py`,
//! callanjfox/kv-cache-tester `docs/trace_replay_tester.md`.

use std::path::PathBuf;

use serde_json::{Map, Value};

use super::agents::{RecordedAgent, RecordedCall, RecordedRun, TIME_EPSILON_MS, sessions_of_runs};
use super::lines::WorkloadLines;
use super::loaded::LoadedSessions;
use super::options::WorkloadReadOptions;
use super::row::JsonRow;
use crate::workload::{PromptTokenRun, SessionTurn, TurnPrompt, WorkloadError};
use vllm_sim_random::mix_u64_pair;

/// Hash domain of the blocks that hash ids name.
const BLOCK_HASH_DOMAIN: u64 = 11;
/// Hash domain of prompt tokens without a hash id, which no other prompt shares.
const UNSHARED_HASH_DOMAIN: u64 = 12;
/// Scope of hash ids that mean the same tokens in all traces.
const GLOBAL_SCOPE: u64 = u64::MAX;

pub(super) fn is_weka_trace(row: &Map<String, Value>) -> bool {
    row.get("requests").is_some_and(Value::is_array)
        && (row.contains_key("block_size") || row.contains_key("hash_id_scope"))
}

/// Reads all runs in Weka's files: one JSON document per file, or one per line.
pub(super) fn open_weka_traces(
    paths: &[PathBuf],
    options: &WorkloadReadOptions,
) -> Result<LoadedSessions, WorkloadError> {
    let mut runs = Vec::new();
    let mut counts = TraceCounts::default();
    for path in paths {
        let mut lines = WorkloadLines::open(path)?;
        while let Some(document) = lines.next_document()? {
            let place = lines.file_and_line();
            runs.push(read_run(&document, &place, &mut counts)?);
        }
    }
    Ok(sessions_of_runs(runs, options).with_left_out_rows(counts.left_out))
}

#[derive(Default)]
struct TraceCounts {
    runs: u64,
    requests: u64,
    left_out: u64,
}

struct RunReader<'a> {
    id: &'a str,
    block: u32,
    scope: u64,
    agents: Vec<RecordedAgent>,
    counts: &'a mut TraceCounts,
}

fn read_run(
    document: &Value,
    place: &str,
    counts: &mut TraceCounts,
) -> Result<RecordedRun, WorkloadError> {
    let at_place = || place.to_owned();
    let row = JsonRow::new(document, &at_place)?;
    let id = row.text_field("id")?.ok_or_else(|| row.missing_field_error("id"))?;
    counts.runs += 1;
    let scope = match row.text_field("hash_id_scope")? {
        Some("local") => counts.runs,
        Some("global") | None => GLOBAL_SCOPE,
        Some(other) => {
            let problem = format!("hash_id_scope is {other:?}, must be \"local\" or \"global\"");
            return Err(row.row_error(problem));
        }
    };
    let requests = row.array_field("requests")?;
    let requests = requests.ok_or_else(|| row.missing_field_error("requests"))?;
    let mut reader = RunReader {
        id,
        block: row.required_token_count(&["block_size"], 1)?,
        scope,
        agents: vec![RecordedAgent { id: id.to_owned(), ..RecordedAgent::default() }],
        counts,
    };
    reader.read_requests(requests, &format!("{place}: requests"), 0, 0.0)?;
    Ok(RecordedRun { name: id.to_owned(), agents: reader.agents })
}

impl RunReader<'_> {
    /// Reads the requests of an agent, and the requests of the sub-agents that it starts between
    /// them.
    ///
    /// `offset_ms` is the time of the run to which the times in the list are relative.
    fn read_requests(
        &mut self,
        list: &[Value],
        place: &str,
        agent: usize,
        offset_ms: f64,
    ) -> Result<(), WorkloadError> {
        let mut unawaited: Vec<(usize, f64)> = Vec::new();
        let mut last_ms = f64::NEG_INFINITY;
        for (index, value) in list.iter().enumerate() {
            let at = || format!("{place}[{index}]");
            let row = JsonRow::new(value, &at)?;
            let t = row.time_in_seconds_as_ms(&["t"])?;
            let t = t.ok_or_else(|| row.missing_field_error("t"))?;
            match row.text_field("type")? {
                Some("n" | "s") => {}
                Some("subagent") => {
                    let ended = self.read_subagent(&row, &at(), agent, (t, offset_ms))?;
                    unawaited.extend(ended);
                    continue;
                }
                other => {
                    return Err(row.row_error(format!(
                        "type is {}, must be \"n\", \"s\" or \"subagent\"",
                        other.map_or_else(|| "missing".to_owned(), |text| format!("{text:?}"))
                    )));
                }
            }
            if t < last_ms {
                let problem = format!("t is {}, must not be before the request before it", t / 1e3);
                return Err(row.row_error(problem));
            }
            last_ms = t;
            let start_ms = t + offset_ms;
            let Some(call) = self.read_call(&row, start_ms)? else {
                continue;
            };
            let calls = &mut self.agents[agent].calls;
            let waiting = (agent, calls.len());
            calls.push(call);
            unawaited.retain(|(child, ended_ms)| {
                let waits = start_ms + TIME_EPSILON_MS >= *ended_ms;
                if waits {
                    self.agents[*child].awaited_by = Some(waiting);
                }
                !waits
            });
        }
        Ok(())
    }

    /// Reads a model call of the trace; `None` if it has no prompt.
    fn read_call(
        &mut self,
        row: &JsonRow<'_>,
        start_ms: f64,
    ) -> Result<Option<RecordedCall>, WorkloadError> {
        let input = row.required_token_count(&["in"], 0)?;
        let output = row.required_token_count(&["out"], 0)?;
        let took_ms = row.positive_seconds_as_ms(&["api_time"])?.unwrap_or(0.0);
        let ids = row.integer_array("hash_ids")?.unwrap_or_default();
        if ids.len() > input.div_ceil(self.block) as usize {
            return Err(row.row_error(format!(
                "hash_ids has {} entries, must have at most {} (in = {input}, blocks of {})",
                ids.len(),
                input.div_ceil(self.block),
                self.block
            )));
        }
        self.counts.requests += 1;
        if input == 0 {
            self.counts.left_out += 1;
            return Ok(None);
        }
        let runs = self.prompt_runs(&ids, input);
        // A server generates at least one token; requests of 0 are those that clients gave up.
        let turn = SessionTurn::new(TurnPrompt::Whole(runs), output.max(1));
        Ok(Some(RecordedCall { start_ms, end_ms: start_ms + took_ms, turn }))
    }

    /// Returns one token run per full block of the prompt, and one for the tokens without a hash
    /// id.
    ///
    /// A hash id of a block that is not full names no shared content.
    fn prompt_runs(&self, ids: &[u64], input: u32) -> Vec<PromptTokenRun> {
        let full = ids.iter().take((input / self.block) as usize);
        let mut runs: Vec<PromptTokenRun> = full
            .map(|id| PromptTokenRun {
                id: mix_u64_pair(mix_u64_pair(BLOCK_HASH_DOMAIN, self.scope), *id),
                len: self.block,
                same: true,
            })
            .collect();
        let rest = input - runs.len() as u32 * self.block;
        if rest > 0 {
            let id = mix_u64_pair(UNSHARED_HASH_DOMAIN, self.counts.requests);
            runs.push(PromptTokenRun { id, len: rest, same: false });
        }
        runs
    }

    /// Reads a sub-agent; returns its index and end time if the parent agent waits for it.
    fn read_subagent(
        &mut self,
        row: &JsonRow<'_>,
        place: &str,
        parent: usize,
        (t, offset_ms): (f64, f64),
    ) -> Result<Option<(usize, f64)>, WorkloadError> {
        let name =
            row.text_field("agent_id")?.ok_or_else(|| row.missing_field_error("agent_id"))?;
        let list =
            row.array_field("requests")?.ok_or_else(|| row.missing_field_error("requests"))?;
        let took_ms = row.positive_millis(&["duration_ms"])?;
        let background = row.text_field("status")? == Some("async_launched");
        let child = self.agents.len();
        self.agents.push(RecordedAgent {
            id: format!("{}::sa:{name}", self.id),
            started_by: self.agents[parent].calls.len().checked_sub(1).map(|call| (parent, call)),
            ..RecordedAgent::default()
        });
        // Published traces count from the start of the sub-agent or of the run.
        let inner = list.iter().filter_map(|value| value.get("t")?.as_f64());
        let is_relative = inner.map(|s| s * 1e3).any(|inner| inner < t - TIME_EPSILON_MS);
        let base = if is_relative { t + offset_ms } else { offset_ms };
        self.read_requests(list, &format!("{place}.requests"), child, base)?;
        let agent = &self.agents[child];
        let awaited = !background && !agent.calls.is_empty();
        let end_ms = took_ms.map_or(agent.end_ms(), |took| t + offset_ms + took);
        Ok(awaited.then_some((child, end_ms)))
    }
}
