//! Requests of the derender routes, which convert token responses to text responses.
//!
//! Source: `vllm/entrypoints/scale_out/token_in_token_out/protocol.py`.

use serde_json::{Map, Value};

use crate::check;
use crate::fault::Fault;
use crate::schema::{ANY_LENGTH, Length, STR, Schema, ValidatorError, int_above, wire_model};

/// A response of another route; its members are checked separately.
const REPLY: Schema = Schema::Dict(&STR, &Schema::Any);

wire_model! {
    /// Body of `POST /v1/chat/completions/derender`.
    pub struct DerenderChatRequest: Plain "DerenderChatRequest" {
        /// Whether the response is a stream chunk.
        stream: bool = false,
        /// Served model name.
        model: Option<String> = None,
        /// Token response of `/inference/v1/generate`.
        generate_response: Value [REPLY],
        /// Prompt length, in tokens.
        prompt_tokens: Option<i128> = None,
        /// Token ids of the prompt.
        prompt_token_ids: Option<Vec<u64>> = None,
        /// The original request.
        chat_request: Option<Value> = None,
    }
}

wire_model! {
    /// Body of `POST /v1/completions/derender`.
    pub struct DerenderCompletionRequest: Plain "DerenderCompletionRequest" after lengths {
        /// Whether the responses are stream chunks.
        stream: bool = false,
        /// Served model name.
        model: Option<String> = None,
        /// Token responses, one per prompt.
        generate_responses: Vec<Value> [Schema::List(&REPLY, ANY_LENGTH)],
        /// Prompt lengths, in tokens.
        prompt_tokens: Option<Vec<i128>> = None,
        /// Token ids of the prompts.
        prompt_token_ids: Option<Vec<Option<Vec<u64>>>> = None,
        /// The original request.
        completion_request: Option<Value> = None,
    }
}

wire_model! {
    default
    /// State that a client carries between the chunks of one choice.
    pub struct StreamState: Plain "DerenderStreamState" after replayed {
        /// Recent tokens, as vocabulary entries.
        prev_tokens: Vec<String> [Schema::List(&STR, Length { min: 0, max: 1024 })] = Vec::new(),
        /// Number of these tokens that detokenization skips.
        prefix_offset: u64 = 0,
        /// Number of these tokens whose text was sent.
        read_offset: u64 = 0,
        /// Whether the role was sent.
        role_sent: bool = false,
        /// Recent token ids, for log probabilities.
        logprob_context_token_ids: Vec<u64> = Vec::new(),
        /// Characters of all tokens so far.
        logprob_text_offset: u64 = 0,
        /// All token ids so far, if a parser needs them.
        output_token_ids: Vec<u64> = Vec::new(),
        /// Number of tokens of each chunk.
        output_chunk_lens: Vec<u64> [Schema::List(&int_above(0), ANY_LENGTH)] = Vec::new(),
        /// Whether a tool call was sent.
        tools_streamed: bool = false,
        /// Ids of the tool calls.
        last_tool_call_ids: Vec<String> = Vec::new(),
    }
}

wire_model! {
    /// One stream chunk, for chat or completions.
    pub struct DerenderStreamRequest: Plain "DerenderStreamRequest" {
        /// Served model name.
        model: Option<String> = None,
        /// Token chunk of `/inference/v1/generate`.
        generate_chunk: Value [REPLY],
        /// State that the previous call returned; null at first.
        stream_state: Option<StreamState> = None,
        /// Prompt length, in tokens.
        prompt_tokens: Option<i128> = None,
        /// Token ids of the prompt.
        prompt_token_ids: Option<Vec<u64>> = None,
        /// Original chat request.
        chat_request: Option<Value> = None,
        /// Original completion request.
        completion_request: Option<Value> = None,
    }
}

fn length(body: &Map<String, Value>, key: &str) -> Option<usize> {
    body.get(key).and_then(Value::as_array).map(Vec::len)
}

/// Mirrors vLLM's `_validate_prompt_tokens_length`.
fn lengths(body: &Map<String, Value>) -> Result<(), ValidatorError> {
    let replies = length(body, "generate_responses").unwrap_or(0);
    for key in ["prompt_tokens", "prompt_token_ids"] {
        if let Some(given) = length(body, key).filter(|given| *given != replies) {
            return Err(ValidatorError::ValueError(format!(
                "{key} length ({given}) must equal generate_responses length ({replies})"
            )));
        }
    }
    Ok(())
}

/// Mirrors vLLM's `_validate_output_chunk_lens`.
fn replayed(body: &Map<String, Value>) -> Result<(), ValidatorError> {
    let tokens = length(body, "output_token_ids").unwrap_or(0) as u64;
    let lens = body.get("output_chunk_lens").and_then(Value::as_array);
    let lens = lens.into_iter().flatten().filter_map(Value::as_u64);
    let sum = lens.fold(0u64, u64::saturating_add);
    if sum == tokens {
        return Ok(());
    }
    Err(ValidatorError::ValueError(format!(
        "output_chunk_lens must sum to len(output_token_ids) (got sum={sum}, \
         len(output_token_ids)={tokens})"
    )))
}

impl DerenderChatRequest {
    /// Parses a body.
    ///
    /// # Errors
    /// vLLM's 400 if the body does not match the schema.
    pub fn parse(value: &Value) -> Result<Self, Fault> {
        check::body(value)
    }
}

impl DerenderCompletionRequest {
    /// Parses a body.
    ///
    /// # Errors
    /// vLLM's 400 if the body does not match the schema.
    pub fn parse(value: &Value) -> Result<Self, Fault> {
        check::body(value)
    }
}

impl DerenderStreamRequest {
    /// Parses a body.
    ///
    /// # Errors
    /// vLLM's 400 if the body does not match the schema.
    pub fn parse(value: &Value) -> Result<Self, Fault> {
        check::body(value)
    }
}
