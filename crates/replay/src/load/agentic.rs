//! Reads agent traces: requests with dependencies, and sessions whose context grows.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::lines::for_each_json_row;
use super::loaded::{LoadedSessions, nanos_from_ms, sim_time_from_ms};
use super::mooncake::hash_ids_to_token_runs;
use super::options::{AgentRunOrder, WorkloadReadOptions};
use super::row::JsonRow;
use crate::synth::SHARED_CONTENT_ID_BITS;
use crate::workload::{
    ClientSession, MAX_PROMPT_OR_OUTPUT_TOKENS, PromptTokenRun, SessionTurn, TurnDependency,
    TurnLifecycleEvent, TurnPrompt, WorkloadError,
};
use vllm_sim_random::mix_u64_pair;

const AGENTIC_MOONCAKE_SCHEMA: &str = "dynamo.agentic_mooncake";
/// Salt in the hashes of the block ids in Applied Compute's traces.
const APPLIED_COMPUTE_HASH_DOMAIN: u64 = 3;

pub(super) fn is_agentic_mooncake_row(row: &Map<String, Value>) -> bool {
    row.get("schema").and_then(Value::as_str) == Some(AGENTIC_MOONCAKE_SCHEMA)
        || row.contains_key("wait_for")
}

/// Request of an agent trace, with the ids of the requests it depends on.
struct AgentNode {
    place: String,
    request: String,
    session: ClientSession,
    start_ms: f64,
    after: Vec<(String, TurnDependency)>,
}

/// Reads requests with explicit dependencies in the `agentic_mooncake` trace format.
///
/// Accepts version 2 with its header line, and version 1 with `wait_for`.
pub(super) fn open_agentic_mooncake_traces(
    paths: &[PathBuf],
    options: &WorkloadReadOptions,
) -> Result<LoadedSessions, WorkloadError> {
    let mut nodes: Vec<AgentNode> = Vec::new();
    let mut plays: HashMap<String, u64> = HashMap::new();
    let mut block = options.trace_block_size;
    for_each_json_row(paths, |row, lines| {
        if row.has_field("schema") {
            block = parse_schema_header(row)?;
            return Ok(());
        }
        let play = row.text_field("play_id")?.unwrap_or("");
        let known = plays.len() as u64;
        let scope = *plays.entry(play.to_owned()).or_insert(known);
        // Rows without `play_id` share the scope of plain Mooncake rows.
        let mut node = parse_agent_request(row, block, scope, lines.file_and_line())?;
        let order = row.integer_field("source_play_ordinal")?.unwrap_or(0);
        node.session.play = Some((order, play.into()));
        nodes.push(node);
        Ok(())
    })?;
    build_sessions(nodes, options.agent_order)
}

fn parse_schema_header(row: &JsonRow<'_>) -> Result<u32, WorkloadError> {
    let schema = row.text_field("schema")?.unwrap_or_default();
    let version: Option<u32> = row.integer_field("version")?;
    if schema != AGENTIC_MOONCAKE_SCHEMA || version != Some(2) {
        return Err(row.row_error(format!(
            "schema is {schema:?} version {}, must be {AGENTIC_MOONCAKE_SCHEMA:?} version 2",
            version.map_or_else(|| "none".to_owned(), |n| n.to_string())
        )));
    }
    let scope = row.text_field("hash_id_scope")?.unwrap_or("local");
    if scope != "local" {
        return Err(row.row_error(format!("hash_id_scope is {scope:?}, must be \"local\"")));
    }
    row.required_token_count_field(&["block_size"], 1)
}

fn parse_agent_request(
    row: &JsonRow<'_>,
    block: u32,
    scope: u64,
    place: String,
) -> Result<AgentNode, WorkloadError> {
    let request = row.text_field("request_id")?.filter(|id| !id.is_empty());
    let request = request.ok_or_else(|| row.missing_field_error("request_id"))?;
    let ids = row.required(JsonRow::integer_array_field, "hash_ids")?;
    let input = row.prompt_length_field()?;
    let prompt = TurnPrompt::Whole(hash_ids_to_token_runs(row, &ids, input, block, scope)?);
    let output = row.required_token_count_field(&["output_length", "output_tokens"], 0)?;
    let mut turn = SessionTurn::new(prompt, output);
    turn.request_id = Some(request.into());
    turn.priority = row.integer_field("priority")?.unwrap_or(0);
    turn.strict_priority = row.integer_field("strict_priority")?.unwrap_or(0);
    let mut after = Vec::new();
    let depend = |trigger, delay_ms| TurnDependency {
        session: 0,
        turn: 0,
        trigger,
        delay_ns: nanos_from_ms(delay_ms),
    };
    let delay = row.positive_millis_field(&["delay", "delay_ms"])?.unwrap_or(0.0)
        + row.positive_millis_field(&["tool_wait_ms"])?.unwrap_or(0.0);
    for id in row.array_field("wait_for")?.unwrap_or_default() {
        let id = id.as_str();
        let id = id.ok_or_else(|| row.row_error("wait_for must be a list of request ids"))?;
        after.push((id.to_owned(), depend(TurnLifecycleEvent::Completion, delay)));
    }
    let v1 = !after.is_empty();
    for value in row.array_field("dependencies")?.unwrap_or_default() {
        let dependency =
            JsonRow::json_row_from_value(value, &|| place.clone())?.parse_dependency()?;
        after.push((dependency.0, depend(dependency.1, dependency.2)));
    }
    let start = row.positive_millis_field(&["not_before_ms", "timestamp", "created_time"])?;
    // Dependent rows of version 1 have a time stamp without meaning.
    let start_ms = start.filter(|_| !v1).unwrap_or(0.0);
    Ok(AgentNode {
        place,
        request: request.to_owned(),
        session: ClientSession::new(row.text_field("session_id")?.map(Arc::from), vec![turn]),
        start_ms,
        after,
    })
}

