//! Checks of chat and completion requests after schema validation, and their sampling parameters.
//!
//! The order of checks is vLLM's: `validate_early` runs before templating and tokenization,
//! `sampling` after, and [`SamplingParams::verify_against_engine`] last.
//!
//! Source: `vllm/renderers/online_renderer.py` (`render_chat`, `render_completion`,
//! `preprocess_chat`, `preprocess_completion`), `to_sampling_params` and
//! `to_beam_search_params` of the two request classes.

use indexmap::IndexMap;
use serde_json::{Map, Value};
use vllm_sim_python::{self as python, PythonValue};

use super::chat::ChatRequest;
use super::completion::{CompletionPrompt, CompletionRequest};
use super::sampling_fields::{ExtraSamplingArgs, to_token_logit_bias};
use super::shared_request_fields::{ChatToolChoice, ResponseFormat, StructuredOutputs};
use crate::fault::Fault;
use crate::limits::ServerLimits;
use crate::sampling::{SamplingDefaults, SamplingParams, check_sequence_count};
use crate::version::VllmVersion;

/// Builds the sampling parameters whose fields have the same names in chat and completion requests.
macro_rules! shared_params {
    ($request:ident, $defaults:ident) => {
        SamplingParams {
            presence_penalty: or($request.presence_penalty, $defaults.presence_penalty, 0.0),
            frequency_penalty: or($request.frequency_penalty, $defaults.frequency_penalty, 0.0),
            repetition_penalty: or($request.repetition_penalty, $defaults.repetition_penalty, 1.0),
            temperature: or($request.temperature, $defaults.temperature, 1.0),
            watermarking: $request.watermarking,
            top_p: or($request.top_p, $defaults.top_p, 1.0),
            top_k: $request.top_k.or($defaults.top_k).unwrap_or(0),
            min_p: or($request.min_p, $defaults.min_p, 0.0),
            seed: $request.seed.map(i128::from),
            stop: $request.stop.clone(),
            stop_token_ids: stop_ids($request.stop_token_ids.as_deref(), $defaults),
            ignore_eos: $request.ignore_eos,
            min_tokens: $request.min_tokens,
            logprob_token_ids: $request.logprob_token_ids.clone().filter(|ids| !ids.is_empty()),
            skip_special_tokens: skip_special($request.skip_special_tokens, $defaults),
            spaces_between_special_tokens: $request.spaces_between_special_tokens,
            include_stop_str_in_output: $request.include_stop_str_in_output,
            output_kind: if $request.stream == Some(true) { 1 } else { 2 },
            stream_interval: $request.stream_interval,
            structured_outputs: constraint(
                $request.structured_outputs.as_ref(),
                $request.response_format.as_ref(),
            )?,
            logit_bias: $request.logit_bias.as_ref().map(to_token_logit_bias).transpose()?,
            allowed_token_ids: $request.allowed_token_ids.clone(),
            extra_args: extra(
                $request.vllm_xargs.as_ref(),
                $request.kv_transfer_params.as_ref(),
                $request.ec_transfer_params.as_ref(),
            ),
            bad_words: Some($request.bad_words.clone()),
            thinking_token_budget: $request.thinking_token_budget,
            repetition_detection: $request.repetition_detection.clone(),
            routed_experts_prompt_start: $request.routed_experts_prompt_start,
            ..SamplingParams::default()
        }
    };
}

impl ChatRequest {
    /// Checks the chat request without its prompt: tools without a parser, an untrusted template,
    /// limits above the context length.
    ///
    /// # Errors
    /// The first 400 in vLLM's order.
    pub fn validate_without_prompt(&self, limits: &ServerLimits) -> Result<(), Fault> {
        check_tool_parser(self.tool_choice.as_ref(), limits)?;
        limits.reject_untrusted_template(
            self.chat_template.as_deref(),
            self.chat_template_kwargs.as_ref(),
        )?;
        limits.reject_untrusted_mm_kwargs(
            self.mm_processor_kwargs.as_ref().map_or(0, Map::len),
            self.media_io_kwargs.as_ref().map_or(0, IndexMap::len),
        )?;
        let (name, asked) = self.requested_output_limit();
        limits.check_output_and_truncation_limits(name, asked, self.truncate_prompt_tokens)
    }

    /// Returns the effective output limit of the chat request, in tokens, and the name of the field
    /// that sets this limit.
    pub fn requested_output_limit(&self) -> (&'static str, Option<i128>) {
        match self.max_completion_tokens {
            Some(asked) => ("max_completion_tokens", Some(asked)),
            None => ("max_tokens", self.max_tokens),
        }
    }

