//! What vLLM answers to a body it does not take, word for word.
//!
//! `tests/fixtures/errors/*.jsonl` hold requests and the errors vLLM's own request classes gave
//! for them. `WIRE_CASES=file.jsonl` checks another file of the same form.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;
use vllm_sim::wire::anthropic::{CountTokensRequest, MessagesRequest};
use vllm_sim::wire::openai::conversation::{ContentFormat, conversation};
use vllm_sim::wire::openai::{ChatRequest, CompletionRequest, ResponsesRequest};
use vllm_sim::wire::vllm::{
    DetokenizeRequest, GenerateRequest, LoadLoraRequest, TokenizeRequest, UnloadLoraRequest,
};
use vllm_sim::wire::{Fault, body};

/// One recorded request and its answer; `expected` is `ok` where the schema has no objection.
#[derive(Debug, Deserialize)]
struct Case {
    path: String,
    #[serde(default = "json")]
    content_type: Option<String>,
    body: String,
    expected: String,
}

#[expect(clippy::unnecessary_wraps, reason = "serde wants the field's type")]
fn json() -> Option<String> {
    Some("application/json".to_owned())
}

/// What we answer to a case, or `None` for a route that is not checked here.
fn answer(case: &Case) -> Option<String> {
    let value = match body::read(case.content_type.as_deref(), case.body.as_bytes()) {
        Ok(value) => value,
        Err(fault) => return Some(fault.to_json()),
    };
    if let Some(format) = case.path.strip_prefix("conversation:") {
        let format = match format {
            "string" => ContentFormat::String,
            _ => ContentFormat::OpenAi,
        };
        let said = ChatRequest::parse(&value)
            .and_then(|request| conversation(&request.messages, format, "tiny-llama"));
        return Some(match said {
            Ok(said) => Value::Array(said).to_string(),
            Err(fault) => fault.to_json(),
        });
    }
    let outcome: Result<(), Fault> = match case.path.as_str() {
        "/v1/chat/completions" => ChatRequest::parse(&value).map(drop),
        "/v1/completions" => CompletionRequest::parse(&value).map(drop),
        "/v1/responses" => ResponsesRequest::parse(&value).map(drop),
        "/v1/messages" => MessagesRequest::parse(&value).map(drop),
        "/v1/messages/count_tokens" => CountTokensRequest::parse(&value).map(drop),
        "/tokenize" => TokenizeRequest::parse(&value).map(drop),
        "/detokenize" => DetokenizeRequest::parse(&value).map(drop),
        "/v1/load_lora_adapter" => LoadLoraRequest::parse(&value).map(drop),
        "/v1/unload_lora_adapter" => UnloadLoraRequest::parse(&value).map(drop),
        "/inference/v1/generate" => GenerateRequest::parse(&value).map(drop),
        _ => return None,
    };
    Some(match outcome {
        Ok(()) => "ok".to_owned(),
        Err(fault) => fault.to_json(),
    })
}

/// Checks every case of a file of lines; answers how many were checked.
fn check(file: &Path) -> usize {
    let text = std::fs::read_to_string(file).expect("fixture is readable");
    let mut checked = 0;
    let mut wrong = Vec::new();
    for line in text.lines() {
        let case: Case = serde_json::from_str(line).expect("fixture line is a case");
        let Some(ours) = answer(&case) else { continue };
        checked += 1;
        if ours != case.expected {
            wrong.push(format!(
                "{} {}\n  want {}\n  have {ours}",
                case.path, case.body, case.expected
            ));
        }
    }
    let shown = wrong
        .iter()
        .take(25)
        .cloned()
        .collect::<Vec<_>>()
        .join("\n");
    assert!(
        wrong.is_empty(),
        "{}: {} of {checked} differ\n{shown}",
        file.display(),
        wrong.len()
    );
    checked
}

#[test]
fn schema_errors_have_the_words_of_vllm() {
    let files = match std::env::var_os("WIRE_CASES") {
        Some(file) => vec![PathBuf::from(file)],
        None => {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/errors");
            let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
                .expect("fixtures exist")
                .filter_map(|entry| Some(entry.ok()?.path()))
                .filter(|path| path.extension().is_some_and(|e| e == "jsonl"))
                .collect();
            files.sort();
            files
        }
    };
    let checked: usize = files.iter().map(|file| check(file)).sum();
    assert!(checked > 0, "no case was checked");
}
