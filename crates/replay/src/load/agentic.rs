//! Reads agent traces: requests with dependencies, and sessions whose context grows.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::lines::Lines;
use super::loaded::{LoadedSessions, millis, nanos};
use super::mooncake::runs;
use super::row::Row;
use super::{AgentOrder, LoadOptions};
use crate::synth::SHARED;
use crate::workload::{
    Dependency, MAX_TOKENS, Prompt, Session, TokenRun, Turn, TurnEvent, WorkloadError,
};
use vllm_sim_random::mix;

const SCHEMA: &str = "dynamo.agentic_mooncake";
/// Hash domain of the block ids in Applied Compute traces.
const APPLIED: u64 = 3;

pub(super) fn is_mooncake(row: &Map<String, Value>) -> bool {
    row.get("schema").and_then(Value::as_str) == Some(SCHEMA) || row.contains_key("wait_for")
}

pub(super) fn is_applied(row: &Map<String, Value>) -> bool {
    row.contains_key("assistant_response_length")
}

/// Request of an agent trace, with the ids of the requests it depends on.
struct AgentNode {
    place: String,
    request: String,
    session: Session,
    start_ms: f64,
    after: Vec<(String, Dependency)>,
}

/// Reads requests with explicit dependencies in the `agentic_mooncake` trace format.
///
/// Accepts version 2 with its header line, and version 1 with `wait_for`.
pub(super) fn mooncake(
    paths: &[PathBuf],
    options: &LoadOptions,
) -> Result<LoadedSessions, WorkloadError> {
    let mut nodes: Vec<AgentNode> = Vec::new();
    let mut plays: HashMap<String, u64> = HashMap::new();
    let mut block = options.trace_block_size;
    for path in paths {
        let mut lines = Lines::open(path)?;
        while lines.step()? {
            let value: Value = serde_json::from_str(lines.line())
                .map_err(|error| lines.bad(format!("is not JSON: {error}")))?;
            let place = || lines.place();
            let row = Row::new(&value, &place)?;
            if row.has("schema") {
                block = header(&row)?;
                continue;
            }
            let play = row.text("play_id")?.unwrap_or("");
            let known = plays.len() as u64;
            let scope = *plays.entry(play.to_owned()).or_insert(known);
            // Rows without `play_id` share the scope of plain Mooncake rows.
            let mut node = node(&row, block, scope, place())?;
            let order = row.integer("source_play_ordinal")?.unwrap_or(0);
            node.session.play = Some((order, play.into()));
            nodes.push(node);
        }
    }
    link(nodes, options.agent_order)
}

fn header(row: &Row<'_>) -> Result<u32, WorkloadError> {
    let schema = row.text("schema")?.unwrap_or_default();
    let version: Option<u32> = row.integer("version")?;
    if schema != SCHEMA || version != Some(2) {
        return Err(row.bad(format!(
            "schema is {schema:?} version {}, must be {SCHEMA:?} version 2",
            version.map_or_else(|| "none".to_owned(), |n| n.to_string())
        )));
    }
    let scope = row.text("hash_id_scope")?.unwrap_or("local");
    if scope != "local" {
        return Err(row.bad(format!("hash_id_scope is {scope:?}, must be \"local\"")));
    }
    row.needed_tokens(&["block_size"], 1)
}

