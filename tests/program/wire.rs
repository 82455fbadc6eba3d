//! What vLLM answers to a request it does not take, word for word.
//!
//! `tests/fixtures/errors/schema.jsonl` holds bodies and what vLLM 0.33's own request classes
//! said of them (`ok`, or the answer; for `conversation:*` the messages that a template gets);
//! `recorded.jsonl` holds errors of a real 0.32 server (see `collect.py` beside it).
//! `WIRE_CASES=file.jsonl` checks another file of the first form.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value};
use vllm_sim_service::prompt::to_template_messages;
use vllm_sim_tokenizer::{
    ChatMessage, ChatTemplateContentFormat, ChatTemplateInput, ChatTemplates,
};
use vllm_sim_wire::anthropic::{CountTokensRequest, MessagesRequest};
use vllm_sim_wire::body::{read_body_within_bounds, validate_and_read_body};
use vllm_sim_wire::bounds::RequestBounds;
use vllm_sim_wire::cohere::CohereEmbedRequest;
use vllm_sim_wire::limits::ServerLimits;
use vllm_sim_wire::openai::completion::CompletionPrompt;
use vllm_sim_wire::openai::{BatchChatRequest, ChatRequest, CompletionRequest, ResponsesRequest};
use vllm_sim_wire::sampling::{SamplingDefaults, SamplingParams, output_budget_tokens};
use vllm_sim_wire::vllm::{
    DetokenizeRequest, GenerateRequest, GenerativeScoringRequest, LoadLoraRequest, PoolingRequest,
    TokenizeRequest, UnloadLoraRequest,
};
use vllm_sim_wire::{Fault, VllmVersion, body};

/// One request and its answer.
#[derive(Debug, Deserialize)]
struct Case {
    #[serde(default)]
    config: String,
    path: String,
    #[serde(default = "json")]
    content_type: Option<String>,
    #[serde(default)]
    rank: Option<String>,
    body: String,
    expected: String,
}

#[expect(clippy::unnecessary_wraps, reason = "serde wants the field's type")]
fn json() -> Option<String> {
    Some("application/json".to_owned())
}

/// What the schema says of a body, or `None` for a route that is not checked here.
fn schema(path: &str, value: &Value) -> Option<Result<(), Fault>> {
    Some(match path {
        "/v1/chat/completions" => {
            ChatRequest::parse_chat_request(value, &RequestBounds::default()).map(drop)
        }
        "/v1/completions" => {
            CompletionRequest::parse_completion_request(value, &RequestBounds::default()).map(drop)
        }
        "/v1/responses" => {
            read_body_within_bounds::<ResponsesRequest>(value, &RequestBounds::default()).map(drop)
        }
        "/v1/chat/completions/batch" => {
            read_body_within_bounds::<BatchChatRequest>(value, &RequestBounds::default()).map(drop)
        }
        "/v1/embeddings" => PoolingRequest::parse_embedding_request(value).map(drop),
        "/pooling" => PoolingRequest::parse_pooling_request(value).map(drop),
        "/classify" => PoolingRequest::parse_classify_request(value).map(drop),
        "/score" => PoolingRequest::parse_score_request(value).map(drop),
        "/rerank" => PoolingRequest::parse_rerank_request(value).map(drop),
        "/v2/embed" => validate_and_read_body::<CohereEmbedRequest>(value).map(drop),
        "/generative_scoring" => {
            validate_and_read_body::<GenerativeScoringRequest>(value).map(drop)
        }
        "/v1/messages" => {
            read_body_within_bounds::<MessagesRequest>(value, &RequestBounds::default()).map(drop)
        }
        "/v1/messages/count_tokens" => {
            validate_and_read_body::<CountTokensRequest>(value).map(drop)
        }
        "/tokenize" => TokenizeRequest::parse_tokenize_request(value).map(drop),
        "/detokenize" => validate_and_read_body::<DetokenizeRequest>(value).map(drop),
        "/v1/load_lora_adapter" => validate_and_read_body::<LoadLoraRequest>(value)
            .and_then(|r| r.validate_load_lora_request()),
        "/v1/unload_lora_adapter" => validate_and_read_body::<UnloadLoraRequest>(value)
            .and_then(|r| r.validate_unload_lora_request()),
        "/inference/v1/generate" => {
            GenerateRequest::parse_generate_request(value, &RequestBounds::default()).map(drop)
        }
        _ => return None,
    })
}

