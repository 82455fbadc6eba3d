//! Request of `POST /generate`.
//!
//! Source: SGLang 0.5.23 `srt/managers/io_struct.py`, `GenerateReqInput`.

use serde_json::{Map, Value};
use vllm_sim_python::PythonValue;

use crate::fault::Fault;
use crate::sampling::STRING_OR_LIST_SCHEMA;
use crate::schema::Schema::{self, After, Any, Bool, Dict, List, Literal, Nullable, Union};
use crate::schema::{ANY_LENGTH, INT, STR, ValidatorError, wire_model};

const BOOL_OR_LIST: Schema = Union(&[List(&Bool, ANY_LENGTH), Bool]);
const INT_OR_LIST: Schema = Union(&[List(&INT, ANY_LENGTH), INT]);
/// Schema of bootstrap ports and rooms (for prefill/decode pairs): a number, or one per prompt.
pub(super) const BOOTSTRAP_PORTS_SCHEMA: Schema = Union(&[List(&Nullable(&INT), ANY_LENGTH), INT]);
/// Schema of a request for hidden states: one value for all prompts, or one for each prompt.
const HIDDEN_STATES_OR_LIST: Schema = Union(&[List(&Union(&[Bool, LAST]), ANY_LENGTH), Bool, LAST]);
const LAST: Schema = Literal(&["last"]);
/// Schema of a request for hidden states of one prompt.
pub(super) const HIDDEN_STATES_SCHEMA: Schema = Nullable(&Union(&[Bool, LAST]));
/// Schema of a text, or of a list with a text or null for each prompt.
pub(super) const NULLABLE_STRINGS_SCHEMA: Schema =
    Nullable(&Union(&[List(&Nullable(&STR), ANY_LENGTH), STR]));

wire_model! {
    /// A request of SGLang's native route. Absent fields have SGLang's defaults; unknown ones are
    /// ignored.
    pub struct GenerateRequest: Dataclass "GenerateReqInput" {
        /// Ids of the requests; a string is the prefix of the ids of a batch.
        rid: Option<Value> [Nullable(&STRING_OR_LIST_SCHEMA)] = None,
        /// Texts of the prompts.
        text: Option<Value> [Nullable(&STRING_OR_LIST_SCHEMA)] = None,
        /// Prompts as token ids.
        input_ids: Option<Value> [After(check_input_ids, &Any)] = None,
        /// Prompts as embeddings.
        input_embeds: Option<Value> = None,
        /// Images of the prompts.
        image_data: Option<Value> = None,
        /// Videos of the prompts.
        video_data: Option<Value> = None,
        /// Audio clips of the prompts.
        audio_data: Option<Value> = None,
        /// Sampling parameters: one object for all prompts, or one for each prompt.
        sampling_params: Option<Value> [Nullable(&Union(&[
            List(&Dict(&STR, &Any), ANY_LENGTH),
            Dict(&STR, &Any),
        ]))] = None,
        /// Request for log probabilities: one boolean for all prompts, or one for each prompt.
        return_logprob: Option<Value> [Nullable(&BOOL_OR_LIST)] = None,
        /// First prompt position with a log probability; -1 for output tokens only.
        logprob_start_len: Option<Value> [Nullable(&INT_OR_LIST)] = None,
        /// Number of most likely tokens to list with log probabilities at each position.
        top_logprobs_num: Option<Value> [Nullable(&INT_OR_LIST)] = None,
        /// The token ids whose log probabilities to return.
        token_ids_logprob: Option<Value> = None,
        /// Whether log probabilities contain the texts of tokens.
        return_text_in_logprobs: bool = false,
        /// Whether to stream server-sent events instead of one body.
        stream: bool = false,
        /// Request for hidden states, which the server rejects.
        return_hidden_states: Option<Value> [HIDDEN_STATES_OR_LIST] = None,
        /// The session whose history the prompt continues.
        session_params: Option<Map<String, Value>> = None,
        /// Name of the LoRA adapter: one for all prompts, or one for each prompt.
        lora_path: Option<Value> [NULLABLE_STRINGS_SCHEMA] = None,
        /// Serialized Python class that changes the logits (custom logit processor).
        custom_logit_processor: Option<Value> [NULLABLE_STRINGS_SCHEMA] = None,
        /// Host of the bootstrap server of the prefill server.
        bootstrap_host: Option<Value> [NULLABLE_STRINGS_SCHEMA] = None,
        /// Port of the bootstrap server of the prefill server.
        bootstrap_port: Option<Value> [Nullable(&BOOTSTRAP_PORTS_SCHEMA)] = None,
        /// Number of the request, which identifies it on both servers of a prefill/decode pair.
        bootstrap_room: Option<Value> [Nullable(&BOOTSTRAP_PORTS_SCHEMA)] = None,
        /// The data-parallel rank of the prefill server that computes the prompt.
        disagg_prefill_dp_rank: Option<i64> = None,
        /// The data-parallel rank that runs the request.
        routed_dp_rank: Option<i64> = None,
        /// The data-parallel rank that runs the request; former name of `routed_dp_rank`.
        data_parallel_rank: Option<i64> = None,
        /// Key of a routing policy; has no effect here.
        routing_key: Option<String> = None,
        /// Whether the model must reason; has no effect here.
        require_reasoning: bool = false,
        /// Scheduling priority of the request.
        priority: Option<i64> = None,
        /// Labels of metrics; have no effect here.
        custom_labels: Option<Map<String, Value>> [Nullable(&Dict(&STR, &STR))] = None,
        /// Id of a conversation; has no effect here.
        session_id: Option<String> = None,
        /// Salt of the prefix cache; only requests with equal salts share cached prefixes.
        cache_salt: Option<Value> [Nullable(&STRING_OR_LIST_SCHEMA)] = None,
        /// Whether the response contains the token ids of the prompt.
        return_prompt_token_ids: bool = false,
    }
}

