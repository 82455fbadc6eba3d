//! Checks of a request to `/v1/responses` after schema validation, and its sampling parameters.
//!
//! Source: `vllm/entrypoints/openai/responses/serving.py` (`_validate_create_responses_input`),
//! `ResponsesRequest.to_sampling_params` and `extract_structured_outputs`.

use indexmap::IndexMap;
use serde_json::{Map, Value};

use super::responses::ResponsesRequest;
use super::rules;
use super::sampling_fields::to_token_logit_bias;
use super::shared_request_fields::StructuredOutputs;
use crate::fault::{ErrorType, Fault};
use crate::limits::ServerLimits;
use crate::sampling::{SamplingDefaults, SamplingParams};

impl ResponsesRequest {
    /// Runs those of vLLM's checks of the Responses request that need no prompt, in vLLM's order.
    ///
    /// An untrusted chat template is rejected before the lookup in the response store.
    ///
    /// # Errors
    /// The first 400 in vLLM's order.
    pub fn validate_without_prompt(&self, limits: &ServerLimits) -> Result<(), Fault> {
        limits.reject_untrusted_template(None, self.chat_template_kwargs.as_ref())?;
        limits.reject_untrusted_mm_kwargs(
            self.mm_processor_kwargs.as_ref().map_or(0, Map::len),
            self.media_io_kwargs.as_ref().map_or(0, IndexMap::len),
        )?;
        limits.check_output_and_truncation_limits("max_output_tokens", self.max_output_tokens, None)
    }

    /// Returns whether the request asks for log probabilities of output tokens.
    pub fn wants_logprobs(&self) -> bool {
        let wanted = "message.output_text.logprobs";
        self.include.as_ref().is_some_and(|include| include.iter().any(|part| part == wanted))
    }

    /// Returns the sampling parameters of the request.
    ///
    /// # Errors
    /// A 400 if a parameter cannot be converted.
    pub fn sampling_params(
        &self,
        defaults: &SamplingDefaults,
    ) -> Result<Box<SamplingParams>, Fault> {
        let or = |asked: Option<f64>, server: Option<f64>, plain| asked.or(server).unwrap_or(plain);
        Ok(Box::new(SamplingParams {
            presence_penalty: or(self.presence_penalty, defaults.presence_penalty, 0.0),
            frequency_penalty: or(self.frequency_penalty, defaults.frequency_penalty, 0.0),
            repetition_penalty: or(self.repetition_penalty, defaults.repetition_penalty, 1.0),
            temperature: or(self.temperature, defaults.temperature, 1.0),
            top_p: or(self.top_p, defaults.top_p, 1.0),
            top_k: self.top_k.or(defaults.top_k).unwrap_or(0),
            min_p: or(self.min_p, defaults.min_p, 0.0),
            seed: self.seed.map(i128::from),
            stop: self.stop.clone(),
            stop_token_ids: self.stop_token_ids.clone(),
            ignore_eos: self.ignore_eos,
            logprobs: self.wants_logprobs().then_some(self.top_logprobs),
            skip_special_tokens: self
                .skip_special_tokens
                .or(defaults.skip_special_tokens)
                .unwrap_or(true),
            spaces_between_special_tokens: self.spaces_between_special_tokens,
            include_stop_str_in_output: self.include_stop_str_in_output,
            output_kind: if self.stream == Some(true) { 1 } else { 2 },
            structured_outputs: self.structured_outputs()?,
            logit_bias: self.logit_bias.as_ref().map(to_token_logit_bias).transpose()?,
            extra_args: rules::extra(
                self.vllm_xargs.as_ref(),
                self.kv_transfer_params.as_ref(),
                self.ec_transfer_params.as_ref(),
            ),
            watermarking: self.watermarking,
            ..SamplingParams::default()
        }))
    }

    /// Returns the structured-output constraint of a request: `structured_outputs` or the request's
    /// text format.
    ///
    /// Source: vLLM's `extract_structured_outputs`.
    fn structured_outputs(&self) -> Result<Option<StructuredOutputs>, Fault> {
        let format = self.text.as_ref().and_then(|text| text.get("format"));
        let Some(format) = format.filter(|format| !format.is_null()) else {
            return Ok(self.structured_outputs.clone());
        };
        if self.structured_outputs.is_some() {
            return Err(Fault::bad_parameter(
                "Cannot specify both structured_outputs and text.format",
                "structured_outputs",
            ));
        }
        let schema = format.get("schema").filter(|schema| !schema.is_null());
        Ok(match format.get("type").and_then(Value::as_str) {
            Some("json_object") => {
                Some(StructuredOutputs { json_object: Some(true), ..StructuredOutputs::default() })
            }
            Some("json_schema") => schema
                .map(|json| StructuredOutputs { json: Some(json.clone()), ..Default::default() }),
            _ => None,
        })
    }
}

/// Returns the 404 for the id of a response that is not stored.
pub fn response_not_stored_fault(id: &str) -> Fault {
    Fault {
        param: Some("response_id".to_owned()),
        ..Fault::new(404, ErrorType::InvalidRequest, format!("Response with id '{id}' not found."))
    }
}

/// Returns the error of vLLM's response object, which cannot hold a `truncation` of null.
///
/// Source: vLLM 0.33 `entrypoints/openai/responses/protocol.py`, `ResponsesResponse.truncation`.
pub fn null_truncation_fault() -> Fault {
    Fault::bad_request(
        "1 validation error for ResponsesResponse\ntruncation\n  Input should be 'auto' or 'disabled' \
         [type=literal_error, input_value=None, input_type=NoneType]\n    For further information visit \
         https://errors.pydantic.dev/2.14/v/literal_error",
    )
}

/// Returns the 400 for cancelling a response that does not run in the background.
pub fn response_not_cancellable_fault() -> Fault {
    Fault {
        param: Some("response_id".to_owned()),
        ..Fault::new(400, ErrorType::InvalidRequest, "Cannot cancel a synchronous response.")
    }
}
