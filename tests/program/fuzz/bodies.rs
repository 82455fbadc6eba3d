//! Bodies of requests.

use std::fs;

use serde_json::Value;
use vllm_sim_python as python;
use vllm_sim_service::prompt::to_template_messages;
use vllm_sim_wire::anthropic::{CountTokensRequest, MessagesRequest};
use vllm_sim_wire::body;
use vllm_sim_wire::body::{read_body_within_bounds, validate_and_read_body};
use vllm_sim_wire::bounds::RequestBounds;
use vllm_sim_wire::cohere::CohereEmbedRequest;
use vllm_sim_wire::openai::{BatchChatRequest, ChatRequest, CompletionRequest, ResponsesRequest};
use vllm_sim_wire::vllm::derender::{
    DerenderChatRequest, DerenderCompletionRequest, DerenderStreamRequest,
};
use vllm_sim_wire::vllm::{
    DetokenizeRequest, GenerateRequest, GenerativeScoringRequest, LoadLoraRequest, PoolingRequest,
    TokenizeRequest,
};

use super::mutate::Corpus;
use super::run::fuzz;
use super::{files_below, lines};

/// Signs of JSON, and names and values that requests have.
const TOKENS: &[&str] = &[
    "null",
    "true",
    "false",
    "NaN",
    "-Infinity",
    "\"\"",
    "[]",
    "{}",
    "[[]]",
    ",",
    ":",
    "\\u0000",
    "\\ud800",
    "\\udc00",
    "\\",
    "\"5\"",
    "\"yes\"",
    "1.0",
    "\"messages\":",
    "\"content\":",
    "\"role\":\"assistant\"",
    "\"role\":\"tool\"",
    "\"tool_calls\":",
    "\"function\":",
    "\"arguments\":\"{\"",
    "\"type\":\"text\"",
    "\"type\":\"image_url\"",
    "\"tools\":",
    "\"tool_choice\":\"required\"",
    "\"stop\":",
    "\"n\":",
    "\"logprobs\":",
    "\"prompt\":",
    "\"stream_options\":",
    "\"response_format\":",
    "\"structured_outputs\":",
    "\"logit_bias\":",
    "\"stop_token_ids\":",
    "\"input\":",
    "\"reasoning\":",
    "\"vllm_xargs\":",
    "\"token_ids\":",
];

/// The bodies of the golden requests and of the recorded refusals.
pub(crate) fn requests() -> Vec<Vec<u8>> {
    let golden = files_below("tests/golden/http", ".txt").into_iter();
    let golden = golden.filter_map(|path| {
        let text = fs::read(path).unwrap();
        let second = text.split(|byte| *byte == b'\n').nth(1)?;
        second.starts_with(b"{").then(|| second.to_vec())
    });
    let refused = lines("tests/fixtures/errors", ".jsonl").into_iter();
    let refused = refused.filter_map(|line| {
        let line: Value = serde_json::from_slice(&line).unwrap();
        Some(line.get("body")?.as_str()?.as_bytes().to_vec())
    });
    golden.chain(refused).collect()
}

pub(crate) fn corpus() -> Corpus {
    Corpus { seeds: requests(), tokens: TOKENS }
}

#[test]
fn fuzz_python_json() {
    fuzz("json", 1, corpus(), |input| match python::loads(input) {
        Ok(value) => {
            // Numbers beyond JSON are spelled as texts of our own; all else comes back.
            let written = python::json::dumps(&value);
            assert_eq!(python::loads(written.as_bytes()), Ok(value));
        }
        Err(error) => drop(error.error_message_with_position(input)),
    });
}

#[test]
fn a_long_completion_is_the_one_that_the_schema_makes() {
    fuzz("long completion", 1, corpus(), |input| {
        let bounds = RequestBounds::default();
        let long = [input, &[b' '; 64 * 1024]].concat();
        if let Some((request, _)) = CompletionRequest::parse_long_prompt_and_body(&long, &bounds) {
            let value = body::read_json_body(Some("application/json"), input).unwrap();
            assert_eq!(CompletionRequest::parse_completion_request(&value, &bounds), Ok(request));
        }
    });
}

#[test]
fn fuzz_request_classes() {
    fuzz("request classes", 1, corpus(), |input| {
        let Ok(value) = body::read_json_body(Some("application/json"), input) else {
            return;
        };
        let bounds = RequestBounds::default();
        if let Ok(request) = ChatRequest::parse_chat_request(&value, &bounds) {
            let _ = to_template_messages(&request.messages, "m");
        }
        let refusals = [
            CompletionRequest::parse_completion_request(&value, &bounds).err(),
            read_body_within_bounds::<ResponsesRequest>(&value, &bounds).err(),
            read_body_within_bounds::<MessagesRequest>(&value, &bounds).err(),
            validate_and_read_body::<CountTokensRequest>(&value).err(),
            read_body_within_bounds::<BatchChatRequest>(&value, &bounds).err(),
            GenerateRequest::parse_generate_request(&value, &bounds).err(),
            validate_and_read_body::<CohereEmbedRequest>(&value).err(),
            PoolingRequest::parse_embedding_request(&value).err(),
            PoolingRequest::parse_pooling_request(&value).err(),
            PoolingRequest::parse_score_request(&value).err(),
            PoolingRequest::parse_rerank_request(&value).err(),
            validate_and_read_body::<GenerativeScoringRequest>(&value).err(),
            TokenizeRequest::parse_tokenize_request(&value).err(),
            validate_and_read_body::<DetokenizeRequest>(&value).err(),
            validate_and_read_body::<DerenderChatRequest>(&value).err(),
            validate_and_read_body::<DerenderCompletionRequest>(&value).err(),
            validate_and_read_body::<DerenderStreamRequest>(&value).err(),
            validate_and_read_body::<LoadLoraRequest>(&value).err(),
        ];
        for refusal in refusals.into_iter().flatten() {
            assert!(refusal.to_json().len() < 1 << 20, "a refusal multiplies");
        }
    });
}
