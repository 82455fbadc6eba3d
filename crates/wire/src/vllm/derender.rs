//! Requests of the derender routes, which convert responses with token ids to responses with text.
//!
//! Source: `vllm/entrypoints/scale_out/token_in_token_out/protocol.py`.

use serde_json::{Map, Value};

use crate::schema::{
    ANY_LENGTH, LengthLimits, STR, Schema, ValidatorError, int_greater_than_schema, wire_model,
};

/// Schema of a response from `/inference/v1/generate`; its members are checked separately.
const GENERATE_RESPONSE: Schema = Schema::Dict(&STR, &Schema::Any);

wire_model! {
    /// Body of `POST /v1/chat/completions/derender`.
    pub struct DerenderChatRequest: Plain "DerenderChatRequest" {
        /// Whether the token response is a chunk of a stream.
        stream: bool = false,
        /// Name of the served model or LoRA adapter that handles the request.
        model: Option<String> = None,
        /// Response of `/inference/v1/generate`, with token ids instead of text.
        generate_response: Value [GENERATE_RESPONSE],
        /// Length of the prompt, in tokens.
        prompt_tokens: Option<i128> = None,
        /// Token ids of the prompt, in order.
        prompt_token_ids: Option<Vec<u64>> = None,
        /// The original chat request, whose token response is converted to text.
        chat_request: Option<Value> = None,
    }
}

wire_model! {
    /// Body of `POST /v1/completions/derender`.
    pub struct DerenderCompletionRequest: Plain "DerenderCompletionRequest" after validate_prompt_tokens_length {
        /// Whether the token responses are chunks of a stream.
        stream: bool = false,
        /// Name of the served model or LoRA adapter that handles the request.
        model: Option<String> = None,
        /// Responses of `/inference/v1/generate`, one per prompt, with token ids instead of text.
        generate_responses: Vec<Value> [Schema::List(&GENERATE_RESPONSE, ANY_LENGTH)],
        /// Lengths of the prompts, in tokens.
        prompt_tokens: Option<Vec<i128>> = None,
        /// Token ids of each prompt.
        prompt_token_ids: Option<Vec<Option<Vec<u64>>>> = None,
        /// The original completion request, whose token responses are converted to text.
        completion_request: Option<Value> = None,
    }
}

wire_model! {
    default
    /// State of detokenization that a client carries between the stream chunks of one choice.
    pub struct DerenderStreamState: Plain "DerenderStreamState" after validate_output_chunk_lens {
        /// Recent output tokens, as vocabulary entries.
        prev_tokens: Vec<String> [Schema::List(&STR, LengthLimits { min: 0, max: 1024 })] = Vec::new(),
        /// Number of the recent output tokens that detokenization skips.
        prefix_offset: u64 = 0,
        /// Number of the recent output tokens whose text was sent.
        read_offset: u64 = 0,
        /// Whether a chunk with the message's role was sent.
        role_sent: bool = false,
        /// Recent output token ids, to detokenize log probabilities.
        logprob_context_token_ids: Vec<u64> = Vec::new(),
        /// Length of the text of all output tokens so far, in characters.
        logprob_text_offset: u64 = 0,
        /// All output token ids so far, if a tool or reasoning parser needs them.
        output_token_ids: Vec<u64> = Vec::new(),
        /// Number of output tokens in each chunk so far.
        output_chunk_lens: Vec<u64> [Schema::List(&int_greater_than_schema(0), ANY_LENGTH)] = Vec::new(),
        /// Whether a chunk with a tool call was sent.
        tools_streamed: bool = false,
        /// Ids of the tool calls in the output so far.
        last_tool_call_ids: Vec<String> = Vec::new(),
    }
}

wire_model! {
    /// A request to convert one stream chunk from token ids to text, for chat or completions.
    pub struct DerenderStreamRequest: Plain "DerenderStreamRequest" {
        /// Name of the served model or LoRA adapter that handles the request.
        model: Option<String> = None,
        /// Stream chunk of `/inference/v1/generate`, with token ids instead of text.
        generate_chunk: Value [GENERATE_RESPONSE],
        /// Detokenization state from the response to the previous stream chunk; null at first.
        stream_state: Option<DerenderStreamState> = None,
        /// Length of the prompt, in tokens.
        prompt_tokens: Option<i128> = None,
        /// Token ids of the prompt, in order.
        prompt_token_ids: Option<Vec<u64>> = None,
        /// The original chat request, whose stream is converted to text; null for completions.
        chat_request: Option<Value> = None,
        /// The original completion request, whose stream is converted to text; null for chat.
        completion_request: Option<Value> = None,
    }
}

fn list_length(body: &Map<String, Value>, key: &str) -> Option<usize> {
    body.get(key).and_then(Value::as_array).map(Vec::len)
}

/// Checks that each list of prompt tokens has one entry per response.
///
/// Source: vLLM's `_validate_prompt_tokens_length`.
fn validate_prompt_tokens_length(body: &Map<String, Value>) -> Result<(), ValidatorError> {
    let replies = list_length(body, "generate_responses").unwrap_or(0);
    for key in ["prompt_tokens", "prompt_token_ids"] {
        if let Some(given) = list_length(body, key).filter(|given| *given != replies) {
            return Err(ValidatorError::ValueError(format!(
                "{key} length ({given}) must equal generate_responses length ({replies})"
            )));
        }
    }
    Ok(())
}

/// Checks that the chunk lengths add up to the number of output tokens.
///
/// Source: vLLM's `_validate_output_chunk_lens`.
fn validate_output_chunk_lens(body: &Map<String, Value>) -> Result<(), ValidatorError> {
    let tokens = list_length(body, "output_token_ids").unwrap_or(0) as u64;
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