fn node(row: &Row<'_>, block: u32, scope: u64, place: String) -> Result<AgentNode, WorkloadError> {
    let request = row.text("request_id")?.filter(|id| !id.is_empty());
    let request = request.ok_or_else(|| row.missing("request_id"))?;
    let ids = row
        .ids("hash_ids")?
        .ok_or_else(|| row.missing("hash_ids"))?;
    let input = row.tokens(&["input_length", "input_tokens"], 1)?;
    let prompt = Prompt::Whole(runs(row, &ids, input, block, scope)?);
    let output = row.needed_tokens(&["output_length", "output_tokens"], 0)?;
    let mut turn = Turn::new(prompt, output);
    turn.request_id = Some(request.into());
    turn.priority = row.integer("priority")?.unwrap_or(0);
    turn.strict_priority = row.integer("strict_priority")?.unwrap_or(0);
    let mut after = Vec::new();
    let depend = |trigger, delay_ms| Dependency {
        session: 0,
        turn: 0,
        trigger,
        delay_ns: nanos(delay_ms),
    };
    let delay = row.positive_millis(&["delay", "delay_ms"])?.unwrap_or(0.0)
        + row.positive_millis(&["tool_wait_ms"])?.unwrap_or(0.0);
    for id in row.list("wait_for")?.unwrap_or_default() {
        let id = id.as_str();
        let id = id.ok_or_else(|| row.bad("wait_for must be a list of request ids"))?;
        after.push((id.to_owned(), depend(TurnEvent::Completion, delay)));
    }
    let v1 = !after.is_empty();
    for value in row.list("dependencies")?.unwrap_or_default() {
        let dependency = Row::new(value, &|| place.clone())?.read()?;
        after.push((dependency.0, depend(dependency.1, dependency.2)));
    }
    let start = row.positive_millis(&["not_before_ms", "timestamp", "created_time"])?;
    // Dependent rows of version 1 have a time stamp without meaning.
    let start_ms = start.filter(|_| !v1).unwrap_or(0.0);
    Ok(AgentNode {
        place,
        request: request.to_owned(),
        session: Session {
            id: row.text("session_id")?.map(Arc::from),
            start: millis(start_ms),
            turns: vec![turn],
            after: Vec::new(),
            play: None,
        },
        start_ms,
        after,
    })
}

impl Row<'_> {
    /// Reads one entry of `dependencies`: request id, completion or dispatch, and delay in
    /// milliseconds.
    fn read(&self) -> Result<(String, TurnEvent, f64), WorkloadError> {
        let id = self.text("request_id")?;
        let id = id.ok_or_else(|| self.missing("dependencies[].request_id"))?;
        let trigger = match self.text("trigger")?.unwrap_or("completion") {
            "completion" => TurnEvent::Completion,
            "dispatch" => TurnEvent::Dispatch,
            other => {
                let allowed = "must be \"dispatch\" or \"completion\"";
                return Err(self.bad(format!("trigger is {other:?}, {allowed}")));
            }
        };
        let delay = self.positive_millis(&["delay_ms"])?.unwrap_or(0.0);
        Ok((id.to_owned(), trigger, delay))
    }
}

impl AgentNode {
    fn bad(&self, problem: String) -> WorkloadError {
        WorkloadError::Bad {
            place: self.place.clone(),
            problem,
        }
    }
}

/// Returns the indices of the nodes that each node depends on.
fn dependencies(nodes: &[AgentNode], order: AgentOrder) -> Result<Vec<Vec<usize>>, WorkloadError> {
    let mut by_name: HashMap<&str, usize> = HashMap::new();
    for (i, node) in nodes.iter().enumerate() {
        if by_name.insert(&node.request, i).is_some() {
            return Err(node.bad(format!("request_id {:?} occurs twice", node.request)));
        }
    }
    let mut edges: Vec<Vec<usize>> = Vec::with_capacity(nodes.len());
    for node in nodes {
        let mut targets = Vec::new();
        for (name, _) in &node.after {
            let target = by_name.get(name.as_str()).copied();
            let target = target
                .ok_or_else(|| node.bad(format!("waits for {name:?}, which does not exist")))?;
            let same_run = nodes[target].session.play == node.session.play;
            if order == AgentOrder::ByRequestId && !same_run {
                let problem = format!(
                    "waits for {name:?} of another play, which agentic_lanes does not support"
                );
                return Err(node.bad(problem));
            }
            targets.push(target);
        }
        edges.push(targets);
    }
    Ok(edges)
}

/// Sorts the nodes. Returns their order and the earliest start of each node, in ms.
fn start_order(
    nodes: &[AgentNode],
    edges: &[Vec<usize>],
    wanted: AgentOrder,
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
        return Err(nodes[stuck].bad("waits for itself through others".to_owned()));
    }
    match wanted {
        AgentOrder::ByStart => order.sort_by(|a, b| start[*a].total_cmp(&start[*b])),
        AgentOrder::ByRequestId => {
            order.sort_by(|a, b| nodes[*a].request.cmp(&nodes[*b].request));
            start = nodes.iter().map(|node| node.start_ms).collect();
        }
    }
    Ok((order, start))
}

