//! Mutated bodies through every request class: a request or words, never a panic.

use serde_json::Value;

use super::bounds::RequestBounds;
use super::{Fault, body};

#[path = "../../../fuzz/mutate.rs"]
mod mutate;

/// Requests with odd values for every field.
const REQUESTS: &str = include_str!("../../../tests/fixtures/errors/schema.jsonl");

/// What all classes make of a value.
fn faults(value: &Value) -> Vec<Fault> {
    use super::anthropic::MessagesRequest;
    use super::cohere::EmbedRequest;
    use super::openai::batch::BatchChatRequest;
    use super::openai::chat::ChatRequest;
    use super::openai::completion::CompletionRequest;
    use super::openai::responses::ResponsesRequest;
    use super::vllm::derender::{DerenderChatRequest, DerenderStreamRequest};
    use super::vllm::generate::GenerateRequest;
    use super::vllm::pooling::PoolingRequest;

    let bounds = RequestBounds::default();
    let outcomes = [
        ChatRequest::parse(value, &bounds).err(),
        CompletionRequest::parse(value, &bounds).err(),
        BatchChatRequest::parse(value, &bounds).err(),
        ResponsesRequest::parse(value, &bounds).err(),
        MessagesRequest::parse(value, &bounds).err(),
        GenerateRequest::parse(value, &bounds).err(),
        EmbedRequest::parse(value).err(),
        PoolingRequest::parse_embedding(value).err(),
        PoolingRequest::parse_pooling(value).err(),
        PoolingRequest::parse_score(value).err(),
        PoolingRequest::parse_rerank(value).err(),
        DerenderChatRequest::parse(value).err(),
        DerenderStreamRequest::parse(value).err(),
    ];
    outcomes.into_iter().flatten().collect()
}

#[test]
fn lax_types() {
    let lines = REQUESTS.lines().step_by(7);
    let lines = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let seeds: Vec<String> = lines
        .filter_map(|line| line["body"].as_str().map(str::to_owned))
        .collect();
    mutate::each(&seeds, |bytes| {
        let faults = match body::read(Some("application/json"), bytes) {
            Ok(value) => faults(&value),
            Err(fault) => vec![fault],
        };
        for fault in faults {
            assert!((400..500).contains(&fault.status) && !fault.message.is_empty());
            assert!(fault.to_json().len() < 100_000 + 16 * bytes.len());
        }
    });
}
