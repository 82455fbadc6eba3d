//! Request of `POST /v1/chat/completions/batch`: several conversations with one reply each.
//!
//! Source: `vllm/entrypoints/openai/chat_completion/protocol.py`, `BatchChatCompletionRequest`.

use std::borrow::Cow;

use indexmap::IndexMap;
use serde_json::{Map, Value};
use vllm_sim_python::{self as python, Py};

use super::message::Message;
use super::shared::{LogitBias, Stop, StructuredOutputs, TOP_LOGPROBS};
use super::validators::{self, Body, ValidatorResult, given, truthy};
use crate::bounds::RequestBounds;
use crate::check;
use crate::fault::Fault;
use crate::schema::{Length, RequestField, Schema, wire_model};

const SOME: Length = Length {
    min: 1,
    max: usize::MAX,
};

wire_model! {
    /// Conversations that share their sampling parameters.
    pub struct BatchChatRequest: Wrapped "BatchChatCompletionRequest" before [batch_mode] {
        /// The conversations.
        messages: Vec<Vec<Message>> [Schema::List(&Schema::List(&Message::SCHEMA, SOME), SOME)],
        /// Served model name; null or empty selects the base model.
        model: Option<String> = None,
        /// Frequency penalty, -2 to 2.
        frequency_penalty: Option<f64> = None,
        /// Logit bias by token id.
        logit_bias: Option<LogitBias> = None,
        /// Whether to return log probabilities.
        logprobs: Option<bool> = Some(false),
        /// Number of alternatives to return per token.
        top_logprobs: i128 [TOP_LOGPROBS] = 0,
        /// Token ids to return log probabilities for.
        logprob_token_ids: Option<Vec<i128>> = None,
        /// Maximum number of tokens to generate; deprecated name.
        max_tokens: Option<i128> = None,
        /// Maximum number of tokens to generate.
        max_completion_tokens: Option<i128> = None,
        /// Always 1.
        n: Option<i128> = Some(1),
        /// Presence penalty, -2 to 2.
        presence_penalty: Option<f64> = None,
        /// Format of the replies, as sent.
        response_format: Option<Value> = None,
        /// Seed of the sampler; -1 for none.
        seed: Option<i64> = None,
        /// Stop strings.
        stop: Option<Stop> = Some(Stop::default()),
        /// Sampling temperature, 0 to 2; 0 is greedy.
        temperature: Option<f64> = None,
        /// Nucleus sampling threshold, above 0 and at most 1.
        top_p: Option<f64> = None,
        /// Ignored.
        user: Option<String> = None,
        /// Always `none`.
        tool_choice: Option<String> [Schema::Nullable(&Schema::Literal(&["none"]))] =
            Some("none".to_owned()),
        /// Whether to return the reasoning.
        include_reasoning: bool = true,
        /// Ignored.
        best_of: Option<i128> = None,
        /// Always false.
        use_beam_search: bool = false,
        /// Number of most likely tokens to sample from; 0 or -1 for all.
        top_k: Option<i128> = None,
        /// Minimum probability relative to the most likely token, 0 to 1.
        min_p: Option<f64> = None,
        /// Repetition penalty, above 0; 1 is neutral.
        repetition_penalty: Option<f64> = None,
        /// Whether to apply the engine's watermark.
        watermarking: Option<bool> = None,
        /// Ignored.
        length_penalty: Option<f64> = Some(1.0),
        /// Ignored.
        early_stopping: bool = false,
        /// Structured-output constraint.
        structured_outputs: Option<StructuredOutputs> = None,
        /// Request id to return; generated when absent.
        request_id: Option<String> = None,
        /// Whether the chat template opens the assistant's turn.
        add_generation_prompt: bool = true,
        /// Whether the reply continues the last message.
        continue_final_message: bool = false,
        /// Chat template to use instead of the model's.
        chat_template: Option<String> = None,
        /// Extra arguments of the chat template.
        chat_template_kwargs: Option<Map<String, Value>> = None,
        /// Arguments of the media loader, by modality.
        media_io_kwargs: Option<IndexMap<String, Map<String, Value>>> = None,
        /// Arguments of the multimodal processor.
        mm_processor_kwargs: Option<Map<String, Value>> = None,
        /// Scheduling priority; lower values are scheduled first.
        priority: i64 = 0,
        /// Salt of the block hashes; only equal salts share prefix-cache blocks.
        cache_salt: Option<String> = None,
        /// Whether to keep the stop string in the output.
        include_stop_str_in_output: bool = false,
        /// Ignored.
        guided_decoding_backend: Option<String> = None,
        /// Whether to repeat the last message before the reply.
        echo: bool = false,
        /// Whether log probabilities name tokens as `token_id:N` instead of their text.
        return_tokens_as_token_ids: Option<bool> = None,
        /// Whether to return token ids in addition to the text.
        return_token_ids: bool = false,
    }
}

/// Mirrors vLLM's `check_batch_mode`.
fn batch_mode(body: &mut Cow<'_, Body>) -> ValidatorResult {
    if truthy(body, "use_beam_search") {
        return Err(Fault::parameter(
            "Batch chat completions do not support beam search. Please set `use_beam_search` to \
             False.",
            "use_beam_search",
        )
        .into());
    }
    if truthy(body, "logprob_token_ids") && !truthy(body, "logprobs") {
        return Err(Fault::parameter(
            "when using `logprob_token_ids`, `logprobs` must be set to true.",
            "logprob_token_ids",
        )
        .into());
    }
    let params = body.get("kv_transfer_params").and_then(Value::as_object);
    if params.is_some_and(|params| given(params, "prompt_token_ids").is_some()) {
        return Err(Fault::parameter(
            "Batch chat completions do not support `kv_transfer_params['prompt_token_ids']`: \
             one pre-tokenized prompt cannot serve several conversations.",
            "kv_transfer_params.prompt_token_ids",
        )
        .into());
    }
    validators::structural_tag_format(body)?;
    validators::structural_tag(body)?;
    match given(body, "n") {
        Some(n) if Py::of(n).number() != Some(1.0) => Err(Fault::value(
            "Batch chat completions do not support `n > 1`. Please set `n` to 1.",
            "n",
            python::str(n),
        )
        .into()),
        _ => Ok(()),
    }
}

impl BatchChatRequest {
    /// Parses a body, within the configured limits.
    ///
    /// # Errors
    /// vLLM's 400 if the body does not match the schema.
    pub fn parse(value: &Value, bounds: &RequestBounds) -> Result<Self, Fault> {
        check::body_within(value, bounds)
    }
}
