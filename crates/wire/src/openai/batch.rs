//! `POST /v1/chat/completions/batch`: several conversations, one answer each.
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
use crate::schema::{Length, Schema, Wire, wire_model};

const SOME: Length = Length {
    min: 1,
    max: usize::MAX,
};

wire_model! {
    /// Conversations that share their sampling.
    pub struct BatchChatRequest: Wrapped "BatchChatCompletionRequest" before [batch_mode] {
        /// The conversations.
        messages: Vec<Vec<Message>> [Schema::List(&Schema::List(&Message::SCHEMA, SOME), SOME)],
        /// Served name; null or empty for the base model.
        model: Option<String> = None,
        /// -2 to 2.
        frequency_penalty: Option<f64> = None,
        /// Bias per token id.
        logit_bias: Option<LogitBias> = None,
        /// Whether log probabilities are wanted.
        logprobs: Option<bool> = Some(false),
        /// Alternatives per token.
        top_logprobs: i128 [TOP_LOGPROBS] = 0,
        /// Tokens whose log probability is wanted.
        logprob_token_ids: Option<Vec<i128>> = None,
        /// Most tokens to generate; older name.
        max_tokens: Option<i128> = None,
        /// Most tokens to generate.
        max_completion_tokens: Option<i128> = None,
        /// Always 1.
        n: Option<i128> = Some(1),
        /// -2 to 2.
        presence_penalty: Option<f64> = None,
        /// Form of the replies, as sent.
        response_format: Option<Value> = None,
        /// Seed of the sampler; -1 for none.
        seed: Option<i64> = None,
        /// Texts that end a reply.
        stop: Option<Stop> = Some(Stop::default()),
        /// 0 to 2.
        temperature: Option<f64> = None,
        /// Above 0, up to 1.
        top_p: Option<f64> = None,
        /// Ignored.
        user: Option<String> = None,
        /// Always `none`.
        tool_choice: Option<String> [Schema::Nullable(&Schema::Literal(&["none"]))] =
            Some("none".to_owned()),
        /// Whether replies show their reasoning.
        include_reasoning: bool = true,
        /// Ignored.
        best_of: Option<i128> = None,
        /// Always false.
        use_beam_search: bool = false,
        /// 0 or -1 for off.
        top_k: Option<i128> = None,
        /// 0 to 1.
        min_p: Option<f64> = None,
        /// Above 0.
        repetition_penalty: Option<f64> = None,
        /// Whether the engine's watermark applies.
        watermarking: Option<bool> = None,
        /// Ignored.
        length_penalty: Option<f64> = Some(1.0),
        /// Ignored.
        early_stopping: bool = false,
        /// A constraint on the text.
        structured_outputs: Option<StructuredOutputs> = None,
        /// Id in the answer; a fresh one when absent.
        request_id: Option<String> = None,
        /// Whether the template opens the assistant's turn.
        add_generation_prompt: bool = true,
        /// Whether the last message is left open.
        continue_final_message: bool = false,
        /// A template instead of the model's.
        chat_template: Option<String> = None,
        /// Arguments for the template.
        chat_template_kwargs: Option<Map<String, Value>> = None,
        /// Per modality, for the media loader.
        media_io_kwargs: Option<IndexMap<String, Map<String, Value>>> = None,
        /// For the multimodal processor.
        mm_processor_kwargs: Option<Map<String, Value>> = None,
        /// Lower goes first.
        priority: i64 = 0,
        /// Keeps the prefix cache apart.
        cache_salt: Option<String> = None,
        /// Whether a reply keeps the stop text.
        include_stop_str_in_output: bool = false,
        /// Ignored.
        guided_decoding_backend: Option<String> = None,
        /// Whether the last message is repeated before the reply.
        echo: bool = false,
        /// Token ids instead of texts in log probabilities.
        return_tokens_as_token_ids: Option<bool> = None,
        /// Token ids beside the text.
        return_token_ids: bool = false,
    }
}

/// `check_batch_mode`.
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
    /// Reads a body within the bounds of a server.
    ///
    /// # Errors
    /// vLLM's 400 for a body it does not take.
    pub fn parse(value: &Value, bounds: &RequestBounds) -> Result<Self, Fault> {
        check::body_within(value, bounds)
    }
}