impl JsonRow<'_> {
    /// Reads one entry of `dependencies`: request id, completion or dispatch, and delay in
    /// milliseconds.
    fn parse_dependency(&self) -> Result<(String, TurnLifecycleEvent, f64), WorkloadError> {
        let id = self.text_field("request_id")?;
        let id = id.ok_or_else(|| self.missing_field_error("dependencies[].request_id"))?;
        let trigger = match self.text_field("trigger")?.unwrap_or("completion") {
            "completion" => TurnLifecycleEvent::Completion,
            "dispatch" => TurnLifecycleEvent::Dispatch,
            other => {
                let allowed = "must be \"dispatch\" or \"completion\"";
                return Err(self.row_error(format!("trigger is {other:?}, {allowed}")));
            }
        };
        let delay = self.positive_millis_field(&["delay_ms"])?.unwrap_or(0.0);
        Ok((id.to_owned(), trigger, delay))
    }
}

impl AgentNode {
    fn error_at_request(&self, problem: String) -> WorkloadError {
        WorkloadError::Bad { place: self.place.clone(), problem }
    }
}

/// Returns, for each request of an agent trace, the indices of the requests that it depends on.
fn resolve_dependencies(
    nodes: &[AgentNode],
    order: AgentRunOrder,
) -> Result<Vec<Vec<usize>>, WorkloadError> {
    let mut by_name: HashMap<&str, usize> = HashMap::new();
    for (i, node) in nodes.iter().enumerate() {
        if by_name.insert(&node.request, i).is_some() {
            return Err(
                node.error_at_request(format!("request_id {:?} occurs twice", node.request))
            );
        }
    }
    let mut edges: Vec<Vec<usize>> = Vec::with_capacity(nodes.len());
    for node in nodes {
        let mut targets = Vec::new();
        for (name, _) in &node.after {
            let target = by_name.get(name.as_str()).copied();
            let target = target.ok_or_else(|| {
                node.error_at_request(format!("waits for {name:?}, which does not exist"))
            })?;
            let same_run = nodes[target].session.play == node.session.play;
            if order == AgentRunOrder::ByRequestId && !same_run {
                let problem = format!(
                    "waits for {name:?} of another play, which agentic_lanes does not support"
                );
                return Err(node.error_at_request(problem));
            }
            targets.push(target);
        }
        edges.push(targets);
    }
    Ok(edges)
}

/// Sorts the requests of an agent trace. Returns the order of the requests, and the earliest start
/// of each in ms.
fn sort_by_earliest_start(
    nodes: &[AgentNode],
    edges: &[Vec<usize>],
    wanted: AgentRunOrder,
) -> Result<(Vec<usize>, Vec<f64>), WorkloadError> {
    let mut followers: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
    for (i, targets) in edges.iter().enumerate() {
        for &target in targets {
            followers[target].push(i);
        }
    }
    // Kahn's algorithm. A node starts no earlier than its dependencies, so sorting by start is
    // valid.
    let mut open: Vec<usize> = edges.iter().map(Vec::len).collect();
    let mut queue: VecDeque<usize> = (0..nodes.len()).filter(|i| open[*i] == 0).collect();
    let mut order = Vec::with_capacity(nodes.len());
    let mut start: Vec<f64> = nodes.iter().map(|node| node.start_ms).collect();
    while let Some(i) = queue.pop_front() {
        order.push(i);
        for &follower in &followers[i] {
            start[follower] = start[follower].max(start[i]);
            open[follower] -= 1;
            if open[follower] == 0 {
                queue.push_back(follower);
            }
        }
    }
    if let Some(stuck) = open.iter().position(|n| *n > 0) {
        return Err(nodes[stuck].error_at_request("waits for itself through others".to_owned()));
    }
    match wanted {
        AgentRunOrder::ByStart => order.sort_by(|a, b| start[*a].total_cmp(&start[*b])),
        AgentRunOrder::ByRequestId => {
            order.sort_by(|a, b| nodes[*a].request.cmp(&nodes[*b].request));
            start = nodes.iter().map(|node| node.start_ms).collect();
        }
    }
    Ok((order, start))
}