/// Builds the sessions of nodes, in the given order.
fn link(mut nodes: Vec<AgentNode>, order: AgentOrder) -> Result<LoadedSessions, WorkloadError> {
    let edges = dependencies(&nodes, order)?;
    let (order, start) = start_order(&nodes, &edges, order)?;
    let mut number = vec![0u64; nodes.len()];
    for (at, &i) in order.iter().enumerate() {
        number[i] = at as u64;
    }
    let first = start.iter().copied().fold(f64::INFINITY, f64::min);
    let mut sessions = VecDeque::with_capacity(nodes.len());
    for &i in &order {
        let node = &mut nodes[i];
        let mut session = std::mem::replace(
            &mut node.session,
            Session {
                id: None,
                start: millis(0.0),
                turns: Vec::new(),
                after: Vec::new(),
                play: None,
            },
        );
        session.start = millis(start[i] - first);
        let after = node.after.drain(..).zip(&edges[i]);
        session.after = after
            .map(|((_, dependency), target)| Dependency {
                session: number[*target],
                ..dependency
            })
            .collect();
        sessions.push_back(session);
    }
    Ok(LoadedSessions::in_order(sessions))
}

/// Parameters of the prefix shared by the first prompts of a group of sessions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sharing {
    pub(super) block: u32,
    pub(super) ratio: f64,
    pub(super) groups: u32,
}

/// Reads Applied Compute's agent sessions, in which the prompt grows with each tool call.
///
/// Each turn adds the lengths of the assistant's response and of the tool's output. As in Dynamo's
/// replay 1.6.1 the prompts of a session share their leading blocks, but no block with generated
/// tokens.
pub(super) fn applied(
    paths: &[PathBuf],
    sharing: Sharing,
) -> Result<LoadedSessions, WorkloadError> {
    let mut sessions = VecDeque::new();
    let mut next = 0;
    for path in paths {
        let mut lines = Lines::open(path)?;
        while lines.step()? {
            let value: Value = serde_json::from_str(lines.line())
                .map_err(|error| lines.bad(format!("is not JSON: {error}")))?;
            let place = || lines.place();
            let row = Row::new(&value, &place)?;
            let group = match sharing.groups {
                n if n > 0 && sharing.ratio > 0.0 => Some((lines.number() - 1) % u64::from(n)),
                _ => None,
            };
            let turns = applied_turns(&row, sharing, group, &mut next)?;
            sessions.push_back(Session {
                id: Some(format!("applied_compute_agentic_session_{}", lines.number()).into()),
                start: millis(0.0),
                turns,
                after: Vec::new(),
                play: None,
            });
        }
    }
    Ok(LoadedSessions::in_order(sessions).untimed())
}

fn applied_turns(
    row: &Row<'_>,
    sharing: Sharing,
    group: Option<u64>,
    next: &mut u64,
) -> Result<Vec<Turn>, WorkloadError> {
    let count = row.needed_tokens(&["num_turns"], 0)? as usize;
    let first = row.needed_tokens(&["input_prompt_length"], 1)?;
    let last = row.needed_tokens(&["final_assistant_response_length"], 0)?;
    let list = |name: &str| {
        let list = row.numbers(name)?.ok_or_else(|| row.missing(name))?;
        if list.len() == count {
            return Ok(list);
        }
        let found = list.len();
        Err(row.bad(format!(
            "{name} has {found} entries, must have num_turns = {count}"
        )))
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
                Some(group) if at < shared => SHARED | group << 32 | at as u64,
                _ => {
                    *next += 1;
                    mix(APPLIED, *next)
                }
            });
        }
        let runs = ids.iter().enumerate().map(|(at, &id)| TokenRun {
            id,
            len: block.min(input - at as u32 * block),
            same: true,
        });
        Prompt::Whole(runs.collect())
    };
    let output = |turn: usize| said.get(turn).map_or(last, |n| *n as u32);
    let mut input = first;
    let mut turns = vec![Turn::new(prompt(input), output(0))];
    for turn in 0..count {
        let longer = (said[turn] + answered[turn]).min(f64::from(u32::MAX)) as u32;
        input = input.saturating_add(longer);
        if u64::from(input) > MAX_TOKENS {
            return Err(row.bad(format!("the prompt of turn {} is too long", turn + 2)));
        }
        let mut turn_ = Turn::new(prompt(input), output(turn + 1));
        turn_.delay_ns = nanos(waited[turn] * 1e3);
        turns.push(turn_);
    }
    Ok(turns)
}
