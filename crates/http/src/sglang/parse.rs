//! `POST /separate_reasoning` and `POST /parse_function_call`: SGLang's parsers of a given text.
//!
//! Source: SGLang 0.5.23 `http_server.py`; `srt/parser/reasoning_parser.py`
//! (`BaseReasoningFormatDetector`); `srt/function_call` (`qwen25_detector.py`,
//! `hermes_detector.py`, `base_format_detector.py`).

use std::sync::Arc;

use serde_json::{Value, json};

use super::errors::{self, SglangResult};
use crate::app::App;
use crate::error::ok_json_response;
use vllm_sim_config::{MetricsCompat, list_parsers};
use vllm_sim_python::{self as python, json::dumps_unicode};
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::sglang::output_parsing::{ParseCallsRequest, SeparateReasoningRequest};

/// Handles `POST /separate_reasoning`: splits a text into reasoning and the remaining text.
pub(super) async fn separate_reasoning(
    _: Arc<App>,
    request: SeparateReasoningRequest,
) -> SglangResult {
    let markers = ReasoningMarkers::of_parser(&request.reasoning_parser)?;
    let (reasoning, text) = markers.separate(&request.text);
    let mut body = json!({"reasoning_text": reasoning, "text": text});
    if request.return_blocks {
        let thoughts = (!reasoning.is_empty()).then_some(reasoning);
        let block = |kind: &str, text: &str| json!({"type": kind, "text": text});
        let thought = thoughts.map(|text| block("reasoning", text));
        body["reasoning_blocks"] = thoughts.into_iter().collect();
        body["text_blocks"] = json!([text]);
        body["blocks"] = thought.into_iter().chain([block("text", text)]).collect();
    }
    Ok(ok_json_response(&body))
}

/// Handles `POST /parse_function_call`: finds the tool calls in a text.
pub(super) async fn parse_function_call(_: Arc<App>, request: ParseCallsRequest) -> SglangResult {
    let format = CallFormat::of_parser(request.tool_call_parser.as_deref())?;
    let names = request
        .tools
        .iter()
        .map(|tool| tool.pointer("/function/name").and_then(Value::as_str).unwrap_or_default());
    let names: Vec<&str> = names.collect();
    let (text, calls) = match names.is_empty() {
        true => (request.text.as_str(), Vec::new()),
        false => format.parse(&request.text, &names)?,
    };
    Ok(ok_json_response(&json!({"normal_text": text, "calls": calls})))
}

/// Returns the error for the requested parser `value`: a known parser is not simulated, an unknown
/// one gets SGLang's error.
fn parser_fault(name: &str, value: &str, known: &[&str], simulated: &str) -> Fault {
    match known.contains(&value) {
        true => Fault::bad_request(format!("{name} {value} is not simulated, only {simulated}")),
        false => errors::unhandled_exception_fault(),
    }
}

/// Marker texts with which a model encloses its reasoning in the generated text.
#[derive(Debug, Clone, Copy)]
struct ReasoningMarkers {
    open: &'static str,
    /// Text after `open` that also belongs to the opening marker of the reasoning.
    label: &'static str,
    close: &'static str,
    /// Whether generated texts begin inside the reasoning, without an opening marker.
    begins_inside: bool,
    /// Beginning of a tool call, which also ends the reasoning; `None` if only `close` ends the
    /// reasoning.
    tool: Option<&'static str>,
}

const THINK: ReasoningMarkers = ReasoningMarkers {
    open: "<think>",
    label: "",
    close: "</think>",
    begins_inside: false,
    tool: None,
};

impl ReasoningMarkers {
    fn of_parser(parser: &str) -> Result<Self, Fault> {
        let parser = parser.to_lowercase();
        let tool = Some("<tool_call>");
        Ok(match parser.as_str() {
            "deepseek-r1" | "gigachat35" | "iquest_q1" | "step3" | "step3p5" => {
                Self { begins_inside: true, ..THINK }
            }
            "deepseek-v4" | "deepseek-v41" => THINK,
            "deepseek-v3" | "dots" | "glm45" | "interns1" | "mimo" | "nanbeige" | "nemotron_3"
            | "poolside_v1" | "qwen3" => Self { tool, ..THINK },
            "minimax" | "qwen3-thinking" => Self { begins_inside: true, tool, ..THINK },
            "hunyuan" => Self { tool: Some("<tool_calls>"), ..THINK },
            "kimi_k2" => Self { tool: Some("<|tool_calls_section_begin|>"), ..THINK },
            "k2_horizon" => Self {
                open: "<ifm|think>",
                close: "</ifm|think>",
                begins_inside: true,
                tool: Some("<ifm|tool_call"),
                ..THINK
            },
            "kimi" => Self { open: "◁think▷", close: "◁/think▷", ..THINK },
            "mistral" => Self { open: "[THINK]", close: "[/THINK]", ..THINK },
            "gemma4" => {
                Self { open: "<|channel>", label: "thought\n", close: "<channel|>", ..THINK }
            }
            _ => {
                let simulated = "parsers with an opening and a closing marker";
                let (_, known) = list_parsers(MetricsCompat::Sglang);
                return Err(parser_fault("reasoning_parser", &parser, known, simulated));
            }
        })
    }

    /// Returns the reasoning in a generated text, and the remaining text.
    fn separate<'t>(&self, text: &'t str) -> (&'t str, &'t str) {
        if !self.begins_inside && !text.contains(self.open) {
            return ("", text);
        }
        let open = format!("{}{}", self.open, self.label);
        let inside = text.trim_start_matches(open.as_str());
        if let Some(parts) = inside.split_once(self.close) {
            return parts;
        }
        match self.tool.and_then(|tool| inside.find(tool)) {
            Some(start) => inside.split_at(start),
            None => (inside, ""),
        }
    }
}

