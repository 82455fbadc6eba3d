//! Reads OpenTelemetry spans of `gen_ai` requests as agent runs.
//!
//! Accepts OTLP in JSON (`resourceSpans`, as the collector's file exporter writes it), one span per
//! line, and one run per line with its `spans`. A conversation (`gen_ai.conversation.id`, else a
//! trace) is a run, and each `invoke_agent` span with requests of its own is an agent.
//!
//! **Source:** OpenTelemetry semantic conventions for generative AI spans; OTLP 1.x JSON encoding;
//! guidellm 0.8 `data/deserializers/trace_otel.py` for the choice of spans.

use std::collections::HashMap;
use std::path::PathBuf;

use serde_json::{Map, Value};

use super::agents::{RecordedAgent, RecordedAgentCall, RecordedAgentRun, sessions_of_agent_runs};
use super::lines::WorkloadLines;
use super::loaded::LoadedSessions;
use super::options::WorkloadReadOptions;
use super::otel_prompt::RecordedPromptTexts;
use super::otel_span::{GenAiSpan, GenAiSpanKind, gen_ai_spans_of_document};
use crate::workload::{SessionTurn, WorkloadError};

/// Maximum number of ancestors of a span that are searched, as a guard against a cycle of parents.
const MAX_SPAN_DEPTH: usize = 1000;

pub(super) fn is_otel_document(row: &Map<String, Value>) -> bool {
    row.contains_key("resourceSpans")
        || row.get("spans").is_some_and(Value::is_array)
        || (row.get("attributes").is_some_and(Value::is_object)
            && (row.contains_key("trace_id") || row.contains_key("span_id")))
}

/// Reads all generation requests in files of OpenTelemetry spans.
pub(super) fn open_otel_traces(
    paths: &[PathBuf],
    options: &WorkloadReadOptions,
) -> Result<LoadedSessions, WorkloadError> {
    let mut runs: Vec<(String, Vec<GenAiSpan>)> = Vec::new();
    let mut known: HashMap<String, usize> = HashMap::new();
    let mut place = String::new();
    for path in paths {
        let mut lines = WorkloadLines::open_workload_file(path)?;
        while let Some(document) = lines.read_next_json_document()? {
            place = lines.file_and_line();
            for span in gen_ai_spans_of_document(&document, &place)? {
                let run = *known.entry(span.run.clone()).or_insert(runs.len());
                if run == runs.len() {
                    runs.push((span.run.clone(), Vec::new()));
                }
                runs[run].1.push(span);
            }
        }
    }
    let mut contents = RecordedPromptTexts::default();
    let (mut left_out, mut recorded) = (0, Vec::new());
    for (name, spans) in runs {
        left_out += spans.iter().filter(|span| span.kind == GenAiSpanKind::Unusable).count() as u64;
        recorded
            .push(RecordedAgentRun { agents: agents_of_run(&name, spans, &mut contents), name });
    }
    if recorded.iter().all(|run| run.agents.is_empty()) {
        let problem = "has no gen_ai span with gen_ai.usage.input_tokens and output_tokens";
        return Err(WorkloadError::Bad { place, problem: problem.to_owned() });
    }
    let mut sessions = sessions_of_agent_runs(recorded, options);
    sessions.facts.left_out_rows = left_out;
    Ok(sessions)
}

/// Tree of the spans of a recorded agent run.
struct SpanTree<'a> {
    spans: &'a [GenAiSpan],
    by_id: HashMap<&'a str, usize>,
}

impl<'a> SpanTree<'a> {
    fn new(spans: &'a [GenAiSpan]) -> Self {
        let by_id = spans.iter().enumerate().map(|(i, span)| (span.id.as_str(), i)).collect();
        Self { spans, by_id }
    }

    /// Returns the index of the nearest ancestor of a span that is an `invoke_agent` span.
    fn agent_above(&self, span: usize) -> Option<usize> {
        let mut at = span;
        for _ in 0..MAX_SPAN_DEPTH {
            at = *self.by_id.get(self.spans[at].parent.as_deref()?)?;
            if self.spans[at].kind == GenAiSpanKind::Agent {
                return Some(at);
            }
        }
        None
    }

    /// Returns the index of the nearest agent among a span's ancestors that has requests of its
    /// own.
    fn agent_with_requests_above(&self, span: usize, owners: &[Option<usize>]) -> Option<usize> {
        let mut above = self.agent_above(span);
        for _ in 0..MAX_SPAN_DEPTH {
            let found = owners.iter().position(|known| *known == above);
            if found.is_some() {
                return found;
            }
            above = self.agent_above(above?);
        }
        None
    }
}

/// Groups the generation requests of a recorded run by agent; the agents are sorted by their first
/// request.
fn agents_of_run(
    name: &str,
    spans: Vec<GenAiSpan>,
    contents: &mut RecordedPromptTexts,
) -> Vec<RecordedAgent> {
    let tree = SpanTree::new(&spans);
    let mut requests: Vec<usize> =
        (0..spans.len()).filter(|i| spans[*i].kind == GenAiSpanKind::Request).collect();
    requests.sort_by(|a, b| spans[*a].start_ms.total_cmp(&spans[*b].start_ms));
    let mut agents: Vec<RecordedAgent> = Vec::new();
    let mut owners: Vec<Option<usize>> = Vec::new();
    for request in requests {
        let span = &spans[request];
        let owner = tree.agent_above(request);
        let agent = owners.iter().position(|known| *known == owner).unwrap_or_else(|| {
            let id = match owner.filter(|_| !agents.is_empty()) {
                None => name.to_owned(),
                Some(owner) => format!("{name}::{}", spans[owner].id),
            };
            agents.push(RecordedAgent { id, ..RecordedAgent::default() });
            owners.push(owner);
            agents.len() - 1
        });
        let prompt = contents.prompt_of_call(span, (name, agent));
        let turn = SessionTurn::new(prompt, span.output);
        let call = RecordedAgentCall { start_ms: span.start_ms, end_ms: span.end_ms, turn };
        agents[agent].calls.push(call);
    }
    for agent in 0..agents.len() {
        let Some(owner) = owners[agent] else {
            continue;
        };
        let parent = tree.agent_with_requests_above(owner, &owners);
        let parent = parent.filter(|parent| *parent != agent);
        let Some(parent) = parent else {
            continue;
        };
        let start_ms = agents[agent].calls[0].start_ms;
        let end_ms = agents[agent].last_call_end_ms().max(spans[owner].end_ms);
        let before = agents[parent].calls.iter().rposition(|call| call.start_ms < start_ms);
        let after = agents[parent].first_model_call_from(end_ms);
        agents[agent].started_by = before.map(|call| (parent, call));
        agents[agent].awaited_by = after.map(|call| (parent, call));
    }
    agents
}
