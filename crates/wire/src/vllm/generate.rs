//! Request of `POST /inference/v1/generate`: token ids in, token ids out.
//!
//! Source: `vllm/entrypoints/scale_out/token_in_token_out/protocol.py`, `GenerateRequest`.

use serde_json::{Map, Value};
use vllm_sim_python as python;

use crate::body;
use crate::bounds::RequestBounds;
use crate::fault::Fault;
use crate::long_ids;
use crate::openai::completion::PromptTokenIds;
use crate::openai::sampling_fields::CACHE_SALT_SCHEMA;
use crate::openai::shared_request_fields::{self, ChatTool, NamedToolChoice, StreamOptions};
use crate::sampling::SamplingParams;
use crate::schema::Schema::{
    self, After, Any, Bool, Dict, Instance, List, Literal, Nullable, Tuple, Union,
};
use crate::schema::{
    ANY_LENGTH, ClassKind, INT, LengthLimits, Model, RequestField, STR, ValidatorError,
    int_at_least_schema, int_greater_than_schema, optional_field as opt, plain_model,
    required_field as req, wire_model,
};

/// Schema of the request field `output_mode`: the content of a response.
pub(crate) const OUTPUT_MODE_SCHEMA: Schema = Literal(&["tokens", "text", "derender"]);

const TOKEN_IDS: Schema =
    After(no_negative_ids, &List(&INT, LengthLimits { min: 1, max: usize::MAX }));

fn no_negative_ids(ids: &Value) -> Result<Option<Value>, ValidatorError> {
    let negative = |id: &Value| i128::read(id).is_some_and(|id| id < 0);
    if ids.as_array().is_some_and(|ids| ids.iter().any(negative)) {
        return Err(ValidatorError::ValueError(
            "token_ids must not contain negative values".to_owned(),
        ));
    }
    Ok(None)
}

const MEDIA_PLACEHOLDERS: Schema = Dict(
    &STR,
    &List(
        &plain_model!(
            "PlaceholderRangeInfo",
            req("offset", int_at_least_schema(0)),
            req("length", int_greater_than_schema(0))
        ),
        ANY_LENGTH,
    ),
);

const MEDIA_ITEMS: Schema = Nullable(&Dict(&STR, &List(&Nullable(&STR), ANY_LENGTH)));

/// Schema of preprocessed images, audio and video (`MultiModalFeatures`), without the checks
/// between its members.
const MEDIA_FEATURES: Schema = Nullable(&plain_model!(
    "MultiModalFeatures",
    req("mm_hashes", Dict(&STR, &List(&STR, ANY_LENGTH))),
    req("mm_placeholders", MEDIA_PLACEHOLDERS),
    opt("kwargs_data", MEDIA_ITEMS),
    opt("mm_metadata", MEDIA_ITEMS)
));

const PARSE_CONTEXT: Schema = Nullable(&plain_model!(
    "ParseContext",
    opt("tools", Nullable(&List(&ChatTool::SCHEMA, ANY_LENGTH))),
    opt(
        "tool_choice",
        Nullable(&Union(&[Literal(&["none", "auto", "required"]), NamedToolChoice::SCHEMA,])),
    ),
    opt("parallel_tool_calls", Nullable(&Bool)),
    opt("include_reasoning", Bool),
    opt("chat_template_kwargs", Dict(&STR, &Any)),
    opt("history_tool_call_cnt", int_at_least_schema(0))
));

const PARSER_KWARGS: Schema = Nullable(&Schema::Model(&Model {
    name: "ReasoningParserKwargs",
    kind: ClassKind::Strict,
    fields: &[opt("chat_template_kwargs", Dict(&STR, &Any))],
    before: &[],
    after: None,
}));