    /// Returns the token ids that a prefill server sent to replace the rendered prompt.
    ///
    /// # Errors
    /// A 400 if the request's value is not a list of known token ids.
    pub fn reused_prompt_token_ids(
        &self,
        limits: &ServerLimits,
    ) -> Result<Option<Vec<i64>>, Fault> {
        let key = "kv_transfer_params.prompt_token_ids";
        let ids =
            self.kv_transfer_params.as_ref().and_then(|params| params.get("prompt_token_ids"));
        let Some(ids) = ids.filter(|ids| !ids.is_null() && !self.echo) else {
            return Ok(None);
        };
        let listed = ids.as_array().filter(|ids| !ids.is_empty()).and_then(|ids| {
            ids.iter()
                .map(|id| match PythonValue::from_json_value(id) {
                    PythonValue::Int(id) => i64::try_from(id).ok().filter(|id| *id >= 0),
                    _ => None,
                })
                .collect::<Option<Vec<_>>>()
        });
        let Some(listed) = listed else {
            return Err(Fault::bad_parameter(
                "`kv_transfer_params['prompt_token_ids']` must be a non-empty list of \
                 non-negative integers.",
                key,
            ));
        };
        match limits.check_prompt_ids(&listed) {
            Ok(()) => Ok(Some(listed)),
            Err(fault) => Err(Fault::bad_parameter(fault.message, key)),
        }
    }

    /// Returns the sampling parameters of the request.
    ///
    /// # Errors
    /// A 400 if a parameter cannot be converted.
    pub fn sampling_params(
        &self,
        defaults: &SamplingDefaults,
    ) -> Result<Box<SamplingParams>, Fault> {
        let n = self.n.unwrap_or(1);
        if self.use_beam_search {
            return beam_search_params(n, self.temperature, defaults);
        }
        let wants_ids = self.logprob_token_ids.as_ref().is_some_and(|ids| !ids.is_empty());
        let logprobs = (self.logprobs == Some(true) && !wants_ids).then_some(self.top_logprobs);
        Ok(Box::new(SamplingParams {
            n,
            logprobs,
            prompt_logprobs: self.prompt_logprobs.or(self.echo.then_some(self.top_logprobs)),
            ..shared_params!(self, defaults)
        }))
    }

    /// Returns whether the stream of a chat completion reports token usage, and whether in every
    /// chunk.
    pub fn include_usage_and_continuous_stats(&self) -> (bool, bool) {
        parse_usage_options(self.stream_options.as_ref())
    }
}

impl CompletionRequest {
    /// Checks the completion request as vLLM does before the model lookup.
    ///
    /// # Errors
    /// A 400 for a stream with beam search.
    pub fn validate_before_model_lookup(&self) -> Result<(), Fault> {
        if self.stream == Some(true) && self.use_beam_search {
            return Err(Fault::bad_request(
                "Streaming is not currently supported with beam search",
            ));
        }
        Ok(())
    }

    /// Runs those checks of the completion request that need no tokenizer.
    ///
    /// # Errors
    /// The first 400 in vLLM's order.
    pub fn validate_without_tokenizer(&self, limits: &ServerLimits) -> Result<(), Fault> {
        self.reject_suffix()?;
        let embeds = self.prompt_embeds.is_some();
        if self.echo == Some(true) && embeds {
            return Err(Fault::bad_request("Echo is unsupported with prompt embeds."));
        }
        if self.prompt_logprobs.is_some() && embeds {
            return Err(Fault::bad_request(
                "prompt_logprobs is not compatible with prompt embeds.",
            ));
        }
        if self.prompt.as_ref().is_some_and(|prompts| prompts.0.is_empty()) {
            let text = "You must pass at least one prompt";
            return Err(match limits.version < VllmVersion::V033 {
                true => Fault::bad_request(text),
                false => Fault::bad_parameter(text, "prompt"),
            });
        }
        limits.check_output_and_truncation_limits(
            "max_tokens",
            self.max_tokens,
            self.truncate_prompt_tokens,
        )?;
        let none = self.prompt_embeds.as_ref().and_then(Value::as_array).is_some_and(Vec::is_empty);
        if embeds && !none && !limits.prompt_embeds {
            return Err(Fault::bad_parameter(
                "You must set `--enable-prompt-embeds` to input `prompt_embeds`.",
                "prompt_embeds",
            ));
        }
        Ok(())
    }

    /// Rejects a `suffix`: no simulated model supports fill-in-the-middle.
    fn reject_suffix(&self) -> Result<(), Fault> {
        if self.suffix.is_none() {
            return Ok(());
        }
        let text = if self.echo == Some(true) {
            "Echo is unsupported with suffix."
        } else if self.prompt_embeds.is_some() {
            "suffix is not supported with prompt_embeds"
        } else if self.truncate_prompt_tokens.is_some() {
            "suffix is not supported with truncate_prompt_tokens"
        } else {
            match self.prompt.as_ref().map(|prompts| prompts.0.as_slice()) {
                // An empty list passes upstream's loop and fails later as a missing prompt.
                Some([]) => return Ok(()),
                Some(prompts) if prompts.iter().all(|p| matches!(p, CompletionPrompt::Text(_))) => {
                    "suffix is only supported for models with FIM completion rendering"
                }
                _ => "suffix requires text prompt input for FIM completion rendering",
            }
        };
        Err(Fault { param: Some("suffix".to_owned()), ..Fault::bad_request(text) })
    }

