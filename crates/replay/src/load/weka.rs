//! Reads Weka's agent traces (AgentX, kv-cache-tester): a JSON object per run, with nested
//! sub-agents and with hash ids of prompt blocks.
//!
//! A sub-agent is started by the request listed before it. The first later request of its parent
//! that starts after its end waits for it, unless it was launched in the background.
//!
//! With [`WorkloadFormat::WekaSplit`] a list of the requests of several agents is split.
//!
//! **Source:** aiperf 0.13 `dataset/loader/weka_trace_models.py` and `weka_trace.py`, guidellm 0.8
//! `data/deserializers/trace_weka.py`, callanjfox/kv-cache-tester `docs/trace_replay_tester.md`.

use std::path::PathBuf;

use serde_json::{Map, Value};

use super::agents::{
    RecordedAgent, RecordedAgentCall, RecordedAgentRun, TIME_EPSILON_MS, sessions_of_agent_runs,
};
use super::lines::WorkloadLines;
use super::loaded::LoadedSessions;
use super::options::{WorkloadFormat, WorkloadReadOptions};
use super::row::JsonRow;
use super::weka_chains::{WekaTraceRequest, split_into_agent_chains};
use crate::workload::{PromptTokenRun, SessionTurn, TurnPrompt, WorkloadError};
use vllm_sim_random::mix_u64_pair;

/// Salt in the hashes of the prompt blocks to which a Weka trace gives a hash id.
const BLOCK_HASH_DOMAIN: u64 = 11;
/// Salt in the hashes of prompt tokens of a Weka trace without a hash id, which no other prompt of
/// the trace shares.
const UNSHARED_HASH_DOMAIN: u64 = 12;
/// Scope of hash ids that stand for the same tokens in all Weka traces.
const GLOBAL_SCOPE: u64 = u64::MAX;

pub(super) fn is_weka_trace(row: &Map<String, Value>) -> bool {
    row.get("requests").is_some_and(Value::is_array)
        && (row.contains_key("block_size") || row.contains_key("hash_id_scope"))
}

/// Error text for a request of a Weka trace outside of a run.
pub(super) const WEKA_REQUEST_WITHOUT_RUN_ERROR: &str = "is a request of a Weka trace without its run, so its \
    session and block size are unknown; must be in `requests` of an object with id and block_size";

/// Returns whether a row is a request of a Weka trace outside of any run. Requests must be in the
/// `requests` list of a run.
pub(super) fn is_weka_request_without_run(row: &Map<String, Value>) -> bool {
    ["t", "in", "out", "hash_ids"].iter().all(|key| row.contains_key(*key))
        && !row.contains_key("requests")
}

/// Reads all runs in Weka's files: one JSON document per file, or one per line.
pub(super) fn open_weka_traces(
    paths: &[PathBuf],
    options: &WorkloadReadOptions,
) -> Result<LoadedSessions, WorkloadError> {
    let mut runs = Vec::new();
    let mut counts = TraceCounts::default();
    for path in paths {
        let mut lines = WorkloadLines::open_workload_file(path)?;
        while let Some(document) = lines.read_next_json_document()? {
            let place = lines.file_and_line();
            runs.push(read_run(&document, &place, options.format, &mut counts)?);
        }
    }
    let mut sessions = sessions_of_agent_runs(runs, options);
    sessions.facts.left_out_rows = counts.left_out;
    Ok(sessions)
}

#[derive(Default)]
struct TraceCounts {
    runs: u64,
    requests: u64,
    left_out: u64,
}

/// Agent split off from the list of another agent in the trace, because the requests of the two
/// agents overlap. Stored with the end time of the agent's last request.
struct SplitAgent {
    agent: usize,
    end_ms: f64,
}

struct RunReader<'a> {
    id: &'a str,
    block: u32,
    scope: u64,
    /// Whether lists with the requests of several agents are split into one list per agent.
    split: bool,
    agents: Vec<RecordedAgent>,
    counts: &'a mut TraceCounts,
}

fn read_run(
    document: &Value,
    place: &str,
    format: WorkloadFormat,
    counts: &mut TraceCounts,
) -> Result<RecordedAgentRun, WorkloadError> {
    let at_place = || place.to_owned();
    // A flat list may be an array; its first request says what is missing.
    let first = document.as_array().and_then(|list| list.first()).unwrap_or(document);
    let row = JsonRow::json_row_from_value(document, &at_place);
    if first.as_object().is_some_and(is_weka_request_without_run) {
        let problem = WEKA_REQUEST_WITHOUT_RUN_ERROR.to_owned();
        return Err(WorkloadError::Bad { place: place.to_owned(), problem });
    }
    let row = row?;
    let id = row.required(JsonRow::text_field, "id")?;
    counts.runs += 1;
    let scope = match row.text_field("hash_id_scope")? {
        Some("local") => counts.runs,
        Some("global") | None => GLOBAL_SCOPE,
        Some(other) => {
            let problem = format!("hash_id_scope is {other:?}, must be \"local\" or \"global\"");
            return Err(row.row_error(problem));
        }
    };
    let requests = row.required(JsonRow::array_field, "requests")?;
    let mut reader = RunReader {
        id,
        block: row.required_token_count_field(&["block_size"], 1)?,
        scope,
        split: format == WorkloadFormat::WekaSplit,
        agents: vec![RecordedAgent { id: id.to_owned(), ..RecordedAgent::default() }],
        counts,
    };
    let workers = reader.read_requests(requests, &format!("{place}: requests"), 0, 0.0)?;
    reader.link_workers(&workers);
    Ok(RecordedAgentRun { name: id.to_owned(), agents: reader.agents })
}