/// Checks that `input_ids` is a list of token ids, or of such lists; mirrors SGLang's
/// `validate_optional_list_i64_1d_2d`.
fn check_input_ids(value: &Value) -> Result<Option<Value>, ValidatorError> {
    let type_of = |value: &Value| PythonValue::from_json_value(value).python_type_name();
    let text = match value {
        Value::Null => return Ok(None),
        Value::Array(items) => match items.first() {
            None => return Ok(None),
            Some(Value::Bool(_)) => check_row(value),
            Some(Value::Number(first)) if !first.is_f64() => check_row(value),
            Some(Value::Array(_)) => {
                let rows = items.iter().enumerate();
                let mut wrong =
                    rows.filter_map(|(at, row)| Some(format!("row {at}: {}", check_row(row)?)));
                wrong.next()
            }
            Some(other) => Some(format!("elements must be int or list; got {}", type_of(other))),
        },
        other => Some(format!("must be list or null; got {}", type_of(other))),
    };
    text.map_or(Ok(None), |text| Err(ValidatorError::ValueError(text)))
}

/// Returns the error of a list that contains other values than 64-bit integers.
fn check_row(value: &Value) -> Option<String> {
    let type_of = |value: &Value| PythonValue::from_json_value(value).python_type_name();
    let is_int = |value: &Value| value.is_boolean() || value.is_i64() || value.is_u64();
    let items = match value {
        Value::Array(items) => items,
        Value::Null => return Some("must not be None".to_owned()),
        other => return Some(format!("must be list; got {}", type_of(other))),
    };
    match items.first() {
        Some(first) if !is_int(first) => {
            return Some(format!("elements must be int; got {}", type_of(first)));
        }
        _ => {}
    }
    let wrong = items.iter().find(|item| !item.is_boolean() && !item.is_i64())?;
    let reason = match is_int(wrong) {
        true => "int too big to convert".to_owned(),
        false => format!("'{}' object cannot be interpreted as an integer", type_of(wrong)),
    };
    Some(format!("contains non-int64 element: {reason}"))
}

impl GenerateRequest {
    /// Rejects request members that are not simulated, or for which SGLang needs a flag.
    ///
    /// # Errors
    /// A 400 that names the member.
    pub fn reject_unsimulated_members(&self) -> Result<(), Fault> {
        let truthy = |value: &Option<Value>| {
            value.as_ref().is_some_and(|value| {
                !matches!(value, Value::Null | Value::Bool(false))
                    && value.as_array().is_none_or(|items| {
                        items.iter().any(|item| !matches!(item, Value::Null | Value::Bool(false)))
                    })
            })
        };
        if truthy(&self.return_hidden_states) {
            return Err(Fault::bad_request(HIDDEN_STATES_DISABLED_MESSAGE));
        }
        if truthy(&self.custom_logit_processor) {
            return Err(Fault::bad_request(
                "The server is not configured to enable custom logit processor. Please set \
                 `--enable-custom-logit-processor` to enable this feature.",
            ));
        }
        let refused = [
            ("input_embeds", truthy(&self.input_embeds)),
            ("image_data", truthy(&self.image_data)),
            ("video_data", truthy(&self.video_data)),
            ("audio_data", truthy(&self.audio_data)),
            ("token_ids_logprob", truthy(&self.token_ids_logprob)),
        ];
        match refused.into_iter().find(|(_, given)| *given) {
            None => Ok(()),
            Some((name, _)) => Err(Fault::bad_request(format!("{name} is not simulated"))),
        }
    }
}

wire_model! {
    /// A request of Vertex AI: a batch of prompts with the parameters of `/generate`.
    pub struct VertexRequest: TypedDict "function-after[build_struct(), VertexGenerateReqInput]" {
        /// The prompts: each has its text, token ids or embeddings, and its image.
        instances: Vec<Value> [List(&Dict(&STR, &Any), ANY_LENGTH)],
        /// Members of the Vertex AI request that apply to all its prompts.
        parameters: Option<Map<String, Value>> = None,
    }
}

impl VertexRequest {
    /// Returns the `/generate` body of a Vertex AI request. The first prompt selects the kind of
    /// prompt for all.
    pub fn to_generate_body(&self) -> Value {
        let mut body = self.parameters.clone().unwrap_or_default();
        let is_filled = |value: &Value| match value {
            Value::String(text) => !text.is_empty(),
            Value::Array(items) => !items.is_empty(),
            value => !value.is_null(),
        };
        let kinds = ["text", "input_ids", "input_embeds"];
        let given = |kind: &&str| {
            self.instances.first().and_then(|one| one.get(*kind)).is_some_and(is_filled)
        };
        if let Some(kind) = kinds.into_iter().find(given) {
            let values = self.instances.iter().map(|one| one.get(kind).cloned());
            body.insert(kind.to_owned(), values.map(Option::unwrap_or_default).collect());
        }
        let images = self.instances.iter().filter_map(|one| one.get("image_data"));
        let images: Vec<Value> = images.filter(|image| !image.is_null()).cloned().collect();
        if !images.is_empty() {
            body.insert("image_data".to_owned(), images.into());
        }
        Value::Object(body)
    }
}

/// Error message for a request for hidden states, which a server returns only with a flag.
pub const HIDDEN_STATES_DISABLED_MESSAGE: &str = "The server is not configured to return hidden states. \
     Please set `--return-hidden-states-mode last`, `--return-hidden-states-mode full`, or the \
     legacy `--enable-return-hidden-states` flag.";
