//! The derender routes: the requests.
//!
//! Source: `vllm/entrypoints/scale_out/token_in_token_out/protocol.py`.

use serde_json::{Map, Value};

use crate::check;
use crate::fault::Fault;
use crate::schema::{ANY_LENGTH, Length, STR, Schema, ValidatorError, int_above, wire_model};

/// A reply of another route, whose members are looked at one by one.
const REPLY: Schema = Schema::Dict(&STR, &Schema::Any);

wire_model! {
    /// `POST /v1/chat/completions/derender`.
    pub struct DerenderChatRequest: Plain "DerenderChatRequest" {
        /// Whether the reply is a chunk.
        stream: bool = false,
        /// Served name.
        model: Option<String> = None,
        /// A reply in tokens.
        generate_response: Value [REPLY],
        /// How long the prompt was.
        prompt_tokens: Option<i128> = None,
        /// The prompt.
        prompt_token_ids: Option<Vec<u64>> = None,
        /// The request that was rendered.
        chat_request: Option<Value> = None,
    }
}

wire_model! {
    /// `POST /v1/completions/derender`.
    pub struct DerenderCompletionRequest: Plain "DerenderCompletionRequest" after lengths {
        /// Whether the replies are chunks.
        stream: bool = false,
        /// Served name.
        model: Option<String> = None,
        /// Replies in tokens, one per prompt.
        generate_responses: Vec<Value> [Schema::List(&REPLY, ANY_LENGTH)],
        /// How long the prompts were.
        prompt_tokens: Option<Vec<i128>> = None,
        /// The prompts.
        prompt_token_ids: Option<Vec<Option<Vec<u64>>>> = None,
        /// The request that was rendered.
        completion_request: Option<Value> = None,
    }
}

wire_model! {
    default
    /// What a client carries from chunk to chunk of one choice.
    pub struct StreamState: Plain "DerenderStreamState" after replayed {
        /// The last tokens, as the vocabulary writes them.
        prev_tokens: Vec<String> [Schema::List(&STR, Length { min: 0, max: 1024 })] = Vec::new(),
        /// Tokens of these that nobody looks at.
        prefix_offset: u64 = 0,
        /// Tokens of these whose text is out.
        read_offset: u64 = 0,
        /// Whether the role is out.
        role_sent: bool = false,
        /// The last tokens, for log probabilities.
        logprob_context_token_ids: Vec<u64> = Vec::new(),
        /// Characters of the tokens so far.
        logprob_text_offset: u64 = 0,
        /// All tokens so far, where a parser looks at them.
        output_token_ids: Vec<u64> = Vec::new(),
        /// Tokens of each chunk.
        output_chunk_lens: Vec<u64> [Schema::List(&int_above(0), ANY_LENGTH)] = Vec::new(),
        /// Whether a call is out.
        tools_streamed: bool = false,
        /// Ids of calls.
        last_tool_call_ids: Vec<String> = Vec::new(),
    }
}

wire_model! {
    /// A chunk for either route.
    pub struct DerenderStreamRequest: Plain "DerenderStreamRequest" {
        /// Served name.
        model: Option<String> = None,
        /// A chunk in tokens.
        generate_chunk: Value [REPLY],
        /// What the call before gave; null at first.
        stream_state: Option<StreamState> = None,
        /// How long the prompt was.
        prompt_tokens: Option<i128> = None,
        /// The prompt.
        prompt_token_ids: Option<Vec<u64>> = None,
        /// The chat that was rendered.
        chat_request: Option<Value> = None,
        /// The completion that was rendered.
        completion_request: Option<Value> = None,
    }
}

fn length(body: &Map<String, Value>, key: &str) -> Option<usize> {
    body.get(key).and_then(Value::as_array).map(Vec::len)
}

/// `_validate_prompt_tokens_length`.
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

/// `_validate_output_chunk_lens`.
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
    /// Reads a body.
    ///
    /// # Errors
    /// vLLM's 400 for a body it does not take.
    pub fn parse(value: &Value) -> Result<Self, Fault> {
        check::body(value)
    }
}

impl DerenderCompletionRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// vLLM's 400 for a body it does not take.
    pub fn parse(value: &Value) -> Result<Self, Fault> {
        check::body(value)
    }
}

impl DerenderStreamRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// vLLM's 400 for a body it does not take.
    pub fn parse(value: &Value) -> Result<Self, Fault> {
        check::body(value)
    }
}