wire_model! {
    /// A request with a prompt as token ids, and its sampling parameters.
    pub struct GenerateRequest: Plain "GenerateRequest"
        before [shared_request_fields::check_cache_salt_support] after check_field_combinations
    {
        /// Id of the request, returned in the response; generated when absent.
        request_id: Option<String> [STR] = None,
        /// Token ids of the prompt, in order.
        token_ids: PromptTokenIds [TOKEN_IDS],
        /// Text offset of each prompt token.
        token_offsets: Option<Value> [Nullable(&List(
            &Tuple(&[INT, INT]),
            ANY_LENGTH,
        ))] = None,
        /// Preprocessed images, audio and video of the prompt.
        features: Option<Value> [MEDIA_FEATURES] = None,
        /// Images, audio and video of the prompt, to be preprocessed.
        content_parts: Option<Vec<Map<String, Value>>> = None,
        /// Sampling parameters of the request.
        sampling_params: SamplingParams [Union(&[
            Instance("SamplingParams"),
            SamplingParams::SCHEMA,
        ])],
        /// Name of the served model or LoRA adapter; null or empty selects the base model.
        model: Option<String> = None,
        /// Whether the prompt already contains the end of the model's reasoning.
        reasoning_ended: Option<bool> = None,
        /// Arguments for the engine's reasoning parser.
        reasoning_parser_kwargs: Option<Value> [PARSER_KWARGS] = None,
        /// Whether the response includes the token ids of the prompt.
        return_token_ids: Option<bool> = None,
        /// Content of the response: `tokens`, `text` or `derender`.
        output_mode: String [OUTPUT_MODE_SCHEMA] = "tokens".to_owned(),
        /// Chat context for the tool and reasoning parsers of the output.
        parse_context: Option<Value> [PARSE_CONTEXT] = None,
        /// Whether to stream server-sent events instead of one body.
        stream: Option<bool> = Some(false),
        /// Options for token usage in a streamed response.
        stream_options: Option<StreamOptions> = None,
        /// Salt of the prompt's KV block hashes; only requests with equal salts share prefix-cache
        /// blocks.
        cache_salt: Option<String> [CACHE_SALT_SCHEMA] = None,
        /// Scheduling priority of the request; lower values are scheduled first.
        priority: i64 = 0,
        /// Parameters for the KV connector, such as the blocks of a remote prefill server.
        kv_transfer_params: Option<Map<String, Value>> = None,
        /// Parameters for the encoder-cache connector.
        ec_transfer_params: Option<Map<String, Value>> = None,
    }
}

/// Checks the combinations of fields of a token-ids request, like the `after` validators of vLLM's
/// class that apply to text-only requests.
fn check_field_combinations(map: &Map<String, Value>) -> Result<(), ValidatorError> {
    let refuse = |text: String| Err(ValidatorError::ValueError(text));
    if shared_request_fields::is_truthy_member(map, "content_parts")
        && shared_request_fields::non_null_member(map, "features").is_some()
    {
        return refuse("content_parts and features are mutually exclusive".to_owned());
    }
    let mode = map.get("output_mode").and_then(Value::as_str).unwrap_or("tokens");
    let detokenize = map.get("sampling_params").and_then(|params| params.get("detokenize"));
    if mode != "tokens" && detokenize == Some(&Value::Bool(false)) {
        return refuse(format!(
            "output_mode='{mode}' requires sampling_params.detokenize to be true"
        ));
    }
    const CONTEXT_MEMBERS: [&str; 6] = [
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "include_reasoning",
        "chat_template_kwargs",
        "history_tool_call_cnt",
    ];
    if mode == "derender"
        && let Some(Value::Object(context)) = map.get("parse_context")
    {
        let mut unknown: Vec<&str> = context
            .keys()
            .map(String::as_str)
            .filter(|key| !CONTEXT_MEMBERS.contains(key))
            .collect();
        unknown.sort_unstable();
        if !unknown.is_empty() {
            return refuse(format!(
                "Unknown parse_context fields {}; the render server is newer than this generate \
                 server",
                python::python_repr(&Value::from(unknown))
            ));
        }
    }
    Ok(())
}

impl GenerateRequest {
    /// Validates and reads the request body; the sampling parameters are verified too, as in vLLM's
    /// class.
    ///
    /// # Errors
    /// vLLM's 400 if the body does not match the schema.
    pub fn parse_generate_request(value: &Value, bounds: &RequestBounds) -> Result<Self, Fault> {
        let mut request: Self = body::read_body_within_bounds(value, bounds)?;
        let params = &mut request.sampling_params;
        params.normalize_and_verify(bounds)?;
        let named =
            |key: &str| value.get("sampling_params").and_then(|params| params.get(key)).is_some();
        if !named("max_tokens") {
            params.max_tokens = None;
        }
        Ok(request)
    }

    /// Validates and reads a request body with a long prompt.
    ///
    /// The request body is returned too, as JSON with a placeholder prompt. `None` means that
    /// [`Self::parse_generate_request`] must read the body.
    pub fn parse_long_prompt_and_body(
        body_json: &[u8],
        bounds: &RequestBounds,
    ) -> Option<(Self, Value)> {
        let (value, ids) = long_ids::extract_long_token_ids(body_json, "token_ids")?;
        let mut request = Self::parse_generate_request(&value, bounds).ok()?;
        request.token_ids = PromptTokenIds(ids);
        Some((request, value))
    }
}
