//! Request of `POST /v1/chat/completions/batch`: several conversations with one reply each.
//!
//! Source: `vllm/entrypoints/openai/chat_completion/protocol.py`, `BatchChatCompletionRequest`.

use std::borrow::Cow;

use indexmap::IndexMap;
use serde_json::{Map, Value};
use vllm_sim_python::{self as python, PythonValue};

use super::request_message::RequestMessage;
use super::sampling_fields::{LogitBias, StopStrings, TOP_LOGPROBS_SCHEMA};
use super::shared_request_fields::{
    self, JsonBody, StructuredOutputs, ValidatorResult, is_truthy_member, non_null_member,
    reject_parameter, reject_value,
};
use crate::schema::{LengthLimits, RequestField, Schema, wire_model};

const AT_LEAST_ONE: LengthLimits = LengthLimits { min: 1, max: usize::MAX };

wire_model! {
    /// A batch chat request: several conversations with the same sampling parameters.
    pub struct BatchChatRequest: Wrapped "BatchChatCompletionRequest" before [check_batch_mode] {
        /// Messages of each conversation, oldest first.
        messages: Vec<Vec<RequestMessage>> [Schema::List(&Schema::List(&RequestMessage::SCHEMA, AT_LEAST_ONE), AT_LEAST_ONE)],
        /// Name of the served model or LoRA adapter; null or empty selects the base model.
        model: Option<String> = None,
        /// Frequency penalty, -2 to 2.
        frequency_penalty: Option<f64> = None,
        /// Values added to the logits of token ids before sampling, -100 to 100.
        logit_bias: Option<LogitBias> = None,
        /// Whether to return log probabilities of the output tokens.
        logprobs: Option<bool> = Some(false),
        /// Number of log probabilities to return per output token.
        top_logprobs: i128 [TOP_LOGPROBS_SCHEMA] = 0,
        /// The token ids whose log probabilities are returned at every output position.
        logprob_token_ids: Option<Vec<i128>> = None,
        /// Maximum number of tokens to generate; deprecated name.
        max_tokens: Option<i128> = None,
        /// Maximum number of tokens to generate.
        max_completion_tokens: Option<i128> = None,
        /// Number of outputs per conversation, always 1.
        n: Option<i128> = Some(1),
        /// Presence penalty, -2 to 2.
        presence_penalty: Option<f64> = None,
        /// Required format of the replies, as sent.
        response_format: Option<Value> = None,
        /// Seed of the sampler; -1 for none.
        seed: Option<i64> = None,
        /// Stop strings: the output ends before the first of them.
        stop: Option<StopStrings> = Some(StopStrings::default()),
        /// Sampling temperature, 0 to 2; 0 is greedy.
        temperature: Option<f64> = None,
        /// Nucleus sampling threshold, above 0 and at most 1.
        top_p: Option<f64> = None,
        /// Id of the end user; ignored.
        user: Option<String> = None,
        /// Tool choice, always `none`.
        tool_choice: Option<String> [Schema::Nullable(&Schema::Literal(&["none"]))] =
            Some("none".to_owned()),
        /// Whether the response includes the model's reasoning.
        include_reasoning: bool = true,
        /// Number of candidates of which OpenAI's completions API returns the best; ignored.
        best_of: Option<i128> = None,
        /// Whether to use beam search; always false.
        use_beam_search: bool = false,
        /// Number of most likely tokens to sample from; 0 or -1 for all.
        top_k: Option<i128> = None,
        /// Minimum probability of a sampled token relative to the most likely one, 0 to 1.
        min_p: Option<f64> = None,
        /// Repetition penalty, above 0; 1 is neutral.
        repetition_penalty: Option<f64> = None,
        /// Whether to apply the engine's watermark to generated tokens.
        watermarking: Option<bool> = None,
        /// Length penalty of beam search; ignored.
        length_penalty: Option<f64> = Some(1.0),
        /// Early stopping of beam search; ignored.
        early_stopping: bool = false,
        /// Structured-output constraint on the generated text.
        structured_outputs: Option<StructuredOutputs> = None,
        /// Id of the request, returned in the response; generated when absent.
        request_id: Option<String> = None,
        /// Whether the chat template ends the prompt with the start of an assistant message.
        add_generation_prompt: bool = true,
        /// Whether the model continues the last message instead of starting a new one.
        continue_final_message: bool = false,
        /// Jinja chat template that replaces the model's own.
        chat_template: Option<String> = None,
        /// Extra arguments passed to the chat template.
        chat_template_kwargs: Option<Map<String, Value>> = None,
        /// Arguments for decoding images, audio and video, by modality.
        media_io_kwargs: Option<IndexMap<String, Map<String, Value>>> = None,
        /// Arguments for the model's multimodal processor.
        mm_processor_kwargs: Option<Map<String, Value>> = None,
        /// Scheduling priority of the request; lower values are scheduled first.
        priority: i64 = 0,
        /// Salt of the prompt's KV block hashes; only requests with equal salts share prefix-cache
        /// blocks.
        cache_salt: Option<String> = None,
        /// Whether the output includes the stop string that ended it.
        include_stop_str_in_output: bool = false,
        /// Backend of guided decoding; ignored.
        guided_decoding_backend: Option<String> = None,
        /// Whether the reply starts with a copy of the last message.
        echo: bool = false,
        /// Whether log probabilities name tokens as `token_id:N` instead of their text.
        return_tokens_as_token_ids: Option<bool> = None,
        /// Whether to return the output's token ids in addition to its text.
        return_token_ids: bool = false,
    }
}

/// Rejects the options that a batch of chats cannot have.
///
/// Source: vLLM's `check_batch_mode`.
fn check_batch_mode(body: &mut Cow<'_, JsonBody>) -> ValidatorResult {
    if is_truthy_member(body, "use_beam_search") {
        return reject_parameter(
            "Batch chat completions do not support beam search. Please set `use_beam_search` to \
             False.",
            "use_beam_search",
        );
    }
    if is_truthy_member(body, "logprob_token_ids") && !is_truthy_member(body, "logprobs") {
        return reject_parameter(
            "when using `logprob_token_ids`, `logprobs` must be set to true.",
            "logprob_token_ids",
        );
    }
    let params = body.get("kv_transfer_params").and_then(Value::as_object);
    if params.is_some_and(|params| non_null_member(params, "prompt_token_ids").is_some()) {
        return reject_parameter(
            "Batch chat completions do not support `kv_transfer_params['prompt_token_ids']`: \
             one pre-tokenized prompt cannot serve several conversations.",
            "kv_transfer_params.prompt_token_ids",
        );
    }
    shared_request_fields::validate_structural_tag_format(body)?;
    shared_request_fields::check_structural_tag(body)?;
    match non_null_member(body, "n") {
        Some(n) if PythonValue::from_json_value(n).as_number() != Some(1.0) => reject_value(
            "Batch chat completions do not support `n > 1`. Please set `n` to 1.",
            "n",
            python::python_str(n),
        ),
        _ => Ok(()),
    }
}

impl BatchChatRequest {
    /// Changes a batch body to the chat body of one of its conversations, except for `messages`:
    /// removes null members and adds some defaults.
    ///
    /// Source: vLLM's `BatchChatCompletionRequest.to_chat_completion_request`.
    pub fn fill_conversation_body_defaults(body: &mut Map<String, Value>) {
        body.retain(|_, value| !value.is_null());
        body.entry("tool_choice").or_insert("none".into());
        body.entry("add_generation_prompt").or_insert(true.into());
    }
}
