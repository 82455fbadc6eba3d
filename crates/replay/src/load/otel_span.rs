//! Reads the spans of OTLP's JSON encoding and of flat JSON lines into one form.

use serde_json::{Map, Value};

use super::csv::parse_date_ms;
use super::row::{JsonRow, as_whole_number};
use crate::workload::{MAX_PROMPT_OR_OUTPUT_TOKENS, WorkloadError};

const INPUT_TOKEN_KEYS: [&str; 2] = ["gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"];
const OUTPUT_TOKEN_KEYS: [&str; 2] =
    ["gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"];
/// Values of the span attribute `gen_ai.operation.name` for generation requests.
const REQUEST_OPERATIONS: [&str; 4] = ["chat", "generate", "generate_content", "text_completion"];
/// Status code of a failed span, as a number and as OTLP's name.
const FAILED_STATUS: (u64, &str) = (2, "STATUS_CODE_ERROR");

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GenAiSpanKind {
    /// Trace span of a generation request to a model, with the request's token counts.
    Request,
    /// Trace span excluded from the replay, because its request failed or has no prompt or no
    /// output.
    Unusable,
    /// Trace span of the invocation of an agent.
    Agent,
    /// Trace span of any other kind than generation requests and agents, such as a tool call.
    Other,
}

/// OpenTelemetry span, read from the recorded run of an agent.
pub(super) struct GenAiSpan {
    /// Name of the conversation or trace to which the span belongs.
    pub run: String,
    pub id: String,
    pub parent: Option<String>,
    pub kind: GenAiSpanKind,
    pub start_ms: f64,
    pub end_ms: f64,
    pub input: u32,
    pub output: u32,
    /// Texts of the recorded prompt, in order; empty if the span does not have them.
    pub prompt: Vec<String>,
}

/// Returns the spans of a JSON document: an OTLP export, a run with its spans, or one span.
pub(super) fn gen_ai_spans_of_document(
    document: &Value,
    place: &str,
) -> Result<Vec<GenAiSpan>, WorkloadError> {
    let at = || place.to_owned();
    let row = JsonRow::json_row_from_value(document, &at)?;
    if let Some(resources) = row.array_field("resourceSpans")? {
        let scopes = resources.iter().flat_map(|resource| list(&resource["scopeSpans"]));
        let spans = scopes.flat_map(|scope| list(&scope["spans"])).enumerate();
        return spans
            .map(|(i, span)| read_otlp_span(span, &format!("{place}: span {i}")))
            .collect();
    }
    if let Some(spans) = row.array_field("spans")? {
        let run =
            ["trace_id", "session_id", "id"].into_iter().find_map(|key| row.find_field(&[key]));
        let run = run.map_or_else(at, |(_, id)| id.as_str().map_or(id.to_string(), str::to_owned));
        let spans = spans.iter().enumerate();
        return spans
            .map(|(i, span)| read_flat_span(span, &format!("{place}: spans[{i}]"), Some(&run)))
            .collect();
    }
    Ok(vec![read_flat_span(document, place, None)?])
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[][..], Vec::as_slice)
}

fn read_otlp_span(span: &Value, place: &str) -> Result<GenAiSpan, WorkloadError> {
    let at = || place.to_owned();
    let row = JsonRow::json_row_from_value(span, &at)?;
    let nanos = |name: &str| -> Result<f64, WorkloadError> {
        let (_, value) = row.find_field(&[name]).ok_or_else(|| row.missing_field_error(name))?;
        // 64-bit integers are strings in JSON.
        let nanos = as_whole_number(value).or_else(|| value.as_str()?.parse().ok());
        let problem =
            || row.row_error(format!("{name} is {value}, must be nanoseconds since 1970"));
        nanos.map(|nanos| nanos as f64 / 1e6).ok_or_else(problem)
    };
    let attributes = list(&span["attributes"]).iter().filter_map(|attribute| {
        Some((attribute["key"].as_str()?.to_owned(), plain_value(&attribute["value"])))
    });
    let attributes: Map<String, Value> = attributes.collect();
    let run = row.required(JsonRow::text_field, "traceId")?;
    let read = SpanFields {
        run,
        id: row.text_field("spanId")?,
        parent: row.text_field("parentSpanId")?,
        start_ms: nanos("startTimeUnixNano")?,
        end_ms: nanos("endTimeUnixNano")?,
    };
    read.to_span(&row, &attributes)
}

/// Converts OTLP's `AnyValue` to plain JSON.
fn plain_value(value: &Value) -> Value {
    let Some((kind, value)) = value.as_object().and_then(|fields| fields.iter().next()) else {
        return Value::Null;
    };
    match kind.as_str() {
        "intValue" => {
            let number = value.as_str().and_then(|text| text.parse::<i64>().ok());
            number.map_or_else(|| value.clone(), Value::from)
        }
        "arrayValue" => list(&value["values"]).iter().map(plain_value).collect(),
        "kvlistValue" => {
            let pairs = list(&value["values"]).iter().filter_map(|pair| {
                Some((pair["key"].as_str()?.to_owned(), plain_value(&pair["value"])))
            });
            Value::Object(pairs.collect())
        }
        _ => value.clone(),
    }
}