/// Returns the messages as vLLM hands them to transformers.
fn shown(messages: &[ChatMessage], format: ChatTemplateContentFormat) -> Vec<Value> {
    let text = ChatTemplates::default().render_chat(&ChatTemplateInput {
        messages,
        // To a template that does not name the role, developers are system messages.
        chat_template: Some("{% set known = 'developer' %}{{ messages | tojson }}"),
        content_format: Some(format),
        ..ChatTemplateInput::default()
    });
    let text = text.expect("the template takes any message");
    let mut shown: Vec<Map<String, Value>> = serde_json::from_str(&text).expect("JSON");
    for message in &mut shown {
        // transformers' own name of `reasoning_content`.
        message.shift_remove("thinking");
    }
    shown.into_iter().map(Value::Object).collect()
}

/// What we say to a case of the first form.
fn said(case: &Case) -> Option<String> {
    let value = match body::read_json_body(case.content_type.as_deref(), case.body.as_bytes()) {
        Ok(value) => value,
        Err(fault) => return Some(fault.to_json()),
    };
    if let Some(format) = case.path.strip_prefix("conversation:") {
        let format = match format {
            "string" => ChatTemplateContentFormat::String,
            _ => ChatTemplateContentFormat::Openai,
        };
        let rendered = ChatRequest::parse_chat_request(&value, &RequestBounds::default())
            .and_then(|request| to_template_messages(&request.messages, "tiny-llama"));
        return Some(match rendered {
            Ok(messages) => Value::from_iter(shown(&messages, format)).to_string(),
            Err(fault) => fault.to_json(),
        });
    }
    let outcome = match case.path.as_str() {
        // The LoRA routes look for blanks only after the schema.
        "/v1/load_lora_adapter" => validate_and_read_body::<LoadLoraRequest>(&value).map(drop),
        "/v1/unload_lora_adapter" => validate_and_read_body::<UnloadLoraRequest>(&value).map(drop),
        path => schema(path, &value)?,
    };
    Some(outcome.map_or_else(|fault| fault.to_json(), |()| "ok".to_owned()))
}

/// Checks every case of a file; answers how many were checked.
fn check(file: &Path, said: impl Fn(&Case) -> Option<String>) -> usize {
    let text = std::fs::read_to_string(file).expect("fixture is readable");
    let mut checked = 0;
    let mut wrong = Vec::new();
    for line in text.lines() {
        let case: Case = serde_json::from_str(line).expect("fixture line is a case");
        let Some(ours) = said(&case) else { continue };
        checked += 1;
        // What vLLM trips over is a 500 there; here it is the client's mistake.
        let expected = case.expected.replace(
            "\"type\":\"InternalServerError\",\"param\":null,\"code\":500",
            "\"type\":\"BadRequestError\",\"param\":null,\"code\":400",
        );
        if ours != expected {
            wrong.push(format!(
                "{} {}\n  want {}\n  have {ours}",
                case.path, case.body, case.expected
            ));
        }
    }
    let shown = wrong.iter().take(25).cloned().collect::<Vec<_>>().join("\n");
    assert!(wrong.is_empty(), "{}: {} of {checked} differ\n{shown}", file.display(), wrong.len());
    checked
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/errors").join(name)
}

#[test]
fn schema_errors_have_the_words_of_vllm() {
    let file =
        std::env::var_os("WIRE_CASES").map_or_else(|| fixture("schema.jsonl"), PathBuf::from);
    assert!(check(&file, said) > 0, "no case was checked");
}

/// The deployment a case was recorded from.
fn limits(config: &str) -> ServerLimits {
    ServerLimits {
        max_model_len: 1024,
        vocab_size: Some(4096),
        has_tool_parser: config == "A",
        auto_tool_choice: config == "A",
        reasoning_parser: config == "B",
        speculative: config == "C",
        data_parallel_ranks: if config == "D" { 2 } else { 1 },
        served_name: "tiny-llama".to_owned(),
        version: VllmVersion::V032,
        ..ServerLimits::default()
    }
}

fn known(model: Option<&str>) -> Result<(), Fault> {
    match model {
        None | Some("" | "tiny-llama" | "sql-lora") => Ok(()),
        Some(model) => Err(Fault::unknown_model(model, &["tiny-llama"])),
    }
}

/// A stand-in for the tokenizer: a token per word, and one more than fits at most.
fn tokens(text: &str, limits: &ServerLimits) -> usize {
    (text.split_whitespace().count() + 1).min(limits.max_model_len as usize + 1)
}

