//! Request of `POST /v1/completions` of an SGLang server.
//!
//! Source: SGLang 0.5.23 `srt/entrypoints/openai/protocol.py`, `CompletionRequest`;
//! `serving_completions.py`.

use serde_json::{Map, Value};
use vllm_sim_python as python;

use super::chat::{response_format_constraint, unhashable_rid_fault};
use super::chat_schema;
use super::generate::{
    BOOTSTRAP_PORTS_SCHEMA, HIDDEN_STATES_DISABLED_MESSAGE, HIDDEN_STATES_SCHEMA,
    NULLABLE_STRINGS_SCHEMA,
};
use super::sampling::native_sampling_params;
use crate::fault::Fault;
use crate::openai::completion::{CompletionPrompt, CompletionPrompts};
use crate::openai::shared_request_fields::StreamOptions;
use crate::schema::{INT, Schema, ValidatorError, wire_model};

/// Name of the model in requests that name none.
pub const DEFAULT_MODEL_NAME: &str = "default";

wire_model! {
    /// A completion request. Absent fields have SGLang's defaults; unknown ones are ignored.
    pub struct SglangCompletionRequest: Plain "CompletionRequest" {
        /// Name of the model, which responses repeat; `model:adapter` selects an adapter.
        model: String = DEFAULT_MODEL_NAME.to_owned(),
        /// Prompts of the request.
        prompt: CompletionPrompts,
        /// Whether the output starts with a copy of the prompt.
        echo: bool = false,
        /// Frequency penalty.
        frequency_penalty: f64 = 0.0,
        /// Values added to the logits of token ids.
        logit_bias: Option<Map<String, Value>> [chat_schema::LOGIT_BIAS_SCHEMA] = None,
        /// Number of log probabilities per output token.
        logprobs: Option<i64> = None,
        /// Maximum number of tokens to generate.
        max_tokens: i64 [Schema::After(check_max_tokens, &INT)] = 16,
        /// Number of outputs per prompt.
        n: i64 = 1,
        /// Presence penalty.
        presence_penalty: f64 = 0.0,
        /// Seed of the sampler.
        seed: Option<i64> = None,
        /// Stop strings: the output ends before the first of them.
        stop: Option<Value> [chat_schema::STOP_STRINGS_SCHEMA] = None,
        /// Whether to stream server-sent events instead of one body.
        stream: bool = false,
        /// Options for token usage in a streamed response.
        stream_options: Option<StreamOptions> = None,
        /// Sampling temperature.
        temperature: f64 = 1.0,
        /// Nucleus sampling threshold.
        top_p: f64 = 1.0,
        /// Id of the end user; has no effect here.
        user: Option<String> = None,
        /// Request for hidden states, which the server rejects.
        return_hidden_states: Option<Value> [HIDDEN_STATES_SCHEMA] = None,
        /// Whether choices contain the token ids of the output.
        return_token_ids: bool = false,
        /// Number of most likely tokens to sample from.
        top_k: i64 = -1,
        /// Minimum probability of a sampled token relative to the most likely one.
        min_p: f64 = 0.0,
        /// Minimum number of output tokens.
        min_tokens: i64 = 0,
        /// JSON schema of the output, as text.
        json_schema: Option<String> = None,
        /// Regular expression for the output, which must match it.
        regex: Option<String> = None,
        /// Context-free grammar of the output, in EBNF.
        ebnf: Option<String> = None,
        /// Repetition penalty.
        repetition_penalty: f64 = 1.0,
        /// Stop token ids: the output ends at the first of them.
        stop_token_ids: Option<Vec<i64>> = None,
        /// The regular expressions that end the output.
        stop_regex: Option<Value> [chat_schema::STOP_STRINGS_SCHEMA] = None,
        /// Whether the output keeps the stop string that ended it.
        no_stop_trim: bool = false,
        /// Whether generation continues past the end-of-sequence token.
        ignore_eos: bool = false,
        /// Whether to omit special tokens from the text.
        skip_special_tokens: bool = true,
        /// Name of the LoRA adapter that handles the request.
        lora_path: Option<Value> [NULLABLE_STRINGS_SCHEMA] = None,
        /// Required format of the model's reply: text, JSON or a structural tag.
        response_format: Option<Map<String, Value>> [chat_schema::RESPONSE_FORMAT_SCHEMA] = None,
        /// Host of the bootstrap server of the prefill server.
        bootstrap_host: Option<Value> [chat_schema::STOP_STRINGS_SCHEMA] = None,
        /// Port of the bootstrap server of the prefill server.
        bootstrap_port: Option<Value> [Schema::Nullable(&BOOTSTRAP_PORTS_SCHEMA)] = None,
        /// Number of the request, which identifies it on both servers of a prefill/decode pair.
        bootstrap_room: Option<Value> [Schema::Nullable(&BOOTSTRAP_PORTS_SCHEMA)] = None,
        /// The data-parallel rank of the prefill server that computes the prompt.
        disagg_prefill_dp_rank: Option<i64> = None,
        /// The data-parallel rank that runs the request.
        routed_dp_rank: Option<i64> = None,
        /// The data-parallel rank that runs the request; former name of `routed_dp_rank`.
        data_parallel_rank: Option<i64> = None,
        /// Id of the request.
        rid: Option<Value> [chat_schema::STOP_STRINGS_SCHEMA] = None,
        /// Salt of the prefix cache; only requests with equal salts share cached prefixes.
        cache_salt: Option<Value> [chat_schema::STOP_STRINGS_SCHEMA] = None,
        /// Scheduling priority of the request.
        priority: Option<i64> = None,
    }
}