fn read_flat_span(
    span: &Value,
    place: &str,
    run: Option<&str>,
) -> Result<GenAiSpan, WorkloadError> {
    let at = || place.to_owned();
    let row = JsonRow::json_row_from_value(span, &at)?;
    let none = Map::new();
    let attributes = match row.find_field(&["attributes"]) {
        Some((_, Value::Object(attributes))) => attributes,
        _ => &none,
    };
    let time = |name: &str| -> Result<Option<f64>, WorkloadError> {
        let Some(text) = row.text_field(name)? else {
            return Ok(None);
        };
        let form = "a time such as 2026-11-01T10:00:00.25Z";
        let problem = || row.row_error(format!("{name} is {text:?}, must be {form}"));
        parse_date_ms(text).map(Some).ok_or_else(problem)
    };
    let start_ms = time("start_time")?.ok_or_else(|| row.missing_field_error("start_time"))?;
    let took_ms = row.positive_seconds_field_as_ms(&["duration"])?;
    let end_ms = time("end_time")?.or(took_ms.map(|took| start_ms + took));
    let own = row.text_field("trace_id")?;
    let run = run.or(own).ok_or_else(|| row.missing_field_error("trace_id"))?;
    let read = SpanFields {
        run,
        id: row.text_field("span_id")?,
        parent: row.text_field("parent_span_id")?,
        start_ms,
        end_ms: end_ms.unwrap_or(start_ms),
    };
    read.to_span(&row, attributes)
}

struct SpanFields<'a> {
    run: &'a str,
    id: Option<&'a str>,
    parent: Option<&'a str>,
    start_ms: f64,
    end_ms: f64,
}

impl SpanFields<'_> {
    fn to_span(
        &self,
        row: &JsonRow<'_>,
        attributes: &Map<String, Value>,
    ) -> Result<GenAiSpan, WorkloadError> {
        let text = |key: &str| attributes.get(key).and_then(Value::as_str);
        let operation = text("gen_ai.operation.name");
        let input = token_count(row, attributes, INPUT_TOKEN_KEYS)?;
        let output = token_count(row, attributes, OUTPUT_TOKEN_KEYS)?;
        let is_request = match operation {
            Some(operation) => REQUEST_OPERATIONS.contains(&operation),
            None => input.is_some() && output.is_some(),
        };
        let failed = row.object_field("status")?.is_some_and(|status| {
            let code = status.find_field(&["code"]).map(|(_, code)| code);
            code.is_some_and(|code| code == FAILED_STATUS.0 || code == FAILED_STATUS.1)
        });
        let (input, output) = (input.unwrap_or(0), output.unwrap_or(0));
        Ok(GenAiSpan {
            run: text("gen_ai.conversation.id").unwrap_or(self.run).to_owned(),
            id: self.id.unwrap_or_default().to_owned(),
            parent: self.parent.filter(|id| !id.is_empty()).map(str::to_owned),
            kind: match operation {
                _ if is_request && !failed && input > 0 && output > 0 => GenAiSpanKind::Request,
                _ if is_request => GenAiSpanKind::Unusable,
                Some("invoke_agent") => GenAiSpanKind::Agent,
                _ => GenAiSpanKind::Other,
            },
            start_ms: self.start_ms,
            end_ms: self.end_ms.max(self.start_ms),
            input,
            output,
            prompt: prompt_texts(attributes),
        })
    }
}

fn token_count(
    row: &JsonRow<'_>,
    attributes: &Map<String, Value>,
    keys: [&str; 2],
) -> Result<Option<u32>, WorkloadError> {
    let found = keys.iter().find_map(|key| {
        let value = attributes.get(*key).filter(|value| !value.is_null())?;
        Some((key, value))
    });
    let Some((key, value)) = found else {
        return Ok(None);
    };
    let tokens = as_whole_number(value).filter(|n| *n <= MAX_PROMPT_OR_OUTPUT_TOKENS);
    let tokens = tokens.map(|n| Some(n as u32));
    tokens.ok_or_else(|| {
        let allowed = format!("a whole number from 0 to {MAX_PROMPT_OR_OUTPUT_TOKENS}");
        row.row_error(format!("{key} is {value}, must be {allowed}"))
    })
}

/// Returns the recorded system instructions, tools and messages, one text each.
fn prompt_texts(attributes: &Map<String, Value>) -> Vec<String> {
    let keys = ["gen_ai.system_instructions", "gen_ai.tool.definitions", "gen_ai.input.messages"];
    let mut texts = Vec::new();
    for value in keys.iter().filter_map(|key| attributes.get(*key)) {
        // Exporters that know no structured attributes write JSON in a string.
        let parsed = value.as_str().and_then(|text| serde_json::from_str(text).ok());
        match parsed.as_ref().unwrap_or(value) {
            Value::Array(entries) => texts.extend(entries.iter().map(Value::to_string)),
            other => texts.push(other.to_string()),
        }
    }
    texts
}