/// Builds the sessions of an agent trace from its requests, in the order that the argument gives.
fn build_sessions(
    mut nodes: Vec<AgentNode>,
    order: AgentRunOrder,
) -> Result<LoadedSessions, WorkloadError> {
    let edges = resolve_dependencies(&nodes, order)?;
    let (order, start) = sort_by_earliest_start(&nodes, &edges, order)?;
    let mut number = vec![0u64; nodes.len()];
    for (at, &i) in order.iter().enumerate() {
        number[i] = at as u64;
    }
    let first = start.iter().copied().fold(f64::INFINITY, f64::min);
    let mut sessions = VecDeque::with_capacity(nodes.len());
    for &i in &order {
        let node = &mut nodes[i];
        let none = ClientSession::new(None, Vec::new());
        let mut session = std::mem::replace(&mut node.session, none);
        session.start = sim_time_from_ms(start[i] - first);
        let after = node.after.drain(..).zip(&edges[i]);
        session.turns[0].after = after
            .map(|((_, dependency), target)| TurnDependency {
                session: number[*target],
                ..dependency
            })
            .collect();
        sessions.push_back(session);
    }
    Ok(LoadedSessions::from_ordered_sessions(sessions))
}

/// Parameters of the prefix shared by the first prompts of a group of sessions.
#[derive(Debug, Clone, Copy)]
pub(super) struct SharedPrefixOptions {
    pub(super) block: u32,
    pub(super) ratio: f64,
    pub(super) groups: u32,
}

/// Reads Applied Compute's agent sessions, in which the prompt grows with each tool call.
///
/// Each turn adds the lengths of the assistant's response and of the tool's output. As in Dynamo's
/// replay 1.6.1 the prompts of a session share their leading blocks, but no block with generated
/// tokens.
pub(super) fn open_applied_compute_traces(
    paths: &[PathBuf],
    sharing: SharedPrefixOptions,
) -> Result<LoadedSessions, WorkloadError> {
    let mut sessions = VecDeque::new();
    let mut next = 0;
    for_each_json_row(paths, |row, lines| {
        let group = match sharing.groups {
            n if n > 0 && sharing.ratio > 0.0 => Some((lines.line_number() - 1) % u64::from(n)),
            _ => None,
        };
        let turns = parse_applied_compute_turns(row, sharing, group, &mut next)?;
        let id = format!("applied_compute_agentic_session_{}", lines.line_number());
        sessions.push_back(ClientSession::new(Some(id.into()), turns));
        Ok(())
    })?;
    let mut sessions = LoadedSessions::from_ordered_sessions(sessions);
    sessions.facts.has_no_start_times = true;
    Ok(sessions)
}

fn parse_applied_compute_turns(
    row: &JsonRow<'_>,
    sharing: SharedPrefixOptions,
    group: Option<u64>,
    next: &mut u64,
) -> Result<Vec<SessionTurn>, WorkloadError> {
    let count = row.required_token_count_field(&["num_turns"], 0)? as usize;
    let first = row.required_token_count_field(&["input_prompt_length"], 1)?;
    let last = row.required_token_count_field(&["final_assistant_response_length"], 0)?;
    let list = |name: &str| {
        let list = row.required(JsonRow::number_array_field, name)?;
        if list.len() == count {
            return Ok(list);
        }
        let found = list.len();
        Err(row.row_error(format!("{name} has {found} entries, must have num_turns = {count}")))
    };
    let said = list("assistant_response_length")?;
    let answered = list("tool_call_output_length")?;
    let waited = list("tool_call_latency")?;
    let block = sharing.block;
    let shared = (f64::from(first.div_ceil(block)) * sharing.ratio).round() as usize;
    let mut ids: Vec<u64> = Vec::new();
    let mut prompt = |input: u32| {
        while ids.len() < input.div_ceil(block) as usize {
            let at = ids.len();
            ids.push(match group {
                Some(group) if at < shared => SHARED_CONTENT_ID_BITS | group << 32 | at as u64,
                _ => {
                    *next += 1;
                    mix_u64_pair(APPLIED_COMPUTE_HASH_DOMAIN, *next)
                }
            });
        }
        let runs = ids.iter().enumerate().map(|(at, &id)| PromptTokenRun {
            id,
            len: block.min(input - at as u32 * block),
            same: true,
        });
        TurnPrompt::Whole(runs.collect())
    };
    let output = |turn: usize| said.get(turn).map_or(last, |n| *n as u32);
    let mut input = first;
    let mut turns = vec![SessionTurn::new(prompt(input), output(0))];
    for turn in 0..count {
        let longer = (said[turn] + answered[turn]).min(f64::from(u32::MAX)) as u32;
        input = input.saturating_add(longer);
        if u64::from(input) > MAX_PROMPT_OR_OUTPUT_TOKENS {
            return Err(row.row_error(format!("the prompt of turn {} is too long", turn + 2)));
        }
        let mut turn_ = SessionTurn::new(prompt(input), output(turn + 1));
        turn_.delay_ns = nanos_from_ms(waited[turn] * 1e3);
        turns.push(turn_);
    }
    Ok(turns)
}