    /// Returns the sampling parameters of the request.
    ///
    /// # Errors
    /// A 400 if a parameter cannot be converted.
    pub fn sampling_params(
        &self,
        defaults: &SamplingDefaults,
    ) -> Result<Box<SamplingParams>, Fault> {
        if self.use_beam_search {
            return beam_search_params(self.n, self.temperature, defaults);
        }
        let echo = self.echo == Some(true);
        let wants_ids = self.logprob_token_ids.as_ref().is_some_and(|ids| !ids.is_empty());
        Ok(Box::new(SamplingParams {
            n: self.n,
            logprobs: self.logprobs.filter(|_| !wants_ids),
            prompt_logprobs: self.prompt_logprobs.or(self.logprobs.filter(|_| echo)),
            ..shared_params!(self, defaults)
        }))
    }

    /// Returns whether the response only repeats the prompt; vLLM still generates one token.
    pub fn only_echoes_prompt(&self) -> bool {
        !self.use_beam_search && self.echo == Some(true) && self.max_tokens == Some(0)
    }

    /// Returns whether the stream of a completion reports token usage, and whether in every chunk.
    pub fn include_usage_and_continuous_stats(&self) -> (bool, bool) {
        parse_usage_options(self.stream_options.as_ref())
    }
}

/// Rejects tool choices that need a tool-call parser if the server has none.
fn check_tool_parser(choice: Option<&ChatToolChoice>, limits: &ServerLimits) -> Result<(), Fault> {
    if limits.has_tool_parser {
        return Ok(());
    }
    let needs = |what: String| {
        Err(Fault::bad_request(format!("tool_choice={what} requires --tool-call-parser to be set")))
    };
    match choice {
        None | Some(ChatToolChoice::None) => Ok(()),
        Some(ChatToolChoice::Auto) if limits.auto_tool_choice => Ok(()),
        Some(ChatToolChoice::Auto) => Err(Fault::bad_request(
            "\"auto\" tool choice requires --enable-auto-tool-choice and --tool-call-parser to \
             be set",
        )),
        Some(ChatToolChoice::Required) => needs("\"required\"".to_owned()),
        Some(ChatToolChoice::Named(name)) => needs(format!("function \"{name}\"")),
    }
}

/// Builds the parameters of beam search; only the beam width is checked.
fn beam_search_params(
    n: i128,
    temperature: Option<f64>,
    defaults: &SamplingDefaults,
) -> Result<Box<SamplingParams>, Fault> {
    check_sequence_count(n, "beam_width", defaults.bounds.n)?;
    Ok(Box::new(SamplingParams {
        n,
        temperature: temperature.or(defaults.temperature).unwrap_or(1.0),
        ..SamplingParams::default()
    }))
}

fn or(asked: Option<f64>, server: Option<f64>, plain: f64) -> f64 {
    asked.or(server).unwrap_or(plain)
}

fn skip_special(asked: Option<bool>, defaults: &SamplingDefaults) -> bool {
    asked.or(defaults.skip_special_tokens).unwrap_or(true)
}

fn stop_ids(asked: Option<&[i128]>, defaults: &SamplingDefaults) -> Option<Vec<i128>> {
    let mut ids = asked.unwrap_or_default().to_vec();
    ids.extend(defaults.stop_token_ids.iter().copied());
    Some(ids)
}

/// Builds the sampling parameter `extra_args` from a request's custom arguments (`vllm_xargs`) and
/// connector parameters.
pub(super) fn extra(
    own: Option<&ExtraSamplingArgs>,
    kv: Option<&Map<String, Value>>,
    ec: Option<&Map<String, Value>>,
) -> Option<Map<String, Value>> {
    let mut args = own.map(|own| own.0.clone()).unwrap_or_default();
    for (key, params) in [("kv_transfer_params", kv), ("ec_transfer_params", ec)] {
        if let Some(params) = params.filter(|params| !params.is_empty()) {
            args.insert(key.to_owned(), Value::Object(params.clone()));
        }
    }
    (!args.is_empty()).then_some(args)
}

/// Returns the structured-output constraint of a request: `structured_outputs`, completed by
/// `response_format`.
///
/// Source: vLLM's `structured_outputs_from_response_format`.
///
/// # Errors
/// A 400 unless both together are one kind of constraint.
fn constraint(
    outputs: Option<&StructuredOutputs>,
    format: Option<&ResponseFormat>,
) -> Result<Option<StructuredOutputs>, Fault> {
    let mut new = outputs.cloned().unwrap_or_default();
    match format {
        None | Some(ResponseFormat::Text) => return Ok(outputs.cloned()),
        Some(ResponseFormat::JsonObject) => new.json_object = Some(true),
        Some(ResponseFormat::JsonSchema(schema)) => {
            new.json = schema.schema.clone().map(Value::Object);
        }
        Some(ResponseFormat::StructuralTag(tag)) => {
            new.structural_tag = Some(python::json::dumps(tag));
        }
    }
    new.check_one_constraint_kind()?;
    Ok(Some(new))
}

fn parse_usage_options(
    options: Option<&super::shared_request_fields::StreamOptions>,
) -> (bool, bool) {
    let Some(options) = options else {
        return (false, false);
    };
    let wanted = options.include_usage == Some(true);
    (wanted, wanted && options.continuous_usage_stats == Some(true))
}