impl RunReader<'_> {
    /// Reads the requests of an agent in a Weka trace, and the requests of the sub-agents that the
    /// agent starts between its requests.
    ///
    /// `offset_ms` is the time of the run to which the times in the list are relative. Returns the
    /// agents that are split off.
    fn read_requests(
        &mut self,
        list: &[Value],
        place: &str,
        agent: usize,
        offset_ms: f64,
    ) -> Result<Vec<SplitAgent>, WorkloadError> {
        let mut listed = Vec::new();
        let mut unawaited: Vec<(usize, f64)> = Vec::new();
        let mut last_ms = f64::NEG_INFINITY;
        for (index, value) in list.iter().enumerate() {
            let at = || format!("{place}[{index}]");
            let row = JsonRow::json_row_from_value(value, &at)?;
            let t = row.seconds_field_as_ms(&["t"])?;
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
            let Some((call, hash_ids)) = self.read_call(&row, start_ms)? else {
                continue;
            };
            if self.split {
                let (end_ms, output) = (call.end_ms, call.turn.output);
                let model = value.get("model").and_then(Value::as_str);
                listed.push(WekaTraceRequest { start_ms, end_ms, output, model, hash_ids });
            }
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
        Ok(self.split_agent(agent, &listed))
    }

    /// Moves requests that belong to other agents out of the request list of `agent`, and returns
    /// these agents.
    fn split_agent(&mut self, agent: usize, listed: &[WekaTraceRequest<'_>]) -> Vec<SplitAgent> {
        let mut chains = split_into_agent_chains(listed).into_iter();
        let Some(main) = chains.next() else {
            return Vec::new();
        };
        let calls = std::mem::take(&mut self.agents[agent].calls);
        let mut calls: Vec<Option<RecordedAgentCall>> = calls.into_iter().map(Some).collect();
        let mut take = |indexes: &[usize]| {
            let taken = indexes.iter().filter_map(|index| calls[*index].take());
            taken.collect::<Vec<RecordedAgentCall>>()
        };
        self.agents[agent].calls = take(&main);
        // The list is in the order of its starts, and its first request is in the main chain.
        let before = |call: usize| main.partition_point(|kept| *kept <= call).saturating_sub(1);
        for other in &mut self.agents {
            if let Some((of, call)) = other.started_by
                && of == agent
            {
                other.started_by = Some((agent, before(call)));
            }
            if let Some((of, call)) = other.awaited_by
                && of == agent
            {
                let next = main.partition_point(|kept| *kept < call);
                other.awaited_by = (next < main.len()).then_some((agent, next));
            }
        }
        let separator = if agent == 0 { "::" } else { ":" };
        let split = chains.enumerate().map(|(number, chain)| {
            let worker = RecordedAgent {
                id: format!("{}{separator}fa:{number:03}", self.agents[agent].id),
                started_by: chain.first().map(|first| (agent, before(*first))),
                calls: take(&chain),
                awaited_by: None,
            };
            let end_ms = worker.last_call_end_ms();
            self.agents.push(worker);
            SplitAgent { agent: self.agents.len() - 1, end_ms }
        });
        split.collect()
    }

    /// Adds dependencies on split-off agents: the original agent's first request after the end of a
    /// split-off agent waits for that end.
    fn link_workers(&mut self, workers: &[SplitAgent]) {
        for worker in workers {
            let Some((main, before)) = self.agents[worker.agent].started_by else {
                continue;
            };
            let mut later = self.agents[main].calls.iter().enumerate().skip(before + 1);
            let waiting = later.find(|(_, call)| call.start_ms + TIME_EPSILON_MS >= worker.end_ms);
            self.agents[worker.agent].awaited_by = waiting.map(|(call, _)| (main, call));
        }
    }

    /// Reads a request of a Weka trace and the hash ids of its prompt; `None` if the request has no
    /// prompt.
    fn read_call(
        &mut self,
        row: &JsonRow<'_>,
        start_ms: f64,
    ) -> Result<Option<(RecordedAgentCall, Vec<u64>)>, WorkloadError> {
        let input = row.required_token_count_field(&["in"], 0)?;
        let output = row.required_token_count_field(&["out"], 0)?;
        let took_ms = row.positive_seconds_field_as_ms(&["api_time"])?.unwrap_or(0.0);
        let ids = row.integer_array_field("hash_ids")?.unwrap_or_default();
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
        Ok(Some((RecordedAgentCall { start_ms, end_ms: start_ms + took_ms, turn }, ids)))
    }

    /// Returns one run of tokens per full block of the prompt, and one run for the tokens without a
    /// hash id.
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

    /// Reads a sub-agent of a Weka trace. Returns the agents for which the parent waits, each with
    /// its end: the sub-agent and agents split off from it; none for a background sub-agent.
    fn read_subagent(
        &mut self,
        row: &JsonRow<'_>,
        place: &str,
        parent: usize,
        (t, offset_ms): (f64, f64),
    ) -> Result<Vec<(usize, f64)>, WorkloadError> {
        let name = row.required(JsonRow::text_field, "agent_id")?;
        let list = row.required(JsonRow::array_field, "requests")?;
        let took_ms = row.positive_millis_field(&["duration_ms"])?;
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
        let workers = self.read_requests(list, &format!("{place}.requests"), child, base)?;
        let last_ms = workers
            .iter()
            .fold(self.agents[child].last_call_end_ms(), |end, worker| end.max(worker.end_ms));
        let end_ms = took_ms.map_or(last_ms, |took| t + offset_ms + took);
        for worker in &workers {
            self.agents[worker.agent].started_by = self.agents[child].started_by;
        }
        let agents = std::iter::once(child).chain(workers.iter().map(|worker| worker.agent));
        let awaited = agents.filter(|of| !background && !self.agents[*of].calls.is_empty());
        Ok(awaited.map(|of| (of, end_ms)).collect())
    }
}