/// Rejects a `max_tokens` that is not positive, as SGLang's `validate_max_tokens_positive` does.
fn check_max_tokens(limit: &Value) -> Result<Option<Value>, ValidatorError> {
    match limit.as_i64() {
        Some(limit) if limit <= 0 => {
            Err(ValidatorError::ValueError("max_tokens must be positive".to_owned()))
        }
        _ => Ok(None),
    }
}

impl SglangCompletionRequest {
    /// Checks what the schema does not: that a prompt is given, and that no hidden states are
    /// requested.
    ///
    /// # Errors
    /// A 400 in SGLang's words.
    pub fn validate_completion_request(&self) -> Result<(), Fault> {
        let is_empty = |prompt: &CompletionPrompt| match prompt {
            CompletionPrompt::Text(text) => text.is_empty(),
            CompletionPrompt::Tokens(ids) => ids.is_empty(),
        };
        if self.prompt.0.iter().all(is_empty) {
            return Err(Fault::bad_request("Prompt cannot be empty"));
        }
        match &self.return_hidden_states {
            None | Some(Value::Null | Value::Bool(false)) => Ok(()),
            Some(_) => Err(Fault::bad_request(HIDDEN_STATES_DISABLED_MESSAGE)),
        }
    }

    /// Checks that the request ids (`rid`) match the number of outputs and are distinct.
    ///
    /// # Errors
    /// SGLang's 500 for a list of ids for one prompt, and its 400 for an id that occurs twice.
    pub fn check_request_ids(&self) -> Result<(), Fault> {
        let Some(Value::Array(ids)) = &self.rid else { return Ok(()) };
        if self.n == 1 && self.prompt.0.len() == 1 {
            return Err(unhashable_rid_fault());
        }
        let repeated = |at: usize| ids[..at].contains(&ids[at]);
        match (0..ids.len()).find(|at| repeated(*at)) {
            None => Ok(()),
            Some(at) => Err(Fault::bad_request(format!(
                "Duplicate request IDs detected within the request: [{}]",
                python::python_repr(&ids[at])
            ))),
        }
    }

    /// Returns the sampling parameters of the completion request as `/generate` takes them.
    ///
    /// # Errors
    /// A 400 for a response format without schema.
    pub fn sampling_params(&self) -> Result<Value, Fault> {
        let mut params = native_sampling_params!(self, self.max_tokens, self.json_schema);
        if let Some((name, constraint)) = response_format_constraint(self.response_format.as_ref())?
        {
            params[name] = constraint.into();
        }
        Ok(params)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::bounds::RequestBounds;
    use crate::fastapi::{
        BodyReadError, BodySchemaErrors, MAX_INPUT_BYTES, RouteFunction, read_body,
    };

    const ENDPOINT: RouteFunction =
        RouteFunction { file: "/x.py", line: 3, function: "f", method: "POST", path: "/p" };

    fn errors(body: &Value) -> BodySchemaErrors {
        match read_body::<SglangCompletionRequest>(Some(body), &RequestBounds::default()) {
            Err(BodyReadError::Errors(errors)) => errors,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn errors_are_listed_twice_with_the_function_of_the_route() {
        let one = "{'type': 'missing', 'loc': ('body', 'prompt'), 'msg': 'Field required', 'input': {'n': 1}}";
        assert_eq!(
            errors(&json!({"n": 1})).error_message(&ENDPOINT),
            format!(
                "1 validation error:\n  {one}\n\n  File \"/x.py\", line 3, in f\n    POST /p [{one}]"
            )
        );
        let text = errors(&json!({"prompt": ["a", 5]})).error_message(&ENDPOINT);
        assert!(text.contains("('body', 'prompt', 'list[list[int]]', 1)"), "{text}");
        assert!(errors(&Value::Null).error_message(&ENDPOINT).contains("'loc': ('body',)"));
        let absent = read_body::<SglangCompletionRequest>(None, &RequestBounds::default());
        let text = absent.unwrap_err().to_sglang_fault(&ENDPOINT).message;
        assert!(text.contains("'type': 'missing', 'loc': ('body',)"), "{text}");
    }

    #[test]
    fn the_digest_has_locations_and_messages() {
        let body = json!({"prompt": "x", "n": "y", "stream": 5});
        assert_eq!(
            errors(&body).anthropic_error_text(),
            "n: Input should be a valid integer, unable to parse string as an integer; stream: \
             Input should be a valid boolean, unable to interpret input"
        );
    }

    #[test]
    fn a_long_input_is_cut() {
        let text = errors(&json!({"n": "y".repeat(9000), "prompt": "x"})).error_message(&ENDPOINT);
        assert!(text.len() < 3 * MAX_INPUT_BYTES && text.contains("...[truncated]"));
    }
}