/// Format of the tool calls in a text: JSON between two tags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallFormat {
    /// Format of tool calls: between tags on separate lines; a call that is not JSON is left out.
    Qwen25,
    /// Format of tool calls: between tags, of which the last closing one may be missing. If a call
    /// is not JSON, the whole text is treated as content.
    Hermes,
}

/// Normal text and tool calls found in a generated text.
type ParsedCalls<'t> = (&'t str, Vec<Value>);

impl CallFormat {
    fn of_parser(parser: Option<&str>) -> Result<Self, Fault> {
        match parser {
            Some("qwen" | "qwen25") => Ok(Self::Qwen25),
            Some("hermes") => Ok(Self::Hermes),
            other => Err(parser_fault(
                "tool_call_parser",
                other.unwrap_or_default(),
                list_parsers(MetricsCompat::Sglang).0,
                "hermes, qwen and qwen25",
            )),
        }
    }

    /// Splits a generated text into normal text and the calls of the tools in `names`.
    fn parse<'t>(self, text: &'t str, names: &[&str]) -> Result<ParsedCalls<'t>, Fault> {
        let (open, close) = match self {
            Self::Qwen25 => ("<tool_call>\n", "\n</tool_call>"),
            Self::Hermes => ("<tool_call>", "</tool_call>"),
        };
        let Some((normal, mut rest)) = text.split_once(open) else {
            return Ok((text, Vec::new()));
        };
        let mut calls = Vec::new();
        loop {
            let (written, after) = match (rest.split_once(close), self) {
                (Some(parts), _) => parts,
                (None, Self::Hermes) => (rest, ""),
                (None, Self::Qwen25) => break,
            };
            match (python::loads(written.trim().as_bytes()), self) {
                (Ok(written), _) => calls.extend(known_calls(&written, names)?),
                (Err(_), Self::Hermes) if !written.is_empty() => return Ok((text, Vec::new())),
                (Err(_), _) => {}
            }
            match after.split_once(open) {
                Some((_, next)) => rest = next,
                None => break,
            }
        }
        Ok((normal.trim(), calls))
    }
}

/// Returns the calls of known tools in a JSON value, which is one call or a list of calls.
fn known_calls(written: &Value, names: &[&str]) -> Result<Vec<Value>, Fault> {
    let list = written.as_array().map_or(std::slice::from_ref(written), Vec::as_slice);
    let mut calls = Vec::new();
    for call in list {
        let members = call.as_object().ok_or_else(errors::unhandled_exception_fault)?;
        let name = members.get("name").and_then(Value::as_str).unwrap_or_default();
        let Some(index) = names.iter().rposition(|known| !name.is_empty() && *known == name) else {
            continue;
        };
        let is_set = |value: &&Value| python::PythonValue::from_json_value(value).is_truthy();
        let arguments = members.get("parameters").filter(is_set).or(members.get("arguments"));
        let arguments = arguments.map_or_else(|| "{}".to_owned(), dumps_unicode);
        calls.push(json!({"tool_index": index, "name": name, "parameters": arguments}));
    }
    Ok(calls)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn separate(parser: &str, text: &str) -> (String, String) {
        let (reasoning, text) = ReasoningMarkers::of_parser(parser).unwrap().separate(text);
        (reasoning.to_owned(), text.to_owned())
    }

    #[test]
    fn reasoning_ends_at_its_marker_or_at_a_call() {
        for (parser, text, reasoning, rest) in [
            ("deepseek-r1", "Well.</think>So.", "Well.", "So."),
            ("deepseek-r1", "cut off", "cut off", ""),
            ("QWEN3", "no tags", "", "no tags"),
            ("qwen3", "a<think>b</think>c<think>d</think>e", "a<think>b", "c<think>d</think>e"),
            ("qwen3", "<think>b<tool_call>c", "b", "<tool_call>c"),
            ("gemma4", "<|channel>thought\nb<channel|>c", "b", "c"),
        ] {
            assert_eq!(separate(parser, text), (reasoning.to_owned(), rest.to_owned()), "{text}");
        }
        let refusal = |parser| ReasoningMarkers::of_parser(parser).unwrap_err();
        assert_eq!((refusal("gpt-oss").status, refusal("nope").status), (400, 500));
    }

    #[test]
    fn calls_of_known_tools_have_the_index_of_their_tool() {
        const TEXT: &str = "Sure. <tool_call>\n{\"name\": \"g\", \"arguments\": {\"ä\": 1}}\n\
             </tool_call>\n<tool_call>\n{bad\n</tool_call>\n<tool_call>\n{\"name\": \"x\"}\n</tool_call>";
        let call = json!({"tool_index": 1, "name": "g", "parameters": "{\"ä\": 1}"});
        let parsed = CallFormat::Qwen25.parse(TEXT, &["f", "g"]).unwrap();
        assert_eq!(parsed, ("Sure.", vec![call.clone()]));
        assert_eq!(CallFormat::Hermes.parse(TEXT, &["f", "g"]).unwrap(), (TEXT, vec![]));
        let open = "<tool_call>{\"name\": \"g\", \"parameters\": {\"ä\": 1}}";
        assert_eq!(CallFormat::Hermes.parse(open, &["f", "g"]).unwrap(), ("", vec![call]));
        assert_eq!(CallFormat::of_parser(None).unwrap_err().status, 500);
        assert_eq!(CallFormat::of_parser(Some("mistral")).unwrap_err().status, 400);
    }
}