/// What follows tokenization on every generation route.
fn generate(
    case: &Case,
    limits: &ServerLimits,
    prompts: &[usize],
    asked: Option<i128>,
    params: impl Fn(i128, &SamplingDefaults) -> Result<Box<SamplingParams>, Fault>,
) -> Result<(), Fault> {
    let defaults = SamplingDefaults::default();
    let rank = case.rank.as_deref().and_then(|rank| rank.parse().ok());
    for prompt in prompts {
        limits.check_prompt_tokens(*prompt)?;
    }
    for prompt in prompts {
        let params = params(output_budget_tokens(limits, asked, *prompt, &defaults), &defaults)?;
        params.verify_against_engine(limits)?;
        limits.check_data_parallel_rank(rank)?;
        params.verify_against_prompt(*prompt)?;
    }
    Ok(())
}

fn chat(case: &Case, value: &Value, limits: &ServerLimits) -> Result<(), Fault> {
    let request = ChatRequest::parse_chat_request(value, &RequestBounds::default())?;
    known(request.model.as_deref())?;
    request.validate_without_prompt(limits)?;
    let said = to_template_messages(&request.messages, &limits.served_name)?;
    let words: usize = shown(&said, ChatTemplateContentFormat::String)
        .into_iter()
        .map(|m| tokens(m["content"].as_str().unwrap_or_default(), limits))
        .sum();
    let words = words.min(limits.max_model_len as usize + 1);
    generate(case, limits, &[words], request.requested_output_limit().1, |budget, defaults| {
        let sampling = request.sampling_params(defaults)?;
        match request.use_beam_search {
            true => Ok(sampling),
            false => sampling.with_output_budget(budget, &defaults.bounds),
        }
    })
}

fn completion(case: &Case, value: &Value, limits: &ServerLimits) -> Result<(), Fault> {
    let request = CompletionRequest::parse_completion_request(value, &RequestBounds::default())?;
    request.validate_before_model_lookup()?;
    known(request.model.as_deref())?;
    request.validate_without_tokenizer(limits)?;
    let prompts = request.prompt.clone().unwrap_or_default().0;
    let counts: Vec<usize> = prompts
        .iter()
        .map(|prompt| match prompt {
            CompletionPrompt::Text(text) => tokens(text, limits),
            CompletionPrompt::Tokens(ids) => ids.len(),
        })
        .collect();
    generate(case, limits, &counts, request.max_tokens, |budget, defaults| {
        let sampling = request.sampling_params(defaults)?;
        let budget = if request.only_echoes_prompt() { 1 } else { budget };
        match request.use_beam_search {
            true => Ok(sampling),
            false => sampling.with_output_budget(budget, &defaults.bounds),
        }
    })?;
    for prompt in &prompts {
        if let CompletionPrompt::Tokens(ids) = prompt {
            limits.check_prompt_ids(ids)?;
        }
    }
    Ok(())
}

fn messages(case: &Case, value: &Value, limits: &ServerLimits) -> Result<String, Fault> {
    let request = read_body_within_bounds::<MessagesRequest>(value, &RequestBounds::default())?;
    let text = serde_json::to_string(&case.body).expect("a string");
    match limits.check_prompt_tokens(tokens(&text, limits)) {
        Ok(()) => Ok(format!("{} messages", request.messages.len())),
        Err(fault) => Ok(fault.to_anthropic_json(limits.version)),
    }
}

/// What a server like that of the recording says to a case.
fn served(case: &Case) -> Option<String> {
    let limits = limits(&case.config);
    let value = match body::read_json_body(case.content_type.as_deref(), case.body.as_bytes()) {
        Ok(value) => value,
        Err(fault) => return Some(fault.to_json()),
    };
    let outcome = match case.path.as_str() {
        "/v1/chat/completions" => chat(case, &value, &limits),
        "/v1/completions" => completion(case, &value, &limits),
        "/v1/responses" => {
            read_body_within_bounds::<ResponsesRequest>(&value, &RequestBounds::default())
                .and_then(|request| known(request.model.as_deref()))
        }
        "/v1/messages" => match messages(case, &value, &limits) {
            Ok(text) => return Some(text),
            Err(fault) => Err(fault),
        },
        path => schema(path, &value)?,
    };
    Some(outcome.map_or_else(|fault| fault.to_json(), |()| "ok".to_owned()))
}

#[test]
fn error_responses_match_recorded_server() {
    let checked = check(&fixture("recorded.jsonl"), served);
    assert!(checked >= 60, "only {checked} cases were checked");
}
